"""What the orchestrator's metrics say while jobs wait, run, end, and are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import redis.asyncio as aioredis
from prometheus_client import CollectorRegistry

from adlro.errors import Conflict, InternalError, Stale, Unavailable
from adlro.placement import Placement
from adlro.records.events import Clock, ClockMode
from adlro.records.jobs import AttemptRef, PendingReason, Preemptible
from adlro.records.status import EventLag
from adlro.services.orchestrator.figures import gpu_views
from adlro.services.orchestrator.instrumented import InstrumentedCluster, InstrumentedStore
from adlro.services.orchestrator.ledger import transitions
from adlro.services.orchestrator.ledger.ledger import Ledger
from adlro.services.orchestrator.metrics import OrchestratorMetrics, View, show_view
from adlro.services.orchestrator.ports import Launched
from adlro.store.keys import DRAINED, LEASE
from tests.ledgers import job, queue
from tests.unit.orchestrator.fake_cluster import FakeCluster
from tests.unit.orchestrator.house import House


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(f"adlro_orchestrator_{name}", labels)


async def test_jobs_are_counted_once_with_their_times(house: House) -> None:
    house.start("fcfs", lease_s=10.0)  # a session that breaks off does not hear of its last write
    await house.until_acting()
    await house.pause()
    # Ten jobs of 3 s on five GPUs: half of them wait for 3 s.
    for _ in range(10):
        await house.submit(3.0)
    await house.until_taken_up()
    await house.cluster.set_clock(Clock(ClockMode.VIRTUAL, 0.0, False, 0.0))
    jobs = await house.until_final(10)

    registry = house.registry
    assert value(registry, "ended_jobs_total", job_type="simulation", state="succeeded") == 10
    assert value(registry, "ended_jobs_total", job_type="simulation", state="failed") == 0
    assert value(registry, "jct_seconds_count", job_type="simulation") == 10
    assert value(registry, "jct_seconds_sum", job_type="simulation") == pytest.approx(
        sum(each.jct_s or 0.0 for each in jobs)
    )
    assert value(registry, "waiting_seconds_sum", job_type="simulation") == pytest.approx(15.0)
    models = {each.gpu_model for each in jobs}
    assert sum(value(registry, "placements_total", gpu_model=model) or 0.0 for model in models) == 10
    assert value(registry, "repeated_placements_total") == 0
    assert value(registry, "launches_total", result="accepted") == 10
    assert value(registry, "acting") == 1
    assert value(registry, "fencing_token") == (await house.orchestrator.status()).fencing_token


async def test_refused_launches_are_counted_and_end_no_session(house: House) -> None:
    house.cluster.refuse, house.cluster.refusals = "no", 2
    house.start(lease_s=10.0)
    await house.submit(1.0)
    await house.until_final(1)
    assert value(house.registry, "launches_total", result="refused") == 2
    assert value(house.registry, "launches_total", result="accepted") == 1
    assert value(house.registry, "repeated_placements_total") == 2
    # The waiting time is that of the first attempt, which never started.
    assert value(house.registry, "waiting_seconds_count", job_type="simulation") == 0
    assert failed_sessions(house) == [0, 0, 0]


async def test_failed_sessions_are_counted_by_their_cause(house: House) -> None:
    house.cluster.refused["job-1"] = [Stale("another incarnation"), Stale("another incarnation")]
    house.start(lease_s=10.0)
    await house.submit(1.0)
    await house.until_final(1)
    assert failed_sessions(house) == [2, 0, 0]


def failed_sessions(house: House) -> list[float | None]:
    causes = ("superseded", "cluster", "bug")
    return [value(house.registry, "failed_sessions_total", cause=cause) for cause in causes]


@pytest.mark.parametrize(
    ("error", "result"),
    [
        (Conflict("old", reason="STALE_FENCING_TOKEN"), "stale_token"),
        (Conflict("the GPU is busy", reason="GPU_BUSY"), "refused"),
        (InternalError("a bug there"), "refused"),
        (Unavailable("nobody answers"), "unanswered"),
        (Stale("another incarnation"), "unanswered"),
    ],
)
async def test_answers_to_launches_are_told_apart(error, result, cluster):
    class Refusing(FakeCluster):
        async def launch(self, *_: object, **__: object) -> Launched:
            raise error

    registry = CollectorRegistry()
    measured = InstrumentedCluster(Refusing(cluster), OrchestratorMetrics(registry))
    with pytest.raises(type(error)):
        await measured.launch("job-1", 1, job(1).spec, Placement.on("volta-0/0"), 1, "")
    for each in ("accepted", "refused", "stale_token", "unanswered"):
        assert value(registry, "launches_total", result=each) == (each == result)


def test_each_gpu_is_in_one_state(cluster):
    ledger = Ledger(cluster, drained=["turing-0"])
    for gpu in (0, 2):  # on Volta, and on the drained node
        ledger.place(queue(ledger, gpu + 1, (4.0, 4.0, 4.0)), (gpu,), 0.0)
    ledger.set_lost(["volta-0/1"], True)
    registry = CollectorRegistry()
    show_view(lambda: View("fcfs", gpu_views(ledger), 12.0, 3.0, EventLag(40, 2.5, 100)), registry)

    def states(model: str) -> dict[str, float | None]:
        names = ("occupied", "idle", "drained", "lost")
        return {state: value(registry, "gpus", gpu_model=model, state=state) for state in names}

    assert states("v100_sxm2") == {"occupied": 1, "idle": 0, "drained": 0, "lost": 1}
    assert states("rtx_2080_ti") == {"occupied": 1, "idle": 0, "drained": 1, "lost": 0}
    assert states("radeon_vii") == {"occupied": 0, "idle": 1, "drained": 0, "lost": 0}
    volta = {"gpu_id": "volta-0/1", "node_id": "volta-0", "gpu_model": "v100_sxm2"}
    assert (value(registry, "gpu_lost", **volta), value(registry, "gpu_occupied", **volta)) == (1, 0)
    assert value(registry, "policy_info", policy="fcfs") == 1
    assert value(registry, "oldest_wait_seconds") == 3.0
    assert value(registry, "unapplied_events") == 40
    assert value(registry, "oldest_unapplied_event_seconds") == 2.5


async def test_the_first_of_the_queue_tells_how_long_it_has_waited(house: House) -> None:
    for node_id in ("volta-0", "turing-0", "radeon-0"):
        await house.redis.hset(DRAINED, node_id, "so that nothing starts")
    house.start("fcfs")
    await house.until_acting()
    await house.submit(1.0)
    await house.submit(1.0, begin_time_s=50.0)  # nothing happens after that

    async def is_there() -> bool:
        return house.orchestrator.view().cluster_time_s >= 50.0

    await house.until(is_there)
    assert house.orchestrator.view().oldest_wait_s == pytest.approx(50.0)
    assert value(house.registry, "queue_length_jobs") == 2


async def test_one_that_stands_by_shows_no_gpus(house: House) -> None:
    await house.redis.set(LEASE, "another")
    house.start("fcfs")

    async def stands_by() -> bool:
        return (await house.orchestrator.status()).problem.startswith("standing by: another holds")

    await house.until(stands_by)
    assert house.orchestrator.view() == View("fcfs", (), 0.0, 0.0, EventLag(0, 0.0, 0))
    assert value(house.registry, "acting") == 0


def test_an_attempt_that_was_stopped_is_counted_once() -> None:
    registry = CollectorRegistry()
    store = InstrumentedStore(aioredis.Redis(), None, OrchestratorMetrics(registry))  # nothing is written
    taken = replace(job(1, preemptible=Preemptible()), submit_s=0.0)
    launching = transitions.launching(taken, Placement.on("a/0"), "v100_sxm2")
    running = transitions.started(launching, 1.0)
    stopped = transitions.preempted(running, 5.0, "for job-2", 0.5)
    waits = transitions.waiting(stopped, PendingReason.RESOURCES, "waits for a GPU")
    again = transitions.launching(waits, Placement.on("a/0"), "v100_sxm2", (AttemptRef("job-3", 1),))
    told = transitions.waits_for(again, ())
    for each in (launching, running, stopped, waits, again, told, transitions.started(told, 9.0)):
        store._count(each)
    assert value(registry, "preempted_total", gpu_model="v100_sxm2") == 1
    assert value(registry, "placements_total", gpu_model="v100_sxm2") == 2
    assert value(registry, "repeated_placements_total") == 0
