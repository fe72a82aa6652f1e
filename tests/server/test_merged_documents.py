"""What several workers answer at the admin port as one answer."""

from gateway.server.workers import merged_documents as documents


def replica(name, **members):
    row = {
        "id": name,
        "model": "demo",
        "state": "ready",
        "accepts": True,
        "up": True,
        "warming": False,
        "failures_in_a_row": 0,
        "silent_seconds": 0.0,
        "several_engines": False,
        "prompt_finding": "",
        "refusal": "",
        "left_out_seconds": 0.0,
        "requests": 1,
        "prefill_tokens_in_flight": 10,
        "prediction": {"requests": 2, "over_tokens": 1, "window_seconds": 900},
    }
    return row | members


def test_a_replica_is_as_bad_as_any_worker_sees_it():
    one = {"replicas": [replica("a"), replica("b", up=None)]}
    other = {
        "replicas": [
            replica(
                "a",
                state="suspect",
                accepts=False,
                up=False,
                failures_in_a_row=2,
                left_out_seconds=1.5,
                requests=4,
                refusal="401: its key",
            ),
            replica("b", up=False, warming=True),
            replica("c"),
        ]
    }
    a, b, c = documents.replicas([one, other])["replicas"]
    assert (a["state"], a["accepts"], a["up"]) == ("suspect", True, True)
    assert (a["failures_in_a_row"], a["left_out_seconds"], a["requests"]) == (2, 1.5, 5)
    assert (a["prefill_tokens_in_flight"], a["refusal"]) == (20, "401: its key")
    assert a["prediction"] == {"requests": 4, "over_tokens": 2, "window_seconds": 900}
    assert (b["up"], b["warming"]) == (False, True)
    assert c == replica("c")
    assert documents.replicas([one])["replicas"] == one["replicas"]


def prefix(name, requests, used, **held):
    return {
        "id": name,
        "model": "demo",
        "tokens": 64,
        "requests": requests,
        "reused_tokens": 10,
        "last_used": used,
        "example": f"{name}-{used}",
        "held": held,
    }


def test_prefixes():
    one = {"prefixes": [prefix("a", 3.0, 5.0, r0=64), prefix("b", 1.0, 4.0)], "half_life_seconds": 300.0}
    other = {"prefixes": [prefix("c", 2.0, 7.0), prefix("a", 2.5, 6.0, r0=32, r1=64)], "half_life_seconds": 300.0}
    merged = documents.prefixes([one, other], 2)
    assert merged["half_life_seconds"] == 300.0
    a, c = merged["prefixes"]
    assert (a["id"], a["requests"], a["reused_tokens"]) == ("a", 5.5, 20)
    assert (a["example"], a["last_used"], a["held"]) == ("a-6.0", 6.0, {"r0": 64, "r1": 64})
    assert c["id"] == "c"


def space(name, **members):
    row = {"id": name, "state": "alive", "born_at": 5.0, "used_at": 6.0, "expires_at": 10.0, "requests": 1}
    row |= {"prompt_tokens": 10, "cached_tokens": 5, "saved_prefill_seconds": 0.25, "personal_data": []}
    return row | members


def finding(kind, requests, shared):
    return {"kind": kind, "path": "messages[0]", "start": 3, "requests": requests, "shared": shared}


def test_spaces():
    one = {"spaces": [space("a", personal_data=[finding("email", 1, False)]), space("b", state="ended")], "more": False}
    other = {
        "spaces": [
            space(
                "a", born_at=4.0, used_at=9.0, expires_at=None, requests=2, personal_data=[finding("email", 2, True)]
            ),
            space("b", expires_at=None),
            space("c"),
        ],
        "more": False,
    }
    merged = documents.spaces([one, other], 3)
    a, b, _ = merged["spaces"]
    assert not merged["more"]
    assert (a["born_at"], a["used_at"], a["expires_at"], a["requests"]) == (4.0, 9.0, 10.0, 3)
    assert (a["prompt_tokens"], a["saved_prefill_seconds"]) == (20, 0.5)
    assert a["personal_data"] == [finding("email", 3, True)]
    assert b["state"] == "alive"
    cut = documents.spaces([one, other], 2)
    assert (len(cut["spaces"]), cut["more"]) == (2, True)
    assert documents.spaces([one | {"more": True}, other], 3)["more"]


def test_orders():
    ended = [{"id": "a", "model": "demo"}, {"id": "b", "model": "demo"}]
    assert documents.reset([{"reset": 1, "spaces": ended[:1]}, {"reset": 2, "spaces": ended}]) == {
        "reset": 2,
        "spaces": ended,
    }
    drained = {"replica": "r0", "draining": True, "because": ["operator"], "requests": 2}
    assert documents.drain([drained, drained | {"requests": 3}]) == drained | {"requests": 5}
    again = {"enabled": True, "tokens_per_hour": 100, "left_out": {"busy": 1}}
    reset, idle = ({"cause": cause, "requests": 2, "gpu_seconds": 0.5} for cause in ("reset", "idle"))
    jobs = [
        {"declared": [1], "jobs": ["a"], "again": again, "totals": [reset]},
        {"declared": [1], "jobs": ["b", "c"], "again": again, "totals": [idle, reset]},
    ]
    assert documents.warm(jobs) == {
        "declared": [1],
        "jobs": ["a", "b", "c"],
        "again": {"enabled": True, "tokens_per_hour": 200, "left_out": {"busy": 2}},
        "totals": [{"cause": "reset", "requests": 4, "gpu_seconds": 1.0}, idle],
    }
