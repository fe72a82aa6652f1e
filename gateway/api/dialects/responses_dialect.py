"""The Responses API as a dialect: stored responses, what continues them, answers that go on without their client."""

import asyncio
import os
import re
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import chain
from typing import Any

import orjson
from msgspec import Raw
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.api.body_json import body_of
from gateway.api.dialects.client_fields import invalid, member
from gateway.api.dialects.dialect import AnswerClient, DialectRequest, Translated
from gateway.api.dialects.response_store import Record, ResponseStore, unknown
from gateway.api.dialects.responses import COMPACTS_ITSELF, NAMES, chat_of, items_of
from gateway.api.dialects.responses_answer import ResponseAnswer
from gateway.api.dialects.translating_sink import TranslatingSink
from gateway.api.error_responses import problem_body
from gateway.api.held_bytes import HeldBytes, Share
from gateway.api.parse import parsed_object
from gateway.config.settings import Settings
from gateway.core.client_places import ClientPlaces
from gateway.core.errors import BadRequest, GatewayError, MethodNotAllowed, NotFound, Overloaded, UpstreamFailed
from gateway.core.http_methods import HttpRoutes
from gateway.core.ids import RequestId, TenantId
from gateway.core.portions import Portioned
from gateway.core.ports import Grant, Sink
from gateway.core.tenant import Caller
from gateway.turns import Turns

PATH = "/v1/responses"

_ID = re.compile(r"resp_[0-9a-f]{32}")
_ITEM_ID = re.compile(r"[a-z]{2,4}_([0-9a-f]{32})(i?)([0-9a-f]{4,6})")
_CONVERSATION = re.compile(r"(?!resp_)[\w.:-]{1,128}", re.ASCII)
_COMPLETE = ("completed", "incomplete")
_MAX_CHAIN = 1000
"""Responses that one request may continue."""

_MAX_UNREAD_BYTES = 1024 * 1024
"""Events of a background stream that its client has not read. With more of them it gets no further ones."""

_LATE_SECONDS = 5.0
"""Time to store an answer that took as long as it may."""

_STORE_PAUSES = 1, 2, 4, 8, *[15] * 16
"""Seconds between the tries to store a background response; some minutes together."""

_AT_ONCE = 500
"""References that are resolved in one portion."""

_ECHOED: dict[str, Any] = dict.fromkeys(
    "instructions max_output_tokens max_tool_calls prompt_cache_key model user".split()
)
_ECHOED |= {"previous_response_id": None, "safety_identifier": None, "parallel_tool_calls": True, "tool_choice": "auto"}
_ECHOED |= {"temperature": 1.0, "top_p": 1.0, "truncation": "disabled", "service_tier": "default", "tools": []}
_ECHOED |= {"metadata": {}, "text": {"format": {"type": "text"}}, "reasoning": {"effort": None, "summary": None}}
"""Members of a response that repeat the request's, with what stands there if the request has none."""


