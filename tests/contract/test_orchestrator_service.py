"""What OrchestratorService does: one suite, in process and as a process of its own, before a real simulated cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from adlro.errors import AdlroError, Conflict, InvalidInput, NotFound, Unavailable
from adlro.kit.channel import open_channel
from adlro.kit.redis import connect
from adlro.kit.status import from_rpc_error
from adlro.kit.testing import serve, spawn_service
from adlro.records.dependencies import JobDependency
from adlro.records.job_requests import JobRequest, JobRequestKind
from adlro.records.jobs import (
    ExpectedRuntime,
    Job,
    JobSpec,
    JobState,
    JobType,
    NormalizedJob,
    PendingReason,
    SimulatedWork,
)
from adlro.services.orchestrator.server import OrchestratorServer
from adlro.services.orchestrator.settings import OrchestratorSettings
from adlro.services.simcluster.server import SimclusterServer
from adlro.services.simcluster.settings import SimclusterSettings
from adlro.store import JobStore
from adlro.store.keys import LEASE, TOKEN
from adlro.v1 import cluster_service_pb2, cluster_service_pb2_grpc
from adlro.v1 import orchestrator_service_pb2 as pb
from adlro.v1 import orchestrator_service_pb2_grpc as pb_grpc
from tests.networks import network, put

TIMEOUT_S = PATIENCE_S = 60.0
"""Bound a hang; a busy machine takes its time."""


class House:
    """An orchestrator before a paused cluster of 16 GPUs, and the records it works on. There is no decompose: declared
    runtimes serve.
    """

    def __init__(self, address: str, cluster: str, redis_url: str) -> None:
        self._channels = [open_channel(address), open_channel(cluster)]
        self.stub: Any = pb_grpc.OrchestratorServiceStub(self._channels[0])
        self.cluster: Any = cluster_service_pb2_grpc.ClusterServiceStub(self._channels[1])
        self.redis = connect(redis_url)
        self.store = JobStore(self.redis)

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close(None)
        await self.redis.aclose()

    async def call(self, method: str, request: Any) -> Any:
        try:
            return await getattr(self.stub, method)(request, timeout=TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error

    async def submit(self, work_s: float = 5.0, **spec: Any) -> Job:
        fields: dict[str, Any] = {
            "name": "j",
            "user": "ann",
            "job_type": JobType.SIMULATION,
            "application": "minifmm",
            "simulated_work": SimulatedWork(work_s),
            "expected_runtime": ExpectedRuntime("v100_sxm2", work_s),
        }
        return (await self.store.create(JobSpec(**{**fields, **spec}), NormalizedJob(), "", 0.0)).job

    async def until(self, condition: Callable[[], Awaitable[bool]]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not await condition():  # noqa: ASYNC110 - the condition lies in another process
                await asyncio.sleep(0.02)

    async def until_state(self, job_id: str, state: JobState) -> Job:
        async def reached() -> bool:
            return (await self.store.get(job_id)).state is state

        await self.until(reached)
        return await self.store.get(job_id)

    async def until_acting(self) -> pb.GetStatusResponse:
        async def acting() -> bool:
            return bool((await self.call("GetStatus", pb.GetStatusRequest())).acting)

        await self.until(acting)
        status: pb.GetStatusResponse = await self.call("GetStatus", pb.GetStatusRequest())
        return status

    async def run_clock(self) -> None:
        await self.cluster.SetClock(cluster_service_pb2.SetClockRequest(paused=False), timeout=TIMEOUT_S)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Of a learned policy that starts the shortest pair."""
    return put(tmp_path / "net.onnx", network({"duration": -1.0}, hold=-1e6))


@asynccontextmanager
async def in_process(redis_url: str, cluster_address: str, checkpoint: Path) -> AsyncIterator[str]:
    settings = OrchestratorSettings(
        redis_url=redis_url,
        cluster_address=cluster_address,
        decompose_address="127.0.0.1:1",
        prediction_timeout_s=0.2,
        policy="sjf",
        checkpoint=str(checkpoint),
        preemption="on",
        preemption_min_run_s=90.0,
    )
    async with serve(OrchestratorServer(settings), settings) as address:
        yield address


