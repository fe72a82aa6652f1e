"""Screens prompts for personal data: masks or refuses a request before it is sent, and counts findings afterwards."""

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec
import structlog

from gateway.canon.pii.counting import Counting, SharedPrefixes, Tally
from gateway.canon.pii.detector import HookDetector
from gateway.canon.pii.passages import Passage, has_more_pieces, searched
from gateway.canon.pii.placeholders import Placeholders, Value, distinct_values, value_of
from gateway.canon.pii.scanner import DetectorFailed, Hit, Patterns, Scanner
from gateway.config.operator_patterns import TooSlow
from gateway.config.personal_data_settings import PersonalDataSettings
from gateway.core.canonical import FindingReport
from gateway.core.errors import BadRequest, DetectorUnavailable, GatewayError, Overloaded
from gateway.core.json_edit import Path, json_text, replaced
from gateway.core.ports import LongTexts, PersonalDataObserver
from gateway.core.request import ChatRequest, Endpoint
from gateway.core.tenant import PersonalDataMode
from gateway.http_client import HttpClient
from gateway.tasks import TaskGroupOwner

_MAX_FINDINGS_PER_SPACE = 1000
_MAX_FINDINGS = 50_000
_MAX_PREFIXES = 50_000
_MAX_PIECES = 20_000
_INLINE_BODY_BYTES = 64 * 1024
_CONNECT_SECONDS = 5.0

_log = structlog.get_logger("gateway.canon")

_T = TypeVar("_T")
_Findings = list[tuple[Passage, tuple[Hit, ...]]]


def masked(
    request: ChatRequest, findings: Iterable[tuple[Passage, Sequence[Hit]]], names: Mapping[Value, str]
) -> ChatRequest:
    """The request with placeholders for all findings, in fields and body; other bytes do not change.

    Args:
        request: The request.
        findings: What was found in it.
        names: Placeholders of values; a value that is not there becomes ``[KIND]``.
    """
    texts = {passage.path: _masked(passage.text, hits, names, is_json=passage.is_json) for passage, hits in findings}
    return msgspec.structs.replace(
        request,
        body=replaced(request.body, {path: json_text(text) for path, text in texts.items()}),
        fields=_changed(request.fields, list(texts.items()), 0),
    )


def _masked(text: str, hits: Sequence[Hit], names: Mapping[Value, str], *, is_json: bool) -> str:
    pieces: list[str] = []
    done = 0
    for hit in hits:
        end = hit.start + hit.length
        placeholder = f"[{hit.kind}]"
        if names:
            placeholder = names.get(value_of(hit.kind, text[hit.start : end], is_json=is_json), placeholder)
        if is_json and _is_bare(text, hit.start, end):
            placeholder = f'"{placeholder}"'
        pieces += (text[done : hit.start], placeholder)
        done = end
    return "".join(pieces) + text[done:]


_SPACE = 8
"""Characters around a number in JSON that are looked at."""


def _is_bare(text: str, start: int, end: int) -> bool:
    """Whether a finding is a whole JSON number, such as ``{"phone": 4155552671}``."""
    before = text[max(start - _SPACE, 0) : start].rstrip()
    behind = text[end : end + _SPACE].lstrip()
    return before[-1:] in {":", "[", ","} and behind[:1] in {",", "}", "]"} and text[start:end].isdecimal()


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


