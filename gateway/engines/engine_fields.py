"""Request fields that act on more of an engine than their own request, or choose what computes it.

vLLM (``vllm/v1/request.py``): ``vllm_xargs`` becomes the sampling parameters' ``extra_args``, out of which the engine
core takes ``kv_transfer_params``, ``ec_transfer_params`` and ``kv_cache_report_mode``. The last one, ``full``, has the
blocks that a request reuses published as stored once more, and never as removed: whoever follows the events then
believes that the engine holds them for ever. The engine's own names all begin alike.

SGLang (``entrypoints/openai/protocol.py``): ``custom_logit_processor`` is Python code that the engine runs;
``lora_path`` names an adapter that is put on top of ``model``.
"""

from collections.abc import Mapping
from typing import Any

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
    names = arguments if isinstance(arguments, Mapping) else ()
    return next((f"{_EXTRA_ARGUMENTS}.{name}" for name in names if name.startswith(_ENGINES_OWN)), None)


def names_adapter(fields: Mapping[str, Any]) -> str | None:
    """The field of a request that names an adapter beside ``model``; None if there is none.

    Args:
        fields: Its body, parsed.
    """
    return next((name for name in _ADAPTERS if fields.get(name) is not None), None)
