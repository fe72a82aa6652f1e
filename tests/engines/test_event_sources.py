"""Where the engines say their events are, and how a gateway gets at them."""

import json

import pytest

from gateway.core.engine_facts import EngineKind
from gateway.core.kv_events import EventSource
from gateway.engines import ServerFacts, event_sources, offset_sources, parse_server_info


def config(endpoint="tcp://*:5557", **fields):
    """One rank of vLLM's ``/kv_event_sources``."""
    return {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": endpoint,
        "replay_endpoint": None,
        "buffer_steps": 10000,
        "hwm": 100000,
        "max_queue_size": 100000,
        "topic": "",
    } | fields


def vllm(endpoint="tcp://*:5557", host="vllm-0", **fields):
    (source,) = event_sources(EngineKind.VLLM, {"0": config(endpoint, **fields)}, host)
    return source


def sglang(host="sglang-0", document=None, **fields):
    reported = {
        "publisher": "zmq",
        "endpoint_host": "*",
        "endpoint_port_base": 5557,
        "topic": "kv",
        "block_size": 64,
        "dp_size": 1,
    } | fields
    return event_sources(EngineKind.SGLANG, {"kv_events": reported} | (document or {}), host)


def test_each_rank_of_vllm_has_its_address():
    document = {
        "10": config("tcp://*:5567", replay_endpoint="tcp://*:5667"),
        "2": config("tcp://*:5559", replay_endpoint="tcp://*:5659", topic="kv"),
    }
    assert list(event_sources(EngineKind.VLLM, document, "vllm-0")) == [
        EventSource(2, "tcp://vllm-0:5559", "tcp://vllm-0:5659", "kv"),
        EventSource(10, "tcp://vllm-0:5567", "tcp://vllm-0:5667", ""),
    ]


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"0": config(enable_kv_cache_events=False)},
        {"0": config(publisher="null")},
        {"0": config(endpoint=None)},
        {"0": None},
        {"zero": config()},
        [config()],
        None,
        "sources",
    ],
)
def test_a_vllm_without_events_has_no_sources(document):
    assert not event_sources(EngineKind.VLLM, document, "vllm-0")


@pytest.mark.parametrize("wildcard", ["*", "[::]", "::"])
def test_wildcards_stand_for_the_host_the_replica_is_reached_at(wildcard):
    assert vllm(f"tcp://{wildcard}:5557") == EventSource(0, "tcp://vllm-0:5557")
    assert vllm(replay_endpoint=f"tcp://{wildcard}:5657").replay == "tcp://vllm-0:5657"


@pytest.mark.parametrize("host", ["fe80::1", "[fe80::1]"])
def test_hosts_of_version_six_are_bracketed(host):
    assert vllm(host=host).events == "tcp://[fe80::1]:5557"


@pytest.mark.parametrize(
    "endpoint",
    [
        "tcp://[2001:db8::5]:5557",
        "tcp://10.0.0.5:5557",
        "tcp://other-host:5557",
        "tcp://eth0;vllm-0:5557",
        "tcp://127.0.0.1:6379",
        "tcp://localhost:6379",
        "ipc:///var/run/docker.sock",
        "inproc://kv",
        "udp://vllm-0:5557",
        "tcp://vllm-0:0",
        "tcp://vllm-0:65536",
        "tcp://vllm-0:" + "9" * 5000,
        "x" * 10**6,
    ],
    ids=lambda endpoint: endpoint[:30],
)
def test_only_tcp_ports_of_the_replica_s_own_host_are_connected_to(endpoint):
    source = vllm(endpoint)
    assert source.refused
    assert len(source.events) <= 300
    assert "--kv-events-config" in (source.problem or "")
    good = vllm("tcp://*:5557", replay_endpoint=endpoint)
    assert (good.events, good.replay, good.refused) == ("tcp://vllm-0:5557", None, False)


def test_what_is_refused_names_the_setting_that_allows_it():
    assert "events: tcp://" in (vllm("tcp://10.0.0.5:5557").problem or "")


@pytest.mark.parametrize("host", ["10.0.0.5", "[2001:db8::5]", "VLLM-0"])
def test_the_replica_s_own_host_may_be_named(host):
    source = vllm(f"tcp://{host.lower()}:5557", host=host)
    assert source.events == f"tcp://{host.lower()}:5557"
    assert not source.refused


def test_ranks_beyond_the_most_a_replica_can_have_are_left_out():
    document = {str(rank): config() for rank in (*range(2000), 10**9, 10**30)}
    assert [source.rank for source in event_sources(EngineKind.VLLM, document, "vllm-0")] == list(range(512))
    assert len(sglang(dp_size=10**12)) == 512


@pytest.mark.parametrize("endpoint", ["tcp://127.0.0.1:5557", "tcp://localhost:5557", "tcp://127.0.0.1:40001"])
def test_advice_for_a_vllm_that_connects_is_how_to_listen(endpoint):
    problem = vllm(endpoint, host="127.0.0.1").problem
    assert problem is not None
    assert f"connects to {endpoint}" in problem
    assert f'"endpoint" in the engine\'s --kv-events-config to "tcp://*:{endpoint[-5:].lstrip(":")}"' in problem


