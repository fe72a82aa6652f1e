"""``GET /admin/api/live``, over real sockets."""

import asyncio
import contextlib
import json
import socket
import time

import pytest
from admin_port import OPERATOR, PLAIN, READER, TOKENS, AdminPort, Token, problem
from patience import HANG_SECONDS
from served_port import Journal, ServedPort, eventually

from gateway.admin import AdminAccess, LiveFeed
from gateway.admin.live_stream import MAX_LISTENERS, SHOWN_ROWS
from gateway.core.errors import GatewayError, NotFound

LIVE = "/admin/api/live"


@pytest.fixture
def journal():
    return Journal()


@pytest.fixture
def port(journal):
    return AdminPort(AdminAccess(), journal)


@pytest.fixture
async def served(port):
    async with ServedPort(port) as served:
        yield served


@pytest.fixture
def guarded(journal):
    return AdminPort(AdminAccess(PLAIN, TOKENS), journal)


async def test_it_is_a_stream_that_is_not_stored(served):
    async with served.listen() as events:
        headers = events.answer.headers
        assert headers["content-type"] == "text/event-stream; charset=utf-8"
        assert headers["cache-control"] == "no-store"
        assert "default-src 'none'" in headers["content-security-policy"]


async def test_the_replicas_are_sent_at_once_and_when_one_changes(served, port):
    async with served.listen() as events:
        assert await events.next() == ("replicas", {"replicas": [{"id": "r0", "model": "m", "state": "ready"}]})
        port.replicas[0]["requests"] = 7  # of no interest
        port.replicas = [dict(port.replicas[0], state="down")]
        assert await events.next() == ("replicas", {"replicas": [{"id": "r0", "model": "m", "state": "down"}]})


async def test_requests_are_sent_once_newest_first_and_only_new_ones(served, journal):
    journal.add("old-1", "old-2")
    async with served.listen() as events:
        journal.add("a", "b")
        assert await events.next_requests() == (["b", "a"], 0)
        journal.add("c")
        assert await events.next_requests() == (["c"], 0)


async def test_a_live_request_equals_the_one_in_the_list(served, journal):
    async with served.listen() as events:
        await events.next()
        journal.add("a", tenant="acme", hits=17)
        reported = await events.next()
    row = {"id": "a", "at": 1e9, "model": "m", "source": "web", "tenant": "acme", "hits": 17}
    assert reported == ("requests", {"requests": [row], "left_out": 0})


async def test_the_same_id_again_is_another_request(served, journal):
    journal.add("a")
    async with served.listen() as events:
        journal.add("a")
        assert await events.next_requests() == (["a"], 0)


@pytest.mark.parametrize("number", [SHOWN_ROWS, SHOWN_ROWS + 1, 100, 101, 999])
async def test_of_many_the_newest_are_reported_and_the_others_counted(served, journal, number):
    journal.add(*(f"old-{number}" for number in range(3)))
    async with served.listen() as events:
        journal.add(*map(str, range(number)))
        ids, left_out = await events.next_requests()
        assert ids == [str(number - 1 - place) for place in range(SHOWN_ROWS)]
        assert left_out == number - SHOWN_ROWS


async def test_filters_are_those_of_the_list(served, journal):
    query = "?model=m&tenant=acme&source=web&template=v3&reason=evicted"
    async with served.listen(query) as events:
        journal.add("x", tenant="acme", template="v3", reason="cold")
        journal.add("y", tenant="acme", template="v3", reason="evicted")
        assert await events.next_requests() == (["y"], 0)
    wanted = {"model": "m", "tenant": "acme", "source": "web", "template": "v3", "reason": "evicted", "limit": "100"}
    assert all(asked == wanted for asked in journal.asked)


async def test_listeners_with_other_filters_are_sent_other_requests(served, journal):
    async with served.listen("?source=web") as web, served.listen("?source=app") as app, served.listen() as every:
        journal.add("w")
        journal.add("a", source="app")
        assert (await web.next_requests())[0] == ["w"]
        assert (await app.next_requests())[0] == ["a"]
        reported = (await every.next_requests())[0]
        assert (reported if len(reported) == 2 else [*(await every.next_requests())[0], *reported]) == ["a", "w"]


