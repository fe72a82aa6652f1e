"""Processes of tests that are forked behave as those that are started."""

import asyncio
import os
import signal
import subprocess
import sys

import fork_server
import pytest
from patience import HANG_SECONDS

COMMAND = [sys.executable, "-m", "gateway"]


def test_exit_code_output_and_errors_are_those_of_the_program():
    done = fork_server.run([*COMMAND, "--version"])
    assert (done.returncode, done.stdout[:15], done.stderr) == (0, "prefix-gateway ", "")
    done = fork_server.run([*COMMAND, "serve", "--config", "/no/file"])
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "/no/file: cannot be read: No such file or directory\n"


def test_environment_and_arguments_are_its_own(tmp_path):
    file = tmp_path / "gateway.yaml"
    file.write_text("models: [{id: m, tokenizer: 'builtin:demo', replicas: ['${ENGINE_OF_THIS_TEST}']}]")
    for url, code in (("http://127.0.0.1:9", 0), ("ftp://x", 2)):
        done = fork_server.run([*COMMAND, "check", str(file)], env=os.environ | {"ENGINE_OF_THIS_TEST": url})
        assert done.returncode == code, done.stderr


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 0), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_signals_reach_it_and_it_is_no_child_of_the_server_that_stays(number, code):
    command = [*COMMAND, "engine", "--port", "0"]
    with fork_server.launch(command, stdout=subprocess.PIPE, text=True) as process:
        assert "simulated engine" in process.stdout.readline()
        assert process.pid in fork_server.children(os.getpid(), "gateway")
        process.send_signal(number)
        assert process.wait(HANG_SECONDS) == code
    assert process.pid not in fork_server.children(os.getpid(), "gateway")
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


async def test_asyncio_starts_it_in_the_same_way():
    process = await asyncio.create_subprocess_exec(*COMMAND, "engine", "--port", "0", stdout=asyncio.subprocess.PIPE)
    assert isinstance(process, fork_server.AsyncForked)
    assert b"simulated engine" in await process.stdout.readline()
    process.terminate()
    assert await process.wait() == 0
    with pytest.raises(ProcessLookupError):
        process.kill()


async def test_other_programs_are_started():
    assert not fork_server.forks([sys.executable, "-c", "print(1)"])
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", "exit(3)")
    assert await process.wait() == 3
