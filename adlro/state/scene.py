"""Builds observations, for the simulator and the services alike. numpy and numba only.

The planes of networks are computed from observations (adlro/decide/planes/).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from adlro.numeric.compiled import compiled, compiled_part
from adlro.state.candidate_table import candidate_table, gpu_kinds, split_kinds
from adlro.state.cluster_arrays import IDLE, Hardware
from adlro.state.gangs import NEVER, fill_packed_nodes, refuse_models
from adlro.state.job_arrays import JobArrays
from adlro.state.machines import left_of, remaining_s
from adlro.state.observation import Bools, Floats, Gangs, Ints, NodeRules, Observation, Preemption, Sharing
from adlro.state.room import has_room


class Scene(NamedTuple):
    """A scheduler's knowledge of A clusters at one moment: its record of the occupancy, and expected ends.

    Attributes:
        time_s: (A,) cluster time.
        list_of: (A,) the cluster's row of the job arrays.
        gpu_speed: (A, G) 0: lost, or on a node that is drained; other values have no effect.
        gpu_job: (A, G) IDLE, or a number from 0 of the job that holds the GPU; where no job holds several GPUs, all
            jobs may have the same number.
        gpu_start_s, gpu_expected_end_s: (A, G) of the running job.
        known_speed: (A, G) the scheduler's estimate of the GPU's speed relative to its model.
        cores_free, memory_free_mib: (A, M) free on each node.
        gpu_cores, gpu_memory_mib: (A, G) cores and memory that the GPU's job holds on the node; any value on an idle
        GPU.
    """

    time_s: Floats
    list_of: Ints
    gpu_speed: Floats
    gpu_job: Ints
    gpu_start_s: Floats
    gpu_expected_end_s: Floats
    known_speed: Floats
    cores_free: Ints
    memory_free_mib: Ints
    gpu_cores: Ints
    gpu_memory_mib: Ints


class Stops(NamedTuple):
    """A scheduler's knowledge of jobs that may be stopped, at A clusters with G GPUs and Q waiting jobs.

    Attributes:
        row_share: (A, Q) share of its work that each waiting job has left: 1 where it was never stopped; above 0.
        row_restart_s: (A, Q) what its next start costs: 0 where it was never stopped.
        row_attained_s: (A, Q) GPU time that it has had in all its attempts.
        gpu_stoppable: (A, G) whether the job on the GPU may be stopped now.
        gpu_restart_s: (A, G) what a later start of this job costs; any value on an idle GPU.
        gpu_attained_s: (A, G) GPU time that it has had in all its attempts; any value on an idle GPU.
    """

    row_share: Floats
    row_restart_s: Floats
    row_attained_s: Floats
    gpu_stoppable: Bools
    gpu_restart_s: Floats
    gpu_attained_s: Floats


class Shares(NamedTuple):
    """A scheduler's knowledge of shared GPUs, at A clusters with G GPUs and Q waiting jobs.

    The scene tells of the first job on a GPU; its mate is the second.

    Attributes:
        row_shareable: (A, Q) whether each waiting job may share its GPU.
        row_family: (A, Q) its row in `kept`.
        gpu_open: (A, G) whether the GPU has one job, which may share it.
        gpu_family: (A, G) the row in `kept` of the (first) job on it; any value on an idle GPU.
        gpu_memory_left_mib: (A, G) GPU memory that the jobs on it leave.
        kept: (F, F, K) as in `Sharing`.
        mate_there: (A, G) whether it has a second job; of the others any value where not.
        mate_start_s, mate_expected_end_s: (A, G) of that job.
        mate_cores, mate_memory_mib: (A, G) that it holds on the node.
    """

    row_shareable: Bools
    row_family: Ints
    gpu_open: Bools
    gpu_family: Ints
    gpu_memory_left_mib: Ints
    kept: Floats
    mate_there: Bools
    mate_start_s: Floats
    mate_expected_end_s: Floats
    mate_cores: Ints
    mate_memory_mib: Ints


def whole_queue(
    hardware: Hardware,
    scene: Scene,
    jobs: JobArrays,
    rows: Ints,
    row_count: Ints,
    *,
    gpu_submit_s: Floats,
    user_service_s: Floats,
    hold_allowed: Bools,
    gpu_models: tuple[str, ...],
    gpu_gang: Ints | None = None,
    reserved: Ints | None = None,
    stops: Stops | None = None,
    shares: Shares | None = None,
) -> Observation:
    """The decision points of A clusters.

    Args:
        hardware: the hardware of the A clusters.
        scene: their state.
        jobs: columns of the jobs.
        rows: (A, Q) numbers of the waiting jobs in the columns, in the order of submission.
        row_count: (A,) their number.
        gpu_submit_s: (A, G) submission time of the job on each GPU; any value on an idle GPU.
        user_service_s: (A, U) GPU seconds that each user has received.
        hold_allowed: (A,).
        gpu_models: names of the models.
        gpu_gang: (A, G) number of GPUs of the job on each GPU; None: no job of several GPUs waits or runs, and none is
            reserved for.
        reserved: (A,) place of the job that GPUs are kept free for, -1: none; None: there is none.
        stops: what concerns jobs that may be stopped; None: no such job runs, and no stopped one waits. With it each
            running job has a number of its own in the scene.
        shares: what concerns shared GPUs; None: no job that may share waits or runs.
    """
    gpu_kind, kind_gpu = gpu_kinds(hardware, scene.known_speed)
    clusters, gpus = hardware.gpu_model.shape
    choices = _choices(scene, jobs, rows, row_count)
    if choices is not None:
        each = [choices.allowed[choices.cluster == a] for a in range(clusters)]
        gpu_kind, kind_gpu = split_kinds(gpu_kind, hardware.gpu_node, each)
    seen = _room(clusters, gpus, int(row_count.max(initial=0)), kind_gpu.shape[1])
    _fill(hardware, scene, jobs, rows, row_count, gpu_submit_s, user_service_s, kind_gpu, seen)
    if choices is not None:
        _refuse_nodes(choices, hardware.gpu_node, kind_gpu, seen)
    rules = _node_rules(hardware, scene, jobs, rows, row_count, choices)
    sharing = None if shares is None else _sharing(scene, row_count, shares, seen)
    gangs = None
    if gpu_gang is not None:
        gangs = _gangs(hardware, scene, jobs, rows, row_count, gpu_gang, reserved, choices)
    if gangs is not None:
        _refuse_sets(gangs, hardware.gpu_model, kind_gpu, seen.kind_duration_s, seen.job_waiting)
    if rules is not None:
        _ask_for_nodes(hardware, rules, gangs, kind_gpu, seen)
    preemption = None if stops is None else _preemption(scene, row_count, stops, seen)
    table = candidate_table(
        gpu_kind,
        hardware.gpu_node,
        seen.gpu_idle,
        scene.cores_free,
        scene.memory_free_mib,
        seen.job_waiting,
        seen.job_cores,
        seen.job_memory_mib,
        seen.kind_duration_s,
        hardware.gpu_model,
        gangs,
        preemption,
        rules,
    )
    return Observation(
        time_s=scene.time_s,
        gpu_model=hardware.gpu_model,
        gpu_memory_mib=hardware.gpu_memory_mib,
        gpu_node=hardware.gpu_node,
        gpu_kind=gpu_kind,
        node_cores_free=scene.cores_free,
        node_memory_free_mib=scene.memory_free_mib,
        **seen._asdict(),
        table=table,
        hold_allowed=hold_allowed,
        gpu_models=gpu_models,
        gangs=gangs,
        preemption=preemption,
        sharing=sharing,
        nodes=rules,
    )


class _Choices(NamedTuple):
    """Which nodes waiting jobs of A clusters choose.

    Attributes:
        choosing: (A, J) whether each job may not run on some node.
        cluster, place: (E,) of these jobs.
        allowed: (E, M) whether each of them may run on each node.
    """

    choosing: Bools
    cluster: Ints
    place: Ints
    allowed: Bools


def _choices(scene: Scene, jobs: JobArrays, rows: Ints, row_count: Ints) -> _Choices | None:
    """What waiting jobs choose; None: all may run on all nodes."""
    if jobs.node_allowed.shape[2] == 0:
        return None
    there = np.arange(int(row_count.max(initial=0))) < row_count[:, None]
    a, place = np.nonzero(there)
    allowed = jobs.node_allowed[scene.list_of[a], rows[a, place]]
    some = ~allowed.all(axis=1)
    if not some.any():
        return None
    there[a, place] = some
    return _Choices(there, a[some], place[some], allowed[some])


def _refuse_nodes(choices: _Choices, gpu_node: Ints, kind_gpu: Ints, seen: _Seen) -> None:
    """Marks the kinds on nodes that a job must not run on, and the jobs that may run nowhere."""
    a, place = choices.cluster, choices.place
    node = np.take_along_axis(gpu_node, np.maximum(kind_gpu, 0), axis=1)[a]  # (E, S)
    may = np.take_along_axis(choices.allowed, node, axis=1)
    durations_s = np.where(may, seen.kind_duration_s[a, place], np.inf)
    seen.kind_duration_s[a, place] = durations_s
    seen.job_waiting[a, place] = np.isfinite(durations_s).any(axis=1)


def _node_rules(
    hardware: Hardware, scene: Scene, jobs: JobArrays, rows: Ints, row_count: Ints, choices: _Choices | None
) -> NodeRules | None:
    """What concerns jobs that are exclusive or choose their nodes; None: no such job waits."""
    if choices is None and not jobs.exclusive.any():
        return None
    clusters, places = len(row_count), int(row_count.max(initial=0))
    there = np.arange(places) < row_count[:, None]
    exclusive: Bools = jobs.exclusive[scene.list_of[:, None], np.where(there, rows[:, :places], 0)] & there
    if choices is None and not exclusive.any():
        return None
    node_busy = np.zeros(hardware.node_cores.shape, dtype=np.bool_)
    a, gpu = np.nonzero(scene.gpu_job != IDLE)
    node_busy[a, hardware.gpu_node[a, gpu]] = True
    choosing = np.zeros((clusters, places), dtype=np.bool_) if choices is None else choices.choosing
    return NodeRules(exclusive, choosing, node_busy)


def _ask_for_nodes(hardware: Hardware, rules: NodeRules, gangs: Gangs | None, kind_gpu: Ints, seen: _Seen) -> None:
    """Lets exclusive jobs of one GPU ask for the least that a node has on which they can run."""
    single = rules.job_exclusive & seen.job_waiting
    if gangs is not None:
        single = single & (gangs.gpu_count == 1)
    a, place = np.nonzero(single)
    if not len(a):
        return
    node = np.take_along_axis(hardware.gpu_node, np.maximum(kind_gpu, 0), axis=1)  # (A, S); of a kind all are alike
    able = np.isfinite(seen.kind_duration_s[a, place])
    for asked, has in ((seen.job_cores, hardware.node_cores), (seen.job_memory_mib, hardware.node_memory_mib)):
        asked[a, place] = least_of(able, np.take_along_axis(has, node, axis=1)[a])


def least_of(able: Bools, has: Ints) -> Ints:
    """(E,) the least that the kinds of GPUs have on which jobs can run.

    Args:
        able: (E, S) whether each job can run on each kind; on one at least.
        has: (E, S), or (S,): of the nodes of each kind.
    """
    least: Ints = np.where(able, has, np.iinfo(np.int64).max).min(axis=-1)
    return least


def _sharing(scene: Scene, row_count: Ints, shares: Shares, seen: _Seen) -> Sharing:
    """What concerns shared GPUs; adds the second jobs to what is `seen` of the GPUs."""
    places = seen.job_waiting.shape[1]
    there = np.arange(places) < row_count[:, None]
    busy, usable = scene.gpu_job != IDLE, scene.gpu_speed > 0.0
    _add_mates(scene, shares, seen)
    return Sharing(
        job_shareable=shares.row_shareable[:, :places] & there,
        job_family=np.where(there, shares.row_family[:, :places], 0),
        gpu_open=shares.gpu_open & busy & usable & ~shares.mate_there,
        gpu_family=np.where(busy, shares.gpu_family, 0),
        gpu_memory_left_mib=shares.gpu_memory_left_mib,
        kept=shares.kept,
    )


@compiled
def _add_mates(scene: Scene, shares: Shares, seen: _Seen) -> None:
    """Adds the second jobs to what is seen of the GPUs: a GPU is idle when both have ended.

    Of the two starts the last one counts, as it does for a node: it must not move ahead when the first job ends, or the
    limit on waits reserves now this node and now that one.
    """
    for a in range(shares.mate_there.shape[0]):
        for gpu in range(shares.mate_there.shape[1]):
            if shares.mate_there[a, gpu]:
                start_s, end_s = shares.mate_start_s[a, gpu], shares.mate_expected_end_s[a, gpu]
                left_s = remaining_s(scene.time_s[a], start_s, end_s)
                seen.gpu_remaining_s[a, gpu] = max(seen.gpu_remaining_s[a, gpu], left_s)
                seen.gpu_elapsed_s[a, gpu] = min(seen.gpu_elapsed_s[a, gpu], scene.time_s[a] - start_s)
                seen.gpu_cores_held[a, gpu] += shares.mate_cores[a, gpu]
                seen.gpu_memory_held_mib[a, gpu] += shares.mate_memory_mib[a, gpu]


def _preemption(scene: Scene, row_count: Ints, stops: Stops, seen: _Seen) -> Preemption:
    """What concerns jobs that may be stopped; `seen` has durations of whole jobs, and gets those of what is left."""
    places = seen.job_waiting.shape[1]
    there, busy = np.arange(places) < row_count[:, None], scene.gpu_job != IDLE
    full_s = seen.kind_duration_s.copy()
    restart_s = np.where(there, stops.row_restart_s[:, :places], 0.0)
    share = np.where(there, stops.row_share[:, :places], 1.0)
    _leave(restart_s, share, full_s, seen.kind_duration_s)
    return Preemption(
        gpu_stoppable=stops.gpu_stoppable & busy,
        gpu_restart_s=np.where(busy, stops.gpu_restart_s, 0.0),
        gpu_attained_s=np.where(busy, stops.gpu_attained_s, 0.0),
        gpu_run=scene.gpu_job.astype(np.int64),
        job_restart_s=restart_s,
        job_attained_s=np.where(there, stops.row_attained_s[:, :places], 0.0),
        job_share=share,
        kind_full_s=full_s,
    )


@compiled
def _leave(restart_s: Floats, share: Floats, full_s: Floats, left_s: Floats) -> None:
    """Fills in (N, J, S) what is left of jobs (N, J)."""
    for n in range(full_s.shape[0]):
        for job in range(full_s.shape[1]):
            for kind in range(full_s.shape[2]):
                left_s[n, job, kind] = left_of(restart_s[n, job], share[n, job], full_s[n, job, kind])


def _gangs(
    hardware: Hardware,
    scene: Scene,
    jobs: JobArrays,
    rows: Ints,
    row_count: Ints,
    gpu_gang: Ints,
    reserved: Ints | None,
    choices: _Choices | None,
) -> Gangs | None:
    """What concerns jobs of several GPUs; the arguments are those of `whole_queue`."""
    clusters, places = len(row_count), int(row_count.max(initial=0))
    there = np.arange(places) < row_count[:, None]
    job = np.where(there, rows[:, :places], 0)
    number = scene.list_of[:, None]
    gpu_count = np.where(there, jobs.gpu_count[number, job], 1)
    run = bool((gpu_gang > 1).any())
    kept = reserved is not None and bool((reserved >= 0).any())
    if not (run or kept or (gpu_count > 1).any()):
        return None
    models = jobs.expected_s.shape[2]
    nodes = np.zeros((clusters, places, models), dtype=np.int64)
    _fill_nodes(hardware, scene.list_of, jobs, job, gpu_count, np.empty(hardware.node_cores.shape[1], np.int64), nodes)
    if choices is not None:
        _refuse_chosen(hardware, scene, jobs, job, gpu_count, choices, nodes)
    return Gangs(
        gpu_count=gpu_count,
        max_nodes=np.where(there, jobs.max_nodes[number, job], 0),
        nodes=nodes,
        spread_speed=np.where(there[:, :, None], jobs.expected_spread_speed[number, job], 1.0),
        gpu_run=scene.gpu_job.astype(np.int64),
        reserved=np.full(clusters, -1, dtype=np.int64) if reserved is None else reserved,
    )


def _refuse_chosen(
    hardware: Hardware, scene: Scene, jobs: JobArrays, rows: Ints, gpu_count: Ints, choices: _Choices, nodes: Ints
) -> None:
    """Marks the models of which jobs of several GPUs can't have theirs on the nodes that they may run on."""
    scratch = np.empty(hardware.node_cores.shape[1], dtype=np.int64)
    for a, place, allowed in zip(choices.cluster.tolist(), choices.place.tolist(), choices.allowed, strict=True):
        if gpu_count[a, place] == 1:
            continue
        at = int(scene.list_of[a]), int(rows[a, place])
        refuse_models(
            hardware,
            a,
            allowed,
            int(jobs.gpu_count[at]),
            int(jobs.max_nodes[at]),
            int(jobs.cores[at]),
            int(jobs.memory_mib[at]),
            int(jobs.gpu_memory_mib[at]),
            np.ascontiguousarray(jobs.expected_spread_speed[at]),
            scratch,
            nodes[a, place],
        )