@asynccontextmanager
async def spawned(redis_url: str, cluster_address: str, checkpoint: Path) -> AsyncIterator[str]:
    env = {
        "ADLRO_REDIS_URL": redis_url,
        "ADLRO_ORCHESTRATOR_CLUSTER_ADDRESS": cluster_address,
        "ADLRO_ORCHESTRATOR_DECOMPOSE_ADDRESS": "127.0.0.1:1",
        "ADLRO_ORCHESTRATOR_PREDICTION_TIMEOUT_S": "0.2",
        "ADLRO_ORCHESTRATOR_POLICY": "sjf",
        "ADLRO_ORCHESTRATOR_CHECKPOINT": str(checkpoint),
        "ADLRO_ORCHESTRATOR_PREEMPTION": "on",
        "ADLRO_ORCHESTRATOR_PREEMPTION_MIN_RUN_S": "90",
    }
    # In a thread: the cluster answers on this loop meanwhile.
    service = await asyncio.to_thread(spawn_service, "orchestrator", env)
    try:
        yield service.address
    finally:
        await asyncio.to_thread(service.stop)


IMPLEMENTATIONS = {"in-process": in_process, "spawned": spawned}


@pytest.fixture(params=IMPLEMENTATIONS)
async def house(request: pytest.FixtureRequest, redis_url: str, checkpoint: Path) -> AsyncIterator[House]:
    """The cluster is served in this process: only the orchestrator is what is tested."""
    settings = SimclusterSettings(clock_mode="virtual", clock_paused=True, redis_url=redis_url)
    async with (
        serve(SimclusterServer(settings), settings) as cluster_address,
        IMPLEMENTATIONS[request.param](redis_url, cluster_address, checkpoint) as address,
    ):
        made = House(address, cluster_address, redis_url)
        yield made
        await made.close()


async def test_status_tells_who_acts_and_how_things_stand(house: House) -> None:
    status = await house.until_acting()
    assert status.lease_holder == status.instance_id
    assert status.fencing_token >= 1
    assert status.policy == "sjf"
    assert (status.preemption, status.preemption_min_run_s) == (True, 90.0)
    assert status.problem == ""
    for _ in range(18):
        await house.submit(cpu_cores=1)
    await house.submit(begin_time_s=1000.0)

    async def counted() -> bool:
        now = await house.call("GetStatus", pb.GetStatusRequest())
        return (now.running_count, now.queue_length, now.waiting_for_begin_time_count) == (16, 2, 1)

    await house.until(counted)


async def test_the_status_tells_what_waits_what_gpus_do_and_how_far_it_is_behind(house: House) -> None:
    await house.until_acting()
    for number in range(17):
        await house.submit(cpu_cores=1, user=f"user-{number % 2}")
    await house.submit(cpu_cores=1, gpu_memory_mib=90_000, user="zoe", job_type=JobType.MACHINE_LEARNING)
    for number in range(30):
        await house.submit(cpu_cores=1, gpu_memory_mib=90_000, user=f"user-{number:02}")

    async def counted() -> bool:
        now = await house.call("GetStatus", pb.GetStatusRequest())
        moved = (now.running_count, now.launching_count, now.queue_length, now.event_lag.unapplied_count)
        return moved == (16, 0, 32, 0) and any(each.reason == PendingReason.RESOURCES for each in now.waiting_by_reason)

    await house.until(counted)
    status = await house.call("GetStatus", pb.GetStatusRequest())
    reasons = [(each.reason, each.count) for each in status.waiting_by_reason]
    assert reasons == [(PendingReason.NO_FITTING_GPU, 31), (PendingReason.RESOURCES, 1)]
    types = {each.job_type: each.count for each in status.waiting_by_job_type}
    assert types == {JobType.SIMULATION: 31, JobType.MACHINE_LEARNING: 1}
    assert len(status.waiting_by_user) == 20
    assert status.waiting_user_count == 32, "30 of two digits, one of one digit, and zoe"
    models = [(each.gpu_model, each.gpu_count, each.allocated_count, each.running_count) for each in status.gpu_models]
    assert models == [("v100_sxm2", 8, 8, 8), ("rtx_2080_ti", 4, 4, 4), ("radeon_vii", 4, 4, 4)]
    assert all(each.usable_count == each.gpu_count and not each.lost_count for each in status.gpu_models)
    assert status.launching_count == 0
    assert status.HasField("event_lag")
    described = await house.cluster.DescribeCluster(cluster_service_pb2.DescribeClusterRequest(), timeout=TIMEOUT_S)
    assert status.event_lag.newest_revision == described.revision == status.cluster_revision
    assert status.event_lag.oldest_unapplied_s == 0.0
    await house.call("DrainNode", pb.DrainNodeRequest(node_id="turing-0"))
    now = await house.call("GetStatus", pb.GetStatusRequest())
    drained = {each.gpu_model: (each.usable_count, each.drained_count) for each in now.gpu_models}
    assert sum(usable for usable, _ in drained.values()) == 16 - sum(count for _, count in drained.values()) < 16


