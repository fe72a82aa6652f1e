"""Silence: which replicas answer nothing, although others do."""

import pytest
from fleets import Flight

from gateway.fleet.silence import LOOK_SECONDS, Silence

SENT = 100.0


class Requests:
    """Replicas with requests in flight, looked at every half second."""

    def __init__(self, *names):
        self.silences = {name: Silence() for name in names}
        self.flights = {name: [] for name in names}
        self.now = SENT
        for name in names:
            self.answered(name, self.send(name), 0.5)

    def send(self, name, count=1, expected=0.5):
        flights = []
        for _ in range(count):
            flight = Flight(self.now)
            flight.expected_seconds = expected
            flights.append(flight)
        self.flights[name] += flights
        return flights[-1]

    def answered(self, name, flight, after=0.0):
        self.now += after
        flight.answer(self.now)
        self.left(name, flight)

    def left(self, name, flight):
        self.flights[name].remove(flight)
        self.silences[name].ended(flight, self.now)

    def wait(self, seconds, elapsed=LOOK_SECONDS):
        for _ in range(round(seconds / LOOK_SECONDS)):
            self.now += LOOK_SECONDS
            for name, silence in self.silences.items():
                silence.look(self.flights[name], self.now, elapsed)

    def stuck(self, name):
        silence = self.silences[name]
        pace = silence.peers_pace([each for each in self.silences.values() if each is not silence])
        return pace is not None and silence.is_too_long(pace)


def test_one_that_answers_nothing_while_a_peer_does():
    of = Requests("a", "b")
    of.send("a", 3)
    of.answered("b", of.send("b"), 0.4)
    of.wait(2)
    assert not of.stuck("a")
    of.wait(2)
    assert of.stuck("a")


def test_without_a_peer_that_answered_meanwhile_it_is_not_stuck():
    of = Requests("a", "b")
    of.send("a", 3)
    of.wait(60)
    assert of.silences["a"].is_too_long(1.0)
    assert not of.stuck("a")


def test_all_slow_ten_times():
    of = Requests("a", "b")
    of.send("a", 3)
    of.wait(0.5)
    slow = of.send("b", 3)
    of.wait(4.5)
    of.answered("b", slow)
    of.wait(15)
    assert not of.stuck("a")


def test_a_peer_that_is_silent_as_well_proves_nothing():
    of = Requests("a", "b")
    of.send("a", 3)
    fast = of.send("b", 3)
    of.now += 0.1
    fast = of.send("b", 3)
    of.answered("b", fast, 0.1)
    of.wait(6)
    assert not of.stuck("a")


def test_one_late_request_has_to_wait_longer():
    of = Requests("a", "b")
    of.send("a")
    of.answered("b", of.send("b"), 0.4)
    of.wait(5)
    assert not of.stuck("a")
    of.wait(5)
    assert of.stuck("a")


def test_clients_that_leave_without_an_answer_are_evidence():
    of = Requests("a", "b")
    for _ in range(4):
        flight = of.send("a")
        of.wait(1.5)
        of.left("a", flight)
        of.answered("b", of.send("b"))
    of.wait(2)
    assert of.stuck("a")


def test_clients_that_leave_early_are_none():
    of = Requests("a", "b")
    for _ in range(100):
        flight = of.send("a")
        of.now += 0.3
        of.left("a", flight)
        of.answered("b", of.send("b"))
        of.wait(0.5)
    assert not of.stuck("a")
    assert not of.silences["a"].seconds


@pytest.mark.parametrize("kind", ["first content", "a stream that goes on", "the cache fills"])
def test_any_work_ends_it(kind):
    of = Requests("a", "b")
    stream = of.send("a")
    stream.answer(of.now + 0.1)
    of.wait(0.5)
    of.send("a", 3)
    of.answered("b", of.send("b"), 0.1)
    for _ in range(20):
        of.wait(1.5)
        if kind == "first content":
            of.answered("a", of.send("a"))
        elif kind == "a stream that goes on":
            stream.answer(of.now)
        else:
            of.silences["a"].progressed(of.now)
        of.answered("b", of.send("b"))
        assert not of.stuck("a")


def test_a_long_prompt_takes_its_time_and_so_do_those_behind_it():
    of = Requests("a", "b")
    of.send("a", expected=20.0)
    of.now += 0.1
    of.send("a", 5)
    for _ in range(40):
        of.answered("b", of.send("b"))
        of.wait(1)
        assert not of.stuck("a")


def test_before_anything_is_learned_there_is_no_silence():
    of = Requests("a", "b")
    of.send("a", 5, expected=float("inf"))
    of.answered("b", of.send("b"), 0.1)
    of.wait(60)
    assert not of.stuck("a")


def test_time_in_which_the_gateway_stood_still_does_not_count():
    of = Requests("a", "b")
    of.send("a", 3)
    of.answered("b", of.send("b"), 0.1)
    of.now += 3600
    of.wait(1)
    assert not of.stuck("a")


def test_a_few_that_left_are_forgotten():
    of = Requests("a", "b")
    flight = of.send("a")
    of.wait(3)
    of.left("a", flight)
    before = of.silences["a"].seconds
    of.wait(10)
    assert of.silences["a"].seconds < before / 100