@compiled
def _fill_nodes(
    hardware: Hardware, list_of: Ints, jobs: JobArrays, rows: Ints, gpu_count: Ints, scratch: Ints, nodes: Ints
) -> None:
    """Fills in the packed nodes of the jobs of several GPUs on each model; `scratch` has room for each node."""
    for a in range(rows.shape[0]):
        number = list_of[a]
        for place in range(rows.shape[1]):
            if gpu_count[a, place] == 1:
                continue
            job = rows[a, place]
            fill_packed_nodes(
                hardware,
                a,
                gpu_count[a, place],
                jobs.max_nodes[number, job],
                jobs.cores[number, job],
                jobs.memory_mib[number, job],
                jobs.gpu_memory_mib[number, job],
                scratch,
                nodes[a, place],
            )


def _refuse_sets(gangs: Gangs, gpu_model: Ints, kind_gpu: Ints, kind_duration_s: Floats, job_waiting: Bools) -> None:
    """Marks the kinds of models that can never hold a job of several GPUs, and the jobs that none can."""
    a, place = np.nonzero(gangs.gpu_count > 1)
    model = gpu_model[a[:, None], np.maximum(kind_gpu[a], 0)]  # (E, S)
    never = gangs.nodes[a[:, None], place[:, None], model] == NEVER
    kind_duration_s[a, place] = np.where(never, np.inf, kind_duration_s[a, place])
    job_waiting[a, place] = np.isfinite(kind_duration_s[a, place]).any(axis=1)


