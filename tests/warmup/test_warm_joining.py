"""What happens by itself: a replica that joins gets its prefixes and is held back meanwhile; and the file of them."""

import pytest
import structlog
from fake_gateway import CHAT, FakeGateway, eventually, order, settled

from gateway.config.warmup_settings import WarmSettings
from gateway.core.errors import ConfigInvalid
from gateway.core.tenant import Tenant

PREFIXES = """\
- {model: m, prompt: One}
- {model: m, prompt: Two, tenant: euro}
- {model: other, prompt: Three}
- {model: m, prompt: Four, replicas: [b]}
"""


@pytest.fixture
def fake():
    return FakeGateway()


@pytest.fixture
def file(tmp_path):
    file = tmp_path / "prefixes.yaml"
    file.write_text(PREFIXES)
    return file


def prompts(fake):
    return [body["prompt"] for body in fake.flow.bodies]


def released(fake, replica):
    return lambda: fake.held.get(replica) is False


async def test_a_replica_that_joins_gets_what_is_declared_for_it(fake, file):
    warmer = fake.warmer(file=file)
    warmer.joined("a")
    assert fake.held == {"a": True}
    await eventually(released(fake, "a"))
    assert sorted(prompts(fake)) == ["One", "Two"]
    warmer.joined("b")
    await eventually(released(fake, "b"))
    assert sorted(prompts(fake)[2:]) == ["Four", "Four", "One", "One"]
    assert {request.warmup_target for request in fake.flow.requests[2:]} == {("b", 0), ("b", 1)}
    assert fake.holds == [("a", True), ("a", False), ("b", True), ("b", False)]


async def test_replicas_that_join_early_wait_for_the_start(fake, file):
    fake.flow.open.clear()
    warmer = fake.warmer(file=file, started=False)
    for replica in ("a", "a", "b", "c"):
        warmer.joined(replica)
    warmer.left("b")
    await settled()
    assert (fake.flow.requests, fake.holds) == ([], [])
    warmer.start_background()
    assert fake.holds == [("a", True), ("c", True)]
    fake.flow.open.set()
    await eventually(lambda: fake.held == {"a": False, "c": False})
    assert sorted(prompts(fake)) == ["One", "Three", "Two"]


async def test_it_is_held_back_until_the_last_answer(fake, file):
    fake.flow.open.clear()
    warmer = fake.warmer(file=file)
    warmer.joined("a")
    await eventually(lambda: fake.flow.in_flight["a"] == 2)
    await settled()
    assert fake.held == {"a": True}
    fake.flow.open.set()
    await eventually(released(fake, "a"))


async def test_without_prefixes_it_is_not_held_back(fake, file):
    warmer = fake.warmer()
    warmer.joined("a")
    file.write_text("- {model: other, prompt: x}\n- {model: m, prompt: x, tenant: euro}\n")
    declared = fake.warmer(file=file)
    declared.joined("b")
    declared.joined("unknown")
    await settled()
    assert fake.holds == []
    assert fake.flow.requests == []


async def test_rate_and_limit_are_those_of_the_settings(fake, file):
    warmer = fake.warmer(file=file, requests_per_second=0.5)
    warmer.joined("a")
    await eventually(released(fake, "a"))
    first, second = fake.flow.times
    assert second - first >= 2 - 1e-9


async def test_released_though_everything_failed(fake, file):
    fake.flow.answer = lambda request: (400, b'{"error": {"message": "No user query found"}}')
    warmer = fake.warmer(file=file)
    warmer.joined("a")
    with structlog.testing.capture_logs() as logs:
        await eventually(released(fake, "a"))
    (ended,) = [line for line in logs if line["event"] == "warming_ended"]
    assert (ended["log_level"], ended["joined"], ended["failed"]) == ("warning", "a", 2)


async def test_released_when_the_time_is_over(fake, file):
    fake.flow.open.clear()
    warmer = fake.warmer(file=file, max_seconds=0.05)
    warmer.joined("a")
    with structlog.testing.capture_logs() as logs:
        await eventually(released(fake, "a"))
    (ended,) = [line for line in logs if line["event"] == "warming_ended"]
    assert ended["reason"] == "not done within 0.05 seconds (warm.max_seconds)"
    assert warmer.job(ended["job"]).items() >= {"state": "cancelled", "done": 0, "joined": "a"}.items()
    assert fake.flow.in_flight["a"] == 0


@pytest.mark.parametrize("begun", [False, True], ids=["at once", "with requests in flight"])
async def test_released_when_the_replica_goes_down(fake, file, begun):
    fake.flow.open.clear()
    warmer = fake.warmer(file=file)
    warmer.joined("a")
    if begun:
        await eventually(lambda: fake.flow.in_flight["a"] == 2)
    warmer.left("a")
    await eventually(released(fake, "a"))
    assert fake.flow.in_flight["a"] == 0
    assert len(fake.flow.requests) == (2 if begun else 0)
    warmer.left("a")
    warmer.left("b")


@pytest.mark.parametrize("begun", [False, True], ids=["at once", "with requests in flight"])
async def test_released_when_the_gateway_stops(fake, file, begun):
    fake.flow.open.clear()
    warmer = fake.warmer(file=file)
    warmer.joined("a")
    if begun:
        await eventually(lambda: fake.flow.in_flight["a"] == 2)
        warmer.joined("a")
    await warmer.stop()
    await settled()
    assert fake.held == {"a": False}
    warmer.joined("a")
    await settled()
    assert fake.held == {"a": False}


async def test_released_though_the_gateway_fails(fake, file):
    fake.flow.answer = lambda request: RuntimeError("a bug")
    warmer = fake.warmer(file=file)
    warmer.joined("a")
    await eventually(released(fake, "a"))


