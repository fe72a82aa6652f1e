"""The application that a request is for: a prompt by its id and version."""

from dataclasses import dataclass, field

OTHER_APPLICATION = "(other)"
"""Name in totals and metrics of applications whose names clients chose."""


@dataclass(frozen=True, slots=True)
class Application:
    """An application, as a request names it.

    Attributes:
        id: Id of its prompt.
        version: Version of that prompt; empty if the client names none of a prompt that is not registered.
        registered: Whether the configuration has it. Ids of others come from clients and are no label of metrics.
        hidden: Whether the configuration has a prompt of this id that the client may not use.
        idle_ttl_seconds: Unused for so long, its prefix spaces end; None: the configuration of it says nothing.
        max_age_seconds: At this age they end; None likewise.
        name: ``id@version``, or the id alone without a version. Neither part contains an ``@``.
    """

    id: str
    version: str = ""
    registered: bool = False
    hidden: bool = False
    idle_ttl_seconds: float | None = None
    max_age_seconds: float | None = None
    name: str = field(init=False)

    @property
    def counted_as(self) -> str:
        """Its name in totals and metrics: all that are not registered have one in common."""
        return self.name if self.registered else OTHER_APPLICATION

    @property
    def space(self) -> str:
        """Its name as a part of prefix spaces: a client that may not use a prompt, and names it, shares nothing with
        those that may. No other name has two ``@``, and ``prompt_id`` returns the same id."""
        return f"{self.id}@@{self.version}" if self.hidden else self.name

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", f"{self.id}@{self.version}" if self.version else self.id)


def prompt_id(name: str) -> str:
    """The id in an ``Application.name``."""
    return name.partition("@")[0]