class PersonalDataScreen:
    """Searches prompts for personal data.

    The tenant's mode decides what happens; the mode in the settings is the default of tenants. Call it from the event
    loop's thread only.

    Args:
        settings: Kinds and patterns to search for.
        threads: Threads for long texts.
        observer: Notified of findings in answered requests, and of failures of the operator's own detector.
        client: Connections to the operator's own detector; None: a client of its own.
    """

    def __init__(
        self,
        settings: PersonalDataSettings,
        threads: LongTexts,
        observer: PersonalDataObserver,
        client: HttpClient | None = None,
    ) -> None:
        self._threads = threads
        self._observer = observer
        self._client = client or HttpClient(_CONNECT_SECONDS)
        self._closes_client = client is None
        self._shared_by = settings.shared_by
        self._max_characters = settings.max_characters
        self._everywhere = settings.where == "all"
        self._scanner = self._new_scanner(settings)
        self._tally = Tally(_MAX_FINDINGS_PER_SPACE, _MAX_FINDINGS)
        self._counting = Counting(
            self._scanner,
            SharedPrefixes(settings.shared_by, _MAX_PREFIXES),
            self._tally,
            observer,
            max_characters=settings.max_characters,
            everywhere=self._everywhere,
            seed=secrets.randbits(64),
        )
        self._placeholders = Placeholders()
        self._numbered, self._restores = settings.placeholders == "numbered", settings.restore
        self._tasks = TaskGroupOwner()

    def start(self) -> None:
        """Start counting the requests passed to ``answered``."""
        self._tasks.spawn(self._counting.run(), name="personal-data")

    async def stop(self) -> None:
        """Stop counting; drops waiting requests."""
        await self._tasks.cancel()
        if self._closes_client:
            self._client.close()

    def configure(self, settings: PersonalDataSettings) -> None:
        """Replace the settings. Findings so far stay; if ``shared_by`` changes, shared prefixes are counted anew."""
        self._scanner = self._counting.scanner = self._new_scanner(settings)
        self._max_characters = self._counting.max_characters = settings.max_characters
        self._everywhere = self._counting.everywhere = settings.where == "all"
        self._numbered, self._restores = settings.placeholders == "numbered", settings.restore
        if settings.shared_by != self._shared_by:
            self._shared_by = settings.shared_by
            self._counting.shared = SharedPrefixes(settings.shared_by, _MAX_PREFIXES)

    async def inspect(self, request: ChatRequest) -> ChatRequest:
        """The request itself, or a copy with the findings masked.

        Searches only in the modes that need the result before the request is sent (``mask``, ``block``).

        Raises:
            BadRequest: the tenant's mode is ``block`` and there are findings, or there is too much text to search.
            Overloaded: too many of the tenant's long texts wait for a thread.
            DetectorUnavailable: the operator's detector gave no valid answer, and it fails closed.
            GatewayError: the search failed. A request that could not be searched is not sent.
        """
        mode = request.caller.tenant.personal_data
        everywhere = self._everywhere
        is_chat = request.endpoint is Endpoint.CHAT
        if mode not in {PersonalDataMode.MASK, PersonalDataMode.BLOCK} or not (is_chat or everywhere):
            return request
        failed = ""
        if is_chat and has_more_pieces(request, _MAX_PIECES, with_user=False, everywhere=everywhere):
            what = "messages, content parts and tool calls" if everywhere else "messages and content parts"
            raise _too_long(request, f"There are more than {_MAX_PIECES} {what}", everywhere=everywhere)
        passages = await self._work(request, partial(searched, everywhere=everywhere), request)
        if sum(len(passage.text) for passage in passages) > self._max_characters:
            what = f"There are more than {self._max_characters} characters (personal_data.max_characters)"
            raise _too_long(request, what, everywhere=everywhere)
        try:
            findings = await self._findings(request, passages)
            if not findings:
                return request
            if mode is PersonalDataMode.MASK:
                return await self._masked(request, findings)
        except (Overloaded, DetectorUnavailable):
            raise
        except TooSlow:
            what = "The search for personal data takes too long (personal_data.patterns) for what is there"
            raise _too_long(request, what, everywhere=everywhere) from None
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
        raise _refused(findings, everywhere=everywhere)

    def answered(self, request: ChatRequest, space: str) -> None:
        """Count the findings in an answered request. Returns at once; the search runs later.

        Args:
            request: The request as the client sent it, before anything was masked; not counted if it is warm-up.
            space: Short name of its prefix space.
        """
        if request.caller.tenant.personal_data is not PersonalDataMode.OFF and request.warmup_target is None:
            self._counting.add(request, space)

    def reports(self, space: str) -> Sequence[FindingReport]:
        """Findings in the prompts of a space, most frequent first."""
        return self._tally.reports(space)

    async def _findings(self, request: ChatRequest, passages: Sequence[Passage]) -> _Findings:
        found: Sequence[tuple[Hit, ...]]
        try:
            found = await self._scanner.find([passage.text for passage in passages], request.caller.tenant)
        except DetectorFailed as failed:
            _log.warning(
                "personal_data_detector_failed",
                request_id=request.request_id,
                problem=str(failed),
                detail=failed.detail,
            )
            self._observer.on_detector_failed(request.caller.tenant, refused=not self._fails_open)
            if not self._fails_open:
                raise DetectorUnavailable(
                    f"The detector of personal data (personal_data.detector) {failed}, so the request was not sent. Try"
                    " again in a moment.",
                    code="personal_data_detector_failed",
                ) from None
            found = failed.hits
        return [(passage, hits) for passage, hits in zip(passages, found, strict=True) if hits]

    def _new_scanner(self, settings: PersonalDataSettings) -> Scanner:
        detector = settings.detector
        self._fails_open = detector is not None and detector.on_failure == "open"
        hook = None if detector is None else HookDetector(detector, self._client)
        return Scanner(_patterns(settings), self._threads, hook)

    async def _masked(self, request: ChatRequest, findings: _Findings) -> ChatRequest:
        if not self._numbered:
            return await self._work(request, masked, request, findings, {})
        values = await self._work(request, distinct_values, findings)
        names = self._placeholders.named(request.caller.tenant.id, request.session, values)
        result = await self._work(request, masked, request, findings, names)
        if self._restores:
            texts = {placeholder: text for (_, text), placeholder in names.items()}
            result = msgspec.structs.replace(result, restores=texts)
        return result

    async def _work(self, request: ChatRequest, function: Callable[..., _T], *arguments: object) -> _T:
        """Call a function whose time grows with the request: directly, or in a thread if the request is large."""
        if len(request.body) <= _INLINE_BODY_BYTES:
            return function(*arguments)
        return await self._threads.run(request.caller.tenant, len(request.body), function, *arguments)


