"""What keeps a job from the queue, or from its start: holds, other jobs, limits; with kills, in any order."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from adlro.records.cluster import Cluster
from adlro.records.dependencies import DependencyCondition, JobDependency
from adlro.records.job_requests import JobHold, JobRequestKind, JobUpdate
from adlro.records.jobs import ArrayTask, Job, JobSpec, JobState, JobType, PendingReason
from adlro.services.orchestrator.ledger.entry import Entry
from adlro.services.orchestrator.ledger.ledger import Ledger
from adlro.services.orchestrator.ledger.limits import Limits
from adlro.services.orchestrator.ledger.quotas import Quotas
from adlro.services.orchestrator.ledger.user_service import UserService
from adlro.services.orchestrator.session.core import effects
from adlro.services.orchestrator.session.core.dependencies import Dependencies, Verdict
from adlro.store import JobEnd
from tests.unit.orchestrator.core_house import CoreHouse
from tests.unit.orchestrator.test_core import check_replay, some_faults
from tests.volume import cases

OK, ENDED, FAILED = DependencyCondition.SUCCEEDED, DependencyCondition.ENDED, DependencyCondition.NOT_SUCCEEDED


@pytest.fixture
def house(cluster: Cluster) -> CoreHouse:
    return CoreHouse(cluster)


def after(*ids: str, condition: DependencyCondition = OK) -> tuple[JobDependency, ...]:
    return tuple(JobDependency(each, condition) for each in ids)


def fill(house: CoreHouse) -> None:
    """A job on every GPU."""
    count = len(list(house.cluster.cluster.gpus()))
    for _ in range(count):
        house.submit(5.0)
    house.until(lambda: len(house.cluster.running) == count)


# ---- other jobs


def test_a_job_starts_at_the_end_of_the_one_that_it_waits_for(house: CoreHouse) -> None:
    house.start("fcfs")
    house.submit(5.0)
    house.submit(2.0, after=after("job-1"))
    waits = house.until_reason("job-2", PendingReason.DEPENDENCY)
    assert (waits.message, waits.submit_s) == ("waits for the end of job-1", None)
    first, second = house.until_final(2)
    assert (first.end_s, second.submit_s, second.start_s, second.end_s) == (5.0, 5.0, 5.0, 7.0)
    assert second.jct_s == 2.0, "its completion time counts from then"


def test_one_that_waits_for_several_says_for_which_still(house: CoreHouse) -> None:
    house.start("fcfs")
    for work_s in (3.0, 5.0, 7.0):
        house.submit(work_s)
    house.submit(1.0, after=after("job-1", "job-2", "job-3", condition=ENDED))
    house.until_state("job-1", JobState.SUCCEEDED)
    house.until(lambda: house.store.get("job-4").message == "waits for the end of job-2, job-3")
    assert house.until_final(4)[3].start_s == 7.0


@pytest.mark.parametrize(
    ("condition", "works", "starts"),
    [(OK, True, True), (OK, False, False), (ENDED, False, True), (FAILED, False, True), (FAILED, True, False)],
)
@pytest.mark.parametrize("when", ["before", "after"])
def test_how_it_ended_decides(
    house: CoreHouse, condition: DependencyCondition, works: bool, starts: bool, when: str
) -> None:
    """Whether the end is known to the session, or has to be read in the store."""
    house.start("fcfs")
    house.submit(5.0)
    if not works:
        house.cancel("job-1")
    if when == "after":
        house.until(lambda: house.store.get("job-1").state.final)
    house.submit(2.0, after=after("job-1", condition=condition))
    _, second = house.until_final(2)
    assert second.state is (JobState.SUCCEEDED if starts else JobState.CANCELLED)
    if not starts:
        text = "which had to fail first, succeeded" if works else "which had to succeed first, did not"
        assert second.message == f"cancelled: job-1, {text}"
        assert not second.attempts


def test_what_can_never_start_takes_all_with_it_that_waits_for_it(house: CoreHouse) -> None:
    house.start("fcfs")
    house.submit(5.0)
    for number in range(1, 40):
        house.submit(1.0, after=after(f"job-{number}"))
    house.submit(1.0, after=after("job-40", condition=ENDED))
    house.cancel("job-1")
    jobs = house.until_final(41)
    assert {job.state for job in jobs[:40]} == {JobState.CANCELLED}
    assert jobs[40].state is JobState.SUCCEEDED


def test_a_begin_time_counts_beside_other_jobs(house: CoreHouse) -> None:
    house.start("fcfs")
    house.submit(5.0)
    house.submit(1.0, after=after("job-1"), begin_time_s=20.0)
    house.submit(1.0, after=after("job-1"), begin_time_s=2.0)
    _, late, early = house.until_final(3)
    assert (late.submit_s, late.start_s, early.submit_s, early.start_s) == (20.0, 20.0, 5.0, 5.0)


def test_one_whose_job_is_no_longer_recorded_ends(house: CoreHouse) -> None:
    house.start("fcfs")
    house.submit(1.0, after=after("job-99"))
    (job,) = house.until_final(1)
    assert (job.state, job.message) == (
        JobState.CANCELLED,
        "cancelled: job-99, which it waits for, is no longer recorded",
    )


def test_a_cancelled_one_waits_for_nobody_any_more(house: CoreHouse) -> None:
    house.start("fcfs")
    house.submit(5.0)
    house.submit(1.0, after=after("job-1"))
    house.until_reason("job-2", PendingReason.DEPENDENCY)
    house.cancel("job-2")
    first, second = house.until_final(2)
    assert (first.state, second.state, second.end_s) == (JobState.SUCCEEDED, JobState.CANCELLED, 0.0)


def test_no_policy_holds_for_a_job_that_waits_for_others(house: CoreHouse) -> None:
    """It joins the queue after theirs alone: nothing would ever end such a hold."""
    house.start("fcfs")
    house.pause()
    house.submit(1.0, held=True)
    house.submit(1.0, after=after("job-1"))
    house.settle()
    assert not house.core.ledger.hold_allowed


# ---- arrays


def test_a_job_after_an_array_waits_for_all_of_it(house: CoreHouse) -> None:
    house.start("fcfs")
    tasks = house.submit_array(20, 3.0)
    assert tasks[0].spec.array == ArrayTask("array-1", 0, 20, 0)
    house.submit(1.0, after=after("array-1"))
    house.until(lambda: house.store.arrays["array-1"].ended_count > 0)
    house.submit(1.0, after=after("array-1"))  # some have ended before it comes
    house.kill()
    *_, first, second = house.until_final(22)
    assert first.submit_s == second.submit_s == max(job.end_s or 0.0 for job in house.until_final(22)[:20])


@pytest.mark.parametrize(("condition", "state"), [(OK, "CANCELLED"), (ENDED, "SUCCEEDED"), (FAILED, "SUCCEEDED")])
def test_one_job_of_an_array_that_does_not_succeed_decides(
    house: CoreHouse, condition: DependencyCondition, state: str
) -> None:
    house.start("fcfs")
    house.submit_array(20, 3.0)
    house.submit(1.0, after=after("array-1", condition=condition))
    house.until_reason("job-21", PendingReason.DEPENDENCY)
    house.cancel("job-20")
    last = house.until_final(21)[20]
    assert last.state.name == state
    if condition is OK:
        assert last.message == "cancelled: a job of array-1, which had to succeed first, did not"
        assert last.end_s == 0.0, "it does not wait for the others"


def test_an_end_of_an_array_counts_once_also_where_the_store_is_read_before_it_is_followed(house: CoreHouse) -> None:
    """The store counts ends that are written, and some of these are still to be followed."""
    house.start("fcfs")
    house.submit_array(4, 5.0, 1)
    house.submit(1.0, after=after("array-1", condition=ENDED), held=True)
    house.until_reason("job-5", PendingReason.HELD)
    house.until(lambda: house.store.get("job-2").state is JobState.RUNNING)
    # The release comes with the end of a job, before its event is applied.
    house.late_news = True
    house.settle()
    house.late_news = False
    house.release("job-5")
    jobs = house.until_final(5)
    assert (jobs[3].end_s, jobs[4].start_s) == (20.0, 20.0)


def test_a_job_that_can_never_start_ends_at_once_whatever_its_begin_time(house: CoreHouse) -> None:
    house.start("fcfs")
    house.submit(5.0)
    house.cancel("job-1")
    house.until_final(1)
    house.pause()  # no time passes
    house.submit(1.0, after=after("job-1"), begin_time_s=86_400.0)
    house.until(lambda: house.store.get("job-2").state is JobState.CANCELLED)


def test_many_that_wait_for_an_array_cost_its_ends_nothing(house: CoreHouse) -> None:
    dependencies = Dependencies(house_ledger(house))
    task = house.submit_array(3, 5.0)[0]
    for number in range(3):
        spec = replace(task.spec, array=None, after=after("array-1", condition=ENDED))
        entry = Entry(Job(f"job-{10 + number}", spec), 0, np.zeros(1))
        dependencies.wait(entry, {"array-1": JobEnd(3, 0, 0)})
    for number in (1, 2):
        failed = replace(house.store.get(f"job-{number}"), state=JobState.FAILED)
        assert dependencies.ended(failed) == []
    last = replace(house.store.get("job-3"), state=JobState.FAILED)
    assert [verdict for _, verdict in dependencies.ended(last)] == [Verdict()] * 3
    assert not dependencies.waiting


def house_ledger(house: CoreHouse) -> Ledger:
    return Ledger(house.cluster.cluster)


def test_no_more_of_an_array_run_at_once_than_may(house: CoreHouse) -> None:
    house.start("sjf")
    house.submit_array(9, 2.0, 3)
    house.submit(2.0)
    most = 0
    limited = False

    def done() -> bool:
        nonlocal most, limited
        most = max(most, sum(job_id != "job-10" for job_id in house.cluster.running))
        reason = house.store.get("job-9").pending_reason
        limited = limited or reason is PendingReason.ARRAY_LIMIT
        return len(house.store.records) == house.store.final_count

    house.until(done)
    assert most == 3
    assert limited
    assert house.store.get("job-10").start_s == 0.0, "others go past it"
    starts = Counter(job.start_s for _, job in house.store.records.values() if job.job_id != "job-10")
    assert starts == {0.0: 3, 2.0: 3, 4.0: 3}


# ---- quotas


def test_no_user_holds_more_gpus_than_his_quota(house: CoreHouse) -> None:
    house.set_quotas(ann=2)
    house.start("sjf")
    for _ in range(4):
        house.submit(2.0)
    house.submit(2.0, user="bob")
    house.until_reason("job-3", PendingReason.QUOTA)
    text = "ann may have 2 GPUs at once, and other jobs of ann leave too few for this one"
    assert house.store.get("job-3").message == text
    jobs = house.until_final(5)
    assert [job.start_s for job in jobs] == [0.0, 0.0, 2.0, 2.0, 0.0]


def test_a_quota_for_everyone_gives_way_to_a_users_own(house: CoreHouse) -> None:
    house.set_quotas(**{"*": 1, "bob": 3})
    house.start("fcfs")
    for user in ("ann", "ann", "bob", "bob", "bob", "eve"):
        house.submit(2.0, user=user)
    jobs = house.until_final(6)
    assert [job.start_s for job in jobs] == [0.0, 2.0, 0.0, 0.0, 0.0, 0.0]


def test_a_quota_that_changes_counts_for_what_starts_next(house: CoreHouse) -> None:
    house.start("fcfs")
    house.pause()
    for _ in range(5):
        house.submit(2.0)
    house.until(lambda: len(house.cluster.running) == 5)
    house.set_quotas(ann=1)
    house.submit(2.0)
    house.settle_until(house.now + 2.0)
    assert house.store.get("job-6").pending_reason is PendingReason.QUOTA
    house.kill()
    house.resume()
    assert house.until_final(6)[5].start_s == 2.0


def test_a_quota_of_nothing_keeps_a_user_out_and_others_are_served(house: CoreHouse) -> None:
    house.set_quotas(ann=0)
    house.start("hold_greedy")
    house.submit(2.0)
    house.submit(2.0, user="bob")
    house.until_state("job-2", JobState.SUCCEEDED)
    house.settle()
    assert house.store.get("job-1").pending_reason is PendingReason.QUOTA
    house.set_quotas()
    house.until_final(2)


def test_a_user_whom_only_a_placed_job_names_has_it_counted(cluster: Cluster) -> None:
    """As at a session's begin, for a job whose GPUs have left the cluster."""
    users = UserService({})
    limits = Limits(users, Quotas({"ann": 1}))
    spec = JobSpec("j", "ann", JobType.SIMULATION)
    placed = Entry(Job("job-1", spec), 0, np.zeros(1))
    limits.place(placed)
    waits = Entry(Job("job-2", spec), 0, np.zeros(1))
    assert limits.over(waits) is not None
    limits.release(placed)
    assert limits.over(waits) is None
    limits.place(waits)
    assert limits.over(placed) is not None


