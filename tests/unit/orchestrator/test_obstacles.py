"""What keeps a job from GPUs, and what its user could change: each change that is named is applied and tried."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adlro.records.attained import AttainedService
from adlro.records.cluster import Cluster, Gpu, Node
from adlro.records.jobs import Job, JobSpec, JobType, PendingReason
from adlro.records.precedence import Precedence
from adlro.records.redaction import explanation_without_others
from adlro.records.waiting import GpuObstacle, WaitingChangeKind, WaitingExplanation
from adlro.services.orchestrator.explain import obstacles as obstacles_module
from adlro.services.orchestrator.explain.obstacles import changes, fitting_count, obstacles, shortage, with_change
from adlro.services.orchestrator.explain.waiting import explanation, see
from adlro.services.orchestrator.explain.waits import waits
from adlro.services.orchestrator.ledger.ledger import Ledger
from adlro.services.orchestrator.ledger.occupancy import Occupancy
from tests.volume import cases

MODELS = ("big", "small")


def cluster(nodes: int = 3, cores: int = 8, memory_mib: int = 32_768) -> Cluster:
    made = []
    for number in range(nodes):
        model = MODELS[number % 2]
        gpus = tuple(Gpu(f"n{number}/{each}", model, 16_000 if model == "big" else 8_000) for each in range(4))
        made.append(Node(f"n{number}", cores, memory_mib, gpus))
    return Cluster("c", tuple(made))


class Queue:
    """A ledger whose jobs are entered by their demands."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger, self._count = ledger, 0

    def wait(self, spec: JobSpec) -> str:
        self._count += 1
        job = Job(
            f"job-{self._count}", spec, submit_s=float(self._count), pending_reason=PendingReason.RESOURCES, message="m"
        )
        expected = np.where([spec.accepts(model) for model in self.ledger.layout.gpu_models], 10.0, np.inf)
        self.ledger.enqueue(self.ledger.enter(job, 0, expected))
        return job.job_id

    def run(self, spec: JobSpec, gpu: int) -> None:
        self.ledger.place(self.ledger.entries[self.wait(spec)], (gpu,), 0.0)


def spec(user: str = "ada", **fields: object) -> JobSpec:
    given_fields: dict[str, object] = {"cpu_cores": 1, "memory_mib": 1024, **fields}
    return JobSpec("j", user, JobType.SIMULATION, **given_fields)  # type: ignore[arg-type]


def told(queue: Queue, job_id: str) -> WaitingExplanation:
    return explanation(see(queue.ledger, queue.ledger.entries[job_id], 50.0), None, "none")


def test_gpus_are_counted_by_the_first_obstacle() -> None:
    """12 GPUs on 3 nodes: 4 too small, 4 busy on a lost or drained node, the rest idle beside a full node."""
    queue = Queue(Ledger(cluster(), drained=["n0"]))
    queue.run(spec(cpu_cores=7), 8)
    queue.ledger.set_lost(["n2/3"], True)
    job_id = queue.wait(spec(gpu_memory_mib=12_000, cpu_cores=2))
    answer = told(queue, job_id)
    assert answer.obstacles == {
        GpuObstacle.TOO_SMALL: 4,
        GpuObstacle.DRAINED: 4,
        GpuObstacle.LOST: 1,
        GpuObstacle.BUSY: 1,
        GpuObstacle.NODE_FULL: 2,
    }
    assert [(change.kind, change.value, change.gpu_count) for change in answer.changes] == [
        (WaitingChangeKind.CPU_CORES, 1, 2),
        (WaitingChangeKind.GPU_MEMORY_MIB, 8_000, 4),
    ]
    assert answer.changes[0].sentence == "ask for 1 core: 2 GPUs fit now"
    assert (answer.queue_place, answer.queue_length) == (1, 1)


def test_what_the_policy_holds_back_is_not_the_users_to_change() -> None:
    queue = Queue(Ledger(cluster(1)))
    answer = told(queue, queue.wait(spec()))
    assert answer.obstacles == {GpuObstacle.POLICY: 4}
    assert answer.changes == ()


