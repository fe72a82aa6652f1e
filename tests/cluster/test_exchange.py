"""What gateways send each other through a channel, and what becomes of it when Redis does not do its part."""

from message_recorder import MessageRecorder
from pydantic import SecretStr


async def test_what_one_sends_the_others_receive_and_not_itself(server, exchange_at, soon, errors):
    recorders = [MessageRecorder(), MessageRecorder(), MessageRecorder()]
    exchanges = [exchange_at(server.url, part=recorder) for recorder in recorders]
    await soon(lambda: [exchange.peers for exchange in exchanges] == [2, 2, 2])
    recorders[0].sends(b"one")
    await soon(lambda: all(b"one" in recorder.received for recorder in recorders[1:]))
    assert b"one" not in recorders[0].received
    assert errors == []


async def test_one_that_begins_learns_all_within_a_second(server, exchange_at, soon):
    first, second = MessageRecorder(always=b"all there is"), MessageRecorder()
    exchange_at(server.url, part=first)
    later = exchange_at(server.url, part=second)
    await soon(lambda: b"all there is" in second.received)
    await soon(lambda: later.peers == 1)


async def test_one_that_stops_is_gone_at_once_for_the_others(server, exchange_at, soon):
    recorders = [MessageRecorder(), MessageRecorder()]
    exchanges = [exchange_at(server.url, part=recorder) for recorder in recorders]
    await soon(lambda: [exchange.peers for exchange in exchanges] == [1, 1])
    await exchanges[0].stop()
    await soon(lambda: recorders[1].is_alone)
    assert exchanges[1].peers == 0


async def test_one_that_falls_silent_is_forgotten(server, exchange_at, soon):
    recorders = [MessageRecorder(), MessageRecorder()]
    exchanges = [exchange_at(server.url, part=recorder) for recorder in recorders]
    await soon(lambda: [exchange.peers for exchange in exchanges] == [1, 1])
    await exchanges[0]._tasks.cancel()  # as a process that is killed
    await soon(lambda: recorders[1].is_alone)
    assert recorders[1].missed_of
    assert exchanges[1].peers == 0


async def test_what_is_lost_is_noticed(server, exchange_at, soon):
    recorders = [MessageRecorder(), MessageRecorder()]
    exchanges = [exchange_at(server.url, part=recorder) for recorder in recorders]
    await soon(lambda: [exchange.peers for exchange in exchanges] == [1, 1])
    before = len(recorders[1].missed_of)
    exchanges[0]._number += 1
    await soon(lambda: len(recorders[1].missed_of) > before)
    assert exchanges[1].peers == 1


async def test_what_was_sent_before_the_first_message_that_is_received_is_lost(server, exchange_at, soon):
    exchange_at(server.url, part=MessageRecorder())._number = 7  # its messages so far were lost while Redis was away
    recorder = MessageRecorder()
    later = exchange_at(server.url, part=recorder)
    await soon(lambda: later.peers == 1)
    assert len(recorder.missed_of) == 1


async def test_a_part_that_fails_to_say_anything_keeps_neither_the_others_nor_the_gateway_from_being_known(
    server, exchange_at, soon, errors
):
    broken, recorder = MessageRecorder(), MessageRecorder()
    broken.changes = lambda now, *, everything: [].pop()
    first = exchange_at(server.url, broken=broken, part=MessageRecorder(always=b"all there is"))
    second = exchange_at(server.url, part=recorder)
    await soon(lambda: b"all there is" in recorder.received)
    await soon(lambda: (first.peers, second.peers) == (1, 1))
    assert set(errors) == {"redis"}


async def test_another_secret_is_another_deployment(server, exchange_at, soon, errors):
    recorders = [MessageRecorder(always=b"a"), MessageRecorder(always=b"b")]
    exchange_at(server.url, part=recorders[0])
    other = exchange_at(server.url, part=recorders[1], secret=SecretStr("of somebody else entirely"))
    third = exchange_at(server.url, part=MessageRecorder())
    await soon(lambda: third.peers == 1)
    assert other.peers == 0
    assert recorders[0].received == recorders[1].received == []
    assert errors == []


async def test_messages_of_other_senders_are_ignored(server, exchange_at, soon, errors):
    recorders = [MessageRecorder(), MessageRecorder()]
    exchanges = [exchange_at(server.url, part=recorder) for recorder in recorders]
    await soon(lambda: [exchange.peers for exchange in exchanges] == [1, 1])
    with server.client() as client:
        client.publish(exchanges[0]._channel, b"\x00" * 50)
        client.publish(exchanges[0]._channel, b"")
    await soon(lambda: len(errors) == 4)
    recorders[0].sends(b"and on")
    await soon(lambda: b"and on" in recorders[1].received)


async def test_a_part_that_cannot_be_understood_leaves_the_others(server, exchange_at, soon, errors, logs):
    odd, recorder = MessageRecorder(raises=True), MessageRecorder()
    exchange_at(server.url, part=MessageRecorder(always=b"odd"), other=MessageRecorder(always=b"fine"))
    exchange_at(server.url, part=odd, other=recorder)
    await soon(lambda: recorder.received.count(b"fine") >= 3)
    assert errors
    assert [each["part"] for each in logs if each["event"] == "peer_not_understood"] == ["part"]


async def test_redis_dies_and_comes_back(server, exchange_at, soon, errors, logs):
    recorders = [MessageRecorder(), MessageRecorder()]
    exchanges = [exchange_at(server.url, part=recorder) for recorder in recorders]
    await soon(lambda: [exchange.peers for exchange in exchanges] == [1, 1])
    server.kill()
    await soon(lambda: len([1 for each in logs if each["event"] == "state_store_failed"]) == 4)
    await soon(lambda: [exchange.peers for exchange in exchanges] == [0, 0])
    server.start()
    await soon(lambda: [exchange.peers for exchange in exchanges] == [1, 1])
    recorders[0].sends(b"again")
    await soon(lambda: b"again" in recorders[1].received)
    assert len([1 for each in logs if each["event"] == "state_store_failed"]) == 4
    assert len([1 for each in logs if each["event"] == "state_store_recovered"]) == 4
    assert set(errors) == {"redis"}


async def test_redis_hangs_and_goes_on(server, exchange_at, soon, logs):
    recorders = [MessageRecorder(), MessageRecorder()]
    exchanges = [exchange_at(server.url, part=recorder) for recorder in recorders]
    await soon(lambda: [exchange.peers for exchange in exchanges] == [1, 1])
    server.hang()
    await soon(lambda: [exchange.peers for exchange in exchanges] == [0, 0])
    server.wake()
    await soon(lambda: [exchange.peers for exchange in exchanges] == [1, 1])
    recorders[0].sends(b"again")
    await soon(lambda: b"again" in recorders[1].received)
