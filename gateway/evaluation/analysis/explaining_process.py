"""Explains in a process of its own, beside the one that reads and encodes: half the time on two cores.

Records travel through a pipe, in batches. A full pipe holds the sender back, so memory stays bounded.
"""

import multiprocessing
import signal
from multiprocessing.connection import Connection
from typing import Protocol

import msgspec

from gateway.core.explanation import RequestRecord
from gateway.evaluation.analysis.analysis_options import AnalysisOptions
from gateway.evaluation.analysis.log_explainer import ExplainedSums, LogExplainer
from gateway.heap import return_large_blocks

_BATCH_BYTES = 512 * 1024
_BATCH_RECORDS = 256

_encode = msgspec.msgpack.Encoder().encode
_decode_records = msgspec.msgpack.Decoder(list[RequestRecord]).decode
_decode_sums = msgspec.msgpack.Decoder(ExplainedSums).decode


class RecordSink(Protocol):
    """Takes records, and gives their explanations summed up."""

    def add(self, record: RequestRecord) -> None:
        """Explain a request, now or later."""
        ...

    def finish(self) -> ExplainedSums:
        """The sums of all requests."""
        ...

    def close(self) -> None:
        """End without sums."""
        ...


class InlineExplaining:
    """Explains in this process: for short logs, for which starting another one takes longer.

    Args:
        options: The options of the analysis.
    """

    def __init__(self, options: AnalysisOptions) -> None:
        self._explainer = LogExplainer(options)

    def add(self, record: RequestRecord) -> None:
        """See ``RecordSink``."""
        self._explainer.add(record)

    def finish(self) -> ExplainedSums:
        """See ``RecordSink``."""
        return self._explainer.finish()

    def close(self) -> None:
        """See ``RecordSink``."""


class ExplainingProcess:
    """Explains in a process of its own.

    Args:
        options: The options of the analysis.
    """

    def __init__(self, options: AnalysisOptions) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_explain_until_end, args=(theirs, options), daemon=True)
        self._process.start()
        theirs.close()
        self._batch: list[RequestRecord] = []
        self._bytes = 0

    def add(self, record: RequestRecord) -> None:
        """See ``RecordSink``."""
        self._batch.append(record)
        self._bytes += len(record.body) + sum(map(len, record.parts))
        if self._bytes >= _BATCH_BYTES or len(self._batch) >= _BATCH_RECORDS:
            self._send()

    def finish(self) -> ExplainedSums:
        """See ``RecordSink``."""
        if self._batch:
            self._send()
        try:
            self._connection.send_bytes(_encode([]))
            sums = _decode_sums(self._connection.recv_bytes())
        except (EOFError, OSError):
            raise self._ended() from None
        self.close()
        return sums

    def close(self) -> None:
        """See ``RecordSink``."""
        self._connection.close()
        self._process.join()

    def _send(self) -> None:
        try:
            self._connection.send_bytes(_encode(self._batch))
        except OSError:
            raise self._ended() from None
        self._batch, self._bytes = [], 0

    def _ended(self) -> RuntimeError:
        self._process.join()
        return RuntimeError(
            f"the process that explains requests has ended (exit code {self._process.exitcode}): out of memory?"
        )


def _explain_until_end(connection: Connection, options: AnalysisOptions) -> None:
    # Ctrl-C goes to the whole process group: the other process ends, and with it the pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return_large_blocks()
    explainer = LogExplainer(options)
    try:
        while records := _decode_records(connection.recv_bytes()):
            for record in records:
                explainer.add(record)
        connection.send_bytes(_encode(explainer.finish()))
    except (EOFError, BrokenPipeError):
        return
