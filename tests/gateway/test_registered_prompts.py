"""Registered prompts over real sockets: what engines get, the errors that clients get, and what is shared."""

import json
import re
from pathlib import Path

import pytest
import yaml
from api_errors import problem
from running_gateway import COMPLETIONS, eventually, settings_for
from tenancy import SECRET, cached, sections, tenant

from gateway.config.settings import Settings

LONG = "You answer questions of {{ product }} customers about parcels and returns. " * 20
CHAT = "/v1/chat/completions"
PROMPTS = {
    "support": {
        "current": "v2",
        "versions": {
            "v1": {"messages": ({"role": "system", "content": "Old."},)},
            "v2": {
                "messages": (
                    {"role": "system", "content": LONG + "{% include 'tone@v1' %}"},
                    {"role": "user", "content": "{% for item in items %}{{ loop.index }}. {{ item }}\n{% endfor %}Ok?"},
                ),
                "variables": {"product": None, "name": "friend", "items": ["a", "b"]},
            },
        },
    },
    "tone": {
        "current": "v1",
        "versions": {
            "v1": {"messages": ({"role": "system", "content": "Be kind, {{ name }}."},), "variables": {"name": "x"}}
        },
    },
    "bound": {
        "current": "v1",
        "versions": {"v1": {"model": "demo", "messages": ({"role": "user", "content": "Hi {{ x|tojson }}"},),
                            "variables": {"x": 1}}},
    },
    "elsewhere": {"current": "v1", "versions": {"v1": {}}},
}  # fmt: skip


@pytest.fixture
async def gateway(engine, start_gateway):
    return await start_gateway(engine, prompts=PROMPTS)


async def send(gateway, headers=None, **body):
    return await gateway.http.post("/v1/chat/completions", json={"max_tokens": 1} | body, headers=headers)


def received(engine):
    return [json.loads(request.body) for request in engine.requests if request.path.startswith("/v1/c")]


async def test_the_engine_gets_the_filled_in_messages_and_not_the_template(gateway, engine):
    answer = await send(gateway, model="demo", template="support@v2", variables={"product": "Blumenhaus"}, seed=7)
    assert answer.status_code == 200, answer.text
    (body,) = received(engine)
    assert body.keys() == {"model", "max_tokens", "seed", "messages", "cache_salt"}
    system, user = body["messages"]
    assert system == {"role": "system", "content": LONG.replace("{{ product }}", "Blumenhaus") + "Be kind, friend."}
    assert user == {"role": "user", "content": "1. a\n2. b\nOk?"}


async def test_own_messages_follow_and_an_id_alone_is_the_current_version(gateway, engine):
    own = [{"role": "user", "content": "Where is it? {{ product }}"}]
    answer = await send(gateway, model="demo", template="support", variables={"product": "{{ name }}"}, messages=own)
    assert answer.status_code == 200
    (body,) = received(engine)
    assert body["messages"][2:] == own
    assert "of {{ name }} customers" in body["messages"][0]["content"]  # a value is no template


async def test_the_model_of_a_prompt_need_not_be_named(gateway, engine):
    assert (await send(gateway, template="bound", variables={"x": True})).status_code == 400
    assert (await send(gateway, template="bound", variables={"x": 2.5})).status_code == 200
    (body,) = received(engine)
    assert (body["model"], body["messages"]) == ("demo", [{"role": "user", "content": "Hi 2.5"}])
    message = problem(await send(gateway, template="bound", model="other"), 400, "prompt_of_another_model", "model")
    assert "'demo'" in message


