"""Which requests share a space, and when the epoch of one ends."""

import dataclasses
import itertools
import json
import sys

import pytest
from space_builders import MODEL, RULES, Ends, caller, spaces, tenant

from gateway.core.errors import BadRequest
from gateway.core.space import ResetCause, SpaceSelection

MANUAL = ResetCause.MANUAL


def salts(made, callers, model=MODEL, now=0.0, **fields):
    return [made.enter(each, model, fields, now).salt for each in callers]


def test_tenants_are_apart_and_each_stays_in_its_own():
    made = spaces()
    first = salts(made, [caller("a"), caller("b"), caller("c", group="g")])
    assert len(set(first)) == 3
    assert None not in first
    assert salts(made, [caller("a"), caller("b"), caller("c", group="g")], now=1.0) == first


def test_a_group_shares_only_where_it_is_said():
    members = [caller("a", group="g"), caller("b", group="g"), caller("c", group="h"), caller("g")]
    assert len(set(salts(spaces(isolation="tenant"), members))) == 4
    a, b, c, g = salts(spaces(isolation="group"), members)
    assert a == b
    assert len({a, c, g}) == 3


def test_a_tenant_named_as_another_ones_group_is_not_in_it():
    a, g = salts(spaces(isolation="group"), [caller("a", group="x"), caller("x")])
    assert a != g


@pytest.mark.parametrize(
    "other",
    [
        MODEL._replace(model_id="n"),
        MODEL._replace(tokenizer_id="tok2"),
        MODEL._replace(template_version="def"),
        MODEL._replace(adapter="lora"),
        MODEL._replace(context_limit=4096),
    ],
)
def test_any_difference_in_the_model_is_another_space(other):
    made = spaces()
    assert made.enter(caller(), MODEL, {}, 0.0).salt != made.enter(caller(), other, {}, 0.0).salt


def test_scopes_and_regions_are_apart():
    callers = [caller(scope=""), caller(scope="de"), caller(scope="fr"), caller(regions=frozenset({"eu"}))]
    assert len(set(salts(spaces(), callers))) == 4


def test_a_clients_salt_narrows_the_space_and_never_leaves_it():
    made = spaces()
    plain, x, y = (
        made.enter(caller("a"), MODEL, fields, 0.0) for fields in ({}, {"cache_salt": "x"}, {"cache_salt": "y"})
    )
    other = made.enter(caller("b"), MODEL, {"cache_salt": "x"}, 0.0)
    assert len({plain.salt, x.salt, y.salt, other.salt}) == 4
    assert plain.id == x.id == y.id != other.id
    assert made.enter(caller("a"), MODEL, {"cache_salt": "x"}, 0.0).salt == x.salt


def test_a_salt_no_engine_takes_is_refused():
    with pytest.raises(BadRequest):
        spaces().enter(caller(), MODEL, {"cache_salt": "a/b"}, 0.0)


def test_a_grant_is_worked_out_once_for_each_salt_and_label():
    made = spaces()
    plain, x = made.enter(caller(), MODEL, {}, 0.0), made.enter(caller(), MODEL, {"cache_salt": "x"}, 0.0)
    assert made.enter(caller(), MODEL, {}, 1.0) is plain
    assert made.enter(caller(), MODEL, {"cache_salt": "x"}, 1.0) is x
    open_to_all = spaces(isolation="none")
    assert open_to_all.enter(caller(), MODEL._replace(template_label=""), {}, 0.0).salt is None
    assert open_to_all.enter(caller(), MODEL._replace(template_label="l"), {}, 0.0).salt is not None


def test_one_client_with_a_million_salts_takes_no_memory():
    made = spaces()
    for number in range(1000):
        made.enter(caller(), MODEL, {"cache_salt": str(number)}, 0.0)
    ((epoch, _),) = made.shown()
    assert len(epoch.grants) <= 64


