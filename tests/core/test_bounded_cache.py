"""BoundedCache: limits by entries and weight, time to live, order of eviction."""

from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.bounded_cache import BoundedCache


def test_returns_what_was_stored_and_none_for_the_rest() -> None:
    cache = BoundedCache[str, int](2)
    cache.put("a", 1)
    assert (cache.get("a"), cache.peek("a"), cache.get("b"), cache.peek("b")) == (1, 1, None, None)
    assert ("a" in cache, "b" in cache, len(cache)) == (True, False, 1)


def test_evicts_the_least_recently_used_entry() -> None:
    cache = BoundedCache[str, int](2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert list(cache.items()) == [("a", 1), ("c", 3)]


def test_peek_and_membership_are_no_use() -> None:
    cache = BoundedCache[str, int](2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.peek("a") == 1
    assert "a" in cache
    cache.put("c", 3)
    assert list(cache) == ["b", "c"]


def test_storing_again_replaces_the_value_and_is_a_use() -> None:
    cache = BoundedCache[str, int](2, max_weight=10)
    cache.put("a", 1, weight=4)
    cache.put("b", 2, weight=4)
    cache.put("a", 3, weight=1)
    assert list(cache.items()) == [("b", 2), ("a", 3)]
    assert cache.weight == 5


def test_the_limit_of_weight_evicts_as_many_as_needed() -> None:
    cache = BoundedCache[str, int](max_weight=10)
    for key, weight in (("a", 3), ("b", 3), ("c", 4)):
        cache.put(key, 0, weight=weight)
    assert (list(cache), cache.weight) == (["a", "b", "c"], 10)
    cache.put("d", 0, weight=5)
    assert (list(cache), cache.weight) == (["c", "d"], 9)


def test_an_entry_that_exceeds_the_weight_alone_is_not_kept() -> None:
    cache = BoundedCache[str, int](max_weight=10)
    cache.put("a", 1, weight=3)
    cache.put("b", 2, weight=11)
    assert (len(cache), cache.weight) == (0, 0)


def test_the_age_of_an_entry_counts_from_its_last_use() -> None:
    cache = BoundedCache[str, int](ttl=10)
    cache.put("a", 1, now=100)
    assert cache.get("a", now=110) == 1
    assert cache.get("a", now=120) == 1
    assert cache.peek("a") == 1
    assert cache.get("a", now=130.5) is None
    assert "a" not in cache


def test_limits_may_change() -> None:
    cache = BoundedCache[int, int](3, max_weight=100, ttl=10)
    for key in range(3):
        cache.put(key, key, weight=10)
    cache.max_entries, cache.max_weight, cache.ttl = 2, 15, 20
    cache.put(3, 3, now=5, weight=10)
    assert (list(cache), cache.weight) == ([3], 10)
    assert cache.get(3, now=25) == 3


def test_only_eviction_calls_back() -> None:
    evicted: list[tuple[str, int]] = []
    cache = BoundedCache[str, int](2, ttl=10, on_evict=lambda key, value: evicted.append((key, value)))
    cache.put("a", 1)
    cache.put("a", 2)
    cache.put("b", 3)
    assert cache.pop("b") == 3
    assert cache.get("a", now=11) is None
    assert evicted == []
    for key in ("c", "d", "e"):
        cache.put(key, 0)
    assert evicted == [("c", 0)]
    cache.clear()
    assert evicted == [("c", 0)]


def test_pop_and_clear_give_the_weight_back() -> None:
    cache = BoundedCache[str, int](max_weight=10)
    cache.put("a", 1, weight=4)
    cache.put("b", 2, weight=5)
    assert (cache.pop("a"), cache.pop("a"), cache.weight) == (1, None, 5)
    cache.clear()
    assert (len(cache), cache.weight, cache.get("b")) == (0, 0, None)
    cache.put("b", 2, weight=10)
    assert cache.get("b") == 2


@pytest.mark.parametrize("limit", [1, 3])
@given(steps=st.lists(st.tuples(st.sampled_from(["get", "put", "pop"]), st.integers(0, 5), st.integers(0, 4))))
def test_behaves_as_a_list_in_the_order_of_use(steps: list[tuple[str, int, int]], limit: int) -> None:
    cache = BoundedCache[int, int](limit, max_weight=6)
    model: OrderedDict[int, int] = OrderedDict()
    for step, key, weight in steps:
        if step == "put":
            cache.put(key, weight, weight=weight)
            model.pop(key, None)
            model[key] = weight
            while sum(model.values()) > 6 or len(model) > limit:
                model.popitem(last=False)
        elif step == "get":
            assert cache.get(key) == model.get(key)
            if key in model:
                model.move_to_end(key)
        else:
            assert cache.pop(key) == model.pop(key, None)
        assert list(cache.items()) == list(model.items())
        assert cache.weight == sum(model.values())
