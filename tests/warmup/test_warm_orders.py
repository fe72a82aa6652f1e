"""Orders of an operator: what is sent, what is refused, what a job reports."""

import asyncio

import pytest
from fake_gateway import CHAT, TEXT, FakeGateway, eventually, finished, order, settled

from gateway.core.errors import BadRequest, NoReplica, ShuttingDown
from gateway.core.request import Endpoint
from gateway.core.tenant import EVERYBODY


@pytest.fixture
def fake():
    return FakeGateway()


def refused(warmer, body):
    with pytest.raises(BadRequest) as caught:
        warmer.start(body, "ops")
    return caught.value.param, caught.value.code, caught.value.message


async def test_every_prefix_goes_to_every_rank_of_every_replica_of_its_model(fake):
    warmer = fake.warmer()
    begun = warmer.start(order(CHAT, TEXT, {**CHAT, "model": "other"}), "ops")
    assert (begun["state"], begun["total"], begun["done"], begun["by"]) == ("running", 7, 0, "ops")
    job = await finished(warmer, begun)
    assert (job["state"], job["total"], job["done"], job["failed"], job["failures"]) == ("done", 7, 7, 0, [])
    assert fake.flow.targets == [*[("a", 0)] * 2, *[("b", 0)] * 2, *[("b", 1)] * 2, ("c", 0)]


async def test_the_request_is_one_as_a_client_would_send_it(fake):
    warmer = fake.warmer()
    await finished(warmer, warmer.start(order({**TEXT, "tenant": "acme", "scope": "de", "replicas": ["a"]}), ""))
    (request,), (grant,) = fake.flow.requests, fake.flow.grants
    assert request.endpoint is Endpoint.COMPLETIONS
    assert fake.flow.bodies == [{**TEXT, "max_tokens": 1, "stream": False, "n": 1}]
    assert request.fields == fake.flow.bodies[0]
    assert (request.model, request.stream, request.session) == ("m", False, None)
    assert dict(request.headers)[b"content-type"] == b"application/json"
    assert request.request_id.startswith("warm-")
    assert (request.caller.tenant, request.caller.scope) == (fake.tenants["acme"], "de")
    assert grant.caller is request.caller
    grant.charge(10**12, 0.0)
    grant.correct(0)
    assert list(grant.headers(0.0)) == []
    grant.release()


async def test_request_ids_are_unique(fake):
    warmer = fake.warmer()
    for job in [warmer.start(order(CHAT, TEXT), "") for _ in range(2)]:
        await finished(warmer, job)
    ids = [request.request_id for request in fake.flow.requests]
    assert len(set(ids)) == len(ids) == 12


async def test_order_may_name_replicas(fake):
    warmer = fake.warmer()
    begun = warmer.start(order(CHAT, {**CHAT, "model": "other"}, replicas=["a"]), "")
    assert begun["total"] == 1
    await finished(warmer, begun)
    assert fake.flow.targets == [("a", 0)]


async def test_tenant_stays_in_its_regions(fake):
    warmer = fake.warmer()
    await finished(warmer, warmer.start(order({**CHAT, "tenant": "euro"}), ""))
    assert fake.flow.targets == [("a", 0)]


async def test_without_isolation_a_prefix_is_everybodys(fake):
    warmer = fake.warmer()
    await finished(warmer, warmer.start(order({**CHAT, "replicas": ["a"]}), ""))
    assert fake.flow.requests[0].caller.tenant == EVERYBODY.tenant


async def test_replicas_that_are_down_are_left_out_and_reported(fake):
    fake.replica("b").up = False
    warmer = fake.warmer()
    job = await finished(warmer, warmer.start(order(CHAT, TEXT), ""))
    assert (job["total"], job["down"], job["state"]) == (2, ["b"], "done")
    assert fake.flow.targets == [("a", 0), ("a", 0)]


