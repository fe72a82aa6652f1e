"""Texts made to be slow: none takes more than a small multiple of the work for one half as long."""

import re

import pytest
from levels import slow_except
from moving import NOW, chat, rule

from gateway.canon.rule import RuleContext

PIECES = {
    "quotes": 'today is 2026-11-21 " ',
    "labels in one line": "current time: 2026-11-21 10:02, ",
    "lines": "Date: 2026-11-21\n",
    "ids": "3f2504e0-4f89-11d3-9a0c-0305e82c3301 ",
    "tags": "<doc>",
    "apostrophes": "' ",
    "brackets": "[",
    "stars": "*",
    "words": "x-",
    "objects": '{"now": "2026-11-21T10:02"}\n',
    "opened objects": '{\n"now": 1,',
    "elements": "<now>2026-11-21T10:02</now>",
    "as of": "as of 2026-11-21 10:02 you are. ",
    "members": '{"now": "2026-11-21T10:02", "a": "x", ',
    "opened prompts": '{"now":{"a":',
    "no blanks": "今天是2026年11月21日。",
}


@pytest.mark.parametrize("name", slow_except(PIECES, {"quotes", "labels in one line"}))
def test_a_long_text_is_worked_through(name):
    """Anything quadratic would take minutes here."""
    text = PIECES[name] * (200_000 // len(PIECES[name])) + "\n\nToday is 2026-11-21."
    found = rule().detect(chat("Hi", leading=text), RuleContext(NOW))
    assert all(re.search(r"\d", edit.before) for edit in found.edits if edit.what == "moved")
