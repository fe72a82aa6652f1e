"""Where and why a request's prompt differs from that of an earlier request that its client names."""

import json
from collections.abc import Mapping

import msgspec


class PromptDiagnosis(msgspec.Struct, frozen=True, gc=False):
    """The result of a comparison. Holds no text of a prompt but names of members.

    Attributes:
        status: ``compared``; ``not_found``: the tenant has sent no such request; ``unavailable``: the prompt of one of
            the requests is not known, or explanations are turned off.
        changed: What the prompts differ in first, else a parameter that changed and costs no token; empty for neither.
            One of ``model``, ``tools``, ``system``, ``messages``, ``context`` (the conversation was shortened),
            ``prompt_cache_key``, ``text_format``, ``reasoning_effort``, ``verbosity``, ``service_tier`` and
            ``parameters``: the others that chat templates read.
        reason: The reason of the difference, else of most tokens in ``fleet``; empty for none.
        place: The first difference in the client's body, such as ``messages[2].content[0]``, ``tools[3]``, ``system``.
        tokens: Tokens that the engine would have read from its cache without the difference, and computes again.
        reusable_tokens: Tokens of the earlier request that the engine could have read: whole blocks.
        fix: What to do about ``reason``.
        fleet: Tokens that are computed again for reasons outside of the prompt, by reason, as predicted.
    """

    status: str = "compared"
    changed: str = ""
    reason: str = ""
    place: str = ""
    tokens: int = 0
    reusable_tokens: int = 0
    fix: str = ""
    fleet: Mapping[str, int] = {}

    def header(self) -> bytes:
        """As compact JSON in ASCII, of less than a KiB: places may hold any characters of the client's names."""
        place = self.place[:200].encode("ascii", "replace").decode()
        return json.dumps(msgspec.structs.asdict(self) | {"place": place}, separators=(",", ":")).encode()


UNAVAILABLE = PromptDiagnosis("unavailable")
NOT_FOUND = PromptDiagnosis("not_found")
EXPLAIN, EXPLAINED = b"x-gateway-explain", b"x-gateway-explained"
"""The request header that names an earlier request, and the response header with the ``PromptDiagnosis``."""
