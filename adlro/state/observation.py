"""The observation of a policy at a decision: arrays over a batch of N clusters. numpy only.

The orchestrator builds observations with N = 1 (services/orchestrator/ledger); a simulator of many clusters builds one
for all of them. A policy maps an observation to one action per cluster.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

HOLD = -1

HOLD_LIMIT_S = 30.0
"""Longest hold in seconds, if no event of the cluster ends it before; if the last event is further back than this, the
hold lasts as long as the time since then, so that a hold for an event that never comes ends ever more rarely."""

HOLD_ROUNDING_MS = 0.0005
"""A hold's end within this rounding error of a whole millisecond counts as that millisecond, not the next one: lists
have times in whole milliseconds, and may start at any time of a cluster's clock."""


def hold_until_s(time_s: float, last_event_s: float) -> float:
    """The end of a hold that begins now, without an event before it.

    Args:
        time_s: the present cluster time.
        last_event_s: time of the last arrival, end of a job, or change of a GPU.

    Returns:
        A cluster time after now, in whole milliseconds: the same number in whichever order times are summed.
    """
    until_s = time_s + max(HOLD_LIMIT_S, time_s - last_event_s)
    return math.ceil(until_s * 1000.0 - HOLD_ROUNDING_MS) / 1000.0


class CandidateTable(NamedTuple):
    """The possible starts at the decision points of N clusters: C rows, each a job and GPUs for it.

    A row of a job of one GPU is a group of GPUs alike for it: idle GPUs of one node and one kind, with consecutive
    numbers among those on which the job fits now. Any statement about the job on one of them holds for all; the lowest
    number stands for the group.

    A row of a job of several GPUs is one set of as many idle GPUs (adlro/state/gangs.py).

    Rows are ordered by cluster, then by the jobs' submission; those of a job of one GPU by the GPUs' numbers, those of
    other jobs by the model's number, and of each model the packed set first.

    Attributes:
        first: (N, J + 1) the rows of the job at place j of cluster n go from first[n, j] to below first[n, j + 1].
        job: (C,) the job's place in the observation.
        gpu: (C,) lowest number of the group or the set.
        size: (C,) number of GPUs of the group; 1 for a set.
        duration_s: (C,) expected duration of the job on each GPU of the group, or on the set.
        gpus: (C, W) the GPUs of a start, in ascending order, then -1: the set, or the lowest of the group.
        spread: (C,) whether it is a set on more nodes than are needed.
    """

    first: Ints
    job: Ints
    gpu: Ints
    size: Ints
    duration_s: Floats
    gpus: Ints
    spread: Bools

    @property
    def rows_of_job(self) -> Ints:
        """(N, J) number of rows of each job; 0: the job fits nowhere now."""
        rows: Ints = np.diff(self.first, axis=1)
        return rows

    @property
    def cluster(self) -> Ints:
        """(C,) each row's cluster."""
        return np.repeat(np.arange(len(self.first)), self.first[:, -1] - self.first[:, 0])

    def of_job(self, values: NDArray[Any]) -> NDArray[Any]:
        """(C,) from (N, J) values of jobs, the value of each row's job."""
        return np.repeat(values.ravel(), self.rows_of_job.ravel())

    def rows(self, n: int) -> slice:
        """The rows of a cluster."""
        return slice(int(self.first[n, 0]), int(self.first[n, -1]))

    def row_of(self, n: int, job: int, gpu: int) -> int:
        """The row with a job of one GPU of cluster n, and a GPU on which it fits now."""
        first, last = int(self.first[n, job]), int(self.first[n, job + 1])
        return first + int(np.searchsorted(self.gpu[first:last], gpu, side="right")) - 1

    def row_of_set(self, n: int, job: int, gpus: Ints) -> int:
        """The row with a job of cluster n and a set of GPUs; HOLD: there is none.

        Args:
            gpus: (W,) in ascending order, then -1; W as in the table.
        """
        first, last = int(self.first[n, job]), int(self.first[n, job + 1])
        found = np.flatnonzero((self.gpus[first:last] == gpus).all(axis=1))
        return first + int(found[0]) if len(found) else HOLD

    def of_cluster(self, n: int) -> CandidateTable:
        """The table of one cluster alone."""
        rows = self.rows(n)
        return self._replace(
            first=self.first[n : n + 1] - rows.start,
            job=self.job[rows],
            gpu=self.gpu[rows],
            size=self.size[rows],
            duration_s=self.duration_s[rows],
            gpus=self.gpus[rows],
            spread=self.spread[rows],
        )


