"""Which places that vary are found by ``dynamic-suffix`` as it is."""

from collections.abc import Sequence

from gateway.canon.edits import Edit
from gateway.canon.rule import Fields
from gateway.canon.texts import messages
from gateway.core.canonical import RuleMode, RuleName
from gateway.core.explanation import VaryingSlot
from gateway.core.json_edit import Path
from gateway.explain.whatif.forms import RULES, Form

_NUMBER = RULES.index(RuleName.DYNAMIC_SUFFIX)


def still_open(
    slot: VaryingSlot | None, modes: Sequence[RuleMode], sent: Fields, forms: Sequence[Form]
) -> VaryingSlot | None:
    """The slot, if it is worth suggesting: the rule is in use, and does not find it by itself.

    Args:
        slot: A place that varies in a request.
        modes: The request's modes.
        sent: The request as it was sent on.
        forms: What rules change in it. An applied one is no matter: what it found does not vary any more.
    """
    if slot is None or len(modes) <= _NUMBER or modes[_NUMBER] is RuleMode.OFF:
        return None
    found = (
        edit
        for form in forms
        if form.rule == RuleName.DYNAMIC_SUFFIX and form.mode is RuleMode.OBSERVE
        for edit in form.edits
    )
    return None if any(_is_at(edit, slot, sent) for edit in found) else slot


def _is_at(edit: Edit, slot: VaryingSlot, sent: Fields) -> bool:
    if edit.path[:2] != ("messages", slot.message) or edit.start is None or not isinstance(edit.before, str):
        return False
    start = edit.start + _texts_in_front(sent, edit.path)
    return start < slot.end and slot.start < start + len(edit.before)


def _texts_in_front(sent: Fields, path: Path) -> int:
    """Characters of a message's text in front of a content part; one for each line end between parts."""
    if len(path) < 4:
        return 0
    parts = messages(sent)[int(path[1])].get("content") or ()
    texts = [part.get("text") if isinstance(part, dict) else part for part in parts[: int(path[3])]]
    return sum(len(text) + 1 for text in texts if isinstance(text, str))
