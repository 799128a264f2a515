"""What a check has found, by rule: passed, failed with what was expected and seen, skipped with the reason. Plain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


@dataclass(frozen=True, slots=True)
class RuleOutcome:
    """What came of one rule.

    Attributes:
        rule: its name.
        says: the rule in words.
        result: PASSED, FAILED or SKIPPED.
        expected: what should have been, of a failed one,
        seen: and what was.
        why: it was skipped.
    """

    rule: str
    says: str
    result: str
    expected: str = ""
    seen: str = ""
    why: str = ""

    def __str__(self) -> str:
        if self.result == FAILED:
            return f"{self.rule}: expected {self.expected}; seen {self.seen}\n    {self.says.splitlines()[0]}"
        return f"{self.rule}: {self.result}" + (f" ({self.why})" if self.why else "")


@dataclass(frozen=True, slots=True)
class Report:
    """What came of all rules that were checked.

    Attributes:
        address: of the cluster.
        outcomes: by the rule's name, in the order of the check.
    """

    address: str
    outcomes: Mapping[str, RuleOutcome]

    @property
    def passed(self) -> tuple[str, ...]:
        """Names of the rules that it keeps."""
        return self._of(PASSED)

    @property
    def failed(self) -> tuple[str, ...]:
        """Names of the rules that it breaks."""
        return self._of(FAILED)

    @property
    def skipped(self) -> tuple[str, ...]:
        """Names of the rules that are about what it says it can't do."""
        return self._of(SKIPPED)

    def _of(self, result: str) -> tuple[str, ...]:
        return tuple(name for name, outcome in self.outcomes.items() if outcome.result == result)

    def __str__(self) -> str:
        counts = f"{len(self.passed)} passed, {len(self.failed)} failed, {len(self.skipped)} skipped"
        return "\n".join([*map(str, self.outcomes.values()), f"{self.address}: {counts}"])


class ClusterCheckFailed(AssertionError):
    """A cluster breaks rules of the contract.

    Attributes:
        report: what was found, by rule.
    """

    def __init__(self, report: Report) -> None:
        broken = "\n".join(str(report.outcomes[name]) for name in report.failed)
        super().__init__(f"{report.address} breaks {len(report.failed)} of {len(report.outcomes)} rules:\n{broken}")
        self.report = report