class Gangs(NamedTuple):
    """What an observation says of jobs of several GPUs, for N clusters with J waiting jobs, G GPUs and K models.

    Attributes:
        gpu_count: (N, J) GPUs that the job asks for.
        max_nodes: (N, J) most nodes that it accepts; 0: any number.
        nodes: (N, J, K) nodes of a packed set of each model; 0: the model can never hold it; not filled for jobs of one
            GPU.
        spread_speed: (N, J, K) expected speed of a spread set relative to a packed one; 0: it can't run spread.
        gpu_run: (N, G) a number from 0 that the GPUs of one running job share; -1 where none runs.
        reserved: (N,) place of the job that GPUs are kept free for; -1: none.
    """

    gpu_count: Ints
    max_nodes: Ints
    nodes: Ints
    spread_speed: Floats
    gpu_run: Ints
    reserved: Ints

    def of_cluster(self, n: int) -> Gangs:
        """The figures of one cluster alone."""
        columns: dict[str, Any] = {name: column[n : n + 1] for name, column in self._asdict().items()}
        return Gangs(**columns)


class Preemption(NamedTuple):
    """What an observation says of jobs that can be stopped and go on later, for N clusters, J waiting jobs and G GPUs.

    A stopped job has `kind_duration_s` of its restart and what is left of its work; so have its rows of the table.

    Attributes:
        gpu_stoppable: (N, G) whether the job on the GPU may be stopped now: it is preemptible, it neither starts nor
            restores, and it has run as long as the cluster's owner lets it at least. Of two jobs both must.
        gpu_restart_s: (N, G) what a later start of this job costs; 0 where none runs; this and the next are the sum of
            two jobs that share the GPU.
        gpu_attained_s: (N, G) GPU time that this job has had, in all its attempts; 0 where none runs.
        gpu_run: (N, G) as in `Gangs`.
        job_restart_s: (N, J) the restart that is part of the job's expected durations; 0: it was never stopped.
        job_attained_s: (N, J) GPU time that the job has had.
        job_share: (N, J) share of its work that the job has left; 1: all.
        kind_full_s: (N, J, S) as `kind_duration_s`, of the whole work: that is job_restart_s + job_share * kind_full_s.
    """

    gpu_stoppable: Bools
    gpu_restart_s: Floats
    gpu_attained_s: Floats
    gpu_run: Ints
    job_restart_s: Floats
    job_attained_s: Floats
    job_share: Floats
    kind_full_s: Floats

    def of_cluster(self, n: int) -> Preemption:
        """The figures of one cluster alone."""
        columns: dict[str, Any] = {name: column[n : n + 1] for name, column in self._asdict().items()}
        return Preemption(**columns)


class Sharing(NamedTuple):
    """What an observation says of GPUs that two jobs share, for N clusters, J waiting jobs, G GPUs and K models.

    Families, F of them, are groups of jobs that behave alike beside a partner.

    Attributes:
        job_shareable: (N, J) whether the job may share its GPU.
        job_family: (N, J) its row in `kept`.
        gpu_open: (N, G) whether the GPU is present, and has one job, which may share it.
        gpu_family: (N, G) the row in `kept` of the job on it (of the first of two); 0 where none runs.
        gpu_memory_left_mib: (N, G) GPU memory that the job on it leaves.
        kept: (F, F, K) [family, partner's family, model]: the share of its speed that a job is expected to keep beside
            that partner; 0: such a pair can't share.
    """

    job_shareable: Bools
    job_family: Ints
    gpu_open: Bools
    gpu_family: Ints
    gpu_memory_left_mib: Ints
    kept: Floats

    def of_cluster(self, n: int) -> Sharing:
        """The figures of one cluster alone."""
        columns: dict[str, Any] = {name: column[n : n + 1] for name, column in self._asdict().items()}
        return Sharing(**{**columns, "kept": self.kept})


