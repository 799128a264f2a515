"""Occupancy, masks and reasons."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adlro.decide import hold_rule
from adlro.decide.policies.hold_greedy import HoldGreedy, HoldGreedySettings
from adlro.placement import Placement
from adlro.records.attained import AttainedService
from adlro.records.cluster import Cluster
from adlro.records.jobs import PendingReason
from adlro.services.orchestrator.explain.waits import waits
from adlro.services.orchestrator.ledger import occupancy, transitions
from adlro.services.orchestrator.ledger.entry import Entry, Phase
from adlro.services.orchestrator.ledger.ledger import Ledger
from adlro.services.orchestrator.ledger.record_changes import RecordChanges
from adlro.services.orchestrator.ledger.warm import warm
from adlro.state import candidate_table
from adlro.state import scene as observe
from adlro.state.gangs import NEVER
from adlro.state.observation import Observation
from tests.dense import fits_now
from tests.ledgers import job, node, queue, small_cluster


def test_a_packed_set_is_told_to_other_threads_once_it_is_worked_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Explanations read it beside the decisions; they may come at any moment of the working-out."""
    layout, asked = Ledger(small_cluster()).layout, job(1, gpu_count=2).spec
    work_out, told = vars(occupancy)["fill_packed_nodes"], []

    def interrupted(*given: Any) -> None:
        monkeypatch.setattr(occupancy, "fill_packed_nodes", work_out)
        told.append(layout.packed_nodes(asked).tolist())
        work_out(*given)

    monkeypatch.setattr(occupancy, "fill_packed_nodes", interrupted)
    assert layout.packed_nodes(asked).tolist() == told[0] == [1, 1, NEVER]


def reason_of(ledger: Ledger, job_id: str) -> tuple[PendingReason, str]:
    (wait,) = waits(ledger, [ledger.entries[job_id]], 0.0, "sjf holds it back").reasons
    reason, text = wait.reason, wait.text
    return reason, text


def mask_reason(ledger: Ledger, entry: Entry, gpu: int, time_s: float) -> str:
    return ledger.occupancy.mask_reason(entry.job.spec, gpu, time_s)


def test_an_observation_shows_what_is_free(cluster: Cluster) -> None:
    ledger = Ledger(cluster)
    first = queue(ledger, 1, (4, 5, 6), cpu_cores=3, memory_mib=1000)
    queue(ledger, 2, (1, 2, 3), cpu_cores=6, gpu_memory_mib=12000, submit_s=1.0)
    ledger.place(first, (0,), 10.0)
    seen = ledger.observe(12.0)
    assert seen.queue_length.tolist() == [1]
    assert seen.gpu_idle[0].tolist() == [False, True, True, True, True]
    assert seen.gpu_remaining_s[0].tolist() == [2.0, 0, 0, 0, 0]
    assert seen.node_cores_free[0].tolist() == [5, 8, 8]
    assert seen.node_memory_free_mib[0].tolist() == [64536, 65536, 65536]
    np.testing.assert_array_equal(seen.durations_s(0, 0), [1, 1, np.inf, np.inf, 3])  # Turing has 11264 MiB
    assert fits_now(seen)[0, 0].tolist() == [False, False, False, False, True]  # 5 cores are free beside job-1
    ledger.forget(first)
    assert fits_now(ledger.observe(12.0))[0, 0].tolist() == [True, True, False, False, True]


def test_the_queue_is_in_order_of_submission_then_number(cluster: Cluster) -> None:
    ledger = Ledger(cluster)
    for number, submit_s in ((12, 5.0), (2, 5.0), (3, 1.0), (40, 0.5)):
        queue(ledger, number, (1, 1, 1), submit_s=submit_s)
    assert [entry.job.job_id for entry in ledger.queued()] == ["job-40", "job-3", "job-2", "job-12"]


