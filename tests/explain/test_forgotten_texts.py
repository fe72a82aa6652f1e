"""What is remembered of texts is dropped with the references that they are compared with."""

import gc
from types import FrameType, ModuleType

import msgspec
import orjson
import pytest
from observed_prompts import OPTIONS, request

from gateway.core.explanation import RequestRecord
from gateway.core.text_memo import forget_texts, text_memo
from gateway.explain.worker.explain_messages import WorkerOptions
from gateway.explain.worker.explain_parts import ExplainParts

TTL_SECONDS = 600.0
BEGAN_AT = 1_780_000_000.0
NAME = "mauve-heron"
RULES = ["json_keys", "dynamic_suffix", "tool_order", "whitespace"]


@pytest.fixture(params=[1.0, 0.0], ids=["all tried", "left out"])
def parts(request) -> ExplainParts:
    options = WorkerOptions(
        64 << 20, 5000, 3600.0, 128 << 20, TTL_SECONDS, 100_000, None, "USD", {}, OPTIONS, observed_share=request.param
    )
    parts = ExplainParts(options, BEGAN_AT)
    parts.load_tokenizers()
    return parts


def body(number: int) -> bytes:
    function = {"name": "f", "arguments": f'{{"b": {number}, "a": "{NAME} is here"}}'}
    system = f"Help {NAME} now.\nToday is 2026-03-02 10:{number:02}:00.\n" + f"The city of {NAME} is far away. " * 9
    messages = [
        {"role": "system", "content": system},
        {"role": "user", "content": f"Where is {NAME} at 10:{number:02}?"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "c", "content": f"{NAME}: {number} of 30\n{NAME}: 3 of 30"},
    ]
    return orjson.dumps({"messages": messages})


def remembered() -> set[str]:
    """The texts with the name that this process holds."""
    gc.unfreeze()  # a process that is forked for tests has frozen the modules, and with them their memos
    found, todo = set(), [each for each in gc.get_objects() if not isinstance(each, FrameType | ModuleType)]
    for container in todo:
        for each in gc.get_referents(container):
            if isinstance(each, tuple) and not gc.is_tracked(each):
                todo.append(each)
            elif isinstance(each, RequestRecord):
                todo.append(msgspec.structs.astuple(each))
            elif isinstance(each, str | bytes):
                text = each if isinstance(each, str) else each.decode(errors="replace")
                if NAME in text:
                    found.add(text)
    return found - {NAME}


def test_texts_are_dropped_with_the_references(parts):
    for number, tenant in enumerate(("other", "acme", "acme", "acme")):
        record = request(body(number), observe=RULES, at=BEGAN_AT + number, tenant=tenant)
        parts.observe(record, parts.explain(record))
    texts = remembered()
    assert f"Help {NAME} now." in texts  # in a memo of the rules
    assert any("is here" in text for text in texts)
    parts.expire(BEGAN_AT + 2 * TTL_SECONDS)
    del record, texts
    gc.collect()
    assert remembered() == set()


def test_a_text_that_was_read_late_goes_with_its_request(parts):
    # What is remembered was dropped half a TTL before the first request goes.
    parts.expire(BEGAN_AT - 0.5 * TTL_SECONDS)
    for number, age in (1, 0.0), (2, 0.97):
        if number == 2:
            parts.expire(BEGAN_AT + 0.5 * TTL_SECONDS)
        record = request(body(number), observe=RULES, tenant="acme")
        parts.explain(msgspec.structs.replace(record, at=BEGAN_AT + age * TTL_SECONDS))
    del record
    parts.expire(BEGAN_AT + 1.04 * TTL_SECONDS)
    gc.collect()
    assert not any("10:01" in text for text in remembered())


def test_a_memo_is_filled_again_after_it_was_dropped():
    calls = []

    @text_memo(2)
    def length(text: str) -> int:
        calls.append(text)
        return len(text)

    assert [length("one"), length("one"), length("three")] == [3, 3, 5]
    forget_texts()
    assert length("one") == 3
    assert calls == ["one", "three", "one"]
