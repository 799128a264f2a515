"""Exclusive jobs, and jobs that choose their nodes, in the ledger and in what people are told."""

from __future__ import annotations

import numpy as np
import pytest

from adlro.decide.policies.base import BusyStart
from adlro.records.cluster import Cluster
from adlro.records.jobs import PendingReason, Preemptible
from adlro.records.waiting import GpuObstacle
from adlro.services.orchestrator.deciding.guard import may_stop_for
from adlro.services.orchestrator.deciding.sets import why_no_set
from adlro.services.orchestrator.explain.obstacles import changes, fitting_count, obstacles
from adlro.services.orchestrator.explain.waits import waits
from adlro.services.orchestrator.forecasts.moments import moment_of, take
from adlro.services.orchestrator.ledger.entry import Entry, Phase
from adlro.services.orchestrator.ledger.ledger import Ledger
from adlro.services.orchestrator.ledger.quotas import Quotas
from adlro.services.orchestrator.ledger.user_rules import UserRules
from adlro.state.gangs import gpus_of
from tests.ledgers import node as node_of
from tests.ledgers import queue
from tests.unit.orchestrator.test_ledger_reflect import drawn_cluster, is_as_made_anew

NOTHING = np.zeros(5, dtype=np.bool_)


def on_nodes(ledger: Ledger) -> dict[int, list[Entry]]:
    """The jobs that hold GPUs of each node."""
    found: dict[int, list[Entry]] = {}
    for entry in ledger.entries.values():
        for number in {int(ledger.layout.gpu_node[gpu]) for gpu in entry.held}:
            found.setdefault(number, []).append(entry)
    return found


def check(ledger: Ledger) -> None:
    layout = ledger.layout
    cores, memory_mib = layout.node_cores.copy(), layout.node_memory_mib.copy()
    held = ledger.occupancy.cores_held, ledger.occupancy.memory_held_mib
    np.subtract.at(cores, layout.gpu_node, held[0])
    np.subtract.at(memory_mib, layout.gpu_node, held[1])
    np.testing.assert_array_equal(cores, ledger.occupancy.cores_free)
    np.testing.assert_array_equal(memory_mib, ledger.occupancy.memory_free_mib)
    for number, there in on_nodes(ledger).items():
        for entry in there:
            spec = entry.job.spec
            assert spec.accepts_node(layout.node_ids[number])
            others = [each for each in there if each is not entry and each.preemptor is not entry]
            if spec.exclusive and entry.preemptor is None:
                assert not others, (entry.job, [each.job for each in others])


