"""Compares two requests as an engine's cache does: where they first differ, why, what it costs, which rule removes it.

The cause is that of ``gateway.explain.diff``, as in explanations of live requests. A rule is tried on both requests,
and the results are compared. Pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.canon.recognizer.calendar_words import marked
from gateway.canon.recognizer.kinds import MOMENT
from gateway.canon.recognizer.moments import moment
from gateway.canon.rule import RuleContext
from gateway.canon.rulebook import BY_DEFAULT, RULES, Rulebook
from gateway.core.canonical import RuleName
from gateway.core.explanation import Difference
from gateway.core.prompt import TOKEN_BYTES
from gateway.core.reasons import REASONS, Reason
from gateway.core.request import ChatRequest
from gateway.explain.diff import find_difference
from gateway.explain.diff.compare import first_place
from gateway.explain.prompt_text import PromptText, prompt_text
from gateway.explain.reference.overlap import common_tokens, tokens_behind
from gateway.tokenize.local import LocalEncoder

_IN_FRONT_TOKENS = 16
_SHOWN_CHARS = 80
_ENGINE_FIELDS: Sequence[tuple[str, Reason, str]] = (
    ("model", Reason.MODEL_CHANGED, "the requests name different models, which share no cache"),
    ("cache_salt", Reason.SCOPE_ISOLATED, "the requests have different cache salts, which share no cache"),
    ("prompt_logprobs", Reason.CACHE_BYPASSED, "a prompt's log probabilities are computed without the cache"),
)
"""Fields by which equal prompts do not share cached blocks."""


@dataclass(frozen=True, slots=True)
class DifferingToken:
    """The first token in which two prompts differ.

    Attributes:
        index: Its number from 0, which is the number of equal tokens in front.
        in_front: The text of the last equal tokens.
        before: Its id and text in the first prompt; None where that has ended.
        after: The same in the second.
    """

    index: int
    in_front: str
    before: tuple[int, str] | None
    after: tuple[int, str] | None


@dataclass(frozen=True, slots=True)
class TriedRules:
    """What some rules make of both requests.

    Attributes:
        rules: The rules.
        equal_tokens: Tokens that the changed prompts have in common at their beginning.
        tokens: Tokens of the second prompt, changed.
        edits: Changes in both.
    """

    rules: Sequence[RuleName]
    equal_tokens: int
    tokens: int
    edits: int


@dataclass(frozen=True, slots=True)
class RequestComparison:
    """The result.

    Attributes:
        tokens: Tokens of the two prompts; None if they cannot be counted.
        equal_tokens: Tokens that they have in common at their beginning.
        lost_tokens: Tokens of the second prompt behind the first difference that stand in the first one, too.
        token: The first differing token; None if one prompt is the beginning of the other.
        difference: Where and why they first differ; None if nothing differs that belongs to the prompt.
        texts: The text of both around the difference; None if it is not in a message's text.
        field: A field that does not belong to the prompt, and keeps the engine from sharing, such as ``cache_salt``.
        other_path: Path of the first difference in the two bodies; empty if there is none.
        fix: The rules that help most; None if none does.
        tried: All rules that change something, each alone.
        tried_at: Unix seconds as of which each request's rules were tried.
        as_of_request: Whether these are the times that stand in the requests.
        uncounted: Why tokens could not be counted; empty if they were.
    """

    tokens: tuple[int, int] | None
    equal_tokens: int
    lost_tokens: int
    token: DifferingToken | None
    difference: Difference | None
    texts: tuple[str, str] | None
    field: str
    other_path: str
    fix: TriedRules | None
    tried: Sequence[TriedRules]
    tried_at: tuple[float, float]
    as_of_request: bool
    uncounted: str = ""

    @property
    def shares_all(self) -> bool:
        """Whether the second request reuses all that it can of the first.

        Where tokens are counted, they decide: a template need not print everything in which two requests differ.
        """
        return not self.field and self.token is None and (self.tokens is not None or self.difference is None)


class RequestComparer:
    """Compares requests to one model.

    Args:
        rules: The rules that are tried.
        encoder: The model's tokenizer; None: tokens are not counted.
        now: Unix seconds as of which rules are tried; None: the time that stands in a request where the two differ,
            else ``clock``.
        clock: The present time in Unix seconds.
    """

    def __init__(self, rules: Rulebook, encoder: LocalEncoder | None, *, now: float | None, clock: float) -> None:
        self._rules = rules
        self._encoder = encoder
        self._now = now
        self._clock = clock
        self._uncounted = ""

    def compare(self, before: ChatRequest, after: ChatRequest) -> RequestComparison:
        """Compare two requests to the same API."""
        self._uncounted = "" if self._encoder is not None else "the model's tokenizer is only in its engine"
        ids = self._ids(before, before.fields), self._ids(after, after.fields)
        texts = prompt_text(before.endpoint, before.fields), prompt_text(after.endpoint, after.fields)
        equal = common_tokens(*_known(ids)) if None not in ids else 0
        difference = self._difference(texts, equal, ids)
        given = self._contexts(texts, difference)
        one, other = _known(ids)
        token = _differing(self._encoder, one, other, equal) if None not in ids else None
        field, cause = _field(before.fields, after.fields)
        if cause is not None:
            difference, equal = cause, 0
        tried: Sequence[TriedRules] = ()
        fix = None
        if cause is None and (difference is not None or token is not None) and None not in ids:
            tried, fix = self._tried(before, after, given, difference, equal)
        place = first_place(dict(before.fields), dict(after.fields))
        return RequestComparison(
            tokens=(len(one) // TOKEN_BYTES, len(other) // TOKEN_BYTES) if None not in ids else None,
            equal_tokens=equal,
            lost_tokens=tokens_behind(one, other, equal) if token is not None or cause is not None else 0,
            token=token,
            difference=difference,
            texts=_windows(texts, difference),
            field=field,
            other_path=place.path.removeprefix(".") if place is not None else "",
            fix=fix,
            tried=tried,
            tried_at=(given[0].now, given[1].now),
            as_of_request=self._now is None and any(each.now != self._clock for each in given),
            uncounted=self._uncounted,
        )

    def _difference(
        self, texts: tuple[PromptText, PromptText], equal: int, ids: tuple[bytes | None, bytes | None]
    ) -> Difference | None:
        length = len(ids[1] or b"") // TOKEN_BYTES
        return find_difference(
            *texts,
            before_source="",
            after_source="",
            same_conversation=_continues(*texts),
            replies=(),
            tools_first=self._encoder is not None and self._encoder.tools_first,
            equal_share=equal / length if length else 1.0,
        )

    def _contexts(
        self, texts: tuple[PromptText, PromptText], difference: Difference | None
    ) -> tuple[RuleContext, RuleContext]:
        encoder = self._encoder
        count = None if encoder is None else lambda text: len(encoder.encode_text(text)) // TOKEN_BYTES
        times = [self._now or _time_in(text, difference) or self._clock for text in texts]
        later_system = "joined" if encoder is None else encoder.later_system
        one, other = (RuleContext(time, count_tokens=count, later_system=later_system) for time in times)
        return one, other

    def _tried(
        self,
        before: ChatRequest,
        after: ChatRequest,
        given: tuple[RuleContext, RuleContext],
        difference: Difference | None,
        equal: int,
    ) -> tuple[Sequence[TriedRules], TriedRules | None]:
        """Every rule that changes something, alone; and the fewest rules that help most."""
        first = REASONS[difference.reason].rules if difference is not None else ()
        # Of rules that help equally, one that is on by default is better.
        names = dict.fromkeys((*first, *BY_DEFAULT, *RULES))
        tried = [each for rule in names if (each := self._with_rules((rule,), before, after, given)) is not None]
        best: TriedRules | None = None
        left = list(tried)
        # Rule by rule: one fault hides those behind it.
        while left:
            so_far = () if best is None else best.rules
            trials = [self._with_rules((*so_far, *each.rules), before, after, given) for each in left]
            found = max((each for each in trials if each is not None), key=lambda each: each.equal_tokens, default=None)
            if found is None or found.equal_tokens <= (equal if best is None else best.equal_tokens):
                break
            best = found
            left = [each for each in left if each.rules[0] not in found.rules]
        return tried, best

    def _with_rules(
        self,
        rules: Sequence[RuleName],
        before: ChatRequest,
        after: ChatRequest,
        given: tuple[RuleContext, RuleContext],
    ) -> TriedRules | None:
        one = self._rules.canonical(before.fields, rules, given[0])
        other = self._rules.canonical(after.fields, rules, given[1])
        edits = len(one.edits) + len(other.edits)
        ids = self._ids(before, one.fields), self._ids(after, other.fields)
        if not edits or ids[0] is None or ids[1] is None:
            return None
        return TriedRules(rules, common_tokens(ids[0], ids[1]), len(ids[1]) // TOKEN_BYTES, edits)

    def _ids(self, request: ChatRequest, fields: Mapping[str, Any]) -> bytes | None:
        if self._encoder is None:
            return None
        try:
            return b"".join(self._encoder.encode(request.endpoint, fields))
        except Exception as error:  # noqa: BLE001 - a template or a tokenizer may fail at anything it does not expect
            self._uncounted = str(error).partition("\n")[0] or type(error).__name__
            return None


def _known(ids: tuple[bytes | None, bytes | None]) -> tuple[bytes, bytes]:
    return ids[0] or b"", ids[1] or b""


def _continues(before: PromptText, after: PromptText) -> bool:
    """Whether the second prompt is a later turn of the first one's conversation."""
    asked = [message.text for message in before.messages if message.role == "user"]
    asked_again = [message.text for message in after.messages if message.role == "user"]
    return bool(asked) and len(after.messages) > len(before.messages) and asked[:1] == asked_again[:1]


