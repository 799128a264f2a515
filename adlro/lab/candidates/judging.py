"""Judges a candidate by jobs that it did not learn from, beside the checkpoint in use and the rule that both correct.

The jobs are cut into parts of consecutive jobs. Each part is a list of its own, which begins on an empty cluster, and
runs under each policy: the same jobs at the same distances, so differences are paired. Intervals are those of
`adlro evaluate`, over parts instead of drawn lists: parts are other jobs of the same users, at other times. One replay
of all jobs in one piece shows what happens where queues last longer than a part.

A candidate is offered only if its gain is certain and its tails keep the limits of the learned policy
(docs/learned_policy.md).

On some clusters a single rule is better than any checkpoint (docs/grid.md). The one that would have served the earlier
jobs best runs beside them, and the verdict says if it is better for certain: the owner may let it decide instead.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from adlro.decide.policies.base import Policy
from adlro.lab.candidates.past import Past
from adlro.lab.compare.replaying import policy_of, replay
from adlro.lab.evaluate.resampling import change_of_means
from adlro.state.observation import Floats

CANDIDATE, IN_USE = "candidate", "in use"
P95_LIMIT, LONGEST_WAIT_LIMIT = 1.02, 1.15
"""Of a candidate relative to the checkpoint in use."""
WHOLE_LIMIT = 1.05
"""Of its mean in the replay of all jobs in one piece: a single replay varies, and this one only has to warn."""
LEAST_PARTS, MOST_PARTS, LEAST_IN_PART, USUAL_IN_PART = 8, 24, 50, 250
"""Short parts end before a queue has grown: where there are jobs enough, a part has the usual number of them."""
LEAST_JOBS = LEAST_PARTS * LEAST_IN_PART
MOST_CHOOSING = 4000
"""The last finished jobs of those that teach, which choose the single rule."""
RULES = "hold_greedy_fixed", "hold_gang"
"""Where all jobs have one GPU, and where some have several."""
SINGLE_RULES = "fcfs", "sjf", "easy_backfill", "conservative_backfill", "min_min"
"""That may be better than the checkpoint, besides the rule that it corrects."""
GANG_RULE, STOPPING_RULE = "drain_gang", "srtf"
"""One more of them where some jobs have several GPUs, and where jobs may be stopped."""

_MEAN, _P95, _LONGEST_WAIT, _FALLBACK = range(4)


@dataclass(frozen=True, slots=True)
class Played:
    """A policy's figures on the judged jobs.

    Attributes:
        name: `CANDIDATE`, `IN_USE`, or the rule's.
        version: of its weights; empty: it has none.
        mean_jct_s, p95_jct_s, longest_wait_s: means over the parts, of the jobs that count.
        whole_mean_jct_s: mean completion time of all these jobs in one piece.
        fallback_ratio: share of its decisions that the fallback made, mean over the parts; nan: not counted.
    """

    name: str
    version: str
    mean_jct_s: float
    p95_jct_s: float
    longest_wait_s: float
    whole_mean_jct_s: float
    fallback_ratio: float


@dataclass(frozen=True, slots=True)
class Change:
    """A policy's figures as ratios of another one's; intervals of 95 % over the parts."""

    against: str
    mean_jct: float
    mean_jct_interval: tuple[float, float]
    p95_jct: float
    p95_jct_interval: tuple[float, float]
    longest_wait: float
    whole_mean_jct: float
    policy: str = CANDIDATE


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the parts say.

    Attributes:
        offered: the candidate's gain over the checkpoint in use is certain, and its tails keep the limits.
        reasons: why it is not offered.
        part_count: number of parts; `part_jobs`: jobs of each.
        played: figures of each policy, the candidate's first.
        changes: of the candidate against each of the others: the checkpoint in use, the rule, and the best single rule
            if that is another one.
        better_rule: the single rule's figures as ratios of those of the checkpoint in use, if its mean is below that
            for certain, in one piece not above the limit, and below that of an offered candidate for certain; or None.
    """

    offered: bool
    reasons: tuple[str, ...]
    part_count: int
    part_jobs: int
    played: tuple[Played, ...]
    changes: tuple[Change, ...]
    better_rule: Change | None = None


