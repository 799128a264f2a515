"""One job in full: why it waits and what was thought of it, or where it runs and how that GPU does.

Pure but for `read`, which asks the services once; what does not answer becomes a note, and the rest is there.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from adlro.cli.places import at_of, needs_text, placement_text
from adlro.cli.stops import stops_text
from adlro.cli.top.gpu_cells import GpuCell, GpuMode, level
from adlro.cli.top.job_rows import Moment, ran_now_s, reason_text, wait_now_s
from adlro.cli.top.lines import Line, wrapped
from adlro.cli.units_text import mib, seconds
from adlro.cli.why import expected_text, place_text
from adlro.errors import AdlroError, Conflict, NotFound, PermissionDenied, Unsupported
from adlro.records.decisions import Decision
from adlro.records.events import Clock
from adlro.records.jobs import Job, JobState, PendingReason
from adlro.records.predictions import RuntimePrediction
from adlro.records.telemetry import Metric
from adlro.records.waiting import WaitingExplanation
from adlro.text import visible

if TYPE_CHECKING:
    from adlro.client import AsyncClient

_LOG_BYTES = 8192
_LOG_LINES = 60
_CANDIDATES = 8
_REASONS = 12
_LABEL = 13


@dataclass(frozen=True, slots=True)
class Explanation:
    """What the services say of a job.

    Attributes:
        decision: that placed it; of a waiting job, what was thought of it where the policy holds it back, or where the
            orchestrator is of an earlier release; None: not told.
        waiting: why it waits, and when it is expected to start; None: it does not wait, or nobody told.
        predictions: of its runtime by GPU model, as of now.
        log: the end of its program's output; None: there is none.
        notes: what could not be read, and why.
    """

    job: Job
    decision: Decision | None = None
    waiting: WaitingExplanation | None = None
    predictions: tuple[RuntimePrediction, ...] = ()
    log: str | None = None
    notes: tuple[str, ...] = ()


async def read(client: AsyncClient, job: Job, gpu_models: Sequence[str]) -> Explanation:
    """Asks for all that is known of a job."""
    notes: list[str] = []

    async def decision() -> Decision | None:
        try:
            return await client.explain(job.job_id)
        except AdlroError as error:
            notes.append(f"no decision: {error.message}")
            return None

    async def waiting() -> tuple[WaitingExplanation | None, Decision | None]:
        try:
            told = await client.explain_waiting(job.job_id)
        except Unsupported:
            notes.append("no expected start: the orchestrator is of an earlier release than this command")
            return None, await decision()
        except AdlroError as error:
            notes.append(f"no expected start: {error.message}")
            return None, None
        if told.reason is not PendingReason.POLICY:
            return told, None
        try:
            return told, await client.explain(job.job_id)  # its candidates have scores
        except PermissionDenied:
            return told, None
        except AdlroError as error:
            notes.append(f"no candidates: {error.message}")
            return told, None

    async def decided() -> tuple[WaitingExplanation | None, Decision | None]:
        return await waiting() if job.state is JobState.PENDING else (None, await decision())

    async def predictions() -> tuple[RuntimePrediction, ...]:
        if not gpu_models:
            return ()
        try:
            return (await client.predict([job.spec], gpu_models, job_ids=[job.job_id]))[0]
        except AdlroError as error:
            notes.append(f"no prediction: {error.message}")
            return ()

    async def log() -> str | None:
        if job.state is not JobState.RUNNING or job.spec.payload is None:
            return None
        data = b""
        try:
            async for chunk in client.logs(job.job_id, tail_bytes=_LOG_BYTES, patience_s=0.0):
                data += chunk.data
        except (Conflict, NotFound):
            return None
        except AdlroError as error:
            notes.append(f"no output: {error.message}")
            return None
        return data.decode("utf-8", "replace")

    (why, thought), predicted, written = await asyncio.gather(decided(), predictions(), log())
    return Explanation(job, thought, why, predicted, written, tuple(notes))


def explanation_lines(
    known: Explanation, cells: Sequence[GpuCell], now: Moment, clock: Clock | None, width: int
) -> list[Line]:
    """An explanation as lines of at most `width` columns.

    Args:
        known: what the services said, with the job as it is now.
        cells: the GPUs of the screen; empty: not known.
        now: for waits and runtimes.
        clock: of the cluster.
        width: of the screen.
    """
    job = known.job
    out: list[Line] = [[(job.job_id, "bold"), ("  ", ""), (visible(job.spec.name), ""), ("  ", ""), *_state(job, now)]]
    if job.state is JobState.PENDING:
        out += _waits(known, now, clock, width)
    elif job.state is JobState.RUNNING:
        out += _runs(known, cells, now, width)
    else:
        out += _fact("ended", job.message or job.state.name.lower(), width)
    out += _heading("Request")
    out += _fact("user", job.spec.user, width)
    out += _fact("type", job.spec.job_type.label, width)
    out += _fact("application", job.spec.application, width)
    out += _fact("asks for", f"{needs_text(job.spec)}, priority {job.spec.priority:g}", width)
    labels = ", ".join(f"{key}={value}" for key, value in job.spec.labels.items())
    out += _fact("labels", labels, width)
    if known.predictions:
        out += _predictions(known, width)
    if known.decision is not None:
        out += _decision(known.decision, width)
        if job.state is not JobState.PENDING and known.decision.masked:
            out += _masked(known.decision, width)
    if known.log is not None:
        out += _heading("Output, its end")
        for text in known.log.splitlines()[-_LOG_LINES:]:
            out += wrapped(text.expandtabs(), width)
    if known.notes:
        out.append([])
        for note in known.notes:
            out += wrapped(note, width, "dim")
    return out


def _state(job: Job, now: Moment) -> Line:
    if job.state is JobState.PENDING:
        return [("waits ", "warn"), (seconds(wait_now_s(job, now)), "")]
    if job.state is JobState.RUNNING:
        return [("runs ", "accent"), (seconds(ran_now_s(job, now)), "")]
    return [(job.state.name.lower(), "good" if job.state is JobState.SUCCEEDED else "bad")]


def _heading(text: str) -> list[Line]:
    return [[], [(text, "bold")]]


def _fact(name: str, text: str, width: int, look: str = "") -> list[Line]:
    """A name and its value; the value goes on below its begin. Nothing for an empty value."""
    if not text:
        return []
    lines = wrapped(text, max(width - _LABEL - 2, 10), look)
    return [[("  " + (name if not number else "").ljust(_LABEL), "dim"), *line] for number, line in enumerate(lines)]


def _waits(known: Explanation, now: Moment, clock: Clock | None, width: int) -> list[Line]:
    job, decision, told = known.job, known.decision, known.waiting
    out = _heading("Why it waits")
    out += _fact("reason", reason_text(job), width, "warn")
    summary = decision.summary if decision is not None and not decision.placement.gpus else ""
    if told is not None:
        out += _waiting(told, job, clock, width)
        out += _fact("decided", summary if told.sentence not in summary else "", width)
    else:
        out += _fact("in words", job.message if job.message not in summary else summary, width)
        out += _fact("decided", summary if job.message not in summary else "", width)
    if decision is not None and told is None:
        out += _masked(decision, width)
    if job.reservation is not None:
        held = job.reservation
        at = at_of(clock)(held.expected_start_s)
        out += _fact("kept free", f"{held.gpu_count} {held.gpu_model} on {', '.join(held.node_ids)} from {at}", width)
    out += _fact("stopped", stops_text(job), width)
    if job.submit_s is not None:
        out += _fact("submitted", f"at {seconds(job.submit_s)} of cluster time", width)
    return out


def _waiting(told: WaitingExplanation, job: Job, clock: Clock | None, width: int) -> list[Line]:
    """When it is expected to start, its place, the GPUs by what keeps it from them, and what its user could change."""
    out = _fact("in words", told.sentence or job.message, width)
    out += _fact("expected", expected_text(told, at_of(clock)), width, "accent" if told.expected_start else "dim")
    out += _fact("place", place_text(told), width)
    for number, (obstacle, count) in enumerate(told.obstacles.items()):
        out += _fact("GPUs" if number == 0 else " ", f"{count} {obstacle.label}", width)
    for change in told.changes:
        out += _fact("you could", change.sentence, width, "good")
    return out


def _masked(decision: Decision, width: int) -> list[Line]:
    """GPUs that are out of the question, by reason: of a thousand GPUs nobody reads each one's."""
    counted = Counter(alike(each.reason) for each in decision.masked)
    example = {alike(each.reason): each for each in reversed(decision.masked)}
    out: list[Line] = []
    for number, (reason, count) in enumerate(counted.most_common(_REASONS)):
        one = example[reason]
        text = f"{count} {'GPU' if count == 1 else 'GPUs'}: {reason}"
        if count == 1 and one.gpu_id:
            text = f"{one.gpu_id}: {one.reason}"
        out += _fact("GPUs" if number == 0 else " ", text, width)
    if (left := len(counted) - _REASONS) > 0:
        out += _fact(" ", f"and {left} other reasons", width, "dim")
    return out