def test_lost_and_drained_gpus_take_nothing(cluster: Cluster) -> None:
    ledger = Ledger(cluster, drained=["volta-0"])
    queue(ledger, 1, (1, 1, 1), gpu_memory_mib=15000)
    ledger.set_lost(["radeon-0/0"], True)
    assert not len(ledger.observe(0.0).table.job)
    assert reason_of(ledger, "job-1")[0] is PendingReason.NODES_DRAINED
    ledger.set_lost(["radeon-0/0"], False)
    ledger.set_drained([])
    assert fits_now(ledger.observe(0.0))[0, 0].tolist() == [True, True, False, False, True]


def test_every_waiting_job_has_its_reason(cluster: Cluster) -> None:
    ledger = Ledger(cluster)
    queue(ledger, 1, (1, 1, 1), gpu_memory_mib=20000)
    queue(ledger, 2, (1, 1, 1), cpu_cores=8)
    entry = queue(ledger, 3, (1, 1, 1), cpu_cores=1)
    assert reason_of(ledger, "job-1")[0] is PendingReason.NO_FITTING_GPU
    assert "20000 MiB" in reason_of(ledger, "job-1")[1]
    assert reason_of(ledger, "job-2")[0] is PendingReason.POLICY
    for gpu, number in zip((0, 2, 4), (10, 11, 12), strict=True):
        ledger.place(queue(ledger, number, (1, 1, 1), cpu_cores=1), (gpu,), 0.0)
    assert reason_of(ledger, "job-2") == (
        PendingReason.RESOURCES,
        "nodes of idle GPUs lack cores; waits for a GPU with 8 cores and 1024 MiB on its node",
    )
    assert mask_reason(ledger, entry, 0, 0.5) == "busy with job-10 for about 0.5 s"
    assert mask_reason(ledger, entry, 1, 0.5) == ""
    assert mask_reason(ledger, ledger.entries["job-2"], 1, 0.5) == "needs 8 cores, 7 are free on volta-0"
    picky = replace(entry.job.spec, gpu_models=("t4",))
    assert ledger.occupancy.mask_reason(picky, 1, 0.5) == "the job does not accept this model"
    assert "20000 MiB of GPU memory" in mask_reason(ledger, ledger.entries["job-1"], 1, 0.5)
    for gpu, number in zip((1, 3), (13, 14), strict=True):
        ledger.place(queue(ledger, number, (1, 1, 1), cpu_cores=1), (gpu,), 0.0)
    assert reason_of(ledger, "job-2")[1] == "waits for a GPU with 8 cores and 1024 MiB on its node"


def test_two_jobs_never_hold_one_gpu(cluster: Cluster) -> None:
    ledger = Ledger(cluster)
    ledger.place(queue(ledger, 1, (1, 1, 1)), (0,), 0.0)
    with pytest.raises(AssertionError, match="already holds"):
        ledger.place(queue(ledger, 2, (1, 1, 1)), (0,), 0.0)


def test_a_hold_is_allowed_where_something_runs_or_is_known_to_come(cluster: Cluster) -> None:
    ledger = Ledger(cluster)
    first = queue(ledger, 1, (1, 2, 3))
    queue(ledger, 2, (1, 2, 3))
    assert ledger.observe(0.0).hold_allowed.tolist() == [False]
    seen = ledger.observe(0.0)
    ledger.place(first, (0,), 0.0)
    seen = ledger.reflect(seen, 0, (0,))
    assert seen.hold_allowed.tolist() == ledger.observe(0.0).hold_allowed.tolist() == [True]
    ledger.forget(first)
    assert ledger.observe(0.0).hold_allowed.tolist() == [False]
    to_come = ledger.enter(job(3), 0, np.array([1.0, 2.0, 3.0]))
    assert ledger.observe(0.0).hold_allowed.tolist() == [True]
    ledger.enqueue(to_come)
    assert ledger.observe(0.0).hold_allowed.tolist() == [False]