def parts_of(past: Past) -> list[Past]:
    """Parts of as many consecutive jobs each; jobs before the first part are left out.

    Args:
        past: with `LEAST_JOBS` at least.
    """
    count = min(max(len(past) // USUAL_IN_PART, LEAST_PARTS), MOST_PARTS)
    size = len(past) // count
    first = len(past) - count * size
    parts = [past.part(at, at + size) for at in range(first, len(past), size)]
    return [part for part in parts if part.measured.any()]


def corrected_rule(past: Past) -> str:
    """The rule that the networks correct for such jobs."""
    return RULES[past.gang_share > 0.0]


def best_rule(past: Past, corrected: str, progress: Callable[[str], None] = lambda _: None) -> str:
    """The rule with the lowest mean completion time over parts of the last jobs of a past.

    Args:
        past: jobs that do not judge: a rule that was the best of several on the jobs that judge it would look too good.
        corrected: the rule that the networks correct.
        progress: called with each rule before it runs.
    """
    rules = [corrected, *SINGLE_RULES]
    rules += [GANG_RULE] * (corrected == RULES[True]) + [STOPPING_RULE] * (past.rules.min_run_s is not None)
    first = int(np.flatnonzero(past.measured)[-MOST_CHOOSING:][0])
    parts = parts_of(past.part(first, len(past)))
    mean_s = {}
    for name in rules:
        progress(name)
        mean_s[name] = float(np.mean([_figures(part, policy_of(name, past.rules))[_MEAN] for part in parts]))
    return min(mean_s, key=lambda name: mean_s[name])


def judge(
    past: Past, candidate: Path, in_use: Path, single_rule: str, progress: Callable[[str], None] = lambda _: None
) -> Verdict:
    """Runs a past's jobs under the candidate, the checkpoint in use, the rule that they correct, and a single rule.

    Args:
        past: jobs that the candidate did not learn from.
        candidate, in_use: ONNX files.
        single_rule: the best one on earlier jobs; it may be the one that they correct.
        progress: called with each policy before it runs.
    """
    parts = parts_of(past)
    played, of_parts = [], []
    names: dict[str, Path | None] = {CANDIDATE: candidate, IN_USE: in_use, corrected_rule(past): None}
    for name, path in (names | {single_rule: None}).items():
        progress(name)
        make = _maker(past, name, path)
        figures = np.array([_figures(part, make()) for part in parts])
        whole = _figures(past, make())
        means = figures.mean(axis=0)
        played.append(
            Played(
                name,
                make().version,
                float(means[_MEAN]),
                float(means[_P95]),
                float(means[_LONGEST_WAIT]),
                whole[_MEAN],
                float(means[_FALLBACK]),
            )
        )
        of_parts.append(figures)
    changes = tuple(
        _change(played[0], other, of_parts[0], theirs) for other, theirs in zip(played[1:], of_parts[1:], strict=True)
    )
    reasons = _reasons(changes)
    of_rule = _change(played[-1], played[1], of_parts[-1], of_parts[1])
    is_better = (
        of_rule.mean_jct_interval[1] < 1.0
        and of_rule.whole_mean_jct <= WHOLE_LIMIT
        and (bool(reasons) or changes[-1].mean_jct_interval[0] > 1.0)
    )
    return Verdict(
        not reasons, reasons, len(parts), len(parts[0]), tuple(played), changes, of_rule if is_better else None
    )


def _maker(past: Past, name: str, path: Path | None) -> Callable[[], Policy]:
    rules = past.rules if path is None else dataclasses.replace(past.rules, checkpoint=path)
    return lambda: policy_of(name if path is None else "dqn", rules)


def _figures(past: Past, policy: Policy) -> tuple[float, float, float, float]:
    """Mean and 95th percentile of the completion time, the longest wait, and the fallback's share."""
    found = replay(past.cluster, past.jobs, policy, past.rules, past.pairs)
    jct_s = (found.end_s - past.jobs.submit_s[0])[past.measured]
    wait_s = (found.start_s - past.jobs.submit_s[0])[past.measured]
    return float(jct_s.mean()), float(np.percentile(jct_s, 95)), float(wait_s.max()), found.fallback_ratio


def _change(ours: Played, theirs: Played, our_parts: Floats, their_parts: Floats) -> Change:
    ratios = [1.0 + np.array(change_of_means(our_parts[:, each], their_parts[:, each])) for each in (_MEAN, _P95)]
    (mean, mean_low, mean_high), (p95, p95_low, p95_high) = (each.tolist() for each in ratios)
    return Change(
        theirs.name,
        mean,
        (mean_low, mean_high),
        p95,
        (p95_low, p95_high),
        _ratio(ours.longest_wait_s, theirs.longest_wait_s),
        _ratio(ours.whole_mean_jct_s, theirs.whole_mean_jct_s),
        ours.name,
    )


def _ratio(ours: float, theirs: float) -> float:
    return ours / theirs if theirs > 0.0 else (1.0 if ours == 0.0 else math.inf)


def _reasons(changes: tuple[Change, ...]) -> tuple[str, ...]:
    """Why the candidate is not offered; none: it is."""
    in_use, rule = changes[:2]
    found = []
    low, high = in_use.mean_jct_interval
    if high >= 1.0:
        found.append(
            "its mean completion time is not certainly below that of the checkpoint in use: "
            f"{percent(in_use.mean_jct)} (95 % interval {percent(low)} to {percent(high)})"
        )
    if rule.mean_jct > 1.0:
        found.append(f"its mean completion time is {percent(rule.mean_jct)} against {rule.against}")
    limits = (
        ("95th percentile", in_use.p95_jct, P95_LIMIT),
        ("longest wait", in_use.longest_wait, LONGEST_WAIT_LIMIT),
        ("mean completion time, with all jobs in one piece,", in_use.whole_mean_jct, WHOLE_LIMIT),
    )
    found += [
        f"its {what} is {percent(ratio)} against the checkpoint in use, and the limit is {percent(limit)}"
        for what, ratio, limit in limits
        if ratio > limit
    ]
    return tuple(found)


def percent(ratio: float) -> str:
    """A ratio as a change."""
    return f"{100.0 * (ratio - 1.0):+.1f} %"
