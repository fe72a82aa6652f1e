"""The gateway against real vLLM replicas: run every check, print a table, exit 1 if a limit is not met.

``make test-engine``, or ``python -m tests.engine.report [--write-docs] [--keep-logs FOLDER] [--only PART]``. What is
found of canonicalization and of resumed streams are sections of their own: with ``--only canon --write-docs`` (or
``resume``) that one alone is written anew.
"""

import argparse
import asyncio
import contextlib
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import httpx
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tests.engine import eviction, latency, mix, parity, trouble
from tests.engine.canonical import canonical
from tests.engine.exact import exact
from tests.engine.explained import explained
from tests.engine.findings import Finding
from tests.engine.gateway import start_gateway
from tests.engine.isolation import isolation
from tests.engine.places import DEMO_TEMPLATE
from tests.engine.prompts import prompts
from tests.engine.refused_key import refused_key
from tests.engine.replica import (
    HOME,
    REPLICA_FLAGS,
    START_SECONDS,
    Ports,
    Process,
    event_flags,
    start_renderer,
    start_replica,
)
from tests.engine.resume import resume
from tests.engine.small_fleet import SMALL_FLAGS
from tests.engine.texts import prose
from tests.engine.translated import translated

DOCS = Path(__file__).resolve().parents[2] / "docs" / "engine-test.md"

_CANON = "canon"
_RESUME = "resume"
_TRANSLATED = "translated"
_HEADINGS = {
    _CANON: "## Canonicalization",
    _RESUME: "## Resumed streams",
    _TRANSLATED: "## Messages and Responses",
}
"""Sections of the page behind the first one, by the part that they describe, in their order."""

_Part = Callable[[Path, list[Process]], AsyncIterator[Finding]]
_PARTS: dict[str, _Part] = {
    "isolation": isolation,
    "explained": explained,
    "prompts": prompts,
    "keys": refused_key,
    _CANON: canonical,
    _RESUME: resume,
}
_WITH_OWN_REPLICAS = {"exact": exact, _TRANSLATED: translated}
"""Parts that start replicas themselves. Two are what two cores carry: they begin when the others have ended."""

_console = Console(width=160 if not sys.stdout.isatty() else None)


def main() -> int:
    """Run everything; see the module's text."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--write-docs", action="store_true", help=f"write the table to {DOCS.name}")
    arguments.add_argument("--keep-logs", type=Path, metavar="FOLDER", help="where the servers' logs go")
    arguments.add_argument("--only", choices=[*_PARTS, *_WITH_OWN_REPLICAS], help="only these checks")
    given = arguments.parse_args()
    if given.only is not None and given.only not in _HEADINGS and given.write_docs:
        arguments.error(f"--write-docs needs every check, or --only {' or '.join(_HEADINGS)}")
    if not (HOME / "venv" / "bin" / "vllm").is_file():
        _console.print(f"no vLLM in {HOME}: run tests/engine/install.sh", highlight=False)
        return 2
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.keep_logs or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        findings, version = asyncio.run(_run(_alone(folder, given.only) if given.only else _checks(folder)))
    seconds = time.monotonic() - started
    _print(findings, version, seconds)
    if given.write_docs:
        kept = DOCS.read_text(encoding="utf-8") if given.only else None
        DOCS.write_text(_document(findings, version, seconds, kept, given.only), encoding="utf-8")
        _console.print(f"written: {DOCS}")
    return 0 if all(finding.met for finding in findings) else 1


async def _run(checks: AsyncIterator[Finding | str]) -> tuple[list[Finding], str]:
    findings: list[Finding] = []
    version = "(not started)"
    try:
        async for finding in checks:
            if isinstance(finding, str):
                version = finding
                continue
            findings.append(finding)
            _console.print(
                f"{'ok' if finding.met else 'NOT MET':8}{finding.check}: {finding.measured}",
                highlight=False,
                markup=False,
            )
    except Exception as error:  # what was found until then is worth its table
        findings.append(Finding("the checks ran to their end", f"{type(error).__name__}: {error}", "yes", False))
    return findings, version


async def _checks(folder: Path) -> AsyncIterator[Finding | str]:
    """The engine's version, then every finding."""
    with contextlib.ExitStack() as running:
        _console.print("starting two vLLM replicas and a render server, about two minutes", highlight=False)
        replicas = [
            _started(running, start_replica(folder, f"vllm-{n}", DEMO_TEMPLATE, Ports.free())) for n in range(2)
        ]
        renderer = _started(running, start_renderer(folder, "render"))
        renderer.wait_ready("/health", START_SECONDS)
        for replica in replicas:
            replica.wait_ready("/health", START_SECONDS)
        yield str(httpx.get(f"{replicas[0].url}/version").json()["version"])
        gateway = _started(running, start_gateway(folder, replicas, DEMO_TEMPLATE))
        gateway.wait_ready("/readyz", 60)

        for finding in parity.rendered(renderer):
            yield finding
        renderer.stop()
        yield await parity.warm_route(gateway, prose(30, 20))
        yield await parity.served(gateway)
        yield await parity.refused(gateway, replicas[0])
        for finding in await mix.conversations(gateway):
            yield finding
        for part in _PARTS.values():
            async for finding in part(folder, replicas):
                yield finding
        yield await latency.first_tokens(gateway)
        yield await eviction.evictions(gateway)
        yield await trouble.streaming(gateway)
        yield await trouble.cancellation(gateway, replicas)
        for finding in await trouble.failover(gateway, replicas):
            yield finding
    for name in _WITH_OWN_REPLICAS:
        async for finding in _alone(folder, name):
            yield finding


