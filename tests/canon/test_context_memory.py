"""What is remembered of conversations: bounded, and not for ever."""

from gateway.canon.context_memory import ContextMemory


def test_a_block_is_found_again_until_its_time_is_over():
    memory = ContextMemory(10_000, ttl_seconds=60)
    memory.put(b"k", "block", now=0)
    assert memory.get(b"k", now=60) == "block"
    assert memory.get(b"k", now=121) is None
    assert memory.nbytes == 0


def test_using_a_block_keeps_it():
    memory = ContextMemory(10_000, ttl_seconds=60)
    memory.put(b"k", "block", now=0)
    for turn in range(1, 10):
        assert memory.get(b"k", now=50.0 * turn) == "block"


def test_those_not_used_for_longest_are_replaced():
    memory = ContextMemory(1_500, ttl_seconds=60)
    for number in range(100):
        memory.get(b"0", now=1)
        memory.put(str(number).encode(), "x" * 50, now=1)
        assert memory.nbytes <= 1_500
    assert memory.get(b"0", now=1) == "x" * 50
    assert memory.get(b"1", now=1) is None
    assert memory.get(b"99", now=1) == "x" * 50


def test_another_block_takes_the_place_of_the_one_before():
    memory = ContextMemory(10_000, ttl_seconds=60)
    memory.put(b"k", "one", now=0)
    before = memory.nbytes
    memory.put(b"k", "two", now=0)
    assert (memory.get(b"k", now=0), len(memory), memory.nbytes) == ("two", 1, before)


def test_a_block_larger_than_the_memory_limit_is_not_kept():
    memory = ContextMemory(1_000, ttl_seconds=60)
    memory.put(b"k", "x" * 10_000, now=0)
    assert (memory.get(b"k", now=0), memory.nbytes) == (None, 0)


def test_clearing_forgets_all():
    memory = ContextMemory(10_000, ttl_seconds=60)
    memory.put(b"k", "block", now=0)
    memory.clear()
    assert (memory.get(b"k", now=0), memory.nbytes) == (None, 0)
