"""Named values that several gateways keep together in Redis."""

import pytest
import redis
from pydantic import SecretStr
from redis_server import SECRET

from gateway.cluster.records import RedisRecords


@pytest.fixture
async def records(server, errors):
    made = RedisRecords(SecretStr(server.url), SECRET, "things", errors.append)
    yield made
    await made.close()


async def test_what_is_written_is_read_and_no_other_secret_reads_it(records, server, errors):
    await records.write({f"name {n}": b"value" * n for n in range(600)})
    assert await records.read() == {f"name {n}": b"value" * n for n in range(600)}
    with server.client() as client:
        (key,) = client.keys("*")
        everything = repr(client.hgetall(key))
    assert "name" not in everything
    assert "value" not in everything
    other = RedisRecords(SecretStr(server.url), SecretStr("of somebody else entirely"), "things", errors.append)
    assert await other.read() == {}
    await other.close()
    assert errors == []


async def test_it_is_noticed_when_all_was_lost(records, server):
    assert await records.write({"a": b"1"}) is False
    assert await records.write({}) is True
    with server.client() as client:
        client.flushall()
    assert await records.write({"b": b"2"}) is False
    assert await records.read() == {"b": b"2"}


async def test_records_of_other_writers_are_ignored(records, server, errors):
    await records.write({"a": b"1"})
    with server.client() as client:
        (key,) = client.keys("*")
        client.hset(key, "x", b"y")
        (field,) = [each for each in client.hkeys(key) if each not in (b"x", b"there")]
        client.hset(key, "moved", client.hget(key, field))  # a value under another name
    assert await records.read() == {"a": b"1"}
    assert errors == ["redis", "redis"]


async def test_a_full_redis_is_logged_once_while_it_can_still_be_read(records, server, errors, logs):
    await records.write({"a": b"1"})
    with server.client() as client:
        client.config_set("maxmemory", "1")
        for _ in range(3):
            with pytest.raises(redis.RedisError):
                await records.write({"b": b"2"})
            assert await records.read() == {"a": b"1"}
        client.config_set("maxmemory", "0")
    await records.write({"b": b"2"})
    assert [(each["event"], each["doing"]) for each in logs] == [
        ("state_store_failed", "write things"),
        ("state_store_recovered", "write things"),
    ]
    assert len(errors) == 3


async def test_redis_dies_and_comes_back(records, server):
    await records.write({"a": b"1"})
    server.kill()
    for _ in range(2):
        with pytest.raises((redis.RedisError, OSError)):
            await records.read()
        with pytest.raises((redis.RedisError, OSError)):
            await records.write({"a": b"2"})
    server.start()
    assert await records.write({"a": b"2"}) is False
    assert await records.read() == {"a": b"2"}
