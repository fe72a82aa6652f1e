"""A mistake in the set-up, as the command prints it and the log has it."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


class Severity(StrEnum):
    """How much a finding costs."""

    ERROR = "error"
    """Requests fail, tenants are not kept apart, or nothing can be reused."""
    WARNING = "warning"
    """Requests are answered, but less is reused or known than could be."""


FINDING_NAMES = frozenset(
    {
        "admin-open",
        "block-larger-than-prefix",
        "block-sizes-differ",
        "chats-not-tokenized",
        "clock-differs",
        "context-limits-differ",
        "discovery-fails",
        "engine-sleeping",
        "events-address",
        "events-off",
        "events-unreachable",
        "events-without-replay",
        "external-cache",
        "generation-fails",
        "key-refused",
        "metrics-missing",
        "model-files-differ",
        "port-in-use",
        "prefix-caching-off",
        "prefix-not-reused",
        "prefixes-unreadable",
        "prompt-length-differs",
        "redis-eviction",
        "redis-unreachable",
        "redis-version",
        "replay-unreachable",
        "replica-redirects",
        "replica-unreachable",
        "salt-ignored",
        "salt-refused",
        "several-engines",
        "template-differs",
        "templates-differ",
        "tokenizer-differs",
        "tokenizer-unavailable",
        "ttl-without-effect",
        "usage-details-off",
        "versions-differ",
        "wrong-model",
    }
)
"""Names of all findings."""


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """One mistake.

    Attributes:
        name: Its kind, one of ``FINDING_NAMES``.
        severity: What it costs.
        where: The replica (``replica r0``), model or setting that it is about.
        said: What is wrong and what follows from it, in one sentence. Holds no text of prompts but that of the probes.
        fix: The engine's flag, the line of the configuration or the command that changes it.
    """

    name: str
    severity: Severity
    where: str
    said: str
    fix: str

    def as_json(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


@dataclass(slots=True)
class Diagnosis:
    """The result of an examination.

    Attributes:
        findings: The mistakes.
        unchecked: Checks that could not be made, each with the reason, in one sentence.
        shown: What was shown to be right, in one sentence each.
        replicas: Replicas that were examined.
    """

    findings: list[DoctorFinding] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)
    replicas: int = 0

    def ordered(self, ignored: Iterable[str] = ()) -> list[DoctorFinding]:
        """The findings without those of ignored names: errors first, then in the order in which they were found."""
        left_out = frozenset(ignored)
        kept = [each for each in self.findings if each.name not in left_out]
        return sorted(kept, key=lambda each: each.severity is not Severity.ERROR)