class Responses:
    """A ``Dialect``.

    Args:
        store: Keeps responses.
        settings: The configuration.
        turns: Runs long conversions.
        held: Limits the memory of requests.
    """

    name = "responses"

    def __init__(self, store: ResponseStore, settings: Settings, turns: Turns, held: HeldBytes) -> None:
        self.store = store
        self.running: dict[tuple[str, str], _Serving] = {}
        self._turns = turns
        self._held = held
        self._limits = settings.server.json_limits
        self._max_bytes = settings.server.max_body_bytes
        self._longest_seconds = settings.relay.total_timeout_seconds + _LATE_SECONDS
        limits = settings.responses
        self._max_background = limits.max_background
        self._max_background_tenant = limits.max_background if settings.is_open else limits.max_background_tenant

    def refusal(self, error: GatewayError, request_id: RequestId) -> tuple[int, bytes]:  # noqa: ARG002
        """See ``Dialect``."""
        if error.status == 404 and error.code is None and error.param != "model":
            error = UpstreamFailed(error.message)  # the engine's path, and not the client's
        return error.status, problem_body(error)

    async def translate(self, asked: DialectRequest) -> Translated:
        """See ``Dialect``."""
        fields, owner = asked.fields, asked.caller.tenant.id
        store, background, streams = (member(fields, name, bool) for name in ("store", "background", "stream"))
        for name, kind in (("metadata", dict), ("include", list), ("prompt_cache_key", str)):
            member(fields, name, kind)
        compares = member(member(fields, "prompt_cache_options", dict) or {}, "comparison_response_id", str)
        conversation = _conversation(fields)
        needs_store = "background" if background else "conversation" if conversation else None
        if store is False and needs_store:
            raise invalid(needs_store, "needs `store: true`")
        if fields.get("prompt") is not None:
            raise invalid("prompt", "names a template of OpenAI's, which is not here", "unsupported_parameter")
        items = await self._resolved(items_of(fields), asked)
        ids, before = await self._chain(fields, conversation, asked)
        chat = await self._turns.run(chat_of(fields, items, before), owner)
        # What follows refers to no parsed body: a stream of minutes would keep it in memory.
        request_id, is_early = asked.request_id, bool(background and not streams)
        places = ClientPlaces(chat.places, NAMES)
        # The response's id leads to the request, unless the client named that: it may do so again.
        digits = os.urandom(16).hex() if b"x-request-id" in asked.headers else str(request_id)
        head = _head(fields, f"resp_{digits}", conversation)
        record, warnings, written = None, list(chat.warnings), orjson.dumps(head)
        # As it is here, in the record, and in the answer; a client may read none of a stream's three.
        asked.hold(len(written) * (5 if streams else 3))
        if store is not False:
            record = Record(Raw(written), input=Raw(body_of(items)), before=ids)
            asked.hold(size := len(bytes(record.input)))
            try:
                await self.store.check(owner, size)
            except GatewayError as error:
                if needs_store:
                    raise
                record = None
                warnings.append(f"not stored ({error.code})")
        head["store"] = record is not None
        headers = [(b"x-request-id", request_id.encode())] if is_early else []
        if warnings:
            headers.append((b"x-gateway-warning", "; ".join(warnings).encode()))
        seals = "reasoning.encrypted_content" in (fields.get("include") or ())
        answer = ResponseAnswer(head, digits, chat.tools, seals=seals)
        answer.state |= {"background": bool(background), "created_at": int(time.time())}
        answer.compares = compares is not None

        def refused(error: GatewayError) -> tuple[int, bytes]:
            places.rename(error)
            answer.broken(error)
            return self.refusal(error, request_id)

        def served(client: AnswerClient) -> AbstractAsyncContextManager[Sink]:
            sink = _Serving(client, answer, refused, headers, api=self, owner=owner, record=record, is_early=is_early)
            return sink.served()

        return Translated(chat.fields, places, served, compares=compares)

    async def _chain(
        self, fields: Mapping[str, Any], conversation: str | None, asked: DialectRequest
    ) -> tuple[list[str], list[Any]]:
        """The responses that a request continues, and their items."""
        previous = member(fields, "previous_response_id", str)
        owner, param = asked.caller.tenant.id, "previous_response_id"
        if conversation is None and previous is None:
            return [], []
        await self._turns.run(_pause(), owner)
        if conversation is not None:
            if previous is not None:
                raise invalid(param, "and `conversation` exclude each other")
            ids, param = await self.store.turns(owner, conversation), "conversation"
        else:
            head = await self.store.one(owner, previous if _ID.fullmatch(previous) else "", param)
            if self._state(head)["status"] not in _COMPLETE:
                raise invalid(param, "names a response that is not complete", "response_not_complete")
            ids = [*head.before, previous]
        if len(ids) > _MAX_CHAIN:
            raise invalid(param, f"continues more than {_MAX_CHAIN} responses: begin anew", "chain_too_long")
        records = await self.store.find(owner, ids)
        if None in records and conversation is None:  # a conversation goes on without what was deleted
            raise unknown(ids[records.index(None)], param)
        parts = [part for record in records if record is not None for part in (record.input, record.output)]
        if sum(len(bytes(part)) for part in parts) > self._max_bytes:
            problem = f"continues more than {self._max_bytes} bytes (server.max_body_bytes): begin anew"
            raise invalid(param, problem, "chain_too_long")
        return ids, await self._items(parts, owner, asked.hold)

    async def _items(self, parts: Iterable[Raw], owner: str, hold: Callable[[int], None]) -> list[Any]:
        """The items of stored lists."""
        data = b'{"parts":[%b]}' % b",".join(map(bytes, parts))
        found = await self._turns.run(parsed_object(data, self._limits, hold), owner)
        return list(chain.from_iterable(found["parts"]))

    async def _resolved(self, items: list[Any], asked: DialectRequest) -> list[Any]:
        """Items, with those that references stand for."""
        if not any(map(_is_reference, items)):
            return items
        owner, total, resolved = asked.caller.tenant.id, 0, []
        known: dict[str, list[Any]] = {}
        for at, item in enumerate(items):
            if at % _AT_ONCE == _AT_ONCE - 1:
                await self._turns.run(_pause(), owner)
            if not _is_reference(item):
                resolved.append(item)
                continue
            given, param = str(item.get("id")), f"input[{at}].id"
            if (found := _ITEM_ID.fullmatch(given)) is None:
                raise unknown(given, param)
            source, position = found[1] + found[2], int(found[3], 16)
            if source not in known and len(known) < _MAX_CHAIN:
                record = await self.store.one(owner, f"resp_{found[1]}", param)
                known[source] = await self._items([record.input if found[2] else record.output], owner, asked.hold)
            if position >= len(stored := known.get(source, [])):
                raise unknown(given, param)
            total += len(body_of(stored[position]))
            if total > self._max_bytes:
                problem = f"refers to more than {self._max_bytes} bytes (server.max_body_bytes)"
                raise invalid(param, problem, "chain_too_long")
            resolved.append(stored[position])
        return resolved

    def begin(self, key: tuple[str, str], serving: "_Serving") -> None:
        """Count an answer that goes on without its client.

        Raises:
            Overloaded: there are as many as there may be.
        """
        own = sum(owner == key[0] for owner, _ in self.running)
        if len(self.running) >= self._max_background or own >= self._max_background_tenant:
            problem = "As many background responses run as may (responses.max_background). Try again when one is over."
            raise Overloaded(problem, retry_after_seconds=1)
        self.running[key] = serving

    def add_routes(
        self, app: HttpRoutes, caller: Callable[[Request, str], Caller], admit: Callable[[Request, str], Grant]
    ) -> None:
        """Add the routes of stored responses."""

        @asynccontextmanager
        async def stored(request: Request, *, counts: bool = False) -> AsyncIterator[tuple[TenantId, str, Record]]:
            """A response. A request about one that is being made counts in no limit: the response itself does."""
            owner, given = caller(request, PATH).tenant.id, request.path_params["id"]
            id_ = given if _ID.fullmatch(given) else ""
            grant = admit(request, PATH) if counts else None
            try:
                await self._turns.run(_pause(), owner)
                (record,) = await self.store.find(owner, [id_])
                # Only the record says so if another worker or gateway makes it.
                if not counts and (record is None or self._state(record)["status"] != "in_progress"):
                    grant = admit(request, PATH)
                if record is None:
                    raise unknown(id_, None)
                yield owner, id_, record
            finally:
                if grant is not None:
                    grant.release()

        async def one(request: Request) -> Response:
            async with stored(request) as (owner, id_, record):
                if request.method == "DELETE":
                    await self.store.remove(owner, id_)
                    self._stop(owner, id_)
                    return JSONResponse({"id": id_, "object": "response", "deleted": True})
                if request.query_params.get("stream", "false") != "false":
                    raise invalid("stream", "is not served for stored responses", "unsupported_parameter")
                return _whole(record, self._state(record))

        async def cancel(request: Request) -> Response:
            async with stored(request) as (owner, id_, record):
                state = self._state(record)
                if not state["background"]:
                    problem = "Only a response with `background: true` can be cancelled."
                    raise BadRequest(problem, code="not_background")
                if state["status"] == "in_progress":
                    self._stop(owner, id_)
                    state["status"] = "cancelled"
                    await self.store.keep(owner, id_, record)
                return _whole(record, state)

        async def input_items(request: Request) -> Response:
            async with stored(request, counts=True) as (owner, id_, record):
                share = Share(self._held, owner)
                try:
                    page = _page(await self._items([record.input], owner, share.add), id_, request.query_params)
                    return Response(body_of(page), media_type="application/json")
                finally:
                    share.drop(share.size)

        app.add_route(PATH, _offered, methods=["GET", "POST"])  # POST is handled before
        app.add_route(f"{PATH}/compact", _compact, methods=["POST"])
        app.add_route(f"{PATH}/{{id}}", one, methods=["GET", "DELETE"])
        app.add_route(f"{PATH}/{{id}}/cancel", cancel, methods=["POST"])
        app.add_route(f"{PATH}/{{id}}/input_items", input_items, methods=["GET"])

    def _state(self, record: Record) -> dict[str, Any]:
        """The state of a stored response. One that takes longer than answers may has failed with its gateway."""
        state = record.state
        if state["status"] == "in_progress" and time.time() > state["created_at"] + self._longest_seconds:
            error = {"code": "server_error", "message": "The gateway that worked on it has ended. Send it again."}
            state |= {"status": "failed", "error": error}
        return state

    def _stop(self, owner: str, id_: str) -> None:
        if (serving := self.running.get((owner, id_))) is not None:
            serving.cancel()


