"""Request fields by which a client names something cached itself, past the look-up that a ``cache_salt`` separates.

vLLM 0.32.0: ``kv_transfer_params`` goes to the KV connector, where ``remote_block_ids`` fetch whatever blocks another
engine holds (``kv_connector/v1/nixl``); its ``prompt_token_ids`` only replace the rendered prompt.
``ec_transfer_params`` does the same for encoder outputs. A media part's ``uuid`` is its key in the caches of processed
and encoded media (``multimodal/processing``, ``v1/core/encoder_cache_manager.py``), which know no salt: it fetches what
another request sent under it, or puts something else in its place.

SGLang (``entrypoints/openai/protocol.py``): ``session_params`` continues a session by its id, whoever opened it; the
``bootstrap_*`` fields and ``disagg_prefill_dp_rank`` fetch what another engine computed; ``ngram_corpus_id`` has drafts
made from a corpus, whoever loaded it; two running requests with one ``rid`` may get each other's
answers.
"""

from collections.abc import Mapping
from typing import Any

_HARMLESS: Mapping[str, frozenset[str]] = {
    "kv_transfer_params": frozenset({"prompt_token_ids"}),
    "ec_transfer_params": frozenset(),
    "session_params": frozenset(),
    "bootstrap_host": frozenset(),
    "bootstrap_port": frozenset(),
    "bootstrap_room": frozenset(),
    "disagg_prefill_dp_rank": frozenset(),
    "ngram_corpus_id": frozenset(),
    "rid": frozenset(),
}
"""The fields, and what an object in them may hold without naming anything."""


def names_cached(fields: Mapping[str, Any]) -> str | None:
    """The field of a request that names something cached, in the API's dotted form; None if there is none.

    Args:
        fields: Its body, parsed.
    """
    for name in _HARMLESS.keys() & fields.keys():
        value = fields[name]
        if value is not None and not (isinstance(value, Mapping) and value.keys() <= _HARMLESS[name]):
            return name
    messages = fields.get("messages")
    for m, message in enumerate(messages if isinstance(messages, list) else ()):
        content = message.get("content") if isinstance(message, Mapping) else None
        if isinstance(content, list):
            for p, part in enumerate(content):
                if isinstance(part, Mapping) and part.get("uuid") is not None:
                    return f"messages[{m}].content[{p}].uuid"
    return None
