"""Decodes a large batch of KV events in portions, so that it does not block the event loop.

A batch of tens of megabytes, or one event with a million hashes, takes a second to decode. Large batches are cut into
events by a walk over their bytes, and long events into several shorter, equivalent ones.
"""

from array import array
from collections.abc import Generator
from typing import Any

import msgspec
from msgspec import msgpack

from gateway.core.kv_events import BlockRemoved, EventBatch, KvEvent, UnknownEvent
from gateway.engines.extras import read_extra_keys
from gateway.engines.kv_event_batches import (
    FIELDS,
    TYPE_CHARACTERS,
    UNREADABLE_ERRORS,
    BatchUnreadable,
    RemovedForm,
    StoredForm,
    block_name,
    decode_event,
    normal_form,
    open_batch,
    read_adapter,
    read_medium,
    read_rank,
    read_stored,
    read_timestamp,
)
from gateway.engines.msgpack_walk import PORTION, Walk

_PORTION_BYTES = 16 * 1024
"""Bytes decoded in one portion of work: about a millisecond."""

_EVENT_BYTES = 128
"""Cost of an event in bytes in addition to its size."""

_OPENED_AT_ONCE = 256 * 1024
"""Batches up to this size are cut into events in one call."""

_LONG_EVENT = 32 * 1024
"""Events longer than this are decoded in portions."""

_MAX_EVENTS = 262_144
_MAX_EVENT_BYTES = 16 * 1024 * 1024
_MAX_NAMES = 1_000_000
_MAX_TOKENS = 2_000_000
"""Events of a batch; bytes, blocks and tokens of one event. Twice what the longest prompts (a million tokens) need; a
scheduler step of an engine makes a hundredth of it. What exceeds them is unreadable."""

_MAX_UNSPLIT_TOKENS = 131_072
"""Tokens of one block, or of a run that cannot be split because the engine kept only some of its blocks; blocks that
have extra keys."""

_MAX_FIELDS = 64
_MAX_FIELD_BYTES = 1024 * 1024
"""Fields of an event or a batch, and bytes of any of them besides hashes and tokens."""

_LISTS = ("block_hashes", "token_ids")

_decode_numbers = msgpack.Decoder(list[int]).decode


class BatchReader:
    """Decodes a batch a portion at a time.

    Args:
        payload: The last frame of an event message.
    """

    def __init__(self, payload: bytes) -> None:
        self._steps = _batch(payload)

    def read(self) -> EventBatch | None:
        """Decode one portion. Returns the batch once all of it is decoded.

        Raises:
            BatchUnreadable: the payload is no batch, or exceeds a limit.
        """
        done = 0
        try:
            while done < _PORTION_BYTES:
                done += next(self._steps)
        except StopIteration as end:
            batch: EventBatch = end.value
            return batch
        except UNREADABLE_ERRORS as error:
            raise BatchUnreadable(f"no batch of KV events: {error}") from error
        return None


Steps = Generator[int, None, Any]
"""A computation that yields the size of each portion in bytes."""


def _batch(payload: bytes) -> Steps:
    events: list[KvEvent] = []
    if len(payload) <= _OPENED_AT_ONCE:
        timestamp, raws, rank = open_batch(payload)
        for raw in raws:
            yield from _add_event(bytes(raw), events)
        return EventBatch(timestamp, events, rank)
    walk = Walk(payload)
    count = walk.array()
    names = ["ts", "events", "data_parallel_rank"] if count is not None else None
    pairs = count if count is not None else walk.map()
    if pairs is None or pairs > _MAX_FIELDS:
        raise BatchUnreadable(f"neither an array nor a map with at most {_MAX_FIELDS} fields")
    fields: dict[str, Any] = {}
    for number in range(pairs):
        if names is None:
            name = msgpack.decode((yield from _skip(walk, 1, _MAX_FIELD_BYTES)), type=str)
        else:
            name = names[number] if number < len(names) else ""
        if name == "events":
            events = []
            yield from _read_events(walk, events)
            fields["events"] = events
        else:
            raw = yield from _skip(walk, 1, _MAX_FIELD_BYTES)
            if name in ("ts", "data_parallel_rank", "attn_dp_rank"):
                fields[name] = msgpack.decode(raw)
    if walk.at != len(payload) or "events" not in fields or "ts" not in fields:
        raise BatchUnreadable("something is missing, or follows behind the end")
    rank = read_rank(fields.get("data_parallel_rank"))
    if rank is None and names is None:
        rank = read_rank(fields.get("attn_dp_rank"))
    return EventBatch(read_timestamp(fields["ts"]), events, rank)


def _read_events(walk: Walk, events: list[KvEvent]) -> Steps:
    count = walk.array()
    if count is None or count > _MAX_EVENTS:
        raise BatchUnreadable(f"events that are no array of at most {_MAX_EVENTS}")
    for _ in range(count):
        yield from _add_event((yield from _skip(walk, 1, _MAX_EVENT_BYTES)), events)


def _add_event(raw: bytes, events: list[KvEvent]) -> Steps:
    if len(raw) <= _LONG_EVENT:
        events.append(decode_event(raw))
        yield _EVENT_BYTES + len(raw)
        return
    found: dict[str, Any] = {}
    try:
        events += yield from _long_event(Walk(raw), found)
    except UNREADABLE_ERRORS:
        kind = found.get("type")
        events.append(UnknownEvent(kind[:TYPE_CHARACTERS] if isinstance(kind, str) else "unreadable"))


