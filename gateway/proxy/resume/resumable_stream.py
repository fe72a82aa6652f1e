"""One client's stream, which may come from several replicas in turn."""

import dataclasses
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Protocol

import orjson

from gateway.core.errors import TokenizerUnavailable
from gateway.core.outcome import Ending, Outcome, Usage
from gateway.core.ports import Sink
from gateway.core.prompt import TOKEN_BYTES
from gateway.core.request import ChatRequest, Endpoint
from gateway.http_client import Broken
from gateway.proxy.response import broken_off
from gateway.proxy.resume.continued import continued_body, continued_chat, tokens_left
from gateway.proxy.resume.joined_stream import JoinedStream, written_usage
from gateway.proxy.resume.sent_text import SentText, is_failure, read_told

_MOST_BYTES = 4 * 2**20
"""Longest stream, in bytes of its events, that is kept to go on from; at about 250 bytes a token it holds 16,000."""

_MAX_FAILURE_BYTES = 64 * 1024
"""What an engine sends from its own error event on is held back up to this size; more ends the attempt."""

_DONE = b"data: [DONE]\n\n"


class Tokenizer(Protocol):
    """A model's own tokenizer."""

    def encode(self, endpoint: Endpoint, fields: Mapping[str, Any]) -> tuple[bytes, ...]:
        """Token ids of a request's prompts. Raises TokenizerUnavailable."""
        ...

    def encode_text(self, text: str) -> bytes:
        """Token ids of a text."""
        ...


