"""Starts the processes of tests by forking from a process that has already imported the gateway.

``python -m gateway serve`` spends more than a second of CPU time on imports, pytest with these tests several, a fork
some milliseconds. A forked
process has arguments, environment, working directory, standard streams and signal handlers of its own, runs its module
as ``python -m`` does, and ends with the same exit code. The server forks before there is any thread or event loop.

What differs: the parent is the fork server, and ``/proc/PID/cmdline`` shows its command line; ``children`` finds forked
processes all the same. One test of each command starts the real program, and so do tests of the demo. With
``PREFIX_GATEWAY_TESTS_EXEC=1`` in the environment nothing is forked.

``launch`` starts a process as ``subprocess.Popen`` does. ``install`` makes ``asyncio.create_subprocess_exec`` do so,
too, so that gateways start their explain workers and worker processes in this way.
"""

import asyncio
import atexit
import contextlib
import fcntl
import gc
import importlib
import json
import os
import resource
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

RUNS = (
    "pytest",
    "gateway",
    "gateway.demo.child",
    "gateway.explain.worker.process",
    "gateway.server.workers.worker_main",
)
"""Modules that are run, as ``python -m`` does, in a forked process; all others start a new interpreter."""

_IMPORTED = (
    "gateway.server.run",
    "gateway.server.workers.worker_supervisor",
    "gateway.commands.serve",
    "gateway.commands.check",
    "gateway.simulator.cli",
    "gateway.simulator.simulated_engine",
    "gateway.explain.worker.explain_parts",
    "gateway.explain.worker.process",
    "gateway.admin.admin_app",
    "gateway.demo",
    "gateway.demo.session",
    "gateway.server.workers.worker_main",
    "gateway.config.settings",
    "gateway.telemetry",
)
FOR_TESTS = (
    "pytest",
    "hypothesis",
    "hypothesis.strategies",
    "fastapi",
    "openai",
    "redis.asyncio",
    "prometheus_client.parser",
)
"""What tests import, too."""
_OF_THE_LOADER = ("LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONPATH")
_HEADER_BYTES = 8
_FORKS = sys.platform == "linux" and "PREFIX_GATEWAY_TESTS_EXEC" not in os.environ
_create_subprocess_exec = asyncio.create_subprocess_exec
_address = ""
"""The server's socket, in the abstract namespace; empty before it is started."""


@dataclass(frozen=True, slots=True)
class _Request:
    """A process to start; ``targets`` are the descriptor numbers of the descriptors sent with it."""

    argv: list[str]
    environment: dict[str, str]
    folder: str
    session: bool
    targets: list[int]
    parent: int
    max_files: int | None


