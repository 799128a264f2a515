"""The runtime: what a virtual clock waits for, order at one instant, idempotency, fencing, lost GPUs, wake-ups."""

from __future__ import annotations

import pytest

from adlro.clusterside.cluster_side import ClusterSide
from adlro.errors import Conflict, InvalidInput, NotFound, OutOfRange, Stale
from adlro.placement import Placement
from adlro.records.cluster import Cluster, Gpu, Node
from adlro.records.events import Clock, ClockMode, EventKind
from adlro.records.jobs import JobSpec, JobType, SimulatedWork
from adlro.services.simcluster.driver import SimulatedCluster
from adlro.sim.simulator import ClusterSimulator
from tests.unit.simcluster.walltime import HandTimers

CLUSTER = Cluster(
    "small",
    (Node("n", 8, 65536, (Gpu("n/0", "v100_sxm2", 16160), Gpu("n/1", "v100_sxm2", 16160))),),
)


def spec(work_s: float = 10.0, cores: int = 1) -> JobSpec:
    return JobSpec("j", "ada", JobType.SIMULATION, cpu_cores=cores, simulated_work=SimulatedWork(work_s))


class Bench:
    """A runtime with hand-moved wall time, and the messages of its log."""

    def __init__(self, mode=ClockMode.VIRTUAL, scale=0.0, paused=False, late_s=0.0, **options) -> None:
        self.timers = HandTimers(late_s)
        clock = Clock(mode, 1.0 if mode is ClockMode.REAL else scale, paused, 0.0)
        self.driver = SimulatedCluster(ClusterSimulator(CLUSTER), clock)
        self.runtime = ClusterSide(self.driver, self.timers, **options)
        self.seen = 0

    def messages(self):
        """What a follower gets since the last call: a list of (kind, subject, time) a message."""
        messages = []
        while (batch := self.runtime.log.next_after(self.seen)) is not None:
            messages.append([(each.kind.name, each.job_id or each.gpu_id, each.time_s) for each in batch.events])
            self.seen = batch.events[-1].revision
        return messages

    def launch(self, job_id, gpu_id, work_s=10.0, attempt=1, token=1):
        self.runtime.fence.note(token)
        return self.runtime.launch(job_id, attempt, spec(work_s), Placement.on(gpu_id), token)

    def acknowledge(self, token=1):
        self.runtime.fence.note(token)
        self.runtime.acknowledge(self.runtime.log.incarnation, self.runtime.log.revision, token)

    @property
    def now_s(self) -> float:
        return self.runtime.describe().clock.time_s


# ---- virtual time


def test_a_virtual_clock_waits_at_each_event_for_its_acknowledgement():
    bench = Bench(paused=True)
    bench.launch("a", "n/0", 10.0)
    bench.launch("b", "n/1", 20.0)
    bench.driver.set_clock_now(paused=False)
    assert [[each[0] for each in message] for message in bench.messages()] == [
        ["STARTED", "STARTED"],
        ["CLOCK_SET"],
        ["FINISHED"],
    ]
    bench.timers.move(1e6)
    assert bench.now_s == 10.0
    assert bench.messages() == []
    bench.acknowledge()
    assert bench.messages() == [[("FINISHED", "b", 20.0)]]


def test_an_older_acknowledgement_does_not_let_the_clock_go_on():
    bench = Bench(paused=True)
    bench.launch("a", "n/0", 10.0)
    bench.launch("b", "n/1", 20.0)
    bench.driver.set_clock_now(paused=False)
    finished = bench.runtime.log.revision
    bench.runtime.acknowledge(bench.runtime.log.incarnation, finished - 1, 1)
    assert bench.now_s == 10.0
    bench.runtime.acknowledge(bench.runtime.log.incarnation, finished, 1)
    assert bench.now_s == 20.0


def test_starts_and_clock_settings_need_no_acknowledgement():
    bench = Bench()
    bench.launch("a", "n/0", 10.0)
    assert bench.messages() == [[("STARTED", "a", 0.0)], [("FINISHED", "a", 10.0)]]


def test_launches_at_an_event_start_at_its_time():
    bench = Bench()
    bench.runtime.wake_at([5.0])
    assert bench.launch("a", "n/0").start_s == 5.0
    assert bench.launch("b", "n/1").start_s == 5.0
    bench.acknowledge()
    assert bench.messages() == [
        [("WAKE_UP", "", 5.0)],
        [("STARTED", "a", 5.0), ("STARTED", "b", 5.0)],
        [("FINISHED", "a", 15.0), ("FINISHED", "b", 15.0)],
    ]