class TestTime:
    def test_an_idle_space_ends(self):
        ends = Ends()
        made = spaces(ends)
        before = made.enter(caller(), MODEL, {}, 0.0)
        assert made.enter(caller(), MODEL, {}, 59.9) == before
        assert made.enter(caller(), MODEL, {}, 119.8) == before
        after = made.enter(caller(), MODEL, {}, 179.8)
        assert after.salt != before.salt
        assert after.id != before.id
        assert ends.causes == ["idle_ttl"]

    def test_a_busy_space_ends_at_its_age(self):
        ends = Ends()
        made = spaces(ends)
        seen = [made.enter(caller(), MODEL, {}, float(now)).salt for now in range(0, 1201, 30)]
        assert [len(list(group)) for _, group in itertools.groupby(seen)] == [20, 20, 1]
        assert ends.causes == ["max_age", "max_age"]

    def test_a_tenant_may_have_times_of_its_own(self):
        made = spaces()
        short = caller("short", idle_ttl_seconds=5.0, max_age_seconds=20.0)
        first, other = salts(made, [short, caller()])
        assert made.enter(caller(), MODEL, {}, 6.0).salt == other
        assert made.enter(short, MODEL, {}, 6.0).salt != first

    def test_other_times_hold_from_the_next_request_on(self):
        made = spaces()
        before = made.enter(caller(), MODEL, {}, 0.0)
        made.configure(dataclasses.replace(RULES, idle_ttl_seconds=600.0), 50.0)
        assert made.enter(caller(), MODEL, {}, 100.0) == before
        made.configure(dataclasses.replace(RULES, idle_ttl_seconds=5.0), 101.0)
        assert made.enter(caller(), MODEL, {}, 106.0) != before

    @pytest.mark.parametrize("change", [{"secret": b"another secret altogether"}, {"isolation": "group"}])
    def test_another_isolation_mode_ends_all_epochs(self, change):
        ends = Ends()
        made = spaces(ends)
        before = made.enter(caller(), MODEL, {}, 0.0)
        made.configure(dataclasses.replace(RULES), 1.0)
        assert not ends.received
        made.configure(dataclasses.replace(RULES, **change), 1.0)
        assert ends.causes == ["configuration"]
        after = made.enter(caller(), MODEL, {}, 1.0)
        made.configure(RULES, 2.0)
        assert made.enter(caller(), MODEL, {}, 2.0).salt not in (before.salt, after.salt)

    def test_time_passes_without_requests_too(self):
        ends = Ends()
        made = spaces(ends)
        salts(made, [caller("a"), caller("b")])
        made.expire(59.0)
        assert not ends.received
        made.expire(61.0)
        assert ends.causes == ["idle_ttl", "idle_ttl"]

    def test_a_clock_set_back_makes_nothing_live_longer(self):
        made = spaces()
        before = made.enter(caller(), MODEL, {}, 1e9)
        assert made.enter(caller(), MODEL, {}, 1e9 - 3600).salt != before.salt

    def test_without_isolation_time_ends_nothing(self):
        ends = Ends()
        made = spaces(ends, isolation="none")
        assert made.enter(caller(), MODEL, {}, 0.0) == made.enter(caller(), MODEL, {}, 1e6)
        assert not ends.received


