"""The explain worker has a lower priority while it keeps up, and an equal one once work has waited."""

import socket

import pytest
from explained_requests import request
from test_worker_session import FakeWorker

from gateway.explain.worker.explain_messages import WorkerOptions, encode
from gateway.explain.worker.priority import WorkerPriority
from gateway.explain.worker.process import ConnectionClosed, Session


@pytest.fixture
def session(tmp_path):
    file = tmp_path / "autogroup"
    file.write_text("/autogroup-7 nice 0\n")
    return file


def test_the_session_has_a_lower_priority_once_all_work_is_done(session):
    priority = WorkerPriority(session)
    priority.update(is_drained=False, is_pressed=False, now=5.0)
    assert session.read_text() == "/autogroup-7 nice 0\n"
    priority.update(is_drained=True, is_pressed=False, now=6.0)
    assert session.read_text() == "10"


def test_work_that_is_left_for_a_second_gets_an_equal_share(session):
    priority = WorkerPriority(session)
    priority.update(is_drained=True, is_pressed=False, now=6.0)
    priority.update(is_drained=False, is_pressed=False, now=7.0)
    assert session.read_text() == "10"
    priority.update(is_drained=False, is_pressed=False, now=7.1)
    assert session.read_text() == "0"
    priority.update(is_drained=True, is_pressed=False, now=7.2)
    assert session.read_text() == "10"


def test_much_work_gets_an_equal_share_at_once(session):
    priority = WorkerPriority(session)
    priority.update(is_drained=True, is_pressed=False, now=6.0)
    priority.update(is_drained=False, is_pressed=True, now=6.0)
    assert session.read_text() == "0"


def test_a_tokenizer_is_loaded_with_an_equal_share_also_when_all_requests_are_explained(session):
    priority = WorkerPriority(session)
    priority.update(is_drained=True, is_pressed=False, now=6.0)
    priority.update(is_drained=True, is_pressed=True, now=6.0)
    assert session.read_text() == "0"
    priority.update(is_drained=True, is_pressed=False, now=7.0)
    assert session.read_text() == "10"


def test_a_change_that_the_system_refuses_is_tried_again(tmp_path):
    missing = tmp_path / "sessions" / "autogroup"
    priority = WorkerPriority(missing)
    priority.update(is_drained=True, is_pressed=False, now=6.0)
    missing.parent.mkdir()
    priority.update(is_drained=True, is_pressed=False, now=6.1)
    assert missing.read_text() == "10"


class RecordedPriority(WorkerPriority):
    def __init__(self):
        self.updates = []

    def update(self, *, is_drained, is_pressed, now):
        self.updates.append((is_drained, is_pressed))


def test_a_session_tells_after_each_message_how_much_is_left():
    sent = bytearray()
    # An eighth of 640 kB is behind, an eighth of that is pressed: 10 kB.
    encode(WorkerOptions(640_000, 10, 60.0, 1000, 60.0, 1000, None, "USD", {}), sent)
    for number in range(10):
        encode(request("x" * 3000, request_id=str(number)), sent)
    size = len(sent) / 10
    ours, theirs = socket.socketpair()
    priority = RecordedPriority()
    with ours, theirs:
        ours.sendall(sent)
        with pytest.raises(ConnectionClosed):
            Session(theirs, FakeWorker(11), priority=priority).run()
    # Nothing is updated after the last one, which ends the fake worker.
    assert priority.updates == [(False, (9 - number) * size > 10_000) for number in range(9)]


def test_a_session_whose_tokenizer_is_being_loaded_is_pressed():
    worker = FakeWorker(1)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        session = Session(theirs, worker)
        assert not session.is_pressed
        worker.is_loading = True
        assert session.is_pressed
        assert session.is_drained
