"""Cluster descriptions: stored in Redis, cached here for a moment, with derived data.

Uses Redis and plain records; server.py passes the functions that serialise a description.
A refusal never uses the cache: the description is read again before it (`newest`).
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any

import numpy as np
import redis.asyncio as aioredis
from numpy.typing import NDArray

from adlro.errors import FieldViolation, InvalidInput
from adlro.hardware.specs import known_models_text, known_spec
from adlro.placement import gpus_that_fit, shortage
from adlro.records.cluster import Cluster, Gpu, Node
from adlro.records.jobs import JobSpec
from adlro.services.ingest.units import JOB_FIELD_RULES, FullScale, Scale
from adlro.store.keys import CLUSTERS, CURRENT_CLUSTER

_FORMER_CURRENT = "default"
"""The name of a cluster without a stored name, as in a store of an older version."""


Place = tuple[int, int, int, str]


class ClusterView:
    """A cluster with the data for checks of jobs and telemetry. G is its number of GPUs."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.gpus: tuple[Gpu, ...] = tuple(gpu for _, gpu in cluster.gpus())
        self.number_of: dict[str, int] = {gpu.gpu_id: number for number, gpu in enumerate(self.gpus)}
        self.gpu_models = frozenset(cluster.gpu_models)
        self.node_ids = frozenset(node.node_id for node in cluster.nodes)
        self.largest_node_cpu_cores = max(node.cpu_cores for node in cluster.nodes)
        self.largest_node_memory_mib = max(node.memory_mib for node in cluster.nodes)
        self.largest_gpu_memory_mib = max(gpu.memory_mib for gpu in self.gpus)
        self.job_references = job_references(self)
        # Kinds of place a job's GPU can be at: (cores, memory MiB, GPU memory MiB, GPU model), each once.
        self.places = {(node.cpu_cores, node.memory_mib, gpu.memory_mib, gpu.gpu_model) for node, gpu in cluster.gpus()}
        # Kinds of node and how many there are of each: (cores, memory MiB, (GPU model, its GPUs' memory MiB)s).
        self._node_kinds = Counter(
            (node.cpu_cores, node.memory_mib, tuple(_memories_of_models(node).items())) for node in cluster.nodes
        )
        # The last choice of nodes that a job made, and the cluster with these alone.
        self._chosen: tuple[tuple[tuple[str, ...], tuple[str, ...]], ClusterView] | None = None

    def places_of(self, spec: JobSpec) -> list[Place]:
        """The kinds of place whose GPU model a job accepts."""
        return [each for each in self.places if spec.accepts(each[3])]

    def chosen_by(self, spec: JobSpec) -> ClusterView:
        """The cluster with the nodes alone that a job may run on; at least one has a GPU."""
        if not spec.chooses_nodes:
            return self
        choice = spec.node_ids, spec.excluded_node_ids
        if self._chosen is None or self._chosen[0] != choice:  # jobs that come one after another often choose alike
            accepted = spec.accepted_nodes(self.node_ids)
            nodes = tuple(node for node in self.cluster.nodes if node.gpus and node.node_id in accepted)
            self._chosen = choice, ClusterView(Cluster(self.cluster.name, nodes))
        return self._chosen[1]

    def holds(self, spec: JobSpec) -> bool:
        """Whether some GPU, were it idle, could hold the job: for a job of several, one of its GPUs."""
        return any(
            shortage(spec, gpu_memory, cores, memory) is None for cores, memory, gpu_memory, _ in self.places_of(spec)
        )

    def gpus_of_nodes(self, spec: JobSpec) -> dict[str, list[int]]:
        """By model that a job accepts: how many of its GPUs each node can hold, were it idle; at least one."""
        found: dict[str, list[int]] = {}
        for (cores, memory, models), nodes in self._node_kinds.items():
            for model, gpu_memories in models:
                count = gpus_that_fit(spec, gpu_memories, cores, memory) if spec.accepts(model) else 0
                if count:
                    found.setdefault(model, []).extend([count] * nodes)
        return found

    @cached_property
    def full_scales(self) -> dict[FullScale, NDArray[np.float32]]:
        """The values that are normalised to 1.0, for each GPU: [G] float32 each."""
        specs = [known_spec(gpu) for gpu in self.gpus]
        # UpsertCluster accepts no model without figures; NaN would show, rather than hide, one written by others.
        figures = [
            (s.memory_bandwidth_gb_per_s, s.max_temperature_c, s.power_limit_w) if s is not None else (np.nan,) * 3
            for s in specs
        ]
        bandwidth, temperature, power = np.array(figures, np.float32).T
        return {
            FullScale.ONE: np.ones(len(self.gpus), np.float32),
            FullScale.OWN_MEMORY_MIB: np.array([gpu.memory_mib for gpu in self.gpus], np.float32),
            FullScale.SPEC_MEMORY_BANDWIDTH: bandwidth,
            FullScale.SPEC_MAX_TEMPERATURE: temperature,
            FullScale.SPEC_POWER_LIMIT: power,
        }


def _memories_of_models(node: Node) -> dict[str, tuple[int, ...]]:
    """By GPU model of a node the memory of its GPUs, MiB."""
    found: dict[str, tuple[int, ...]] = {}
    for gpu in node.gpus:
        found[gpu.gpu_model] = (*found.get(gpu.gpu_model, ()), gpu.memory_mib)
    return found