async def _offered(request: Request) -> Response:
    problem = f"{request.method} is not allowed here; use POST."
    refusal = MethodNotAllowed(problem, code="method_not_allowed", headers=[("allow", "POST")])
    if "sec-websocket-key" in request.headers:  # Codex tries a WebSocket again and again unless it gets a 426
        refusal.status, refusal.code, refusal.headers = 426, "websocket_not_served", [("upgrade", "HTTP/1.1")]
    raise refusal


async def _compact(_: Request) -> Response:
    raise NotFound(f"Compaction is not served: {COMPACTS_ITSELF}.", code="unknown_path")


class _Serving(TranslatingSink):
    """The sink of one answer, whose end waits until the response is stored.

    Args:
        client, answer, refusal, headers: See ``TranslatingSink``.
        api: Stores the response, and knows what runs.
        owner: The tenant.
        record: What is stored; None for nothing.
        is_early: Whether the client is answered before the response is made.
    """

    _sink: AnswerClient

    def __init__(
        self,
        client: AnswerClient,
        answer: ResponseAnswer,
        refusal: Callable[[GatewayError], tuple[int, bytes]],
        headers: Sequence[tuple[bytes, bytes]],
        *,
        api: Responses,
        owner: str,
        record: Record | None,
        is_early: bool,
    ) -> None:
        super().__init__(client, answer, refusal, headers)
        self._api = api
        self._answer = answer
        self._owner, self._id = owner, answer.head["id"]
        self._record = record
        self._is_early = is_early
        self._background = answer.state["background"]
        self._is_detached = False
        self._unread = 0
        self._last: bytes | None = None
        self._response: tuple[int, list[tuple[bytes, bytes]], bytes] | None = None

    @property
    def congested(self) -> bool:
        """See ``Sink``. An answer that goes on without its client does not wait for it."""
        return not self._is_detached and self._sink.congested

    @asynccontextmanager
    async def served(self) -> AsyncIterator[Sink]:
        """See ``Translated.answer``."""
        try:
            if self._background:
                self._api.begin((self._owner, self._id), self)
                await self._keep()
                self._sink.detach()
                self._is_detached = True
                if self._is_early:
                    super().respond(200, self._headers, orjson.dumps(self._answer.response()))
            yield self
            if not self.gone:
                await self._end()
        except asyncio.CancelledError:
            if not (self._is_detached and (self.gone or self.interrupted)):
                raise
        except GatewayError as error:
            if not self._is_detached:
                raise
            await self._fail(error)
        except Exception:
            await self._fail(GatewayError("The gateway failed on this request.", code="internal_error"))
            raise
        finally:
            self._api.running.pop((self._owner, self._id), None)

    def cancel(self) -> None:
        """End the answer, and its stream with an event unless it is over."""
        is_over = self._last is None and self._answer.state["status"] != "in_progress"
        events = (self._last or b"") + self._answer.cut_off("cancelled") + self._answer.final()
        if self._streamed and not is_over and self._unread <= _MAX_UNREAD_BYTES:
            self._sink.write(events, more=False)
        self._sink.cancel()

    def send(self, events: bytes, *, more: bool) -> None:
        """See ``TranslatingSink``."""
        if not more:
            self._last = events
        elif self._unread <= _MAX_UNREAD_BYTES and not self.gone:
            self._unread = self._unread + len(events) if self._is_detached and self._sink.congested else 0
            self._sink.write(events, more=True)

    def respond(self, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> None:
        """See ``TranslatingSink``."""
        self._response = status, [*headers], body

    async def _end(self) -> None:
        """Store the response, and send its end."""
        if self._last is None and self._response is None:
            self._answer.broken(UpstreamFailed("The engine's answer is not whole."))
        if not (is_stored := await self._stored()):
            self._answer.head["store"] = False
        last, self._last = self._last, None
        if last is not None and self._unread <= _MAX_UNREAD_BYTES:
            self._sink.write(last + self._answer.final(), more=False)
        elif self._response is not None and not self._is_early:
            status, headers, body = self._response
            if not is_stored:
                headers.append((b"x-gateway-warning", b"not stored"))
                body = orjson.dumps(self._answer.response()) if status == 200 else body
            super().respond(status, headers, body)
        if self._background and not is_stored:
            await self._store_again()

    async def _fail(self, error: GatewayError) -> None:
        """Store the failure of an answer without a client: its clients would ask for it without end."""
        if self._is_detached:
            if not (self._is_early or self._streamed):
                self._sink.respond(error)  # to store it may take minutes
            self._answer.broken(error)
            if not await self._stored():
                await self._store_again()

    async def _store_again(self) -> None:
        """Try to store a background response until that succeeds. Its clients ask for it without end."""
        for pause in _STORE_PAUSES:
            await asyncio.sleep(pause)
            if await self._stored():
                break

    async def _stored(self) -> bool:
        """Store the response as it is now; returns whether it is stored, if it is to be."""
        complete, store = self._answer.state["status"] in _COMPLETE, self._api.store
        if self._record is None or not (complete or self._background):
            return True
        try:
            if self._background:
                (record,) = await store.find(self._owner, [self._id])
                if record is None or record.state["status"] == "cancelled":
                    return True
            await self._keep()
            if complete and (conversation := self._answer.head["conversation"]) is not None:
                await store.append(self._owner, conversation["id"], self._id, len(self._record.before))
        except GatewayError:
            return False
        return True

    async def _keep(self) -> None:
        assert self._record is not None
        self._record.state, self._record.output = self._answer.state, Raw(orjson.dumps(self._answer.output))
        await self._api.store.keep(self._owner, self._id, self._record)


def _head(fields: Mapping[str, Any], id_: str, conversation: str | None) -> dict[str, Any]:
    """The members of a response that its request decides, as they are if it is stored."""
    echoed = {name: value for name, value in fields.items() if name in _ECHOED and value is not None}
    own = {"id": id_, "object": "response", "store": True, "conversation": conversation and {"id": conversation}}
    return _ECHOED | {name: orjson.Fragment(body_of(value)) for name, value in echoed.items()} | own


def _conversation(fields: Mapping[str, Any]) -> str | None:
    """The id of the conversation that a request continues."""
    given = fields.get("conversation")
    id_ = given.get("id", "") if isinstance(given, dict) else given
    if id_ is not None and not (isinstance(id_, str) and _CONVERSATION.fullmatch(id_)):
        raise invalid("conversation", "must be an id of A-Z a-z 0-9 . _ : -, or an object with it")
    return id_


def _whole(record: Record, state: Mapping[str, Any]) -> Response:
    parts = bytes(record.head)[:-1], orjson.dumps(state)[1:-1], bytes(record.output)
    return Response(b'%b,%b,"output":%b}' % parts, media_type="application/json")


def _listed(item: Mapping[str, Any], id_: str) -> dict[str, Any]:
    """An item of the input, in the form in which it is listed."""
    listed = {"type": "message", **item, "id": id_}
    if isinstance(text := listed.get("content"), str):
        kind = "output_text" if listed.get("role") == "assistant" else "input_text"
        listed["content"] = [{"type": kind, "text": text}]
    return listed


def _page(items: Sequence[Mapping[str, Any]], response: str, asked: Mapping[str, str]) -> dict[str, Any]:
    """A page of a response's input, as the parameters ``limit``, ``order`` and ``after`` ask for it."""
    limit, order, after = asked.get("limit", "20"), asked.get("order", "desc"), asked.get("after")
    if limit not in map(str, range(1, 101)):
        raise invalid("limit", "must be 1 to 100")
    if order not in ("asc", "desc"):
        raise invalid("order", "must be asc or desc")
    rest, id_ = range(len(items))[:: 1 if order == "asc" else -1], f"msg_{response[5:]}i{{:04x}}".format
    if after is not None:
        last = int(found[3], 16) if (found := _ITEM_ID.fullmatch(after)) else -1
        if last not in rest or after != id_(last):
            raise invalid("after", "names no item of this response")
        rest = rest[rest.index(last) + 1 :]
    page = [_listed(items[at], id_(at)) for at in rest[: int(limit)]]
    ends = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {"first_id": None, "last_id": None}
    return {"object": "list", "data": page, "has_more": len(page) < len(rest), **ends}


def _is_reference(item: Any) -> bool:
    """Whether an item stands for a stored one. Clients may leave its type out."""
    if not isinstance(item, dict):
        return False
    return item.get("type") == "item_reference" or (item.get("type") is None and item.keys() - {"type"} == {"id"})


def _pause() -> Portioned[None]:
    """Waits for a turn: what follows takes milliseconds, and many requests may arrive at once."""
    yield
