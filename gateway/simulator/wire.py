"""Answers to generation requests: schedules the sequences and sends chat and completions, complete or in chunks."""

import asyncio
import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Several
from typing import Any, Protocol

from gateway.core.request import Endpoint
from gateway.simulator.answers import Author, GeneratedAnswer
from gateway.simulator.call import ReplyWriter
from gateway.simulator.engine_scheduler import Sequence
from gateway.simulator.ranks import Ranks
from gateway.simulator.requests import Generation
from gateway.simulator.surface import Surface

Json = dict[str, Any]


def ids_of(packed: bytes) -> list[int]:
    """Token ids as numbers."""
    return list(memoryview(packed).cast("I"))


def usage(request: Generation, generated: int, cached: int | None) -> Json:
    """Token counts. ``cached`` is None if the engine does not report it."""
    prompt = request.prompt_tokens
    body: Json = {
        "prompt_tokens": prompt,
        "total_tokens": prompt + generated,
        "completion_tokens": generated,
        "prompt_tokens_details": None,
    }
    if cached is not None:
        body["prompt_tokens_details"] = {"cached_tokens": cached}
    return body


class WireShape(Protocol):
    """The JSON format of one API's answers. Answers are numbered prompt by prompt, ``n`` each."""

    def whole(self, answers: Several[GeneratedAnswer], usage: Json | None) -> Json:
        """The body of an answer that is not streamed."""
        ...

    def opening(self, index: int) -> Json | None:
        """The chunk before the first token of an answer, or None."""
        ...

    def chunk(self, index: int, answer: GeneratedAnswer, count: int) -> Json | None:
        """The chunk of the ``count``-th token of an answer; None if that token adds nothing."""
        ...

    def closing(self, usage: Json) -> Json:
        """The last chunk of a stream, which carries only usage."""
        ...


def shape_for(request: Generation, author: Author, identity: str, created: int) -> WireShape:
    """The format of the API that was called. ``identity`` is the request id, ``created`` Unix seconds."""
    if request.endpoint is Endpoint.CHAT:
        return _Chat(request, author, f"chatcmpl-{identity}", created)
    return _Completion(request, author, f"cmpl-{identity}", created)


