"""The word for a decision: the same in the answer, the log, the metrics, and what the admin port shows."""

import json

from running_gateway import eventually
from structlog.testing import capture_logs


def messages(*texts: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": texts[0]}, *({"role": "user", "content": text} for text in texts[1:])]


async def decisions_of(gateway, asked: list[list[dict[str, str]]]) -> list[tuple[str, int, int]]:
    """Decision, held tokens and prompt tokens of each request, in streams, as the answers report."""
    found = []
    for each in asked:
        answer = await gateway.ask(messages=each, stream=True)
        assert answer.status_code == 200
        found.append(
            (
                answer.headers["x-gateway-decision"],
                int(answer.headers["x-gateway-prefix-tokens"]),
                int(answer.headers["x-gateway-prompt-tokens"]),
            )
        )
    return found


async def test_a_small_part_is_partial_everywhere(start_engine, start_gateway, prose, tmp_path):
    audit = tmp_path / "audit.log"
    gateway = await start_gateway(await start_engine(), explain={"enabled": True}, audit={"file": str(audit)})
    short, long = prose(1, 40), prose(2, 1200)
    with capture_logs() as logs:
        found = await decisions_of(
            gateway, [messages(short, long), messages(short, prose(3, 1200)), messages(short, long)]
        )
    (first, part, again) = found
    assert first[:2] == ("cold", 0)
    assert part[0] == "partial"
    assert 0 < part[1] < part[2] / 10
    assert again[0] == "warm"
    assert again[1] > again[2] / 2
    assert [line["decision"] for line in logs if line["event"] == "request_settled"] == ["cold", "partial", "warm"]
    metrics = await gateway.settled(3)
    for word in ("cold", "partial", "warm"):
        assert metrics.value("gateway_ttft_seconds_count", decision=word) == 1
    await wait_until_reported(gateway, ["warm", "partial", "cold"])
    await eventually(lambda: audit.exists() and audit.read_text().count('"request"') == 3)
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    assert [line["decision"] for line in lines if line["event"] == "request"] == ["cold", "partial", "warm"]


async def wait_until_reported(gateway, newest_first: list[str]) -> None:
    async def all_reported() -> bool:
        answer = await gateway.admin.get("/admin/api/requests")
        return answer.status_code == 200 and len(answer.json()["requests"]) == len(newest_first)

    await eventually(all_reported)
    rows = (await gateway.admin.get("/admin/api/requests")).json()["requests"]
    assert [row["decision"] for row in rows] == newest_first
    details = (await gateway.admin.get(f"/admin/api/requests/{rows[1]['id']}")).json()
    assert details["decision"]["kind"] == "partial"
    assert any("(partial)" in line for line in details["told"])
    # Divided by half of the prompt: what is partial counts as cold.
    ttft = (await gateway.admin.get("/admin/api/summary")).json()["ttft"]
    assert (ttft["warm"]["requests"], ttft["cold"]["requests"]) == (1, 2)


async def test_half_of_the_prompt_is_warm(start_engine, start_gateway, prose):
    """Whole blocks count: with one block of tokens less than half, it is partial."""
    gateway = await start_gateway(await start_engine())
    seen = set()
    await gateway.ask(messages=messages(prose(1, 300)))
    for words in range(100, 500, 25):
        decision, held, prompt = (await decisions_of(gateway, [messages(prose(1, 300), prose(words, words))]))[0]
        assert decision == ("warm" if 2 * held >= prompt else "partial")
        seen.add(decision)
    assert seen == {"warm", "partial"}
