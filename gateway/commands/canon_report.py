"""The report of ``prefix-gateway canon``: as text, and as a JSON document."""

import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.canon.rule import REMOVED, Edit
from gateway.commands.canon_trial import HINTS, NearMissAt, TrialStep, Turn
from gateway.commands.printing import WIDTH, Line, shown, wrapped
from gateway.core.canonical import RuleMode, RuleName, default_mode

_BOLD, _DIM, _OLD, _NEW = "bold", "dim", "red", "green"
_LINES = re.compile(r"[^\n]*\n|[^\n]+")
_CHARS = re.compile(r"\\u[0-9a-f]{4}|\\.|.", re.DOTALL)
_PART_SHOWN = 200
"""Shown characters of a content part that is not text: images have megabytes."""

_MOST_MISSES = 12
"""Near misses shown for a request: a long document has hundreds of dates."""


@dataclass(frozen=True, slots=True)
class Tried:
    """The input and the results of a trial.

    Attributes:
        file: Where the requests come from.
        model: Model whose rules are tried; may be empty.
        tenant: Tenant whose rules are tried; may be empty.
        tokenizer: The tokenizer that counted the tokens; empty without one.
        modes: Modes in the configuration; None without one.
        rules: The rules that were tried.
        notes: Notes on the figures.
        turns: The result for each request.
    """

    file: str
    model: str
    tenant: str
    tokenizer: str
    modes: Mapping[RuleName, RuleMode] | None
    rules: Sequence[RuleName]
    notes: Sequence[str]
    turns: Sequence[Turn]


def as_json(tried: Tried) -> dict[str, Any]:
    """The report, JSON-ready."""
    return {
        "file": tried.file,
        "model": tried.model or None,
        "tenant": tried.tenant,
        "tokenizer": tried.tokenizer or None,
        "modes": None if tried.modes is None else {str(rule): str(mode) for rule, mode in tried.modes.items()},
        "tried": [str(rule) for rule in tried.rules],
        "notes": list(tried.notes),
        "turns": [
            {
                "tokens_before": turn.tokens_before,
                "tokens_after": turn.tokens_after,
                "same_before": turn.same_before,
                "same_after": turn.same_after,
                "context_lost": turn.context_lost,
                "cut_messages": turn.cut_messages,
                "near_misses": [_near_miss(each) for each in turn.near_misses],
                "rules": [_step(step, tried.modes) for step in turn.steps],
                "request": {name: value for name, value in turn.fields.items() if tried.model or name != "model"},
            }
            for turn in tried.turns
        ],
    }


def _near_miss(at: NearMissAt) -> dict[str, Any]:
    return {
        "path": at.path,
        "line": at.line,
        "start": at.miss.start,
        "value": at.miss.value,
        "kind": "time" if at.miss.is_time else "id",
        "reason": str(at.miss.reason),
        "said": at.miss.said,
    }


def _step(step: TrialStep, modes: Mapping[RuleName, RuleMode] | None) -> dict[str, Any]:
    return {
        "rule": step.rule,
        "mode": None if modes is None or step.rule == HINTS else str(modes[RuleName(step.rule)]),
        "tokens_before": step.tokens_before,
        "tokens_after": step.tokens_after,
        "edits": [
            {
                "what": edit.what,
                "path": edit.place,
                "said": edit.summary,
                "start": edit.start,
                "tokens": tokens,
                "before": edit.before,
                "after": None if edit.after is REMOVED else edit.after,
            }
            for edit, tokens in zip(step.edits, step.effects, strict=True)
        ],
    }


