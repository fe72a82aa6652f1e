"""``prefix-gateway diff A B``: where two requests first differ, why, what it costs, and the rule that removes it."""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gateway.canon.rulebook import RULES, rulebook
from gateway.commands.printing import Line, coloured, printed, shown, wrapped
from gateway.commands.request_file import RequestInFile, read_requests
from gateway.commands.trial_setup import (
    add_setup_arguments,
    request_of,
    time_argument,
    trial_encoder,
    trial_setup,
)
from gateway.core.advice import HINTS, advice_on
from gateway.core.canonical import RuleMode, RuleName
from gateway.core.errors import ConfigInvalid
from gateway.core.reasons import REASONS
from gateway.evaluation.bad_input import BadInput
from gateway.evaluation.request_comparison import DifferingToken, RequestComparer, RequestComparison, TriedRules

_SAME = 0
_DIFFER = 1
_BAD_INPUT = 2

DESCRIPTION = """\
Compare two requests as an engine's prefix cache does: the first token in which they differ, its
place in the request and in the file, the cause, the tokens behind it that have to be computed
again, and the canonicalization rule that removes the difference (it is tried on both). A is the
earlier request, B the later one: the JSON that is sent to /v1/chat/completions or /v1/completions.
Nothing is sent anywhere."""

EPILOG = """\
examples:
  prefix-gateway diff monday.json tuesday.json
  prefix-gateway diff a.json b.json --config config/gateway.yaml --json

exit code: 0 B can reuse all of A that it contains, 1 they differ, 2 bad usage, or no request"""


