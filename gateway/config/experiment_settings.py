"""Settings of the experiment: a share of the traffic that is served without the gateway's help, to compare with."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class ExperimentSettings(BaseModel):
    """What is held out, and how."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)

    cold_share: float = Field(default=0, ge=0, le=0.5)
    """Share of the traffic that is held out: served without the gateway's help, so that the rest can be compared with
    it under `GET /admin/api/experiment`. It costs what the gateway saves on that share: at 0.05 and a hit rate of 60 %
    about 3 % of all prompt tokens are computed once more. 0: no experiment. A larger share gives narrower intervals
    sooner."""

    by: Literal["session", "request"] = "session"
    """What is assigned to a group as a whole. `session`: all requests of a session (docs/sessions.md; without one, of a
    conversation by its first messages), so that later turns meet what earlier ones left in the caches. `request`: each
    request by itself; more samples, but with `round_robin` the groups use each other's caches."""

    held_out: Literal["round_robin", "salt"] = "round_robin"
    """How held-out requests are served. `round_robin`: replicas take turns and no rule changes the prompt, as behind a
    plain load balancer; engines reuse what happens to be there. `salt`: every request gets a random `cache_salt`, so
    that nothing is reused: the cost without any prefix caching."""
