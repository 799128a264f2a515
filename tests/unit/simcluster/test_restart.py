"""A simulated cluster after a kill: what ran goes on, and ends to the last bit as if nothing had been."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from adlro.clusterside.cluster_side import ClusterSide
from adlro.errors import Conflict
from adlro.placement import Placement
from adlro.records.cluster import Cluster, Gpu, Node
from adlro.records.events import Clock, ClockMode, EventKind
from adlro.records.jobs import AttemptRef, JobSpec, JobType, Preemptible, SimulatedWork
from adlro.services.simcluster.driver import SimulatedCluster
from adlro.sim.simulator import ClusterSimulator
from tests.unit.clusterside.memory_record import kept_of
from tests.unit.simcluster.walltime import HandTimers

CLUSTER = Cluster("c", (Node("n", 64, 1 << 20, tuple(Gpu(f"n/{n}", "v100_sxm2", 16160) for n in range(4))),))
VIRTUAL = Clock(ClockMode.VIRTUAL, 0.0, False, 0.0)
REAL = Clock(ClockMode.REAL, 1.0, False, 0.0)


def spec(work_s: float, time_limit_s: float | None = None, gpu_count: int = 1) -> JobSpec:
    work = SimulatedWork(work_s)
    plain = JobSpec("j", "ada", JobType.SIMULATION, memory_mib=1, time_limit_s=time_limit_s, simulated_work=work)
    return replace(plain, gpu_count=gpu_count)


class Life:
    """A cluster that may be killed between any two calls."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.timers = HandTimers()
        self.driver = SimulatedCluster(ClusterSimulator(CLUSTER, start_cost_s=0.1), clock)
        self.side = ClusterSide(self.driver, self.timers)
        self.driver.begin_at(clock)

    def kill(self, clock: Clock | None = None, cluster: Cluster = CLUSTER) -> None:
        """What was written down is all that the next one knows; `clock`: as its record has it."""
        kept = kept_of(self.side.collect(whole=True))
        self.timers = HandTimers()
        self.driver = SimulatedCluster(ClusterSimulator(cluster, start_cost_s=0.1), self.clock)
        self.side = ClusterSide(self.driver, self.timers)
        self.side.restore(kept)
        self.driver.begin_at(clock or self.clock, kept)
        if kept.cluster != cluster:
            self.side.change_cluster(cluster)

    def acknowledge(self) -> None:
        self.side.acknowledge(self.side.log.incarnation, self.side.log.revision, 0)

    @property
    def events(self) -> list[tuple[str, str, float]]:
        return [(e.kind.name, e.job_id or e.gpu_id, e.time_s) for batch in self.side.log.after(0) for e in batch.events]


def played(seed: int, kills: Iterator[bool], sizes: tuple[int, ...]) -> list[tuple[str, str, float]]:
    """Jobs as they come, FCFS, with times that no float holds exactly; a kill wherever `kills` says so."""
    draw = random.Random(seed)
    life = Life(VIRTUAL)
    life.driver.set_clock_now(not_before_s=1234.567)
    begins = sorted(1234.567 + draw.uniform(0.0, 40.0) for _ in range(60))
    works = [draw.choice([draw.uniform(0.1, 9.0), 3.3]) for _ in begins]
    counts = [draw.choice(sizes) for _ in begins] if len(sizes) > 1 else [sizes[0]] * len(begins)
    life.side.wake_at(begins)
    launched = 0
    for _ in range(400):
        if next(kills):
            life.kill()
        free = [f"n/{n}" for n in range(4)]
        for running in life.side.describe().running:
            for gpu_id in running.placement.gpu_ids:
                free.remove(gpu_id)
        now_s = life.side.describe().clock.time_s
        while launched < len(begins) and len(free) >= counts[launched] and begins[launched] <= now_s:
            limit_s = 2.5 if launched % 7 == 0 else None
            here = Placement.on(*(free.pop(0) for _ in range(counts[launched])))
            asked = spec(works[launched], limit_s, counts[launched])
            life.side.launch(f"job-{launched}", 1, asked, here, 0)
            launched += 1
            if next(kills):
                life.kill()
        life.acknowledge()
    assert sum(kind == "STARTED" for kind, _, _ in life.events) == 60
    assert not life.side.describe().running
    return life.events


@pytest.mark.parametrize("sizes", [(1,), (1, 1, 2, 3)])
@pytest.mark.parametrize("seed", range(4))
def test_a_virtual_course_is_the_same_to_the_last_bit_wherever_it_is_killed(seed, sizes):
    def never() -> Iterator[bool]:
        while True:
            yield False

    def now_and_then() -> Iterator[bool]:
        draw = random.Random(seed + 1000)
        while True:
            yield draw.random() < 0.15

    assert played(seed, now_and_then(), sizes) == played(seed, never(), sizes)


