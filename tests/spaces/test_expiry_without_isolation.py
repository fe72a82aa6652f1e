"""Spaces that all tenants share, and that expire: no expired epoch is ever reachable again."""

import dataclasses
import json

import pytest
from space_builders import MODEL, RULES, Ends, caller, spaces
from test_shared_spaces import Book, Side

from gateway.core.application import Application
from gateway.core.space import ResetCause, SpaceSelection

NEVER = dataclasses.replace(RULES, isolation="none", idle_ttl_seconds=None, max_age_seconds=None)
IDLE = dataclasses.replace(NEVER, idle_ttl_seconds=60)


def shared(*observers, **times):
    return spaces(*observers, isolation="none", **(times or {"idle_ttl_seconds": 60}))


def salt(made, now, who="a", **more):
    return made.enter(caller(who, **more), MODEL, {}, now).salt


def test_all_share_an_epoch_and_its_idle_time():
    ends = Ends()
    made = shared(ends)
    first = salt(made, 0.0)
    assert first is not None
    assert salt(made, 50.0, "b") == salt(made, 100.0) == first
    assert salt(made, 160.0) != first
    assert ends.causes == ["idle_ttl"]


def test_one_in_use_ends_at_its_age():
    ends = Ends()
    made = shared(ends, max_age_seconds=100)
    seen = [salt(made, float(now)) for now in range(0, 250, 10)]
    assert [seen.index(each) for each in dict.fromkeys(seen)] == [0, 10, 20]
    made.expire(1e6)
    assert ends.causes == ["max_age"] * 3


def test_a_tenants_own_times_do_not_end_what_others_use():
    made = shared()
    first = salt(made, 0.0)
    assert salt(made, 10.0, "short", idle_ttl_seconds=5.0, max_age_seconds=5.0) == first
    assert salt(made, 20.0, "short", idle_ttl_seconds=5.0, max_age_seconds=5.0) == first


def test_no_salt_comes_back_after_a_restart_without_a_file():
    before = {salt(shared(), now) for now in (1.0, 2.0)}
    assert len(before) == 2
    assert salt(shared(), 3.0) not in before | {None}


def test_a_file_keeps_the_epoch_over_a_restart():
    made = shared()
    first = salt(made, 0.0)
    again = shared()
    again.load(json.loads(json.dumps(made.dump())), 30.0)
    assert salt(again, 30.0) == first
    late = shared()
    late.load(made.dump(), 61.0)
    assert salt(late, 61.0) not in (first, None)


def test_what_expires_soon_is_what_was_not_used_for_most_of_its_time():
    made = shared(max_age_seconds=100, idle_ttl_seconds=60)
    salt(made, 0.0)
    assert made.expiring(39.0, 1 / 3) == []
    (space,) = made.expiring(41.0, 1 / 3)
    assert (space.model_id, space.tenant) == ("m", "")
    salt(made, 40.0)
    assert made.expiring(79.0, 1 / 3) == []
    salt(made, 50.0)
    assert made.expiring(95.0, 1 / 3) == []  # its age ends it before that
    never = spaces(isolation="none")
    salt(never, 0.0)
    assert never.expiring(1e9, 1 / 3) == []


def test_a_reset_counts_beside_expiry():
    made = shared()
    first = salt(made, 0.0)
    made.reset(SpaceSelection(model="m"), ResetCause.MANUAL, 1.0)
    assert salt(made, 2.0) not in (first, None)


def test_an_application_expires_by_its_own_times_and_all_others_never():
    ends = Ends()
    made = spaces(ends, isolation="none", prompts_expire=True)
    application = Application("support", "v3", registered=True, idle_ttl_seconds=5.0)

    def of_application(now):
        asked = dataclasses.replace(caller(), application=application)
        return made.enter(asked, MODEL, {}, now).salt

    first, other = of_application(0.0), salt(made, 0.0)
    assert of_application(4.0) == first
    assert of_application(10.0) not in (first, None)
    assert salt(made, 1e6) == other
    assert ends.causes == ["idle_ttl"]


def test_who_calls_changes_no_time_of_an_application():
    made = spaces(isolation="none", prompts_expire=True)
    applications = Application("support", "v3", registered=True, idle_ttl_seconds=5.0), Application("other")

    def of_application(application, now, **times):
        return made.enter(dataclasses.replace(caller(**times), application=application), MODEL, {}, now).salt

    salts = [
        [
            of_application(each, now, idle_ttl_seconds=ttl)
            for now, ttl in ((0.0, None), (0.5, 1.0), (4.0, 1.0), (20.0, 99))
        ]
        for each in applications
    ]
    assert [[salt == salts_of[0] for salt in salts_of] for salts_of in salts] == [
        [True, True, True, False],
        [True, True, True, True],
    ]


