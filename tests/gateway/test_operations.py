"""What the operator sees: health, readiness, metrics, the admin port."""

import pytest
from api_errors import problem
from running_gateway import eventually

from gateway.core.replica_state import ReplicaState


async def test_health_does_not_depend_on_replicas(start_engine, start_gateway):
    gateway = await start_gateway(await start_engine(fault="refuse"))
    for client in (gateway.http, gateway.admin):
        assert (await client.get("/healthz")).json() == {"status": "ok"}


async def test_ready_once_a_model_has_a_replica(start_engine, start_gateway):
    engines = {name: [await start_engine(model=name, fault="refuse") for _ in range(2)] for name in ("a", "b")}
    models = [
        {"id": name, "tokenizer": "builtin:demo", "replicas": [engine.url for engine in found]}
        for name, found in engines.items()
    ]
    gateway = await start_gateway(models=models, relay={"health_interval_seconds": 0.03})

    async def readiness() -> tuple[int, dict[str, bool]]:
        answer = await gateway.http.get("/readyz")
        assert (answer.status_code == 503) == ("retry-after" in answer.headers)
        return answer.status_code, answer.json()["models"]

    assert await readiness() == (503, {"a": False, "b": False})

    async def becomes(expected: tuple[int, dict[str, bool]]) -> None:
        async def holds() -> bool:
            return await readiness() == expected

        await eventually(holds)

    await engines["a"][1].set_fault("")
    await becomes((200, {"a": True, "b": False}))
    await engines["b"][0].set_fault("")
    await becomes((200, {"a": True, "b": True}))
    await engines["a"][1].kill()
    await becomes((200, {"a": False, "b": True}))
    await engines["b"][0].kill()
    await becomes((503, {"a": False, "b": False}))


@pytest.mark.parametrize("fault", ["500:path=/health", "hang:path=/health", "garbage:path=/health", "500:path=*"])
async def test_replica_whose_check_fails_is_ejected(start_engine, start_gateway, fault):
    gateway = await start_gateway(await start_engine(fault=fault), relay={"health_timeout_seconds": 0.2})
    assert (await gateway.http.get("/readyz")).status_code == 503
    shown = (await gateway.replicas())["r0"]
    assert (shown["state"], shown["up"], shown["accepts"]) == ("ejected", False, False)
    metrics = await gateway.metrics()
    assert metrics.value("gateway_replica_up", replica="r0") == 0
    assert states_of(metrics, "r0") == {"ejected"}


async def test_engine_without_metrics_serves(start_engine, start_gateway, prose):
    gateway = await start_gateway(await start_engine(fault="500:path=/metrics"))
    assert (await gateway.ask(prose(1, 60))).status_code == 200
    assert (await gateway.ask(prose(1, 60))).headers["x-gateway-decision"] == "warm"


async def test_models_before_any_replica_sent_its_card(start_engine, start_gateway):
    gateway = await start_gateway(await start_engine(fault="refuse"))
    (card,) = (await gateway.http.get("/v1/models")).json()["data"]
    assert card["id"] == "demo"
    assert card["object"] == "model"
    assert isinstance(card["created"], int)


async def test_models_carry_the_engines_card(gateway):
    (card,) = (await gateway.http.get("/v1/models")).json()["data"]
    assert card["max_model_len"] > 0
    assert (await gateway.http.get("/v1/models/demo")).json() == card


def states_of(metrics, replica):
    """The states that it is reported to be in; fails if any state is not reported at all."""
    reported = {
        sample.labels["state"]: sample.value
        for family in metrics.families
        for sample in family.samples
        if sample.name == "gateway_replica_state" and sample.labels["replica"] == replica
    }
    assert reported.keys() == {str(state) for state in ReplicaState}
    return {state for state, value in reported.items() if value}


METRICS = {
    "gateway_requests": {"model", "tenant", "endpoint", "status"},
    "gateway_prompt_tokens": {"model", "tenant"},
    "gateway_cached_tokens": {"model", "tenant", "evidence"},
    "gateway_ttft_seconds": {"model", "decision"},
    "gateway_request_seconds": {"model", "endpoint", "decision"},
    "gateway_overhead_seconds": {"stage"},
    "gateway_replica_up": {"model", "replica"},
    "gateway_replica_state": {"model", "replica", "state"},
    "gateway_replica_inflight": {"replica"},
    "gateway_index_blocks": {"replica", "source"},
    "gateway_prediction_error_tokens": {"replica", "direction"},
    "gateway_token_parity": {"model", "result"},
    "gateway_failovers": {"stage"},
    "gateway_saved_prefill_seconds": {"model"},
}


