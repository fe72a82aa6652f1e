"""The tree against a plain model: a dictionary of blocks, each with the time of its last use and its depth."""

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.index.radix_tree import RadixTree


def chain(*names):
    """Hashes of a path: equal paths give equal hashes, as chained hashes do."""
    return [hash(("path", *names[: n + 1])) % 2**63 for n in range(len(names))]


def run(tree, names, now=0.0):
    """One request from dispatch to its end."""
    node = tree.insert(chain(*names), now)
    tree.computed(node)
    tree.release(node)


def held(tree, *names, now=0.0):
    return tree.find(chain(*names), len(names), now)[0]


class Model:
    """Blocks by path; eviction takes the least recently used, of those the deepest, never one in use."""

    def __init__(self, capacity):
        self.capacity = capacity
        self.stamp = {}
        self.pins = {}
        self.clock = 0

    def begin(self, path):
        for n in range(1, len(path) + 1):
            self.stamp.setdefault(path[:n], self.clock)
            self.pins[path[:n]] = self.pins.get(path[:n], 0) + 1
        self.evict()

    def end(self, path):
        self.clock += 1
        for n in range(1, len(path) + 1):
            self.stamp[path[:n]] = self.clock
            self.pins[path[:n]] -= 1
        self.evict()

    def evict(self):
        while len(self.stamp) > self.capacity:
            free = [p for p in self.stamp if not self.pins.get(p)]
            if not free:
                return
            oldest = min(self.stamp[p] for p in free)
            # Among blocks of one stamp those of one branch go tail first; which branch is first does not matter to
            # any of them, so operations below keep stamps unique per branch.
            del self.stamp[max((p for p in free if self.stamp[p] == oldest), key=len)]

    def held(self, path):
        return next((n for n in range(len(path)) if path[: n + 1] not in self.stamp), len(path))


paths = st.lists(st.integers(0, 2), min_size=1, max_size=9).map(tuple)


@settings(max_examples=2 * settings.default.max_examples)
@given(
    operations=st.lists(st.tuples(st.booleans(), paths), max_size=40),
    capacity=st.integers(1, 30),
    questions=st.lists(paths, min_size=5, max_size=10),
)
def test_any_order_of_requests_leaves_the_tree_equal_to_the_model(operations, capacity, questions):
    tree, model = RadixTree(capacity, 30.0), Model(capacity)
    running = []
    for start, path in operations:
        if start or not running:
            node = tree.insert(chain(*path), 0.0)
            tree.computed(node)
            model.begin(path)
            running.append((node, path))
        else:
            node, ended = running.pop(0)
            tree.release(node)
            model.end(ended)
        assert tree.blocks == len(model.stamp)
        for question in questions:
            assert held(tree, *question) == model.held(question)


def test_prefix_is_found_up_to_the_first_difference():
    tree = RadixTree(100, 30.0)
    run(tree, "abcdef")
    run(tree, "abcxyz")
    assert held(tree, *"abcdef") == 6
    assert held(tree, *"abcdxx") == 4
    assert held(tree, *"abcxyzzz") == 6
    assert held(tree, *"ab") == 2
    assert held(tree, *"x") == 0
    assert tree.blocks == 9


def test_end_of_the_oldest_prompt_goes_first():
    tree = RadixTree(8, 30.0)
    run(tree, "abcd")
    run(tree, "wxyz")
    run(tree, "mn")
    assert held(tree, *"abcd") == 2
    assert held(tree, *"wxyz") == 4


def test_a_hit_makes_its_blocks_young_again():
    tree = RadixTree(8, 30.0)
    run(tree, "abcd")
    run(tree, "wxyz")
    run(tree, "ab")
    run(tree, "mn")
    assert held(tree, *"abcd") == 2
    run(tree, "op")
    assert held(tree, *"ab") == 2
    assert held(tree, *"wxyz") == 2


def test_blocks_of_running_requests_are_not_evicted():
    tree = RadixTree(4, 30.0)
    node = tree.insert(chain(*"abcd"), 0.0)
    run(tree, "wxyz")
    assert held(tree, *"abcd") == 4
    assert held(tree, *"wxyz") == 0
    tree.release(node)
    run(tree, "wxyz")
    assert held(tree, *"abcd") == 0