async def to_its_end(call: Any) -> None:
    while True:
        assert isinstance(await call.read(), pb.WatchStatusResponse)


async def test_the_status_is_watched(house: House) -> None:
    await house.until_acting()
    watch = house.stub.WatchStatus(pb.WatchStatusRequest(min_interval_s=0.1), timeout=2 * PATIENCE_S)
    another = house.stub.WatchStatus(pb.WatchStatusRequest(), timeout=2 * PATIENCE_S)
    first = (await watch.read()).status
    assert first.acting
    assert (await another.read()).status.instance_id == first.instance_id
    job = await house.submit()
    for call in (watch, another):
        async with asyncio.timeout(PATIENCE_S):
            while (told := (await call.read()).status).running_count != 1:
                assert told.instance_id == first.instance_id
    await house.until_state(job.job_id, JobState.RUNNING)
    await house.redis.set(LEASE, "another")
    await house.redis.incr(TOKEN)
    for call in (watch, another):
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await to_its_end(call)
        assert from_rpc_error(ended.value).reason == "STANDING_BY"
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await house.stub.WatchStatus(pb.WatchStatusRequest(), timeout=TIMEOUT_S).read()
    assert from_rpc_error(refused.value).reason == "STANDING_BY"


@pytest.mark.parametrize("interval_s", [0.05, 1e-9])
async def test_a_watch_of_the_status_that_asks_too_often_is_refused(house: House, interval_s: float) -> None:
    await house.until_acting()
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await house.stub.WatchStatus(pb.WatchStatusRequest(min_interval_s=interval_s), timeout=TIMEOUT_S).read()
    error = from_rpc_error(refused.value)
    assert isinstance(error, InvalidInput)
    assert error.field == "min_interval_s"


async def test_policies_are_listed_and_set(house: House) -> None:
    await house.until_acting()
    listed = (await house.call("ListPolicies", pb.ListPoliciesRequest())).policies
    assert {"fcfs", "fcfs_fastest", "static", "sjf"} <= {policy.name for policy in listed}
    assert [policy.name for policy in listed if policy.acting] == ["sjf"]
    assert all(policy.description for policy in listed)
    answer = await house.call("SetPolicy", pb.SetPolicyRequest(policy="fcfs"))
    assert (answer.policy, answer.previous_policy) == ("fcfs", "sjf")
    assert (await house.call("GetStatus", pb.GetStatusRequest())).policy == "fcfs"


@pytest.mark.parametrize(("name", "says"), [("best", "there is no policy 'best'; there are "), ("", "policy")])
async def test_an_unknown_policy_is_refused_by_name(house: House, name: str, says: str) -> None:
    await house.until_acting()
    with pytest.raises(InvalidInput, match=says) as caught:
        await house.call("SetPolicy", pb.SetPolicyRequest(policy=name))
    assert caught.value.field == "policy"
    assert (await house.call("GetStatus", pb.GetStatusRequest())).policy == "sjf"


