"""Context blocks that gateways share through Redis."""

import asyncio
import time

from pydantic import SecretStr
from redis_server import PATIENT, SEAL, SECRET, RedisServer, read, redis_name

from gateway.cluster import redis_context
from gateway.cluster.redis_context import RedisContextStore

KEY, OTHER = b"\x01" * 16, b"\x02" * 16
BLOCK = "[context 1] Aktuelle Uhrzeit: 10:02 \N{WATCH}"
NAME = redis_name(KEY)


async def test_what_one_gateway_keeps_another_one_finds(server, store_at, soon, errors):
    one, two = store_at(server.url), store_at(server.url)
    one.keep({KEY: BLOCK})
    assert await soon(lambda: two.fetch([KEY, OTHER])) == {KEY: BLOCK}
    assert errors == []


async def test_a_later_block_replaces_an_earlier_one(server, store_at, soon):
    store = store_at(server.url)
    store.keep({KEY: "old"})
    store.keep({KEY: "new"})
    assert await soon(lambda: store.fetch([KEY])) == {KEY: "new"}
    store.keep({KEY: "newest"})

    async def is_newest():
        return (await store.fetch([KEY]))[KEY] == "newest"

    await soon(is_newest)


async def test_it_stands_in_redis_as_it_is_and_for_as_long_as_configured(server, store_at, soon):
    store = store_at(server.url, ttl_seconds=1000)
    store.keep({KEY: BLOCK})
    with server.client() as client:
        assert await soon(lambda: read(KEY, client.get(NAME))) == BLOCK
        assert 900_000 < client.pttl(NAME) <= 1_000_000


async def test_a_block_that_is_read_is_kept_for_longer(server, store_at, soon):
    store = store_at(server.url, ttl_seconds=1000)
    with server.client() as client:
        client.set(NAME, SEAL.closed(SEAL.name(KEY), BLOCK), px=100_000)
        assert await store.fetch([KEY]) == {KEY: BLOCK}
        await soon(lambda: client.pttl(NAME) > 900_000)
        assert read(KEY, client.get(NAME)) == BLOCK


async def test_a_changed_time_to_live_is_used(server, store_at, soon):
    store = store_at(server.url, ttl_seconds=1000)
    store.configure(5000)
    store.keep({KEY: BLOCK})
    with server.client() as client:
        await soon(lambda: client.get(NAME))
        assert client.pttl(NAME) > 4_000_000


async def test_many_requests_at_once_each_get_their_own(server, store_at, soon):
    store = store_at(server.url)
    keys = [number.to_bytes(16, "big") for number in range(3000)]
    store.keep({key: f"block {key.hex()}" for key in keys})
    with server.client() as client:
        await soon(lambda: client.dbsize() == len(keys))
        found = await asyncio.gather(*(store.fetch(keys[n : n + 3]) for n in range(0, len(keys), 3)))
        assert {key: block for each in found for key, block in each.items()} == {
            key: f"block {key.hex()}" for key in keys
        }
        assert [set(each) for each in found] == [set(keys[n : n + 3]) for n in range(0, len(keys), 3)]
        # One connection to read and one to write, besides this one and the greeting's.
        assert len(client.client_list()) <= 4


async def test_a_request_with_thousands_of_keys(server, store_at, soon):
    store = store_at(server.url)
    keys = [number.to_bytes(16, "big") for number in range(2000)]
    store.keep(dict.fromkeys(keys, "b"))
    with server.client() as client:
        await soon(lambda: client.dbsize() == len(keys))
    assert len(await store.fetch(keys)) == len(keys)


async def test_nothing_is_asked_for_no_keys(server, store_at):
    store = store_at(server.url)
    assert await store.fetch([]) == {}


