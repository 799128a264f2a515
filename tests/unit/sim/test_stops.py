"""Stops of one simulated cluster: as the oracle has them, equal floats; and what is refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest

from adlro.errors import Conflict
from adlro.placement import SHARED, GpuShare, Placement
from adlro.records.cluster import Cluster
from adlro.records.events import ClusterEvent, EventKind
from adlro.records.jobs import JobSpec, JobType, Preemptible, SimulatedWork
from adlro.sim import simulator as simulators
from adlro.sim.durations import PlannedRun
from adlro.sim.room_left import packed_nodes
from adlro.sim.simulator import ClusterSimulator
from tests.oracle.acts import anything
from tests.oracle.cluster import Oracle
from tests.oracle.instances import draw_instance
from tests.oracle.records import NOBODY, Instance, Job
from tests.unit.sim.against_oracle import MODELS, cluster_of
from tests.unit.sim.test_simulator import CLUSTER, kinds

HOW = {EventKind.FINISHED: "completed", EventKind.LOST: "lost", EventKind.PREEMPTED: "stopped"}
SPEC = JobSpec(
    "j", "ada", JobType.SIMULATION, application="cloverleaf_fp64", simulated_work=SimulatedWork(10.0),
    preemptible=Preemptible(restart_s=2.0, lost_s=1.0),
)  # fmt: skip


def spec(**changes: object) -> JobSpec:
    return dataclasses.replace(SPEC, **changes)  # type: ignore[arg-type]


# ---- by hand


def test_a_stopped_job_goes_on_with_what_is_left_after_its_restart() -> None:
    simulator = ClusterSimulator(CLUSTER, start_cost_s=0.5)
    simulator.launch("a", 1, spec(), Placement.on("volta/0"))
    simulator.advance_to(4.5)  # 4 s of 10 are done, one of which is lost
    (stopped, started) = simulator.launch("b", 1, spec(), Placement.on("volta/0"), stops=["a"])
    assert kinds([stopped, started]) == [("PREEMPTED", "a"), ("STARTED", "b")]
    assert (stopped.remaining_ratio, stopped.message, stopped.time_s) == (0.7, "for b", 4.5)
    assert started.remaining_ratio is None
    simulator.launch("a", 2, spec(), Placement.on("volta/1"), share=0.7, resumes=True)
    assert simulator.next_event_time() == 4.5 + (0.5 + 2.0 + 7.0)
    assert kinds(simulator.advance_to(14.0)) == [("FINISHED", "a")]


def test_a_stop_loses_no_more_than_the_attempt_has_done() -> None:
    simulator = ClusterSimulator(CLUSTER)
    simulator.launch("a", 1, spec(), Placement.on("volta/0"), share=0.6, resumes=True)
    simulator.advance_to(2.5)
    assert simulator.preempt("a").remaining_ratio == 0.6


def test_victims_end_in_the_order_of_their_lowest_gpus() -> None:
    simulator = ClusterSimulator(CLUSTER)
    simulator.launch("b", 1, spec(), Placement.on("volta/1"))
    simulator.launch("a", 1, spec(), Placement.on("volta/0"))
    both = Placement.on("volta/0", "volta/1")
    events = simulator.launch("new", 1, spec(gpu_count=2), both, stops=["b", "a"])
    assert kinds(events) == [("PREEMPTED", "a"), ("PREEMPTED", "b"), ("STARTED", "new")]


def test_a_time_limit_counts_each_attempt() -> None:
    simulator = ClusterSimulator(CLUSTER)
    limited = spec(time_limit_s=6.0)
    simulator.launch("a", 1, limited, Placement.on("volta/0"))
    simulator.advance_to(5.0)
    share = simulator.preempt("a").remaining_ratio
    assert share == 0.6
    simulator.launch("a", 2, limited, Placement.on("volta/0"), share=share, resumes=True)
    (end,) = simulator.advance_to(11.0)
    assert (end.kind, end.message) == (EventKind.FAILED, "time limit of 6 s reached")


def test_what_starts_or_restores_is_not_stopped() -> None:
    simulator = ClusterSimulator(CLUSTER, start_cost_s=1.0)
    simulator.launch("a", 1, spec(), Placement.on("volta/0"))
    simulator.launch("b", 2, spec(), Placement.on("volta/1"), share=0.5, resumes=True)
    for time_s, restoring in ((0.5, "a"), (2.5, "b")):
        simulator.advance_to(time_s)
        with pytest.raises(
            Conflict, match=f"{restoring} starts or restores until {1 + 2 * (restoring == 'b')} s"
        ) as no:
            simulator.launch("c", 1, spec(gpu_count=2), Placement.on("volta/0", "volta/1"), stops=["a", "b"])
        assert no.value.reason == "NOT_PREEMPTIBLE"
        with pytest.raises(Conflict, match=f"{restoring} starts or restores"):
            simulator.preempt(restoring)
        assert len(simulator.running) == 2
    simulator.advance_to(3.0)
    assert len(simulator.launch("c", 1, spec(gpu_count=2), Placement.on("volta/0", "volta/1"), stops=["a", "b"])) == 3


def test_a_launch_that_is_refused_stops_nobody() -> None:
    simulator = ClusterSimulator(CLUSTER)
    simulator.launch("a", 1, spec(cpu_cores=3), Placement.on("volta/0"))
    simulator.launch("stays", 1, spec(preemptible=None), Placement.on("turing/0"))
    for asked, gpu_id, stops, reason in (
        (spec(), "turing/0", ["stays"], "NOT_PREEMPTIBLE"),
        (spec(), "volta/0", ["nobody"], "NOT_RUNNING"),
        (spec(), "turing/0", ["a"], "GPU_BUSY"),
        (spec(cpu_cores=9), "volta/0", ["a"], "NODE_CORES_EXHAUSTED"),
    ):
        with pytest.raises(Conflict) as refused:
            simulator.launch("b", 1, asked, Placement.on(gpu_id), stops=stops)
        assert refused.value.reason == reason
    assert [run.job_id for run in simulator.running] == ["a", "stays"]
    events = simulator.launch("b", 1, spec(cpu_cores=8), Placement.on("volta/0"), stops=["a"])
    assert kinds(events) == [("PREEMPTED", "a"), ("STARTED", "b")]
    with pytest.raises(Conflict, match="a does not run"):
        simulator.preempt("a")


# ---- against the oracle


class Replayed(ClusterSimulator):
    """The simulator with the oracle's speeds of spread placements, and of two jobs on a GPU."""

    def __init__(self, instance: Instance, cluster: Cluster) -> None:
        super().__init__(cluster, start_cost_s=instance.start_cost_s)
        self.instance = instance

    def _spread_speed(self, spec: JobSpec, gpus: tuple[int, ...]) -> float:
        job = self.instance.jobs[int(spec.name)]
        nodes = len({self.instance.gpus[gpu].node for gpu in gpus})
        spread = nodes > packed_nodes(self._hardware, spec, gpus[0])
        return job.spreads_at(self.instance.gpus[gpus[0]].model, False) if spread else 1.0

    def _kept_beside(self, spec: JobSpec, other: JobSpec, gpu: int) -> tuple[float, float] | None:
        one, two = (self.instance.jobs[int(each.name)].family for each in (spec, other))
        table, model = self.instance.kept, self.instance.gpus[gpu].model
        if (one, two, model) not in table or (two, one, model) not in table:
            return None
        return table[one, two, model], table[two, one, model]