def submit_of_running_s(jobs: JobArrays, list_of: Ints, gpu_job: Ints) -> Floats:
    """(A, G) submission time of the job on each GPU of A clusters; any value on an idle GPU.

    Args:
        jobs: columns of the jobs.
        list_of: (A,) the cluster's row of them.
        gpu_job: (A, G) the job's number there; negative: none.
    """
    submit_s: Floats = jobs.submit_s[list_of[:, None], np.maximum(gpu_job, 0)]
    return submit_s


class _Seen(NamedTuple):
    """The fields of an observation that this module computes, with their names there."""

    gpu_idle: Bools
    gpu_remaining_s: Floats
    gpu_elapsed_s: Floats
    gpu_submit_s: Floats
    gpu_cores_held: Ints
    gpu_memory_held_mib: Ints
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


def _room(clusters: int, gpus: int, jobs: int, kinds: int) -> _Seen:
    """Room for the fields of an observation of this size."""
    of_gpus, of_jobs = (clusters, gpus), (clusters, jobs)
    return _Seen(
        gpu_idle=np.empty(of_gpus, dtype=np.bool_),
        gpu_remaining_s=np.empty(of_gpus),
        gpu_elapsed_s=np.empty(of_gpus),
        gpu_submit_s=np.empty(of_gpus),
        gpu_cores_held=np.empty(of_gpus, dtype=np.int64),
        gpu_memory_held_mib=np.empty(of_gpus, dtype=np.int64),
        job_waiting=np.empty(of_jobs, dtype=np.bool_),
        job_type=np.empty(of_jobs, dtype=np.int64),
        job_priority=np.empty(of_jobs),
        job_user_service_s=np.empty(of_jobs),
        job_submit_s=np.empty(of_jobs),
        job_cores=np.empty(of_jobs, dtype=np.int64),
        job_memory_mib=np.empty(of_jobs, dtype=np.int64),
        job_gpu_memory_mib=np.empty(of_jobs, dtype=np.int64),
        job_spread=np.empty(of_jobs),
        kind_duration_s=np.empty((clusters, jobs, kinds)),
    )


