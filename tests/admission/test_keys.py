"""Keys: how they are made, read and found."""

import hashlib
import re
import time

import pytest

from gateway.core.api_keys import KeyRing, bearer, hash_key, new_key, parse_expiry, parse_hash, short_id


def test_a_key_is_visible_ascii_with_256_random_bits():
    keys = {new_key() for _ in range(200)}
    assert len(keys) == 200
    assert all(re.fullmatch(r"pgw_[A-Za-z0-9_-]{43}", key) for key in keys)
    assert new_key("other").startswith("other_")


def test_a_hash_is_the_sha256_of_the_key_and_nothing_else():
    assert hash_key("abc") == "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert parse_hash(hash_key("abc")) == hashlib.sha256(b"abc").digest()
    assert parse_hash(hash_key("abc").upper().replace("SHA256", "sha256")) == hashlib.sha256(b"abc").digest()
    assert short_id(parse_hash(hash_key("abc"))) == "sha256:ba7816bf"


@pytest.mark.parametrize(
    "text",
    [
        "pgw_4FhUUqWnPEqFs1XkAp3l3dwhLKqDYhZ0hQn4Gf0oTts",
        "",
        "sha256:",
        "sha256:" + "a" * 63,
        "sha256:" + "a" * 65,
        "sha256:" + "g" * 64,
        "sha1:" + "a" * 64,
        "a" * 64,
        "sha256:" + "a" * 64 + "\n",
        " sha256:" + "a" * 64,
        "sha256:" + "٣" * 64,
    ],
)
def test_what_is_no_hash_is_refused_with_the_fix_and_without_being_quoted(text):
    with pytest.raises(ValueError, match=r"only hashes stand in the configuration.*prefix-gateway key") as caught:
        parse_hash(text)
    assert not text or text.strip() == "sha256:" or text.strip() not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("value", "key"),
    [
        (b"Bearer abc", "abc"),
        (b"bearer abc", "abc"),
        (b"BEARER  abc", "abc"),
        (b" Bearer abc\t", "abc"),
        (b"Bearer !~._=/+-", "!~._=/+-"),
        (None, None),
        (b"", None),
        (b"Bearer", None),
        (b"Bearer ", None),
        (b"Bearerabc", None),
        (b"Bearer\tabc", None),
        (b"Bearer a b", None),
        (b"Bearer a, Bearer b", None),
        (b"Bearer a\x00b", None),
        (b"Bearer a\r\nx: y", None),
        (b"Bearer \xc3\xa9", None),
        (b"Basic abc", None),
        (b"abc", None),
        (b"X Bearer abc", None),
    ],
)
def test_a_bearer_header_holds_one_visible_token(value, key):
    assert bearer(value) == key


def test_a_ring_finds_each_key_and_nothing_else():
    keys = {new_key(): number for number in range(50)}
    ring = KeyRing({parse_hash(hash_key(key)): number for key, number in keys.items()})
    assert len(ring) == 50
    assert {key: ring.find(key) for key in keys} == keys
    some = next(iter(keys))
    # nor by its hash, which every reader of the configuration has
    for other in ("", some[:-1], some + "x", some.swapcase(), hash_key(some), new_key(), some + "é", "\ud800"):
        assert ring.find(other) is None


def test_an_empty_ring_finds_nothing():
    assert KeyRing({}).find(new_key()) is None


def test_a_presented_key_above_the_length_limit_is_not_valid_even_if_its_hash_is_configured():
    longest, longer = "k" * 512, "k" * 513
    ring = KeyRing({parse_hash(hash_key(longest)): 1, parse_hash(hash_key(longer)): 2})
    assert ring.find(longest) == 1
    assert ring.find(longer) is None


def test_a_ring_shows_neither_keys_nor_hashes():
    key = new_key()
    ring = KeyRing({parse_hash(hash_key(key)): "entry"})
    assert key not in repr(ring)
    assert hash_key(key)[7:] not in repr(ring)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2027-01-31", 1801440000),  # 2027-02-01T00:00:00Z
        ("2028-02-29", 1835481600),  # 2028-03-01T00:00:00Z
        ("9999-12-31", 253402300800),  # the end of what a date can say
        ("2027-01-31T12:00:00Z", 1801396800),
        ("2027-01-31T12:00:00", 1801396800),
        ("2027-01-31 12:00", 1801396800),
        ("2027-01-31T12:00:00+02:00", 1801389600),
        ("2027-01-31T12:00:00.5Z", 1801396800.5),
    ],
)
def test_a_key_expires_at_the_end_of_a_day_or_at_a_moment(text, moment):
    assert parse_expiry(text) == moment


def test_a_time_without_zone_is_utc_wherever_the_gateway_runs(monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert parse_expiry("2027-01-31T12:00:00") == parse_expiry("2027-01-31T12:00:00Z")
        assert parse_expiry("2027-01-31") == parse_expiry("2027-02-01T00:00:00Z")
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    "text", ["", "soon", "2027", "2027-13-01", "2027-02-29", "31.01.2027", "2027-01-31T25:00", "1e9"]
)
def test_what_is_no_date_is_refused_with_examples(text):
    with pytest.raises(ValueError, match=r"expected a date such as 2027-01-31.*or a time such as 2027-01-31T12:00:00Z"):
        parse_expiry(text)