class TestReset:
    CALLERS = (caller("a", scope="de"), caller("a"), caller("b"))

    @pytest.mark.parametrize(
        ("selection", "who", "reset"),
        [
            (SpaceSelection(), None, [1, 1, 1]),
            (SpaceSelection(model="m"), None, [1, 1, 1]),
            (SpaceSelection(model="n"), None, [0, 0, 0]),
            (SpaceSelection(tenant="a"), tenant("a"), [1, 1, 0]),
            (SpaceSelection(tenant="a", scope="de"), tenant("a"), [1, 0, 0]),
            (SpaceSelection(scope=""), None, [0, 1, 1]),
            (SpaceSelection(template_version="abc"), None, [1, 1, 1]),
            (SpaceSelection(template_version="abd"), None, [0, 0, 0]),
        ],
    )
    def test_just_what_is_selected_begins_anew(self, selection, who, reset):
        ends = Ends()
        made = spaces(ends)
        before = salts(made, self.CALLERS)
        gone = made.reset(selection, MANUAL, 1.0, by="ops", tenant=who)
        after = salts(made, self.CALLERS, now=2.0)
        assert [int(a != b) for a, b in zip(before, after, strict=True)] == reset
        assert gone == ends.received
        assert len(gone) == sum(reset)
        assert {(end.cause, end.by) for end in gone} <= {(MANUAL, "ops")}

    def test_a_label_alone_selects_all_its_versions(self):
        made = spaces()
        models = [MODEL._replace(template_label="v3", template_version=f"v3+{digest}") for digest in ("x", "y")]
        before = [made.enter(caller(), model, {}, 0.0).salt for model in [MODEL, *models]]
        made.reset(SpaceSelection(template_version="v3"), MANUAL, 1.0)
        after = [made.enter(caller(), model, {}, 2.0).salt for model in [MODEL, *models]]
        assert [a == b for a, b in zip(before, after, strict=True)] == [True, False, False]

    def test_no_salt_ever_comes_back(self):
        made = spaces(max_spaces=3)
        seen = set()
        for round_ in range(50):
            for name in "abcde":
                salt = made.enter(caller(name), MODEL, {}, 1.0).salt
                assert salt not in seen
                seen.add(salt)
            made.reset(SpaceSelection(), MANUAL, 1.0, by=str(round_))

    def test_a_group_is_reset_by_each_of_its_tenants(self):
        made = spaces(isolation="group")
        before = salts(made, [caller("a", group="g"), caller("b", group="g"), caller("c")])
        made.reset(SpaceSelection(tenant="b"), MANUAL, 1.0, tenant=tenant("b", group="g"))
        after = salts(made, [caller("a", group="g"), caller("b", group="g"), caller("c")])
        assert [a == b for a, b in zip(before, after, strict=True)] == [False, False, True]


class TestWithoutIsolation:
    def test_everybody_shares_and_nothing_is_sent(self):
        made = spaces(isolation="none", secret=b"")
        assert salts(made, [caller("a"), caller("b")]) == [None, None]

    def test_a_clients_salt_is_never_passed_on_as_it_is(self):
        made = spaces(isolation="none", secret=b"")
        a, b = salts(made, [caller("a"), caller("b")], cache_salt="x")
        assert a == b
        assert a not in ("x", None)
        assert salts(made, [caller("a")], cache_salt="y") != [a]

    def test_a_scope_is_kept_apart_all_the_same(self):
        plain, de, fr = salts(spaces(isolation="none", secret=b""), [caller(), caller(scope="de"), caller(scope="fr")])
        assert plain is None
        assert de
        assert fr
        assert de != fr

    def test_a_reset_makes_what_came_before_unreachable(self):
        made = spaces(isolation="none", secret=b"")
        assert made.enter(caller(), MODEL, {}, 1.0).salt is None
        made.reset(SpaceSelection(model="m"), MANUAL, 2.0)
        first = made.enter(caller(), MODEL, {}, 3.0).salt
        assert first
        assert made.enter(caller(), MODEL._replace(model_id="n"), {}, 3.0).salt is None
        made.reset(SpaceSelection(), MANUAL, 4.0)
        assert made.enter(caller(), MODEL, {}, 5.0).salt not in (None, first)

    def test_a_reset_reaches_what_another_process_left_in_the_caches(self):
        made = spaces(isolation="none", secret=b"")
        assert made.reset(SpaceSelection(), MANUAL, 2.0) == []  # nothing was used since the start
        assert made.enter(caller(), MODEL, {}, 3.0).salt is not None

    def test_thousands_of_resets_take_no_memory(self):
        made = spaces(isolation="none", secret=b"")
        for number in range(3000):
            made.reset(SpaceSelection(scope=str(number)), MANUAL, float(number))
        assert len(made.dump()["floors"]) <= 1001
        assert made.enter(caller(scope="0"), MODEL, {}, 4000.0).salt
        assert made.enter(caller(scope=""), MODEL, {}, 4000.0).salt  # all of them, rather than one too few

    def test_a_label_makes_versions_binding(self):
        made = spaces(isolation="none", secret=b"")
        a, b = (
            made.enter(caller(), MODEL._replace(template_label=label, template_version=f"{label}+abc"), {}, 0.0).salt
            for label in ("v1", "v2")
        )
        assert a
        assert b
        assert a != b


