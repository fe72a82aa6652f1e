"""Personal data found in prompts: kind and position, never the text."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PersonalFinding:
    """One piece of personal data.

    Attributes:
        kind: What it is, such as ``email``.
        path: In which field of the request, in the API's dotted form (``messages[0].content[1].text``).
        start: Offset of its first character there.
        length: Its length in characters.
    """

    kind: str
    path: str
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class FindingReport:
    """Findings at one place of the prompts of one prefix space.

    Attributes:
        finding: The place and the kind.
        requests: Requests that had it.
        shared: Whether prompts of several conversations have it in common: it stands in a shared prefix.
    """

    finding: PersonalFinding
    requests: int
    shared: bool