def _patterns(settings: PersonalDataSettings) -> Patterns:
    return Patterns(settings.kinds, [(pattern.kind, pattern.regex) for pattern in settings.patterns])


def _too_long(request: ChatRequest, what: str, *, everywhere: bool) -> BadRequest:
    """The refusal of a request with more text than is searched; ``what`` is the beginning of the sentence."""
    if everywhere:
        where, fix = "in the request", "Send less"
    else:
        where, fix = "before the first message of the user", "Send less in front of it"
    return BadRequest(
        f"{what} {where}, the limit of the search for personal data. {fix}.",
        param="messages" if request.endpoint is Endpoint.CHAT else "prompt",
        code="too_long_to_search",
    )


def _refused(findings: _Findings, *, everywhere: bool) -> BadRequest:
    passage, hits = findings[0]
    hit = hits[0]
    others = sum(len(hits) for _, hits in findings) - 1
    found = (
        f"`{passage.name}` holds personal data (kind `{hit.kind}`) at characters {hit.start} to "
        f"{hit.start + hit.length - 1}, counted from 0"
    )
    if everywhere:
        more = f"; {others} more in the request" if others else ""
        message = f"{found}{more}. It is not accepted in prompts: take it out."
        return BadRequest(message, param=passage.name, code="personal_data_in_prompt")
    more = f"; {others} more in the leading messages" if others else ""
    message = (
        f"{found}{more}. It is not accepted in front of the first user message, where many requests may share it: "
        "take it out, or put it into a user message."
    )
    return BadRequest(message, param=passage.name, code="personal_data_in_prefix")
