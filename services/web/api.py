"""Questions of the page that are not live: one job, one GPU, one decision. Asked under the user's own token.

So the services decide what he gets: a part that they refuse him is left out of an answer, or is the answer's error.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar

import numpy as np

from adlro.client import AsyncClient, Credentials, Endpoints
from adlro.errors import AdlroError, InvalidInput, NotFound, PermissionDenied
from adlro.records.decisions import Decision
from adlro.records.jobs import Job, JobState
from adlro.records.matrices import Telemetry, TelemetryBlock
from adlro.records.payloads import LogStream
from adlro.services.web.documents import (
    decision_document,
    job_document,
    number,
    outcome_name,
    prediction_document,
    reason_name,
)
from adlro.services.web.picture import Picture
from adlro.services.web.sessions import Session
from adlro.services.web.viewers import Viewer
from adlro.services.web.views import VALUES, gpu_document

T = TypeVar("T")

_TIMEOUT_S: Final = 10.0
# A person waits for the answer: a service that restarts is given a moment.
_PATIENCE_S: Final = 2.0
_EVIDENCE: Final = 5
_CANDIDATES: Final = 32
_ATTEMPTS: Final = 50
_POINTS: Final = 360
_LONGEST_WINDOW_S: Final = 86_400.0
_LOG_BYTES: Final = 64 * 1024


class UserClients:
    """A client for each login, with the user's own token.

    Args:
        endpoints: the services' addresses.
        credentials: the page's own, which serve where there are no users.
    """

    def __init__(self, endpoints: Endpoints, credentials: Credentials) -> None:
        self._endpoints = endpoints
        self._credentials = credentials
        self._clients: dict[str, AsyncClient] = {}

    def of(self, session: Session | None) -> AsyncClient:
        """The client of a login; None: of everybody."""
        key = "" if session is None else session.session_id
        if key not in self._clients:
            credentials = self._credentials if session is None else replace(self._credentials, token=session.token)
            self._clients[key] = AsyncClient(
                endpoints=self._endpoints, credentials=credentials, timeout_s=_TIMEOUT_S, patience_s=_PATIENCE_S
            )
        return self._clients[key]

    async def close_others(self, sessions: Mapping[str, Session]) -> None:
        """Closes the clients of logins that have ended."""
        for key in [each for each in self._clients if each and each not in sessions]:
            await self._clients.pop(key).close()

    async def close(self) -> None:
        """Closes all."""
        clients, self._clients = list(self._clients.values()), {}
        for client in clients:
            await client.close()


async def job_answer(client: AsyncClient, viewer: Viewer, picture: Picture, job_id: str) -> dict[str, Any]:
    """A job with why it waits, what was predicted, and the decision that placed it."""
    job = await client.get(job_id)
    cluster, described = await asyncio.gather(_or_none(client.cluster()), _or_none(_described(client, viewer)))
    nodes = {} if cluster is None else {gpu.gpu_id: node.node_id for node, gpu in cluster.gpus()}
    capabilities = picture.capabilities if described is None else described.capabilities or picture.capabilities
    models = () if cluster is None else cluster.gpu_models
    decision, predictions = await asyncio.gather(
        _or_none(_explained(client, viewer, job_id)), _or_none(_predicted(client, viewer, job, models))
    )
    logs = capabilities.logs if viewer.sees_all else job.spec.payload is not None
    clock = None if described is None else described.clock
    return {
        "job": job_document(job, nodes, may_cancel=viewer.may_cancel(job), has_logs=logs)
        | {"place": picture.jobs.place(job)},
        "now_s": number(picture.time_s(time.time()) if clock is None else clock.time_s),
        "waiting": _waiting(job, decision, picture) if job.state is JobState.PENDING else None,
        "prediction": None
        if not predictions
        else {
            "now": [prediction_document(each) for each in predictions],
            "decided": None,
            "evidence": [
                {"job_id": each.job_id, "similarity": number(each.similarity), "runtime_s": number(each.runtime_s)}
                for each in {item.job_id: item for found in predictions for item in found.evidence}.values()
            ],
        },
        "decision_id": decision.decision_id or None if decision is not None and decision.placement.gpus else None,
    }


def _waiting(job: Job, decision: Decision | None, picture: Picture) -> dict[str, Any]:
    """Why a job waits: from its record and, for those who may ask, from the orchestrator's look at each GPU."""
    groups: dict[str, int] = {}
    for each in () if decision is None else decision.masked:
        # Each busy GPU has a sentence of its own, with the job that is there.
        text = "busy with other jobs" if each.reason.startswith("busy with ") else each.reason
        groups[text] = groups.get(text, 0) + 1
    waiting = picture.jobs.counts(None)["state"]["pending"] if picture.jobs_complete else None
    return {
        "category": reason_name(job),
        "sentence": job.message,
        "place": picture.jobs.place(job),
        "queue_length": waiting,
        "gpus": [
            {"reason": None, "text": reason, "gpu_count": count}
            for reason, count in sorted(groups.items(), key=lambda item: -item[1])
        ],
        "advice": [],
        "start": None,
        "record": None,
    }


