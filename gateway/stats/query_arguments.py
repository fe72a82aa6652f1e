"""Query parameters of the journal, validated strictly."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from gateway.core.application import prompt_id
from gateway.core.errors import BadRequest
from gateway.core.reasons import Reason
from gateway.stats.time_buckets import DEFAULT_WINDOW, WINDOWS, TimeWindow

DEFAULT_LIMIT = 100
LARGEST_LIMIT = 1000

Part = Literal["model", "tenant", "source", "template", "prompt"]
"""Labels that totals can be grouped by and requests filtered by."""
PARTS: tuple[Part, ...] = get_args(Part)

_SHOWN_CHARS = 200


@dataclass(frozen=True, slots=True)
class Selection:
    """A window and filters. A filter of None matches any value.

    Attributes:
        window: The window.
        model: Id of the model.
        tenant: Id of the tenant.
        source: Client family.
        template: Version of the template.
        prompt: An application: ``id@version``, or its id for all its versions.
    """

    window: TimeWindow
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
                f"There is no parameter {name[:_SHOWN_CHARS]!r}; there is {', '.join(known)}."
                if known
                else f"There is no parameter {name[:_SHOWN_CHARS]!r}, nor any other.",
                param=name[:_SHOWN_CHARS],
                code="unknown_parameter",
            )
    return {name: value for name, value in arguments.items() if value}


def read_selection(given: Mapping[str, str]) -> Selection:
    """The window and the filters.

    Raises:
        BadRequest: There is no such window.
    """
    name = given.get("window", DEFAULT_WINDOW)
    if name not in WINDOWS:
        raise BadRequest(
            f"`window` must be one of {', '.join(WINDOWS)}, not {name[:_SHOWN_CHARS]!r}.",
            param="window",
            code="invalid_value",
        )
    return Selection(WINDOWS[name], **{part: given.get(part) for part in PARTS})


def read_part(given: Mapping[str, str]) -> Part | None:
    """The label to group a series by; None for no groups.

    Raises:
        BadRequest: There is no such label.
    """
    name = given.get("by")
    found = next((part for part in PARTS if part == name), None)
    if name is not None and found is None:
        raise BadRequest(
            f"`by` must be one of {', '.join(PARTS)}, not {name[:_SHOWN_CHARS]!r}.", param="by", code="invalid_value"
        )
    return found


def read_reason(given: Mapping[str, str]) -> Reason | None:
    """The reason; None for any.

    Raises:
        BadRequest: There is no such reason.
    """
    name = given.get("reason")
    if name is None:
        return None
    try:
        return Reason(name)
    except ValueError:
        raise BadRequest(
            f"`reason` must be one of {', '.join(Reason)}, not {name[:_SHOWN_CHARS]!r}.",
            param="reason",
            code="invalid_value",
        ) from None


def read_gateways(given: Mapping[str, str]) -> bool:
    """Whether the totals of all gateways are requested.

    Raises:
        BadRequest: The value is not ``all``.
    """
    value = given.get("gateways")
    if value not in (None, "all"):
        raise BadRequest("`gateways` must be all, or left out.", param="gateways", code="invalid_value")
    return value is not None


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
