"""A changed configuration is taken over by a running ``prefix-gateway serve``."""

import asyncio
import json
import signal

import httpx
import pytest
import yaml
from running_gateway import CHAT, Metrics, eventually
from tenancy import SECRET, SYSTEM, key, tenant

SPACES = {"secret": SECRET}


def tenants(*reported):
    """As they stand in a file."""
    return json.loads(json.dumps(reported))


@pytest.fixture
async def setup(serve, start_engine, tmp_path):
    """A gateway with one tenant, and a function that changes its file and waits until that was noticed."""
    engine = await start_engine()
    serving = await serve(engine.url, tenants=tenants(tenant("a")), spaces=SPACES)
    file = tmp_path / "gateway.yaml"

    async def change(*, ask=True, expect="reloaded", text=None, **sections):
        before = len(serving.events(expect))
        file.write_text(text if text is not None else yaml.safe_dump(yaml.safe_load(file.read_text()) | sections))
        if ask:
            serving.process.send_signal(signal.SIGHUP)
        await eventually(lambda: len(serving.events(expect)) > before)

    return serving, engine, change


async def ask(serving, name, **fields):
    body = {"model": "demo", "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "x"}]}
    async with httpx.AsyncClient(base_url=serving.url) as client:
        headers = {"authorization": f"Bearer {key(name)}"}
        return await client.post(CHAT, json=body | {"max_tokens": 1} | fields, headers=headers)


async def spaces(serving, state):
    async with httpx.AsyncClient(base_url=serving.admin_url) as client:
        return (await client.get("/admin/api/spaces", params={"state": state})).json()["spaces"]


def cached(answer):
    assert answer.status_code == 200, answer.text
    return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


async def test_keys_come_and_go_without_a_restart(setup):
    serving, _, change = setup
    assert (await ask(serving, "b")).status_code == 401
    await change(tenants=tenants(tenant("a"), tenant("b")))
    assert [(await ask(serving, name)).status_code for name in "ab"] == [200, 200]
    await change(tenants=tenants(tenant("b")))
    assert [(await ask(serving, name)).status_code for name in "ab"] == [401, 200]


async def test_a_change_is_noticed_without_being_asked(setup):
    serving, _, change = setup
    await change(ask=False, tenants=tenants(tenant("b")))
    assert [(await ask(serving, name)).status_code for name in "ab"] == [401, 200]


async def test_a_stream_that_runs_goes_on(setup):
    serving, _, change = setup
    body = {"model": "demo", "messages": [{"role": "user", "content": "x"}], "stream": True, "max_tokens": 40}
    async with (
        httpx.AsyncClient(base_url=serving.url) as client,
        client.stream("POST", CHAT, json=body, headers={"authorization": f"Bearer {key('a')}"}) as answer,
    ):
        lines = answer.aiter_lines()
        assert (await anext(lines)).startswith("data: ")
        await change(tenants=tenants(tenant("b")))
        rest = [line async for line in lines]
    assert rest[-2:] == ["data: [DONE]", ""] or rest[-1] == "data: [DONE]"
    assert not [line for line in rest if '"error"' in line]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("models: [", "not valid YAML"),
        ("models: [{id: demo, replicas: []}]", "expected at least one replica"),
        ('models: [{id: demo, replicas: ["http://h"]}]\ntenants: [{id: a, keys: [oops]}]', "only hashes"),
        ("", "the file is empty"),
    ],
)
async def test_a_mistake_changes_nothing_and_is_reported(setup, text, problem):
    serving, _, change = setup
    await change(text=text, expect="reload_refused")
    (refused,) = serving.events("reload_refused")
    assert problem in refused["problems"][0]
    assert refused["instead"] == "nothing changes"
    assert (await ask(serving, "a")).status_code == 200


async def test_what_needs_a_restart_is_named(setup):
    serving, _, change = setup
    await change(placement={"policy": "round_robin"}, tenants=tenants(tenant("a"), tenant("b")))
    await eventually(lambda: bool(serving.events("restart_needed")))
    (reported,) = serving.events("restart_needed")
    assert reported["keys"] == ["placement.policy"]
    assert (await ask(serving, "b")).status_code == 200
    async with httpx.AsyncClient(base_url=serving.admin_url) as client:
        shown = (await client.get("/admin/api/config")).json()
    assert shown["placement"]["policy"] == "expected_ttft"  # what is in force
    assert [each["id"] for each in shown["tenants"]] == ["a", "b"]


async def test_limits_change_and_what_was_taken_stays_taken(setup):
    serving, _, change = setup
    await change(tenants=tenants(tenant("a", prompt_tokens_per_minute=100_000)))
    first = await ask(serving, "a")
    await change(tenants=tenants(tenant("a", prompt_tokens_per_minute=50_000)))
    second = await ask(serving, "a")
    assert int(first.headers["x-ratelimit-limit-tokens"]) == 100_000
    used = 2 * first.json()["usage"]["prompt_tokens"]
    assert int(second.headers["x-ratelimit-remaining-tokens"]) == 50_000 - used


