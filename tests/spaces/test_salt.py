"""The salt that binds a space at the engine."""

import dataclasses
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import BadRequest
from gateway.core.space import PrefixSpace
from gateway.spaces.salt import client_salt, engine_salt

SECRET = b"0123456789abcdef"
SPACE = PrefixSpace("m", "tok", "v1+abc", "tenant:acme", "de", "", 2048, "eu", 7)


def test_a_salt_is_what_both_engines_take():
    assert re.fullmatch(r"[A-Za-z0-9_-]{32}", engine_salt(SECRET, SPACE))


def test_the_same_space_has_the_same_salt_in_every_gateway():
    assert engine_salt(SECRET, SPACE) == engine_salt(SECRET, dataclasses.replace(SPACE))
    # Fixed, so that a release which derives it differently (and makes every cache cold) is noticed.
    assert engine_salt(SECRET, SPACE) == "IBrxm_MxAMu1wRPwCdONWcNxcp6CZW-r"


@pytest.mark.parametrize(
    "change",
    [
        {"tenant": "tenant:other"},
        {"tenant": "group:acme"},
        {"scope": "fr"},
        {"template_version": "v2+abc"},
        {"tokenizer_id": "tok2"},
        {"epoch": 8},
    ],
)
def test_another_space_has_another_salt(change):
    assert engine_salt(SECRET, SPACE) != engine_salt(SECRET, dataclasses.replace(SPACE, **change))


def test_another_secret_makes_another_salt():
    assert engine_salt(SECRET, SPACE) != engine_salt(SECRET + b"x", SPACE)


def test_a_clients_salt_narrows_and_does_not_show():
    narrowed = engine_salt(SECRET, SPACE, "mine")
    assert narrowed not in (engine_salt(SECRET, SPACE), engine_salt(SECRET, SPACE, "yours"))
    assert "mine" not in narrowed


@given(*(st.text(max_size=6),) * 4, *(st.text(max_size=6),) * 4)
def test_parts_cannot_be_shifted_into_each_other(a, b, c, d, e, f, g, h):
    def salt(tenant, scope, version, tokenizer):
        space = PrefixSpace("m", tokenizer, version, tenant, scope, "", 0, "", 1)
        return engine_salt(SECRET, space)

    assert (salt(a, b, c, d) == salt(e, f, g, h)) == ((a, b, c, d) == (e, f, g, h))


def test_no_salt_is_no_salt():
    assert client_salt({}) == client_salt({"cache_salt": None}) == ""


@pytest.mark.parametrize("salt", ["a", "x" * 128, "tenant-1", "ü", "a b"])
def test_a_salt_the_engines_take_is_taken(salt):
    assert client_salt({"cache_salt": salt}) == salt


@pytest.mark.parametrize("salt", ["", "x" * 129, "a@b", "a/b", "a\\b", "a\0b", 7, True, ["a"], {"a": 1}])
def test_a_salt_the_engines_refuse_is_refused_without_showing_it(salt):
    with pytest.raises(BadRequest) as refused:
        client_salt({"cache_salt": salt})
    assert (refused.value.param, refused.value.code) == ("cache_salt", "invalid_cache_salt")
    assert "xxx" not in refused.value.message
