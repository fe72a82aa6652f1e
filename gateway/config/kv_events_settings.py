"""Settings of the KV event feeds of the engines."""

from pydantic import BaseModel, ConfigDict, Field


class IngestSettings(BaseModel):
    """How the engines' KV events are followed."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True, use_attribute_docstrings=True
    )

    silent_after_seconds: float = Field(default=5, gt=0)
    """Seconds after which a replica whose events should come and do not (no connection to its event socket, or requests
    computed and no events) is reported and its cache is predicted instead. Too small: an engine that is busy with a
    very long prompt is reported; too large: wrong predictions go unnoticed."""

    replay_timeout_seconds: float = Field(default=3, gt=0)
    """Seconds without a message after which a replay of past events counts as failed. Engines answer from a buffer in
    milliseconds. Too small: a busy engine's history is given up, and its holdings have to be learned again."""

    probe_seconds: float = Field(default=5, gt=0)
    """Seconds without events after which the engine is asked whether any were missed (one small message, where it has a
    replay socket). Too small: needless work for idle engines; too large: events lost at the end of a burst are noticed
    late."""

    max_batch_mib: int = Field(default=16, ge=1, le=1024)
    """Largest event batch that is taken from a replica, in MiB. A scheduler step of an engine makes some KiB, and a few
    MiB where it evicts a lot. A larger batch breaks the connection, and the blocks known from the replica's events are
    learned again. Too small: replicas with huge steps are never followed; too large: a broken engine can fill the
    memory."""
