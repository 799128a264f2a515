"""The head of the screen: who decides, how full the cluster is, what waits, what needs somebody. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from adlro.cli.top.feed_states import Feed, FeedState
from adlro.cli.top.gpu_cells import GpuCell, GpuMode
from adlro.cli.top.lines import Fragment, Line, flow
from adlro.cli.top.model import TopModel
from adlro.cli.units_text import seconds, whole_seconds
from adlro.records.decisions import DecisionBasis
from adlro.records.events import Clock, ClockMode
from adlro.records.jobs import JobState
from adlro.records.status import ShadowStatus
from adlro.records.telemetry import Metric
from adlro.text import visible

_LAG_TOLD = 10
"""Events behind from which the head speaks of it."""
_FLAG_RATE = 0.01
"""Share of healthy GPUs that drift detection flags at any time."""
_BAR = 10


@dataclass(frozen=True, slots=True)
class Head:
    """The figures of the head; None: not known.

    Attributes:
        deciding: who truly decides, and `basis` why, in words.
        waiting: numbers of waiting jobs by reason.
        allocated, busy_ratio: of `gpu_count` GPUs those that jobs have, and the mean utilization of all.
        problems: what needs somebody, in words, the gravest first.
        feeds: by source its state and why.
    """

    cluster: str = ""
    clock: Clock | None = None
    time_s: float | None = None
    policy: str = ""
    policy_version: str = ""
    deciding: str = ""
    basis: str = ""
    shadow: ShadowStatus | None = None
    event_lag: int | None = None
    running: int | None = None
    waiting: Mapping[str, int] | None = None
    ended: Mapping[str, int] = field(default_factory=dict)
    gpu_count: int | None = None
    allocated: int | None = None
    busy_ratio: float | None = None
    lost: int = 0
    drained: int = 0
    own_jobs_only: bool = False
    problems: tuple[str, ...] = ()
    feeds: Mapping[Feed, tuple[FeedState, str, float | None]] = field(default_factory=dict)


def head_of(model: TopModel, now_s: float, unix_s: float, stale_after_s: float) -> Head:
    """The head at a moment.

    Args:
        model: what is known.
        now_s: monotonic time.
        unix_s: wall time.
        stale_after_s: a source without a word for longer is stale.
    """
    status, description = model.status, model.description
    cells = model.cells()
    busy = [each.ratios[Metric.UTILIZATION] for each in cells if Metric.UTILIZATION in each.ratios]
    feeds = {feed: (each.seen(now_s, stale_after_s), each.why, each.age_s(now_s)) for feed, each in model.feeds.items()}
    modes = [each.mode for each in cells]
    deciding, basis = (
        ("", "") if status is None else decider(status.policy, status.deciding_policy, status.deciding_basis)
    )
    return Head(
        cluster=model.cluster.name if model.cluster is not None else "",
        clock=description.clock if description is not None else None,
        time_s=model.moment(now_s, unix_s).cluster_s,
        policy=status.policy if status is not None else "",
        policy_version=status.policy_version if status is not None else "",
        deciding=deciding,
        basis=basis,
        shadow=status.shadow if status is not None else None,
        event_lag=model.event_lag,
        running=model.count(JobState.RUNNING) if model.jobs_complete else None,
        waiting=dict(model.waiting_by_reason().most_common()) if model.jobs_complete else None,
        ended={state.name.lower(): count for state, count in sorted(model.ended.items())},
        gpu_count=len(cells) or None,
        allocated=sum(bool(each.job_ids) for each in cells) if cells else None,
        busy_ratio=math.fsum(busy) / len(busy) if busy else None,
        lost=modes.count(GpuMode.LOST),
        drained=modes.count(GpuMode.DRAINED),
        own_jobs_only=model.own_jobs_only,
        problems=tuple(problems(model, cells, feeds)),
        feeds=feeds,
    )


def decider(policy: str, deciding: str, basis: DecisionBasis | None) -> tuple[str, str]:
    """Who truly decides, and why it is not the policy that was set; empty: it is."""
    if basis is DecisionBasis.OVERDUE:
        return "the limit on waits", "a job is overdue"
    if not deciding or deciding == policy:
        return policy, ""
    return deciding, _BASES.get(basis, "") if basis is not None else ""


_BASES = {
    DecisionBasis.OUT_OF_RANGE: "out of the range that it was trained for",
    DecisionBasis.FAILED: "it failed",
    DecisionBasis.LATE: "it was too late",
    DecisionBasis.MISSING: "its checkpoint is missing",
}


def problems(
    model: TopModel, cells: Sequence[GpuCell], feeds: Mapping[Feed, tuple[FeedState, str, float | None]]
) -> list[str]:
    """What needs somebody, in words."""
    found = []
    for feed, (state, why, age_s) in feeds.items():
        if state is FeedState.AWAY:
            last = f"; shown is what was known {seconds(age_s)} ago" if age_s is not None else ""
            found.append(f"{feed}: {why}{last}")
        elif state is FeedState.STALE:
            found.append(f"{feed}: no word for {seconds(age_s)}")
        elif state is FeedState.REFUSED and not model.own_jobs_only:
            found.append(f"{feed}: {why}")
    status = model.status
    if status is not None:
        if not status.acting:
            found.append(f"this orchestrator stands by; {status.lease_holder or 'nobody'} acts")
        if status.problem:
            found.append(status.problem)
        if status.policy_problem:
            found.append(status.policy_problem)
        if status.unreadable_job_count:
            found.append(f"{status.unreadable_job_count} jobs have records that can't be read (see the log)")
        for node_id in status.drained_node_ids:
            reason = status.drain_reasons.get(node_id)
            found.append(f"node {node_id} is drained" + (f': "{reason}"' if reason else ""))
    lag = model.event_lag
    if lag is not None and lag >= _LAG_TOLD:
        found.append(f"the orchestrator is {lag} events behind the cluster")
    lost = [each for each in cells if each.mode is GpuMode.LOST]
    if lost:
        named = ", ".join(each.gpu_id + (f" ({each.why})" if each.why != "lost" else "") for each in lost[:3])
        found.append(f"{_gpus(len(lost))} lost: {named}" + (f" and {len(lost) - 3} more" if len(lost) > 3 else ""))
    flagged = [each for each in cells if each.drift.flagged]
    by_chance = round(_FLAG_RATE * sum(each.drift.job_count > 0 for each in cells))
    if len(flagged) > by_chance:
        named = ", ".join(f"{each.gpu_id} ({100 * each.drift.speed_ratio:.0f} %)" for each in flagged[:3])
        more = f" and {len(flagged) - 3} more" if len(flagged) > 3 else ""
        found.append(f"{_gpus(len(flagged))} slower than the model, {by_chance} would be by chance: {named}{more}")
    return found


def _gpus(count: int) -> str:
    return "1 GPU is" if count == 1 else f"{count} GPUs are"


# ---- as lines


def feed_line(head: Head, paused: bool) -> Line:
    """In which state the sources are: one word where all are live."""
    line: Line = [("PAUSED ", "warn")] if paused else []
    states = {state for state, _, _ in head.feeds.values()}
    if states == {FeedState.LIVE}:
        return [*line, ("live", "good")]
    for feed, (state, _, age_s) in head.feeds.items():
        if state is not FeedState.LIVE:
            age = f" {seconds(age_s)}" if state in (FeedState.AWAY, FeedState.STALE) and age_s is not None else ""
            line += [(f"{feed} ", "dim"), (f"{state}{age}", _FEED_LOOKS[state]), ("  ", "")]
    if FeedState.LIVE in states:
        line.append(("others live", "dim"))
    return line


_FEED_LOOKS = {
    FeedState.CONNECTING: "warn",
    FeedState.LIVE: "good",
    FeedState.STALE: "warn",
    FeedState.AWAY: "bad",
    FeedState.REFUSED: "dim",
}


def head_lines(head: Head, width: int, *, paused: bool = False, most_problems: int = 3) -> list[Line]:
    """The head as lines of at most `width` columns."""
    first: list[Sequence[Fragment]] = [[("ADLRO ", "bold"), (visible(head.cluster), "")]]
    if head.clock is not None and head.time_s is not None:
        first.append([("clock ", "dim"), *_clock(head.clock, head.time_s)])
    first.append(feed_line(head, paused))
    lines = flow([*first, *_decider(head)], width)
    lines += flow([*_gpu_items(head), *_job_items(head)], width)
    if head.own_jobs_only:
        why = next((why for state, why, _ in head.feeds.values() if state is FeedState.REFUSED), "")
        lines += flow([[("your own jobs only: ", "warn"), (visible(why), "dim")]], width)
    shown = [[("! ", "bad"), (visible(each), "bad")] for each in head.problems[:most_problems]]
    left = len(head.problems) - len(shown)
    for number, each in enumerate(shown):
        if left and number == len(shown) - 1:
            each.append((f" (and {left} more)", "dim"))
    for each in shown:
        lines += flow([each], width)
    return lines


def _clock(clock: Clock, time_s: float) -> Line:
    mode = {ClockMode.REAL: "", ClockMode.SCALED: f" ({clock.scale:g} x)", ClockMode.VIRTUAL: " (virtual)"}[clock.mode]
    line: Line = [(whole_seconds(time_s) + mode, "")]
    return [*line, (" paused", "warn")] if clock.paused else line


def _decider(head: Head) -> list[Line]:
    if not head.policy:
        return []
    version = f" {visible(head.policy_version)[:12]}" if head.policy_version else ""
    if head.deciding == head.policy:
        items: list[Line] = [[("decided by ", "dim"), (visible(head.policy), "accent"), (version, "dim")]]
    else:
        why = f" for {visible(head.policy)}{version}" + (f": {visible(head.basis)}" if head.basis else "")
        items = [[("decided by ", "dim"), (visible(head.deciding), "warn"), (why, "warn")]]
    shadow = head.shadow
    if shadow is not None:
        judged = shadow.agreed_count + shadow.differed_count
        agrees = f" agrees in {100 * shadow.agreed_count / judged:.0f} % of {judged}" if judged else " not asked yet"
        items.append([("shadow ", "dim"), (visible(shadow.policy), ""), (agrees, "dim")])
    if head.event_lag:
        items.append([("events behind ", "dim"), (str(head.event_lag), "warn" if head.event_lag >= _LAG_TOLD else "")])
    return items


def _gpu_items(head: Head) -> list[Line]:
    if head.gpu_count is None or head.allocated is None:
        return []
    share = head.allocated / head.gpu_count
    items: list[Line] = [
        [
            ("allocated ", "dim"),
            *_bar(share),
            (f" {head.allocated}/{head.gpu_count} GPUs", ""),
        ]
    ]
    if head.busy_ratio is not None:
        items.append([("busy ", "dim"), *_bar(head.busy_ratio), (f" {100 * head.busy_ratio:.0f} %", "")])
    return items


def _bar(ratio: float) -> Line:
    full = round(min(max(ratio, 0.0), 1.0) * _BAR)
    return [("█" * full, "good"), ("░" * (_BAR - full), "dim")]


def _job_items(head: Head) -> list[Line]:
    if head.running is None or head.waiting is None:
        return []
    waiting = sum(head.waiting.values())
    own = "your jobs: " if head.own_jobs_only else ""
    items: list[Line] = [[(own, "dim"), ("running ", "dim"), (str(head.running), "accent")]]
    line: Line = [("waiting ", "dim"), (str(waiting), "warn" if waiting else "")]
    if waiting:
        reasons = ", ".join(f"{count} {reason}" for reason, count in head.waiting.items())
        line.append((f": {reasons}", "dim"))
    items.append(line)
    if failed := head.ended.get("failed", 0):
        items.append([("failed since the start of this screen ", "dim"), (str(failed), "bad")])
    return items
