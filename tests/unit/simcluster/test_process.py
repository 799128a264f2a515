"""simcluster as a process: what it says when its settings are wrong, how it drains; its metrics; the loop's timers."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import CollectorRegistry

from adlro.clusterside.cluster_side import ClusterSide
from adlro.clusterside.metrics import ClusterMetrics
from adlro.clusterside.telemetry import Outbox
from adlro.clusterside.timers import LoopTimers
from adlro.kit.channel import open_channel
from adlro.kit.testing import ServiceEnded, spawn_service
from adlro.placement import Placement
from adlro.records.events import Clock, ClockMode
from adlro.records.jobs import JobSpec, JobType, SimulatedWork
from adlro.services.simcluster.driver import SimulatedCluster
from adlro.services.simcluster.server import SimclusterServer
from adlro.services.simcluster.settings import SimclusterSettings
from adlro.sim.simulator import ClusterSimulator
from adlro.v1 import cluster_service_pb2 as pb
from adlro.v1 import cluster_service_pb2_grpc as pb_grpc
from adlro.workload.scenario import load_scenario, load_speeds


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "complaint"),
    [
        (
            {"ADLRO_SIMCLUSTER_CLUSTER": "papre"},
            r"'papre' is neither a scenario \(paper, paper_roomy[\w, ]*\) nor a file",
        ),
        ({"ADLRO_SIMCLUSTER_CLOCK_MODE": "scaled"}, "a SCALED clock needs a scale above 0"),
        ({"ADLRO_SIMCLUSTER_CLOCK_MODE": "fast"}, "ADLRO_SIMCLUSTER_CLOCK_MODE"),
        ({"ADLRO_SIMCLUSTER_TELEMETRY_HZ": "nan"}, "ADLRO_SIMCLUSTER_TELEMETRY_HZ"),
    ],
)
def test_wrong_settings_end_the_process_with_a_clear_message(env, complaint):
    with pytest.raises(ServiceEnded, match=complaint):
        spawn_service("simcluster", env)


def test_the_settings_choose_cluster_speeds_and_start_cost():
    server = SimclusterServer(SimclusterSettings(cluster="gavel", start_cost_s=2.5))
    simulator = server.driver.simulator
    asked = JobSpec(
        "j",
        "ada",
        JobType.MACHINE_LEARNING,
        application="ResNet-50 (batch size 64)",
        simulated_work=SimulatedWork(30.0),
    )
    simulator.launch("on-v100", 1, asked, Placement.on("v100-0/0"))
    simulator.launch("on-k80", 1, asked, Placement.on("k80-0/0"))
    assert simulator.next_event_time() == 32.5
    simulator.advance_to(32.5)
    slower = load_speeds("gavel").speed(asked.application, asked.job_type, "k80")
    assert slower < 0.5
    assert simulator.next_event_time() == 2.5 + 30.0 / slower


@pytest.mark.slow
async def test_a_signal_ends_open_streams_and_the_process(redis_url):
    settings = {
        "ADLRO_SIMCLUSTER_CLOCK_MODE": "virtual",
        "ADLRO_REDIS_URL": redis_url,
        "ADLRO_SIMCLUSTER_DRAIN_TIMEOUT_S": "3600",  # a stream that it did not end would keep it for so long
    }
    with spawn_service("simcluster", settings) as service:
        channel = open_channel(service.address)
        stub = pb_grpc.ClusterServiceStub(channel)
        call = stub.WatchEvents(pb.WatchEventsRequest())
        await stub.WakeAt(pb.WakeAtRequest(times_s=[0.0]), timeout=60)
        async with asyncio.timeout(60):
            assert isinstance(await call.read(), pb.WatchEventsResponse)
            service.terminate()
            while isinstance(await call.read(), pb.WatchEventsResponse):
                pass
        assert await asyncio.to_thread(service.wait, 60.0) == 0
        await channel.close(None)


async def test_metrics_count_events_and_what_is_not_acknowledged():
    clock = Clock(ClockMode.VIRTUAL, 0.0, True, 0.0)
    driver = SimulatedCluster(ClusterSimulator(load_scenario("paper").cluster), clock)
    runtime = ClusterSide(driver, LoopTimers())
    registry = CollectorRegistry()
    ClusterMetrics("simcluster", runtime, Outbox(), registry)
    runtime.wake_at([0.0])
    runtime.wake_at([0.0])
    assert registry.get_sample_value("adlro_simcluster_events_total", {"kind": "WAKE_UP"}) == 2
    assert registry.get_sample_value("adlro_simcluster_unacknowledged_events") == 2
    runtime.acknowledge(runtime.log.incarnation, 2, 0)
    assert registry.get_sample_value("adlro_simcluster_unacknowledged_events") == 0
    assert registry.get_sample_value("adlro_simcluster_running_jobs") == 0


async def test_the_loops_timers_call_back_soon_after_their_time_and_never_early():
    timers = LoopTimers()
    for wait_s in (-1.0, 0.0, 0.0123):
        called: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        due = timers.time() + wait_s
        timers.call_at(due, lambda called=called: called.set_result(timers.time()))  # type: ignore[misc]
        async with asyncio.timeout(60):
            assert await called >= due
    called_all_the_same: list[float] = []
    due = timers.time() + 0.001
    timers.call_at(due, lambda: called_all_the_same.append(due)).cancel()
    await asyncio.sleep(0.01)  # the loop calls in the order of time, however late
    assert called_all_the_same == []
