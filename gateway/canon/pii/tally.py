"""What was found so far, by prefix space."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.core.personal_findings import FindingReport, PersonalFinding


@dataclass(slots=True)
class _Count:
    requests: int = 0
    shared: bool = False


class Tally:
    """Counts findings. Bounded: what was not seen for longest is forgotten.

    Args:
        max_findings_per_space: Findings kept of one space.
        max_findings: Findings kept of all; spaces go as a whole. One takes about 400 bytes.
    """

    def __init__(self, max_findings_per_space: int, max_findings: int) -> None:
        self._max_per_space = max_findings_per_space
        self._max = max_findings
        self._spaces: OrderedDict[str, OrderedDict[PersonalFinding, _Count]] = OrderedDict()
        self._findings = 0

    def __len__(self) -> int:
        return self._findings

    def count(self, space: str, finding: PersonalFinding, *, shared: bool) -> bool:
        """One more request had a finding.

        Returns:
            Whether that is news: the finding was not known, or not known to be shared.
        """
        findings = self._spaces.setdefault(space, OrderedDict())
        self._spaces.move_to_end(space)
        known = findings.get(finding)
        if known is None:
            known = findings[finding] = _Count()
            self._findings += 1
            self._make_room(findings)
        else:
            findings.move_to_end(finding)
        news = known.requests == 0 or (shared and not known.shared)
        known.requests += 1
        known.shared |= shared
        return news

    def reports(self, space: str) -> Sequence[FindingReport]:
        """What was found in a space, most frequent first."""
        counts = self._spaces.get(space)
        if counts is None:
            return ()
        reports = [FindingReport(finding, count.requests, count.shared) for finding, count in counts.items()]
        return sorted(reports, key=lambda report: (-report.requests, report.finding.path, report.finding.start))

    def _make_room(self, findings: OrderedDict[PersonalFinding, _Count]) -> None:
        if len(findings) > self._max_per_space:
            findings.popitem(last=False)
            self._findings -= 1
        while self._findings > self._max and len(self._spaces) > 1:
            _, ended = self._spaces.popitem(last=False)
            self._findings -= len(ended)
