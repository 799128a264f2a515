"""One cluster's course: order, durations, refusals, lost GPUs."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import Any

import pytest

from adlro.errors import Conflict, InvalidInput, NotFound
from adlro.placement import Placement
from adlro.records.cluster import Cluster, Gpu, Node
from adlro.records.events import EventKind
from adlro.records.jobs import ExpectedRuntime, JobSpec, JobType, SimulatedWork
from adlro.sim.durations import stable_normal, work_s
from adlro.sim.simulator import ClusterSimulator
from adlro.sim.warming import warm
from adlro.state import gangs, machines
from adlro.workload.scenario import load_scenario

CLUSTER = Cluster(
    "small",
    (
        Node("volta", 8, 65536, (Gpu("volta/0", "v100_sxm2", 16160), Gpu("volta/1", "v100_sxm2", 16160))),
        Node("turing", 4, 32768, (Gpu("turing/0", "rtx_2080_ti", 11264),)),
    ),
)


def spec(work: float | None = 10.0, **changes) -> JobSpec:
    simulated = None if work is None else SimulatedWork(work)
    base = JobSpec("j", "ada", JobType.SIMULATION, application="cloverleaf_fp64", simulated_work=simulated)
    return dataclasses.replace(base, **changes)


def kinds(events):
    return [(event.kind.name, event.job_id or event.gpu_id) for event in events]


def next_event(simulator: ClusterSimulator) -> float:
    time_s = simulator.next_event_time()
    assert time_s is not None
    return time_s


def test_duration_is_work_by_speed():
    simulator = ClusterSimulator(CLUSTER)
    simulator.launch("a", 1, spec(10.0), Placement.on("turing/0"))
    assert simulator.next_event_time() == pytest.approx(10.0 / 0.46)


def test_ends_at_one_instant_come_in_the_order_of_the_launches():
    simulator = ClusterSimulator(CLUSTER)
    simulator.launch("b", 1, spec(10.0), Placement.on("volta/1"))
    simulator.launch("a", 1, spec(99.0, time_limit_s=10.0), Placement.on("turing/0"))
    simulator.launch("c", 1, spec(10.0), Placement.on("volta/0"))
    events = simulator.advance_to(10.0)
    assert kinds(events) == [("FINISHED", "b"), ("FAILED", "a"), ("FINISHED", "c")]
    assert simulator.next_event_time() is None


def ends_apart(simulator: ClusterSimulator, begin_s: float) -> list[tuple[int, int]]:
    """Two jobs at a time that end 90.664 s after `begin_s`: (start of the second in ms, instants) where not at one."""
    found = []
    for first_ms in range(1, 200):
        simulator.set_origin()
        simulator.launch("a", 1, spec(90.664), Placement.on("volta/0"))
        simulator.advance_to(round(begin_s + first_ms / 1000, 6))
        simulator.launch("b", 1, spec((90_664 - first_ms) / 1000), Placement.on("volta/1"))
        instants = 0
        while (end_s := simulator.next_event_time()) is not None:
            instants += len(simulator.advance_to(end_s)) > 0
        if instants > 1:
            found.append((first_ms, instants))
        begin_s += 100.0
        simulator.advance_to(begin_s)
    return found


@pytest.mark.parametrize("begin_s", [6618.0, 1_802_402.0])
def test_what_falls_on_one_instant_does_not_depend_on_how_late_it_is(begin_s):
    from_zero = []
    for first_ms in range(1, 200):
        # Plain sums from time 0.
        second = first_ms / 1000 + (90_664 - first_ms) / 1000
        if second != 90.664:
            from_zero.append((first_ms, 2))
    assert ends_apart(ClusterSimulator(CLUSTER, time_s=begin_s), begin_s) == from_zero
    assert 0 < len(from_zero) < 199


def test_the_origin_stays_while_something_runs():
    simulator = ClusterSimulator(CLUSTER, time_s=0.25)
    simulator.launch("a", 1, spec(10.0), Placement.on("volta/0"))
    simulator.set_origin()
    assert simulator.next_event_time() == 10.25
    assert kinds(simulator.advance_to(10.25)) == [("FINISHED", "a")]
    simulator.set_origin()
    simulator.launch("b", 1, spec(10.0), Placement.on("volta/0"))
    assert simulator.next_event_time() == 20.25


def test_events_cannot_be_passed_over_and_time_does_not_go_back():
    simulator = ClusterSimulator(CLUSTER)
    simulator.launch("a", 1, spec(10.0), Placement.on("volta/0"))
    with pytest.raises(ValueError, match="comes before"):
        simulator.advance_to(11.0)
    assert simulator.advance_to(9.0) == []
    with pytest.raises(ValueError, match="go back"):
        simulator.advance_to(8.0)


def test_a_job_started_later_ends_at_its_start_plus_its_duration():
    simulator = ClusterSimulator(CLUSTER)
    simulator.advance_to(100.0)
    (event,) = simulator.launch("a", 3, spec(10.0), Placement.on("volta/0"))
    assert (event.kind, event.time_s, event.attempt) == (EventKind.STARTED, 100.0, 3)
    assert simulator.advance_to(110.0)[0].kind is EventKind.FINISHED


@pytest.mark.parametrize(
    ("changes", "end_s", "kind", "message"),
    [
        ({"time_limit_s": 4.0}, 4.0, EventKind.FAILED, "time limit of 4 s reached"),
        ({"time_limit_s": 10.0}, 10.0, EventKind.FINISHED, ""),
        ({"simulated_work": SimulatedWork(10.0, 0.5)}, 5.0, EventKind.FAILED, "failed after 50% of its work"),
        ({"simulated_work": SimulatedWork(10.0, 0.5), "time_limit_s": 4.5}, 4.5, EventKind.FAILED, "time limit"),
    ],
)
def test_how_a_run_ends(changes, end_s, kind, message):
    simulator = ClusterSimulator(CLUSTER)
    simulator.launch("a", 1, spec(10.0, **changes), Placement.on("volta/0"))
    assert simulator.next_event_time() == end_s
    (event,) = simulator.advance_to(end_s)
    assert event.kind is kind
    assert message in event.message


@pytest.mark.parametrize(
    ("asked", "gpu_id", "reason"),
    [
        (spec(), "volta/0", "GPU_BUSY"),
        (spec(gpu_memory_mib=12000), "turing/0", "GPU_MEMORY_TOO_SMALL"),
        (spec(cpu_cores=5), "volta/1", "NODE_CORES_EXHAUSTED"),
        (spec(memory_mib=65536), "volta/1", "NODE_MEMORY_EXHAUSTED"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason_and_nothing_changes(asked, gpu_id, reason):
    simulator = ClusterSimulator(CLUSTER)
    simulator.launch("first", 1, spec(cpu_cores=4), Placement.on("volta/0"))
    with pytest.raises(Conflict) as refused:
        simulator.launch("second", 1, asked, Placement.on(gpu_id))
    assert refused.value.reason == reason
    assert [job.job_id for job in simulator.running] == ["first"]
    simulator.launch("third", 1, spec(cpu_cores=4), Placement.on("volta/1"))


def test_an_unknown_gpu_is_named_and_the_way_to_see_them_told():
    with pytest.raises(NotFound, match=r"no GPU 'volta/7'; DescribeCluster .*'volta/0'"):
        ClusterSimulator(CLUSTER).launch("a", 1, spec(), Placement.on("volta/7"))


def test_a_job_has_one_running_attempt():
    simulator = ClusterSimulator(CLUSTER)
    simulator.launch("a", 1, spec(), Placement.on("volta/0"))
    with pytest.raises(Conflict) as refused:
        simulator.launch("a", 2, spec(), Placement.on("volta/1"))
    assert refused.value.reason == "JOB_RUNNING"


def test_a_stopped_job_frees_what_it_held_and_does_not_end_again():
    simulator = ClusterSimulator(CLUSTER)
    simulator.launch("a", 1, spec(10.0, cpu_cores=8), Placement.on("volta/0"))
    simulator.advance_to(3.0)
    stopped = simulator.stop("a")
    assert stopped is not None
    assert (stopped.kind, stopped.time_s) == (EventKind.STOPPED, 3.0)
    assert simulator.stop("a") is None
    simulator.launch("a", 2, spec(10.0, cpu_cores=8), Placement.on("volta/0"))
    assert simulator.next_event_time() == 13.0
    assert kinds(simulator.advance_to(13.0)) == [("FINISHED", "a")]


def test_a_lost_gpu_ends_its_job_takes_none_and_comes_back():
    simulator = ClusterSimulator(CLUSTER)
    simulator.launch("a", 1, spec(), Placement.on("volta/0"))
    assert kinds(simulator.lose_gpu("volta/0")) == [("GPU_LOST", "volta/0"), ("LOST", "a")]
    assert simulator.lose_gpu("volta/0") == []
    assert simulator.lost_gpu_ids == ("volta/0",)
    with pytest.raises(Conflict) as refused:
        simulator.launch("b", 1, spec(), Placement.on("volta/0"))
    assert refused.value.reason == "GPU_LOST"
    assert kinds(simulator.restore_gpu("volta/0")) == [("GPU_BACK", "volta/0")]
    assert simulator.restore_gpu("volta/0") == []
    simulator.launch("b", 1, spec(), Placement.on("volta/0"))


def test_a_lost_gpu_comes_back_at_its_own_speed():
    simulator = ClusterSimulator(CLUSTER)
    simulator.set_gpu_speed("volta/0", 0.25)
    simulator.lose_gpu("volta/0")
    simulator.restore_gpu("volta/0")
    simulator.launch("a", 1, spec(10.0), Placement.on("volta/0"))
    assert simulator.next_event_time() == 10.0


def test_what_is_left_of_a_run_takes_longer_on_a_gpu_that_has_become_slower():
    simulator = ClusterSimulator(CLUSTER)
    simulator.launch("a", 1, spec(10.0), Placement.on("volta/0"))
    simulator.launch("b", 1, spec(10.0), Placement.on("volta/1"))
    simulator.advance_to(4.0)
    simulator.set_gpu_speed("volta/0", 0.5)
    assert kinds(simulator.advance_to(10.0)) == [("FINISHED", "b")]
    assert simulator.next_event_time() == 16.0  # 6 s of work at half the speed
    simulator.set_gpu_speed("volta/0", 1.5)
    assert simulator.next_event_time() == pytest.approx(12.0)  # 3 s of work at 1.5
    assert kinds(simulator.advance_to(next_event(simulator))) == [("FINISHED", "a")]
    simulator.launch("c", 1, spec(9.0), Placement.on("volta/0"))
    assert simulator.next_event_time() == pytest.approx(18.0)


def test_a_time_limit_is_cluster_time_whatever_the_speed():
    simulator = ClusterSimulator(CLUSTER, start_cost_s=1.0)
    simulator.launch("a", 1, spec(10.0, time_limit_s=12.0), Placement.on("volta/0"))
    assert simulator.next_event_time() == 11.0
    simulator.advance_to(5.0)
    simulator.set_gpu_speed("volta/0", 0.5)
    assert simulator.next_event_time() == 12.0
    simulator.set_gpu_speed("volta/0", 1.0)
    assert simulator.next_event_time() == 11.0
    simulator.set_gpu_speed("volta/0", 0.5)
    (event,) = simulator.advance_to(12.0)
    assert (event.kind, event.message) == (EventKind.FAILED, "time limit of 12 s reached")
    simulator.launch("b", 1, spec(10.0), Placement.on("volta/0"))
    assert simulator.next_event_time() == 33.0  # no limit of its own: 1 s, then 20 s of work at half the speed


@pytest.mark.parametrize("speed", [0.0, -1.0, float("nan"), float("inf")])
def test_a_speed_is_a_number_above_0(speed):
    with pytest.raises(InvalidInput, match="must be a number above 0"):
        ClusterSimulator(CLUSTER).set_gpu_speed("volta/0", speed)


def test_a_lost_gpu_has_no_speed_to_change():
    simulator = ClusterSimulator(CLUSTER)
    simulator.lose_gpu("volta/0")
    with pytest.raises(Conflict) as refused:
        simulator.set_gpu_speed("volta/0", 0.5)
    assert refused.value.reason == "GPU_LOST"
    with pytest.raises(NotFound, match="volta/7"):
        simulator.set_gpu_speed("volta/7", 0.5)


def test_each_start_takes_the_start_cost_before_the_work():
    simulator = ClusterSimulator(CLUSTER, start_cost_s=2.5)
    simulator.launch("a", 1, spec(10.0), Placement.on("turing/0"))
    assert simulator.next_event_time() == pytest.approx(2.5 + 10.0 / 0.46)
    with pytest.raises(InvalidInput, match="start_cost_s"):
        ClusterSimulator(CLUSTER, start_cost_s=-1.0)


def test_nothing_is_compiled_at_a_launch_once_the_simulator_is_warm():
    warm()
    physics: tuple[Any, ...] = (
        machines.occupy_gang,
        machines.vacate,
        machines.set_speed,
        machines.next_end_s,
        gangs.fill_packed_nodes,
    )
    compiled = [len(function.signatures) for function in physics]
    simulator = ClusterSimulator(CLUSTER, start_cost_s=1)
    simulator.launch("a", 1, spec(10, cpu_cores=2, time_limit_s=20), Placement.on("volta/0"))
    simulator.launch("b", 2, spec(None), Placement.on("volta/1"))
    simulator.stop("b")
    simulator.set_gpu_speed("volta/0", 2)
    simulator.lose_gpu("volta/1")
    simulator.restore_gpu("volta/1")
    simulator.advance_to(next_event(simulator))
    gpus = [Gpu(f"{node}/0", "v100_sxm2", 16160) for node in range(2)]
    nodes = tuple(Node(str(node), 8, 65536, (gpu,)) for node, gpu in enumerate(gpus))
    ClusterSimulator(Cluster("two", nodes)).launch("c", 1, spec(gpu_count=2), Placement.on("0/0", "1/0"))
    assert [len(function.signatures) for function in physics] == compiled
    assert min(compiled) > 0


def test_a_model_without_speeds_is_refused_at_once():
    cluster = Cluster("x", (Node("n", 8, 65536, (Gpu("n/0", "t4", 15109),)),))
    with pytest.raises(InvalidInput, match=r"'t4'; the simulator knows v100_sxm2, "):
        ClusterSimulator(cluster)


def test_work_that_is_not_stated_is_the_same_in_every_process():
    code = "from adlro.sim.durations import stable_normal; print(stable_normal('work', 'job-17'))"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert float(other.stdout) == stable_normal("work", "job-17")


def test_work_scatters_around_the_estimate_brought_to_the_reference_gpu():
    scenario = load_scenario("paper")
    asked = spec(None, expected_runtime=ExpectedRuntime("rtx_2080_ti", 100.0))
    drawn = sorted(work_s(f"job-{i}", asked, scenario) for i in range(2000))
    assert drawn[1000] == pytest.approx(46.0, rel=0.03)  # 100 s at a speed of 0.46
    assert drawn[1683] / drawn[1000] == pytest.approx(1.35, rel=0.05)  # exp(0.3) at one standard deviation


def test_an_estimate_on_a_model_without_speeds_counts_as_on_the_reference_gpu():
    scenario = load_scenario("paper")
    on_known = work_s("job-1", spec(None, expected_runtime=ExpectedRuntime("v100_sxm2", 100.0)), scenario)
    assert work_s("job-1", spec(None, expected_runtime=ExpectedRuntime("mi50", 100.0)), scenario) == on_known


def test_work_without_estimate_is_alike_for_a_user_and_application():
    scenario = load_scenario("paper")

    def mean(user: str) -> float:
        asked = spec(None, user=user)
        return sum(work_s(f"job-{i}", asked, scenario) for i in range(500)) / 500

    means = [mean(f"user-{i}") for i in range(40)]
    assert 1.5 < max(means) / sorted(means)[20] < 20
    # The median over groups is the scenario's, times the mean of exp(0.4 N).
    assert sorted(means)[20] == pytest.approx(18.0 * 1.083, rel=0.5)
    assert scenario.min_work_s <= min(means) <= max(means) <= scenario.max_work_s
