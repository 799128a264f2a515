"""simcluster's simulator of one cluster and the batched kernel: the same starts give the same ends, to the last bit."""

from __future__ import annotations

import numpy as np
import pytest

from adlro.errors import Conflict
from adlro.placement import Placement
from adlro.records.events import EventKind
from adlro.sim.batch import BatchOutcome, GpuChange, simulate
from adlro.sim.simulator import ClusterSimulator
from adlro.state.job_arrays import pack_jobs
from adlro.state.observation import HOLD, Ints, Observation
from adlro.workload.job_lists import WorkloadJob, draw_jobs
from adlro.workload.scenario import load_scenario
from tests.dense import fits_now
from tests.picky_jobs import picky

SCENARIO = load_scenario("paper")
GPU_IDS = [gpu.gpu_id for _, gpu in SCENARIO.cluster.gpus()]

Start = tuple[float, int, int]
"""(time in s, job, GPU)."""


def random_changes(rng: np.random.Generator, until_s: float) -> list[GpuChange]:
    """GPUs drift, are lost and come back, some of it at one instant."""
    times = np.sort(np.round(rng.uniform(0.0, until_s, 40), 1))
    speeds = rng.choice([0.0, 0.5, 0.8, 1.0, 1.1], 40)
    last_s = float(times[-1])
    changes = [
        (float(time_s), int(rng.integers(len(GPU_IDS))), float(speed))
        for time_s, speed in zip(times, speeds, strict=True)
    ]
    return changes + [(last_s, gpu, 1.0) for gpu in range(len(GPU_IDS))]


def in_batch(
    jobs: list[WorkloadJob], changes: list[GpuChange], start_cost_s: float, rng: np.random.Generator
) -> tuple[BatchOutcome, list[Start]]:
    """Runs a list under random placements in the kernel; what came of it, and its starts in order."""
    starts: list[Start] = []
    numbers = {job.submit_s: number for number, job in enumerate(jobs)}

    def act(seen: Observation) -> Ints:
        rows, gpus = np.nonzero(fits_now(seen)[0])
        if seen.hold_allowed[0] and rng.random() < 0.1:
            return np.array([[HOLD, HOLD]])
        pick = int(rng.integers(len(rows)))
        starts.append((float(seen.time_s[0]), numbers[float(seen.job_submit_s[0, rows[pick]])], int(gpus[pick])))
        return np.array([[rows[pick], gpus[pick]]])

    packed = pack_jobs([jobs], SCENARIO.cluster)
    return simulate(SCENARIO.cluster, packed, act, gpu_changes=[changes], start_cost_s=start_cost_s), starts


def in_service(
    jobs: list[WorkloadJob], changes: list[GpuChange], start_cost_s: float, starts: list[Start]
) -> set[tuple[int, int, float, float, bool]]:
    """The same starts and changes, in simcluster's simulator: (job, GPU, start, end, completed) of each attempt."""
    simulator = ClusterSimulator(SCENARIO.cluster, start_cost_s=start_cost_s)
    began: dict[str, tuple[int, float]] = {}
    runs = set()

    def take(events):
        for event in events:
            if event.job_id:
                gpu, start_s = began.pop(event.job_id)
                completed = event.kind is EventKind.FINISHED
                runs.add((int(event.job_id), gpu, start_s, event.time_s, completed))

    def go_to(time_s: float) -> None:
        while (next_s := simulator.next_event_time()) is not None and next_s <= time_s:
            take(simulator.advance_to(next_s))
        simulator.advance_to(time_s)

    left, attempts = list(changes), [0] * len(jobs)
    for time_s, job, gpu in [*starts, (np.inf, -1, -1)]:
        while left and left[0][0] <= time_s:
            at_s, changed, speed = left.pop(0)
            go_to(at_s)
            gpu_id = GPU_IDS[changed]
            if speed == 0.0:
                take(simulator.lose_gpu(gpu_id))
                continue
            take(simulator.restore_gpu(gpu_id))
            simulator.set_gpu_speed(gpu_id, speed)
        if job >= 0:
            go_to(time_s)
            attempts[job] += 1
            simulator.launch(str(job), attempts[job], jobs[job].spec(f"job {job}"), Placement.on(GPU_IDS[gpu]))
            began[str(job)] = (gpu, time_s)
    while (next_s := simulator.next_event_time()) is not None:
        take(simulator.advance_to(next_s))
    return runs


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("start_cost_s", [0.0, 0.7])
def test_the_same_starts_give_the_same_ends_on_one_cluster_and_in_the_batch(seed, start_cost_s):
    rng = np.random.default_rng([seed, 3])
    jobs = draw_jobs(SCENARIO, load=1.1, rng=rng, count=48)
    changes = random_changes(rng, jobs[-1].submit_s) if seed % 2 else []
    outcome, starts = in_batch(jobs, changes, start_cost_s, rng)
    assert not outcome.stuck.any()
    expected = {(run.job, run.gpu, run.start_s, run.end_s, run.completed) for run in outcome.runs(0)}
    assert in_service(jobs, changes, start_cost_s, starts) == expected
    assert len(starts) == len(expected)
    assert (len(expected) > len(jobs)) == bool(changes)


