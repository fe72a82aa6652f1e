"""Write down what a real engine renders, so that the fast tests can check the encoder without one.

``python -m tests.engine.golden`` writes ``tests/golden/vllm-…-render.json``. The tokenizer is the one that ships with
the gateway, so nothing else is needed to check it. Then it records KV events as well, see ``capture_events.py``.
"""

import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from tests.engine import capture_events
from tests.engine.cases import CASES, CHAT, Case
from tests.engine.formats import FORMAT_TEMPLATES
from tests.engine.places import DEMO, GOLDEN
from tests.engine.replica import HOME, RENDER_FLAGS, START_SECONDS, start_renderer
from tests.engine.tokens import TEMPLATES, render

_FORMATS = """
import json, sys
from vllm.renderers.hf import _detect_content_format as detect
found = [detect(template, default="string") for template in json.load(sys.stdin)]
json.dump(found, open(sys.argv[1], "w"))
"""


def main() -> None:
    """Start a render server, ask it everything, write the file; then the engines that publish events."""
    with tempfile.TemporaryDirectory() as folder:
        formats = _content_formats(Path(folder))
        server = start_renderer(Path(folder), "golden", DEMO)
        try:
            server.wait_ready("/health", START_SECONDS)
            with httpx.Client(base_url=server.url, timeout=120.0) as client:
                version = client.get("/version").json()["version"]
                rendered = list(_rendered(client))
        finally:
            server.stop()
    target = GOLDEN / f"vllm-{version}-render.json"
    document = {
        "engine": f"vLLM {version}",
        "command": ["vllm", "launch", "render", *RENDER_FLAGS, "--tokenizer", "builtin:demo"],
        "written_by": "python -m tests.engine.golden",
        "content_formats": [list(pair) for pair in zip(FORMAT_TEMPLATES, formats, strict=True)],
    }
    head = json.dumps(document, indent=1, ensure_ascii=False)
    # One request a line: a difference then shows which one it is in.
    lines = ",\n".join(json.dumps(entry, ensure_ascii=False, separators=(",", ":")) for entry in rendered)
    target.write_text(f'{head[:-2]},\n "requests": [\n{lines}\n ]\n}}\n', encoding="utf-8")
    print(f"{target}: {len(rendered)} requests, {target.stat().st_size // 1024} KiB", flush=True)
    capture_events.main(capture_events.NAMES)


def _rendered(client: httpx.Client) -> Iterator[dict[str, Any]]:
    for case in CASES:
        if not (case.daily or case.asked):
            ids = {name: _ids(client, case, path) for name, path in _templates(case).items()}
            yield {"name": case.name, "endpoint": case.endpoint, "body": case.body, "token_ids": ids}


def _templates(case: Case) -> dict[str, Path]:
    return TEMPLATES if case.endpoint == CHAT else {"demo": TEMPLATES["demo"]}


def _ids(client: httpx.Client, case: Case, template: Path) -> list[list[int]]:
    ids = render(client, case, template.read_text(encoding="utf-8"))
    if isinstance(ids, str):
        raise SystemExit(f"the engine refuses {case.name!r}: {ids}")
    return ids


def _content_formats(folder: Path) -> list[str]:
    """The engine's own function, in the engine's own Python: no endpoint reports it."""
    target = folder / "formats.json"
    subprocess.run(
        [str(HOME / "venv" / "bin" / "python"), "-c", _FORMATS, str(target)],
        input=json.dumps(FORMAT_TEMPLATES),
        text=True,
        check=True,
        capture_output=True,
    )
    found: list[str] = json.loads(target.read_text())
    return found


if __name__ == "__main__":
    main()
