"""Decides which requests need no explanation of their own.

A request whose chosen replica was known to hold every block of its prompt misses only what the replica did not reuse,
and what fills no block: its explanation follows from its counts. Sent again with the same counts and the same answer,
it has the same explanation to the token, so that the explain worker gets a reference to the earlier request instead of
the prompt: no comparison, no look-up, a tenth of the bytes.

The whole request is sent again from time to time, because the worker orders and dates what it remembers by it.
"""

from random import getrandbits
from typing import NamedTuple

import msgspec
from xxhash import xxh3_64_intdigest

from gateway.core.bounded_cache import BoundedCache
from gateway.core.experiment_group import HeldOut
from gateway.core.explanation import RequestRecord, SkippedTotals
from gateway.explain.worker.explain_messages import RepeatedRequest

REFERRED = 1000
"""Requests that can be referred to. Gateway and worker both keep the last ones, in the order of sending."""

_PROMPTS = 10_000
"""Prompts of which it is known that they were sent; with more of them, some are sent once more than necessary."""

_WHOLE_AGAIN_SECONDS = 120.0
"""Age at which a request is not referred to any more. What the worker orders and dates by whole requests is late by so
much at most."""

_SEED = getrandbits(64)
"""Of the hashes of token ids, which take a tenth of the time of ``hash``."""

Identity = tuple[object, ...]


class Referred(NamedTuple):
    """A request that later ones can refer to.

    Attributes:
        number: Its ``RequestRecord.number``.
        at: Its ``RequestRecord.at``.
        totals: Its tokens, which are those of later ones.
    """

    number: int
    at: float
    totals: SkippedTotals


class Repeats:
    """The last whole requests that were sent, by what their explanation depends on."""

    def __init__(self) -> None:
        self._sent: BoundedCache[Identity, Referred] = BoundedCache(REFERRED)
        self._prompts: BoundedCache[Identity, bool] = BoundedCache(_PROMPTS)
        self._number = 0

    def sent(self, record: RequestRecord) -> tuple[RequestRecord | RepeatedRequest, SkippedTotals | None]:
        """The message to send for a request, and its tokens; requests are given in the order of sending.

        The message is a reference to an earlier request, or the whole request, with the number by which later ones
        refer to it unless it is the first with its prompt: what fills no block is new in that one, and known in those
        that follow. The tokens are None for a request that was not sent by a client.
        """
        identity = identity_of(record)
        if identity is not None and (referred := self.find(identity, record.at)) is not None:
            return RepeatedRequest.of(record, referred.number), referred.totals
        totals = None if record.warming else SkippedTotals.of(record)
        if len(record.parts) != 1:
            return record, totals
        prompt = _prompt_of(record)
        if identity is not None and totals is not None and prompt in self._prompts:
            self._number += 1
            self._sent.put(identity, Referred(self._number, record.at, totals))
            record = msgspec.structs.replace(record, number=self._number)
        if _is_remembered(record):
            self._prompts.put(prompt, True)
        return record, totals

    def find(self, identity: Identity, at: float) -> Referred | None:
        """The request to refer to; None if a request has to be sent as a whole. ``at`` as in ``RequestRecord``."""
        referred = self._sent.peek(identity)
        return referred if referred is not None and 0 <= at - referred.at < _WHOLE_AGAIN_SECONDS else None

    def forget(self) -> None:
        """Refer to none of the requests sent so far: the worker's state, its rules or a cache have changed."""
        self._sent.clear()
        self._prompts.clear()


def _is_remembered(record: RequestRecord) -> bool:
    """Whether the worker knows a request's prompt afterwards, so that it compares the next request with it."""
    return record.block_size > 0 and record.is_reported and record.held_out is not HeldOut.SALTED


def _prompt_of(record: RequestRecord) -> Identity:
    # Prompts are compared with those of the same tenant, also where several share a prefix space.
    return record.tenant, record.where, record.own_tokens, xxh3_64_intdigest(record.parts[0], _SEED)


def identity_of(record: RequestRecord) -> Identity | None:
    """All that the explanation of a request depends on; None if it depends on more than its record.

    What other replicas hold is not part of it: the chosen one was known to hold every block. Prompt and answer are
    identified by 64-bit hashes with a random seed, the body, where the tokens are the same, by its size.
    """
    own, counted, size, hits = record.own_tokens, record.prompt_tokens, record.block_size, record.cached_tokens
    if len(record.parts) != 1 or size < 1 or counted < 1 or record.bypasses_cache or record.is_blind or record.warming:
        return None
    blocks = (own - 1) // size * size
    if blocks < 1 or (record.predicted_tokens < blocks and (hits is None or hits < round(blocks * counted / own))):
        return None
    canonical = record.canonical
    if canonical.asked or canonical.context_lost or canonical.blocks or record.held_out is not HeldOut.NO:
        return None
    return (
        *_prompt_of(record),
        counted,
        hits,
        record.predicted_tokens,
        record.completion_tokens,
        len(record.body),
        hash(record.replies),
        size,
        record.replica,
        record.rank,
        record.life,
        record.endpoint,
        record.tenant_label,
        record.source,
        record.session,
        record.identity,
        record.dialect,
        record.prompt,
        record.token_source,
        record.status,
        record.template_tells_time,
        record.tools_first,
        record.measured,
        canonical.modes,
    )