class TestVersions:
    NEW = MODEL._replace(template_version="def")

    def test_a_new_version_ends_the_old_ones_and_its_figures_stay(self):
        ends = Ends()
        made = spaces(ends)
        old = made.enter(caller(), MODEL, {}, 0.0)
        made.on_settled(answer(old.id))
        made.enter(caller(), self.NEW, {}, 1.0)
        made.retire(self.NEW, ResetCause.TEMPLATE_CHANGED, 1.0)
        assert ends.causes == ["template_changed"]
        shown = {epoch.id: (epoch, alive) for epoch, alive in made.shown()}
        epoch, alive = shown[old.id]
        assert not alive
        assert dataclasses.astuple(epoch.figures) == (1, 100, 64, 0.5)

    def test_another_context_limit_ends_earlier_epochs(self):
        ends = Ends()
        made = spaces(ends)
        made.enter(caller(), MODEL, {}, 0.0)
        for unchanged in (MODEL, MODEL._replace(template_version="def", context_limit=4096)):
            made.retire(unchanged, ResetCause.MODEL_UPDATE, 1.0)
        assert not ends.received
        made.retire(MODEL._replace(context_limit=4096), ResetCause.MODEL_UPDATE, 2.0)
        assert ends.causes == ["model_update"]

    def test_other_models_are_left_alone(self):
        made = spaces()
        before = made.enter(caller(), MODEL._replace(model_id="n"), {}, 0.0)
        assert made.retire(self.NEW, ResetCause.TEMPLATE_CHANGED, 1.0) == []
        assert made.enter(caller(), MODEL._replace(model_id="n"), {}, 1.0) == before


class TestCapacity:
    def test_the_one_unused_for_longest_is_replaced(self):
        ends = Ends()
        made = spaces(ends, max_spaces=2)
        a, _ = salts(made, [caller("a"), caller("b")])
        assert made.enter(caller("a"), MODEL, {}, 1.0).salt == a
        made.enter(caller("c"), MODEL, {}, 2.0)
        assert [end.space.tenant for end in ends.received] == ["tenant:b"]
        assert ends.causes == ["crowded_out"]

    def test_no_tenant_is_displaced_by_many_entries_of_another(self):
        ends = Ends()
        made = spaces(ends, max_spaces=10)
        first = salts(made, [caller("a"), caller("b")])
        for number in range(2000):
            made.enter(caller("many", scope=str(number)), MODEL, {}, 1.0)
        assert salts(made, [caller("a"), caller("b")], now=2.0) == first
        assert {end.space.tenant for end in ends.received} == {"tenant:many"}
        made.reset(SpaceSelection(tenant="a"), MANUAL, 3.0, tenant=tenant("a"))
        for number in range(2000):
            made.enter(caller("many", scope=str(number)), MODEL, {}, 4.0)
        assert "tenant:a" in {epoch.space.tenant for epoch, alive in made.shown() if not alive}

    def test_of_tenants_with_equally_many_the_one_unused_for_longest_loses_its_first(self):
        ends = Ends()
        made = spaces(ends, max_spaces=4)
        salts(made, [caller("a", scope="1"), caller("b", scope="1"), caller("a", scope="2"), caller("b", scope="2")])
        salts(made, [caller("a", scope="1")])
        made.enter(caller("c"), MODEL, {}, 1.0)
        made.enter(caller("c", scope="2"), MODEL, {}, 1.0)
        assert [(end.space.tenant, end.space.scope) for end in ends.received] == [("tenant:b", "1"), ("tenant:a", "2")]

    @pytest.mark.parametrize("owners", [1, 100, 5_000])
    def test_a_new_space_costs_no_more_where_there_are_many(self, owners):
        """Instructions instead of seconds: a count of what the interpreter does, on a machine that is busy, too."""

        def work(made, prefix):
            number = 0

            def count(frame, event, argument):
                nonlocal number
                number += 1
                return count

            before = sys.gettrace()
            sys.settrace(count)
            try:
                for each in range(20):
                    made.enter(caller(f"t{each % owners}", scope=f"{prefix}{each}"), MODEL, {}, 2.0)
            finally:
                sys.settrace(before)
            return number

        few, many = spaces(max_spaces=20), spaces(max_spaces=5_000)
        for made, present in ((few, 600), (many, 5_600)):
            for number in range(present):
                made.enter(caller(f"t{number % owners}", scope=str(number)), MODEL, {}, 1.0)
        assert work(many, "new") < 2 * work(few, "new")

    def test_a_request_that_is_refused_makes_no_space(self):
        made = spaces()
        for fields in ({"cache_salt": "@"}, {"rid": "x"}):
            with pytest.raises(BadRequest):
                made.enter(caller(), MODEL, fields, 0.0)
        assert not list(made.shown())

    def test_ended_epochs_are_kept_for_a_while_and_late_answers_count(self):
        made = spaces()
        entered = made.enter(caller(), MODEL, {}, 0.0)
        made.reset(SpaceSelection(), MANUAL, 1.0)
        made.on_settled(answer(entered.id))
        ((epoch, alive),) = made.shown()
        assert (epoch.figures.requests, alive) == (1, False)
        for number in range(2000):
            made.enter(caller(), MODEL, {}, float(number))
            made.reset(SpaceSelection(), MANUAL, float(number))
        assert len(list(made.shown())) == 500
        made.on_settled(answer(entered.id))  # forgotten meanwhile