def test_speculative_blocks_count_only_for_a_while():
    tree = RadixTree(100, 30.0)
    tree.insert(chain(*"abc"), now=0.0)
    assert held(tree, *"abc", now=30.0) == 3
    assert held(tree, *"abc", now=30.1) == 0
    tree.insert(chain(*"abc"), now=31.0)
    assert held(tree, *"abc", now=40.0) == 3


def test_withdrawn_request_takes_only_what_it_alone_brought():
    tree = RadixTree(100, 30.0)
    run(tree, "ab")
    first = tree.insert(chain(*"abcd"), 0.0)
    second = tree.insert(chain(*"abcdef"), 0.0)
    tree.withdraw(second)
    assert held(tree, *"abcdef") == 4
    tree.withdraw(first)
    assert held(tree, *"abcdef") == 2
    assert tree.blocks == 2


def test_withdrawn_request_leaves_what_a_later_one_computed():
    tree = RadixTree(100, 30.0)
    first = tree.insert(chain(*"abcd"), 0.0)
    second = tree.insert(chain(*"abcdef"), 0.0)
    tree.computed(second)
    tree.withdraw(first)
    assert held(tree, *"abcdef", now=1e9) == 6


def test_forgetting_by_age_spares_younger_and_running_blocks():
    tree = RadixTree(100, 30.0)
    run(tree, "abcd")
    run(tree, "wxyz")
    old = tree.clock
    run(tree, "mnop")
    node = tree.insert(chain(*"wxyzz"), 0.0)
    assert tree.forget_until(old) == 4
    assert held(tree, *"abcd") == 0
    assert held(tree, *"wxyzz") == 5
    assert held(tree, *"mnop") == 4
    tree.release(node)


def test_smaller_capacity_takes_effect_at_once():
    tree = RadixTree(100, 30.0)
    run(tree, "abcdefgh")
    tree.resize(3)
    assert held(tree, *"abcdefgh") == 3


def test_list_of_leaves_stays_short_when_nothing_is_ever_evicted():
    tree = RadixTree(10_000, 30.0)
    for turn in range(5000):
        run(tree, ("a", turn % 7))
    assert len(tree._leaves) < 200


def test_walk_that_begins_at_a_known_node_ends_where_a_walk_from_the_root_does():
    tree = RadixTree(100, 30.0)
    run(tree, "abcd")
    depth, node = tree.find(chain(*"abxy"), 4, 0.0)
    assert (depth, tree.find(chain(*"abcd"), 4, 0.0, below=node)[0]) == (2, 4)
    end = tree.insert(chain(*"abcdef"), 0.0)
    assert tree.find(chain(*"abcdefgh"), 8, 0.0, below=end) == tree.find(chain(*"abcdefgh"), 8, 0.0)
    longer = tree.insert(chain(*"abcdefgh"), 0.0, below=end)
    assert held(tree, *"abcdefgh") == 8
    assert tree.insert(chain(*"abcdefgh"), 0.0) is longer
    assert tree.blocks == 8


def test_walk_that_begins_at_an_evicted_or_cut_node_loses_nothing():
    tree = RadixTree(4, 30.0)
    gone = tree.insert(chain(*"abcd"), 0.0)
    tree.release(gone)
    run(tree, "wxyz")
    assert held(tree, *"abcd") == 0
    node = tree.insert(chain(*"abcd"), 0.0, below=gone)
    assert held(tree, *"abcd") == 4
    tree.release(node)
    tree.resize(2)
    assert held(tree, *"abcd") == 2
    tree.resize(4)
    tree.insert(chain(*"abcd"), 0.0, below=node)
    assert held(tree, *"abcd") == 4
    assert tree.blocks == 4


def test_unfinished_block_occupies_capacity_while_its_request_runs():
    tree = RadixTree(4, 30.0)
    run(tree, "wxyz")
    node = tree.insert(chain(*"ab"), 0.0, partial=True)
    assert (tree.blocks, held(tree, *"wxyz")) == (4, 1)
    tree.release(node, partial=True)
    assert tree.blocks == 3
    node = tree.insert(chain(*"mn"), 0.0, partial=True)
    assert (tree.blocks, held(tree, *"wxyz"), held(tree, *"ab")) == (4, 0, 1)
    tree.withdraw(node, partial=True)
    assert tree.blocks == 1
