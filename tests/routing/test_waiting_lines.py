"""Who waits, who is woken, who is refused. Replicas are numbers here: how many requests each has time for."""

import asyncio
import time
from contextlib import suppress

import pytest
from patience import HANG_SECONDS

from gateway.config.routing_settings import QueueSettings
from gateway.core.errors import NoReplica, Overloaded
from gateway.core.ids import ModelId, ReplicaId, Target, TenantId
from gateway.core.tenant import Tenant
from gateway.routing.request_queue import Placement, RequestQueue

MODEL = ModelId("m")
A, B = Target(ReplicaId("a")), Target(ReplicaId("b"))


class QueueSetup:
    """Lines in front of targets with so many free places; keeps who was sent where, in order."""

    def __init__(self, places, **settings):
        self.places = dict(places)
        self.lines = RequestQueue(
            QueueSettings(**settings), lambda _: {t: n <= 0 for t, n in self.places.items()}, self
        )
        self.sent = []
        self.lengths, self.waited, self.shed = [], [], []
        self.tasks = []
        self.placings = 0

    def on_queue_length(self, model, requests):
        self.lengths.append(requests)

    def on_queued(self, model, seconds):
        self.waited.append(seconds)

    def on_shed(self, model, tenant, reason):
        self.shed.append((tenant.id, reason))

    async def ask(self, name, tenant="t", *, tokens=100, choose=None, until=float("inf"), again=False):
        """One request; ``choose`` gives its target, with what waits in front of it."""
        target = A

        def place(ahead):
            nonlocal target
            self.placings += 1
            target = choose(ahead) if choose else max(self.places, key=self.places.__getitem__)
            return Placement(target, tokens)

        wish = place(self.lines.ahead(MODEL, Tenant(TenantId(tenant))))
        if self.places[wish.target] <= 0 or MODEL in self.lines.queues:
            await self.lines.turn(
                MODEL, Tenant(TenantId(tenant)), wish, place, again=again, until=until, expected=1000.0
            )
        self.places[target] -= 1
        self.sent.append((name, target))

    def asks(self, name, tenant="t", **more):
        self.tasks.append(asyncio.create_task(self.ask(name, tenant, **more), name=name))
        return self.tasks[-1]

    async def frees(self, target, count=1):
        """Places at a target are free again, and said so."""
        self.places[target] += count
        self.lines.on_capacity(MODEL)
        await settle()

    @property
    def names(self):
        return [name for name, _ in self.sent]


async def settle():
    """Let everything happen that happens at this moment."""
    for _ in range(50):
        await asyncio.sleep(0)


@pytest.fixture
async def queue_setup():
    """Makes one, and leaves no request waiting in it."""
    made = []

    def make(places, **settings):
        made.append(QueueSetup(places, **settings))
        return made[-1]

    yield make
    for each in made:
        for task in each.tasks:
            task.cancel()
        for task in each.tasks:
            with suppress(asyncio.CancelledError, Overloaded, NoReplica, TimeoutError):
                await task
        assert MODEL not in each.lines.queues
        assert each.lengths[-1:] in ([], [0])


async def test_each_free_place_is_taken_once_and_in_order(queue_setup):
    w = queue_setup({A: 0})
    for number in range(4):
        w.asks(str(number))
    await settle()
    assert w.sent == []
    await w.frees(A, 2)
    assert w.names == ["0", "1"]
    await w.frees(A)
    assert w.names == ["0", "1", "2"]
    assert w.places[A] == 0


async def test_no_request_overtakes_by_its_moment_of_arrival(queue_setup):
    w = queue_setup({A: 0})
    w.asks("early")
    await settle()
    w.places[A] = 1
    w.asks("late")
    await settle()
    assert w.names == ["early"]


async def test_who_waits_for_a_busy_replica_lets_others_go(queue_setup):
    w = queue_setup({A: 0, B: 0})
    w.asks("wants a", choose=lambda _: A)
    w.asks("wants b", choose=lambda _: B)
    await settle()
    await w.frees(B)
    assert w.sent == [("wants b", B)]
    await w.frees(A)
    assert w.sent[1:] == [("wants a", A)]


async def test_it_goes_where_it_is_best_when_its_turn_comes(queue_setup):
    w = queue_setup({A: 0, B: -1})
    w.asks("any")
    await settle()
    await w.frees(B, 2)
    assert w.sent == [("any", B)]


async def test_what_waits_in_front_makes_others_look_elsewhere(queue_setup):
    """Else all would wait for the replica that holds their common beginning, and others would have nothing to do."""
    w = queue_setup({A: 0, B: 1})
    for number in range(5):
        w.asks(str(number), choose=lambda ahead: A if ahead.get(A, 0) < 300 else B)
        await settle()
    assert w.sent == [("3", B)]


async def test_a_free_replica_that_no_queued_request_can_use_costs_no_placing(queue_setup, monkeypatch):
    """But once, when it gets free, and a few now and then."""
    monkeypatch.setattr("gateway.routing.request_queue._SCAN_SECONDS", 1000)
    w = queue_setup({A: 0, B: 0})
    for number in range(50):
        w.asks(str(number), choose=lambda _: A)
    await settle()
    await w.frees(B)
    before = w.placings
    for _ in range(5):
        await w.frees(B)
    assert w.placings == before


async def test_a_replica_that_is_gone_is_waited_for_no_longer(queue_setup):
    w = queue_setup({A: 0, B: 0})
    for number in range(3):
        w.asks(str(number), choose=lambda _: A if A in w.places else B)
    await settle()
    del w.places[A]
    await w.frees(B, 3)
    assert w.sent == [("0", B), ("1", B), ("2", B)]


