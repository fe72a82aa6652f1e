"""Who shares cached prefixes with whom, over real sockets: what the engine reuses, and what reaches it."""

import asyncio
import json
import re

import pytest
from running_gateway import COMPLETIONS, eventually
from tenancy import SYSTEM, ask_as, cached, error, key, sections, tenant

from gateway.core.errors import ConfigInvalid

RESET = "/admin/api/spaces/reset"


def salts(engine):
    """The ``cache_salt`` of every generation that an engine got; None for none."""
    bodies = [
        json.loads(request.body) for request in engine.requests if request.path in ("/v1/chat/completions", COMPLETIONS)
    ]
    return [body.get("cache_salt") for body in bodies]


async def spaces(gateway, **filters):
    answer = await gateway.admin.get("/admin/api/spaces", params=filters)
    return answer.json()["spaces"]


async def reset(gateway, **selection):
    answer = await gateway.admin.post(RESET, json=selection)
    assert answer.status_code == 200, answer.text
    return answer.json()["reset"]


@pytest.mark.parametrize("flavor", ["vllm", "sglang"])
async def test_tenants_share_nothing_and_each_reuses_its_own(start_engine, start_gateway, flavor):
    engine = await start_engine(flavor=flavor, prompt_tokens_details=True)
    gateway = await start_gateway(engine, **sections(tenant("a"), tenant("b")))
    assert [cached(await ask_as(gateway, name)) for name in "ab"] == [0, 0]
    assert min([cached(await ask_as(gateway, name)) for name in "ab"]) > 100
    a, b, a_again, b_again = salts(engine)
    assert (a, b) == (a_again, b_again)
    assert a != b
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{32}", salt) for salt in (a, b))


async def test_a_group_shares_where_that_is_said(engine, start_gateway):
    tenants = [tenant("a", group="g"), tenant("b", group="g"), tenant("c", group="h"), tenant("d")]
    gateway = await start_gateway(engine, **sections(*tenants, isolation="group"))
    assert [cached(await ask_as(gateway, name)) > 100 for name in "abcd"] == [False, True, False, False]


async def test_without_isolation_everybody_shares_but_for_salts_of_their_own(engine, start_gateway):
    gateway = await start_gateway(engine, tenants=(tenant("a"), tenant("b")), spaces={"isolation": "none"})
    assert cached(await ask_as(gateway, "a", cache_salt="mine")) == 0
    assert cached(await ask_as(gateway, "b", cache_salt="mine")) > 100
    assert cached(await ask_as(gateway, "b")) == 0
    first, second, none = salts(engine)
    assert first == second
    assert none is None
    assert not any(b"mine" in request.body for request in engine.requests)


async def test_completions_are_kept_apart_too(engine, start_gateway):
    gateway = await start_gateway(engine, **sections(tenant("a"), tenant("b")))
    for expected in (False, True):
        for name in "ab":
            answer = await gateway.http.post(
                COMPLETIONS,
                json={"model": "demo", "prompt": SYSTEM, "max_tokens": 1},
                headers={"authorization": f"Bearer {key(name)}"},
            )
            assert (cached(answer) > 100) is expected


async def test_streams_are_kept_apart_too(engine, start_gateway):
    gateway = await start_gateway(engine, **sections(tenant("a"), tenant("b")))
    for name in "abab":
        answer = await ask_as(gateway, name, stream=True)
        assert answer.text.rstrip().endswith("data: [DONE]")
    metrics = await gateway.settled(4)
    by_tenant = [metrics.value("gateway_cached_tokens_total", tenant=name, evidence="confirmed") for name in "ab"]
    assert by_tenant[0] == by_tenant[1] > 100


async def test_a_clients_salt_narrows_and_never_reaches_the_engine(engine, start_gateway):
    gateway = await start_gateway(engine, **sections(tenant("a"), tenant("b")))
    assert cached(await ask_as(gateway, "a")) == 0
    assert cached(await ask_as(gateway, "a", cache_salt="mine")) == 0
    assert cached(await ask_as(gateway, "b", cache_salt="mine")) == 0
    assert cached(await ask_as(gateway, "a", cache_salt="mine")) > 100
    assert len(set(salts(engine))) == 3
    assert not any(b"mine" in request.body for request in engine.requests)


