"""What is declared in the configuration, sent by an operator's order; and what is reported of it."""

import asyncio

import pytest
from fake_gateway import FakeGateway, eventually, finished, order, settled

from gateway.config.warmup_settings import WarmSettings
from gateway.core.errors import BadRequest
from gateway.core.request import Endpoint

PREFIXES = """\
- {model: m, prompt: One}
- {model: m, prompt: Two, tenant: euro, scope: de}
- {model: other, messages: [{role: user, content: Three}]}
- {model: m, prompt: Four, replicas: [b]}
"""
ALL = {"declared": True}


@pytest.fixture
def fake():
    return FakeGateway()


@pytest.fixture
def file(tmp_path):
    file = tmp_path / "prefixes.yaml"
    file.write_text(PREFIXES)
    return file


def refused(warmer, body):
    with pytest.raises(BadRequest) as caught:
        warmer.start(body, "ops")
    return caught.value.param, caught.value.code


def sent(fake):
    """Replica, rank and prompt of every request."""
    bodies = zip(fake.flow.requests, fake.flow.bodies, strict=True)
    return sorted((*request.warmup_target, body.get("prompt", "-")) for request, body in bodies)


async def test_everything_declared_goes_where_it_belongs(fake, file):
    warmer = fake.warmer(file=file)
    begun = warmer.start(ALL, "ops")
    assert (begun["total"], begun["by"], begun["joined"]) == (7, "ops", None)
    job = await finished(warmer, begun)
    assert (job["state"], job["done"], job["failed"]) == ("done", 7, 0)
    both_ranks = [("b", rank, prompt) for rank in (0, 1) for prompt in ("Four", "One")]
    assert sent(fake) == sorted([("a", 0, "One"), ("a", 0, "Two"), *both_ranks, ("c", 0, "-")])
    assert fake.holds == []


async def test_the_order_may_name_replicas_and_a_rate(fake, file):
    warmer = fake.warmer(file=file)
    begun = warmer.start(ALL | {"replicas": ["a"], "requests_per_second": 500}, "")
    assert (begun["total"], begun["requests_per_second"]) == (2, 500)
    await finished(warmer, begun)
    assert sent(fake) == [("a", 0, "One"), ("a", 0, "Two")]


async def test_what_is_down_is_left_out_and_reported(fake, file):
    fake.replica("b").up = False
    fake.replica("c").up = None
    warmer = fake.warmer(file=file)
    job = await finished(warmer, warmer.start(ALL, ""))
    assert (job["total"], job["down"]) == (2, ["b", "c"])
    assert refused(warmer, ALL | {"replicas": ["a", "b"]}) == ("replicas", "replica_down")
    fake.replica("a").up = False
    assert refused(warmer, ALL) == ("declared", "nothing_to_send")


async def test_what_cannot_be_sent_any_more_is_left_out(fake, file):
    warmer = fake.warmer(file=file)
    del fake.tenants["euro"]
    await finished(warmer, warmer.start(ALL | {"replicas": ["a"]}, ""))
    assert sent(fake) == [("a", 0, "One")]


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"declared": False}, "declared", "invalid_value"),
        ({"declared": "true"}, "declared", "invalid_value"),
        ({"declared": 1}, "declared", "invalid_value"),
        ({"declared": None}, "declared", "invalid_value"),
        (order({"model": "m", "prompt": "x"}, declared=True), "declared", "conflict"),
        ({"declared": True, "prefixes": None}, "declared", "conflict"),
        (ALL | {"replicas": ["zz"]}, "replicas", "unknown_replica"),
        (ALL | {"replicas": []}, "replicas", "invalid_type"),
        (ALL | {"requests_per_second": 0}, "requests_per_second", "invalid_value"),
        (ALL | {"rate": 1}, "rate", "unknown_parameter"),
    ],
)
async def test_a_wrong_order_is_refused_and_nothing_is_sent(fake, file, body, param, code):
    warmer = fake.warmer(file=file)
    assert refused(warmer, body) == (param, code)
    await settled()
    assert fake.flow.requests == []


async def test_where_nothing_is_declared_that_is_reported(fake):
    warmer = fake.warmer()
    assert refused(warmer, ALL) == ("declared", "nothing_declared")
    overview = await warmer.overview()
    assert (overview["declared"], overview["jobs"], overview["totals"]) == ([], [], [])
    assert overview["again"]["enabled"] is False


async def test_what_is_declared_is_listed_without_its_text(fake, file):
    fake.tokens = {"One": 11, "Two": 22}
    reported = await fake.warmer(file=file).overview()
    keys = ("model", "tenant", "scope", "application", "replicas", "tokens")
    assert reported["declared"] == [
        dict(zip(keys, values, strict=True))
        for values in (
            ("m", None, "", "", None, 11),
            ("m", "euro", "de", "", None, 22),
            ("other", None, "", "", None, None),
            ("m", None, "", "", ["b"], None),
        )
    ]


async def test_prompts_are_counted_as_they_are_sent_and_only_once(fake, file):
    fake.tokens = {"One": 11, "Two": 22, "Four": 44}
    warmer = fake.warmer(file=file)
    await warmer.overview()
    model, endpoint, fields = fake.counted[2]
    assert (model, endpoint) == ("other", Endpoint.CHAT)
    assert fields["messages"] == [{"role": "user", "content": "Three"}]
    fake.counted.clear()
    await warmer.overview()
    assert [model for model, _, _ in fake.counted] == ["other"]  # not counted before, perhaps it can be now


async def test_they_are_counted_anew_for_another_tokenizer_or_another_file(fake, file):
    fake.tokens = {"One": 11, "New": 5}
    warmer = fake.warmer(file=file)
    await warmer.overview()
    fake.tokens["One"] = 12
    warmer.recount()
    assert (await warmer.overview())["declared"][0]["tokens"] == 12
    file.write_text("- {model: m, prompt: New}")
    await warmer.reload(WarmSettings(file=file))
    assert [each["tokens"] for each in (await warmer.overview())["declared"]] == [5]


async def test_a_count_that_comes_late_is_not_taken_for_the_new_tokenizers(fake, file):
    fake.tokens = {"One": 11}
    asked, answer = asyncio.Event(), asyncio.Event()
    count = fake.count

    async def slow(*prompt):
        found = await count(*prompt)
        asked.set()
        await answer.wait()
        return found

    fake.count = slow
    warmer = fake.warmer(file=file)
    asking = asyncio.create_task(warmer.overview())
    await asked.wait()
    fake.tokens["One"] = 12
    warmer.recount()
    answer.set()
    await asking
    assert (await warmer.overview())["declared"][0]["tokens"] == 12


async def test_the_last_jobs_are_listed_newest_first(fake, file):
    warmer = fake.warmer(file=file)
    first = await finished(warmer, warmer.start(ALL, "ops"))
    warmer.joined("a")
    await eventually(lambda: fake.held.get("a") is False)
    jobs = (await warmer.overview())["jobs"]
    assert [(job["joined"], job["by"], job["total"]) for job in jobs] == [("a", "", 2), (None, "ops", 7)]
    assert jobs[1] == first