class _Chat:
    def __init__(self, request: Generation, author: Author, identity: str, created: int) -> None:
        self._request = request
        self._author = author
        self._head = {"id": identity, "created": created, "model": request.model}

    def whole(self, answers: Several[GeneratedAnswer], usage: Json | None) -> Json:
        request = self._request
        body: Json = {**self._head, "object": "chat.completion", "choices": []}
        for index, answer in enumerate(answers):
            choice: Json = {
                "index": index,
                "message": self._message(index, answer),
                "logprobs": self._logprobs(answer, range(len(answer.ids))),
                "finish_reason": self._finish_reason(answer),
                "stop_reason": answer.stop_reason,
            }
            if request.return_token_ids:
                choice["token_ids"] = list(answer.ids)
            body["choices"].append(choice)
        if usage is not None:
            body["usage"] = usage
        if request.return_token_ids:
            body["prompt_token_ids"] = ids_of(request.prompts[0])
        if request.prompt_logprobs is not None:
            body["prompt_logprobs"] = _prompt_logprobs(request.prompts[0])
        return body

    def opening(self, index: int) -> Json | None:
        choice = {
            "index": index,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
        body = {**self._head, "object": "chat.completion.chunk", "choices": [choice]}
        if self._request.return_token_ids:
            body["prompt_token_ids"] = ids_of(self._request.prompts[0])
        return body

    def chunk(self, index: int, answer: GeneratedAnswer, count: int) -> Json | None:
        piece = answer.pieces[count - 1]
        last = count == len(answer.ids)
        delta: Json = {"content": piece}
        if answer.tool is not None:
            # The name comes with the first token, as with an engine whose request names the function.
            if not piece and count > 1 and not last:
                return None
            call: Json = {"index": 0, "function": {"arguments": piece}}
            if count == 1:
                call = {"index": 0, "id": self._call_id(index), "type": "function"}
                call["function"] = {"name": answer.tool, "arguments": piece}
            delta = {"tool_calls": [call]} if piece or count == 1 else {}
        choice: Json = {
            "index": index,
            "delta": delta,
            "logprobs": self._logprobs(answer, range(count - 1, count)),
            "finish_reason": None,
        }
        if last:
            choice |= {"finish_reason": self._finish_reason(answer), "stop_reason": answer.stop_reason}
        if self._request.return_token_ids:
            choice["token_ids"] = [answer.ids[count - 1]]
        return {**self._head, "object": "chat.completion.chunk", "choices": [choice]}

    def closing(self, usage: Json) -> Json:
        return {**self._head, "object": "chat.completion.chunk", "choices": [], "usage": usage}

    def _message(self, index: int, answer: GeneratedAnswer) -> Json:
        if answer.tool is None:
            return {"role": "assistant", "content": answer.text, "tool_calls": []}
        function = {"name": answer.tool, "arguments": answer.text}
        call = {"id": self._call_id(index), "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}

    def _call_id(self, index: int) -> str:
        return f"call-{self._head['id']}-{index}"

    def _finish_reason(self, answer: GeneratedAnswer) -> str:
        called = answer.tool is not None and answer.finish_reason == "stop" and not self._request.named_tool
        return "tool_calls" if called else answer.finish_reason

    def _logprobs(self, answer: GeneratedAnswer, span: range) -> Json | None:
        wanted = self._request.logprobs
        if wanted is None:
            return None
        content = []
        for index in span:
            listed = [
                {"token": text, "logprob": logprob, "bytes": list(text.encode())}
                for _, text, logprob in self._author.alternatives(answer, index, wanted)
            ]
            content.append({**listed[0], "top_logprobs": listed[:wanted]})
        return {"content": content}


class _Completion:
    def __init__(self, request: Generation, author: Author, identity: str, created: int) -> None:
        self._request = request
        self._author = author
        self._head = {"id": identity, "object": "text_completion", "created": created, "model": request.model}

    def whole(self, answers: Several[GeneratedAnswer], usage: Json | None) -> Json:
        request = self._request
        body: Json = {**self._head, "choices": []}
        for index, answer in enumerate(answers):
            prompt = request.prompts[index // request.n]
            choice = self._choice(index, answer, range(len(answer.ids)), answer.text)
            choice |= {"finish_reason": answer.finish_reason, "stop_reason": answer.stop_reason}
            if request.prompt_logprobs is not None:
                choice["prompt_logprobs"] = _prompt_logprobs(prompt)
            if request.return_token_ids:
                choice["prompt_token_ids"] = ids_of(prompt)
            body["choices"].append(choice)
        if usage is not None:
            body["usage"] = usage
        return body

    def opening(self, index: int) -> Json | None:
        del index
        return None

    def chunk(self, index: int, answer: GeneratedAnswer, count: int) -> Json:
        choice = self._choice(index, answer, range(count - 1, count), answer.pieces[count - 1])
        if count == len(answer.ids):
            choice |= {"finish_reason": answer.finish_reason, "stop_reason": answer.stop_reason}
        if count == 1 and self._request.return_token_ids:
            choice["prompt_token_ids"] = ids_of(self._request.prompts[index // self._request.n])
        return {**self._head, "choices": [choice]}

    def closing(self, usage: Json) -> Json:
        return {**self._head, "choices": [], "usage": usage}

    def _choice(self, index: int, answer: GeneratedAnswer, span: range, text: str) -> Json:
        choice: Json = {
            "index": index,
            "text": text,
            "logprobs": self._logprobs(answer, span),
            "finish_reason": None,
            "stop_reason": None,
        }
        if self._request.return_token_ids:
            choice["token_ids"] = [answer.ids[at] for at in span]
        return choice

    def _logprobs(self, answer: GeneratedAnswer, span: range) -> Json | None:
        wanted = self._request.logprobs
        if wanted is None:
            return None
        body: Json = {"text_offset": [], "token_logprobs": [], "tokens": [], "top_logprobs": []}
        offset = sum(map(len, answer.pieces[: span.start]))
        for index in span:
            listed = self._author.alternatives(answer, index, wanted)
            body["text_offset"].append(offset)
            body["token_logprobs"].append(listed[0][2])
            body["tokens"].append(listed[0][1])
            body["top_logprobs"].append({text: logprob for _, text, logprob in listed})
            offset += len(answer.pieces[index])
        return body


def _prompt_logprobs(prompt: bytes) -> list[Json | None]:
    """One entry a token; the first has none, as nothing precedes it."""
    rest = [{str(token): {"logprob": -1.0, "rank": 1, "decoded_token": None}} for token in ids_of(prompt)[1:]]
    return [None, *rest]


class Generator:
    """Answers generation requests.

    Args:
        author: Writes the answers.
        ranks: Compute them.
        surface: Determines the content of usage.
        keep_alive_seconds: See ``EngineConfig``.
    """

    def __init__(self, author: Author, ranks: Ranks, surface: Surface, keep_alive_seconds: float | None) -> None:
        self._keep_alive_seconds = keep_alive_seconds
        self._author = author
        self._ranks = ranks
        self._surface = surface

    async def answer(self, request: Generation, reply: ReplyWriter, request_id: str, rank: int | None) -> None:
        """Compute and send. Cancelling it aborts every sequence of the request.

        Args:
            request: The request.
            reply: Where the answer goes.
            request_id: Becomes part of the answer's id.
            rank: Data-parallel rank to compute it on; None leaves the choice to the engine.

        Raises:
            EngineError: There is no such rank.
        """
        self._ranks.check(rank)
        answers = [self._written(request, prompt, place) for prompt in request.prompts for place in range(request.n)]
        sequences = [
            Sequence(
                prompt=request.prompts[index // request.n],
                answer=answer.ids,
                salt=request.salt,
                adapter=request.adapter,
                reuse=request.prompt_logprobs is None,
            )
            for index, answer in enumerate(answers)
        ]
        shape = shape_for(request, self._author, request_id, int(time.time()))
        if request.stream:
            await self._stream(request, reply, shape, answers, sequences, rank=rank)
            return
        await asyncio.gather(*(self._ranks.run(sequence, rank) for sequence in sequences))
        total = sum(len(answer.ids) for answer in answers)
        counts = (
            None if reply.usage_missing else usage(request, total, self._surface.cached_tokens(sequences, request.n))
        )
        await reply.json(shape.whole(answers, counts))

    def _written(self, request: Generation, prompt: bytes, place: int) -> GeneratedAnswer:
        """An answer; if the prompt ends with the beginning of one, its rest."""
        rest = None
        if request.continues is not None:
            rest = self._author.go_on(*request.continues, place, request.wish)
        if rest is None and (request.continues is not None or request.endpoint is Endpoint.COMPLETIONS):
            rest = self._author.go_on_in(prompt, place, request.wish)
        return rest or self._author.write(prompt, place, request.wish)

    async def _stream(
        self,
        request: Generation,
        reply: ReplyWriter,
        shape: WireShape,
        answers: list[GeneratedAnswer],
        sequences: list[Sequence],
        *,
        rank: int | None,
    ) -> None:
        # The queue keeps a slow client from slowing down the engine.
        tokens: asyncio.Queue[tuple[int, int]] = asyncio.Queue()

        def watch(index: int) -> Callable[[int], None]:
            return lambda count: tokens.put_nowait((index, count))

        total = sum(len(answer.ids) for answer in answers)
        computing = [
            asyncio.ensure_future(self._ranks.run(sequence, rank, watch(index)))
            for index, sequence in enumerate(sequences)
        ]
        try:
            await reply.open_stream()
            for generated in range(1, total + 1):
                index, count = await self._next(tokens, reply)
                for chunk in self._chunks(shape, index, answers[index], count):
                    if request.continuous_usage and not reply.usage_missing:
                        cached = None
                        if self._surface.continuous_cached:
                            cached = self._surface.cached_tokens(sequences, request.n)
                        chunk["usage"] = usage(request, generated, cached)
                    await reply.event(chunk)
        finally:
            for task in computing:
                task.cancel()
            await asyncio.wait(computing)
        if request.include_usage and not reply.usage_missing:
            await reply.event(shape.closing(usage(request, total, self._surface.cached_tokens(sequences, request.n))))
        await reply.close_stream()

    async def _next(self, tokens: asyncio.Queue[tuple[int, int]], reply: ReplyWriter) -> tuple[int, int]:
        while True:
            try:
                async with asyncio.timeout(self._keep_alive_seconds):
                    return await tokens.get()
            except TimeoutError:
                await reply.keep_alive()

    @staticmethod
    def _chunks(shape: WireShape, index: int, answer: GeneratedAnswer, count: int) -> Iterator[Json]:
        if count == 1 and (opening := shape.opening(index)) is not None:
            yield opening
        if (chunk := shape.chunk(index, answer, count)) is not None:
            yield chunk
