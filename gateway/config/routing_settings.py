"""Settings of a request's way to a replica: placement (``placement``), queue (``queue``), forwarding (``relay``)."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class RelaySettings(BaseModel):
    """Time limits and health checks towards the replicas."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)

    connect_timeout_seconds: float = Field(default=5, gt=0)
    """Seconds to open a connection to a replica. Inside one data centre it takes milliseconds. Too small: a replica is
    given up on for one lost packet; too large: requests hang before they go to another replica."""

    first_byte_timeout_seconds: float = Field(default=600, gt=0)
    """Seconds from the request sent to the first content of a stream, or the first byte of another answer, queueing in
    the engine and, without streaming, the whole generation included. Comments that keep a connection alive do not
    end this wait. 600 is the OpenAI client's own limit. Too small: long answers without streaming end in 504."""

    chunk_timeout_seconds: float = Field(default=120, gt=0)
    """Longest silence in seconds between two chunks of an answer that has begun; comments in a stream do not end it. A
    healthy engine sends one every few
    milliseconds, but may pause to let others compute. Too small: answers are cut under load. A client that takes
    nothing of a stream for so long is given up."""

    health_interval_seconds: float = Field(default=2, gt=0)
    """Seconds between two health checks of one replica (`GET /health`), which also read its metrics: its facts, and how
    many requests others have sent there. The time varies by a quarter, so that several gateways do not look at the same
    moments. Too small: load on the engines; too large: replicas that died or came back, and what other gateways send,
    are noticed late."""

    health_timeout_seconds: float = Field(default=2, gt=0)
    """Seconds until an unanswered health check counts as failed. Too small: a replica that is only busy is taken
    out."""

    unhealthy_after: int = Field(default=2, ge=1)
    """Failed health checks in a row that take a replica out; one passed check brings it back. With 1, a single hiccup
    sends a warm replica's requests to cold ones."""

    suspect_seconds: float = Field(default=5, ge=0)
    """How long a replica is left out after it failed a request (refused or broke the connection, fell silent, answered
    502, 503 or 504, or 500 three times in a row), as long as there are others. Then one request at a time tries it; if
    that fails, too, it is left out for twice as long. Too small: a replica that fails at once looks idle and draws
    requests; too large: a replica that was only restarting stays cold for longer than needed."""

    eject_after: int = Field(default=3, ge=1)
    """Failures in a row, each tried again after it was left out, from which on a replica is called `ejected` and not
    `suspect` while it is left out."""

    eject_max_seconds: float = Field(default=60, gt=0)
    """Longest time that a replica is left out at once. Too large: one that works again waits long until it is tried."""

    slow_start_seconds: float = Field(default=15, ge=0)
    """How long a replica that comes up beside others takes to get its whole share of the requests; its cache is empty,
    and it would look like the best place for all that is new at once. 0: it gets all from the first moment on."""

    gone_after_seconds: float = Field(default=60, gt=0)
    """A replica that is down for so long counts as gone, and its cache as lost, in explanations of computed tokens. Too
    small: a replica that only restarts its network counts as gone; too large: what a scaled-down replica held is
    explained as unavailable for too long."""

    total_timeout_seconds: float = Field(default=3600, gt=0)
    """Seconds from the request to the end of its answer; a client may ask for less with the header `x-request-timeout`
    (seconds). What is not done by then ends with 504, or with an error event in a stream that has begun."""

    retries: int = Field(default=2, ge=0)
    """Other replicas that a request is sent to, one after the other, as long as its client has got no content: where no
    connection can be made, the connection breaks, the answer is 502, 503 or 504 or refuses the gateway (its key, say),
    or nothing comes in time. A replica that answers 429 is passed over once. Too small: clients see errors while one
    replica restarts."""

    retry_share: float = Field(default=0.2, ge=0, le=1)
    """How many requests in ten seconds may be sent a second time, as a share of all in that time; those that found no
    connection are not counted, nothing was computed of them. It keeps a fleet that fails from getting twice the
    load."""

    retry_floor: int = Field(default=100, ge=0)
    """So many may be sent a second time in ten seconds in any case: those that a replica had when it died."""

    resume: bool = False
    """Continue a stream of plain text at another replica when its own dies in the middle: its client sees one unbroken
    answer. Only with vLLM; see docs/failover.md for which requests it is. It keeps what each stream in flight has said,
    about 250 bytes a token. False: they end with an error event."""

    forward_authorization: bool = False
    """Send the client's `authorization` header on to replicas, and the others in which clients send keys: `api-key`,
    `cookie`, `ocp-apim-subscription-key`, `x-amz-security-token`, `x-api-key`, `x-auth-token` and `x-goog-api-key`.
    False, because clients hold keys for the gateway, not for the engines; a replica's own `api_key` replaces all."""


class QueueSettings(BaseModel):
    """When requests wait, how many and how long. There is a queue for every model."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)

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


class PlacementSettings(BaseModel):
    """The policy, its weights, and the start values of what is learned from each replica's answers."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)

    policy: Literal["expected_ttft", "round_robin", "least_load", "session"] = "expected_ttft"
    """`expected_ttft`: least queueing plus computing, which is mostly the replica that holds the prefix. The others are
    for comparison: `round_robin` takes turns, `least_load` counts running requests, `session` keeps each session
    (`docs/sessions.md`) on one replica."""

    miss_weight: float = Field(default=2.0, ge=0)
    """How much a token that must be computed again costs beyond the time of the request itself: it holds up those
    behind it and evicts other prefixes. 2.0 gave the best TTFT in replays of a conversation trace. 0 looks at the
    request alone. Too small: prefixes spread thin over the fleet; too large: warm replicas are overloaded."""

    tie_margin: float = Field(default=0.05, ge=0, le=1)
    """Replicas whose cost is within this share of the least count as equal; a hash of the prefix then decides, so that
    several gateways agree. Learned rates are never exact; 0.05 keeps their noise from deciding. Too small: noise
    scatters new prefixes; too large: clearly slower replicas are chosen."""

    prefill_tokens_per_second: float = Field(default=4000, gt=0)
    """Start value: prompt tokens a replica computes per second, until it is measured from its own answers. 4000 is
    careful for an 8B model on one GPU. Wrong by a lot: the first requests weigh queueing against computing wrongly."""

    base_ttft_seconds: float = Field(default=0.02, ge=0)
    """Start value: seconds to the first token of a fully cached prompt, until it is measured from a replica's own
    answers."""

    decode_seconds_per_token: float = Field(default=0.02, ge=0)
    """Start value: seconds per generated token, until it is measured from a replica's own answers. It estimates how
    long a slot stays taken once all of a replica's slots are."""

    slots: int = Field(default=256, ge=1)
    """Sequences that one replica runs at once (vLLM's `--max-num-seqs`); further ones wait for a slot. Too small: a
    replica looks full that is not, and warm prefixes are computed elsewhere; too large: waiting is not foreseen."""
