"""What holds for every rule and for all of them together, for any request."""

import json
import unicodedata
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from requests_at_random import chats, completions

from gateway.canon.rewrite import rewritten
from gateway.canon.rule import RuleContext
from gateway.canon.rulebook import rulebook
from gateway.config.canon_settings import CanonSettings
from gateway.core.canonical import RuleName
from gateway.core.request import Endpoint

NOW = 1795255320.0  # 2026-11-21 10:02 UTC, as the prompts at random have it
DOCUMENTS = {
    "documents": [
        {"name": "tags", "opening": "<document", "closing": "</document>"},
        {"name": "items", "regex": r"^- .+$"},
    ]
}
RULEBOOKS = {
    (merge, later): rulebook(CanonSettings(role_order={"merge": merge, "later": later}, document_order=DOCUMENTS))
    for merge in ("none", "same_role", "all")
    for later in (False, True)
}
ALL = tuple(RuleName)
WITHOUT_CUTS = tuple(rule for rule in RuleName if rule is not RuleName.HISTORY_TRIM)
# What keeps every character, but for spaces and characters without width. `pattern` has no patterns here.
KEEP_ALL = tuple(rule for rule in WITHOUT_CUTS if rule is not RuleName.DYNAMIC_SUFFIX)

DASHES = dict.fromkeys(map(ord, "*•‣◦▪●∙·\u2010\u2011\u2012\u2013\u2014\u2015"), "-")

EACH_RULE_AND_ALL = [*((rule,) for rule in RuleName), ALL]
rulebooks = st.sampled_from(sorted(RULEBOOKS))
limits = st.sampled_from([0, 40, 200, 100_000])


def canonical(fields, names, which=("none", False), limit=0):
    endpoint = Endpoint.CHAT if "messages" in fields else Endpoint.COMPLETIONS
    context = RuleContext(
        now=NOW, endpoint=endpoint, owner="acme", count_tokens=lambda text: len(text) // 3, context_limit=limit
    )
    return RULEBOOKS[which].canonical(fields, names, context)


def characters(value):
    """How often every character occurs in the texts of a value, as people see it: composed, without spaces, and with
    one kind of bullet and dash."""
    found = Counter()
    if isinstance(value, str):
        seen = value.translate(dict.fromkeys(map(ord, "\u200b\u2060\ufeff")) | DASHES)
        found.update("".join(unicodedata.normalize("NFC", seen).split()))
    elif isinstance(value, dict):
        for inner in value.values():
            found += characters(inner)
    elif isinstance(value, list):
        for inner in value:
            found += characters(inner)
    return found


def parsed_arguments(message):
    """A message with the arguments of its tool calls as values, so that the order of keys does not count."""

    def parsed(value, name=""):
        if isinstance(value, dict):
            return {key: parsed(inner, key) for key, inner in value.items()}
        if isinstance(value, list):
            return [parsed(inner, name) for inner in value]
        try:
            return json.loads(value) if name == "arguments" and isinstance(value, str) else value
        except (ValueError, RecursionError):
            return value

    return {name: parsed(value) if name == "tool_calls" else value for name, value in message.items()}


def said(fields):
    """How often every character occurs in a chat's messages. Their roles are not counted: joined, they have one."""
    messages = [parsed_arguments(message) for message in fields.get("messages", ())]
    return characters([{**message, "role": None} for message in messages])


def answers(fields):
    return [message for message in fields["messages"] if message["role"] == "assistant"]


def unknown_parts(fields):
    return [
        part
        for message in fields["messages"]
        if isinstance(message.get("content"), list)
        for part in message["content"]
        if not isinstance(part, str)
        and not (isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str))
    ]


def ends_open(fields):
    """Whether a user's text ends with space, or is nothing but space. There it stays; with a block put behind it, it
    stands at the end of a line."""
    texts = [part for message in fields.get("messages", ()) for part in texts_of(message) if message["role"] == "user"]
    return any(text != text.rstrip() for text in (each.rstrip("\u200b\u2060\ufeff") or " " for each in texts))


def texts_of(message):
    content = message.get("content")
    parts = content if isinstance(content, list) else [content]
    return [text for part in parts if isinstance(text := part.get("text") if isinstance(part, dict) else part, str)]


@given(fields=chats() | completions(), which=rulebooks, limit=limits)
def test_a_second_time_finds_nothing(fields, which, limit):
    for names in EACH_RULE_AND_ALL:
        if names is ALL and ends_open(fields):
            continue
        once = canonical(fields, names, which, limit)
        if names is ALL and once.cut_messages and not which[1]:
            continue  # another answer is the first one now, so another front may be to be brought into order
        again = canonical(once.fields, names, which, limit)
        assert list(again.edits) == []
        assert again.fields is once.fields