def alike(reason: str) -> str:
    """A reason without what differs from GPU to GPU: `busy with job-12 for about 8 s` as `busy with a job`."""
    named = re.sub(r"\bjob-\d+\b", "a job", reason)
    return re.sub(r" has run [\d.]+ \w+ longer ", " has run longer ", re.sub(r"\s+for about .*$", "", named))


def _runs(known: Explanation, cells: Sequence[GpuCell], now: Moment, width: int) -> list[Line]:
    job = known.job
    out = _heading("Course")
    if job.submit_s is not None:
        out += _fact("submitted", f"at {seconds(job.submit_s)} of cluster time", width)
    waited = wait_now_s(job, now)
    if job.start_s is not None:
        out += _fact("started", f"at {seconds(job.start_s)}, after {seconds(waited)}", width)
    if job.cancel_requested:
        out += _fact("cancel", "asked for; its program is being stopped", width, "warn")
    ran_s = ran_now_s(job, now)
    mine = next((each for each in known.predictions if each.gpu_model == job.gpu_model), None)
    if mine is not None and ran_s is not None and mine.median_s > 0:
        share = ran_s / mine.median_s
        full = min(round(share * 20), 20)
        told = f" {100 * share:.0f} % of the expected {seconds(mine.median_s)} ({_interval(mine)})"
        out.append(
            [("  " + "progress".ljust(_LABEL), "dim"), ("█" * full, "good"), ("░" * (20 - full), "dim"), (told, "")]
        )
        if ran_s > mine.high_s:
            out += _fact(" ", f"longer than {100 * mine.interval_coverage:.0f} % of jobs like it", width, "warn")
    for each in job.attempts[:-1]:
        ended = f" to {seconds(each.end_s)}" if each.end_s is not None else ""
        where = placement_text(each.placement)
        out += _fact(
            f"attempt {each.attempt}", f"on {where} from {seconds(each.start_s)}{ended}: {each.outcome}", width
        )
    out += _heading("GPU" if len(job.placement.gpus) == 1 else f"{len(job.placement.gpus)} GPUs")
    own = set(job.placement.gpu_ids)
    shown = [each for each in cells if each.gpu_id in own]
    if not shown:
        out += _fact("on", f"{placement_text(job.placement)} ({job.gpu_model})", width)
    out += [gpu_line(cell) for cell in shown[:16]]
    if len(shown) > 16:
        out.append([(f"  and {len(shown) - 16} more", "dim")])
    return out


