"""Applies the rules that are in force for a request, and remembers what its next turn needs."""

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

import msgspec
import structlog

from gateway.canon.building import rulebook
from gateway.canon.context_memory import ContextMemory
from gateway.canon.hints import affinity_of, hinted
from gateway.canon.modes import ALL_OFF, ModeTable, rules_in
from gateway.canon.rewrite import rewritten
from gateway.canon.rule import RuleContext
from gateway.canon.rulebook import Canonical
from gateway.config.canon_settings import CanonSettings
from gateway.core.canonical import Canonicalized, RuleMode, RuleModes, RuleName
from gateway.core.errors import Overloaded
from gateway.core.json_portions import upper_bounds
from gateway.core.ports import CanonicalRequest, ContextStore, LongTexts, ModelTexts
from gateway.core.request import ChatRequest

SWITCH = b"x-gateway-canonical"
"""Request header by which a client turns canonicalization off, and response header that names the rules applied."""

_INLINE_BYTES = 64 * 1024
"""Bodies up to this size are worked on between two turns of the event loop."""

_MIB = 1024 * 1024

_MOST_BYTES = 4 * _MIB
_MOST_VALUES = 150_000
"""Larger bodies, and those with more brackets, colons and commas, go on as they came: writing them again takes single
calls that hold the interpreter lock for more than some 20 ms."""

_AS_IT_CAME = CanonSettings()
"""Hints are read, and nothing is taken out."""

T = TypeVar("T")

_log = structlog.get_logger("gateway.canon")


class Canonicalizer:
    """Canonicalizes requests. Used from the event loop's thread alone.

    Args:
        settings: The rules' settings.
        models: Modes by model.
        texts: Knows the models' tokens and limits.
        store: Where blocks are kept for other gateways, too; None for nowhere.
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
        """Go by other settings from now on. What is remembered of conversations stays, as far as there is room."""
        if settings != self._settings:  # rules remember what they found
            self._rulebook = rulebook(settings)
        self._settings = settings
        self._modes = ModeTable(settings.rules, models, settings.routes)
        self._memory.max_bytes = settings.memory_mib * _MIB
        self._memory.ttl_seconds = settings.memory_ttl_seconds

    async def canonical(self, request: ChatRequest) -> CanonicalRequest:
        """The request as it may go on; see ``ports.Canonicalizes``."""
        modes = self._modes.modes(request.model, request.endpoint, request.caller.tenant.canon)
        settings = self._settings
        if request.warms is not None or _is_off(request):
            modes, settings = ALL_OFF, _AS_IT_CAME
        told = Canonicalized(modes, owner=owner_of(request))
        try:
            if request.size > _INLINE_BYTES and not await self._work(request, _is_workable, request.body):
                return CanonicalRequest(request, told, affinity=affinity_of(request))
            hints = await self._work(request, hinted, request, settings)
            names = rules_in(modes, RuleMode.APPLY)
            if not names and hints.request is request:
                return CanonicalRequest(request, told, affinity=hints.affinity)
            return await self._applied(request, hints.request, names, told, hints.affinity)
        except Overloaded:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the prompt is as good as it came
            # The type alone: a message may quote what it choked on, a prompt.
            _log.error("canonicalization_failed", request_id=request.request_id, error=type(error).__name__)
            return CanonicalRequest(request, told)

    async def _applied(
        self,
        asked: ChatRequest,
        stripped: ChatRequest,
        names: Collection[RuleName],
        told: Canonicalized,
        affinity: str | None,
    ) -> CanonicalRequest:
        """The request with some rules applied, after hints were taken out."""
        found = await self._canonical(stripped, names, told.owner)
        for key, block in found.remember.items():
            self._memory.put(key, block, time.time())
        if found.remember and self._store is not None:
            self._store.keep(found.remember)
        request = stripped
        if found.fields is not stripped.fields:
            body = await self._work(stripped, rewritten, stripped.body, stripped.fields, found.fields)
            request = dataclasses.replace(stripped, body=body, fields=found.fields)
        changed = b"" if request is asked else asked.body
        return CanonicalRequest(
            request,
            msgspec.structs.replace(told, asked=changed, context_lost=found.context_lost),
            edits=Counter(edit.rule for edit in found.edits),
            cut_messages=found.cut_messages,
            affinity=affinity,
        )

    async def _canonical(self, request: ChatRequest, names: Collection[RuleName], owner: str) -> Canonical:
        """What the rules make of a request, with what is remembered here, or else in the store."""
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
        )
        found = await self._work(request, self._rulebook.canonical, request.fields, names, given)
        asked_for: set[bytes] = set()
        while self._store is not None and (wanted := missed - asked_for):
            # Once for what the conversation is known by, and once for the blocks that are named there.
            asked_for |= wanted
            stored = await self._store.fetch(sorted(wanted))
            if not stored:
                break
            for key, block in stored.items():
                self._memory.put(key, block, now)
            found = await self._work(request, self._rulebook.canonical, request.fields, names, given)
        return found

    async def _work(self, request: ChatRequest, function: Callable[..., T], *arguments: object) -> T:
        """Call a function that takes as long as the request is large: here, or for a long one in a thread."""
        if len(request.body) <= _INLINE_BYTES:
            return function(*arguments)
        return await self._threads.run(request.caller.tenant, len(request.body), function, *arguments)


def owner_of(request: ChatRequest) -> str:
    """Whose context blocks may come into a request: the tenant's own, and of those only what belongs to the same
    session, user and cache scope, as far as the client tells."""
    user = request.fields.get("user")
    caller = request.caller
    return "\0".join((caller.tenant.id, caller.scope, request.session or "", user if isinstance(user, str) else ""))


def _is_workable(body: bytes) -> bool:
    if len(body) > _MOST_BYTES:
        return False
    most = upper_bounds(body)
    return most.members + most.values <= _MOST_VALUES


def _is_off(request: ChatRequest) -> bool:
    return any(name == SWITCH and value.strip().lower() == b"off" for name, value in request.headers)
