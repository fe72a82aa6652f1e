"""Recorded requests are read from every format; what cannot be read is counted and named."""

import gzip
import io
import json
import time
from types import SimpleNamespace

import pytest
import zstandard
from planted_logs import BEGAN, chat

from gateway.core.request import Endpoint
from gateway.evaluation.bad_input import BadInput
from gateway.evaluation.logs.log_file import MAX_LINE_BYTES
from gateway.evaluation.logs.log_reading import LogReading

BODY = {"model": "m", "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}]}
USAGE = {"prompt_tokens": 100, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 64}}
ANSWER = {"choices": [{"message": {"role": "assistant", "content": "Hello!"}}], "usage": USAGE}


@pytest.fixture
def log(tmp_path):
    def write(*entries, name="requests.jsonl"):
        path = tmp_path / name
        texts = [each if isinstance(each, str) else json.dumps(each) for each in entries]
        path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
        return str(path)

    return write


def read(*paths):
    reading = LogReading([str(path) for path in paths])
    return [request for _, request in reading.requests()], reading.counts


def one(path):
    (request,), counts = read(path)
    return request, next(iter(counts.formats.values()))


def test_a_body_a_line(log):
    request, kind = one(log(BODY | {"metadata": {"session_id": "s1"}}))
    assert kind == "request bodies"
    assert (request.endpoint, request.body["messages"]) == (Endpoint.CHAT, BODY["messages"])
    assert (request.at, request.source, request.session, request.usage) == (None, "unknown", "s1", None)
    assert request.place.endswith("requests.jsonl:1")


def test_a_completion(log):
    request, _ = one(log({"model": "m", "prompt": "Once upon a time"}))
    assert (request.endpoint, request.body["prompt"]) == (Endpoint.COMPLETIONS, "Once upon a time")


def test_a_request_to_the_responses_api_is_converted_as_the_gateway_does(log):
    request, _ = one(log({"model": "m", "input": "Hi", "instructions": "Be kind."}))
    assert (request.endpoint, request.body["messages"]) == (Endpoint.CHAT, BODY["messages"])
    by_id = {"model": "m", "input": "Hi", "instructions": "x", "previous_response_id": "resp_1"}
    refused = {"model": "m", "input": [{"type": "mcp_call"}], "instructions": "x"}
    found, counts = read(log(BODY, by_id, refused))
    assert len(found) == 1
    assert counts.unreadable_entries == 2


def test_a_body_with_its_answer_and_time(log):
    headers = {"User-Agent": "mobile/2.1 (iOS)", "X-Session-Id": "abc"}
    request, _ = one(
        log(
            {"request": BODY, "response": ANSWER, "timestamp": "2026-09-21T13:33:20Z", "headers": headers, "team": "t1"}
        )
    )
    assert request.at == 1789997600.0
    assert (request.source, request.session, request.tenant, request.reply) == ("mobile", "abc", "t1", "Hello!")
    assert (request.usage.prompt_tokens, request.usage.cached_tokens, request.usage.output_tokens) == (100, 64, 7)


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        (1790000000, 1790000000.0),
        (1790000000.5, 1790000000.5),
        ("1790000000.5", 1790000000.5),
        (1790000000500, 1790000000.5),
        (1790000000500000, 1790000000.5),
        (1790000000500000000, 1790000000.5),
        ("2026-09-21T13:33:20+02:00", 1789990400.0),
        ("2026-09-21 13:33:20", 1789997600.0),
        ("21/Sep/2026:13:33:20 +0000", 1789997600.0),
        ("yesterday", None),
        (12, None),
        (True, None),
        (float("nan"), None),
    ],
)
def test_times(log, written, seconds):
    assert one(log({"request": BODY, "timestamp": written}))[0].at == seconds


def test_requests_and_answers_as_texts(log):
    stream = 'data: {"choices":[{"delta":{"content":"He"}}]}\n\ndata: ' + json.dumps({"choices": [], "usage": USAGE})
    request, _ = one(log({"request": json.dumps(BODY), "response": stream, "time": BEGAN}))
    assert request.body == BODY
    assert request.usage.cached_tokens == 64


