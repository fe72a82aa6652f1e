"""Compares a request with what its answer reports: hit tokens, the times of prefill and decode, the generated text.

Blocks filled while decoding are cached like those of a prompt, and the next turn of a conversation hits them. To
predict that, the generated text is encoded after the prompt's tokens. That works for plain text only: the output of a
tool or reasoning parser is not the text that was generated.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from gateway.core.explanation import ReplyChoice
from gateway.core.outcome import Ending, Outcome
from gateway.core.prompt import TOKEN_BYTES, TokenizedPrompt, TokenSource
from gateway.core.request import ChatRequest, Endpoint
from gateway.engines import payloads
from gateway.routing import LearnedRates

EXACT_SOURCES = (TokenSource.LOCAL, TokenSource.ENGINE_RENDER, TokenSource.ENGINE_TOKENIZE)
"""Sources of token ids by which the gateway counts a prompt's tokens exactly."""

_CLOCK_SECONDS = 0.0005
"""The event loop counts whole milliseconds: an answer within one takes no time by its clock."""


def confirmed_tokens(request: ChatRequest, prompt: TokenizedPrompt, outcome: Outcome) -> int | None:
    """Hit tokens reported by the engine; None if the report cannot be compared with the prediction.

    That is so if the engine counts other prompt tokens than the gateway, if the request bypasses the cache, and for
    several prompts, of which engines report only the last one's hits.
    """
    usage = outcome.usage
    if usage is None or usage.cached_tokens is None or prompt.source not in EXACT_SOURCES:
        return None
    if len(prompt.parts) != 1 or usage.prompt_tokens != len(prompt.parts[0]) // TOKEN_BYTES or bypasses_cache(request):
        return None
    return usage.cached_tokens


def bypasses_cache(request: ChatRequest) -> bool:
    """Whether the engine computes the whole prompt regardless of its cache.

    Source: vLLM 0.32.0, ``v1/request.py``: log probabilities of prompt tokens need every position computed.
    """
    fields = request.fields
    if fields.get("prompt_logprobs") is not None:
        return True
    return request.endpoint is Endpoint.COMPLETIONS and bool(fields.get("echo")) and fields.get("logprobs") is not None


def learn(speed: LearnedRates, outcome: Outcome, prefill_ahead: int, uncached_tokens: int) -> None:
    """Feed the times of one answer to a learner.

    Args:
        speed: The learner.
        outcome: The answer.
        prefill_ahead: Uncached tokens left to compute at the replica when the request arrived.
        uncached_tokens: Uncached tokens of the request.
    """
    prefill = prefill_ahead + uncached_tokens
    if outcome.ttft_seconds is not None:
        speed.observe_first_token(prefill, max(outcome.ttft_seconds, _CLOCK_SECONDS))
    if outcome.ending is not Ending.COMPLETE or outcome.usage is None:
        return
    completion = outcome.usage.completion_tokens
    if outcome.ttft_seconds is not None:
        speed.observe_decode(completion - 1, outcome.seconds - outcome.ttft_seconds)
    speed.observe_request(prefill, completion, max(outcome.seconds, _CLOCK_SECONDS), streamed=outcome.streamed)


class _Message(msgspec.Struct, gc=False):
    """The message of a choice, or a part of it in a stream."""

    content: Any = None
    tool_calls: Any = None
    function_call: Any = None
    reasoning: Any = None
    reasoning_content: Any = None
    refusal: Any = None


class _ChoicePiece(msgspec.Struct, gc=False):
    """One choice of a whole answer, or of one event of a stream."""

    index: int = 0
    message: _Message | None = None
    delta: _Message | None = None
    text: Any = None


class _AnswerPiece(msgspec.Struct, gc=False):
    """A whole answer, or one event of a stream."""

    choices: tuple[_ChoicePiece, ...] = ()


_decode = msgspec.json.Decoder(_AnswerPiece).decode
_decode_all = msgspec.json.Decoder(list[_AnswerPiece]).decode
_INVALID = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_DATA = b"data: "


def reply_choices(outcome: Outcome) -> Sequence[ReplyChoice]:
    """The choices of an answer, without token ids; the text is None if a choice is not plain text only."""
    if not outcome.answer or outcome.ending is not Ending.COMPLETE:
        return ()
    raw = b"".join(outcome.answer)
    pieces: dict[int, list[_ChoicePiece]] = {}
    for piece in _event_pieces(raw) if outcome.streamed else _each_piece((raw,)):
        for choice in piece.choices:
            pieces.setdefault(choice.index, []).append(choice)
    return list(map(_reply, pieces.values()))


def _event_pieces(stream: bytes) -> list[_AnswerPiece]:
    """The events of a stream, decoded as one list if all of them have the usual form: in half of the time."""
    events, _, behind = stream.rpartition(b"\n\ndata: [DONE]")
    if events.startswith(_DATA) and not behind.strip():
        # No JSON text has line breaks within a string, so these are the places between two events.
        try:
            return _decode_all(b"[%b]" % events[len(_DATA) :].replace(b"\n\n" + _DATA, b","))
        except _INVALID:
            pass
    return _each_piece(payloads(stream))


def _each_piece(texts: Iterable[bytes]) -> list[_AnswerPiece]:
    """The pieces that can be read."""
    pieces = []
    for text in texts:
        try:
            pieces.append(_decode(text))
        except _INVALID:
            continue
    return pieces


def _reply(pieces: Sequence[_ChoicePiece]) -> ReplyChoice:
    """One choice from its pieces: one of a whole answer, many of a stream."""
    texts = []
    is_plain, has_calls, has_reasoning = True, False, False
    for piece in pieces:
        message = piece.delta or piece.message
        if message is None:
            text = piece.text
        else:
            text = message.content
            calls = message.tool_calls or message.function_call
            reasoning = message.reasoning or message.reasoning_content
            if calls or reasoning or message.refusal:
                is_plain = False
                has_calls = has_calls or bool(calls)
                has_reasoning = has_reasoning or bool(reasoning)
        if isinstance(text, str):
            texts.append(text)
    return ReplyChoice("".join(texts) if is_plain else None, None, has_calls=has_calls, has_reasoning=has_reasoning)
