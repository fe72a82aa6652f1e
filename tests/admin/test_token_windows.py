"""Differences token by token, as ``GET /admin/api/requests/{id}`` shows them."""

import pytest
import tiktoken
from hypothesis import given
from hypothesis import strategies as st

from gateway.admin.explained import tokens_shown
from gateway.core.errors import BadRequest, NotFound
from gateway.tokenize.load_tokenizer import load_local

LOCAL = load_local("builtin:demo")
BYTES = tiktoken.Encoding(
    "bytes", pat_str=r"\w+|\W", mergeable_ranks={bytes([n]): n for n in range(256)}, special_tokens={}
)


def ids_of(text):
    packed = LOCAL.encode_text(text)
    return [int.from_bytes(packed[place : place + 4], "little") for place in range(0, len(packed), 4)]


def window(before, after, decode=LOCAL.decode):
    first = next((place for place, pair in enumerate(zip(before, after, strict=False)) if pair[0] != pair[1]), None)
    first = min(len(before), len(after)) if first is None else first
    return tokens_shown({"model": "m", "equal_tokens": 99, "before": before, "after": after, "first": first}, decode)


def states(shown):
    return ["".join(token["state"][0] for token in shown[side]) for side in ("before", "after")]


def texts(shown):
    return ["".join(token["text"] for token in shown[side]) for side in ("before", "after")]


def test_every_token_is_shown_masked_with_its_blanks_where_they_are():
    shown = window(ids_of("Order 4711 of\n\tMr Smith, 12:30"), ids_of("Order 4711 of\n\tMr Jones, 08:15"))
    assert texts(shown) == ["Xxxxx 9999 xx\n\tXx Xxxxx, 99:99"] * 2
    assert len(shown["before"]) == len(ids_of("Order 4711 of\n\tMr Smith, 12:30"))


def test_what_is_equal_what_differs_first_and_what_differs_behind_is_shown():
    assert states(window([1, 2, 3, 4], [1, 2, 9, 8])) == ["ssfd", "ssfd"]


def test_the_same_end_is_shown_as_the_same():
    assert states(window([1, 2, 3, 7, 7, 5], [1, 9, 8, 7, 7, 5])) == ["sfdsss", "sfdsss"]


def test_what_was_put_in_moves_the_rest():
    end = [20, 21, 22, 23]
    assert states(window([1, *end], [1, 9, 8, *end[:-1]])) == ["sfsss", "sfdsss"]
    assert states(window([1, 5, *end], [1, *end])) == ["sfssss", "sfsss"]


def test_a_few_equal_ones_in_the_middle_are_chance():
    assert states(window([1, 2, 30, 31, 4], [1, 9, 30, 31, 8])) == ["sfddd", "sfddd"]
    assert states(window([1, 2, 3, 6], [1, 9, 3, 6])) == ["sfdd", "sfdd"]


def test_a_prompt_that_is_the_beginning_of_the_other_ends_there():
    assert states(window([1, 2], [1, 2, 3, 4])) == ["ss", "ssfd"]
    assert states(window([], [1])) == ["", "f"]


def test_a_leading_blank_is_shown_where_a_tokenizer_drops_it_at_the_beginning():
    def decode(ids):
        return "".join({1: " Hello", 2: " there", 3: " Anna"}[each] for each in ids).removeprefix(" ")

    assert texts(window([1, 2, 3], [1, 2, 1], decode)) == ["Xxxxx xxxxx Xxxx", "Xxxxx xxxxx Xxxxx"]


def test_a_part_of_a_character_is_shown_as_a_dot():
    shown = window(list("aé".encode()), list("a💥".encode()), BYTES.decode)
    assert texts(shown) == ["x··", "x····"]


def test_ids_that_stand_for_no_token_are_shown_as_dots():
    huge = [1, 4_000_000_000, 17]
    for decode in (LOCAL.decode, BYTES.decode):
        shown = window(huge, [1, 2, 3], decode)
        assert shown["before"][1]["text"] == "·"


@given(st.lists(st.integers(0, 2**32 - 1), max_size=40), st.lists(st.integers(0, 700), max_size=40))
def test_nothing_of_a_prompt_can_be_read_in_it(before, after):
    for decode in (LOCAL.decode, BYTES.decode):
        shown = window(before, after, decode)
        assert [len(shown["before"]), len(shown["after"])] == [len(before), len(after)]
        for side in shown.values():
            for token in side:
                assert token.keys() == {"text", "state"}
                assert token["text"]
                letters = {character for character in token["text"] if character.isalnum()}
                assert letters <= set("xX9")


# In the answer


REQUEST = {
    "told": ["asked"],
    "model": "m",
    "difference": {"reason": "dynamic_time", "before": "Xxx", "after": "Xxx"},
    "tokens": {"source": "local"},
    "space": {"tokenizer": "tok"},
}
WINDOW = {"model": "m", "equal_tokens": 9, "before": ids_of("Hello Anna"), "after": ids_of("Hello Bert"), "first": 1}


@pytest.fixture
def port(unguarded):
    unguarded.decode = LOCAL.decode
    unguarded.components.answers = {"request": REQUEST, "tokens": WINDOW}
    return unguarded


async def difference(port):
    answer = await port.get("/admin/api/requests/r/1")
    assert answer.status_code == 200
    assert answer.json()["told"] == ["asked"]
    return answer.json()["difference"]


async def test_a_request_with_a_difference_shows_its_tokens(port):
    found = await difference(port)
    assert found["tokens"] == tokens_shown(WINDOW, LOCAL.decode)
    assert found["before"] == "Xxx"
    assert port.components.questions == [("request", {"id": "r/1"}), ("tokens", {"id": "r/1"})]


async def test_ids_stay_inside(port):
    secret = 123_456_789
    port.components.answers["tokens"] = WINDOW | {"before": [secret], "after": [secret + 1], "first": 0}
    answer = await port.get("/admin/api/requests/r1")
    assert str(secret) not in answer.text
    assert str(secret + 1) not in answer.text
    assert "equal_tokens" not in answer.text


async def test_without_a_difference_no_tokens_are_asked_for(port):
    port.components.answers["request"] = REQUEST | {"difference": None}
    assert await difference(port) is None
    assert len(port.components.questions) == 1


async def test_without_the_models_tokenizer_there_are_none(port):
    port.decode = None
    assert (await difference(port))["tokens"] is None


async def test_ids_of_another_tokenizer_are_not_shown_in_this_ones_words(port):
    port.components.answers["request"] = REQUEST | {"space": {"tokenizer": "another"}}
    assert (await difference(port))["tokens"] is None


async def test_what_stood_in_for_tokens_is_not_shown_as_such(port):
    port.components.answers["request"] = REQUEST | {"tokens": {"source": "text"}}
    assert (await difference(port))["tokens"] is None


@pytest.mark.parametrize(
    "answer", [NotFound("There is no question.", code="unknown_question"), BadRequest("No.", code="x"), None]
)
async def test_without_an_answer_the_rest_is_shown(port, answer):
    port.components.answers["tokens"] = answer
    assert (await difference(port))["tokens"] is None
