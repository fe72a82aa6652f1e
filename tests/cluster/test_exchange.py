"""What gateways tell each other through a channel, and what becomes of it when Redis does not do its part."""

from ears import Ear
from pydantic import SecretStr


async def test_what_one_tells_the_others_hear_and_it_does_not_hear_itself(server, exchange_at, soon, errors):
    ears = [Ear(), Ear(), Ear()]
    exchanges = [exchange_at(server.url, part=ear) for ear in ears]
    await soon(lambda: [exchange.peers for exchange in exchanges] == [2, 2, 2])
    ears[0].says(b"one")
    await soon(lambda: all(b"one" in ear.heard_all for ear in ears[1:]))
    assert b"one" not in ears[0].heard_all
    assert errors == []


async def test_one_that_begins_learns_all_within_a_second(server, exchange_at, soon):
    first, second = Ear(always=b"all there is"), Ear()
    exchange_at(server.url, part=first)
    later = exchange_at(server.url, part=second)
    await soon(lambda: b"all there is" in second.heard_all)
    await soon(lambda: later.peers == 1)


async def test_one_that_stops_is_gone_at_once_for_the_others(server, exchange_at, soon):
    ears = [Ear(), Ear()]
    exchanges = [exchange_at(server.url, part=ear) for ear in ears]
    await soon(lambda: [exchange.peers for exchange in exchanges] == [1, 1])
    await exchanges[0].stop()
    await soon(lambda: ears[1].is_alone)
    assert exchanges[1].peers == 0


async def test_one_that_falls_silent_is_forgotten(server, exchange_at, soon):
    ears = [Ear(), Ear()]
    exchanges = [exchange_at(server.url, part=ear) for ear in ears]
    await soon(lambda: [exchange.peers for exchange in exchanges] == [1, 1])
    await exchanges[0]._tasks.cancel()  # as a process that is killed
    await soon(lambda: ears[1].is_alone)
    assert ears[1].missed_of
    assert exchanges[1].peers == 0


async def test_what_is_lost_is_noticed(server, exchange_at, soon):
    ears = [Ear(), Ear()]
    exchanges = [exchange_at(server.url, part=ear) for ear in ears]
    await soon(lambda: [exchange.peers for exchange in exchanges] == [1, 1])
    before = len(ears[1].missed_of)
    exchanges[0]._number += 1
    await soon(lambda: len(ears[1].missed_of) > before)
    assert exchanges[1].peers == 1


async def test_a_part_that_fails_to_say_anything_keeps_neither_the_others_nor_the_gateway_from_being_known(
    server, exchange_at, soon, errors
):
    broken, ear = Ear(), Ear()
    broken.changes = lambda now, *, everything: [].pop()
    first = exchange_at(server.url, broken=broken, part=Ear(always=b"all there is"))
    second = exchange_at(server.url, part=ear)
    await soon(lambda: b"all there is" in ear.heard_all)
    await soon(lambda: (first.peers, second.peers) == (1, 1))
    assert set(errors) == {"redis"}


async def test_another_secret_is_another_deployment(server, exchange_at, soon, errors):
    ears = [Ear(always=b"a"), Ear(always=b"b")]
    exchange_at(server.url, part=ears[0])
    other = exchange_at(server.url, part=ears[1], secret=SecretStr("of somebody else entirely"))
    third = exchange_at(server.url, part=Ear())
    await soon(lambda: third.peers == 1)
    assert other.peers == 0
    assert ears[0].heard_all == ears[1].heard_all == []
    assert errors == []


async def test_what_somebody_else_says_is_passed_over(server, exchange_at, soon, errors):
    ears = [Ear(), Ear()]
    exchanges = [exchange_at(server.url, part=ear) for ear in ears]
    await soon(lambda: [exchange.peers for exchange in exchanges] == [1, 1])
    with server.client() as client:
        client.publish(exchanges[0]._channel, b"\x00" * 50)
        client.publish(exchanges[0]._channel, b"")
    await soon(lambda: len(errors) == 4)
    ears[0].says(b"and on")
    await soon(lambda: b"and on" in ears[1].heard_all)


async def test_a_part_that_cannot_be_understood_leaves_the_others(server, exchange_at, soon, errors, logs):
    odd, ear = Ear(raises=True), Ear()
    exchange_at(server.url, part=Ear(always=b"odd"), other=Ear(always=b"fine"))
    exchange_at(server.url, part=odd, other=ear)
    await soon(lambda: ear.heard_all.count(b"fine") >= 3)
    assert errors
    assert [each["part"] for each in logs if each["event"] == "peer_not_understood"] == ["part"]


async def test_redis_dies_and_comes_back(server, exchange_at, soon, errors, logs):
    ears = [Ear(), Ear()]
    exchanges = [exchange_at(server.url, part=ear) for ear in ears]
    await soon(lambda: [exchange.peers for exchange in exchanges] == [1, 1])
    server.kill()
    await soon(lambda: len([1 for each in logs if each["event"] == "state_store_failed"]) == 4)
    await soon(lambda: [exchange.peers for exchange in exchanges] == [0, 0])
    server.start()
    await soon(lambda: [exchange.peers for exchange in exchanges] == [1, 1])
    ears[0].says(b"again")
    await soon(lambda: b"again" in ears[1].heard_all)
    assert len([1 for each in logs if each["event"] == "state_store_failed"]) == 4
    assert len([1 for each in logs if each["event"] == "state_store_recovered"]) == 4
    assert set(errors) == {"redis"}


async def test_redis_hangs_and_goes_on(server, exchange_at, soon, logs):
    ears = [Ear(), Ear()]
    exchanges = [exchange_at(server.url, part=ear) for ear in ears]
    await soon(lambda: [exchange.peers for exchange in exchanges] == [1, 1])
    server.hang()
    await soon(lambda: [exchange.peers for exchange in exchanges] == [0, 0])
    server.wake()
    await soon(lambda: [exchange.peers for exchange in exchanges] == [1, 1])
    ears[0].says(b"again")
    await soon(lambda: b"again" in ears[1].heard_all)
