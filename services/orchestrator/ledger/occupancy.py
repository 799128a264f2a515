"""The occupancy of a cluster: the fixed layout, and the state that placements change. Plain data and arrays.

An `Occupancy` is small; each decision stores a copy, so that it can be explained later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adlro.placement import GpuShare, Placement, Resource, shortage
from adlro.records.cluster import Cluster
from adlro.records.jobs import JobSpec
from adlro.state.cluster_arrays import IDLE, hardware_of
from adlro.state.gangs import fill_packed_nodes, refuse_models
from adlro.state.observation import Bools, Floats, Ints
from adlro.state.room import room
from adlro.state.scene import Scene

_SHAPES_KEPT = 10_000
"""Kinds of jobs of several GPUs for which the nodes of packed sets are kept."""


_CHOICES_KEPT = 256
"""Choices of nodes for which the nodes are kept: each may name thousands."""


class Layout:
    """A cluster's fixed figures as arrays over G GPUs and M nodes, in the order of its description.

    Attributes:
        gpu_ids, gpu_models, node_ids: names.
        hardware: the figures in the simulator's form, a batch of one cluster; the other arrays are views of it.
        gpu_model, gpu_memory_mib, gpu_node: (G,) index of the model, memory, index of the node.
        node_cores, node_memory_mib: (M,) each node's cores and memory.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.gpu_ids = [gpu.gpu_id for _, gpu in cluster.gpus()]
        self.gpu_number = {gpu_id: number for number, gpu_id in enumerate(self.gpu_ids)}
        self.gpu_models = cluster.gpu_models
        self.node_ids = [node.node_id for node in cluster.nodes]
        self.hardware = hardware_of([cluster], self.gpu_models)
        self.gpu_model: Ints = self.hardware.gpu_model[0]
        self.gpu_memory_mib: Ints = self.hardware.gpu_memory_mib[0]
        self.gpu_node: Ints = self.hardware.gpu_node[0]
        self.node_cores: Ints = self.hardware.node_cores[0]
        self.node_memory_mib: Ints = self.hardware.node_memory_mib[0]
        self._packed_nodes: dict[tuple[int, ...], Ints] = {}
        self._allowed: dict[tuple[tuple[str, ...], tuple[str, ...]], Bools] = {}

    def model_of(self, gpu: int) -> str:
        """A GPU's model name."""
        return self.gpu_models[int(self.gpu_model[gpu])]

    def placement(self, gpus: Sequence[int], share: float = 1.0) -> Placement:
        """All of each of these GPUs, or a share of each."""
        return Placement(tuple(GpuShare(self.gpu_ids[gpu], share) for gpu in gpus))

    def packed_nodes(self, spec: JobSpec) -> Ints:
        """(K,) nodes of a packed set of each model for the job; NEVER: the model can never hold it."""
        key = shape_of(spec)
        nodes = self._packed_nodes.get(key)
        if nodes is None:
            if len(self._packed_nodes) >= _SHAPES_KEPT:
                self._packed_nodes.clear()
            nodes = np.zeros(len(self.gpu_models), dtype=np.int64)
            fill_packed_nodes(self.hardware, 0, *key, np.empty(len(self.node_ids), dtype=np.int64), nodes)
            self._packed_nodes[key] = nodes  # once it is full: explanations read it in other threads
        return nodes

    def allowed_nodes(self, spec: JobSpec) -> Bools:
        """(M,) whether the job may run on the node."""
        if not spec.chooses_nodes:
            return np.ones(len(self.node_ids), dtype=np.bool_)
        key = spec.node_ids, spec.excluded_node_ids
        allowed = self._allowed.get(key)
        if allowed is None:
            if len(self._allowed) >= _CHOICES_KEPT:
                self._allowed.clear()
            accepted = spec.accepted_nodes(self.node_ids)
            allowed = np.array([each in accepted for each in self.node_ids])
            self._allowed[key] = allowed
        return allowed

    def possible_nodes(self, spec: JobSpec, spread_speed: Floats | float = 1.0) -> Ints:
        """(K,) as `packed_nodes`; also NEVER where the nodes that the job may run on can't hold it.

        Args:
            spec: the job's requirements.
            spread_speed: (K,) expected speed on a spread set; 0: it can't run spread.
        """
        nodes = self.packed_nodes(spec)
        if not spec.chooses_nodes:
            return nodes
        nodes = nodes.copy()
        refuse_models(
            self.hardware,
            0,
            self.allowed_nodes(spec),
            *shape_of(spec),
            np.full(len(self.gpu_models), spread_speed, dtype=np.float64),
            np.empty(len(self.node_ids), dtype=np.int64),
            nodes,
        )
        return nodes

    def held_with(self, spec: JobSpec, gpus: Sequence[int]) -> dict[int, tuple[int, int]]:
        """By GPU of a job's placement, the cores and memory of its node that the job holds with it.

        An exclusive job holds all of its nodes, with the first of its GPUs there.
        """
        if not spec.exclusive:
            return dict.fromkeys(gpus, (spec.cpu_cores, spec.memory_mib))
        held: dict[int, tuple[int, int]] = {}
        seen = -1
        for gpu in gpus:
            node = int(self.gpu_node[gpu])
            held[gpu] = (0, 0) if node == seen else (int(self.node_cores[node]), int(self.node_memory_mib[node]))
            seen = node
        return held

    def can_ever_hold(self, spec: JobSpec) -> Bools:
        """(G,) whether the GPU, with its node empty, is big enough for one GPU of the job, which may run there."""
        able: Bools = room(
            spec.cpu_cores,
            spec.memory_mib,
            spec.gpu_memory_mib,
            self.node_cores[self.gpu_node],
            self.node_memory_mib[self.gpu_node],
            self.gpu_memory_mib,
        )
        if spec.chooses_nodes:
            able = able & self.allowed_nodes(spec)[self.gpu_node]
        return able


