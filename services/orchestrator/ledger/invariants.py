"""Invariants of a ledger, for tests: its arrays agree with its entries, and the queue with its columns."""

from __future__ import annotations

from collections import Counter

import numpy as np

from adlro.records.jobs import AttemptRef, JobState, PendingReason
from adlro.services.orchestrator.ledger.counts import ELSEWHERE
from adlro.services.orchestrator.ledger.entry import Entry, Phase
from adlro.services.orchestrator.ledger.ledger import Ledger
from adlro.services.orchestrator.ledger.sharing import asks_for_a_part
from adlro.state.cluster_arrays import IDLE


def check_ledger(ledger: Ledger) -> None:
    """Checks all invariants.

    Raises:
        AssertionError: on the first violation.
    """
    for job_id, entry in ledger.entries.items():
        assert entry.job.job_id == job_id
        _check_entry(ledger, entry)
    _check_occupancy(ledger)
    _check_queue(ledger)
    _check_counts(ledger)


def _check_counts(ledger: Ledger) -> None:
    counts, entries = ledger.counts, list(ledger.entries.values())
    placed = [entry for entry in entries if entry.phase is Phase.PLACED]
    waiting = [entry for entry in entries if entry.phase in (Phase.QUEUED, Phase.PAUSED)]
    models = [int(ledger.layout.gpu_model[entry.gpus[0]]) if entry.gpus else ELSEWHERE for entry in placed]
    assert counts.phases == Counter(entry.phase for entry in entries), "jobs by phase are miscounted"
    assert counts.by_model == Counter(models), "placed jobs by model are miscounted"
    launching = sum(entry.job.state is JobState.PENDING for entry in placed)
    assert counts.launching == launching, f"{counts.launching} jobs count as launching, not {launching}"
    assert counts.by_reason == Counter(entry.job.pending_reason for entry in waiting), "reasons are miscounted"
    assert counts.by_job_type == Counter(entry.job.spec.job_type for entry in waiting), "types are miscounted"
    assert counts.by_user == Counter(entry.job.spec.user for entry in waiting), "users are miscounted"


def _check_entry(ledger: Ledger, entry: Entry) -> None:
    job, where = entry.job, f"{entry.job.job_id}, {entry.phase.value}"
    assert not job.state.final, f"{where}: its record is final"
    assert (entry.row >= 0) == (entry.phase is Phase.QUEUED), f"{where}: row {entry.row} of the queue"
    _check_stops(entry, where)
    if entry.phase is not Phase.PLACED:
        assert not entry.gpus, f"{where}: holds GPUs {entry.gpus}"
        assert job.state is JobState.PENDING, f"{where}: {job.state.name} by its record"
        assert job.pending_reason is not PendingReason.LAUNCHING, f"{where}: being launched by its record"
        assert not job.attempts or job.attempts[-1].end_s is not None, f"{where}: its last attempt has not ended"
        return
    assert job.attempts, f"{where}: it has no attempt"
    assert job.attempts[-1].end_s is None, f"{where}: its attempt has ended"
    launching = job.state is JobState.PENDING and job.pending_reason is PendingReason.LAUNCHING
    assert launching or job.state is JobState.RUNNING, f"{where}: {job.state.name}, {job.pending_reason.name}"
    if entry.gpus:
        held = tuple(ledger.layout.gpu_ids[gpu] for gpu in entry.gpus)
        assert set(held) == set(job.placement.gpu_ids), f"{where}: its record says {job.placement}"
        assert len(held) == job.spec.gpu_count, f"{where}: it asks for {job.spec.gpu_count} GPUs and holds {held}"
        assert len({int(ledger.layout.gpu_model[gpu]) for gpu in entry.gpus}) == 1, f"{where}: models differ on {held}"


