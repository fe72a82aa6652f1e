"""The fuzzer of request bodies: it finds nothing in a few bodies, and finds faults that are planted."""

import json
import random

import pytest

from benchmarks.fuzz import body as fuzz
from gateway.core import json_edit as json_bytes
from gateway.core.request import Endpoint
from gateway.proxy import request_body as replica_body
from gateway.proxy.resume import continued

CHAT = Endpoint.CHAT
BODY = (
    b'{ "x":1e0 ,"stream_options" : {"include_usage":false}, "cache_salt":"s","max_tokens":9,"model":"m","stream":true,'
)
BODY += b'"messages":[{"role":"user","content":"Hi"}]}'


@pytest.mark.parametrize("seed", range(4))
def test_random_bodies(seed):
    chance = random.Random(seed)
    writer = fuzz.BodyWriter(chance)
    valid = sum(fuzz.check(chance.choice(list(Endpoint)), writer.body(), text=writer.text() or "a") for _ in range(100))
    assert valid > 40


@pytest.mark.parametrize("shape", fuzz.SHAPES, ids=lambda shape: shape.name)
def test_work_and_memory_grow_with_the_size(shape):
    fuzz.check_growth(shape, pieces=200)


def test_it_runs_for_a_time(monkeypatch):
    monkeypatch.setattr(fuzz, "SHAPES", [shape for shape in fuzz.SHAPES if shape.name == "numbers"])
    assert 0 < fuzz.run(0.2, seed=3) <= 10_000


# Planted faults


def _raising(*given, **named):
    raise KeyError


def _copying_each_time(body, fields, salt):
    for at in range(0, len(body), 8):
        body = body[:at] + body[at:]
    return body


def _looking_again(body, fields, salt):
    return [bytes.find(body, b"x", at) for at in range(0, len(body), 8) for _ in range(at // 8)]


def _keeping_all(body, fields, salt):
    return [bytes(body)[at:] for at in range(0, len(body), 8)]


def test_a_body_that_is_right():
    assert fuzz.check(CHAT, BODY)


def at_once(value):
    """Portioned work that is done without a pause."""
    return value
    yield


@pytest.mark.parametrize(
    ("module", "name", "fault"),
    [
        (fuzz, "parse_request", _raising),
        (replica_body, "asking_for_usage", lambda body, fields: at_once(body)),
        (
            replica_body,
            "asking_for_usage",
            lambda body, fields: at_once(body.replace(b"1e0", b"1.0").replace(b"false", b"true")),
        ),
        (replica_body, "salted", lambda body, fields, salt: at_once(b'{"cache_salt":"%b",' % salt.encode() + body[2:])),
        (replica_body, "salted", lambda body, fields, salt: at_once(body.replace(b'"s"', b'"%b" ' % salt.encode()))),
        (json_bytes, "without", lambda document, name: bytes(bytearray(document))),
        (json_bytes, "member_values", lambda body, name: iter([])),
        (json_bytes, "inserted", lambda document, member: document.replace(b"{ ", b"{" + member + b",")),
        (json_bytes, "replaced", lambda document, values: document.replace(b" ", b"")),
        (continued, "continued_body", lambda request, text, ids, spent: request.body),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_a_wrong_function_is_found(monkeypatch, module, name, fault):
    monkeypatch.setattr(module, name, fault)
    with pytest.raises((AssertionError, KeyError)):
        fuzz.check(CHAT, BODY.replace(b"1e0 ", b"1e0"))


@pytest.mark.parametrize(
    ("fault", "cost"), [(_copying_each_time, "work"), (_looking_again, "work"), (_keeping_all, "memory")]
)
def test_work_and_memory_by_the_square_are_found(monkeypatch, fault, cost):
    monkeypatch.setattr(replica_body, "salted", lambda *given: at_once(fault(*given)))
    (shape,) = (shape for shape in fuzz.SHAPES if shape.name == "objects")
    with pytest.raises(AssertionError, match=f"salted on objects.*{cost} grows"):
        fuzz.check_growth(shape, pieces=200)


def test_a_finding_is_made_short(monkeypatch):
    def fault(body, fields, salt):
        return b"" if b"stream_options" in body else b'{"cache_salt":"%b",' % salt.encode() + body[1:]

    monkeypatch.setattr(replica_body, "salted", lambda *given: at_once(fault(*given)))
    assert len(fuzz.shortest(CHAT, b'{"y":[1,2,3],"z":"stream_options",' + BODY[1:], json.JSONDecodeError, "a", 1)) < 90