@pytest.mark.parametrize(
    ("fields", "status", "code", "param", "said"),
    [
        ({"template": "nope"}, 404, "prompt_not_found", "template", "bound, elsewhere, support, tone"),
        ({"template": "support@v9"}, 404, "prompt_version_not_found", "template", "v1, v2; current: v2"),
        ({"template": "support@"}, 400, "invalid_value", "template", "leave the @ out for the current version"),
        ({"template": 3}, 400, "invalid_type", "template", "support@v3"),
        ({"template": "elsewhere"}, 400, "prompt_without_messages", "template", "x-prompt-id"),
        ({"template": "support"}, 400, "missing_variable", "variables.product", "has no default"),
        ({"template": "support", "variables": []}, 400, "invalid_type", "variables", "object"),
        ({"variables": {"product": "x", "naem": "y"}}, 400, "unknown_variable", "variables", "product, name, items"),
        ({"variables": {"product": {}}}, 400, "invalid_type", "variables.product", "a string, a finite number"),
        ({"variables": {"product": "x", "name": 3}}, 400, "invalid_type", "variables.name", "a string, as its default"),
        ({"variables": {"product": "x", "items": "ab"}}, 400, "invalid_type", "variables.items", "a list, as"),
        ({"variables": {"product": "x", "items": [1] * 1001}}, 400, "invalid_type", "variables.items", "1000 items"),
        ({"variables": {"product": "x" * 60_000}}, 400, "template_too_long", "variables", "1000000 characters"),
        ({"variables": {"product": "x"}, "messages": "hi"}, 400, "invalid_type", "messages", "a list of messages"),
        ({"variables": {"product": "x"}, "messages": [{}]}, 400, "invalid_type", "messages[0].role", "a string"),
    ],
)
async def test_mistakes_of_clients_name_the_field_and_the_fix(gateway, engine, fields, status, code, param, said):
    answer = await send(gateway, **{"model": "demo", "template": "support"} | fields)
    assert said in problem(answer, status, code, param)
    assert received(engine) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{% for letter in x %}{{ letter }}{% endfor %}", "a loop needs a list, and got a text"),
        ("{{ x|sort|first }}", "sort needs a list, and got a text"),
        ("{{ x|unique|length }}", "unique needs a list, and got a text"),
        ("{{ x|join(', ') }}", "join needs a list, and got a text"),
    ],
)
async def test_a_text_is_no_list_of_characters(engine, start_gateway, text, said):
    version = {"messages": ({"role": "user", "content": text},), "variables": {"x": None}}
    gateway = await start_gateway(engine, prompts={"p": {"current": "v1", "versions": {"v1": version}}})
    answer = await send(gateway, model="demo", template="p", variables={"x": "abc"})
    assert said in problem(answer, 400, "template_failed", "variables")
    assert (await send(gateway, model="demo", template="p", variables={"x": ["abc"]})).status_code == 200


async def test_without_registered_prompts_template_is_a_member_like_any_other(engine, start_gateway):
    gateway = await start_gateway(engine)
    own = {"model": "demo", "template": "x", "messages": [{"role": "user", "content": "Hi"}]}
    assert (await send(gateway, **own)).status_code == 200
    assert received(engine) == [own | {"max_tokens": 1}]
    message = problem(await send(gateway, model="demo", template="x"), 404, "prompt_not_found", "template")
    assert "no registered prompts" in message


@pytest.mark.parametrize("isolation", ["tenant", "none"])
async def test_applications_and_versions_share_nothing_whichever_way_they_are_named(engine, start_gateway, isolation):
    gateway = await start_gateway(engine, prompts=PROMPTS, spaces={"isolation": isolation, "secret": SECRET})

    async def reused(prompt=None, version=None):
        headers = {"x-prompt-id": prompt} if prompt else {}
        headers |= {"x-prompt-version": version} if version else {}
        system = {"role": "system", "content": LONG}
        return cached(await send(gateway, headers, model="demo", messages=[system])) > 100

    assert [await reused(), await reused()] == [False, True]
    assert [await reused("support", "v1"), await reused("support", "v1")] == [False, True]
    assert [await reused("support", "v2"), await reused("support")] == [False, True]
    assert [await reused("unlisted"), await reused("unlisted", "7"), await reused("unlisted", "7")] == [
        False,
        False,
        True,
    ]
    template = {"model": "demo", "template": "support", "variables": {"product": "P"}}
    assert cached(await send(gateway, **template)) < 100
    assert cached(await send(gateway, {"x-prompt-id": "support"}, **template)) > 100


@pytest.mark.parametrize(
    ("headers", "fields", "status", "code", "param"),
    [
        ({"x-prompt-version": "v1"}, {}, 400, "missing_required_parameter", "x-prompt-id"),
        ({"x-prompt-id": "a b"}, {}, 400, "invalid_header", "x-prompt-id"),
        ({"x-prompt-id": "a" * 65}, {}, 400, "invalid_header", "x-prompt-id"),
        ({"x-prompt-id": "a", "x-prompt-version": "1@2"}, {}, 400, "invalid_header", "x-prompt-version"),
        ({"x-prompt-id": "support", "x-prompt-version": "v3"}, {}, 404, "prompt_version_not_found", "x-prompt-version"),
        ({"x-prompt-id": "tone"}, {"template": "support"}, 400, "conflicting_prompts", "template"),
    ],
)
async def test_headers_that_name_no_application(gateway, headers, fields, status, code, param):
    body = {"model": "demo", "messages": [{"role": "user", "content": "Hi"}]} | fields
    problem(await send(gateway, headers, **body), status, code, param)


