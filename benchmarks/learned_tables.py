"""Tables of docs/learned_policy.md from what `benchmarks.learned_policy run` has left in a folder.

Every line compares a policy with another on the same lists: the mean completion time with its tails, and throughput, as
changes of the means over lists with 95 % bootstrap intervals, and who decided in the policy's place.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from adlro.decide.policies import POLICIES
from adlro.lab.evaluate.measure import METRICS
from adlro.lab.evaluate.resampling import change_of_means
from adlro.lab.evaluate.tally import FALLBACKS, OVERDUE
from adlro.state.observation import Floats, Ints
from benchmarks.paper_claims import markdown

MEAN_JCT, THROUGHPUT, WEIGHTED = "mean_jct_s", "throughput_jobs_per_h", "weighted_jct_s"
RESULTS = ((MEAN_JCT, "mean JCT"), ("p95_jct_s", "p95 JCT"), ("max_wait_s", "longest wait"), (THROUGHPUT, "throughput"))
"""Of every table: figure and heading."""

GUARDS = (
    (THROUGHPUT, "throughput", -1.0),
    ("p95_jct_s", "p95 JCT", 2.0),
    ("max_wait_s", "longest wait", 15.0),
    (WEIGHTED, "priority-weighted JCT", 1.0),
)
"""Figures that must not pay: name, heading, limit in %."""
GUARDED = ("main", "short", "guess", "elsewhere")
"""Groups in which they are looked at, with exact and guessed runtimes."""
GUARD_BASE = "hold_greedy_fixed"


class Lists(NamedTuple):
    """What a policy did in a cell.

    Attributes:
        metrics: (N, METRICS); nan in all lists where it got stuck in one.
        basis_counts: (N, BASES) decisions by what they rest on.
    """

    metrics: Floats
    basis_counts: Ints

    def of(self, metric: str) -> Floats:
        """(N,) one figure."""
        column: Floats = self.metrics[:, METRICS.index(metric)]
        return column

    def share(self, columns: Sequence[int]) -> str:
        """Of all decisions those that rest on one of these bases, in percent: `0.31`."""
        count = int(self.basis_counts.sum())
        return f"{100.0 * self.basis_counts[:, columns].sum() / count:.2f}" if count else "not counted"


Found = dict[tuple[str, str], dict[str, Lists]]
"""By (group, cell), then by policy."""


class Change(NamedTuple):
    """Of a mean over lists, in percent, with its interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        """`-2.1 % (-2.5 .. -1.7)`."""
        return f"{self.value:+.1f} % ({self.low:+.1f} .. {self.high:+.1f})"

    def exceeds(self, limit: float) -> bool:
        """Whether the figure is beyond a limit, which is on the side on which a change is bad."""
        return self.value < limit if limit < 0 else self.value > limit

    def exceeds_for_certain(self, limit: float) -> bool:
        """Whether its whole interval is."""
        return self.high < limit if limit < 0 else self.low > limit


def read(folder: Path) -> Found:
    """All files of a folder.

    Raises:
        ValueError: a file is of a run before decisions were counted.
    """
    found: Found = {}
    for path in sorted(folder.glob("*.npz")):
        with np.load(path) as file:
            if "basis_counts" not in file:
                raise ValueError(f"{path}: of a run before decisions were counted; delete it and run again")
            about = json.loads(str(file["about"]))
            metrics = np.full_like(file["metrics"], np.nan) if file["stuck"].any() else file["metrics"]
            of_cell = found.setdefault((about["group"], about["cell"]), {})
            of_cell[about["policy"]] = Lists(metrics, file["basis_counts"])
    return found


def change(ours: Lists, theirs: Lists, metric: str) -> Change | None:
    """Of the means over the lists that both have; None: one of them got stuck, or there is nothing to compare with."""
    count = min(len(ours.metrics), len(theirs.metrics))
    a, b = ours.of(metric)[:count], theirs.of(metric)[:count]  # lists are numbered: the first are the same
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return None
    if not (b > 0.0).any():
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        found = Change(*(100.0 * each for each in change_of_means(a, b)))
    return found if np.isfinite(found).all() else None


def show(folder: Path) -> str:
    """All tables, and before them what breaks a limit."""
    found = read(folder)
    parts = [_breaches(found)]
    parts.append(_against(found, "main", ("hold_greedy_fixed", "fcfs", "static")))
    parts.append(_trainings(found))
    parts.append(_guards(found))
    parts.append(_against(found, "short", ("fcfs", "static", "hold_greedy_fixed"), THROUGHPUT, "jobs/h"))
    parts.append(_against(found, "guess", ("hold_greedy_fixed", "hold_greedy_retuned")))
    parts.append(_lookahead(found))
    parts.append(_priority(found))
    parts.append(_elsewhere(found))
    return "\n\n".join(part for part in parts if part)


