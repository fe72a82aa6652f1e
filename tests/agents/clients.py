"""The coding agents that are run: their packages, and how each is pointed at a gateway.

In texts ``$URL`` stands for the gateway and ``$HOME`` for the client's home. Telemetry, updates and look-ups are
switched off for each of them: where no network namespace can be had, nothing else keeps them from the network.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

MODEL = "demo"

VERSIONS = {
    "@anthropic-ai/claude-code": "2.1.332",
    "@openai/codex": "0.171.0",
    "opencode-ai": "1.18.33",
    "@qwen-code/qwen-code": "0.15.10",
    "@continuedev/cli": "1.5.47",
    "@mariozechner/pi-coding-agent": "0.73.1",
}
"""The npm packages, as they are installed. docs/how-to/agents.md names the same."""


@dataclass(frozen=True)
class Client:
    """A client, and how it is run.

    Attributes:
        package: Its npm package.
        program: Its command there.
        first: Arguments of the first turn.
        second: Arguments of the second turn, in the same session.
        environment: Variables beside those that all clients get.
        files: Its configuration: texts by path below its home.
    """

    package: str
    program: str
    first: tuple[str, ...]
    second: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)


PROMPTS = ("say hi", "and again")
_ONE, _TWO = PROMPTS
_KEY = "sk-test"


def _codex(config: str) -> Client:
    flags = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
    return Client(
        "@openai/codex",
        "codex",
        ("exec", *flags, _ONE),
        ("exec", "resume", "--last", *flags, _TWO),
        {"GW_KEY": _KEY, "OPENAI_API_KEY": _KEY, "CODEX_API_KEY": _KEY},
        {".codex/config.toml": f'model = "{MODEL}"\n{config}\n[analytics]\nenabled = false\n'},
    )


def _pi(api: str, base: str) -> Client:
    model = {
        "id": MODEL,
        "name": MODEL,
        "reasoning": False,
        "input": ["text"],
        "contextWindow": 100_000,
        "maxTokens": 4000,
        "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
    }
    provider = {"baseUrl": base, "apiKey": _KEY, "api": api, "models": [model]}
    flags = ("--provider", "gw", "--model", MODEL)
    return Client(
        "@mariozechner/pi-coding-agent",
        "pi",
        (*flags, "-p", _ONE),
        (*flags, "--continue", "-p", _TWO),
        files={".pi/agent/models.json": json.dumps({"providers": {"gw": provider}})},
    )


_OPENCODE = {
    "autoupdate": False,
    "share": "disabled",
    "model": f"gw/{MODEL}",
    "small_model": f"gw/{MODEL}",
    "provider": {
        "gw": {
            "npm": "@ai-sdk/openai-compatible",
            "options": {"baseURL": "$URL/v1", "apiKey": _KEY},
            "models": {MODEL: {"name": MODEL, "tool_call": True}},
        }
    },
}

_CONTINUE = {
    "name": "gw",
    "version": "1.0.0",
    "schema": "v1",
    "models": [
        {
            "name": "gw",
            "provider": "openai",
            "model": MODEL,
            "apiBase": "$URL/v1",
            "apiKey": _KEY,
            "roles": ["chat"],
            "capabilities": ["tool_use"],
        }
    ],
}
_CONTINUE_FLAGS = ("--config", "$HOME/.continue/config.yaml", "--auto")

_QWEN_FLAGS = ("--auth-type", "openai", "--approval-mode", "yolo")

CLIENTS: Mapping[str, Client] = {
    "claude": Client(
        "@anthropic-ai/claude-code",
        "claude",
        ("-p", _ONE, "--allowedTools", "Bash(echo hi)"),
        ("-p", _TWO, "--continue", "--allowedTools", "Bash(echo hi)"),
        {
            "ANTHROPIC_BASE_URL": "$URL",
            "ANTHROPIC_API_KEY": _KEY,
            "ANTHROPIC_MODEL": MODEL,
            "ANTHROPIC_SMALL_FAST_MODEL": MODEL,
            "ANTHROPIC_DEFAULT_HAIKU_MODEL": MODEL,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_TELEMETRY": "1",
            "DISABLE_AUTOUPDATER": "1",
        },
    ),
    "codex": _codex(
        'model_provider = "gw"\n[model_providers.gw]\nname = "gw"\nbase_url = "$URL/v1"\nenv_key = "GW_KEY"\n'
        'wire_api = "responses"'
    ),
    "codex-builtin": _codex('openai_base_url = "$URL/v1"'),
    "opencode": Client(
        "opencode-ai",
        "opencode",
        ("run", _ONE),
        ("run", "--continue", _TWO),
        {"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"},
        {".config/opencode/opencode.json": json.dumps(_OPENCODE)},
    ),
    "qwen": Client(
        "@qwen-code/qwen-code",
        "qwen",
        (*_QWEN_FLAGS, "-p", _ONE),
        (*_QWEN_FLAGS, "--continue", "-p", _TWO),
        {"OPENAI_BASE_URL": "$URL/v1", "OPENAI_API_KEY": _KEY, "OPENAI_MODEL": MODEL},
        {".qwen/settings.json": json.dumps({"privacy": {"usageStatisticsEnabled": False}})},
    ),
    "continue": Client(
        "@continuedev/cli",
        "cn",
        ("-p", _ONE, *_CONTINUE_FLAGS),
        ("-p", _TWO, "--resume", *_CONTINUE_FLAGS),
        {"CONTINUE_TELEMETRY_ENABLED": "0", "CONTINUE_GLOBAL_DIR": "$HOME/.continue"},
        {".continue/config.yaml": json.dumps(_CONTINUE)},  # JSON is YAML
    ),
    "pi-chat": _pi("openai-completions", "$URL/v1"),
    "pi-messages": _pi("anthropic-messages", "$URL"),
    "pi-responses": _pi("openai-responses", "$URL/v1"),
}
