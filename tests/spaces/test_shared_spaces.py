"""Gateways that place requests in the same spaces, exchange messages, and store them."""

import dataclasses

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from space_builders import MODEL, Ends, caller, spaces, tenant

from gateway.core.application import Application
from gateway.core.space import ResetCause, SpaceSelection
from gateway.spaces import ReplicatedSpaces

MANUAL = ResetCause.MANUAL


class Book:
    """``SharedRecords`` in memory."""

    def __init__(self):
        self.kept: dict[str, bytes] = {}
        self.there = False
        self.fails = False
        self.writes = 0

    async def read(self):
        if self.fails:
            raise ConnectionError
        return dict(self.kept)

    async def write(self, changes):
        if self.fails:
            raise ConnectionError
        self.writes += len(changes)
        for name, value in changes.items():
            if value is None:
                self.kept.pop(name, None)
            else:
                self.kept[name] = value
        there, self.there = self.there, True
        return there


class Side:
    """One gateway's spaces, with a clock of its own."""

    def __init__(self, book, ahead=0.0, **rules):
        self.ends = Ends()
        self.spaces = spaces(self.ends, **rules)
        self.ahead = ahead
        self.now = 1000.0
        self.updates = []
        self.replicate(book)

    def replicate(self, book):
        self.shared = ReplicatedSpaces(
            self.spaces, book, on_update=lambda *update: self.updates.append(update), wall=lambda: self.wall
        )

    @property
    def wall(self):
        return self.now + self.ahead

    def salt(self, name="acme", scope=""):
        return self.spaces.enter(caller(name, scope), MODEL, {}, self.wall).salt

    def reset(self, name=None, **selection):
        given = None if name is None else tenant(name)
        return self.spaces.reset(SpaceSelection(tenant=name, **selection), MANUAL, self.wall, tenant=given)

    def receive_from(self, other, *, everything=False):
        reported = other.shared.changes(other.now, everything=everything)
        if reported is not None:
            self.shared.receive("peer", reported, self.now)

    async def read(self):
        await self.shared._sync()


@pytest.fixture
def book():
    return Book()


def test_an_epoch_that_began_at_one_gateway_is_that_of_all(book):
    ours, theirs = Side(book), Side(book)
    salt = ours.salt()
    theirs.receive_from(ours)
    assert theirs.salt() == salt
    assert theirs.salt("other") != salt


@pytest.mark.parametrize("ahead", [-30.0, 0.0, 30.0])
def test_of_two_epochs_the_later_is_kept_by_both(book, ahead):
    ours, theirs = Side(book), Side(book, ahead)
    first = ours.salt()
    theirs.now += 1
    second = theirs.salt()
    ours.receive_from(theirs)
    theirs.receive_from(ours)
    kept = second if ahead >= 0 else first
    assert ours.salt() == theirs.salt() == kept
    assert [*ours.ends.causes, *theirs.ends.causes] == ["merged"]


def test_what_ended_is_not_taken_for_alive_again(book):
    ours, theirs = Side(book), Side(book)
    salt = ours.salt()
    reported = ours.shared.changes(0.0, everything=True)
    theirs.shared.receive("peer", reported, 0.0)
    theirs.now += 601  # its maximum age
    theirs.spaces.expire(theirs.wall)
    theirs.shared.receive("peer", reported, 0.0)
    assert theirs.salt() != salt
    third = Side(book)
    third.now += 601
    third.shared.receive("peer", reported, 0.0)
    assert third.salt() != salt


def test_use_anywhere_keeps_an_epoch(book):
    ours, theirs = Side(book), Side(book)
    salt = ours.salt()
    theirs.receive_from(ours)
    for _ in range(5):
        ours.now += 50
        theirs.now += 50
        theirs.salt()
        ours.receive_from(theirs)
        ours.spaces.expire(ours.wall)
    assert ours.salt() == salt


def test_a_clock_that_is_ahead_makes_nothing_live_longer(book):
    ours, theirs = Side(book), Side(book, ahead=500.0)
    salt = theirs.salt()
    ours.receive_from(theirs)
    assert ours.salt() == salt
    ours.now += 61
    assert ours.salt() != salt