def gpu_line(cell: GpuCell) -> Line:
    """The figures of a GPU on one line."""
    line: Line = [("  ", ""), (visible(cell.gpu_id), "accent"), (f" {visible(cell.gpu_model)}  ", "dim")]
    for name, metric, text in (
        ("busy", Metric.UTILIZATION, _percent(cell, Metric.UTILIZATION)),
        ("memory", Metric.MEMORY_USED, f"{mib(cell.raw.get(Metric.MEMORY_USED))} of {mib(cell.memory_mib)}"),
        ("bandwidth", Metric.MEMORY_BANDWIDTH, _percent(cell, Metric.MEMORY_BANDWIDTH)),
        ("", Metric.TEMPERATURE, _number(cell, Metric.TEMPERATURE, "°C")),
        ("", Metric.POWER, _number(cell, Metric.POWER, "W")),
    ):
        if metric in cell.ratios:
            line += [(f"{name} " if name else "", "dim"), (level(cell.ratios[metric]), "good"), (f" {text}  ", "")]
    if cell.drift.job_count:
        look = "bad" if cell.drift.flagged else "dim"
        line.append((f"speed {100 * cell.drift.speed_ratio:.0f} % of its model", look))
    if cell.mode in (GpuMode.LOST, GpuMode.DRAINED) or cell.why:
        line.append((f" {cell.mode}: {visible(cell.why)}", "bad"))
    return line


