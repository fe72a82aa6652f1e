import struct

import pytest

from gateway.simulator.block_cache import BlockCache, SequenceBlocks


def ids(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}I", *numbers)


def prompt(first: int, length: int) -> bytes:
    return ids(*range(first, first + length))


def begun(cache: BlockCache, tokens: bytes, **options) -> SequenceBlocks:
    table = cache.table(tokens, options.pop("salt", ""))
    assert cache.begin(table, **options)
    return table


def used(cache: BlockCache, tokens: bytes, **options) -> int:
    """Tokens a finished request hit."""
    table = begun(cache, tokens, **options)
    cache.end(table)
    return table.cached_tokens


@pytest.mark.parametrize(("length", "hit"), [(15, 0), (16, 0), (17, 16), (63, 48), (64, 48), (65, 64), (81, 80)])
def test_only_full_blocks_are_hit_and_never_the_last_token(length, hit):
    cache = BlockCache(blocks=32, block_size=16)
    used(cache, prompt(0, length))
    assert used(cache, prompt(0, length)) == hit


def test_one_block_is_the_engines_own():
    cache = BlockCache(blocks=4, block_size=2)
    assert cache.usable_blocks == cache.free_blocks == 3
    assert not cache.begin(cache.table(prompt(0, 7)))
    assert cache.begin(cache.table(prompt(0, 6)))


def test_a_prompt_that_does_not_fit_changes_nothing():
    cache = BlockCache(blocks=4, block_size=2)
    used(cache, prompt(0, 4))
    held = begun(cache, prompt(100, 2))
    assert not cache.begin(cache.table(prompt(0, 6)))
    assert cache.free_blocks == 2
    cache.end(held)
    assert used(cache, prompt(0, 5)) == 4


def test_spare_blocks_stay_free():
    cache = BlockCache(blocks=4, block_size=2)
    assert not cache.begin(cache.table(prompt(0, 4)), spare=2)
    assert cache.begin(cache.table(prompt(0, 4)), spare=1)


def test_the_end_of_a_prompt_is_evicted_before_its_beginning():
    # Blocks 1 2 3 4. A takes 1 2 3 and frees them tail first, so the queue is 4 3 2 1.
    cache = BlockCache(blocks=5, block_size=2)
    used(cache, prompt(0, 6))
    # Two blocks of something else take 4 and 3: only the third block of A is gone.
    used(cache, prompt(100, 3))
    assert used(cache, prompt(0, 7)) == 4


def test_the_least_recently_used_prompt_is_evicted_first():
    # Six usable blocks hold A, B and C, two blocks each. The queue after them: A2 A1 B2 B1 C2 C1.
    cache = BlockCache(blocks=7, block_size=2)
    for first in (0, 100, 200):
        used(cache, prompt(first, 4))
    # Touching A takes A1 out and puts it to the end. Its second block is computed anew (the last token is in it), into
    # the front of the queue, which is A2. The queue: B2 B1 C2 C1 A2' A1.
    assert used(cache, prompt(0, 4)) == 2
    # D takes B2 and B1.
    used(cache, prompt(300, 4))
    assert used(cache, prompt(200, 5)) == 4
    assert used(cache, prompt(100, 5)) == 0


def test_blocks_in_use_are_never_evicted():
    cache = BlockCache(blocks=5, block_size=2)
    held = begun(cache, prompt(0, 4))
    used(cache, prompt(100, 4))
    used(cache, prompt(200, 4))
    assert not cache.begin(cache.table(prompt(300, 6)))
    assert begun(cache, prompt(0, 5)).cached_tokens == 4
    cache.end(held)


def test_a_hit_block_is_no_longer_free():
    cache = BlockCache(blocks=4, block_size=2)
    used(cache, prompt(0, 4))
    begun(cache, prompt(0, 3))
    assert cache.free_blocks == 1
    # Taking the last free block must not take the one that was hit.
    begun(cache, prompt(100, 2))
    assert not cache.begin(cache.table(prompt(200, 1)))


def test_a_shared_block_is_free_only_when_its_last_user_ended():
    cache = BlockCache(blocks=8, block_size=2)
    first = begun(cache, prompt(0, 5))
    second = begun(cache, prompt(0, 5))
    assert second.cached_tokens == 4
    assert cache.free_blocks == 7 - 4
    cache.end(first)
    assert cache.free_blocks == 7 - 3
    cache.end(second)
    assert cache.free_blocks == 7


def test_a_prompt_can_be_hit_from_the_moment_it_began():
    cache = BlockCache(blocks=32, block_size=2)
    begun(cache, prompt(0, 9))
    assert begun(cache, prompt(0, 9)).cached_tokens == 8