async def _alone(folder: Path, name: str) -> AsyncIterator[Finding | str]:
    """Only one part of ``_checks``."""
    if name in _WITH_OWN_REPLICAS:
        _console.print(f"starting the replicas of the part {name}, about a minute", highlight=False)
        async for finding in _WITH_OWN_REPLICAS[name](folder):
            yield finding
        return
    with contextlib.ExitStack() as running:
        _console.print("starting two vLLM replicas, about a minute", highlight=False)
        replicas = [
            _started(running, start_replica(folder, f"vllm-{n}", DEMO_TEMPLATE, Ports.free())) for n in range(2)
        ]
        for replica in replicas:
            replica.wait_ready("/health", START_SECONDS)
        yield str(httpx.get(f"{replicas[0].url}/version").json()["version"])
        async for finding in _PARTS[name](folder, replicas):
            yield finding


def _started(running: contextlib.ExitStack, process: Process) -> Process:
    running.callback(process.stop)
    return process


def _print(findings: list[Finding], version: str, seconds: float) -> None:
    table = Table(title=f"The gateway against two vLLM {version} replicas ({seconds:.0f} s)", show_lines=True)
    for column in ("check", "measured", "limit", "met"):
        table.add_column(column, ratio=None if column == "met" else 3)
    for finding in findings:
        measured = "\n".join([finding.measured, *(f"- {line[:300]}" for line in finding.exceptions)])
        met = "yes" if finding.met else "[bold red]no"
        table.add_row(escape(finding.check), escape(measured), escape(finding.limit), met)
    _console.print(table)


def _document(findings: list[Finding], version: str, seconds: float, kept: str | None, only: str | None) -> str:
    """The whole page; of the one that was ``kept`` everything stays but the section of the part ``only``."""
    sections = {"": "\n".join(_lines([each for each in findings if each.section not in _HEADINGS], version, seconds))}
    for part, heading in _HEADINGS.items():
        reported = [finding for finding in findings if finding.section == part]
        sections[part] = "\n".join([f"{heading}\n", _preface(part, version), *_table(reported)])
    if kept is not None:
        first, *behind = kept.split("\n## ")
        before = {text.partition("\n")[0]: f"## {text}" for text in behind}
        for part, heading in _HEADINGS.items():
            if part != only:
                sections[part] = before.get(heading.removeprefix("## "), "")
        sections[""] = first
    return "\n\n".join(text.strip() for text in sections.values() if text) + "\n"


def _preface(part: str, version: str) -> str:
    replicas = f"a vLLM {version} replica" if part == _TRANSLATED else f"two vLLM {version} replicas as above"
    alone = (
        f"Written by the same command (alone: `python -m tests.engine.report --only {part} --write-docs`), against"
        f" {replicas}."
    )
    if part == _TRANSLATED:
        return (
            f"{alone} Requests of the two APIs, which the gateway translates to chat requests: their token ids against"
            " the engine's own conversion, and conversations with the vendors' clients.\n"
        )
    if part == _RESUME:
        return (
            f"{alone} A replica that writes a stream is killed in the middle of it, each time a little later; with"
            " `relay.resume` the other one goes on. Compared is the text of the same request undisturbed.\n"
        )
    return (
        f"{alone} How much was reused is what the engine reports.\n\n"
        "Answers of a model of 135 million parameters show whether a prompt is the same, not whether it is as good:"
        " it answers almost any change of its prompt with other words. So what counts is that rules which only take"
        " out noise lead to the very tokens of the prompt without it, and with that to the same answer; for all other"
        " rules the share of unchanged answers is given as it is. Try them with your own model and your own prompts"
        " before you apply them.\n"
    )


def _lines(findings: list[Finding], version: str, seconds: float) -> Iterator[str]:
    yield "# The gateway against a real engine\n"
    yield (
        "Written by `python -m tests.engine.report --write-docs` (`make test-engine` runs the same):"
        f" `prefix-gateway serve` in front of two vLLM {version} replicas with SmolLM2-135M-Instruct on the CPU, one"
        f" thread each, {seconds:.0f} s in"
        " all. The replicas use the chat template of `builtin:demo`, because the model's own leaves tools out; token"
        " ids are compared under the model's own template and three others."
    )
    flags = [*REPLICA_FLAGS, *event_flags("PORT", "PORT")]
    yield f"\nFlags of the replicas: `{' '.join(flags)}`; for the last checks also `{' '.join(SMALL_FLAGS)}`.\n"
    yield from _table(findings)


def _table(findings: list[Finding]) -> Iterator[str]:
    yield "| check | measured | limit | met |\n| --- | --- | --- | --- |"
    for finding in findings:
        cells = (finding.check, finding.measured, finding.limit, "yes" if finding.met else "**no**")
        yield f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"
    noted = [finding for finding in findings if finding.exceptions]
    if noted:
        yield "\nSingle values behind the numbers:"
    for finding in noted:
        yield f"\n{finding.check}:\n"
        yield from (f"- {line}" for line in finding.exceptions)


if __name__ == "__main__":
    sys.exit(main())
