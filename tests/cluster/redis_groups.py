"""Redis as several servers: watched by sentinels, and as a cluster."""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import redis
from patience import HANG_SECONDS
from redis_server import RedisServer

SERVICE = "mymaster"
_MEETING_SECONDS = 3
# How long a server may be silent before the others take it for dead: a slow one on a busy machine is not replaced.
_PATIENT_MS = 60_000
_HURRY_MS = 500


def wait_until(holds: Callable[[], bool]) -> None:
    """Wait until something holds; errors of Redis count as not yet."""
    end = time.monotonic() + HANG_SECONDS
    while True:
        with contextlib.suppress(redis.RedisError):
            if holds():
                return
        assert time.monotonic() < end, "did not come true"
        time.sleep(0.05)


class Watched:
    """A master, a copy of it, and sentinels that put the copy in its place when it dies."""

    def __init__(self, folder: Path, password: str, tls: Path | None = None) -> None:
        login = ["--requirepass", password, "--masterauth", password]
        self._tls = tls
        self.master = RedisServer(_made(folder / "master"), *login, tls=tls)
        follows = ["--replicaof", f"127.0.0.1 {self.master.port}", "--repl-diskless-sync-delay", "0"]
        self.copy = RedisServer(_made(folder / "copy"), *login, *follows, tls=tls)
        self.sentinels = [self._sentinel(_made(folder / f"sentinel{n}"), password) for n in range(3)]
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        self.url = f"redis{_tls_of(tls)}+sentinel://:{password}@{hosts}/{SERVICE}/0{_authority(tls)}"

    def start(self) -> None:
        for server in (self.master, self.copy, *self.sentinels):
            server.start()
        wait_until(lambda: self.copy.info("replication").get("master_link_status") == "up")
        for sentinel in self.sentinels:
            wait_until(lambda s=sentinel: _known(s)["num-slaves"] == 1 and _known(s)["num-other-sentinels"] == 2)

    def kill_a_master(self) -> None:
        """The copy takes its place within some seconds."""
        for sentinel in self.sentinels:
            with sentinel.client() as client:
                client.execute_command("SENTINEL", "SET", SERVICE, "down-after-milliseconds", _HURRY_MS)
        self.master.kill()

    def kill(self) -> None:
        for server in (self.master, self.copy, *self.sentinels):
            server.kill()

    def _sentinel(self, folder: Path, password: str) -> RedisServer:
        file = folder / "sentinel.conf"
        file.write_text(
            f"sentinel monitor {SERVICE} 127.0.0.1 {self.master.port} 2\n"
            f"sentinel auth-pass {SERVICE} {password}\n"
            f"sentinel down-after-milliseconds {SERVICE} {_PATIENT_MS}\n"
            f"sentinel failover-timeout {SERVICE} 5000\n"
        )
        return RedisServer(folder, config=file, tls=self._tls)


class Cluster:
    """Three masters, each with a copy that takes its place when it dies."""

    def __init__(self, folder: Path, password: str, tls: Path | None = None) -> None:
        login = ["--requirepass", password, "--masterauth", password]
        options = [
            "--cluster-enabled",
            "yes",
            "--cluster-node-timeout",
            str(_PATIENT_MS),
            "--repl-diskless-sync-delay",
            "0",
        ]
        if tls is not None:
            options += ["--tls-cluster", "yes"]
        self.servers = [
            RedisServer(_made(folder / f"node{n}"), *options, *login, cluster=True, tls=tls) for n in range(6)
        ]
        # Not the first ones: the others have to be found.
        hosts = ",".join(f"127.0.0.1:{server.port}" for server in self.servers[:2])
        self.url = f"redis{_tls_of(tls)}+cluster://:{password}@{hosts}{_authority(tls)}"

    def start(self) -> None:
        for server in self.servers:
            server.start()
        masters, copies = self.servers[:3], self.servers[3:]
        for number, master in enumerate(masters):
            with master.client() as client:
                slots = range(number * 5461, min((number + 1) * 5461, 16384) if number < 2 else 16384)
                client.execute_command("CLUSTER", "ADDSLOTSRANGE", slots[0], slots[-1])
                client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        wait_until(self._all_met)
        for master, copy in zip(masters, copies, strict=True):
            with master.client() as client:
                name = client.execute_command("CLUSTER", "MYID")
            wait_until(lambda c=copy, n=name: _replicate(c, n))
        for server in self.servers:
            wait_until(lambda s=server: _state(s) == "ok")
        for copy in copies:
            wait_until(lambda c=copy: c.info("replication").get("master_link_status") == "up")

    def kill_a_master(self) -> None:
        """Its copy takes its place within some seconds."""
        for server in self.servers:
            with server.client() as client:
                client.config_set("cluster-node-timeout", 2 * _HURRY_MS)
        self.servers[0].kill()

    def kill(self) -> None:
        for server in self.servers:
            server.kill()

    def _all_met(self) -> bool:
        """Whether all know all. Introduces them again: a meeting that takes longer than their timeout is forgotten."""
        with self.servers[0].client() as client:
            for server in self.servers[1:]:
                client.execute_command("CLUSTER", "MEET", "127.0.0.1", server.port)
        end = time.monotonic() + _MEETING_SECONDS
        while time.monotonic() < end:
            if all(len(_nodes(server)) == len(self.servers) for server in self.servers):
                return True
            time.sleep(0.1)
        return False


def _tls_of(folder: Path | None) -> str:
    return "s" if folder is not None else ""


def _authority(folder: Path | None) -> str:
    return f"?ssl_ca_certs={folder}/cert.pem" if folder is not None else ""


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _known(sentinel: RedisServer) -> dict[str, int]:
    with sentinel.client() as client:
        return client.sentinel_masters()[SERVICE]


def _nodes(server: RedisServer) -> list[str]:
    with server.client() as client:
        found = client.execute_command("CLUSTER NODES")
        return [name for name, node in found.items() if "handshake" not in node["flags"]]


def _replicate(server: RedisServer, master: bytes) -> bool:
    with server.client() as client:
        client.execute_command("CLUSTER", "REPLICATE", master)
    return True


def _state(server: RedisServer) -> str:
    with server.client() as client:
        return client.execute_command("CLUSTER INFO")["cluster_state"]
