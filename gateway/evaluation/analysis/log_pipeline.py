"""The stages of an analysis, request by request: read, parse, encode, look up, explain; at the end all sums."""

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import BinaryIO, NamedTuple, cast

from msgspec import structs

from gateway.core.explanation import ReplicaPrefix, RequestRecord
from gateway.evaluation.analysis.analysis_options import AnalysisOptions
from gateway.evaluation.analysis.anonymized_trace import TRACE_BLOCK_SIZE, AnonymizedTrace
from gateway.evaluation.analysis.expected_hits import expected_hits
from gateway.evaluation.analysis.explaining_process import ExplainingProcesses, InlineExplaining
from gateway.evaluation.analysis.ideal_cache import IdealCache
from gateway.evaluation.analysis.log_analysis import ExpectedHits, LogAnalysis
from gateway.evaluation.analysis.log_explainer import SEEN_BLOCKS
from gateway.evaluation.analysis.record_encoding import RecordEncoding
from gateway.evaluation.analysis.shared_personal_data import SharedPersonalData
from gateway.evaluation.analysis.sums_as_analysis import LogSums, analysis_of
from gateway.evaluation.analysis.traffic_sums import TrafficSums, times_to_live
from gateway.evaluation.bad_input import BadInput
from gateway.evaluation.logs.log_reading import LogReading
from gateway.evaluation.logs.logged_request import ReportedUsage, UnreadableEntry

_SHORT_BYTES = 8 * 1024 * 1024
"""Logs up to this size are explained in this process."""

_PROGRESS_EVERY = 64
_SPOOLED_BYTES = 16 * 1024 * 1024
_IDEAL = "ideal"


class SimulatedFleets(NamedTuple):
    """The fleets whose hit rates are simulated; empty for none.

    Attributes:
        replicas: Numbers of replicas.
        cache_tokens: Tokens that the cache of a replica holds.
    """

    replicas: Sequence[int]
    cache_tokens: Sequence[int]


Progress = Callable[[str, float], None]
"""Called with what is being done, and the share of it that is done; nan if unknown."""


def analyze_logs(
    paths: Sequence[str],
    options: AnalysisOptions,
    *,
    fleets: SimulatedFleets,
    anonymized: BinaryIO | None = None,
    on_progress: Progress = lambda *_: None,
) -> LogAnalysis:
    """Analyze log files.

    Args:
        paths: The files; ``-`` is standard input.
        options: What the analysis is done with.
        fleets: The fleets whose hit rates are simulated.
        anonymized: Where the requests are written as a workload trace; None for nowhere.
        on_progress: Called now and then.

    Raises:
        BadInput: A file cannot be read, or a tokenizer cannot be loaded.
    """
    encoding = RecordEncoding(options)
    reading = LogReading(paths)
    is_short = 0 < reading.size <= _SHORT_BYTES
    sink = InlineExplaining(options) if is_short else ExplainingProcesses(options)
    with ExitStack() as stack:
        stack.callback(sink.close)
        spool = cast(BinaryIO, stack.enter_context(tempfile.SpooledTemporaryFile(_SPOOLED_BYTES)))
        stages = _Stages(options, sink, spool, anonymized)
        for number, (at, logged) in enumerate(reading.requests()):
            try:
                request = encoding.request(logged)
            except UnreadableEntry as refused:
                reading.counts.requests -= 1
                reading.counts.refuse(str(refused), logged.place)
                continue
            record = encoding.record(request, logged, at)
            stages.personal_data.add(request, record.source, record.where.owner)
            stages.take(record, logged.usage)
            if number % _PROGRESS_EVERY == 0:
                on_progress("reading", reading.read_bytes / reading.size if reading.size else float("nan"))
        if not stages.traffic.requests:
            raise BadInput(f"{', '.join(reading.counts.formats)}: a gateway would refuse every request in it")
        on_progress("explaining", float("nan"))
        explained = sink.finish()
        expected, note = stages.expected(fleets, on_progress)
    return analysis_of(
        LogSums(
            options=options,
            counts=reading.counts,
            models=[model for model, _ in encoding.models.most_common()],
            not_encoded=encoding.not_encoded,
            traffic=stages.traffic,
            explained=explained,
            personal_data=stages.personal_data.shares(),
            personal_data_skipped=stages.personal_data.skipped,
            forgets=stages.forgets,
        ),
        expected,
        note,
    )


class _Stages:
    """What a record passes through after it is encoded."""

    def __init__(
        self,
        options: AnalysisOptions,
        sink: InlineExplaining | ExplainingProcesses,
        spool: BinaryIO,
        anonymized: BinaryIO | None,
    ) -> None:
        self._sink = sink
        self._spool = spool
        self._traces = [AnonymizedTrace(target) for target in (spool, anonymized) if target is not None]
        self._ideal = IdealCache(SEEN_BLOCKS)
        self.traffic = TrafficSums(
            options.long_tokens, times_to_live(options.idle_ttl_seconds, options.max_age_seconds)
        )
        self.personal_data = SharedPersonalData(options.personal_data)

    @property
    def forgets(self) -> bool:
        """Whether there were more blocks than are remembered."""
        return self._ideal.forgets

    def take(self, record: RequestRecord, usage: ReportedUsage | None) -> None:
        """Look a record up, and pass it on."""
        reuse = self._ideal.take(record)
        self.traffic.add(record, reuse, usage)
        for trace in self._traces:
            trace.add(record)
        self._sink.add(_with_hits(record, reuse.tokens) if reuse.tokens else record)

    def expected(self, fleets: SimulatedFleets, on_progress: Progress) -> tuple[list[ExpectedHits], str]:
        """The simulated hit rates, and what they are based on."""
        for trace in self._traces:
            trace.flush()
        if not fleets.replicas or not fleets.cache_tokens:
            return [], ""
        self._spool.seek(0)
        found, requests = expected_hits(
            self._spool,
            TRACE_BLOCK_SIZE,
            replicas=fleets.replicas,
            cache_tokens=fleets.cache_tokens,
            on_progress=lambda share: on_progress("simulating", share),
        )
        which = "all requests" if requests >= self.traffic.requests else f"the first {requests:,} requests"
        return found, f"Simulated with {which}, in blocks of {TRACE_BLOCK_SIZE} tokens, without generated tokens."


def _with_hits(record: RequestRecord, tokens: int) -> RequestRecord:
    """The record with the tokens that the ideal cache holds: as if they were predicted, and one replica held them."""
    holders = (ReplicaPrefix(_IDEAL, 0, tokens),)
    return structs.replace(record, predicted_tokens=tokens, holders=holders)