async def test_what_is_kept_last_is_written_before_the_gateway_ends(server, monkeypatch):
    # What is tested is that it is written at all: a busy machine may take longer to connect than a stop waits.
    monkeypatch.setattr(redis_context, "_STOP_SECONDS", 60)
    store = RedisContextStore(SecretStr(server.url), SECRET, ttl_seconds=60, on_error=lambda _: None)
    store.start()
    keys = [number.to_bytes(16, "big") for number in range(1000)]
    store.keep(dict.fromkeys(keys, BLOCK))
    await store.stop()
    with server.client() as client:
        assert client.dbsize() == len(keys)


async def test_a_password_and_a_database_of_its_own(tmp_path, store_at, soon):
    server = RedisServer(tmp_path, "--requirepass", "p@ss/word")
    server.start()
    try:
        store = store_at(f"redis://:p%40ss%2Fword@127.0.0.1:{server.port}/3")
        store.keep({KEY: BLOCK})
        assert await soon(lambda: store.fetch([KEY])) == {KEY: BLOCK}
        with server.client() as client:
            assert client.dbsize() == 0
            client.select(3)
            assert client.dbsize() == 1
    finally:
        server.kill()


async def test_an_answer_that_lies_unread_because_the_gateway_was_busy_is_no_late_one(server, store_at, soon, errors):
    store = store_at(server.url, deadline_seconds=0.3)
    store.keep({KEY: BLOCK})
    with server.client() as client:
        await soon(lambda: client.get(NAME))
    await soon(lambda: store.fetch([KEY]))  # connected
    asked = asyncio.ensure_future(store.fetch([KEY]))
    await asyncio.sleep(0)
    time.sleep(1)  # nothing runs meanwhile: the deadline is over before anything can be read
    assert await asked == {KEY: BLOCK}
    assert errors == []


async def test_a_client_that_disconnects_ends_no_other_request(server, store_at, soon):
    store = store_at(server.url)
    store.keep({KEY: BLOCK})
    await soon(lambda: store.fetch([KEY]))
    leaving = [asyncio.ensure_future(store.fetch([KEY])) for _ in range(20)]
    staying = [asyncio.ensure_future(store.fetch([KEY])) for _ in range(20)]
    await asyncio.sleep(0)
    for each in leaving:
        each.cancel()
    async with asyncio.timeout(PATIENT):
        assert await asyncio.gather(*staying) == [{KEY: BLOCK}] * 20


async def test_what_stands_in_redis_is_no_text(server, store_at, soon):
    store = store_at(server.url)
    store.keep({KEY: BLOCK})
    with server.client() as client:
        value = await soon(lambda: client.get(NAME))
        names = client.keys()
    assert b"10:02" not in value
    assert b"context" not in value
    assert KEY.hex().encode() not in b"".join(names)


async def test_a_gateway_with_another_secret_finds_nothing(server, store_at, soon, errors):
    store = store_at(server.url)
    store.keep({KEY: BLOCK})
    with server.client() as client:
        await soon(lambda: client.get(NAME))
    other = RedisContextStore(SecretStr(server.url), SecretStr("another one"), ttl_seconds=60, on_error=errors.append)
    other.start()
    assert await other.fetch([KEY]) == {}
    await other.stop()


async def test_a_block_under_another_name_is_none(server, store_at, soon, errors):
    store = store_at(server.url)
    with server.client() as client:
        client.set(redis_name(OTHER), SEAL.closed(SEAL.name(KEY), BLOCK))
    assert await store.fetch([OTHER]) == {}
    assert errors == ["redis"]


async def test_an_empty_block_is_a_block(server, store_at, soon):
    store = store_at(server.url)
    store.keep({KEY: ""})
    assert await soon(lambda: store.fetch([KEY])) == {KEY: ""}


async def test_gateways_that_end_while_they_connect(server):
    for number in range(80):
        patience = number % 40 / 8000  # they get as far as that allows
        store = RedisContextStore(
            SecretStr(server.url), SECRET, ttl_seconds=60, on_error=lambda _: None, deadline_seconds=patience
        )
        store.start()
        await store.fetch([KEY])
        async with asyncio.timeout(PATIENT):
            await store.stop()
