"""What the processes that explain send each other, through the gateways that they belong to."""

import asyncio
import json
import time

import pytest
from explain_harness import QUICK, Counts, eventually
from explained_requests import request
from patience import HANG_SECONDS

from gateway.config.telemetry_settings import ExplainSettings
from gateway.core.explanation import CacheEvent, CacheHistory
from gateway.explain.worker.explain_client import ExplainClient
from gateway.explain.worker.explain_replication import ReplicatedSeen, SeenMessages
from gateway.explain.worker.send_buffer import GoneReplicas


class Pair:
    """Two gateways that explain, each with a process of its own."""

    def __init__(self, **other) -> None:
        self.one = self._client(publishes_seen=True)
        self.other = self._client(**{"publishes_seen": True} | other)

    def _client(self, **how) -> ExplainClient:
        return ExplainClient(ExplainSettings(), Counts(), {}, timeouts=QUICK, **how)

    async def __aenter__(self) -> "Pair":
        for client in (self.one, self.other):
            client.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for client in (self.one, self.other):
            await client.stop()

    async def reported(self) -> SeenMessages:
        """What the one publishes_seen next."""
        async with asyncio.timeout(HANG_SECONDS):
            while (reported := self.one.replicated_seen.changes(0.0, everything=False)) is None:
                await asyncio.sleep(0.01)
        return reported


def answered(**fields):
    return request("Hello.", at=time.time(), predicted_tokens=0, cached_tokens=0, holders=(), **fields)


async def reasons(client: ExplainClient, request_id: str) -> set[str]:
    found = {}

    async def there() -> bool:
        document = json.loads(await client.ask("requests", {}))
        found.update({each["id"]: each for each in document["requests"]})
        return request_id in found

    async with asyncio.timeout(HANG_SECONDS):
        while not await there():
            await asyncio.sleep(0.02)
    detail = json.loads(await client.ask("request", {"id": request_id}))
    return {each["reason"] for each in detail["missed"]}


async def test_prompts_computed_by_one_gateway_are_seen_by_the_other():
    async with Pair() as pair:
        pair.one.record_request(answered(request_id="first"))
        reported = await pair.reported()
        pair.other.replicated_seen.receive("one", reported, 0.0)
        pair.other.record_request(answered(request_id="second"))
        assert "evicted" in await reasons(pair.other, "second")
        # Nothing is left over, and what was received is not passed on.
        assert pair.one.replicated_seen.changes(0.0, everything=False) is None


@pytest.mark.parametrize("other", [{"receives_seen": False}, {"publishes_seen": True}])
async def test_prompts_that_are_not_received_are_first_seen(other):
    async with Pair(**other) as pair:
        pair.one.record_request(answered(request_id="first"))
        reported = await pair.reported()
        if not other.get("receives_seen", True):
            pair.other.replicated_seen.receive("one", reported, 0.0)
        pair.other.record_request(answered(request_id="second"))
        assert await reasons(pair.other, "second") == {"first_seen"}


async def test_a_gateway_without_peers_collects_no_prompts():
    async with Pair(publishes_seen=False) as pair:
        pair.other.record_request(answered(request_id="first"))
        assert await reasons(pair.other, "first") == {"first_seen"}
        await eventually(lambda: pair.other._send_buffer.is_empty)
        assert pair.other.replicated_seen.changes(0.0, everything=True) is None


async def test_an_invalid_peer_message_costs_no_request():
    async with Pair() as pair:
        pair.one._take_peer_prompts((b"nonsense", b""))
        pair.one.record_request(answered(request_id="first"))
        assert await reasons(pair.one, "first") == {"first_seen"}
        await eventually(lambda: pair.one._send_buffer.is_empty)


def test_unsent_messages_are_bounded_and_the_oldest_is_dropped():
    received = []
    replicated = ReplicatedSeen(received.append)
    for number in range(100):
        replicated.add(bytes([number]) * 10_000)
    reported = replicated.changes(0.0, everything=False)
    assert reported is not None
    assert sum(map(len, reported.encoded)) < 600_000
    replicated.receive("peer", reported, 0.0)
    ((*_, last),) = received
    assert last == bytes([99]) * 10_000
    assert replicated.changes(0.0, everything=True) == reported
    replicated.add(b"more")
    assert sum(map(len, replicated.changes(0.0, everything=True).encoded)) < 600_000


def test_unsent_messages_are_sent_with_the_next_ones():
    received = []
    replicated = ReplicatedSeen(received.append)
    replicated.add(b"one")
    assert replicated.changes(0.0, everything=False) is not None
    replicated.add(b"two")
    reported = replicated.changes(0.1, everything=True)  # the first try failed
    replicated.receive("peer", reported, 0.0)
    assert received == [(b"one", b"two")]
    assert replicated.changes(0.2, everything=False) is None
    assert replicated.changes(0.3, everything=True) is None


def test_departed_replicas_are_bounded():
    facts = GoneReplicas()
    for number in range(20_000):
        facts.note(CacheEvent(CacheHistory.LEFT, float(number), f"pod-{number}"))
    assert len(facts.events()) == 10_000
    assert facts.events()[-1].name == "pod-19999"
