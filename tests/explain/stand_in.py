"""The process that explains, with a simple worker in place of the real one: ``stand_in.py LOG FD``.

Every missed token of a request with tokens is ``new_content``, of one without ``unclassified``. Texts are orders:
``poison`` raises, ``slow`` means 0.2 s of work, ``die`` ends the process at once. What it was told is appended to LOG.
"""

import json
import os
import sys
import time

import msgspec

from gateway.core.canonical import RuleMode, RuleOutcome
from gateway.core.errors import BadRequest, NotFound
from gateway.core.explanation import Attribution, Explanation
from gateway.core.reasons import Reason
from gateway.explain.worker.explain_worker import ExplainWorker
from gateway.explain.worker.process import run

LOG = sys.argv[1]


def work(seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


class StandIn:
    def __init__(self, terms, now):
        self._terms = terms
        self._requests = 0
        self._left_out = 0
        self._prompt_tokens = 0
        self._log("terms", price=terms.gpu_hour_price, gpus=dict(terms.gpus))

    def configure(self, terms, now):
        self._log("configured", price=terms.gpu_hour_price, gpus=dict(terms.gpus))

    def explain(self, finished):
        if b"poison" in finished.body:
            raise ValueError(f"cannot make sense of {finished.body.decode()}")
        if b"slow" in finished.body:
            work(0.2)
        if b"die" in finished.body:
            os._exit(3)
        missed = finished.prompt_tokens - finished.cached_tokens
        reason = Reason.NEW_CONTENT if finished.parts else Reason.UNCLASSIFIED
        return Explanation(
            finished.prompt_tokens, finished.cached_tokens, True, (), (Attribution(reason, missed, True),)
        )

    def observe(self, finished, explanation):
        if b"observe poison" in finished.body:
            raise ValueError(f"cannot try {finished.body.decode()}")
        if b"observe" not in finished.body:
            return explanation
        outcomes = (RuleOutcome("whitespace", RuleMode.APPLY, 2, 0, 16), RuleOutcome("all", RuleMode.OBSERVE, 0, 48, 0))
        return msgspec.structs.replace(explanation, canonical=outcomes, observed=True)

    def notices(self):
        return ()

    def expire(self, now):
        pass

    def happened(self, event):
        self._log("happened", what=event.what, name=event.name)

    def write_down(self, finished, explanation, gpus):
        self._requests += 1
        self._prompt_tokens += explanation.prompt_tokens

    def write_down_left_out(self, left_out, gpus):
        self._left_out += left_out.requests
        self._prompt_tokens += left_out.prompt_tokens

    def answer(self, question, arguments, now, others):
        if question == "request":
            raise NotFound("There is no such request.", param="id", code="unknown_request")
        if question == "wrong":
            raise BadRequest("No such window.", param="window")
        if question == "broken":
            raise RuntimeError("a secret text")
        shown = {"requests": self._requests, "left_out": self._left_out, "prompt_tokens": self._prompt_tokens}
        return json.dumps(shown | {"pid": os.getpid(), "arguments": dict(arguments)}).encode()

    def _log(self, kind, **fields):
        with open(LOG, "a") as log:
            log.write(json.dumps({"kind": kind, "pid": os.getpid()} | fields) + "\n")


run(int(sys.argv[2]), ExplainWorker(StandIn))
