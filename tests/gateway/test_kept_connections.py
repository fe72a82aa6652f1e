"""Kept connections to replicas that end just as a request is sent on them."""

import asyncio

import pytest
from api_errors import problem
from scripted_engine import REPLY, response


class Ending:
    """Answers the first request of each connection, and ends the connection in some way at the second one."""

    def __init__(self, end):
        self._end = end
        self._seen = set()
        self.ended = 0

    async def __call__(self, writer, received):
        if id(writer) not in self._seen:
            self._seen.add(id(writer))
            self.writer = writer  # no other one gets the same id
            writer.write(response(REPLY))
            return
        self.ended += 1
        await self._end(writer)


async def close(writer):
    writer.close()


async def reset(writer):
    writer.transport.abort()


async def close_later(writer):
    await asyncio.sleep(0.1)
    writer.close()


async def after_a_byte(writer):
    writer.write(b"H")
    await writer.drain()
    await asyncio.sleep(0.05)
    writer.close()


async def after_the_head(writer):
    writer.write(response(REPLY)[:60])
    await writer.drain()
    writer.close()


@pytest.mark.parametrize("end", [close, reset, close_later])
async def test_the_request_is_sent_once_more_on_a_new_connection(start_gateway, scripted, end):
    scripted.answer = ending = Ending(end)
    gateway = await start_gateway(scripted, relay={"retry_floor": 0, "retry_share": 0})
    answers = [await gateway.ask() for _ in range(5)]
    assert [answer.status_code for answer in answers] == [200] * 5
    assert ending.ended
    assert len(scripted.received) == 5 + ending.ended
    assert (await gateway.replicas())["r0"]["state"] == "ready"
    assert (await gateway.settled(5)).value("gateway_failovers_total") == 0


@pytest.mark.parametrize("end", [after_a_byte, after_the_head])
async def test_an_answer_that_has_begun_is_not_asked_for_again(start_gateway, scripted, end):
    scripted.answer = ending = Ending(end)
    gateway = await start_gateway(scripted)
    answers = [await gateway.ask() for _ in range(2)]
    broken = [answer for answer in answers if answer.status_code != 200]
    assert len(broken) == ending.ended == 1
    problem(broken[0], 502, "replica_disconnected")
    assert len(scripted.received) == 2


async def test_it_is_sent_no_third_time(start_gateway, scripted):
    async def answer(writer, received):
        writer.close()

    gateway = await start_gateway(scripted)
    await gateway.ask()
    received = len(scripted.received)
    scripted.answer = answer
    problem(await gateway.ask(), 502, "replica_disconnected")
    assert len(scripted.received) == received + 2
    assert (await gateway.settled(2)).value("gateway_failovers_total", stage="first_byte") == 1