async def test_a_rotated_secret_file_is_taken_over_without_being_asked(serve, start_engine, tmp_path):
    token = tmp_path / "admin.token"
    token.write_text("the-token-that-leaked\n")
    server = {"admin_token": f"file:{token}"}
    serving = await serve((await start_engine()).url, server=server)

    async def statuses() -> list[int]:
        async with httpx.AsyncClient(base_url=serving.admin_url) as client:
            return [
                (await client.get("/metrics", headers={"authorization": f"Bearer {known}"})).status_code
                for known in ("the-token-that-leaked", "the-token-after-it")
            ]

    assert await statuses() == [200, 401]
    token.write_text("the-token-after-it\n")
    await eventually(lambda: bool(serving.events("reloaded")))
    assert await statuses() == [401, 200]
    assert not any("the-token" in line for line in serving.lines)


async def test_reloads_are_counted_by_their_result(setup):
    serving, _, change = setup

    async def counted() -> list[float]:
        async with httpx.AsyncClient(base_url=serving.admin_url) as client:
            page = Metrics((await client.get("/metrics")).text)
        return [page.value("gateway_config_reloads_total", result=result) for result in ("taken", "refused")]

    assert await counted() == [0, 0]
    valid = serving.config.read_text()
    await change(text="models: [", expect="reload_refused")
    assert await counted() == [0, 1]
    await change(text=valid.replace("models:", "modles:"), expect="reload_refused")
    assert await counted() == [0, 2]
    await change(text=valid)
    assert await counted() == [1, 2]


class TestTemplates:
    async def test_a_text_that_is_no_template_leaves_everything_as_it_is(self, serve, start_engine, tmp_path):
        engine = await start_engine()
        template = tmp_path / "chat.jinja"
        good = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
        template.write_text(good)
        models = [{"id": "demo", "tokenizer": "builtin:demo", "chat_template": str(template), "replicas": [engine.url]}]
        serving = await serve(models=models, tenants=tenants(tenant("a")), spaces=SPACES)
        first = await ask(serving, "a")
        (before,) = await spaces(serving, "alive")
        template.write_text("{% if %}")
        await eventually(lambda: bool(serving.events("tokenizer_unavailable")))  # without a request
        (reported,) = serving.events("tokenizer_unavailable")
        assert "the chat template is not valid, line 1" in reported["problem"]
        assert reported["instead"] == "the tokenizer and the template loaded before stay in use"
        await eventually(lambda: len(serving.events("reloaded")) == 1)
        again = await ask(serving, "a")
        # What stays in use is the template from before: the gateway's own count is the one from before.
        assert cached(again) > 100
        assert again.headers["x-gateway-prompt-tokens"] == first.headers["x-gateway-prompt-tokens"]
        await eventually(lambda: len(serving.events("request_settled")) == 2)
        assert [event["tokens_from"] for event in serving.events("request_settled")] == ["local", "local"]
        template.write_text(good)
        serving.process.send_signal(signal.SIGHUP)
        await eventually(lambda: len(serving.events("reloaded")) == 2)
        assert cached(await ask(serving, "a")) > 100
        (after,) = await spaces(serving, "alive")
        assert (after["id"], after["template_version"]) == (before["id"], before["template_version"])
        assert not await spaces(serving, "ended")
        assert not serving.events("model_version_changed")

    async def test_a_new_label_is_a_new_space_and_the_old_ones_figures_stay(self, setup, tmp_path):
        serving, engine, change = setup

        def models(label):
            return [{"id": "demo", "tokenizer": "builtin:demo", "replicas": [engine.url], "template_version": label}]

        await change(models=models("v1"))
        for _ in range(2):
            last = await ask(serving, "a")
        assert cached(last) > 100
        await change(models=models("v2"))
        (changed,) = serving.events("model_version_changed")[1:]
        assert changed["before"].startswith("v1+")
        assert changed["version"].startswith("v2+")
        assert cached(await ask(serving, "a")) == 0
        await eventually(lambda: len(serving.events("request_settled")) == 3)
        old = next(space for space in await spaces(serving, "ended") if space["template_version"].startswith("v1+"))
        assert (old["cause"], old["requests"]) == ("template_changed", 2)
        assert old["cached_tokens"] > 100
        (new,) = await spaces(serving, "alive")
        assert (new["template_version"].startswith("v2+"), new["requests"]) == (True, 1)

    async def test_a_template_edited_in_its_file_is_a_new_version(self, serve, start_engine, tmp_path):
        engine = await start_engine()
        template = tmp_path / "chat.jinja"
        template.write_text("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}")
        models = [{"id": "demo", "tokenizer": "builtin:demo", "chat_template": str(template), "replicas": [engine.url]}]
        serving = await serve(models=models, tenants=tenants(tenant("a")), spaces=SPACES)
        await ask(serving, "a")
        (before,) = await spaces(serving, "alive")
        await asyncio.sleep(0.05)
        template.write_text("{% for m in messages %}<{{ m.role }}> {{ m.content }}\n{% endfor %}")
        await eventually(lambda: bool(serving.events("model_version_changed")))  # without a request
        assert cached(await ask(serving, "a")) == 0
        (after,) = await spaces(serving, "alive")
        assert after["template_version"] != before["template_version"]
        template.unlink()
        serving.process.send_signal(signal.SIGHUP)
        await eventually(lambda: bool(serving.events("reload_refused")))
        assert (await ask(serving, "a")).status_code == 200

    async def test_a_reload_that_changes_no_template_keeps_caches_warm(self, setup):
        serving, _, change = setup
        await ask(serving, "a")
        await change(tenants=tenants(tenant("a", concurrent=7)))
        assert cached(await ask(serving, "a")) > 100
        assert not serving.events("model_version_changed")


