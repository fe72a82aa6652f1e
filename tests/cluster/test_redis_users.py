"""A user that may do no more than the page says is enough for a gateway."""

import re
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from message_recorder import MessageRecorder
from pydantic import SecretStr
from redis_groups import Cluster
from redis_server import SECRET, RedisServer

from gateway.cluster.records import RedisRecords

pytestmark = pytest.mark.usefixtures("patient_connections")

PASSWORD = "s3cret"
BLOCKS = {bytes([n]) * 16: f"[context {n}]" for n in range(1, 40)}


def reported() -> tuple[list[str], list[str]]:
    """The command that makes the user, and what a cluster needs besides."""
    page = (Path(__file__).parents[2] / "docs" / "several-gateways.md").read_text()
    (line,) = re.findall(r"^ACL SETUSER gateway .*$", page, re.MULTILINE)
    (besides,) = re.findall(r"and with a cluster `([^`]*)` as well", page)
    return line.replace("PASSWORD", PASSWORD).split(), besides.split()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    group = Cluster(tmp_path, PASSWORD)
    try:
        group.start()
        yield group
    finally:
        group.kill()


@pytest.fixture
def everything_works(store_at, exchange_at, soon, errors) -> Callable[[str], Awaitable[None]]:
    """Does all that a gateway does with a Redis: blocks, messages to others, records."""

    async def check(url: str) -> None:
        store_at(url).keep(BLOCKS)
        reader = store_at(url)

        async def all_there() -> bool:
            return await reader.fetch(list(BLOCKS)) == BLOCKS

        await soon(all_there)
        exchanges = [exchange_at(url, part=MessageRecorder()) for _ in range(2)]
        await soon(lambda: all(exchange.peers == 1 for exchange in exchanges))
        records = RedisRecords(SecretStr(url), SECRET, "things", errors.append)
        await records.write({"a": b"1", "b": None})
        assert await records.read() == {"a": b"1"}
        await records.close()
        assert errors == []

    return check


async def test_with_a_single_server(server: RedisServer, everything_works):
    line, _ = reported()
    with server.client() as client:
        client.execute_command(*line)
        client.execute_command("ACL", "SETUSER", "default", "off")
        await everything_works(server.url.replace("redis://", f"redis://gateway:{PASSWORD}@") + "/1")
        # This connection was there before the user without a name was turned off.
        client.execute_command("SELECT", 1)
        assert {key.partition(b":")[0] for key in client.keys("*")} == {b"pgw"}


async def test_with_a_cluster(cluster: Cluster, everything_works):
    line, besides = reported()
    for server in cluster.servers:
        with server.client() as client:
            client.execute_command(*line, *besides)
    await everything_works(cluster.url.replace(f"://:{PASSWORD}@", f"://gateway:{PASSWORD}@"))