async def logs_answer(client: AsyncClient, job_id: str, query: Mapping[str, str]) -> dict[str, Any]:
    """A piece of a job's output, at most 64 KiB, from `offset` on, or the last `tail` bytes."""
    stream = {"stdout": LogStream.STDOUT, "stderr": LogStream.STDERR}.get(query.get("stream", "stdout"))
    if stream is None:
        raise InvalidInput("stream: is stdout or stderr", field="stream")
    attempt = whole(query, "attempt", 0, 0, 1_000_000)
    offset = whole(query, "offset", 0, 0, 1 << 60) if "offset" in query else None
    tail = whole(query, "tail", _LOG_BYTES, 1, _LOG_BYTES)
    data, first, size, complete = bytearray(), offset, 0, False
    follow = client.logs(job_id, stream, attempt=attempt, offset=offset, tail_bytes=0 if offset is not None else tail)
    async for chunk in follow:
        if first is None or not data:
            first = chunk.offset
        data += chunk.data
        size, complete = chunk.size, chunk.end
        if len(data) >= _LOG_BYTES:
            break
    shown = _whole_characters(bytes(data[:_LOG_BYTES]), last=len(data) <= _LOG_BYTES and complete)
    return {
        "stream": stream.name.lower(),
        "attempt": attempt,
        "offset": first or 0,
        "next_offset": (first or 0) + len(shown),
        "size_bytes": size,
        "text": shown.decode("utf-8", "replace"),
        "complete": complete and len(shown) == len(data),
    }


def _whole_characters(data: bytes, *, last: bool) -> bytes:
    """The bytes without a character of which only the first part is there yet."""
    if last:
        return data
    for count in range(1, min(4, len(data)) + 1):
        byte = data[-count]
        if byte < 0x80:
            return data
        if byte >= 0xC0:
            needed = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return data[:-count] if count < needed else data
    return data


async def gpu_answer(client: AsyncClient, picture: Picture, gpu_id: str, query: Mapping[str, str]) -> dict[str, Any]:
    """A GPU, its last hour, and what ran there."""
    window_s = real(query, "window_s", 3600.0, 1.0, _LONGEST_WINDOW_S)
    telemetry = await client.telemetry(window_s=window_s)
    gpu = gpu_document(gpu_id, picture)
    if gpu is None:
        raise NotFound("there is no GPU of this id", field="id")
    ran = [
        (
            attempt.start_s,
            {
                "job": job.job_id,
                "start_s": number(attempt.start_s),
                "end_s": number(attempt.end_s),
                "outcome": outcome_name(job, attempt),
            },
        )
        for job in picture.jobs.jobs()
        for attempt in job.attempts
        if gpu_id in attempt.placement.gpu_ids and attempt.start_s is not None
    ]
    ran.sort(key=lambda each: -each[0])
    return {"gpu": gpu, "series": _series(telemetry, gpu_id), "attempts": [each for _, each in ran[:_ATTEMPTS]]}


