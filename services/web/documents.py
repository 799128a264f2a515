"""Records as the page's JSON: rows of a queue, a job, why it waits, a decision. Pure functions of records.

Times named `*_s` are seconds of cluster time. What is not known is None.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from adlro.records.decisions import BaseChoice, Decision
from adlro.records.dependencies import CONDITION_WORDS
from adlro.records.job_requests import JobRequestKind
from adlro.records.jobs import Job, JobAttempt, JobState, JobType, PendingReason
from adlro.records.payloads import ExitStatus
from adlro.records.predictions import RuntimePrediction
from adlro.records.waiting import WaitingExplanation
from adlro.services.web.command_line import command_line

# A gang may have thousands; a row of a table shows the first ones, and how many there are.
_GPUS_IN_ROW = 8
_MESSAGE_CHARACTERS = 400
_MASKED_EXAMPLES = 4


def number(value: float | None) -> float | None:
    """A number for JSON; NaN and infinity are not known."""
    return None if value is None or not math.isfinite(value) else value


def type_name(kind: JobType) -> str | None:
    """The name of a job's type; None: its user did not state it."""
    return None if kind is JobType.UNSPECIFIED else kind.name.lower()


def reason_name(job: Job) -> str | None:
    """Why a job waits; None: it does not."""
    waits = job.state is JobState.PENDING and job.pending_reason is not PendingReason.NONE
    return job.pending_reason.name.lower() if waits else None


def wait_s(job: Job) -> float | None:
    """From submission (or begin time) to the last start; None before a start: the page has the clock."""
    return None if job.submit_s is None or job.start_s is None else max(job.start_s - job.submit_s, 0.0)


def job_row(job: Job) -> dict[str, Any]:
    """A job in a table."""
    spec = job.spec
    return {
        "id": job.job_id,
        "name": spec.name,
        "user": spec.user,
        "type": type_name(spec.job_type),
        "state": job.state.name.lower(),
        "reason": reason_name(job),
        "message": job.message[:_MESSAGE_CHARACTERS],
        "priority": number(spec.priority),
        "submit_s": number(job.submit_s),
        "wait_s": number(wait_s(job)),
        "gpu_count": spec.gpu_count,
        "gpus": list(job.placement.gpu_ids[:_GPUS_IN_ROW]),
    }


def job_document(
    job: Job, nodes: Mapping[str, str], *, may_change: bool, may_release: bool, has_logs: bool
) -> dict[str, Any]:
    """A job with all that its page shows.

    Args:
        job: the job, as its viewer may see it.
        nodes: the node of each GPU.
        may_change: whether the viewer may cancel and hold it, and submit it again.
        may_release: whether he may release it.
        has_logs: whether its output can be read.
    """
    spec = job.spec
    waits = job.state is JobState.PENDING
    asked = {each.kind for each in job.requests}
    holdable = waits and job.hold is None and job.pending_reason is not PendingReason.LAUNCHING
    return {
        **job_row(job),
        "message": job.message,
        "application": spec.application,
        "start_s": number(job.start_s),
        "end_s": number(job.end_s),
        "gpu_ids": list(job.placement.gpu_ids),
        "gpu_model": job.gpu_model or None,
        "node_ids": _nodes(job.placement.gpu_ids, nodes),
        "cpu_cores": spec.cpu_cores,
        "memory_mib": spec.memory_mib,
        "gpu_memory_mib": spec.gpu_memory_mib,
        "time_limit_s": number(spec.time_limit_s),
        "begin_time_s": number(spec.begin_time_s),
        "after": [{"id": each.job_id, "condition": CONDITION_WORDS[each.condition]} for each in spec.after],
        "array": None
        if spec.array is None
        else {
            "id": spec.array.array_id,
            "index": spec.array.index,
            "count": spec.array.count,
            "max_running": spec.array.max_running_count or None,
        },
        "held_by": None if job.hold is None else job.hold.user or spec.user,
        "held_by_operator": job.hold is not None and job.hold.by_operator,
        "asked": [each.name.lower() for each in JobRequestKind if each in asked],
        "gpu_models": list(spec.gpu_models),
        "max_node_count": spec.max_node_count,
        "preemptible": spec.preemptible is not None,
        "shareable": spec.shareable,
        "exclusive": spec.exclusive,
        "only_on": list(spec.node_ids),
        "not_on": list(spec.excluded_node_ids),
        "labels": dict(spec.labels),
        "remaining_ratio": number(job.remaining_ratio),
        "cancel_requested": job.cancel_requested,
        "may_change": may_change,
        "may_cancel": may_change and not job.state.final and not job.cancel_requested,
        "may_hold": may_change and holdable and not job.cancel_requested,
        "may_release": may_release and waits and job.hold is not None and not job.cancel_requested,
        "may_requeue": may_change and job.state.final,
        "has_logs": has_logs and bool(job.attempts),
        "command_line": command_line(spec),
        "attempts": [_attempt(each, nodes) for each in job.attempts],
    }


