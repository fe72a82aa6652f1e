"""What the rules do to realistic prompts of many shapes and languages, and what they must leave alone."""

import copy
import functools
import json
import re
import unicodedata
from collections import Counter
from operator import attrgetter

import msgspec
import pytest
from corpus_reader import LEADING, corpus, count, last_input, leading, prompt_of, strings

from gateway.canon.rule import RuleContext
from gateway.canon.rulebook import rulebook
from gateway.config.canon_settings import CanonSettings, DynamicSuffixSettings
from gateway.core.canonical import OPT_IN, RuleName
from gateway.core.request import Endpoint

PROMPTS = corpus()
LANGUAGES = "en de fr es it pt nl pl cs ru uk tr ar he hi ja zh ko vi sv fi".split()
HOUR, DAY = 3600, 86400

MARKS = DynamicSuffixSettings()
POINTER = re.compile(r"\[context (\d+)\]")
BLOCK = re.compile(rf"{re.escape(MARKS.opening)}\n(.*?)\n{re.escape(MARKS.closing)}", re.DOTALL)
ENTRY = re.compile(r"^\[context (\d+)\] (.*)$", re.MULTILINE)
LABEL_WORDS = 6
"""A line or sentence that moves with its value has so many further words at most."""
DASHES = str.maketrans(dict.fromkeys("*•‣◦▪●∙·\u2010\u2011\u2012\u2013\u2014\u2015", "-"))
CHANGES_ARGUMENTS = {RuleName.JSON_KEYS}

ALONE = [(each,) for each in RuleName]
SETS = [*ALONE, tuple(RuleName)]
LOOKS_THE_SAME = tuple(each for each in RuleName if each not in OPT_IN)
"""The rules after which texts that stay are found letter for letter."""

name_of = attrgetter("name")
each_prompt = pytest.mark.parametrize("prompt", PROMPTS, ids=name_of)


@functools.cache
def rules_with(settings):
    """The rules with some settings (JSON); they are the same for all prompts, and pure."""
    return rulebook(CanonSettings.model_validate_json(settings))


def computed(prompt, names, body=None, now=None, recall=None):
    given = RuleContext(now=prompt.now if now is None else now, endpoint=Endpoint(prompt.endpoint), owner="acme")
    if recall is not None:
        given = msgspec.structs.replace(given, recall=recall)
    return rules_with(json.dumps(prompt.settings)).canonical(prompt.body if body is None else body, names, given)


FORMS = {}


def canonical(prompt, names):
    """The prompt as it was sent after some rules, computed once for all tests."""
    form = FORMS.get((prompt.name, names))
    if form is None:
        form = FORMS[prompt.name, names] = computed(prompt, names)
    return form


def entries(fields):
    """The block behind the last message: values by number."""
    return {
        int(number): value
        for text in strings(last_input(fields))
        for block in BLOCK.findall(text)
        for number, value in ENTRY.findall(block)
    }


def words(value):
    """The words and signs of a prompt, without what is no content: marks of blocks, quotation marks around them, and
    characters of no width. Bullets and dashes of all kinds are one."""
    found = Counter()
    for text in strings(value):
        visible = re.sub("[\u200b\u2060\ufeff]", "", unicodedata.normalize("NFC", text.translate(DASHES)))
        content = POINTER.sub(" ", visible.replace(MARKS.opening, " ").replace(MARKS.closing, " "))
        found.update(re.findall(r"[A-Za-z0-9_]+|[^\s\"]", content))
    return found


def contents(fields):
    messages = fields.get("messages", ())
    calls = [each.get("tool_calls") for each in messages]
    texts = [_without_frames(each.get("content")) for each in messages]
    return [texts, calls, fields.get("tools"), fields.get("prompt")]


def _without_frames(content):
    """A block in a part of its own comes in a frame, which the model does not read."""
    if not isinstance(content, list):
        return content
    return [part["text"] if isinstance(part, dict) and part.get("type") == "text" else part for part in content]


def contents_by_message(fields):
    return [list(strings(each.get("content"))) for each in fields.get("messages", ())]


def test_the_corpus_is_wide():
    assert len(PROMPTS) >= 200
    assert {prompt.language for prompt in PROMPTS} >= set(LANGUAGES)
    with_something_to_move = sum(bool(prompt.moved) for prompt in PROMPTS)
    assert 0.4 <= with_something_to_move / len(PROMPTS) <= 0.6
    assert sum(len(json.dumps(prompt.body)) > 15_000 for prompt in PROMPTS) >= 4


