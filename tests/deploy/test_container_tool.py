"""Which container tool is chosen, with clients that are scripts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WORKS, NO_ENGINE = "exit 0", "echo 'Cannot connect to the Docker daemon' >&2; exit 1"


@pytest.fixture
def chosen(tmp_path):
    """Asks with these tools installed, and no other program; gives exit code, standard output, standard error."""

    def ask(tools: dict[str, str], **environment: str) -> tuple[int, str, str]:
        for name, script in tools.items():
            file = tmp_path / name
            file.write_text(f'#!/bin/sh\ntest "$1" = info || exit 3\n{script}\n')
            file.chmod(0o755)
        done = subprocess.run(
            [sys.executable, "-m", "tests.deploy.container_tool"],
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
            env={"PATH": str(tmp_path), **environment},
        )
        return done.returncode, done.stdout.strip(), done.stderr.strip()

    return ask


@pytest.mark.parametrize(
    ("tools", "expected"),
    [
        ({"docker": WORKS}, "docker"),
        ({"docker": WORKS, "podman": WORKS}, "docker"),
        ({"docker": NO_ENGINE, "podman": WORKS}, "podman"),
        ({"podman": WORKS}, "podman"),
    ],
)
def test_the_tool_whose_engine_answers(chosen, tools, expected):
    assert chosen(tools) == (0, expected, "")


@pytest.mark.parametrize("tools", [{}, {"docker": NO_ENGINE}, {"docker": NO_ENGINE, "podman": NO_ENGINE}])
def test_none_is_one_clear_sentence(chosen, tools):
    code, out, problem = chosen(tools)
    assert (code, out) == (1, "")
    assert problem.count("\n") == 0
    assert problem.startswith("no container engine answers (docker: ")
    assert problem.endswith("start docker, or install podman")


def test_the_environment_chooses(chosen):
    assert chosen({"docker": WORKS}, CONTAINER_TOOL="podman")[0] == 1
    assert chosen({"docker": WORKS, "podman": WORKS}, CONTAINER_TOOL="podman") == (0, "podman", "")


def test_make_image_builds_with_it_and_says_why_it_cannot(tmp_path):
    """As a user runs it, up to the build."""
    for name, script in (("docker", NO_ENGINE), ("podman", 'test "$1" = info && exit 0; echo "built: $*"')):
        file = tmp_path / name
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}

    def make() -> subprocess.CompletedProcess[str]:
        command = ["make", "--old-file=.venv/installed", "image"]
        return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False)

    built = make()
    assert built.returncode == 0, built.stderr
    assert "built: build --tag prefix-gateway:local ." in built.stdout
    (tmp_path / "podman").write_text(f"#!/bin/sh\n{NO_ENGINE}\n")
    refused = make()
    assert refused.returncode != 0
    assert "no container engine answers (docker: installed, but its engine does not answer; podman:" in refused.stderr
