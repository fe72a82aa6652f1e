"""In which order the process that explains does what it is sent."""

import socket

import pytest
from explained_requests import request

from gateway.core.explanation import RequestRecord
from gateway.explain.worker.explain_messages import Question, WorkerOptions, encode
from gateway.explain.worker.process import ConnectionClosed, Session


class FakeWorker:
    """Notes what it is to do, and goes home after so many messages."""

    def __init__(self, messages):
        self.messages = messages
        self.handled = []
        self.behind = []
        self.is_behind = False
        self.is_loading = False

    def handle(self, message):
        if isinstance(message, RequestRecord):
            self.behind.append(self.is_behind)
        self.handled.append("request" if isinstance(message, RequestRecord) else "question")
        if len(self.handled) == self.messages:
            raise ConnectionClosed
        return []

    def counted(self):
        return None


def handled_before_a_question(requests, seconds=0.0):
    """Of requests that all came in front of it, and take so much CPU time each."""
    sent = bytearray()
    for number in range(requests):
        encode(request(None, request_id=str(number)), sent)
    encode(Question(1, "summary", {}), sent)
    ours, theirs = socket.socketpair()
    worker = FakeWorker(requests + 1)
    with ours, theirs:
        ours.sendall(sent)
        with pytest.raises(ConnectionClosed):
            Session(theirs, worker, worked=lambda: seconds * len(worker.handled)).run()
    assert len(worker.handled) == requests + 1
    return worker.handled.index("question")


def test_a_question_waits_for_a_few_requests():
    assert handled_before_a_question(100) == 100


def test_a_question_does_not_wait_for_many():
    assert handled_before_a_question(101) == 0


def test_a_question_does_not_wait_for_long():
    assert handled_before_a_question(100, 0.0101) == 5


def test_only_while_much_waits_is_the_work_behind():
    sent = bytearray()
    encode(WorkerOptions(80_000, 10, 60.0, 1000, 60.0, 1000, None, "USD", {}), sent)
    for number in range(10):
        encode(request("x" * 3000, request_id=str(number)), sent)
    size = len(sent) / 10
    ours, theirs = socket.socketpair()
    worker = FakeWorker(11)
    with ours, theirs:
        ours.sendall(sent)
        with pytest.raises(ConnectionClosed):
            Session(theirs, worker).run()
    # Behind with more than an eighth of what may wait: 10 kB behind the one that is at hand.
    assert worker.behind == [(9 - number) * size > 10_000 for number in range(10)]