def shape_of(spec: JobSpec) -> tuple[int, int, int, int, int]:
    """What decides which sets of GPUs can hold a job; `fill_packed_nodes` takes it in this order."""
    return spec.gpu_count, spec.max_node_count, spec.cpu_cores, spec.memory_mib, spec.gpu_memory_mib


@dataclass(slots=True)
class Occupancy:
    """The resources held at one moment.

    Attributes:
        holder: (G,) id of the job that holds the GPU, of two the first; "" for an idle one. So of all that follows.
        idle: (G,) whether no job holds the GPU.
        run: (G,) the lowest GPU of the job that holds the GPU: equal numbers, one job; IDLE for an idle GPU.
        gang: (G,) number of GPUs of that job; 0 for an idle GPU.
        expected_end_s: (G,) cluster time of the holder's expected end.
        cores_held, memory_held_mib: (G,) the holder's cores and memory on the GPU's node; 0 for an idle GPU.
        lost: (G,) whether the GPU is lost.
        speed: (G,) estimated speed relative to the GPU's model; 1 unless the GPU was found slower.
        drained: (M,) whether the node is drained.
        cores_free, memory_free_mib: (M,) each node's free cores and memory.
        drain_reasons: by node id, the reason of a drain, if given.
        lost_reasons: by GPU id, the reason of a loss, if the cluster gives it.
    """

    layout: Layout
    holder: NDArray[Any]
    idle: Bools
    run: Ints
    gang: Ints
    expected_end_s: Floats
    cores_held: Ints
    memory_held_mib: Ints
    lost: Bools
    speed: Floats
    drained: Bools
    cores_free: Ints
    memory_free_mib: Ints
    drain_reasons: Mapping[str, str] = field(default_factory=dict)
    lost_reasons: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def empty(cls, layout: Layout) -> Occupancy:
        """An occupancy without jobs."""
        gpus, nodes = len(layout.gpu_ids), len(layout.node_ids)
        return cls(
            layout,
            np.full(gpus, "", dtype=object),
            np.ones(gpus, dtype=np.bool_),
            np.full(gpus, IDLE, dtype=np.int64),
            np.zeros(gpus, dtype=np.int64),
            np.zeros(gpus),
            np.zeros(gpus, dtype=np.int64),
            np.zeros(gpus, dtype=np.int64),
            np.zeros(gpus, dtype=np.bool_),
            np.ones(gpus),
            np.zeros(nodes, dtype=np.bool_),
            layout.node_cores.copy(),
            layout.node_memory_mib.copy(),
        )

    def copy(self) -> Occupancy:
        """A copy that later changes do not affect."""
        return Occupancy(
            self.layout,
            self.holder.copy(),
            self.idle.copy(),
            self.run.copy(),
            self.gang.copy(),
            self.expected_end_s.copy(),
            self.cores_held.copy(),
            self.memory_held_mib.copy(),
            self.lost.copy(),
            self.speed.copy(),
            self.drained.copy(),
            self.cores_free.copy(),
            self.memory_free_mib.copy(),
            self.drain_reasons,
            self.lost_reasons,
        )

    def take(
        self,
        gpus: Sequence[int],
        job_id: str,
        spec: JobSpec,
        expected_end_s: float,
        more: Mapping[int, tuple[int, int]] | None = None,
        own: Mapping[int, tuple[int, int]] | None = None,
    ) -> None:
        """Gives GPUs to a job, and with each GPU cores and memory of its node.

        Args:
            gpus: that no job holds.
            job_id: the job.
            spec: its requirements.
            expected_end_s: cluster time of its expected end.
            more: by GPU, the cores and memory of the jobs whose ends it waits for there: until then these or its own
                are held, whichever is more.
            own: by GPU, its own; None: as its requirements say.

        Raises:
            AssertionError: a job holds one of the GPUs; nothing has changed.
        """
        for gpu in gpus:
            if self.holder[gpu]:
                raise AssertionError(f"{self.layout.gpu_ids[gpu]} already holds {self.holder[gpu]}")
        for gpu in gpus:
            self.holder[gpu] = job_id
            self.idle[gpu] = False
            self.run[gpu] = gpus[0]
            self.gang[gpu] = len(gpus)
            self.expected_end_s[gpu] = expected_end_s
            cores, memory_mib = more.get(gpu, (0, 0)) if more else (0, 0)
            its_cores, its_memory_mib = (spec.cpu_cores, spec.memory_mib) if own is None else own[gpu]
            self.cores_held[gpu] = max(its_cores, cores)
            self.memory_held_mib[gpu] = max(its_memory_mib, memory_mib)
            self.cores_free[self.layout.gpu_node[gpu]] -= self.cores_held[gpu]
            self.memory_free_mib[self.layout.gpu_node[gpu]] -= self.memory_held_mib[gpu]

    def give_back(self, gpus: Sequence[int]) -> None:
        """Releases GPUs, and the cores and memory that are held with them."""
        for gpu in gpus:
            self.cores_free[self.layout.gpu_node[gpu]] += self.cores_held[gpu]
            self.memory_free_mib[self.layout.gpu_node[gpu]] += self.memory_held_mib[gpu]
            self.holder[gpu] = ""
            self.idle[gpu] = True
            self.run[gpu] = IDLE
            self.gang[gpu] = 0
            self.cores_held[gpu] = 0
            self.memory_held_mib[gpu] = 0

    def take_beside(self, gpu: int, spec: JobSpec) -> None:
        """Gives cores and memory to a job that has the rest of a busy GPU; the arrays of GPUs tell of the first job."""
        self.cores_free[self.layout.gpu_node[gpu]] -= spec.cpu_cores
        self.memory_free_mib[self.layout.gpu_node[gpu]] -= spec.memory_mib

    def give_back_beside(self, gpu: int, spec: JobSpec) -> None:
        """Takes them from it again."""
        self.cores_free[self.layout.gpu_node[gpu]] += spec.cpu_cores
        self.memory_free_mib[self.layout.gpu_node[gpu]] += spec.memory_mib

    @property
    def usable(self) -> Bools:
        """(G,) whether the GPU is present and its node accepts jobs."""
        return ~self.lost & ~self.drained[self.layout.gpu_node]

    @property
    def node_busy(self) -> Bools:
        """(M,) whether a job holds a GPU of the node."""
        busy: Bools = np.bincount(self.layout.gpu_node[~self.idle], minlength=len(self.layout.node_ids)) > 0
        return busy

    @property
    def node_whole(self) -> Bools:
        """(M,) whether a job holds all cores and memory of the node, as an exclusive one does."""
        node = self.layout.gpu_node
        whole = (self.cores_held == self.layout.node_cores[node]) & (
            self.memory_held_mib == self.layout.node_memory_mib[node]
        )
        held: Bools = np.bincount(node[whole & ~self.idle], minlength=len(self.layout.node_ids)) > 0
        return held

    def holders_on(self, node: int) -> list[str]:
        """The jobs on a node, in the order of their GPUs; of two on one GPU the first."""
        return list(dict.fromkeys(self.holder[(self.layout.gpu_node == node) & ~self.idle].tolist()))

    def scene(self, time_s: float, start_s: Floats) -> Scene:
        """The scene for an observation at a time, a batch of one cluster; free cores and memory are copied.

        Args:
            start_s: (G,) starts of the holders, cluster time.
        """
        return Scene(
            time_s=np.array([time_s]),
            list_of=np.zeros(1, dtype=np.int64),
            gpu_speed=self.usable[None].astype(np.float64),
            gpu_job=self.run[None],
            gpu_start_s=start_s[None],
            gpu_expected_end_s=self.expected_end_s[None],
            known_speed=self.speed[None].copy(),
            cores_free=self.cores_free[None].copy(),
            memory_free_mib=self.memory_free_mib[None].copy(),
            gpu_cores=self.cores_held[None],
            gpu_memory_mib=self.memory_held_mib[None],
        )

    def mask_reason(self, spec: JobSpec, gpu: int, time_s: float) -> str:
        """Why a job cannot start on a GPU at this moment; empty if it can."""
        layout = self.layout
        node = int(layout.gpu_node[gpu])
        node_id = layout.node_ids[node]
        if not spec.accepts(layout.model_of(gpu)):
            return "the job does not accept this model"
        if not spec.accepts_node(node_id):
            return f"the job excludes {node_id}" if node_id in spec.excluded_node_ids else "not a node of its list"
        if self.lost[gpu]:
            reason = self.lost_reasons.get(layout.gpu_ids[gpu])
            return "the GPU is lost" + (f": {reason}" if reason else "")
        if self.drained[node]:
            reason = self.drain_reasons.get(node_id)
            return f"{node_id} is drained" + (f": {reason}" if reason else "")
        missing = shortage(
            spec, int(layout.gpu_memory_mib[gpu]), int(self.cores_free[node]), int(self.memory_free_mib[node])
        )
        if missing is not None and missing.resource is Resource.GPU_MEMORY:
            return f"needs {missing.needed} MiB of GPU memory, it has {missing.left}"
        if self.holder[gpu]:
            left_s = float(self.expected_end_s[gpu]) - time_s
            if left_s < 0:
                return f"busy with {self.holder[gpu]}, which has run {-left_s:.3g} s longer than expected"
            return f"busy with {self.holder[gpu]} for about {left_s:.3g} s"
        if spec.exclusive and (others := self.holders_on(node)):
            return f"the job is exclusive, and {others[0]} runs on {node_id}"
        if missing is None:
            return ""
        unit = "cores" if missing.resource is Resource.CPU_CORES else "MiB"
        return f"needs {missing.needed} {unit}, {missing.left} are free on {node_id}"
