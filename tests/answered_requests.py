"""Answered requests, as the gateway hands them over."""

from array import array

from gateway.core.explanation import ReplicaPrefix, RequestRecord, SpaceKey
from gateway.explain.bodies import parsed
from gateway.request_record import opening_and_turn


def ids(tokens):
    """Token ids, little-endian u32."""
    return array("I", tokens).tobytes()


def answered(**about):
    """A chat request of 100 tokens that was answered by ``r0``; ``about`` changes any of its fields."""
    prompt_tokens = about.get("prompt_tokens", sum(map(len, about.get("parts", ()))) // 4 or 100)
    fields = {
        "request_id": "one",
        "at": 1000.0,
        "model": "demo",
        "endpoint": "/v1/chat/completions",
        "tenant": "acme",
        "tenant_label": "acme",
        "source": "web",
        "session": "",
        "where": SpaceKey("demo", "tok", "v1"),
        "life": "a",
        "body": b"",
        "parts": (),
        "replies": (),
        "token_source": "local",
        "block_size": 16,
        "prompt_tokens": prompt_tokens,
        "own_tokens": prompt_tokens,
        "predicted_tokens": 0,
        "cached_tokens": 0,
        "completion_tokens": 5,
        "replica": "r0",
        "rank": 0,
        "decision": "cold",
        "policy": "expected_ttft",
        "holders": (ReplicaPrefix("r0", 0, about.get("predicted_tokens", 0)),),
        "bypasses_cache": False,
        "is_blind": False,
        "template_tells_time": False,
        "tools_first": False,
        "status": 200,
        "ending": "complete",
        "streamed": False,
        "ttft_seconds": None,
        "seconds": 0.1,
        "failed_attempts": 0,
        "prefill_seconds_per_token": 0.0001,
        "sent_after_seconds": 0.004,
        "stages": (("encode", 0.002), ("hash", 0.0005), ("place", 0.0002)),
        "warming": False,
    }
    body = parsed(about["body"]) if about.get("body") else {}
    fields["opening"], fields["turn"] = opening_and_turn(body or {})
    return RequestRecord(**fields | about)