@pytest.mark.parametrize("number", ["NaN", "1e400", "[-Infinity]"])
async def test_a_number_in_a_prompt_is_finite(gateway, number):
    body = json.dumps({"model": "demo", "template": "bound", "variables": {"x": "?"}}).replace('"?"', number)
    answer = await gateway.http.post(CHAT, content=body, headers={"content-type": "application/json"})
    assert "a finite number" in problem(answer, 400, "invalid_type", "variables.x")


@pytest.mark.parametrize(
    ("path", "fields", "code", "param", "said"),
    [
        (COMPLETIONS, {"prompt": "Hi", "template": "support"}, "unsupported_parameter", "template", "x-prompt-id"),
        (COMPLETIONS, {"prompt": "Hi", "variables": {}}, "missing_required_parameter", "variables", "support@v3"),
        (CHAT, {"messages": [{"role": "user", "content": "Hi"}], "variables": {"a": 1}}, "missing_required_parameter",
         "variables", "needs `template`"),
    ],
)  # fmt: skip
async def test_what_would_be_ignored_is_refused_where_prompts_are_registered(
    gateway, engine, start_gateway, path, fields, code, param, said
):
    body = {"model": "demo", "max_tokens": 1} | fields
    for headers in ({}, {"x-prompt-id": "support"}):
        assert said in problem(await gateway.http.post(path, json=body, headers=headers), 400, code, param)
    assert received(engine) == []
    without = await start_gateway(engine)
    assert (await without.http.post(path, json=body)).status_code == 200
    assert received(engine) == [body]


async def test_an_empty_header_names_no_application(gateway, engine):
    body = {"model": "demo", "max_tokens": 1, "messages": [{"role": "user", "content": "Hi"}]}
    for headers in ({"x-prompt-id": ""}, {"x-prompt-id": "", "x-prompt-version": ""}):
        assert (await send(gateway, headers, **body)).status_code == 200
    assert received(engine) == [body, body]


async def test_completions_have_applications_too(gateway, engine):
    body = {"model": "demo", "prompt": "Once upon a time", "max_tokens": 1}
    for headers in ({}, {"x-prompt-id": "support"}):
        assert (await gateway.http.post(COMPLETIONS, json=body, headers=headers)).status_code == 200
    plain, of_application = received(engine)
    assert plain == body
    assert of_application.pop("cache_salt")
    assert of_application == body


async def test_a_prompt_of_some_tenants_does_not_exist_for_others(engine, start_gateway):
    prompts = {"mine": PROMPTS["support"] | {"tenants": ("a",)}} | {"tone": PROMPTS["tone"]}
    gateway = await start_gateway(engine, prompts=prompts, **sections(tenant("a"), tenant("b")))

    async def ask(name, headers=None):
        key = {"authorization": f"Bearer pgw_{name}-key-of-this-test"}
        body = {"model": "demo", "template": "mine", "variables": {"product": "x"}}
        return await send(gateway, key | (headers or {}), **body)

    assert (await ask("a")).status_code == 200
    message = problem(await ask("b"), 404, "prompt_not_found", "template")
    assert message.endswith("Known prompts: tone.")


@pytest.mark.parametrize("isolation", ["group", "none"])
async def test_those_for_whom_a_prompt_does_not_exist_share_nothing_with_its_application(
    engine, start_gateway, isolation
):
    version = {"idle_ttl_seconds": 77}
    prompts = {"mine": {"current": "v1", "tenants": ("a",), "versions": {"v1": version}}}
    tenants = sections(tenant("a", group="g"), tenant("b", group="g"))
    tenants["spaces"] = {"isolation": isolation, "secret": SECRET}
    gateway = await start_gateway(engine, prompts=prompts, **tenants)

    async def reused(name):
        headers = {"authorization": f"Bearer pgw_{name}-key-of-this-test", "x-prompt-id": "mine"}
        headers["x-prompt-version"] = "v1"
        return cached(await send(gateway, headers, model="demo", messages=[{"role": "system", "content": LONG}])) > 100

    assert [await reused("a"), await reused("b"), await reused("b"), await reused("a")] == [False, False, True, True]
    spaces = (await gateway.admin.get("/admin/api/spaces")).json()["spaces"]
    of_mine = [space for space in spaces if space["prompt"] == "mine@v1"]
    assert [space["expires_at"] - space["used_at"] for space in of_mine] == [pytest.approx(77, abs=0.1)]
    assert [space["prompt"] for space in spaces if space not in of_mine] == ["mine@@v1"]


