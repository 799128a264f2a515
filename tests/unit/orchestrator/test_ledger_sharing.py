"""Two jobs on a GPU in the ledger: expected as in adlro/state/machines.py, to the bit, and as observations have it."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import numpy as np
import pytest

from adlro.placement import SHARED, Placement
from adlro.records.cluster import Cluster, Gpu, Node
from adlro.records.jobs import JobAttempt, JobState, Preemptible
from adlro.records.outcomes import ApplicationSize, NeighbourTime
from adlro.services.orchestrator.ledger.entry import Entry
from adlro.services.orchestrator.ledger.invariants import check_ledger
from adlro.services.orchestrator.ledger.ledger import Ledger
from adlro.services.orchestrator.ledger.preempting import gpu_figures, refs
from adlro.services.orchestrator.ledger.sharing import PairTable, asks_for_a_part, is_open, time_beside_s
from adlro.state.cluster_arrays import IDLE, Machines, empty_machines
from adlro.state.machines import count_nodes, occupy, occupy_beside, swap_mates, vacate
from tests.ledgers import MODELS, job, queue
from tests.unit.orchestrator.test_ledger_reflect import is_as_made_anew

APPLICATIONS = ("a", "b", "c", "unknown")
COUNT = len(MODELS)


def drawn_table(rng: np.random.Generator) -> PairTable:
    kept = rng.uniform(0.2, 1.0, (3, 3, COUNT))
    kept[rng.random(kept.shape) < 0.15] = 0.0
    kept[rng.random(kept.shape) < 0.1] = 1.0
    return PairTable.of([ApplicationSize(name) for name in APPLICATIONS[:3]], kept)


def big_cluster() -> Cluster:
    """All three models, on nodes that hold whatever comes."""
    nodes = tuple(
        Node(f"n{number}", 256, 1 << 20, tuple(Gpu(f"n{number}/{gpu}", model, 32768) for gpu in range(2)))
        for number, model in enumerate(MODELS)
    )
    return Cluster("big", nodes)


def run(entry: Entry, gpu_id: str, start_s: float, share: float = SHARED) -> None:
    """As if the cluster had started it."""
    attempt = JobAttempt(entry.job.attempt_count + 1, Placement.on(gpu_id), "m", start_s)
    placement = Placement((replace(Placement.on(gpu_id).gpus[0], share=share),))
    attempt = replace(attempt, placement=placement)
    entry.job = replace(
        entry.job, state=JobState.RUNNING, start_s=start_s, placement=placement, attempts=(*entry.job.attempts, attempt)
    )


def place(ledger: Ledger, entry: Entry, gpu: int, time_s: float) -> None:
    share = ledger.share_of(entry.job.spec)
    ledger.place(entry, (gpu,), time_s, share=share)
    run(entry, ledger.layout.gpu_ids[gpu], time_s, share)
    ledger.count_anew(entry)


@pytest.mark.parametrize("seed", range(12))
def test_expected_ends_of_two_jobs_are_those_of_the_simulator_to_the_bit(seed: int) -> None:
    rng = np.random.default_rng(seed)
    table = drawn_table(rng)
    ledger = Ledger(big_cluster(), shares=True, pairs=table)
    layout = ledger.layout
    machines = empty_machines(layout.hardware, shares=True)
    machines.gpu_speed[:] = 1.0
    machines.gpu_kept[:] = machines.gpu_told[:] = 1.0
    machines.idle_count[:] = len(layout.gpu_ids)
    machines.cores_free[0], machines.memory_free_mib[0] = layout.node_cores, layout.node_memory_mib
    count_nodes(layout.hardware, machines, 0)
    speeds = rng.choice([1.0, 0.7, 0.5], len(layout.gpu_ids))
    ledger.set_speeds(dict(zip(layout.gpu_ids, speeds.tolist(), strict=True)))
    time_s, number, pairs = 1000.0, 0, 0
    for _ in range(300):
        time_s = time_s if rng.random() < 0.2 else float(np.round(time_s + rng.exponential(20.0), 3))
        machines.time_s[0] = time_s
        there = [entry for entry in ledger.entries.values() if entry.gpus]
        if there and rng.random() < 0.45:
            entry = there[rng.integers(len(there))]
            gpu = entry.gpus[0]
            if machines.gpu_job[0, gpu] != int(entry.job.job_id.removeprefix("job-")):
                swap_mates.py_func(machines, 0, gpu)  # type: ignore[attr-defined]  # compiled code calls it alone
            vacate(layout.hardware, machines, 0, gpu)
            ledger.forget(entry, time_s)
        else:
            number += 1
            entry = queue(
                ledger,
                number,
                tuple(rng.exponential(50.0, 3)),
                application=str(rng.choice(APPLICATIONS)),
                shareable=bool(rng.random() < 0.85),
                cpu_cores=int(rng.integers(1, 5)),
                memory_mib=int(rng.integers(1, 1000)),
                preemptible=Preemptible(restart_s=3.3),
            )
            if rng.random() < 0.5:
                ledger._leave_queue(entry)
                before = JobAttempt(1, Placement.on("n0/0"), "m", 1.0, 7.5, "preempted", preempted=True)
                entry.restart_cost_s = 3.3
                entry.job = replace(entry.job, attempts=(before,), remaining_ratio=float(rng.uniform(0.01, 1.0)))
                ledger.enqueue(entry)
            spec, placed = entry.job.spec, False
            for gpu in rng.permutation(len(layout.gpu_ids)).tolist():
                holder = ledger.entries.get(ledger.occupancy.holder[gpu])
                model = int(layout.gpu_model[gpu])
                args = (
                    *(layout.hardware, machines, 0, gpu, number, 1.0, entry.job.remaining_ratio, 0.0, entry.restart_s),
                    *(float(entry.expected_s[model] / speeds[gpu]), spec.cpu_cores, spec.memory_mib),
                )
                if holder is None:
                    occupy(*args)
                elif holder.has_part and is_open(holder) and spec.shareable:
                    told = table.kept_by(spec, ApplicationSize.of(holder.job.spec), model)
                    first_told = table.kept_by(holder.job.spec, ApplicationSize.of(spec), model)
                    occupy_beside(*args, 1.0, told, 1.0, first_told)
                    pairs += 1
                else:
                    continue
                place(ledger, entry, gpu, time_s)
                placed = True
                break
            if not placed:
                ledger.forget(entry)
        check_ledger(ledger)
        _agree(ledger, machines)
    assert pairs > 20


def _agree(ledger: Ledger, machines: Machines) -> None:
    numbers = [int(holder.removeprefix("job-")) if holder else IDLE for holder in ledger.occupancy.holder]
    assert machines.gpu_job[0].tolist() == numbers
    busy = machines.gpu_job[0] != IDLE
    assert (machines.gpu_expected_end_s[0] == ledger.occupancy.expected_end_s)[busy].all()
    assert (machines.gpu_start_s[0] == ledger._since_s)[busy].all()
    assert (machines.cores_free[0] == ledger.occupancy.cores_free).all()
    assert (machines.memory_free_mib[0] == ledger.occupancy.memory_free_mib).all()
    for entry in ledger.entries.values():
        second = machines.mate_job[0, entry.gpus[0]] == int(entry.job.job_id.removeprefix("job-"))
        assert ledger.is_second(entry) == second
        if second:
            assert entry.expected_end_s == machines.mate_expected_end_s[0, entry.gpus[0]]
            assert entry.told == machines.mate_told[0, entry.gpus[0]]
        else:
            assert entry.told == machines.gpu_told[0, entry.gpus[0]]


# ---- observations


def pair_on(ledger: Ledger, gpu: int = 0, **spec: object) -> tuple[Entry, Entry]:
    """job-1 since 10 s, and job-2 beside it since 20 s; each takes 100 s alone on a Volta."""
    both = []
    for number in (1, 2):
        entry = queue(
            ledger,
            number,
            (100.0, 200.0, 300.0),
            **{
                "shareable": True,
                "application": APPLICATIONS[number - 1],
                "cpu_cores": number,
                "memory_mib": 100 * number,
                "gpu_memory_mib": 1000 * number,
                "user": f"u{number}",
                **spec,
            },
        )
        place(ledger, entry, gpu, 10.0 * number)
        both.append(entry)
    return both[0], both[1]


def even(kept: float = 0.5) -> PairTable:
    return PairTable.of([ApplicationSize(name) for name in APPLICATIONS[:3]], np.full((3, 3, COUNT), kept))


def test_an_observation_tells_of_both_jobs_on_a_gpu(cluster: Cluster) -> None:
    ledger = Ledger(cluster, shares=True, pairs=even())
    first, second = pair_on(ledger)
    waiting = queue(ledger, 3, (5.0, 5.0, 5.0), shareable=True, application="c", user="u2")
    queue(ledger, 4, (5.0, 5.0, 5.0), application="c")
    seen = ledger.observe(30.0)
    assert [first.expected_end_s, second.expected_end_s] == [20.0 + 90.0 / 0.5, 20.0 + 100.0 / 0.5]
    assert seen.gpu_remaining_s[0, 0] == 190.0, "it is idle when both have ended"
    assert seen.gpu_elapsed_s[0, 0] == 10.0, "the last start counts"
    assert seen.gpu_cores_held[0, 0] == 3
    assert seen.gpu_memory_held_mib[0, 0] == 300
    assert seen.node_cores_free[0].tolist() == [5, 8, 8]
    assert seen.job_user_service_s[0].tolist() == [10.0, 0.0], "u2 has the second"
    assert seen.sharing is not None
    assert seen.sharing.gpu_open[0].tolist() == [False] * 5
    assert seen.sharing.gpu_memory_left_mib[0].tolist() == [16160 - 3000, 16160, 11264, 11264, 16368]
    assert seen.sharing.job_shareable[0].tolist() == [True, False]
    assert seen.sharing.job_family[0].tolist() == [2, 3], "nobody asks for that of a job that does not share"
    ledger.forget(first, 40.0)
    alone = ledger.observe(40.0)
    assert second.expected_end_s == 40.0 + 180.0 * 0.5
    assert alone.gpu_remaining_s[0, 0] == 90.0
    assert alone.gpu_elapsed_s[0, 0] == 20.0
    assert (alone.gpu_cores_held[0, 0], alone.gpu_memory_held_mib[0, 0]) == (2, 200)
    assert alone.sharing is not None
    assert alone.sharing.gpu_open[0].tolist() == [True, False, False, False, False]
    assert alone.sharing.gpu_family[0, 0] == 1
    assert alone.sharing.gpu_memory_left_mib[0, 0] == 16160 - 2000
    place(ledger, waiting, 0, 40.0)
    assert not is_open(second)
    check_ledger(ledger)


def test_a_gpu_is_open_to_others_only_where_it_is_there_and_its_node_takes_jobs(cluster: Cluster) -> None:
    ledger = Ledger(cluster, shares=True, pairs=even())
    for number, gpu in enumerate((0, 1, 2)):
        entry = queue(ledger, number, (5.0, 5.0, 5.0), shareable=True)
        place(ledger, entry, gpu, 0.0)
    whole = queue(ledger, 7, (5.0, 5.0, 5.0))
    place(ledger, whole, 4, 0.0)
    queue(ledger, 8, (5.0, 5.0, 5.0), shareable=True)

    def opens() -> list[bool]:
        sharing = ledger.observe(1.0).sharing
        assert sharing is not None
        return [bool(each) for each in sharing.gpu_open[0]]

    assert opens() == [True, True, True, False, False]
    ledger.set_lost(["volta-0/0"], True)
    assert opens() == [False, True, True, False, False]
    ledger.set_drained(["volta-0"])
    assert opens() == [False, False, True, False, False]


def test_without_jobs_that_share_nothing_is_said(cluster: Cluster) -> None:
    ledger = Ledger(cluster, shares=True, pairs=even())
    queue(ledger, 1, (5.0, 5.0, 5.0))
    assert ledger.observe(0.0).sharing is None
    queue(ledger, 2, (5.0, 5.0, 5.0), shareable=True)
    assert ledger.observe(0.0).sharing is not None
    assert not ledger.can_share_something(0.0), "none runs"
    no = Ledger(cluster, shares=False, pairs=even())
    queue(no, 1, (5.0, 5.0, 5.0), shareable=True)
    assert no.observe(0.0).sharing is None
    assert no.share_of(job(1, shareable=True).spec) == 1.0


def test_only_jobs_of_one_gpu_ask_for_a_part() -> None:
    asked = [job(1, shareable=True), job(1), job(1, shareable=True, gpu_count=2)]
    assert [asks_for_a_part(each.spec) for each in asked] == [True, False, False]


@pytest.mark.parametrize("seed", range(15))
def test_after_a_placement_an_observation_is_as_made_anew(cluster: Cluster, seed: int) -> None:
    """With shares around, and where nobody may share on a cluster of shared GPUs."""
    rng = np.random.default_rng(seed)
    ledger = Ledger(cluster, shares=True, pairs=drawn_table(rng))
    shareable = rng.random() < 0.7
    for number in range(8):
        queue(
            ledger,
            number,
            tuple(rng.exponential(50.0, 3)),
            shareable=bool(shareable and rng.random() < 0.7),
            application=str(rng.choice(APPLICATIONS)),
            submit_s=number / 3,
            gpu_memory_mib=int(rng.choice([0, 6000])),
        )
    seen, waiting, rows = ledger.observe(50.0), ledger.queued(), list(range(8))
    shared = 0
    for _ in range(6):
        entry = ledger.queued()[int(rng.integers(ledger.queue_length))]
        holders = [ledger.entries.get(holder) for holder in ledger.occupancy.holder]
        able = [
            gpu
            for gpu, holder in enumerate(holders)
            if holder is None or (holder.has_part and is_open(holder) and entry.job.spec.shareable)
        ]
        if not able:
            break
        gpu = able[int(rng.integers(len(able)))]
        shared += holders[gpu] is not None
        at = waiting.index(entry)
        place(ledger, entry, gpu, 50.0)
        after, left = ledger.observe_after(seen, waiting, at, (gpu,))
        anew = ledger.observe(50.0)
        if left == ledger.queued():
            np.testing.assert_equal(dataclasses.asdict(after), dataclasses.asdict(anew))
        else:
            assert not shareable or seen.sharing is None
            rows = [place for place, each in enumerate(left) if each.row >= 0]
            assert after.sharing is anew.sharing is None
            is_as_made_anew(after, anew, rows)
        seen, waiting = after, left
        check_ledger(ledger)
    assert shareable or not shared


# ---- stops of jobs that share


@pytest.mark.parametrize("preemptible", [(True, True), (True, False), (False, True), (False, False)])
def test_two_jobs_are_stopped_together_or_not_at_all(cluster: Cluster, preemptible: tuple[bool, bool]) -> None:
    ledger = Ledger(cluster, min_run_s=15.0, shares=True, pairs=even())
    both = []
    for number, may in zip((1, 2), preemptible, strict=True):
        costs = Preemptible(restart_s=float(number)) if may else None
        entry = queue(ledger, number, (100.0,) * 3, shareable=True, preemptible=costs)
        entry.restart_cost_s = float(number) if may else 0.0
        before = JobAttempt(1, Placement.on("volta-0/0"), "m", 0.0, 1.0 + number, "preempted", preempted=True)
        entry.job = replace(entry.job, attempts=(before,)) if may else entry.job
        place(ledger, entry, 0, 10.0 * number)
        both.append(entry)
    queue(ledger, 3, (5.0,) * 3)
    for time_s, both_may in ((30.0, False), (34.9, False), (35.0, True)):
        stops = ledger.observe(time_s).preemption
        if not any(preemptible):
            assert stops is None
            continue
        assert stops is not None
        assert stops.gpu_stoppable[0, 0] == (both_may and all(preemptible))
        assert stops.gpu_restart_s[0, 0] == sum(number * may for number, may in zip((1, 2), preemptible, strict=True))
        had_s = [time_s - 10.0 + 2.0 * preemptible[0], time_s - 20.0 + 3.0 * preemptible[1]]
        assert stops.gpu_attained_s[0, 0] == pytest.approx(sum(had_s))
    seconds = [both[1]]
    figures = gpu_figures(ledger.stop_rules, [], seconds, np.array([20.0, 0.0]), 30.0)
    assert not figures.stoppable.any()


def test_who_holds_gpus_is_named_in_order_and_once(cluster: Cluster) -> None:
    ledger = Ledger(cluster, shares=True, pairs=even())
    gang = queue(ledger, 5, (9.0,) * 3, gpu_count=2, cpu_cores=1)
    ledger.place(gang, (2, 3), 0.0)
    first, second = pair_on(ledger, 1)
    assert ledger.holders([3, 0, 2, 1]) == [first, second, gang]
    assert [each.job_id for each in refs(ledger.holders([1]))] == ["job-1", "job-2"]
    assert ledger.holders([0, 4]) == []
    other = queue(ledger, 6, (9.0,) * 3, cpu_cores=1)
    ledger.place(other, (1,), 30.0, (first, second))
    assert ledger.holders([1]) == [other], "those that end have ceded it"
    assert ledger.occupancy.cores_held[1] == 3
    ledger.release(other, 30.0, stops_asked=False)
    assert ledger.holders([1]) == [first, second]
    assert [first.stopped_for, second.stopped_for] == ["", ""]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_those_that_are_stopped_end_one_after_the_other(cluster: Cluster, order: tuple[int, int]) -> None:
    ledger = Ledger(cluster, shares=True, pairs=even())
    both = pair_on(ledger, preemptible=Preemptible())
    other = queue(ledger, 6, (9.0,) * 3, cpu_cores=1, shareable=True)
    ledger.place(other, (0,), 30.0, both, ledger.share_of(other.job.spec))
    attempt = JobAttempt(1, ledger.layout.placement((0,), SHARED), "m", preempts=refs(both))
    other.job = replace(other.job, attempts=(attempt,), placement=attempt.placement)
    assert ledger.occupancy.cores_free.tolist() == [8 - 3, 8, 8]
    assert not is_open(other), "it waits for them"
    leaves, stays = both[order[0]], both[order[1]]
    before_s = stays.expected_end_s
    ledger.forget(leaves, 40.0)
    assert (stays.mate, stays.told, stays.expected_end_s) == (None, 1.0, 40.0 + (before_s - 40.0) * 0.5)
    assert ledger.occupancy.cores_free.tolist() == [8 - stays.job.spec.cpu_cores, 8, 8]
    assert other.victims == [stays]
    ledger.forget(stays, 41.0)
    assert is_open(other)
    assert ledger.occupancy.cores_free.tolist() == [7, 8, 8]
    assert ledger.entries.keys() == {"job-6"}


def test_where_the_other_gives_up_both_have_their_gpu_as_before(cluster: Cluster) -> None:
    ledger = Ledger(cluster, shares=True, pairs=even())
    both = pair_on(ledger, preemptible=Preemptible())
    ends_s, seen = [each.expected_end_s for each in both], ledger.observe(30.0)
    other = queue(ledger, 6, (9.0,) * 3)
    ledger.place(other, (0,), 30.0, both)
    ledger.forget(other, 30.0)
    check_ledger(ledger)
    assert [each.expected_end_s for each in both] == ends_s
    assert [ledger.is_second(each) for each in both] == [False, True]
    np.testing.assert_equal(dataclasses.asdict(ledger.observe(30.0)), dataclasses.asdict(seen))


# ---- what is told of them


def test_time_together_counts_from_the_later_start_of_both_programs(cluster: Cluster) -> None:
    ledger = Ledger(cluster, shares=True, pairs=even())
    first, second = pair_on(ledger)
    assert time_beside_s(first, second, 50.0) == time_beside_s(second, first, 50.0) == 30.0
    assert time_beside_s(first, second, 15.0) == 0.0, "never less than nothing"
    first.job = replace(first.job, attempts=(replace(first.job.attempts[0], run_s=25.0),))
    assert time_beside_s(first, second, 50.0) == 25.0
    second.job = replace(second.job, start_s=None, attempts=(replace(second.job.attempts[0], start_s=None),))
    assert time_beside_s(first, second, 50.0) == 0.0, "it has not started"


def test_what_was_lost_beside_those_that_have_left_is_remembered(cluster: Cluster) -> None:
    ledger = Ledger(cluster, shares=True, pairs=even(0.75))
    entry = queue(ledger, 1, (100.0,) * 3, shareable=True, application="a")
    place(ledger, entry, 0, 10.0)
    beside = (NeighbourTime(ApplicationSize("b"), 40.0), NeighbourTime(ApplicationSize("unknown"), 10.0))
    entry.job = replace(entry.job, attempts=(replace(entry.job.attempts[0], neighbours=beside),))
    ledger.has_run(entry)
    assert entry.expected_end_s == ledger.occupancy.expected_end_s[0] == 110.0 + 40.0 * 0.25 + 10.0 * 0.5
    entry.job = replace(entry.job, attempts=(replace(entry.job.attempts[0], run_s=15.0, neighbours=()),))
    ledger.has_run(entry)
    assert entry.expected_end_s == 115.0


def test_other_pairs_count_for_those_that_wait_and_come(cluster: Cluster) -> None:
    ledger = Ledger(cluster, shares=True, pairs=even())
    first, second = pair_on(ledger)
    waiting = queue(ledger, 3, (5.0,) * 3, shareable=True, application="c")
    ends_s, changes = [first.expected_end_s, second.expected_end_s], ledger.changes
    ledger.set_pairs(PairTable.of([ApplicationSize("c"), ApplicationSize("a")], np.full((2, 2, COUNT), 0.9)))
    assert ledger.changes > changes, "what was judged is judged again"
    assert [first.expected_end_s, second.expected_end_s] == ends_s
    check_ledger(ledger)
    seen = ledger.observe(30.0).sharing
    assert seen is not None
    assert (seen.job_family[0, 0], seen.gpu_family[0, 0], seen.kept.shape) == (0, 1, (3, 3, COUNT))
    ledger.forget(first, 30.0)
    place(ledger, waiting, 0, 30.0)
    assert (waiting.told, second.told) == (0.5, 0.5), "b is no kind of the new table"
