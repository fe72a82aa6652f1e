"""The usage in a response that is read piece by piece."""

import json

import pytest

from gateway.core.outcome import Usage
from gateway.proxy.usage_scan import UsageScan

COUNTS = {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}
FOUND = Usage(7, 3, 4)
OTHER = {"prompt_tokens": 70, "completion_tokens": 30}


def scanned(text, *, size=2**30):
    """The usage in a text that arrives in pieces of ``size`` bytes."""
    data = text.encode()
    scan = UsageScan()
    for start in range(0, len(data), size):
        scan.feed(data[start : start + size])
    return scan.finish()


def response(*, text="Hi", **more):
    return json.dumps({"id": "x", "choices": [{"index": 0, "message": {"content": text}}], **more})


def filled(size):
    return "word " * (size // 5)


@pytest.mark.parametrize("size", [1, 2, 7, 2**30])
def test_usage_is_found_in_pieces_of_any_size(size):
    assert scanned(response(usage=COUNTS), size=size) == FOUND


@pytest.mark.parametrize(("size", "cut"), [(65_536, 65_536), (1000, 66_000)])
def test_usage_is_found_where_a_large_response_is_cut(size, cut):
    """The cut is within its name, within its value, or next to them."""
    begin = response(text="", usage=COUNTS).index('"usage"')
    for before in range(120):
        text = response(text="a" * (cut - before - begin), usage=COUNTS)
        assert text.index('"usage"') == cut - before
        assert scanned(text, size=size) == FOUND, before


@pytest.mark.parametrize("indent", [None, 0, 4])
def test_usage_is_found_before_a_long_text(indent):
    text = json.dumps({"usage": COUNTS, "choices": [{"text": filled(300_000)}]}, indent=indent)
    assert scanned(text, size=10_000) == FOUND


def test_space_around_the_colon_is_allowed():
    assert scanned('{"usage" \n:\t' + json.dumps(COUNTS) + "}") == FOUND


@pytest.mark.parametrize("distance", [0, 200_000])
def test_last_usage_counts(distance):
    text = json.dumps({"usage": OTHER, "text": filled(distance)})[:-1] + f', "usage": {json.dumps(COUNTS)}}}'
    assert scanned(text, size=10_000) == FOUND


def test_usage_in_a_text_does_not_count():
    text = response(usage=COUNTS, text="", more=json.dumps({"usage": OTHER}))
    assert scanned(text) == FOUND
    assert scanned(response(text=json.dumps({"usage": OTHER}))) is None


def test_name_that_ends_with_usage_behind_an_escaped_quote_does_not_count():
    assert scanned(json.dumps({'a "usage': OTHER})) is None
    assert scanned(json.dumps({"usage": COUNTS, 'a "usage': OTHER})) == FOUND


def test_string_usage_is_no_name():
    assert scanned(json.dumps({"usage": COUNTS, "tokens": ["usage", OTHER, "usage"], "text": "usage"})) == FOUND


@pytest.mark.parametrize(
    "value", [None, 7, "many", [], {}, {"prompt_tokens": -1}, {"prompt_tokens": "7"}, {"completion_tokens": 3}]
)
def test_usage_without_token_counts_does_not_count(value):
    assert scanned(response(usage=value)) is None
    first = f'{{"usage": {json.dumps(COUNTS)}, '
    assert scanned(first + response(usage=value)[1:]) == FOUND


@pytest.mark.parametrize("value", ["", "{", '{"prompt_tokens": 7', "[" * 3000, '{"prompt_tokens": 7,}', "nul"])
def test_value_that_is_not_whole_does_not_count(value):
    assert scanned(f'{{"usage": {value}') is None
    assert scanned(f'{{"usage": {json.dumps(COUNTS)}, "usage": {value}') == FOUND


@pytest.mark.parametrize("text", ["", "{}", "usage", '"usage"', response()])
def test_text_without_usage_has_none(text):
    assert scanned(text) is None


def test_text_beyond_ascii_in_the_usage_is_no_obstacle():
    assert scanned('{"usage": {"note": "漢", ' + json.dumps(COUNTS)[1:] + "}") == FOUND


def test_usage_before_some_tokens_of_the_same_name_is_found():
    assert scanned(response(usage=COUNTS, prompt_logprobs=["usage"] * 15)) == FOUND


def test_usage_before_many_tokens_of_the_same_name_is_found_if_these_are_far_apart():
    text = response(usage=COUNTS, prompt_logprobs=["usage", filled(6000)] * 40)
    assert scanned(text, size=1000) == FOUND
