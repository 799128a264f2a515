"""Two jobs on a GPU of one simulated cluster: as the batched kernel and the oracle have them, equal floats."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from adlro.errors import Conflict, InvalidInput
from adlro.hardware.shared_speeds import KEPT_SHARES, TURN_SHARE, kept_shares
from adlro.placement import SHARED, GpuShare, Placement
from adlro.records.cluster import Cluster, Gpu, Node
from adlro.records.events import EventKind
from adlro.records.jobs import JobSpec, JobType, Preemptible, SimulatedWork
from adlro.sim import simulator as simulators
from adlro.sim.batch import BatchOutcome, BatchSimulator, GpuChange
from adlro.sim.durations import PlannedRun
from adlro.sim.simulator import ClusterSimulator
from adlro.state.job_arrays import pack_jobs
from adlro.state.observation import HOLD
from adlro.workload.job_lists import WorkloadJob, draw_jobs
from adlro.workload.pairs import pair_table
from adlro.workload.scenario import load_scenario
from tests.oracle.acts import anything
from tests.oracle.cluster import Oracle
from tests.oracle.instances import draw_instance
from tests.unit.sim.against_oracle import MODELS
from tests.unit.sim.test_simulator import kinds
from tests.unit.sim.test_stops import HOW, replayed
from tests.volume import cases

LM, LARGE = "LM (batch size 20)", "ResNet-18 (batch size 256)"
MODELS_OF_CLUSTER = ("v100_sxm2", "v100_sxm2", "radeon_vii")
CARDS = tuple(Gpu(f"n/{number}", model, 16_000) for number, model in enumerate(MODELS_OF_CLUSTER))
CLUSTER = Cluster("c", (Node("n", 16, 65_536, CARDS),))
SPEC = JobSpec(
    "j", "ada", JobType.SIMULATION, application=LM, memory_mib=1, simulated_work=SimulatedWork(10.0),
    shareable=True,
)  # fmt: skip


def half(gpu_id: str = "n/0") -> Placement:
    return Placement((GpuShare(gpu_id, SHARED),))


def own(work_s: float, **changes) -> JobSpec:
    """A shareable job of an application that nothing is known of."""
    work = SimulatedWork(work_s)
    return replace(SPEC, application="mine", simulated_work=work, **changes)


# ---- by hand


def test_alone_a_job_with_a_part_of_a_gpu_runs_at_full_speed():
    ends = []
    for where in (half(), Placement.on("n/0")):
        simulator = ClusterSimulator(CLUSTER, start_cost_s=0.5)
        simulator.launch("a", 1, SPEC, where)
        ends.append(simulator.next_event_time())
    assert ends[0] == ends[1] == 10.5


def test_two_jobs_keep_their_measured_shares_and_the_second_goes_on_alone():
    simulator = ClusterSimulator(CLUSTER)
    kept, other_kept = KEPT_SHARES["v100", LM, LARGE]
    simulator.launch("a", 1, SPEC, half())
    simulator.advance_to(2.0)
    simulator.launch("b", 1, replace(SPEC, application=LARGE, simulated_work=SimulatedWork(1.0)), half())
    assert simulator.take_moved() == ["a"]
    state = simulator.gpus["n/0"]
    assert (state.running, state.mate) == (simulator.running_job("a"), simulator.running_job("b"))
    assert [(each.job_id, str(each.placement)) for each in simulator.running] == [
        ("a", "0.5 of n/0"),
        ("b", "0.5 of n/0"),
    ]
    b_ends_s = 2.0 + 1.0 / other_kept
    assert simulator.next_event_time() == b_ends_s
    assert kinds(simulator.advance_to(b_ends_s)) == [("FINISHED", "b")]
    assert simulator.take_moved() == ["a"]
    assert simulator.next_event_time() == pytest.approx(b_ends_s + 8.0 - kept / other_kept)
    assert simulator.gpus["n/0"].mate is None


def test_those_of_whom_nothing_is_known_take_turns():
    for gpu_id, specs in (
        ("n/0", (own(2.0), own(2.0))),
        ("n/0", (own(2.0), SPEC)),
        ("n/2", (SPEC, SPEC)),  # a model without figures
    ):
        simulator = ClusterSimulator(CLUSTER)
        for name, spec in zip("ab", specs, strict=True):
            simulator.launch(name, 1, spec, half(gpu_id))
        assert [simulator.state_of(each).kept for each in "ab"] == [TURN_SHARE] * 2
        assert TURN_SHARE == 0.5


def test_those_that_could_not_run_together_are_refused():
    applications = sorted({name for _, name, _ in KEPT_SHARES})
    one, other = next((a, b) for a in applications for b in applications if kept_shares("v100", a, b) is None)
    simulator = ClusterSimulator(CLUSTER)
    simulator.launch("a", 1, replace(SPEC, application=one), half())
    before = simulator.state_of("a")
    with pytest.raises(Conflict) as refused:
        simulator.launch("b", 1, replace(SPEC, application=other), half())
    assert refused.value.reason == "CANNOT_SHARE"
    assert refused.value.message == (
        f"b can't run beside a on n/0: {other} could not run together with its application on a v100_sxm2"
    )
    assert one not in refused.value.message, "its user must not learn what others run"
    assert (simulator.state_of("a"), simulator.take_moved()) == (before, [])
    simulator.launch("c", 1, own(9.0, preemptible=Preemptible()), half())
    with pytest.raises(Conflict, match="b can't run beside a"):
        simulator.launch("b", 1, replace(SPEC, application=other), half(), stops=["c"])
    assert [run.job_id for run in simulator.running] == ["a", "c"]


@pytest.mark.parametrize(
    ("there", "asked", "where", "reason", "message"),
    [
        ((("a", SPEC, half()),), SPEC, Placement.on("n/0"), "GPU_BUSY",
         "GPU n/0 runs a; 0.5 of it is free, and new is to have all of it"),
        ((("a", SPEC, Placement.on("n/0")),), SPEC, half(), "GPU_BUSY", "GPU n/0 runs a"),
        ((("a", own(9), half()), ("b", own(9), half())), own(1), half(), "GPU_BUSY", "GPU n/0 runs a and b"),
        ((("a", own(9), half()), ("b", own(9), half())), own(1), Placement.on("n/0"), "GPU_BUSY",
         "GPU n/0 runs a and b"),
        ((("a", own(9, gpu_memory_mib=9000), half()),), own(1, gpu_memory_mib=7001), half(), "GPU_MEMORY_TOO_SMALL",
         "GPU n/0 has 7000 MiB left beside a, new needs 7001 MiB"),
        ((("a", own(9, cpu_cores=9), half()),), own(1, cpu_cores=8), half(), "NODE_CORES_EXHAUSTED",
         "node n has 7 of 16 CPU cores free, new needs 8"),
        ((("a", own(9, memory_mib=65_536), half()),), own(1), half(), "NODE_MEMORY_EXHAUSTED",
         "node n has 0 of 65536 MiB free, new needs 1 MiB"),
    ],
)  # fmt: skip
def test_what_does_not_fit_beside_another_is_refused_with_who_is_there(there, asked, where, reason, message):
    simulator = ClusterSimulator(CLUSTER)
    for job_id, spec, placement in there:
        simulator.launch(job_id, 1, spec, placement)
    with pytest.raises(Conflict) as refused:
        simulator.launch("new", 1, asked, where)
    assert (refused.value.reason, refused.value.message) == (reason, message)
    assert len(simulator.running) == len(there)


@pytest.mark.parametrize(
    ("asked", "where", "message"),
    [
        (replace(SPEC, shareable=False), half(),
         "placement: new needs whole GPUs, since it is not shareable, and has parts: 0.5 of n/0"),
        (replace(SPEC, gpu_count=2), Placement((GpuShare("n/0", 0.5), GpuShare("n/1"))),
         "placement: new needs whole GPUs, since only a job of one GPU may share it, and has parts: 0.5 of n/0, n/1"),
        (SPEC, Placement((GpuShare("n/0", 0.25),)),
         "placement: a shareable job has 0.5 of a GPU, or all of it, and new has 0.25 of n/0"),
    ],
)  # fmt: skip
def test_parts_that_no_job_can_have_are_refused(asked, where, message):
    with pytest.raises(InvalidInput) as refused:
        ClusterSimulator(CLUSTER).launch("new", 1, asked, where)
    assert (refused.value.violations[0].field, refused.value.message) == ("placement", message)


def test_each_of_two_has_its_own_time_limit():
    simulator = ClusterSimulator(CLUSTER)
    simulator.launch("a", 1, own(10.0, time_limit_s=9.0), half())
    simulator.advance_to(4.0)
    simulator.launch("b", 1, own(10.0, time_limit_s=3.0), half())
    (event,) = simulator.advance_to(7.0)
    assert (event.job_id, event.kind, event.message) == ("b", EventKind.FAILED, "time limit of 3 s reached")
    (event,) = simulator.advance_to(9.0)  # without b it would have needed until 10
    assert (event.job_id, event.kind, event.message) == ("a", EventKind.FAILED, "time limit of 9 s reached")
    assert simulator.next_event_time() is None


def test_two_that_end_at_one_instant_do_so_in_the_order_of_their_launches():
    simulator = ClusterSimulator(CLUSTER)
    simulator.launch("b", 1, own(2.0), half())
    simulator.launch("a", 1, own(2.0), half())
    assert kinds(simulator.advance_to(4.0)) == [("FINISHED", "b"), ("FINISHED", "a")]
    simulator.launch("b", 2, own(2.0), half())
    simulator.advance_to(5.0)
    simulator.launch("a", 2, own(9.0, time_limit_s=2.0), half())
    simulator.launch("c", 1, own(2.0), half("n/1"))
    assert kinds(simulator.advance_to(7.0)) == [("FINISHED", "b"), ("FAILED", "a"), ("FINISHED", "c")]


def test_a_lost_gpu_loses_both():
    simulator = ClusterSimulator(CLUSTER)
    for name in "ab":
        simulator.launch(name, 1, own(2.0), half())
    simulator.advance_to(1.0)
    assert kinds(simulator.lose_gpu("n/0")) == [("GPU_LOST", "n/0"), ("LOST", "a"), ("LOST", "b")]
    assert (simulator.running, simulator.take_moved()) == ((), [])
    simulator.restore_gpu("n/0")
    simulator.launch("c", 1, replace(SPEC, cpu_cores=16, memory_mib=65_536), half())


@pytest.mark.parametrize("goes", "ab")
def test_either_may_be_stopped_and_the_other_runs_on_alone(goes):
    stays = "ab".replace(goes, "")
    simulator = ClusterSimulator(CLUSTER)
    for name in "ab":
        simulator.launch(name, 1, own(10.0, preemptible=Preemptible()), half())
    simulator.advance_to(4.0)
    assert simulator.preempt(goes).remaining_ratio == 0.8
    assert simulator.next_event_time() == 12.0
    assert [run.job_id for run in simulator.running] == [stays]
    simulator.launch(goes, 2, own(10.0, preemptible=Preemptible()), half(), share=0.8, resumes=True)
    simulator.advance_to(5.0)
    event = simulator.stop(stays)
    assert event is not None
    assert (event.kind, event.job_id) == (EventKind.STOPPED, stays)
    assert simulator.next_event_time() == 12.5


def test_a_job_of_the_whole_gpu_stops_both_or_is_refused():
    simulator = ClusterSimulator(CLUSTER)
    stoppable = own(10.0, preemptible=Preemptible(), cpu_cores=8, gpu_memory_mib=8000)
    for name in "ba":
        simulator.launch(name, 1, stoppable, half())
    simulator.advance_to(4.0)
    big = replace(SPEC, shareable=False, cpu_cores=16, gpu_memory_mib=16_000)
    with pytest.raises(Conflict, match=r"GPU n/0 runs a; 0\.5 of it is free"):
        simulator.launch("big", 1, big, Placement.on("n/0"), stops=["b"])
    with pytest.raises(Conflict, match="GPU n/0 has 8000 MiB left beside a"):
        simulator.launch("big", 1, replace(big, shareable=True), half(), stops=["b"])
    events = simulator.launch("big", 1, big, Placement.on("n/0"), stops=["a", "b"])
    assert kinds(events) == [("PREEMPTED", "b"), ("PREEMPTED", "a"), ("STARTED", "big")]
    assert [event.remaining_ratio for event in events] == [0.8, 0.8, None]
    with pytest.raises(Conflict, match="GPU n/0 runs big"):
        simulator.launch("b", 2, stoppable, half())


def test_one_of_two_is_stopped_for_a_third():
    simulator = ClusterSimulator(CLUSTER)
    for name in "ab":
        simulator.launch(name, 1, own(10.0, preemptible=Preemptible()), half())
    simulator.advance_to(4.0)
    assert kinds(simulator.launch("c", 1, own(4.0), half(), stops=["a"])) == [("PREEMPTED", "a"), ("STARTED", "c")]
    assert [simulator.state_of(each).kept for each in "bc"] == [0.5, 0.5]
    assert kinds(simulator.advance_to(12.0)) == [("FINISHED", "c")]
    assert simulator.next_event_time() == 16.0


def test_a_gpu_s_speed_moves_both_ends():
    simulator = ClusterSimulator(CLUSTER)
    for name, work_s in (("a", 3.0), ("b", 4.0)):
        simulator.launch(name, 1, own(work_s), half())
    simulator.advance_to(2.0)
    simulator.set_gpu_speed("n/0", 0.5)
    assert kinds(simulator.advance_to(10.0)) == [("FINISHED", "a")]
    assert simulator.next_event_time() == 12.0


def test_metrics_are_those_of_both():
    simulator = ClusterSimulator(CLUSTER)
    simulator.launch("a", 1, own(10.0, gpu_memory_mib=3000), half())
    alone = simulator.sample(0.0)
    simulator.launch("b", 1, own(10.0, gpu_memory_mib=2000), half())
    both = simulator.sample(0.0)
    assert both.memory_used_mib[0] == alone.memory_used_mib[0] + 2000
    assert 0.0 < both.utilization_ratio[0] <= 1.0
    simulator.stop("b")
    after = simulator.sample(0.0)
    assert (after.utilization_ratio[0], after.power_w[0]) == (alone.utilization_ratio[0], alone.power_w[0])


# ---- against the oracle


@pytest.mark.parametrize("stops", [False, True])
@pytest.mark.parametrize("part", range(4))
def test_shares_stops_moves_and_losses_are_the_oracles_equal_floats(part, stops, monkeypatch):
    shared = 0
    for seed in range(part * 60, part * 60 + 60):
        instance = draw_instance(seed, stops=stops, shares=True, gangs=seed % 2 == 0, max_jobs=20)
        oracle = Oracle(instance, asks_always=stops, asks_shares=True)
        oracle.run(anything(seed, stop_share=0.3 if stops else 0.0, moves=stops))

        def plan(job_id: str, spec: JobSpec, model: str, *_: object, oracle: Oracle = oracle) -> PlannedRun:
            duration_s = oracle.jobs[int(job_id)].duration_s[MODELS.index(model)]
            return PlannedRun(duration_s, EventKind.FINISHED, "")

        monkeypatch.setattr(simulators, "plan_run", plan)
        wanted = [(run.job, run.gpus, run.start_s, run.end_s, run.end) for run in oracle.outcome.runs]
        assert sorted(replayed(oracle)) == sorted(wanted), seed
        shared += sum(any(mate >= 0 for mate in decision.mates) for decision in oracle.outcome.decisions)
    assert shared > 150


# ---- against the batched kernel, with the shipped figures


SCENARIO = load_scenario("shared")
MODEL_NAMES = SCENARIO.cluster.gpu_models
GPU_IDS = [gpu.gpu_id for _, gpu in SCENARIO.cluster.gpus()]
PAIRS = pair_table(MODEL_NAMES)

Start = tuple[float, int, int, bool]
"""(time in s, job, GPU, whether whatever runs there is stopped)."""


def drawn_jobs(rng: np.random.Generator, count: int) -> list[WorkloadJob]:
    jobs = draw_jobs(SCENARIO, load=2.0, rng=rng, count=count)
    costs = rng.uniform(0.0, 2.0, (count, 2))
    return [
        replace(
            job,
            submit_s=job.submit_s + number / 1024,  # no two at one instant: they are told apart by it
            preemptible=Preemptible(*map(float, costs[number])) if rng.random() < 0.6 else None,
        )
        for number, job in enumerate(jobs)
    ]


def in_batch(
    jobs: list[WorkloadJob], changes: list[GpuChange], start_cost_s: float, rng: np.random.Generator
) -> tuple[BatchOutcome, list[Start]]:
    """Runs a list under random starts, shares and stops in the kernel; what came of it, and its starts in order."""
    packed = pack_jobs([jobs], SCENARIO.cluster)
    packed.family[0] = PAIRS.families([job.application for job in jobs])
    numbers = {job.submit_s: number for number, job in enumerate(jobs)}
    simulator = BatchSimulator(
        SCENARIO.cluster, packed, gpu_changes=[changes], start_cost_s=start_cost_s, preempts=True, shares=True,
        kept=PAIRS.kept,
    )  # fmt: skip
    starts: list[Start] = []
    while len(simulator.active):
        seen = simulator.observe()
        waiting = np.flatnonzero(seen.job_waiting[0])
        for _ in range(12):
            row, gpu, stops = int(rng.choice(waiting)), int(rng.integers(len(GPU_IDS))), bool(rng.random() < 0.1)
            try:
                simulator.act(np.array([[row, gpu]]), stops=np.array([stops]))
            except ValueError:
                continue
            starts.append((float(seen.time_s[0]), numbers[float(seen.job_submit_s[0, row])], gpu, stops))
            break
        else:
            simulator.act(np.array([[HOLD, HOLD]]))
    return simulator.outcome(), starts


Ended = tuple[int, int, float, float, str]


def in_service(
    jobs: list[WorkloadJob], changes: list[GpuChange], start_cost_s: float, starts: list[Start]
) -> set[Ended]:
    """The same in simcluster's simulator: (job, GPU, start, end, how) of each attempt."""
    simulator = ClusterSimulator(SCENARIO.cluster, start_cost_s=start_cost_s)
    began: dict[str, tuple[int, float]] = {}
    share, attempts = dict.fromkeys(range(len(jobs)), 1.0), [0] * len(jobs)
    stopped: set[int] = set()
    runs: set[Ended] = set()

    def take(events):
        for event in events:
            if event.job_id and event.kind is not EventKind.STARTED:
                runs.add((int(event.job_id), *began.pop(event.job_id), event.time_s, HOW[event.kind]))
            if event.kind is EventKind.PREEMPTED:
                share[int(event.job_id)] = event.remaining_ratio
                stopped.add(int(event.job_id))

    def go_to(time_s: float) -> None:
        while (next_s := simulator.next_event_time()) is not None and next_s <= time_s:
            take(simulator.advance_to(next_s))
        simulator.advance_to(time_s)

    left = list(changes)
    for time_s, job, gpu, stops in [*starts, (np.inf, -1, -1, False)]:
        while left and left[0][0] <= time_s:
            at_s, changed, speed = left.pop(0)
            go_to(at_s)
            if speed == 0.0:
                take(simulator.lose_gpu(GPU_IDS[changed]))
            else:
                take(simulator.restore_gpu(GPU_IDS[changed]))
                simulator.set_gpu_speed(GPU_IDS[changed], speed)
        if job < 0:
            break
        go_to(time_s)
        attempts[job] += 1
        there = [run.job_id for run in simulator.running if run.placement.gpu_id == GPU_IDS[gpu]]
        events = simulator.launch(
            str(job), attempts[job], jobs[job].spec(f"job {job}"), half(GPU_IDS[gpu]), share=share[job],
            resumes=job in stopped, stops=there if stops else (),
        )  # fmt: skip
        take(events)
        began[str(job)] = gpu, time_s
    while (next_s := simulator.next_event_time()) is not None:
        take(simulator.advance_to(next_s))
    return runs


