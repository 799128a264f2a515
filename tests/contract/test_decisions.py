"""Decisions as OrchestratorService shows them: watched in views, listed from the store, over restarts and replicas."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from adlro.errors import AdlroError, InvalidInput, NotFound
from adlro.kit.status import from_rpc_error
from adlro.kit.testing import serve
from adlro.records.jobs import JobState
from adlro.services.simcluster.server import SimclusterServer
from adlro.services.simcluster.settings import SimclusterSettings
from adlro.store.keys import DECISIONS, EXPLANATIONS
from adlro.v1 import orchestrator_service_pb2 as pb
from tests.contract.test_orchestrator_service import IMPLEMENTATIONS, PATIENCE_S, TIMEOUT_S, House, in_process
from tests.networks import network, put

SUMMARY, FULL = pb.DECISION_VIEW_SUMMARY, pb.DECISION_VIEW_FULL
LEFT_OUT = ("candidates", "masked", "masked_groups", "best_pairs")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Of a learned policy that starts the shortest pair."""
    return put(tmp_path / "net.onnx", network({"duration": -1.0}, hold=-1e6))


@pytest.fixture
async def cluster_address(redis_url: str) -> AsyncIterator[str]:
    settings = SimclusterSettings(clock_mode="virtual", clock_paused=True, redis_url=redis_url)
    async with serve(SimclusterServer(settings), settings) as address:
        yield address


@pytest.fixture(params=IMPLEMENTATIONS)
async def house(
    request: pytest.FixtureRequest, redis_url: str, cluster_address: str, checkpoint: Path
) -> AsyncIterator[House]:
    async with IMPLEMENTATIONS[request.param](redis_url, cluster_address, checkpoint) as address:
        made = House(address, cluster_address, redis_url)
        yield made
        await made.close()


@asynccontextmanager
async def one_more(redis_url: str, cluster_address: str, checkpoint: Path) -> AsyncIterator[House]:
    async with in_process(redis_url, cluster_address, checkpoint) as address:
        made = House(address, cluster_address, redis_url)
        try:
            yield made
        finally:
            await made.close()


async def running(house: House, count: int, **spec: Any) -> list[str]:
    """Submits jobs, one a time, each of which starts."""
    job_ids = []
    for number in range(count):
        job = await house.submit(work_s=5.0 + number, cpu_cores=1, **spec)
        await house.until_state(job.job_id, JobState.RUNNING)
        job_ids.append(job.job_id)
    return job_ids


async def page(house: House, size: int = 0, token: str = "", view: int = SUMMARY, **wanted: Any) -> Any:
    request = pb.ListDecisionsRequest(
        filter=pb.DecisionFilter(**wanted),
        page_size=size,
        page_token=token,
        view=view,  # type: ignore[arg-type]
    )
    return await house.call("ListDecisions", request)


async def listed(house: House, size: int = 0, view: int = SUMMARY, **wanted: Any) -> list[pb.Decision]:
    found: list[pb.Decision] = []
    token = ""
    while True:
        answer = await page(house, size, token, view, **wanted)
        found += answer.decisions
        token = answer.next_page_token
        if not token:
            return found


async def until_listed(house: House, count: int, view: int = SUMMARY) -> list[pb.Decision]:
    async def there() -> bool:
        return len(await listed(house)) >= count

    await house.until(there)
    return await listed(house, view=view)


async def watched(watch: Any, count: int) -> list[pb.Decision]:
    found: list[pb.Decision] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(found) < count:
            message = await watch.read()
            assert message.missed_count == 0
            found += message.decisions
            if message.HasField("decision"):
                found.append(message.decision)
    return found


def ids(found: Sequence[pb.Decision]) -> list[str]:
    return [each.decision_id for each in found]


def without(decision: pb.Decision, *names: str) -> pb.Decision:
    copy = pb.Decision()
    copy.CopyFrom(decision)
    for name in names:
        copy.ClearField(name)  # type: ignore[arg-type]
    return copy