@pytest.mark.parametrize(
    ("query", "code", "param"),
    [
        ("?modle=m", "unknown_parameter", "modle"),
        ("?session=s", "unknown_parameter", "session"),
        ("?limit=3", "unknown_parameter", "limit"),
        ("?reason=nonsense", "invalid_value", "reason"),
    ],
)
async def test_what_cannot_be_listened_to_is_refused_in_place_of_a_stream(served, query, code, param):
    problem(await served.http.get(LIVE + query), 400, code, param)


async def test_those_with_the_same_filters_share_a_question(port, journal):
    feed = LiveFeed(journal, lambda: port.replicas, look_seconds=1e6)
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(10):
            await stack.enter_async_context(feed.listening({"model": "m"}))
        assert journal.asked == [{"model": "m", "limit": "100"}]
        await stack.enter_async_context(feed.listening({}))
        assert len(journal.asked) == 2


async def test_without_listeners_nothing_is_asked(served, port, journal):
    port.replicas = replicas = CountedReplicas()
    async with served.listen():
        await eventually(lambda: len(journal.asked) > 3 < replicas.looks)
    await still(lambda: (len(journal.asked), replicas.looks))
    async with served.listen() as events:  # and it goes on when a client connects again
        journal.add("a")
        assert await events.next_requests() == (["a"], 0)


class CountedReplicas:
    looks = 0

    def __iter__(self):
        self.looks += 1
        return iter(())


async def still(value):
    """Waits until something does not change any more, over several looks."""
    before = None
    async with asyncio.timeout(HANG_SECONDS):
        while before != value():
            before = value()
            await asyncio.sleep(0.05)


async def test_there_is_a_bound_on_listeners_and_places_become_free(served, journal):
    async with contextlib.AsyncExitStack() as stack:
        listeners = [await stack.enter_async_context(served.listen()) for _ in range(MAX_LISTENERS - 1)]
        async with served.listen():
            answer = await served.http.get(LIVE)
            assert "GET /admin/api/requests" in problem(answer, 503, "too_many_listeners")
        journal.add("a")
        for events in listeners:
            assert await events.next_requests() == (["a"], 0)
        async with asyncio.timeout(HANG_SECONDS):
            while (await status(served)) == 503:
                await asyncio.sleep(0.01)


async def status(served):
    async with served.http.stream("GET", LIVE) as answer:
        return answer.status_code


async def test_a_listener_that_does_not_read_costs_no_memory_and_delays_no_other(served, journal):
    batches, each, long = 40, 25, "x" * 40_000
    with silent_listener(served) as silent_client:
        async with served.listen() as listener:
            await eventually(lambda: journal.asked)
            for batch in range(batches):
                journal.forget()
                journal.add(*(f"{long}{batch * each + number}" for number in range(each)))
                reported = 0
                while reported < each:
                    ids, left_out = await listener.next_requests()
                    reported += len(ids) + left_out
        received, events = await asyncio.to_thread(read_events, silent_client, batches * each)
    assert max(len(event["requests"]) for event in events) == SHOWN_ROWS
    assert max(event["left_out"] for event in events) > each
    assert events[-1]["requests"][0]["id"] == f"{long}{batches * each - 1}"
    assert received < batches * SHOWN_ROWS * len(long) / 2