def as_lines(tried: Tried) -> Iterator[Line]:
    """The report as lines of text."""
    heading = [tried.file, f"model {shown(tried.model)}" if tried.model else "", f"tenant {tried.tenant}"]
    yield ", ".join(filter(None, heading)), _BOLD
    for note in tried.notes:
        yield from wrapped(note, _DIM)
    left = [rule for rule in RuleName if rule not in tried.rules]
    modes = tried.modes or {rule: default_mode(rule) for rule in RuleName}
    off = [rule for rule in left if modes[rule] is RuleMode.OFF]
    for title, rules in (("Off", off), ("Not tried", [rule for rule in left if rule not in off])):
        if rules:
            yield from wrapped(f"{title}: {', '.join(rules)}.", _DIM)
    for number, turn in enumerate(tried.turns, 1):
        if len(tried.turns) > 1:
            yield "", ""
            yield f"Turn {number} of {len(tried.turns)}", _BOLD
        for step in turn.steps:
            yield "", ""
            yield from _step_lines(step, tried.modes)
        if turn.near_misses:
            yield "", ""
            yield from _near_miss_lines(turn.near_misses)
        if turn.context_lost:
            yield "", ""
            yield from wrapped(
                "Blocks of earlier turns would stand in this conversation, but are not known here: give all its turns,"
                " one request a line."
            )
        idle = [str(rule) for rule in tried.rules if all(rule != step.rule for step in turn.steps)]
        if idle:
            yield "", ""
            yield from wrapped(f"Nothing to change: {', '.join(idle)}", _DIM)
    last = tried.turns[-1]
    yield "", ""
    yield f"The prompt as it would go on{_change(last.tokens_before, last.tokens_after, ': ')}", _BOLD
    yield from _prompt(last.fields)
    if len(tried.turns) > 1:
        yield "", ""
        yield from _table(tried.turns)


def _near_miss_lines(found: Sequence[NearMissAt]) -> Iterator[Line]:
    yield f"{RuleName.DYNAMIC_SUFFIX}: not moved, although it looks like a value that changes", _BOLD
    for each in found[:_MOST_MISSES]:
        yield f"  {shown(each.path)}, line {each.line}   {json.dumps(each.miss.value, ensure_ascii=False)}", ""
        yield from wrapped(each.miss.said, _DIM, "    ")
    if len(found) > _MOST_MISSES:
        yield f"  and {len(found) - _MOST_MISSES:,} more (--json lists all)", _DIM


def _step_lines(step: TrialStep, modes: Mapping[RuleName, RuleMode] | None) -> Iterator[Line]:
    if step.rule == HINTS:
        yield f"hints{_change(step.tokens_before, step.tokens_after, '   ')}", _BOLD
        yield "  Taken out as the configuration says: prompt_cache_key, cache_control, billing header.", ""
        return
    mode = "" if modes is None else f" ({modes[RuleName(step.rule)]})"
    yield f"{step.rule}{mode}{_change(step.tokens_before, step.tokens_after, '   ')}", _BOLD
    for edit, tokens in zip(step.edits, step.effects, strict=True):
        effect = "" if tokens is None else f"   {tokens:+,} {_noun(tokens)}" if tokens else "   same number of tokens"
        yield f"  {shown(edit.place)}   {edit.what}{effect}", ""
        if edit.summary:
            yield from wrapped(shown(edit.summary), indent="    ")
        yield from _pieces(edit)


def _pieces(edit: Edit) -> Iterator[Line]:
    """The old and the new value: texts as JSON strings, line by line; other values as their differences."""
    if isinstance(edit.before, str) and isinstance(edit.after, str):
        # Composed and decomposed letters look alike.
        ascii_only = edit.rule is RuleName.UNICODE
        for mark, text, style in (("-", edit.before, _OLD), ("+", edit.after, _NEW)):
            for line in _LINES.findall(text):
                yield from ((f"    {mark} {piece}", style) for piece in _quoted(line, ascii_only=ascii_only))
        return
    before, after = (() if value is REMOVED else _pretty(value) for value in (edit.before, edit.after))
    for line in list(difflib.unified_diff(before, after, n=1, lineterm=""))[2:]:
        style = {"-": _OLD, "+": _NEW}.get(line[0], _DIM)
        text = "..." if line[0] == "@" else line[1:]
        mark = " " if line[0] == "@" else line[0]
        yield from ((f"    {mark} {piece}", style) for piece in _cut(text, WIDTH - 6))


