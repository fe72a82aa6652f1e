"""What is kept of a request to compare later ones with."""

from dataclasses import dataclass
from typing import Literal

from gateway.core.explanation import ReplyChoice, SpaceKey
from gateway.explain.prompt_text import PromptText

ChosenBy = Literal["session", "conversation", "skeleton", "similar"]


@dataclass(frozen=True, slots=True)
class KeptRequest:
    """A request.

    Attributes:
        request_id: Its id.
        at: When it was over, Unix seconds.
        tenant: Id of the tenant; requests of different tenants are never compared.
        model: Id of the model.
        source: Client family.
        session: As the client named it; empty for none.
        where: Its prefix space.
        text: Its prompt.
        ids: The prompt's token ids, little-endian u32.
        replies: What was answered.
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
    """The earlier request one is compared with.

    Attributes:
        reference: The earlier one.
        chosen_by: What they have in common.
        same_conversation: Whether one conversation holds both, so that its history may have been edited.
    """

    reference: KeptRequest
    chosen_by: ChosenBy
    same_conversation: bool
