"""Keys that stand where they do not belong are recognized, and nothing else is taken for one."""

import time

import pytest

from gateway.core.api_keys import looks_like_key, may_be_key, new_key, redacted
from gateway.core.tenant import is_name

KEY, TOKEN = new_key(), new_key("pgw_admin")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (KEY, "pgw_…"),
        (TOKEN, "pgw_admin_…"),
        (f"/admin/api/{TOKEN}?x", "/admin/api/pgw_admin_…?x"),
        (f"a {KEY}, b {TOKEN} and {KEY}.", "a pgw_…, b pgw_admin_… and pgw_…."),
        (KEY[:24], "pgw_…"),  # most of a key is as bad
        (f"trace-{KEY}", "trace-pgw_…"),
    ],
)
def test_keys_are_cut_down_to_their_prefix(text, shown):
    assert looks_like_key(text)
    assert redacted(text) == shown
    assert not looks_like_key(shown)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "pgw",
        "pgw_",
        "pgw_eu",
        "pgw_admin_",
        "/v1/models",
        KEY[:23],
        "é漢 pgw_…",
        "task-0123456789abcdef",
        "sk-telecom-customer-support-1",
    ],
)
def test_everything_else_stays_as_it_is(text):
    assert not looks_like_key(text)
    assert redacted(text) == text


FOREIGN = (
    "sk-proj-AbCdEfGhIjKlMnOpQrStUv",
    "sk-ant-api03-AbCdEfGhIjKlMnOpQrSt_u-v",
    "sk_live_4eC39HqLyjWDarjtT1zdp7dc",
    "ghp_0123456789abcdefghijABCDEFGHIJ012345",
    "github_pat_11ABCDEFG0123456789abcdef",
    "AKIAIOSFODNN7EXAMPLEX",
    "hf_AbCdEfGhIjKlMnOpQrStUvWxYz",
    "AIzaSyA0123456789abcdefghijklmnopqrstuv",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NSJ9.c2lnbmF0dXJl",
)


@pytest.mark.parametrize("key", FOREIGN)
def test_keys_of_other_services_are_cut_down_too(key):
    assert may_be_key(key)
    assert may_be_key(f"trace-{key}")
    shown = redacted(f"/v1/{key}?x")
    assert shown.endswith("…?x")
    assert key[-12:] not in shown


@pytest.mark.parametrize("text", ["sk-" * 20_000, "sk-a-" * 12_000, "eyJ" * 20_000, "pgw_" * 15_000, "a.b-" * 15_000])
def test_a_long_text_is_searched_in_linear_time(text):
    began = time.process_time()
    redacted(text)
    assert time.process_time() - began < 1


def test_a_key_is_no_name():
    assert is_name("pgw_eu")
    assert not is_name(KEY)
    assert not is_name(TOKEN)