@compiled
def _fill(
    hardware: Hardware,
    scene: Scene,
    jobs: JobArrays,
    rows: Ints,
    row_count: Ints,
    gpu_submit_s: Floats,
    user_service_s: Floats,
    kind_gpu: Ints,
    seen: _Seen,
) -> None:
    """Fills the fields; the arguments are those of `whole_queue`, and a GPU of each kind (A, S), -1: no such kind."""
    for a in range(rows.shape[0]):
        number = scene.list_of[a]
        for gpu in range(seen.gpu_idle.shape[1]):
            _fill_gpu(scene, gpu_submit_s, a, gpu, seen)
        for place in range(seen.job_waiting.shape[1]):
            there = place < row_count[a]
            job = rows[a, place] if there else 0
            seen.job_type[a, place] = jobs.job_type[number, job]
            seen.job_priority[a, place] = jobs.priority[number, job]
            seen.job_user_service_s[a, place] = user_service_s[a, jobs.user[number, job]]
            seen.job_submit_s[a, place] = jobs.submit_s[number, job]
            seen.job_cores[a, place] = jobs.cores[number, job]
            seen.job_memory_mib[a, place] = jobs.memory_mib[number, job]
            seen.job_gpu_memory_mib[a, place] = jobs.gpu_memory_mib[number, job]
            seen.job_spread[a, place] = jobs.expected_spread[number, job]
            shortest_s, durations_s = np.inf, seen.kind_duration_s[a, place]
            for kind in range(durations_s.shape[0]):
                durations_s[kind] = np.inf
                if there and kind_gpu[a, kind] >= 0:
                    durations_s[kind] = _expected_s(hardware, scene, jobs, a, job, kind_gpu[a, kind])
                    shortest_s = min(shortest_s, durations_s[kind])
            # A job that no GPU can ever hold does not count as waiting: it must not block a queue.
            seen.job_waiting[a, place] = shortest_s < np.inf