def test_equal_blocks_are_kept_twice_and_leave_one_by_one():
    # The last block of an aligned prompt is always computed anew, so the second run makes a copy of it.
    cache = BlockCache(blocks=5, block_size=2)
    used(cache, prompt(0, 4))
    assert cache.cached_blocks == 2
    used(cache, prompt(0, 4))
    assert cache.cached_blocks == 3
    # The queue is 4 2 3 1: block 4 was never used, 2 holds the first copy, 3 the second. Two blocks evict the first.
    used(cache, prompt(100, 3))
    assert used(cache, prompt(0, 5)) == 4


def test_decoded_tokens_are_cached_once_their_block_is_full():
    cache = BlockCache(blocks=32, block_size=4)
    table = begun(cache, prompt(0, 3))
    for token in (3, 4, 5, 6):
        cache.append(table, token)
    assert len(table.blocks) == 2
    assert begun(cache, prompt(0, 9)).cached_tokens == 4
    cache.append(table, 7)
    assert begun(cache, prompt(0, 9)).cached_tokens == 8


def test_a_different_token_before_makes_every_later_block_another_one():
    cache = BlockCache(blocks=32, block_size=2)
    used(cache, ids(1, 2, 3, 4, 5))
    assert used(cache, ids(9, 2, 3, 4, 5)) == 0
    assert used(cache, ids(1, 2, 9, 4, 5)) == 2


def test_salts_never_share_blocks():
    cache = BlockCache(blocks=32, block_size=2)
    used(cache, prompt(0, 9), salt="a")
    assert used(cache, prompt(0, 9), salt="b") == 0
    assert used(cache, prompt(0, 9)) == 0
    assert used(cache, prompt(0, 9), salt="a") == 8


def test_a_request_that_may_not_read_the_cache_still_fills_it():
    cache = BlockCache(blocks=32, block_size=2)
    used(cache, prompt(0, 9))
    assert used(cache, prompt(0, 9), reuse=False) == 0
    assert used(cache, prompt(50, 9), reuse=False) == 0
    assert used(cache, prompt(50, 9)) == 8


def test_reset_forgets_everything_unless_blocks_are_in_use():
    cache = BlockCache(blocks=32, block_size=2)
    held = begun(cache, prompt(0, 9))
    assert not cache.reset()
    assert used(cache, prompt(0, 9)) == 8
    cache.end(held)
    assert cache.reset()
    assert cache.cached_blocks == 0
    assert used(cache, prompt(0, 9)) == 0


def test_adapters_never_share_blocks():
    cache = BlockCache(blocks=32, block_size=2)
    for adapter, salt in (("", "ab"), ("ab", ""), ("b", "a")):
        for expected in (0, 8):
            table = cache.table(prompt(0, 9), salt, adapter)
            assert cache.begin(table)
            cache.end(table)
            assert table.cached_tokens == expected


def test_a_unique_cache_keeps_equal_blocks_once_and_loses_none():
    cache = BlockCache(blocks=5, block_size=2, unique=True)
    first = begun(cache, prompt(0, 4))
    second = begun(cache, prompt(0, 4))
    # The second sequence computes its last block anew and then uses the first one's.
    assert second.cached_tokens == 2
    assert cache.cached_blocks == 2
    assert cache.free_blocks == 2
    cache.end(first)
    assert cache.free_blocks == 2
    cache.end(second)
    assert cache.free_blocks == 4
    assert used(cache, prompt(0, 5)) == 4


def test_a_unique_cache_shares_what_two_answers_fill_alike():
    cache = BlockCache(blocks=8, block_size=2, unique=True)
    first, second = begun(cache, prompt(0, 3)), begun(cache, prompt(0, 3))
    for table in (first, second):
        cache.append(table, 3)
    assert first.blocks[1] is second.blocks[1]
    cache.end(first)
    assert used(cache, prompt(0, 5)) == 4
    cache.end(second)
    assert cache.free_blocks == 7


def test_without_caching_nothing_is_kept():
    cache = BlockCache(blocks=8, block_size=2, caching=False)
    assert used(cache, prompt(0, 5)) == 0
    assert used(cache, prompt(0, 5)) == 0
    assert cache.cached_blocks == 0


def test_a_restart_empties_the_cache_under_running_sequences():
    cache = BlockCache(blocks=8, block_size=2)
    running = begun(cache, prompt(0, 5))
    cache.restart()
    assert used(cache, prompt(0, 5)) == 0
    cache.reset()
    cache.restart()
    for token in (5, 6, 7):
        cache.append(running, token)
    assert cache.cached_blocks == 0
    cache.end(running)
    assert cache.free_blocks == 7


def test_unfinished_block_is_taken_before_anything_that_could_be_reused():
    cache = BlockCache(blocks=6, block_size=4)  # five usable

    def ran(first, length):
        table = cache.table(struct.pack(f"<{length}I", *range(first, first + length)))
        assert cache.begin(table)
        cache.end(table)
        return table.cached_tokens

    ran(0, 10)  # two full blocks and an unfinished one
    ran(100, 9)  # three blocks: the unfinished one and two never used
    assert ran(0, 9) == 8