def spec_of(number: int, job: Job) -> JobSpec:
    return JobSpec(
        str(number),
        "ada",
        JobType.SIMULATION,
        gpu_count=job.gpu_count,
        cpu_cores=job.cores,
        memory_mib=job.memory_mib,
        gpu_memory_mib=job.gpu_memory_mib,
        max_node_count=job.max_nodes,
        preemptible=Preemptible(job.restart_s, job.lost_s) if job.preemptible else None,
        shareable=job.shareable and job.gpu_count == 1,
    )


Ran = tuple[int, tuple[int, ...], float, float, str]


def replayed(oracle: Oracle) -> list[Ran]:
    """What comes of the oracle's choices in the simulator: each attempt as the oracle tells it."""
    instance = oracle.instance
    cluster = cluster_of(instance)
    gpu_ids = [gpu.gpu_id for _, gpu in cluster.gpus()]
    simulator = Replayed(instance, cluster)
    began: dict[str, tuple[tuple[int, ...], float]] = {}
    share, stopped = [1.0] * len(instance.jobs), [False] * len(instance.jobs)
    attempts, runs = [0] * len(instance.jobs), list[Ran]()

    def take(events: Sequence[ClusterEvent]) -> None:
        for event in events:
            if not event.job_id:
                continue
            if event.kind is EventKind.STARTED:
                gpus = tuple(gpu_ids.index(each) for each in event.placement.gpu_ids)
                began[event.job_id] = gpus, event.time_s
                continue
            gpus, start_s = began.pop(event.job_id)
            runs.append((int(event.job_id), gpus, start_s, event.time_s, HOW[event.kind]))
            if event.kind is EventKind.PREEMPTED:
                assert event.remaining_ratio is not None
                share[int(event.job_id)], stopped[int(event.job_id)] = event.remaining_ratio, True

    def go_to(time_s: float) -> None:
        while (next_s := simulator.next_event_time()) is not None and next_s <= time_s:
            take(simulator.advance_to(next_s))
        simulator.advance_to(time_s)

    changes = list(instance.changes)

    def change_until(time_s: float) -> None:
        while changes and changes[0].time_s <= time_s:
            change = changes.pop(0)
            go_to(change.time_s)
            gpu_id = gpu_ids[change.gpu]
            if change.speed == 0.0:
                take(simulator.lose_gpu(gpu_id))
            else:
                simulator.restore_gpu(gpu_id)
                simulator.set_gpu_speed(gpu_id, change.speed)

    for decision in oracle.outcome.decisions:
        choice = decision.choice
        change_until(decision.time_s)
        go_to(decision.time_s)
        if choice.job == NOBODY:
            continue
        job_id = str(choice.job)
        if job_id in began:  # it moves
            take([simulator.preempt(job_id)])
        attempts[choice.job] += 1
        gpus = {gpu_ids[gpu] for gpu in choice.gpus}
        stops = [run.job_id for run in simulator.running if gpus & set(run.placement.gpu_ids)] if choice.stop else []
        asked = spec_of(choice.job, instance.jobs[choice.job])
        part = SHARED if asked.shareable else 1.0
        take(
            simulator.launch(
                job_id,
                attempts[choice.job],
                asked,
                Placement(tuple(GpuShare(gpu_ids[gpu], part) for gpu in choice.gpus)),
                share=share[choice.job],
                resumes=stopped[choice.job],
                stops=stops,
            )
        )
    change_until(float("inf"))
    while (next_s := simulator.next_event_time()) is not None:
        take(simulator.advance_to(next_s))
    return runs


@pytest.mark.parametrize("part", range(6))
def test_stops_moves_and_losses_are_the_oracles_equal_floats(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    stops = restores = 0
    for seed in range(part * 60, part * 60 + 60):
        oracle = Oracle(draw_instance(seed, stops=True), asks_always=True)
        oracle.run(anything(seed, stop_share=0.4))

        def plan(job_id: str, spec: JobSpec, model: str, *_: object, oracle: Oracle = oracle) -> PlannedRun:
            duration_s = oracle.jobs[int(job_id)].duration_s[MODELS.index(model)]
            return PlannedRun(duration_s, EventKind.FINISHED, "")

        monkeypatch.setattr(simulators, "plan_run", plan)
        wanted = [(run.job, run.gpus, run.start_s, run.end_s, run.end) for run in oracle.outcome.runs]
        assert sorted(replayed(oracle)) == sorted(wanted), seed
        stops += sum(run.end == "stopped" for run in oracle.outcome.runs)
        restores += sum(job.restart_s > 0.0 for job in oracle.jobs)
    assert stops > 30
    assert restores > 60
