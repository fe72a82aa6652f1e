"""Orders to drain a replica reach every gateway, and of two orders the later one holds everywhere."""

from fleets import NOW, fleet
from hypothesis import given
from hypothesis import strategies as st

from gateway.cluster.wiring import ReplicatedDrains
from gateway.core.replica_state import DrainCause
from gateway.fleet.drains import DrainOrder, Drains


class Desk:
    """One gateway's orders, with a clock of its own."""

    def __init__(self, names="ab", time=1000.0):
        self.time = time
        self.fleet = fleet(names)
        self.changed = []
        self.drains = Drains(self.fleet, self._changed, everywhere=True, clock=lambda: self.time)
        self.shared = ReplicatedDrains(self.drains)

    def _changed(self, replica):
        self.changed.append((replica.id, replica.draining))

    def drain(self, name, *, on=True):
        return self.drains.drain(name, on=on)

    def send_to(self, other, everything=True):
        reported = self.shared.changes(NOW, everything=everything)
        if reported is not None:
            other.shared.receive("peer", reported, NOW)

    @property
    def draining(self):
        return "".join(each.id for each in self.fleet.replicas if each.draining)


def test_what_one_is_ordered_the_others_do_until_it_is_taken_back():
    one, other = Desk(), Desk()
    assert one.drain("a")["everywhere"]
    one.send_to(other, everything=False)
    assert (other.draining, other.changed) == ("a", [("a", True)])
    one.time += 1
    one.drain("a", on=False)
    one.send_to(other, everything=False)
    assert (other.draining, other.changed) == ("", [("a", True), ("a", False)])


def test_it_can_be_taken_back_anywhere_also_where_the_clock_is_behind():
    one, other = Desk(time=1000), Desk(time=400)
    one.drain("a")
    one.send_to(other)
    other.drain("a", on=False)
    other.send_to(one)
    one.send_to(other)
    assert (one.draining, other.draining) == ("", "")
    one.drain("a")
    one.send_to(other)
    other.send_to(one)
    assert (one.draining, other.draining) == ("a", "a")


def test_a_late_message_does_not_undo_a_newer_order():
    one, other = Desk(), Desk(time=1001)
    one.drain("a")
    other.drain("a")
    other.drain("a", on=False)
    one.send_to(other)
    assert other.draining == ""
    other.send_to(one)
    assert one.draining == ""


def test_one_that_starts_later_receives_what_is_in_force():
    one, late = Desk(), Desk()
    one.drain("b")
    one.shared.changes(NOW, everything=False)
    one.send_to(late)
    assert late.draining == "b"
    # And goes on to when the other one ends.
    late.shared.missed("peer", NOW)
    late.shared.gone("peer", NOW)
    assert late.draining == "b"


def test_nothing_is_sent_without_orders_nor_twice_unless_all_is_asked_for():
    one = Desk()
    assert one.shared.changes(NOW, everything=True) is None
    one.drain("a")
    assert one.shared.changes(NOW, everything=False) is not None
    assert one.shared.changes(NOW, everything=False) is None
    assert one.shared.changes(NOW, everything=True) is not None


def test_what_is_configured_is_not_sent_and_stays():
    one, other = Desk(), Desk()
    one.drains.set(one.fleet.find("a"), DrainCause.CONFIGURATION, on=True)
    one.send_to(other)
    assert other.draining == ""
    one.drain("a", on=False)
    other.drains.set(other.fleet.find("a"), DrainCause.CONFIGURATION, on=True)
    one.send_to(other)
    assert (one.draining, other.draining) == ("a", "a")


def test_replicas_that_are_not_known_are_passed_over_until_they_come():
    one, other = Desk("az"), Desk("ab")
    one.drain("z")
    one.drain("a")
    one.send_to(other)
    assert other.draining == "a"
    other.fleet.add(fleet("z").find("z"))
    one.send_to(other)
    assert other.draining == "az"


def test_a_replica_that_was_removed_and_added_again_is_not_reported_any_more():
    one = Desk()
    one.drain("a")
    one.fleet.remove(one.fleet.find("a"))
    one.fleet.add(fleet("a").find("a"))
    assert list(one.drains.orders()) == []
    assert one.draining == ""


def test_an_order_from_before_this_process_gives_way_to_a_later_one():
    one = Desk()
    one.drains.apply_order(DrainOrder("a", on=True, at=900))
    assert one.draining == "a"
    one.drains.apply_order(DrainOrder("a", on=False, at=950))
    one.drains.apply_order(DrainOrder("a", on=True, at=900))
    assert one.draining == ""
    one.drains.apply_order(DrainOrder("nobody", on=True, at=900))


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("order"), st.integers(0, 2), st.sampled_from("ab"), st.booleans()),
        st.tuples(st.just("tell"), st.integers(0, 2), st.integers(0, 2), st.booleans()),
        st.tuples(st.just("time"), st.integers(0, 2), st.floats(0, 10), st.none()),
    ),
    max_size=40,
)


@given(STEPS)
def test_all_agree_in_the_end_after_any_loss(steps):
    desks = [Desk(time=1000 + 300 * number) for number in range(3)]
    for what, which, value, option in steps:
        if what == "order":
            desks[which].drain(value, on=option)
        elif what == "tell":
            desks[which].send_to(desks[value], everything=option)
        else:
            desks[which].time += value
    for _ in range(2):
        for one in desks:
            for other in desks:
                one.send_to(other)
    assert len({desk.draining for desk in desks}) == 1
    # And the gateway that is asked last has the last word.
    desks[0].drain("a", on="a" not in desks[0].draining)
    for other in desks[1:]:
        desks[0].send_to(other)
    assert {desk.draining for desk in desks} == {desks[0].draining}
