"""Screens prompts for personal data: masks or refuses a request before it is sent, and counts findings afterwards."""

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
import orjson
import structlog

from gateway.canon.pii.counting import Counting, SharedPrefixes, Tally
from gateway.canon.pii.scanner import Hit, Passage, Patterns, Scanner, has_more_pieces, leading
from gateway.config.operator_patterns import TooSlow
from gateway.config.personal_data_settings import PersonalDataSettings
from gateway.core.canonical import FindingReport
from gateway.core.errors import BadRequest, GatewayError, Overloaded
from gateway.core.json_edit import Path, replaced
from gateway.core.ports import LongTexts, PersonalDataObserver
from gateway.core.request import ChatRequest, Endpoint
from gateway.core.tenant import PersonalDataMode
from gateway.tasks import TaskGroupOwner


def masked(request: ChatRequest, findings: Iterable[tuple[Passage, Sequence[Hit]]]) -> ChatRequest:
    """The request with ``[KIND]`` in place of every finding, in fields and body; other bytes do not change."""
    texts = {passage.path: _masked(passage.text, hits) for passage, hits in findings}
    return msgspec.structs.replace(
        request,
        body=replaced(request.body, {path: orjson.dumps(text) for path, text in texts.items()}),
        fields=_changed(request.fields, list(texts.items()), 0),
    )


def _masked(text: str, hits: Sequence[Hit]) -> str:
    pieces: list[str] = []
    done = 0
    for hit in hits:
        pieces += (text[done : hit.start], f"[{hit.kind}]")
        done = hit.start + hit.length
    return "".join(pieces) + text[done:]


def _changed(value: Any, texts: Sequence[tuple[Path, str]], depth: int) -> Any:
    """A copy of a parsed value with new texts; shares everything else with the original."""
    if len(texts[0][0]) == depth:
        return texts[0][1]
    inside: dict[str | int, list[tuple[Path, str]]] = {}
    for path, text in texts:
        inside.setdefault(path[depth], []).append((path, text))
    copy = dict(value) if isinstance(value, Mapping) else list(value)
    for step, deeper in inside.items():
        copy[step] = _changed(copy[step], deeper, depth + 1)  # type: ignore[index]
    return copy


_MAX_FINDINGS_PER_SPACE = 1000
_MAX_FINDINGS = 50_000
_MAX_PREFIXES = 50_000
_MAX_PIECES = 20_000
_INLINE_BODY_BYTES = 64 * 1024

_log = structlog.get_logger("gateway.canon")

_T = TypeVar("_T")
_Findings = list[tuple[Passage, tuple[Hit, ...]]]