def decision_row(decision: Decision) -> dict[str, Any]:
    """A decision in a list."""
    shadow, second = decision.shadow, decision.runner_up
    chosen = next((each.score for each in decision.candidates if each.placement == decision.placement), None)
    margin = None if second is None or chosen is None else chosen - second.score
    return {
        "id": decision.decision_id,
        "time_s": number(decision.time_s),
        "queue_length": decision.queue_length,
        "policy": decision.policy,
        "deciding_policy": decision.deciding_policy or None,
        "basis": None if decision.basis is None else decision.basis.value,
        "basis_text": decision.basis_text,
        "job": decision.job_id,
        "gpu_ids": list(decision.placement.gpu_ids[:_GPUS_IN_ROW]),
        "gpu_count": len(decision.placement.gpus),
        "score": number(chosen),
        "margin": number(margin),
        "hold_score": number(decision.hold_score),
        "decision_us": number(decision.decision_us),
        "shadow": None
        if shadow is None
        else {
            "policy": shadow.policy,
            "job": shadow.job_id or None,
            "gpu": shadow.placement.gpu_id or None,
            "agrees": shadow.agrees,
        },
        "base": None if decision.base_choice is None else _base(decision, decision.base_choice),
        "needed_margin": number(decision.margin),
    }


def _base(decision: Decision, base: BaseChoice) -> dict[str, Any]:
    """What the policy's base would have done; neither job nor GPU: a hold."""
    return {
        "job": base.job_id or None,
        "gpu": base.gpu_id or None,
        "score": number(base.score),
        "agrees": base.job_id == decision.job_id and base.placement == decision.placement,
    }


def decision_document(decision: Decision, shown: int) -> dict[str, Any]:
    """A decision with its candidates, the best pairs of all jobs, and the GPUs that were excluded, by reason.

    Args:
        decision: the decision.
        shown: the most candidates, and pairs.
    """
    return {
        **decision_row(decision),
        "summary": decision.summary,
        "candidates": [
            {
                "job": decision.job_id,
                "gpu_id": each.gpu_id,
                "gpu_model": each.gpu_model,
                "expected_runtime_s": number(each.expected_runtime_s),
                "score": number(each.score),
                "node_count": each.node_count,
            }
            for each in decision.candidates[:shown]
        ],
        "candidates_left_out": max(len(decision.candidates) - shown, 0),
        "pairs": [
            {
                "job": each.job_id,
                "gpu_id": each.gpu_id,
                "gpu_model": each.gpu_model,
                "gpu_count": len(each.placement.gpus),
                "equal_gpu_count": each.equal_gpu_count,
                "expected_runtime_s": number(each.expected_runtime_s),
                "score": number(each.score),
                "chosen": each.job_id == decision.job_id and each.placement == decision.placement,
            }
            for each in decision.best_pairs[:shown]
        ],
        "masked": _masked(decision),
    }