def _check_stops(entry: Entry, where: str) -> None:
    preemptor = entry.preemptor
    if entry.phase is not Phase.PLACED:
        parts = (entry.victims, entry.ceded, entry.stopped_for, preemptor)
        assert not any(parts), f"{where}: part of a preemption"
    assert len(set(map(id, entry.victims))) == len(entry.victims), f"{where}: waits twice for one job"
    for victim in entry.victims:
        assert victim.preemptor is entry, f"{where}: waits for {victim.job.job_id}, which is not stopped for it"
        assert victim.job.spec.preemptible is not None, f"{where}: {victim.job.job_id} can't be stopped"
        ref = AttemptRef(victim.job.job_id, victim.job.attempt_count)
        assert ref in entry.job.attempts[-1].preempts, f"{where}: its record does not say that {ref} is stopped for it"
    if entry.victims:
        assert entry.job.state is JobState.PENDING, f"{where}: runs, and others have not ended"
    if preemptor is None:
        assert not entry.ceded, f"{where}: has ceded GPUs to nobody"
        return
    assert entry in preemptor.victims, f"{where}: {preemptor.job.job_id} does not wait for it"
    assert entry.stopped_for == preemptor.job.job_id, f"{where}: stopped for {entry.stopped_for}"
    assert set(entry.ceded) == set(entry.gpus) & set(preemptor.gpus), f"{where}: has ceded {entry.ceded}"


def _check_occupancy(ledger: Ledger) -> None:
    layout, occupancy = ledger.layout, ledger.occupancy
    placed = [(entry, gpu) for entry in ledger.entries.values() for gpu in entry.held]
    preemptible = {entry.job.job_id for entry, _ in placed if entry.job.spec.preemptible is not None}
    assert preemptible <= ledger._preemptible.keys(), "a job that runs is not among those that may be stopped"
    held = Counter(gpu for _, gpu in placed)
    for gpu, count in held.items():
        there = [entry for entry, its in placed if its == gpu]
        parts = count == 2 and all(entry.has_part and entry.mate in there for entry in there)
        assert count == 1 or parts, f"GPU {gpu} is held by {[entry.job.job_id for entry in there]}"
    seconds = [entry for entry, _ in placed if ledger.is_second(entry)]
    _check_shares(ledger, [entry for entry, _ in placed], seconds)
    assert [holder != "" for holder in occupancy.holder] == [gpu in held for gpu in range(len(layout.gpu_ids))]
    cores, memory_mib = layout.node_cores.copy(), layout.node_memory_mib.copy()
    for entry, gpu in placed:
        spec = entry.job.spec
        node = layout.gpu_node[gpu]
        if entry in seconds:
            cores[node] -= spec.cpu_cores
            memory_mib[node] -= spec.memory_mib
            continue
        assert occupancy.holder[gpu] == entry.job.job_id, f"{occupancy.holder[gpu]} holds {layout.gpu_ids[gpu]}"
        stopped = [victim for victim in entry.victims if gpu in victim.ceded]
        assert len(stopped) <= 1 or all(each.has_part for each in stopped), "two jobs are stopped on one GPU"
        assert (occupancy.run[gpu], occupancy.gang[gpu]) == (entry.held[0], len(entry.held))
        assert occupancy.expected_end_s[gpu] == entry.expected_end_s, "its GPUs end at other times"
        assert ledger._since_s[gpu] == entry.since_s, "its GPUs began at other times"
        ends = [layout.held_with(each.job.spec, each.gpus)[gpu] for each in stopped]
        its_cores, its_memory_mib = layout.held_with(spec, entry.gpus)[gpu]
        assert occupancy.cores_held[gpu] == max(its_cores, sum(each for each, _ in ends))
        assert occupancy.memory_held_mib[gpu] == max(its_memory_mib, sum(each for _, each in ends))
        assert layout.allowed_nodes(spec)[node], f"{entry.job.job_id} is on {layout.node_ids[node]}"
        others = {each.job.job_id for each, other in placed if layout.gpu_node[other] == node} - {entry.job.job_id}
        on_way = {each.job.job_id for each in [*entry.victims, *filter(None, [entry.preemptor])]}
        assert not spec.exclusive or others <= on_way, f"{entry.job.job_id} is not alone on {layout.node_ids[node]}"
        assert ledger._holder_user[gpu] == ledger.user_service.number_of(spec.user)
        cores[node] -= occupancy.cores_held[gpu]
        memory_mib[node] -= occupancy.memory_held_mib[gpu]
    assert np.array_equal(cores, occupancy.cores_free), "free cores and what is held do not add up"
    assert np.array_equal(memory_mib, occupancy.memory_free_mib), "free memory and what is held do not add up"
    assert np.count_nonzero(ledger._holder_user >= 0) == len(placed) - len(seconds)
    idle = [gpu for gpu in range(len(layout.gpu_ids)) if gpu not in held]
    assert (occupancy.run[idle] == IDLE).all(), "an idle GPU has a job"
    assert not occupancy.gang[idle].any(), "an idle GPU has a job"