async def test_another_tenants_salt_is_of_no_use(engine, start_gateway):
    """Even one who has seen what the engine gets cannot get there through the gateway."""
    gateway = await start_gateway(engine, **sections(tenant("a"), tenant("b")))
    await ask_as(gateway, "a")
    (stolen,) = salts(engine)
    assert cached(await ask_as(gateway, "b", cache_salt=stolen)) == 0
    assert salts(engine)[1] != stolen


@pytest.mark.parametrize(
    "spelled",
    [
        b'"cache_salt":"x","model":"demo"',
        b'"model":"demo","cache_salt":"x","cache_salt":"y"',
        b'"model":"demo","cache\\u005fsalt":"x"',
        b'"model":"demo","cache_salt":null',
        b'"metadata":{"cache_salt":"inner"},"model":"demo"',
    ],
)
async def test_however_a_salt_is_spelled_the_engine_gets_the_gateways(engine, start_gateway, spelled):
    gateway = await start_gateway(engine, **sections(tenant("a")))
    body = b'{ %s ,"max_tokens":1,"messages":[{"role":"user","content":"hi"}]}' % spelled
    answer = await gateway.send(body, authorization=f"Bearer {key('a')}")
    assert answer.status_code == 200
    (salt,) = salts(engine)
    assert re.fullmatch(r"[A-Za-z0-9_-]{32}", salt)
    sent = engine.requests[-1].body
    assert not any(raw in sent for raw in (b'"x"', b'"y"'))
    assert sent.count(salt.encode()) == sent.count(b'cache_salt":"' + salt.encode()) + sent.count(b"cache\\u005fsalt")


@pytest.mark.parametrize("salt", ["", "a/b", "x" * 129, 7, ["a"], "nul\0"])
async def test_a_salt_no_engine_takes_is_reported_to_the_client(engine, start_gateway, salt):
    gateway = await start_gateway(engine, **sections(tenant("a")))
    answer = await ask_as(gateway, "a", cache_salt=salt)
    assert error(answer) == (400, "invalid_cache_salt")
    assert answer.json()["error"]["param"] == "cache_salt"
    assert not salts(engine)


REACHING = [
    {"kv_transfer_params": {"do_remote_prefill": True, "remote_block_ids": [1, 2], "remote_engine_id": "e"}},
    {"kv_transfer_params": {"prompt_token_ids": [1, 2], "remote_block_ids": [1]}},
    {"session_params": {"id": "somebody's"}},
    {"bootstrap_room": 7},
    {"ec_transfer_params": {"encoder": "somebody's"}},
    {"rid": "somebody's"},
]
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}


async def test_media_cannot_be_named_past_the_spaces(engine, start_gateway):
    gateway = await start_gateway(engine, **sections(tenant("a")))
    content = [{"type": "text", "text": "What is this?"}, PICTURE | {"uuid": "sku-1234"}]
    answer = await ask_as(gateway, "a", messages=[{"role": "user", "content": content}])
    assert error(answer) == (400, "names_cached")
    assert answer.json()["error"]["param"] == "messages[0].content[1].uuid"
    assert not engine.requests


async def test_a_scopes_salt_cannot_be_computed_by_another_client(engine, start_gateway):
    """Without isolation there may be no secret; a salt that is known still leads nowhere."""
    keys = ({"hash": tenant("a")["keys"][0]["hash"], "scope": "hr"},)
    gateway = await start_gateway(
        engine, tenants=({"id": "a", "keys": keys}, tenant("b")), spaces={"isolation": "none"}
    )
    await ask_as(gateway, "a")
    (known,) = salts(engine)
    assert cached(await ask_as(gateway, "b", cache_salt=known)) == 0
    assert salts(engine)[1] not in (known, None)


