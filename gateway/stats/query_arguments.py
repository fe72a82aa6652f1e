"""Query parameters of the journal, validated strictly."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar, get_args

from gateway.core.application import prompt_id
from gateway.core.errors import BadRequest
from gateway.stats.time_buckets import DEFAULT_WINDOW, WINDOWS, Resolution, TimeWindow

DEFAULT_LIMIT = 100
LARGEST_LIMIT = 1000

Part = Literal["model", "tenant", "source", "template", "prompt"]
"""Labels that totals can be grouped by and requests filtered by."""
PARTS: tuple[Part, ...] = get_args(Part)

_SHOWN_CHARS = 200
_Value = TypeVar("_Value", bound=str)


@dataclass(frozen=True, slots=True)
class Selection:
    """A window and filters. A filter of None matches any value.

    Attributes:
        window: The window.
        now: Its end, Unix seconds.
        model: Id of the model.
        tenant: Id of the tenant.
        source: Client family.
        template: Version of the template.
        prompt: An application: ``id@version``, or its id for all its versions.
    """

    window: TimeWindow
    now: float
    model: str | None = None
    tenant: str | None = None
    source: str | None = None
    template: str | None = None
    prompt: str | None = None

    def takes(self, model: str, tenant: str, source: str, template: str, prompt: str = "") -> bool:
        """Whether requests with these labels match."""
        return (
            self.model in (None, model)
            and self.tenant in (None, tenant)
            and self.source in (None, source)
            and self.template in (None, template)
            and (self.prompt is None or self.prompt in (prompt, prompt_id(prompt)))
        )

    def starts(self, rings: Sequence[Resolution]) -> range:
        """Starts of its time buckets in the finest of its rings, oldest first."""
        ring = rings[self.window.ring]
        end = ring.start_of(self.now) + ring.step
        return range(end - self.window.seconds, end, ring.step)

    @property
    def shown(self) -> dict[str, str | None]:
        """JSON-ready."""
        return {"window": self.window.name} | {part: getattr(self, part) for part in PARTS}


def read_names(arguments: Mapping[str, str], known: tuple[str, ...]) -> dict[str, str]:
    """The non-empty parameters.

    Raises:
        BadRequest: A parameter is unknown.
    """
    for name in arguments:
        if name not in known:
            raise BadRequest(
                f"There is no parameter {name[:_SHOWN_CHARS]!r}; there is {', '.join(known)}.",
                param=name[:_SHOWN_CHARS],
                code="unknown_parameter",
            )
    return {name: value for name, value in arguments.items() if value}


def read_one_of(given: Mapping[str, str], name: str, allowed: Sequence[_Value]) -> _Value | None:
    """The value of a parameter; None if it is not given.

    Raises:
        BadRequest: The value is not allowed.
    """
    value = given.get(name)
    found = next((each for each in allowed if each == value), None)
    if value is not None and found is None:
        choice = f"one of {', '.join(allowed)}" if len(allowed) > 1 else allowed[0]
        message = f"`{name}` must be {choice}, not {value[:_SHOWN_CHARS]!r}."
        raise BadRequest(message, param=name, code="invalid_value")
    return found


def read_selection(given: Mapping[str, str], now: float) -> Selection:
    """The window and the filters.

    Raises:
        BadRequest: There is no such window.
    """
    window = WINDOWS[read_one_of(given, "window", tuple(WINDOWS)) or DEFAULT_WINDOW]
    return Selection(window, now, **{part: given.get(part) for part in PARTS})


def read_limit(given: Mapping[str, str]) -> int:
    """Maximum number of requests listed.

    Raises:
        BadRequest: It is no number, or out of range.
    """
    value = given.get("limit")
    if value is None:
        return DEFAULT_LIMIT
    if not (value.isascii() and value.isdigit() and len(value) <= 6 and 1 <= int(value) <= LARGEST_LIMIT):
        raise BadRequest(f"`limit` must be a number from 1 to {LARGEST_LIMIT}.", param="limit", code="invalid_value")
    return int(value)
