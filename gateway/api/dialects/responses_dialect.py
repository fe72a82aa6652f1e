"""The Responses API as a dialect: stored responses, what continues them, answers that go on without their client."""

import asyncio
import os
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.api.body_json import body_of
from gateway.api.dialects.dialect import Asked, Client, Problem, Translated, hold_none
from gateway.api.dialects.response_store import Record, ResponseStore, unknown
from gateway.api.dialects.responses import NAMES, Chat, chat_of, items_of, member
from gateway.api.dialects.responses_answer import ResponseAnswer
from gateway.api.dialects.translating_sink import TranslatingSink
from gateway.api.error_responses import problem_body
from gateway.api.parse import parsed_object
from gateway.config.settings import Settings
from gateway.core.errors import BadRequest, GatewayError, MethodNotAllowed, Overloaded
from gateway.core.http_methods import HttpRoutes
from gateway.core.ids import RequestId
from gateway.core.portions import Portioned
from gateway.core.ports import SharedEntries, Sink
from gateway.core.tenant import Caller
from gateway.proxy.forwarding_sink import ForwardingSink
from gateway.turns import Turns

PATH = "/v1/responses"

_ID = re.compile(r"resp_[0-9a-f]{32}")
_ITEM_ID = re.compile(r"[a-z]{2,4}_([0-9a-f]{32})(i?)([0-9a-f]{4,6})")
_CONVERSATION = re.compile(r"[\w.:-]{1,128}", re.ASCII)
_MAX_CHAIN = 1000
"""Responses that one request may continue or refer to."""
_AT_ONCE = 2000
_COMPLETE = frozenset({"completed", "incomplete"})
_MAX_PAGE = 100

_ECHOED: dict[str, Any] = {
    **dict.fromkeys(("instructions", "max_output_tokens", "max_tool_calls", "previous_response_id")),
    **dict.fromkeys(("prompt_cache_key", "safety_identifier", "user")),
    "metadata": {},
    "parallel_tool_calls": True,
    "reasoning": {"effort": None, "summary": None},
    "service_tier": "default",
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": 1.0,
    "truncation": "disabled",
}
"""Members of a response that repeat the request's, with what stands there if the request has none."""


class UpgradeRequired(GatewayError):
    """The client offers a WebSocket."""

    status = 426
    type = "invalid_request_error"

    def __init__(self) -> None:
        super().__init__(
            f"WebSockets are not served here: send POST {PATH}.",
            code="websocket_not_served",
            headers=[("upgrade", "HTTP/1.1"), ("connection", "upgrade")],
        )


