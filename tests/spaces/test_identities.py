"""An update of a model is distinguished from replicas that differ."""

from gateway.core.ids import ModelId, ReplicaId
from gateway.spaces.engine_identity import EngineIdentities, EngineIdentity

M = ModelId("m")
OLD, NEW = EngineIdentity("org/m-1", "0.32.0"), EngineIdentity("org/m-2", "0.32.0")


def fleet(*first):
    """Replicas r0, r1 and so on that were looked at once."""
    known = EngineIdentities()
    for number, identity in enumerate(first):
        assert not see(known, number, identity)
    known.started()
    return known


def see(known, number, identity):
    return known.seen(ReplicaId(f"r{number}"), M, identity)


def test_nothing_changed():
    known = fleet(OLD, OLD)
    assert not any(see(known, number, OLD) for number in (0, 1, 0, 1))


def test_a_rolling_update_is_one_update_and_so_is_its_undoing():
    known = fleet(OLD, OLD, OLD)
    assert [see(known, number, NEW) for number in (0, 1, 2)] == [True, False, False]
    assert [see(known, number, OLD) for number in (2, 0, 1)] == [True, False, False]


def test_another_release_is_an_update():
    assert see(fleet(OLD), 0, EngineIdentity("org/m-1", "0.33.0"))


def test_replicas_that_differ_from_the_start_are_no_update_until_one_changes():
    known = fleet(OLD, NEW)
    assert not see(known, 1, NEW)
    assert not see(known, 0, OLD)
    assert see(known, 1, EngineIdentity("org/m-3", "0.32.0"))


def test_a_replica_that_joins_with_another_model_is_an_update():
    assert see(fleet(OLD), 1, NEW)
    assert not see(fleet(OLD), 1, OLD)


def test_what_an_engine_does_not_report_is_no_change():
    known = fleet(EngineIdentity("org/m-1", ""))
    assert not see(known, 0, OLD)
    assert not see(known, 0, EngineIdentity("", ""))
    assert not see(known, 0, EngineIdentity("", "0.32.0"))
    assert see(known, 0, EngineIdentity("org/m-2", ""))


def test_models_do_not_concern_each_other():
    known = fleet(OLD)
    assert not known.seen(ReplicaId("other"), ModelId("n"), NEW)


def test_an_update_while_the_gateway_was_away_is_noticed():
    later = EngineIdentities()
    later.load(fleet(OLD, OLD).dump(), {ReplicaId("r0"): M, ReplicaId("r1"): M})
    assert see(later, 0, NEW)
    assert not see(later, 1, NEW)


def test_a_mixed_fleet_stays_one_over_a_restart():
    later = EngineIdentities()
    later.load(fleet(OLD, NEW).dump(), {ReplicaId("r0"): M, ReplicaId("r1"): M})
    assert not see(later, 0, OLD)
    assert not see(later, 1, NEW)


def test_an_update_while_the_gateway_was_away_is_noticed_of_a_replica_that_is_found_later():
    later = EngineIdentities()
    later.load(fleet(OLD, OLD).dump(), {})
    assert later.dump() == fleet(OLD, OLD).dump()  # a gateway that stops before they are found removes nothing
    assert see(later, 0, NEW)
    assert not see(later, 1, NEW)


def test_who_is_not_found_again_is_not_written_down_for_ever():
    later = EngineIdentities()
    later.load(fleet(OLD, OLD).dump(), {})
    see(later, 0, OLD)
    later.started()
    assert list(later.dump()) == ["r0"]


def test_one_that_left_is_not_known_any_more():
    known = fleet(OLD, NEW)
    known.forget(ReplicaId("r1"))
    assert list(known.dump()) == ["r0"]
    assert not see(known, 1, OLD)
