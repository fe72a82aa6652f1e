"""The admin port of several workers: forwards each request to one worker or to all, and merges their answers.

Workers authenticate. The first one is asked alone: if it refuses, the others are not asked, so a refusal is audited
once. Its answer is used where it is valid for all workers (explanations: one process makes them for all); partial
answers of all workers are merged. A hanging worker delays a page only briefly: another worker is asked first, and its
part is left out. Orders wait for it.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any

import httpx
import orjson
import structlog

from gateway.api.error_responses import problem_body, problem_headers
from gateway.core.errors import BadRequest, ClientGone, GatewayError
from gateway.server.asgi_adapter import Receive, Scope, Send, read_body
from gateway.server.workers import merged_documents as documents
from gateway.server.workers.merged_metrics import ASK_FOR, MergedPages
from gateway.server.workers.worker_client import (
    Headers,
    WorkerClient,
    WorkerRequest,
    WorkerResponse,
    WorkerUnreachable,
    passed_on,
)

_ORDER_BYTES = 1024 * 1024
"""Largest order that goes to all workers; more would not be taken by any of them."""

_PATIENCE_SECONDS = 3.0
"""Seconds that a worker has for its part of a merged answer. Prometheus waits for ten seconds in all."""

_PEER_HEADERS = frozenset({b"forwarded", b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host"})

_REPLICAS = "/admin/api/replicas"

_log = structlog.get_logger("gateway.server.workers")

_Merge = Callable[[Sequence[Any], str], dict[str, Any]]


class NoWorker(GatewayError):
    """No worker serves at the moment."""

    status = 503
    type = "service_unavailable"
    retry_after_seconds = 1


class AdminPort:
    """The ASGI application.

    Args:
        workers: All of them.
        on_order: Called with each order for a replica, to repeat it to workers that start later: ``drain`` and whether
            to drain it, or ``replica`` and what was added, None for a removed one.
    """

    def __init__(self, workers: Sequence[WorkerClient], on_order: Callable[[str, str, object], None]) -> None:
        self._workers = workers
        self._on_order = on_order
        self._pages = MergedPages(len(workers))
        self._reading = asyncio.Lock()
        self._merges: dict[tuple[str, str], _Merge] = {
            ("GET", "/admin/api/replicas"): lambda answers, _: documents.replicas(answers),
            ("GET", "/admin/api/prefixes"): lambda answers, query: documents.prefixes(answers, _limit(query, 20)),
            ("GET", "/admin/api/spaces"): lambda answers, query: documents.spaces(answers, _limit(query, 1000)),
            ("GET", "/admin/api/warm"): lambda answers, _: documents.warm(answers),
            ("POST", "/admin/api/spaces/reset"): lambda answers, _: documents.reset(answers),
            ("POST", "/admin/api/replicas/drain"): self._drained,
            ("POST", _REPLICAS): lambda answers, _: dict(answers[0]),
            ("DELETE", _REPLICAS): lambda answers, _: dict(answers[0]),
        }

    def lost(self, worker: int) -> None:
        """A worker was lost; its counters are kept."""
        self._pages.lost(worker)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry."""
        try:
            asked = _asked(scope)
            # The headers of what is put together are those of the whole answer; the HTTP layer leaves the body out.
            whole = replace(asked, method="GET") if asked.method == "HEAD" else asked
            is_removal = whole.method == "DELETE" and scope["path"].startswith(f"{_REPLICAS}/")
            how = (whole.method, _REPLICAS if is_removal else scope["path"])
            if how in self._merges:
                await _answer(send, await self._from_all(whole, receive, scope, self._merges[how]))
            elif how == ("GET", "/metrics"):
                await _answer(send, await self._metrics(whole))
            elif whole.method == "GET" and scope["path"].startswith("/admin/api/warm/"):
                await _answer(send, await self._from_any_worker(whole))
            else:
                await self._pass_on(asked, receive, send)
        except ClientGone:
            return
        except GatewayError as error:
            headers = [(name.encode(), value.encode()) for name, value in problem_headers(error, None).items()]
            await _answer(send, WorkerResponse(error.status, headers, problem_body(error)))

    async def _from_all(self, asked: WorkerRequest, receive: Receive, scope: Scope, merge: _Merge) -> WorkerResponse:
        body = await read_body(receive, _ORDER_BYTES) if asked.method == "POST" else b""
        _, first, others = await self._first(asked, body)
        if first.status != 200:
            return first
        answers = [first, *(await _gathered(others, asked, body)).values()]
        documents = [orjson.loads(answer.body) for answer in answers if answer.status == 200]
        whole = merge(documents, scope["query_string"].decode("latin-1"))
        if asked.method == "DELETE" or (asked.method == "POST" and scope["path"] == _REPLICAS):
            self._on_order("replica", whole["replica"], orjson.loads(body) if body else None)
        return WorkerResponse(200, _without_length(first.headers), orjson.dumps(whole))

    async def _metrics(self, asked: WorkerRequest) -> WorkerResponse:
        accept = next((value.decode("latin-1") for name, value in asked.headers if name == b"accept"), "")
        headers = [header for header in asked.headers if header[0] != b"accept"]
        inside = WorkerRequest(asked.method, asked.target, [*headers, (b"accept", ASK_FOR.encode())])
        async with self._reading:  # one after the other: an older page must not count for a newer one
            lives = [worker.life for worker in self._workers]
            worker, first, others = await self._first(inside, b"")
            if first.status != 200:
                return first
            answers = {worker: first, **await _gathered(others, inside, b"")}
            pages = {
                number: answers[worker].body.decode()
                for number, worker in enumerate(self._workers)
                # What was lost since counts by what it said before.
                if worker in answers and worker.is_there and worker.life == lives[number]
            }
            page, content_type = self._pages.merged(pages, accept)
        headers = [header for header in _without_length(first.headers) if header[0] != b"content-type"]
        return WorkerResponse(200, [*headers, (b"content-type", content_type.encode())], page)

    async def _from_any_worker(self, asked: WorkerRequest) -> WorkerResponse:
        """The answer of the first worker that does not say that there is no such thing."""
        _, first, others = await self._first(asked, b"")
        answers = await _gathered(others, asked, b"") if first.status == 404 else {}
        return next((answer for answer in answers.values() if answer.status != 404), first)

    async def _first(
        self, asked: WorkerRequest, body: bytes
    ) -> tuple[WorkerClient, WorkerResponse, list[WorkerClient]]:
        """The first worker that answers, its answer, and the other workers."""
        there = self._there()
        if asked.method == "GET":
            worker, answer = await _soonest(there, asked)
            return worker, answer, [each for each in there if each is not worker]
        while there:
            worker = there.pop(0)
            with contextlib.suppress(WorkerUnreachable):
                return worker, await worker.ask(asked, body), there
        raise _no_worker()

    def _there(self) -> list[WorkerClient]:
        """The workers that are there, those that react first."""
        there = [worker for worker in self._workers if worker.is_there]
        return sorted(there, key=lambda worker: not worker.reacts)

    async def _pass_on(self, asked: WorkerRequest, receive: Receive, send: Send) -> None:
        """Have one worker answer, and pass the answer on as it comes."""
        for worker in self._there():
            try:
                response = await worker.stream(asked, _body(asked, receive))
            except WorkerUnreachable:
                if asked.method not in ("GET", "HEAD"):
                    break  # its body may be gone already
                continue
            await _relay(response, receive, send)
            return
        raise _no_worker()

    def _drained(self, answers: Sequence[Any], _query: str) -> dict[str, Any]:
        whole = documents.drain(answers)
        self._on_order("drain", whole["replica"], "operator" in whole["because"])
        return whole