async def test_metrics_have_the_documented_names_and_labels(start_engine, start_gateway, prose):
    engines = [await start_engine(), await start_engine()]
    gateway = await start_gateway(*engines)
    for _ in range(2):
        await gateway.ask(prose(1, 60), stream=True, max_tokens=2)
    for engine in engines:
        engine.cache.reset()
    home = int((await gateway.ask(prose(1, 60), max_tokens=2)).headers["x-gateway-replica"][1:])
    await engines[home].set_fault("refuse")
    await gateway.ask(prose(1, 60), max_tokens=2)
    metrics = await gateway.settled(4)
    families = {family.name: family for family in metrics.families}
    for name, labels in METRICS.items():
        assert families[name].documentation
        assert families[name].samples, name
        for sample in families[name].samples:
            assert sample.labels.keys() - {"le"} == labels, name
    assert metrics.value("gateway_requests_total", status="200", endpoint="/v1/chat/completions") == 4
    assert metrics.value("gateway_ttft_seconds_count") == 2
    assert metrics.value("gateway_ttft_seconds_count", decision="warm") == 1
    assert metrics.value("gateway_request_seconds_count") == 4
    assert metrics.value("gateway_replica_up") == 2
    assert [states_of(metrics, f"r{number}") for number in range(2)] == (
        [{"suspect"}, {"ready"}] if home == 0 else [{"ready"}, {"suspect"}]
    )
    assert metrics.value("gateway_index_blocks", source="predicted") > 0
    assert metrics.value("gateway_saved_prefill_seconds_total") > 0


async def test_metrics_speak_openmetrics_where_asked(gateway):
    answer = await gateway.admin.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")


async def test_labels_come_from_the_configuration_only(gateway):
    for number in range(5):
        await gateway.ask(model=f"made-up-{number}")
        await gateway.http.get(f"/made-up/{number}")
    assert "made-up" not in (await gateway.admin.get("/metrics")).text


async def test_admin_token_is_asked_for(start_gateway, engine):
    gateway = await start_gateway(engine, server={"admin_token": "s3cret-token"})
    right = {"authorization": "Bearer s3cret-token"}
    for path in ("/metrics", "/admin/api/replicas", "/admin/api/config", "/", "/nowhere"):
        for wrong in (
            {},
            {"authorization": "Bearer no"},
            {"authorization": "s3cret-token"},
            {"authorization": "Bearer é"},
        ):
            encoded = {name: value.encode() for name, value in wrong.items()}
            answer = await gateway.admin.get(path, headers=encoded)
            assert answer.status_code == 401
            assert answer.json()["error"]["message"]
        assert (await gateway.admin.get(path, headers=right)).status_code == (404 if path == "/nowhere" else 200)
    assert (await gateway.admin.get("/healthz")).status_code == 200
    # The public port asks for none.
    assert (await gateway.ask()).status_code == 200


async def test_configuration_is_shown_without_secrets(start_gateway, engine):
    gateway = await start_gateway(
        engine,
        model={"replicas": [{"url": engine.url, "api_key": "s3cret-engine"}]},
        server={"admin_token": "s3cret-admin"},
    )
    answer = await gateway.admin.get("/admin/api/config", headers={"authorization": "Bearer s3cret-admin"})
    assert "s3cret" not in answer.text
    shown = answer.json()
    assert shown["models"][0]["replicas"][0] == {
        "url": engine.url,
        "id": engine.url[7:],
        "api_key": "***",
        "region": "",
        "drain": False,
        "endpoints": None,
        "events": "auto",
        "replay": None,
        "ca_file": None,
        "cert_file": None,
        "key_file": None,
    }
    assert shown["server"]["admin_token"] == "***"


async def test_admin_port_has_no_public_paths_and_the_public_none_of_its(gateway):
    assert (await gateway.admin.post("/v1/chat/completions", json={})).status_code == 404
    for path in ("/metrics", "/admin/api/replicas", "/admin/api/config"):
        problem(await gateway.http.get(path), 404, "unknown_path")


async def test_admin_errors_have_the_api_shape(gateway):
    for method, path, status in (("GET", "/nowhere", 404), ("POST", "/metrics", 405)):
        answer = await gateway.admin.request(method, path)
        assert answer.status_code == status
        assert answer.json()["error"].keys() == {"message", "type", "param", "code"}


async def test_replica_state_is_shown(gateway, engine, prose):
    await gateway.ask(prose(1, 60), max_tokens=2)
    state = (await gateway.replicas())["r0"]
    assert state["state"] == "ready"
    assert state["url"] == engine.url
    assert state["engine"]["block_size"] == 16
    assert state["index"]["capacity_blocks"] == 4095
    assert state["index"]["blocks"] >= 3
    assert state["learned"]["prefill_tokens_per_second"] > 0


async def test_failure_inside_the_gateway_is_reported_without_details(gateway, monkeypatch):
    def broken(*_args: object, **_kwargs: object) -> None:
        raise RuntimeError("secret inside")

    monkeypatch.setattr(gateway.gateway.public.generations.service, "_place", broken)
    answer = await gateway.ask(headers={"x-request-id": "req-9"})
    reported = problem(answer, 500, "internal_error")
    assert "req-9" in reported
    assert "secret" not in answer.text
    monkeypatch.undo()
    assert (await gateway.ask()).status_code == 200
    assert await gateway.in_flight() == 0


async def test_refused_requests_are_counted_and_logged_too(gateway, capsys):
    for body, status in ((b"{", 400), (b'{"model":"nobody","messages":[]}', 404)):
        assert (await gateway.send(body)).status_code == status
    metrics = await gateway.metrics()
    for status in ("400", "404"):
        assert metrics.value("gateway_requests_total", model="unknown", status=status) == 1
