"""Applies the rules that are in mode ``apply`` to a request, and stores the context blocks its next turn needs."""

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

import msgspec
import structlog

from gateway.canon.context_memory import ContextMemory
from gateway.canon.hints import has_strips, without_hints
from gateway.canon.rewrite import rewritten
from gateway.canon.rule import RuleContext
from gateway.canon.rulebook import Canonical, ModeTable, rulebook
from gateway.canon.rules.dynamic import appended_blocks
from gateway.config.canon_settings import CanonSettings
from gateway.core.canonical import Canonicalized, RuleMode, RuleModes, RuleName
from gateway.core.errors import Overloaded
from gateway.core.json_portions import upper_bounds
from gateway.core.ports import CanonicalRequest, ContextStore, LongTexts, ModelTexts
from gateway.core.request import ChatRequest

SWITCH = b"x-gateway-canonical"
"""Request header by which a client turns canonicalization off, and response header that names the rules applied."""

_INLINE_BYTES = 64 * 1024
"""Bodies up to this size are processed on the event loop; larger ones in a thread."""

_MIB = 1024 * 1024

_MAX_BYTES = 4 * _MIB
_MAX_VALUES = 150_000
"""Bodies that are larger or have more members and values are forwarded unchanged: re-encoding them takes single calls
that hold the interpreter lock for more than about 20 ms."""

_CONVERSION = frozenset({RuleName.INLINE_SYSTEM})
"""Rules without which an engine may refuse a translated request: they hold regardless of its size and its group."""

_NONE: frozenset[RuleName] = frozenset()

T = TypeVar("T")

_log = structlog.get_logger("gateway.canon")


