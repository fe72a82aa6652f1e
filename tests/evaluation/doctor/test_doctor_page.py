"""The page lists every finding, and no other, and shows what the command prints."""

import argparse
import asyncio
import json
import re
from pathlib import Path

import structlog

from gateway.commands import doctor
from gateway.evaluation.doctor.doctor_finding import FINDING_NAMES

ROOT = Path(__file__).parents[3]


def test_every_finding_is_on_the_page():
    made = set()
    for file in (ROOT / "gateway" / "evaluation" / "doctor").glob("*.py"):
        made |= set(re.findall(r'DoctorFinding\(\s*"([a-z-]+)"', file.read_text()))
    assert made == FINDING_NAMES
    page = (ROOT / "docs" / "doctor.md").read_text().partition("## Findings")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?`) \|", page, flags=re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`([a-z-]+)`", row)} == made


async def test_the_output_on_the_page_is_what_the_command_prints(start_engine, tmp_path, capsys, monkeypatch):
    page = (ROOT / "docs" / "doctor.md").read_text()
    (printed,) = re.findall(
        r"^\$ prefix-gateway doctor --config gateway.yaml\n(.*?)^```", page, re.DOTALL | re.MULTILINE
    )
    monkeypatch.chdir(tmp_path)
    template = tmp_path / "plain.jinja"
    template.write_text("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:\n")
    right = await start_engine()
    wrong = await start_engine(
        engine_version="0.31.0",
        chat_template=template,
        prompt_tokens_details=False,
        events="tcp://127.0.0.1:15558",
        replay="",
    )
    replicas = [{"url": each.url, "id": f"vllm-{number}"} for number, each in enumerate((right, wrong))]
    configuration = {
        "server": {"port": 0, "admin_port": 0},
        "models": [{"id": "demo", "tokenizer": "builtin:demo", "replicas": replicas}],
        "spaces": {
            "isolation": "tenant",
            "secret": "what-all-gateways-have-in-common",
            "idle_ttl_seconds": 100_000,
        },
    }
    Path("gateway.yaml").write_text(json.dumps(configuration))
    parser = argparse.ArgumentParser()
    doctor.add_arguments(parser)
    assert await asyncio.to_thread(doctor.run, parser.parse_args(["--config", "gateway.yaml", "--timeout", "20"])) == 1
    structlog.reset_defaults()
    assert capsys.readouterr().out == printed
