"""The order machine against a simulated engine, transport and replay buffer."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kv_events.order_steps import end_faults, steps, take
from kv_events.order_world import World, stored

from gateway.core.kv_events import AllBlocksCleared, BlockRemoved, EventBatch, FeedState
from gateway.kv_events.order import BatchOrder, Gap

LIVE, REBUILDING, CONNECTING, SILENT = FeedState.LIVE, FeedState.REBUILDING, FeedState.CONNECTING, FeedState.SILENT


def follow(world, order):
    for step in order:
        take(world, step)
        world.check()


_CLOCK_SET_BACK = [
    ("publish", [stored(0)]),
    ("connect", None),
    ("settle", None),
    ("set_clock_back", None),
    ("publish", [stored(0)]),
    ("deliver", 0),
]


@settings(max_examples=2 * settings.default.max_examples)
@given(order=st.lists(steps(), max_size=40), buffer=st.sampled_from([1000, 1000, 3, 1]), probe=st.booleans())
@example(order=_CLOCK_SET_BACK, buffer=1000, probe=False)
@example(order=[*_CLOCK_SET_BACK, ("fail_replay", None)], buffer=1000, probe=True)
@example(
    order=[
        ("publish", [stored(0)]),
        ("connect", None),
        ("settle", None),
        ("probe", None),
        ("serve", 0),
        ("settle", None),
    ],
    buffer=1000,
    probe=False,
)
def test_live_means_equal_to_the_engine_and_is_reached_again_when_faults_end(order, buffer, probe):
    world = World(buffer=buffer)
    follow(world, order)
    end_faults(world, probe=probe)
    world.check()
    assert world.shown == (world.life, len(world.life.batches))
    if len(world.life.batches) <= buffer:
        assert world.state is LIVE
        assert world.applied == world.life.content
    else:
        assert world.state in (LIVE, REBUILDING)
        assert world.applied <= world.life.content


@settings(max_examples=2 * settings.default.max_examples)
@given(order=st.lists(steps(), max_size=40))
def test_engine_without_replay_is_live_only_while_all_is_known(order):
    world = World(replays=False)
    follow(world, order)
    end_faults(world, probe=False)
    world.check()
    assert world.state in (LIVE, REBUILDING)
    world.publish(AllBlocksCleared())
    world.settle()
    assert world.state is LIVE
    assert not world.applied


@settings(max_examples=2 * settings.default.max_examples)
@given(
    order=st.lists(steps(damage=True), max_size=40),
    buffer=st.sampled_from([1000, 3]),
    replays=st.booleans(),
)
def test_batches_that_cannot_be_read_never_leave_a_wrong_content_that_counts_as_live(order, buffer, replays):
    world = World(buffer=buffer, replays=replays)
    follow(world, order)
    end_faults(world, probe=False)
    world.check()
    assert world.state in (LIVE, REBUILDING)


@settings(max_examples=2 * settings.default.max_examples)
@given(order=st.lists(steps(half_open=True), max_size=40), probe=st.booleans())
def test_restart_that_the_connection_did_not_show_is_over_with_the_next_connection(order, probe):
    world = World()
    follow(world, order)
    end_faults(world, probe=probe)
    world.check()
    assert world.state is LIVE
    assert world.applied == world.life.content


@settings(max_examples=2 * settings.default.max_examples)
@given(order=st.lists(steps(faults=False), max_size=40), replays=st.booleans())
def test_without_a_loss_no_gap_is_reported_and_nothing_is_forgotten(order, replays):
    world = World(replays=replays)
    world.connect()
    world.settle()
    follow(world, order)
    world.settle()
    world.publish(stored(1))
    world.settle()
    assert world.gaps == []
    assert world.forgotten == 0
    assert world.state is LIVE
    assert world.applied == world.life.content


def started(**how):
    """A world in which all is well: batches 0 to 4 are known."""
    world = World(**how)
    world.connect()
    world.settle()
    for number in range(5):
        world.publish(stored(number))
    world.settle()
    assert world.state is LIVE
    return world


def test_late_start_fills_from_the_replay():
    world = World()
    for number in range(5):
        world.publish(stored(number))
    world.connect()
    assert world.state is CONNECTING
    world.settle()
    assert world.state is LIVE
    assert world.applied == world.life.content
    assert world.gaps == []


def test_late_start_with_a_buffer_that_lost_the_beginning_is_rebuilding():
    world = World(buffer=3)
    for number in range(5):
        world.publish(stored(number))
    world.connect()
    world.settle()
    assert world.state is REBUILDING
    assert sorted(world.applied) == [2, 3, 4]


def test_late_start_without_a_replay_is_rebuilding_until_the_engine_forgets_all():
    world = World(replays=False)
    world.publish(stored(1))
    world.connect()
    world.publish(stored(2))
    world.settle()
    assert world.state is REBUILDING
    world.publish(AllBlocksCleared(), stored(3))
    world.settle()
    assert world.state is LIVE
    assert world.applied == world.life.content


def test_missing_batch_is_asked_for_and_reported_once():
    world = started()
    world.publish(stored(5), lose=True)
    world.publish(BlockRemoved([0]))
    world.deliver()
    assert world.state is CONNECTING
    assert world.gaps == [Gap(5, 6)]
    world.settle()
    assert world.state is LIVE
    assert world.applied == world.life.content
    assert len(world.gaps) == 1


@pytest.mark.parametrize("holes", [1, 2])
def test_hole_in_a_replay_is_asked_for_again(holes):
    world = started()
    world.publish(stored(5), lose=True)
    world.publish(stored(6))
    world.deliver()
    for _ in range(holes):
        world.serve(hole=1)
        while world.request is not None and world.request.answers is not None:
            world.answer()
        assert world.state is CONNECTING
    world.settle()
    assert world.state is LIVE
    assert world.applied == world.life.content


def test_hole_that_never_closes_leaves_what_comes_after_it():
    world = started()
    world.publish(stored(5), lose=True)
    world.publish(stored(6))
    world.deliver()
    asked = 0
    while world.request is not None:
        asked += world.request.answers is None
        world.serve(hole=1)
        world.answer()
    assert asked == 3
    assert world.state is REBUILDING
    assert sorted(world.applied) == [6]


@pytest.mark.parametrize("replays", [True, False])
def test_missing_batch_that_cannot_be_had_is_given_up(replays):
    world = started(replays=replays)
    world.publish(stored(5), lose=True)
    world.publish(stored(6))
    world.deliver()
    assert world.gaps == [Gap(5, 6)]
    world.fail_replay()
    world.tick()
    assert world.state is REBUILDING
    assert sorted(world.applied) == [6]
    world.publish(stored(7))
    world.settle()
    assert world.state is REBUILDING
    assert sorted(world.applied) == [6, 7]


def test_batch_that_is_only_late_is_waited_for_when_there_is_no_replay():
    world = started(replays=False)
    for number in (5, 6):
        world.publish(stored(number))
    world.deliver(at=1)
    assert world.state is CONNECTING
    world.tick(0.1)
    world.deliver()
    assert world.state is LIVE
    assert world.applied == world.life.content


@pytest.mark.parametrize("replays", [True, False])
def test_copies_of_old_batches_change_nothing(replays):
    world = started(replays=replays)
    forgotten = world.forgotten
    for number in range(5):
        world.queue.append((world.life, number))
    world.settle()
    assert (world.state, world.forgotten, world.gaps) == (LIVE, forgotten, [])
    assert world.applied == world.life.content


@pytest.mark.parametrize("clock_back", [False, True])
@pytest.mark.parametrize("batches", [0, 1, 4, 5, 6, 9])
def test_restarted_engine_begins_anew_whatever_its_number_of_batches(batches, clock_back):
    world = started()
    world.restart(clock_back=clock_back)
    assert world.state is CONNECTING
    for number in range(batches):
        world.publish(stored(10 + number))
    world.connect()
    world.settle()
    assert world.state is LIVE
    assert world.applied == world.life.content
    assert sum(world.applied.values()) == batches


@pytest.mark.parametrize("batches", [1, 2, 3])
@pytest.mark.parametrize("known", [1, 2, 3])
def test_restarted_engine_is_replayed_from_its_first_batch(known, batches):
    world = World()
    world.connect()
    world.settle()
    for number in range(known):
        world.publish(stored(number))
    world.settle()
    world.restart()
    for number in range(batches):
        world.publish(stored(10 + number))
    world.connect()
    world.settle()
    assert world.state is LIVE
    assert sorted(world.applied) == [10 + number for number in range(batches)]


def test_restart_without_a_replay_to_ask_is_seen_by_the_sequence():
    world = started(replays=False)
    world.restart()
    world.connect()
    assert world.state is REBUILDING
    world.publish(stored(7))
    world.settle()
    assert world.state is LIVE
    assert world.applied == world.life.content


def test_batches_missed_while_disconnected_are_fetched_without_forgetting_the_rest():
    world = started()
    forgotten = world.forgotten
    world.disconnect()
    world.publish(stored(5))
    world.publish(BlockRemoved([0]))
    world.connect()
    world.settle()
    assert (world.state, world.forgotten) == (LIVE, forgotten)
    assert world.applied == world.life.content


def test_probe_finds_what_was_lost_at_the_end():
    world = started()
    world.publish(stored(5), lose=True)
    assert world.state is LIVE
    world.probe()
    world.settle()
    assert world.state is LIVE
    assert world.applied == world.life.content


def test_probe_that_is_not_answered_leaves_all_as_it_is():
    world = started()
    forgotten = world.forgotten
    world.probe()
    world.fail_replay()
    assert (world.state, world.forgotten) == (LIVE, forgotten)


def test_probe_that_finds_another_process_without_its_past_is_asked_again():
    world = started()
    world.restart(silently=True)
    for number in range(7):
        world.publish(stored(10 + number))
    world.probe()
    world.serve()
    world.answer()
    assert world.state is CONNECTING
    world.fail_replay()
    assert world.state is REBUILDING
    world.retry()
    world.settle()
    assert world.state is LIVE
    assert world.applied == world.life.content


def test_gap_before_a_batch_too_large_to_wait_is_given_up_without_a_replay():
    order = BatchOrder(replays=True)
    actions = [*order.connected(), *order.replay_ended()]
    actions += order.live(0, EventBatch(1.0, [stored(1)]), 0.0)
    assert order.state is LIVE
    actions += order.live(2, EventBatch(3.0, [stored(3)]), 0.0, size=2**30)
    assert order.state is CONNECTING
    actions += order.replay_failed()
    assert order.state is REBUILDING


def test_engine_that_is_asked_in_vain_is_asked_again():
    world = World()
    world.publish(stored(1))
    world.connect()
    world.fail_replay()
    assert world.state is REBUILDING
    world.retry()
    world.settle()
    assert world.state is LIVE
    assert world.applied == world.life.content


def test_replay_is_offered_again_after_an_empty_answer():
    world = started()
    world.restart(silently=True)
    world.probe()
    world.settle()
    world.disconnect()
    world.publish(stored(9))
    world.connect()
    world.settle()
    assert world.state is LIVE
    assert world.applied == world.life.content


def test_clear_before_a_hole_says_nothing_about_what_comes_behind_it():
    world = started(replays=False)
    world.publish(stored(5), lose=True)
    world.publish(AllBlocksCleared())
    world.publish(stored(6), lose=True)
    world.publish(stored(7))
    world.settle()
    world.tick()
    assert world.state is REBUILDING
    assert sorted(world.applied) == [7]


def test_silent_feed_is_live_with_the_next_batch():
    world = started()
    world.silent(mute=True)
    assert world.state is SILENT
    world.probe()
    world.settle()
    assert world.state is SILENT
    world.publish(stored(5))
    world.settle()
    assert world.state is LIVE
    assert world.applied == world.life.content


def test_silence_while_a_replay_is_read_is_over_with_the_next_probe():
    world = World()
    world.publish(stored(1))
    world.connect()
    world.publish(stored(2))
    world.silent(mute=True)
    world.settle()
    world.probe()
    world.settle()
    assert world.state is LIVE
    assert world.applied == world.life.content


@pytest.mark.parametrize("replays", [True, False])
def test_clock_that_is_set_back_while_the_engine_runs_changes_nothing(replays):
    world = started(replays=replays)
    forgotten = world.forgotten
    world.set_clock_back()
    for number in range(3):
        world.publish(stored(10 + number))
        world.settle()
        assert world.state is LIVE
        assert world.applied == world.life.content
    world.duplicate()
    world.settle()
    assert (world.forgotten, world.gaps) == (forgotten, [])


def test_feed_without_connection_is_live_again_when_it_is_back():
    world = started()
    world.disconnect()
    world.silent()
    assert world.state is SILENT
    world.connect()
    world.settle()
    assert world.state is LIVE


def test_content_that_accounts_for_all_is_live():
    world = World(buffer=2)
    for number in range(5):
        world.publish(stored(number))
    world.connect()
    world.settle()
    assert world.state is REBUILDING
    assert [type(action).__name__ for action in world.order.completed()] == ["SetState"]
    assert world.state is LIVE