@pytest.mark.parametrize("seed", range(30))
def test_in_drawn_courses_of_the_ledger_nobody_is_where_it_must_not_be(seed: int) -> None:
    rng = np.random.default_rng(seed)
    cluster = drawn_cluster(rng)
    ledger = Ledger(cluster, min_run_s=0.0 if seed % 3 == 0 else None)
    names = [node.node_id for node in cluster.nodes]
    time_s = 0.0
    for number in range(60):
        time_s += 1.0
        some = tuple(str(each) for each in rng.choice(names, size=int(rng.integers(1, len(names) + 1)), replace=False))
        kind = int(rng.integers(4))
        spec = {
            "gpu_count": int(rng.choice([1, 1, 2, 3])),
            "cpu_cores": int(rng.choice([1, 2])),
            "memory_mib": int(rng.choice([100, 500])),
            "application": "resnet50_fp32",
            "exclusive": bool(rng.random() < 0.3),
            "node_ids": some if kind == 0 else (),
            "excluded_node_ids": some if kind == 1 else (),
            "preemptible": Preemptible() if rng.random() < 0.5 else None,
        }
        queue(ledger, number, tuple(rng.exponential(50.0, 3)), submit_s=time_s, **spec)
        seen, entries = ledger.look(time_s)
        for row in range(len(seen.table.job)):
            # What the table says, and what people are told of each pair.
            entry = entries[int(seen.table.job[row])]
            if entry.gpu_count == 1:
                assert ledger.occupancy.mask_reason(entry.job.spec, int(seen.table.gpu[row]), time_s) == ""
            assert fitting_count(entry.job.spec, ledger.occupancy, np.zeros(len(ledger.layout.gpu_ids), dtype=np.bool_))
        for place, entry in enumerate(entries):
            free = [
                gpu
                for gpu in range(len(ledger.layout.gpu_ids))
                if ledger.occupancy.mask_reason(entry.job.spec, gpu, time_s) == ""
            ]
            if entry.gpu_count == 1:
                assert bool(free) == bool(seen.table.rows_of_job[0, place])
                assert not free or ledger.can_ever_start(entry)
        while len(seen.table.job) and rng.random() < 0.6:
            row = int(rng.integers(len(seen.table.job)))
            job, gpus = int(seen.table.job[row]), gpus_of(seen.table.gpus[row])
            assert seen.table.duration_s[row] == ledger.duration_on_s(entries[job], gpus)
            ledger.place(entries[job], gpus, time_s)
            check(ledger)
            seen, entries = ledger.observe_after(seen, entries, job, gpus)
            anew = ledger.observe(time_s)
            rows = [place for place in range(seen.job_waiting.shape[1]) if entries[place].phase is Phase.QUEUED]
            if seen.nodes is None and seen.preemption is None:
                is_as_made_anew(seen, anew, rows)
            for column, its in zip(seen.table[2:], anew.table[2:], strict=True):
                np.testing.assert_array_equal(column, its)
        _stop_some(ledger, rng, time_s)
        placed = [entry for entry in ledger.entries.values() if entry.phase is Phase.PLACED]
        for entry in placed:
            if rng.random() < 0.3 and not entry.victims:
                ledger.forget(entry, time_s)
                check(ledger)


def _stop_some(ledger: Ledger, rng: np.random.Generator, time_s: float) -> None:
    """Tries drawn starts that stop others; those that the guard lets through are placed."""
    seen, entries = ledger.look(time_s + 0.5)
    if seen.preemption is None:
        return
    for _ in range(20):
        place = int(rng.integers(len(entries))) if entries else -1
        if place < 0:
            return
        count = entries[place].gpu_count
        if count > len(ledger.layout.gpu_ids):
            continue
        gpus = tuple(sorted(rng.choice(len(ledger.layout.gpu_ids), size=count, replace=False).tolist()))
        busy = [gpu for gpu in gpus if not seen.gpu_idle[0, gpu]]
        seen_stoppable = seen.preemption.gpu_stoppable[0]
        if busy and may_stop_for(seen, BusyStart(place, gpus, stops=True)):
            assert not entries[place].job.spec.exclusive
            assert seen_stoppable[busy].all()
            ledger.place(entries[place], gpus, time_s + 0.5, ledger.holders(busy))
            check(ledger)
            return


def reasons(ledger: Ledger, entry: Entry) -> tuple[PendingReason, str]:
    (wait,) = waits(ledger, [entry], 1.0, "the policy holds it back").reasons
    return wait.reason, wait.text


def test_why_an_exclusive_job_waits_is_said(cluster: Cluster) -> None:
    ledger = Ledger(cluster)
    for number, gpu in enumerate((0, 2, 4)):
        ledger.place(queue(ledger, number, (9, 9, 9)), (gpu,), 0.0)
    alone = queue(ledger, 10, (5, 5, 5), exclusive=True)
    assert ledger.observe(1.0).table.rows_of_job.tolist() == [[0]]
    assert reasons(ledger, alone) == (
        PendingReason.RESOURCES,
        "waits for a GPU with 1 core and 1024 MiB on its node, on a node without other jobs",
    )
    told = obstacles(alone.job.spec, ledger.occupancy, False, NOTHING)
    assert told == {GpuObstacle.BUSY: 3, GpuObstacle.NODE_SHARED: 2}
    assert GpuObstacle.NODE_SHARED.label == "idle, on nodes where other jobs run"
    assert changes(alone.job.spec, ledger.occupancy, NOTHING) == ()
    said = ledger.occupancy.mask_reason(alone.job.spec, 1, 1.0)
    assert said == "the job is exclusive, and job-0 runs on volta-0"
    ledger.forget(ledger.entries["job-0"], 1.0)
    assert ledger.observe(1.0).table.rows_of_job.tolist() == [[1]]
    ledger.place(alone, (1,), 1.0)
    assert ledger.occupancy.cores_free.tolist() == [0, 7, 7]
    other = queue(ledger, 11, (5, 5, 5), gpu_model="v100_sxm2")
    assert obstacles(other.job.spec, ledger.occupancy, False, NOTHING) == {
        GpuObstacle.MODEL: 3,
        GpuObstacle.BUSY: 1,
        GpuObstacle.NODE_FULL: 1,
    }
    assert ledger.occupancy.mask_reason(other.job.spec, 0, 1.0) == "needs 1 cores, 0 are free on volta-0"


