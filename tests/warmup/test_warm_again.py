"""What is sent again by itself: after an end, a restart, before an idle expiry, by time; and what keeps it back."""

import asyncio

import pytest
from fake_gateway import FakeGateway, eventually, settled
from patience import HANG_SECONDS

from gateway.config.warmup_settings import WarmAgainSettings, WarmSettings
from gateway.core.application import Application
from gateway.core.block_chain import BlockChain
from gateway.core.ids import ModelId, ReplicaId, RequestId, Target
from gateway.core.ports import PrefixUse, SettledPrompt
from gateway.core.request import ChatRequest, Endpoint
from gateway.core.space import PrefixSpace, ResetCause, SpaceEnd
from gateway.core.tenant import Caller

B1 = Target(ReplicaId("b"), 1)
PREFIXES = """\
- {model: m, prompt: One, tenant: acme, replicas: [a]}
- {model: m, prompt: Two, tenant: euro, replicas: [a]}
- {model: other, prompt: Three, tenant: acme}
"""


def space(owner="tenant:acme", model="m", scope="", application=""):
    return PrefixSpace(model, "tok", "v", owner, scope, "", 0, "", 1, application)


def end(cause=ResetCause.MANUAL, **of):
    return SpaceEnd(space(**of), "id", cause)


@pytest.fixture
def fake():
    return FakeGateway(isolated=True)


@pytest.fixture
def file(tmp_path):
    file = tmp_path / "prefixes.yaml"
    file.write_text(PREFIXES)
    return file


@pytest.fixture
def warmer(fake, file):
    def make(**again):
        fake.tokens = {"One": 100, "Two": 100, "Three": 100}
        return fake.warmer(file=file, again=WarmAgainSettings(**{"tokens_per_hour": 1000} | again))

    return make


def prompts(fake):
    return [body["prompt"] for body in fake.flow.bodies]


async def job_of(warmer, cause):
    """The last job of a cause once it is over."""
    found = {}

    async def look():
        jobs = (await warmer.overview())["jobs"]
        found.update(next((job for job in jobs if job["cause"] == cause and job["state"] != "running"), {}))
        return bool(found)

    async with asyncio.timeout(HANG_SECONDS):
        while not await look():
            await settled()
    return found


@pytest.mark.parametrize(
    ("cause", "why"),
    [
        (ResetCause.MANUAL, "reset"),
        (ResetCause.CONFIGURATION, "reset"),
        (ResetCause.IDLE_TTL, "expiry"),
        (ResetCause.MAX_AGE, "expiry"),
    ],
)
async def test_an_ended_space_gets_its_own_prefixes_again(fake, warmer, cause, why):
    made = warmer()
    fake.ended.on_space_end(end(cause))
    job = await job_of(made, why)
    assert prompts(fake) == ["One"]
    assert (job["state"], job["done"], job["left_out"]) == ("done", 1, {})
    fake.ended.on_space_end(end(cause, model="other"))
    await eventually(lambda: prompts(fake) == ["One", "Three"])


@pytest.mark.parametrize("cause", [ResetCause.MANUAL, ResetCause.IDLE_TTL, "idle"])
@pytest.mark.parametrize(
    ("application", "sent"), [("", "Plain"), ("help@v1", "One of help"), ("sales", "One of sales")]
)
async def test_only_the_application_of_a_space_gets_its_prefixes(fake, tmp_path, cause, application, sent):
    file = tmp_path / "prefixes.yaml"
    file.write_text(
        "- {model: m, prompt: Plain, tenant: acme, replicas: [a]}\n"
        "- {model: m, prompt: One of help, tenant: acme, replicas: [a], application: help@v1}\n"
        "- {model: m, prompt: One of sales, tenant: acme, replicas: [a], application: sales}\n"
    )
    fake.warmer(file=file, again=WarmAgainSettings(tokens_per_hour=1000))
    if cause == "idle":
        fake.expiring = [space(application=application)]
        fake.flow.answer = lambda _: fake.expiring.clear() or (200, b"{}")  # the request has used the space
    else:
        fake.ended.on_space_end(end(cause, application=application))
    await eventually(lambda: fake.flow.requests)
    await settled()
    assert prompts(fake) == [sent]


