"""Explains in two processes of their own, beside the one that reads and encodes: half the time on two cores.

One explains and passes records and explanations on; the other works out what rules gain, and adds up. They travel
through pipes, in batches. A full pipe holds the sender back, so memory stays bounded.
"""

import multiprocessing
import signal
from multiprocessing.connection import Connection
from typing import Any

import msgspec

from gateway.core.explanation import Explanation, RequestRecord
from gateway.evaluation.analysis.analysis_options import AnalysisOptions
from gateway.evaluation.analysis.log_explainer import ExplainedSums, ExplanationSums, RecordExplainer
from gateway.heap import return_large_blocks

_BATCH_BYTES = 512 * 1024
_BATCH_RECORDS = 256

_encode = msgspec.msgpack.Encoder().encode
_decode_records = msgspec.msgpack.Decoder(list[RequestRecord]).decode
_decode_explained = msgspec.msgpack.Decoder(list[tuple[RequestRecord, Explanation]]).decode
_decode_families = msgspec.msgpack.Decoder(list[dict[str, Any]]).decode
_decode_sums = msgspec.msgpack.Decoder(ExplainedSums).decode


class InlineExplaining:
    """Explains in this process: for short logs, for which starting another one takes longer.

    Args:
        options: The options of the analysis.
    """

    def __init__(self, options: AnalysisOptions) -> None:
        self._explainer = RecordExplainer(options)
        self._sums = ExplanationSums(options)

    def add(self, record: RequestRecord) -> None:
        """Explain a request."""
        self._sums.add(record, self._explainer.explain(record))

    def finish(self) -> ExplainedSums:
        """The sums of all requests."""
        return self._sums.finish(self._explainer.families())

    def close(self) -> None:
        """End without sums."""


class ExplainingProcesses:
    """Explains in two processes of their own.

    Args:
        options: The options of the analysis.
    """

    def __init__(self, options: AnalysisOptions) -> None:
        context = multiprocessing.get_context("spawn")
        records, self._records = context.Pipe(duplex=False)
        explained, explained_out = context.Pipe(duplex=False)
        self._sums, sums_out = context.Pipe(duplex=False)
        self._processes = [
            context.Process(target=_explain_until_end, args=(records, explained_out, options), daemon=True),
            context.Process(target=_sum_until_end, args=(explained, sums_out, options), daemon=True),
        ]
        for process in self._processes:
            process.start()
        for connection in (records, explained, explained_out, sums_out):
            connection.close()
        self._batch: list[RequestRecord] = []
        self._bytes = 0

    def add(self, record: RequestRecord) -> None:
        """Explain a request, now or later."""
        self._batch.append(record)
        self._bytes += len(record.body) + sum(map(len, record.parts))
        if self._bytes >= _BATCH_BYTES or len(self._batch) >= _BATCH_RECORDS:
            self._send()

    def finish(self) -> ExplainedSums:
        """The sums of all requests."""
        if self._batch:
            self._send()
        try:
            self._records.send_bytes(_encode([]))
            sums = _decode_sums(self._sums.recv_bytes())
        except (EOFError, OSError):
            raise self._ended() from None
        self.close()
        return sums

    def close(self) -> None:
        """End without sums."""
        self._records.close()
        self._sums.close()
        for process in self._processes:
            process.join()

    def _send(self) -> None:
        try:
            self._records.send_bytes(_encode(self._batch))
        except OSError:
            raise self._ended() from None
        self._batch, self._bytes = [], 0

    def _ended(self) -> RuntimeError:
        self.close()
        codes = ", ".join(str(process.exitcode) for process in self._processes)
        return RuntimeError(f"a process that explains requests has ended (exit codes {codes}): out of memory?")


def _explain_until_end(records: Connection, explained: Connection, options: AnalysisOptions) -> None:
    _prepare()
    explainer = RecordExplainer(options)
    try:
        while batch := _decode_records(records.recv_bytes()):
            explained.send_bytes(_encode([(record, explainer.explain(record)) for record in batch]))
        explained.send_bytes(_encode([]))
        explained.send_bytes(_encode(explainer.families()))
    except (EOFError, OSError):
        return


def _sum_until_end(explained: Connection, result: Connection, options: AnalysisOptions) -> None:
    _prepare()
    sums = ExplanationSums(options)
    try:
        while batch := _decode_explained(explained.recv_bytes()):
            for record, explanation in batch:
                sums.add(record, explanation)
        result.send_bytes(_encode(sums.finish(_decode_families(explained.recv_bytes()))))
    except (EOFError, OSError):
        return


def _prepare() -> None:
    # Ctrl-C goes to the whole process group: the first process ends, and with it the pipes.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return_large_blocks()
