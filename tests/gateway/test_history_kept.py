"""Totals and markers outlive a restart of the gateway and of the process that explains, in a file and in Redis."""

import os
import signal

from running_gateway import eventually, settings_for

ON = {"enabled": True}


async def week(gateway) -> dict:
    return (await gateway.admin.get("/admin/api/summary?window=7d")).json()


async def counted(gateway, requests: int) -> dict:
    async def there():
        answer = await gateway.admin.get("/admin/api/summary?window=7d")
        return answer.status_code == 200 and answer.json()["requests"] == requests

    await eventually(there)
    return await week(gateway)


async def kinds(gateway) -> list[str]:
    found = (await gateway.admin.get("/admin/api/reasons?window=7d")).json()["markers"]
    return [each["kind"] for each in found]


async def test_a_file_brings_back_the_week_the_month_and_the_markers(engine, start_gateway, tmp_path):
    options = {"explain": ON, "history": {"file": str(tmp_path / "history")}, "cost": {"prompt_per_million": 1000.0}}
    gateway = await start_gateway(engine, **options)
    for _ in range(3):
        await gateway.ask("Where is my order?", max_tokens=2)
    before = await counted(gateway, 3)
    await gateway.stop()

    after = await start_gateway(engine, **options)
    shown = await counted(after, 3)
    assert {key: shown[key] for key in ("prompt_tokens", "hits", "reasons", "by_source")} == {
        key: before[key] for key in ("prompt_tokens", "hits", "reasons", "by_source")
    }
    assert (await after.admin.get("/admin/api/summary?window=1h")).json()["requests"] == 0
    await after.ask("And now?", max_tokens=1)
    await counted(after, 4)
    assert (await kinds(after)).count("started") == 2
    report = (await after.admin.get("/admin/api/report")).json()
    assert report["total"]["requests"] == 4
    assert report["rows"][0]["cost"] > 0
    assert (tmp_path / "history").stat().st_mode & 0o077 == 0
    assert b"order" not in (tmp_path / "history").read_bytes()


async def test_without_a_file_nothing_is_kept(engine, start_gateway):
    gateway = await start_gateway(engine, explain=ON)
    await gateway.ask("Hello.", max_tokens=1)
    await counted(gateway, 1)
    await gateway.stop()

    assert (await counted(await start_gateway(engine, explain=ON), 0))["requests"] == 0


async def test_a_lost_process_goes_on_with_what_was_saved(engine, start_gateway, tmp_path):
    gateway = await start_gateway(engine, explain=ON, history={"file": str(tmp_path / "history")})
    await gateway.ask("Hello.", max_tokens=1)
    await counted(gateway, 1)
    await gateway.gateway._history._save()

    child = gateway.gateway._explain._supervisor.child
    os.kill(child._process.pid, signal.SIGKILL)

    async def restarted():
        return gateway.gateway._explain._supervisor.child not in (None, child)

    await eventually(restarted)
    await counted(gateway, 1)


async def test_a_damaged_file_is_kept_aside_and_the_gateway_serves(engine, start_gateway, tmp_path):
    file = tmp_path / "history"
    file.write_bytes(b"not a history")
    gateway = await start_gateway(engine, explain=ON, history={"file": str(file)})
    assert (await gateway.ask("Hello.", max_tokens=1)).status_code == 200
    await counted(gateway, 1)
    await gateway.stop()

    assert (tmp_path / "history.unreadable").read_bytes() == b"not a history"
    await counted(await start_gateway(engine, explain=ON, history={"file": str(file)}), 1)


async def test_a_file_that_is_a_folder_is_counted_and_requests_go_on(engine, start_gateway, tmp_path):
    (tmp_path / "history").mkdir()
    gateway = await start_gateway(engine, explain=ON, history={"file": str(tmp_path / "history")})

    async def reported():
        return (await gateway.metrics()).value("gateway_state_errors_total", backend="history") > 0

    await eventually(reported)
    assert (await gateway.ask("Hello.", max_tokens=1)).status_code == 200


async def test_markers_of_a_reload(engine, start_gateway, tmp_path):
    gateway = await start_gateway(engine, explain=ON)
    await gateway.gateway.reload(settings_for([engine], explain=ON, canon={"rules": {"whitespace": "apply"}}))

    async def marked():
        return (await kinds(gateway)) == ["started", "reloaded"]

    await eventually(marked)
    found = (await gateway.admin.get("/admin/api/reasons?window=15m")).json()["markers"]
    assert found[1]["text"] == "changed: canon"


async def test_redis_keeps_the_history_of_every_gateway_and_counts_it_once(engine, start_group, redis_server):
    one, two = await start_group([engine], 2, explain=ON)
    await one.ask("Hello.", max_tokens=1)
    for _ in range(2):
        await two.ask("Hello.", max_tokens=1)
    await counted(one, 1)
    await counted(two, 2)
    for gateway in (one, two):
        await gateway.gateway._history._save()
    assert (await one.admin.get("/admin/api/report?gateways=all")).json()["total"]["requests"] == 3
    await two.stop()
    await one.stop()

    (three,) = await start_group([engine], 1, explain=ON)
    await counted(three, 3)
    found = (await three.admin.get("/admin/api/report?gateways=all")).json()
    assert (found["total"]["requests"], found["gateways"]["missing"]) == (3, False)
    await three.gateway._history._save()
    (four,) = await start_group([engine], 1, explain=ON, peers=1)
    await counted(four, 0)
    assert (await four.admin.get("/admin/api/report?gateways=all")).json()["total"]["requests"] == 3


async def test_without_redis_the_own_figures_are_reported(engine, start_group, redis_server):
    (gateway,) = await start_group([engine], 1, explain=ON)
    await gateway.ask("Hello.", max_tokens=1)
    await counted(gateway, 1)
    redis_server.kill()
    found = (await gateway.admin.get("/admin/api/report?gateways=all")).json()

    assert found["total"]["requests"] == 1
    assert found["gateways"] == {"counted": 1, "missing": True}
