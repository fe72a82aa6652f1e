"""The process that explains, with a simple worker in place of the real one: ``fake_worker.py LOG FD``.

Every missed token of a request with tokens is ``new_content``, of one without ``unclassified``. Texts are orders:
``poison`` raises, ``slow`` means 0.1 s of work, ``die`` ends the process at once. What it receives is appended to LOG.
"""

import json
import os
import socket
import sys
import time

import msgspec

from gateway.core.canonical import RuleMode, RuleOutcome
from gateway.core.errors import BadRequest, NotFound
from gateway.core.explanation import Attribution, Explanation
from gateway.core.reasons import Reason
from gateway.explain.worker.explain_worker import ExplainWorker
from gateway.explain.worker.process import Session, run_until_closed

LOG = sys.argv[1]


def work(seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


class FakeParts:
    is_loading = False

    def __init__(self, options, now):
        self._options = options
        self._requests = 0
        self._left_out = 0
        self._prompt_tokens = 0
        self._log("options", price=options.gpu_hour_price, gpus=dict(options.gpus))

    def configure(self, options, now):
        self._log("configured", price=options.gpu_hour_price, gpus=dict(options.gpus))

    def repeat(self, record, earlier):
        pass

    def explain(self, record):
        self._log("explain", id=record.request_id)
        if b"poison" in record.body:
            raise ValueError(f"cannot make sense of {record.body.decode()}")
        if b"slow" in record.body:
            work(0.1)
        if b"die" in record.body:
            os._exit(3)
        missed = record.prompt_tokens - record.cached_tokens
        reason = Reason.NEW_CONTENT if record.parts else Reason.UNCLASSIFIED
        return Explanation(record.prompt_tokens, record.cached_tokens, True, (), (Attribution(reason, missed, True),))

    def observe(self, record, explanation):
        if b"observe poison" in record.body:
            raise ValueError(f"cannot try {record.body.decode()}")
        if b"observe" not in record.body:
            return explanation
        outcomes = (RuleOutcome("whitespace", RuleMode.APPLY, 2, 0, 16), RuleOutcome("all", RuleMode.OBSERVE, 0, 48, 0))
        return msgspec.structs.replace(explanation, canonical=outcomes, observed=1)

    def notices(self):
        return ()

    def expire(self, now):
        pass

    def record_event(self, event):
        self._log("record_event", what=event.what, name=event.name)

    def add_request(self, record, explanation, gpus):
        self._requests += 1
        self._prompt_tokens += explanation.prompt_tokens

    def add_skipped(self, skipped, gpus):
        self._left_out += skipped.requests
        self._prompt_tokens += skipped.prompt_tokens

    def answer(self, question, arguments, now, others):
        if question == "request":
            raise NotFound("There is no such request.", param="id", code="unknown_request")
        if question == "wrong":
            raise BadRequest("No such window.", param="window")
        if question == "broken":
            raise RuntimeError("a secret text")
        shown = {"requests": self._requests, "skipped": self._left_out, "prompt_tokens": self._prompt_tokens}
        return json.dumps(shown | {"pid": os.getpid(), "arguments": dict(arguments)}).encode()

    def _log(self, kind, **fields):
        with open(LOG, "a") as log:
            log.write(json.dumps({"kind": kind, "pid": os.getpid()} | fields) + "\n")


run_until_closed(Session(socket.socket(fileno=int(sys.argv[2])), ExplainWorker(FakeParts)).run)
