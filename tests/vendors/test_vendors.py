import pytest

from gateway.values.engine import EngineFacts
from gateway.values.outcome import Usage
from gateway.vendors import parse_metrics, parse_usage, payloads

# Lines as vLLM 0.32.0 prints them.
VLLM = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="smollm2"} 3.0
vllm:num_requests_running_created{engine="0",model_name="smollm2"} 1.7
vllm:num_requests_waiting{engine="0",model_name="smollm2"} 2.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.001",model_name="smollm2"} 0.0
vllm:cache_config_info{block_size="32",cache_dtype="auto",calculate_kv_scales="False",enable_prefix_caching="True",\
engine="0",num_gpu_blocks="1365",prefix_caching_hash_algo="sha256_cbor"} 1.0
process_start_time_seconds 1.79520000012e+09
"""

SGLANG = """\
sglang:num_running_reqs{model_name="m"} 4.0
sglang:num_queue_reqs{model_name="m"} 1.0
sglang:page_size{model_name="m"} 1.0
sglang:max_total_num_tokens{model_name="m"} 160000.0
"""


def test_vllm_tells_all_in_one_scrape():
    assert parse_metrics(VLLM) == EngineFacts(32, 1364, True, 3, 2, 1795200000.12)


def test_data_parallel_ranks_are_summed_up():
    second = VLLM.replace('engine="0"', 'engine="1"').replace("1365", "1001")
    facts = parse_metrics(VLLM + second)
    assert (facts.blocks, facts.running, facts.waiting, facts.block_size) == (2364, 6, 4, 32)


def test_prefix_caching_switched_off_is_seen():
    assert (
        parse_metrics(VLLM.replace('enable_prefix_caching="True"', 'enable_prefix_caching="False"')).prefix_caching
        is False
    )


def test_sglang_s_pages_of_one_token_are_taken_together():
    facts = parse_metrics(SGLANG)
    assert (facts.block_size, facts.blocks, facts.running, facts.waiting) == (16, 10_000, 4, 1)
    assert (
        parse_metrics(SGLANG.replace('page_size{model_name="m"} 1.0', 'page_size{model_name="m"} 64.0')).block_size
        == 64
    )


@pytest.mark.parametrize(
    "page", ["", "garbage\n{}{}\n", "other_engine_metric 1\n", "vllm:num_requests_running nan-sense\n"]
)
def test_pages_of_other_kinds_tell_nothing(page):
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
