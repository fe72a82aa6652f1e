"""A relay of a stream, with the exchange that it pauses."""

from pieces import asking

from gateway.proxy import AnswerLimits, ForwardOptions
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


class NoEvents:
    """Ignores what happens during an attempt."""

    def on_first_byte(self):
        pass

    def prefill_done(self):
        pass

    def on_response_started(self):
        pass


def relaying(sink, chunk_timeout_seconds=60.0, **fields):
    """A stream whose head has come; ``fields`` are of the request."""
    options = ForwardOptions(EngineBody(Turns()), None, (), None, deadline=1e9, retry_after_seconds=1)
    limits = AnswerLimits(60, chunk_timeout_seconds, max_answer_bytes=10**6)
    relay = ResponseRelay(asking(**fields), sink, options, NoEvents(), limits)
    relay.exchange = Exchange()
    relay.response_begun(200, [(b"content-type", b"text/event-stream")])
    return relay
