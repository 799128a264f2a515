"""What each running job holds, in the ledger's observations, made anew or brought up to date."""

from __future__ import annotations

import copy
import dataclasses
from dataclasses import fields, replace

import numpy as np
import pytest

from adlro.placement import Placement
from adlro.records.cluster import Cluster, Gpu, Node
from adlro.records.jobs import JobAttempt, JobState, Preemptible
from adlro.services.orchestrator.ledger.entry import Entry, Phase
from adlro.services.orchestrator.ledger.ledger import Ledger
from adlro.services.orchestrator.ledger.preempting import StopRules
from adlro.state.gangs import gpus_of
from adlro.state.observation import Gangs, Observation
from tests.ledgers import MODELS, job, queue


def held(observation: Observation) -> tuple[list[int], list[int]]:
    return observation.gpu_cores_held[0].tolist(), observation.gpu_memory_held_mib[0].tolist()


def test_an_observation_shows_what_each_job_holds(cluster: Cluster) -> None:
    ledger = Ledger(cluster)
    first = queue(ledger, 1, (4, 5, 6), cpu_cores=3, memory_mib=1000)
    second = queue(ledger, 2, (4, 5, 6), cpu_cores=2, memory_mib=700)
    assert held(ledger.observe(0.0)) == ([0] * 5, [0] * 5)
    ledger.place(first, (1,), 0.0)
    ledger.place(second, (4,), 0.0)
    before = ledger.occupancy.copy()
    seen = ledger.observe(1.0)
    ledger.forget(first)
    ledger.set_lost(["radeon-0/0"], True)  # its job is not told of as ended yet
    assert held(seen) == ([0, 3, 0, 0, 2], [0, 1000, 0, 0, 700])
    assert before.cores_held.tolist() == [0, 3, 0, 0, 2]
    assert held(ledger.observe(1.0)) == ([0, 0, 0, 0, 2], [0, 0, 0, 0, 700])


def is_as_made_anew(seen: Observation, anew: Observation, rows: list[int]) -> None:
    """But for where the jobs stand: `rows` are the places of those that still wait."""
    for field in fields(Observation):
        ours, theirs = getattr(seen, field.name), getattr(anew, field.name)
        if field.name == "table":
            np.testing.assert_array_equal(ours.rows_of_job[:, rows], theirs.rows_of_job)
            np.testing.assert_array_equal(ours.job, [rows[job] for job in theirs.job])
            for name in ("gpu", "size", "duration_s", "gpus", "spread"):
                np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name), err_msg=name)
            continue
        if field.name == "gangs":
            gangs_are_as_made_anew(ours, theirs, rows)
            continue
        if field.name.startswith("job_") or field.name == "kind_duration_s":
            ours = ours[:, rows]
        # What a user has had is the same: no time has passed.
        np.testing.assert_array_equal(ours, theirs, err_msg=field.name)


def gangs_are_as_made_anew(ours: Gangs | None, theirs: Gangs | None, rows: list[int]) -> None:
    assert (ours is None) == (theirs is None)
    if ours is None or theirs is None:
        return
    for name in ("gpu_count", "max_nodes", "nodes", "spread_speed"):
        np.testing.assert_array_equal(getattr(ours, name)[:, rows], getattr(theirs, name), err_msg=name)
    np.testing.assert_array_equal(ours.gpu_run, theirs.gpu_run)
    assert (rows.index(ours.reserved[0]) if ours.reserved[0] >= 0 else -1) == theirs.reserved[0]


def test_brought_up_to_date_it_is_as_made_anew(cluster: Cluster) -> None:
    ledger = Ledger(cluster)
    for number in range(6):
        queue(ledger, number, (4.5, 5, 6), cpu_cores=number % 4 + 1, memory_mib=1000 + number, submit_s=number / 3)
    seen = ledger.observe(17.3)
    rows = list(range(6))  # of the jobs that still wait
    for row, gpu in ((2, 0), (0, 4), (5, 1)):
        ledger.place(ledger.queued()[rows.index(row)], (gpu,), 17.3)
        seen = ledger.reflect(seen, row, (gpu,))
        rows.remove(row)
        is_as_made_anew(seen, ledger.observe(17.3), rows)
        assert seen.table.rows_of_job[0, row] == 0
        assert not seen.job_waiting[0, row]