# ---- holds


def test_a_held_job_starts_after_its_release(house: CoreHouse) -> None:
    house.start("fcfs")
    house.submit(1.0, held=True)
    held = house.until_reason("job-1", PendingReason.HELD)
    assert (held.hold, held.submit_s) == (JobHold(), None)
    assert held.message == "held; `adlro release job-1` lets it start"
    house.submit(4.0)
    house.until_state("job-2", JobState.SUCCEEDED)
    house.settle()
    assert house.launched == ["job-2"]
    assert house.release("job-1")
    first, _ = house.until_final(2)
    assert (first.submit_s, first.start_s, first.hold) == (4.0, 4.0, None)


def test_a_waiting_job_is_held_and_released(house: CoreHouse) -> None:
    house.start("fcfs")
    house.pause()
    fill(house)
    last = house.submit(5.0).job_id
    assert house.hold(last)
    held = house.until_reason(last, PendingReason.HELD)
    assert (held.applied_request, held.requests) == (1, ())
    house.resume()
    house.until(lambda: len(house.store.active) == 1)
    house.settle()
    assert last not in house.launched
    house.release(last)
    assert house.until_final(len(house.store.records))[-1].submit_s == 5.0


def test_a_hold_that_comes_after_the_launch_changes_nothing(house: CoreHouse) -> None:
    house.start("fcfs")
    house.pause()
    house.submit(5.0)
    house.cluster.start_later = True
    house.until_reason("job-1", PendingReason.LAUNCHING)
    assert house.hold("job-1")
    house.settle()
    job = house.store.get("job-1")
    assert (job.hold, job.applied_request, job.requests) == (None, 1, ())