def test_at_one_instant_ends_come_before_the_wake_up_in_one_message():
    bench = Bench(paused=True)
    bench.runtime.wake_at([10.0, 10.0])
    bench.runtime.wake_at([10.0])
    bench.launch("b", "n/1", 10.0)
    bench.launch("a", "n/0", 10.0)
    bench.messages()
    bench.driver.set_clock_now(paused=False)
    assert bench.messages()[1:] == [[("FINISHED", "b", 10.0), ("FINISHED", "a", 10.0), ("WAKE_UP", "", 10.0)]]
    bench.acknowledge()
    assert bench.messages() == []


def test_with_nothing_scheduled_a_virtual_clock_idles():
    bench = Bench()
    assert bench.timers.pending == []
    bench.timers.move(1e6)
    assert bench.now_s == 0.0


def test_a_virtual_clocks_scale_is_the_most_it_runs_at():
    bench = Bench(scale=100.0, paused=True)
    bench.launch("a", "n/0", 10.0)
    bench.launch("b", "n/1", 20.0)
    bench.driver.set_clock_now(paused=False)
    bench.messages()
    bench.timers.move(0.09)
    assert bench.messages() == []
    bench.timers.move(0.02)
    assert bench.messages() == [[("FINISHED", "a", 10.0)]]
    bench.timers.move(0.05)
    bench.acknowledge()
    assert bench.messages() == []
    bench.timers.move(0.06)
    assert bench.messages() == [[("FINISHED", "b", 20.0)]]


# ---- wake-ups and pauses


def test_passed_times_of_one_call_give_one_event_now_even_while_paused():
    bench = Bench(paused=True)
    bench.driver.set_clock_now(not_before_s=50.0)
    bench.messages()
    bench.runtime.wake_at([1.0, 2.0, 50.0, 60.0])
    assert bench.messages() == [[("WAKE_UP", "", 50.0)]]
    bench.acknowledge()
    assert bench.messages() == []
    bench.driver.set_clock_now(paused=False)
    assert bench.messages() == [[("CLOCK_SET", "", 50.0)], [("WAKE_UP", "", 60.0)]]


def test_a_paused_clock_lets_jobs_start_but_not_end():
    bench = Bench(mode=ClockMode.REAL, paused=True)
    assert bench.launch("a", "n/0", 10.0).start_s == 0.0
    bench.timers.move(100.0)
    assert bench.messages() == [[("STARTED", "a", 0.0)]]
    assert bench.now_s == 0.0
    bench.driver.set_clock_now(paused=False)
    bench.timers.move(9.9)
    assert bench.messages() == [[("CLOCK_SET", "", 0.0)]]
    bench.timers.move(0.2)
    assert bench.messages() == [[("FINISHED", "a", 10.0)]]


def test_a_pause_keeps_the_time_that_was_reached():
    bench = Bench(mode=ClockMode.REAL)
    bench.launch("a", "n/0", 10.0)
    bench.timers.move(4.0)
    assert bench.driver.set_clock_now(paused=True).time_s == 4.0
    bench.timers.move(100.0)
    bench.driver.set_clock_now(paused=False)
    bench.messages()
    bench.timers.move(5.9)
    assert bench.messages() == []
    bench.timers.move(0.2)
    assert bench.messages() == [[("FINISHED", "a", 10.0)]]


# ---- real and scaled time


def test_scaled_time_fires_at_the_right_wall_moment():
    bench = Bench(mode=ClockMode.SCALED, scale=20.0)
    bench.launch("a", "n/0", 10.0)
    assert bench.timers.pending == [pytest.approx(1000.5)]
    bench.timers.move(0.25)
    assert bench.now_s == pytest.approx(5.0)
    assert bench.launch("b", "n/1", 10.0).start_s == pytest.approx(5.0)
    bench.timers.move(0.26)
    assert [each[:2] for each in bench.messages()[-1]] == [("FINISHED", "a")]
    bench.timers.move(0.25)
    assert bench.messages() == [[("FINISHED", "b", pytest.approx(15.0))]]


def test_late_timers_do_not_make_events_late_nor_change_their_order():
    bench = Bench(mode=ClockMode.REAL, late_s=3.0)
    bench.launch("a", "n/0", 10.0)
    bench.launch("b", "n/1", 11.0)
    bench.messages()
    bench.timers.move(20.0)
    assert bench.messages() == [[("FINISHED", "a", 10.0)], [("FINISHED", "b", 11.0)]]


def test_a_call_first_lets_happen_what_is_due():
    bench = Bench(mode=ClockMode.REAL, late_s=100.0)
    bench.launch("a", "n/0", 10.0)
    bench.timers.move(12.0)
    assert bench.launch("b", "n/0", 10.0).start_s == pytest.approx(12.0)
    assert [message[0][:2] for message in bench.messages()] == [
        ("STARTED", "a"),
        ("FINISHED", "a"),
        ("STARTED", "b"),
    ]


