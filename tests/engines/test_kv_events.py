"""KV events as both engines send them, and as none should."""

import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from gateway.core.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch, Medium, UnknownEvent
from gateway.engines import BatchUnreadable, decode_batch, media_extra

BIG = 2**64 - 3
TOKENS = list(range(100, 108))


def packed(*tokens):
    return struct.pack(f"<{len(tokens)}I", *tokens)


def encoded(*events, rank=0):
    return msgspec.msgpack.encode([12.5, list(events), rank])


def decoded(event):
    (found,) = decode_batch(encoded(event)).events
    return found


def stored(**fields):
    """A map as vLLM 0.32 sends it: two blocks of four tokens."""
    return {
        "type": "BlockStored",
        "block_hashes": [BIG, 7],
        "parent_block_hash": None,
        "token_ids": TOKENS,
        "block_size": 4,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": [None, None],
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    } | fields


def without(event, *names):
    return {name: value for name, value in event.items() if name not in names}


# --- batches ---------------------------------------------------------------------------------------------------------


def test_a_batch_of_vllm():
    payload = encoded(
        stored(), {"type": "BlockRemoved", "block_hashes": [7], "medium": "GPU"}, {"type": "AllBlocksCleared"}, rank=3
    )
    assert decode_batch(payload) == EventBatch(
        12.5,
        [
            BlockStored([BIG, 7], None, packed(*TOKENS), 4, Medium.GPU, 0, False),
            BlockRemoved([7], Medium.GPU, 0),
            AllBlocksCleared(),
        ],
        3,
    )


@pytest.mark.parametrize("name", ["data_parallel_rank", "attn_dp_rank"])
def test_a_batch_may_be_a_map(name):
    payload = msgspec.msgpack.encode({"ts": 1, "events": [{"type": "AllBlocksCleared"}], name: 2})
    assert decode_batch(payload) == EventBatch(1.0, [AllBlocksCleared()], 2)


@pytest.mark.parametrize(
    "batch", [[1.0, []], [1.0, [], None], [1.0, [], -1], [1.0, [], "2"], {"ts": 1.0, "events": []}]
)
def test_a_batch_need_not_name_its_rank(batch):
    assert decode_batch(msgspec.msgpack.encode(batch)) == EventBatch(1.0, [], None)


def test_what_follows_the_rank_is_left_alone():
    assert decode_batch(msgspec.msgpack.encode([1.0, [], 1, {"epoch": 3}])).rank == 1


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc0",
        b"\xff" * 8,
        msgspec.msgpack.encode([1.0]),
        msgspec.msgpack.encode(["now", []]),
        msgspec.msgpack.encode([1.0, "events"]),
        msgspec.msgpack.encode({"events": []}),
        encoded(stored())[:-9],
        encoded(stored()) + b"\x00",
        b"\x92\x01\xdd\xff\xff\xff\xff",
        b"\x91" * 100_000,
        b"\x92\x01" + b"\x91" * 100_000,
        b"\x83\xa2ts\x01\xa6events\x90\xa1x" + b"\x91" * 100_000,
    ],
)
def test_what_is_no_batch_is_refused(payload):
    with pytest.raises(BatchUnreadable):
        decode_batch(payload)


# --- the same event in every form ------------------------------------------------------------------------------------

POSITIONAL = [
    "BlockStored",
    [BIG, 7],
    5,
    TOKENS,
    4,
    None,
    "GPU",
    None,
    [None, None],
    1,
    "mamba",
    64,
    "LOCAL",
    None,
    "s",
]
NAMED = BlockStored([BIG, 7], 5, packed(*TOKENS), 4, Medium.GPU, 1, True, window=1)


def test_positional_with_all_fields():
    assert decoded(POSITIONAL) == NAMED


@pytest.mark.parametrize("length", range(5, len(POSITIONAL)))
def test_positional_without_trailing_fields(length):
    expected = NAMED._replace(
        group=1 if length > 9 else 0, sparse=True if length > 10 else None, window=1 if length > 10 else 0
    )
    assert decoded(POSITIONAL[:length]) == expected


def test_positional_removals_and_clears():
    batch = decode_batch(encoded(["BlockRemoved", [1]], ["BlockRemoved", [2], "CPU", 3, "LOCAL"], ["AllBlocksCleared"]))
    assert batch.events == [BlockRemoved([1]), BlockRemoved([2], Medium.CPU, 3), AllBlocksCleared()]