@dataclass(frozen=True, slots=True)
class _DiffRun:
    """What is reported.

    Attributes:
        files: Names of the two files.
        tokenizer: What counted the tokens; empty if nothing did.
        notes: Notes on the figures.
        modes: Modes of the rules in the configuration, by rule; None without one.
        byte: First byte in which the files differ; None if one is the beginning of the other.
        byte_line: Its line in B from 1.
        result: The comparison.
    """

    files: tuple[str, str]
    tokenizer: str
    notes: list[str]
    modes: dict[RuleName, RuleMode] | None
    byte: int | None
    byte_line: int
    result: RequestComparison


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments and its help text."""
    parser.description = DESCRIPTION
    parser.epilog = EPILOG
    parser.add_argument("before", metavar="A", help="the earlier request; - reads standard input")
    parser.add_argument("after", metavar="B", help="the later request; - reads standard input")
    add_setup_arguments(parser)
    parser.add_argument(
        "--now",
        metavar="TIME",
        type=time_argument,
        help="the time as of which rules are tried, such as 2026-11-21T10:02:00Z (default: the time in each request"
        " where the two differ, else now)",
    )
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")


def run(args: argparse.Namespace) -> int:
    """Run the command. Returns the exit code."""
    try:
        compared = _compared(args)
    except (BadInput, ConfigInvalid) as problem:
        print(problem, file=sys.stderr)
        return _BAD_INPUT
    printed(json.dumps(_as_json(compared), ensure_ascii=False) + "\n" if args.json else coloured(_lines(compared)))
    return _SAME if compared.result.shares_all else _DIFFER


def _compared(args: argparse.Namespace) -> _DiffRun:
    if args.before == args.after == "-":
        raise BadInput("A and B cannot both be standard input: name a file for one of them")
    one, other = _single(args.before), _single(args.after)
    if one.endpoint is not other.endpoint:
        raise BadInput(
            f"{one.place} is a request to {one.endpoint} and {other.place} one to {other.endpoint}: they share no "
            "prompt"
        )
    setup = trial_setup(args, one.fields)
    requests = [request_of(each.place, each.fields, setup, args.model) for each in (one, other)]
    encoder, tokenizer, notes = trial_encoder(setup.model)
    clock = time.time()
    comparer = RequestComparer(rulebook(setup.settings), encoder, now=args.now, clock=clock)
    result = comparer.compare(*requests)
    if result.uncounted and encoder is not None:
        notes.append(f"No tokens are counted: {result.uncounted}.")
    before, after = one.text.encode(), other.text.encode()
    byte = _first_difference(before, after)
    return _DiffRun(
        files=(one.place, other.place),
        tokenizer=tokenizer,
        notes=notes,
        modes=None if setup.modes is None else dict(zip(RULES, setup.modes, strict=True)),
        byte=byte,
        byte_line=after[: byte or 0].count(b"\n") + 1,
        result=result,
    )


def _single(file: str) -> RequestInFile:
    requests = read_requests(file)
    if len(requests) != 1:
        raise BadInput(f"{file}: holds {len(requests)} requests; expected one (write it to a file of its own)")
    return requests[0]


def _first_difference(before: bytes, after: bytes) -> int | None:
    if before.startswith(after) or after.startswith(before):
        return None
    low, high = 0, min(len(before), len(after))
    while low < high:
        middle = (low + high + 1) // 2
        if before[low:middle] == after[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _as_json(compared: _DiffRun) -> dict[str, Any]:
    result = compared.result
    difference, token = result.difference, result.token
    return {
        "before": compared.files[0],
        "after": compared.files[1],
        "same": result.shares_all,
        "tokenizer": compared.tokenizer or None,
        "tokens": None if result.tokens is None else list(result.tokens),
        "equal_tokens": None if result.tokens is None else result.equal_tokens,
        "lost_tokens": None if result.tokens is None else result.lost_tokens,
        "token": None
        if token is None
        else {"index": token.index, "in_front": token.in_front, "before": token.before, "after": token.after},
        "byte": compared.byte,
        "path": difference.path if difference is not None else result.other_path or None,
        "line": (difference.line or None) if difference is not None else None,
        "column": (difference.column or None) if difference is not None else None,
        "reason": str(difference.reason) if difference is not None else None,
        "detail": difference.detail if difference is not None else None,
        "said": difference.said if difference is not None else None,
        "advice": None if difference is None else advice_on(difference, _applied(compared)),
        "fix": None if result.fix is None else _tried_json(result.fix),
        "tried": [_tried_json(each) for each in result.tried],
        "tried_at": [datetime.fromtimestamp(at, UTC).isoformat() for at in result.tried_at],
        "notes": compared.notes,
    }


def _tried_json(tried: TriedRules) -> dict[str, Any]:
    return {
        "rules": [str(rule) for rule in tried.rules],
        "equal_tokens": tried.equal_tokens,
        "tokens": tried.tokens,
        "edits": tried.edits,
    }


def _lines(compared: _DiffRun) -> Iterator[Line]:
    result = compared.result
    yield f"{compared.files[0]} against {compared.files[1]}", "bold"
    for note in compared.notes:
        yield from wrapped(note, "dim")
    yield "", ""
    if result.shares_all:
        yield from _same(result)
        return
    difference = result.difference
    if difference is not None:
        yield f"First difference: {difference.path}{_place(difference.line, difference.column)}", "bold"
    else:
        yield "First difference: in the tokens only", "bold"
    if result.texts is not None:
        for mark, text, style in zip("-+", result.texts, ("red", "green"), strict=True):
            yield f"  {mark} {shown(text)}", style
    if result.token is not None:
        yield from wrapped(_token(result.token), indent="  ")
    if compared.byte is not None:
        yield f"  byte {compared.byte:,} of the files, line {compared.byte_line} of {compared.files[1]}", ""
    if difference is not None:
        yield "", ""
        yield from wrapped(
            f"Cause: {REASONS[difference.reason].title} ({difference.reason}, {difference.detail})", "bold"
        )
        yield from wrapped(shown(difference.said), indent="  ")
    if result.tokens is not None:
        yield "", ""
        yield from wrapped(_cost(result))
    yield "", ""
    yield from _fix(compared)
    if result.tried and result.as_of_request:
        times = [datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M") for at in result.tried_at]
        yield from wrapped(f"Rules are tried as of the time in each request: {' and '.join(times)} UTC.", "dim")


def _same(result: RequestComparison) -> Iterator[Line]:
    if result.tokens is None or result.tokens[0] == result.tokens[1]:
        yield "The prompts are the same.", "bold"
    else:
        one, other = result.tokens
        which = (
            "The first prompt is the beginning of the second"
            if one < other
            else "The second is the beginning of the first"
        )
        yield f"{which}: {result.equal_tokens:,} of {other:,} tokens are equal, and nothing is lost.", "bold"
    if result.difference is not None:
        path = f"{result.difference.path}, which this chat template does not print."
        yield from wrapped(f"The requests differ at {path}", "dim")
    elif result.other_path:
        yield from wrapped(
            f"The requests differ at {result.other_path}, which the engine's cache does not look at.", "dim"
        )


def _place(line: int, column: int) -> str:
    return f", line {line}, column {column}" if line else ""


def _token(token: DifferingToken) -> str:
    one, other = (
        "the end" if each is None else f"{each[0]} ({json.dumps(each[1], ensure_ascii=False)})"
        for each in (token.before, token.after)
    )
    behind = f" behind {json.dumps(token.in_front, ensure_ascii=False)}" if token.in_front else ""
    return shown(f"token {token.index:,}{behind}: {one} became {other}")


def _cost(result: RequestComparison) -> str:
    assert result.tokens is not None
    _, tokens = result.tokens
    new = tokens - result.equal_tokens - result.lost_tokens
    return (
        f"Of {tokens:,} tokens, {result.equal_tokens:,} are equal in front; {result.lost_tokens:,} behind the "
        "difference"
        f" stand in both prompts and are computed again, and {new:,} are new."
    )


def _fix(compared: _DiffRun) -> Iterator[Line]:
    result = compared.result
    if result.fix is not None and result.tokens is not None:
        names = " and ".join(result.fix.rules)
        yield from wrapped(
            f"Fix: {names}: {result.fix.equal_tokens:,} of {result.fix.tokens:,} tokens would be equal, instead of"
            f" {result.equal_tokens:,} of {result.tokens[1]:,}.",
            "bold",
        )
        applied = compared.modes is not None and all(
            compared.modes[rule] is RuleMode.APPLY for rule in result.fix.rules
        )
        modes = ", ".join(f"{rule}: apply" for rule in result.fix.rules)
        yield from wrapped(
            "The configuration applies it already." if applied else f"Set canon: {{rules: {{{modes}}}}}.", indent="  "
        )
        return
    if result.tokens is None:
        yield from wrapped("Rules are not tried, because the tokens cannot be counted.", "dim")
    else:
        names = ", ".join(each.rules[0] for each in result.tried)
        yield from wrapped(
            "No rule removes the difference" + (f" (tried, and changed something: {names})." if names else "."), "bold"
        )
    if result.difference is not None:
        yield from wrapped(advice_on(result.difference, _applied(compared)), indent="  ")
        hint = HINTS.get(result.difference.detail)
        if hint is not None and result.tokens is not None:
            yield from wrapped(hint.gain.format(tokens=f"{result.lost_tokens:,}"), indent="  ")


def _applied(compared: _DiffRun) -> frozenset[RuleName]:
    """The rules that the configuration applies."""
    return frozenset(rule for rule, mode in (compared.modes or {}).items() if mode is RuleMode.APPLY)