@pytest.mark.parametrize("fields", REACHING, ids="-".join)
async def test_nothing_cached_can_be_named_past_the_spaces(engine, start_gateway, fields):
    gateway = await start_gateway(engine, **sections(tenant("a")))
    answer = await ask_as(gateway, "a", **fields)
    assert error(answer) == (400, "names_cached")
    assert answer.json()["error"]["param"] in fields
    assert not engine.requests
    alone = await start_gateway(engine, tenants=(tenant("a"),), spaces={"isolation": "none"})
    assert (await ask_as(alone, "a", **fields)).status_code == 200


@pytest.mark.parametrize("messages", [["a"], [None], 7, {}])
async def test_a_field_of_another_endpoint_is_no_reason_to_fail(engine, start_gateway, messages):
    gateway = await start_gateway(engine, **sections(tenant("a")))
    answer = await gateway.http.post(
        COMPLETIONS,
        json={"model": "demo", "prompt": "x", "messages": messages, "max_tokens": 1},
        headers={"authorization": f"Bearer {key('a')}"},
    )
    assert answer.status_code == 200


@pytest.mark.parametrize(
    "fields", [{"kv_transfer_params": {"prompt_token_ids": [1, 2, 3]}}, {"kv_transfer_params": None}]
)
async def test_what_names_nothing_cached_passes(engine, start_gateway, fields):
    gateway = await start_gateway(engine, **sections(tenant("a")))
    assert (await ask_as(gateway, "a", **fields)).status_code == 200


class TestScopes:
    async def test_scopes_share_nothing(self, engine, start_gateway):
        keys = ({"hash": tenant("a")["keys"][0]["hash"], "scope": "de", "scopes": ("fr",)},)
        gateway = await start_gateway(engine, **sections({"id": "a", "keys": keys}))
        assert cached(await ask_as(gateway, "a")) == 0
        assert cached(await ask_as(gateway, "a", headers={"x-cache-scope": "fr"})) == 0
        assert cached(await ask_as(gateway, "a", headers={"x-cache-scope": "de"})) > 100
        assert error(await ask_as(gateway, "a", headers={"x-cache-scope": "it"})) == (403, "scope_not_allowed")

    async def test_in_open_mode_a_scope_is_kept_apart_as_well(self, gateway):
        async def ask(**headers):
            return cached(await gateway.ask(SYSTEM, headers=headers, max_tokens=1))

        assert [await ask(), await ask(**{"x-cache-scope": "de"}), await ask(**{"x-cache-scope": "fr"})] == [0, 0, 0]
        assert [await ask() > 100, await ask(**{"x-cache-scope": "de"}) > 100] == [True, True]


