"""Registered prompts that are sent to replicas before clients need them, over real sockets."""

import asyncio

import pytest
import structlog
from running_gateway import eventually, settings_for
from tenancy import ask_as, cached, sections, tenant

from gateway.config.settings import Settings

TEXT = "You answer questions of {{ shop }} customers about parcels and returns. " * 20


def prompts(current="v1", **more):
    version = {"messages": ({"role": "system", "content": TEXT},), "variables": {"shop": "Blumenhaus"}, "warm": True}
    versions = {"v1": version, "v2": version | {"messages": ({"role": "system", "content": "New. " + TEXT},)}}
    return {"support": {"current": current, "versions": versions} | more}


async def reused(gateway, template, name="a", **variables):
    return cached(await ask_as(gateway, name, messages=[{"role": "user", "content": "Hi"}], template=template,
                               variables=variables))  # fmt: skip


async def warmed(gateway, requests):
    async def done():
        return (await gateway.metrics()).value("gateway_warm_requests_total", result="ok") == requests

    await eventually(done)


async def test_the_first_request_of_a_client_is_warm_and_so_is_that_of_a_new_version(engine, start_gateway):
    tenants = sections(tenant("a"), tenant("b"), tenant("c"))
    gateway = await start_gateway(engine, prompts=prompts(tenants=("a", "b")), **tenants)
    await warmed(gateway, 2)
    assert [await reused(gateway, "support", name) > 100 for name in "ab"] == [True, True]
    changed = settings_for([engine], prompts=prompts("v2", tenants=("a", "b")), **tenants)
    await gateway.gateway.reload(changed)
    await warmed(gateway, 4)
    assert await reused(gateway, "support") > 100
    assert await reused(gateway, "support@v1") == 0
    declared = (await gateway.admin.get("/admin/api/warm")).json()["declared"]
    assert [(each["application"], each["tenant"]) for each in declared] == [("support@v2", "a"), ("support@v2", "b")]


async def test_a_text_that_is_edited_in_place_is_reported_and_warmed(engine, start_gateway):
    def with_tone(tone):
        included = prompts()
        including = {"messages": ({"role": "system", "content": TEXT + "{% include 'tone@v1' %}"},)}
        included["support"]["versions"]["v1"] |= including
        return included | {
            "tone": {"current": "v1", "versions": {"v1": {"messages": ({"role": "system", "content": tone},)}}}
        }

    gateway = await start_gateway(engine, prompts=with_tone("Be kind. " * 20), explain={"enabled": True})
    await warmed(gateway, 1)
    changed = settings_for([engine], prompts=with_tone("Be brief. " * 20), explain={"enabled": True})
    with structlog.testing.capture_logs() as logged:
        await gateway.gateway.reload(changed)
    assert [each["prompts"] for each in logged if each["event"] == "prompt_text_edited"] == ["tone@v1"]
    await warmed(gateway, 2)

    async def marked():
        markers = (await gateway.admin.get("/admin/api/reasons")).json()["markers"]
        return "without a new version: tone@v1" in [each["text"] for each in markers]

    await eventually(marked)
    with structlog.testing.capture_logs() as logged:
        await gateway.gateway.reload(changed)
    assert "prompt_text_edited" not in [each["event"] for each in logged]


async def test_without_isolation_one_prefix_is_for_all(engine, start_gateway):
    gateway = await start_gateway(engine, prompts=prompts())
    await warmed(gateway, 1)
    body = {"model": "demo", "template": "support", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    assert cached(await gateway.http.post("/v1/chat/completions", json=body)) > 100


async def test_what_is_not_to_be_warmed_is_not(engine, start_gateway):
    cold = prompts()
    for version in cold["support"]["versions"].values():
        version["warm"] = False
    gateway = await start_gateway(engine, prompts=cold)
    await gateway.gateway.reload(settings_for([engine], prompts=cold | {"x": {"current": "1", "versions": {"1": {}}}}))
    await asyncio.sleep(0.1)
    assert (await gateway.admin.get("/admin/api/warm")).json()["declared"] == []
    assert engine.requests == []


async def test_an_order_may_name_an_application(engine, start_gateway):
    gateway = await start_gateway(engine, prompts={"own": {"current": "v1", "versions": {"v1": {}}}})
    messages = [{"role": "system", "content": TEXT}]
    prefix = {"model": "demo", "messages": messages, "application": "own@v2"}
    refused = await gateway.admin.post("/admin/api/warm", json={"prefixes": [prefix]})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "prefixes[0].application")
    prefix["application"] = "own"
    assert (await gateway.admin.post("/admin/api/warm", json={"prefixes": [prefix]})).status_code == 202
    await warmed(gateway, 1)
    body = {"model": "demo", "messages": messages, "max_tokens": 1}
    for headers, is_warm in (({"x-prompt-id": "own"}, True), ({"x-prompt-id": "other"}, False), ({}, False)):
        assert (cached(await gateway.http.post("/v1/chat/completions", json=body, headers=headers)) > 100) is is_warm


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"variables": {"shop": None}}, "needs a default for the variable 'shop'"),
        ({"messages": ()}, "there is nothing to send"),
        ({}, "needs prompts.support.tenants, because spaces are isolated"),
    ],
)
def test_what_cannot_be_warmed_is_refused(engine, change, said):
    settings = prompts()
    settings["support"]["versions"]["v1"] |= change
    with pytest.raises(ValueError, match=said):
        settings_for([engine], prompts=settings, **sections(tenant("a")))


def test_with_several_models_it_says_for_which():
    models = [{"id": name, "replicas": ["http://h:1" + name]} for name in "12"]
    with pytest.raises(ValueError, match="needs model, because there are several"):
        Settings.model_validate({"models": models, "prompts": prompts()})
