"""The Responses API as a dialect: stored responses, what continues them, answers that go on without their client."""

import asyncio
import os
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import orjson
from msgspec import Raw
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.api.body_json import body_of
from gateway.api.dialects.dialect import AnswerClient, ApiProblem, DialectRequest, Translated, hold_none, problem_in
from gateway.api.dialects.response_store import Record, ResponseStore, unknown
from gateway.api.dialects.responses import NAMES, ResponsesChat, chat_of, invalid, items_of, member
from gateway.api.dialects.responses_answer import ResponseAnswer
from gateway.api.dialects.translating_sink import TranslatingSink
from gateway.api.error_responses import problem_body
from gateway.api.parse import parsed_object
from gateway.config.settings import Settings
from gateway.core.errors import BadRequest, GatewayError, MethodNotAllowed, Overloaded
from gateway.core.http_methods import HttpRoutes
from gateway.core.ids import RequestId
from gateway.core.portions import Portioned
from gateway.core.ports import Sink
from gateway.core.tenant import Caller
from gateway.proxy.forwarding_sink import ForwardingSink
from gateway.turns import Turns

PATH = "/v1/responses"

_DIGITS = re.compile(r"[0-9a-f]{32}")
_ID = re.compile(rf"resp_{_DIGITS.pattern}")
_ITEM_ID = re.compile(r"[a-z]{2,4}_([0-9a-f]{32})(i?)([0-9a-f]{4,6})")
_CONVERSATION = re.compile(r"(?!resp_)[\w.:-]{1,128}", re.ASCII)
_COMPLETE = ("completed", "incomplete")
_MAX_CHAIN = 1000
"""Responses that one request may continue."""

