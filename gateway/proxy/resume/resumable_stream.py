"""One client's stream, which several replicas may produce one after the other."""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import msgspec
import orjson

from gateway.core.errors import TokenizerUnavailable
from gateway.core.outcome import Ending, Outcome, Usage
from gateway.core.ports import Sink
from gateway.core.prompt import TOKEN_BYTES
from gateway.core.request import ChatRequest, Endpoint
from gateway.http_client import Broken
from gateway.proxy.endings import broken_off
from gateway.proxy.forwarding_sink import ForwardingSink
from gateway.proxy.resume.continued import continued_body, continued_chat, tokens_left
from gateway.proxy.resume.joined_stream import JoinedStream, reopened, written_usage
from gateway.proxy.resume.sent_text import SentText, adds_content, is_failure, read_sent_text
from gateway.tokenize.local import LocalEncoder

_MAX_BYTES = 4 * 2**20
"""Maximum bytes of events that are kept for a continuation; at about 250 bytes per token these are 16,000 tokens."""

_MAX_FAILURE_BYTES = 64 * 1024
"""Bytes from an engine's own error event on that are held back; more end the attempt."""

_DONE = b"data: [DONE]\n\n"


class ResumableStream(ForwardingSink):
    """A ``Sink`` in front of the client's that records the sent events, so that another replica can continue.

    Args:
        request: The request; it ``is_resumable``.
        sink: The client's sink.
        tokenizer: The model's tokenizer; None without one in this process.
        prompt_tokens: Tokens of the prompt; None if unknown.

    Attributes:
        request: The request to send to the next replica.
        begun: Whether the client has got anything.
        has_content: Whether it has got content: otherwise the next replica makes the whole answer.
        resumed: How many times the stream was continued at another replica.
        began_at: Dispatch time of the attempt that began the answer, in monotonic seconds.
    """

    def __init__(
        self, request: ChatRequest, sink: Sink, tokenizer: LocalEncoder | None, prompt_tokens: int | None
    ) -> None:
        self.request = request
        self.begun = self.has_content = False
        self.resumed = 0
        self.began_at = 0.0
        self._asked = request
        self._sink = sink
        self._tokenizer = tokenizer
        self._prompt_tokens = prompt_tokens
        self._head: tuple[int, Sequence[tuple[bytes, bytes]]] = (int(HTTPStatus.OK), ())
        self._record = bytearray()
        self._room = _MAX_BYTES
        self._failure = b""
        self._next: JoinedStream | None = None
        self._seam: JoinedStream | None = None
        self._closing: tuple[bytes, Usage | None] | None = None
        self._closed = False
        self._ttft_seconds: float | None = None

    def start(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """See ``Sink``. The head goes out once, and not before there is something to tell."""
        self._head = (status, headers)

    def write(self, data: bytes, *, more: bool, chunk: bytes | None = None) -> None:  # noqa: ARG002
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
        if not self.begun:
            self.begun = True
            self._sink.start(*self._head)
        self.has_content = self.has_content or adds_content(data)
        self._sink.write(data, more=more)
        self._room -= len(data)
        if self._room < 0:
            self._record.clear()
        else:
            self._record += data

    def attempt(self, at: float) -> None:
        """Begin an attempt, ``at`` monotonic seconds."""
        self._failure = b""
        if self.has_content:
            self.resumed += 1
            self._seam = self._next
        else:
            self.began_at = at
            self._seam = reopened(bytes(self._record))

    def note(self, outcome: Outcome) -> Outcome:
        """Record the end of an attempt; returns its corrected outcome.

        An engine may report its failure in a well-formed stream, even as the first event.
        """
        ending = Ending.BROKEN if self._failure and outcome.ending is Ending.COMPLETE else outcome.ending
        ttft_seconds = outcome.ttft_seconds if self.has_content else None
        if self._ttft_seconds is None:
            self._ttft_seconds = ttft_seconds
        started = outcome.started and self.begun
        return msgspec.structs.replace(outcome, ending=ending, started=started, ttft_seconds=ttft_seconds)

    @property
    def pieced(self) -> bool:
        """Whether more than the first replica contributed to the answer."""
        return self.resumed > 0 or self._closed

    def can_go_on(self) -> bool:
        """Whether another replica can continue the stream after its replica failed.

        If so, ``request`` is the request to send. If only the end of the answer is missing, the stream is completed
        here: the forwarder's error event is replaced.
        """
        if self._seam is not None and self._seam.spoilt:
            return False
        sent = read_sent_text(bytes(self._record))
        if sent is None:
            return False
        ids = self._ids(sent)
        spent = self._spent(sent, ids)
        left = tokens_left(self._asked, spent)
        if sent.finish_reason is not None or (left is not None and left <= 0):
            self._closing = self._ending(sent, spent)
            return False
        if not sent.text:
            self.request = self._asked
        elif (body := continued_body(self._asked, sent.text, ids, spent)) is None:
            return False
        else:
            self.request = msgspec.structs.replace(self._asked, body=body)
        dropped = self._dropped(sent.text)
        if dropped is None:
            return False
        self._next = JoinedStream(sent, spent if sent.text else 0, self._prompt_tokens, dropped)
        return True

    def outcome(self, outcome: Outcome) -> Outcome:
        """The outcome of the request, from the outcome of its last attempt."""
        if self._closing is not None and self._closed:
            ending, usage = Ending.COMPLETE, self._closing[1]
        elif (seam := self._seam or self._next) is None:
            return outcome
        else:
            # An answer that is not a stream, such as a refusal, was not sent: the client has an error event.
            whole = outcome.ending is Ending.COMPLETE and outcome.started and not seam.spoilt
            failed = outcome.ending in (Ending.COMPLETE, Ending.NOT_CONNECTED) and not whole
            ending = Ending.BROKEN if failed else outcome.ending
            usage = None if outcome.usage is None else seam.usage(outcome.usage)
        return msgspec.structs.replace(
            outcome,
            ending=ending,
            status=int(HTTPStatus.OK),
            started=True,
            ttft_seconds=self._ttft_seconds,
            usage=usage,
            answer=(bytes(self._record),) if outcome.answer else (),
            streamed=True,
        )

    def _ids(self, sent: SentText) -> Sequence[int] | None:
        """Token ids of the text: from the stream, else from the model's tokenizer."""
        if sent.token_ids is not None:
            return sent.token_ids
        return None if self._tokenizer is None else memoryview(self._tokenizer.encode_text(sent.text)).cast("I")

    def _spent(self, sent: SentText, ids: Sequence[int] | None) -> int:
        """Number of tokens that the client has got."""
        if sent.usage is not None:
            return sent.usage.completion_tokens
        if ids is None:
            return sent.chunks
        # The end-of-turn token has no text.
        ended = sent.finish_reason == "stop" and not sent.stop_text and sent.token_ids is None
        return len(ids) + ended

    def _dropped(self, text: str) -> str | None:
        """The white space at the text's end, if the chat template does not print it there.

        None: the template prints something else in front of the text than the prompt ended with, such as an empty
        reasoning section. Another replica would then continue a different prompt.
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
            # A token may span the end of the prompt and the beginning of the text; some templates strip it in front,
            # too.
            found = {_tokens(tokenizer.encode_text(each)) for each in (plain, plain.lstrip())}
            if all(abs(count - behind) > 1 for count in found):
                return None
        return text[len(plain) :]

    def _ending(self, sent: SentText, spent: int) -> tuple[bytes, Usage | None]:
        """The last events of an answer that misses only its end, and its usage as far as it is known."""
        usage = sent.usage
        if usage is None and self._prompt_tokens is not None:
            usage = Usage(self._prompt_tokens, spent, None)
        head = dict(sent.head)
        chat = self._asked.endpoint is Endpoint.CHAT
        head["object"] = "chat.completion.chunk" if chat else "text_completion"
        events: list[dict[str, Any]] = []
        if sent.finish_reason is None:
            piece: dict[str, Any] = {"delta": {}} if chat else {"text": ""}
            events.append({**head, "choices": [{"index": 0, **piece, "logprobs": None, "finish_reason": "length"}]})
        if self._asked.usage_wanted and usage is not None and not sent.usage_ends:
            events.append({**head, "choices": [], "usage": written_usage(usage)})
        return b"".join(b"data: " + orjson.dumps(event) + b"\n\n" for event in events) + _DONE, usage


def _tokens(*ids: bytes) -> int:
    """How many there are."""
    return sum(map(len, ids)) // TOKEN_BYTES