class Forked:
    """A forked process, with the interface of ``subprocess.Popen`` as far as tests use it.

    Attributes:
        pid: Its process id.
        returncode: Its exit code, or the negative number of the signal that ended it; None while it runs.
        stdin: The other end of its standard input, if that is a pipe; so ``stdout`` and ``stderr``.
    """

    def __init__(self, pid: int, status: socket.socket, pipes: Sequence[int | None], text: bool = False) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._status = status
        mode = "" if text else "b"
        self.stdin, self.stdout, self.stderr = (
            None if end is None else os.fdopen(end, ("w" if number == 0 else "r") + mode, buffering=-1)
            for number, end in enumerate(pipes)
        )

    def fileno(self) -> int:
        """Readable when the process has ended."""
        return self._status.fileno()

    def poll(self) -> int | None:
        """The exit code, or None while it runs."""
        if self.returncode is None and select.select([self._status], [], [], 0)[0]:
            said = self._status.recv(_HEADER_BYTES)
            self._status.close()
            self.returncode = os.waitstatus_to_exitcode(int(said)) if said else -signal.SIGKILL
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; returns the exit code.

        Raises:
            subprocess.TimeoutExpired: It still runs after ``timeout`` seconds.
        """
        if self.returncode is None:
            select.select([self._status], [], [], timeout)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, if it still runs."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> "Forked":
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                stream.close()
        self.wait()


class _Output(asyncio.StreamReaderProtocol):
    """Closes the pipe at its end."""

    def eof_received(self) -> bool:
        super().eof_received()
        return False


class AsyncForked:
    """A forked process, with the interface of ``asyncio.subprocess.Process`` as far as it is used."""

    def __init__(self, process: Forked) -> None:
        self._process = process
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[int] = self._loop.create_future()
        self.pid = process.pid
        self.stdin: asyncio.StreamWriter | None = None
        self.stdout: asyncio.StreamReader | None = None
        self.stderr: asyncio.StreamReader | None = None

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    async def start(self) -> None:
        """Connect the pipes and watch for its end."""
        process, loop = self._process, self._loop
        loop.add_reader(process.fileno(), self._over, process.fileno())
        if process.stdin is not None:
            made = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, process.stdin)
            self.stdin = asyncio.StreamWriter(*made, None, loop)
        self.stdout, self.stderr = await self._reader(process.stdout), await self._reader(process.stderr)

    async def _reader(self, stream: IO[Any] | None) -> asyncio.StreamReader | None:
        if stream is None:
            return None
        reader = asyncio.StreamReader()
        await self._loop.connect_read_pipe(lambda: _Output(reader), stream)
        return reader

    def _over(self, descriptor: int) -> None:
        self._loop.remove_reader(descriptor)
        self._ended.set_result(self._process.wait())

    async def wait(self) -> int:
        """Wait for its end; returns the exit code."""
        return await asyncio.shield(self._ended)

    async def communicate(self) -> tuple[bytes | None, bytes | None]:
        """Everything that it prints, when it has ended."""
        outputs = [None if stream is None else await stream.read() for stream in (self.stdout, self.stderr)]
        await self.wait()
        return outputs[0], outputs[1]

    def send_signal(self, number: int) -> None:
        """Send a signal, as asyncio does.

        Raises:
            ProcessLookupError: It has ended.
        """
        if self._process.returncode is not None:
            raise ProcessLookupError
        os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


def launch(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    text: bool = False,
    max_files: int | None = None,
    **streams: Any,
) -> Forked | subprocess.Popen[Any]:
    """Start a process as ``subprocess.Popen`` does: by a fork if it is one of ``RUNS``.

    Args:
        command: The command line.
        env: Its environment.
        text: Whether its pipes are read and written as text.
        max_files: How many files it may have open, the soft and the hard limit.
        streams: ``stdin``, ``stdout``, ``stderr``, ``start_new_session``, ``pass_fds`` and ``cwd``.
    """
    if forks(command, env):
        return _fork(command, env=env, text=text, max_files=max_files, **streams)
    return subprocess.Popen([*_limited(max_files), *command], env=env, text=text, **streams)


def run(command: Sequence[str], *, timeout: float = 150, env: Mapping[str, str] | None = None) -> Any:
    """Run a command to its end, as ``subprocess.run`` does with captured output as text.

    Raises:
        subprocess.TimeoutExpired: It still ran after ``timeout`` seconds.
    """
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        with launch(command, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=errors) as process:
            try:
                code = process.wait(timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        out.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(command, code, out.read(), errors.read())


def start(*modules: str) -> None:
    """Start the fork server, and wait until it has imported everything.

    Args:
        modules: What it imports besides the gateway.
    """
    if _FORKS:
        _start(modules)
        run([sys.executable, "-m", "gateway", "--version"], timeout=600)


async def create_subprocess_exec(*command: Any, max_files: int | None = None, **options: Any) -> Any:
    """``asyncio.create_subprocess_exec``, by a fork if the process is one of ``RUNS``."""
    if not forks(command, options.get("env")):
        return await _create_subprocess_exec(*_limited(max_files), *command, **options)
    process = AsyncForked(_fork(command, max_files=max_files, **options))
    await process.start()
    return process


def _limited(max_files: int | None) -> list[str]:
    return [] if max_files is None else ["/bin/sh", "-c", f'ulimit -n {max_files}; exec "$@"', "sh"]


@contextlib.contextmanager
def install() -> Iterator[None]:
    """While it lasts, ``asyncio.create_subprocess_exec`` forks."""
    asyncio.create_subprocess_exec = create_subprocess_exec
    try:
        yield
    finally:
        asyncio.create_subprocess_exec = _create_subprocess_exec


def forks(command: Sequence[Any], env: Mapping[str, str] | None = None) -> bool:
    """Whether a command is one that a fork can run, in an environment that does not change how programs are loaded."""
    loaded = env is None or all(env.get(name) == os.environ.get(name) for name in _OF_THE_LOADER)
    return _FORKS and loaded and list(command[:2]) == [sys.executable, "-m"] and command[2] in RUNS


def children(parent: int, module: str) -> list[int]:
    """Process ids of the running processes of a module that another process has started, forked or not."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state = (process / "stat").read_text().rpartition(")")[2].split()
            forked = (process / "comm").read_text().strip() == _mark(parent, module)
            started = int(state[1]) == parent and module in (process / "cmdline").read_text().split("\0")
            if state[0] != "Z" and (forked or started):
                found.append(int(process.name))
    return sorted(found)


def _mark(parent: int, module: str) -> str:
    """What a forked process is called in ``/proc/PID/comm``, which has 15 characters."""
    return f"{parent}:{module.rpartition('.')[2]}"[:15]


def _fork(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Any = None,
    stdin: Any = None,
    stdout: Any = None,
    stderr: Any = None,
    pass_fds: Sequence[int] = (),
    start_new_session: bool = False,
    max_files: int | None = None,
    text: bool = False,
) -> Forked:
    kept: list[int | None] = [None, None, None]
    with contextlib.ExitStack() as closing:
        sent: list[int] = []
        for number, stream in enumerate((stdin, stdout, stderr)):
            if stream is None:
                sent.append(number)
            elif stream == subprocess.STDOUT:
                sent.append(sent[1])
            elif stream == subprocess.DEVNULL:
                sent.append(os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC))
                closing.callback(os.close, sent[-1])
            elif stream == subprocess.PIPE:
                reads, writes = os.pipe()
                kept[number], given = (writes, reads) if number == 0 else (reads, writes)
                sent.append(given)
                closing.callback(os.close, given)
            else:
                sent.append(stream if isinstance(stream, int) else stream.fileno())
        request = _Request(
            argv=list(map(str, command[2:])),
            environment=dict(os.environ if env is None else env),
            folder=str(cwd or os.getcwd()),
            session=start_new_session,
            targets=[0, 1, 2, *pass_fds],
            parent=os.getpid(),
            max_files=max_files,
        )
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(_start())
        body = json.dumps([getattr(request, name) for name in _Request.__slots__]).encode()
        socket.send_fds(connection, [f"{len(body):{_HEADER_BYTES}}".encode()], [*sent, *pass_fds])
        connection.sendall(body)
        pid = int(_read(connection, _HEADER_BYTES))
    return Forked(pid, connection, kept, text)


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise OSError("the fork server has ended")
        data += more
    return data