def stopped_and_resumed(seed: int, kills: Iterator[bool]) -> tuple[list[tuple[str, str, float]], list[float | None]]:
    """Jobs as they come; each stops what it needs to begin at once, and what was stopped goes on when there is room."""
    draw = random.Random(seed)
    life = Life(VIRTUAL)
    life.driver.set_clock_now(not_before_s=1234.567)
    begins = sorted(1234.567 + draw.uniform(0.0, 60.0) for _ in range(40))
    specs = {
        f"job-{number}": replace(
            spec(draw.uniform(0.5, 9.0), draw.choice((None, None, 6.0)), draw.choice((1, 1, 2))),
            preemptible=Preemptible(draw.uniform(0.0, 1.0), draw.uniform(0.0, 1.0)),
        )
        for number in range(len(begins))
    }
    life.side.wake_at(begins)
    new = list(specs)
    waiting: list[str] = []
    share, attempts = dict.fromkeys(specs, 1.0), dict.fromkeys(specs, 0)
    told: list[float | None] = []
    seen = 0
    for _ in range(600):
        if next(kills):
            life.kill()
        events = [event for batch in life.side.log.after(0) for event in batch.events]
        for event in events[seen:]:
            if event.kind is EventKind.PREEMPTED:
                waiting.append(event.job_id)
                told.append(event.remaining_ratio)
                share[event.job_id] = event.remaining_ratio or 1.0
        seen = len(events)
        described = life.side.describe()
        while new and begins[len(specs) - len(new)] <= described.clock.time_s:
            waiting.insert(0, new.pop(0))
        on = {gpu_id: run.job_id for run in described.running for gpu_id in run.placement.gpu_ids}
        for job_id in list(waiting):
            asked = specs[job_id]
            free = [gpu_id for gpu_id in (f"n/{n}" for n in range(4)) if gpu_id not in on]
            chosen = (
                free[: asked.gpu_count] if attempts[job_id] else [f"n/{draw.randrange(4)}", "n/2"][: asked.gpu_count]
            )
            stops = {on[gpu_id] for gpu_id in chosen if gpu_id in on}
            if len(set(chosen)) < asked.gpu_count:
                continue
            refs = [AttemptRef(each, attempts[each]) for each in sorted(stops)]
            try:
                life.side.launch(
                    job_id, attempts[job_id] + 1, asked, Placement.on(*chosen), 0,
                    preempts=refs, remaining_ratio=share[job_id], resumes=attempts[job_id] > 0,
                )  # fmt: skip
            except Conflict as refused:
                if refused.reason != "NOT_PREEMPTIBLE":  # it starts or restores
                    raise
                continue
            attempts[job_id] += 1
            waiting.remove(job_id)
            if next(kills):
                life.kill()
            break
        life.acknowledge()
    assert not life.side.describe().running
    return life.events, told


@pytest.mark.parametrize("seed", range(6))
def test_what_was_stopped_goes_on_the_same_to_the_last_bit_wherever_the_cluster_is_killed(seed):
    draw = random.Random(seed + 1000)
    plain = stopped_and_resumed(seed, iter(lambda: False, None))
    assert stopped_and_resumed(seed, iter(lambda: draw.random() < 0.2, None)) == plain
    assert sum(kind == "PREEMPTED" for kind, _, _ in plain[0]) > 5
    assert all(share is not None and 0.0 < share <= 1.0 for share in plain[1])


def test_a_stop_and_the_start_after_it_are_events_of_one_moment():
    life = Life(REAL)
    life.driver.set_ceiling(math.inf)
    stoppable = replace(spec(10.0), preemptible=Preemptible(restart_s=3.0))
    life.side.launch("a", 1, stoppable, Placement.on("n/0"), 0)
    life.side.launch("b", 1, stoppable, Placement.on("n/1"), 0)
    life.timers.move(5.1)
    both = Placement.on("n/0", "n/1")
    refs = [AttemptRef("b", 1), AttemptRef("a", 1)]
    launched = life.side.launch("new", 1, spec(1.0, gpu_count=2), both, 0, preempts=refs)
    assert launched.state.name == "STARTED"
    assert launched.start_s == pytest.approx(5.1)
    (*_, batch) = life.side.log.after(0)
    assert [(each.kind.name, each.job_id, each.remaining_ratio, each.message) for each in batch.events] == [
        ("PREEMPTED", "a", pytest.approx(0.5), "for new"),
        ("PREEMPTED", "b", pytest.approx(0.5), "for new"),
        ("STARTED", "new", None, ""),
    ]
    with pytest.raises(Conflict, match="job is not preemptible"):
        life.side.stop("new", 1, 0, preempt=True)
    life.timers.move(2.0)
    life.side.launch("a", 2, stoppable, Placement.on("n/0"), 0, remaining_ratio=0.5, resumes=True)
    life.timers.move(1.0)
    with pytest.raises(Conflict, match=r"a starts or restores until 10\.2 s"):
        life.side.stop("a", 2, 0, preempt=True)
    assert not any(each.stop_asked for each in life.side.open_attempts())
    life.kill(replace(REAL, time_s=life.side.describe().clock.time_s))
    with pytest.raises(Conflict, match=r"a starts or restores until 10\.2 s"):
        life.side.launch("next", 1, spec(1.0), Placement.on("n/0"), 0, preempts=[AttemptRef("a", 2)])
    life.driver.set_ceiling(math.inf)
    life.timers.move(4.0)
    assert life.side.stop("a", 2, 0, preempt=True)
    assert life.events[-1][:2] == ("PREEMPTED", "a")


