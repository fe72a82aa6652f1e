"""Edits as they are kept and shown: without the text they change."""

from collections.abc import Callable, Sequence
from itertools import chain, zip_longest
from typing import Any

import orjson

from gateway.canon.edits import REMOVED, Edit
from gateway.core.canonical import ALL_RULES, EditShown
from gateway.core.prompt import TOKEN_BYTES
from gateway.explain.diff.masking import masked
from gateway.explain.whatif.forms import Form

MOST_EDITS = 20
_SHOWN_CHARS = 120
_SAID_CHARS = 200
_PATH_CHARS = 200
_COUNTED_CHARS = 65_536
"""Longer values are not encoded only to tell how long they are."""


def edits_shown(forms: Sequence[Form], encode: Callable[[str], bytes] | None) -> tuple[EditShown, ...]:
    """The first edits of every form, each rule's in their order.

    Args:
        forms: What was tried.
        encode: Gives a text's token ids; None if nobody can.
    """
    ranked = [[(form, edit) for edit in form.edits] for form in forms if form.rule != ALL_RULES]
    # One after the other of each rule, so that a rule with many edits leaves room for the others.
    turns = chain.from_iterable(zip_longest(*(each[:MOST_EDITS] for each in ranked)))
    chosen = [pair for pair in turns if pair is not None][:MOST_EDITS]
    order = [form.number for form in forms]
    chosen.sort(key=lambda pair: order.index(pair[0].number))
    return tuple(_shown(form, edit, encode) for form, edit in chosen)


def _shown(form: Form, edit: Edit, encode: Callable[[str], bytes] | None) -> EditShown:
    before, after = _tokens(edit.before, encode), _tokens(edit.after, encode)
    return EditShown(
        form.rule,
        form.mode,
        edit.what,
        edit.place[:_PATH_CHARS],
        edit.said[:_SAID_CHARS],
        None if before is None or after is None else after - before,
        _masked(edit.before),
        _masked(edit.after),
    )


def _tokens(value: Any, encode: Callable[[str], bytes] | None) -> int | None:
    if value is REMOVED or value is None:
        return 0
    if encode is None:
        return None
    if not isinstance(value, str):
        try:
            value = orjson.dumps(value).decode()
        except TypeError:
            return None
    return len(encode(value)) // TOKEN_BYTES if len(value) <= _COUNTED_CHARS else None


def _masked(value: Any) -> str:
    if not isinstance(value, str):
        return ""
    return masked(value[:_SHOWN_CHARS]) + ("…" if len(value) > _SHOWN_CHARS else "")
