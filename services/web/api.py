"""Questions of the page that are not live: one job, one GPU, one decision. Asked under the user's own token.

So the services decide what he gets: a part that they refuse him is left out of an answer, or is the answer's error.
"""

from __future__ import annotations

import asyncio
import math
import shlex
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from adlro.client import AsyncClient, Credentials, Endpoints
from adlro.errors import (
    AdlroError,
    Conflict,
    DeadlineExceeded,
    InvalidInput,
    NotFound,
    PermissionDenied,
    Unavailable,
)
from adlro.records.decisions import Decision
from adlro.records.jobs import Job, JobState
from adlro.records.matrices import Telemetry, TelemetryBlock
from adlro.records.payloads import LogStream
from adlro.records.status import BUILT_IN
from adlro.services.web import folders
from adlro.services.web.decisions import differing_attempts
from adlro.services.web.documents import (
    decided_prediction,
    job_document,
    number,
    prediction_document,
    waiting_document,
    waiting_without_orchestrator,
)
from adlro.services.web.gantt import BUCKETS, MAX_BARS, OUTCOMES, gantt_document
from adlro.services.web.picture import Layout, Picture, readings_of
from adlro.services.web.questions import LATEST_S, or_none, real, whole
from adlro.services.web.sessions import Session
from adlro.services.web.viewers import Viewer
from adlro.services.web.views import VALUES, beside, gpu_document, values_of

_TIMEOUT_S: Final = 10.0
# A person waits for the answer: a service that restarts is given a moment.
_PATIENCE_S: Final = 2.0
_FIRST_WORDS_S: Final = 2.0
_LOOK_EVERY_S: Final = 0.05
_EVIDENCE: Final = 5
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
        self._closing: set[asyncio.Task[None]] = set()

    def of(self, session: Session | None) -> AsyncClient:
        """The client of a login; None: of everybody."""
        key = "" if session is None else session.session_id
        if key not in self._clients:
            self._clients[key] = self.with_token(self._credentials.token if session is None else session.token)
        return self._clients[key]

    def with_token(self, token: str) -> AsyncClient:
        """A client of somebody who has a token; its owner closes it."""
        credentials = replace(self._credentials, token=token)
        return AsyncClient(
            endpoints=self._endpoints, credentials=credentials, timeout_s=_TIMEOUT_S, patience_s=_PATIENCE_S
        )

    def close_others(self, sessions: Mapping[str, Session]) -> None:
        """Closes the clients of logins that have ended; their last calls are not waited for here."""
        for key in [each for each in self._clients if each and each not in sessions]:
            task = asyncio.create_task(self._clients.pop(key).close(), name="close a login's client")
            self._closing.add(task)  # a task that nobody holds may be collected
            task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Closes all."""
        clients, self._clients = list(self._clients.values()), {}
        await asyncio.gather(*(client.close() for client in clients), *self._closing)


async def job_answer(client: AsyncClient, viewer: Viewer, picture: Picture, job_id: str) -> dict[str, Any]:
    """A job with why it waits, what was predicted, and the decision that placed it."""
    job = await client.get(job_id)
    cluster, described = await asyncio.gather(or_none(client.cluster()), or_none(_described(client, viewer)))
    nodes = {} if cluster is None else {gpu.gpu_id: node.node_id for node, gpu in cluster.gpus()}
    capabilities = picture.capabilities if described is None else described.capabilities or picture.capabilities
    models = () if cluster is None else cluster.gpu_models
    (job, waiting), decision, predictions = await asyncio.gather(
        _waiting(client, picture, job),
        or_none(_explained(client, viewer, job)),
        or_none(_predicted(client, viewer, job, models)),
    )
    decided = None if decision is None else decided_prediction(decision, _model_of(job, decision))
    logs = capabilities.logs if viewer.sees_all else job.spec.payload is not None
    clock = None if described is None else described.clock
    return {
        "job": job_document(
            job, nodes, may_change=viewer.may_change(job), may_release=viewer.may_release(job), has_logs=logs
        )
        | beside(job, viewer, picture),
        "now_s": number(picture.time_s(time.time()) if clock is None else clock.time_s),
        "waiting": waiting,
        "prediction": None
        if not predictions and decided is None
        else {
            "now": [prediction_document(each) for each in predictions or ()],
            "decided": decided,
            "evidence": [
                {"job_id": each.job_id, "similarity": number(each.similarity), "runtime_s": number(each.runtime_s)}
                for each in {item.job_id: item for found in predictions or () for item in found.evidence}.values()
            ],
        },
        "decision_id": None if decision is None else decision.decision_id or None,
    }


async def _waiting(client: AsyncClient, picture: Picture, job: Job) -> tuple[Job, dict[str, Any] | None]:
    """The job, and why it waits: the orchestrator's look at each GPU or, where it tells none, the job's record."""
    if job.state is not JobState.PENDING:
        return job, None
    why = "the orchestrator does not answer now"
    try:
        return job, waiting_document(await client.explain_waiting(job.job_id))
    except Conflict:
        # It was placed, or ended, since its record was read.
        job = await client.get(job.job_id)
        if job.state is not JobState.PENDING:
            return job, None
        why = "the orchestrator places it at this moment"
    except (Unavailable, DeadlineExceeded):
        pass
    except AdlroError as error:
        why = error.message
    waiting = picture.jobs.counts(None)["state"]["pending"] if picture.jobs_complete else None
    return job, waiting_without_orchestrator(job, picture.jobs.place(job), waiting, why)


def _model_of(job: Job, decision: Decision) -> str:
    """The GPU model that a decision placed a job on."""
    return next((each.gpu_model for each in job.attempts if each.attempt == decision.attempt), job.gpu_model)


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


async def _told(known: Callable[[], bool]) -> None:
    """Waits a moment for what the streams tell soon: they may just have been opened, with a page that was hidden.

    Raises:
        Unavailable: it is not known yet.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(_FIRST_WORDS_S):
            while not known():  # noqa: ASYNC110 - the picture has no event for it
                await asyncio.sleep(_LOOK_EVERY_S)
    if not known():
        raise Unavailable("the services have not said yet what the cluster does; try again in a moment")