@given(fields=chats() | completions(), which=rulebooks, limit=limits)
def test_a_rule_without_edits_returns_the_same_object_and_none_changes_its_input(fields, which, limit):
    before = json.dumps(fields)
    for names in EACH_RULE_AND_ALL:
        done = canonical(fields, names, which, limit)
        assert json.dumps(fields) == before
        assert (done.fields is fields) == (not done.edits)
        assert all(json.dumps(done.fields) != before for _ in done.edits[:1])


@given(fields=chats() | completions(), which=rulebooks, limit=limits)
def test_the_body_says_the_same_as_the_fields(fields, which, limit):
    body = json.dumps(fields, ensure_ascii=False, indent=1).encode()
    for names in EACH_RULE_AND_ALL:
        done = canonical(fields, names, which, limit)
        assert json.dumps(json.loads(rewritten(body, fields, done.fields))) == json.dumps(done.fields)


@given(fields=chats(), which=rulebooks, limit=limits)
def test_a_valid_chat_stays_valid(fields, which, limit):
    roles = {message["role"] for message in fields["messages"]}
    roles |= {"user"} if "system" in roles else set()  # what the rule inline-system makes of later ones
    for names in EACH_RULE_AND_ALL:
        done = canonical(fields, names, which, limit).fields
        assert len(done["messages"]) > 0
        assert roles.issuperset(message["role"] for message in done["messages"])
        assert all(isinstance(message.get("content"), (str, list, type(None))) for message in done["messages"])
        assert list(done) == list(fields)
        assert all(done[name] is fields[name] for name in fields if name not in ("messages", "tools"))


@given(fields=chats() | completions(), names=st.just(KEEP_ALL) | st.sets(st.sampled_from(KEEP_ALL)), which=rulebooks)
def test_no_character_is_lost_or_added(fields, names, which):
    done = canonical(fields, names, which).fields
    assert said(done) == said(fields)
    assert characters(done.get("prompt")) == characters(fields.get("prompt"))


@given(fields=chats(), which=rulebooks, limit=limits)
def test_nothing_is_lost_where_values_move(fields, which, limit):
    done = canonical(fields, WITHOUT_CUTS, which, limit).fields
    assert not said(fields) - said(done)


@given(fields=chats(), which=rulebooks, limit=limits)
def test_tools_are_the_same_but_for_their_order(fields, which, limit):
    def as_json(tools):
        items = tools if isinstance(tools, list) else [tools]
        return sorted(json.dumps(tool, sort_keys=True) for tool in items)

    assert as_json(canonical(fields, ALL, which, limit).fields.get("tools")) == as_json(fields.get("tools"))


@given(fields=chats(), which=rulebooks, limit=limits)
def test_answers_go_back_as_they_came(fields, which, limit):
    for names in EACH_RULE_AND_ALL:
        after = answers(canonical(fields, names, which, limit).fields)
        before = answers(fields)[-len(after) :] if after else []
        assert [parsed_arguments(each) for each in before] == [parsed_arguments(each) for each in after]
        for one, other in zip(before, after, strict=True):
            assert one is other or RuleName.JSON_KEYS in names
            assert all(other[name] is one[name] for name in one if name != "tool_calls")


@given(fields=chats(), which=rulebooks)
def test_unknown_parts_are_the_same_objects(fields, which):
    before = {id(part) for part in unknown_parts(fields)}
    for names in EACH_RULE_AND_ALL:
        done = canonical(fields, names, which).fields
        assert {id(part) for part in unknown_parts(done)} == before


@given(fields=chats())
@settings(max_examples=settings().max_examples // 2)
def test_no_rule_no_change(fields):
    done = canonical(fields, ())
    assert done.fields is fields
    assert not done.edits


@given(body=chats() | completions(), which=rulebooks, limit=limits)
def test_rules_tried_at_once_find_what_each_and_all_of_them_find(body, which, limit):
    endpoint = Endpoint.CHAT if "messages" in body else Endpoint.COMPLETIONS
    context = RuleContext(
        now=NOW, endpoint=endpoint, owner="acme", count_tokens=lambda text: len(text) // 3, context_limit=limit
    )
    together, alone = RULEBOOKS[which].tried(body, ALL, context)
    assert together == canonical(body, ALL, which, limit)
    each = {rule: canonical(body, (rule,), which, limit) for rule in ALL} if together.edits else {}
    assert alone == {rule: found for rule, found in each.items() if found.edits}