async def test_a_decision_is_explained_and_watched(house: House) -> None:
    await house.until_acting()
    watch = house.stub.WatchDecisions(pb.WatchDecisionsRequest())
    reading = asyncio.ensure_future(anext(aiter(watch)))
    await asyncio.sleep(0)
    job = await house.submit(work_s=8.0, gpu_memory_mib=12000)
    await house.until_state(job.job_id, JobState.RUNNING)
    explained = (await house.call("ExplainDecision", pb.ExplainDecisionRequest(job_id=job.job_id))).decision
    assert explained.gpu_id == (await house.store.get(job.job_id)).gpu_id == explained.candidates[0].gpu_id
    assert explained.candidates[0].expected_runtime_s == pytest.approx(8.0)
    assert len(explained.candidates) + len(explained.masked) == 16
    masked = {each.gpu_id: each.reason for each in explained.masked}
    assert masked["turing-0/0"] == "needs 12000 MiB of GPU memory, it has 11264"
    scores = [candidate.score for candidate in explained.candidates]
    assert scores == sorted(scores, reverse=True)
    by_id = await house.call("ExplainDecision", pb.ExplainDecisionRequest(decision_id=explained.decision_id))
    assert by_id.decision == explained
    try:
        watched = await asyncio.wait_for(asyncio.shield(reading), 2)
    except TimeoutError:  # the decision was made before the watch was open: the history has it
        watch.cancel()
        watched = await anext(aiter(house.stub.WatchDecisions(pb.WatchDecisionsRequest(history=10))))
    assert watched.decision == explained
    watch.cancel()


async def test_under_the_learned_policy_a_decision_says_what_it_rests_on(house: House) -> None:
    await house.until_acting()
    listed = (await house.call("ListPolicies", pb.ListPoliciesRequest())).policies
    (learned,) = [policy for policy in listed if policy.name == "dqn"]
    assert learned.version
    assert not learned.problem
    await house.call("SetPolicy", pb.SetPolicyRequest(policy="dqn"))
    for work_s in (9.0, 4.0, 6.0):
        await house.submit(work_s=work_s)
    job = await house.until_state("job-3", JobState.RUNNING)
    decision = (await house.call("ExplainDecision", pb.ExplainDecisionRequest(job_id=job.job_id))).decision
    assert decision.policy == "dqn"
    assert decision.policy_version == learned.version
    assert decision.basis in (pb.DECISION_BASIS_POLICY, pb.DECISION_BASIS_MARGIN)
    assert (decision.basis == pb.DECISION_BASIS_MARGIN) == bool(decision.basis_text)
    assert len(decision.candidates) + len(decision.masked) == 16
    status = await house.call("GetStatus", pb.GetStatusRequest())
    assert status.policy_version == learned.version
    assert (status.policy_problem, len(status.fallbacks)) == ("", 0)
    assert decision.deciding_policy == "dqn"
    by_basis = {each.basis: each.count for each in status.decisions_by_basis}
    assert set(by_basis) <= {pb.DECISION_BASIS_POLICY, pb.DECISION_BASIS_MARGIN}
    assert sum(by_basis.values()) >= 3
    assert status.wait_ratio == 20.0
    assert (status.checkpoints_loaded_count, status.checkpoints_refused_count) == (1, 0)


async def test_a_checkpoint_of_other_planes_is_refused_and_the_old_one_goes_on(house: House, checkpoint: Path) -> None:
    await house.until_acting()
    await house.call("SetPolicy", pb.SetPolicyRequest(policy="dqn"))
    version = (await house.call("GetStatus", pb.GetStatusRequest())).policy_version
    put(checkpoint, network({"duration": 1.0}, planes="1-feedfeedfeedfeed"))

    async def refused() -> bool:
        return bool((await house.call("GetStatus", pb.GetStatusRequest())).checkpoints_refused_count)

    await house.until(refused)
    assert (await house.call("GetStatus", pb.GetStatusRequest())).policy_version == version
    listed = (await house.call("ListPolicies", pb.ListPoliciesRequest())).policies
    assert "planes is '1-feedfeedfeedfeed'" in next(policy.problem for policy in listed if policy.name == "dqn")


