"""Counts findings by prefix space."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.core.personal_findings import FindingReport, PersonalFinding


@dataclass(slots=True)
class _Count:
    requests: int = 0
    shared: bool = False


class Tally:
    """Counts findings, with LRU eviction.

    Args:
        max_findings_per_space: Capacity per space.
        max_findings: Total capacity; whole spaces are evicted. A finding takes about 400 bytes.
    """

    def __init__(self, max_findings_per_space: int, max_findings: int) -> None:
        self._max_per_space = max_findings_per_space
        self._max = max_findings
        self._spaces: OrderedDict[str, OrderedDict[PersonalFinding, _Count]] = OrderedDict()
        self._findings = 0

    def __len__(self) -> int:
        return self._findings

    def count(self, space: str, finding: PersonalFinding, *, shared: bool) -> bool:
        """Count a request with a finding.

        Returns:
            Whether the finding is new, or shared for the first time.
        """
        findings = self._spaces.setdefault(space, OrderedDict())
        self._spaces.move_to_end(space)
        known = findings.get(finding)
        if known is None:
            known = findings[finding] = _Count()
            self._findings += 1
            self._evict(findings)
        else:
            findings.move_to_end(finding)
        is_new = known.requests == 0 or (shared and not known.shared)
        known.requests += 1
        known.shared |= shared
        return is_new

    def reports(self, space: str) -> Sequence[FindingReport]:
        """Findings in a space, most frequent first."""
        counts = self._spaces.get(space)
        if counts is None:
            return ()
        reports = [FindingReport(finding, count.requests, count.shared) for finding, count in counts.items()]
        return sorted(reports, key=lambda report: (-report.requests, report.finding.path, report.finding.start))

    def _evict(self, findings: OrderedDict[PersonalFinding, _Count]) -> None:
        if len(findings) > self._max_per_space:
            findings.popitem(last=False)
            self._findings -= 1
        while self._findings > self._max and len(self._spaces) > 1:
            _, evicted = self._spaces.popitem(last=False)
            self._findings -= len(evicted)