def _start(modules: Sequence[str] = ()) -> str:
    """Start the server, unless it runs; returns its address."""
    global _address  # noqa: PLW0603 - one server per process, and its forks use the same
    if not _address:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind("")  # a free name in the abstract namespace
        listener.listen(128)
        address = listener.getsockname().decode("latin-1")
        command = [sys.executable, "-c", _PROGRAM, str(Path(__file__).parent), str(listener.fileno()), *modules]
        with listener:
            # numpy's linear algebra would start threads when it is imported.
            alone = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
            server = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[listener.fileno()], env=alone)
        atexit.register(_stop, server)
        _address = address
    return _address


_PROGRAM = (
    "import sys; sys.path.append(sys.argv[1]); import fork_server; fork_server.main(int(sys.argv[2]), sys.argv[3:])"
)


def _stop(server: subprocess.Popen[bytes]) -> None:
    assert server.stdin is not None
    server.stdin.close()
    server.wait()


def main(descriptor: int, modules: Sequence[str]) -> None:
    """Serve until standard input ends. Runs the requested module in each forked process."""
    global _address  # noqa: PLW0603
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests, which then close standard input
    listener = socket.socket(fileno=descriptor)
    _address = listener.getsockname().decode("latin-1")
    for module in (*_IMPORTED, *modules):
        importlib.import_module(module)
    asyncio.create_subprocess_exec = create_subprocess_exec
    assert len(os.listdir("/proc/self/task")) == 1, "a fork must not copy a process with threads"
    gc.collect()
    gc.freeze()
    request = _serve(listener)
    if request is None:
        return
    sys.argv[:] = [request.argv[0], *request.argv[1:]]
    if not hasattr(sys.modules.get(request.argv[0]), "__path__"):
        sys.modules.pop(request.argv[0], None)  # so that it is run in a module of its own, without a warning
    runpy.run_module(request.argv[0], run_name="__main__", alter_sys=True)


def _serve(listener: socket.socket) -> _Request | None:
    """Fork once per connection, and send each its process id and, later, its status. Returns in the forked process."""
    wakes, waker = os.pipe()
    for end in (wakes, waker):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    running: dict[int, socket.socket] = {}
    with selectors.DefaultSelector() as selector:
        for each in (listener, wakes, 0):
            selector.register(each, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fd == 0:
                    return None
                if key.fd == wakes:
                    os.read(wakes, 4096)
                    _reap(running)
                    continue
                connection, _ = listener.accept()
                request, descriptors = _receive(connection)
                pid = os.fork()
                if not pid:
                    # Closed by number below: an object that is deleted later would close what has its number then.
                    selector.close()
                    for each in (listener, connection, *running.values()):
                        each.detach()
                    _become(request, descriptors)
                    return request
                for each in descriptors:
                    os.close(each)
                running[pid] = connection
                connection.sendall(f"{pid:{_HEADER_BYTES}}".encode())


def _reap(running: dict[int, socket.socket]) -> None:
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        with running.pop(pid) as connection, contextlib.suppress(OSError):
            connection.sendall(f"{status:{_HEADER_BYTES}}".encode())


def _receive(connection: socket.socket) -> tuple[_Request, list[int]]:
    head, descriptors, _, _ = socket.recv_fds(connection, _HEADER_BYTES, 64)
    head += _read(connection, _HEADER_BYTES - len(head)) if len(head) < _HEADER_BYTES else b""
    return _Request(*json.loads(_read(connection, int(head)))), descriptors


def _become(request: _Request, descriptors: Sequence[int]) -> None:
    """Make the forked process one that was started with the request's descriptors, environment and so on."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if request.session:
        os.setsid()
    # First out of the way of the numbers that they get, then every other descriptor is closed.
    high = max(request.targets) + 1
    moved = [fcntl.fcntl(each, fcntl.F_DUPFD, high) for each in descriptors]
    for each, target in zip(moved, request.targets, strict=True):
        os.dup2(each, target)
    for each in map(int, os.listdir("/proc/self/fd")):
        if each not in request.targets:
            with contextlib.suppress(OSError):
                os.close(each)
    Path("/proc/self/comm").write_text(_mark(request.parent, request.argv[0]))
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environment)
    time.tzset()
    tempfile.tempdir = None
    if request.max_files is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (request.max_files, request.max_files))