def _percent(cell: GpuCell, metric: Metric) -> str:
    return f"{100 * cell.ratios[metric]:.0f} %" if metric in cell.ratios else ""


def _number(cell: GpuCell, metric: Metric, unit: str) -> str:
    return f"{cell.raw[metric]:.0f} {unit}" if metric in cell.raw else ""


def _interval(each: RuntimePrediction) -> str:
    return f"{seconds(each.low_s)} to {seconds(each.high_s)}"


def _predictions(known: Explanation, width: int) -> list[Line]:
    """A line for each GPU model; what it rests on goes below where it has no room beside."""
    out = _heading("Predicted runtime")
    for each in known.predictions:
        basis = visible(each.basis.label) if each.basis is not None else ""
        line: Line = [("  " + visible(each.gpu_model).ljust(_LABEL), "dim"), (f"{seconds(each.median_s):>9}", "")]
        coverage = f" ({100 * each.interval_coverage:.0f} %)" if math.isfinite(each.interval_coverage) else ""
        line.append((f"   {_interval(each) + coverage:26}", "dim"))
        out.append(line)
        if sum(len(text) for text, _ in line) + 3 + len(basis) <= width:
            line.append((f"   {basis}", "dim"))
        else:
            out += _fact("", basis, width, "dim") if basis else []
    return out


def _decision(decision: Decision, width: int) -> list[Line]:
    out: list[Line] = []
    if decision.decision_id:
        by = decision.deciding_policy or decision.policy
        out += _fact(
            decision.decision_id,
            f"{decision.summary} (by {by}, at {seconds(decision.time_s)}, {decision.queue_length} waiting)",
            width,
        )
    out += _fact("rests on", decision.basis_text, width)
    for number, each in enumerate(decision.candidates[:_CANDIDATES]):
        mark = "→ " if each.placement == decision.placement else "  "
        text = f"{mark}{placement_text(each.placement, 2)}  {each.gpu_model}  {seconds(each.expected_runtime_s)}"
        out += _fact("candidates" if number == 0 else " ", f"{text}  score {each.score:.3g}", width)
    if (left := len(decision.candidates) - _CANDIDATES) > 0:
        out += _fact(" ", f"and {left} more", width, "dim")
    if decision.runner_up is not None:
        second = decision.runner_up
        what = f"{second.job_id} on {placement_text(second.placement)}" if second.job_id else "to start nothing"
        out += _fact("runner-up", f"{what}, score {second.score:.3g}", width)
    if decision.shadow is not None:
        shadow = decision.shadow
        other = f"would have started {shadow.job_id} on {placement_text(shadow.placement)}"
        told = "would have done the same" if shadow.agrees else other if shadow.job_id else "would have held"
        out += _fact("shadow", f"{shadow.policy} {told}", width)
    return [*_heading("Decision" if decision.decision_id else "Candidates"), *out] if out else []


def decision_lines(decision: Decision, width: int) -> list[Line]:
    """A decision as lines: what was chosen, its basis, candidates, and what was out of the question."""
    placed = placement_text(decision.placement) or "not placed"
    out: list[Line] = [[(decision.job_id, "bold"), ("  ", ""), (placed, "accent")]]
    out += _decision(decision, width)
    if decision.masked:
        out += _heading("Out of the question")
        out += _masked(decision, width)
    return out
