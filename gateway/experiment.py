"""The experiment: assigns requests to a group, and reports what they took to the explain worker, which compares.

The groups are assigned by a hash, so that several gateways agree, a session stays in its group across restarts, and a
larger share only adds sessions to the held-out group.
"""

import base64
import os
import time
from collections.abc import Mapping
from typing import Any

import msgspec
from xxhash import xxh3_64_intdigest as _hash

from gateway.config.experiment_settings import ExperimentSettings
from gateway.core.experiment_group import Assignment, ExperimentGroup, ExperimentSample
from gateway.core.explanation import MEASUREMENT
from gateway.core.outcome import Ending
from gateway.core.request import ChatRequest
from gateway.core.settlement import Settlement

_HASHES = 1 << 64
_SALT_BYTES = 24
_LEADING_MESSAGES = 32
"""Messages that are searched for the first one of the user."""


class Experiment:
    """Assigns requests to groups.

    Args:
        settings: The settings.

    Attributes:
        is_running: Whether any request is held out.
    """

    def __init__(self, settings: ExperimentSettings) -> None:
        self.configure(settings)

    def configure(self, settings: ExperimentSettings) -> None:
        """Apply other settings."""
        self._settings = settings
        self._limit = round(settings.cold_share * _HASHES)
        self.is_running = self._limit > 0

    def assigned(self, request: ChatRequest, source: str) -> ChatRequest:
        """The request with its group; unchanged without an experiment, and if it fills a cache or measures.

        Args:
            request: The request.
            source: Its client family.
        """
        if not self.is_running or request.warmup_target is not None or source == MEASUREMENT:
            return request
        session = self._session_of(request)
        # Hashed once more: otherwise the group would follow from a number that a client can choose.
        if _hash(session.to_bytes(8, "little")) < self._limit:
            salted = self._settings.held_out == "salt"
            assignment = Assignment(ExperimentGroup.HELD_OUT, session, salted)
        else:
            assignment = Assignment(ExperimentGroup.GATEWAY, session)
        return msgspec.structs.replace(request, assignment=assignment)

    def _session_of(self, request: ChatRequest) -> int:
        """Number of what is assigned as a whole."""
        if self._settings.by == "request":
            return _hash(request.request_id.encode())
        tenant = request.caller.tenant.id
        if request.session is not None:
            return _hash(f"{tenant}\0session\0{request.session}".encode())
        return _hash(_opening(request.fields), _hash(f"{tenant}\0opening".encode()))


def random_salt() -> str:
    """A ``cache_salt`` that no other request has."""
    return base64.urlsafe_b64encode(os.urandom(_SALT_BYTES)).decode()


def _opening(fields: Mapping[str, Any]) -> bytes:
    """What all turns of a conversation have in common: the messages up to the user's first one, or the prompt."""
    messages = fields.get("messages")
    if not isinstance(messages, list):
        return msgspec.json.encode(fields.get("prompt"))
    leading = messages[:_LEADING_MESSAGES]
    for number, message in enumerate(leading):
        if isinstance(message, dict) and message.get("role") == "user":
            return msgspec.json.encode(leading[: number + 1])
    return msgspec.json.encode(leading)


def experiment_sample(settled: Settlement, assignment: Assignment) -> ExperimentSample:
    """What a finished request of the experiment took, for the explain worker."""
    cached = settled.predicted_tokens if settled.cached_tokens is None else settled.cached_tokens
    return ExperimentSample(
        at=time.time(),
        model=settled.model,
        group=assignment.group,
        session=assignment.session,
        failed=settled.status >= 500 or settled.ending not in (Ending.COMPLETE, Ending.CLIENT_GONE),
        complete=settled.status == 200 and settled.ending is Ending.COMPLETE,
        prompt_tokens=settled.prompt_tokens,
        cached_tokens=min(cached, settled.prompt_tokens),
        confirmed=settled.cached_tokens is not None,
        ttft_seconds=settled.ttft_seconds,
        seconds=settled.seconds,
        prefill_seconds_per_token=settled.prefill_seconds_per_token,
    )
