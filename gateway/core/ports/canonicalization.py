"""What is done to a prompt before it goes on."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from gateway.core.canonical import Canonicalized, RuleName
from gateway.core.ids import ModelId
from gateway.core.personal_findings import FindingReport
from gateway.core.request import ChatRequest
from gateway.core.tenant import Tenant

T = TypeVar("T")


class Screen(Protocol):
    """Looks for personal data in prompts."""

    async def inspect(self, request: ChatRequest) -> ChatRequest:
        """The request as it may go on: itself, or with what was found masked.

        Looks only where the tenant's mode needs it before the request goes on (``mask``, ``block``).

        Raises:
            BadRequest: the tenant's mode is ``block``, and something was found.
            Overloaded: its text is long, and too many of the tenant's long texts wait to be read.
        """
        ...

    def answered(self, request: ChatRequest, space: str) -> None:
        """The request was answered: count what is found in it. Returns at once; the work is done later.

        Args:
            request: The request as the client sent it, before anything was masked.
            space: Short name of its prefix space.
        """
        ...

    def reports(self, space: str) -> Sequence[FindingReport]:
        """What was found in the prompts of a space, most frequent first."""
        ...


@dataclass(frozen=True, slots=True)
class CanonicalRequest:
    """A request after canonicalization.

    Attributes:
        request: As it goes on; the very object that was given if nothing was changed.
        told: What is handed over to be explained.
        edits: How many places each applied rule changed.
        cut_messages: Messages left out of a conversation that became too long.
        affinity: Requests of one go to one replica where nothing else decides; None if the client says nothing.
    """

    request: ChatRequest
    told: Canonicalized
    edits: Mapping[RuleName, int] = field(default_factory=dict)
    cut_messages: int = 0
    affinity: str | None = None


class Canonicalizes(Protocol):
    """Puts what repeats in prompts in front of what varies, where that is configured."""

    async def canonical(self, request: ChatRequest) -> CanonicalRequest:
        """The request as it may go on. Never fails: what cannot be canonicalized goes on as it came.

        Raises:
            Overloaded: its text is long, and too many of the tenant's long texts wait to be read.
        """
        ...


class LongTexts(Protocol):
    """Threads for work on long texts. Tenants take turns, by the bytes they bring; see ``queue.threads``."""

    async def run(self, tenant: Tenant, size: int, function: Callable[..., T], *arguments: object) -> T:
        """Call a function in a thread, when it is the tenant's turn. Cancelled before that, it is never called.

        Args:
            tenant: On whose behalf.
            size: Bytes, or characters, of the text it works on.
            function: The function; must be safe to call in a thread.
            arguments: What it is called with.

        Raises:
            Overloaded: too much waits, most of it of this tenant.
        """
        ...


class ContextStore(Protocol):
    """Context blocks of conversations, for several gateways. Must not raise; nobody waits for it longer than it takes
    to answer without them."""

    async def fetch(self, keys: Sequence[bytes]) -> Mapping[bytes, str]:
        """Those that are there; empty also if the store cannot be reached in time."""
        ...

    def keep(self, blocks: Mapping[bytes, str]) -> None:
        """Keep some, later. Returns at once."""
        ...


class ModelTexts(Protocol):
    """What is known of models' texts."""

    def token_counter(self, model: ModelId, tenant: str) -> Callable[[str], int] | None:
        """Counts a text's tokens; None where no tokenizer in this process can. Safe to use from several threads.

        Args:
            model: Whose tokens.
            tenant: For whom: counts that are remembered are remembered for one tenant alone.
        """
        ...

    def context_limit(self, model: ModelId) -> int:
        """Most tokens of prompt and answer it takes; 0 if unknown."""
        ...