def test_what_came_due_meanwhile_happens_at_its_own_time():
    life = Life(REAL)
    life.side.launch("a", 1, spec(10.0), Placement.on("n/0"), 0)
    life.side.launch("b", 1, spec(30.0), Placement.on("n/1"), 0)
    life.side.wake_at([10.5, 100.0])
    life.timers.move(9.5)
    life.kill(replace(REAL, time_s=10.6))  # its ceiling
    assert life.side.describe().clock.time_s == 10.6
    assert life.events[2:] == [("FINISHED", "a", 10.1), ("WAKE_UP", "", 10.5)]
    life.driver.set_ceiling(math.inf)  # as the timekeeper raises it
    life.timers.move(25.0)
    assert life.events[4:] == [("FINISHED", "b", 30.1)]
    assert life.side.wake_ups.times_s == [100.0]


def test_lost_gpus_and_stopped_jobs_stay_as_they_were():
    life = Life(REAL)
    life.side.launch("a", 1, spec(10.0), Placement.on("n/0"), 0)
    life.side.launch("b", 1, spec(10.0), Placement.on("n/1"), 0)
    life.side.stop("b", 0, 0)
    life.driver.set_gpu_availability("n/0", False)
    before = life.side.describe()
    life.kill()
    after = life.side.describe()
    assert (after.running, after.lost_gpu_ids, after.revision) == ((), ("n/0",), before.revision)
    assert life.side.launch("a", 1, spec(10.0), Placement.on("n/0"), 0).existing
    life.driver.set_gpu_availability("n/0", True)
    assert not life.side.launch("a", 2, spec(10.0), Placement.on("n/0"), 0).existing


def test_a_gang_runs_on_after_a_kill_and_is_lost_with_one_of_its_gpus_on_all():
    life = Life(REAL)
    both = Placement.on("n/1", "n/3")
    life.side.launch("a", 1, spec(10.0, gpu_count=2), both, 0)
    life.timers.move(4.0)
    life.kill(replace(REAL, time_s=4.5))
    assert [(each.job_id, each.placement) for each in life.side.describe().running] == [("a", both)]
    assert life.side.launch("a", 1, spec(10.0, gpu_count=2), both, 0).existing
    assert life.driver.set_gpu_availability("n/3", False) == "a"
    assert life.events[1:] == [("GPU_LOST", "n/3", 4.5), ("LOST", "a", 4.5)]
    assert not life.side.launch("b", 1, spec(1.0, gpu_count=2), Placement.on("n/0", "n/1"), 0).existing
    life.kill(cluster=replace(CLUSTER, nodes=(replace(CLUSTER.nodes[0], gpus=CLUSTER.nodes[0].gpus[1:]),)))
    assert life.events[-2:] == [("LOST", "b", 4.5), ("CLUSTER_CHANGED", "", 4.5)]
    assert life.side.describe().running == ()


def test_gpus_that_are_not_there_any_more_lose_their_jobs_and_the_change_is_told():
    life = Life(REAL)
    for number in range(4):
        life.side.launch(f"job-{number}", 1, spec(100.0), Placement.on(f"n/{number}"), 0)
    node = CLUSTER.nodes[0]
    smaller = replace(CLUSTER, nodes=(replace(node, gpus=node.gpus[:2]),))
    life.kill(cluster=smaller)
    described = life.side.describe()
    assert described.cluster == smaller
    assert [job.job_id for job in described.running] == ["job-0", "job-1"]
    assert [event[:2] for event in life.events[4:]] == [
        ("LOST", "job-2"),
        ("LOST", "job-3"),
        (EventKind.CLUSTER_CHANGED.name, ""),
    ]
    life.side.stop("job-0", 0, 0)
    assert not life.side.launch("job-4", 1, spec(1.0), Placement.on("n/0"), 0).existing