@pytest.mark.parametrize(
    ("running", "change", "reported"),
    [
        # Each file is valid; what would be in force without a restart is open to everybody.
        (
            {"server": {"host": "0.0.0.0"}, "tenants": tenants(tenant("a")), "spaces": SPACES},
            {"server": {"host": "127.0.0.1", "port": 0, "admin_port": 0}, "tenants": []},
            "server.host: other machines may reach",
        ),
        (
            {"server": {"admin_host": "0.0.0.0", "admin_token": "a-token-of-some-length"}},
            {"server": {"admin_host": "127.0.0.1", "port": 0, "admin_port": 0}},
            "required",
        ),
        # The clients' keys would go to the engines.
        (
            {"relay": {"forward_authorization": True}},
            {"relay": {"forward_authorization": False}, "tenants": tenants(tenant("a")), "spaces": SPACES},
            "relay.forward_authorization",
        ),
    ],
)
async def test_two_valid_files_do_not_make_a_mixture_that_is_not(
    serve, start_engine, tmp_path, running, change, reported
):
    serving = await serve((await start_engine()).url, **running)
    file = tmp_path / "gateway.yaml"
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | change))
    serving.process.send_signal(signal.SIGHUP)
    await eventually(lambda: bool(serving.events("reload_refused")))
    (refused,) = serving.events("reload_refused")
    assert any(reported in problem and "restart" in problem for problem in refused["problems"])
    assert "a-token-of-some-length" not in str(refused)
    assert not serving.events("reloaded")


async def test_a_replica_moves_to_another_region_at_once(serve, start_engine):
    engines = [(await start_engine()).url for _ in range(2)]

    def models(*regions):
        replicas = [{"url": url, "region": region} for url, region in zip(engines, regions, strict=True)]
        return [{"id": "demo", "tokenizer": "builtin:demo", "replicas": replicas}]

    pinned = tenants(tenant("a", regions=("eu",)))
    serving = await serve(models=models("eu", "us"), tenants=pinned, spaces=SPACES)
    first = (await ask(serving, "a")).headers["x-gateway-replica"]
    file = serving.config
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | {"models": models("us", "eu")}))
    serving.process.send_signal(signal.SIGHUP)
    await eventually(lambda: bool(serving.events("reloaded")))
    assert (await ask(serving, "a")).headers["x-gateway-replica"] != first
    assert not serving.events("restart_needed")


def prompts(current, *, tone="Be kind. "):
    versions = {
        name: {"messages": [{"role": "system", "content": tone * 60 + name}, {"role": "user", "content": "Hi."}]}
        for name in ("v1", "v2")
    }
    return {"support": {"current": current, "versions": versions}, "other": {"current": "v1", "versions": versions}}


async def test_a_new_version_ends_the_spaces_of_its_application_only(setup):
    serving, _, change = setup
    await change(prompts=prompts("v1"))
    names = ("support", "support@v1", "other", "other@v2")

    async def filled(template):
        return cached(await ask(serving, "a", template=template))

    assert [await filled(name) > 100 for name in names] == [False, True, False, False]
    await change(prompts=prompts("v2"))
    assert [await filled(name) > 100 for name in names] == [False, False, True, True]
    ended = [(space["prompt"], space["cause"]) for space in await spaces(serving, "ended")]
    assert ended == [("support@v1", "prompt_version")]
    async with httpx.AsyncClient(base_url=serving.admin_url) as client:
        metrics = Metrics((await client.get("/metrics")).text)
    assert metrics.value("gateway_resets_total", cause="prompt_version") == 1


async def test_a_file_of_prompts_is_watched_and_a_mistake_in_it_changes_nothing(setup, tmp_path):
    serving, _, change = setup
    file = tmp_path / "prompts.yaml"
    file.write_text(yaml.safe_dump({"prompts": prompts("v1")}))
    await change(prompts_file=str(file))
    assert (await ask(serving, "a", template="support@v2")).status_code == 200
    refused = len(serving.events("reload_refused"))
    file.write_text(yaml.safe_dump({"prompts": prompts("v3")}))
    await eventually(lambda: len(serving.events("reload_refused")) > refused)
    (problem,) = serving.events("reload_refused")[-1]["problems"]
    assert problem.startswith(f"{file}:")
    assert "prompts.support.current: there is no version 'v3' (there is v1, v2)" in problem
    assert (await ask(serving, "a", template="support@v2")).status_code == 200
