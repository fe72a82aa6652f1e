"""Parsing of request bodies: what engines accept, and the last body remembered."""

import math

import pytest

from gateway.explain.bodies import Bodies, parsed

CHAT = "/v1/chat/completions"


def test_the_last_body_is_parsed_once():
    bodies = Bodies()
    one, other = b'{"model": "m"}', b'{"model": "n"}'
    first = bodies.fields(one)
    assert first == {"model": "m"}
    assert bodies.fields(one) is first
    assert bodies.fields(other) == {"model": "n"}
    assert bodies.fields(one) == first


def test_a_body_that_is_no_object_stays_unreadable():
    bodies = Bodies()
    for body in (b"", b"[1]", b"{", b"[" * 100_000):
        assert parsed(body) is None
        assert bodies.fields(body) is None
    assert bodies.fields(b'{"model": "m"}') == {"model": "m"}


def test_numbers_that_engines_accept_are_read():
    fields = parsed(b'{"a": NaN, "b": 123456789012345678901234567890}')
    assert fields is not None
    assert math.isnan(fields["a"])
    assert fields["b"] == 123456789012345678901234567890


def test_the_text_of_a_body_is_kept_until_it_is_forgotten():
    bodies = Bodies()
    first = bodies.text("/v1/chat/completions", b'{"messages": [{"role": "user", "content": "Hi."}]}')
    assert first is not None
    bodies.text("/v1/chat/completions", b'{"messages": [{"role": "user", "content": "Ho."}]}')
    again = bytes(bytearray(b'{"messages": [{"role": "user", "content": "Hi."}]}'))
    assert bodies.text("/v1/chat/completions", again) is first
    assert bodies.text("/v1/completions", again) != first
    bodies.forget()
    assert bodies.text("/v1/chat/completions", again) is not first
    assert bodies.text("/v1/chat/completions", b"{") is None


def body_with(arguments: str, tool: str, n: int = 0) -> bytes:
    call = f'{{"id": "c", "function": {{"name": "f", "arguments": {arguments}}}}}'
    message = f'{{"role": "assistant", "content": null, "tool_calls": [{call}]}}'
    return f'{{"n": {n}, "messages": [{message}], "tools": [{tool}]}}'.encode()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a": 1, "b": 2}', '{"b": 2, "a": 1}'),
        ('{"a": 1}', '{"a": 1.0}'),
        ('{"a": 1}', '{"a": true}'),
        ('{"a": null}', '{"a": NaN}'),
        ("null", "NaN"),
        ('"1"', "1"),
        ("[" * 300 + "]" * 300, "[" * 301 + "]" * 301),
        ("1e400", "123456789012345678901234567890"),
    ],
)
def test_what_an_earlier_body_held_does_not_change_what_another_one_says(one: str, other: str):
    for before, after in ((one, other), (other, one)):
        bodies = Bodies()
        bodies.text(CHAT, body_with(before, f'{{"name": {before}}}'))
        read, alone = body_with(after, f'{{"name": {after}}}'), Bodies()
        assert repr(bodies.text(CHAT, read)) == repr(alone.text(CHAT, read))


def test_a_forgotten_body_is_not_taken_for_a_request_without_one():
    bodies = Bodies()
    key = bodies.key(b'{"messages": []}')
    bodies.forget()
    assert bodies.key(b"") != key