def test_only_an_operator_releases_what_an_operator_holds(house: CoreHouse) -> None:
    house.start("fcfs")
    house.pause()
    house.submit(5.0, held=True)
    house.hold("job-1", operator=True)
    house.release("job-1")
    house.settle()
    held = house.store.get("job-1")
    assert (held.hold, held.applied_request) == (JobHold("", True), 2)
    house.hold("job-1")  # the user's own hold does not weaken it
    house.release("job-1")
    house.settle()
    assert house.store.get("job-1").hold == JobHold("", True)
    house.release("job-1", operator=True)
    house.resume()
    house.until_final(1)


def test_a_hold_passes_over_begin_times_and_other_jobs(house: CoreHouse) -> None:
    house.start("fcfs")
    house.submit(5.0)
    house.submit(1.0, after=after("job-1"))
    house.submit(1.0, begin_time_s=3.0)
    house.until_reason("job-2", PendingReason.DEPENDENCY)
    house.hold("job-2")
    house.hold("job-3")
    house.until_state("job-1", JobState.SUCCEEDED)
    house.settle()
    assert house.launched == ["job-1"]
    house.release("job-2")
    house.release("job-3")
    _, second, third = house.until_final(3)
    assert (second.start_s, third.start_s) == (5.0, 5.0)


