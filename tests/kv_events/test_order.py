"""The order machine against a simulated engine, transport and replay buffer."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kv_events.order_simulation import EventSimulation, stored
from kv_events.order_steps import end_faults, steps, take

from gateway.core.kv_events import AllBlocksCleared, BlockRemoved, EventBatch, FeedState
from gateway.kv_events.order import BatchOrder
from gateway.kv_events.order_actions import AskReplay, Gap

LIVE, REBUILDING, CONNECTING, SILENT = FeedState.LIVE, FeedState.REBUILDING, FeedState.CONNECTING, FeedState.SILENT


def follow(simulation, order):
    for step in order:
        take(simulation, step)
        simulation.check()


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
    simulation = EventSimulation(buffer=buffer)
    follow(simulation, order)
    end_faults(simulation, probe=probe)
    simulation.check()
    assert simulation.shown == (simulation.process, len(simulation.process.batches))
    if len(simulation.process.batches) <= buffer:
        assert simulation.state is LIVE
        assert simulation.applied == simulation.process.content
    else:
        assert simulation.state in (LIVE, REBUILDING)
        assert simulation.applied <= simulation.process.content


@settings(max_examples=2 * settings.default.max_examples)
@given(order=st.lists(steps(), max_size=40))
def test_engine_without_replay_is_live_only_while_all_is_known(order):
    simulation = EventSimulation(replays=False)
    follow(simulation, order)
    end_faults(simulation, probe=False)
    simulation.check()
    assert simulation.state in (LIVE, REBUILDING)
    simulation.publish(AllBlocksCleared())
    simulation.settle()
    assert simulation.state is LIVE
    assert not simulation.applied


@settings(max_examples=2 * settings.default.max_examples)
@given(
    order=st.lists(steps(damage=True), max_size=40),
    buffer=st.sampled_from([1000, 3]),
    replays=st.booleans(),
)
def test_batches_that_cannot_be_read_never_leave_a_wrong_content_that_counts_as_live(order, buffer, replays):
    simulation = EventSimulation(buffer=buffer, replays=replays)
    follow(simulation, order)
    end_faults(simulation, probe=False)
    simulation.check()
    assert simulation.state in (LIVE, REBUILDING)


@settings(max_examples=2 * settings.default.max_examples)
@given(order=st.lists(steps(half_open=True), max_size=40), probe=st.booleans())
def test_restart_that_the_connection_did_not_show_is_over_with_the_next_connection(order, probe):
    simulation = EventSimulation()
    follow(simulation, order)
    end_faults(simulation, probe=probe)
    simulation.check()
    assert simulation.state is LIVE
    assert simulation.applied == simulation.process.content


@settings(max_examples=2 * settings.default.max_examples)
@given(order=st.lists(steps(faults=False), max_size=40), replays=st.booleans())
def test_without_a_loss_no_gap_is_reported_and_nothing_is_forgotten(order, replays):
    simulation = EventSimulation(replays=replays)
    simulation.connect()
    simulation.settle()
    follow(simulation, order)
    simulation.settle()
    simulation.publish(stored(1))
    simulation.settle()
    assert simulation.gaps == []
    assert simulation.forgotten == 0
    assert simulation.state is LIVE
    assert simulation.applied == simulation.process.content


def started(**how):
    """A simulation without failures: batches 0 to 4 are known."""
    simulation = EventSimulation(**how)
    simulation.connect()
    simulation.settle()
    for number in range(5):
        simulation.publish(stored(number))
    simulation.settle()
    assert simulation.state is LIVE
    return simulation


def requests_until_given_up(simulation):
    """How many replays are requested if the second batch of each answer is lost."""
    asked = 0
    while simulation.request is not None:
        asked += simulation.request.answers is None
        simulation.serve(hole=1)
        simulation.answer()
    return asked


def test_late_start_fills_from_the_replay():
    simulation = EventSimulation()
    for number in range(5):
        simulation.publish(stored(number))
    simulation.connect()
    assert simulation.state is CONNECTING
    simulation.settle()
    assert simulation.state is LIVE
    assert simulation.applied == simulation.process.content
    assert simulation.gaps == []


def test_late_start_with_a_buffer_that_lost_the_beginning_is_rebuilding():
    simulation = EventSimulation(buffer=3)
    for number in range(5):
        simulation.publish(stored(number))
    simulation.connect()
    simulation.settle()
    assert simulation.state is REBUILDING
    assert sorted(simulation.applied) == [2, 3, 4]


def test_late_start_without_a_replay_is_rebuilding_until_the_engine_forgets_all():
    simulation = EventSimulation(replays=False)
    simulation.publish(stored(1))
    simulation.connect()
    simulation.publish(stored(2))
    simulation.settle()
    assert simulation.state is REBUILDING
    simulation.publish(AllBlocksCleared(), stored(3))
    simulation.settle()
    assert simulation.state is LIVE
    assert simulation.applied == simulation.process.content


def test_missing_batch_is_asked_for_and_reported_once():
    simulation = started()
    simulation.publish(stored(5), lose=True)
    simulation.publish(BlockRemoved([0]))
    simulation.deliver()
    assert simulation.state is CONNECTING
    assert simulation.gaps == [Gap(5, 6)]
    simulation.settle()
    assert simulation.state is LIVE
    assert simulation.applied == simulation.process.content
    assert len(simulation.gaps) == 1


@pytest.mark.parametrize("holes", [1, 2])
def test_hole_in_a_replay_is_asked_for_again(holes):
    simulation = started()
    simulation.publish(stored(5), lose=True)
    simulation.publish(stored(6))
    simulation.deliver()
    for _ in range(holes):
        simulation.serve(hole=1)
        while simulation.request is not None and simulation.request.answers is not None:
            simulation.answer()
        assert simulation.state is CONNECTING
    simulation.settle()
    assert simulation.state is LIVE
    assert simulation.applied == simulation.process.content


def test_hole_that_never_closes_leaves_what_comes_after_it():
    simulation = started()
    simulation.publish(stored(5), lose=True)
    simulation.publish(stored(6))
    simulation.deliver()
    assert requests_until_given_up(simulation) == 3
    assert simulation.state is REBUILDING
    assert sorted(simulation.applied) == [6]


def test_batch_of_the_right_number_that_is_older_is_asked_for_three_times():
    simulation = started()
    simulation.publish(stored(5), lose=True)
    simulation.publish(stored(6))
    simulation.deliver()
    simulation.serve(hole=1)
    simulation.settle()
    assert simulation.state is LIVE
    simulation.set_clock_back()
    simulation.publish(stored(7))
    simulation.publish(stored(8))
    simulation.deliver()
    assert requests_until_given_up(simulation) == 3
    assert simulation.state is REBUILDING
    assert sorted(simulation.applied) == [8]


def test_empty_answer_that_has_lost_the_only_batch_is_asked_for_again():
    simulation = EventSimulation()
    simulation.publish(stored(1))
    simulation.connect()
    simulation.settle()
    simulation.probe()
    simulation.serve(hole=0)
    simulation.answer()
    assert simulation.state is CONNECTING
    simulation.settle()
    assert simulation.state is LIVE
    assert simulation.applied == simulation.process.content


@pytest.mark.parametrize(("known", "asked"), [(1, []), (2, [0])])
def test_third_answer_that_is_empty_is_the_last_unless_it_began_behind_the_first_batch(known, asked):
    """From the first batch on there is no more to ask for; an engine that was restarted may have earlier ones."""
    order = BatchOrder(replays=True)
    batches = [EventBatch(float(number), [stored(number)]) for number in range(known + 2)]
    list(order.connected())
    list(order.replay_ended())
    for number in (*range(known), known + 1):
        list(order.live(number, batches[number], 0.0))
    for _ in range(2):
        list(order.replayed(known - 1, batches[known - 1]))
        list(order.replayed(known + 1, batches[known + 1]))
        assert [action.start for action in order.replay_ended()] == [known - 1]
    actions = list(order.replay_ended())
    assert [action.start for action in actions if isinstance(action, AskReplay)] == asked
    assert order.asking == bool(asked)
    assert order.state is (CONNECTING if asked else REBUILDING)


@pytest.mark.parametrize("replays", [True, False])
def test_missing_batch_that_cannot_be_had_is_given_up(replays):
    simulation = started(replays=replays)
    simulation.publish(stored(5), lose=True)
    simulation.publish(stored(6))
    simulation.deliver()
    assert simulation.gaps == [Gap(5, 6)]
    simulation.fail_replay()
    simulation.tick()
    assert simulation.state is REBUILDING
    assert sorted(simulation.applied) == [6]
    simulation.publish(stored(7))
    simulation.settle()
    assert simulation.state is REBUILDING
    assert sorted(simulation.applied) == [6, 7]


def test_batch_that_is_only_late_is_waited_for_when_there_is_no_replay():
    simulation = started(replays=False)
    for number in (5, 6):
        simulation.publish(stored(number))
    simulation.deliver(at=1)
    assert simulation.state is CONNECTING
    simulation.tick(0.1)
    simulation.deliver()
    assert simulation.state is LIVE
    assert simulation.applied == simulation.process.content


@pytest.mark.parametrize("replays", [True, False])
def test_copies_of_old_batches_change_nothing(replays):
    simulation = started(replays=replays)
    forgotten = simulation.forgotten
    for number in range(5):
        simulation.queue.append((simulation.process, number))
    simulation.settle()
    assert (simulation.state, simulation.forgotten, simulation.gaps) == (LIVE, forgotten, [])
    assert simulation.applied == simulation.process.content


@pytest.mark.parametrize("clock_back", [False, True])
@pytest.mark.parametrize("batches", [0, 1, 4, 5, 6, 9])
def test_restarted_engine_begins_anew_with_any_number_of_batches(batches, clock_back):
    simulation = started()
    simulation.restart(clock_back=clock_back)
    assert simulation.state is CONNECTING
    for number in range(batches):
        simulation.publish(stored(10 + number))
    simulation.connect()
    simulation.settle()
    assert simulation.state is LIVE
    assert simulation.applied == simulation.process.content
    assert sum(simulation.applied.values()) == batches


@pytest.mark.parametrize("batches", [1, 2, 3])
@pytest.mark.parametrize("known", [1, 2, 3])
def test_restarted_engine_is_replayed_from_its_first_batch(known, batches):
    simulation = EventSimulation()
    simulation.connect()
    simulation.settle()
    for number in range(known):
        simulation.publish(stored(number))
    simulation.settle()
    simulation.restart()
    for number in range(batches):
        simulation.publish(stored(10 + number))
    simulation.connect()
    simulation.settle()
    assert simulation.state is LIVE
    assert sorted(simulation.applied) == [10 + number for number in range(batches)]


def test_restart_without_a_replay_to_ask_is_seen_by_the_sequence():
    simulation = started(replays=False)
    simulation.restart()
    simulation.connect()
    assert simulation.state is REBUILDING
    simulation.publish(stored(7))
    simulation.settle()
    assert simulation.state is LIVE
    assert simulation.applied == simulation.process.content


def test_batches_missed_while_disconnected_are_fetched_without_forgetting_the_rest():
    simulation = started()
    forgotten = simulation.forgotten
    simulation.disconnect()
    simulation.publish(stored(5))
    simulation.publish(BlockRemoved([0]))
    simulation.connect()
    simulation.settle()
    assert (simulation.state, simulation.forgotten) == (LIVE, forgotten)
    assert simulation.applied == simulation.process.content


def test_probe_finds_what_was_lost_at_the_end():
    simulation = started()
    simulation.publish(stored(5), lose=True)
    assert simulation.state is LIVE
    simulation.probe()
    simulation.settle()
    assert simulation.state is LIVE
    assert simulation.applied == simulation.process.content


def test_probe_that_is_not_answered_leaves_all_as_it_is():
    simulation = started()
    forgotten = simulation.forgotten
    simulation.probe()
    simulation.fail_replay()
    assert (simulation.state, simulation.forgotten) == (LIVE, forgotten)


def test_probe_that_finds_another_process_without_its_past_is_asked_again():
    simulation = started()
    simulation.restart(silently=True)
    for number in range(7):
        simulation.publish(stored(10 + number))
    simulation.probe()
    simulation.serve()
    simulation.answer()
    assert simulation.state is CONNECTING
    simulation.fail_replay()
    assert simulation.state is REBUILDING
    simulation.retry()
    simulation.settle()
    assert simulation.state is LIVE
    assert simulation.applied == simulation.process.content


def test_gap_before_a_batch_too_large_to_wait_is_given_up_without_a_replay():
    order = BatchOrder(replays=True)
    actions = [*order.connected(), *order.replay_ended()]
    actions += order.live(0, EventBatch(1.0, [stored(1)]), 0.0)
    assert order.state is LIVE
    actions += order.live(2, EventBatch(3.0, [stored(3)]), 0.0, size=2**30)
    assert order.state is CONNECTING
    actions += order.replay_failed()
    assert order.state is REBUILDING


def test_copies_of_a_waiting_batch_take_the_room_of_one():
    order = BatchOrder(replays=True)
    list(order.connected())
    for sequence in (1, 1, 1, 2):
        list(order.live(sequence, EventBatch(float(sequence), [stored(sequence)]), 0.0, size=30 * 2**20))
    list(order.replayed(0, EventBatch(0.0, [stored(0)])))
    list(order.replay_ended())
    assert (order.state, order.next) == (LIVE, 3)


def test_engine_that_is_asked_in_vain_is_asked_again():
    simulation = EventSimulation()
    simulation.publish(stored(1))
    simulation.connect()
    simulation.fail_replay()
    assert simulation.state is REBUILDING
    simulation.retry()
    simulation.settle()
    assert simulation.state is LIVE
    assert simulation.applied == simulation.process.content


def test_replay_is_offered_again_after_an_empty_answer():
    simulation = started()
    simulation.restart(silently=True)
    simulation.probe()
    simulation.settle()
    simulation.disconnect()
    simulation.publish(stored(9))
    simulation.connect()
    simulation.settle()
    assert simulation.state is LIVE
    assert simulation.applied == simulation.process.content


def test_clear_before_a_hole_says_nothing_about_what_comes_behind_it():
    simulation = started(replays=False)
    simulation.publish(stored(5), lose=True)
    simulation.publish(AllBlocksCleared())
    simulation.publish(stored(6), lose=True)
    simulation.publish(stored(7))
    simulation.settle()
    simulation.tick()
    assert simulation.state is REBUILDING
    assert sorted(simulation.applied) == [7]


def test_silent_feed_is_live_with_the_next_batch():
    simulation = started()
    simulation.silent(mute=True)
    assert simulation.state is SILENT
    simulation.probe()
    simulation.settle()
    assert simulation.state is SILENT
    simulation.publish(stored(5))
    simulation.settle()
    assert simulation.state is LIVE
    assert simulation.applied == simulation.process.content


def test_silence_while_a_replay_is_read_is_over_with_the_next_probe():
    simulation = EventSimulation()
    simulation.publish(stored(1))
    simulation.connect()
    simulation.publish(stored(2))
    simulation.silent(mute=True)
    simulation.settle()
    simulation.probe()
    simulation.settle()
    assert simulation.state is LIVE
    assert simulation.applied == simulation.process.content


@pytest.mark.parametrize("replays", [True, False])
def test_clock_that_is_set_back_while_the_engine_runs_changes_nothing(replays):
    simulation = started(replays=replays)
    forgotten = simulation.forgotten
    simulation.set_clock_back()
    for number in range(3):
        simulation.publish(stored(10 + number))
        simulation.settle()
        assert simulation.state is LIVE
        assert simulation.applied == simulation.process.content
    simulation.duplicate()
    simulation.settle()
    assert (simulation.forgotten, simulation.gaps) == (forgotten, [])


def test_feed_without_connection_is_live_again_when_it_is_back():
    simulation = started()
    simulation.disconnect()
    simulation.silent()
    assert simulation.state is SILENT
    simulation.connect()
    simulation.settle()
    assert simulation.state is LIVE


def test_content_that_accounts_for_all_is_live():
    simulation = EventSimulation(buffer=2)
    for number in range(5):
        simulation.publish(stored(number))
    simulation.connect()
    simulation.settle()
    assert simulation.state is REBUILDING
    assert [type(action).__name__ for action in simulation.order.completed()] == ["SetState"]
    assert simulation.state is LIVE


@pytest.mark.parametrize("replays", [True, False])
def test_contradicted_content_is_live_only_when_it_is_trusted_again(replays):
    simulation = EventSimulation(replays=replays)
    simulation.connect()
    simulation.settle()
    simulation.publish(AllBlocksCleared())
    simulation.publish(stored(1))
    simulation.settle()
    assert simulation.state is LIVE
    simulation.do(simulation.order.contradicted())
    assert simulation.state is REBUILDING
    assert simulation.forgotten == (0 if replays else 1)
    simulation.retry()
    assert (simulation.request is not None) is replays
    simulation.settle()
    simulation.do(simulation.order.completed())
    simulation.probe()
    simulation.publish(AllBlocksCleared())
    simulation.disconnect()
    simulation.connect()
    simulation.settle()
    assert simulation.state is REBUILDING
    simulation.do(simulation.order.trusted())
    assert simulation.state is LIVE


@pytest.mark.parametrize("state", [CONNECTING, REBUILDING, SILENT])
def test_content_that_is_not_live_cannot_be_contradicted(state):
    simulation = EventSimulation(buffer=1)
    if state is not CONNECTING:
        for number in range(3):
            simulation.publish(stored(number))
        simulation.connect()
        simulation.settle()
    if state is SILENT:
        simulation.silent()
    assert simulation.state is state
    assert list(simulation.order.contradicted()) == []
    assert simulation.state is state