class TestEnds:
    async def test_after_a_reset_nothing_is_reused_and_others_keep_theirs(self, engine, start_gateway):
        gateway = await start_gateway(engine, **sections(tenant("a"), tenant("b")))
        for name in "ab":
            await ask_as(gateway, name)
        assert await reset(gateway, tenant="a") == 1
        assert cached(await ask_as(gateway, "a")) == 0
        assert cached(await ask_as(gateway, "b")) > 100
        assert cached(await ask_as(gateway, "a")) > 100
        assert await reset(gateway, all=True) == 2
        assert [cached(await ask_as(gateway, name)) for name in "ab"] == [0, 0]
        assert (await gateway.metrics()).value("gateway_resets_total", cause="manual") == 3

    async def test_without_isolation_too(self, gateway):
        await gateway.ask(SYSTEM)
        assert cached(await gateway.ask(SYSTEM)) > 100
        await reset(gateway, model="demo")
        assert cached(await gateway.ask(SYSTEM)) == 0
        assert cached(await gateway.ask(SYSTEM)) > 100

    async def test_an_idle_space_ends_by_itself(self, engine, start_gateway):
        gateway = await start_gateway(engine, **sections(tenant("a", idle_ttl_seconds=0.3), tenant("b")))
        for name in "ab":
            await ask_as(gateway, name)

        async def over() -> bool:
            return [space["cause"] for space in await spaces(gateway, state="ended")] == ["idle_ttl"]

        await eventually(over)
        assert cached(await ask_as(gateway, "a")) == 0
        assert cached(await ask_as(gateway, "b")) > 100
        assert (await gateway.metrics()).value("gateway_resets_total", cause="idle_ttl") == 1

    async def test_a_busy_space_ends_at_its_age(self, engine, start_gateway):
        gateway = await start_gateway(engine, **sections(tenant("a"), max_age_seconds=0.6))
        await ask_as(gateway, "a")

        async def cold_again() -> bool:
            await asyncio.sleep(0.05)
            return cached(await ask_as(gateway, "a")) == 0

        await eventually(cold_again)
        assert {space["cause"] for space in await spaces(gateway, state="ended")} == {"max_age"}

    async def test_without_isolation_an_idle_space_ends_for_all_who_share_it(self, engine, start_gateway):
        tenants = (tenant("a"), tenant("b"))
        gateway = await start_gateway(
            engine, tenants=tenants, spaces={"isolation": "none", "idle_ttl_seconds": 0.3}, explain={"enabled": False}
        )
        await ask_as(gateway, "a")

        async def over() -> bool:
            return [space["cause"] for space in await spaces(gateway, state="ended")] == ["idle_ttl"]

        await eventually(over)
        assert cached(await ask_as(gateway, "b")) == 0
        first, second = salts(engine)
        assert None not in (first, second)
        assert first != second

    async def test_without_isolation_a_restart_reaches_nothing_from_before(self, engine, start_gateway):
        for _ in range(2):
            gateway = await start_gateway(engine, spaces={"max_age_seconds": 600})
            assert cached(await gateway.ask(SYSTEM)) == 0
            assert cached(await gateway.ask(SYSTEM)) > 100
            await gateway.stop()

    async def test_without_isolation_nothing_expires_unless_it_is_set(self, engine, start_gateway):
        gateway = await start_gateway(engine)
        await gateway.ask(SYSTEM)
        (space,) = await spaces(gateway)
        assert space["expires_at"] is None
        assert salts(engine) == [None]

    async def test_an_update_of_the_model_ends_its_spaces_once(self, start_engine, start_gateway):
        engines = [await start_engine(root="/models/one", model="demo") for _ in range(2)]
        gateway = await start_gateway(*engines, **sections(tenant("a")), relay={"health_interval_seconds": 0.05})
        for text in ("one", "two"):
            await ask_as(gateway, "a", text)
        updated = [
            await start_engine(port=engine.port, root="/models/two", model="demo")
            for engine in engines
            if await engine.kill() is None
        ]

        async def noticed() -> bool:
            return (await gateway.metrics()).value("gateway_resets_total", cause="model_update") == 1

        await eventually(noticed)
        assert len(updated) == 2
        await asyncio.sleep(0.3)
        assert (await gateway.metrics()).value("gateway_resets_total", cause="model_update") == 1
        assert cached(await ask_as(gateway, "a")) == 0
        assert [space["cause"] for space in await spaces(gateway, state="ended")] == ["model_update"]

    async def test_another_release_of_the_engine_is_an_update(self, start_engine, start_gateway):
        engine = await start_engine(engine_version="0.32.0")
        gateway = await start_gateway(engine, **sections(tenant("a")), relay={"health_interval_seconds": 0.05})
        await ask_as(gateway, "a")
        await engine.kill()
        await start_engine(port=engine.port, engine_version="0.33.0")

        async def noticed() -> bool:
            return (await gateway.metrics()).value("gateway_resets_total", cause="model_update") == 1

        await eventually(noticed)

    async def test_a_restart_of_the_same_engine_is_none(self, start_engine, start_gateway):
        engine = await start_engine(root="/models/one")
        gateway = await start_gateway(engine, **sections(tenant("a")), relay={"health_interval_seconds": 0.05})
        await ask_as(gateway, "a")
        await engine.kill()
        await start_engine(port=engine.port, root="/models/one")

        async def back() -> bool:
            return (await ask_as(gateway, "a")).status_code == 200

        await eventually(back)
        await asyncio.sleep(0.3)
        assert not (await gateway.metrics()).value("gateway_resets_total")


