"""Reads the workload of a simulation from a trace, and refuses one whose recording was interrupted."""

from collections.abc import Iterator
from itertools import chain
from typing import BinaryIO, NamedTuple

from gateway.evaluation.bad_input import BadInput
from gateway.evaluation.simulation.simulation_workload import Workload
from gateway.evaluation.workload_trace import TraceReader, TraceRequest

_GAP_SECONDS = 600.0
_GAP_INTERVALS = 100
"""Without requests for longer than both, this many times the mean interval and ``_GAP_SECONDS``, counts as a gap."""


class _Gap(NamedTuple):
    """The longest time without requests, and the lines around it."""

    seconds: float = 0.0
    before: int = 0
    after: int = 0


class WorkloadReader:
    """Reads a trace into memory.

    Args:
        source: The file.
        name: Its name, for messages.

    Attributes:
        has_sessions: Whether a request names its session.
    """

    def __init__(self, source: BinaryIO, name: str) -> None:
        self._reader = TraceReader(source, name)
        self._name = name
        self._gap = _Gap()
        self.has_sessions = False

    def read(self, *, allow_gaps: bool = False) -> Workload:
        """The workload.

        Args:
            allow_gaps: Also read a trace that was interrupted.

        Raises:
            BadInput: The file is no trace, holds no request, or was interrupted.
        """
        # The block size is known from the first request on.
        requests = self._requests()
        first = next(requests, None)
        if first is None:
            raise BadInput(f"{self._name}: no requests: expected a trace with one JSON object a line for each request")
        workload = Workload.of(chain((first,), requests), self._reader.block_size)
        if not workload.requests:
            raise BadInput(f"{self._name}: every `input_length` is 0: expected prompts with at least one token")
        if not allow_gaps:
            self._check_gap(workload)
        return workload

    def _requests(self) -> Iterator[TraceRequest]:
        latest, line = 0.0, 0
        for request in self._reader:
            if line and request.at - latest > self._gap.seconds:
                self._gap = _Gap(request.at - latest, line, self._reader.lines)
            latest, line = request.at, self._reader.lines
            self.has_sessions = self.has_sessions or bool(request.session)
            yield request

    def _check_gap(self, workload: Workload) -> None:
        gap, others = self._gap, len(workload) - 2
        if gap.seconds <= _GAP_SECONDS or others < 1:
            return
        interval = (workload.seconds - gap.seconds) / others
        if gap.seconds > _GAP_INTERVALS * interval:
            raise BadInput(
                f"{self._name}: no requests for {gap.seconds / 60:,.0f} minutes between lines {gap.before} and "
                f"{gap.after}, where {interval:,.3g} s is usual: cut the trace there, or use it as it is with --gaps"
            )