async def test_a_prompt_has_rules_and_lifetimes_of_its_own(engine, start_gateway):
    version = {
        "messages": ({"role": "system", "content": "Be {{ how }}.  \n" + "Answer. " * 60},),
        "variables": {"how": None},
        "canon": {"whitespace": "apply"},
        "idle_ttl_seconds": 77,
    }
    prompts = {"timed": {"current": "v1", "versions": {"v1": version}}}
    gateway = await start_gateway(engine, prompts=prompts, spaces={"isolation": "tenant", "secret": SECRET})
    body = {"model": "demo", "messages": [{"role": "user", "content": "Which day?"}]}
    how = {"variables": {"how": "kind"}}
    assert "whitespace" in (await send(gateway, template="timed", **body, **how)).headers["x-gateway-canonical"]
    plain = [{"role": "system", "content": "Be kind.  \n" + "Answer. " * 60}, *body["messages"]]
    assert "x-gateway-canonical" not in (await send(gateway, model="demo", messages=plain)).headers

    async def spaces():
        return (await gateway.admin.get("/admin/api/spaces")).json()["spaces"]

    lifetimes = {space["prompt"]: space["expires_at"] - space["used_at"] for space in await spaces()}
    assert lifetimes == {"timed@v1": pytest.approx(77, abs=0.1), "": pytest.approx(3600, abs=0.1)}


async def test_texts_of_prompts_are_not_shown(gateway):
    config = (await gateway.admin.get("/admin/api/config")).text
    assert "parcels" not in config
    assert '"support"' in config


async def test_the_example_of_the_page(engine, start_gateway):
    page = (Path(__file__).parents[2] / "docs" / "prompts.md").read_text()
    configuration, asked, sent = re.findall(r"```(?:yaml|json)\n(.*?)```", page, re.DOTALL)[:3]
    prompts = yaml.safe_load(configuration)["prompts"]
    spaces = {"isolation": "tenant", "secret": SECRET}
    settings = settings_for([engine]).model_dump() | {"prompts": prompts, "spaces": spaces}
    read = Settings.model_validate(settings).model_dump()["prompts"]
    gateway = await start_gateway(engine, prompts=read, spaces=spaces)
    body = json.loads(asked.replace('"chat"', '"demo"'))
    answer = await gateway.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    (got,) = received(engine)
    assert got.pop("cache_salt")
    assert got == json.loads(sent.replace('"chat"', '"demo"'))


async def test_what_an_application_used_is_reported_apart(engine, start_gateway):
    gateway = await start_gateway(engine, prompts=PROMPTS, explain={"enabled": True})
    template = {"model": "demo", "template": "support", "variables": {"product": "P"}}
    for headers, body in (
        ({}, template),
        ({}, template),
        ({"x-prompt-id": "unlisted"}, {"model": "demo", "messages": [{"role": "user", "content": "Hi"}]}),
        ({}, {"model": "demo", "messages": [{"role": "user", "content": "Hi"}]}),
    ):
        assert (await send(gateway, headers, **body)).status_code == 200

    async def asked(path, **query):
        answer = await gateway.admin.get(f"/admin/api/{path}", params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def counted():
        return (await asked("summary"))["requests"] == 4

    await eventually(counted)
    whole = await asked("summary")
    assert {row["prompt"]: row["requests"] for row in whole["by_prompt"]} == {"support@v2": 2, "(other)": 1, "": 1}
    for prompt in ("support", "support@v2"):
        of_it = await asked("summary", prompt=prompt)
        assert (of_it["requests"], of_it["hit_rate"] > 0.4) == (2, True)
        assert len((await asked("requests", prompt=prompt))["requests"]) == 2
    assert (await asked("summary", prompt="support@v1"))["requests"] == 0
    (row,) = (await asked("report", prompt="support"))["by_prompt"]
    assert (row["prompt"], row["requests"]) == ("support@v2", 2)
    assert row["prompt_tokens"] == (await asked("summary", prompt="support"))["prompt_tokens"]
    metrics = await gateway.metrics()
    assert metrics.value("gateway_application_requests_total", prompt="support@v2", status="200") == 2
    assert metrics.value("gateway_application_requests_total", prompt="(other)") == 1
    assert metrics.value("gateway_application_tokens_total", prompt="support@v2", part="prompt") == row["prompt_tokens"]
    assert metrics.value("gateway_application_tokens_total", prompt="support@v2", part="cached") > 200
