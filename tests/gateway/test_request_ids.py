"""The ids that the gateway makes for requests without one."""

import os

import pytest

from gateway.api.routes import request_id_of


def test_ids_are_random_and_never_given_twice():
    made = [request_id_of(b"") for _ in range(2000)]
    assert len(set(made)) == 2000
    assert all(len(each) == 32 and int(each, 16) >= 0 for each in made)


@pytest.mark.parametrize("given", [b"r-1", b"!~", b"a" * 128])
def test_a_valid_id_of_the_client_is_kept(given):
    assert request_id_of(given) == given.decode()


@pytest.mark.parametrize("given", [b"a b", b"a" * 129, b"\xe4", b"a\x00"])
def test_another_one_is_replaced(given):
    assert len(request_id_of(given)) == 32


def test_forked_processes_make_ids_of_their_own():
    request_id_of(b"")  # ids are made in advance
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, request_id_of(b"").encode())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = os.read(reading, 100).decode()
    os.close(reading)
    os.close(writing)
    assert len(theirs) == 32
    assert theirs != request_id_of(b"")
