"""Data of a request kept for comparison with later ones."""

from dataclasses import dataclass
from typing import Literal

from gateway.core.explanation import ReplyChoice, SpaceKey
from gateway.explain.prompt_text import PromptText

ChosenBy = Literal["session", "conversation", "skeleton", "similar"]


@dataclass(frozen=True, slots=True)
class KeptRequest:
    """A request kept for comparison.

    Attributes:
        request_id: Its id.
        at: End of the request, Unix seconds.
        tenant: Id of the tenant; requests of different tenants are never compared.
        model: Id of the model.
        source: Client family.
        session: Session named by the client; empty for none.
        where: Its prefix space.
        text: Its prompt.
        ids: The prompt's token ids, little-endian u32.
        replies: Replies of the engine.
    """

    request_id: str
    at: float
    tenant: str
    model: str
    source: str
    session: str
    where: SpaceKey
    text: PromptText
    ids: bytes
    replies: tuple[ReplyChoice, ...] = ()


@dataclass(frozen=True, slots=True)
class ReferenceMatch:
    """The earlier request to compare with.

    Attributes:
        reference: The earlier request.
        chosen_by: What both have in common.
        same_conversation: Whether both belong to one conversation, so a difference is an edit of its history.
    """

    reference: KeptRequest
    chosen_by: ChosenBy
    same_conversation: bool
