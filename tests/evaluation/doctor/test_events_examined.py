"""Mistakes in the engines' KV events."""

import pytest
from examined_settings import examined, names, only, settings_for

from benchmarks.free_ports import free_port
from gateway.core.engine_facts import EngineFacts, EngineKind
from gateway.engines import event_sources
from gateway.evaluation.doctor.engine_probe import EngineProbe, ExaminedReplica
from gateway.evaluation.doctor.event_checks import event_findings


@pytest.mark.parametrize("flavor", EngineKind)
async def test_events_that_are_off(start_engine, flavor):
    engine = await start_engine(flavor=flavor, prompt_tokens_details=True, events="", replay="")
    found = only(await examined(settings_for(engine)))
    assert found.name == "events-off"
    assert "--kv-events-config" in found.fix


async def test_events_that_the_configuration_turns_off(start_engine):
    engine = await start_engine()
    found = only(await examined(settings_for(model={"replicas": [{"url": engine.url, "id": "r0", "events": "off"}]})))
    assert found.name == "events-off"
    assert "models[0].replicas[0]" in found.fix


@pytest.mark.parametrize("flavor", EngineKind)
async def test_events_that_connect_to_an_address_instead_of_listening(start_engine, flavor):
    port = free_port()
    engine = await start_engine(flavor=flavor, prompt_tokens_details=True, events=f"tcp://127.0.0.1:{port}", replay="")
    found = only(await examined(settings_for(engine)))
    assert found.name == "events-address"
    assert f"tcp://127.0.0.1:{port}" in found.said
    assert f"tcp://*:{port}" in found.fix


async def test_events_at_the_loopback_of_another_host():
    settings = settings_for("http://10.0.0.7:8000")
    replica = ExaminedReplica(settings.models[0], "models[0]", "models[0].replicas[0]", settings.models[0].replicas[0])
    reported = {"0": {"publisher": "zmq", "endpoint": "tcp://127.0.0.1:5557"}}
    sources = event_sources(EngineKind.VLLM, reported, replica.host)
    (found,) = await event_findings(EngineProbe(replica, facts=EngineFacts(EngineKind.VLLM), sources=sources), 0.1)
    assert found.name == "events-address"
    assert "tcp://127.0.0.1:5557 is not on the replica's host" in found.said
    assert '"tcp://*:5557"' in found.fix


async def test_events_that_cannot_be_reached(start_engine):
    engine = await start_engine(events=f"tcp://*:{free_port()}", fault="events_close")
    found = only(await examined(settings_for(engine), timeout_seconds=1.0))
    assert found.name == "events-unreachable"
    assert "open that port" in found.fix


async def test_a_configured_address_that_nothing_publishes_at(start_engine):
    engine = await start_engine()
    address = f"tcp://127.0.0.1:{free_port()}"
    replica = {"url": engine.url, "id": "r0", "events": address}
    found = only(await examined(settings_for(model={"replicas": [replica]}), timeout_seconds=1.0))
    assert found.name == "events-unreachable"
    assert f"models[0].replicas[0].events, which is {address}" in found.fix


async def test_events_without_replay(start_engine):
    engine = await start_engine(replay="")
    found = only(await examined(settings_for(engine)))
    assert found.name == "events-without-replay"
    assert "replay_endpoint" in found.fix


async def test_a_replay_that_does_not_answer(start_engine):
    engine = await start_engine()
    replica = {
        "url": engine.url,
        "id": "r0",
        "events": engine.event_endpoints[0].replace("*", "127.0.0.1"),
        "replay": f"tcp://127.0.0.1:{free_port()}",
    }
    found = only(await examined(settings_for(model={"replicas": [replica]}), timeout_seconds=1.0))
    assert found.name == "replay-unreachable"
    assert "models[0].replicas[0].replay" in found.fix


async def test_all_ranks_are_tried_and_reported_once(start_engine):
    engine = await start_engine(data_parallel_size=2, events="", replay="")
    assert names(await examined(settings_for(engine))) == ["events-off"]
    several = await start_engine(data_parallel_size=2)
    assert names(await examined(settings_for(several))) == []
