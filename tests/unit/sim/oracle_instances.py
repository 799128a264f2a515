"""Random instances for the oracle and the batched simulator, and the same decisions for both.

What both are given is one description; what the simulator shows its policy is brought back to the oracle's own view,
so that rows, columns and figures of observations are compared too, not only how the jobs end.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from adlro.hardware.speeds import speed
from adlro.records.cluster import Cluster, Gpu, Node
from adlro.sim.batch import BatchOutcome, GpuChange, simulate
from adlro.state.job_arrays import JobArrays, empty_job_arrays
from adlro.state.observation import HOLD, Ints, Observation
from adlro.workload.job_lists import WorkloadJob
from tests.dense import durations_s, fits_now
from tests.unit.sim.oracle import Oracle, OracleChange, OracleGpu, OracleJob, OracleNode, OracleOutcome, Rule, View
from tests.unit.sim.oracle_rules import at_random, choose_at_random

MODELS = ("v100_sxm2", "rtx_2080_ti", "radeon_vii")
ROWS = 1024
"""Jobs of one list at most: a job's priority says which of which list it is."""


@dataclass(frozen=True)
class Instance:
    """One cluster and one job list."""

    nodes: tuple[OracleNode, ...]
    gpus: tuple[OracleGpu, ...]
    jobs: tuple[OracleJob, ...]
    changes: tuple[OracleChange, ...] = ()

    def oracle(self, rule: Rule, start_cost_s: float = 0.0) -> OracleOutcome:
        return Oracle(self.nodes, self.gpus, self.jobs, self.changes, start_cost_s).run(rule)

    @property
    def cluster(self) -> Cluster:
        nodes = []
        for n, node in enumerate(self.nodes):
            cards = tuple(
                Gpu(f"{n}/{g}", MODELS[gpu.model], gpu.memory_mib) for g, gpu in enumerate(self.gpus) if gpu.node == n
            )
            nodes.append(Node(str(n), node.cores, node.memory_mib, cards))
        return Cluster("drawn", tuple(nodes))

    @property
    def gpu_changes(self) -> list[GpuChange]:
        return [(change.time_s, change.gpu, change.speed_factor) for change in self.changes]


def draw_instance(draw: random.Random, max_jobs: int) -> Instance:
    """1-4 nodes of 1-4 GPUs of up to three models, up to `max_jobs` jobs, GPUs that are lost, come back, slow down.

    Half of the instances have times on a coarse grid, so that much happens at one instant.
    """
    grid = draw.random() < 0.5
    nodes = tuple(OracleNode(draw.randint(2, 12), draw.randint(2, 12) * 1000 + 7) for _ in range(draw.randint(1, 4)))
    models = draw.sample(range(len(MODELS)), draw.randint(1, 3))
    gpus = tuple(
        OracleGpu(node, draw.choice(models), draw.choice((8000, 11264, 16160)))
        for node in range(len(nodes))
        for _ in range(draw.randint(1, 4))
    )
    count = draw.randint(0, max_jobs)
    span_s = draw.choice((0.0, 0.3, 1.0, 3.0, 30.0)) * 4.0 * count / len(gpus)
    failing = draw.choice((0.0, 0.3))
    too_big = draw.choice((0.0, 0.1))
    wrong = draw.random() < 0.5

    def time_s(upto_s: float) -> float:
        return float(draw.randint(0, int(upto_s))) if grid else draw.uniform(0.0, upto_s)

    def duration_s() -> float:
        return draw.randint(1, 16) * 0.5 if grid else math.exp(draw.uniform(-2.0, 4.0))

    jobs = []
    for submit_s in sorted(time_s(span_s) for _ in range(count)):
        full_s = [duration_s() for _ in MODELS]
        ratio = draw.choice((0.25, 0.5)) if draw.random() < failing else 1.0
        absent = draw.randrange(30)
        true_s = tuple(math.inf if model == absent else ratio * full_s[model] for model in range(len(MODELS)))
        believed = tuple(math.inf if s == math.inf else duration_s() if wrong else s for s in true_s)
        beyond = draw.random() < too_big
        jobs.append(
            OracleJob(
                submit_s,
                true_s,
                cores=draw.randint(0, 13 if beyond else 5),
                memory_mib=draw.choice((0, 1, 999, 1000, 2007, 5000, 13000 if beyond else 1007)),
                gpu_memory_mib=draw.choice((0, 0, 4000, 8000, 8001, 16160, 16161 if beyond else 11264)),
                user=draw.randrange(3),
                expected_s=believed,
            )
        )
    times = [time_s(span_s + 20.0) for _ in range(draw.choice((0, 0, 2, 5, 20)))]
    factors = (0.0, 0.0, 1.0, 1.0, 0.5, 2.0, 0.3)
    changes = [OracleChange(at_s, draw.randrange(len(gpus)), draw.choice(factors)) for at_s in sorted(times)]
    return Instance(nodes, gpus, tuple(jobs), tuple(changes))