def test_models_and_numbers_of_gpus_are_named() -> None:
    queue = Queue(Ledger(cluster(2)))
    for gpu in range(3):
        queue.run(spec(), gpu)
    only_big = told(queue, queue.wait(spec(gpu_models=("big",), cpu_cores=6)))
    by_kind = {change.kind: change for change in only_big.changes}
    assert by_kind[WaitingChangeKind.GPU_MODELS].gpu_models == ("small",)
    assert by_kind[WaitingChangeKind.GPU_MODELS].gpu_count == 4
    assert by_kind[WaitingChangeKind.CPU_CORES].value == 5
    pair = told(queue, queue.wait(spec(gpu_models=("big",), gpu_count=2)))
    assert pair.obstacles == {GpuObstacle.MODEL: 4, GpuObstacle.BUSY: 3, GpuObstacle.TOO_FEW: 1}
    assert {change.kind for change in pair.changes} == {WaitingChangeKind.GPU_COUNT, WaitingChangeKind.GPU_MODELS}


def test_a_gpu_that_is_kept_for_another_job_is_told_as_such() -> None:
    queue = Queue(Ledger(cluster(1)))
    queue.run(spec(), 0)
    reserved = queue.wait(spec(gpu_count=4))
    queue.ledger.reserve(queue.ledger.entries[reserved], 1.0)
    job_id = queue.wait(spec())
    queue.ledger.expect(queue.ledger.entries[job_id], np.array([1e6]))
    answer = told(queue, job_id)
    assert answer.obstacles == {GpuObstacle.BUSY: 1, GpuObstacle.RESERVED: 3}
    assert answer.changes == ()


demands: st.SearchStrategy[dict[str, Any]] = st.builds(
    dict,
    cpu_cores=st.integers(0, 10),
    memory_mib=st.integers(0, 40_000),
    gpu_memory_mib=st.integers(0, 17_000),
    gpu_count=st.integers(1, 5),
    max_node_count=st.integers(0, 2),
    gpu_models=st.sampled_from([(), ("big",), ("small",)]),
)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_every_change_that_is_named_makes_the_job_fit(data: st.DataObject) -> None:
    """The change is applied to the demand, and the ledger's own table of candidates has GPUs for it then."""
    queue = Queue(Ledger(cluster(), drained=data.draw(st.sampled_from([[], ["n1"]]))))
    for gpu in sorted(data.draw(st.sets(st.integers(0, 11), max_size=9))):
        node = gpu // 4
        free = int(queue.ledger.occupancy.cores_free[node])
        if free > 0:
            queue.run(spec(cpu_cores=data.draw(st.integers(1, free))), gpu)
    asked = data.draw(demands)
    asked["max_node_count"] = min(asked["max_node_count"], asked["gpu_count"]) if asked["gpu_count"] > 1 else 0
    demand = spec(**asked)
    job_id = queue.wait(demand)
    answer = told(queue, job_id)
    assert sum(answer.obstacles.values()) == 12
    entry = queue.ledger.entries[job_id]
    fits = bool(queue.ledger.observe_some(50.0, [entry]).table.rows_of_job[0, 0])
    assert fits == (GpuObstacle.POLICY in answer.obstacles)
    if fits:
        assert answer.changes == ()
    for change in answer.changes:
        if change.kind is WaitingChangeKind.GPU_MODELS:
            changed = dataclasses.replace(demand, gpu_models=(*demand.gpu_models, *change.gpu_models))
        else:
            changed = with_change(demand, change.kind, change.value)
        tried = queue.ledger.entries[queue.wait(changed)]
        seen = queue.ledger.observe_some(50.0, [tried])
        assert seen.table.rows_of_job[0, 0] > 0, change
        if changed.gpu_count == 1:
            assert int(seen.table.size[seen.table.rows(0)].sum()) == change.gpu_count
        assert str(change.value) in change.sentence or change.value in (0, 1)