async def test_each_view_has_what_it_says_and_a_summary_is_small(house: House) -> None:
    await house.until_acting()
    old, full, brief = (
        house.stub.WatchDecisions(request, timeout=TIMEOUT_S)
        for request in (
            pb.WatchDecisionsRequest(history=3),
            pb.WatchDecisionsRequest(history=3, view=FULL),
            pb.WatchDecisionsRequest(history=3, view=SUMMARY),
        )
    )
    await running(house, 3)
    whole, short = await watched(full, 3), await watched(brief, 3)
    assert await watched(old, 3) == whole
    assert short == [without(each, *LEFT_OUT) for each in whole]
    for each in short:
        assert 100 < each.ByteSize() < 500
    last = whole[-1]
    assert len(last.candidates) + len(last.masked) == 16
    assert sum(each.gpu_count for each in last.masked_groups) == len(last.masked)
    assert "busy with other jobs" in [each.reason for each in last.masked_groups]
    assert [each.job_id for each in last.best_pairs] == [last.job_id] * len(last.best_pairs)
    assert last.best_pairs[0].placement == last.placement
    assert last.prediction.median_s == last.candidates[0].expected_runtime_s > 0.0
    assert last.prediction.interval_coverage == 0.0  # there is no decompose
    for watch in (old, full, brief):
        watch.cancel()


async def test_pairs_of_jobs_that_wait_are_kept_beside_the_placed_one(house: House) -> None:
    await house.until_acting()
    for node in ("volta-1", "turing-0", "radeon-0"):
        await house.call("DrainNode", pb.DrainNodeRequest(node_id=node))
    await running(house, 4)  # volta-0 is full
    waiting = [await house.submit(work_s=20.0 + number, cpu_cores=1) for number in range(3)]
    await house.call("UndrainNode", pb.UndrainNodeRequest(node_id="volta-1"))
    for job in waiting:
        await house.until_state(job.job_id, JobState.RUNNING)
    decision = (await house.call("ExplainDecision", pb.ExplainDecisionRequest(job_id=waiting[0].job_id))).decision
    assert {each.job_id for each in decision.best_pairs} == {each.job_id for each in waiting}
    scores = [each.score for each in decision.best_pairs]
    assert scores == sorted(scores, reverse=True)


async def test_under_the_learned_policy_its_base_and_its_margin_are_kept(house: House) -> None:
    await house.until_acting()
    await house.call("SetPolicy", pb.SetPolicyRequest(policy="dqn"))
    await running(house, 2)
    decision = (await until_listed(house, 2, FULL))[0]
    assert decision.policy == "dqn"
    assert decision.HasField("base_choice")
    assert decision.base_choice.job_id in ("", decision.job_id)
    assert decision.HasField("margin")
    assert decision.best_pairs


async def test_the_list_is_what_watchers_got_newest_first_in_pages(house: House) -> None:
    await house.until_acting()
    await house.call("SetShadowPolicy", pb.SetShadowPolicyRequest(policy="fcfs"))
    brief = house.stub.WatchDecisions(pb.WatchDecisionsRequest(view=SUMMARY, history=9), timeout=TIMEOUT_S)
    full = house.stub.WatchDecisions(pb.WatchDecisionsRequest(view=FULL, history=9), timeout=TIMEOUT_S)
    job_ids = await running(house, 9)
    got, whole = await watched(brief, 9), await watched(full, 9)
    assert [each.job_id for each in got] == job_ids
    assert all(each.HasField("shadow") for each in got)  # the answer that came later is stored too
    assert await until_listed(house, 9) == got[::-1]
    assert await listed(house, view=FULL) == [without(each, "masked") for each in whole[::-1]]
    assert await listed(house, view=pb.DECISION_VIEW_UNSPECIFIED) == await listed(house, view=FULL)
    assert await listed(house, size=2) == got[::-1]
    first = await page(house, 4)
    assert (len(first.decisions), bool(first.next_page_token)) == (4, True)
    brief.cancel()
    full.cancel()


async def test_filters_select_by_time_job_gpu_basis_and_shadow(house: House) -> None:
    await house.until_acting()
    await house.call("SetShadowPolicy", pb.SetShadowPolicyRequest(policy="fcfs"))
    job_ids = await running(house, 4)
    everything = await until_listed(house, 4)
    third = next(each for each in everything if each.job_id == job_ids[2])
    assert await listed(house, job_id=job_ids[2]) == [third]
    assert await listed(house, gpu_id=third.gpu_id) == [third]
    assert await listed(house, gpu_id="nowhere/0") == []
    assert await listed(house, basis=pb.DECISION_BASIS_POLICY) == everything
    assert await listed(house, basis=pb.DECISION_BASIS_OVERDUE) == []
    assert await listed(house, differs_only=True) == [each for each in everything if not each.shadow.agrees]
    assert await listed(house, from_s=third.time_s) == [each for each in everything if each.time_s >= third.time_s]
    assert await listed(house, to_s=third.time_s) == [each for each in everything if each.time_s < third.time_s]