def test_why_a_job_that_chooses_nodes_waits_is_said(cluster: Cluster) -> None:
    ledger = Ledger(cluster)
    only = queue(ledger, 1, (5, 5, 5), nodelist="volta-0", exclude=["radeon-0"])
    told = obstacles(only.job.spec, ledger.occupancy, True, NOTHING)
    assert told == {GpuObstacle.NODE: 3, GpuObstacle.POLICY: 2}
    for gpu in (0, 1):
        ledger.place(queue(ledger, 10 + gpu, (9, 9, 9)), (gpu,), 0.0)
    reason, text = reasons(ledger, only)
    assert reason is PendingReason.RESOURCES
    assert text.endswith("on its node, on one of volta-0, not on radeon-0")
    assert ledger.occupancy.mask_reason(only.job.spec, 2, 1.0) == "not a node of its list"
    assert ledger.occupancy.mask_reason(only.job.spec, 4, 1.0) == "the job excludes radeon-0"
    ledger.set_drained(["volta-0"])
    assert reasons(ledger, only)[0] is PendingReason.NODES_DRAINED
    never = queue(ledger, 2, (5, 5, 5), nodelist=["gone"])
    assert not ledger.can_ever_start(never)
    assert reasons(ledger, never)[0] is PendingReason.NO_FITTING_GPU


def test_a_gang_that_its_nodes_can_never_hold_is_told(cluster: Cluster) -> None:
    ledger = Ledger(cluster)
    gang = queue(ledger, 1, (5, 5, 5), gpus=2, exclude=["volta-0"])
    assert ledger.can_ever_start(gang)  # on turing-0
    seen = ledger.observe(0.0)
    assert [gpus_of(row) for row in seen.table.gpus] == [(2, 3)]
    none = queue(ledger, 2, (5, 5, 5), gpus=2, exclude=["volta-0", "turing-0"])
    assert not ledger.can_ever_start(none)
    assert reasons(ledger, none)[0] is PendingReason.NO_FITTING_NODES


def test_a_gang_is_told_the_nodes_that_its_own_ones_make_it_take() -> None:
    names = ("a", "b", "d")
    there = Cluster("c", tuple(node_of(name, "v100_sxm2", 16160, gpus=4 if name == "a" else 2) for name in names))
    ledger = Ledger(there)
    ledger.place(queue(ledger, 1, (5, 5, 5)), (4,), 0.0)
    gang = queue(ledger, 2, (5, 5, 5), gpus=4, nodelist="b,d")
    assert reasons(ledger, gang)[1].endswith("on b, d; they fit on 2 nodes of v100_sxm2")
    told = why_no_set(gang.job.spec, ledger.occupancy, 0)
    assert told == "needs 4 GPUs on 2 nodes; 3 are free, on 2 nodes, at most 2 on one"


def test_nodes_that_an_exclusive_job_has_for_itself_are_not_short_of_cores_and_memory(cluster: Cluster) -> None:
    ledger = Ledger(cluster)
    ledger.place(queue(ledger, 1, (5, 5, 5), exclusive=True), (0,), 0.0)
    assert ledger.occupancy.node_whole.tolist() == [True, False, False]
    for number, gpus in ((2, 1), (3, 2)):
        waiting = queue(ledger, number, (5, 5, 5), gpus=gpus, nodelist="volta-0")
        assert reasons(ledger, waiting)[1].startswith("waits for")