@settings(max_examples=cases(200), deadline=None)
@given(st.data())
def test_changes_are_the_least_that_make_the_job_fit(data: st.DataObject) -> None:
    """As trying figure after figure finds them."""
    ledger = Ledger(cluster())
    occupancy = ledger.occupancy
    for node in range(3):
        occupancy.cores_free[node] = data.draw(st.integers(0, 8))
        occupancy.memory_free_mib[node] = data.draw(st.integers(0, 32_768))
    occupancy.idle[:] = data.draw(st.lists(st.booleans(), min_size=12, max_size=12))
    kept = np.array(data.draw(st.lists(st.booleans(), min_size=12, max_size=12)))
    asked = data.draw(demands)
    asked["max_node_count"] = min(asked["max_node_count"], asked["gpu_count"]) if asked["gpu_count"] > 1 else 0
    demand = spec(**asked)
    if fitting_count(demand, occupancy, kept):
        return

    def first(kind: WaitingChangeKind, tries: Iterable[int]) -> int | None:
        fits = (value for value in tries if fitting_count(with_change(demand, kind, value), occupancy, kept))
        return next(fits, None)

    found = {each.kind: each.value for each in changes(demand, occupancy, kept)}
    kind = WaitingChangeKind
    assert found.get(kind.CPU_CORES) == first(kind.CPU_CORES, range(demand.cpu_cores - 1, 0, -1))
    assert found.get(kind.GPU_COUNT) == first(kind.GPU_COUNT, range(demand.gpu_count - 1, 0, -1))
    assert found.get(kind.GPU_MEMORY_MIB) == first(
        kind.GPU_MEMORY_MIB, (each for each in (16_000, 8_000) if each < demand.gpu_memory_mib)
    )
    more = (*range(demand.max_node_count + 1, demand.gpu_count), 0) if demand.max_node_count else ()
    assert found.get(kind.MAX_NODE_COUNT) == first(kind.MAX_NODE_COUNT, more)
    most_mib = first(kind.MEMORY_MIB, range(demand.memory_mib - 1, 0, -1))
    if most_mib is not None:
        rounded_mib = most_mib - most_mib % 256 if most_mib >= 256 else most_mib
        assert found[kind.MEMORY_MIB] in (rounded_mib, rounded_mib - 256)
    else:
        assert kind.MEMORY_MIB not in found


def test_a_job_that_asks_for_the_whole_cluster_costs_few_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    """The figures of its kinds are thousands, and anybody may ask again and again."""
    gpus = [tuple(Gpu(f"n{node}/{each}", "big", 16_000) for each in range(8)) for node in range(128)]
    ledger = Ledger(Cluster("c", tuple(Node(f"n{n}", 64, 524_288 + 997 * n, each) for n, each in enumerate(gpus))))
    draws = np.random.default_rng(1)
    ledger.occupancy.cores_free[:] = draws.integers(0, 65, 128)
    ledger.occupancy.memory_free_mib[:] = draws.integers(0, 524_288, 128)
    ledger.occupancy.cores_free[0], ledger.occupancy.memory_free_mib[0] = 64, 524_288
    tried: list[JobSpec] = []

    def counted(demand: JobSpec, occupancy: Occupancy, kept: Any) -> int:
        tried.append(demand)
        return fitting_count(demand, occupancy, kept)

    monkeypatch.setattr(obstacles_module, "fitting_count", counted)
    none = np.zeros(1024, dtype=np.bool_)
    asked = spec(gpu_count=1024, cpu_cores=64, memory_mib=524_288)
    found = changes(asked, ledger.occupancy, none)
    assert [each.kind for each in found] == [WaitingChangeKind.GPU_COUNT]
    assert len(tried) <= 20, "one kind helps: ten tries find it among a thousand figures"
    tried.clear()
    one = spec(gpu_count=512, cpu_cores=64, memory_mib=1, max_node_count=1)
    changes(one, ledger.occupancy, none)
    assert len(tried) <= 60


def test_counts_are_those_of_the_occupancy_alone() -> None:
    ledger = Ledger(cluster(1))
    none = np.zeros(4, dtype=np.bool_)
    assert fitting_count(spec(), ledger.occupancy, none) == 4
    assert fitting_count(spec(), ledger.occupancy, ~none) == 0
    assert changes(spec(), ledger.occupancy, none) == ()
    assert obstacles(spec(), ledger.occupancy, True, ~none) == {GpuObstacle.RESERVED: 4}
    with pytest.raises(KeyError):
        _ = obstacles(spec(), ledger.occupancy, True, none)[GpuObstacle.BUSY]


