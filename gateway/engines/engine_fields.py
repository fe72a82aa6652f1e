"""Request fields that reach beyond their own request: into the engine, to an adapter, or to cached data of others.

The first two kinds, in vLLM (``vllm/v1/request.py``): ``vllm_xargs`` becomes the sampling parameters' ``extra_args``,
out of which the engine core takes ``kv_transfer_params``, ``ec_transfer_params`` and ``kv_cache_report_mode``. The last
one, ``full``, has reused blocks published as stored again, and never as removed: a follower of the events then counts
them as held for ever. The engine's own names share their prefixes.

SGLang (``entrypoints/openai/protocol.py``): ``custom_logit_processor`` is Python code that the engine runs;
``lora_path`` names an adapter that is put on top of ``model``.

Fields that name cached data, bypassing the separation by ``cache_salt``:

vLLM 0.32.0: ``kv_transfer_params`` goes to the KV connector, where ``remote_block_ids`` fetch any blocks that another
engine holds (``kv_connector/v1/nixl``); its ``prompt_token_ids`` only replace the rendered prompt.
``ec_transfer_params`` does the same for encoder outputs. A media part's ``uuid`` is its key in the caches of processed
and encoded media (``multimodal/processing``, ``v1/core/encoder_cache_manager.py``), which use no salt: it fetches or
replaces what another request sent under it.

SGLang (``entrypoints/openai/protocol.py``): ``session_params`` continues any session by its id; the
``bootstrap_*`` fields and ``disagg_prefill_dp_rank`` fetch what another engine computed; ``ngram_corpus_id`` has drafts
made from any loaded corpus; two running requests with one ``rid`` may get each other's answers.
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
"""The fields, and the members that an object in them may have without naming cached data."""


def names_cached(fields: Mapping[str, Any]) -> str | None:
    """The field of a request that names cached data, in the API's dotted form; None if there is none.

    Args:
        fields: Its body, parsed.
    """
    for name in _HARMLESS.keys() & fields.keys():
        value = fields[name]
        if value is not None and not (isinstance(value, dict) and value.keys() <= _HARMLESS[name]):
            return name
    messages = fields.get("messages")
    for m, message in enumerate(messages if isinstance(messages, list) else ()):
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list):
            for p, part in enumerate(content):
                if isinstance(part, dict) and part.get("uuid") is not None:
                    return f"messages[{m}].content[{p}].uuid"
    return None


_EXTRA_ARGUMENTS = "vllm_xargs"
_ENGINES_OWN = ("kv_", "ec_")
_CODE = "custom_logit_processor"
_ADAPTERS = ("lora_path",)


def acts_on_engine(fields: Mapping[str, Any]) -> str | None:
    """The field of a request that acts on the engine itself, in the API's dotted form; None if there is none.

    Args:
        fields: Its body, parsed.
    """
    if fields.get(_CODE) is not None:
        return _CODE
    arguments = fields.get(_EXTRA_ARGUMENTS)
    names = arguments if isinstance(arguments, dict) else ()
    return next((f"{_EXTRA_ARGUMENTS}.{name}" for name in names if name.startswith(_ENGINES_OWN)), None)


def names_adapter(fields: Mapping[str, Any]) -> str | None:
    """The field of a request that names an adapter in addition to ``model``; None if there is none.

    Args:
        fields: Its body, parsed.
    """
    return next((name for name in _ADAPTERS if fields.get(name) is not None), None)
