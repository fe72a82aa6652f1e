"""What became of everything that was asked."""

from collections import Counter
from collections.abc import Collection

import orjson

from benchmarks.soak.wire import Answer
from gateway.engines import payloads

_SHOWN_BYTES = 160


class Score:
    """Counts.

    Attributes:
        outcomes: What was asked and what came, and how often.
        failed: What went wrong, and how often.
        answered: Requests answered as they should be.
    """

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.answered = 0

    def take(self, kind: str, answer: Answer, expected: Collection[int] = (200,)) -> bool:
        """An answer came; returns whether it is one of the expected ones."""
        self.outcomes[f"{kind} {answer.status}"] += 1
        right = answer.status in expected
        self.answered += right
        if not right:
            self.fail(kind, f"status {answer.status}: {answer.body[:_SHOWN_BYTES]!r}")
        return right

    def fail(self, kind: str, what: str) -> None:
        """Something went wrong."""
        self.failed[f"{kind}: {what}"] += 1


def text_of(answer: Answer, *, stream: bool) -> str:
    """What a completion says.

    Raises:
        ValueError: it is no whole one.
    """
    return _of_stream(answer.body) if stream else _of_body(answer.body)


def _of_body(body: bytes) -> str:
    try:
        choice = orjson.loads(body)["choices"][0]
        return (choice["message"]["content"] if "message" in choice else choice["text"]) or ""
    except (orjson.JSONDecodeError, KeyError, TypeError, IndexError) as error:
        raise ValueError(f"not an answer: {body[:_SHOWN_BYTES]!r}") from error


def _of_stream(body: bytes) -> str:
    text: list[str] = []
    finished = 0
    for payload in payloads(body):
        event = orjson.loads(payload)
        if "error" in event:
            raise ValueError(f"error event: {event['error'].get('code')}")
        for choice in event["choices"]:
            text.append((choice["delta"].get("content") if "delta" in choice else choice["text"]) or "")
            finished += bool(choice.get("finish_reason"))
    if not body.rstrip().endswith(b"data: [DONE]") or finished != 1:
        raise ValueError(f"a stream without its end, {finished} reasons to finish")
    return "".join(text)