def _long_event(walk: Walk, found: dict[str, Any]) -> Steps:
    """One event as several.

    Args:
        walk: At its beginning.
        found: Filled with its fields.
    """
    lists: dict[str, Any] = {}
    positions = walk.array()
    if positions is not None:
        if not 0 < positions <= _MAX_FIELDS:
            raise ValueError(f"an event of {positions} fields")
        found["type"] = kind = msgpack.decode((yield from _skip(walk, 1, _MAX_FIELD_BYTES)), type=str)
        fields = FIELDS.get(kind, ())
        for number in range(positions - 1):
            yield from _field(walk, fields[number] if number < len(fields) else None, found, lists)
        event = normal_form([kind, *(found.get(field) for field in fields[: positions - 1])])
    else:
        pairs = walk.map() or 0
        if pairs > _MAX_FIELDS:
            raise ValueError(f"an event of {pairs} fields")
        for _ in range(pairs):
            name = msgpack.decode((yield from _skip(walk, 1, _MAX_FIELD_BYTES)), type=str)
            yield from _field(walk, name, found, lists)
        event = normal_form(dict(found))
    names = lists.get("block_hashes")
    if names is None:
        raise ValueError("an event without block hashes")
    if event["type"] == "BlockRemoved":
        return _removed(msgspec.convert(event, RemovedForm), names)
    if event["type"] == "BlockStored":
        return _stored(msgspec.convert(event, StoredForm), names, lists.get("token_ids", array("I")))
    raise ValueError("an event of an unknown type")


def _field(walk: Walk, name: str | None, found: dict[str, Any], lists: dict[str, Any]) -> Steps:
    if name in _LISTS and (count := walk.array()) is not None:
        read = _read_names if name == "block_hashes" else _read_tokens
        lists[name] = yield from read(walk, count)
        found[name] = []
        return
    raw = yield from _skip(walk, 1, _MAX_EVENT_BYTES)
    if name is not None:
        if len(raw) > _MAX_FIELD_BYTES:
            raise ValueError(f"{name} takes more than {_MAX_FIELD_BYTES} bytes")
        found[name] = msgpack.decode(raw)
        yield len(raw)


def _read_names(walk: Walk, count: int) -> Steps:
    if count > _MAX_NAMES:
        raise ValueError(f"more than {_MAX_NAMES} blocks")
    names: list[int] = []
    while len(names) < count:
        names += [block_name(value) for value in (yield from _values(walk, min(count - len(names), PORTION)))]
    return names


def _read_tokens(walk: Walk, count: int) -> Steps:
    if count > _MAX_TOKENS:
        raise ValueError(f"more than {_MAX_TOKENS} tokens")
    tokens = array("I")
    while len(tokens) < count:
        values = yield from _values(walk, min(count - len(tokens), PORTION))
        if isinstance(values[0], list):
            values = [first for first, _ in values]
        tokens.extend(array("I", msgspec.convert(values, list[int])))
    return tokens


def _values(walk: Walk, count: int) -> Steps:
    """The next values of an array."""
    raw = b"\xdd" + count.to_bytes(4, "big") + (yield from _skip(walk, count, _MAX_EVENT_BYTES))
    yield len(raw)
    try:
        return _decode_numbers(raw)
    except ValueError:
        return msgpack.decode(raw)


def _skip(walk: Walk, values: int, max_bytes: int) -> Steps:
    steps = walk.skip(values, max_bytes)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value
        yield _PORTION_BYTES // 2


def _removed(form: RemovedForm, names: list[int]) -> list[KvEvent]:
    medium, group = read_medium(form.medium, form.locality), form.group_idx or 0
    return [BlockRemoved(names[at : at + PORTION], medium, group) for at in range(0, len(names), PORTION)]


def _stored(form: StoredForm, names: list[int], tokens: "array[int]") -> list[KvEvent]:
    size, parent, extra_keys = form.block_size, form.parent_block_hash, form.extra_keys
    if tokens and size > _MAX_UNSPLIT_TOKENS:
        raise ValueError("a block is too long")
    if tokens and (size <= 0 or len(tokens) != len(names) * size):
        if len(tokens) > _MAX_UNSPLIT_TOKENS:
            raise ValueError("a run with missing blocks is too long")
        form.block_hashes, form.token_ids = names, list(tokens)
        return [read_stored(form)]
    salt, extras = "", None
    if extra_keys and any(extra_keys):
        if len(extra_keys) > _MAX_UNSPLIT_TOKENS:
            raise ValueError("extra_keys is too long")
        salt, extras = read_extra_keys(extra_keys, len(names), read_adapter(form), begins_prompt=parent is None)
        form.extra_keys = []
    blocks = max(PORTION // size, 1) if tokens else PORTION
    events: list[KvEvent] = []
    for at in range(0, len(names), blocks):
        end = at + blocks
        form.block_hashes, form.token_ids = names[at:end], list(tokens[at * size : end * size])
        form.parent_block_hash = names[at - 1] if at else parent
        event = read_stored(form)
        if not event.tokens:  # tokens that ``read_stored`` omits in the first part are omitted in all
            tokens = array("I")
        own = extras[at:end] if extras is not None else None
        events.append(event._replace(salt=event.salt or salt, extras=own if own and any(own) else None))
    return events
