"""Documents that are counted and parsed in portions: the same as in one go, for any end of a portion."""

import asyncio
import json
import random
from typing import Any

import orjson
import pytest
from levels import slow_except

from gateway.core import json_portions
from gateway.core.json_portions import InvalidJson, JsonCounts, JsonLimits, TooMuchJson, lenient, parsed, scanned
from gateway.core.portions import Portioned, finished
from gateway.turns import Turns

UNLIMITED = JsonLimits(2**30, 2**30, 2**30, 2**30)
SMALL_PORTIONS = (35, 36, 37, 38, 64)
"""No number below is longer, and so is no escape with both halves of a surrogate pair."""
SCALARS = (0, -2.5, True, None, "", 'a\\\\\\"b', "漢字漢字", "😀\n\x07😀", "[{,:}]" * 4, "\\" * 17, "x" * 80)
NAMES = ("a", "b", "c\\", "é", "{", 'quote"')
FAULTS = (b",", b"]", b"[", b"{", b"}", b'"', b"\\", b":", b" ", b"NaN", b"\\ud83d", b"\xff", b"1e999")


def counts(document: bytes, limits: JsonLimits = UNLIMITED) -> JsonCounts:
    return finished(scanned(document, limits)).counts


def value(chance: random.Random, depth: int = 0) -> Any:
    kind = chance.random()
    if depth > 4 or kind < 0.35:
        return chance.choice(SCALARS)
    if kind < 0.7:
        return [value(chance, depth + 1) for _ in range(chance.randrange(6))]
    return {chance.choice(NAMES): value(chance, depth + 1) for _ in range(chance.randrange(5))}


def written(chance: random.Random) -> bytes:
    """A document, in any spelling."""
    separators = chance.choice([None, (",", ":")])
    ascii_only, indent = chance.random() < 0.5, chance.choice([None, None, 1])
    return json.dumps(value(chance), ensure_ascii=ascii_only, indent=indent, separators=separators).encode()


def damaged(document: bytes, chance: random.Random) -> bytes:
    for _ in range(chance.randrange(1, 3)):
        at = chance.randrange(len(document) + 1)
        document = document[:at] + chance.choice([b"", *FAULTS]) + document[at + chance.randrange(2) :]
    return document


def in_one_go(document: bytes) -> Any:
    """What the two parsers say; ``InvalidJson`` if neither takes it."""
    try:
        return orjson.loads(document)
    except orjson.JSONDecodeError:
        try:
            return lenient(document)
        except ValueError:
            return InvalidJson


def in_portions(document: bytes) -> Any:
    try:
        return finished(parsed(document, UNLIMITED))
    except InvalidJson:
        return InvalidJson


@pytest.mark.parametrize("seed", slow_except(range(20), range(4)))
@pytest.mark.parametrize("faulty", [False, True], ids=["valid", "damaged"])
def test_portions_give_what_one_call_gives(seed, faulty, monkeypatch):
    chance = random.Random(seed)
    for _ in range(100):
        monkeypatch.setattr(json_portions, "PORTION", chance.choice(SMALL_PORTIONS))
        document = written(chance)
        if faulty:
            document = damaged(document, chance)
        # By ``repr``, because NaN equals nothing.
        assert repr(in_portions(document)) == repr(in_one_go(document)), document


@pytest.mark.parametrize("size", range(35, 60))
@pytest.mark.parametrize(
    "text", ["\\" * 40, "\\\\x" * 20, '"' * 40, "😀" * 20, "a😀漢é" * 10, "\n" * 40, "\\ud83d\\ude00" * 10]
)
def test_strings_are_cut_between_characters(size, text, monkeypatch):
    monkeypatch.setattr(json_portions, "PORTION", size)
    for document in (orjson.dumps([text, {"a": text}]), json.dumps([text, {text: text}]).encode()):
        assert in_portions(document) == json.loads(document)


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (b"0", JsonCounts(0, 0, 0)),
        (b"[]", JsonCounts(1, 0, 1)),
        (b"[0,0]", JsonCounts(1, 0, 2)),
        (b'{"a":0,"b":[1,2,3]}', JsonCounts(2, 2, 5)),
        (b'{"a,:[{":"]},:\\",[\\\\"}', JsonCounts(1, 1, 1)),
        (b'["' + b"\\\\" * 100_000 + b'",[]]', JsonCounts(2, 0, 3)),
        (b'["' + b'\\"' * 100_001 + b'",[]]', JsonCounts(2, 0, 3)),
    ],
)
def test_what_stands_in_strings_is_not_counted(document, expected):
    assert counts(document) == expected


