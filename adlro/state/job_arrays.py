"""Job lists as arrays, the input of the batched simulator. numpy only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from adlro.errors import InvalidInput
from adlro.hardware.gang_speeds import spread_speeds
from adlro.hardware.speeds import SHIPPED, SpeedTable
from adlro.records.cluster import Cluster
from adlro.state.observation import Bools, Floats, Ints
from adlro.workload.job_lists import WorkloadJob


class JobArrays(NamedTuple):
    """L lists of up to J jobs for GPUs of K models; the rows of a list from `job_count` on are padding.

    Attributes:
        job_count: (L,) jobs of each list.
        submit_s: (L, J) ascending; inf in padding.
        duration_s: (L, J, K) true seconds on each model, at its own speed; inf where the job cannot run on the model.
        expected_s: (L, J, K) seconds that a scheduler expects.
        expected_spread: (L, J) uncertainty of expected_s: standard deviation of ln(true / expected); 0: exact.
        gpu_count: (L, J) GPUs, all of one model; durations hold for a packed placement (`adlro.state.gangs`).
        max_nodes: (L, J) most nodes that the job accepts; 0: any number.
        spread_speed: (L, J, K) speed of a spread placement relative to a packed one, at most 1; 0: it can't run spread.
        expected_spread_speed: (L, J, K) the same, as a scheduler expects it.
        cores: (L, J) CPU cores with each GPU.
        memory_mib: (L, J) main memory with each GPU.
        gpu_memory_mib: (L, J) memory that each GPU must have.
        job_type: (L, J) adlro.records.jobs.JobType.
        priority: (L, J) 0..1.
        user: (L, J) the user's number.
        preemptible: (L, J) whether it may be stopped for another job, and goes on later.
        restart_s: (L, J) seconds that each start after a stop takes before the work goes on.
        lost_s: (L, J) seconds of work that a stop loses.
        shareable: (L, J) whether it may share its GPU with one other job that may as well; jobs of one GPU only.
        family: (L, J) its row and column in a table of kept shares (`adlro.state.observation.Sharing`).
        exclusive: (L, J) whether no other job may run on its nodes while it runs.
        node_allowed: (L, J, M) whether it may run on each node; M is 0 where no job chooses its nodes.
    """

    job_count: Ints
    submit_s: Floats
    duration_s: Floats
    expected_s: Floats
    expected_spread: Floats
    gpu_count: Ints
    max_nodes: Ints
    spread_speed: Floats
    expected_spread_speed: Floats
    cores: Ints
    memory_mib: Ints
    gpu_memory_mib: Ints
    job_type: Ints
    priority: Floats
    user: Ints
    preemptible: Bools
    restart_s: Floats
    lost_s: Floats
    shareable: Bools
    family: Ints
    exclusive: Bools
    node_allowed: Bools

    @property
    def widest(self) -> int:
        """The greatest number of GPUs of a job; at least 1."""
        return int(self.gpu_count.max(initial=1))


def empty_job_arrays(lists: int, jobs: int, models: int) -> JobArrays:
    """Arrays of padding only, for the caller to fill."""
    return JobArrays(
        job_count=np.zeros(lists, dtype=np.int64),
        submit_s=np.full((lists, jobs), np.inf),
        duration_s=np.full((lists, jobs, models), np.inf),
        expected_s=np.full((lists, jobs, models), np.inf),
        expected_spread=np.zeros((lists, jobs)),
        gpu_count=np.ones((lists, jobs), dtype=np.int64),
        max_nodes=np.zeros((lists, jobs), dtype=np.int64),
        spread_speed=np.ones((lists, jobs, models)),
        expected_spread_speed=np.ones((lists, jobs, models)),
        cores=np.zeros((lists, jobs), dtype=np.int64),
        memory_mib=np.zeros((lists, jobs), dtype=np.int64),
        gpu_memory_mib=np.zeros((lists, jobs), dtype=np.int64),
        job_type=np.zeros((lists, jobs), dtype=np.int64),
        priority=np.zeros((lists, jobs)),
        user=np.zeros((lists, jobs), dtype=np.int64),
        preemptible=np.zeros((lists, jobs), dtype=np.bool_),
        restart_s=np.zeros((lists, jobs)),
        lost_s=np.zeros((lists, jobs)),
        shareable=np.zeros((lists, jobs), dtype=np.bool_),
        family=np.zeros((lists, jobs), dtype=np.int64),
        exclusive=np.zeros((lists, jobs), dtype=np.bool_),
        node_allowed=np.ones((lists, jobs, 0), dtype=np.bool_),
    )


def pack_jobs(
    lists: Sequence[Sequence[WorkloadJob]],
    gpu_models: Sequence[str] | Cluster,
    expected_s: Sequence[Floats] | None = None,
    *,
    expected_spread: Sequence[Floats] | None = None,
    speed_table: SpeedTable = SHIPPED,
    node_ids: Sequence[str] = (),
) -> JobArrays:
    """Job lists as arrays.

    Args:
        lists: jobs in the order of submission.
        gpu_models: the models to run on, or a cluster with them.
        expected_s: for each list (jobs, K), the expected seconds; the true ones if left out.
        expected_spread: for each list (jobs,), the uncertainty of these; 0 if left out.
        speed_table: speeds of applications on the models.
        node_ids: of the cluster, where `gpu_models` are only models, and jobs choose their nodes.

    Raises:
        InvalidInput: jobs choose their nodes, and there are none; submissions out of order, a model without speeds,
            expectations of another shape or not above 0, or a spread of another shape or not a number from 0.
    """
    models = tuple(gpu_models.gpu_models if isinstance(gpu_models, Cluster) else gpu_models)
    arrays = empty_job_arrays(len(lists), max((len(jobs) for jobs in lists), default=0), len(models))
    for number, jobs in enumerate(lists):
        size = len(jobs)
        row = (number, slice(0, size))
        arrays.job_count[number] = size
        arrays.submit_s[row] = [job.submit_s for job in jobs]
        if size and not (np.diff(arrays.submit_s[row]) >= 0).all():
            late = int(np.argmax(np.diff(arrays.submit_s[row]) < 0)) + 1
            raise InvalidInput(
                f"list {number}: job {late} is submitted at {jobs[late].submit_s} s, before the job in front of it; "
                "sort the jobs by submit_s",
                field="submit_s",
            )
        work_s = np.array([job.work_s for job in jobs])
        ratio = speed_table.speeds([job.application for job in jobs], [job.job_type for job in jobs], models)
        arrays.duration_s[row] = work_s[:, None] / ratio
        arrays.expected_s[row] = arrays.duration_s[row]
        if expected_s is not None:
            believed = expected_s[number]
            if believed.shape != (size, len(models)) or not (believed > 0).all():
                raise InvalidInput(
                    f"list {number}: expected runtimes must be above 0, of shape {(size, len(models))}, not "
                    f"{believed.shape}",
                    field="expected_s",
                )
            arrays.expected_s[row] = believed
        if expected_spread is not None:
            spread = expected_spread[number]
            if spread.shape != (size,) or not ((spread >= 0) & (spread < np.inf)).all():
                raise InvalidInput(
                    f"list {number}: the spread of expected runtimes must be numbers from 0, of shape {(size,)}, not "
                    f"{spread.shape}",
                    field="expected_spread",
                )
            arrays.expected_spread[row] = spread
        _fill_gangs(arrays, number, jobs, models)
        arrays.cores[row] = [job.cpu_cores for job in jobs]
        arrays.memory_mib[row] = [job.memory_mib for job in jobs]
        arrays.gpu_memory_mib[row] = [job.gpu_memory_mib for job in jobs]
        arrays.job_type[row] = [int(job.job_type) for job in jobs]
        arrays.priority[row] = [job.priority for job in jobs]
        for place, job in enumerate(jobs):
            if job.preemptible is not None:
                arrays.preemptible[number, place] = True
                arrays.restart_s[number, place] = job.preemptible.restart_s
                arrays.lost_s[number, place] = job.preemptible.lost_s
            arrays.shareable[number, place] = job.shareable and job.gpu_count == 1 and not job.exclusive
            arrays.exclusive[number, place] = job.exclusive
        users: dict[str, int] = {}
        arrays.user[row] = [users.setdefault(job.user, len(users)) for job in jobs]
    if isinstance(gpu_models, Cluster):
        node_ids = [node.node_id for node in gpu_models.nodes]
    return _with_nodes(arrays, lists, node_ids)


def _with_nodes(arrays: JobArrays, lists: Sequence[Sequence[WorkloadJob]], node_ids: Sequence[str]) -> JobArrays:
    """The same jobs with the nodes that they may run on."""
    choosing = [
        (number, place, job)
        for number, jobs in enumerate(lists)
        for place, job in enumerate(jobs)
        if job.node_ids or job.excluded_node_ids
    ]
    if not choosing:
        return arrays
    if not node_ids:
        number, place, _ = choosing[0]
        text = f"list {number}, job {place}: names nodes, and the jobs are packed for no cluster: pack them for one"
        raise InvalidInput(text, field="node_ids")
    allowed = np.ones((*arrays.submit_s.shape, len(node_ids)), dtype=np.bool_)
    for number, place, job in choosing:
        allowed[number, place] = [job.accepts_node(node_id) for node_id in node_ids]
    return arrays._replace(node_allowed=allowed)


def _fill_gangs(arrays: JobArrays, number: int, jobs: Sequence[WorkloadJob], models: tuple[str, ...]) -> None:
    """Fills in what concerns several GPUs and the models that jobs accept, of one list."""
    row = (number, slice(0, len(jobs)))
    arrays.gpu_count[row] = [job.gpu_count for job in jobs]
    arrays.max_nodes[row] = [job.max_node_count for job in jobs]
    for place, job in enumerate(jobs):
        if job.gpu_models:
            refused = [model for model, name in enumerate(models) if name not in job.gpu_models]
            arrays.duration_s[number, place, refused] = np.inf
            arrays.expected_s[number, place, refused] = np.inf
    several = [place for place, job in enumerate(jobs) if job.gpu_count > 1]
    if several:
        gangs = [jobs[place] for place in several]
        speed = spread_speeds(
            [job.application for job in gangs],
            [job.job_type for job in gangs],
            [job.gpu_count for job in gangs],
            models,
        )
        arrays.spread_speed[number, several] = speed
        arrays.expected_spread_speed[number, several] = speed
