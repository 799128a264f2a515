"""The seed paper's figures, and whether they can be true together. Arithmetic only; nothing is simulated here.

Little's law (J. D. C. Little, "A Proof for the Queuing Formula L = lambda W", Operations Research 9, 1961) needs no
assumption about a schedule: over a run that begins and ends empty, the mean number of jobs in the system is jobs per
hour times the mean job completion time. A job holds GPUs only while it is in the system, so no more than that many jobs
hold GPUs on average.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

GPUS = 16
"""Of the paper's cluster."""

SECOND_H, MINUTE_H = 1.0 / 3600.0, 1.0 / 60.0


@dataclass(frozen=True, slots=True)
class Claim:
    """What the paper's Table 1 says of its method against a baseline.

    Attributes:
        baseline: the name of the policy here that stands for it.
        jct_change: of the mean job completion time, as a share of the baseline's.
        throughput_change: of the jobs per hour, as a share of the baseline's.
        utilization_points: share of GPU time, method minus baseline.
    """

    baseline: str
    jct_change: float
    throughput_change: float
    utilization_points: float


@dataclass(frozen=True, slots=True)
class Row:
    """A row of Table 1: jobs per hour, mean job completion time in the unit that is printed, utilization 0..1."""

    name: str
    jobs_per_h: float
    jct: float
    utilization: float


METHOD = Row("the paper's method", 6.2, 25.8, 0.581)
"""As printed; JCT in seconds."""

CLAIMS = (Claim("fcfs", -0.244, 0.468, 0.217), Claim("static", -0.118, 0.213, 0.144))

TEXT_JCT, TEXT_THROUGHPUT = (0.15, 0.25), (0.10, 0.18)
"""What the paper's text claims as improvements: lower JCT, higher throughput."""


def baseline_row(claim: Claim) -> Row:
    """The baseline's row, computed back from the method's and the ratios."""
    return Row(
        claim.baseline,
        METHOD.jobs_per_h / (1.0 + claim.throughput_change),
        METHOD.jct / (1.0 + claim.jct_change),
        METHOD.utilization - claim.utilization_points,
    )


def rows() -> tuple[Row, ...]:
    """The method's row and the baselines'."""
    return (METHOD, *(baseline_row(claim) for claim in CLAIMS))


def jobs_in_system(row: Row, unit_h: float) -> float:
    """Mean number of jobs in the system, by Little's law.

    Args:
        row: of the table.
        unit_h: hours of one unit in which the JCT is read.
    """
    return row.jobs_per_h * row.jct * unit_h


def greatest_utilization(row: Row, unit_h: float) -> float:
    """What utilization cannot exceed if each job held all GPUs for all its time in the system; at most 1."""
    return min(1.0, jobs_in_system(row, unit_h))


def gpus_needed(row: Row, unit_h: float) -> float:
    """GPUs that a job holds on average, if it never waits: least for the printed utilization."""
    return row.utilization * GPUS / jobs_in_system(row, unit_h)


def little_table() -> str:
    """Markdown: each row of the paper's table, its JCT read in seconds and in minutes."""
    head = ("row", "jobs/h", "JCT", "utilization", "JCT in", "jobs in the system", "utilization at most")
    return markdown(
        [*head, "GPUs a job must hold"],
        [
            [
                row.name,
                f"{row.jobs_per_h:.1f}",
                f"{row.jct:.1f}",
                f"{100 * row.utilization:.1f} %",
                unit,
                f"{jobs_in_system(row, unit_h):.3f}",
                f"{100 * greatest_utilization(row, unit_h):.1f} %",
                f"{gpus_needed(row, unit_h):.1f} of {GPUS}",
            ]
            for unit, unit_h in (("seconds", SECOND_H), ("minutes", MINUTE_H))
            for row in rows()
        ],
    )


def text_table() -> str:
    """Markdown: what the text claims beside what the table says."""
    lines = []
    for claim in CLAIMS:
        for quantity, (low, high), value in (
            ("JCT lower by", TEXT_JCT, -claim.jct_change),
            ("throughput higher by", TEXT_THROUGHPUT, claim.throughput_change),
        ):
            where = "yes" if low <= value <= high else "below it" if value < low else "above it"
            text = f"{100 * low:.0f} to {100 * high:.0f} %"
            lines.append([quantity, claim.baseline, text, f"{100 * value:.1f} %", where])
    return markdown(["quantity", "against", "text", "table", "table inside the text's range"], lines)


def markdown(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table."""
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *lines))