def _series(telemetry: Telemetry, gpu_id: str) -> dict[str, Any]:
    """The values of one GPU over time, at most some hundred points: the mean of each group of samples."""
    times: list[float] = []
    values: dict[str, list[float]] = {name: [] for name in VALUES.values()}
    for block in (*telemetry.window,):
        if gpu_id not in block.gpu_ids:
            continue
        column = block.gpu_ids.index(gpu_id)
        times.extend(block.cluster_times_s)
        for metric, name in VALUES.items():
            values[name].extend(_column(block, metric, column))
    step = max(-(-len(times) // _POINTS), 1)
    return {
        "time_s": [number(time_s) for time_s in times[::step]],
        "metrics": {name: _thinned(column, step) for name, column in values.items()},
    }


def _column(block: TelemetryBlock, metric: Any, column: int) -> list[float]:
    found = block.columns.get(metric)
    if found is None:
        return [float("nan")] * len(block.cluster_times_s)
    return [float(each) for each in found.raw[:, column]]


def _thinned(values: list[float], step: int) -> list[float | None]:
    found: list[float | None] = []
    for at in range(0, len(values), step):
        part = np.array(values[at : at + step])
        known = part[np.isfinite(part)]
        found.append(round(float(known.mean()), 4) if len(known) else None)
    return found


async def decision_answer(client: AsyncClient, decision_id: str) -> dict[str, Any]:
    """A decision with its candidates, and what its job's run took since."""
    decision = await client.explain(decision_id=decision_id)
    job = await _or_none(client.get(decision.job_id)) if decision.job_id and decision.placement.gpus else None
    ran_s = None
    if job is not None:
        for attempt in job.attempts:
            begins_s = attempt.runs_from_s
            if attempt.attempt == decision.attempt and attempt.end_s is not None and begins_s is not None:
                ran_s = number(attempt.end_s - begins_s)
    return {"decision": decision_document(decision, _CANDIDATES) | {"prediction": None, "ran_s": ran_s}}


async def policies_answer(client: AsyncClient) -> dict[str, Any]:
    """The policies, who decides, and how often the shadow agreed."""
    policies, status = await asyncio.gather(client.policies(), client.status())
    shadow = status.shadow
    return {
        "policies": [
            {
                "name": each.name,
                "description": each.description,
                "acting": each.acting,
                "shadow": each.shadow,
                "version": each.version or None,
                "problem": each.problem or None,
            }
            for each in policies
        ],
        "deciding_policy": status.deciding_policy or None,
        "deciding_basis": None if status.deciding_basis is None else status.deciding_basis.value,
        "shadow": None
        if shadow is None
        else {
            "policy": shadow.policy,
            "agreed": shadow.agreed_count,
            "differed": shadow.differed_count,
            "failed": shadow.failed_count,
            "skipped": shadow.skipped_count,
        },
        "decisions_by_basis": {basis.value: count for basis, count in status.decisions_by_basis.items()},
        "fallbacks": {basis.value: count for basis, count in status.fallbacks.items()},
        "paired_replay": None,
    }


async def capacity_answer(
    client: AsyncClient, viewer: Viewer, picture: Picture, query: Mapping[str, str]
) -> dict[str, Any]:
    """The GPUs of each model, how many are free, and on how many a job of this size would fit.

    Free ones are known only while a page is live.
    """
    cluster = await client.cluster()
    known = picture.jobs_complete and picture.cluster is not None
    blocked = set(picture.lost_gpu_ids) | {
        gpu.gpu_id for node, gpu in cluster.gpus() if node.node_id in picture.drained_node_ids
    }
    models: dict[str, dict[str, Any]] = {}
    fitting = 0
    model, memory_mib = query.get("gpu_model", ""), whole(query, "gpu_memory_mib", 0, 0, 1 << 40)
    for _, gpu in cluster.gpus():
        each = models.setdefault(
            gpu.gpu_model,
            {
                "model": gpu.gpu_model,
                "gpu_count": 0,
                "free_gpu_count": 0 if known else None,
                "memory_mib": gpu.memory_mib,
            },
        )
        each["gpu_count"] += 1
        free = gpu.gpu_id not in picture.jobs.holders and gpu.gpu_id not in blocked
        if known and free:
            each["free_gpu_count"] += 1
            fitting += int(gpu.memory_mib >= memory_mib and model in ("", gpu.gpu_model))
    wanted = whole(query, "gpu_count", 1, 1, 1_000_000)
    verb = "is" if fitting == 1 else "are"
    sentence = f"{fitting} free {'GPU' if fitting == 1 else 'GPUs'} {verb} large enough now; the job asks for {wanted}."
    return {
        "models": list(models.values()),
        "fits": {"gpu_count": fitting, "sentence": sentence} if known else None,
    }


def whole(query: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    """A whole number of a query.

    Raises:
        InvalidInput: it is none, or out of range.
    """
    text = query.get(name, "")
    if not text:
        return default
    if not text.isdecimal() or not text.isascii() or len(text) > 20 or not least <= int(text) <= most:
        raise InvalidInput(f"{name}: must be a whole number from {least} to {most}", field=name)
    return int(text)


def real(query: Mapping[str, str], name: str, default: float, least: float, most: float) -> float:
    """A number of a query.

    Raises:
        InvalidInput: it is none, or out of range.
    """
    text = query.get(name, "")
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least <= value <= most:
        raise InvalidInput(f"{name}: must be a number from {least:g} to {most:g}", field=name)
    return value


async def _described(client: AsyncClient, viewer: Viewer) -> Any:
    if not viewer.sees_all:
        raise PermissionDenied("a submitter does not get the cluster's own description")
    return await client.describe_cluster()


async def _explained(client: AsyncClient, viewer: Viewer, job_id: str) -> Decision:
    if not viewer.sees_all:
        raise PermissionDenied("a submitter does not get decisions")
    return await client.explain(job_id)


async def _predicted(client: AsyncClient, viewer: Viewer, job: Job, models: tuple[str, ...]) -> Any:
    if not viewer.sees_all or not models:
        raise PermissionDenied("a submitter does not get predictions, which rest on others' jobs")
    found = await client.predict([job.spec], models, max_evidence=_EVIDENCE, job_ids=[job.job_id])
    return found[0]


async def _or_none(question: Awaitable[T]) -> T | None:
    """An answer that the rest can do without."""
    try:
        return await question
    except AdlroError:
        return None
