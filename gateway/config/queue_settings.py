"""Settings of the queue: requests that wait in the gateway while all replicas are busy."""

from pydantic import BaseModel, ConfigDict, Field


class QueueSettings(BaseModel):
    """When requests wait, how many and how long. There is a queue for every model."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True, use_attribute_docstrings=True
    )

    busy_seconds: float = Field(default=1.0, gt=0, le=600)
    """A replica with more seconds of work in front of a new request than this gets no more for now: the request waits
    in the gateway, where the order is fair between tenants and where it can still go to whichever replica is best when
    its turn comes. Too small: replicas run out of work between two requests; too large: one tenant's flood is felt by
    all, because what was sent is computed in the order of arrival."""

    max_requests: int = Field(default=1000, ge=1, le=10_000)
    """Most requests that wait for one model. One more, and the newest of the tenant with the most waiting, measured by
    its `share`, is answered with 429. Their bodies are held in memory. Too small: short peaks are refused that could
    have been served; too large: requests wait whose clients have given up."""

    max_seconds: float = Field(default=60, ge=0, le=3600)
    """Longest time that a request waits; then it is answered with 429. 0: none waits, all are sent at once, and the
    engines' own queues take them. Too small: peaks are refused; too large: clients give up first and ask again."""