def test_real_time_waits_for_no_acknowledgement():
    bench = Bench(mode=ClockMode.REAL)
    bench.launch("a", "n/0", 10.0)
    bench.launch("b", "n/1", 20.0)
    bench.timers.move(30.0)
    assert bench.messages()[1:] == [[("FINISHED", "a", 10.0)], [("FINISHED", "b", 20.0)]]
    assert bench.runtime.log.acknowledged == 0
    assert bench.timers.pending == []


def test_from_virtual_to_real_and_back_time_goes_on():
    bench = Bench()
    bench.runtime.wake_at([100.0])
    bench.driver.set_clock_now(mode=ClockMode.REAL)
    bench.timers.move(5.0)
    assert bench.now_s == pytest.approx(105.0)
    clock = bench.driver.set_clock_now(mode=ClockMode.VIRTUAL)
    assert clock.scale == 0.0
    assert clock.time_s == pytest.approx(105.0)
    bench.timers.move(5.0)
    assert bench.now_s == pytest.approx(105.0)


@pytest.mark.parametrize(("mode", "scale"), [(ClockMode.SCALED, None), (ClockMode.SCALED, 0.0), (ClockMode.REAL, 2.0)])
def test_a_mode_with_an_impossible_scale_is_refused_and_nothing_changes(mode, scale):
    bench = Bench(paused=True)
    before = bench.runtime.describe()
    with pytest.raises(InvalidInput) as refused:
        bench.driver.set_clock_now(mode=mode, scale=scale, not_before_s=99.0)
    assert refused.value.field == "scale"
    assert bench.runtime.describe() == before


def test_the_clock_goes_forward_only_while_nothing_runs():
    bench = Bench(paused=True)
    bench.launch("a", "n/0")
    with pytest.raises(Conflict) as refused:
        bench.driver.set_clock_now(not_before_s=5.0)
    assert refused.value.reason == "JOBS_RUNNING"
    assert bench.driver.set_clock_now(not_before_s=0.0).time_s == 0.0
    bench.runtime.stop("a", 0, 1)
    bench.runtime.wake_at([3.0, 4.0, 9.0])
    bench.messages()
    assert bench.driver.set_clock_now(not_before_s=5.0).time_s == 5.0
    assert bench.messages() == [[("CLOCK_SET", "", 5.0), ("WAKE_UP", "", 5.0)]]
    assert bench.driver.set_clock_now(not_before_s=1.0).time_s == 5.0


# ---- launches, stops, tokens


def test_a_launch_repeated_is_answered_and_not_run_again():
    bench = Bench(paused=True)
    first = bench.launch("a", "n/0")
    again = bench.launch("a", "n/0")
    assert (first.existing, again.existing) == (False, True)
    assert (again.start_s, again.revision) == (first.start_s, first.revision)
    bench.driver.set_clock_now(paused=False)
    bench.acknowledge()
    assert bench.launch("a", "n/0").existing
    assert bench.runtime.event_counts[EventKind.STARTED] == 1
    with pytest.raises(Conflict) as refused:
        bench.launch("a", "n/1")
    assert refused.value.reason == "ATTEMPT_ON_OTHER_GPU"


def test_a_refused_launch_leaves_no_trace():
    bench = Bench(paused=True)
    bench.launch("a", "n/0")
    before = bench.runtime.describe()
    with pytest.raises(Conflict) as refused:
        bench.launch("b", "n/0")
    assert refused.value.reason == "GPU_BUSY"
    with pytest.raises(NotFound):
        bench.launch("b", "n/9")
    assert bench.runtime.describe() == before
    assert not bench.launch("b", "n/1").existing


def test_only_later_attempts_start_and_only_when_the_earlier_one_ended():
    bench = Bench(paused=True)
    bench.launch("a", "n/0", attempt=2)
    with pytest.raises(Conflict) as refused:
        bench.launch("a", "n/1", attempt=3)
    assert refused.value.reason == "JOB_RUNNING"
    bench.runtime.stop("a", 2, 1)
    with pytest.raises(Conflict) as refused:
        bench.launch("a", "n/1", attempt=1)
    assert refused.value.reason == "OLD_ATTEMPT"
    assert not bench.launch("a", "n/1", attempt=3).existing


