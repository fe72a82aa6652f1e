"""A request as the index of references reads it: frame, messages, group; and the keys by which others are found."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from gateway.explain.prompt_text import PromptText
from gateway.explain.reference.frame import Frame
from gateway.explain.reference.packed_ids import PackedIds
from gateway.explain.reference.reference_index import KeptRequest, Thread, feature_keys
from gateway.explain.reference.shared_texts import SharedTexts

_REQUEST_BYTES = 900


@dataclass(slots=True)
class KeptEntry:
    """A kept request with its index keys.

    Attributes:
        kept: The request, without its ids.
        ids: Its ids.
        group: Number of its group; None if it has no skeleton.
        keys: Its keys in the index.
        digests: Digests of its messages, as in ``Thread``.
        before: Number of the previous turn of its conversation; None if unknown.
        size: Bytes of its own data.
    """

    kept: KeptRequest
    ids: PackedIds
    group: int | None
    keys: tuple[int, ...]
    digests: tuple[int, ...]
    before: int | None
    size: int


class PromptReading:
    """The parts of a request by which others are found.

    Attributes:
        text: Its prompt.
        tenant: Its tenant.
        frame: Its frame.
        thread: Its messages.
        group: Number of its group; None if it has no skeleton.
    """

    def __init__(self, text: PromptText, tenant: str, frame: Frame, texts: SharedTexts) -> None:
        self.text = text
        self.tenant = tenant
        self.frame = frame
        self.thread = Thread(tenant, text, frame.skeleton, texts.digests)
        self.group = None if frame.skeleton is None else hash((tenant, "group", frame.skeleton))

    @cached_property
    def features(self) -> Sequence[int]:
        """``feature_keys`` of the frame."""
        return feature_keys(self.tenant, self.frame)


def line(kept: KeptRequest) -> tuple[str, ...]:
    """What the turns of a conversation share, unless it changed; a turn before a change is kept."""
    return kept.session, kept.agent, kept.model, kept.source


def same_key(kept: KeptRequest) -> int:
    """Key of requests with the same prompt. The hash of a message is remembered with it."""
    return hash((kept.tenant, kept.model, "same", kept.text.messages, kept.text.tools))


def session_key(kept: KeptRequest) -> int:
    """Key of the requests of an agent of a session."""
    return hash((kept.tenant, "session", kept.session, kept.agent))


def narrower(group: int, kept: KeptRequest) -> tuple[int, int]:
    """Keys of a group's requests: those of the same model and source, and those of the same model."""
    return hash((group, kept.model, kept.source)), hash((group, kept.model))


def beginning_keys(tenant: str, frame: Frame) -> Sequence[int]:
    """Keys of requests whose frames begin with the same words."""
    return [hash((tenant, "beginning", each)) for each in frame.beginnings]


def own_bytes(kept: KeptRequest, ids: PackedIds) -> int:
    """Memory of a request besides its messages, its tools and the pieces of its ids."""
    parts = len(kept.text.messages) + len(kept.text.tools) + len(ids.pieces)
    size = _REQUEST_BYTES + len(kept.session) + len(kept.agent) + len(kept.conversation) + 8 * parts
    for reply in kept.replies:
        size += 2 * len(reply.text or "") + len(reply.ids or b"") + 200
    for name, value in kept.text.arguments.items():
        size += len(name) + 2 * len(value) + 100
    return size
