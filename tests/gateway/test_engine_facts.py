"""What the engines' metrics and answers show of them, and what the operator is advised to change."""

import structlog
from running_gateway import eventually
from scripted_engine import USAGE, response

CHECKS = {"health_interval_seconds": 0.03}
SILENT = response(b'{"choices":[],"usage":' + USAGE + b"}")
REPORTING = response(
    b'{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":0}}}'
)


def vllm(ranks: int = 1, blocks: int = 1000, caching: bool = True, started: int = 100) -> str:
    """A page of metrics; ``blocks`` for each rank, of which the engine reports the sum."""
    lines = [f"process_start_time_seconds {started}"]
    for rank in range(ranks):
        lines += [
            f'vllm:cache_config_info{{block_size="16",num_gpu_blocks="{blocks * ranks}",'
            f'enable_prefix_caching="{caching}",engine="{rank}"}} 1.0',
            f'vllm:num_requests_running{{engine="{rank}"}} 0.0',
            f'vllm:num_requests_waiting{{engine="{rank}"}} 0.0',
        ]
    return "\n".join(lines) + "\n"


async def engine_state(gateway) -> dict:
    return (await gateway.replicas())["r0"]["engine"]


async def test_answers_without_usage_details_are_reported_once_with_the_flag_to_set(scripted, start_gateway):
    scripted.metrics = vllm()
    scripted.says(SILENT)
    gateway = await start_gateway(scripted)
    assert (await engine_state(gateway))["usage_details"] is None
    with structlog.testing.capture_logs() as logs:
        for _ in range(3):
            await gateway.ask()
        await gateway.settled(3)
    reported = [entry for entry in logs if entry["event"] == "usage_details_missing"]
    assert [(entry["replica"], entry["log_level"]) for entry in reported] == [("r0", "warning")]
    assert "--enable-prompt-tokens-details" in reported[0]["fix"]
    assert (await engine_state(gateway))["usage_details"] is False


async def test_answers_with_usage_details_are_no_reason_to_warn(scripted, start_gateway):
    scripted.metrics = vllm()
    scripted.says(REPORTING)
    gateway = await start_gateway(scripted)
    with structlog.testing.capture_logs() as logs:
        await gateway.ask()
        await gateway.settled(1)
    assert "usage_details_missing" not in [entry["event"] for entry in logs]
    assert (await engine_state(gateway))["usage_details"] is True


async def test_restarted_engine_is_checked_again_for_usage_details(scripted, start_gateway):
    scripted.metrics = vllm()
    scripted.says(SILENT)
    gateway = await start_gateway(scripted, relay=CHECKS)
    await gateway.ask()
    await gateway.settled(1)
    assert (await engine_state(gateway))["usage_details"] is False
    scripted.metrics = vllm(started=200)

    async def unknown() -> bool:
        return (await engine_state(gateway))["usage_details"] is None

    await eventually(unknown)
    scripted.says(REPORTING)
    await gateway.ask()
    await gateway.settled(2)
    assert (await engine_state(gateway))["usage_details"] is True


async def test_refused_requests_say_nothing_of_usage_details(scripted, start_gateway):
    scripted.metrics = vllm()
    scripted.says(response(b'{"usage":' + USAGE + b"}", status="400 Bad Request"))
    gateway = await start_gateway(scripted)
    await gateway.ask()
    await gateway.settled(1)
    assert (await engine_state(gateway))["usage_details"] is None


async def test_engine_without_prefix_caching_is_reported_with_the_flag_to_set(scripted, start_gateway):
    scripted.metrics = vllm(caching=False)
    with structlog.testing.capture_logs() as logs:
        await start_gateway(scripted)
    (reported,) = [entry for entry in logs if entry["event"] == "prefix_caching_off"]
    assert reported["replica"] == "r0"
    assert "--enable-prefix-caching" in reported["fix"]


async def test_facts_that_change_are_taken_over_and_the_load_alone_is_no_change(scripted, start_gateway):
    scripted.metrics = vllm()
    gateway = await start_gateway(scripted, relay=CHECKS)

    async def shows(capacity: int, ranks: int) -> None:
        async def shown() -> bool:
            state = (await gateway.replicas())["r0"]
            return (state["index"]["capacity_blocks"], state["engine"]["ranks"]) == (capacity, ranks)

        await eventually(shown)

    with structlog.testing.capture_logs() as logs:
        await shows(999, 1)
        scripted.metrics = vllm(ranks=2)
        await shows(2 * 999, 2)
        scripted.metrics = vllm(ranks=2).replace('running{engine="1"} 0', 'running{engine="1"} 7')

        async def busy() -> bool:
            return (await engine_state(gateway))["running"] == 7

        await eventually(busy)
        scripted.metrics = vllm(ranks=2, blocks=500)
        await shows(2 * 499, 2)
    changes = [(entry["ranks"], entry["blocks"]) for entry in logs if entry["event"] == "replica_facts"]
    assert changes == [(2, 1998), (2, 998)]