@pytest.mark.parametrize("ahead", [-30.0, 0.0, 30.0])
def test_a_reset_ends_the_epochs_of_all_with_any_clocks(book, ahead):
    ours, theirs = Side(book), Side(book, ahead)
    kept = [theirs.salt("b"), theirs.salt("a", "fr")]
    salt = theirs.salt("a")
    ours.reset("a", scope="")
    theirs.receive_from(ours)
    after = theirs.salt("a")
    assert after != salt
    assert [theirs.salt("b"), theirs.salt("a", "fr")] == kept
    assert theirs.ends.causes == ["manual"]
    # And what began behind it is everybody's.
    ours.receive_from(theirs)
    assert ours.salt("a") == after
    # Received once more it ends nothing.
    theirs.receive_from(ours, everything=True)
    assert theirs.salt("a") == after


def test_a_reset_of_a_version_ends_those_of_its_application_at_all_gateways(book):
    ours, theirs = Side(book), Side(book)

    def salts(side):
        of = [Application("support", "v1", registered=True), Application("support", "v2"), Application("sales", "v1")]
        callers = [dataclasses.replace(caller("acme"), application=each) for each in of]
        return [side.spaces.enter(each, MODEL, {}, side.wall).salt for each in callers]

    before = salts(ours)
    theirs.receive_from(ours)
    assert salts(theirs) == before
    ours.reset(prompt="support@v1")
    theirs.receive_from(ours)
    after = salts(theirs)
    assert [one == other for one, other in zip(before, after, strict=True)] == [False, True, True]
    ours.receive_from(theirs)
    assert salts(ours) == after
    ours.reset(prompt="support")
    theirs.receive_from(ours)
    assert [one == other for one, other in zip(after, salts(theirs), strict=True)] == [False, False, True]


async def test_a_reset_reaches_a_gateway_that_did_not_receive_it(book):
    ours, theirs = Side(book), Side(book)
    salt = ours.salt()
    theirs.receive_from(ours)
    assert theirs.salt() == salt
    ours.reset()
    ours.shared.changes(0.0, everything=False)  # lost
    assert await ours.shared.write()
    theirs.shared.missed("peer", 0.0)
    await theirs.read()
    assert theirs.salt() != salt
    theirs.receive_from(ours, everything=True)  # sent again
    assert theirs.ends.causes == ["manual"]


async def test_a_gateway_without_state_does_not_restore_what_was_reset(book):
    ours, cut_off = Side(book), Side(book)
    salt = ours.salt()
    cut_off.receive_from(ours)
    cut_off.salt()
    ours.now += 1
    ours.reset()
    ours.shared.changes(0.0, everything=False)
    ours.receive_from(cut_off, everything=True)
    cut_off.spaces.changes.begun.extend(cut_off.spaces.epochs)
    ours.receive_from(cut_off)
    assert ours.salt() != salt


async def test_all_is_written_down_and_taken_over_by_the_next(book):
    ours = Side(book, isolation="group")
    salts = {name: ours.salt(name) for name in "abc"}
    ours.now += 1
    ours.reset("b")
    assert await ours.shared.write()
    later = Side(book, isolation="group")
    later.now += 2
    await later.read()
    assert {name: later.salt(name) == salts[name] for name in "abc"} == {"a": True, "b": False, "c": True}


async def test_a_reset_without_isolation_outlives_all(book):
    ours = Side(book, isolation="none")
    assert ours.salt() is None
    ours.reset(model="m")
    salt = ours.salt()
    assert salt is not None
    await ours.shared.write()
    later = Side(book, isolation="none")
    await later.read()
    assert later.salt() == salt
    received = Side(Book(), isolation="none")
    assert received.salt() is None
    received.receive_from(ours)
    assert received.salt() == salt


async def test_what_is_over_is_struck_out(book):
    ours = Side(book)
    for name in "abc":
        ours.salt(name)
    await ours.shared.write()
    assert len(book.kept) == 3
    ours.now += 100
    ours.spaces.expire(ours.wall)
    await ours.shared.write()
    assert book.kept == {}
    # By another gateway, if need be.
    other = Side(book)
    other.salt("d")
    await other.shared.write()
    book.kept |= {"life:odd": b"\x00", "reset:odd": b"\x00"}
    later = Side(book)
    later.now += 100
    await later.read()
    await later.shared.write()
    assert book.kept == {}


async def test_what_is_lost_is_written_again(book):
    ours = Side(book)
    ours.salt()
    ours.reset("other")
    await ours.shared.write()
    await ours.shared.write()
    before = dict(book.kept)
    book.kept, book.there = {}, False
    await ours.shared.write()
    await ours.shared.write()
    assert book.kept.keys() == before.keys()