# Letters that stand in no sentence of an explanation.
names = st.text("zq#", min_size=4, max_size=12)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_submitter_is_told_of_no_other_users_job(data: st.DataObject) -> None:
    """Whatever users and jobs are called, and whoever has the reservation: the sentences are those of the records."""
    queue = Queue(Ledger(cluster(1)))
    users = data.draw(st.lists(names.map("{}@".format), min_size=2, max_size=4, unique=True))
    who = st.sampled_from(users)

    def demand(**fields: object) -> JobSpec:
        return dataclasses.replace(spec(data.draw(who), **fields), name=data.draw(names))

    queue.run(demand(), 0)
    reserved = queue.wait(demand(gpu_count=4))
    queue.ledger.reserve(queue.ledger.entries[reserved], 1.0)
    asked = [queue.wait(demand()) for _ in range(data.draw(st.integers(1, 4)))]
    for job_id in asked:
        entry = queue.ledger.entries[job_id]
        queue.ledger.expect(entry, np.array([1e6]))
        (wait,) = waits(queue.ledger, [entry], 50.0, "the policy holds").reasons
        entry.job = dataclasses.replace(entry.job, message=wait.text, pending_reason=wait.reason)
        assert reserved in wait.text
        user = entry.job.spec.user
        own = {each for each, entry in queue.ledger.entries.items() if entry.job.spec.user == user}
        seen = explanation_without_others(told(queue, job_id), own.__contains__)
        shown = str(seen).replace(f"'{job_id}'", "")
        for other in queue.ledger.entries.values():
            if other.job.spec.user != user:
                assert f"{other.job.job_id} " not in shown
                assert other.job.spec.user not in shown
                assert other.job.spec.name not in shown


def test_a_waiting_job_tells_its_level_of_precedence() -> None:
    had = {"ada": AttainedService(30.0, 0.0), "bob": AttainedService(0.0, 0.0)}
    queue = Queue(Ledger(cluster(), user_service=had))
    ids = [queue.wait(spec(user, priority=0.5)) for user in ("ada", "bob", "bob")]
    rule = Precedence(fair_share=2.0, priority=1.0)
    entries = [queue.ledger.entries[job_id] for job_id in ids]
    said = [explanation(see(queue.ledger, entry, 50.0, rule), None, "none").precedence for entry in entries]
    assert said[0] == "level 3 of 9: fair share 0.25 (weight 2), priority 0.50 (weight 1); 2 jobs are on higher levels"
    assert said[1] == "level 8 of 9: fair share 1.00 (weight 2), priority 0.50 (weight 1); no job is on higher levels"
    assert told(queue, ids[0]).precedence == ""
    queue.ledger.hold(entries[0])
    assert see(queue.ledger, entries[0], 50.0, rule).precedence == ""


@pytest.mark.parametrize(
    ("demand", "lacks"),
    [
        ({}, ""),  # it fits
        ({"cpu_cores": 5}, "cores"),
        ({"memory_mib": 20_000}, "memory"),
        ({"cpu_cores": 5, "memory_mib": 20_000}, "cores and memory"),
        ({"cpu_cores": 4, "memory_mib": 16_000}, "cores or memory"),  # one node lacks the one, one the other
        ({"gpu_memory_mib": 12_000, "cpu_cores": 4}, "cores"),  # only the big ones hold it
        ({"gpu_models": ("small",), "cpu_cores": 9}, ""),  # no node ever has so many
        ({"gpu_count": 4, "max_node_count": 1}, ""),  # GPUs are short
        ({"gpu_count": 3, "cpu_cores": 2, "gpu_models": ("big",)}, "cores"),
        ({"gpu_count": 3, "memory_mib": 10_000, "gpu_models": ("small",)}, "memory"),
        ({"gpu_count": 3, "cpu_cores": 2}, ""),
    ],
)
def test_what_the_nodes_of_idle_gpus_lack(demand: dict[str, Any], lacks: str) -> None:
    ledger = Ledger(cluster(nodes=2))  # each with 8 cores, 32 GiB and four GPUs
    queue = Queue(ledger)
    queue.run(spec(cpu_cores=5), 0)  # 3 cores and 31 GiB are left with three big GPUs
    queue.run(spec(memory_mib=20_480, cpu_cores=2), 4)  # 6 cores and 12 GiB with three small ones
    if demand.get("cpu_cores") == 5:
        queue.run(spec(cpu_cores=2), 5)
    if demand.get("memory_mib") == 20_000:
        queue.run(spec(memory_mib=16_384), 1)
    assert shortage(spec(**demand), ledger.occupancy) == lacks


def test_lost_and_drained_gpus_are_not_idle_ones_that_could_hold_a_job() -> None:
    ledger = Ledger(cluster(nodes=2))
    Queue(ledger).run(spec(cpu_cores=5), 0)
    wanted = spec(cpu_cores=5, gpu_models=("big",))
    assert shortage(wanted, ledger.occupancy) == "cores"
    ledger.set_lost(["n0/1", "n0/2", "n0/3"], True)
    assert shortage(wanted, ledger.occupancy) == ""