class TestShown:
    async def test_what_a_space_is_and_what_was_asked_in_it(self, engine, start_gateway):
        gateway = await start_gateway(engine, **sections(tenant("a")), model={"template_version": "support-v3"})
        for _ in range(2):
            await ask_as(gateway, "a")
        await gateway.settled(2)
        (space,) = await spaces(gateway)
        assert space["model"] == "demo"
        assert space["tenant"] == "tenant:a"
        assert re.fullmatch(r"support-v3\+[0-9a-f]{12}", space["template_version"])
        assert re.fullmatch(r"[0-9a-f]{16}", space["tokenizer_id"])
        assert (space["state"], space["cause"]) == ("alive", None)
        assert (
            space["context_limit"]
            == (await gateway.http.get("/v1/models", headers={"authorization": f"Bearer {key('a')}"})).json()["data"][
                0
            ]["max_model_len"]
        )
        assert space["epoch"] > 0
        assert (space["scope"], space["adapter"], space["region"]) == ("", "", "")
        assert space["requests"] == 2
        assert 0 < space["cached_tokens"] < space["prompt_tokens"]
        assert space["born_at"] <= space["used_at"] < space["expires_at"]
        shown = json.dumps(await spaces(gateway))
        assert not any(salt in shown for salt in salts(engine))

    @pytest.mark.parametrize(
        ("selection", "param"),
        [
            ({"model": "nope"}, "model"),
            ({"tenant": "nope"}, "tenant"),
            ({"modell": "demo"}, "modell"),
            ({"scope": 1}, "scope"),
        ],
    )
    async def test_a_reset_of_what_does_not_exist_is_reported(self, engine, start_gateway, selection, param):
        gateway = await start_gateway(engine, **sections(tenant("a")))
        answer = await gateway.admin.post(RESET, json=selection)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)

    async def test_resetting_a_tenant_where_all_share_is_reported(self, gateway):
        answer = await gateway.admin.post(RESET, json={"tenant": "default"})
        assert error(answer) == (400, "not_isolated")


class TestFile:
    async def test_a_restart_of_the_gateway_keeps_caches_warm_and_resets_done(self, engine, start_gateway, tmp_path):
        reported = sections(tenant("a"), tenant("b"), file=tmp_path / "spaces.json")
        first = await start_gateway(engine, **reported)
        for name in "ab":
            await ask_as(first, name)
        await reset(first, tenant="b")
        await first.stop()
        second = await start_gateway(engine, **reported)
        answers = [await ask_as(second, name) for name in "ab"]
        reused = [answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers]
        assert reused[0] > 100
        assert reused[1] == 0
        assert (tmp_path / "spaces.json").stat().st_mode & 0o077 == 0

    async def test_what_was_warm_when_the_gateway_stopped_is_warm_afterwards(self, engine, start_gateway, tmp_path):
        reported = sections(tenant("a"), file=tmp_path / "spaces.json")
        first = await start_gateway(engine, **reported)
        await ask_as(first, "a")
        await first.stop()  # well before the file is written by itself
        answer = await ask_as(await start_gateway(engine, **reported), "a")
        assert answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 100

    async def test_without_a_file_every_space_begins_anew(self, engine, start_gateway):
        reported = sections(tenant("a"))
        await ask_as(await start_gateway(engine, **reported), "a")
        answer = await ask_as(await start_gateway(engine, **reported), "a")
        assert answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0

    @pytest.mark.parametrize(
        "change",
        [
            lambda reported: reported.update(spaces={}),
            lambda reported: reported.update(engines=[]),
            lambda reported: reported.update(engines={"r0": ["/m", 7]}),
            lambda reported: reported["spaces"].update(last_epoch=10**30),
            lambda reported: reported["spaces"]["lives"][0]["space"].update(tenant=None),
            lambda reported: reported["spaces"]["lives"][0]["space"].update(epoch="1"),
            lambda reported: reported["spaces"]["lives"][0].update(born_at=1e300),
            lambda reported: reported["spaces"]["lives"][0]["figures"].update(requests=-1),
            lambda reported: reported.update(version=2),
        ],
    )
    async def test_a_broken_file_is_moved_away_and_reported(self, engine, start_gateway, tmp_path, capfd, change):
        file = tmp_path / "spaces.json"
        first = await start_gateway(engine, **sections(tenant("a"), file=file))
        await ask_as(first, "a")
        await first.stop()
        reported = json.loads(file.read_text())
        change(reported)
        file.write_text(json.dumps(reported))
        gateway = await start_gateway(engine, **sections(tenant("a"), file=file))
        assert [space["state"] for space in await spaces(gateway)] == []
        assert (await ask_as(gateway, "a")).json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        assert (tmp_path / "spaces.json.bad").exists()
        assert (await gateway.metrics()).value("gateway_state_errors_total", backend="spaces_file") == 1
        assert "spaces_file_unreadable" in "".join(capfd.readouterr())

    async def test_two_gateways_cannot_share_a_file(self, engine, start_gateway, tmp_path):
        reported = sections(tenant("a"), file=tmp_path / "spaces.json")
        first = await start_gateway(engine, **reported)
        with pytest.raises(ConfigInvalid, match="in use by another gateway"):
            await start_gateway(engine, **reported)
        await first.stop()
        await start_gateway(engine, **reported)

    async def test_a_template_changed_while_the_gateway_was_away_ends_its_spaces(self, engine, start_gateway, tmp_path):
        reported = sections(tenant("a"), file=tmp_path / "spaces.json")
        for label in ("v1", "v2"):
            gateway = await start_gateway(engine, **reported, model={"template_version": label})
            await ask_as(gateway, "a")
            await gateway.settled(1)
            if label == "v1":
                await gateway.stop()
        assert (await gateway.metrics()).value("gateway_resets_total", cause="template_changed") == 1
        old, new = sorted(await spaces(gateway), key=lambda space: space["template_version"])
        assert (old["state"], old["cause"], old["requests"]) == ("ended", "template_changed", 1)
        assert (new["state"], new["requests"]) == ("alive", 1)

    async def test_a_reset_that_cannot_be_kept_says_so(self, engine, start_gateway, tmp_path):
        folder = tmp_path / "state"
        folder.mkdir()
        gateway = await start_gateway(engine, **sections(tenant("a"), file=folder / "spaces.json"))
        await ask_as(gateway, "a")
        (folder / "spaces.json").unlink()
        (folder / "spaces.json.lock").unlink()
        folder.rmdir()
        answer = await gateway.admin.post(RESET, json={"all": True})
        assert error(answer) == (500, "spaces_file_failed")
        assert cached(await ask_as(gateway, "a")) == 0  # it holds all the same
        assert (await gateway.metrics()).value("gateway_state_errors_total", backend="spaces_file") >= 1
        folder.mkdir()
        assert await reset(gateway, all=True) == 1