async def test_a_policy_in_the_shadow_is_set_told_and_ended(house: House) -> None:
    await house.until_acting()
    assert not (await house.call("GetStatus", pb.GetStatusRequest())).HasField("shadow")
    answer = await house.call("SetShadowPolicy", pb.SetShadowPolicyRequest(policy="fcfs"))
    assert (answer.policy, answer.previous_policy) == ("fcfs", "")
    listed = (await house.call("ListPolicies", pb.ListPoliciesRequest())).policies
    assert [policy.name for policy in listed if policy.shadow] == ["fcfs"]
    job = await house.submit()
    await house.until_state(job.job_id, JobState.RUNNING)

    async def answered() -> bool:
        shadow = (await house.call("GetStatus", pb.GetStatusRequest())).shadow
        return bool(shadow.agreed_count + shadow.differed_count == 1)

    await house.until(answered)
    decision = (await house.call("ExplainDecision", pb.ExplainDecisionRequest(job_id=job.job_id))).decision
    assert (decision.shadow.policy, decision.shadow.job_id) == ("fcfs", job.job_id)
    assert decision.shadow.agrees == (decision.shadow.gpu_id == decision.gpu_id)
    watched = await anext(aiter(house.stub.WatchDecisions(pb.WatchDecisionsRequest(history=10))))
    assert watched.decision.shadow == decision.shadow
    with pytest.raises(InvalidInput, match="there is no policy 'best'"):
        await house.call("SetShadowPolicy", pb.SetShadowPolicyRequest(policy="best"))
    answer = await house.call("SetShadowPolicy", pb.SetShadowPolicyRequest())
    assert (answer.policy, answer.previous_policy) == ("", "fcfs")
    assert not (await house.call("GetStatus", pb.GetStatusRequest())).HasField("shadow")


async def test_a_waiting_job_is_explained_as_well(house: House) -> None:
    await house.until_acting()
    for _ in range(16):
        await house.submit(cpu_cores=1)
    job = await house.submit(cpu_cores=1)

    async def waits() -> bool:
        return (await house.store.get(job.job_id)).pending_reason is PendingReason.RESOURCES

    await house.until(waits)
    explained = (await house.call("ExplainDecision", pb.ExplainDecisionRequest(job_id=job.job_id))).decision
    assert (explained.gpu_id, explained.decision_id, len(explained.candidates)) == ("", "", 0)
    assert all("busy with job-" in each.reason for each in explained.masked)
    assert "number 1 in the queue" in explained.summary


async def test_what_is_not_there_is_not_explained(house: House) -> None:
    await house.until_acting()
    with pytest.raises(NotFound, match="no job 'job-404'"):
        await house.call("ExplainDecision", pb.ExplainDecisionRequest(job_id="job-404"))
    with pytest.raises(NotFound, match="decision_id"):
        await house.call("ExplainDecision", pb.ExplainDecisionRequest(decision_id="d-0-0"))
    with pytest.raises(InvalidInput):
        await house.call("ExplainDecision", pb.ExplainDecisionRequest())


async def test_who_asks_one_that_no_longer_acts_is_sent_to_the_one_that_does(house: House) -> None:
    await house.until_acting()
    await house.until_state((await house.submit()).job_id, JobState.RUNNING)
    watch = house.stub.WatchDecisions(pb.WatchDecisionsRequest(history=1), timeout=2 * PATIENCE_S)
    decision = (await watch.read()).decision
    await house.redis.set(LEASE, "another")
    await house.redis.incr(TOKEN)
    with pytest.raises(grpc.aio.AioRpcError) as ended:
        await watch.read()
    assert from_rpc_error(ended.value).reason == "STANDING_BY"
    for method, request in (
        ("ListPolicies", pb.ListPoliciesRequest()),
        ("ExplainDecision", pb.ExplainDecisionRequest(decision_id=decision.decision_id)),
        ("ExplainDecision", pb.ExplainDecisionRequest(job_id=decision.job_id)),
        ("SetPolicy", pb.SetPolicyRequest(policy="fcfs")),
    ):
        with pytest.raises(Unavailable) as refused:
            await house.call(method, request)
        assert (refused.value.reason, refused.value.metadata["lease_holder"]) == ("STANDING_BY", "another"), method


async def test_a_drained_node_gets_nothing_more_and_keeps_what_runs(house: House) -> None:
    await house.until_acting()
    first = await house.submit(gpu_memory_mib=15000)
    running = await house.until_state(first.job_id, JobState.RUNNING)
    node = running.gpu_id.partition("/")[0]
    answer = await house.call("DrainNode", pb.DrainNodeRequest(node_id=node, reason="maintenance"))
    assert list(answer.running_job_ids) == [first.job_id]
    status = await house.call("GetStatus", pb.GetStatusRequest())
    assert (list(status.drained_node_ids), dict(status.drain_reasons)) == ([node], {node: "maintenance"})
    second = await house.submit(gpu_memory_mib=15000)
    assert not (await house.until_state(second.job_id, JobState.RUNNING)).gpu_id.startswith(node + "/")
    await house.run_clock()
    assert (await house.until_state(first.job_id, JobState.SUCCEEDED)).gpu_id.startswith(node + "/")
    await house.call("UndrainNode", pb.UndrainNodeRequest(node_id=node))
    with pytest.raises(Conflict, match="is not drained"):
        await house.call("UndrainNode", pb.UndrainNodeRequest(node_id=node))