async def _relay(response: httpx.Response, receive: Receive, send: Send) -> None:
    """Pass an answer on until its end, or until its client leaves."""

    async def copy() -> None:
        headers = passed_on(response.headers.raw)
        await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
        with contextlib.suppress(httpx.TransportError):  # the worker was lost: the client sees that as well
            async for piece in response.aiter_raw():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def left() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    copying, leaving = asyncio.ensure_future(copy()), asyncio.ensure_future(left())
    try:
        await asyncio.wait([copying, leaving], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (copying, leaving):
            task.cancel()
        await asyncio.gather(copying, leaving, return_exceptions=True)
        await response.aclose()


async def _soonest(workers: Sequence[WorkerClient], asked: WorkerRequest) -> tuple[WorkerClient, WorkerResponse]:
    """The first worker; if it is slow, the next one as well, and the first answer is used."""
    left, asking = list(workers), dict[asyncio.Task[WorkerResponse], WorkerClient]()
    try:
        while left or asking:
            if left:
                worker = left.pop(0)
                asking[asyncio.ensure_future(worker.ask(asked))] = worker
            patience = _PATIENCE_SECONDS if left else None
            done, _ = await asyncio.wait(asking, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                worker = asking.pop(task)
                with contextlib.suppress(WorkerUnreachable):
                    return worker, task.result()
        raise _no_worker()
    finally:
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)


async def _gathered(
    workers: Sequence[WorkerClient], asked: WorkerRequest, body: bytes
) -> dict[WorkerClient, WorkerResponse]:
    """The answers of the workers that answer in time."""

    async def ask(worker: WorkerClient) -> WorkerResponse:
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS if asked.method == "GET" else None):
                return await worker.ask(asked, body)
        except TimeoutError as error:
            raise WorkerUnreachable from error

    answers = await asyncio.gather(*map(ask, workers), return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException) and not isinstance(answer, WorkerUnreachable):
            raise answer
    return {
        worker: answer for worker, answer in zip(workers, answers, strict=True) if isinstance(answer, WorkerResponse)
    }


def _asked(scope: Scope) -> WorkerRequest:
    if scope["type"] != "http":
        raise BadRequest("Only HTTP is spoken here.", code="invalid_value")
    query = scope["query_string"]
    target = scope["raw_path"] + (b"?" + query if query else b"")
    headers = [header for header in passed_on(scope["headers"]) if header[0] not in _PEER_HEADERS]
    client = scope.get("client")
    if client is not None:
        headers.append((b"x-forwarded-for", client[0].encode()))
    return WorkerRequest(scope["method"], target, headers)


async def _body_pieces(receive: Receive) -> AsyncIterator[bytes]:
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientGone
        if piece := message.get("body", b""):
            yield piece
        if not message.get("more_body"):
            return


def _body(asked: WorkerRequest, receive: Receive) -> AsyncIterator[bytes] | bytes:
    return b"" if asked.method in ("GET", "HEAD") else _body_pieces(receive)


async def _answer(send: Send, answer: WorkerResponse) -> None:
    headers = [*_without_length(answer.headers), (b"content-length", str(len(answer.body)).encode())]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})


def _without_length(headers: Headers) -> list[tuple[bytes, bytes]]:
    return [header for header in headers if header[0].lower() != b"content-length"]


def _limit(query: str, default: int) -> int:
    """How many rows were asked for; that it is a number was seen by the worker."""
    return int(httpx.QueryParams(query).get("limit") or default)


def _no_worker() -> NoWorker:
    return NoWorker("No worker serves at the moment; they are being started again.", code="no_worker")