@pytest.mark.parametrize("seed", range(6))
def test_of_exclusive_jobs_and_jobs_that_choose_nodes_as_well(seed):
    rng = np.random.default_rng([seed, 4])
    jobs = picky(draw_jobs(SCENARIO, load=0.9, rng=rng, count=48), SCENARIO.cluster, rng)
    changes = random_changes(rng, jobs[-1].submit_s) if seed % 2 else []
    outcome, starts = in_batch(jobs, changes, 0.0, rng)
    assert not outcome.stuck.any()
    expected = {(run.job, run.gpu, run.start_s, run.end_s, run.completed) for run in outcome.runs(0)}
    assert in_service(jobs, changes, 0.0, starts) == expected
    assert any(job.exclusive for job in jobs)
    assert any(job.node_ids for job in jobs)


@pytest.mark.parametrize("seed", range(4))
def test_what_the_kernel_refuses_the_cluster_refuses_too(seed):
    """At random moments of a random mix each GPU is tried for each waiting job, on both sides."""
    rng = np.random.default_rng([seed, 5])
    jobs = picky(draw_jobs(SCENARIO, load=1.1, rng=rng, count=24), SCENARIO.cluster, rng)
    asked: list[tuple[float, int, int, bool]] = []
    starts: list[Start] = []
    numbers = {job.submit_s: number for number, job in enumerate(jobs)}

    def act(seen: Observation) -> Ints:
        fits = fits_now(seen)[0]
        for row, gpu in np.argwhere(seen.job_waiting[0][:, None] & seen.gpu_idle[0]).tolist():
            asked.append((float(seen.time_s[0]), numbers[float(seen.job_submit_s[0, row])], gpu, bool(fits[row, gpu])))
        rows, gpus = np.nonzero(fits)
        pick = int(rng.integers(len(rows)))
        starts.append((float(seen.time_s[0]), numbers[float(seen.job_submit_s[0, rows[pick]])], int(gpus[pick])))
        asked.append((*starts[-1], True))
        return np.array([[rows[pick], gpus[pick]]])

    simulate(SCENARIO.cluster, pack_jobs([jobs], SCENARIO.cluster), act)
    simulator, begun = ClusterSimulator(SCENARIO.cluster), list(starts)
    refused = 0
    for time_s, number, gpu, fits in asked:
        while (next_s := simulator.next_event_time()) is not None and next_s <= time_s:
            simulator.advance_to(next_s)
        simulator.advance_to(time_s)
        launch = str(number), 1, jobs[number].spec(f"job {number}"), Placement.on(GPU_IDS[gpu])
        if begun and (time_s, number, gpu) == begun[0]:
            begun.pop(0)
            simulator.launch(*launch)
        elif not fits:
            with pytest.raises(Conflict):
                simulator.launch(*launch)
            refused += 1
    assert not begun
    assert refused > 20