class ResumableStream:
    """A ``Sink`` in front of the client's that knows what the client has got, and so can go on from there.

    Args:
        request: What is answered; it ``is_resumable``.
        sink: The client's.
        tokenizer: The model's; None where it is not in this process.
        prompt_tokens: Tokens of the prompt; None if only the engine knows.

    Attributes:
        request: What is sent to the next replica.
        begun: Whether the client has got anything.
        resumed: How many times the stream was continued at another replica.
        began_at: When the request was sent to the replica with which the answer began, in monotonic seconds.
    """

    def __init__(
        self, request: ChatRequest, sink: Sink, tokenizer: Tokenizer | None, prompt_tokens: int | None
    ) -> None:
        self.request = request
        self.begun = False
        self.resumed = 0
        self.began_at = 0.0
        self._asked = request
        self._sink = sink
        self._tokenizer = tokenizer
        self._prompt_tokens = prompt_tokens
        self._head: tuple[int, Sequence[tuple[bytes, bytes]]] = (int(HTTPStatus.OK), ())
        self._record = bytearray()
        self._room = _MOST_BYTES
        self._writing = False
        self._failure = b""
        self._next: JoinedStream | None = None
        self._seam: JoinedStream | None = None
        self._closing: tuple[bytes, Usage | None] | None = None
        self._closed = False
        self._ttft_seconds: float | None = None

    @property
    def gone(self) -> bool:
        """See ``Sink``."""
        return self._sink.gone

    @property
    def interrupted(self) -> bool:
        """See ``Sink``."""
        return self._sink.interrupted

    async def start(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """See ``Sink``. The head goes out once, and not before there is something to tell."""
        self._head = (status, headers)

    async def write(self, data: bytes, *, more: bool) -> None:
        """See ``Sink``."""
        seam = self._seam
        if not more and self._closing is not None:
            data, self._closed = self._closing[0], True
        elif seam is not None and seam.spoilt and not more:
            data = broken_off(Ending.BROKEN)
        else:
            data = self._failure + (data if seam is None else seam.feed(data))
            if more and (self._failure or is_failure(data)):
                self._failure = data
                if len(data) > _MAX_FAILURE_BYTES:
                    raise Broken(f"more than {_MAX_FAILURE_BYTES >> 10} KiB follow the engine's error event")
                return
        if not data and more:
            return
        self._writing = True
        if not self.begun:
            self.begun = True
            await self._sink.start(*self._head)
        await self._sink.write(data, more=more)
        # Only now: a wait for the client that was broken off has sent nothing.
        self._writing = False
        self._room -= len(data)
        if self._room < 0:
            self._record.clear()
        else:
            self._record += data

    def attempt(self, at: float) -> None:
        """The next attempt begins, ``at`` monotonic seconds."""
        self._failure = b""
        if self.begun:
            self.resumed += 1
            self._seam = self._next
        else:
            self.began_at = at

    def ended(self, ending: Ending, *, started: bool) -> tuple[Ending, bool]:
        """How an attempt really ended, and whether the client got anything of it.

        An engine that says itself that it failed may do so in perfect order, and before it said anything else.
        """
        return Ending.BROKEN if self._failure and ending is Ending.COMPLETE else ending, started and self.begun

    def note(self, outcome: Outcome) -> Outcome:
        """An attempt is over; returns what came of it."""
        ending, started = self.ended(outcome.ending, started=outcome.started)
        if self._ttft_seconds is None:
            self._ttft_seconds = outcome.ttft_seconds if started else None
        return dataclasses.replace(outcome, ending=ending, started=started)

    @property
    def pieced(self) -> bool:
        """Whether the answer was not ended, or not all given, by the replica with which it began."""
        return self.resumed > 0 or self._closed

    def can_go_on(self) -> bool:
        """The replica has failed in the middle of the stream: whether another one can go on with it.

        If so, ``request`` is what to ask it. If nothing is left to ask for, the stream ends well by itself: what the
        forwarder then writes to it is replaced.
        """
        if self._writing or (self._seam is not None and self._seam.spoilt):
            return False
        told = read_told(bytes(self._record))
        if told is None:
            return False
        ids = self._ids(told)
        spent = self._spent(told, ids)
        left = tokens_left(self._asked, spent)
        if told.finish_reason is not None or (left is not None and left <= 0):
            self._closing = self._ending(told, spent)
            return False
        if not told.text:
            self.request = self._asked
        elif (body := continued_body(self._asked, told.text, ids, spent)) is None:
            return False
        else:
            self.request = dataclasses.replace(self._asked, body=body)
        dropped = self._dropped(told.text)
        if dropped is None:
            return False
        self._next = JoinedStream(told, spent if told.text else 0, self._prompt_tokens, dropped)
        return True

    def outcome(self, outcome: Outcome) -> Outcome:
        """What came of the request, out of what came of its last attempt."""
        if self._closing is not None and self._closed:
            ending, usage = Ending.COMPLETE, self._closing[1]
        elif (seam := self._seam or self._next) is None:
            return outcome
        else:
            # An answer that is no stream, a refusal for example, went to nobody: the client has an error event.
            whole = outcome.ending is Ending.COMPLETE and outcome.started and not seam.spoilt
            failed = outcome.ending in (Ending.COMPLETE, Ending.NOT_CONNECTED) and not whole
            ending = Ending.BROKEN if failed else outcome.ending
            usage = None if outcome.usage is None else seam.usage(outcome.usage)
        return dataclasses.replace(
            outcome,
            ending=ending,
            status=int(HTTPStatus.OK),
            started=True,
            ttft_seconds=self._ttft_seconds,
            usage=usage,
            answer=(bytes(self._record),) if outcome.answer else (),
            streamed=True,
        )

    def _ids(self, told: SentText) -> Sequence[int] | None:
        """The tokens of the text: as the stream told them, else as the model's tokenizer reads it."""
        if told.token_ids is not None:
            return told.token_ids
        return None if self._tokenizer is None else memoryview(self._tokenizer.encode_text(told.text)).cast("I")

    def _spent(self, told: SentText, ids: Sequence[int] | None) -> int:
        """How many tokens the client has got."""
        if told.usage is not None:
            return told.usage.completion_tokens
        if ids is None:
            return told.chunks
        # What ends a turn is a token without text.
        ended = told.finish_reason == "stop" and not told.stop_text and told.token_ids is None
        return len(ids) + ended

    def _dropped(self, text: str) -> str | None:
        """The white space at the text's end, if the chat template does not print it there.

        None: the template prints something else before the text than what the answer began behind, such as the
        thoughts that it takes an answer to have. The other replica would go on with another answer.
        """
        tokenizer = self._tokenizer
        if not text or self._asked.endpoint is not Endpoint.CHAT or tokenizer is None:
            return ""
        plain = text.rstrip()
        try:
            continued = tokenizer.encode(Endpoint.CHAT, continued_chat(self._asked, text))
            if plain == text or continued != tokenizer.encode(Endpoint.CHAT, continued_chat(self._asked, plain)):
                plain = text
        except TokenizerUnavailable:
            return ""
        if self._prompt_tokens is not None:
            behind = _tokens(*continued) - self._prompt_tokens
            # Where the prompt ends and the text begins, two tokens may be one; some templates strip it in front, too.
            found = {_tokens(tokenizer.encode_text(each)) for each in (plain, plain.lstrip())}
            if all(abs(count - behind) > 1 for count in found):
                return None
        return text[len(plain) :]

    def _ending(self, told: SentText, spent: int) -> tuple[bytes, Usage | None]:
        """The last events of an answer to which nothing is missing but its end, and its usage as far as it is known."""
        usage = told.usage
        if usage is None and self._prompt_tokens is not None:
            usage = Usage(self._prompt_tokens, spent, None)
        head = dict(told.head)
        chat = self._asked.endpoint is Endpoint.CHAT
        head["object"] = "chat.completion.chunk" if chat else "text_completion"
        events: list[dict[str, Any]] = []
        if told.finish_reason is None:
            piece: dict[str, Any] = {"delta": {}} if chat else {"text": ""}
            events.append({**head, "choices": [{"index": 0, **piece, "logprobs": None, "finish_reason": "length"}]})
        if self._asked.usage_wanted and usage is not None and not told.usage_ends:
            events.append({**head, "choices": [], "usage": written_usage(usage)})
        return b"".join(b"data: " + orjson.dumps(event) + b"\n\n" for event in events) + _DONE, usage


def _tokens(*ids: bytes) -> int:
    """How many there are."""
    return sum(map(len, ids)) // TOKEN_BYTES
