"""Commands on pages are those that exist: the gateway's with their options, and targets of the Makefile."""

import argparse
import json
import re
import shlex
from importlib import import_module

import pytest
from markdown_pages import PAGES, ROOT, blocks

from gateway.__main__ import _COMMANDS
from gateway.engines import sglang, vllm

PLACEHOLDER = re.compile(r"…|\.\.\.")
LINES = [
    (block.place, line.strip().removeprefix("$ "))
    for page in PAGES
    for block in blocks(page)
    if block.kind in ("console", "sh")
    for line in block.text.replace("\\\n", " ").splitlines()
    if block.kind == "sh" or line.startswith("$ ")
]
OURS = [(place, line) for place, line in LINES if re.match(r"(\.venv/bin/)?prefix-gateway ", line)]
EVENTS = re.compile(r"--kv-events-config\s+'([^']+)'")
MAKE = re.compile(r"(?:`|\$ )make ([a-z][a-z-]*)")


@pytest.mark.parametrize(("place", "line"), OURS, ids=[f"{place} {line}"[:80] for place, line in OURS])
def test_the_gateways_commands_take_the_options_that_pages_show(place, line):
    words = shlex.split(PLACEHOLDER.sub("", line), comments=True)[1:]
    words = words[: next((n for n, word in enumerate(words) if word in ("|", "&", "&>", ">", "2>&1")), len(words))]
    if words[0] == "--version":
        return
    assert words[0] in _COMMANDS, f"{place}: {words[0]}"
    parser = argparse.ArgumentParser(exit_on_error=False)
    import_module(_COMMANDS[words[0]][0]).add_arguments(parser)
    try:
        parser.parse_args(words[1:])
    except (argparse.ArgumentError, SystemExit) as refused:
        pytest.fail(f"{place}: {line}: {refused}")


def test_targets_of_make_exist():
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z][a-z-]*):", makefile, re.MULTILINE))
    for page in PAGES:
        for name in MAKE.findall(page.read_text()):
            assert name in targets, f"{page.name}: make {name}"


def test_folders_that_kubectl_and_helm_are_given_exist():
    for place, line in LINES:
        if line.startswith(("kubectl", "helm", "deploy/")):
            for path in re.findall(r"\bdeploy/\S+", line):
                assert (ROOT / path).exists(), f"{place}: {path}"


def test_engines_publish_events_as_the_gateway_advises():
    advised = [json.loads(EVENTS.findall(advice.events)[0]) for advice in (vllm.ADVICE, sglang.ADVICE)]
    shown = [json.loads(found) for _, line in LINES for found in EVENTS.findall(line)]
    assert len(shown) >= 4
    assert all(each in advised for each in shown)