class NodeRules(NamedTuple):
    """What an observation says of jobs that don't run on any node at any time, for N clusters, J jobs and M nodes.

    On the nodes that a job must not run on its durations (`kind_duration_s`) are infinite: where jobs choose nodes, the
    GPUs of a kind are on nodes that each waiting job may use, or may not.

    Attributes:
        job_exclusive: (N, J) whether no other job may run on the job's nodes while it runs. One that runs holds all
            cores and memory of its nodes.
        job_choosing: (N, J) whether the job may not run on each node.
        node_busy: (N, M) whether a job runs on the node.
    """

    job_exclusive: Bools
    job_choosing: Bools
    node_busy: Bools

    def of_cluster(self, n: int) -> NodeRules:
        """The figures of one cluster alone."""
        columns: dict[str, Any] = {name: column[n : n + 1] for name, column in self._asdict().items()}
        return NodeRules(**columns)


@dataclass(frozen=True, slots=True)
class Observation:
    """One decision point of N clusters with J waiting jobs and G GPUs.

    Jobs are in the order of submission, GPUs in the order of the cluster's description. A job that no GPU can ever
    hold, and padding where clusters of a batch differ, have `job_waiting` False and no rows in the table.

    The table has the possible starts. Rules over all GPUs, busy ones included, read a job's duration by the GPU's kind:
    GPUs of one model, GPU memory, node size and speed take the same time for every job.

    Attributes:
        time_s: (N,) cluster time.
        gpu_model: (N, G) number of the GPU's model in `gpu_models`.
        gpu_memory_mib: (N, G) memory of the GPU.
        gpu_node: (N, G) number of its node.
        gpu_idle: (N, G) idle, present and on a node that is not drained.
        gpu_remaining_s: (N, G) expected time until it is idle; 0 where idle, inf where lost or drained.
        gpu_elapsed_s: (N, G) time since the job on it started, of two jobs the later; 0 where none runs.
        gpu_submit_s: (N, G) `job_submit_s` of the job on it, of two jobs the first; inf where none runs.
        gpu_cores_held: (N, G) CPU cores of its node that the job on the GPU holds; 0 where none runs.
        gpu_memory_held_mib: (N, G) main memory of its node that this job holds; 0 where none runs.
        gpu_kind: (N, G) number of the GPU's kind, in the order of the kinds' lowest GPUs.
        node_cores_free: (N, M) CPU cores free on each node.
        node_memory_free_mib: (N, M) main memory free on each node.
        job_waiting: (N, J) whether the place has a waiting job.
        job_type: (N, J) adlro.records.jobs.JobType.
        job_priority: (N, J) 0..1.
        job_user_service_s: (N, J) GPU time that the job's user has had so far, running attempts included.
        job_submit_s: (N, J) time from which its completion time counts.
        job_cores: (N, J) requested CPU cores; of an exclusive job of one GPU the least that a node has on which it can
            run: it takes all of a node.
        job_memory_mib: (N, J) requested main memory; of such a job as with the cores.
        job_gpu_memory_mib: (N, J) requested GPU memory.
        job_spread: (N, J) uncertainty of the expected duration: standard deviation of ln(true / expected); 0: exact.
        kind_duration_s: (N, J, S) expected duration on GPUs of a kind; inf where the GPU, or its node when empty, is
            too small; of a job of several GPUs that of a packed set.
        table: the possible starts.
        gangs: what concerns jobs of several GPUs; None where no such job waits or runs, and no job has a reservation.
        hold_allowed: (N,) whether a job runs or will arrive. If False, no event would ever end a hold: a policy that
            only waits for a better GPU must place a job that fits.
        gpu_models: names of the models.
        preemption: what concerns jobs that can be stopped; None where no such job runs, and no stopped one waits.
        sharing: what concerns GPUs that two jobs share; None where no shareable job waits or runs.
        nodes: what concerns jobs that are exclusive or choose their nodes; None where no such job waits.
    """

    time_s: Floats
    gpu_model: Ints
    gpu_memory_mib: Ints
    gpu_node: Ints
    gpu_idle: Bools
    gpu_remaining_s: Floats
    gpu_elapsed_s: Floats
    gpu_submit_s: Floats
    gpu_cores_held: Ints
    gpu_memory_held_mib: Ints
    gpu_kind: Ints
    node_cores_free: Ints
    node_memory_free_mib: Ints
    job_waiting: Bools
    job_type: Ints
    job_priority: Floats
    job_user_service_s: Floats
    job_submit_s: Floats
    job_cores: Ints
    job_memory_mib: Ints
    job_gpu_memory_mib: Ints
    job_spread: Floats
    kind_duration_s: Floats
    table: CandidateTable
    hold_allowed: Bools
    gpu_models: tuple[str, ...]
    gangs: Gangs | None = None
    preemption: Preemption | None = None
    sharing: Sharing | None = None
    nodes: NodeRules | None = None

    @property
    def queue_length(self) -> Ints:
        """(N,) number of waiting jobs."""
        length: Ints = self.job_waiting.sum(axis=1, dtype=np.int64)
        return length

    @property
    def pair_count(self) -> int:
        """Number of pairs of a job and a GPU, fitting or not; the cost of a decision grows with it."""
        return int(self.job_waiting.size * self.gpu_idle.shape[1])

    @property
    def byte_count(self) -> int:
        """Memory in bytes of the stored observation, with the whole buffers behind its arrays."""
        buffers = {}
        parts = (*self.table, *(self.gangs or ()), *(self.preemption or ()), *(self.sharing or ()), *(self.nodes or ()))
        for array in (*(getattr(self, name) for name in _COLUMNS), *parts):
            buffer = array
            while isinstance(buffer.base, np.ndarray):
                buffer = buffer.base
            buffers[id(buffer)] = buffer.nbytes
        return sum(buffers.values())

    def durations_s(self, n: int, job: int) -> Floats:
        """(G,) expected duration of the job at a place of cluster n on each GPU."""
        durations_s: Floats = self.kind_duration_s[n, job][self.gpu_kind[n]]
        return durations_s

    def group(self, n: int, row: int) -> Ints:
        """Numbers of the GPUs of the group, or of the set, of a row of the table; the row is one of cluster n."""
        if self.table.gpus.shape[1] > 1 and self.table.gpus[row, 1] >= 0:
            gpus: Ints = self.table.gpus[row][self.table.gpus[row] >= 0]
            return gpus
        gpu, size = int(self.table.gpu[row]), int(self.table.size[row])
        idle, node, kind = self.gpu_idle[n], self.gpu_node[n], self.gpu_kind[n]
        alike: Ints = np.flatnonzero(idle[gpu:] & (node[gpu:] == node[gpu]) & (kind[gpu:] == kind[gpu]))
        return gpu + alike[:size]

    def copy(self) -> Observation:
        """The same figures in arrays of its own, which may be changed."""

        def copied(part: Any) -> Any:
            return None if part is None else type(part)(*(array.copy() for array in part))

        parts = {name: copied(getattr(self, name)) for name in _PARTS}
        return replace(self, **{name: getattr(self, name).copy() for name in _COLUMNS}, **parts)

    def of_cluster(self, n: int) -> Observation:
        """The decision point of one cluster alone, N = 1."""
        columns = {name: getattr(self, name)[n : n + 1] for name in _COLUMNS}
        return Observation(
            **columns,
            table=self.table.of_cluster(n),
            gpu_models=self.gpu_models,
            gangs=None if self.gangs is None else self.gangs.of_cluster(n),
            preemption=None if self.preemption is None else self.preemption.of_cluster(n),
            sharing=None if self.sharing is None else self.sharing.of_cluster(n),
            nodes=None if self.nodes is None else self.nodes.of_cluster(n),
        )


_PARTS = ("table", "gangs", "preemption", "sharing", "nodes")
_NOT_COLUMNS = ("gpu_models", *_PARTS)
_COLUMNS = tuple(field.name for field in fields(Observation) if field.name not in _NOT_COLUMNS)
"""The fields with one row per cluster."""
