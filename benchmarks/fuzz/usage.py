"""What reads token counts and metrics: usage objects, the usage inside a large JSON text, metrics pages, model lists.

* Nothing is raised but ``ValueError`` by what is declared to raise it.
* Every number that comes out is one that can be right.
* The usage of a large text is the same that parsing all of it gives, cut at any byte, for any strings in it.
"""

import json
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from benchmarks.fuzz.sse import _json, _usage
from benchmarks.fuzz.target import Target, cut
from gateway.core.engine_facts import EngineKind
from gateway.engines import event_sources, parse_metrics, parse_models, parse_server_info, parse_usage
from gateway.proxy.usage_scan import UsageScan

_MAX = 2**31
_said = st.one_of(
    st.text(max_size=20), st.sampled_from(['"usage":{"prompt_tokens":1}', '\\"usage":{}', '"usage"', "\\"])
)
_metric = st.sampled_from(
    [
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:cache_config_info",
        "sglang:num_running_reqs",
        "sglang:page_size",
        "sglang:max_total_num_tokens",
        "sglang:token_usage",
        "process_start_time_seconds",
    ]
)
_label = st.sampled_from(["engine", "dp_rank", "block_size", "num_gpu_blocks", "enable_prefix_caching", "x"])
_number = st.one_of(
    st.integers(-5, 10**12).map(str),
    st.floats().map(str),
    st.integers(1, 5000).map(lambda digits: "9" * digits),
    st.sampled_from(["NaN", "+Inf", "-0", "1e308", "", "x", "True", "²"]),
)


@st.composite
def _page(draw: st.DrawFn) -> str:
    lines = []
    for _ in range(draw(st.integers(0, 8))):
        labels = ",".join(f'{draw(_label)}="{draw(_number)}"' for _ in range(draw(st.integers(0, 4))))
        line = draw(_metric) + (f"{{{labels}}}" if labels else "") + " " + draw(_number)
        at = draw(st.integers(0, len(line)))
        lines.append(line if draw(st.booleans()) else line[:at] + draw(st.text(max_size=4)) + line[at:])
    return draw(st.sampled_from(["\n", "\n", "\r\n", "\n\n"])).join(lines)


@st.composite
def _large(draw: st.DrawFn) -> tuple[bytes, Sequence[int], Any]:
    """A JSON text with its usage, the places where it is cut, and the usage."""
    usage = draw(st.one_of(_usage, _json).filter(lambda value: '"usage"' not in json.dumps(value)))
    before, behind = (draw(st.dictionaries(st.text("abc", max_size=3), _said, max_size=3)) for _ in range(2))
    body = {**before, "choices": [{"text": draw(_said)}], "usage": usage, **behind, "prompt_logprobs": draw(_said)}
    text = json.dumps(body, indent=draw(st.sampled_from([None, 1]))).encode()
    return text, draw(st.lists(st.integers(0, len(text)), max_size=12)), usage


_address = st.one_of(
    st.sampled_from(["tcp://*:5557", "tcp://other:5557", "ipc:///tmp/s", "inproc://x", "tcp://[::]:1", "tcp://*:0"]),
    st.text(max_size=12),
    st.tuples(st.text("tcp:/*[]0123456789.r", max_size=8), st.integers(-1, 10**6)).map(
        lambda pair: f"tcp://{pair[0]}:{pair[1]}"
    ),
)
_config = st.fixed_dictionaries(
    {},
    optional={"endpoint": st.one_of(_address, _json), "replay_endpoint": _address, "publisher": _json, "topic": _json},
)
_sources = st.one_of(
    _json,
    st.dictionaries(st.one_of(st.integers(-1, 3000).map(str), st.text(max_size=4)), _config, max_size=4),
    st.fixed_dictionaries(
        {
            "kv_events": st.fixed_dictionaries(
                {},
                optional={
                    "endpoint_host": st.one_of(st.sampled_from(["*", "r", "::", "x:1"]), _json),
                    "endpoint_port_base": st.one_of(st.integers(-1, 10**6), _json),
                    "dp_size": st.one_of(st.integers(-1, 10**12), _json),
                },
            )
        }
    ),
)
_models = st.one_of(
    st.binary(max_size=40),
    _json.map(lambda value: json.dumps(value).encode()),
    st.lists(
        st.one_of(_json, st.fixed_dictionaries({"id": st.one_of(st.just("m"), _json)}, optional={"x": _json}))
    ).map(lambda data: json.dumps({"data": data}).encode()),
    st.integers(1, 3000).map(lambda depth: b'{"data":[{"id":"m","x":' + b"[" * depth + b"]" * depth + b"}]}"),
)
_examples = st.one_of(
    st.tuples(st.just("usage"), st.one_of(_usage, _json)),
    st.tuples(st.just("large"), _large()),
    st.tuples(st.just("metrics"), _page()),
    st.tuples(st.just("sources"), _sources),
    st.tuples(st.just("models"), _models),
)


def _check_usage(usage: Any) -> None:
    found = parse_usage(usage)
    if found is not None:
        assert type(found.prompt_tokens) is int
        assert 0 <= found.prompt_tokens <= _MAX
        assert 0 <= found.completion_tokens <= _MAX
        assert found.cached_tokens is None or 0 <= found.cached_tokens <= found.prompt_tokens


def _check_large(example: tuple[bytes, Sequence[int], Any]) -> None:
    text, places, usage = example
    scan = UsageScan()
    for piece in cut(text, places):
        scan.feed(piece)
        assert len(scan._held) < 2**16
    assert scan.finish() == parse_usage(usage)


def _check_metrics(page: str) -> None:
    facts = parse_metrics(page)
    assert len(facts.ranks) <= 1024
    assert facts.block_size is None or 0 < facts.block_size <= 2**16
    assert facts.started_at is None or 0 <= facts.started_at <= 2**33
    for rank in facts.ranks:
        assert 0 <= rank.rank < 1024
        assert all(count is None or 0 <= count <= _MAX for count in (rank.blocks, rank.running, rank.waiting))
        assert rank.cache_use is None or 0 <= rank.cache_use <= 1


def _check_sources(document: Any) -> None:
    parse_server_info(document)
    for kind in EngineKind:
        sources = event_sources(kind, document, "r")
        assert len(sources) <= 1024
        for source in sources:
            for address in (source.events, source.replay):
                if address is not None and not source.refused:
                    host, _, port = address.removeprefix("tcp://").rpartition(":")
                    assert address.startswith("tcp://")
                    assert host == "r"
                    assert 1 <= int(port) <= 65535
            assert source.problem or not source.refused


def _check_models(body: bytes) -> None:
    try:
        models = parse_models(body, "m")
    except ValueError:
        return
    assert (models.card is None) == ("m" not in models.ids)
    json.dumps(models.card)


_CHECKS = {
    "usage": _check_usage,
    "large": _check_large,
    "metrics": _check_metrics,
    "sources": _check_sources,
    "models": _check_models,
}


def _check(example: tuple[str, Any]) -> None:
    _CHECKS[example[0]](example[1])


TARGET = Target("usage", _examples, _check)