class TestModelLists:
    """What an engine says of its model is part of the space; an odd answer is no change of it."""

    CARD = b'{"object":"list","data":[{"id":"demo","object":"model","root":"/m","max_model_len":4096}]}'

    @pytest.fixture
    async def setup(self, scripted, start_gateway):
        scripted.models = self.CARD
        gateway = await start_gateway(scripted, **sections(tenant("a")), relay={"health_interval_seconds": 0.01})
        await ask_as(gateway, "a")
        return gateway, scripted

    @pytest.mark.parametrize(
        "odd", [b"", b"garbage", b"[]", b"{}", b'{"data":[]}', b'{"data":[7]}', b'{"data":[{"id":"x"}]}']
    )
    async def test_an_odd_list_changes_nothing(self, setup, odd, capfd):
        gateway, engine = setup
        engine.models = odd

        def reported() -> bool:
            out.append("".join(capfd.readouterr()))
            return any(word in "".join(out) for word in ("model_list_unreadable", "replica_serves_another_model"))

        out: list[str] = []
        await eventually(reported)
        await ask_as(gateway, "a")
        (space,) = await spaces(gateway)
        assert space["context_limit"] == 4096
        assert not (await gateway.metrics()).value("gateway_resets_total")

    async def test_another_context_limit_is_an_end_that_is_reported(self, setup):
        gateway, engine = setup
        engine.models = self.CARD.replace(b"4096", b"8192")

        async def noticed() -> bool:
            return (await gateway.metrics()).value("gateway_resets_total", cause="model_update") == 1

        await eventually(noticed)
        await ask_as(gateway, "a")
        assert [space["context_limit"] for space in await spaces(gateway, state="alive")] == [8192]
