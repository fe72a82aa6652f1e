import json
import re
import shlex

import pytest

from gateway.core.engine_facts import EngineKind
from gateway.engines import advice, event_sources

FLAGS = {
    EngineKind.VLLM: ("--enable-prefix-caching", "--enable-prompt-tokens-details"),
    EngineKind.SGLANG: ("--disable-radix-cache", "--enable-cache-report"),
}


@pytest.mark.parametrize("kind", EngineKind)
def test_each_engine_has_flags_of_its_own(kind):
    found = advice(kind)
    prefix_caching, usage_details = FLAGS[kind]
    assert prefix_caching in found.prefix_caching
    assert usage_details in found.usage_details


def test_for_an_unknown_engine_there_are_the_flags_of_all():
    found = advice(None)
    for prefix_caching, usage_details in FLAGS.values():
        assert prefix_caching in found.prefix_caching
        assert usage_details in found.usage_details
    assert all(advice(kind).events in found.events for kind in EngineKind)


@pytest.mark.parametrize("kind", EngineKind)
def test_events_of_an_engine_set_up_as_advised_are_received(kind):
    """The flag can be pasted into a shell, and an engine started with it has events and replay, rank by rank."""
    words = shlex.split(advice(kind).events)
    config = json.loads(words[words.index("--kv-events-config") + 1])
    events, replay = (int(re.findall(r"^tcp://\*:(\d+)$", config[key])[0]) for key in ("endpoint", "replay_endpoint"))
    assert replay - events >= 64, "the ranks' ports would meet"
    if kind is EngineKind.VLLM:
        document = {"0": config}
    else:
        reported = {"publisher": config["publisher"], "endpoint_host": "*", "endpoint_port_base": events, "dp_size": 1}
        document = {"kv_events": reported, "kv_events_config": json.dumps(config)}
    (source,) = event_sources(kind, document, "engine")
    assert (source.events, source.replay, source.problem) == (f"tcp://engine:{events}", f"tcp://engine:{replay}", None)