def compare_with_the_batch(seed: int, count: int) -> tuple[int, int]:
    """Returns the starts beside another job, and the stops."""
    rng = np.random.default_rng([seed, 21])
    jobs = drawn_jobs(rng, count)
    changes: list[GpuChange] = []
    if seed % 2:
        times = np.sort(np.round(rng.uniform(0.0, jobs[-1].submit_s, 20), 1))
        changes = [
            (float(at_s), int(rng.integers(len(GPU_IDS))), float(rng.choice([0.0, 0.5, 1.0, 1.1]))) for at_s in times
        ]
        changes += [(float(times[-1]), gpu, 1.0) for gpu in range(len(GPU_IDS))]
    start_cost_s = float(rng.choice([0.0, 0.7]))
    outcome, starts = in_batch(jobs, changes, start_cost_s, rng)
    assert not outcome.stuck.any()
    expected = {
        (run.job, run.gpus[0], run.start_s, run.end_s,
         "stopped" if run.stopped else "completed" if run.completed else "lost")
        for run in outcome.runs(0)
    }  # fmt: skip
    assert len(starts) == len(expected)
    assert in_service(jobs, changes, start_cost_s, starts) == expected, seed
    runs = list(outcome.runs(0))
    beside = sum(
        any(
            one is not other and one.gpus == other.gpus and other.start_s <= one.start_s < other.end_s for other in runs
        )
        for one in runs
    )
    return beside, int(outcome.stops[0])


@pytest.mark.parametrize("part", range(4))
def test_the_same_starts_give_the_same_ends_on_one_cluster_and_in_the_batch(part):
    found = [compare_with_the_batch(seed, 24) for seed in range(part * 25, part * 25 + 25)]
    assert sum(beside for beside, _ in found) > 100
    assert sum(stops for _, stops in found) > 10


@pytest.mark.slow
def test_many_lists_give_the_same_ends_on_one_cluster_and_in_the_batch():
    for seed in range(1000, 1000 + cases(100)):
        compare_with_the_batch(seed, 40)
