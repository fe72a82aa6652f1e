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


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 30)), unique_by=lambda each: each[1]), st.data())
def test_the_latest_numbers_of_a_key_are_found_until_they_are_discarded(added, data):
    postings = Postings()
    for key, number in added:
        postings.add((key,), number)
    gone = data.draw(st.lists(st.sampled_from(added))) if added else []
    for key, number in gone:
        postings.discard((key,), number)
    for asked in range(5):
        left = [number for key, number in added if key == asked and (key, number) not in gone]
        assert (asked in postings) == bool(left)
        assert list(postings.latest(asked, 2)) == left[::-1][:2]
