"""How fast requests are sent, and how many at a time."""

import itertools

import pytest
from fake_gateway import CHAT, TEXT, FakeGateway, eventually, finished, order, settled

OTHER = {**CHAT, "model": "other"}


@pytest.fixture
def fake():
    return FakeGateway()


def apart(times):
    return [later - earlier for earlier, later in itertools.pairwise(times)]


@pytest.mark.parametrize("rate", [0.5, 4, None])
async def test_requests_are_kept_apart_over_all_replicas(fake, rate):
    warmer = fake.warmer(requests_per_second=2.0)
    more = {} if rate is None else {"requests_per_second": rate}
    job = await finished(warmer, warmer.start(order(CHAT, TEXT, OTHER, **more), ""))
    assert (job["done"], job["requests_per_second"]) == (7, rate or 2)
    assert min(apart(fake.flow.times)) >= 1 / (rate or 2) - 1e-9
    assert max(apart(fake.flow.times)) <= 1 / (rate or 2) + 1e-9


async def test_time_that_passed_is_not_made_up_for(fake):
    fake.flow.open.clear()
    warmer = fake.warmer(requests_per_second=1.0)
    job = warmer.start(order(*[CHAT] * 3, replicas=["a"]), "")
    await settled()
    assert len(fake.flow.requests) == 2
    fake.clock.now += 60
    fake.flow.open.set()
    await finished(warmer, job)
    more = warmer.start(order(*[CHAT] * 3, replicas=["a"]), "")
    fake.flow.times.clear()
    await finished(warmer, more)
    assert min(apart(fake.flow.times)) >= 1 - 1e-9


async def test_no_burst_after_a_replica_was_slow(fake):
    fake.flow.open.clear()
    warmer = fake.warmer(requests_per_second=1.0)
    job = warmer.start(order(*[CHAT] * 8, replicas=["a"]), "")
    await settled()
    fake.clock.now += 60
    fake.flow.open.set()
    await finished(warmer, job)
    assert min(apart(fake.flow.times)) >= 1 - 1e-9


async def test_two_at_a_time_at_each_replica_over_all_jobs(fake):
    fake.flow.open.clear()
    warmer = fake.warmer()
    jobs = [warmer.start(order(*[CHAT] * 10, OTHER), "") for _ in range(3)]
    await eventually(lambda: sum(fake.flow.in_flight.values()) == 6)
    await settled()
    assert fake.flow.in_flight == {"a": 2, "b": 2, "c": 2}
    fake.flow.open.set()
    for job in jobs:
        assert (await finished(warmer, job))["done"] == 31
    assert fake.flow.most_in_flight == {"a": 2, "b": 2, "c": 2}


async def test_a_stuck_replica_does_not_keep_the_others_waiting(fake):
    async def serve(request, sink, grant):
        if request.warmup_target.replica == "a":
            await fake.flow.open.wait()
        sink.start(200, [])

    fake.flow.open.clear()
    fake.flow.serve = serve
    warmer = fake.warmer()
    job = warmer.start(order(*[CHAT] * 10), "")
    await eventually(lambda: warmer.job(job["id"])["done"] == 20)
    fake.flow.open.set()
    assert (await finished(warmer, job))["done"] == 30


async def test_what_was_cancelled_leaves_its_place_to_others(fake, tmp_path):
    file = tmp_path / "p.yaml"
    file.write_text("- {model: m, prompt: x}\n" * 5)
    fake.flow.open.clear()
    warmer = fake.warmer(file=file)
    warmer.joined("a")
    await eventually(lambda: fake.flow.in_flight["a"] == 2)
    warmer.left("a")
    await eventually(lambda: fake.flow.in_flight["a"] == 0)
    fake.flow.open.set()
    job = await finished(warmer, warmer.start(order(*[CHAT] * 5, replicas=["a"]), ""))
    assert job["done"] == 5
