"""One generation request of the public port: admission, body, answer, and what becomes of it if its client disconnects.

The request is worked on as soon as its last byte has arrived, without a task or an iteration of the event loop; only
what has to wait (a queue, a thread, the replica) continues later. A disconnect of the client cancels it.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import structlog

from gateway.admission import Admission, ApplicationLimits, Authenticator
from gateway.admission.prompt_registry import PromptRegistry
from gateway.api.body_json import body_of, joined
from gateway.api.cors import Cors, replaced
from gateway.api.dialects import Dialect, DialectRequest, Translated
from gateway.api.error_responses import problem_body, problem_headers
from gateway.api.held_bytes import HeldBytes, Share
from gateway.api.parse import parse_request, parsed_object
from gateway.api.passed_request import media_type, passed_fields
from gateway.api.routes import request_id_of
from gateway.context import shutting_down
from gateway.core.application import Application
from gateway.core.errors import BadRequest, GatewayError, PayloadTooLarge, UnsupportedMediaType
from gateway.core.exchange import Exchange
from gateway.core.json_portions import JsonLimits
from gateway.core.ports import Grant, Observer, Sink
from gateway.core.request import JSON, ChatRequest, Endpoint, EnginePath
from gateway.core.settlement import Refusal
from gateway.flow import Flow
from gateway.tasks import Continuation, start_eagerly
from gateway.telemetry import Trace, Tracing
from gateway.turns import Turns

_log = structlog.get_logger("gateway.api")

_JSON = b"application/json"
_LONGEST_LENGTH = 20
"""Digits of the largest 64-bit number."""


class Generations:
    """Answers the generation requests of the public port.

    Args:
        service: Answers admitted requests.
        gate: Authenticates clients and enforces their limits.
        models: Ids of the served models.
        observer: Gets requests that were refused before the service.
        tracer: Begins traces; None if tracing is off.
        cors: Which web pages may use the port.
        max_body_bytes: Largest body accepted.
        max_sequences: Maximum sequences of one request.
        limits: Limits of a body's size and depth.
        held: Limits the memory of requests.
        turns: Runs the parsing of large bodies.
        prompts: The registered prompts.
        application_limits: Enforces the limits of applications.

    Attributes:
        open: Requests whose body is complete, and that are not over.
    """

    def __init__(
        self,
        service: Flow,
        gate: Authenticator,
        models: Sequence[str],
        *,
        observer: Observer,
        tracer: Tracing | None,
        cors: Cors,
        max_body_bytes: int,
        max_sequences: int,
        limits: JsonLimits,
        held: HeldBytes,
        turns: Turns,
        prompts: PromptRegistry,
        application_limits: ApplicationLimits,
    ) -> None:
        self.service = service
        self.gate = gate
        self.tracer = tracer
        self.cors = cors or None
        self.held = held
        self.max_body_bytes = max_body_bytes
        self.digits_allowed = len(str(max_body_bytes)) - 1
        """A length of so few digits is allowed."""
        self.open: set[GenerationExchange] = set()
        self._models = models
        self._observer = observer
        self._max_sequences = max_sequences
        self._limits = limits
        self._turns = turns
        # A thread of its own: the others compute for a long time.
        self._joining = ThreadPoolExecutor(1, thread_name_prefix="join-bodies")
        self._prompts = prompts
        self._application_limits = application_limits

    @property
    def waiting(self) -> list[Continuation]:
        """Requests that wait."""
        return [generation.rest for generation in self.open if generation.rest is not None]

    def interrupt(self) -> None:
        """Shutdown: end every open answer with an error in the API's format."""
        for generation in list(self.open):
            generation.interrupt()

    async def answer(self, generation: "GenerationExchange", grant: Grant, share: Share, parts: list[bytes]) -> None:
        """Answer a request whose body is complete; its ``parts``, which are taken, are counted in ``share``."""
        exchange, trace = generation.exchange, generation.trace
        sink: Sink | None = None
        try:
            request = await self._parsed(generation, grant, share, parts)
            if (application := request.caller.application) is not None:
                grant = generation.admit(self._application_limits, application)
            if trace is not None:
                trace.end_stage("parse")
            if (translated := generation.translated) is None:
                sink = generation
                await self.service.serve(request, sink, grant, trace)
            else:
                answer = self.service.count if translated.counts else self.service.serve
                async with translated.answer(generation) as sink:
                    await answer(request, sink, grant, trace)
        except GatewayError as error:
            if sink is None:
                self.refuse(generation, error, grant)
            generation.respond(error)
        except asyncio.CancelledError:
            if generation.gone:
                if sink is None:
                    grant.refuse(time.monotonic())
                return
            if not generation.interrupted or sink is not None:
                exchange.abort()
                raise
            stopping = shutting_down()
            self.refuse(generation, stopping, grant)
            generation.respond(stopping)
        except Exception:  # noqa: BLE001 - the client gets an answer
            _log.exception("request_failed", request_id=generation.request_id, endpoint=str(generation.endpoint))
            if exchange.started:
                return
            failure = GatewayError(
                f"The gateway failed on this request; its log has the reason under request id {generation.request_id}.",
                code="internal_error",
            )
            self.refuse(generation, failure, grant)
            generation.respond(failure)
        finally:
            # No answer follows any more: the client sees that by the end of its connection.
            if exchange.started:
                exchange.break_off()
            elif not exchange.gone:
                exchange.abort()
            generation.end()

    async def _parsed(
        self, generation: "GenerationExchange", grant: Grant, share: Share, parts: list[bytes]
    ) -> ChatRequest:
        """The request of a body; one of another API as a chat request."""
        received_at = time.monotonic()
        exchange, dialect, tenant = generation.exchange, generation.dialect, grant.caller.tenant.id
        named = exchange.named
        body = parts[0] if len(parts) == 1 else await joined(parts, self._joining)
        parts.clear()
        query, given, fields = exchange.query, None, None
        if dialect is not None:
            given = await self._turns.run(parsed_object(body, self._limits, share.add), tenant)
            asked = DialectRequest(given, named, generation.request_id, grant.caller, share.add)
            generation.translated = translated = await dialect.translate(asked)
            query, fields = b"", translated.fields
            generation.translated = translated._replace(fields={})  # the request holds them, and may drop them
            body = body_of(fields)
            share.add(len(body))
        elif isinstance(called := generation.endpoint, EnginePath):
            known = [model for model in self._models if grant.caller.may_use(model)]
            reading = passed_fields(called, exchange, body, known=known, limits=self._limits, hold=share.add)
            fields = await self._turns.run(reading, tenant)
        parsing = parse_request(
            generation.endpoint,
            query,
            body,
            exchange.headers,
            models=self._models,
            limits=self._limits,
            hold=share.add,
            dropped=share.drop,
            request_id=generation.request_id,
            received_at=received_at,
            caller=grant.caller,
            peer=generation.peer,
            max_sequences=self._max_sequences,
            prompts=self._prompts,
            fields=fields,
            dialect="" if dialect is None else dialect.name,
            named=named,
            given=given,
            translated=generation.translated,
        )
        del body  # the request holds it, and may drop it
        return await self._turns.run(parsing, tenant)

    def refuse(self, generation: "GenerationExchange", error: GatewayError, grant: Grant | None) -> None:
        """Report a request that was refused before the service."""
        if grant is not None and error.is_final:
            grant.refuse(time.monotonic())
        caller = error.caller if grant is None else grant.caller
        what = (generation.request_id, str(generation.endpoint), error.status, error.code, generation.peer, caller)
        refusal = Refusal(*what, dialect="" if generation.dialect is None else generation.dialect.name)
        self._observer.on_refused(refusal)
        if generation.trace is not None:
            generation.trace.refused(refusal)


