"""In a cluster, a user that may do no more than the page says."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from ears import Ear
from pydantic import SecretStr
from redis_groups import Cluster
from redis_server import SECRET

from gateway.state import RedisRecords

PASSWORD = "s3cret"
BLOCKS = {bytes([n]) * 16: f"[context {n}]" for n in range(1, 40)}


def told() -> tuple[list[str], list[str]]:
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


async def test_it_is_enough(cluster, store_at, exchange_at, soon, errors):
    line, besides = told()
    for server in cluster.servers:
        with server.client() as client:
            client.execute_command(*line, *besides)
    url = cluster.url.replace(f"://:{PASSWORD}@", f"://gateway:{PASSWORD}@")
    store_at(url).keep(BLOCKS)
    reader = store_at(url)

    async def all_there():
        return await reader.fetch(list(BLOCKS)) == BLOCKS

    await soon(all_there)
    exchanges = [exchange_at(url, part=Ear()) for _ in range(2)]
    await soon(lambda: all(exchange.peers == 1 for exchange in exchanges))
    records = RedisRecords(SecretStr(url), SECRET, "things", errors.append)
    await records.write({"a": b"1", "b": None})
    assert await records.read() == {"a": b"1"}
    await records.close()
    assert errors == []