@contextlib.contextmanager
def silent_listener(served):
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(10)
        connection.connect(served.address)
        connection.sendall(b"GET /admin/api/live HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        yield connection


def read_events(connection, requests):
    """Reads until so many requests were sent or counted; returns the bytes that took, and the events."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
    received, events, waiting = 0, [], b""
    while sum(len(event["requests"]) + event["left_out"] for event in events) < requests:
        piece = connection.recv(1 << 20)
        received += len(piece)
        *lines, waiting = (waiting + piece).split(b"\n")
        events += [json.loads(line[6:]) for line in lines if line.startswith(b'data: {"requests"')]
    return received, events


@pytest.mark.parametrize(
    "hostile", ["</script><b>", "a\n\nevent: replicas\ndata: {}\n\n", "\r\r", "\u2028\u202e\x85", "ü" * 9]
)
async def test_an_id_of_any_form_stays_within_its_row(served, journal, hostile):
    async with served.listen() as events:
        await events.next()
        journal.add(hostile)
        assert await events.next_requests() == ([hostile], 0)
        journal.add("next")
        assert await events.next_requests() == (["next"], 0)


# Tokens


async def test_reading_is_enough_and_is_needed(guarded):
    async with ServedPort(guarded) as served:
        problem(await served.http.get(LIVE), 401, "unauthorized")
        for token in (READER, OPERATOR, PLAIN):
            async with served.listen(token=token) as events:
                assert (await events.next())[0] == "replicas"


async def test_it_ends_when_the_token_expires(guarded):
    guarded.access.replace(None, [Token("short", "read", READER, time.time() + 3)])
    async with ServedPort(guarded) as served, served.listen(token=READER) as events:
        await events.end()
        problem(await served.http.get(LIVE, headers={"authorization": f"Bearer {READER}"}), 401, "unauthorized")


async def test_it_ends_when_the_token_is_taken_away(guarded, journal):
    async with ServedPort(guarded) as served:
        async with served.listen(token=READER) as reader, served.listen(token=OPERATOR) as operator:
            await reader.next()
            guarded.access.replace(None, [TOKENS[1]])
            journal.add("secret")
            assert await reader.next() is None
            assert (await operator.next_requests())[0] == ["secret"]


async def test_it_ends_when_a_token_is_asked_for_from_now_on(served, port):
    async with served.listen() as events:
        port.access.replace(PLAIN, ())
        await events.end()


@pytest.mark.parametrize("headers", [{"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"}])
async def test_a_page_of_another_site_cannot_take_places(served, headers):
    problem(await served.http.get(LIVE, headers=headers), 403, "cross_site")


async def test_it_can_only_be_looked_at(served):
    answer = await served.http.post(LIVE, json={})
    problem(answer, 405, "method_not_allowed")
    assert answer.headers["allow"] == "GET, HEAD"


# When something does not work


async def test_without_explanations_the_replicas_are_sent_all_the_same(served, port, journal):
    journal.failure = NotFound("Explanations are turned off.", code="explain_off")
    async with served.listen() as events:
        assert (await events.next())[0] == "replicas"
        port.replicas = []
        assert await events.next() == ("replicas", {"replicas": []})
        # Turned on while a client listens: what was there before is not new.
        journal.add("old")
        asked = len(journal.asked)
        journal.failure = None
        await eventually(lambda: len(journal.asked) > asked + 2)
        journal.add("new")
        assert await events.next_requests() == (["new"], 0)


async def test_after_a_moment_without_answers_it_goes_on(served, journal):
    async with served.listen() as events:
        journal.failure = GatewayError("It is being started again.", code="explain_unavailable")
        asked = len(journal.asked)
        await eventually(lambda: len(journal.asked) > asked + 2)
        journal.add("a")
        journal.failure = None
        assert await events.next_requests() == (["a"], 0)


async def test_if_watching_breaks_listeners_are_let_go_and_may_come_again(served, port):
    async with served.listen() as events:
        await events.next()
        port.replicas = [{"id": "r0"}]  # no state
        await events.end()
    port.replicas = []
    async with served.listen() as events:
        assert await events.next() == ("replicas", {"replicas": []})


async def test_at_the_end_of_the_gateway_everybody_is_let_go(served, port):
    async with served.listen() as one, served.listen("?source=web") as other:
        port.live.close()
        await one.end()
        await other.end()
    problem(await served.http.get(LIVE), 503, "shutting_down")
