"""Helpers of the tests of ``dynamic-suffix``: requests, and what becomes of them."""

from datetime import datetime

from gateway.canon.rule import RuleContext, applied
from gateway.canon.rules.dynamic import DynamicSuffix
from gateway.config.canon_settings import DynamicSuffixSettings

NOW = datetime.fromisoformat("2026-11-21T10:02:00+00:00").timestamp()
OPENING = "[Current context: what the marks above stand for]"
CLOSING = "[End of context]"


def rule(**settings):
    return DynamicSuffix(DynamicSuffixSettings(**settings))


def chat(*contents, leading="You are Eva."):
    """A conversation: the system's message, then the user's and the assistant's in turn."""
    roles = ("user", "assistant")
    said = [{"role": roles[n % 2], "content": content} for n, content in enumerate(contents)]
    return {"model": "m", "messages": [{"role": "system", "content": leading}, *said]}


def moved(text, now=NOW, **settings):
    """What is moved out of a system prompt."""
    found = rule(**settings).detect(chat("Hi", leading=text), RuleContext(now))
    return [edit.before for edit in found.edits if edit.what == "moved"]


def left(text, now=NOW, **settings):
    """What stays of a system prompt."""
    fields = chat("Hi", leading=text)
    return applied(fields, rule(**settings).detect(fields, RuleContext(now)).edits)["messages"][0]["content"]


class Conversation:
    """A gateway with a memory: requests go through it one after the other."""

    def __init__(self, **settings):
        self.rule = rule(**settings)
        self.memory = {}
        self.last = None

    def send(self, fields, owner="acme", now=NOW):
        """The messages as they go on."""
        self.last = self.rule.detect(fields, RuleContext(now, owner=owner, recall=self.memory.get))
        self.memory |= self.last.remember
        return applied(fields, self.last.edits)["messages"]


def block(*values):
    """A block, as it stands behind a message."""
    return "\n\n" + "\n".join((OPENING, *values, CLOSING))
