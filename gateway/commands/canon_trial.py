"""Applies canonicalization rules to the turns of a conversation one by one, for ``prefix-gateway canon``."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import msgspec

from gateway.canon.canonicalizer import owner_of
from gateway.canon.context_memory import ContextMemory
from gateway.canon.hints import without_hints
from gateway.canon.rule import Edit, Fields, RuleContext, applied
from gateway.canon.rulebook import Rulebook, reserving
from gateway.canon.rules.dynamic.near_misses import NearMiss, near_misses
from gateway.canon.texts import LEADING_ROLES, leading_messages, messages, texts
from gateway.config.canon_settings import CanonSettings
from gateway.core.canonical import RuleName
from gateway.core.prompt import TOKEN_BYTES
from gateway.core.request import ChatRequest, Endpoint
from gateway.explain.reference.overlap import common_tokens
from gateway.tokenize.local import LocalEncoder

HINTS = "hints"
"""Name, in place of a rule's, of the removal of other vendors' cache hints."""

_MEMORY_BYTES = 64 * 1024 * 1024
_MAX_ENCODED = 2_000_000
"""Limit of tokens that are encoded to measure the effect of a rule's single edits: each edit encodes the whole
prompt."""


@dataclass(frozen=True, slots=True)
class TrialStep:
    """What one rule did to one request.

    Attributes:
        rule: Its name, or ``HINTS``.
        edits: Its edits.
        effects: Change of the prompt's length in tokens by each edit; None if unknown.
        tokens_before: Tokens of the prompt before the rule; None without a tokenizer.
        tokens_after: Tokens of the prompt after the rule.
    """

    rule: str
    edits: Sequence[Edit]
    effects: Sequence[int | None]
    tokens_before: int | None
    tokens_after: int | None


@dataclass(frozen=True, slots=True)
class NearMissAt:
    """A value that is not moved.

    Attributes:
        path: Path of its text in the API's dotted form.
        line: Its line there, from 1.
        miss: The value and the reason.
    """

    path: str
    line: int
    miss: NearMiss


@dataclass(frozen=True, slots=True)
class Turn:
    """The result for one request.

    Attributes:
        fields: The changed request.
        steps: Results of the rules that changed it, in order.
        tokens_before: Tokens of the original prompt; None without a tokenizer.
        tokens_after: Tokens of the changed prompt.
        same_before: Common prefix of the original prompts of this turn and the one before, in tokens; None for the
            first turn.
        same_after: Common prefix of the changed prompts.
        context_lost: Whether blocks of earlier turns could not be restored.
        cut_messages: Messages left out of a conversation that became too long.
        near_misses: Values that ``dynamic-suffix`` does not move although they look like it, in their texts.
    """

    fields: Fields
    steps: Sequence[TrialStep]
    tokens_before: int | None
    tokens_after: int | None
    same_before: int | None
    same_after: int | None
    context_lost: bool
    cut_messages: int
    near_misses: Sequence[NearMissAt] = ()


class Trial:
    """Tries rules on one turn of a conversation after the other.

    Args:
        rules: All rules.
        names: The rules to try.
        settings: The settings of the rules.
        encoder: Counts tokens; None without a tokenizer.
        now: Unix seconds, for all turns.
        context_limit: Most tokens of prompt and answer the model takes; 0 if unknown.
    """

    def __init__(
        self,
        rules: Rulebook,
        names: Collection[RuleName],
        settings: CanonSettings,
        *,
        encoder: LocalEncoder | None,
        now: float,
        context_limit: int,
    ) -> None:
        self._rules = rules
        self._names = [name for name in RuleName if name in names]
        self._settings = settings
        self._encoder = encoder
        self._memory = ContextMemory(_MEMORY_BYTES, ttl_seconds=1)
        given = RuleContext(
            now,
            recall=lambda key: self._memory.get(key, now),
            count_tokens=None if encoder is None else lambda text: len(encoder.encode_text(text)) // TOKEN_BYTES,
            context_limit=context_limit,
            later_system="joined" if encoder is None else encoder.later_system,
        )
        self._given = reserving(given, names)
        self._last: tuple[bytes | None, bytes | None] | None = None
        self.uncounted = ""
        """Why tokens of some turn could not be counted."""

    def turn(self, request: ChatRequest) -> Turn:
        """Try the rules on the conversation's next turn."""
        given = msgspec.structs.replace(self._given, endpoint=request.endpoint, owner=owner_of(request))
        steps: list[TrialStep] = []
        asked = ids = self._ids(request.endpoint, request.fields)
        fields = without_hints(request, self._settings).fields
        if fields is not request.fields:
            after = self._ids(request.endpoint, fields)
            steps.append(TrialStep(HINTS, (), (), _tokens(ids), _tokens(after)))
            ids = after
        remember: dict[bytes, str] = {}
        lost, cut = False, 0
        missed: Sequence[NearMissAt] = ()
        for name in self._names:
            found = self._rules.canonical(fields, (name,), given)
            remember |= found.remember
            lost, cut = lost or found.context_lost, cut + found.cut_messages
            if name is RuleName.DYNAMIC_SUFFIX:
                missed = self._near_misses(fields, found.edits)
            if not found.edits:
                continue
            after = self._ids(request.endpoint, found.fields)
            effects = self._effects(request.endpoint, fields, found.edits, _tokens(ids))
            steps.append(TrialStep(name, found.edits, effects, _tokens(ids), _tokens(after)))
            fields, ids = found.fields, after
        for key, block in remember.items():
            self._memory.put(key, block, given.now)
        before, self._last = self._last, (asked, ids)
        same = (None, None) if before is None else tuple(map(_same, before, self._last))
        # As ``Rulebook.canonical``: after a cut, the lost blocks belong to removed messages.
        lost = lost and not cut
        return Turn(fields, steps, _tokens(asked), _tokens(ids), same[0], same[1], lost, cut, missed)

    def _near_misses(self, fields: Fields, edits: Sequence[Edit]) -> Sequence[NearMissAt]:
        """The near misses in the leading messages, in which the rule searches."""
        leading = leading_messages(fields)
        found: list[NearMissAt] = []
        for text in texts(fields, LEADING_ROLES) if leading < len(messages(fields)) else ():
            if text.message >= leading:
                continue
            moved = sorted(
                (each.start, each.start + len(each.before))
                for each in edits
                if each.path == text.path and each.start is not None
            )
            place = Edit(RuleName.DYNAMIC_SUFFIX, "", text.path, None, None).place
            found += (
                NearMissAt(place, text.text.count("\n", 0, miss.start) + 1, miss)
                for miss in near_misses(text.text, self._given.now, self._settings.dynamic_suffix, moved)
            )
        return found

    def _effects(
        self, endpoint: Endpoint, fields: Fields, edits: Sequence[Edit], tokens: int | None
    ) -> list[int | None]:
        if tokens is None or tokens * len(edits) > _MAX_ENCODED:
            return [None] * len(edits)
        counts = [_tokens(self._ids(endpoint, applied(fields, edits[:n]))) for n in range(len(edits) + 1)]
        return [None if before is None or after is None else after - before for before, after in pairwise(counts)]

    def _ids(self, endpoint: Endpoint, fields: Mapping[str, object]) -> bytes | None:
        if self._encoder is None:
            return None
        try:
            return b"".join(self._encoder.encode(endpoint, fields))
        except Exception as error:  # noqa: BLE001 - a template or a tokenizer may fail at anything it does not expect
            self.uncounted = str(error).partition("\n")[0] or type(error).__name__
            return None


def _tokens(ids: bytes | None) -> int | None:
    return None if ids is None else len(ids) // TOKEN_BYTES


def _same(before: bytes | None, now: bytes | None) -> int | None:
    return None if before is None or now is None else common_tokens(before, now)