async def test_an_unreported_change_is_seen_soon(queue_setup):
    w = queue_setup({A: 0})
    task = w.asks("one")
    await settle()
    w.places[A] = 1
    await asyncio.wait_for(task, HANG_SECONDS)


async def test_more_than_may_wait_are_refused(queue_setup):
    w = queue_setup({A: 0}, max_requests=3)
    waiting = [w.asks(str(number), "flood") for number in range(3)]
    await settle()
    with pytest.raises(Overloaded) as refused:
        await w.asks("3", "flood")
    assert refused.value.status == 429
    assert refused.value.code == "overloaded"
    other = w.asks("other", "small")
    await settle()
    assert [task.done() for task in waiting] == [False, False, True]
    assert isinstance(waiting[2].exception(), Overloaded)
    await w.frees(A, 3)
    assert sorted(w.names) == ["0", "1", "other"]
    assert other.done()
    assert w.shed == [("flood", "full")] * 2


async def test_the_retry_time_depends_on_what_is_in_front(queue_setup):
    """100 + 64 tokens each; at first 1000 a second are believed."""
    w = queue_setup({A: 0}, max_requests=60)
    for number in range(60):
        w.asks(str(number))
    await settle()
    with pytest.raises(Overloaded) as refused:
        await w.asks("more")
    assert refused.value.retry_after_seconds == 11
    with pytest.raises(Overloaded) as small:
        await w.asks("another tenant's, and larger than all others", "other", tokens=10**6)
    assert small.value.retry_after_seconds > 1000


async def test_longer_than_may_be_waited_is_refused(queue_setup):
    w = queue_setup({A: 0}, max_seconds=0.05)
    with pytest.raises(Overloaded):
        await w.asks("one")
    assert w.shed == [("t", "too_long")]
    assert len(w.waited) == 1


async def test_the_time_in_the_queue_is_reported(queue_setup):
    w = queue_setup({A: 0})
    time = asyncio.get_running_loop().time
    began = time()
    w.asks("one")
    await settle()
    queued = time()
    await asyncio.sleep(0.05)
    freed = time()
    await w.frees(A)
    assert w.names == ["one"]
    assert len(w.waited) == 1
    assert freed - queued <= w.waited[0] <= time() - began


async def test_its_own_deadline_is_not_called_overload(queue_setup):
    w = queue_setup({A: 0})
    with pytest.raises(TimeoutError):
        await w.asks("one", until=asyncio.get_running_loop().time() + 0.05)
    assert w.shed == []


async def test_who_has_its_turn_is_not_refused_for_a_time_that_ends_meanwhile(queue_setup):
    w = queue_setup({A: 0}, max_seconds=0.5)
    w.asks("one")
    await settle()
    w.places[A] = 1
    w.lines.on_capacity(MODEL)
    time.sleep(0.6)  # the time is over when it gets its turn, before it can go on
    await settle()
    assert w.names == ["one"]
    assert w.shed == []


async def test_who_leaves_is_taken_out_at_once(queue_setup):
    w = queue_setup({A: 0}, max_requests=2)
    first = w.asks("0")
    w.asks("1")
    await settle()
    first.cancel()
    await settle()
    w.asks("2")
    await settle()
    await w.frees(A, 2)
    assert w.names == ["1", "2"]


async def test_a_turn_that_no_request_takes_goes_to_the_next(queue_setup):
    w = queue_setup({A: 0})
    first = w.asks("0")
    w.asks("1")
    await settle()
    w.places[A] = 1
    w.lines.on_capacity(MODEL)
    await asyncio.sleep(0)  # it is woken, but has not come to it yet
    first.cancel()
    await settle()
    assert w.names in (["0"], ["1"])
    assert w.places[A] == 0


async def test_what_cannot_be_placed_any_more_is_refused_and_delays_no_other(queue_setup):
    w = queue_setup({A: 0})

    def nowhere(_):
        if gone:
            raise NoReplica("none", code="no_replica")
        return A

    gone = False
    lost = w.asks("lost", choose=nowhere)
    w.asks("other")
    await settle()
    gone = True
    await w.frees(A)
    assert isinstance(lost.exception(), NoReplica)
    assert w.names == ["other"]


async def test_who_comes_again_goes_first_of_its_tenant(queue_setup):
    w = queue_setup({A: 0})
    w.asks("0")
    w.asks("1")
    await settle()
    w.asks("again", again=True)
    await settle()
    await w.frees(A, 3)
    assert w.names == ["again", "0", "1"]


async def test_one_can_wait_until_no_request_is_in_flight(queue_setup):
    w = queue_setup({A: 0})
    await w.lines.wait_until_empty(MODEL)
    w.asks("client")
    await settle()
    other = asyncio.create_task(w.lines.wait_until_empty(MODEL))
    await settle()
    assert not other.done()
    await w.frees(A)
    await asyncio.wait_for(other, HANG_SECONDS)
    assert w.names == ["client"]


async def test_minds_that_change_are_noticed(queue_setup):
    """What a replica holds changes, too, without a notification."""
    w = queue_setup({A: 0, B: 0})
    now = A
    for number in range(40):
        w.asks(str(number), choose=lambda _: now)
    await settle()
    await w.frees(B, 40)
    assert w.sent == []
    now = B
    await asyncio.wait_for(asyncio.gather(*w.tasks), HANG_SECONDS)
    assert len(w.sent) == 40


async def test_a_long_line_is_gone_through_in_time(queue_setup):
    """Every one is placed on the busy replica; when the other becomes better, all of them notice."""
    w = queue_setup({A: 0, B: 0})
    now = A
    for number in range(200):
        w.asks(str(number), choose=lambda _: now)
    await settle()
    now = B
    w.places[B] = 200
    await asyncio.wait_for(asyncio.gather(*w.tasks), HANG_SECONDS)
    assert len(w.sent) == 200