@pytest.mark.parametrize("cause", [ResetCause.CROWDED_OUT, ResetCause.MERGED, ResetCause.TEMPLATE_CHANGED])
async def test_other_ends_send_nothing(fake, warmer, cause):
    warmer()
    fake.ended.on_space_end(end(cause))
    await settled()
    assert not fake.flow.requests


async def test_only_what_is_chosen_in_when(fake, warmer):
    warmer(when=("expiry",))
    fake.ended.on_space_end(end())
    fake.expiring = [space()]
    await settled()
    assert not fake.flow.requests
    fake.ended.on_space_end(end(ResetCause.IDLE_TTL))
    await eventually(lambda: prompts(fake) == ["One"])


async def test_without_a_budget_nothing_runs(fake, warmer):
    made = warmer(tokens_per_hour=0)
    fake.ended.on_space_end(end())
    await settled()
    assert not fake.flow.requests
    assert fake.clock.now == 100.0
    await made.reload(WarmSettings(file=made._settings.file, again={"tokens_per_hour": 1000}))
    await settled()
    assert not fake.flow.requests  # what ended before is over
    fake.ended.on_space_end(end())
    await eventually(lambda: prompts(fake) == ["One"])


async def test_a_space_about_to_expire_is_used_once(fake, warmer):
    warmer()
    fake.expiring = [space()]

    def used(_):
        fake.expiring.clear()  # the request has used the space
        return 200, b"{}"

    fake.flow.answer = used
    await eventually(lambda: prompts(fake) == ["One"])
    await settled()
    assert prompts(fake) == ["One"]


async def test_a_busy_replica_is_left_alone_until_it_is_idle(fake, warmer):
    made = warmer()
    fake.busy = {"a"}
    fake.ended.on_space_end(end())
    await settled()
    assert not fake.flow.requests
    assert (await made.overview())["again"]["waiting"] == 1
    fake.busy = set()
    await eventually(lambda: prompts(fake) == ["One"])


async def test_a_replica_that_is_never_idle_is_given_up(fake, warmer):
    made = warmer()
    fake.busy = {"a"}
    fake.ended.on_space_end(end())
    job = await job_of(made, "reset")
    assert not fake.flow.requests
    assert (job["state"], job["left_out"]) == ("cancelled", {"busy": 1})
    assert "never idle" in job["reason"]
    assert fake.warmth.left_out == [("m", "busy")]


async def test_one_request_at_a_time_at_a_replica(fake, warmer):
    warmer()
    fake.flow.open.clear()
    fake.ended.on_space_end(end())
    fake.ended.on_space_end(end(owner="tenant:euro"))
    await eventually(lambda: fake.flow.in_flight["a"] == 1)
    fake.flow.open.set()
    await eventually(lambda: sorted(prompts(fake)) == ["One", "Two"])
    assert fake.flow.most_in_flight["a"] == 1


async def test_a_budget_that_is_used_up_leaves_the_rest_out(fake, warmer):
    computed = {}
    fake.flow.answer = lambda request: answered(fake, request, 100, computed)
    made = warmer(tokens_per_hour=150)
    fake.ended.on_space_end(end())
    fake.ended.on_space_end(end(owner="tenant:euro"))
    job = await job_of(made, "reset")
    assert prompts(fake) == ["One"]
    assert (job["done"], job["left_out"]) == (1, {"budget": 1})
    again = (await made.overview())["again"]
    assert (again["tokens_used"], again["requests_used"], again["left_out"]["budget"]) == (100, 1, 1)


async def test_what_was_cached_costs_nothing_of_the_budget(fake, warmer):
    fake.flow.answer = lambda request: answered(fake, request, 100, {}, reused=96)
    warmer(tokens_per_hour=150)
    for _ in range(3):
        before = len(fake.flow.requests)
        fake.ended.on_space_end(end())
        await eventually(lambda before=before: len(fake.flow.requests) > before)
        await settled()
    assert fake.ledger.totals["reset"].prefill_tokens == 12