def test_maps_with_all_defaults_left_out():
    assert decoded({"type": "BlockStored", "block_hashes": [1], "token_ids": [1, 2], "block_size": 2}) == BlockStored(
        [1], None, packed(1, 2), 2
    )
    assert decoded({"type": "BlockRemoved", "block_hashes": [1]}) == BlockRemoved([1])


def test_fields_of_later_versions_are_left_alone():
    assert decoded(stored(novelty={"a": [1]}, session_id="s", kv_cache_spec_sliding_window=64)) == decoded(stored())


def test_sglang_s_salted_array():
    event = ["BlockStored", [-3, 7], None, TOKENS, 4, None, "GPU", {"cache_salt": "tenant", "session_id": "s"}]
    assert decoded(event) == BlockStored([BIG, 7], None, packed(*TOKENS), 4, salt="tenant")


def test_sglang_s_map():
    event = {
        "type": "BlockStored",
        "block_hashes": [-3, 7],
        "parent_block_hash": -1,
        "token_ids": TOKENS,
        "block_size": 4,
        "lora_id": None,
        "medium": "CPU_PINNED",
        "cache_salt": "tenant",
        "lora_name": "sql",
        "session_id": "s",
    }
    assert decoded(event) == BlockStored(
        [BIG, 7], 2**64 - 1, packed(*TOKENS), 4, Medium.CPU, adapter="sql", salt="tenant"
    )


def test_pairs_of_tokens_count_as_their_first():
    pairs = [[token, token + 1] for token in TOKENS]
    assert decoded(stored(token_ids=pairs)) == decoded(stored())


hashes = st.binary(min_size=8, max_size=40)


@given(parent=hashes, first=hashes, second=hashes)
def test_a_block_has_one_name_for_every_form_of_hash(parent, first, second):
    """vLLM sends the last eight bytes as a number, or all of them; SGLang reads them as a signed number."""
    seen = []
    for form in (
        lambda value: value,
        lambda value: int.from_bytes(value, "big") & (2**64 - 1),
        lambda value: int.from_bytes(value[-8:], "big", signed=True),
    ):
        event = stored(block_hashes=[form(first), form(second)], parent_block_hash=form(parent))
        removed = {"type": "BlockRemoved", "block_hashes": [form(parent), form(first), form(second)]}
        batch = decode_batch(encoded(event, removed))
        assert [batch.events[0].parent, *batch.events[0].names] == list(batch.events[1].names)
        assert decode_batch(encoded(list(event.values()), list(removed.values()))).events == batch.events
        seen.append(batch.events[1].names)
    assert seen[0] == seen[1] == seen[2]


def test_short_hashes_have_names_too():
    assert decoded(stored(block_hashes=[b"ab", b""])).names == [xxh3_64_intdigest(b"ab"), xxh3_64_intdigest(b"")]


# --- fields ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reported", "medium"),
    [
        (None, Medium.GPU),
        ("GPU", Medium.GPU),
        ("gpu", Medium.GPU),
        ("CPU", Medium.CPU),
        ("CPU_PINNED", Medium.CPU),
        ("CPU_TIER1", Medium.CPU),
        ("STORAGE", Medium.DISK),
        ("DISK", Medium.DISK),
        ("EXTERNAL", Medium.DISK),
        ("mooncake", Medium.DISK),
    ],
)
def test_media_tiers(reported, medium):
    assert decoded(stored(medium=reported)).medium is medium
    assert decoded({"type": "BlockRemoved", "block_hashes": [1], "medium": reported}).medium is medium


def test_a_tier_of_another_machine_is_as_far_as_a_disk():
    assert decoded(stored(medium="CPU", locality="REMOTE")).medium is Medium.DISK
    removed = {"type": "BlockRemoved", "block_hashes": [1], "medium": "CPU", "locality": "REMOTE"}
    assert decoded(removed).medium is Medium.DISK
    assert decoded(stored(medium="CPU", locality="LOCAL")).medium is Medium.CPU


@pytest.mark.parametrize(
    ("kind", "sparse"),
    [
        ("full_attention", False),
        ("mla_attention", False),
        ("sink_full_attention", False),
        ("sliding_window", True),
        ("sliding_window_mla", True),
        ("chunked_local_attention", True),
        ("mamba", True),
        ("cross_attention", None),
        ("unknown", None),
        ("a_later_one", None),
        (None, None),
    ],
)
def test_which_groups_are_sparse(kind, sparse):
    assert decoded(stored(kv_cache_spec_kind=kind)).sparse is sparse


def test_sparse_groups_have_more_tokens_than_names():
    event = decoded(stored(block_hashes=[7], extra_keys=[None], group_idx=2, kv_cache_spec_kind="sliding_window"))
    assert (event.names, event.tokens, event.group) == ([7], packed(*TOKENS), 2)