def test_columns_of_nodes_are_there_only_while_a_job_chooses(cluster: Cluster) -> None:
    ledger = Ledger(cluster)
    plain = queue(ledger, 1, (5, 6, 7))
    assert ledger.observe(0.0).nodes is None
    picky = queue(ledger, 2, (5, 6, 7), exclude="volta-0")
    seen = ledger.observe(0.0)
    assert seen.nodes is not None
    assert np.isinf(seen.durations_s(0, 1)[:2]).all()
    assert np.isfinite(seen.durations_s(0, 0)).all()
    ledger.forget(picky)
    assert ledger.observe(0.0).nodes is None
    assert ledger._queue.columns.jobs.node_allowed.shape[2] == 0
    for number in range(10, 600):  # the columns grow, with and without a choice
        queue(ledger, number, (5, 6, 7), **({"nodelist": "turing-0"} if number % 97 == 0 else {}))
    seen = ledger.observe(0.0)
    assert seen.nodes is not None
    chosen = [entry.job.spec.chooses_nodes for entry in ledger.queued()]
    assert seen.nodes.job_choosing[0].tolist() == chosen
    assert plain.job.spec.node_ids == ()


@pytest.mark.parametrize("at", [0, 8])
@pytest.mark.parametrize("spec", [{"exclusive": True}, {"exclude": "volta-0"}])
def test_after_a_start_no_more_jobs_are_looked_at_than_before(
    cluster: Cluster, spec: dict[str, object], at: int
) -> None:
    ledger = Ledger(cluster)
    for number in range(9):
        queue(ledger, number, (5, 6, 7), submit_s=float(number), **(spec if number == at else {}))
    seen, entries = ledger.look(10.0, 3)
    assert (seen.nodes is not None) == (at == 0)
    ledger.place(entries[1], (4,), 10.0)
    seen, entries = ledger.observe_after(seen, entries, 1, (4,), 3)
    assert len(entries) == 3
    assert (seen.nodes is not None) == (at == 0)
    ledger.reserve(ledger.queued()[5], 10.0)  # from a look at more
    if at == 0:
        seen, entries = ledger.observe_after(seen, entries, 1, (4,), 3)
        assert len(entries) == 8


def test_after_a_start_of_a_user_with_a_quota_no_more_jobs_are_looked_at_than_before(cluster: Cluster) -> None:
    ledger = Ledger(cluster, user_rules=UserRules(quotas=Quotas({"ann": 3})))
    for number in range(9):
        queue(ledger, number, (5, 6, 7), submit_s=float(number))
    seen, entries = ledger.look(10.0, 3)
    ledger.place(entries[1], (4,), 10.0)
    seen, entries = ledger.observe_after(seen, entries, 1, (4,), 3)
    assert len(entries) == 3


def test_an_exclusive_job_asks_for_the_least_of_the_nodes_that_can_hold_it_in_looks_and_forecasts() -> None:
    sizes = {"a": 8, "b": 4, "d": 2}
    there = Cluster("c", tuple(node_of(name, "v100_sxm2", 16160, cores=cores) for name, cores in sizes.items()))
    ledger = Ledger(there)
    queue(ledger, 1, (5, 5, 5), exclusive=True)
    queue(ledger, 2, (5, 5, 5), exclusive=True, cpu_cores=3)
    queue(ledger, 3, (5, 5, 5), exclusive=True, exclude="b,d")
    queue(ledger, 4, (5, 5, 5), exclusive=True, gpu_count=2)
    queue(ledger, 5, (5, 5, 5))
    asked = [2, 4, 8, 1, 1]
    seen = ledger.observe(0.0)
    assert seen.job_cores.tolist() == [asked]
    assert seen.job_memory_mib.tolist() == [[65536, 65536, 65536, 1024, 1024]]
    jobs = moment_of(take(ledger, 0.0)).queue
    assert jobs.cores.tolist() == asked
    assert jobs.memory_mib.tolist() == seen.job_memory_mib[0].tolist()
