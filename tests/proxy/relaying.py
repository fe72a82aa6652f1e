"""A relay of a stream, with the exchange that it pauses."""

from pieces import asking

from gateway.proxy import AnswerLimits
from gateway.proxy.forward import Deadlines
from gateway.proxy.request_body import EngineBody
from gateway.proxy.response import ResponseRelay
from gateway.turns import Turns


class Exchange:
    """An exchange with a replica."""

    paused = False

    def pause(self):
        self.paused = True

    def resume(self):
        self.paused = False

    def close(self):
        pass


class QuietAttempt:
    """An attempt that ignores what happens during it."""

    salt = trace_headers = None
    own_headers = ()
    expected_seconds = 1.0
    begun = is_retry = False
    seam = None

    def __init__(self, deadline=1e9):
        self.body = EngineBody(Turns())
        self.deadline = deadline

    def retry_after_seconds(self):
        return 1

    def on_content(self):
        pass


def watched(sink, request, *, first_byte_seconds=60.0, chunk_seconds=60.0, deadline=1e9):
    """A relay whose answer has not begun."""
    limits = AnswerLimits(first_byte_seconds, chunk_seconds, max_answer_bytes=10**6)
    relay = ResponseRelay(request, sink, QuietAttempt(deadline), limits)
    Deadlines(chunk_seconds).add(relay, relay.sent_at)
    return relay


def relaying(sink, chunk_timeout_seconds=60.0, **fields):
    """A stream whose head has come; ``fields`` are of the request."""
    relay = watched(sink, asking(**fields), chunk_seconds=chunk_timeout_seconds)
    relay.exchange = Exchange()
    relay.response_begun(200, [(b"content-type", b"text/event-stream")])
    return relay
