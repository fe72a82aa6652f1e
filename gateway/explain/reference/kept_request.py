"""A request as it is kept for comparison, and what is found for another one."""

from typing import Literal

import msgspec

from gateway.core.explanation import ReplyChoice, SpaceKey
from gateway.explain.prompt_text import PromptText

ChosenBy = Literal["session", "conversation", "skeleton", "similar", "beginning"]


class KeptRequest(msgspec.Struct, frozen=True):
    """A request kept for comparison.

    Attributes:
        request_id: Its id.
        at: End of the request, Unix seconds.
        tenant: Id of the tenant; requests of different tenants are never compared.
        model: Id of the model.
        source: Client family.
        session: Session named by the client, if that is one conversation; empty for none.
        where: Its prefix space.
        text: Its prompt.
        ids: The prompt's token ids, little-endian u32.
        replies: Replies of the engine.
        agent: The subagent that sent it; empty for the main one.
        conversation: As in ``Explanation``.
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
    agent: str = ""
    conversation: str = ""


class ReferenceMatch(msgspec.Struct, frozen=True):
    """The earlier request to compare with.

    Attributes:
        reference: The earlier request.
        chosen_by: What both have in common.
        same_conversation: Whether both belong to one conversation, so a difference is an edit of its history.
        equal: Length of the common prefix of both prompts, in tokens.
        is_rest_new: Whether it is known that nothing behind the common prefix stands in the reference as well.
    """

    reference: KeptRequest
    chosen_by: ChosenBy
    same_conversation: bool
    equal: int
    is_rest_new: bool = False