class Canonicalizer:
    """Canonicalizes requests. Call it from the event loop's thread only.

    Args:
        settings: The rules' settings.
        models: Modes by model id.
        texts: Token counts and context limits of the models.
        store: Shares context blocks with the other workers and gateways; None: they stay in this process.
        threads: Threads for long prompts.
    """

    def __init__(
        self,
        settings: CanonSettings,
        models: Mapping[str, RuleModes],
        *,
        texts: ModelTexts,
        store: ContextStore | None,
        threads: LongTexts,
    ) -> None:
        self._texts = texts
        self._store = store
        self._threads = threads
        self._memory = ContextMemory(settings.memory_mib * _MIB, settings.memory_ttl_seconds)
        self._settings = settings
        self._rulebook = rulebook(settings)
        self.configure(settings, models)

    def configure(self, settings: CanonSettings, models: Mapping[str, RuleModes]) -> None:
        """Replace the settings. Stored context blocks stay, within the new memory limit."""
        if settings != self._settings:  # rules cache their findings
            self._rulebook = rulebook(settings)
        self._settings = settings
        self._modes = ModeTable(settings.rules, models, settings.routes)
        self._strips = has_strips(settings)
        self._memory.configure(settings.memory_mib * _MIB, settings.memory_ttl_seconds)

    async def canonical(self, request: ChatRequest) -> CanonicalRequest:
        """The canonicalized request. Never fails otherwise: what cannot be canonicalized stays unchanged.

        Raises:
            Overloaded: its text is long, and too many of the tenant's long texts wait to be read.
        """
        modes, names = self._modes[request.model, request.endpoint, request.caller.tenant.canon, request.dialect]
        strips, needed = self._strips, _NONE
        if request.dialect:
            strips, needed = has_strips(self._settings, request.dialect), names & _CONVERSION
        if request.warmup_target is not None or _is_off(request):
            strips, names = False, needed
            modes = tuple(RuleMode.APPLY if rule in names else RuleMode.OFF for rule in RuleName)
        outcome = Canonicalized(modes, owner=owner_of(request))
        try:
            if needed and "system" not in [message["role"] for message in request.fields["messages"][1:]]:
                names, needed = names - needed, _NONE  # as in most conversations
            is_long = request.size > _INLINE_BYTES and bool(names or strips)
            if is_long and not await self._work(request, _is_within_limits, request.body):
                names, strips = needed, False
            stripped = request
            if strips:
                stripped = await self._work(request, without_hints, request, self._settings)
            if not names and stripped is request:
                return CanonicalRequest(request, outcome)
            return await self._applied(request, stripped, names, outcome)
        except Overloaded:
            raise
        except Exception as error:  # noqa: BLE001 - any error: the original prompt is sent
            # The type only: a message may quote the prompt.
            _log.error("canonicalization_failed", request_id=request.request_id, error=type(error).__name__)
            return CanonicalRequest(request, outcome)

    async def _applied(
        self,
        original: ChatRequest,
        stripped: ChatRequest,
        names: Collection[RuleName],
        outcome: Canonicalized,
    ) -> CanonicalRequest:
        """The request with some rules applied, after hints were removed."""
        found = await self._canonical(stripped, names, outcome.owner)
        for key, block in found.remember.items():
            self._memory.put(key, block, time.time())
        if found.remember and self._store is not None:
            self._store.keep(found.remember)
        request = stripped
        if found.fields is not stripped.fields:
            body = await self._work(stripped, rewritten, stripped.body, stripped.fields, found.fields)
            request = msgspec.structs.replace(stripped, body=body, fields=found.fields)
        changed = b"" if request is original else original.body
        return CanonicalRequest(
            request,
            msgspec.structs.replace(
                outcome, asked=changed, context_lost=found.context_lost, blocks=appended_blocks(found.edits)
            ),
            edits=Counter(edit.rule for edit in found.edits),
            cut_messages=found.cut_messages,
        )

    async def _canonical(self, request: ChatRequest, names: Collection[RuleName], owner: str) -> Canonical:
        """Result of the rules, with context blocks from this process or else from the store."""
        missed: set[bytes] = set()
        now = time.time()

        def recall(key: bytes) -> str | None:
            block = self._memory.get(key, now)
            if block is None:
                missed.add(key)
            return block

        given = RuleContext(
            now=now,
            endpoint=request.endpoint,
            owner=owner,
            tenant=request.caller.tenant.id,
            recall=recall,
            count_tokens=self._texts.token_counter(request.model, request.caller.tenant.id),
            context_limit=self._texts.context_limit(request.model),
            later_system=self._texts.later_system(request.model),
        )
        found = await self._work(request, self._rulebook.canonical, request.fields, names, given)
        asked_for: set[bytes] = set()
        while self._store is not None and (wanted := missed - asked_for):
            # The first round fetches the list of block ids of the conversation, the second one the blocks.
            asked_for |= wanted
            stored = await self._store.fetch(sorted(wanted))
            if not stored:
                break
            for key, block in stored.items():
                self._memory.put(key, block, now)
            found = await self._work(request, self._rulebook.canonical, request.fields, names, given)
        return found

    async def _work(self, request: ChatRequest, function: Callable[..., T], *arguments: object) -> T:
        """Call a function whose time grows with the request: directly, or in a thread if the request is long."""
        if len(request.body) <= _INLINE_BYTES:
            return function(*arguments)
        return await self._threads.run(request.caller.tenant, len(request.body), function, *arguments)


def owner_of(request: ChatRequest) -> str:
    """Owner of the context blocks that may be put into a request: tenant and cache scope, and the session and user that
    the client names."""
    user = request.fields.get("user")
    caller = request.caller
    return "\0".join((caller.tenant.id, caller.scope, request.session or "", user if isinstance(user, str) else ""))


def _is_within_limits(body: bytes) -> bool:
    if len(body) > _MAX_BYTES:
        return False
    bounds = upper_bounds(body)
    return bounds.members + bounds.values <= _MAX_VALUES


def _is_off(request: ChatRequest) -> bool:
    if request.assignment is not None and request.assignment.is_held_out:
        return True
    for name, value in request.headers:  # noqa: SIM110 - a generator for each request would cost more than the loop
        if name == SWITCH and value.strip().lower() == b"off":
            return True
    return False