@pytest.mark.parametrize(
    "endpoint", ["tcp://0.0.0.0:5557", "tcp://10.0.0.5:5557", "tcp://vllm-0:5557", "tcp://eth0:5557"]
)
def test_only_a_star_or_double_colon_makes_vllm_listen(endpoint):
    assert '"tcp://*:5557"' in (vllm(endpoint).problem or "")


def test_the_advice_names_the_port_of_the_first_rank():
    document = {"1": config("tcp://vllm-0:5558")}
    assert '"tcp://*:5557"' in (event_sources(EngineKind.VLLM, document, "vllm-0")[0].problem or "")


def test_a_port_that_the_system_chose_is_listened_at():
    """``tcp://*:0``: vLLM binds an address of its machine and reports it."""
    assert vllm("tcp://10.0.0.5:43211") == EventSource(0, "tcp://vllm-0:43211")


def test_sockets_of_one_machine():
    assert vllm("tcp://[::1]:5557", host="localhost").problem is None
    assert vllm("tcp://127.0.0.1:5557", host="localhost").refused is False
    assert vllm("tcp://10.0.0.5:43211", host="127.0.0.1").refused
    assert "inside the engine's process" in (vllm("inproc://kv", host="127.0.0.1").problem or "")


@pytest.mark.parametrize(
    "endpoint", ["tcp://*:0", "tcp://*", "tcp://*:port", "tcp://*:99999", "udp://*:5557", "ipc:///tmp/kv", ""]
)
def test_what_is_no_address_is_a_problem(endpoint):
    assert "no TCP address with a host and a port" in (vllm(endpoint).problem or "")


def test_each_rank_of_sglang_is_counted_up():
    assert list(sglang(dp_size=3, replay_endpoint_host="*", replay_endpoint_port_base=5657)) == [
        EventSource(rank, f"tcp://sglang-0:{5557 + rank}", f"tcp://sglang-0:{5657 + rank}", "kv") for rank in range(3)
    ]


def test_sglang_s_replay_address_may_stand_in_its_arguments_only():
    document = {"kv_events_config": json.dumps({"publisher": "zmq", "replay_endpoint": "tcp://*:6000"})}
    assert [source.replay for source in sglang(document=document, dp_size=2)] == [
        "tcp://sglang-0:6000",
        "tcp://sglang-0:6001",
    ]


@pytest.mark.parametrize("given", [None, "{", "[]", "null", '{"replay_endpoint": 5}', 7])
def test_sglang_without_a_replay_address(given):
    assert [source.replay for source in sglang(document={"kv_events_config": given})] == [None]


@pytest.mark.parametrize("wildcard", ["*", "0.0.0.0", "::", "[::]"])
def test_sglang_s_wildcards(wildcard):
    assert list(sglang(endpoint_host=wildcard)) == [EventSource(0, "tcp://sglang-0:5557", None, "kv")]


def test_advice_for_an_sglang_that_connects_is_how_to_listen():
    sources = sglang(endpoint_host="10.0.0.5", dp_size=2)
    assert [source.events for source in sources] == ["tcp://10.0.0.5:5557", "tcp://10.0.0.5:5558"]
    assert all('"tcp://*:5557"' in (source.problem or "") for source in sources)


@pytest.mark.parametrize(
    "document",
    [
        {"kv_events": None},
        {},
        None,
        [],
        {"kv_events": {"publisher": "null", "endpoint_host": "*", "endpoint_port_base": 5557}},
        {"kv_events": {"publisher": "zmq", "endpoint_host": "*", "endpoint_port_base": "5557"}},
        {"kv_events": {"publisher": "zmq", "endpoint_port_base": 5557}},
        {"kv_events": {"publisher": "zmq", "endpoint_host": "*", "endpoint_port_base": 70000}},
    ],
)
def test_an_sglang_without_events_has_no_sources(document):
    assert not event_sources(EngineKind.SGLANG, document, "sglang-0")


def test_a_configured_address_is_counted_up():
    assert list(offset_sources("tcp://vllm-0:5557", "tcp://[fe80::1]:5657", 2)) == [
        EventSource(0, "tcp://vllm-0:5557", "tcp://[fe80::1]:5657"),
        EventSource(1, "tcp://vllm-0:5558", "tcp://[fe80::1]:5658"),
    ]
    assert list(offset_sources("ipc:///tmp/kv", None, 1)) == [EventSource(0, "ipc:///tmp/kv")]


@pytest.mark.parametrize("events", ["ipc:///tmp/kv", "tcp://vllm-0:65535", "tcp://vllm-0"])
def test_an_address_that_cannot_be_counted_up_is_a_problem(events):
    assert [source.problem is None for source in offset_sources(events, None, 2)] == [True, False]
    assert [source.problem is None for source in offset_sources("tcp://vllm-0:5557", events, 2)] == [True, False]


def test_what_server_info_contains():
    document = {"disable_radix_cache": True, "page_size": 64, "enable_cache_report": False}
    assert parse_server_info(document) == ServerFacts(False, False)
    assert parse_server_info(document | {"disable_radix_cache": False, "enable_cache_report": True}) == ServerFacts(
        True, True
    )


@pytest.mark.parametrize("document", [{}, None, [], {"page_size": "1", "dp_size": 0, "disable_radix_cache": None}])
def test_what_server_info_does_not_contain(document):
    assert parse_server_info(document) == ServerFacts()
