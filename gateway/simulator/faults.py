"""Faults that a simulated engine can show.

Spec: ``NAME[=VALUE][:OPTION=VALUE[,OPTION=VALUE]]``, for example ``hang``, ``slow=0.5``, ``die_mid_stream=3``,
``500:times=3``, ``429:every=5``, ``500:path=/metrics``, ``events_drop:times=1,rank=0``.

``times=N``
    show it N times, then stop.
``every=N``
    show it on every N-th matching request or batch of events.
``path=PATH``
    only requests of this path, or ``*`` for all. Without it: the two generation endpoints. Not for events.
``rank=R``
    only the events of this data-parallel rank. Without it: all ranks.

One fault of HTTP and one of events can be in force at the same time: a spec replaces the one of its kind.
Several specs are given with spaces between them.
"""

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from gateway.core.request import Endpoint


class Fault(StrEnum):
    """What goes wrong. The value is the name in a spec."""

    REFUSE = "refuse"
    """The listening socket is closed, idle connections are dropped and busy ones accept no further request, as if the
    process had ended. Over HTTP only the connection that set it can end it."""
    CONNECT_HANG = "connect_hang"
    """Connections are accepted and nothing is read from them before the end of the fault, as with a stopped
    process. Idle connections are dropped. Ended as ``refuse``."""
    CONNECT_RESET = "connect_reset"
    """Connections are accepted and reset. Idle ones are dropped. Ended as ``refuse``."""
    HANG = "hang"
    """The request is read and never answered."""
    SLOW = "slow"
    """``=SECONDS`` pass before the request is processed."""
    TOO_MANY_REQUESTS = "429"
    """Answered with 429."""
    SERVER_ERROR = "500"
    """Answered with 500."""
    BAD_GATEWAY = "502"
    """Answered with 502."""
    UNAVAILABLE = "503"
    """Answered with 503."""
    GATEWAY_TIMEOUT = "504"
    """Answered with 504."""
    DIE_BEFORE_FIRST_BYTE = "die_before_first_byte"
    """The connection is closed after the request was read."""
    RESET = "reset"
    """The connection is reset after the request was read."""
    GARBAGE = "garbage"
    """The response is not HTTP."""
    DIE_AFTER_HEAD = "die_after_head"
    """Status and headers are sent, then the connection is closed."""
    DIE_MID_STREAM = "die_mid_stream"
    """The connection is closed after ``=N`` events of a stream, or in the middle of a body that is not a stream."""
    RESET_MID_STREAM = "reset_mid_stream"
    """The connection is reset there."""
    HANG_MID_STREAM = "hang_mid_stream"
    """Nothing more is sent from there on."""
    HALF_CHUNK = "half_chunk"
    """Half a chunk of HTTP's chunked encoding is sent there, then the connection is closed."""
    GARBAGE_MID_STREAM = "garbage_mid_stream"
    """Bytes that are not an event, or not JSON, are sent there; then the answer continues."""
    INVALID_JSON = "invalid_json"
    """Status 200 with truncated JSON: of the body, or of every event."""
    DRIP = "drip"
    """The body is sent a few bytes at a time, ``=SECONDS`` apart."""
    LENGTH_TOO_LARGE = "length_too_large"
    """``content-length`` is larger than the body, after which the connection is closed."""
    LENGTH_TOO_SMALL = "length_too_small"
    """``content-length`` is smaller than the body, after which the connection is closed."""
    NO_DONE = "no_done"
    """A stream ends in good order without ``[DONE]``."""
    DIE_AT_END = "die_at_end"
    """The connection is closed behind the ``[DONE]`` of a stream, before HTTP's own end; of a body that is not a stream
    the last byte is missing."""
    HANG_AT_END = "hang_at_end"
    """Nothing more is sent from there on."""
    USAGE_MISSING = "usage_missing"
    """The answer has no usage, even if requested."""
    EVENTS_DROP = "events_drop"
    """Batches of events are not sent; they can be replayed."""
    EVENTS_DROP_HARD = "events_drop_hard"
    """Batches of events are not sent, and not kept for replay either."""
    EVENTS_DELAY = "events_delay"
    """Batches of events are sent ``=SECONDS`` late; they can be replayed at once."""
    EVENTS_REORDER = "events_reorder"
    """A batch of events is sent after the one that follows it, or at the end of the fault."""
    EVENTS_DUPLICATE = "events_duplicate"
    """Batches of events are sent twice."""
    EVENTS_STOP = "events_stop"
    """The publisher sends nothing and answers no replay requests, while the engine continues. Requests are answered at
    the end of the fault; its batches can be replayed then."""
    EVENTS_CLOSE = "events_close"
    """The socket that publishes is closed, and opened again at the end of the fault. Replay continues."""
    EVENTS_RESTART = "events_restart"
    """Happens once: the publisher counts from 0 again, with nothing to replay, and the cache is empty, as after a
    restart of the process. Running sequences continue and leave nothing in the cache."""

    @property
    def of_events(self) -> bool:
        """Whether it applies to KV events and not to HTTP."""
        return self.value.startswith("events_")

    @property
    def at_the_door(self) -> bool:
        """Whether it applies to connections, before there is a request."""
        return self in {Fault.REFUSE, Fault.CONNECT_HANG, Fault.CONNECT_RESET}


