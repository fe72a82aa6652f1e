"""What is asked of every rule that changes texts."""

from collections import Counter

from gateway.canon.rule import RuleContext, applied

NOW = RuleContext(now=0.0)
TEXT_ROLES = ("system", "developer", "user")


def changed(rule, fields):
    """A request's fields after a rule; edits are checked to be what they say."""
    edits = rule.detect(fields, NOW).edits
    for edit in edits:
        assert edit.rule is rule.name
        assert edit.summary.endswith(".")
        assert edit.before != edit.after
    return applied(fields, edits) if edits else fields


def text_after(rule, text, role="system"):
    """One text after a rule; no role: the prompt of a completion."""
    if not role:
        return changed(rule, {"prompt": text})["prompt"]
    return changed(rule, {"messages": [{"role": role, "content": text}]})["messages"][0]["content"]


def edits_of(rule, text, role="system"):
    """Where a rule changes one text, and what."""
    edits = rule.detect({"messages": [{"role": role, "content": text}]}, NOW).edits
    return [(edit.start, edit.before, edit.after, edit.what) for edit in edits]


def check_idempotent(rule, fields):
    after = changed(rule, fields)
    assert rule.detect(after, NOW).edits == ()


def check_others_untouched(rule, fields):
    """Messages of other roles, parts that are no texts and all other members are the very same objects."""
    after = changed(rule, fields)
    assert list(after) == list(fields)
    for name, value in after.items():
        if name not in ("messages", "prompt"):
            assert value is fields[name]
    for old, new in zip(fields.get("messages", ()), after.get("messages", ()), strict=True):
        if old["role"] not in TEXT_ROLES:
            assert new is old
        assert list(new) == list(old)
        assert all(value is old[name] for name, value in new.items() if name != "content")
        if isinstance(old.get("content"), list):
            for part, part_after in zip(old["content"], new["content"], strict=True):
                is_text = isinstance(part, str) or (isinstance(part, dict) and part.get("type") == "text")
                assert part_after is part or is_text


def letters(text):
    """How often each sign stands in a text, space apart."""
    return Counter("".join(text.split()))