async def test_an_hour_later_the_budget_is_there_again(fake, warmer):
    fake.flow.answer = lambda request: answered(fake, request, 100, {})
    warmer(tokens_per_hour=100)
    fake.ended.on_space_end(end())
    await eventually(lambda: len(fake.flow.requests) == 1)
    fake.clock.now += 3600
    fake.ended.on_space_end(end())
    await eventually(lambda: len(fake.flow.requests) == 2)


async def test_a_replica_that_is_down_is_skipped_and_one_that_fails_is_reported(fake, warmer):
    made = warmer()
    fake.busy = {"a"}
    fake.ended.on_space_end(end())
    await settled()
    fake.replica("a").up, fake.busy = False, set()
    job = await job_of(made, "reset")
    assert (job["left_out"], fake.flow.requests) == ({"gone": 1}, [])
    fake.replica("a").up = True
    fake.flow.answer = lambda request: (503, b'{"error": {"message": "no"}}')
    fake.ended.on_space_end(end(ResetCause.IDLE_TTL))
    job = await job_of(made, "expiry")
    assert (job["done"], job["failed"], job["failures"][0]["message"]) == (0, 1, "no")


async def test_an_engine_that_hangs_is_given_up_and_the_others_go_on(fake, file):
    made = fake.warmer(file=file, max_seconds=0.5, again=WarmAgainSettings(tokens_per_hour=10_000))
    fake.flow.open.clear()
    fake.ended.on_space_end(end())
    fake.ended.on_space_end(end(model="other"))
    job = await job_of(made, "reset")
    assert sorted(prompts(fake)) == ["One", "Three"]
    assert (job["done"], job["failed"]) == (0, 2)
    assert "no answer within 0.5 seconds" in job["failures"][0]["message"]
    assert (await made.overview())["again"]["tokens_used"] == 0
    fake.flow.open.set()
    fake.ended.on_space_end(end(ResetCause.IDLE_TTL))
    assert (await job_of(made, "expiry"))["done"] == 1


async def test_on_a_schedule_everything_is_sent(fake, warmer):
    warmer(every_seconds=60.0, when=())
    began = fake.clock.now
    await eventually(lambda: len(fake.flow.requests) >= 6)
    assert sorted(prompts(fake)[:3]) == sorted(prompts(fake)[3:6]) == ["One", "Three", "Two"]
    assert min(fake.flow.times) >= began + 60