class Responses:
    """A ``Dialect``.

    Args:
        shared: The store that gateways share; None to keep responses in memory.
        settings: The configuration.
        turns: Runs long conversions.
    """

    name = "responses"

    def __init__(self, shared: SharedEntries | None, settings: Settings, turns: Turns) -> None:
        limits, tenants = settings.responses, not settings.is_open
        self.running: dict[tuple[str, str], _Serving] = {}
        self.store = ResponseStore(shared, limits, has_tenants=tenants)
        self._turns = turns
        self._limits = settings.server.json_limits
        self._max_bytes = settings.server.max_body_bytes
        self._max_background = limits.max_background
        self._max_background_tenant = limits.max_background_tenant if tenants else limits.max_background

    def refusal(self, problem: Problem, request_id: RequestId) -> tuple[int, bytes]:  # noqa: ARG002
        """See ``Dialect``."""
        if problem.status == 404 and problem.code is None and problem.param != "model":
            problem = Problem(502, "upstream_error", problem.message)  # the engine's path, and not the client's
        error = GatewayError(problem.message, param=problem.param, code=problem.code)
        error.type = problem.type
        return problem.status, problem_body(error)

    async def translate(self, asked: Asked) -> Translated:
        """See ``Dialect``."""
        fields, owner = asked.fields, asked.caller.tenant.id
        store, background, _ = (member(fields, name, bool, "a boolean") for name in ("store", "background", "stream"))
        for name, kind in (("metadata", dict), ("include", list), ("truncation", str), ("prompt_cache_key", str)):
            member(fields, name, kind, {dict: "an object", list: "a list", str: "a string"}[kind])
        conversation = _conversation(fields)
        if store is False and (background or conversation):
            name = "background" if background else "conversation"
            raise BadRequest(f"`{name}` needs `store: true`.", param=name, code="invalid_value")
        if fields.get("prompt") is not None:
            problem = "`prompt` names a template of OpenAI's; register prompts with the gateway instead."
            raise BadRequest(problem, param="prompt", code="unsupported_parameter")
        items = await self._resolved(items_of(fields), asked)
        ids, before = await self._chain(fields, conversation, asked)
        chat = await self._turns.run(chat_of(fields, items, before), owner)
        digits, warnings = os.urandom(16).hex(), chat.warnings
        kept = None
        if store is not False:
            kept = Record(b"", b"", await self._turns.run(_json_of(items), owner), ids)
            try:
                await self.store.check(owner, len(kept.input))
            except GatewayError as error:
                if background or conversation:
                    raise
                kept, warnings = None, [*warnings, f"not stored ({error.code})"]
        serving = _Serving(self, owner, f"resp_{digits}", fields, chat, kept)
        serving.background, serving.conversation = bool(background), conversation
        if warnings:
            serving.headers = [(b"x-gateway-warning", "; ".join(warnings).encode())]
        return Translated(chat.fields, chat.places, NAMES, serving.translating, serving.headers, serving.serve)

    async def _chain(
        self, fields: Mapping[str, Any], conversation: str | None, asked: Asked
    ) -> tuple[list[str], list[Any]]:
        """The responses that a request continues, and their items."""
        previous = member(fields, "previous_response_id", str, "a string")
        owner, param = asked.caller.tenant.id, "previous_response_id"
        if conversation is not None:
            if previous is not None:
                problem = "`previous_response_id` and `conversation` exclude each other."
                raise BadRequest(problem, param=param, code="invalid_value")
            (found,) = await self.store.find(owner, [conversation])
            ids, param = [] if found is None else found.before, "conversation"
        elif previous is None:
            return [], []
        else:
            head = await self.store.one(owner, previous if _ID.fullmatch(previous) else "", param)
            if orjson.loads(head.response)["status"] not in _COMPLETE:
                problem = f"`{param}` names a response that is not complete: wait for it, or leave it out."
                raise BadRequest(problem, param=param, code="response_not_complete")
            ids = [*head.before, previous]
        records = await self._records(ids, owner, param)
        if sum(len(each.input) + len(each.output) for each in records) > self._max_bytes:
            problem = f"`{param}` continues more than {self._max_bytes} bytes (server.max_body_bytes): begin anew."
            raise BadRequest(problem, param=param, code="chain_too_long")
        items: list[Any] = []
        for record in records:
            for part in (record.input, record.output):
                items += await self.items(part, owner, asked.hold)
        return ids, items

    async def _records(self, ids: Sequence[str], owner: str, param: str) -> list[Record]:
        if len(ids) > _MAX_CHAIN:
            problem = f"`{param}` continues more than {_MAX_CHAIN} responses: begin anew with the items in `input`."
            raise BadRequest(problem, param=param, code="chain_too_long")
        found = await self.store.find(owner, ids)
        records = [record for record in found if record is not None]
        if len(records) < len(ids):
            raise unknown(ids[found.index(None)], param)
        return records

    async def items(self, data: bytes, owner: str, hold: Callable[[int], None] = hold_none) -> list[Any]:
        """Stored items."""
        parsing = parsed_object(b'{"items":%b}' % data, self._limits, hold)
        items: list[Any] = (await self._turns.run(parsing, owner))["items"]
        return items

    async def _resolved(self, items: list[Any], asked: Asked) -> list[Any]:
        """Items with those that references stand for."""
        places = [
            at for at, item in enumerate(items) if isinstance(item, dict) and item.get("type") == "item_reference"
        ]
        if not places:
            return items
        owner, items, parts = asked.caller.tenant.id, list(items), {}
        named = {at: _ITEM_ID.fullmatch(str(items[at].get("id"))) for at in places}
        ids = list(dict.fromkeys(f"resp_{match[1]}" for match in named.values() if match is not None))
        for id_, record in zip(ids, await self._records(ids, owner, "input"), strict=True):
            parts[id_] = {
                "": await self.items(record.output, owner, asked.hold),
                "i": await self.items(record.input, owner, asked.hold),
            }
        for at, match in named.items():
            found = [] if match is None else parts[f"resp_{match[1]}"][match[2]]
            if match is None or (position := int(match[3], 16)) >= len(found):
                raise unknown(str(items[at].get("id")), f"input[{at}].id")
            items[at] = found[position]
        return items

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
            if not _ID.fullmatch(id_):
                raise unknown(id_, None)
            return owner, id_, await self.store.one(owner, id_)

        async def offered(request: Request) -> Response:
            if "sec-websocket-key" in request.headers:
                raise UpgradeRequired
            raise MethodNotAllowed(f"GET is not allowed here; use POST {PATH}.", code="method_not_allowed")

        async def one(request: Request) -> Response:
            owner, id_, record = await stored(request)
            if request.method == "DELETE":
                await self.store.remove(owner, id_)
                if (serving := self.running.get((owner, id_))) is not None:
                    serving.cancel()
                return JSONResponse({"id": id_, "object": "response", "deleted": True})
            if request.query_params.get("stream", "false") != "false":
                raise BadRequest("`stream` is not served for stored responses.", param="stream", code="unsupported")
            return _whole(record)

        async def cancel(request: Request) -> Response:
            owner, id_, record = await stored(request)
            response = orjson.loads(record.response)
            if not response["background"]:
                raise BadRequest("Only a response with `background: true` can be cancelled.", code="not_background")
            if response["status"] == "in_progress":
                if (serving := self.running.get((owner, id_))) is not None:
                    serving.cancel()
                record.response = orjson.dumps(response | {"status": "cancelled"})
                await self.store.keep(owner, id_, record)
            return _whole(record)

        async def input_items(request: Request) -> Response:
            owner, id_, record = await stored(request)
            shown = [
                _shown(item, f"msg_{id_[5:]}i{at:04x}") for at, item in enumerate(await self.items(record.input, owner))
            ]
            return JSONResponse(_page(shown, request.query_params))

        app.add_route(PATH, offered, methods=["GET", "POST"])  # POST is handled before
        app.add_route(f"{PATH}/{{id}}", one, methods=["GET", "DELETE"])
        app.add_route(f"{PATH}/{{id}}/cancel", cancel, methods=["POST"])
        app.add_route(f"{PATH}/{{id}}/input_items", input_items, methods=["GET"])


