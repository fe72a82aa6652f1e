"""Parsed JSON as bytes again, also where it holds integers beyond 64 bits."""

import json

import pytest

from gateway.tokenize.conversation import written


@pytest.mark.parametrize("value", [2**64, -(2**70), int("7" * 128), [{"a": 2**65, "b": [1, "x", None, 0.5]}]])
def test_large_integers_are_written_exactly(value):
    assert json.loads(written(value)) == value


def test_absurd_integers_are_written_without_their_digits():
    # The time to write a digit grows with the number of digits.
    document = written({"a": [int("7" * 4299), -int("7" * 4299), 2**65]})
    assert document == b'{"a": [Infinity, -Infinity, %d]}' % 2**65
