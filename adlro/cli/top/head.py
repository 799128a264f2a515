"""The head of the screen: who decides, how full the cluster is, what waits, what needs somebody. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from adlro.cli.top.feed_states import Feed, FeedState
from adlro.cli.top.gpu_cells import GpuCell, GpuMode
from adlro.cli.top.lines import Fragment, Line, flow
from adlro.cli.top.model import TopModel
from adlro.cli.units_text import mib, seconds, whole_seconds
from adlro.records.capacity import GpuModelCapacity
from adlro.records.decisions import DecisionBasis
from adlro.records.events import Clock, ClockMode
from adlro.records.jobs import JobState
from adlro.records.status import LATE_EVENT_S, ShadowStatus
from adlro.records.telemetry import Metric
from adlro.text import visible

_FLAG_RATE = 0.01
"""Share of healthy GPUs that drift detection flags at any time."""
_BAR = 10


@dataclass(frozen=True, slots=True)
class Head:
    """The figures of the head; None: not known.

    Attributes:
        deciding: who truly decides, and `basis` why, in words.
        event_lag, event_lag_s: events that the orchestrator has not taken up, and the age of the oldest, as it says.
        waiting: numbers of waiting jobs by reason.
        allocated, busy_ratio: of `gpu_count` GPUs those that jobs have, and the mean utilization of all.
        capacity: what is free by GPU model, for a caller who sees his own jobs only.
        user, roles: the caller's, as a service says; with `own_jobs_only`.
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
    event_lag_s: float | None = None
    running: int | None = None
    waiting: Mapping[str, int] | None = None
    ended: Mapping[str, int] = field(default_factory=dict)
    gpu_count: int | None = None
    allocated: int | None = None
    busy_ratio: float | None = None
    lost: int = 0
    drained: int = 0
    own_jobs_only: bool = False
    capacity: tuple[GpuModelCapacity, ...] | None = None
    user: str = ""
    roles: tuple[str, ...] = ()
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
    lag, own, identity = model.event_lag, model.own_jobs_only, model.identity
    gpu_count, allocated = _allocation(model, cells)
    return Head(
        cluster=model.cluster.name if model.cluster is not None else "",
        clock=description.clock if description is not None else None,
        time_s=model.moment(now_s, unix_s).cluster_s,
        policy=status.policy if status is not None else "",
        policy_version=status.policy_version if status is not None else "",
        deciding=deciding,
        basis=basis,
        shadow=status.shadow if status is not None else None,
        event_lag=lag.unapplied_count if lag is not None else None,
        event_lag_s=lag.oldest_unapplied_s if lag is not None else None,
        running=_running(model),
        waiting=_waiting(model),
        ended={state.name.lower(): count for state, count in sorted(model.ended.items())},
        gpu_count=gpu_count,
        allocated=allocated,
        busy_ratio=math.fsum(busy) / len(busy) if busy else None,
        lost=modes.count(GpuMode.LOST),
        drained=modes.count(GpuMode.DRAINED),
        own_jobs_only=own,
        capacity=model.capacity.gpu_models if own and model.capacity is not None else None,
        user=identity.user if own and identity is not None else "",
        roles=tuple(map(str, identity.roles)) if own and identity is not None else (),
        problems=tuple(problems(model, cells, feeds)),
        feeds=feeds,
    )


def _running(model: TopModel) -> int | None:
    if model.jobs_complete:
        return model.count(JobState.RUNNING)
    return model.status.running_count if model.status is not None else None


def _waiting(model: TopModel) -> dict[str, int] | None:
    """Waiting jobs by reason: of the table's jobs or, until they are known, as the orchestrator counts them."""
    if model.jobs_complete:
        return dict(model.waiting_by_reason().most_common())
    if model.status is None or sum(model.status.waiting_by_reason.values()) != model.status.queue_length:
        return None  # an orchestrator of an earlier release does not count them
    return {each.name.lower().replace("_", " "): count for each, count in model.status.waiting_by_reason.items()}


def _allocation(model: TopModel, cells: Sequence[GpuCell]) -> tuple[int | None, int | None]:
    """GPUs, and those that jobs have; without the cluster's description or the jobs, as the orchestrator counts."""
    if cells:
        return len(cells), sum(bool(each.job_ids) for each in cells)
    if model.status is None or not model.status.gpu_models:
        return None, None
    figures = model.status.gpu_models
    return sum(each.gpu_count for each in figures), sum(each.allocated_count for each in figures)


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
    if model.own_jobs_only and model.own_view_problem:
        found.append(f"what is free, and expected starts: {model.own_view_problem}")
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
    if lag is not None and lag.oldest_unapplied_s >= LATE_EVENT_S:
        events = "1 event" if lag.unapplied_count == 1 else f"{lag.unapplied_count} events"
        age = seconds(lag.oldest_unapplied_s)
        found.append(f"the orchestrator is {events} behind the cluster, the oldest of {age} ago")
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
        lines += flow([[("your own jobs only: ", "warn"), (visible(_caller(head) or why), "dim")]], width)
        lines += flow(_free_items(head), width)
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
        age_s = head.event_lag_s or 0.0
        look = "warn" if age_s >= LATE_EVENT_S else ""
        items.append([("events behind ", "dim"), (str(head.event_lag), look), (f" for {seconds(age_s)}", "dim")])
    return items


def _caller(head: Head) -> str:
    """Who asks, and with which role; empty: not known."""
    if not head.user or not head.roles:
        return ""
    return f"{head.user} has the {'role' if len(head.roles) == 1 else 'roles'} {' and '.join(head.roles)}"


def _free_items(head: Head) -> list[Line]:
    """What is free, for a caller who may not see the GPUs."""
    items: list[Line] = []
    for each in head.capacity or ():
        line: Line = [("" if items else "free GPUs: ", "dim"), (f"{visible(each.gpu_model)} ", "")]
        line.append((f"{each.free_gpu_count}/{each.usable_gpu_count}", "good" if each.free_gpu_count else "warn"))
        if each.free_gpu_count:
            room = f" (nodes with up to {each.largest_free_cpu_cores} cores, {mib(each.largest_free_memory_mib)})"
            line.append((room, "dim"))
        items.append(line)
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