@pytest.mark.parametrize(
    ("body", "param", "code", "message"),
    [
        ({}, "prefixes", "invalid_type", "expected a list of prefixes, got nothing"),
        (order(), "prefixes", "invalid_type", "expected a list of prefixes, got an empty list"),
        (order(CHAT, prefix=1), "prefix", "unknown_parameter", "expected one of prefixes, declared, replicas, req"),
        (order(CHAT, {**CHAT, "messages": 3}), "prefixes[1].messages", "invalid_type", "a list of messages, got a num"),
        (order(CHAT, {**CHAT, "model": "z"}), "prefixes[1].model", "model_not_found", "Known models: m, other."),
        (order({**CHAT, "tenant": "zed"}), "prefixes[0].tenant", "unknown_tenant", "there is no tenant 'zed'."),
        (order({**CHAT, "replicas": ["c"]}), "prefixes[0].replicas", "unknown_replica", "Those that do: a, b."),
        (order({**CHAT, "replicas": ["zz"]}), "prefixes[0].replicas", "unknown_replica", "no replica 'zz' serves 'm'."),
        (
            order({**CHAT, "tenant": "euro", "replicas": ["a", "b"]}),
            "prefixes[0].replicas",
            "region_not_allowed",
            "b is not in a region of its tenant: eu.",
        ),
        (
            order({**CHAT, "tenant": "euro"}, replicas=["b"]),
            "prefixes[0].tenant",
            "region_not_allowed",
            "b: not in a region of its tenant: eu.",
        ),
        (order(CHAT, replicas=["zz"]), "replicas", "unknown_replica", "Known replicas: a, b, c."),
        (order(CHAT, replicas=[]), "replicas", "invalid_type", "got an empty list"),
        (order(CHAT, replicas=["c"]), "replicas", "nothing_to_send", "none of them serves the model"),
        (order(CHAT, requests_per_second=0), "requests_per_second", "invalid_value", "at least 0.001"),
        (order(CHAT, requests_per_second=True), "requests_per_second", "invalid_value", "at least 0.001"),
        (order(CHAT, requests_per_second="9"), "requests_per_second", "invalid_value", "at least 0.001"),
        (order(CHAT, requests_per_second=float("inf")), "requests_per_second", "invalid_value", "at least 0.001"),
        (order(CHAT, requests_per_second=float("nan")), "requests_per_second", "invalid_value", "at least 0.001"),
    ],
)
async def test_a_wrong_order_is_refused_and_nothing_is_sent(fake, body, param, code, message):
    warmer = fake.warmer()
    reported = refused(warmer, body)
    assert reported[:2] == (param, code)
    assert message in reported[2]
    await settled()
    assert fake.flow.requests == []


async def test_the_tenant_has_to_be_named_where_tenants_are_apart(fake):
    fake.isolated = True
    warmer = fake.warmer()
    param, code, message = refused(warmer, order({**CHAT, "tenant": "acme"}, CHAT))
    assert (param, code) == ("prefixes[1].tenant", "missing_required_parameter")
    assert "say whose cache it is for" in message
    assert (await finished(warmer, warmer.start(order({**CHAT, "tenant": "acme"}), "")))["done"] == 3


async def test_named_replicas_have_to_be_up(fake):
    fake.replica("b").up = None
    warmer = fake.warmer()
    assert refused(warmer, order(CHAT, replicas=["a", "b"]))[:2] == ("replicas", "replica_down")
    assert refused(warmer, order({**CHAT, "replicas": ["b"]}))[:2] == ("prefixes[0].replicas", "replica_down")
    fake.replica("a").up = False
    assert refused(warmer, order(CHAT))[:2] == ("prefixes[0].model", "no_replica")
    await settled()
    assert fake.flow.requests == []


VLLM = b'{"error": {"message": "Conversation roles\\nmust  alternate", "type": "BadRequestError", "code": 400}}'


@pytest.mark.parametrize(
    ("answer", "status", "message"),
    [
        ((400, VLLM), 400, "Conversation roles must alternate"),
        ((400, b'{"object": "error", "message": "No user query found"}'), 400, "No user query found"),
        ((422, b'{"detail": "nope"}'), 422, "nope"),
        ((500, b'{"error": "broken"}'), 500, "broken"),
        ((500, b"Internal Server Error"), 500, "Internal Server Error"),
        ((503, b""), 503, "no message"),
        ((500, b"\xff" + b"x" * 100_000), 500, "\ufffd" + "x" * 299 + "…"),
        (NoReplica("Replica a is not up.", code="no_replica"), 503, "Replica a is not up."),
    ],
)
async def test_a_failure_is_reported_with_the_engines_words(fake, answer, status, message):
    fake.flow.answer = lambda request: answer if request.fields.get("prompt") else (200, b"{}")
    warmer = fake.warmer()
    job = await finished(warmer, warmer.start(order(CHAT, {**TEXT, "replicas": ["a"]}), ""))
    assert (job["state"], job["total"], job["done"], job["failed"]) == ("done", 4, 3, 1)
    assert job["failures"] == [{"index": 1, "replica": "a", "rank": 0, "status": status, "message": message}]