@compiled_part
def _fill_gpu(scene: Scene, gpu_submit_s: Floats, a: int, gpu: int, seen: _Seen) -> None:
    """Fills the fields of a GPU."""
    usable, idle = scene.gpu_speed[a, gpu] > 0.0, scene.gpu_job[a, gpu] == IDLE
    seen.gpu_idle[a, gpu] = usable and idle
    left_s, start_s = 0.0, scene.gpu_start_s[a, gpu]
    if not idle:
        left_s = remaining_s(scene.time_s[a], start_s, scene.gpu_expected_end_s[a, gpu])
    seen.gpu_remaining_s[a, gpu] = left_s if usable else np.inf
    seen.gpu_elapsed_s[a, gpu] = 0.0 if idle else max(scene.time_s[a] - start_s, 0.0)
    seen.gpu_submit_s[a, gpu] = np.inf if idle else gpu_submit_s[a, gpu]
    seen.gpu_cores_held[a, gpu] = 0 if idle else scene.gpu_cores[a, gpu]
    seen.gpu_memory_held_mib[a, gpu] = 0 if idle else scene.gpu_memory_mib[a, gpu]


@compiled_part
def _expected_s(hardware: Hardware, scene: Scene, jobs: JobArrays, a: int, job: int, gpu: int) -> float:
    """Expected duration of a job on a GPU; inf if the GPU or its empty node is too small."""
    number, node = scene.list_of[a], hardware.gpu_node[a, gpu]
    able = has_room(
        jobs.cores[number, job],
        jobs.memory_mib[number, job],
        jobs.gpu_memory_mib[number, job],
        hardware.node_cores[a, node],
        hardware.node_memory_mib[a, node],
        hardware.gpu_memory_mib[a, gpu],
    )
    return jobs.expected_s[number, job, hardware.gpu_model[a, gpu]] / scene.known_speed[a, gpu] if able else np.inf