def test_the_messages_api_becomes_chat_messages(log):
    body = {
        "model": "m",
        "max_tokens": 8,
        "system": [{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}],
        "tools": [{"name": "look", "description": "Looks.", "input_schema": {"type": "object"}}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Look!"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Hm."},
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "t1", "name": "look", "input": {"at": "it"}},
                ],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "A tree."}]},
        ],
    }
    usage = {"input_tokens": 10, "cache_read_input_tokens": 80, "cache_creation_input_tokens": 5, "output_tokens": 3}
    answer = {"content": [{"type": "text", "text": "A tree, then."}], "usage": usage}
    request, _ = one(log({"request": body, "response": answer}))
    assert request.body["max_tokens"] == 8
    function = {"name": "look", "arguments": '{"at": "it"}'}
    assert request.body["messages"] == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Look!"},
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [{"id": "t1", "type": "function", "function": function}],
            "reasoning_content": "Hm.",
        },
        {"role": "tool", "tool_call_id": "t1", "content": "A tree."},
    ]
    tool = {"name": "look", "description": "Looks.", "parameters": {"type": "object"}}
    assert request.body["tools"] == [{"type": "function", "function": tool}]
    assert (request.usage.prompt_tokens, request.usage.cached_tokens, request.reply) == (95, 80, "A tree, then.")


def litellm(**more):
    return {
        "id": "chatcmpl-1",
        "call_type": "acompletion",
        "startTime": BEGAN,
        "endTime": BEGAN + 2,
        "model": "openai/m",
        "model_group": "m",
        "model_map_information": {},
        "messages": BODY["messages"],
        "response": ANSWER,
        "metadata": {"user_api_key_alias": "team-a", "user_api_key_hash": "88dc"},
        "model_parameters": {"tools": [{"type": "function", "function": {"name": "f"}}], "max_tokens": 5},
        "request_tags": ["User-Agent: shop/1.0"],
        "prompt_tokens": 100,
        **more,
    }


@pytest.mark.parametrize(
    "wrap",
    [
        lambda payload: payload,
        lambda payload: {"level": "INFO", "message": json.dumps(payload), "timestamp": "2026-01-01T00:00:00Z"},
        lambda payload: {"kwargs": {"standard_logging_object": payload}},
    ],
)
def test_litellm(log, wrap):
    request, kind = one(log(wrap(litellm())))
    assert kind == "litellm log"
    assert request.body["messages"] == BODY["messages"]
    assert request.body["tools"][0]["function"]["name"] == "f"
    assert (request.at, request.tenant, request.source, request.body["model"]) == (BEGAN, "team-a", "shop", "m")
    assert request.usage.cached_tokens == 64


def test_litellm_entries_without_text(log):
    redacted = litellm(messages=[{"role": "user", "content": "redacted-by-litellm"}])
    requests, counts = read(log(litellm(), redacted, litellm(call_type="aembedding"), {"message": "started"}))
    assert (len(requests), counts.others, counts.unreadable_entries) == (1, 2, 1)
    assert any("turn_off_message_logging" in reason for reason in counts.unreadable)


def test_vllm_lines_with_prompt_and_token_ids(log):
    front = "(APIServer pid=7) DEBUG 09-21 13:33:20 [entrypoints/serve/utils/request_logger.py:57]"
    requests, counts = read(
        log(
            "(APIServer pid=7) INFO 09-21 13:33:19 [api_server.py:1] Starting vLLM API server",
            f"{front} Request chatcmpl-1 details: prompt: 'It\\'s \\n \\u00fc', prompt_token_ids: [1, 2, 70000], "
            "prompt_embeds shape: None.",
            name="vllm.log",
        )
    )
    assert list(counts.formats.values()) == ["vLLM log"]
    assert requests[0].body["prompt"] == "It's \n ü"
    assert requests[0].token_ids == b"\x01\0\0\0\x02\0\0\0\x70\x11\x01\0"
    assert requests[0].at % 86400 == 48800
    assert requests[0].at < time.time() + 86400


