"""The tutorial, run as it stands: every command succeeds and prints what the page shows."""

import tempfile
from pathlib import Path

import pytest
from console_page import Shell, commands, environment, outcome, same
from external import program

PAGE = (Path(__file__).parents[2] / "docs" / "tutorial.md").read_text(encoding="utf-8")


def test_every_command_prints_what_the_page_shows():
    for name in ("bash", "curl"):
        program(name)
    with tempfile.TemporaryDirectory() as folder, Shell(Path(folder), PAGE, environment()) as shell:
        for command in commands(PAGE):
            code, seen = outcome(shell, command)
            assert code == 0, f"{command.text}\n{seen}"
            assert same(command.output, seen), f"$ {command.text}\nThe page shows:\n{command.output}\nIt is:\n{seen}"


def test_a_here_document_belongs_to_its_command():
    page = "```console\n$ cat > file <<'END'\n$ not a command\nEND\n$ cat file\n$ not a command\n```\n"
    (first, second, third) = commands(page)
    assert first.text == "cat > file <<'END'\n$ not a command\nEND"
    assert (first.output, second.text, second.output, third.text) == ("", "cat file", "", "not a command")


@pytest.mark.parametrize(
    ("shown", "seen", "equal"),
    [
        ("14,520  A time", "14,533  A time", True),
        ("14,520  A time", "1,520  A time", False),
        ("12 answers in 5.3 s", "12 answers in 9.1 s", True),
        ("12 answers in 5.3 s", "24 answers in 5.3 s", False),
        ("went to localhost:8100 at 2026-11-23T09:15:17.348Z", "went to localhost:8101 at 2027-01-01T00:00:00Z", True),
        ("hit rate 86%", "hit rate 1%", False),
        ("x-gateway-decision: warm", "x-gateway-decision: cold", False),
        ("", "Traceback", False),
    ],
)
def test_outputs_are_compared_without_what_differs_from_run_to_run(shown, seen, equal):
    assert same(shown, seen) is equal