def of_workload(cluster: Cluster, jobs: Sequence[WorkloadJob]) -> Instance:
    """A drawn or recorded list on a cluster; durations are work / speed."""
    users = {name: number for number, name in enumerate(dict.fromkeys(job.user for job in jobs))}
    return Instance(
        nodes=tuple(OracleNode(node.cpu_cores, node.memory_mib) for node in cluster.nodes),
        gpus=tuple(
            OracleGpu(number, MODELS.index(gpu.gpu_model), gpu.memory_mib)
            for number, node in enumerate(cluster.nodes)
            for gpu in node.gpus
        ),
        jobs=tuple(
            OracleJob(
                job.submit_s,
                tuple(job.work_s / speed(job.application, job.job_type, model) for model in MODELS),
                cores=job.cpu_cores,
                memory_mib=job.memory_mib,
                gpu_memory_mib=job.gpu_memory_mib,
                user=users[job.user],
            )
            for job in jobs
        ),
    )


def job_arrays(instances: Sequence[Instance]) -> JobArrays:
    """The lists, as the simulator takes them; `job_priority` and `job_type` say which job a row is."""
    arrays = empty_job_arrays(len(instances), max((len(each.jobs) for each in instances), default=0), len(MODELS))
    for number, instance in enumerate(instances):
        arrays.job_count[number] = len(instance.jobs)
        for j, job in enumerate(instance.jobs):
            arrays.submit_s[number, j] = job.submit_s
            arrays.duration_s[number, j] = job.duration_s
            arrays.expected_s[number, j] = job.expected_s or job.duration_s
            arrays.cores[number, j] = job.cores
            arrays.memory_mib[number, j] = job.memory_mib
            arrays.gpu_memory_mib[number, j] = job.gpu_memory_mib
            arrays.job_type[number, j] = 1 + j % 3
            arrays.priority[number, j] = (number * ROWS + j + 1) / 2**24
            arrays.user[number, j] = job.user
    return arrays


