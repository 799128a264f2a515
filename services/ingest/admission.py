"""Accepts or refuses a job, and makes the record of an accepted one. Uses no gRPC and no Redis commands."""

from __future__ import annotations

import time
from typing import NamedTuple

from adlro.errors import FieldViolation, InvalidInput
from adlro.hardware.specs import GPU_SPECS, known_models_text
from adlro.placement import fewest_nodes
from adlro.records.jobs import JobSpec
from adlro.records.specifications import completed
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
            InvalidInput: no node can run its payload, an unknown GPU model is named, or no GPUs of the cluster can ever
                hold the job.
        """
        spec = completed(spec)
        view = await self._clusters.recent(self._cluster)
        if refusals(spec, view):
            # The description may be a moment old; refuse by the newest only.
            view = await self._clusters.newest(self._cluster)
            if violations := refusals(spec, view):
                raise InvalidInput(summary(violations), violations=violations, reason="JOB_CANNOT_RUN")
        return NewJob(spec, normalize_job(spec, view), request_id, time.time())


def refusals(spec: JobSpec, view: ClusterView | None) -> list[FieldViolation]:
    """The reasons why a job can never run; empty if it can."""
    models = view.gpu_models if view is not None else frozenset()
    named = {} if spec.expected_runtime is None else {"job.expected_runtime.gpu_model": spec.expected_runtime.gpu_model}
    named |= {f"job.gpu_models[{index}]": model for index, model in enumerate(spec.gpu_models)}
    out = []
    for path, model in named.items():
        if model not in GPU_SPECS and model not in models:
            known = known_models_text(model, models)
            text = f"{path}: {model!r} is not a known GPU model; use one of {known}"
            out.append(FieldViolation(path, text))
    if view is None or out:
        return out
    if not any(map(spec.accepts, models)):
        path = "job.gpu_models"
        text = f"{path}: cluster {view.cluster.name!r} has none of these models; it has {listed(models)}"
        return [FieldViolation(path, text)]
    if not view.holds(spec):
        return _misfits(spec, view)
    return _too_many(spec, view) if spec.gpu_count > 1 else []


def _too_many(spec: JobSpec, view: ClusterView) -> list[FieldViolation]:
    """Why no set of nodes can hold a job of several GPUs; empty if one can."""
    on_nodes = view.gpus_of_nodes(spec)
    fewest = {model: fewest_nodes(counts, spec.gpu_count) for model, counts in on_nodes.items()}
    enough = [nodes for nodes in fewest.values() if nodes is not None]
    where = f"cluster {view.cluster.name!r}"
    if not enough:
        held = ", ".join(f"{sum(counts)} of {model}" for model, counts in sorted(on_nodes.items()))
        path = "job.gpu_count"
        text = (
            f"{path}: asks for {spec.gpu_count} GPUs of one model, each with {_each(spec)}; {where} has at most {held}"
        )
        return [FieldViolation(path, text)]
    if 0 < spec.max_node_count < min(enough):
        path = "job.max_node_count"
        text = (
            f"{path}: {spec.gpu_count} GPUs of one model, each with {_each(spec)}, "
            f"take at least {min(enough)} nodes of {where}; allow {min(enough)}, or ask for fewer GPUs"
        )
        return [FieldViolation(path, text)]
    return []


def _each(spec: JobSpec) -> str:
    """What a job asks for with each GPU."""
    wanted = (spec.cpu_cores, spec.memory_mib, spec.gpu_memory_mib)
    told = [need.what.format(amount) for need, amount in zip(_NEEDS, wanted, strict=True) if amount]
    return " and ".join("1 CPU core" if each == "1 CPU cores" else each for each in told)


def _misfits(spec: JobSpec, view: ClusterView) -> list[FieldViolation]:
    """Names the fields to lower, with their limits."""
    wanted = (spec.cpu_cores, spec.memory_mib, spec.gpu_memory_mib)
    where = f"of cluster {view.cluster.name!r}"
    places = [each[:3] for each in view.places_of(spec)]
    if spec.gpu_models:
        where += f" with {' or '.join(spec.gpu_models)}"
    out = []
    for index, need in enumerate(_NEEDS):
        largest = max(place[index] for place in places)
        if wanted[index] > largest:
            text = (
                f"{need.field}: asks for {need.what.format(wanted[index])}; "
                f"the largest {need.whose} {where} has {largest}"
            )
            out.append(FieldViolation(need.field, text))
    if out:
        return out
    # Each value fits on some GPU, but no GPU fits all: name the values that would fit if lowered.
    all_of_it = _each(spec)
    for index, need in enumerate(_NEEDS):
        others = [i for i in range(len(_NEEDS)) if i != index]
        left = [place[index] for place in places if all(wanted[i] <= place[i] for i in others)]
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