class _Serving(ForwardingSink):
    """The client's sink behind the translation of one answer, whose end waits until the response is stored."""

    def __init__(
        self, api: Responses, owner: str, id_: str, fields: Mapping[str, Any], chat: Chat, kept: Record | None
    ) -> None:
        self.background = False
        self.conversation: str | None = None
        self.headers: list[tuple[bytes, bytes]] = []
        self._api = api
        self._key = (owner, id_)
        self._kept = kept
        self._streams = bool(fields.get("stream"))
        head = {name: fields[name] if fields.get(name) is not None else other for name, other in _ECHOED.items()}
        head["model"] = fields.get("model")
        self._head = {
            **dict.fromkeys(("error", "incomplete_details", "usage")),
            **{name: orjson.Fragment(body_of(value)) for name, value in head.items()},
            "id": id_,
            "object": "response",
            "created_at": int(time.time()),
            "store": kept is not None,
        }
        seals = "reasoning.encrypted_content" in (fields.get("include") or ())
        self._answer = ResponseAnswer(self._head, id_[5:], chat.tools, seals=seals)
        self._answered: tuple[int, Sequence[tuple[bytes, bytes]]] | None = None
        self._begun = self._detached = False
        self._last = b""

    def translating(self, sink: Sink) -> Sink:
        """The sink for the chat answer."""
        self._sink = sink
        return TranslatingSink(self, self._answer, self._refused, self.headers)

    async def serve(self, client: Client, serve: Callable[[Sink], Awaitable[None]]) -> None:
        """See ``Translated``."""
        self._client = client
        self._head["background"] = self.background
        self._head["conversation"] = None if self.conversation is None else {"id": self.conversation}
        try:
            if self.background:
                self._api.begin(self._key, self)
                await self._keep()
                client.detach(None if self._streams else orjson.dumps(self._answer.response()), self.headers)
                self._detached = True
            await serve(self.translating(client))
        except GatewayError as error:
            if self._detached:
                self._answer.broken(Problem(error.status, error.type, error.message))
                await self._stored()
            if not self._detached or self._streams:
                raise
        except asyncio.CancelledError:
            if not (self._detached and client.gone):
                raise
        else:
            if not client.gone:
                await self._end()
        finally:
            if self._api.running.get(self._key) is self:
                del self._api.running[self._key]

    def cancel(self) -> None:
        """End it, as if its client had disconnected."""
        self._client.cancel()

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
            self._answer.broken(Problem(502, "upstream_error", "The engine's answer is not whole."))
        headers, kept = [], await self._stored()
        if self._kept is not None and not kept:
            headers = [(b"x-gateway-warning", b"not stored")]
        if self._begun:
            self._sink.write(self._last + self._answer.final(**({"store": False} if headers else {})), more=False)
        elif not self._detached and self._answered is not None:
            self._sink.start(self._answered[0], [*self._answered[1], *headers])
            self._sink.write(self._last, more=False)

    def _refused(self, problem: Problem) -> tuple[int, bytes]:
        self._answer.broken(problem)
        return self._api.refusal(problem, RequestId(""))

    async def _stored(self) -> bool:
        """Store the response as it is now; returns whether it is stored."""
        complete = self._answer.state["status"] in _COMPLETE
        if self._kept is None or not (complete or self.background):
            return True
        owner, id_ = self._key
        try:
            if self.background:
                (record,) = await self._api.store.find(owner, [id_])
                if record is None or orjson.loads(record.response)["status"] == "cancelled":
                    return True
            await self._keep()
            if self.conversation is not None and complete:
                (found,) = await self._api.store.find(owner, [self.conversation])
                before = [] if found is None else found.before
                await self._api.store.keep(owner, self.conversation, Record(before=[*before, id_]))
        except GatewayError:
            return False
        return True

    async def _keep(self) -> None:
        assert self._kept is not None
        self._kept.response = orjson.dumps({**self._head, **self._answer.state})
        self._kept.output = orjson.dumps(self._answer.output)
        await self._api.store.keep(*self._key, self._kept)