def test_users_have_had_what_ended_and_what_runs(cluster: Cluster) -> None:
    ledger = Ledger(cluster, user_service={"bob": AttainedService(100.0), "eve": AttainedService(7.0)})
    for number, user in enumerate(("ann", "bob", "cid", "ann")):
        queue(ledger, number, (1, 2, 3), user=user)
    running = queue(ledger, 10, (4, 5, 6), user="ann")
    ledger.place(running, (1,), 20.0)
    other = queue(ledger, 11, (4, 5, 6), user="ann")
    ledger.place(other, (2,), 21.0)
    assert ledger.observe(22.0).job_user_service_s[0].tolist() == [3.0, 100.0, 0.0, 3.0]
    ledger.runs_since(other, 21.5)
    assert ledger.observe(22.0).job_user_service_s[0].tolist() == [2.5, 100.0, 0.0, 2.5]
    ledger.release(running, 0.0)
    assert ledger.user_service.add("ann", 3.0, 1, 23.0) == AttainedService(3.0, 23.0)
    assert ledger.observe(23.0).job_user_service_s[0].tolist() == [4.5, 100.0, 0.0, 4.5]


def test_many_users_keep_apart(cluster: Cluster) -> None:
    ledger = Ledger(cluster, user_service={f"user-{n}": AttainedService(float(n)) for n in range(100)})
    for number in range(100):
        queue(ledger, number, (1, 2, 3), user=f"user-{number}")
    assert ledger.observe(0.0).job_user_service_s[0].tolist() == [float(n) for n in range(100)]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 8), st.booleans()), max_size=400))
def test_what_is_taken_is_given_back(steps: list[tuple[int, int, bool]]) -> None:
    """Whatever comes and goes: free cores are what the placed jobs leave, and rows are reused without mixing jobs."""
    ledger = Ledger(Cluster("default", (node("a", "v100_sxm2", 16000, gpus=4), node("b", "radeon_vii", 16000, gpus=4))))
    for number, (submit_s, cores, place) in enumerate(steps):
        entry = queue(ledger, number, (number + 1.0, number + 2.0, 1), cpu_cores=cores, submit_s=submit_s)
        fits = fits_now(ledger.observe(0.0))[0, ledger.queued().index(entry)]
        if place and fits.any():
            ledger.place(entry, (int(np.argmax(fits)),), 0.0)
        elif number % 3 == 0:
            for other in [each for each in ledger.entries.values() if each.phase is Phase.PLACED][:2]:
                ledger.forget(other)
    placed = [entry for entry in ledger.entries.values() if entry.phase is Phase.PLACED]
    seen = ledger.observe(0.0)
    assert seen.node_cores_free.sum() == 16 - sum(entry.job.spec.cpu_cores for entry in placed)
    assert (seen.node_cores_free >= 0).all()
    assert seen.queue_length[0] == len(ledger.entries) - len(placed)
    for place_in_queue, entry in enumerate(ledger.queued()):
        number = int(entry.job.job_id.removeprefix("job-"))
        assert seen.durations_s(0, place_in_queue)[0] == number + 1.0
        assert seen.job_cores[0, place_in_queue] == entry.job.spec.cpu_cores


def test_no_decision_waits_for_the_compiler(cluster: Cluster) -> None:
    warm()
    functions: list[Any] = [observe._fill, candidate_table._fill_kinds, candidate_table._fill_table]
    compiled = [list(function.signatures) for function in functions]
    ledger = Ledger(cluster, drained=["turing-0"], user_service={"ann": AttainedService(3.0)})
    ledger.place(queue(ledger, 0, (1, 2, 3)), (0,), 0.0)
    ledger.set_lost(["volta-0/1"], True)
    ledger.observe(1.0)
    for number in range(1, 600):
        queue(ledger, number, (1, 2, 3), user=f"user-{number}")
    ledger.observe(2.0)
    assert [list(function.signatures) for function in functions] == compiled
    assert all(len(signatures) == 1 for signatures in compiled)  # the simulator's batches have the same types


