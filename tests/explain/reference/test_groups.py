"""Finding the group with the most similar frame."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.explain.reference.frame import are_similar
from gateway.explain.reference.reference_index import Groups, Postings

frames = st.lists(st.integers(0, 14), min_size=1, max_size=10, unique=True).map(lambda each: tuple(sorted(each)))


@given(st.lists(frames, max_size=10), frames, st.booleans())
def test_the_most_similar_group_is_that_of_all_compared_one_by_one(known, asked, is_opening):
    groups = Groups()
    for number, features in enumerate(known):
        groups.add(number, features)
    shares = {
        number: 2 * len(set(asked) & set(features)) / (len(asked) + len(features))
        for number, features in enumerate(known)
        if groups.is_similar(number, asked, is_opening=is_opening)
    }
    found = groups.most_similar(asked, is_opening=is_opening)
    assert (found is None) == (not shares)
    if found is not None:
        assert shares[found] == max(shares.values())
        assert are_similar(len(set(asked) & set(known[found])), shares[found], is_opening)


def test_a_removed_group_is_found_no_more():
    groups = Groups()
    groups.add(1, (1, 2, 3))
    groups.remove(1)
    groups.remove(1)
    assert 1 not in groups
    assert groups.most_similar((1, 2, 3), is_opening=False) is None
    assert groups.held_bytes == 0


@given(st.lists(st.integers(0, 9)), st.lists(st.integers(0, 9)))
def test_any_of_several_keys_is_held_if_one_is(held, asked):
    postings = Postings()
    postings.add(held, 1)
    assert postings.holds_any(asked) == any(key in postings for key in asked)
    postings.discard(held, 1)
    assert not postings.holds_any(asked)
