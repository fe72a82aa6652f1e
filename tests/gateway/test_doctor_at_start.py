"""``prefix-gateway serve`` logs mistakes in the set-up once it is ready."""

import pytest
from running_gateway import eventually


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_starting_gateway_logs_each_finding_once_and_behind_its_readiness(start_engine, serve, workers):
    engine = await start_engine(prefix_caching=False)
    dead = "http://127.0.0.1:9"
    serving = await serve(engine.url, dead, server={"workers": workers})
    await eventually(lambda: bool(serving.events("doctor_examined")))
    found = [(event["name"], event["where"]) for event in serving.events("doctor_finding")]
    assert sorted(found) == [
        ("events-off", f"replica {engine.url.removeprefix('http://')}"),
        ("prefix-caching-off", f"replica {engine.url.removeprefix('http://')}"),
        ("replica-unreachable", "replica 127.0.0.1:9"),
    ]
    lines = [line for line in serving.lines if "gateway_ready" in line or "doctor_" in line]
    assert "gateway_ready" in lines[0]
    # The check of the dead replica is waited for, and does not hold the end up.
    serving.process.terminate()
    assert await serving.exit_code() == 0