def test_placeholders_of_offloading_connectors():
    event = without(
        stored(block_hashes=[7], token_ids=[], block_size=0, medium="CPU", group_idx=1),
        "extra_keys",
        "kv_cache_spec_kind",
    )
    assert decoded(event) == BlockStored([7], None, b"", 0, Medium.CPU, 1)


def test_an_adapter_known_by_number_only_is_not_the_base_model():
    adapters = {decoded(stored(lora_id=number)).adapter for number in (None, 1, 2)}
    assert len(adapters) == 3
    assert "" in adapters


# --- extra keys ------------------------------------------------------------------------------------------------------


def test_the_salt_stands_in_the_first_block_of_a_prompt():
    event = decoded(stored(extra_keys=[["tenant"], None]))
    assert (event.salt, event.extras) == ("tenant", None)


def test_adapter_media_and_salt_come_apart():
    event = decoded(
        stored(lora_name="sql", extra_keys=[["sql", ["cat", 2], "tenant"], ["sql", ["cat", -2], ["dog", 1]]])
    )
    assert (event.adapter, event.salt) == ("sql", "tenant")
    assert event.extras == [media_extra([("cat", 2)]), media_extra([("cat", -2), ("dog", 1)])]


def test_an_adapter_alone_leaves_no_extras():
    event = decoded(stored(lora_name="sql", extra_keys=[["sql"], ["sql"]]))
    assert (event.adapter, event.salt, event.extras) == ("sql", "", None)


def test_a_string_further_on_is_no_salt():
    """Older versions name media by their identifier alone."""
    later = decoded(stored(parent_block_hash=5, extra_keys=[["cat"], None]))
    second = decoded(stored(extra_keys=[None, ["cat"]]))
    assert later.salt == second.salt == ""
    assert later.extras == [second.extras[1], None]
    assert second.extras == [None, later.extras[0]]


def test_embeddings_are_distinguished():
    one, other = (decoded(stored(extra_keys=[["tenant", digest], None])) for digest in (b"\1" * 32, b"\2" * 32))
    assert one.salt == other.salt == "tenant"
    assert one.extras != other.extras


items = st.lists(st.tuples(st.text(), st.integers(-(2**31), 2**31)), min_size=1, max_size=4)


@given(one=items, other=items)
def test_media_extras_are_equal_only_for_equal_items(one, other):
    assert (media_extra(one) == media_extra(other)) == (one == other)
    assert decoded(stored(extra_keys=[[list(item) for item in one], None])).extras == [media_extra(one), None]


def test_extra_keys_of_unknown_blocks_are_not_guessed():
    assert decoded(stored(extra_keys=[[["cat", 0]]])) == UnknownEvent("BlockStored")
    assert decoded(stored(extra_keys=[None])) == decoded(stored())


def test_an_offloaded_beginning_without_extra_keys_could_be_salted():
    """vLLM's offloading connector leaves the keys out, salted or not: then only the names identify the blocks."""
    event = without(stored(medium="CPU"), "extra_keys")
    assert decoded(event).tokens == b""
    assert decoded(event).names == [BIG, 7]
    assert decoded(event | {"parent_block_hash": 5}).tokens == packed(*TOKENS)
    assert decoded(event | {"extra_keys": [["tenant"], None]}).tokens == packed(*TOKENS)
    sglang = without(event | {"cache_salt": "tenant"}, "group_idx", "kv_cache_spec_kind")
    assert decoded(sglang).tokens == packed(*TOKENS)


# --- odd events ------------------------------------------------------------------------------------------------------

