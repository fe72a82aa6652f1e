import pytest

from gateway.core.engine_facts import EngineFacts, EngineKind, RankFacts
from gateway.core.outcome import Usage
from gateway.engines import parse_metrics, parse_usage, payloads
from gateway.engines.samples import read_samples

# Lines as vLLM 0.32.0 prints them.
VLLM = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="smollm2"} 3.0
vllm:num_requests_running_created{engine="0",model_name="smollm2"} 1.7
vllm:num_requests_waiting{engine="0",model_name="smollm2"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="smollm2",reason="capacity"} 7.0
vllm:kv_cache_usage_perc{engine="0",model_name="smollm2"} 0.125
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.001",model_name="smollm2"} 0.0
vllm:cache_config_info{block_size="32",cache_dtype="auto",calculate_kv_scales="False",enable_prefix_caching="True",\
engine="0",num_gpu_blocks="1365",prefix_caching_hash_algo="sha256_cbor"} 1.0
process_start_time_seconds 1.79520000012e+09
"""

SGLANG = """\
sglang:num_running_reqs{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 4.0
sglang:num_queue_reqs{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 1.0
sglang:token_usage{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 0.25
sglang:page_size{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 1.0
sglang:max_total_num_tokens{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 160000.0
"""


def test_vllm_reports_all_in_one_scrape():
    assert parse_metrics(VLLM) == EngineFacts(
        EngineKind.VLLM, 32, True, 1795200000.12, (RankFacts(0, 1364, 3, 2, 0.125),)
    )


def test_only_the_metrics_asked_for_are_read():
    assert read_samples(VLLM, ["vllm:num_requests_waiting"]) == {
        "vllm:num_requests_waiting": [({"engine": "0", "model_name": "smollm2"}, 2.0)]
    }


def test_vllm_s_ranks_are_distinguished_and_summed_up():
    first = VLLM.replace("1365", "2002")  # each reports the sum
    second = first.replace('engine="0"', 'engine="1"').replace("} 3.0", "} 1.0")
    facts = parse_metrics(second + first)
    assert facts.ranks == (RankFacts(0, 1000, 3, 2, 0.125), RankFacts(1, 1000, 1, 2, 0.125))
    assert (facts.blocks, facts.running, facts.waiting, facts.block_size) == (2000, 4, 4, 32)


def test_ranks_keep_their_numbers():
    assert [rank.rank for rank in parse_metrics(VLLM.replace('engine="0"', 'engine="3"')).ranks] == [3]


def test_prefix_caching_switched_off_is_seen():
    page = VLLM.replace('enable_prefix_caching="True"', 'enable_prefix_caching="False"')
    assert parse_metrics(page).prefix_caching is False


def test_blocks_not_known_yet():
    page = VLLM.replace('num_gpu_blocks="1365"', 'num_gpu_blocks="None"').replace('block_size="32"', 'block_size="0"')
    facts = parse_metrics(page)
    assert (facts.blocks, facts.block_size, facts.running) == (None, None, 3)


def test_sglang_s_pages_of_one_token_are_taken_together():
    facts = parse_metrics(SGLANG)
    assert facts == EngineFacts(EngineKind.SGLANG, 16, None, None, (RankFacts(0, 10_000, 4, 1, 0.25),))
    assert parse_metrics(SGLANG.replace('tp_rank="0"} 1.0', 'tp_rank="0"} 64.0')).block_size == 64


def test_sglang_s_ranks_are_those_of_data_parallelism():
    """Tensor-parallel ranks report the same requests again."""
    page = "".join(
        SGLANG.replace('tp_rank="0"', f'tp_rank="{tp}",dp_rank="{dp}"').replace("} 4.0", f"}} {4 + dp}.0")
        for dp in (0, 1)
        for tp in (0, 1)
    )
    facts = parse_metrics(page)
    assert [(rank.rank, rank.blocks, rank.running) for rank in facts.ranks] == [(0, 10_000, 4), (1, 10_000, 5)]
    assert facts.running == 9


@pytest.mark.parametrize(
    "page",
    [
        "",
        "garbage\n{}{}\n",
        "other_engine_metric 1\nprocess_start_time_seconds 5\n",
        "vllm:num_requests_running nan-sense\n",
        "vllm:num_requests_running NaN\nvllm:num_requests_waiting +Inf\n",
        'other{text="\\nvllm:num_requests_running 5"} 1\n',
    ],
)
def test_pages_of_other_kinds_are_ignored(page):
    assert parse_metrics(page) == EngineFacts()


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens": 10, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 8}}, Usage(10, 2, 8)),
        ({"prompt_tokens": 10, "completion_tokens": 2, "prompt_tokens_details": None}, Usage(10, 2, None)),
        ({"prompt_tokens": 10}, Usage(10, 0, None)),
        ({"prompt_tokens": "10"}, None),
        (None, None),
        ([], None),
    ],
)
def test_usage_as_engines_report_it(usage, expected):
    assert parse_usage(usage) == expected


def test_events_of_a_stream():
    stream = b': comment\n\ndata: {"a":1}\n\ndata:{"b":2}\r\n\r\nevent: x\ndata: [DONE]\n\n'
    assert list(payloads(stream)) == [b'{"a":1}', b'{"b":2}']
