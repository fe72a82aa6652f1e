"""Parsing of request bodies: what engines accept, and the last body remembered."""

import math

from gateway.explain.bodies import Bodies, TextMemo, parsed
from gateway.explain.prompt_text import Message, PromptText


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


def test_a_forgotten_body_is_not_taken_for_a_request_without_one():
    bodies = Bodies()
    key = bodies.key(b'{"messages": []}')
    bodies.forget()
    assert bodies.key(b"") != key


def test_values_of_texts_are_bounded_in_bytes():
    memo: TextMemo[int] = TextMemo(10_000)
    texts = [PromptText((Message("user", f"{number:2000d}"),)) for number in range(9)]
    for number, text in enumerate(texts):
        memo.put(text, number)
    found = [memo.get(text) for text in texts]
    assert found[-1] == 8
    assert found[0] is None
    assert 2 <= sum(each is not None for each in found) <= 5
    memo.clear()
    assert memo.get(texts[-1]) is None
