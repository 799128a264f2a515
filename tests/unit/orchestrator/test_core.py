"""The core of a session by itself: what holds at every step, what it tells of a job, and that a recording replays."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from adlro.errors import AdlroError, Conflict, DeadlineExceeded, InternalError, Unavailable
from adlro.records.cluster import Cluster
from adlro.records.events import ClusterEvent, EventBatch, EventKind
from adlro.records.jobs import JobState
from adlro.records.payloads import EndReason, ExitStatus
from adlro.services.orchestrator.ledger.entry import Phase
from adlro.services.orchestrator.session.core import effects, inputs
from adlro.services.orchestrator.session.core.launches import Moment
from adlro.services.orchestrator.session.core.reasons import ReasonsDue
from adlro.services.orchestrator.session.core.recording import differences
from adlro.store import Cursor, Move
from tests.unit.orchestrator.core_house import CoreHouse

FAULTS: tuple[AdlroError, ...] = (
    Conflict("the GPU is busy"),
    DeadlineExceeded("no answer in 10 s"),
    Unavailable("its node is away"),
    InternalError("a bug there"),
)


def some_faults(house: CoreHouse, draw: random.Random, jobs: int) -> None:
    """Launches that are refused, get no answer, or are carried out untold; stops of which nobody is told."""
    for number in draw.sample(range(1, jobs + 1), jobs // 5):
        job_id = f"job-{number}"
        if draw.random() < 0.3:
            house.cluster.unanswered[job_id] = 1
        else:
            house.cluster.refused[job_id] = [draw.choice(FAULTS) for _ in range(draw.randint(1, 4))]
    house.cluster.deaf = 5


def ran(cluster: Cluster, seed: int, jobs: int, kills: int = 12) -> CoreHouse:
    """Sessions with so many jobs and kills, until all have ended."""
    draw = random.Random(seed)
    house = CoreHouse(cluster, draw, check_every=1 if jobs <= 100 else 100)
    some_faults(house, draw, jobs)
    house.start("hold_greedy")
    for _ in range(jobs):
        house.submit(draw.uniform(0.5, 20.0), begin_time_s=draw.choice((None, draw.uniform(0.0, 2.0 * jobs))))
    for number in draw.sample(range(1, jobs + 1), jobs // 50):
        house.cancel(f"job-{number}")
    ended = 0

    def enough_ended() -> bool:
        return house.store.final_count >= ended

    for _ in range(kills):
        ended += jobs // (kills + 1)
        house.until(enough_ended)
        match draw.choice(["session", "cluster", "gpu", "hang"]):
            case "session":
                house.kill()
            case "cluster":
                house.cluster.restart()
            case "gpu":
                house.cluster.lose("volta-0/1")
            case "hang":
                house.cluster.lose_replies = 1
                house.until(lambda: not house.cluster.lose_replies)
                house.kill()
    house.until_final(jobs)
    return house


def interrupted(cluster: Cluster, seed: int, jobs: int = 40) -> CoreHouse:
    """Sessions that are killed, or are told something else, while a request of the core is open."""
    draw = random.Random(seed)
    house = CoreHouse(cluster, draw)
    some_faults(house, draw, jobs)
    house.kill_odds, house.meddle_odds = draw.choice([0.0, 0.01, 0.05]), draw.choice([0.02, 0.2])
    house.start("hold_greedy")
    for _ in range(jobs):
        house.submit(draw.uniform(0.5, 20.0), begin_time_s=draw.choice((None, draw.uniform(0.0, 2.0 * jobs))))
    for number in draw.sample(range(1, jobs + 1), jobs // 10):
        house.cancel(f"job-{number}")
    for step in range(60_000):
        if len(house.store.records) == house.store.final_count:
            return house
        if step == 4000:
            house.kill_odds = house.meddle_odds = 0.0  # it is to come to an end
        if not house.advance():
            assert house.drained, "nothing more happens"
            house.drain({})
    raise AssertionError("it takes for ever")


def check_replay(house: CoreHouse) -> None:
    for life in house.lives:
        assert differences(life.begin(), life.steps) == []
    for _, job in house.store.records.values():
        assert job.state in (JobState.SUCCEEDED, JobState.CANCELLED), job.message
        assert sum(each.outcome == "succeeded" for each in job.attempts) == (job.state is JobState.SUCCEEDED)
        records = house.store.history[job.job_id]
        assert [record.state.final for record in records] == [False] * (len(records) - 1) + [True]


@pytest.mark.parametrize("seeds", [range(5), pytest.param(range(5, 13), marks=pytest.mark.slow)], ids=["few", "more"])
def test_moments_that_are_interrupted_lose_nothing_and_replay(cluster: Cluster, seeds: range) -> None:
    """Each kind of input that may come at any time, and kills, while an answer is still to come."""
    houses = [interrupted(cluster, seed) for seed in seeds]
    for house in houses:
        check_replay(house)
    assert sum(house.killed for house in houses) > 5
    assert sum(house.meddled for house in houses) > 100


@pytest.mark.parametrize(
    ("seed", "jobs"), [(seed, 100) for seed in range(6)] + [pytest.param(7, 1000, marks=pytest.mark.slow)]
)
def test_sessions_with_kills_replay_to_equal_effects(cluster: Cluster, seed: int, jobs: int) -> None:
    house = ran(cluster, seed, jobs)
    assert len(house.lives) > 3
    assert sum(len(life.steps) for life in house.lives) > 10 * jobs
    check_replay(house)


def test_another_input_leads_to_other_effects(cluster: Cluster) -> None:
    """Else a replay would show nothing."""
    house = CoreHouse(cluster)
    house.start("fcfs")
    house.submit(5.0)
    house.submit(7.0)
    house.until_final(2)
    (life,) = house.lives
    steps = life.steps
    number = 1 + next(place for place, step in enumerate(steps) if isinstance(step[0], inputs.Arrived))
    assert isinstance(steps[number][0], inputs.WokenAt)
    changed = [*steps[:number], (inputs.WokenAt(3.0), *steps[number][1:]), *steps[number + 1 :]]
    assert differences(life.begin(), steps) == []
    assert differences(life.begin(), changed) != []


def free_a_core(house: CoreHouse) -> None:
    house.core.ledger.occupancy.cores_free[0] += 1


def share_a_gpu(house: CoreHouse) -> None:
    first, second = list(house.core.ledger.entries.values())[:2]
    second.gpus = first.gpus


def end_a_record(house: CoreHouse) -> None:
    (entry, *_) = house.core.ledger.entries.values()
    entry.job = replace(entry.job, state=JobState.SUCCEEDED)


def change_the_queue(house: CoreHouse) -> None:
    (entry,) = house.core.ledger.queued()
    house.core.ledger._queue.columns.jobs.cores[0, entry.row] += 1


def forget_a_launch(house: CoreHouse) -> None:
    house.core._launches.moments.append(Moment(house.core.applied, 2))


def skip_a_version(house: CoreHouse) -> None:
    (entry, *_) = house.core.ledger.entries.values()
    house.core._state.record_changes.record(entry, entry.job)
    entry.version += 1


def lose_a_pause(house: CoreHouse) -> None:
    (entry,) = house.core.ledger.queued()
    house.core.ledger._leave_queue(entry)
    entry.phase = Phase.PAUSED


@pytest.mark.parametrize(
    "wrong",
    [free_a_core, share_a_gpu, end_a_record, change_the_queue, forget_a_launch, skip_a_version, lose_a_pause],
)
def test_what_does_not_agree_is_found(cluster: Cluster, wrong: Callable[[CoreHouse], None]) -> None:
    house = CoreHouse(cluster)
    house.pause()
    house.start("fcfs")
    for _ in range(6):
        house.submit(5.0)
    house.settle()
    house.core.validate()
    wrong(house)
    with pytest.raises(AssertionError):
        house.core.validate()


def test_a_session_asks_for_its_wake_ups_before_it_acknowledges(cluster: Cluster) -> None:
    """A virtual clock that goes on at the acknowledgement would go past the begin time of a job."""
    house = CoreHouse(cluster)
    house.start("fcfs")
    house.submit(5.0)
    house.submit(7.0, begin_time_s=100.0)
    house.until(lambda: "job-1" in house.cluster.running)
    house.kill()
    core = house._loaded(house.cluster.on_describe())()
    begun = core.step(inputs.Begun(), 0.0)
    assert begun.request == effects.WakeUps([0.0, 100.0])
    assert begun.acknowledge is None
    assert core.step(inputs.WokenAt(0.0), 0.0).acknowledge == core.applied


def test_reasons_are_brought_up_to_date_once_at_a_time(cluster: Cluster) -> None:
    house = CoreHouse(cluster, check_every=1000)
    for _ in range(1500):  # more than are looked at in one turn
        house.submit(5.0)
    house.start("fcfs")
    house.pause()
    house.settle_until(6.0)
    reminded = [at for given, at, _ in house.lives[0].steps if given == inputs.Reminded(ReasonsDue())]
    assert len(reminded) >= 3
    assert len(set(reminded)) == len(reminded)


@pytest.mark.parametrize("begin_time_s", [None, 10.0], ids=["cancelled", "begun"])
def test_others_are_served_while_thousands_join_or_leave_the_queue(
    cluster: Cluster, begin_time_s: float | None
) -> None:
    house = CoreHouse(cluster, check_every=1_000_000)
    house.start("fcfs")
    house.pause()
    for _ in range(3000):
        house.submit(5.0, begin_time_s=begin_time_s)
    house.settle()
    steps = house.lives[0].steps
    before = len(steps)
    if begin_time_s is None:
        for number in range(7, 3001):
            house.cancel(f"job-{number}")
        house.settle()
    else:
        house.resume()
        house.until(lambda: house.core.ledger.queue_length > 1000)
    batch = max(place for place, step in enumerate(steps) if place >= before and isinstance(step[0], EventBatch))
    following = [isinstance(step[0], inputs.Continue) for step in steps[batch + 1 : batch + 3]]
    assert following == [True] * 2


def test_the_story_of_a_job_says_what_happened_to_it(cluster: Cluster) -> None:
    house = CoreHouse(cluster)
    house.cluster.refused["job-1"] = [DeadlineExceeded("no answer in 10 s")]
    house.start("fcfs")
    house.submit(3.0)
    house.until_final(1)
    assert house.core.story("job-1") == [
        (0.0, "pending: being launched on volta-0/0"),
        (0.0, "launch 1 of attempt 1"),
        (0.0, "pending: being launched on volta-0/0: no answer to 1 of 3 launches (no answer in 10 s)"),
        (0.0, "launch 2 of attempt 1"),
        (0.0, "running: running on volta-0/0"),
        (3.0, "succeeded"),
    ]
    assert house.core.story("job-2") == []


def test_the_start_of_a_program_and_its_end_are_recorded(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    house = CoreHouse(cluster)
    moves: list[Move] = []
    write = house.store.move

    def noted(made: Sequence[Move], cursor: Cursor | None) -> None:
        moves.extend(made)
        write(made, cursor)

    monkeypatch.setattr(house.store, "move", noted)
    house.start("fcfs")
    house.pause()
    house.submit(50.0)
    house.until(lambda: bool(house.cluster.launches))
    house.settle()
    started = house.store.get("job-1")
    assert (started.start_s, started.attempts[0].run_s) == (0.0, None)
    gpu = house.core.ledger.layout.gpu_number[started.gpu_id]
    assert house.core.ledger.occupancy.expected_end_s[gpu] == 50.0

    house.cluster.clock = replace(house.cluster.clock, time_s=7.0)  # an image was fetched
    house.cluster.emit((EventKind.RUNNING, "job-1", 1, started.placement))
    house.settle()
    running = house.store.get("job-1")
    assert (running.state, running.start_s, running.attempts[0].run_s) == (JobState.RUNNING, 0.0, 7.0)
    house.kill()
    house.start("fcfs")
    house.settle()
    assert house.core.ledger.occupancy.expected_end_s[gpu] == 57.0

    exit_status = ExitStatus(EndReason.EXITED, code=3, peak_memory_mib=100)
    house.cluster.revision += 1
    ended = ClusterEvent(house.cluster.revision, EventKind.FAILED, 9.0, "job-1", 1, started.placement, "", exit_status)
    del house.cluster.running["job-1"]
    house.cluster.batches.append(
        EventBatch(house.cluster.incarnation, (ended,), replace(house.cluster.clock, time_s=9.0))
    )
    house.settle()
    failed = house.store.get("job-1")
    assert (failed.state, failed.message, failed.attempts[0].exit) == (JobState.FAILED, "exit code 3", exit_status)
    assert [(each.outcome.runtime_s, each.outcome.succeeded) for each in moves if each.outcome] == [(2.0, False)]


def test_the_reason_of_a_lost_gpu_is_told_to_who_waits_for_it(cluster: Cluster) -> None:
    house = CoreHouse(cluster)
    house.start("fcfs")
    house.pause()
    lost = {gpu.gpu_id: "used by pid 4711 of user bob" for _, gpu in cluster.gpus()}
    house.core.ledger.set_lost(lost, True)
    house.submit(5.0)
    house.settle_until(60.0)
    message = house.store.get("job-1").message
    assert message.startswith("every GPU that could hold it is lost or on a drained node (")
    assert "volta-0/0: used by pid 4711 of user bob; " in message
    house.core.ledger.set_lost(lost, False)
    assert not house.core.ledger.occupancy.lost_reasons