async def test_everybody_is_told_what_is_free_without_jobs_and_users(house: House) -> None:
    await house.until_acting()

    async def capacity() -> dict[str, Any]:
        answer = await house.call("GetClusterCapacity", pb.GetClusterCapacityRequest())
        assert answer.cluster
        return {each.gpu_model: each for each in answer.gpu_models}

    before = await capacity()
    description = await house.cluster.DescribeCluster(cluster_service_pb2.DescribeClusterRequest(), timeout=TIMEOUT_S)
    nodes = list(description.cluster.nodes)
    assert list(before) == list(dict.fromkeys(gpu.gpu_model for node in nodes for gpu in node.gpus))
    for model, each in before.items():
        having = [node for node in nodes if any(gpu.gpu_model == model for gpu in node.gpus)]
        count = sum(gpu.gpu_model == model for node in nodes for gpu in node.gpus)
        assert (each.gpu_count, each.usable_gpu_count, each.free_gpu_count) == (count, count, count)
        assert each.largest_free_cpu_cores == max(node.cpu_cores for node in having)
        assert each.largest_free_memory_mib == max(node.memory_mib for node in having)
    job = await house.submit(gpu_memory_mib=15000)
    running = await house.until_state(job.job_id, JobState.RUNNING)

    async def taken() -> bool:
        found = (await capacity())[running.gpu_model]
        return bool(found.free_gpu_count == found.usable_gpu_count - 1)

    await house.until(taken)
    node = running.gpu_id.partition("/")[0]
    there = sum(gpu.gpu_model == running.gpu_model for each in nodes if each.node_id == node for gpu in each.gpus)
    await house.call("DrainNode", pb.DrainNodeRequest(node_id=node))
    after = (await capacity())[running.gpu_model]
    assert after.usable_gpu_count == after.free_gpu_count == before[running.gpu_model].gpu_count - there


async def test_a_node_that_is_not_there_is_refused_with_those_that_are(house: House) -> None:
    await house.until_acting()
    for method, request in (("DrainNode", pb.DrainNodeRequest), ("UndrainNode", pb.UndrainNodeRequest)):
        with pytest.raises(NotFound, match="the nodes are volta-0, volta-1, turing-0, radeon-0"):
            await house.call(method, request(node_id="volta-9"))


async def test_a_drain_while_all_is_full_says_so(house: House) -> None:
    await house.until_acting()
    for node in ("volta-0", "volta-1", "radeon-0"):
        await house.call("DrainNode", pb.DrainNodeRequest(node_id=node))
    job = await house.submit(gpu_memory_mib=15000)

    async def told() -> bool:
        return (await house.store.get(job.job_id)).pending_reason is PendingReason.NODES_DRAINED

    await house.until(told)
    await house.call("UndrainNode", pb.UndrainNodeRequest(node_id="radeon-0"))
    assert (await house.until_state(job.job_id, JobState.RUNNING)).gpu_id.startswith("radeon-0/")


async def test_a_call_without_a_deadline_is_refused(house: House) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await house.stub.GetStatus(pb.GetStatusRequest())
    error: AdlroError = from_rpc_error(caught.value)
    assert isinstance(error, InvalidInput)
    assert "timeout" in error.message


