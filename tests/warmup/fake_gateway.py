"""What warming sees of the gateway, in small: a fleet, tenants, a flow that remembers, and a clock that is set."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field

import orjson
from patience import HANG_SECONDS

from gateway.config.warmup_settings import WarmSettings
from gateway.core.ids import ModelId, ReplicaId, Target, TenantId
from gateway.core.tenant import Tenant
from gateway.stats.hot_prefixes import HotPrefixes
from gateway.warmup import Warmer
from gateway.warmup.hot_prompts import HotPrompts
from gateway.warmup.lasting import EndedSpaces, WarmLinks
from gateway.warmup.ledger import WarmLedger

CHAT = {"model": "m", "messages": [{"role": "system", "content": "Be brief."}]}
TEXT = {"model": "m", "prompt": "Once upon a time"}


@dataclass
class FakeGateway:
    """Replicas a and b (two ranks) of model m, in eu and us, and c of model other."""

    replicas: list["FakeReplica"] = field(
        default_factory=lambda: [
            FakeReplica("a", "m", "eu"),
            FakeReplica("b", "m", "us", ranks=2),
            FakeReplica("c", "other", "eu"),
        ]
    )
    tenants: dict[str, Tenant] = field(
        default_factory=lambda: {
            "acme": Tenant(TenantId("acme")),
            "euro": Tenant(TenantId("euro"), regions=frozenset({"eu"})),
        }
    )
    isolated: bool = False

    def __post_init__(self):
        self.flow = FakeFlow()
        self.clock = FakeClock()
        self.held = {}
        self.holds = []
        self.tokens = {}
        self.counted = []
        self.busy = set()
        self.expiring = []
        self.registered = []
        self.warmth = WarmthCounts()
        self.hot = HotPrefixes()
        self.ended = EndedSpaces()
        self.ledger = WarmLedger(lambda model: 2.0, self.warmth)
        self.hot_prompts = HotPrompts(self.hot)

    def tenant(self, name):
        return self.tenants.get(name)

    def replica(self, name):
        return next(replica for replica in self.replicas if replica.id == name)

    def hold(self, replica, held):
        self.holds.append((replica, held))
        self.held[replica] = held

    async def count(self, model, endpoint, fields):
        self.counted.append((model, endpoint, fields))
        return self.tokens.get(fields.get("prompt"))

    def warmer(self, *, started=True, **settings):
        self.flow.clock = self.clock
        warmer = Warmer(
            self.flow,
            self,
            self,
            isolated=lambda: self.isolated,
            hold=self.hold,
            count=self.count,
            settings=WarmSettings(**{"requests_per_second": 1000.0} | settings),
            links=WarmLinks(
                self.ledger,
                self.hot_prompts,
                self.ended,
                expiring=lambda now: self.expiring,
                owner=lambda caller: f"tenant:{caller.tenant.id}" if self.isolated else "",
                idle=lambda target: target.replica not in self.busy,
                wall=self.clock,
            ),
            registered=lambda: self.registered,
            clock=self.clock,
            sleep=self.clock.sleep,
        )
        if started:
            warmer.start_background()
        return warmer


class WarmthCounts:
    """A ``WarmthObserver`` that keeps what it gets."""

    def __init__(self):
        self.warmed = []
        self.used = []
        self.left_out = []

    def on_warmed(self, model, cause, tokens, gpu_seconds):
        self.warmed.append((model, str(cause), tokens, gpu_seconds))

    def on_warmth_used(self, model, cause, tokens, gpu_seconds):
        self.used.append((model, str(cause), tokens, gpu_seconds))

    def on_warm_left_out(self, model, reason):
        self.left_out.append((model, reason))


class FakeReplica:
    def __init__(self, name, model, region, *, ranks=1):
        self.id = ReplicaId(name)
        self.model = ModelId(model)
        self.region = region
        self.up = True
        self.draining = False
        self.ranks = ranks

    def serves(self):
        return True

    @property
    def targets(self):
        return [Target(self.id, rank) for rank in range(self.ranks)]


class FakeClock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now

    async def sleep(self, seconds):
        until = self.now + seconds
        await asyncio.sleep(0)
        self.now = max(self.now, until)


class FakeFlow:
    """Answers everything as configured; while ``open`` is not set, requests stay in flight."""

    def __init__(self):
        self.requests = []
        self.grants = []
        self.times = []
        self.answer = lambda request: (200, b'{"choices": []}')
        self.open = asyncio.Event()
        self.open.set()
        self.in_flight = Counter()
        self.most_in_flight = Counter()
        self.clock = None

    async def serve(self, request, sink, grant):
        replica = request.warmup_target.replica
        self.requests.append(request)
        self.grants.append(grant)
        self.times.append(self.clock())
        self.in_flight[replica] += 1
        self.most_in_flight[replica] = max(self.most_in_flight[replica], self.in_flight[replica])
        try:
            await self.open.wait()
            answer = self.answer(request)
            if isinstance(answer, Exception):
                raise answer
            status, body = answer
            sink.start(status, [(b"content-type", b"application/json")])
            sink.write(body[:10], more=True)
            sink.write(body[10:], more=False)
        finally:
            self.in_flight[replica] -= 1

    @property
    def targets(self):
        return sorted(request.warmup_target for request in self.requests)

    @property
    def bodies(self):
        return [orjson.loads(request.body) for request in self.requests]


async def eventually(done):
    """Waits until something is so."""
    async with asyncio.timeout(HANG_SECONDS):
        while not done():
            await asyncio.sleep(0.001)


async def settled():
    """Lets everything happen that can."""
    for _ in range(100):
        await asyncio.sleep(0)


async def finished(warmer, job):
    """The job when it is over."""
    await eventually(lambda: warmer.job(job["id"])["state"] != "running")
    return warmer.job(job["id"])


def order(*prefixes, **more):
    return {"prefixes": list(prefixes), **more}
