"""The prefixes of registered prompts whose current version is another one now."""

import pytest
import structlog
from fake_gateway import FakeGateway, eventually, settled

from gateway.core.block_chain import BlockChain
from gateway.core.ports import SettledPrompt
from gateway.warmup.declared import declare


@pytest.fixture
def fake():
    return FakeGateway()


def prefix(application, model="m", **more):
    return declare({"model": model, "prompt": application, "application": application, **more})


def prompts(fake):
    return sorted({body["prompt"] for body in fake.flow.bodies})


async def jobs(warmer):
    return (await warmer.overview())["jobs"]


async def test_new_versions_are_sent_and_others_are_not(fake):
    fake.registered = [prefix("a@2"), prefix("b@2")]
    warmer = fake.warmer()
    warmer.warm_applications(["a@2"])
    await eventually(lambda: len(fake.flow.requests) == 3)
    assert prompts(fake) == ["a@2"]
    assert fake.flow.targets == [("a", 0), ("b", 0), ("b", 1)]


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"model": "other"}, "no replica of 'other' that it could be sent to is up."),
        ({"model": "gone"}, "this model does not exist here. Known models: m, other."),
        ({"tenant": "gone"}, "there is no tenant 'gone'."),
    ],
)
async def test_a_prompt_that_cannot_be_sent_is_logged_and_the_others_are_sent(fake, bad, said):
    fake.replica("c").up = False
    fake.registered = [prefix("first@2"), prefix("bad@2", **bad), prefix("last@2")]
    warmer = fake.warmer()
    with structlog.testing.capture_logs() as logs:
        warmer.warm_applications(["first@2", "bad@2", "last@2"])
    await eventually(lambda: len(fake.flow.requests) == 6)
    assert prompts(fake) == ["first@2", "last@2"]
    problems = [(line["prompt"], line["problem"]) for line in logs if line["event"] == "warming_prompt_left_out"]
    assert problems == [("bad@2", said)]


@pytest.mark.parametrize("changed", [["a@2"], ["unknown@1"], []])
async def test_without_anything_to_send_there_is_no_job(fake, changed):
    fake.registered = [prefix("a@2", "other")]
    fake.replica("c").up = False
    warmer = fake.warmer()
    warmer.warm_applications(changed)
    await settled()
    assert (fake.flow.requests, await jobs(warmer)) == ([], [])


async def test_the_job_and_the_totals_name_the_cause(fake):
    fake.registered = [prefix("a@2")]

    def answered(request):
        chain = BlockChain([1, 2], 16, 32)
        fake.ledger.on_prompt(SettledPrompt(request, b"", chain, request.warmup_target, 0, 0.001, 0.0))
        return 200, b"{}"

    fake.flow.answer = answered
    warmer = fake.warmer()
    warmer.warm_applications(["a@2"])
    await eventually(lambda: len(fake.flow.requests) == 3)
    await eventually(lambda: fake.ledger.totals["prompt_version"].requests == 3)
    overview = await warmer.overview()
    assert [(job["cause"], job["by"]) for job in overview["jobs"]] == [("prompt_version", "")]
    assert [each["cause"] for each in overview["totals"]] == ["prompt_version"]
    assert {cause for _, cause, *_ in fake.warmth.warmed} == {"prompt_version"}


async def test_after_the_end_nothing_is_sent(fake):
    fake.registered = [prefix("a@2")]
    warmer = fake.warmer()
    await warmer.stop()
    warmer.warm_applications(["a@2"])
    await settled()
    assert fake.flow.requests == []
