"""Which container tool works here: ``python -m tests.deploy.container_tool`` prints its name.

The first of docker and podman whose engine answers ``info``: a client without an engine builds nothing.
``CONTAINER_TOOL`` in the environment takes the choice.
"""

import os
import shutil
import subprocess
import sys

TOOLS = ("docker", "podman")
_ANSWER_SECONDS = 20
"""An engine that has just been installed takes some seconds to start. One that hangs must not hang ``make``."""


class NoContainerTool(Exception):
    """No container can be built or started here. The message says what was tried."""


def container_tool() -> str:
    """The name of the tool.

    Raises:
        NoContainerTool: None works.
    """
    chosen = os.environ.get("CONTAINER_TOOL")
    tried = []
    for name in (chosen,) if chosen else TOOLS:
        problem = _problem(name)
        if problem is None:
            return name
        tried.append(f"{name}: {problem}")
    raise NoContainerTool(f"no container engine answers ({'; '.join(tried)}): start docker, or install podman")


def _problem(name: str) -> str | None:
    """Why a tool cannot be used; None if it can."""
    if shutil.which(name) is None:
        return "not installed"
    try:
        done = subprocess.run(
            [name, "info"],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=_ANSWER_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return "installed, but `info` gets no answer"
    return None if done.returncode == 0 else "installed, but its engine does not answer"


if __name__ == "__main__":
    try:
        print(container_tool())
    except NoContainerTool as error:
        sys.exit(str(error))
