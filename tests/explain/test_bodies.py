"""Parsing of request bodies: what engines accept, and the last body remembered."""

import math

import pytest

from gateway.explain.bodies import Bodies, parsed
from gateway.explain.prompt_text import KnownParts

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


def test_tools_and_tool_calls_of_an_earlier_body_are_read_once():
    bodies = Bodies()
    first = bodies.text(CHAT, body_with('"{}"', '{"name": "f"}'))
    later = bodies.text(CHAT, body_with('"{}"', '{"name": "f"}', n=1))
    assert first is not None
    assert later is not None
    assert later is not first
    assert later.tools is first.tools
    assert later.messages[0] is first.messages[0]
    bodies.forget()
    again = bodies.text(CHAT, body_with('"{}"', '{"name": "f"}', n=2))
    assert again == first
    assert again.tools is not first.tools
    assert again.messages[0] is not first.messages[0]


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


def test_known_tools_are_bounded_in_bytes():
    known = KnownParts(100_000)
    first = known.tools([{"name": "first"}])
    assert known.tools([{"name": "first"}]) is first
    for number in range(40):
        known.tools([{"name": f"{number:01000d}"}])
    assert known.tools([{"name": "first"}]) is not first


def test_of_large_tools_no_more_are_known_than_fit():
    known = KnownParts(100_000)
    one, other = [{"name": "a" * 20_000}], [{"name": "b" * 20_000}]
    first, second = known.tools(one), known.tools(other)
    assert known.tools(other) is second
    assert known.tools(one) is not first


def test_a_forgotten_body_is_not_taken_for_a_request_without_one():
    bodies = Bodies()
    key = bodies.key(b'{"messages": []}')
    bodies.forget()
    assert bodies.key(b"") != key
