"""Session and agent by what each client sends without being configured, written down by hand."""

import json

import pytest

from gateway.api.identity import identity_of
from gateway.core.request import NO_IDENTITY, RequestIdentity

S, T, A, P = "0d3f-session", "71c2-thread", "a-17", "a-3"
CLAUDE_USER = json.dumps({"device_id": "d" * 64, "account_uuid": "", "session_id": S})


def found(headers=None, **fields):
    return identity_of({name.encode(): value.encode() for name, value in (headers or {}).items()}, fields)


@pytest.mark.parametrize(
    ("headers", "fields", "expected"),
    [
        ({"x-claude-code-session-id": S}, {"metadata": {"user_id": CLAUDE_USER}}, (S, "", "")),
        ({}, {"metadata": {"user_id": CLAUDE_USER}}, (S, "", "")),
        (
            {"x-claude-code-session-id": S, "x-claude-code-agent-id": A, "x-claude-code-parent-agent-id": P},
            {"metadata": {"user_id": CLAUDE_USER}},
            (S, A, P),
        ),
        ({"session-id": S, "thread-id": S}, {"prompt_cache_key": S}, (S, "", "")),
        (
            {"session-id": S, "thread-id": T, "x-codex-parent-thread-id": S, "x-openai-subagent": "review"},
            {"prompt_cache_key": S},
            (S, T, ""),
        ),
        ({"session-id": S, "thread-id": T, "x-codex-parent-thread-id": "other"}, {}, (S, T, "other")),
        ({"session-id": S, "x-openai-subagent": "review"}, {}, (S, "review", "")),
        ({"x-session-id": S, "x-session-affinity": S}, {}, (S, "", "")),
        ({"x-session-affinity": S}, {}, (S, "", "")),
        ({"session_id": S}, {"prompt_cache_key": S}, (S, "", "")),
        ({}, {"conversation": S}, (S, "", "")),
        ({}, {"conversation": {"id": S}}, (S, "", "")),
        ({"x-session-id": S, "x-claude-code-session-id": "x"}, {"user": "u", "prompt_cache_key": "p"}, (S, "", "")),
    ],
)
def test_each_client_is_recognized_by_what_it_sends(headers, fields, expected):
    assert found(headers, **fields) == RequestIdentity(*expected, affinity=S)


@pytest.mark.parametrize(
    ("headers", "fields", "session", "affinity"),
    [
        ({"x-correlation-id": "c"}, {"prompt_cache_key": "k", "user": "u"}, "k", "k"),
        ({"x-correlation-id": "c"}, {"user": "u"}, "c", "c"),
        ({}, {"metadata": {"user_id": "anna@example.com"}, "user": "u"}, "", "anna@example.com"),
        ({}, {"metadata": {"user_id": '{"account": 7}'}, "user": "u"}, "", '{"account": 7}'),
        ({}, {"user": "u"}, "", "u"),
    ],
)
def test_what_several_conversations_may_share_is_no_exact_session_and_no_person_is_shown(
    headers, fields, session, affinity
):
    assert found(headers, **fields) == RequestIdentity(session, affinity=affinity, is_exact=False)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"previous_response_id": "resp_1"},
        {"user": 7, "metadata": [], "conversation": {"id": {}}, "prompt_cache_key": None},
        {"metadata": {"user_id": '{"session_id": '}, "user": ""},
        {"metadata": {"user_id": "[" * 5000}},
        {"prompt_cache_key": "a\nb"},
        {"prompt_cache_key": "\ud800"},
        {"prompt_cache_key": "k" * 4097},
    ],
)
def test_values_that_are_no_names_identify_nothing(fields):
    assert (found(**fields).session, found({"x-session-id": "a\tb"}, **fields).session) == ("", "")
    if set(fields) <= {"previous_response_id"}:
        assert found(**fields) is NO_IDENTITY


def test_a_value_that_cannot_be_printed_leaves_the_place_to_the_next():
    assert found({"x-session-id": "\x1b[2J", "session-id": "ok"}).session == "ok"
    assert identity_of({b"x-session-id": b"\xff\xfe", b"session-id": "größe".encode()}, {}).session == "größe"


def test_keys_and_long_values_are_not_shown_and_still_differ():
    keys = [f"pgw_acme-{letter * 24}" for letter in "ab"]
    shown = [found({"x-session-id": key}).session for key in keys]
    assert len(set(shown)) == 2
    assert not any(key[9:] in each for key, each in zip(keys, shown, strict=True))
    long = [found({"x-session-id": "s" * 300 + end}).session for end in "ab"]
    assert len(set(long)) == 2
    assert all(len(each) < 160 for each in long)