async def gpu_answer(client: AsyncClient, picture: Picture, gpu_id: str, query: Mapping[str, str]) -> dict[str, Any]:
    """A GPU, its last hour, and what ran there."""
    window_s = real(query, "window_s", 3600.0, 1.0, _LONGEST_WINDOW_S)
    await _told(lambda: picture.cluster is not None and picture.jobs_complete)
    gpu = gpu_document(gpu_id, picture)
    if gpu is None:
        raise NotFound("there is no GPU of this id", field="id")
    from_s = max((picture.time_s(time.time()) or 0.0) - window_s, 0.0)
    telemetry, history = await asyncio.gather(
        client.telemetry(window_s=window_s, gpu_ids=[gpu_id], step_s=window_s / _POINTS),
        client.query_attempts(from_s, gpu_ids=[gpu_id], max_bars=MAX_BARS),
    )
    ran = sorted((each for each in history.bars or () if each.job_id), key=lambda each: -each.start_s)
    return {
        "gpu": gpu | {"values": values_of(readings_of(telemetry.latest).get(gpu_id, {}))},
        "series": _series(telemetry, gpu_id, lambda unix_s: picture.time_then_s(unix_s, time.time())),
        "attempts": [
            {
                "job": each.job_id,
                "start_s": number(each.start_s),
                "end_s": number(each.end_s),
                "outcome": OUTCOMES[each.outcome],
            }
            for each in ran[:_ATTEMPTS]
        ],
    }


async def gantt_answer(
    client: AsyncClient, viewer: Viewer, picture: Picture, query: Mapping[str, str]
) -> dict[str, Any]:
    """What ran where: what ingest tells this user, with the names that he may see."""
    await _told(lambda: picture.time_s(time.time()) is not None)
    now_s = picture.time_s(time.time()) or 0.0
    to_s = real(query, "to", now_s, 0.0, LATEST_S)
    from_s = real(query, "from", max(to_s - 3600.0, 0.0), 0.0, LATEST_S)
    if from_s >= to_s:
        raise InvalidInput("from: must be before to", field="from")
    gpu_ids = [each for each in query.get("gpus", "").split(",") if each]
    max_bars = whole(query, "max_bars", MAX_BARS, 1, MAX_BARS)
    layout = picture.layout if picture.cluster is not None else Layout.of(await client.cluster())
    history = await client.query_attempts(from_s, to_s, gpu_ids=gpu_ids, max_bars=max_bars, bucket_count=BUCKETS)
    # Occupancy shows no single attempt.
    asked = None if history.bars is None else differing_attempts(client, viewer, picture, from_s, to_s)
    differing = None if asked is None else await or_none(asked)

    def name_of(job_id: str) -> str | None:
        job = picture.jobs.get(job_id)
        return job.spec.name if job is not None and viewer.sees(job) else None

    return gantt_document(layout, history, now_s, name_of, differing)


def _series(telemetry: Telemetry, gpu_id: str, time_then_s: Callable[[float], float | None]) -> dict[str, Any]:
    """The values of one GPU over time; ingest has made steps of them.

    Args:
        telemetry: of some hundred steps.
        gpu_id: the GPU.
        time_then_s: the cluster's time at a wall time, for samples that do not have it.
    """
    times: list[float | None] = []
    values: dict[str, list[float]] = {name: [] for name in VALUES.values()}
    for block in telemetry.window:
        if gpu_id not in block.gpu_ids:
            continue
        column = block.gpu_ids.index(gpu_id)
        walls = block.sample_times_unix_s
        # All samples of a block have it, or none.
        times.extend(block.cluster_times_s if len(block.cluster_times_s) == len(walls) else map(time_then_s, walls))
        for metric, name in VALUES.items():
            values[name].extend(_column(block, metric, column))
    return {
        "time_s": [None if time_s is None else number(time_s) for time_s in times],
        "metrics": {
            name: [round(value, 4) if math.isfinite(value) else None for value in column]
            for name, column in values.items()
        },
    }