@each_prompt
def test_what_is_expected_speaks_of_the_prompt(prompt):
    for text in prompt.moved:
        assert count(text, leading(prompt.body)) == 1, text
    for text in (*prompt.kept, *prompt.lost):
        assert count(text, prompt_of(prompt.body)) >= 1, text
    for old, _ in prompt.again:
        assert count(old, leading(prompt.body)) == 1, old
    assert bool(prompt.moved or prompt.lost) == bool(prompt.again)


@each_prompt
@pytest.mark.parametrize("names", [(RuleName.DYNAMIC_SUFFIX,), tuple(RuleName)], ids=["alone", "all"])
def test_what_varies_is_moved_once_and_nothing_else(prompt, names):
    fields = canonical(prompt, names).fields
    for text in prompt.moved:
        assert count(text, leading(fields)) == 0, f"not moved: {text}"
        assert count(text, last_input(fields)) == 1, f"not in the block: {text}"
    block = entries(fields) if fields is not prompt.body and prompt.moved else {}
    assert len(block) == len(prompt.moved), f"in the block: {list(block.values())}"
    for value in block.values():
        meant = [text for text in prompt.moved if text in value]
        assert len(meant) == 1, f"moved as well: {value}"
        assert len(re.findall(r"\w+", value.replace(meant[0], " "))) <= LABEL_WORDS, f"too much is moved: {value}"


@each_prompt
def test_what_is_data_stays_in_its_place(prompt):
    fields = canonical(prompt, (RuleName.DYNAMIC_SUFFIX,)).fields
    before, after = contents_by_message(prompt.body), contents_by_message(fields)
    for text in prompt.kept:
        for number, contents in enumerate(before):
            for position, content in enumerate(contents):
                assert content.count(text) == after[number][position].count(text), text
    everything = canonical(prompt, LOOKS_THE_SAME).fields
    for text in prompt.kept:
        assert count(text, prompt_of(everything)) == count(text, prompt_of(prompt.body)), text


@each_prompt
def test_the_block_explains_the_marks(prompt):
    """Values put back in place of their marks give the prompt as it was sent, to the letter; but the mark of a number
    in JSON is a text."""
    fields = canonical(prompt, (RuleName.DYNAMIC_SUFFIX,)).fields
    if not prompt.moved:
        assert fields is prompt.body
        return
    values = entries(fields)
    own = {int(number) for text in strings(leading(prompt.body)) for number in POINTER.findall(text)}
    assert not own & set(values)

    def back(match):
        return values.get(int(match[1]), match[0])

    for asked, sent in zip(leading(prompt.body), leading(fields), strict=True):
        texts = [POINTER.sub(back, text) for text in strings(sent)]
        assert list(map(without_quotes_of_numbers, texts)) == list(map(without_quotes_of_numbers, strings(asked)))


def without_quotes_of_numbers(text):
    return re.sub(r'"(\d+)"', r"\1", text)


@each_prompt
def test_which_rules_find_something(prompt):
    for name in set(RuleName) - {RuleName.DYNAMIC_SUFFIX}:
        found = canonical(prompt, (name,))
        if name in prompt.rules:
            assert len(found.edits) >= prompt.rules[name], name
        else:
            assert [edit.before for edit in found.edits] == [], name
            assert found.fields is prompt.body, name


@each_prompt
def test_texts_after_all_rules(prompt):
    fields = canonical(prompt, LOOKS_THE_SAME).fields
    for text in prompt.becomes:
        assert count(text, prompt_of(fields)) >= 1, text
    for text in (*prompt.gone, *prompt.lost):
        assert count(text, prompt_of(fields)) == 0, text


@each_prompt
def test_twice_is_once(prompt):
    for names in SETS:
        once = canonical(prompt, names).fields
        twice = computed(prompt, names, once)
        assert list(twice.edits) == [], names
        assert twice.fields is once, names


@each_prompt
def test_nothing_is_lost_and_nothing_added(prompt):
    asked = copy.deepcopy(prompt.body)
    sent, lost = words(contents(prompt.body)), words(list(prompt.lost))
    for names in SETS:
        fields = computed(prompt, names).fields
        left = sent - lost if RuleName.PATTERN in names else sent
        assert (sent if fields is prompt.body else words(contents(fields))) == left, names
    assert prompt.body == asked, "the given prompt was changed"