def drawn_cluster(rng: np.random.Generator) -> Cluster:
    nodes = []
    for number in range(int(rng.integers(1, 5))):
        gpus = tuple(
            Gpu(f"{number}/{place}", MODELS[rng.integers(3)], int(rng.choice([8000, 16000])))
            for place in range(rng.integers(1, 5))
        )
        nodes.append(Node(f"n{number}", int(rng.choice([4, 8, 16])), int(rng.choice([2000, 8000])), gpus))
    return Cluster("drawn", tuple(nodes))


@pytest.mark.parametrize("gangs", [False, True], ids=["one GPU each", "gangs"])
@pytest.mark.parametrize("seed", range(30))
def test_so_it_is_with_slow_lost_and_drained_gpus_and_users_who_run_jobs(seed: int, gangs: bool) -> None:
    rng = np.random.default_rng(seed)
    ledger = Ledger(drawn_cluster(rng))
    gpu_ids, nodes = ledger.layout.gpu_ids, sorted({gpu_id.split("/")[0] for gpu_id in ledger.layout.gpu_ids})
    ledger.set_speeds({gpu_id: float(rng.choice([0.5, 0.7])) for gpu_id in gpu_ids if rng.random() < 0.3})
    if rng.random() < 0.4:
        ledger.set_drained([f"n{rng.choice(nodes)}"])
    if rng.random() < 0.4:
        ledger.set_lost([gpu_ids[rng.integers(len(gpu_ids))]], True)
    time_s = float(np.round(rng.uniform(1e5, 2e5), 3))
    for number in range(12):
        queue(
            ledger,
            number,
            tuple(rng.exponential(50.0, 3)),
            user=f"u{rng.integers(3)}",
            submit_s=float(np.round(time_s - rng.uniform(10, 5000), 3)),
            cpu_cores=int(rng.choice([1, 2, 4, 17], p=[0.5, 0.3, 0.15, 0.05])),
            memory_mib=int(rng.choice([100, 1000, 3000])),
            gpu_memory_mib=int(rng.choice([0, 8000, 16000])),
            gpu_count=int(rng.choice([1, 2, 3, 4])) if gangs else 1,
            max_node_count=int(rng.choice([0, 0, 1, 2])) if gangs else 0,
            application="resnet50_fp32",
        )
    if gangs and rng.random() < 0.5:
        ledger.reserve(ledger.queued()[int(rng.integers(12))], time_s - 5.0)
    for _ in range(2):  # of users who have running jobs then
        before = ledger.observe(time_s - 7.3)
        if len(before.table.job):
            ledger.place(ledger.queued()[int(before.table.job[0])], gpus_of(before.table.gpus[0]), time_s - 7.3)
    seen, queued = ledger.observe(time_s), ledger.queued()
    rows, kept = list(range(len(queued))), []
    while len(seen.table.job):
        kept.append((seen, copy.deepcopy(seen)))
        row = int(rng.integers(len(seen.table.job)))
        job, gpus = int(seen.table.job[row]), gpus_of(seen.table.gpus[row])
        if len(gpus) == 1:
            gpus = (int(rng.choice(seen.group(0, row))),)
        duration_s = float(seen.table.duration_s[row])
        ledger.place(queued[job], gpus, time_s)
        assert ledger.occupancy.expected_end_s[list(gpus)].tolist() == [time_s + duration_s] * len(gpus)
        seen = ledger.reflect(seen, job, gpus)
        rows.remove(job)
        is_as_made_anew(seen, ledger.observe(time_s), rows)
    for entry in list(ledger.entries.values()):
        ledger.forget(entry)
    for observation, as_it_was in kept:
        np.testing.assert_equal(dataclasses.asdict(observation), dataclasses.asdict(as_it_was))


