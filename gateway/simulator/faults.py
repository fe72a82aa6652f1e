"""Faults a simulated engine can be told to show.

Spec: ``NAME[=VALUE][:OPTION=VALUE[,OPTION=VALUE]]``, for example ``hang``, ``slow=0.5``, ``die_mid_stream=3``,
``500:times=3``, ``429:every=5``, ``500:path=/metrics``.

``times=N``
    show it N times, then behave.
``every=N``
    show it on every N-th matching request.
``path=PATH``
    only requests of this path, or ``*`` for all. Without it: the two generation endpoints.
"""

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from gateway.values.request import Endpoint


class Fault(StrEnum):
    """What goes wrong. The value is the name in a spec."""

    REFUSE = "refuse"
    """The listening socket is closed, idle connections are dropped and busy ones carry no further request, as if the
    process were gone. Over HTTP only the connection that set it can end it."""
    HANG = "hang"
    """The request is read and never answered."""
    SLOW = "slow"
    """``=SECONDS`` pass before the request is looked at."""
    TOO_MANY_REQUESTS = "429"
    """Answered with 429."""
    SERVER_ERROR = "500"
    """Answered with 500."""
    DIE_BEFORE_FIRST_BYTE = "die_before_first_byte"
    """The connection is closed after the request was read."""
    DIE_MID_STREAM = "die_mid_stream"
    """The connection is closed after ``=N`` events of a stream, or in the middle of a body that is not a stream."""
    GARBAGE = "garbage"
    """Bytes that are not HTTP come back."""
    INVALID_JSON = "invalid_json"
    """Status 200, and JSON that is cut short."""
    USAGE_MISSING = "usage_missing"
    """The answer carries no usage, even where it was asked for."""


_WITH_VALUE = {Fault.SLOW, Fault.DIE_MID_STREAM}


@dataclass(frozen=True, slots=True)
class FaultSpec:
    """A fault and when to show it.

    Attributes:
        fault: What goes wrong.
        value: Seconds for ``slow``, events for ``die_mid_stream``, else 0.
        times: How often to show it; None: without end.
        every: On every how-manieth matching request.
        path: Path of the requests it concerns, ``*`` for all, None for the generation endpoints.
    """

    fault: Fault
    value: float = 0.0
    times: int | None = None
    every: int = 1
    path: str | None = None

    @classmethod
    def parse(cls, spec: str) -> Self:
        """Parse a spec. Raises ValueError with one sentence that says what is wrong with it."""
        head, _, tail = spec.strip().partition(":")
        name, has_value, raw = head.partition("=")
        try:
            fault = Fault(name)
        except ValueError:
            raise ValueError(f"unknown fault {name!r}; known: {', '.join(Fault)}") from None
        if bool(has_value) != (fault in _WITH_VALUE):
            raise ValueError(f"fault {name} {'takes no value' if has_value else f'needs a value, as in {name}=2'}")
        value = _number(f"fault {name}", raw) if has_value else 0.0
        if fault is Fault.DIE_MID_STREAM and value != int(value):
            raise ValueError(f"fault {name} needs a whole number of events, not {raw}")
        options: dict[str, str] = {}
        for option in filter(None, tail.split(",")):
            key, _, text = option.partition("=")
            if key not in {"times", "every", "path"}:
                raise ValueError(f"unknown option {key!r} of fault {name}; known: times, every, path")
            options[key] = text
        if options and fault is Fault.REFUSE:
            raise ValueError("fault refuse takes no options: a closed socket cannot count")
        return cls(
            fault=fault,
            value=value,
            times=_count("times", options["times"]) if "times" in options else None,
            every=_count("every", options["every"]) if "every" in options else 1,
            path=options.get("path"),
        )

    def concerns(self, path: str) -> bool:
        """Whether requests of this path can show the fault."""
        if self.path is None:
            return self.fault is Fault.REFUSE or path in set(Endpoint)
        return self.path in {"*", path}


def _number(what: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise ValueError(f"{what} needs a number of 0 or more, not {text!r}")
    return value


def _count(option: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise ValueError(f"option {option} needs a whole number above 0, not {text!r}")
    return int(text)


class FaultInjector:
    """Decides for each request whether the fault in force shows."""

    def __init__(self, spec: FaultSpec | None = None) -> None:
        self._spec = spec
        self._seen = 0
        self._shown = 0

    @property
    def spec(self) -> FaultSpec | None:
        """The fault in force."""
        return self._spec

    def set(self, spec: FaultSpec | None) -> None:
        """Put another fault in force, or none; counting starts anew."""
        self._spec = spec
        self._seen = self._shown = 0

    def draw(self, path: str) -> FaultSpec | None:
        """The fault that a request of ``path`` has to show, which counts as shown."""
        spec = self._spec
        if spec is None:
            return None
        if not spec.concerns(path):
            return None
        self._seen += 1
        if self._seen % spec.every or (spec.times is not None and self._shown >= spec.times):
            return None
        self._shown += 1
        return spec