async def test_what_could_not_be_written_is_written_later_and_all_is_read_first(book):
    ours, theirs = Side(book), Side(book)
    book.fails = True
    salt = ours.salt()
    ours.reset("b")
    assert not await ours.shared.write()
    book.fails = False
    theirs.now += 1
    newer = theirs.salt()
    await theirs.shared.write()
    await ours.read()
    await ours.shared.write()
    assert ours.salt() == newer != salt
    assert sum(name.startswith("reset:") for name in book.kept) == 1


async def test_use_is_written_down_now_and_then_and_not_every_time(book):
    ours = Side(book)
    ours.salt()
    await ours.shared.write()
    await ours.shared.write()
    writes = book.writes
    for _ in range(50):
        ours.now += 1
        ours.salt()
        await ours.shared.write()
    assert 5 <= book.writes - writes <= 9


async def test_a_reset_of_all_takes_the_place_of_those_before(book):
    ours = Side(book)
    for scope in ("de", "fr", "en"):
        ours.reset("a", scope=scope)
    await ours.shared.write()
    ours.now += 1
    ours.reset()
    await ours.shared.write()
    assert len(book.kept) == 4
    later = Side(book)
    await later.read()
    await later.read()
    await later.shared.write()
    assert len(book.kept) == 1


def test_a_space_dropped_for_another_one_stays_at_other_gateways(book):
    ours, theirs = Side(book, max_spaces=1), Side(book)
    salt = ours.salt("a")
    theirs.receive_from(ours)
    ours.salt("b")
    theirs.receive_from(ours)
    assert ours.ends.causes == ["crowded_out"]
    assert theirs.salt("a") == salt
    third = Side(book, max_spaces=1)
    third.salt("x")
    third.receive_from(theirs)
    third.receive_from(ours)
    assert len(third.spaces.epochs) == 1


def test_another_way_to_keep_spaces_apart_is_passed_over(book):
    ours, open_to_all = Side(book), Side(book, isolation="none")
    ours.salt()
    open_to_all.receive_from(ours)
    assert open_to_all.spaces.epochs == []
    open_to_all.salt()
    ours.receive_from(open_to_all)
    assert len(ours.spaces.epochs) == 1


def test_an_update_of_a_model_is_reported_with_what_it_ends(book):
    ours, theirs = Side(book), Side(book)
    old = theirs.salt()
    ours.now += 1
    ours.spaces.reset(SpaceSelection(model="m"), ResetCause.MODEL_UPDATE, ours.wall)
    ours.shared.engine_updated("r0", "root", "2.0")
    theirs.receive_from(ours)
    assert theirs.updates == [("r0", "root", "2.0")]
    assert theirs.salt() != old
    # What began behind an update is of the new release already.
    late = Side(book)
    late.now += 2
    new = late.salt()
    ours.spaces.reset(SpaceSelection(model="m"), ResetCause.MODEL_UPDATE, ours.wall)
    late.receive_from(ours)
    assert late.salt() == new


ACTS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(["enter", "reset", "hear", "lose", "pass"]), st.sampled_from("ab")),
    max_size=50,
)


@settings(max_examples=3 * settings().max_examples)
@given(ACTS, st.tuples(*[st.sampled_from([-5.0, 0.0, 5.0])] * 3))
@example([(1, "reset", "b"), (1, "enter", "b")], (0.0, -5.0, -5.0))
def test_no_salt_that_was_reset_is_used_after_its_message_and_all_agree_in_the_end(acts, ahead):
    sides = [Side(Book(), each) for each in ahead]
    dead: list[set[str]] = [set(), set(), set()]
    for who, act, name in acts:
        side = sides[who]
        if act == "enter":
            assert side.salt(name) not in dead[who]
        elif act == "reset":
            alive = [epoch for epoch in side.spaces.epochs if epoch.space.tenant == f"tenant:{name}"]
            dead[who] |= {grant.salt for epoch in alive for grant in epoch.grants.values()}
            side.reset(name)
        elif act == "pass":
            for each in sides:
                each.now += 0.5
        else:
            reported = side.shared.changes(side.now, everything=act == "hear")
            for other in sides:
                if other is not side and act == "hear" and reported is not None:
                    other.shared.receive(str(who), reported, other.now)
    for _ in range(4):
        for side in sides:
            for name in "ab":
                side.salt(name)
            side.spaces.changes.begun.extend(side.spaces.epochs)  # as written down, and read by all
            reported = side.shared.changes(side.now, everything=True)
            for other in sides:
                if other is not side:
                    other.shared.receive("peer", reported, other.now)
    for name in "ab":
        assert len({side.salt(name) for side in sides}) == 1
    for who, side in enumerate(sides):
        for name in "ab":
            assert side.salt(name) not in dead[who]
