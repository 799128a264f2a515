"""Accepts or refuses a job, and makes the record of an accepted one. Uses no gRPC and no Redis commands."""

from __future__ import annotations

import time
from typing import NamedTuple

from adlro.errors import FieldViolation, InvalidInput
from adlro.hardware.specs import GPU_SPECS
from adlro.records.jobs import JobSpec
from adlro.services.ingest.clusters import ClusterRegistry, ClusterView, listed, summary
from adlro.services.ingest.normalize import normalize_job
from adlro.store import NewJob


class _Need(NamedTuple):
    field: str
    what: str  # with {} for an amount
    whose: str


# In the order of `ClusterView.places`.
_NEEDS = (
    _Need("job.cpu_cores", "{} CPU cores", "node"),
    _Need("job.memory_mib", "{} MiB of memory", "node"),
    _Need("job.gpu_memory_mib", "{} MiB of GPU memory", "GPU"),
)


class Admission:
    """Checks jobs against the cluster and normalises them.

    Args:
        clusters: reads the cluster.
        cluster: its name. While the cluster is unknown, every job is accepted.
    """

    def __init__(self, clusters: ClusterRegistry, cluster: str) -> None:
        self._clusters = clusters
        self._cluster = cluster

    async def admit(self, spec: JobSpec, request_id: str) -> NewJob:
        """The record of a new job.

        Raises:
            InvalidInput: an unknown GPU model is named, or no GPU of the cluster can ever hold the job.
        """
        view = await self._clusters.recent(self._cluster)
        if refusals(spec, view):
            # The description may be a moment old; refuse by the newest only.
            view = await self._clusters.newest(self._cluster)
            if violations := refusals(spec, view):
                raise InvalidInput(summary(violations), violations=violations, reason="JOB_CANNOT_RUN")
        return NewJob(spec, normalize_job(spec, view), request_id, time.time())


def refusals(spec: JobSpec, view: ClusterView | None) -> list[FieldViolation]:
    """The reasons why a job can never run; empty if it can."""
    out = []
    expected = spec.expected_runtime
    models = view.gpu_models if view is not None else frozenset()
    if expected is not None and expected.gpu_model not in GPU_SPECS and expected.gpu_model not in models:
        path = "job.expected_runtime.gpu_model"
        text = f"{path}: {expected.gpu_model!r} is not a known GPU model; use one of {listed({*GPU_SPECS, *models})}"
        out.append(FieldViolation(path, text))
    if view is not None and not view.holds(spec):
        out += _misfits(spec, view)
    return out


def _misfits(spec: JobSpec, view: ClusterView) -> list[FieldViolation]:
    """Names the fields to lower, with their limits."""
    wanted = (spec.cpu_cores, spec.memory_mib, spec.gpu_memory_mib)
    where = f"of cluster {view.cluster.name!r}"
    out = []
    for index, need in enumerate(_NEEDS):
        largest = max(place[index] for place in view.places)
        if wanted[index] > largest:
            text = (
                f"{need.field}: asks for {need.what.format(wanted[index])}; "
                f"the largest {need.whose} {where} has {largest}"
            )
            out.append(FieldViolation(need.field, text))
    if out:
        return out
    # Each value fits on some GPU, but no GPU fits all: name the values that would fit if lowered.
    all_of_it = " and ".join(need.what.format(amount) for need, amount in zip(_NEEDS, wanted, strict=True) if amount)
    for index, need in enumerate(_NEEDS):
        others = [i for i in range(len(_NEEDS)) if i != index]
        left = [place[index] for place in view.places if all(wanted[i] <= place[i] for i in others)]
        if left:
            text = (
                f"{need.field}: no GPU {where} has {all_of_it} on its node; "
                f"the GPUs with room for the rest have at most {need.what.format(max(left))}"
            )
            out.append(FieldViolation(need.field, text))
    if not out:
        out = [
            FieldViolation(need.field, f"{need.field}: no GPU {where} has {all_of_it} on its node") for need in _NEEDS
        ]
    return out