def _rows(found: Found, group: str) -> list[tuple[str, dict[str, Lists]]]:
    return [(cell, policies) for (of, cell), policies in found.items() if of == group and "dqn" in policies]


def _text(found: Change | None) -> str:
    return "-" if found is None else str(found)


Line = tuple[str, dict[str, Lists], str, str]
"""Cell, all its policies, the policy, and which it is compared with."""


def _table(
    head: str,
    lines: Iterable[Line],
    absolute: str = MEAN_JCT,
    unit: str = "mean JCT, s",
    results: Sequence[tuple[str, str]] = RESULTS,
) -> str:
    """A line for each comparison of policies that are there; empty where there is none."""
    cells = []
    for cell, policies, name, base in lines:
        if name in policies and base in policies:
            ours = policies[name]
            mean = ours.of(absolute).mean()
            changes = (_text(change(ours, policies[base], metric)) for metric, _ in results)
            shares = (ours.share([OVERDUE]), ours.share(FALLBACKS))
            cells.append([cell, str(len(ours.metrics)), name, f"{mean:.4g}", base, *changes, *shares])
    heads = [
        head,
        "lists",
        "policy",
        unit,
        "against",
        *(heading for _, heading in results),
        "overdue, %",
        "fallback, %",
    ]
    return markdown(heads, cells) if cells else ""


def _against(
    found: Found, group: str, baselines: Sequence[str], absolute: str = MEAN_JCT, unit: str = "mean JCT, s"
) -> str:
    lines = [(cell, policies, "dqn", base) for cell, policies in _rows(found, group) for base in baselines]
    return _table(group, lines, absolute, unit)


def _trainings(found: Found) -> str:
    lines: list[Line] = []
    for group, base in (("main", "hold_greedy_fixed"), ("guess", "hold_greedy_retuned")):
        for cell, policies in _rows(found, group):
            names = [each for each in policies if each not in POLICIES and "retuned" not in each]
            if names:
                lines += [(cell, policies, name, base) for name in ("dqn", *names)]
                lines += [(cell, policies, name, base) for name in names for base in ("dqn", "fcfs", "static")]
    return _table("trainings", lines)


def _guards(found: Found) -> str:
    lines = []
    for cell, changes in _guarded(found):
        texts = (
            f"**{each}**" if each is not None and each.exceeds(limit) else _text(each)
            for each, (_, _, limit) in zip(changes, GUARDS, strict=True)
        )
        lines.append([cell, *texts])
    heads = [f"{head} (limit {limit:+.0f} %)" for _, head, limit in GUARDS]
    return markdown([f"dqn against {GUARD_BASE}", *heads], lines) if lines else ""


def _guarded(found: Found) -> list[tuple[str, list[Change | None]]]:
    return [
        (cell, [change(policies["dqn"], policies[GUARD_BASE], metric) for metric, _, _ in GUARDS])
        for group in GUARDED
        for cell, policies in _rows(found, group)
        if GUARD_BASE in policies
    ]


def _breaches(found: Found) -> str:
    """What breaks a limit, for the document's first lines."""
    guarded = _guarded(found)
    if not guarded:
        return ""
    told = [
        f"- {cell}: {head} {each}, limit {limit:+.0f} %"
        + ("" if each.exceeds_for_certain(limit) else "; its interval holds the limit")
        for cell, changes in guarded
        for each, (_, head, limit) in zip(changes, GUARDS, strict=True)
        if each is not None and each.exceeds(limit)
    ]
    if not told:
        return f"No limit against {GUARD_BASE} is broken, in {len(guarded)} settings."
    broken = len({line.partition(": ")[0] for line in told})
    return "\n".join([f"Limits against {GUARD_BASE} are broken in {broken} of {len(guarded)} settings:", "", *told])


def _lookahead(found: Found) -> str:
    pairs = (("dqn_lookahead", "hold_greedy_fixed"), ("dqn_lookahead", "dqn"), ("dqn", "hold_greedy_fixed"))
    rows = [(cell, policies) for cell, policies in _rows(found, "lookahead") if "dqn_lookahead" in policies]
    return _table("lookahead", [(cell, policies, *pair) for cell, policies in rows for pair in pairs])


def _priority(found: Found) -> str:
    base = "hold_greedy_fixed"
    lines = [
        (cell, policies, name, base) for cell, policies in _rows(found, "priority") for name in policies if name != base
    ]
    return _table("priority", lines, results=((WEIGHTED, "priority-weighted JCT"), *RESULTS))


def _elsewhere(found: Found) -> str:
    lines = [
        (cell, policies, "dqn", base)
        for cell, policies in _rows(found, "elsewhere")
        for base in policies
        if base != "dqn"
    ]
    return _table("elsewhere", lines)
