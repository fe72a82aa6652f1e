"""The groups of an experiment, and what each of their requests took."""

from enum import StrEnum

import msgspec


class ExperimentGroup(StrEnum):
    """A group of requests; the value of the response header ``x-gateway-group``."""

    GATEWAY = "gateway"
    """Served as without an experiment."""
    HELD_OUT = "held_out"
    """Served without the gateway's help."""


class HeldOut(StrEnum):
    """Whether a request was held out, as far as its explanation depends on that."""

    NO = ""
    UNROUTED = "unrouted"
    """Replicas took turns."""
    SALTED = "salted"
    """Its random salt made everything cached unreachable, and what it left in a cache is unreachable, too."""


class Assignment(msgspec.Struct, frozen=True, gc=False):
    """The group of a request.

    Attributes:
        group: The group.
        session: Number of the session that is assigned as a whole.
        salted: Whether the request gets a random salt, so that nothing cached is reused.
    """

    group: ExperimentGroup
    session: int
    salted: bool = False

    @property
    def is_held_out(self) -> bool:
        """Whether the request is served without the gateway's help."""
        return self.group is ExperimentGroup.HELD_OUT


class ExperimentSample(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One finished request of an experiment.

    Attributes:
        at: When it was over, Unix seconds.
        model: Id of the model.
        group: Its group.
        session: Number of the session that was assigned as a whole.
        failed: Whether the client got an error of the gateway or of the replica, or an answer that breaks off.
        complete: Whether the client got a complete answer with status 200; only its times are compared.
        prompt_tokens: As in ``Settlement``.
        cached_tokens: As the engine reports, else as predicted.
        confirmed: Whether the engine reported them.
        ttft_seconds: As in ``Settlement``.
        seconds: As in ``Settlement``.
        prefill_seconds_per_token: At the chosen replica, as learned.
    """

    at: float
    model: str
    group: ExperimentGroup
    session: int
    failed: bool
    complete: bool
    prompt_tokens: int
    cached_tokens: int
    confirmed: bool
    ttft_seconds: float | None
    seconds: float
    prefill_seconds_per_token: float