def test_vllm_lines_of_older_releases(log):
    line = (
        'INFO 09-21 13:33:20 [logger.py:39] Received request cmpl-1: prompt: "It\'s", params: SamplingParams(n=1, '
        "max_tokens=5), prompt_token_ids: [5, 6], prompt_embeds shape: None, lora_request: None."
    )
    (request,), counts = read(log(line, name="vllm.log"))
    assert (request.body["prompt"], request.body["max_tokens"], len(request.token_ids)) == ("It's", 5, 8)
    assert counts.unreadable_entries == 0


def test_vllm_bodies_are_read_once(log):
    front = "(APIServer pid=7) DEBUG 09-21 13:33:20 [entrypoints/serve/utils/request_logger.py:74]"
    (request,), counts = read(
        log(
            f"{front} Request abc JSON body: {json.dumps(BODY)}",
            f"{front} Request chatcmpl-abc details: prompt: 'x', prompt_token_ids: [1], prompt_embeds shape: None.",
            f"{front} Received request chatcmpl-abc: prompt: 'x', params: SamplingParams(n=1), lora_request: None.",
            name="vllm.log",
        )
    )
    assert request.body == BODY
    assert counts.others == 2


def test_vllm_lines_without_prompts_say_what_to_do(log):
    line = (
        "INFO 09-21 13:33:20 [request_logger.py:65] Received request c-1: params: SamplingParams(n=1), lora_request: -."
    )
    with pytest.raises(BadInput, match=r"vllm\.log: no request in it.*VLLM_LOGGING_LEVEL=DEBUG.*vllm\.log:1"):
        read(log(line, line, name="vllm.log"))


def test_a_batch(log):
    chat_line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": BODY}
    embedding = {"custom_id": "b", "method": "POST", "url": "/v1/embeddings", "body": {"model": "e", "input": "x"}}
    requests, counts = read(log(chat_line, embedding))
    assert list(counts.formats.values()) == ["OpenAI Batch"]
    assert (len(requests), counts.others, counts.without_time) == (1, 1, 1)


NGINX = {"time_local": "21/Sep/2026:13:33:20 +0000", "request": "POST /v1/chat/completions HTTP/1.1", "status": "200"}
ENVOY = {
    "start_time": "2026-09-21T13:33:20.000Z",
    "method": "POST",
    "path": "/v1/chat/completions",
    "response_code": 200,
}


@pytest.mark.parametrize(
    "line",
    [
        NGINX | {"http_user_agent": "shop/1", "request_body": json.dumps(BODY)},
        NGINX | {"http_user_agent": "shop/1", "request_body": json.dumps(BODY).replace('"', "\\x22")},
        ENVOY | {"user_agent": "shop/1", "request_body": BODY, "response_body": json.dumps(ANSWER)},
        ENVOY | {"user_agent": "shop/1", "bytes_received": 10, "req-body": json.dumps(BODY)},
    ],
    ids=["nginx", "nginx, escaped", "envoy with answer", "other name"],
)
def test_access_logs(log, line):
    request, kind = one(log(line))
    assert kind == "JSON access log"
    assert (request.body, request.at, request.source) == (BODY, 1789997600.0, "shop")


def test_access_log_lines_of_other_requests(log):
    good = NGINX | {"request_body": json.dumps(BODY)}
    health = NGINX | {"request": "GET /health HTTP/1.1"}
    cut = NGINX | {"request_body": json.dumps(BODY)[:40]}
    requests, counts = read(log(good, health, cut))
    assert (len(requests), counts.others) == (1, 1)
    assert list(counts.unreadable) == ["a request body that is not complete JSON (cut off in the log?)"]


def test_an_access_log_without_bodies_says_how_to_log_them(log):
    with pytest.raises(BadInput, match=r"access\.log: no request in it.*without a request body.*\$request_body"):
        read(log(NGINX, NGINX, name="access.log"))


