import pickle

from gateway.core.ids import ReplicaId, Target
from gateway.index.replicas import InflightBlocks

A, B = Target(ReplicaId("a")), Target(ReplicaId("b"))
HASHES = [10, 20, 30, 40]


def reach(fresh, depth=0, limit=4, target=A):
    return fresh.extend(target, HASHES, depth, limit)


def test_blocks_on_their_way_extend_what_is_held_at_their_target_alone():
    fresh = InflightBlocks()
    fresh.add(A, HASHES[1:3])
    assert reach(fresh, depth=0) == 0
    assert reach(fresh, depth=1) == 3
    assert reach(fresh, depth=1, limit=2) == 2
    assert reach(fresh, depth=1, target=B) == 1


def test_blocks_count_until_the_last_request_that_brings_them_is_gone():
    fresh = InflightBlocks()
    fresh.add(A, HASHES)
    fresh.add(A, HASHES[:2])
    fresh.remove(A, HASHES)
    assert reach(fresh) == 2
    fresh.remove(A, HASHES[:2])
    assert reach(fresh) == 0


def test_blocks_of_an_answered_request_linger_for_two_seconds():
    fresh = InflightBlocks()
    fresh.add(A, HASHES)
    fresh.leave(A, HASHES, now=100.0)
    fresh.expire(101.9)
    assert reach(fresh) == 4
    fresh.expire(102.0)
    assert reach(fresh) == 0


def test_requests_end_their_lingering_each_at_its_own_time():
    fresh = InflightBlocks()
    fresh.add(A, HASHES)
    fresh.add(B, HASHES)
    fresh.leave(A, HASHES, now=100.0)
    fresh.leave(B, HASHES, now=101.0)
    fresh.expire(102.5)
    assert (reach(fresh), reach(fresh, target=B)) == (0, 4)
    fresh.expire(103.0)
    assert reach(fresh, target=B) == 0


def test_block_that_an_event_removed_is_gone_for_every_source():
    fresh = InflightBlocks()
    fresh.add(A, HASHES)
    fresh.add(A, HASHES)
    fresh.add(B, HASHES)
    fresh.lost(A, 30)
    assert (reach(fresh), reach(fresh, target=B)) == (2, 4)
    fresh.remove(A, HASHES)
    assert reach(fresh) == 2


def test_cleared_target_has_nothing_fresh_and_late_ends_do_no_harm():
    fresh = InflightBlocks()
    fresh.add(A, HASHES)
    fresh.add(B, HASHES)
    fresh.clear(A)
    assert (reach(fresh), reach(fresh, target=B)) == (0, 4)
    fresh.remove(A, HASHES)
    fresh.lost(A, 10)
    fresh.leave(A, HASHES, now=1.0)
    fresh.expire(10.0)
    assert reach(fresh) == 0


def test_lingering_ends_also_where_no_request_checks_because_all_requests_are_other_gateways():
    fresh = InflightBlocks()
    for second in range(200):
        hashes = [1000 * second + number for number in range(4)]
        fresh.add(A, hashes)
        fresh.leave(A, hashes, now=float(second))
    assert len(pickle.dumps(fresh)) < 1000
    assert fresh.extend(A, [199_000], 0, 1) == 1