def _differing(encoder: LocalEncoder | None, one: bytes, other: bytes, equal: int) -> DifferingToken | None:
    start = equal * TOKEN_BYTES
    if encoder is None or len(one) == start or len(other) == start:
        return None
    front = max(equal - _IN_FRONT_TOKENS, 0) * TOKEN_BYTES
    return DifferingToken(
        equal, _decoded(encoder, one[front:start]), _token(encoder, one, start), _token(encoder, other, start)
    )


def _token(encoder: LocalEncoder, ids: bytes, start: int) -> tuple[int, str]:
    one = ids[start : start + TOKEN_BYTES]
    return int.from_bytes(one, "little"), _decoded(encoder, one)


def _decoded(encoder: LocalEncoder, ids: bytes) -> str:
    numbers = [int.from_bytes(ids[at : at + TOKEN_BYTES], "little") for at in range(0, len(ids), TOKEN_BYTES)]
    return encoder.decode(numbers)[-_SHOWN_CHARS:] if numbers else ""


def _field(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[str, Difference | None]:
    """A field outside of the prompt by which nothing is shared, and the cause."""
    for name, reason, said in _ENGINE_FIELDS:
        one, other = before.get(name), after.get(name)
        if (other is not None) if reason is Reason.CACHE_BYPASSED else (one != other):
            return name, Difference(reason, name, name, said=said)
    return "", None


def _windows(texts: tuple[PromptText, PromptText], difference: Difference | None) -> tuple[str, str] | None:
    """The line of the difference in both texts, cut to what is near it."""
    if difference is None or difference.message is None or not difference.line:
        return None
    shown: list[str] = []
    for text in texts:
        if difference.message >= len(text.messages):
            return None
        lines = text.messages[difference.message].text.split("\n")
        line = lines[difference.line - 1] if difference.line <= len(lines) else ""
        start = max(difference.column - 1 - _SHOWN_CHARS // 2, 0)
        end = difference.column - 1 + _SHOWN_CHARS // 2
        shown.append(("…" if start else "") + line[start:end] + ("…" if end < len(line) else ""))
    return shown[0], shown[1]


def _time_in(text: PromptText, difference: Difference | None) -> float | None:
    """The time that stands in a prompt where it differs from the other one, in Unix seconds; None for none."""
    if difference is None or difference.reason is not Reason.DYNAMIC_TIME or difference.message is None:
        return None
    if difference.message >= len(text.messages):
        return None
    lines = text.messages[difference.message].text.split("\n")
    if not 0 < difference.line <= len(lines):
        return None
    line, column = lines[difference.line - 1], difference.column - 1
    for found in MOMENT.finditer(marked(line)):
        if found.start() <= column <= found.end() and (read := moment(line[found.start() : found.end()])):
            return read.begins()
    return None