async def test_a_wait_is_explained_with_its_expected_start(house: House) -> None:
    """16 jobs of 5 s on 16 GPUs, and three that wait: they start when the first of these end, the clock stands."""
    await house.until_acting()
    for _ in range(16):
        await house.submit(cpu_cores=1)
    waiting = [
        await house.submit(cpu_cores=cores, gpu_memory_mib=memory) for cores, memory in ((1, 0), (2, 0), (1, 500))
    ]
    late = await house.submit(cpu_cores=1, begin_time_s=1000.0)
    never = await house.submit(cpu_cores=1000)

    async def known() -> bool:
        status = await house.call("GetStatus", pb.GetStatusRequest())
        return (status.running_count, status.queue_length, status.waiting_for_begin_time_count) == (16, 4, 1)

    await house.until(known)

    async def told() -> bool:
        return all([(await house.store.get(job.job_id)).pending_reason is PendingReason.RESOURCES for job in waiting])

    await house.until(told)
    for place, job in enumerate(waiting, start=1):
        answer = (await house.call("ExplainWaiting", pb.ExplainWaitingRequest(job_id=job.job_id))).explanation
        assert (answer.job_id, answer.queue_place, answer.queue_length) == (job.job_id, place, 4)
        assert answer.reason == int(PendingReason.RESOURCES)
        assert answer.sentence == (await house.store.get(job.job_id)).message
        assert {each.obstacle: each.gpu_count for each in answer.obstacles} == {pb.GPU_OBSTACLE_BUSY: 16}
        assert not answer.changes  # all are busy: no other demand helps
        start = answer.expected_start
        assert answer.time_s <= start.low_s <= start.median_s <= start.high_s < 60.0
        assert (start.finished_count, start.came_in_ratio) == (0, 0.0)
    later = (await house.call("ExplainWaiting", pb.ExplainWaitingRequest(job_id=late.job_id))).explanation
    assert (later.queue_place, later.reason) == (0, int(PendingReason.BEGIN_TIME))
    assert later.expected_start.low_s >= 1000.0 - 1e-6
    none = (await house.call("ExplainWaiting", pb.ExplainWaitingRequest(job_id=never.job_id))).explanation
    assert not none.HasField("expected_start")
    assert none.no_expected_start == "no GPU of the cluster can ever hold it"
    assert {each.obstacle: each.gpu_count for each in none.obstacles} == {pb.GPU_OBSTACLE_TOO_SMALL: 16}


async def test_only_what_waits_has_a_wait_to_explain(house: House) -> None:
    await house.until_acting()
    with pytest.raises(NotFound, match="no job 'job-404'"):
        await house.call("ExplainWaiting", pb.ExplainWaitingRequest(job_id="job-404"))
    with pytest.raises(InvalidInput):
        await house.call("ExplainWaiting", pb.ExplainWaitingRequest())
    job = await house.submit()
    await house.until_state(job.job_id, JobState.RUNNING)
    with pytest.raises(Conflict, match="does not wait: it is running") as refused:
        await house.call("ExplainWaiting", pb.ExplainWaitingRequest(job_id=job.job_id))
    assert (refused.value.reason, refused.value.field) == ("NOT_WAITING", "job_id")


async def test_many_who_ask_at_once_share_a_forecast(house: House) -> None:
    await house.until_acting()
    for _ in range(16):
        await house.submit(cpu_cores=1)
    jobs = [await house.submit(cpu_cores=1) for _ in range(8)]

    async def known() -> bool:
        return int((await house.call("GetStatus", pb.GetStatusRequest())).queue_length) == 8

    await house.until(known)
    asked = [house.call("ExplainWaiting", pb.ExplainWaitingRequest(job_id=job.job_id)) for job in jobs * 10]
    answers = [each.explanation.expected_start for each in await asyncio.gather(*asked)]
    assert len({start.made_s for start in answers}) == 1
    assert len({(start.low_s, start.high_s) for start in answers}) <= 2 * len(jobs)


# --- What keeps jobs from their start -------------------------------------------------------------------------------


async def test_a_quota_keeps_jobs_waiting_and_lets_them_go(house):
    await house.until_acting()
    assert not (await house.call("SetQuota", pb.SetQuotaRequest(user="ann", gpu_count=1))).HasField(
        "previous_gpu_count"
    )
    jobs = [await house.submit(1000.0) for _ in range(2)]
    bobs = await house.submit(1000.0, user="bob")
    await house.until_state(bobs.job_id, JobState.RUNNING)

    async def told() -> bool:
        return (await house.store.get(jobs[1].job_id)).pending_reason is PendingReason.QUOTA

    await house.until(told)
    assert (await house.store.get(jobs[0].job_id)).state is JobState.RUNNING
    (quota,) = (await house.call("ListQuotas", pb.ListQuotasRequest())).quotas
    assert (quota.user, quota.gpu_count, quota.held_gpu_count) == ("ann", 1, 1)
    answer = await house.call("SetQuota", pb.SetQuotaRequest(user="ann"))
    assert answer.previous_gpu_count == 1
    await house.until_state(jobs[1].job_id, JobState.RUNNING)
    assert not (await house.call("ListQuotas", pb.ListQuotasRequest())).quotas


