"""Changes to a prompt before it is encoded: masking of personal data, canonicalization."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

import msgspec

from gateway.core.canonical import Canonicalized, RuleName
from gateway.core.ids import ModelId
from gateway.core.request import ChatRequest
from gateway.core.tenant import Tenant

T = TypeVar("T")


class CanonicalRequest(msgspec.Struct, frozen=True):
    """A request after canonicalization.

    Attributes:
        request: The changed request; the given object itself if nothing was changed.
        record: The part of the request record about canonicalization.
        edits: How many places each applied rule changed.
        cut_messages: Messages left out of a conversation that became too long.
        affinity: Requests of one affinity are placed at one replica if their costs are equal; None without a hint.
    """

    request: ChatRequest
    record: Canonicalized
    edits: Mapping[RuleName, int] = {}
    cut_messages: int = 0
    affinity: str | None = None


class LongTexts(Protocol):
    """Threads for work on long texts, shared between tenants fairly by bytes; see ``routing.fair_threads``."""

    async def run(self, tenant: Tenant, size: int, function: Callable[..., T], *arguments: object) -> T:
        """Call a function in a thread when it is the tenant's turn. If cancelled before, it is never called.

        Args:
            tenant: The tenant of the request.
            size: Bytes, or characters, of the text it works on.
            function: The function; must be safe to call in a thread.
            arguments: Its arguments.

        Raises:
            Overloaded: too much work waits, most of it of this tenant.
        """
        ...


class ContextStore(Protocol):
    """Context blocks of conversations, shared by several gateways. Must not raise; has a short timeout."""

    async def fetch(self, keys: Sequence[bytes]) -> Mapping[bytes, str]:
        """The blocks that exist; empty also if the store cannot be reached in time."""
        ...

    def keep(self, blocks: Mapping[bytes, str]) -> None:
        """Store blocks in the background. Returns at once."""
        ...


class ModelTexts(Protocol):
    """Token counts and context limits of models."""

    def token_counter(self, model: ModelId, tenant: str) -> Callable[[str], int] | None:
        """A thread-safe function that counts a text's tokens; None without a tokenizer in this process.

        Args:
            model: The model.
            tenant: The tenant; counts are cached per tenant.
        """
        ...

    def context_limit(self, model: ModelId) -> int:
        """Maximum tokens of prompt and answer together; 0 if unknown."""
        ...