def _column(block: TelemetryBlock, metric: Any, column: int) -> list[float]:
    found = block.columns.get(metric)
    if found is None:
        return [math.nan] * len(block.sample_times_unix_s)
    return [float(each) for each in found.raw[:, column]]


async def policies_answer(client: AsyncClient, reports_dir: str) -> dict[str, Any]:
    """The policies, who decides, how often the shadow agreed, and what it would have gained.

    Args:
        client: the user's.
        reports_dir: the folder with comparisons; empty: none.
    """
    policies, status = await asyncio.gather(client.policies(), client.status())
    shadow = status.shadow
    other = "" if shadow is None else shadow.policy
    paired = await asyncio.to_thread(folders.comparison, reports_dir, status.policy, other)
    return {
        "policies": [
            {
                "name": each.name,
                "description": each.description,
                "advice": each.advice or None,
                "source": each.source or None,
                "shipped": each.source in ("", BUILT_IN),
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
        "paired_replay": paired,
        "paired_command": None if paired is not None else _comparing(other, reports_dir),
    }


def _comparing(other: str, reports_dir: str) -> str:
    """The command that makes a comparison for the Policies screen."""
    folder = reports_dir.rstrip("/") or "REPORTS"
    return f"adlro compare {f'{other} ' if other else ''}-o json > {shlex.quote(f'{folder}/compare.json')}"


async def capacity_answer(client: AsyncClient, query: Mapping[str, str], models: Collection[str]) -> dict[str, Any]:
    """The GPUs of each model, how many are free, and on how many at most a job of this size would fit now.

    The orchestrator counts by model and tells the cores and the memory of the node that has most of them free: on the
    other nodes there may be less.

    Args:
        client: the user's.
        query: what the job asks for.
        models: that it accepts; none: all.
    """
    cluster, capacity = await asyncio.gather(client.cluster(), or_none(client.cluster_capacity()))
    free = {} if capacity is None else {each.gpu_model: each for each in capacity.gpu_models}
    shown: dict[str, dict[str, Any]] = {}
    for _, gpu in cluster.gpus():
        there = free.get(gpu.gpu_model)
        each = shown.setdefault(
            gpu.gpu_model,
            {
                "model": gpu.gpu_model,
                "gpu_count": 0,
                "free_gpu_count": None if there is None else there.free_gpu_count,
                "memory_mib": gpu.memory_mib,
            },
        )
        each["gpu_count"] += 1
    wanted = whole(query, "gpu_count", 1, 1, 1_000_000)
    gpu_memory_mib = whole(query, "gpu_memory_mib", 0, 0, 1 << 40)
    cpu_cores, memory_mib = whole(query, "cpu_cores", 0, 0, 1 << 20), whole(query, "memory_mib", 0, 0, 1 << 40)
    if capacity is None:
        return {"models": list(shown.values()), "fits": None}
    fitting = sum(
        each.free_gpu_count
        for name, each in free.items()
        if name in shown
        and (not models or name in models)
        and shown[name]["memory_mib"] >= gpu_memory_mib
        and each.largest_free_cpu_cores >= cpu_cores
        and each.largest_free_memory_mib >= memory_mib
    )
    if fitting == 0:
        found = "No free GPU is large enough now"
    elif fitting == 1:
        found = "At most 1 free GPU is large enough now"
    else:
        found = f"Up to {fitting} free GPUs are large enough now"
    sentence = f"{found}; the job asks for {wanted}."
    return {"models": list(shown.values()), "fits": {"gpu_count": fitting, "sentence": sentence}}


async def _described(client: AsyncClient, viewer: Viewer) -> Any:
    if not viewer.sees_all:
        raise PermissionDenied("a submitter does not get the cluster's own description")
    return await client.describe_cluster()


async def _explained(client: AsyncClient, viewer: Viewer, job: Job) -> Decision | None:
    """The decision that placed a job; None: none has."""
    if not viewer.sees_all or not job.attempts:
        return None
    decision = await client.explain(job.job_id)
    return decision if decision.placement.gpus else None


async def _predicted(client: AsyncClient, viewer: Viewer, job: Job, models: tuple[str, ...]) -> Any:
    if not viewer.sees_all or not models:
        raise PermissionDenied("a submitter does not get predictions, which rest on others' jobs")
    found = await client.predict([job.spec], models, max_evidence=_EVIDENCE, job_ids=[job.job_id])
    return found[0]