@pytest.mark.parametrize("user", ["", "a b", "**", "a*"])
async def test_a_quota_is_a_users_or_everyones(house, user):
    with pytest.raises(InvalidInput) as caught:
        await house.call("SetQuota", pb.SetQuotaRequest(user=user, gpu_count=1))
    assert caught.value.field == "user"


async def test_shares_are_set_listed_and_forgotten(house):
    await house.until_acting()
    answer = await house.call("SetFairShare", pb.SetFairShareRequest(account="ann", shares=2.5))
    assert answer.fair_share == pb.FairShare(account="ann", shares=2.5)
    answer = await house.call("SetFairShare", pb.SetFairShareRequest(account="ann", group="vision"))
    assert answer.fair_share == pb.FairShare(account="ann", shares=2.5, group="vision")
    await house.call("SetFairShare", pb.SetFairShareRequest(account="@vision", shares=3))
    listed = (await house.call("ListFairShares", pb.ListFairSharesRequest())).fair_shares
    assert list(listed) == [
        pb.FairShare(account="@vision", shares=3.0),
        pb.FairShare(account="ann", shares=2.5, group="vision"),
    ]
    await house.call("SetFairShare", pb.SetFairShareRequest(account="@vision", remove=True))
    answer = await house.call("SetFairShare", pb.SetFairShareRequest(account="ann", group=""))
    assert answer.fair_share.group == ""
    await house.call("SetFairShare", pb.SetFairShareRequest(account="ann", shares=1))
    assert not (await house.call("ListFairShares", pb.ListFairSharesRequest())).fair_shares, "as if nothing were set"


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (pb.SetFairShareRequest(account="", shares=1), "account"),
        (pb.SetFairShareRequest(account="@", shares=1), "account"),
        (pb.SetFairShareRequest(account="a b", shares=1), "account"),
        (pb.SetFairShareRequest(account="ann", shares=0), "shares"),
        (pb.SetFairShareRequest(account="ann", shares=float("nan")), "shares"),
        (pb.SetFairShareRequest(account="ann", group="@vision"), "group"),
        (pb.SetFairShareRequest(account="@vision", group="more"), "group"),
        (pb.SetFairShareRequest(account="ann"), "remove"),
        (pb.SetFairShareRequest(account="ann", shares=1, remove=True), "remove"),
    ],
)
async def test_what_is_no_share_is_refused(house, request_, field):
    await house.until_acting()
    with pytest.raises(InvalidInput) as caught:
        await house.call("SetFairShare", request_)
    assert caught.value.field == field


async def test_held_and_dependent_jobs_are_counted_and_explained(house):
    await house.until_acting()
    held = await house.submit(held=True)
    after = await house.submit(after=(JobDependency(held.job_id),))

    async def counted() -> bool:
        status = await house.call("GetStatus", pb.GetStatusRequest())
        return (status.held_count, status.dependent_count, status.queue_length) == (1, 1, 0)

    await house.until(counted)
    for job, words in ((held, "held"), (after, f"waits for the end of {held.job_id}")):
        told = (await house.call("ExplainWaiting", pb.ExplainWaitingRequest(job_id=job.job_id))).explanation
        assert words in told.sentence
        assert told.no_expected_start
        assert (await house.call("ExplainDecision", pb.ExplainDecisionRequest(job_id=job.job_id))).decision.summary
    await house.store.request(JobRequest(JobRequestKind.RELEASE), [held.job_id])
    await house.until_state(held.job_id, JobState.RUNNING)
    await house.run_clock()
    await house.until_state(after.job_id, JobState.SUCCEEDED)


async def test_everybody_may_read_the_clusters_clock(house):
    await house.until_acting()
    capacity = await house.call("GetClusterCapacity", pb.GetClusterCapacityRequest())
    assert capacity.HasField("clock")