class SeenPolicy:
    """A policy on observations that decides as `at_random` does, and keeps what it saw as views.

    Args:
        instances: those that it will see.
        seed: list n is decided with `seed` + n.
        hold_share: of the decisions.
        list_seeds: list n is decided with the n-th of these instead.
    """

    def __init__(
        self, instances: Sequence[Instance], seed: int, hold_share: float, list_seeds: Sequence[int] = ()
    ) -> None:
        self._instances = instances
        self._seeds = list_seeds or range(seed, seed + len(instances))
        self._hold_share = hold_share
        self.views: list[list[View]] = [[] for _ in instances]

    def act(self, observation: Observation) -> Ints:
        actions = np.full((len(observation.time_s), 2), HOLD, dtype=np.int64)
        for n in range(len(actions)):
            number, row_of, view = self._view(observation, n)
            chosen = choose_at_random(self._seeds[number], view, self._hold_share)
            self.views[number].append(view)
            if chosen is not None:
                actions[n] = row_of[chosen[0]], chosen[1]
        return actions

    def _view(self, seen: Observation, n: int) -> tuple[int, dict[int, int], View]:
        codes = [round(code * 2**24) - 1 for code in seen.job_priority[n]]
        rows = [row for row, waits in enumerate(seen.job_waiting[n]) if waits]
        number = codes[rows[0]] // ROWS
        assert {codes[row] // ROWS for row in rows} == {number}
        instance = self._instances[number]
        row_of = {codes[row] % ROWS: row for row in rows}
        for job, row in row_of.items():
            wants = instance.jobs[job]
            assert seen.job_submit_s[n, row] == wants.submit_s
            assert seen.job_cores[n, row] == wants.cores
            assert seen.job_memory_mib[n, row] == wants.memory_mib
            assert seen.job_gpu_memory_mib[n, row] == wants.gpu_memory_mib
            assert seen.job_type[n, row] == 1 + job % 3
        cards = len(instance.gpus)
        fitting, durations = fits_now(seen)[n], durations_s(seen)[n]
        assert not fitting[:, cards:].any()
        assert not seen.gpu_idle[n, cards:].any()
        assert np.isinf(durations[:, cards:]).all()
        assert not fitting[~seen.job_waiting[n]].any()
        pairs = [(job, gpu) for job in row_of for gpu in range(cards)]
        for gpu, card in enumerate(instance.gpus):
            assert seen.gpu_models[seen.gpu_model[n, gpu]] == MODELS[card.model]
            assert (seen.gpu_memory_mib[n, gpu], seen.gpu_node[n, gpu]) == (card.memory_mib, card.node)
        expected_s, fits = durations.tolist(), fitting.tolist()
        view = View(
            time_s=float(seen.time_s[n]),
            waiting=tuple(row_of),
            fitting=tuple((job, gpu) for job, gpu in pairs if fits[row_of[job]][gpu]),
            expected_s={
                (job, gpu): expected_s[row_of[job]][gpu]
                for job, gpu in pairs
                if expected_s[row_of[job]][gpu] < math.inf
            },
            idle=tuple(bool(idle) for idle in seen.gpu_idle[n, :cards]),
            remaining_s=tuple(float(s) for s in seen.gpu_remaining_s[n, :cards]),
            cores_held=tuple(seen.gpu_cores_held[n, :cards].tolist()),
            memory_held_mib=tuple(seen.gpu_memory_held_mib[n, :cards].tolist()),
            cores_free=tuple(int(cores) for cores in seen.node_cores_free[n, : len(instance.nodes)]),
            memory_free_mib=tuple(int(memory) for memory in seen.node_memory_free_mib[n, : len(instance.nodes)]),
            # Sums of floats, in another order.
            service_s={
                instance.jobs[job].user: round(float(seen.job_user_service_s[n, row]), 6) for job, row in row_of.items()
            },
            hold_allowed=bool(seen.hold_allowed[n]),
            decision=len(self.views[number]),
        )
        return number, row_of, view


def compare(instances: Sequence[Instance], seed: int, *, hold_share: float, start_cost_s: float = 0.0) -> BatchOutcome:
    """Runs the instances as one batch, and each by the oracle; asserts that all agree exactly.

    Returns:
        What the simulator made of them.
    """
    policy = SeenPolicy(instances, seed, hold_share)
    outcome = run_batch(instances, policy.act, start_cost_s=start_cost_s)
    for number, instance in enumerate(instances):
        wanted = instance.oracle(at_random(seed + number, hold_share), start_cost_s)
        assert_same(outcome, number, wanted)
        assert len(policy.views[number]) == len(wanted.views)
        for seen, view in zip(policy.views[number], wanted.views, strict=True):
            for name, value in figures(rounded(view)).items():
                assert (number, view.time_s, name, figures(seen)[name]) == (number, view.time_s, name, value)
    return outcome


def run_batch(
    instances: Sequence[Instance], act: Callable[[Observation], Ints], *, start_cost_s: float = 0.0
) -> BatchOutcome:
    return simulate(
        [instance.cluster for instance in instances],
        job_arrays(instances),
        act,
        gpu_models=MODELS,
        gpu_changes=[instance.gpu_changes for instance in instances],
        start_cost_s=start_cost_s,
    )


def figures(view: View) -> dict[str, object]:
    return {name: getattr(view, name) for name in View.__dataclass_fields__}


def rounded(view: View) -> View:
    """Service to the microsecond: it is a sum of floats in some order."""
    return replace(view, service_s={user: round(s, 6) for user, s in view.service_s.items()})


def assert_same(outcome: BatchOutcome, number: int, wanted: OracleOutcome) -> None:
    """List `number` went job for job, attempt for attempt as the oracle's did: equal floats."""
    count = len(wanted.end_s)
    np.testing.assert_array_equal(outcome.attempts[number, :count], wanted.attempts)
    np.testing.assert_array_equal(outcome.gpu[number, :count], wanted.gpu)
    np.testing.assert_array_equal(outcome.start_s[number, :count], wanted.start_s)
    np.testing.assert_array_equal(outcome.end_s[number, :count], wanted.end_s)
    assert bool(outcome.stuck[number]) == bool(wanted.stuck)
    runs = [(run.end_s, run.gpu, run.job, run.start_s, run.completed) for run in outcome.runs(number)]
    assert [run[0] for run in runs] == sorted(run[0] for run in runs)
    assert sorted(runs) == sorted((run.end_s, run.gpu, run.job, run.start_s, run.completed) for run in wanted.runs)