@each_prompt
def test_all_but_texts_is_the_same(prompt):
    def tools_of(fields):
        return sorted(json.dumps(each, sort_keys=True) for each in fields.get("tools", ()))

    def parts(fields):
        lists = [each["content"] for each in fields.get("messages", ()) if isinstance(each.get("content"), list)]
        return [part for each in lists for part in each if not isinstance(part, dict) or part.get("type") != "text"]

    def calls(fields):
        found = [call["function"] for each in fields.get("messages", ()) for call in each.get("tool_calls", ())]
        return [(call["name"], as_json(call["arguments"])) for call in found]

    def as_json(text):
        try:
            return json.loads(text, object_pairs_hook=sorted, parse_float=str)
        except ValueError:
            return text

    def rest(fields):
        others = {name: value for name, value in fields.items() if name not in ("messages", "tools", "prompt")}
        members = [
            json.dumps({k: v for k, v in each.items() if k not in ("content", "tool_calls")}, sort_keys=True)
            for each in fields.get("messages", ())
        ]
        return others, sorted(members)

    for names in SETS:
        inlined = RuleName.INLINE_SYSTEM in names and RuleName.INLINE_SYSTEM in prompt.rules
        merges = inlined or "role_order" in prompt.settings
        fields = canonical(prompt, names).fields
        assert tools_of(fields) == tools_of(prompt.body), names
        assert calls(fields) == calls(prompt.body), names
        assert all(one is other for one, other in zip(parts(fields), parts(prompt.body), strict=True)), names
        assert merges or rest(fields) == rest(prompt.body), names
        if not CHANGES_ARGUMENTS & set(names):
            said = [each for each in fields.get("messages", ()) if each["role"] == "assistant"]
            asked = [each for each in prompt.body.get("messages", ()) if each["role"] == "assistant"]
            assert all(one is other for one, other in zip(said, asked, strict=True)), names


@pytest.mark.parametrize("prompt", [each for each in PROMPTS if "role_order" not in each.settings], ids=name_of)
def test_instructions_and_conversation_keep_their_order(prompt):
    asked, sent = (each.get("messages", ()) for each in (prompt.body, canonical(prompt, (RuleName.ROLE_ORDER,)).fields))
    for instructs in (True, False):
        before, after = ([each for each in said if (each["role"] in LEADING) == instructs] for said in (asked, sent))
        assert all(one is other for one, other in zip(before, after, strict=True))


@each_prompt
def test_an_hour_later_the_front_is_the_same(prompt):
    """This is what makes the prefix cacheable."""
    later = prompt.next()
    for names in ((RuleName.DYNAMIC_SUFFIX, RuleName.PATTERN), tuple(RuleName)):
        first = canonical(prompt, names).fields
        second = computed(prompt, names, later, prompt.now + HOUR).fields
        assert leading(second) == leading(first), names
        assert second.get("tools") == first.get("tools"), names
        assert (second == first) == (not prompt.moved), names


@pytest.mark.parametrize("prompt", [each for each in PROMPTS if not each.moved], ids=name_of)
def test_what_is_data_is_data_on_every_day(prompt):
    for now in (prompt.now - HOUR, prompt.now + HOUR, prompt.now + 40 * DAY):
        assert computed(prompt, (RuleName.DYNAMIC_SUFFIX,), now=now).fields is prompt.body


@pytest.mark.parametrize(
    "prompt",
    [each for each in PROMPTS if sum(message["role"] == "assistant" for message in each.body.get("messages", ()))],
    ids=name_of,
)
def test_a_conversation_only_grows(prompt):
    """Turn by turn, with values that change every time: what was sent before stands in front of what comes."""
    messages, remembered, sent = prompt.body["messages"], {}, []
    turns = [
        number
        for number, message in enumerate(messages)
        if message["role"] in ("user", "tool")
        and (messages[number + 1 :] or [{"role": "assistant"}])[0]["role"] == "assistant"
    ]
    for turn, number in enumerate(turns):
        body = prompt.next() if turn % 2 else dict(prompt.body)
        body["messages"] = [*body["messages"][: number + 1]]
        found = computed(prompt, tuple(RuleName), body, prompt.now + 60 * turn, remembered.get)
        assert not found.context_lost
        assert found.fields["messages"][: len(sent)] == sent, f"turn {turn}"
        remembered |= found.remember
        sent = found.fields["messages"]
    if prompt.moved and len(turns) > 1:
        assert sum(not key.startswith(b"block:") for key in remembered) == len(turns)
        body = prompt.next()
        body["messages"] = body["messages"][: turns[-1] + 1]
        assert computed(prompt, tuple(RuleName), body).context_lost