def test_a_cancelled_hold_is_over(house: CoreHouse) -> None:
    house.start("fcfs")
    house.submit(5.0, held=True)
    house.cancel("job-1")
    (job,) = house.until_final(1)
    assert job.state is JobState.CANCELLED


# ---- updates


def test_an_update_changes_what_the_policy_sees(house: CoreHouse) -> None:
    house.start("wspt")
    house.pause()
    fill(house)
    first, second = house.submit(5.0).job_id, house.submit(5.0).job_id
    update = JobUpdate(priority=0.9, time_limit_s=60.0, set_labels={"team": "a"}, remove_labels=("none",))
    house.ask(second, JobRequestKind.UPDATE, update)
    house.until(lambda: house.store.get(second).applied_request == 1)
    spec = house.store.get(second).spec
    assert (spec.priority, spec.time_limit_s, spec.labels) == (0.9, 60.0, {"team": "a"})
    assert house.store.get(second).normalized.priority == 0.9
    house.cluster.lose_replies = 0
    for gpu_id in [gpu.gpu_id for _, gpu in house.cluster.cluster.gpus()][1:]:
        house.cluster.lose(gpu_id)
    house.resume()
    house.until(lambda: second in house.launched)
    assert first not in house.launched, "both wait for the one GPU that is left"