_AT_ONCE = 2000
_SHORT_BYTES = 4096
"""Stored items up to this size are parsed together with others, without a turn of their own."""

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
    """

    name = "responses"

    def __init__(self, store: ResponseStore, settings: Settings, turns: Turns) -> None:
        self.store = store
        self.running: dict[tuple[str, str], _Serving] = {}
        self._turns = turns
        self._limits = settings.server.json_limits
        self._max_bytes = settings.server.max_body_bytes
        limits = settings.responses
        self._max_background = limits.max_background
        self._max_background_tenant = limits.max_background if settings.is_open else limits.max_background_tenant

    def refusal(self, problem: ApiProblem, request_id: RequestId) -> tuple[int, bytes]:  # noqa: ARG002
        """See ``Dialect``."""
        if problem.status == 404 and problem.code is None and problem.param != "model":
            problem = ApiProblem(502, "upstream_error", problem.message)  # the engine's path, and not the client's
        return problem.status, problem_body(problem)

    async def translate(self, asked: DialectRequest) -> Translated:
        """See ``Dialect``."""
        fields, owner = asked.fields, asked.caller.tenant.id
        store, background = (member(fields, name, bool) for name in ("store", "background"))
        for name, kind in (("metadata", dict), ("include", list), ("stream", bool), ("prompt_cache_key", str)):
            member(fields, name, kind)
        compares = member(member(fields, "prompt_cache_options", dict) or {}, "comparison_response_id", str)
        conversation = _conversation(fields)
        needs_store = "background" if background else "conversation" if conversation else None
        if store is False and needs_store:
            raise invalid(needs_store, "needs `store: true`", "invalid_value")
        if fields.get("prompt") is not None:
            raise invalid("prompt", "names a template of OpenAI's, which is not here", "unsupported_parameter")
        items = await self._resolved(items_of(fields), asked)
        ids, before = await self._chain(fields, conversation, asked)
        chat = await self._turns.run(chat_of(fields, items, before), owner)
        kept, warnings = None, list(chat.warnings)
        if store is not False:
            stored = await self._turns.run(_json_of(items), owner)
            asked.hold(len(stored))
            kept = Record(input=Raw(stored), before=ids)
            try:
                await self.store.check(owner, len(stored))
            except GatewayError as error:
                if needs_store:
                    raise
                kept = None
                warnings.append(f"not stored ({error.code})")
        serving = _Serving(self, asked, chat._replace(warnings=warnings), kept, conversation)
        serving.answer.compares = compares is not None
        answer = serving.translating
        return Translated(chat.fields, chat.places, NAMES, answer, serve=serving.serve, compares=compares)

    async def _chain(
        self, fields: Mapping[str, Any], conversation: str | None, asked: DialectRequest
    ) -> tuple[list[str], list[Any]]:
        """The responses that a request continues, and their items."""
        previous = member(fields, "previous_response_id", str)
        owner, param = asked.caller.tenant.id, "previous_response_id"
        if conversation is not None:
            if previous is not None:
                raise invalid(param, "and `conversation` exclude each other", "invalid_value")
            (found,) = await self.store.find(owner, [conversation])
            ids, param = [] if found is None else found.before, "conversation"
        elif previous is None:
            return [], []
        else:
            head = await self.store.one(owner, previous if _ID.fullmatch(previous) else "", param)
            if _status(head) not in _COMPLETE:
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

    async def _items(self, parts: Sequence[Raw], owner: str, hold: Callable[[int], None] = hold_none) -> list[Any]:
        def parsed() -> Portioned[list[Any]]:
            items: list[Any] = []
            for part in parts:
                if len(data := bytes(part)) > _SHORT_BYTES:
                    yield
                items += (yield from parsed_object(b'{"items":%b}' % data, self._limits, hold))["items"]
            return items

        return await self._turns.run(parsed(), owner)

    async def _resolved(self, items: list[Any], asked: DialectRequest) -> list[Any]:
        """Items, with those that references stand for."""
        if not any(isinstance(item, dict) and item.get("type") == "item_reference" for item in items):
            return items
        owner, resolved = asked.caller.tenant.id, []
        known: dict[str, list[Any]] = {}
        sizes, total = dict[tuple[str, int], int](), 0
        for at, item in enumerate(items):
            if isinstance(item, dict) and item.get("type") == "item_reference":
                found = _ITEM_ID.fullmatch(given := str(item.get("id")))
                if found is not None and (source := found[1] + found[2]) not in known and len(known) < _MAX_CHAIN:
                    record = await self.store.one(owner, f"resp_{found[1]}", f"input[{at}].id")
                    part = record.input if found[2] else record.output
                    known[source] = await self._items([part], owner, asked.hold)
                stored = [] if found is None else known.get(source, [])
                if found is None or (position := int(found[3], 16)) >= len(stored):
                    raise unknown(given, f"input[{at}].id")
                if (item_at := (source, position)) not in sizes:
                    sizes[item_at] = len(body_of(stored[position]))
                if (total := total + sizes[item_at]) > self._max_bytes:
                    problem = f"refers to more than {self._max_bytes} bytes (server.max_body_bytes)"
                    raise invalid(f"input[{at}].id", problem, "chain_too_long")
                resolved.append(stored[position])
            else:
                resolved.append(item)
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

    def add_routes(self, app: HttpRoutes, caller: Callable[[Request, str], Caller]) -> None:
        """Add the routes of stored responses."""

        async def stored(request: Request) -> tuple[str, str, Record]:
            owner, id_ = caller(request, PATH).tenant.id, request.path_params["id"]
            return owner, id_, await self.store.one(owner, id_ if _ID.fullmatch(id_) else "")

        async def offered(request: Request) -> Response:
            problem = f"{request.method} is not allowed here; use POST."
            refusal = MethodNotAllowed(problem, code="method_not_allowed", headers=[("allow", "POST")])
            if "sec-websocket-key" in request.headers:  # Codex tries a WebSocket again and again unless it gets a 426
                refusal.status, refusal.code, refusal.headers = 426, "websocket_not_served", [("upgrade", "HTTP/1.1")]
            raise refusal

        async def one(request: Request) -> Response:
            owner, id_, record = await stored(request)
            if request.method == "DELETE":
                await self.store.remove(owner, id_)
                self._stop(owner, id_)
                return JSONResponse({"id": id_, "object": "response", "deleted": True})
            if request.query_params.get("stream", "false") != "false":
                raise invalid("stream", "is not served for stored responses", "unsupported_parameter")
            return _whole(record)

        async def cancel(request: Request) -> Response:
            owner, id_, record = await stored(request)
            response = orjson.loads(bytes(record.response))
            if not response["background"]:
                raise BadRequest("Only a response with `background: true` can be cancelled.", code="not_background")
            if response["status"] == "in_progress":
                self._stop(owner, id_)
                record.response = Raw(orjson.dumps(response | {"status": "cancelled"}))
                await self.store.keep(owner, id_, record)
            return _whole(record)

        async def input_items(request: Request) -> Response:
            owner, id_, record = await stored(request)
            given = await self._items([record.input], owner)
            return JSONResponse(_page([_listed(item, id_, at) for at, item in enumerate(given)], request.query_params))

        app.add_route(PATH, offered, methods=["GET", "POST"])  # POST is handled before
        app.add_route(f"{PATH}/{{id}}", one, methods=["GET", "DELETE"])
        app.add_route(f"{PATH}/{{id}}/cancel", cancel, methods=["POST"])
        app.add_route(f"{PATH}/{{id}}/input_items", input_items, methods=["GET"])

    def _stop(self, owner: str, id_: str) -> None:
        if (serving := self.running.get((owner, id_))) is not None:
            serving.client.cancel()


class _Serving(ForwardingSink):
    """The client's sink behind the translation of one answer, whose end waits until the response is stored."""

    client: AnswerClient

    def __init__(
        self, api: Responses, asked: DialectRequest, chat: ResponsesChat, kept: Record | None, conversation: str | None
    ) -> None:
        # The response's id leads to the request, unless the client named that: it may do so again.
        digits = os.urandom(16).hex() if b"x-request-id" in asked.headers else str(asked.request_id)
        fields = asked.fields
        self._api = api
        self._owner, self._id = asked.caller.tenant.id, f"resp_{digits}"
        self._kept = kept
        self._places = chat.places
        self._headers = [(b"x-gateway-warning", "; ".join(chat.warnings).encode())] if chat.warnings else []
        self._conversation = conversation
        self._background = bool(fields.get("background"))
        self._streams = bool(fields.get("stream"))
        echoed = {name: other if fields.get(name) is None else fields[name] for name, other in _ECHOED.items()}
        self._head = {
            **{name: orjson.Fragment(body_of(value)) for name, value in echoed.items()},
            **dict.fromkeys(("error", "incomplete_details", "usage")),
        }
        self._head |= {"id": self._id, "object": "response", "created_at": int(time.time()), "store": kept is not None}
        self._head |= {"background": self._background, "conversation": conversation and {"id": conversation}}
        seals = "reasoning.encrypted_content" in (fields.get("include") or ())
        self.answer = ResponseAnswer(self._head, digits, chat.tools, seals=seals)
        self._answered: tuple[int, Sequence[tuple[bytes, bytes]]] | None = None
        self._detached = self._begun = False
        self._last = b""

    def translating(self, sink: Sink) -> Sink:
        """The sink for the chat answer."""
        self._sink = sink
        return TranslatingSink(self, self.answer, self._refused, self._headers)

    async def serve(self, client: AnswerClient, serve: Callable[[Sink], Awaitable[None]]) -> None:
        """See ``Translated``."""
        self.client, key = client, (self._owner, self._id)
        try:
            if self._background:
                self._api.begin(key, self)
                await self._keep()
                client.detach(None if self._streams else orjson.dumps(self.answer.response()), self._headers)
                self._detached = True
            await serve(self.translating(client))
            if not client.gone:
                await self._end()
        except GatewayError as error:
            if self._detached:
                self.answer.broken(ApiProblem(error.status, error.type, error.message))
                await self._stored()
            if not self._detached or self._streams:
                raise
        except asyncio.CancelledError:
            if not (self._detached and client.gone):
                raise
        except Exception:
            if self._detached:  # or its clients would ask for it without end
                self.answer.broken(ApiProblem(500, "internal_error", "The gateway failed on this request."))
                await self._stored()
            raise
        finally:
            if self._api.running.get(key) is self:
                del self._api.running[key]

    def start(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """See ``Sink``. The head of an answer that is not a stream waits until the response is stored."""
        self._answered = status, headers
        self._begun = (b"content-type", b"text/event-stream; charset=utf-8") in headers
        if self._begun:
            self._sink.start(status, headers)

    def write(self, data: bytes, *, more: bool, chunk: bytes | None = None) -> None:  # noqa: ARG002
        """See ``Sink``. So does the end of every answer."""
        if more:
            self._sink.write(data, more=True)
        else:
            self._last = data

    async def _end(self) -> None:
        if self._answered is None:
            self.answer.broken(ApiProblem(502, "upstream_error", "The engine's answer is not whole."))
        lost = not await self._stored()
        if self._answered is None or (self._detached and not self._streams):
            return
        status, headers = self._answered
        if self._begun:
            self._sink.write(self._last + self.answer.final(**({"store": False} if lost else {})), more=False)
        else:
            self._sink.start(status, [*headers, (b"x-gateway-warning", b"not stored")] if lost else headers)
            self._sink.write(self._last, more=False)

    def _refused(self, problem: ApiProblem) -> tuple[int, bytes]:
        problem = problem_in(self._places, NAMES, problem)
        self.answer.broken(problem)
        return self._api.refusal(problem, RequestId(""))

    async def _stored(self) -> bool:
        """Store the response as it is now; returns whether it is stored, if it is to be."""
        complete, store, owner = self.answer.state["status"] in _COMPLETE, self._api.store, self._owner
        if self._kept is None or not (complete or self._background):
            return True
        try:
            if self._background:
                (record,) = await store.find(owner, [self._id])
                if record is None or _status(record) == "cancelled":
                    return True
            await self._keep()
            if self._conversation is not None and complete:
                (found,) = await store.find(owner, [self._conversation])
                before = [] if found is None else found.before
                await store.keep(owner, self._conversation, Record(before=[*before, self._id]))
        except GatewayError:
            return False
        return True

    async def _keep(self) -> None:
        assert self._kept is not None
        self._kept.response = Raw(orjson.dumps({**self._head, **self.answer.state}))
        self._kept.output = Raw(orjson.dumps(self.answer.output))
        await self._api.store.keep(self._owner, self._id, self._kept)


def _status(record: Record) -> object:
    return orjson.loads(bytes(record.response))["status"]


def _conversation(fields: Mapping[str, Any]) -> str | None:
    """The id of the conversation that a request continues."""
    given = fields.get("conversation")
    id_ = given.get("id", "") if isinstance(given, dict) else given
    if id_ is not None and not (isinstance(id_, str) and _CONVERSATION.fullmatch(id_)):
        raise invalid("conversation", "must be an id of A-Z a-z 0-9 . _ : -, or an object with it", "invalid_value")
    return id_


def _json_of(items: Sequence[Any]) -> Portioned[bytes]:
    parts = []
    for start in range(0, len(items), _AT_ONCE):
        if start:
            yield
        parts.append(body_of(items[start : start + _AT_ONCE])[1:-1])
    return b"[%b]" % b",".join(parts)


def _whole(record: Record) -> Response:
    return Response(
        b'%b,"output":%b}' % (bytes(record.response)[:-1], bytes(record.output)), media_type="application/json"
    )


def _listed(item: Mapping[str, Any], response: str, at: int) -> dict[str, Any]:
    """An item of the input, in the form in which it is listed."""
    listed = {"type": "message", **item, "id": f"msg_{response[5:]}i{at:04x}"}
    if isinstance(text := listed.get("content"), str):
        kind = "output_text" if listed.get("role") == "assistant" else "input_text"
        listed["content"] = [{"type": kind, "text": text}]
    return listed


def _page(items: list[dict[str, Any]], asked: Mapping[str, str]) -> dict[str, Any]:
    """A page of a list, as the parameters ``limit``, ``order`` and ``after`` ask for it."""
    limit, order, after = asked.get("limit", "20"), asked.get("order", "desc"), asked.get("after")
    if limit not in map(str, range(1, 101)):
        raise invalid("limit", "must be 1 to 100", "invalid_value")
    if order not in ("asc", "desc"):
        raise invalid("order", "must be asc or desc", "invalid_value")
    ordered = items if order == "asc" else items[::-1]
    start = 0 if after is None else next((at for at, item in enumerate(ordered, 1) if item["id"] == after), -1)
    if start < 0:
        raise invalid("after", "names no item of this response", "invalid_value")
    page = ordered[start : start + int(limit)]
    ends = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {"first_id": None, "last_id": None}
    return {"object": "list", "data": page, "has_more": start + len(page) < len(items), **ends}