class GenerationExchange:
    """One generation request: a ``Receiver`` of its body, and the ``Sink`` of its answer.

    Args:
        port: What all requests share.
        exchange: Its exchange.
        endpoint: The called endpoint; with a dialect, the one that it is translated to.
        dialect: The API that is translated; None if the endpoint itself was called.

    Attributes:
        exchange: The same.
        endpoint: The same.
        dialect: The same.
        translated: The request as a chat request, once it is translated.
        request_id: Its id.
        peer: Address of the client; empty if unknown.
        trace: Its trace; None if it is not traced.
        rest: What is left of its answer; None unless it waits.
        congested: See ``Sink``.
        detached: Whether the answer goes on without the client.
        gone: See ``Sink``.
        interrupted: See ``Sink``.
        start: See ``Sink``.
        write: See ``Sink``.
    """

    __slots__ = (
        "_body",
        "_generations",
        "_grant",
        "_on_writable",
        "_own_headers",
        "_share",
        "_size",
        "congested",
        "detached",
        "dialect",
        "endpoint",
        "exchange",
        "gone",
        "interrupted",
        "peer",
        "request_id",
        "rest",
        "start",
        "trace",
        "translated",
        "write",
    )

    def __init__(
        self, port: Generations, exchange: Exchange, endpoint: Endpoint | EnginePath, dialect: Dialect | None = None
    ) -> None:
        self._generations = port
        self.exchange = exchange
        self.endpoint = endpoint
        self.dialect = dialect
        self.translated: Translated | None = None
        self.write = exchange.write
        self.congested = exchange.owner.congested
        headers, named = exchange.headers, exchange.named
        self.request_id = request_id_of(named.get(b"x-request-id", b""))
        self.peer = exchange.owner.peer
        self.trace: Trace | None = port.tracer.begin(headers) if port.tracer is not None else None
        self.rest: Continuation | None = None
        self._own_headers = port.cors.answer_headers(headers) if port.cors is not None else None
        self.start = exchange.start if self._own_headers is None else self._start_with_own
        self._grant: Grant | None = None
        self._share: Share | None = None
        self._body: list[bytes] = []
        self._size = 0
        self.gone = self.interrupted = self.detached = False
        self._on_writable: Callable[[], None] | None = None
        try:
            self._grant = grant = port.gate.admit(headers, named, self.peer, time.time(), time.monotonic())
            if self.trace is not None:
                self.trace.end_stage("admission")
            if named.get(b"content-type") != _JSON or b"content-encoding" in named or isinstance(endpoint, EnginePath):
                _check_media(exchange, endpoint.media if isinstance(endpoint, EnginePath) else (JSON,))
            self._share = Share(port.held, grant.caller.tenant.id)
            length = named.get(b"content-length", b"")
            if len(length) > port.digits_allowed and (declared_length(length) or 0) > port.max_body_bytes:
                raise self._too_large()
        except GatewayError as error:
            self._refused(error)
        else:
            if exchange.expects_continue:
                exchange.ask_for_body()

    def admit(self, limits: ApplicationLimits, application: Application) -> Grant:
        """Count the request against the limits of its application, too; returns the grant for the rest of it.

        Raises:
            RateLimited: the application has no request left.
        """
        assert isinstance(self._grant, Admission), "it is open, and was admitted once"
        self._grant = joint = limits.admit(self._grant, application, time.monotonic())
        return joint

    # Receiver

    def body_received(self, data: bytes) -> None:
        """See ``Receiver``."""
        share, port = self._share, self._generations
        if share is None:
            return
        self._size += len(data)
        try:
            if self._size > port.max_body_bytes:
                raise self._too_large()
            share.add(len(data))
        except GatewayError as error:
            self._refused(error)
            return
        self._body.append(data)

    def body_complete(self) -> None:
        """See ``Receiver``."""
        port, grant, share = self._generations, self._grant, self._share
        if share is None or grant is None:
            return
        port.open.add(self)
        self.rest = start_eagerly(port.answer(self, grant, share, self._body), "http-request")

    def client_gone(self) -> None:
        """See ``Receiver``."""
        if self.detached:
            self.writing_resumed()  # nothing is written to it any more
        else:
            self.cancel()

    def cancel(self) -> None:
        """See ``AnswerClient``."""
        self.gone = True
        if self.rest is not None:
            self.rest.cancel()
        else:
            self.end()

    def detach(self) -> None:
        """See ``AnswerClient``."""
        self.detached = True

    def writing_paused(self) -> None:
        """See ``Receiver``."""
        self.congested = True

    def writing_resumed(self) -> None:
        """See ``Receiver``."""
        self.congested = False
        callback, self._on_writable = self._on_writable, None
        if callback is not None:
            callback()

    # Sink

    def on_writable(self, callback: Callable[[], None]) -> None:
        """See ``Sink``."""
        self._on_writable = callback

    def _start_with_own(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        self.exchange.start(status, replaced(headers, self._own_headers or []))

    def interrupt(self) -> None:
        """The gateway is shutting down: end the answer now. Idempotent."""
        if self.rest is not None and not self.interrupted and (self.detached or not self.exchange.complete):
            self.interrupted = True
            self.rest.cancel()

    def respond(self, error: GatewayError) -> None:
        """Answer with an error."""
        named = problem_headers(error, self.request_id)
        headers = [(name.encode(), value.encode()) for name, value in named.items()]
        status, body = error.status, b""
        if self.dialect is None:
            body = problem_body(error)
        else:
            if self.translated is not None:
                self.translated.places.rename(error)
            status, body = self.dialect.refusal(error, self.request_id)
        self.exchange.respond(status, headers + (self._own_headers or []), body)

    def end(self) -> None:
        """The request is over: release what it holds."""
        grant, share, trace = self._grant, self._share, self.trace
        self._grant = self._share = self.trace = self.rest = self._on_writable = self.translated = None
        self._body.clear()
        self._generations.open.discard(self)
        if grant is not None:
            grant.release()
        if share is not None:
            share.drop(share.size)
        if trace is not None:
            trace.end()

    def _refused(self, error: GatewayError) -> None:
        """Answer a request that is refused before its body is complete."""
        self._generations.refuse(self, error, self._grant)
        self.respond(error)
        self.end()

    def _too_large(self) -> PayloadTooLarge:
        return PayloadTooLarge(
            f"The body is larger than {self._generations.max_body_bytes} bytes. Send a shorter one, or raise"
            " server.max_body_bytes.",
            code="request_too_large",
        )


def declared_length(value: bytes) -> int | None:
    """The number in a ``content-length`` header; None for no header, or for something else.

    Raises:
        BadRequest: it has more digits than a length can have, leading zeros included.
    """
    if not value.isdigit():
        return None
    if len(value) > _LONGEST_LENGTH:
        raise BadRequest(
            f"`content-length` has more than {_LONGEST_LENGTH} digits. Send the body's size in bytes, without leading"
            " zeros.",
            param="content-length",
            code="invalid_header",
        )
    return int(value)


def _check_media(exchange: Exchange, media: Sequence[str]) -> None:
    named, headers = exchange.named, exchange.headers
    if exchange.method == "POST" and media_type(named) not in media:
        declared = named.get(b"content-type", b"").decode("latin-1")
        found = f"not {declared[:100]!r}" if declared else "and the header is missing"
        raise UnsupportedMediaType(
            f"The body must be sent with `content-type: {' or '.join(media)}`, {found}.", code="unsupported_media_type"
        )
    if b"content-encoding" not in named:
        return
    for name, value in headers:
        encoding = value.decode("latin-1").strip().lower()
        if name == b"content-encoding" and encoding not in ("", "identity"):
            raise UnsupportedMediaType(
                f"Request bodies cannot be compressed (content-encoding: {encoding[:40]}). Send it plain.",
                code="unsupported_encoding",
            )
