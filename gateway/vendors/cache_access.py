"""Request fields by which a client can name cached blocks itself, past the look-up that a ``cache_salt`` separates.

vLLM 0.32.0: ``kv_transfer_params`` goes to the KV connector, where ``remote_block_ids`` fetch whatever blocks another
engine holds (``kv_connector/v1/nixl``); its ``prompt_token_ids`` only replace the rendered prompt. SGLang
(``entrypoints/openai/protocol.py``): ``session_params`` continues a session by its id, whoever opened it, and the
``bootstrap_*`` fields fetch what another engine computed.
"""

from collections.abc import Mapping
from typing import Any

_HARMLESS: Mapping[str, frozenset[str]] = {
    "kv_transfer_params": frozenset({"prompt_token_ids"}),
    "session_params": frozenset(),
    "bootstrap_host": frozenset(),
    "bootstrap_port": frozenset(),
    "bootstrap_room": frozenset(),
}
"""The fields, and what an object in them may hold without naming blocks."""


def names_blocks(fields: Mapping[str, Any]) -> str | None:
    """The field of a request that names cached blocks; None if there is none.

    Args:
        fields: Its body, parsed.
    """
    for name in _HARMLESS.keys() & fields.keys():
        value = fields[name]
        if value is not None and not (isinstance(value, Mapping) and value.keys() <= _HARMLESS[name]):
            return name
    return None