_AFTER_EVENTS = {
    Fault.DIE_MID_STREAM,
    Fault.RESET_MID_STREAM,
    Fault.HANG_MID_STREAM,
    Fault.HALF_CHUNK,
    Fault.GARBAGE_MID_STREAM,
}
WITH_VALUE = {Fault.SLOW, Fault.DRIP, Fault.EVENTS_DELAY} | _AFTER_EVENTS
"""Faults that need a number."""
_STATES = {Fault.EVENTS_STOP, Fault.EVENTS_CLOSE, Fault.EVENTS_RESTART}


@dataclass(frozen=True, slots=True)
class FaultSpec:
    """A fault and when to show it.

    Attributes:
        fault: What goes wrong.
        value: Seconds for ``slow``, ``drip`` and ``events_delay``, events for those in the middle of a stream, else 0.
        times: How often to show it; None: no limit.
        every: Show it on every N-th matching request.
        path: Path of the requests to which it applies, ``*`` for all, None for the generation endpoints.
        rank: Data-parallel rank to whose events it applies, None for all.
    """

    fault: Fault
    value: float = 0.0
    times: int | None = None
    every: int = 1
    path: str | None = None
    rank: int | None = None

    @classmethod
    def parse_all(cls, specs: str) -> list[Self]:
        """Parse specs with spaces between them, at most one of HTTP and one of events. Raises ValueError."""
        parsed = [cls.parse(spec) for spec in specs.split()]
        for of_events, kind in ((False, "HTTP"), (True, "events")):
            names = [spec.fault.value for spec in parsed if spec.fault.of_events is of_events]
            if len(names) > 1:
                raise ValueError(f"only one fault of {kind} can be in force, not {' and '.join(names)}")
        return parsed

    @classmethod
    def parse(cls, spec: str) -> Self:
        """Parse a spec. Raises ValueError with one sentence that says what is wrong with it."""
        head, _, tail = spec.strip().partition(":")
        name, has_value, raw = head.partition("=")
        try:
            fault = Fault(name)
        except ValueError:
            raise ValueError(f"unknown fault {name!r}; known: {', '.join(Fault)}") from None
        if bool(has_value) != (fault in WITH_VALUE):
            raise ValueError(f"fault {name} {'takes no value' if has_value else f'needs a value, as in {name}=2'}")
        value = _number(f"fault {name}", raw) if has_value else 0.0
        if fault in _AFTER_EVENTS and value != int(value):
            raise ValueError(f"fault {name} needs a whole number of events, not {raw}")
        known = ["times", "every", "rank" if fault.of_events else "path"]
        options: dict[str, str] = {}
        for option in filter(None, tail.split(",")):
            key, _, text = option.partition("=")
            if key not in known:
                raise ValueError(f"unknown option {key!r} of fault {name}; known: {', '.join(known)}")
            options[key] = text
        if options and fault.at_the_door:
            raise ValueError(f"fault {name} takes no options: without requests there is nothing to count")
        if fault in _STATES and options.keys() - {"rank"}:
            raise ValueError(f"fault {name} takes no option but rank: it lasts from its beginning to its end")
        return cls(
            fault=fault,
            value=value,
            times=_count("times", options["times"]) if "times" in options else None,
            every=_count("every", options["every"]) if "every" in options else 1,
            path=options.get("path"),
            rank=_count("rank", options["rank"], 0) if "rank" in options else None,
        )

    def concerns(self, path: str) -> bool:
        """Whether requests of this path can show the fault."""
        if self.path is None:
            return self.fault.at_the_door or path in set(Endpoint)
        return self.path in {"*", path}


def _number(what: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise ValueError(f"{what} needs a number of 0 or more, not {text!r}")
    return value


def _count(option: str, text: str, least: int = 1) -> int:
    if not (text.isascii() and text.isdigit() and int(text) >= least):
        raise ValueError(f"option {option} needs a whole number of {least} or more, not {text!r}")
    return int(text)


class Rhythm:
    """Counts the occasions of a fault, and decides on which of them it shows."""

    def __init__(self, every: int = 1, times: int | None = None) -> None:
        self._every = every
        self._times = times
        self._seen = 0
        self._shown = 0

    def due(self) -> bool:
        """Whether this one shows it, which is then counted."""
        self._seen += 1
        if self._seen % self._every or (self._times is not None and self._shown >= self._times):
            return False
        self._shown += 1
        return True


class FaultInjector:
    """Decides for each request whether the HTTP fault in force shows."""

    def __init__(self, spec: FaultSpec | None = None) -> None:
        self.set(spec)

    @property
    def spec(self) -> FaultSpec | None:
        """The fault in force."""
        return self._spec

    @property
    def shown_at_the_door(self) -> Fault | None:
        """The fault that connections show, or None."""
        return self._spec.fault if self._spec is not None and self._spec.fault.at_the_door else None

    def set(self, spec: FaultSpec | None) -> None:
        """Put another fault in force, or none; counting starts again."""
        self._spec = spec
        self._rhythm = Rhythm() if spec is None else Rhythm(spec.every, spec.times)

    def draw(self, path: str) -> FaultSpec | None:
        """The fault that a request of ``path`` shows, which is then counted."""
        spec = self._spec
        return spec if spec is not None and spec.concerns(path) and self._rhythm.due() else None