def _conversation(fields: Mapping[str, Any]) -> str | None:
    """The id of the conversation that a request continues.

    Raises:
        BadRequest: it is none.
    """
    given = fields.get("conversation")
    if given is None:
        return None
    id_ = given.get("id") if isinstance(given, dict) else given
    if not isinstance(id_, str) or not _CONVERSATION.fullmatch(id_) or _ID.fullmatch(id_):
        problem = (
            "`conversation` must be an id of 1 to 128 characters out of A-Z a-z 0-9 . _ : -, or an object with it."
        )
        raise BadRequest(problem, param="conversation", code="invalid_value")
    return id_


def _json_of(items: Sequence[Any]) -> Portioned[bytes]:
    """Items as JSON."""
    parts = []
    for start in range(0, len(items), _AT_ONCE):
        if start:
            yield
        parts.append(body_of(items[start : start + _AT_ONCE])[1:-1])
    return b"[%b]" % b",".join(parts)


def _whole(record: Record) -> Response:
    return Response(b'%b,"output":%b}' % (record.response[:-1], record.output), media_type="application/json")


def _shown(item: Any, id_: str) -> dict[str, Any]:
    """An item of the input, in the form in which it is listed."""
    shown = {"id": id_, "type": "message", **item}
    if isinstance(content := shown.get("content"), str):
        kind = "output_text" if shown.get("role") == "assistant" else "input_text"
        shown["content"] = [{"type": kind, "text": content}]
    return shown


def _page(items: list[dict[str, Any]], asked: Mapping[str, str]) -> dict[str, Any]:
    """A page of a list, as the parameters ``limit``, ``order`` and ``after`` ask for it.

    Raises:
        BadRequest: a parameter is invalid.
    """
    limit, order, after = asked.get("limit", "20"), asked.get("order", "desc"), asked.get("after")
    if not (limit.isascii() and limit.isdigit() and len(limit) < 4 and 1 <= int(limit) <= _MAX_PAGE):
        raise BadRequest(f"`limit` must be 1 to {_MAX_PAGE}.", param="limit", code="invalid_value")
    if order not in ("asc", "desc"):
        raise BadRequest("`order` must be asc or desc.", param="order", code="invalid_value")
    items = items if order == "asc" else items[::-1]
    start = 0
    if after is not None:
        start = next((at + 1 for at, item in enumerate(items) if item["id"] == after), -1)
        if start < 0:
            raise BadRequest("`after` names no item of this response.", param="after", code="invalid_value")
    page = items[start : start + int(limit)]
    ends = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {"first_id": None, "last_id": None}
    return {"object": "list", "data": page, "has_more": start + len(page) < len(items), **ends}
