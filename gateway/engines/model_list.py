"""The engines' ``GET /v1/models``."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import orjson

_MAX_ID = 1000
"""Characters of an id that are kept; ids are written to the log."""

_MAX_CARD_BYTES = 64 * 1024
_MAX_CARD_BRACKETS = 64
"""A card goes into the gateway's own model list. vLLM's has 600 bytes and four brackets."""


class ModelList(NamedTuple):
    """The models that a replica serves.

    Attributes:
        ids: Names of the models, in its order.
        card: Its entry for the requested model; None if it has none.
    """

    ids: Sequence[str]
    card: Mapping[str, Any] | None


class _Entry(msgspec.Struct):
    id: str


class _Ids(msgspec.Struct):
    data: list[_Entry]


class _Entries(msgspec.Struct):
    data: list[msgspec.Raw]


_ids = msgspec.json.Decoder(_Ids)
_entries = msgspec.json.Decoder(_Entries)


def parse_models(body: bytes, model: str) -> ModelList:
    """Parse a model list. Only the requested entry is decoded.

    Args:
        body: The response.
        model: The id whose card is wanted; of several with this id the last one counts.

    Raises:
        ValueError: the response is not a model list, or the card exceeds its limits.
    """
    try:
        ids = [entry.id for entry in _ids.decode(body).data]
        if model not in ids:
            return ModelList([each[:_MAX_ID] for each in ids], None)
        raw = bytes(_entries.decode(body).data[len(ids) - 1 - ids[::-1].index(model)])
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if len(raw) > _MAX_CARD_BYTES or raw.count(b"[") + raw.count(b"{") > _MAX_CARD_BRACKETS:
        raise ValueError(f"the entry of {model} is too large")
    return ModelList([each[:_MAX_ID] for each in ids], orjson.loads(raw))
