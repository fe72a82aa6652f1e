"""Parsing of request bodies: what engines accept, and the last body remembered."""

import math

from gateway.explain.bodies import Bodies, parsed


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
