"""Times and ids in front whose cause is remembered."""

import random
import zlib
from datetime import UTC, datetime, timedelta

import orjson
import pytest
from answered_requests import answered, ids

from gateway.explain import comparison
from gateway.explain.diff import find_difference
from gateway.explain.explainer import Explainer
from gateway.explain.reference import Families, References
from gateway.explain.seen import PromptHashes
from gateway.tokenize.block_hashes import ChainHasher

RULES = " ".join(f"Rule {number}: answer questions about shelf {number} of the shop politely." for number in range(30))
BEGAN = datetime(2026, 11, 29, 8, 59, 30, tzinfo=UTC)


def explainer():
    return Explainer(PromptHashes(ChainHasher()), References(10_000_000, 3600.0), Families(find_difference), 10_000)


def asked(number, front, question, **more):
    texts = [("system", f"{front}\n{RULES}"), ("user", question)]
    words = " ".join(f"<{role}> {text}" for role, text in texts).split()
    body = orjson.dumps(more | {"messages": [{"role": role, "content": text} for role, text in texts]})
    tokens = ids([zlib.crc32(word.encode()) for word in words])
    return answered(parts=(tokens,), body=body, at=1000.0 + number, request_id=f"r{number}")


def timed(number):
    return f"It is {(BEGAN + timedelta(seconds=7 * number)).isoformat()}."


def with_id(number):
    rng = random.Random(number)
    return f"Session {rng.randbytes(8).hex()}, user {rng.choice(['Ann', 'Bob', 'Eve'])}."


def either(number):
    return f"Plan {'abc'[number % 3]}." if number % 4 else timed(number)


def numbered(number):
    """Some of the numbers could be times."""
    return f"Card {random.Random(number).randrange(10**9, 10**10)}."


@pytest.mark.parametrize("front", [timed, with_id, either, numbered])
def test_a_remembered_cause_is_what_a_comparison_finds(front):
    remembering, other = explainer(), explainer()
    for number in range(60):
        request = asked(number, front(number), f"Question {number * 37}?")
        other.declare_documents(())  # forgets the causes
        assert remembering.explain(request) == other.explain(request)


@pytest.mark.parametrize("values", [("10:15", "11:20", "unknown"), ("10:15", "11:20", "ab:cd"), ("1", "2", "one")])
def test_a_cause_is_not_taken_from_what_differs_in_front_of_the_messages(values):
    remembering, other = explainer(), explainer()
    for number, value in enumerate([*values, *values]):
        request = asked(number, f"{RULES}\nNow: {value} Facts:", f"Question {number}?", user=f"req-{number:04}")
        other.declare_documents(())
        assert remembering.explain(request) == other.explain(request)


def test_a_time_in_front_is_compared_a_few_times_only(monkeypatch):
    compared = []

    def counted(*args, **named):
        compared.append(args)
        return find_difference(*args, **named)

    monkeypatch.setattr(comparison, "find_difference", counted)
    explaining = explainer()
    found = [explaining.explain(asked(number, timed(number), f"Question {number}?")) for number in range(100)]
    assert {each.difference.path for each in found[1:]} == {"messages[0].content"}
    assert len(compared) < 20