def test_no_decision_of_a_compiled_policy_waits_for_the_compiler(cluster: Cluster) -> None:
    warm()
    rule: Any = hold_rule.score_batch
    assert len(rule.signatures) == 1
    ledger = Ledger(cluster)
    for number in range(5):
        queue(ledger, number, (1, 2, 3))
    seen = ledger.observe(1.0)
    policy = HoldGreedy(settings=HoldGreedySettings(4, 2, 1, 3, 0, 0, 0))  # integers
    scores = policy.scores(seen)
    columns = {field.name: getattr(seen, field.name) for field in fields(seen)}
    for name in ("gpu_node", "job_cores", "kind_duration_s"):
        columns[name] = np.asfortranarray(columns[name])
        columns[name].flags.writeable = False
    columns["job_submit_s"] = columns["job_submit_s"].astype(np.int64)
    np.testing.assert_array_equal(policy.scores(Observation(**columns)), scores)
    assert (scores > -np.inf).any()
    assert len(rule.signatures) == 1


def test_waiting_jobs_and_masks_say_why_a_node_is_drained(cluster: Cluster) -> None:
    nodes = [node.node_id for node in cluster.nodes]
    ledger = Ledger(cluster, drained={node_id: "a fan" if node_id == nodes[0] else "" for node_id in nodes})
    entry = queue(ledger, 1, (1, 1, 1))
    reason, found = reason_of(ledger, "job-1")
    assert reason is PendingReason.NODES_DRAINED
    assert found == f"every GPU that could hold it is lost or on a drained node ({nodes[0]}: a fan)"
    assert ledger.occupancy.mask_reason(entry.job.spec, 0, 0.0) == f"{nodes[0]} is drained: a fan"
    assert ledger.occupancy.copy().mask_reason(entry.job.spec, 0, 0.0) == f"{nodes[0]} is drained: a fan"
    ledger.set_drained({})
    assert ledger.occupancy.mask_reason(entry.job.spec, 0, 0.0) == ""


def test_the_queue_is_handed_out_without_a_look_up_for_each_job(cluster: Cluster) -> None:
    """It is for each round of decisions: with 100,000 jobs that took most of the time."""

    class Counted(dict[str, Entry]):
        looked_up = 0

        def __getitem__(self, job_id: str) -> Entry:
            Counted.looked_up += 1
            return super().__getitem__(job_id)

    ledger = Ledger(cluster)
    ledger.entries = Counted()
    entries = [queue(ledger, number, (10.0, 10.0, 10.0)) for number in (3, 1, 4, 2)]
    in_order = [entries[at] for at in (1, 3, 0, 2)]
    assert ledger.queued() == in_order
    assert ledger.queued(1, 3) == in_order[1:3]
    assert Counted.looked_up == 0
    ledger.queued().clear()  # a copy
    ledger.place(in_order[1], (0,), 0.0)
    assert ledger.queued() == [in_order[0], *in_order[2:]]


def test_a_set_is_not_spread_where_the_cluster_can_hold_no_packed_one() -> None:
    """Its node was made smaller while it ran: what it took there is no figure of spread jobs."""
    two = Cluster("c", (node("a", "v100_sxm2", 16160), node("b", "v100_sxm2", 16160)))
    small = Cluster("c", (node("a", "v100_sxm2", 16160, cores=2), node("b", "v100_sxm2", 16160, cores=2)))
    spec = job(1, gpu_count=4, cpu_cores=4).spec
    for cluster in (two, small):
        assert not Ledger(cluster).is_spread(spec, (0, 1, 2, 3))


def test_nothing_is_learned_of_a_job_of_several_gpus_that_ended_where_the_cluster_no_longer_is(
    cluster: Cluster,
) -> None:
    """Whether its GPUs were on few nodes can't be told any more."""
    for gpu_count in (1, 2):
        changes = RecordChanges(Ledger(cluster), 3)
        record = transitions.launching(job(1, gpu_count=gpu_count), Placement.on("left/0", "left/1"), "v100_sxm2")
        entry = changes.ledger.enter(transitions.started(record, 1.0), 0, np.ones(3))
        changes.ledger.place_elsewhere(entry)
        changes.end(entry, transitions.succeeded(entry.job, 5.0), learn=True)
        assert (changes.moves[-1].outcome is None) == (gpu_count == 2)