def test_har(tmp_path):
    exchange = {
        "startedDateTime": "2026-09-21T13:33:20Z",
        "request": {
            "method": "POST",
            "url": "https://gateway.internal.example/some/long/prefix/v1/chat/completions",
            "headers": [{"name": "User-Agent", "value": "Mozilla/5.0"}],
            "postData": {"mimeType": "application/json", "text": json.dumps(BODY)},
        },
        "response": {"status": 200, "content": {"text": json.dumps(ANSWER)}},
    }
    page = {"request": {"method": "GET", "url": "https://x/"}, "response": {}}
    path = tmp_path / "session.har"
    path.write_text(json.dumps({"log": {"version": "1.2", "entries": [page, exchange]}}, indent=1))
    (request,), counts = read(path)
    assert list(counts.formats.values()) == ["HAR"]
    assert (request.body, request.at, request.source, request.usage.cached_tokens) == (
        BODY,
        1789997600.0,
        "mozilla",
        64,
    )
    path.write_text('{"log": {"version": "1.2", "entries": [')
    with pytest.raises(BadInput, match="begins like a HAR file and is none"):
        read(path)


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress, lambda data: zstandard.compress(data) * 2])
def test_packed_files(tmp_path, pack):
    path = tmp_path / "requests"
    path.write_bytes(pack((json.dumps(BODY) + "\n").encode()))
    requests, _ = read(path)
    assert requests[0].body == BODY


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
def test_a_damaged_file_is_named(tmp_path, pack):
    path = tmp_path / "requests.gz"
    path.write_bytes(pack(b"".join(json.dumps(BODY | {"user": f"{n}"}).encode() + b"\n" for n in range(5000)))[:2000])
    with pytest.raises(BadInput, match=r"requests\.gz: cannot be unpacked to its end"):
        read(path)


def test_standard_input(monkeypatch):
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(gzip.compress(json.dumps(BODY).encode()))))
    requests, counts = read("-")
    assert requests[0].place == "standard input:1"
    assert counts.formats == {"standard input": "request bodies"}


def test_lines_that_cannot_be_read_are_counted_and_named(log):
    bad = '{"model": "m", "messages": ['
    path = log(BODY, bad, "", bad, {"hello": 1}, "[1]", bad, bad, BODY, {"instructions": "x", "input": 5})
    requests, counts = read(path)
    assert len(requests) == 2
    assert counts.unreadable["not valid JSON"].count == 4
    assert counts.unreadable["not valid JSON"].places == [f"{path}:2", f"{path}:4", f"{path}:7"]
    assert counts.unreadable_entries == 7


def test_a_line_beyond_the_limit_is_left_out(tmp_path):
    path = tmp_path / "long.jsonl"
    line = json.dumps(BODY).encode()
    path.write_bytes(line + b"\n" + b"x" * (MAX_LINE_BYTES + 10) + b"\n" + line + b"\n")
    requests, counts = read(path)
    assert [request.place[-2:] for request in requests] == [":1", ":3"]
    assert counts.unreadable["a line that is too long"].places == [f"{path}:2"]


def test_requests_of_several_files_come_in_the_order_of_their_times(log):
    def logged(*times):
        return [{"request": chat("", f"{at}"), "timestamp": BEGAN + at} for at in times]

    first, second = log(*logged(0, 20, 10, 40), name="a.jsonl"), log(*logged(5, 15, 30), name="b.jsonl")
    requests, _ = read(first, second)
    assert [request.at - BEGAN for request in requests] == [0, 5, 10, 15, 20, 30, 40]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"x\.log: empty; expected recorded requests"),
        (b"a,b,c\n1,2,3\n", r"x\.log: no log of requests: its first 2 lines"),
        (b"PK\x03\x04abc", r"x\.log: a zip archive \(unpack it\)"),
        (b"\x01\x00\x02", r"x\.log: a binary file"),
        (b'{"hello": "world"}\n', r"x\.log: no log of requests"),
        (b'{"model": "e", "input": "x", "prompt": []}\n{"model": 1}\n', None),
    ],
)
def test_files_of_another_type(tmp_path, content, message):
    path = tmp_path / "x.log"
    path.write_bytes(content)
    if message is None:
        assert len(read(path)[0]) == 1
        return
    with pytest.raises(BadInput, match=message):
        read(path)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(BadInput, match=r"missing\.log: cannot be read: No such file"):
        read(tmp_path / "missing.log")
    with pytest.raises(BadInput, match="cannot be read: Is a directory"):
        read(tmp_path)