def _check_shares(ledger: Ledger, placed: list[Entry], seconds: list[Entry]) -> None:
    """Checks the jobs that have parts of GPUs."""
    parted = [entry for entry in ledger.entries.values() if entry.has_part]
    assert {id(entry) for entry in ledger._parted.values()} == {id(entry) for entry in parted}
    for entry in parted:
        assert entry.job.spec.shareable, f"{entry.job.job_id} has a part of a GPU and may not share one"
        mate = entry.mate
        if mate is None:
            assert entry.told == 1.0, f"{entry.job.job_id} is alone, and expected to be slower"
            continue
        assert mate.mate is entry, f"{entry.job.job_id} shares with {mate.job.job_id}, which does not"
        assert mate.gpus == entry.gpus, f"{entry.job.job_id} and {mate.job.job_id} are on other GPUs"
        assert 0.0 < entry.told <= 1.0
        if entry.held and mate.held:
            assert (entry in seconds) != (mate in seconds), f"both or none of {entry.job.job_id} and its mate are first"
            memory_mib = entry.job.spec.gpu_memory_mib + mate.job.spec.gpu_memory_mib
            assert memory_mib <= ledger.layout.gpu_memory_mib[entry.gpus[0]], f"{entry.gpus}: more memory than it has"


def _check_queue(ledger: Ledger) -> None:
    waiting, columns = ledger._queue.entries, ledger._queue.columns.jobs
    queued = [entry for entry in ledger.entries.values() if entry.phase is Phase.QUEUED]
    assert len(waiting) == len(queued), "the queue and the entries differ"
    assert ledger._queue._places == [entry.order for entry in waiting] == sorted(ledger._queue._places), (
        "the queue is out of order"
    )
    rows = [entry.row for entry in waiting]
    assert list(ledger._queue._rows) == rows, "the rows are not those of the queue"
    assert len(set(rows)) == len(rows), "two jobs share a row"
    assert not set(rows) & set(ledger._queue.columns._free), "a job's row is free"
    assert ledger.reserved is None or ledger.reserved in waiting, "a job holds a reservation and does not wait"
    for entry in waiting:
        row, spec = entry.row, entry.job.spec
        assert columns.submit_s[0, row] == (entry.job.submit_s or 0.0)
        assert ledger._queue.columns.remaining_ratio[0, row] == entry.job.remaining_ratio
        assert ledger._queue.columns.restart_s[0, row] == entry.restart_s
        assert ledger._queue.columns.stopped[0, row] == entry.job.resumes
        assert np.array_equal(columns.expected_s[0, row], entry.expected_s)
        assert (columns.expected_spread_speed[0, row] == entry.spread_speed).all()
        assert (columns.gpu_count[0, row], columns.max_nodes[0, row]) == (spec.gpu_count, spec.max_node_count)
        assert columns.expected_spread[0, row] == entry.spread
        assert (columns.shareable[0, row], columns.family[0, row]) == (
            asks_for_a_part(spec),
            ledger._pairs.family(spec),
        )
        assert (columns.cores[0, row], columns.memory_mib[0, row]) == (spec.cpu_cores, spec.memory_mib)
        assert columns.exclusive[0, row] == spec.exclusive
        if columns.node_allowed.shape[2]:
            assert np.array_equal(columns.node_allowed[0, row], ledger.layout.allowed_nodes(spec))
        else:
            assert not spec.chooses_nodes
        assert (columns.gpu_memory_mib[0, row], columns.priority[0, row]) == (spec.gpu_memory_mib, spec.priority)
