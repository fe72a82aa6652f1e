"""Asks the operator's own detector of personal data over HTTP, and validates its answer.

Request: ``POST`` with ``{"texts": [TEXT, ...]}``. Answer: 200 with ``{"findings": [[FINDING, ...], ...]}``, one list
for each text in the same order. A finding is ``{"kind": KIND, "start": START, "end": END}``: offsets in characters
(Unicode code points), ``end`` behind the last one. Other members are ignored.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

import msgspec
import orjson

from gateway.canon.pii.detector_pause import FAILURES_IN_A_ROW, DetectorPause
from gateway.canon.pii.scanner import DetectorFailed, Hit
from gateway.config.personal_data_settings import DetectorSettings
from gateway.http_client import HttpClient, Origin, ResponseTooLarge, TransportError
from gateway.tasks import in_task

_MAX_ANSWER_BYTES = 1024 * 1024
"""Parsing an answer of this size takes some milliseconds on the event loop."""
_MAX_FINDINGS = 10_000
_OK = 200


class _Detected(msgspec.Struct):
    kind: str
    start: int
    end: int


class _DetectorAnswer(msgspec.Struct):
    findings: list[list[_Detected]]


_decoder = msgspec.json.Decoder(_DetectorAnswer)


class HookDetector:
    """The operator's detector, which is asked over HTTP.

    Args:
        settings: Its URL, kinds and limits.
        client: Makes the connections.
    """

    def __init__(self, settings: DetectorSettings, client: HttpClient) -> None:
        self._client = client
        self._origin = Origin.parse(settings.url)
        self._path = "" if self._origin.path else "/"
        self._kinds = frozenset(settings.kinds)
        self._timeout_seconds = settings.timeout_seconds
        self._slots = asyncio.Semaphore(settings.max_concurrent)
        self._pause = DetectorPause()
        self._headers = [(b"content-type", b"application/json"), (b"accept", b"application/json")]
        if settings.api_key is not None:
            self._headers.append((b"authorization", b"Bearer " + settings.api_key.get_secret_value().encode()))

    async def find(self, texts: Sequence[str]) -> list[list[Hit]]:
        """Findings in each text, in the order of the answer; they may overlap.

        Raises:
            DetectorFailed: no valid answer within the time limit, which includes the wait for other calls to end; or
                several calls in a row got none, and this one was not made.
        """
        await in_task()
        if not self._pause.admits(asyncio.get_running_loop().time()):
            raise DetectorFailed(f"gave no answer {FAILURES_IN_A_ROW} times in a row, and is asked again in a moment")
        status, answer = await self._asked(_written(texts))
        if status != _OK:
            raise DetectorFailed(f"answered with status {status}")
        return self._read(answer, texts)

    async def _asked(self, body: bytes) -> tuple[int, bytes]:
        """Status and body of the answer; informs the pause."""
        loop = asyncio.get_running_loop()
        asked_at = loop.time() + self._timeout_seconds
        ended: Callable[[], None] = self._pause.abandoned
        try:
            async with asyncio.timeout(self._timeout_seconds), self._slots:
                asked_at = loop.time()
                result = await self._client.fetch(
                    "POST",
                    self._origin,
                    self._path,
                    self._headers,
                    body,
                    timeout_seconds=self._timeout_seconds,
                    max_bytes=_MAX_ANSWER_BYTES,
                )
            ended = self._pause.answered
        except TimeoutError:
            # A call that waited for others had too little time: that shows overload, and a pause would not be due.
            if loop.time() - asked_at >= self._timeout_seconds / 2:
                ended = partial(self._pause.failed, loop.time())
            raise DetectorFailed(f"gave no answer within {self._timeout_seconds:g} seconds") from None
        except ResponseTooLarge:
            ended = self._pause.answered
            raise DetectorFailed(f"answered more than {_MAX_ANSWER_BYTES >> 10} KiB") from None
        except TransportError as error:
            ended = partial(self._pause.failed, loop.time())
            raise DetectorFailed("gave no answer", str(error)) from None
        finally:
            ended()
        return result

    def _read(self, answer: bytes, texts: Sequence[str]) -> list[list[Hit]]:
        try:
            findings = _decoder.decode(answer).findings
        except (msgspec.DecodeError, RecursionError):
            # Without the cause: it may quote the texts.
            raise DetectorFailed('answered something else than {"findings": [[{"kind", "start", "end"}]]}') from None
        if len(findings) != len(texts):
            raise DetectorFailed(f"answered {len(findings)} lists of findings for {len(texts)} texts")
        if sum(map(len, findings)) > _MAX_FINDINGS:
            raise DetectorFailed(f"answered more than {_MAX_FINDINGS} findings")
        for text, found in zip(texts, findings, strict=True):
            for each in found:
                if not 0 <= each.start < each.end <= len(text):
                    raise DetectorFailed("answered a finding that is not within its text")
                if each.kind not in self._kinds:
                    raise DetectorFailed("answered a kind that personal_data.detector.kinds does not name")
        return [[Hit(each.kind, each.start, each.end - each.start) for each in found] for found in findings]


def _written(texts: Sequence[str]) -> bytes:
    try:
        return orjson.dumps({"texts": texts})
    except orjson.JSONEncodeError:  # halves of characters; the offsets stay
        return orjson.dumps({"texts": [text.encode("utf-8", "replace").decode() for text in texts]})
