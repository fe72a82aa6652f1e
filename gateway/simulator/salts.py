"""The cache salt of a request, by the rules of each engine. Requests with different salts share no block."""

from collections.abc import Mapping
from typing import Any

from gateway.simulator.engine_errors import EngineError

_LONGEST = 128
_FORBIDDEN = frozenset("@/\\\0")


def vllm_salt(fields: Mapping[str, Any]) -> str:
    """``cache_salt``, empty for none, by the rules of vLLM 0.32.0, ``vllm/entrypoints/generate/base/protocol.py``.

    They hold for every endpoint that generates or renders. Raises EngineError.
    """
    salt = fields.get("cache_salt")
    if salt is None:
        return ""
    if not isinstance(salt, str) or not salt or len(salt) > _LONGEST or _FORBIDDEN & set(salt):
        raise EngineError(
            400, f"cache_salt must be 1 to {_LONGEST} characters long and hold none of @ / \\ NUL", "cache_salt"
        )
    return salt


def sglang_salt(fields: Mapping[str, Any]) -> str:
    """``cache_salt`` and ``extra_key``, one behind the other; empty for none. Raises EngineError.

    Any text is valid; an empty one means none. Lists of texts pass the request's validation and fail later. (SGLang
    0.5.23, ``sglang/srt/entrypoints/openai/protocol.py`` and ``serving_base.py``.)
    """
    found = ""
    for name in ("cache_salt", "extra_key"):
        value = fields.get(name)
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            if value:
                raise EngineError(500, f"Internal server error: {name} must be a string, not a list")
        elif isinstance(value, str | None):
            found += value or ""
        else:
            raise EngineError(400, f"{name} must be a string or a list of strings", name)
    return found