async def test_what_is_not_asked_for_well_is_refused_by_name(house: House) -> None:
    await house.until_acting()
    for request, field in (
        (pb.ListDecisionsRequest(page_size=-1), "page_size"),
        (pb.ListDecisionsRequest(page_token="made-up"), "page_token"),
        (pb.ListDecisionsRequest(view=7), "view"),  # type: ignore[arg-type]
        (pb.ListDecisionsRequest(filter=pb.DecisionFilter(from_s=float("nan"))), "filter.from_s"),
        (pb.ListDecisionsRequest(filter=pb.DecisionFilter(job_id="x" * 65)), "filter.job_id"),
        (pb.ListDecisionsRequest(filter=pb.DecisionFilter(basis=99)), "filter.basis"),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidInput) as refused:
            await house.call("ListDecisions", request)
        assert refused.value.field == field
    with pytest.raises(grpc.aio.AioRpcError) as ended:
        await house.stub.WatchDecisions(pb.WatchDecisionsRequest(view=7), timeout=TIMEOUT_S).read()  # type: ignore[arg-type]
    assert isinstance(from_rpc_error(ended.value), InvalidInput)


async def test_after_a_restart_decisions_are_listed_and_explained_and_ids_are_new(
    redis_url: str, cluster_address: str, checkpoint: Path
) -> None:
    async with one_more(redis_url, cluster_address, checkpoint) as first:
        await first.until_acting()
        job_ids = await running(first, 3)
        explained = (await first.call("ExplainDecision", pb.ExplainDecisionRequest(job_id=job_ids[2]))).decision
        before = await until_listed(first, 3)
    async with one_more(redis_url, cluster_address, checkpoint) as second:
        await second.until_acting()
        assert await listed(second) == before
        request = pb.ExplainDecisionRequest(decision_id=explained.decision_id)
        again = (await second.call("ExplainDecision", request)).decision
        assert again == without(explained, "masked")
        assert again.masked_groups
        request = pb.ExplainDecisionRequest(job_id=job_ids[2])
        assert (await second.call("ExplainDecision", request)).decision == again
        later = await running(second, 2)
        after = await until_listed(second, 5)
        assert after[2:] == before
        assert [each.job_id for each in after[:2]] == later[::-1]
        assert len(set(ids(after))) == 5
        await second.redis.delete(DECISIONS, EXPLANATIONS)
        request = pb.ExplainDecisionRequest(decision_id=explained.decision_id)
        with pytest.raises(NotFound, match="decision_id"):
            await second.call("ExplainDecision", request)
        assert await listed(second) == []


async def test_a_standby_lists_what_the_other_one_decides(
    redis_url: str, cluster_address: str, checkpoint: Path
) -> None:
    async with AsyncExitStack() as houses:
        acts = await houses.enter_async_context(one_more(redis_url, cluster_address, checkpoint))
        await acts.until_acting()  # so that the other one finds the lease taken
        other = await houses.enter_async_context(one_more(redis_url, cluster_address, checkpoint))
        await running(acts, 2)
        found = await until_listed(acts, 2)
        assert await listed(other) == found
        assert await listed(other, size=1) == found  # a page's token is good for both
        token = (await page(acts, 1)).next_page_token
        assert (await page(other, 1, token)).decisions == found[1:]
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await other.stub.WatchDecisions(pb.WatchDecisionsRequest(), timeout=TIMEOUT_S).read()
        assert from_rpc_error(ended.value).reason == "STANDING_BY"


async def test_a_store_that_loses_its_decisions_stops_no_decision(house: House) -> None:
    await house.until_acting()
    await house.redis.set(DECISIONS, "not a stream")
    await running(house, 2)
    with pytest.raises(AdlroError):
        await listed(house)
    await house.redis.delete(DECISIONS)
    assert len(await until_listed(house, 2)) == 2
