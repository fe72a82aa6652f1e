"""What a start imports: libraries that nothing uses until they are configured or called stay out of it."""

import subprocess
import sys

import pytest

UNUSED = {
    "cryptography",  # only with shared state
    "fastapi",  # the admin application is built once the gateway is ready
    "httpx",  # only to find replicas in Kubernetes, and for several workers
    "huggingface_hub",  # only for tokenizers of the hub
    "opentelemetry",  # only with tracing
    "redis",  # only with shared state
    "requests",
    "rich",  # only for the tables of commands
    "tiktoken",  # only for its encodings
    "tokenizers",  # only to verify the tokenizers of the hub and of folders
    "torch",
    "transformers",  # only for tokenizers of the hub and of folders
}
"""Not imported by ``serve`` with a built-in tokenizer, until it is ready."""

HEAVY = UNUSED | {
    "asyncio",
    "numpy",
    "orjson",
    "pydantic",
    "starlette",
    "structlog",
    "httptools",
    "uvloop",
}
"""Not imported by ``--help``."""

SERVE = """
import os, sys
from pathlib import Path
from gateway.commands import serve as command  # imported first, as by the command line
from gateway.config.settings import load_settings
from gateway.server.run import serve
from gateway.telemetry import configure_logs

def ready(public, admin):
    print(*sys.modules)
    sys.stdout.flush()
    os._exit(0)

settings = load_settings(Path(sys.argv[1]))
configure_logs(settings.log.format, settings.log.level)
serve(settings, Path(sys.argv[1]), ready)
"""

CONFIGURATION = """
server: {host: 127.0.0.1, port: 0, admin_port: 0}
models: [{id: m, tokenizer: "builtin:demo", replicas: ["http://127.0.0.1:9"]}]
"""


def imported(*command: str) -> set[str]:
    """The top-level modules that a Python program prints at its end."""
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return {name.partition(".")[0] for name in done.stdout.split()}


def test_serve_imports_only_what_it_uses(tmp_path):
    file = tmp_path / "gateway.yaml"
    file.write_text(CONFIGURATION)
    found = imported("-c", SERVE, str(file))
    assert "httptools" in found
    assert not found & UNUSED


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_imports_no_library(option):
    code = (
        "import contextlib, io, sys\n"
        "from gateway.__main__ import main\n"
        "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):\n"
        f"    main([{option!r}])\n"
        "print(*sys.modules)"
    )
    assert not imported("-c", code) & HEAVY


def test_rich_can_be_imported_behind_the_server():
    found = imported("-c", "import gateway.server, rich.console, sys; print(*sys.modules)")
    assert {"rich", "structlog"} <= found


def test_the_program_of_a_worker_leaves_out_the_same():
    found = imported("-c", "import gateway.server.workers.worker_main, gateway.server.run, sys; print(*sys.modules)")
    assert not found & UNUSED