# ---- with kills, in any order


class Watched(CoreHouse):
    """Checks each launch by the records of the store, which are the truth that users see."""

    def _launch(self, order: effects.Launch, incarnation: str):
        job = self.store.get(order.job_id)
        assert job.hold is None, f"{order.job_id} is held, and starts"
        for each in job.spec.after:
            end = self.store.ends([each.job_id]).get(each.job_id)
            assert end is not None
            assert end.ended_count == end.count, f"{order.job_id} starts before the end of {each.job_id}"
            succeeded = end.failed_count == 0
            wanted = {OK: succeeded, ENDED: True, FAILED: not succeeded}[each.condition]
            assert wanted, f"{order.job_id} starts although {each.job_id} has not ended as it must"
        launched = [job for job in self.store.active if job.attempts and job.attempts[-1].end_s is None]
        for array_id, count in Counter(job.spec.array.array_id for job in launched if job.spec.array).items():
            most = next(job.spec.array for job in launched if job.spec.array and job.spec.array.array_id == array_id)
            assert not most.max_running_count or count <= most.max_running_count, f"{count} of {array_id} run"
        for user, count in Counter(job.spec.user for job in launched).items():
            quota = self.user_rules.quotas.of(user)
            assert quota is None or count <= quota, f"{user} has {count} GPUs"
        return super()._launch(order, incarnation)