class TestFile:
    def test_another_process_goes_on_where_the_last_one_ended(self):
        made = spaces()
        before = salts(made, [caller("a"), caller("b")], now=100.0)
        made.reset(SpaceSelection(tenant="b"), MANUAL, 101.0, tenant=tenant("b"))
        later = spaces()
        later.load(json.loads(json.dumps(made.dump())), 102.0)
        a, b = salts(later, [caller("a"), caller("b")], now=103.0)
        assert a == before[0]
        assert b != before[1]
        assert [(epoch.space.tenant, alive) for epoch, alive in later.shown()] == [
            ("tenant:b", True),
            ("tenant:a", True),
            ("tenant:b", False),
        ]

    def test_what_was_over_meanwhile_is_over(self):
        made = spaces()
        (before,) = salts(made, [caller()], now=100.0)
        later = spaces()
        later.load(made.dump(), 200.0)
        assert [alive for _, alive in later.shown()] == [False]
        assert salts(later, [caller()], now=200.0) != [before]

    def test_an_epoch_is_new_even_if_the_clock_was_set_back(self):
        made = spaces()
        (before,) = salts(made, [caller()], now=1e9)
        made.reset(SpaceSelection(), MANUAL, 1e9)
        later = spaces()
        later.load(made.dump(), 1e8)
        assert salts(later, [caller()], now=1e8) != [before]
        assert later.dump()["last_epoch"] > made.dump()["last_epoch"]

    def test_without_isolation_a_reset_outlives_the_process(self):
        made = spaces(isolation="none")
        made.reset(SpaceSelection(), MANUAL, 100.0)
        later = spaces(isolation="none")
        later.load(made.dump(), 101.0)
        assert later.enter(caller(), MODEL, {}, 102.0) == made.enter(caller(), MODEL, {}, 102.0)
        assert later.enter(caller(), MODEL, {}, 102.0).salt

    @pytest.mark.parametrize(
        "broken", [{}, {"last_epoch": "x"}, {"last_epoch": 1, "lives": [{}], "ended": [], "floors": []}]
    )
    def test_something_else_is_refused_and_nothing_taken_over(self, broken):
        made = spaces()
        before = made.enter(caller(), MODEL, {}, 0.0)
        with pytest.raises((KeyError, TypeError, ValueError)):
            made.load(broken, 1.0)
        assert made.enter(caller(), MODEL, {}, 1.0) == before


def answer(space):
    from gateway.core.ids import ModelId, RequestId
    from gateway.core.prompt import TokenSource
    from gateway.core.request import Endpoint
    from gateway.core.settlement import Settlement

    return Settlement(
        request_id=RequestId("r"),
        model=ModelId("m"),
        endpoint=Endpoint.CHAT,
        decision=None,
        ending=None,
        status=200,
        failed_attempts=0,
        failures=(),
        streamed=False,
        token_source=TokenSource.LOCAL,
        prompt_tokens=100,
        predicted_tokens=64,
        cached_tokens=64,
        completion_tokens=1,
        parity=True,
        saved_prefill_seconds=0.5,
        ttft_seconds=None,
        seconds=1.0,
        stages=(),
        space=space,
    )
