"""Hashes of what prompts begin with. They stay in memory, and steer only what is called shared."""

from collections.abc import Iterator, Mapping, Sequence

import xxhash

from gateway.canon.pii.passages import Beginning, Passage
from gateway.canon.pii.patterns import Hit
from gateway.canon.pii.shared_prefixes import Conversation


def beginning_of_findings(
    beginning: Beginning, found: Mapping[int, Sequence[Hit]], *, space: str, seed: int
) -> Iterator[tuple[Passage, Hit, int]]:
    """Every finding with the hash of the prompt's text up to its end.

    Args:
        beginning: The prompt.
        found: What was found, by position of the passage in the beginning.
        space: The prompt's space; equal texts of different spaces share nothing.
        seed: Of the hash.
    """
    running = xxhash.xxh3_64(space.encode(), seed=seed)
    last = max(found)
    for position, part in enumerate(beginning[: last + 1]):
        if isinstance(part, bytes):
            running.update(part)
            continue
        done = 0
        for hit in found.get(position, ()):
            end = hit.start + hit.length
            running.update(part.text[done:end].encode())
            done = end
            yield part, hit, running.intdigest()
        running.update(part.text[done:].encode())


def conversation_of(beginning: Beginning, session: str | None, *, seed: int) -> Conversation:
    """Which conversation a prompt belongs to: its session's, else that of all prompts with the same first question."""
    if session is not None:
        return Conversation(xxhash.xxh3_64_intdigest(session.encode("utf-8", "surrogatepass"), seed=seed))
    if len(beginning) == 1 and isinstance(prompt := beginning[0], Passage):
        text = prompt.text

        def begins(length: int) -> int:
            return xxhash.xxh3_64_intdigest(text[:length].encode(), seed=seed)

        return Conversation(begins(len(text)), len(text), begins)
    running = xxhash.xxh3_64(seed=seed)
    for part in beginning:
        running.update(part.text.encode() if isinstance(part, Passage) else part)
    return Conversation(running.intdigest())
