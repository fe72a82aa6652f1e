"""Questions to the explain worker that wait for answers."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from gateway.explain.worker.explain_messages import Question, QuestionAnswer
from gateway.explain.worker.refusals import ExplainUnavailable, refusal


class OpenQuestions:
    """Questions that wait for an answer.

    Args:
        answer_seconds: Timeout of a question.
    """

    def __init__(self, answer_seconds: float) -> None:
        self._answer_seconds = answer_seconds
        self._asked = 0
        self._open: dict[int, tuple[Question, asyncio.Future[QuestionAnswer]]] = {}

    @property
    def open(self) -> Sequence[Question]:
        """The open questions, in order."""
        return [question for question, _ in self._open.values()]

    async def ask(
        self,
        question: str,
        arguments: Mapping[str, str],
        send: Callable[[Question], None],
        others: tuple[bytes, ...] | None = (),
    ) -> bytes:
        """Send a question, and wait for its answer.

        Raises:
            GatewayError: As ``ExplainClient.ask``.
        """
        self._asked += 1
        asked = Question(self._asked, question, dict(arguments), others)
        answered: asyncio.Future[QuestionAnswer] = asyncio.get_running_loop().create_future()
        self._open[asked.number] = (asked, answered)
        try:
            send(asked)
            async with asyncio.timeout(self._answer_seconds):
                answer = await answered
        except TimeoutError:
            raise ExplainUnavailable(
                f"The process that explains requests did not answer within {self._answer_seconds:g} s."
            ) from None
        finally:
            del self._open[asked.number]
        if answer.status != 200:
            raise refusal(answer.status, answer.message, answer.param, answer.code)
        return answer.document

    def answered(self, answer: QuestionAnswer) -> None:
        """Deliver an answer; ignored if its question has timed out."""
        _, future = self._open.get(answer.number, (None, None))
        if future is not None and not future.done():
            future.set_result(answer)

    def refuse_all(self, why: str) -> None:
        """Fail all open questions."""
        for _, future in self._open.values():
            if not future.done():
                future.set_exception(ExplainUnavailable(why))