@pytest.mark.parametrize("size", range(1, 12))
def test_counts_do_not_depend_on_where_portions_end(size, monkeypatch):
    document = b'{"a\\\\":"\\"[\\\\\\"{,","b":[[],{"c":"\\\\"},","]}'
    whole = counts(document)
    monkeypatch.setattr(json_portions, "PORTION", size)
    assert counts(document) == whole == JsonCounts(4, 3, 7)


@pytest.mark.parametrize(
    ("limits", "kind"),
    [
        (UNLIMITED._replace(depth=2), "depth"),
        (UNLIMITED._replace(containers=3), "containers"),
        (UNLIMITED._replace(members=2), "members"),
        (UNLIMITED._replace(values=7), "values"),
    ],
)
def test_limits_are_exact(limits, kind):
    document = b'{"a":0,"b":[[],{"c":0},1,2]}'
    assert counts(document, JsonLimits(3, 4, 3, 8)) == JsonCounts(4, 3, 8)
    with pytest.raises(TooMuchJson) as reported:
        counts(document, limits)
    assert reported.value.kind == kind


def test_nothing_behind_an_exceeded_limit_is_looked_at():
    document = b"[" + b"0," * 4_000_000 + b"0]"
    portions: list[None] = []
    with pytest.raises(TooMuchJson):
        portions.extend(scanned(document, UNLIMITED._replace(values=100_000)))
    assert len(portions) <= 200_000 // json_portions.PORTION + 1


def test_no_call_of_a_parser_gets_more_than_a_portion(monkeypatch):
    sizes = []
    loads = orjson.loads

    def recording(text: bytes) -> Any:
        sizes.append(len(text))
        return loads(text)

    document = orjson.dumps(
        {"ids": list(range(300_000)), "text": "words, " * 200_000, "n": {str(n): n for n in range(50_000)}}
    )
    expected = loads(document)
    monkeypatch.setattr(orjson, "loads", recording)
    assert finished(parsed(document, UNLIMITED)) == expected
    assert max(sizes) <= json_portions.PORTION + 2


def test_a_string_whose_characters_would_take_four_bytes_each_is_bounded():
    text = "a" * (json_portions.MAX_TEXT_BYTES // 4)
    assert finished(parsed(orjson.dumps([text]), UNLIMITED)) == [text]
    with pytest.raises(TooMuchJson) as reported:
        finished(parsed(orjson.dumps([text + "😀"]), UNLIMITED))
    assert reported.value.kind == "text"


def counting(name: str, order: list[str]) -> Portioned[str]:
    for _ in range(3):
        order.append(name)
        yield
    return name


async def test_work_takes_turns():
    turns, order = Turns(), []
    found = await asyncio.gather(*(turns.run(counting(name, order)) for name in "abc"))
    assert found == ["a", "b", "c"]
    assert order == [*"abc"] * 3


async def test_one_portion_is_done_per_turn_of_the_loop():
    turns, order = Turns(), []
    works = [asyncio.ensure_future(turns.run(counting("x", order))) for _ in range(10)]
    await asyncio.sleep(0)
    done = len(order)
    while not all(work.done() for work in works):
        await asyncio.sleep(0)
        assert len(order) - done <= 1
        done = len(order)


async def test_short_work_waits_for_nothing():
    turns, order = Turns(), []
    long = asyncio.ensure_future(turns.run(counting("long", order)))
    await asyncio.sleep(0)

    def short() -> Portioned[int]:
        return 7
        yield

    assert await turns.run(short()) == 7
    assert order == ["long"]
    await long


async def test_turns_go_round_the_tenants():
    turns, order = Turns(), []
    flood = [asyncio.ensure_future(turns.run(counting("a", order), "a")) for _ in range(50)]
    other = await turns.run(counting("b", order), "b")
    assert other == "b"
    assert order.count("a") <= 50 + 3, "the other tenant waited for more than a portion for each of its own"
    await asyncio.gather(*flood)


async def test_work_that_is_cancelled_leaves_its_turn_to_others():
    turns, order = Turns(), []
    works = [asyncio.ensure_future(turns.run(counting(name, order))) for name in "abc"]
    await asyncio.sleep(0)
    works[1].cancel()
    assert await asyncio.gather(works[0], works[2]) == ["a", "c"]


@pytest.mark.parametrize("opens", [b"[", b"{", b'{"a":[', b"[{", b'{"a":{'])
def test_an_empty_container_with_much_space_in_it(opens):
    closes = bytes({ord("["): ord("]"), ord("{"): ord("}")}[each] for each in reversed(opens) if each in b"[{")
    document = opens + b" \n" * 200_000 + closes
    assert finished(parsed(document, UNLIMITED)) == orjson.loads(document)
