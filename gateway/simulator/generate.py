"""Answers a generation request: generates the answer, schedules its sequences, sends it."""

import asyncio
import time
from collections.abc import Callable, Iterator

from gateway.core.request import Endpoint
from gateway.simulator.answer_writer import ReplyWriter
from gateway.simulator.answers import Author, GeneratedAnswer
from gateway.simulator.engine_scheduler import Sequence
from gateway.simulator.ranks import Ranks
from gateway.simulator.requests import Generation
from gateway.simulator.surface import Surface
from gateway.simulator.wire import Json, WireShape, shape_for, usage


class Generator:
    """Answers generation requests.

    Args:
        author: Writes the answers.
        ranks: Compute them.
        surface: Determines the content of usage.
    """

    def __init__(self, author: Author, ranks: Ranks, surface: Surface) -> None:
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
                index, count = await tokens.get()
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

    @staticmethod
    def _chunks(shape: WireShape, index: int, answer: GeneratedAnswer, count: int) -> Iterator[Json]:
        if count == 1 and (opening := shape.opening(index)) is not None:
            yield opening
        if (chunk := shape.chunk(index, answer, count)) is not None:
            yield chunk