async def test_a_failure_of_the_gateway_itself_reports_only_where_to_look(fake):
    fake.flow.answer = lambda request: ValueError("the prompt was: do not tell")
    warmer = fake.warmer()
    job = await finished(warmer, warmer.start(order({**CHAT, "replicas": ["a"]}), ""))
    (failure,) = job["failures"]
    assert failure["status"] is None
    assert fake.flow.requests[0].request_id in failure["message"]
    assert "do not tell" not in str(job)


async def test_an_answer_that_never_came_is_a_failure(fake):
    async def silent(request, sink, grant):
        pass

    fake.flow.serve = silent
    warmer = fake.warmer()
    job = await finished(warmer, warmer.start(order({**CHAT, "replicas": ["a"]}), ""))
    assert [(each["status"], each["message"]) for each in job["failures"]] == [(None, "no answer")]


async def test_the_list_of_failures_is_bounded(fake):
    fake.flow.answer = lambda request: (500, b"broken")
    warmer = fake.warmer()
    job = await finished(warmer, warmer.start(order(*[CHAT] * 100), ""))
    assert job["failed"] == job["total"] == 300
    assert len(job["failures"]) == 50


async def test_a_job_reports_its_progress(fake):
    fake.flow.open.clear()
    warmer = fake.warmer()
    begun = warmer.start(order(CHAT, TEXT, replicas=["a"]), "")
    await settled()
    fake.clock.now += 3
    assert warmer.job(begun["id"]).items() >= {"state": "running", "done": 0, "total": 2}.items()
    assert warmer.job(begun["id"])["seconds"] >= 3
    fake.flow.open.set()
    job = await finished(warmer, begun)
    assert job["done"] == 2
    fake.clock.now += 1000
    assert warmer.job(begun["id"])["seconds"] == job["seconds"] < 100
    assert warmer.job("unknown") is None


async def test_the_last_jobs_are_kept(fake):
    warmer = fake.warmer()
    ended = [await finished(warmer, warmer.start(order(CHAT), "")) for _ in range(40)]
    assert [job for job in ended if warmer.job(job["id"]) is not None] == ended[-32:]


async def test_a_running_job_is_never_forgotten(fake):
    fake.flow.open.clear()
    warmer = fake.warmer()
    running = warmer.start(order({**CHAT, "model": "other"}), "")
    await eventually(lambda: fake.flow.in_flight["c"] == 1)

    async def serve(request, sink, grant):
        sink.start(200, [])

    fake.flow.serve = serve
    for _ in range(40):
        await finished(warmer, warmer.start(order(CHAT), ""))
    assert warmer.job(running["id"])["state"] == "running"
    fake.flow.open.set()
    assert (await finished(warmer, running))["state"] == "done"


async def test_too_many_orders_at_a_time_are_refused(fake):
    fake.flow.open.clear()
    warmer = fake.warmer()
    begun = [warmer.start(order(CHAT), "") for _ in range(32)]
    assert refused(warmer, order(CHAT))[1] == "too_many_jobs"
    fake.flow.open.set()
    for job in begun:
        await finished(warmer, job)
    assert (await finished(warmer, warmer.start(order(CHAT), "")))["state"] == "done"


@pytest.mark.parametrize("begun", [False, True], ids=["before its first step", "with requests in flight"])
async def test_stopping_cancels_the_jobs(fake, begun):
    fake.flow.open.clear()
    warmer = fake.warmer()
    job = warmer.start(order(CHAT, TEXT), "")
    if begun:
        await eventually(lambda: sum(fake.flow.in_flight.values()) == 4)
    await warmer.stop()
    ended = warmer.job(job["id"])
    assert (ended["state"], ended["reason"], ended["done"]) == ("cancelled", "the gateway is shutting down", 0)
    assert sum(fake.flow.in_flight.values()) == 0
    with pytest.raises(ShuttingDown):
        warmer.start(order(CHAT), "")
    assert [task for task in asyncio.all_tasks() if task.get_name().startswith("warm-")] == []