def _pretty(value: Any) -> list[str]:
    # Without the commas at line ends: with them, the last item of a list would differ from itself elsewhere in it.
    return [shown(line).removesuffix(",") for line in json.dumps(value, ensure_ascii=False, indent=1).split("\n")]


def _quoted(text: str, *, ascii_only: bool) -> Iterator[str]:
    escaped = shown(json.dumps(text, ensure_ascii=ascii_only))[1:-1]
    for piece in _cut(escaped, WIDTH - 8):
        yield f'"{piece}"'


def _cut(text: str, width: int) -> Iterator[str]:
    """Split a text into pieces that fit, but no escape sequence."""
    line = ""
    for char in _CHARS.findall(text):
        if len(line) + len(char) > width:
            yield line
            line = ""
        line += char
    yield line


def _prompt(fields: Mapping[str, Any]) -> Iterator[Line]:
    tools = fields.get("tools")
    if isinstance(tools, list) and tools:
        yield "", ""
        yield from wrapped(f"tools: {', '.join(map(_tool_name, tools))}", _DIM, "  ")
    found = fields.get("messages")
    if found is None:
        prompt = fields.get("prompt")
        yield "", ""
        yield from _text(prompt if isinstance(prompt, str) else json.dumps(prompt, ensure_ascii=False))
        return
    for number, message in enumerate(found):
        yield "", ""
        yield f"  [{number}] {shown(message['role'])}", _BOLD
        content = message.get("content")
        for part in content if isinstance(content, list) else () if content is None else (content,):
            text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else part
            yield from _text(text) if isinstance(text, str) else wrapped(_brief(part), _DIM, "      ")
        for call in message.get("tool_calls") or ():
            yield from wrapped(_brief(call), _DIM, "      ")


def _tool_name(tool: Any) -> str:
    function = tool.get("function") if isinstance(tool, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    return shown(name) if isinstance(name, str) else "(no name)"


def _brief(value: Any) -> str:
    text = shown(json.dumps(value, ensure_ascii=False))
    return text if len(text) <= _PART_SHOWN else f"{text[:_PART_SHOWN]}... ({len(text):,} characters)"


def _text(text: str) -> Iterator[Line]:
    for line in text.split("\n"):
        yield from wrapped(shown(line.expandtabs(4)), indent="      ")


def _table(turns: Sequence[Turn]) -> Iterator[Line]:
    """Common prefix of each prompt with the one before, without and with the rules."""
    came = [(turn.same_before, turn.tokens_before) for turn in turns]
    goes_on = [(turn.same_after, turn.tokens_after) for turn in turns]
    yield "Tokens that are those of the turn before, from the first one on", _BOLD
    rows = [("turn", "without the rules", "with them")]
    for number, sides in enumerate(zip(came, goes_on, strict=True), 1):
        without, with_them = (_share(*side, first=number == 1) for side in sides)
        rows.append((str(number), without, with_them))
    rows.append(("new", _new(came), _new(goes_on)))
    for name, without, with_them in rows:
        yield f"  {name:>4}  {without:<32}  {with_them}", ""


def _new(sides: Sequence[tuple[int | None, int | None]]) -> str:
    """Computed tokens of all turns."""
    if any(tokens is None for _, tokens in sides):
        return "not counted"
    return f"{sum((tokens or 0) - (same or 0) for same, tokens in sides):,} tokens in all turns"


def _share(same: int | None, tokens: int | None, *, first: bool) -> str:
    if tokens is None:
        return "not counted"
    if same is None:
        return f"{tokens:,} {_noun(tokens)}" if first else f"unknown of {tokens:,}"
    return f"{same:,} of {tokens:,} ({100 * same // tokens if tokens else 0} %)"


def _change(before: int | None, after: int | None, lead: str) -> str:
    if before is None or after is None:
        return ""
    return f"{lead}{after:,} {_noun(after)}" if before == after else f"{lead}{before:,} -> {after:,} {_noun(after)}"


def _noun(tokens: int) -> str:
    return "token" if abs(tokens) == 1 else "tokens"