class TestSwitching:
    def test_expiry_that_is_turned_on_takes_effect_at_once(self):
        ends = Ends()
        made = spaces(ends, isolation="none")
        assert salt(made, 0.0) is None
        made.configure(IDLE, 1.0)
        first = salt(made, 1.0)
        assert first is not None
        assert salt(made, 61.0) not in (first, None)
        assert ends.causes == ["configuration", "idle_ttl"]

    def test_another_time_ends_nothing(self):
        made = shared()
        first = salt(made, 0.0)
        made.configure(dataclasses.replace(IDLE, idle_ttl_seconds=600), 1.0)
        assert salt(made, 500.0) == first

    @pytest.mark.parametrize("rules", [NEVER, dataclasses.replace(RULES, isolation="tenant")])
    def test_expiry_that_is_turned_off_reaches_nothing_from_before(self, rules):
        made = spaces(isolation="none")
        unsalted = salt(made, 0.0)
        made.configure(IDLE, 1.0)
        expired = {unsalted, salt(made, 1.0), salt(made, 100.0)}
        made.configure(rules, 101.0)
        made.configure(NEVER, 102.0)
        kept = salt(made, 103.0)
        assert kept not in expired
        assert salt(made, 1e6) == kept

    def test_nor_with_a_restart_in_between(self):
        made = shared()
        expired = {None, salt(made, 1.0), salt(made, 100.0)}
        made.expire(300.0)
        again = spaces(isolation="none")
        again.load(made.dump(), 301.0)
        assert salt(again, 302.0) not in expired

    def test_a_restart_without_expiry_before_and_after_stays_unsalted(self):
        made = spaces(isolation="none")
        salt(made, 1.0)
        again = spaces(isolation="none")
        again.load(made.dump(), 2.0)
        assert salt(again, 3.0) is None


class TestSeveralGateways:
    @pytest.fixture
    def sides(self):
        book = Book()
        return [Side(book, isolation="none", idle_ttl_seconds=60) for _ in range(2)]

    def test_all_use_one_epoch_and_begin_the_next_one_together(self, sides):
        ours, theirs = sides
        first = ours.salt()
        theirs.receive_from(ours)
        assert theirs.salt() == first
        ours.now = theirs.now = 1100.0
        second = theirs.salt()
        ours.receive_from(theirs)
        assert ours.salt() == second != first
        assert [*ours.ends.causes, *theirs.ends.causes] == ["idle_ttl", "idle_ttl"]

    def test_use_at_one_keeps_it_alive_at_the_other(self, sides):
        ours, theirs = sides
        first = ours.salt()
        theirs.receive_from(ours)
        theirs.salt()
        for now in (1050.0, 1100.0):
            ours.now = theirs.now = now
            ours.salt()
            theirs.receive_from(ours)
        assert theirs.salt() == first

    async def test_one_that_starts_later_finds_it_in_the_records(self):
        book = Book()
        ours = Side(book, isolation="none", idle_ttl_seconds=60)
        first = ours.salt()
        await ours.shared.write()
        late = Side(book, isolation="none", idle_ttl_seconds=60)
        await late.read()
        assert late.salt() == first

    def test_of_two_epochs_the_later_is_kept_by_both(self, sides):
        ours, theirs = sides
        ours.salt()
        theirs.now += 1
        second = theirs.salt()
        ours.receive_from(theirs)
        theirs.receive_from(ours)
        assert ours.salt() == theirs.salt() == second

    def test_they_agree_after_expiry_is_turned_off_at_both(self, sides):
        ours, theirs = sides
        before = ours.salt()
        theirs.receive_from(ours)
        for number, side in enumerate(sides):
            side.now += number
            side.spaces.configure(NEVER, side.wall)
        ours.receive_from(theirs)
        theirs.receive_from(ours)
        assert ours.salt() == theirs.salt() not in (before, None)

    def test_they_agree_after_a_restart_with_expiry_turned_off(self, sides):
        ours, theirs = sides
        before = ours.salt()
        theirs.receive_from(ours)
        theirs.salt()
        book = Book()
        restarted = []
        for number, side in enumerate(sides):
            again = Side(book, isolation="none")
            again.now = side.now + number
            again.spaces.load(side.spaces.dump(), again.wall)
            again.replicate(book)  # as at a start, after the file was read
            restarted.append(again)
        ours, theirs = restarted
        ours.receive_from(theirs)
        theirs.receive_from(ours)
        assert ours.salt() == theirs.salt() not in (before, None)