def job_references(view: ClusterView | None) -> dict[str, tuple[bool, float]]:
    """For each job field: whether its logarithm, log(1 + value), is measured; and what that or its value is at 1.0."""
    out = {}
    for name, rule in JOB_FIELD_RULES.items():
        reference = float(getattr(view, rule.of_cluster)) if view is not None and rule.of_cluster else rule.reference
        logarithmic = rule.scale is Scale.LOGARITHMIC
        out[name] = (logarithmic, math.log1p(reference) if logarithmic else reference)
    return out


class ClusterRegistry:
    """Reads and records cluster descriptions.

    Args:
        redis: a client with `decode_responses=False`.
        encode: a description as bytes.
        decode: the description that bytes hold.
        cache_s: how long a description is cached, seconds.
    """

    def __init__(
        self,
        redis: aioredis.Redis,
        encode: Callable[[Cluster], bytes],
        decode: Callable[[bytes], Cluster],
        cache_s: float,
    ) -> None:
        self._redis: Any = redis  # redis-py's stubs mix sync and async results
        self._encode = encode
        self._decode = decode
        self._cache_s = cache_s
        self._views: dict[str, tuple[bytes, ClusterView]] = {}
        self._read_at: dict[str, float] = {}
        # The name last found missing, and when: only one, as anybody can send any number of unknown names.
        self._missing: tuple[str, float] = ("", 0.0)

    async def recent(self, name: str) -> ClusterView | None:
        """The cluster, at most `cache_s` old; None if there is none. Without a name: the current one."""
        now = time.monotonic()
        known = self._views.get(name)
        if known is None:
            missing, looked_at = self._missing
            return None if missing == name and now - looked_at <= self._cache_s else await self.newest(name)
        if now - self._read_at[name] <= self._cache_s:
            return known[1]
        # Set before reading: those who ask meanwhile go on with the description at hand.
        self._read_at[name] = now
        return await self.newest(name)

    async def newest(self, name: str) -> ClusterView | None:
        """The cluster, read from Redis now; None if there is none. Without a name: the current one."""
        asked = name or (await self._redis.get(CURRENT_CLUSTER) or b"").decode() or _FORMER_CURRENT
        body: bytes | None = await self._redis.hget(CLUSTERS, asked)
        if body is None:
            self._views.pop(name, None)
            self._missing = (name, time.monotonic())
            return None
        return self._keep(name, body, None)

    async def put(self, cluster: Cluster) -> bool:
        """Records or replaces a cluster, and makes it the current one; True if its name is new.

        Raises:
            InvalidInput: an id occurs twice, or a GPU model is unknown and has no figures. Nothing is recorded.
        """
        check_cluster(cluster)
        body = self._encode(cluster)
        async with self._redis.pipeline(transaction=True) as both:
            created, _ = await both.hset(CLUSTERS, cluster.name, body).set(CURRENT_CLUSTER, cluster.name).execute()
        for name in ("", cluster.name):
            self._keep(name, body, cluster)
        return bool(created)

    async def names(self) -> list[str]:
        """The names of all clusters, sorted."""
        return sorted(name.decode() for name in await self._redis.hkeys(CLUSTERS))

    def _keep(self, name: str, body: bytes, cluster: Cluster | None) -> ClusterView:
        self._read_at[name] = time.monotonic()
        if self._missing[0] == name:
            self._missing = ("", 0.0)
        known = self._views.get(name)
        # The same bytes keep the same view, and with it what others derived from it.
        if known is None or known[0] != body:
            known = self._views[name] = (body, ClusterView(cluster or self._decode(body)))
        return known[1]


def check_cluster(cluster: Cluster) -> None:
    """Raises InvalidInput, with every violation, if a description contradicts itself or lacks figures."""
    violations: list[FieldViolation] = []
    node_at: dict[str, int] = {}
    gpu_at: dict[str, str] = {}
    for i, node in enumerate(cluster.nodes):
        if node.node_id in node_at:
            violations.append(
                _violation(
                    f"cluster.nodes[{i}].node_id",
                    f"{node.node_id!r} is the id of cluster.nodes[{node_at[node.node_id]}] too; give each its own",
                )
            )
        node_at.setdefault(node.node_id, i)
        for j, gpu in enumerate(node.gpus):
            path = f"cluster.nodes[{i}].gpus[{j}]"
            if gpu.gpu_id in gpu_at:
                violations.append(
                    _violation(
                        f"{path}.gpu_id",
                        f"{gpu.gpu_id!r} is the id of {gpu_at[gpu.gpu_id]} too; give each its own, "
                        "such as <node_id>/<index>",
                    )
                )
            gpu_at.setdefault(gpu.gpu_id, path)
            if known_spec(gpu) is None:
                violations.append(
                    _violation(
                        f"{path}.gpu_model",
                        f"{gpu.gpu_model!r} is not known; give its figures in {path}.spec, "
                        f"or use one of {known_models_text(gpu.gpu_model)}",
                    )
                )
    if violations:
        raise InvalidInput(summary(violations), violations=violations, reason="INVALID_CLUSTER")


def listed(names: Iterable[str]) -> str:
    """Names for a message: sorted, the first 40 of them."""
    ordered = sorted(names)
    more = f", and {len(ordered) - 40} more" if len(ordered) > 40 else ""
    return ", ".join(ordered[:40]) + more


def summary(violations: list[FieldViolation]) -> str:
    """One message for several violations: the first, and the number of the others."""
    more = f" (and {len(violations) - 1} more)" if len(violations) > 1 else ""
    return violations[0].description + more


def _violation(path: str, text: str) -> FieldViolation:
    return FieldViolation(path, f"{path}: {text}")
