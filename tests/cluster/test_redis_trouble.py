"""In any state of Redis requests go on, and its failures are counted and logged."""

import asyncio

import pytest
from redis_server import PATIENT, SEAL, RedisServer, read, redis_name

from gateway.cluster.connect import PAUSE_SECONDS

KEY, OTHER = b"\x01" * 16, b"\x02" * 16
BLOCK = "[context 1] Customer: Jane Doe"
NAME = redis_name(KEY)


def reported(logs, event):
    return [(each["doing"], each["error"]) for each in logs if each["event"] == event]


def recovered(logs):
    return [each["doing"] for each in logs if each["event"] == "state_store_recovered"]


async def test_redis_is_not_there_at_the_start_and_comes_later(tmp_path, store_at, clock, soon, errors, logs):
    server = RedisServer(tmp_path)
    store = store_at(server.url, clock=clock)
    await soon(lambda: reported(logs, "state_store_failed"))  # before any request
    assert await store.fetch([KEY]) == {}
    store.keep({KEY: BLOCK})
    await soon(lambda: ("write", "ConnectionError") in reported(logs, "state_store_failed"))
    server.start()
    try:
        clock.now += PAUSE_SECONDS
        with server.client() as client:
            # What could not be written was not forgotten.
            await soon(lambda: read(KEY, client.get(NAME)) == BLOCK)
        assert await store.fetch([KEY]) == {KEY: BLOCK}
        await soon(lambda: set(recovered(logs)) == {"read", "write"})
        assert set(errors) == {"redis"}
    finally:
        server.kill()


async def test_redis_dies_and_is_started_again(server, store_at, greeted, clock, soon, errors, logs):
    store = store_at(server.url, clock=clock)
    await greeted()
    assert await store.fetch([KEY]) == {}
    assert errors == []
    server.kill()
    assert await store.fetch([KEY]) == {}
    assert len(errors) == 1
    assert reported(logs, "state_store_failed") == [("read", "ConnectionError")]
    # For a second no connection is tried.
    for _ in range(5):
        assert await store.fetch([KEY]) == {}
    assert len(errors) == 1
    # Then one does, and it is logged no second time.
    clock.now += PAUSE_SECONDS
    for _ in range(5):
        assert await store.fetch([KEY]) == {}
    assert len(errors) == 2
    assert len(reported(logs, "state_store_failed")) == 1
    server.start()
    clock.now += PAUSE_SECONDS
    assert await store.fetch([KEY]) == {}  # it answers, and has forgotten all
    assert recovered(logs) == ["read"]
    assert len(errors) == 2
    store.keep({KEY: BLOCK})
    assert await soon(lambda: store.fetch([KEY])) == {KEY: BLOCK}


async def test_a_restart_between_two_requests_costs_none(server, store_at, greeted, errors):
    store = store_at(server.url)
    await greeted()
    assert await store.fetch([KEY]) == {}
    server.kill()
    server.start()
    with server.client() as client:
        client.set(NAME, SEAL.closed(SEAL.name(KEY), BLOCK))
    for _ in range(10):
        await asyncio.sleep(0)  # the gateway runs on meanwhile, and sees its connections end
    assert await store.fetch([KEY]) == {KEY: BLOCK}
    assert errors == []


async def test_redis_hangs(server, store_at, greeted, clock, soon, errors, logs):
    store = store_at(server.url, deadline_seconds=0.2, clock=clock)
    await greeted()
    store.keep({KEY: BLOCK})
    await soon(lambda: store.fetch([KEY]))
    server.hang()
    try:
        async with asyncio.timeout(PATIENT):
            assert await store.fetch([KEY]) == {}
            assert reported(logs, "state_store_failed")[0] == ("read", "TimeoutError")
            failed = errors.count("redis")
            # No request waits while the pause lasts: not even as long as the question is still unanswered.
            assert await asyncio.gather(*(store.fetch([KEY]) for _ in range(50))) == [{}] * 50
            assert errors.count("redis") == failed
            store.keep({OTHER: BLOCK})
            await soon(lambda: ("write", "TimeoutError") in reported(logs, "state_store_failed"))
    finally:
        server.wake()

    async def found():
        clock.now += PAUSE_SECONDS
        return await store.fetch([KEY, OTHER])

    async def both():
        return (await found()).keys() == {KEY, OTHER}

    await soon(both)
    await soon(lambda: set(recovered(logs)) == {"read", "write"})


async def test_all_that_wait_while_redis_hangs_go_on(server, store_at, greeted, clock, errors):
    store = store_at(server.url, deadline_seconds=0.2, clock=clock)
    await greeted()
    assert await store.fetch([KEY]) == {}
    server.hang()
    try:
        async with asyncio.timeout(PATIENT):
            assert await asyncio.gather(*(store.fetch([KEY]) for _ in range(50))) == [{}] * 50
            assert len(errors) == 50  # every request that went on without is counted
            # After the pause one tries again; the others do not wait for how that ends.
            clock.now += PAUSE_SECONDS
            assert await asyncio.gather(*(store.fetch([KEY]) for _ in range(50))) == [{}] * 50
            assert len(errors) == 51
    finally:
        server.wake()


