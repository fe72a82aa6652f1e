"""Keys that stand where they do not belong are recognized, and nothing else is taken for one."""

import pytest

from gateway.core.api_keys import looks_like_key, new_key, redacted
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
    "text", ["", "pgw", "pgw_", "pgw_eu", "pgw_admin_", "/v1/models", KEY.replace("pgw_", "sk-"), KEY[:23], "é漢 pgw_…"]
)
def test_everything_else_stays_as_it_is(text):
    assert not looks_like_key(text)
    assert redacted(text) == text


def test_a_key_is_no_name():
    assert is_name("pgw_eu")
    assert not is_name(KEY)
    assert not is_name(TOKEN)