def _masked(decision: Decision) -> list[dict[str, Any]]:
    groups = {
        each.reason: (each.gpu_count, list(each.example_gpu_ids[:_MASKED_EXAMPLES])) for each in decision.masked_groups
    }
    if not groups:
        alone: dict[str, list[str]] = {}
        for each in decision.masked:
            alone.setdefault(each.reason, []).append(each.gpu_id or each.gpu_model)
        groups = {reason: (len(gpus), gpus[:_MASKED_EXAMPLES]) for reason, gpus in alone.items()}
    return [
        {"reason": reason, "gpu_count": count, "example_gpu_ids": examples}
        for reason, (count, examples) in sorted(groups.items(), key=lambda item: -item[1][0])
    ]


def decided_prediction(decision: Decision, gpu_model: str) -> dict[str, Any] | None:
    """The runtime that was expected when a job was placed; None: it was not placed, or that is not recorded.

    Args:
        decision: that placed it.
        gpu_model: of its GPUs.
    """
    told = decision.prediction
    if told is None:
        return None
    known = told.interval_coverage > 0.0
    return {
        "gpu_model": gpu_model or None,
        "median_s": number(told.median_s),
        "low_s": number(told.low_s) if known else None,
        "high_s": number(told.high_s) if known else None,
        "basis": None if told.basis is None else told.basis.name.lower(),
        "time_s": number(decision.time_s),
    }


def waiting_document(told: WaitingExplanation) -> dict[str, Any]:
    """Why a job waits, what its user could change, and when it may start: seconds from the explanation's moment."""
    start = told.expected_start
    return {
        "category": told.reason.name.lower(),
        "sentence": told.sentence,
        "place": told.queue_place or None,
        "queue_length": told.queue_length,
        "gpus": [
            {"reason": obstacle.value, "text": obstacle.label, "gpu_count": count}
            for obstacle, count in told.obstacles.items()
            if count
        ],
        "advice": [{"text": each.sentence, "gpu_count": each.gpu_count} for each in told.changes],
        "start": None
        if start is None
        else {
            name: number(max(value - told.time_s, 0.0))
            for name, value in (("low_s", start.low_s), ("median_s", start.median_s), ("high_s", start.high_s))
        },
        "record": None
        if start is None or not start.finished_count
        else {"forecast_count": start.finished_count, "within_ratio": number(start.came_in_ratio)},
        "no_start": told.no_expected_start or None,
    }


def waiting_without_orchestrator(job: Job, place: int | None, queue_length: int | None, why: str) -> dict[str, Any]:
    """Why a job waits, from its record alone; `why` the orchestrator tells no more."""
    return {
        "category": reason_name(job),
        "sentence": job.message,
        "place": place,
        "queue_length": queue_length,
        "gpus": [],
        "advice": [],
        "start": None,
        "record": None,
        "no_start": why,
    }


def prediction_document(prediction: RuntimePrediction) -> dict[str, Any]:
    """A predicted runtime on a GPU model."""
    return {
        "gpu_model": prediction.gpu_model,
        "median_s": number(prediction.median_s),
        "low_s": number(prediction.low_s),
        "high_s": number(prediction.high_s),
        "basis": None if prediction.basis is None else prediction.basis.name.lower(),
    }


def exit_text(status: ExitStatus | None) -> str | None:
    """How a program ended, in words."""
    if status is None:
        return None
    if status.signal:
        return f"signal {status.signal}" + (f": {status.detail}" if status.detail else "")
    return f"exit code {status.code}" + (f": {status.detail}" if status.detail else "")


def _attempt(attempt: JobAttempt, nodes: Mapping[str, str]) -> dict[str, Any]:
    return {
        "attempt": attempt.attempt,
        "gpu_ids": list(attempt.placement.gpu_ids),
        "gpu_model": attempt.gpu_model or None,
        "node_ids": _nodes(attempt.placement.gpu_ids, nodes),
        "start_s": number(attempt.start_s),
        "end_s": number(attempt.end_s),
        "run_s": number(attempt.run_s),
        "outcome": attempt.outcome or None,
        "excused": attempt.excused,
        "preempted": attempt.preempted,
        "exit_text": exit_text(attempt.exit),
        "preempts": [each.job_id for each in attempt.preempts],
    }


def _nodes(gpu_ids: Sequence[str], nodes: Mapping[str, str]) -> list[str]:
    return list(dict.fromkeys(nodes[each] for each in gpu_ids if each in nodes))