async def test_a_replica_that_flaps_is_filled_once_at_a_time(fake, file):
    fake.flow.open.clear()
    warmer = fake.warmer(file=file)
    for _ in range(5):
        warmer.joined("a")
        await settled()
        warmer.left("a")
        warmer.joined("a")
        warmer.joined("a")
    await eventually(lambda: fake.flow.in_flight["a"] == 2)
    await settled()
    assert fake.flow.in_flight == {"a": 2}
    assert fake.flow.most_in_flight == {"a": 2}
    assert fake.held == {"a": True}
    sent = len(fake.flow.requests)
    fake.flow.open.set()
    await eventually(released(fake, "a"))
    await settled()
    assert len(fake.flow.requests) == sent
    assert fake.holds[-1] == ("a", False)


async def test_a_restart_while_it_is_filled_begins_anew(fake, file):
    fake.flow.open.clear()
    warmer = fake.warmer(file=file)
    warmer.joined("a")
    await eventually(lambda: fake.flow.in_flight["a"] == 2)
    warmer.joined("a")
    await eventually(lambda: len(fake.flow.requests) == 4)
    fake.flow.open.set()
    await eventually(released(fake, "a"))
    assert prompts(fake) == ["One", "Two", "One", "Two"]
    assert [held for _, held in fake.holds] == [True, True, False]


async def test_orders_go_on_when_a_replica_leaves(fake, file):
    fake.flow.open.clear()
    warmer = fake.warmer(file=file)
    job = warmer.start(order(CHAT, replicas=["a"]), "ops")
    await eventually(lambda: fake.flow.in_flight["a"] == 1)
    warmer.left("a")
    await settled()
    assert warmer.job(job["id"])["state"] == "running"
    await warmer.stop()


async def test_a_prefix_whose_tenant_is_gone_is_left_out(fake, file):
    warmer = fake.warmer(file=file)
    del fake.tenants["euro"]
    with structlog.testing.capture_logs() as logs:
        warmer.joined("a")
        await eventually(released(fake, "a"))
    assert prompts(fake) == ["One"]
    assert [(line["event"], line["index"]) for line in logs if line["log_level"] == "warning"] == [
        ("warming_prefix_left_out", 1)
    ]


async def test_no_line_of_the_log_holds_a_prompt(fake, file):
    file.write_text("- {model: m, prompt: do not tell}\n- {model: m, prompt: do not tell, tenant: acme}\n")
    fake.flow.answer = lambda request: (400, b'{"message": "cannot read: do not tell"}')
    with structlog.testing.capture_logs() as logs:
        warmer = fake.warmer(file=file)
        del fake.tenants["acme"]
        warmer.joined("a")
        await eventually(released(fake, "a"))
        file.write_text("- {model: m, prompt: [do not tell\n- {messages: do not tell}")
        await warmer.reload(WarmSettings(file=file))
    assert len(logs) >= 4
    assert "do not tell" not in str(logs)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("- {model: m}\n", ":1: [0]: neither messages"),
        ("- {model: m, prompt: x}\n- model: z\n  prompt: x\n", ":2: [1].model: this model does not exist here."),
        ("- model: m\n  prompt: x\n  tenant: zed\n", ":3: [0].tenant: there is no tenant 'zed'."),
        ("- model: m\n  prompt: x\n  replicas: [c]\n", ":3: [0].replicas: no replica 'c' serves 'm'."),
        (
            "- {model: m, prompt: x, tenant: euro, replicas: [b]}\n",
            ":1: [0].replicas: b is not in a region of its tenant: eu.",
        ),
    ],
)
def test_mistakes_in_the_file_stop_the_start(fake, file, content, expected):
    file.write_text(content)
    with pytest.raises(ConfigInvalid) as caught:
        fake.warmer(file=file)
    (problem,) = caught.value.problems
    assert problem.startswith(f"{file}{expected}")


def test_every_mistake_in_the_file_is_reported(fake, file):
    fake.isolated = True
    with pytest.raises(ConfigInvalid) as caught:
        fake.warmer(file=file)
    assert [problem.split(": ")[1] for problem in caught.value.problems] == ["[0].tenant", "[2].tenant", "[3].tenant"]


async def test_reload_takes_over_the_file(fake, file):
    warmer = fake.warmer(file=file)
    fake.tenants["new"] = Tenant("new")
    file.write_text("- {model: m, prompt: Five, tenant: new}\n")
    await warmer.reload(WarmSettings(file=file, requests_per_second=0.25))
    assert fake.holds == []
    warmer.joined("a")
    await eventually(released(fake, "a"))
    assert prompts(fake) == ["Five"]
    await warmer.reload(WarmSettings())
    warmer.joined("a")
    await settled()
    assert prompts(fake) == ["Five"]


@pytest.mark.parametrize("content", ["- {model: m}\n", "- {model: m, prompt: x, tenant: zed}\n", "[", ""])
async def test_a_mistake_on_reload_keeps_what_was_there(fake, file, content):
    warmer = fake.warmer(file=file)
    file.write_text(content)
    with structlog.testing.capture_logs() as logs:
        await warmer.reload(WarmSettings(file=file, requests_per_second=1000))
    (line,) = logs
    assert (line["event"], line["log_level"]) == ("warm_file_invalid", "error")
    assert line["problems"][0].startswith(f"{file}:1: ")
    warmer.joined("a")
    await eventually(released(fake, "a"))
    assert sorted(prompts(fake)) == ["One", "Two"]


def test_the_settings_want_a_file_that_is_there(tmp_path):
    with pytest.raises(ValueError, match="no such file"):
        WarmSettings(file=tmp_path / "none.yaml")
