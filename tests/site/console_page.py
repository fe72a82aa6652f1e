"""Runs the console blocks of a page: the commands in their order in one shell, their outputs compared with the page.

``python -m tests.site.console_page PAGE`` runs a page and writes the outputs that it saw into it.

In a block ``console``, a line that begins with ``$`` is a command; a here-document belongs to it. The lines up to the
next command are its output. Blocks of other kinds are not run.
"""

import contextlib
import os
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from benchmarks.free_ports import free_port

_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_HERE = re.compile(r"<<'(\w+)'$")
_PORT = re.compile(r"\b8[01][08][01]\b")
"""Ports that pages of this kind use: 8080, 8081, 8100, 8101."""
_COMMAND_SECONDS = 60
_SETTLE_SECONDS = 20
_READS = re.compile(r"python why\.py$")
"""Commands that read figures, which follow a moment after the answers."""
_MASKS = {
    r"\d{4}-\d\d-\d\dT[\d:.]+(Z|[+]00:00)": "‹time›",
    r"\b[0-9a-f]{32}\b": "‹id›",
    r"[\d.]+ (GPU )?(s|seconds|minutes|hours)\b": "‹duration›",
    r" (in ‹duration›|a day)\.$": " ‹period›.",
    r"\bcosts?\b": "costs",
    # Two times differ in their seconds, or already in their minutes.
    r"column \d+": "column ‹number›",
    r"first \d+\s+tokens": "first ‹number› tokens",
    # Either of the two replicas.
    r"localhost:81\d\d": "localhost:‹port›",
}
"""What differs from run to run."""
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


@dataclass(frozen=True)
class Command:
    """A command of a page.

    Attributes:
        text: What is typed, a here-document included.
        output: What the page shows below it, without the last line end.
        start: Offset of the output in the page.
        end: Offset behind the output.
    """

    text: str
    output: str
    start: int
    end: int


def commands(page: str) -> list[Command]:
    """The commands of a page in their order."""
    return [command for block in _BLOCK.finditer(page) for command in _of_block(block[1], block.start(1))]


def _of_block(block: str, at: int) -> Iterator[Command]:
    text, start, here, output = "", at, "", ""
    for line in block.splitlines(keepends=True):
        if here:
            text += line
            start += len(line)
            here = "" if line.rstrip("\n") == here else here
        elif line.startswith("$ "):
            if text:
                yield Command(text.rstrip("\n"), output.rstrip("\n"), start, at)
            text, start, output = line[2:], at + len(line), ""
            opened = _HERE.search(line.rstrip("\n"))
            here = opened[1] if opened else ""
        else:
            output += line
        at += len(line)
    yield Command(text.rstrip("\n"), output.rstrip("\n"), start, at)


class Shell:
    """A shell in a folder. Uses free ports in place of those on the page, and shows the page's in outputs."""

    def __init__(self, folder: Path, page: str, environment: Mapping[str, str]) -> None:
        named = sorted(set(_PORT.findall(page)))
        self._ports = {port: str(free_port()) for port in named}
        self._process = subprocess.Popen(
            ["bash"],
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def run(self, command: str) -> tuple[int, str]:
        """Exit code and output of a command, standard error included.

        Raises:
            TimeoutError: It takes too long. The message has what it printed.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        for shown, used in self._ports.items():
            command = re.sub(rf"\b{shown}\b", used, command)
        mark = f"--{time.monotonic_ns()}--"
        stdin.write(f"{command}\nprintf '\\n{mark}%s\\n' $?\n".encode())
        stdin.flush()
        received, deadline = b"", time.monotonic() + _COMMAND_SECONDS
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            while not (ended := re.search(rf"\n{mark}(\d+)\n".encode(), received)):
                if not selector.select(max(deadline - time.monotonic(), 0)):
                    raise TimeoutError(f"{command!r} has not ended after {_COMMAND_SECONDS} s: {received.decode()!r}")
                read = os.read(stdout.fileno(), 65536)
                if not read:
                    raise OSError(f"the shell has ended at {command!r}: {received.decode()!r}")
                received += read
        text = received[: ended.start()].decode().rstrip()
        for shown, used in self._ports.items():
            text = re.sub(rf"\b{used}\b", shown, text)
        return int(ended[1]), text

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the shell, and everything that it started and that still runs: all of its session's process group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()


def same(shown: str, seen: str) -> bool:
    """Whether two outputs are equal but for what differs from run to run, and numbers by 15 % or a few tokens.

    How many requests are tried with rules depends on how soon a tokenizer is loaded.
    """
    first, second = _masked(shown), _masked(seen)
    if _NUMBER.sub("#", first) != _NUMBER.sub("#", second):
        return False
    return all(map(_near, _NUMBER.findall(first), _NUMBER.findall(second)))


def _near(one: str, other: str) -> bool:
    first, second = (float(each.replace(",", "")) for each in (one, other))
    return abs(first - second) <= max(0.15 * first, 8)


def _masked(text: str) -> str:
    for pattern, mask in _MASKS.items():
        text = re.sub(pattern, mask, text, flags=re.MULTILINE)
    return " ".join(text.split())


def outcome(shell: Shell, command: Command) -> tuple[int, str]:
    """Exit code and output of a command. One that only reads is run again until its output is that of the page."""
    code, seen = shell.run(command.text)
    deadline = time.monotonic() + _SETTLE_SECONDS
    while _READS.match(command.text) and not same(command.output, seen) and time.monotonic() < deadline:
        time.sleep(0.2)
        code, seen = shell.run(command.text)
    return code, seen


def environment() -> dict[str, str]:
    """The environment of a shell that has the installed gateway in its path, and no proxy."""
    kept = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    return kept | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def main() -> None:
    """Write the outputs of a page."""
    file = Path(sys.argv[1])
    page = file.read_text(encoding="utf-8")
    written, at = "", 0
    with tempfile.TemporaryDirectory() as folder, Shell(Path(folder), page, environment()) as shell:
        for command in commands(page):
            code, seen = outcome(shell, command)
            print(f"$ {command.text}\n{seen}", f"(exit code {code})" if code else "", flush=True)
            written += page[at : command.start] + (f"{seen}\n" if seen else "")
            at = command.end
    file.write_text(written + page[at:], encoding="utf-8")


if __name__ == "__main__":
    main()
