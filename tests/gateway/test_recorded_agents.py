"""What coding agents send, recorded by ``python -m tests.agents.run --record``: two turns each, sent again here.

The recordings hold no prose of theirs and nothing of a person or machine. ``$ANSWER0`` stands for the text of the
answer to the first request: the client sent it back.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import structlog
from anthropic.types import RawMessageStreamEvent
from openai.types.chat import ChatCompletionChunk
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter
from running_gateway import eventually

RECORDED = Path(__file__).parent / "recorded"
NAMED = "00000000-0000-0000-0000-000000000001"
EXPECTED = {
    "claude": ("claude-cli", NAMED),
    "codex": ("codex_exec", NAMED),
    "codex-builtin": ("codex_exec", NAMED),
    "continue": ("ls", ""),
    "opencode": ("opencode", "ses_00000000000000000000000001"),
    "pi-chat": ("openai", ""),
    "pi-messages": ("anthropic", ""),
    "pi-responses": ("openai", NAMED),
    "qwen": ("qwencode", ""),
}
"""Family and session by which each recording is shown."""

WARNINGS = dict.fromkeys(("codex", "codex-builtin"), "tool web_search left out")
"""``x-gateway-warning`` of its answers: an engine has no tool of that kind."""

EVENTS: dict[str, TypeAdapter[Any]] = {
    "/v1/chat/completions": TypeAdapter(ChatCompletionChunk),
    "/v1/messages": TypeAdapter(RawMessageStreamEvent),
    "/v1/responses": TypeAdapter(ResponseStreamEvent),
}


def test_every_recording_is_expected_and_names_no_person_and_no_machine():
    assert {file.stem for file in RECORDED.iterdir()} == EXPECTED.keys()
    for file in RECORDED.iterdir():
        text = file.read_text()
        ids = {each for each in re.findall(r"\b[0-9a-f]{12,}\b", text) if not re.fullmatch(r"0+[0-9a-f]{1,2}", each)}
        assert ids <= {str(2**53 - 1)}  # a bound of numbers in schemas
        paths = re.findall(r"(?<![\w:/.])/(?:home|root|tmp|Users|var|work)/[\w./-]*", text)
        assert {path.rstrip("/") for path in paths} <= {"/home/user/project"}
        assert set(re.findall(r"[\w.+-]+@[\w-]+\.\w+", text)) <= {"user@example.invalid"}


@pytest.mark.parametrize("name", EXPECTED)
async def test_a_recorded_agent_is_served_and_its_second_turn_found(name, start_engine, start_gateway):
    engines = [await start_engine(max_model_len=131072, blocks=16384) for _ in range(2)]
    gateway = await start_gateway(*engines, model={"tokenizer": "engine"}, explain={"enabled": True})
    texts: list[str] = []
    main: list[tuple[int, int]] = []
    with structlog.testing.capture_logs() as logs:
        for number, sent in enumerate(json.loads((RECORDED / f"{name}.json").read_text())["requests"]):
            body = answered(json.dumps(sent["body"]), texts)
            headers = sent["headers"] | {"x-request-id": f"{name}-{number}"}
            answer = await gateway.http.post(sent["path"], content=body, headers=headers)
            assert answer.status_code == 200, answer.text
            assert answer.headers.get("x-gateway-warning") == WARNINGS.get(name)
            text, confirmed = read(EVENTS[sent["path"].partition("?")[0]], answer.text)
            prompt, predicted = (int(answer.headers[f"x-gateway-{which}-tokens"]) for which in ("prompt", "prefix"))
            assert predicted == confirmed
            texts.append(text)
            main += [(prompt, predicted)] if sent["main"] else []
            await gateway.settled(number + 1)
            await is_shown_as(gateway, f"{name}-{number}", *EXPECTED[name])
    (first, _), (_, found) = main
    assert found >= 0.99 * first
    assert [line for line in logs if line["log_level"] != "info" or line["event"] == "request_refused"] == []


def answered(body: str, texts: list[str]) -> str:
    """A body with the texts of the answers that it sends back."""
    for number, text in enumerate(texts):
        body = body.replace(f'"$ANSWER{number}"', json.dumps(text))
    assert "$ANSWER" not in body
    return body


def read(events: TypeAdapter[Any], stream: str) -> tuple[str, int]:
    """Text of a stream, and the cached tokens that it reports. Every event has to be one of the vendor's types."""
    text, cached = "", 0
    lines = [line.removeprefix("data: ") for line in stream.splitlines() if line.startswith("data: {")]
    for event in map(events.validate_json, lines):
        if isinstance(event, ChatCompletionChunk):
            text += "".join(choice.delta.content or "" for choice in event.choices)
            cached = event.usage.prompt_tokens_details.cached_tokens if event.usage else cached
        elif event.type == "content_block_delta":
            text += event.delta.text
        elif event.type == "message_delta":
            cached = event.usage.cache_read_input_tokens
        elif event.type == "response.output_text.delta":
            text += event.delta
        elif event.type == "response.completed":
            assert event.response.output_text == text
            cached = event.response.usage.input_tokens_details.cached_tokens
    assert text
    return text, cached


async def is_shown_as(gateway, request_id: str, family: str, session: str) -> None:
    async def there() -> bool:
        return (await gateway.admin.get(f"/admin/api/requests/{request_id}")).status_code == 200

    await eventually(there)
    shown = (await gateway.admin.get(f"/admin/api/requests/{request_id}")).json()
    assert (shown["source"], shown["session"], shown["agent"]) == (family, session, "")