def test_stopping_is_idempotent_and_minds_the_attempt():
    bench = Bench(paused=True)
    bench.launch("a", "n/0", attempt=2)
    assert not bench.runtime.stop("a", 1, 1)
    assert not bench.runtime.stop("unknown", 0, 1)
    assert bench.runtime.stop("a", 2, 1)
    assert not bench.runtime.stop("a", 2, 1)
    assert [each[0] for message in bench.messages() for each in message] == ["STARTED", "STOPPED"]


def test_an_older_fencing_token_is_refused_everywhere():
    bench = Bench(paused=True)
    bench.launch("a", "n/0", token=7)
    for call in (
        lambda: bench.launch("b", "n/1", token=6),
        lambda: bench.launch("a", "n/0", token=6),
        lambda: bench.runtime.stop("a", 0, 6),
        lambda: bench.acknowledge(token=6),
    ):
        with pytest.raises(Conflict) as refused:
            call()
        assert refused.value.reason == "STALE_FENCING_TOKEN"
    assert bench.runtime.log.acknowledged == 0
    assert [job.job_id for job in bench.runtime.describe().running] == ["a"]
    bench.acknowledge(token=8)
    with pytest.raises(Conflict):
        bench.launch("b", "n/1", token=7)


@pytest.mark.parametrize("token", [8, 2**53 - 1])
def test_a_token_that_no_lease_has_given_is_refused_and_changes_nothing(token):
    bench = Bench(paused=True)
    bench.launch("a", "n/0", token=7)
    before = bench.runtime.describe()
    for call in (
        lambda: bench.runtime.launch("b", 1, spec(), Placement.on("n/1"), token),
        lambda: bench.runtime.stop("a", 0, token),
        lambda: bench.runtime.acknowledge(bench.runtime.log.incarnation, bench.runtime.log.revision, token),
    ):
        with pytest.raises(Conflict, match="the newest is 7") as refused:
            call()
        assert refused.value.reason == "UNKNOWN_FENCING_TOKEN"
    assert bench.runtime.describe() == before
    assert before.fencing_token == 7
    assert not bench.launch("b", "n/1", token=7).existing


def test_acknowledging_another_incarnation_or_the_future_is_refused():
    bench = Bench()
    with pytest.raises(Stale, match="DescribeCluster"):
        bench.runtime.acknowledge("another", 0, 0)
    with pytest.raises(OutOfRange):
        bench.runtime.acknowledge(bench.runtime.log.incarnation, 1, 0)


def test_every_runtime_has_an_incarnation_of_its_own():
    assert Bench().runtime.log.incarnation != Bench().runtime.log.incarnation


def test_ended_attempts_are_forgotten_only_beyond_the_bound_and_once_acknowledged():
    bench = Bench(outcomes_kept=2)
    for number in range(5):
        bench.launch(f"job-{number}", "n/0")
        if number < 4:
            bench.acknowledge()
    # 3 and 4 are within the bound; 4 is not acknowledged.
    assert bench.launch("job-3", "n/0").existing
    assert bench.launch("job-4", "n/0").existing
    assert not bench.launch("job-0", "n/0").existing


# ---- GPUs come and go


def test_a_lost_gpu_is_told_before_its_job_and_blocks_a_virtual_clock():
    bench = Bench(paused=True)
    bench.launch("a", "n/0")
    bench.launch("b", "n/1", 20.0)
    bench.messages()
    assert bench.driver.set_gpu_availability("n/0", False) == "a"
    assert bench.driver.set_gpu_availability("n/0", False) == ""
    assert bench.messages() == [[("GPU_LOST", "n/0", 0.0), ("LOST", "a", 0.0)]]
    assert bench.runtime.describe().lost_gpu_ids == ("n/0",)
    bench.driver.set_clock_now(paused=False)
    assert bench.now_s == 0.0
    assert bench.driver.set_gpu_availability("n/0", True) == ""
    assert bench.messages()[1:] == [[("GPU_BACK", "n/0", 0.0)]]
    assert not bench.launch("a", "n/0", attempt=2).existing
    bench.acknowledge()
    assert bench.now_s == 10.0


def test_metrics_are_those_of_the_present_moment():
    bench = Bench(mode=ClockMode.REAL)
    bench.launch("a", "n/0", 1000.0)
    early = bench.driver.sample()
    bench.timers.move(120.0)
    late = bench.driver.sample()
    assert early[0] == 0.0
    assert late[0] == pytest.approx(120.0)
    assert late[1].temperature_c[0] > early[1].temperature_c[0] + 10
    bench.timers.move(1000.0)
    assert bench.driver.sample()[1].utilization_ratio[0] == 0.0


def test_closing_leaves_no_timer():
    bench = Bench(mode=ClockMode.REAL)
    bench.launch("a", "n/0")
    assert bench.timers.pending
    bench.driver.stand()
    assert bench.timers.pending == []