@pytest.mark.parametrize("seed", range(20))
def test_what_is_left_of_a_stopped_job_is_expected_alike_by_the_ledger_and_the_table(seed: int) -> None:
    rng = np.random.default_rng(seed)
    ledger = Ledger(drawn_cluster(rng), min_run_s=0.0)
    gpu_ids = ledger.layout.gpu_ids
    ledger.set_speeds({gpu_id: float(rng.choice([0.5, 0.7])) for gpu_id in gpu_ids if rng.random() < 0.3})
    before = JobAttempt(1, Placement.on(gpu_ids[0]), MODELS[0], 1.0, 7.5, "preempted: for job-9", preempted=True)
    for number in range(12):
        entry = ledger.enter(
            job(
                number,
                gpu_count=int(rng.choice([1, 1, 2, 3])),
                memory_mib=100,
                application="resnet50_fp32",
                preemptible=Preemptible(restart_s=3.3),
            ),
            0,
            rng.exponential(50.0, len(ledger.layout.gpu_models)),
            restart_s=3.3,
        )
        if number % 3:
            entry.job = replace(entry.job, attempts=(before,), remaining_ratio=float(rng.uniform(0.01, 1.0)))
        entry.job = replace(entry.job, submit_s=float(number))
        ledger.enqueue(entry)
    time_s = 123.456
    for _ in range(3):
        seen, queue = ledger.observe(time_s), ledger.queued()
        assert seen.preemption is not None
        table = seen.table
        for row, place in enumerate(table.job.tolist()):
            entry, gpus = queue[place], gpus_of(table.gpus[row])
            assert ledger.duration_on_s(entry, gpus) == table.duration_s[row]
        for place, entry in enumerate(queue):
            assert seen.kind_duration_s[0, place, seen.gpu_kind[0]].tolist() == ledger.durations_s(entry).tolist()
            assert seen.preemption.job_attained_s[0, place] == (6.5 if entry.job.attempts else 0.0)
        if not len(table.job):
            return
        entry, gpus = queue[int(table.job[0])], gpus_of(table.gpus[0])
        expected_s = float(table.duration_s[0])
        ledger.place(entry, gpus, time_s)
        assert entry.expected_end_s == time_s + expected_s
        after, left = ledger.observe_after(seen, queue, int(table.job[0]), gpus)
        np.testing.assert_equal(dataclasses.asdict(after), dataclasses.asdict(ledger.observe(time_s)))
        assert left == ledger.queued()


def test_who_may_be_stopped_now() -> None:
    rules, entry = StopRules(min_run_s=60.0), Entry(job(1, preemptible=Preemptible()), 0, np.ones(1))
    running = replace(entry.job, state=JobState.RUNNING, attempts=(JobAttempt(1, Placement.on("a"), "m", 0.0),))
    entry.job, entry.phase, entry.gpus = running, Phase.PLACED, (0,)
    assert [rules.may_stop(entry, time_s) for time_s in (0.0, 59.9, 60.0)] == [False, False, True]
    # Its time counts from its program's start, where the cluster reports that.
    entry.job = replace(running, attempts=(replace(running.attempts[0], run_s=30.0),))
    assert [rules.may_stop(entry, time_s) for time_s in (89.9, 90.0)] == [False, True]
    # It restores for so long, by what is expected.
    stopped = JobAttempt(1, Placement.on("a"), "m", 0.0, 1.0, "preempted", preempted=True)
    entry.job, entry.restart_cost_s = (
        replace(running, attempts=(stopped, replace(running.attempts[0], attempt=2))),
        99.0,
    )
    assert [rules.may_stop(entry, time_s) for time_s in (98.9, 99.0)] == [False, True]
    others = (
        replace(running, cancel_requested=True),
        replace(running, spec=replace(running.spec, preemptible=None)),
        replace(running, state=JobState.PENDING),
        replace(running, attempts=(replace(running.attempts[0], outcome="given up: no answer"),)),
    )
    for each in others:
        entry.job = each
        assert not rules.may_stop(entry, 1000.0)
    entry.job = replace(running, state=JobState.PENDING)
    assert StopRules(0.0, starts_at_once=True).may_stop(entry, 0.0)
    assert not StopRules(None, starts_at_once=True).may_stop(entry, 1000.0)
    entry.job, entry.stopped_for = running, "job-9"
    assert not rules.may_stop(entry, 1000.0)
    entry.stopped_for, entry.victims = "", [entry]
    assert not rules.may_stop(entry, 1000.0)
