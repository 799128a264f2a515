"""Accepts or refuses a job, and makes the record of an accepted one. Uses no gRPC and no Redis commands."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import NamedTuple

from adlro.errors import FieldViolation, InvalidInput
from adlro.hardware.specs import GPU_SPECS, known_models_text
from adlro.kit.identity import current_caller
from adlro.placement import fewest_nodes
from adlro.records.jobs import JobSpec, NormalizedJob
from adlro.records.specifications import completed
from adlro.services.ingest.clusters import ClusterRegistry, ClusterView, listed, summary
from adlro.services.ingest.normalize import normalize_job
from adlro.store import JobReads, NewArray, NewJob


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


_WRONG_NODES_TOLD = 20
"""Unknown nodes of a job of which each is told by itself."""


class Admission:
    """Checks jobs against the cluster and normalises them.

    Args:
        clusters: reads the cluster.
        cluster: its name. While the cluster is unknown, every job is accepted.
        store: has the jobs that others wait for.
    """

    def __init__(self, clusters: ClusterRegistry, cluster: str, store: JobReads) -> None:
        self._clusters = clusters
        self._cluster = cluster
        self._store = store

    async def admit(self, spec: JobSpec, request_id: str) -> NewJob:
        """The record of a new job.

        Raises:
            InvalidInput: no node can run its payload, an unknown GPU model or node is named, no GPUs of the cluster
                can ever hold the job, or it waits for a job that does not exist.
        """
        spec, normalized = await self._admit(spec)
        return NewJob(spec, normalized, request_id, time.time())

    async def admit_array(
        self, spec: JobSpec, indexes: Sequence[int], max_running_count: int, request_id: str
    ) -> NewArray:
        """The record of a new array.

        Raises:
            InvalidInput: as `admit`, or the indexes do not rise.
        """
        for place, (before, index) in enumerate(itertools.pairwise(indexes), start=1):
            if index <= before:
                text = f"indexes[{place}]: {index} follows {before}; name each index once, in rising order"
                raise InvalidInput(text, field=f"indexes[{place}]")
        spec, normalized = await self._admit(spec)
        return NewArray(spec, normalized, indexes, max_running_count, request_id, time.time())

    async def _admit(self, spec: JobSpec) -> tuple[JobSpec, NormalizedJob]:
        spec = completed(spec)
        if spec.array is not None:
            text = "job.array: is set by SubmitArray alone; leave it out, or call SubmitArray"
            raise InvalidInput(text, field="job.array")
        view = await self._clusters.recent(self._cluster)
        if refusals(spec, view):
            # The description may be a moment old; refuse by the newest only.
            view = await self._clusters.newest(self._cluster)
            if violations := refusals(spec, view):
                raise InvalidInput(summary(violations), violations=violations, reason="JOB_CANNOT_RUN")
        if spec.after:
            await self._check_after(spec)
        return spec, normalize_job(spec, view)

    async def _check_after(self, spec: JobSpec) -> None:
        """Raises InvalidInput if it waits for a job that does not exist, or that the caller may not see."""
        ids = [each.job_id for each in spec.after]
        known = set(await self._store.ends(ids))
        caller = current_caller()
        if caller is not None and not caller.sees_all:
            # An array has one user. The records say whose a job is, also while the index of users has a gap.
            firsts = [each.replace("array-", "job-", 1) for each in ids]
            jobs = await self._store.get_many(firsts)
            known &= {each for each, job in zip(ids, jobs, strict=True) if job and job.spec.user == caller.user}
        violations = [
            FieldViolation(
                path := f"job.after[{place}].job_id",
                f"{path}: there is no job or array {job_id!r}; `adlro queue --all` lists the jobs",
            )
            for place, job_id in enumerate(ids)
            if job_id not in known
        ]
        if violations:
            raise InvalidInput(summary(violations), violations=violations, reason="DEPENDENCY_NOT_FOUND")


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
    if spec.chooses_nodes:
        if wrong := _wrong_nodes(spec, view):
            return wrong
        chosen = view.chosen_by(spec)
        return [
            FieldViolation(each.field, f"{each.description} (counting the nodes alone that it may run on)")
            for each in _cannot_hold(spec, chosen)
        ]
    return _cannot_hold(spec, view)


def _cannot_hold(spec: JobSpec, view: ClusterView) -> list[FieldViolation]:
    """Why no GPUs of a cluster can ever hold a job; empty if some can."""
    models = view.gpu_models
    if not any(map(spec.accepts, models)):
        path = "job.gpu_models"
        text = f"{path}: cluster {view.cluster.name!r} has none of these models; it has {listed(models)}"
        return [FieldViolation(path, text)]
    if not view.holds(spec):
        return _misfits(spec, view)
    return _too_many(spec, view) if spec.gpu_count > 1 else []


def _wrong_nodes(spec: JobSpec, view: ClusterView) -> list[FieldViolation]:
    """Nodes that a job names and the cluster does not have; or why no node is left for it."""
    named = {f"job.node_ids[{index}]": node_id for index, node_id in enumerate(spec.node_ids)}
    named |= {f"job.excluded_node_ids[{index}]": node_id for index, node_id in enumerate(spec.excluded_node_ids)}
    where = f"cluster {view.cluster.name!r}"
    wrong = [(path, node_id) for path, node_id in named.items() if node_id not in view.node_ids]
    if wrong:
        has = f"it has {listed(view.node_ids)} (adlro nodes)"
        found = [
            FieldViolation(path, f"{path}: {where} has no node {node_id!r}; {has}")
            for path, node_id in wrong[:_WRONG_NODES_TOLD]
        ]
        if (more := len(wrong) - _WRONG_NODES_TOLD) > 0:
            path, node_id = wrong[_WRONG_NODES_TOLD]
            others = f", nor {more - 1} more that the job names" if more > 1 else ""
            found.append(FieldViolation(path, f"{path}: {where} has no node {node_id!r}{others}"))
        return found
    accepted = spec.accepted_nodes(view.node_ids)
    if any(node.gpus and node.node_id in accepted for node in view.cluster.nodes):
        return []
    path = "job.excluded_node_ids" if spec.excluded_node_ids else "job.node_ids"
    return [FieldViolation(path, f"{path}: no node with GPUs is left for the job, of those of {where}")]


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