async def test_redis_is_slow_for_a_while(server, store_at, greeted, clock, soon, errors):
    store = store_at(server.url, deadline_seconds=0.3, clock=clock)
    await greeted()
    store.keep({KEY: BLOCK})
    await soon(lambda: store.fetch([KEY]))
    with server.client() as client:
        client.client_pause(1500, all=True)
        assert await store.fetch([KEY]) == {}
        assert "redis" in errors
        client.ping()  # as soon as it answers again

    async def found():
        clock.now += PAUSE_SECONDS
        return await store.fetch([KEY])

    assert await soon(found) == {KEY: BLOCK}


async def test_redis_is_full(server, store_at, soon, errors, logs):
    store = store_at(server.url)
    with server.client() as client:
        client.set(NAME, SEAL.closed(SEAL.name(KEY), BLOCK))
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", "1")
        store.keep({OTHER: BLOCK, KEY: "newer"})
        await soon(lambda: ("write", "OutOfMemoryError") in reported(logs, "state_store_failed"))
        # What is there is read all the same.
        assert await store.fetch([KEY]) == {KEY: BLOCK}
        client.config_set("maxmemory", "0")
        # The blocks that did not fit were not forgotten, and that one was read meanwhile did not take its place.
        assert await soon(lambda: store.fetch([OTHER])) == {OTHER: BLOCK}
        await soon(lambda: read(KEY, client.get(NAME)) == "newer")
        await soon(lambda: "write" in recovered(logs))
        assert "redis" in errors


async def test_redis_is_flushed(server, store_at, soon, errors):
    store = store_at(server.url)
    store.keep({KEY: BLOCK})
    await soon(lambda: store.fetch([KEY]))
    with server.client() as client:
        client.flushall()
    assert await store.fetch([KEY]) == {}
    store.keep({KEY: "again"})
    assert await soon(lambda: store.fetch([KEY])) == {KEY: "again"}
    assert errors == []


@pytest.mark.parametrize("credentials", ["", ":wrong@", "nobody:wrong@"])
async def test_a_wrong_password_is_never_logged(tmp_path, store_at, soon, errors, logs, credentials):
    server = RedisServer(tmp_path, "--requirepass", "s3cret")
    server.start()
    try:
        store = store_at(f"redis://{credentials}127.0.0.1:{server.port}")
        assert await store.fetch([KEY]) == {}
        store.keep({KEY: BLOCK})
        await soon(lambda: {doing for doing, _ in reported(logs, "state_store_failed")} == {"read", "write"})
        assert all("Authentication" in error for _, error in reported(logs, "state_store_failed"))
        assert "wrong" not in str(logs)
        assert BLOCK not in str(logs)
        assert set(errors) == {"redis"}
    finally:
        server.kill()


async def test_a_user_who_may_not_read(server, store_at, soon, logs):
    with server.client() as client:
        client.acl_setuser("limited", enabled=True, passwords=["+pw"], keys=["pgw:ctx:*"], commands=["+set", "+ping"])
    store = store_at(f"redis://limited:pw@127.0.0.1:{server.port}")
    store.keep({KEY: BLOCK})
    with server.client() as client:
        await soon(lambda: read(KEY, client.get(NAME)) == BLOCK)
    assert await store.fetch([KEY]) == {}
    assert reported(logs, "state_store_failed") == [("read", "NoPermissionError")]


async def test_values_that_are_no_blocks_are_as_good_as_none(server, store_at, soon, errors):
    store = store_at(server.url)
    list_key, garbage_key = b"\x03" * 16, b"\x04" * 16
    with server.client() as client:
        client.set(NAME, SEAL.closed(SEAL.name(KEY), BLOCK))
        client.rpush(redis_name(list_key), "a", "b")
        client.set(redis_name(garbage_key), b"\xff\xfe\x00")
    assert await store.fetch([KEY, list_key, garbage_key]) == {KEY: BLOCK}
    assert errors == ["redis"]
    # They do not stand in the way of what is to be kept.
    store.keep({list_key: "one", garbage_key: "two"})

    async def both():
        return await store.fetch([list_key, garbage_key]) == {list_key: "one", garbage_key: "two"}

    await soon(both)


async def test_a_block_that_is_no_unicode_is_counted_and_left_out(server, store_at, soon, errors):
    store = store_at(server.url)
    store.keep({OTHER: "\ud800", KEY: BLOCK})
    assert await soon(lambda: store.fetch([OTHER, KEY])) == {KEY: BLOCK}
    assert errors == ["redis"]


async def test_only_so_much_waits_for_redis_and_the_oldest_goes(tmp_path, store_at, soon, errors):
    server = RedisServer(tmp_path)
    store = store_at(server.url, waiting_bytes=10_000)
    keys = [number.to_bytes(16, "big") for number in range(20)]
    for key in keys:
        store.keep({key: "x" * 1000})
    assert len(errors) == 12  # eight of some 1200 bytes fit
    server.start()
    try:
        with server.client() as client:
            await soon(client.dbsize)
            await soon(lambda: client.exists(redis_name(keys[-1])))
            assert client.dbsize() == 8
            assert not client.exists(redis_name(keys[11]))
    finally:
        server.kill()


async def test_the_gateway_ends_while_redis_hangs(server, store_at):
    store = store_at(server.url)
    store.keep({KEY: BLOCK})
    server.hang()
    try:
        store.keep({OTHER: BLOCK})
        async with asyncio.timeout(PATIENT):
            await store.stop()
    finally:
        server.wake()