ODD = [
    ({"type": "BlockMoved", "block_hashes": [1]}, "BlockMoved"),
    (["BlockMoved", [1]], "BlockMoved"),
    ({"type": "x" * 500}, "x" * 64),
    ({"type": 5}, "unreadable"),
    ({}, "unreadable"),
    ([], "unreadable"),
    ([[1]], "unreadable"),
    (None, "unreadable"),
    ("BlockStored", "unreadable"),
    (["BlockStored"], "BlockStored"),
    (["BlockStored", [1], None, [1, 2]], "BlockStored"),
    (without(stored(), "block_size"), "BlockStored"),
    (without(stored(), "block_hashes"), "BlockStored"),
    (stored(block_hashes=["a"]), "BlockStored"),
    (stored(block_hashes=[1.5, 2]), "BlockStored"),
    (stored(block_hashes=[True, 2]), "BlockStored"),
    (stored(block_hashes=7), "BlockStored"),
    (stored(parent_block_hash="a"), "BlockStored"),
    (stored(token_ids=TOKENS[:7]), "BlockStored"),
    (stored(token_ids=[2**32, *TOKENS]), "BlockStored"),
    (stored(token_ids=[-1, *TOKENS]), "BlockStored"),
    (stored(token_ids=[[1, 2, 3]] * 8), "BlockStored"),
    (stored(token_ids=[[1, 2], 3] * 4), "BlockStored"),
    (stored(token_ids="abcdefgh"), "BlockStored"),
    (stored(block_size=0), "BlockStored"),
    (stored(block_size=-4), "BlockStored"),
    (stored(block_size="4"), "BlockStored"),
    (stored(medium=3), "BlockStored"),
    (stored(extra_keys=["ab", None]), "BlockStored"),
    (stored(extra_keys=5), "BlockStored"),
    ({"type": "BlockRemoved"}, "BlockRemoved"),
    ({"type": "BlockRemoved", "block_hashes": [None]}, "BlockRemoved"),
]


@pytest.mark.parametrize(("event", "kind"), ODD)
def test_an_odd_event_does_not_cost_its_neighbours(event, kind):
    batch = decode_batch(encoded(stored(), event, {"type": "AllBlocksCleared"}, rank=1))
    assert batch.events == [decoded(stored()), UnknownEvent(kind), AllBlocksCleared()]
    assert batch.rank == 1


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        (b"\x81\xa4type\xa1\xff", "unreadable"),  # text that is none
        (b"\x82\xa4type\xabBlockStored\x80\x01", "unreadable"),  # a map as a key
        (b"\x82\xa4type\xabBlockStored\xa1x" + b"\xc7\x0c\xff" + b"\xff" * 12, "BlockStored"),  # a time without sense
    ],
)
def test_an_event_that_cannot_be_decoded_does_not_cost_its_neighbours(event, kind):
    cleared = msgspec.msgpack.encode({"type": "AllBlocksCleared"})
    payload = b"\x93\x01\x93" + cleared + event + cleared + b"\x00"
    assert decode_batch(payload).events == [AllBlocksCleared(), UnknownEvent(kind), AllBlocksCleared()]


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=40)
    | st.sampled_from(["BlockStored", "BlockRemoved", "AllBlocksCleared"]),
    lambda inner: (
        st.lists(inner, max_size=6)
        | st.dictionaries(st.text(max_size=6) | st.sampled_from([*stored(), "cache_salt", "locality", "ts"]), inner)
    ),
    max_leaves=25,
)
mutated = st.builds(lambda name, value: stored() | {name: value}, st.sampled_from([*stored(), "locality"]), anything)
arrays = st.builds(
    lambda at, value: [*POSITIONAL[:at], value, *POSITIONAL[at + 1 :]], st.integers(0, len(POSITIONAL)), anything
)


def well_formed(event):
    match event:
        case BlockStored():
            assert all(0 <= name < 2**64 for name in event.names)
            assert event.parent is None or 0 <= event.parent < 2**64
            assert not event.tokens or len(event.tokens) // 4 >= len(event.names) * event.block_size > -1
            assert event.extras is None or len(event.extras) == len(event.names)
        case BlockRemoved():
            assert all(0 <= name < 2**64 for name in event.names)
        case UnknownEvent(kind):
            assert len(kind) <= 64
        case _:
            assert event == AllBlocksCleared()


@given(st.lists(mutated | arrays | anything, max_size=4), anything)
def test_odd_batches_decode_event_by_event(events, rank):
    batch = decode_batch(msgspec.msgpack.encode([1.0, events, rank]))
    assert len(batch.events) == len(events)
    for event, raw in zip(batch.events, events, strict=True):
        well_formed(event)
        alone = decode_batch(msgspec.msgpack.encode([1.0, [raw]])).events[0]
        assert event == alone


@given(st.binary(max_size=200) | anything.map(msgspec.msgpack.encode))
def test_any_bytes_are_decoded_or_refused(payload):
    try:
        batch = decode_batch(payload)
    except BatchUnreadable:
        return
    for event in batch.events:
        well_formed(event)


@given(st.data())
def test_a_damaged_payload_is_decoded_or_refused(data):
    payload = bytearray(encoded(stored(extra_keys=[[["cat", 1], "salt"], None]), POSITIONAL, {"type": "BlockRemoved"}))
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    try:
        batch = decode_batch(bytes(payload))
    except BatchUnreadable:
        return
    for event in batch.events:
        well_formed(event)