def answered(fake, request, tokens, _computed, reused=0):
    """As the flow does it: the prompt is settled before the answer ends."""
    hashes = [hash((request.body, number)) & (2**63 - 1) for number in range(tokens // 16)]
    fake.ledger.on_prompt(
        SettledPrompt(request, b"", BlockChain(hashes, 16, tokens), request.warmup_target, reused, 0.001, 0.0)
    )
    return 200, b"{}"


# The hottest prefixes


def client_request(fake, hashes, *, ids=None, target=B1, tenant="acme", at=0.0, reused=0, application=None, **fields):
    request = ChatRequest(
        Endpoint.CHAT,
        b"",
        b"secret text",
        {"model": "m", "messages": []} | fields,
        ((b"authorization", b"key"),),
        ModelId("m"),
        False,
        False,
        RequestId("r"),
        "session",
        0.0,
        Caller(fake.tenants[tenant], application=application),
        "1.2.3.4",
    )
    chain = BlockChain(hashes, 16, 16 * len(hashes) + 1)
    fake.hot.note(chain, reused, PrefixUse("m", tenant, "web", "r"), at)
    ids = b"".join(n.to_bytes(4, "little") for n in range(16 * len(hashes))) if ids is None else ids
    fake.hot_prompts.on_prompt(SettledPrompt(request, ids, chain, target, reused, 0.001, at))


def shared(fake, **more):
    """Requests that share eight blocks and differ behind them."""
    common = list(range(1000, 1008))
    for number in range(4):
        client_request(fake, [*common, 5 + number], at=fake.clock.now, reused=128 if number else 0, **more)
        fake.hot_prompts.refresh(fake.clock.now)


async def test_a_hot_prefix_is_sent_again_token_by_token_to_where_it_was_served(fake, warmer):
    made = warmer(hottest=4)
    shared(fake)
    assert (await made.overview())["again"]["hottest"] == 1
    fake.ended.on_space_end(end())
    await eventually(lambda: len(fake.flow.requests) == 2)
    hot = next(request for request in fake.flow.requests if request.fields["prompt"] != "One")
    assert hot.warmup_target == ("b", 1)
    assert (hot.endpoint, hot.fields["prompt"], hot.fields["max_tokens"]) == ("/v1/completions", list(range(128)), 1)
    assert hot.caller.tenant.id == "acme"
    assert (hot.session, hot.peer, hot.headers) == (None, "", ((b"content-type", b"application/json"),))


async def test_a_hot_prefix_is_sent_again_only_for_the_space_of_its_application(fake, warmer):
    warmer(hottest=4)
    shared(fake, application=Application("sales"))
    fake.ended.on_space_end(end())
    await eventually(lambda: prompts(fake) == ["One"])
    await settled()
    assert prompts(fake) == ["One"]
    fake.ended.on_space_end(end(application="sales"))
    await eventually(lambda: len(fake.flow.requests) == 2)
    assert prompts(fake)[1] == list(range(128))


async def test_a_clients_salt_stays_with_its_prefix(fake, warmer):
    warmer(hottest=4)
    shared(fake, cache_salt="mine")
    fake.ended.on_space_end(end())
    await eventually(lambda: len(fake.flow.requests) == 2)
    assert {request.fields.get("cache_salt") for request in fake.flow.requests} == {None, "mine"}


async def test_a_restarted_replica_gets_what_was_hot_there(fake, warmer):
    made = warmer(hottest=4)
    shared(fake)
    made.joined("c")
    made.joined("b")
    await eventually(lambda: [r.warmup_target for r in fake.flow.requests if r.fields["prompt"] != "Three"] != [])
    hot = [request for request in fake.flow.requests if isinstance(request.fields["prompt"], list)]
    assert [request.warmup_target for request in hot] == [("b", 1)]
    assert (await job_of(made, "restart"))["done"] == 1


@pytest.mark.parametrize("change", ["tenant", "ids", "cold"])
async def test_what_cannot_or_should_not_be_sent_is_not(fake, warmer, change):
    made = warmer(hottest=4)
    shared(fake, **({"ids": b""} if change == "ids" else {}))
    if change == "tenant":
        del fake.tenants["acme"]
    if change == "cold":
        fake.clock.now += 3600
        fake.hot_prompts.refresh(fake.clock.now)
    made.joined("b")
    await settled()
    assert not [request for request in fake.flow.requests if isinstance(request.fields["prompt"], list)]


def test_no_more_prefixes_are_kept_than_are_wanted(fake):
    fake.hot_prompts.most = 2
    for tenant in range(6):
        common = [tenant * 100 + number for number in range(8)]
        for number in range(4):
            client_request(fake, [*common, 5000 + number], at=100.0, reused=128 if number else 0)
            fake.hot_prompts.refresh(100.0)
        assert len(fake.hot_prompts) <= 2
    fake.hot_prompts.most = 0
    fake.hot_prompts.refresh(100.0)
    assert len(fake.hot_prompts) == 0


def test_a_prefix_that_another_one_begins_with_is_not_sent_for_itself(fake):
    fake.hot_prompts.most = 4
    longer = list(range(1000, 1012))
    for number in range(4):
        client_request(fake, [*longer[:8], 5 + number], at=1.0, reused=128 if number else 0)
        client_request(fake, [*longer, 50 + number], at=1.0, reused=192 if number else 0)
        fake.hot_prompts.refresh(1.0)
    assert len(fake.hot_prompts) == 2
    assert [hot.tokens for hot in fake.hot_prompts.longest()] == [192]