class PersonalDataScreen:
    """Searches prompts for personal data; implements ``ports.Screen``.

    The tenant's mode decides what happens; the mode in the settings is the default of tenants. Call it from the event
    loop's thread only.

    Args:
        settings: Kinds and patterns to search for.
        threads: Threads for long texts.
        observer: Notified of findings in answered requests.
    """

    def __init__(self, settings: PersonalDataSettings, threads: LongTexts, observer: PersonalDataObserver) -> None:
        self._threads = threads
        self._shared_by = settings.shared_by
        self._max_characters = settings.max_characters
        self._scanner = Scanner(_patterns(settings), threads)
        self._tally = Tally(_MAX_FINDINGS_PER_SPACE, _MAX_FINDINGS)
        self._counting = Counting(
            self._scanner,
            SharedPrefixes(settings.shared_by, _MAX_PREFIXES),
            self._tally,
            observer,
            max_characters=settings.max_characters,
            seed=secrets.randbits(64),
        )
        self._tasks = TaskGroupOwner()

    def start(self) -> None:
        """Start counting the requests passed to ``answered``."""
        self._tasks.spawn(self._counting.run(), name="personal-data")

    async def stop(self) -> None:
        """Stop counting; drops waiting requests."""
        await self._tasks.cancel()

    def configure(self, settings: PersonalDataSettings) -> None:
        """Replace the settings. Findings so far stay; if ``shared_by`` changes, shared prefixes are counted anew."""
        self._scanner = self._counting.scanner = Scanner(_patterns(settings), self._threads)
        self._max_characters = self._counting.max_characters = settings.max_characters
        if settings.shared_by != self._shared_by:
            self._shared_by = settings.shared_by
            self._counting.shared = SharedPrefixes(settings.shared_by, _MAX_PREFIXES)

    async def inspect(self, request: ChatRequest) -> ChatRequest:
        """The request to send; see ``ports.Screen``.

        Raises:
            BadRequest: the tenant's mode is ``block`` and there are findings, or there is too much text to search.
            Overloaded: too many of the tenant's long texts wait for a thread.
            GatewayError: the search failed. A request that could not be searched is not sent.
        """
        mode = request.caller.tenant.personal_data
        if mode not in {PersonalDataMode.MASK, PersonalDataMode.BLOCK} or request.endpoint is not Endpoint.CHAT:
            return request
        failed = ""
        if has_more_pieces(request, _MAX_PIECES, with_user=False):
            raise BadRequest(
                f"There are more than {_MAX_PIECES} messages and content parts before the first message of the"
                " user, the limit of the search for personal data. Send fewer in front of it.",
                param="messages",
                code="too_long_to_search",
            )
        passages = await self._work(request, leading, request)
        if sum(len(passage.text) for passage in passages) > self._max_characters:
            raise BadRequest(
                f"The messages before the first one of the user have more than {self._max_characters} characters,"
                " the limit of the search for personal data (personal_data.max_characters). Send less in front of it.",
                param="messages",
                code="too_long_to_search",
            )
        try:
            findings = await self._findings(request, passages)
            if not findings:
                return request
            if mode is PersonalDataMode.MASK:
                return await self._masked(request, findings)
        except Overloaded:
            raise
        except TooSlow:
            raise BadRequest(
                "The search for personal data in the messages before the first one of the user takes too long"
                " (personal_data.patterns). Send less in front of it.",
                param="messages",
                code="too_long_to_search",
            ) from None
        except Exception as error:  # noqa: BLE001 - any error: the text must not be sent
            failed = type(error).__name__
        if failed:
            # Raised outside of the except clause: the cause may quote the prompt.
            _log.error("personal_data_scan_failed", request_id=request.request_id, error=failed)
            raise GatewayError(
                f"The search for personal data failed, and the tenant's mode is {mode}, so the request was not sent. "
                "Try again; if that does not help, the gateway's log has the reason (personal_data_scan_failed).",
                code="personal_data_scan_failed",
            )
        raise _refused(findings)

    def answered(self, request: ChatRequest, space: str) -> None:
        """Count a request's findings later; see ``ports.Screen``. Warm-up requests are not counted."""
        if request.caller.tenant.personal_data is not PersonalDataMode.OFF and request.warmup_target is None:
            self._counting.add(request, space)

    def reports(self, space: str) -> Sequence[FindingReport]:
        """Findings in the prompts of a space; see ``ports.Screen``."""
        return self._tally.reports(space)

    async def _findings(self, request: ChatRequest, passages: Sequence[Passage]) -> _Findings:
        found = await self._scanner.find([passage.text for passage in passages], request.caller.tenant)
        return [(passage, hits) for passage, hits in zip(passages, found, strict=True) if hits]

    async def _masked(self, request: ChatRequest, findings: _Findings) -> ChatRequest:
        return await self._work(request, masked, request, findings)

    async def _work(self, request: ChatRequest, function: Callable[..., _T], *arguments: object) -> _T:
        """Call a function whose time grows with the request: directly, or in a thread if the request is large."""
        if len(request.body) <= _INLINE_BODY_BYTES:
            return function(*arguments)
        return await self._threads.run(request.caller.tenant, len(request.body), function, *arguments)


def _patterns(settings: PersonalDataSettings) -> Patterns:
    return Patterns(settings.kinds, [(pattern.kind, pattern.regex) for pattern in settings.patterns])


def _refused(findings: _Findings) -> BadRequest:
    passage, hits = findings[0]
    hit = hits[0]
    others = sum(len(hits) for _, hits in findings) - 1
    return BadRequest(
        f"`{passage.name}` holds personal data (kind `{hit.kind}`) at characters {hit.start} to "
        f"{hit.start + hit.length - 1}, counted from 0"
        + (f"; {others} more in the leading messages" if others else "")
        + ". It is not accepted in front of the first user message, where many requests may share it: take it out, or "
        "put it into a user message.",
        param=passage.name,
        code="personal_data_in_prefix",
    )