def random_graph(cluster: Cluster, seed: int, jobs: int) -> Watched:
    """Jobs, arrays, holds and other jobs to wait for, drawn; sessions, clusters and calls fail meanwhile."""
    draw = random.Random(seed)
    house = Watched(cluster, draw, check_every=1 if jobs <= 60 else 50)
    some_faults(house, draw, jobs)
    house.kill_odds, house.meddle_odds = draw.choice([0.0, 0.01, 0.05]), 0.02
    house.set_quotas(bob=draw.choice([1, 3]))
    house.start("hold_greedy")
    names: list[str] = []
    while len(house.store.records) < jobs:
        chosen = draw.sample(names, min(len(names), draw.choice([0, 0, 1, 1, 2, 3])))
        spec = {
            "after": tuple(JobDependency(each, draw.choice([OK, OK, ENDED, ENDED, FAILED])) for each in chosen),
            "held": draw.random() < 0.15,
            "begin_time_s": draw.choice([None, None, draw.uniform(0.0, 2.0 * jobs)]),
            "user": draw.choice(["ann", "bob"]),
        }
        if draw.random() < 0.15:
            tasks = house.submit_array(draw.randint(2, 6), draw.uniform(0.5, 5.0), draw.choice([0, 1, 2]), **spec)
            assert tasks[0].spec.array is not None
            names += [tasks[0].spec.array.array_id, draw.choice(tasks).job_id]
        else:
            names.append(house.submit(draw.uniform(0.5, 10.0), **spec).job_id)
        for _ in range(draw.choice([0, 0, 5, 20])):
            if house.recorded is None or draw.random() < 0.9:
                house.advance()
    for step in range(120_000):
        active = house.store.active
        if not active:
            return house
        if step == 6000:
            house.kill_odds = house.meddle_odds = 0.0
        chance = draw.random()
        one = draw.choice(active).job_id
        if step < 6000 and chance < 0.005:
            house.hold(one, operator=draw.random() < 0.2)
        elif chance < 0.02:
            house.release(one, operator=draw.random() < 0.5)
        elif step < 6000 and chance < 0.0202:
            house.cancel(one)
        elif step < 6000 and chance < 0.0205:
            house.cluster.restart()
        elif not house.advance():
            if house.drained:
                house.drain({})
            for job in house.store.active:
                house.release(job.job_id, operator=True)
    left = [(job.job_id, job.pending_reason.name, job.message) for job in house.store.active]
    raise AssertionError(f"forgotten: {left}")


def check_ends(house: Watched) -> None:
    """Nobody was cancelled for another job that ended as it must."""
    for _, job in house.store.records.values():
        if job.state is JobState.CANCELLED and not job.cancel_requested:
            assert any(fails(house, each) for each in job.spec.after), job


def fails(house: Watched, dependency: JobDependency) -> bool:
    end = house.store.ends([dependency.job_id])[dependency.job_id]
    if dependency.condition is OK:
        return end.failed_count > 0
    return dependency.condition is FAILED and end.failed_count == 0


@pytest.mark.parametrize(
    "seeds", [range(6), pytest.param(range(6, 6 + cases(34)), marks=pytest.mark.slow)], ids=["few", "more"]
)
def test_no_job_starts_before_its_time_and_none_is_forgotten(cluster: Cluster, seeds: range) -> None:
    killed = 0
    for seed in seeds:
        house = random_graph(cluster, seed, 60)
        check_ends(house)
        check_replay(house)
        killed += house.killed
    assert killed > 5


def test_a_graph_of_hundreds_of_jobs_comes_to_its_end(cluster: Cluster) -> None:
    house = random_graph(cluster, 1000, 400)
    check_ends(house)


def test_the_checks_would_find_a_launch_that_comes_too_early(cluster: Cluster) -> None:
    house = Watched(cluster)
    house.start("fcfs")
    house.submit(5.0)
    house.submit(1.0, after=after("job-1"))
    house.until_reason("job-2", PendingReason.DEPENDENCY)
    version, job = house.store.records["job-2"]
    house.store.records["job-2"] = (version, replace(job, spec=replace(job.spec, after=())))
    entry = house.core.ledger.entries["job-2"]
    released: Job = entry.job
    assert released.pending_reason is PendingReason.DEPENDENCY
    house.store.records["job-2"] = (version, job)
    order = effects.Launch("job-2", 1, job.spec, job.placement)
    with pytest.raises(AssertionError, match="starts before the end of job-1"):
        house._launch(order, house.cluster.incarnation)
