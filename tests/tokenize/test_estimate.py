"""What a request is charged before its prompt is tokenized, worked out in portions."""

import pytest

from gateway.core.portions import finished
from gateway.core.request import Endpoint
from gateway.tokenize.encoder import least_tokens


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({"messages": [{"role": "user", "content": "x" * 160}]}, 10),
        ({"messages": [{"role": "user", "content": ["x" * 80, {"type": "text", "text": "y" * 80}, 7]}]}, 10),
        ({"messages": []}, 0),
    ],
)
def test_chat(fields, tokens):
    assert finished(least_tokens(Endpoint.CHAT, fields)) == tokens


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [("x" * 160, 10), (["x" * 80] * 2, 10), ([1, 2, 3], 3), ([[1, 2], [3]], 3), ([], 0), (None, 0)],
)
def test_completion(prompt, tokens):
    assert finished(least_tokens(Endpoint.COMPLETIONS, {"prompt": prompt})) == tokens


def test_many_parts_are_looked_at_in_portions():
    fields = {"messages": [{"role": "user", "content": [0] * 100_000}]}
    assert sum(1 for _ in least_tokens(Endpoint.CHAT, fields)) >= 24
