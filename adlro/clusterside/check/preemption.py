"""The rules of ClusterService about attempts that are stopped for others, one function each, as in `rules`.

They are about clusters with the capability `preemption`, but the last.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from adlro.clusterside.check.caller import LONG_S, SHORT_S, Broken, ServiceCaller, Skipped, Watch, expect
from adlro.clusterside.check.rules import needs, refused, rule, two_gpus
from adlro.errors import Conflict, Unsupported
from adlro.placement import Placement
from adlro.records.events import ENDS, EventKind
from adlro.records.jobs import AttemptRef, Preemptible
from adlro.v1 import cluster_service_pb2 as pb

_GRACE_S, _AGAIN_S = 5.0, 0.05


def needs_preemption(cluster: ServiceCaller) -> None:
    """Raises Skipped where the cluster can't preempt."""
    needs(cluster.can is not None and cluster.can.preemption, "capability `preemption`")


async def stoppable(cluster: ServiceCaller, watch: Watch, where: str | Placement, **fields: Any) -> AttemptRef:
    """A started attempt that may be stopped for another one."""
    job_id = cluster.new_job()
    await cluster.launch(job_id, where, LONG_S, preemptible=Preemptible(grace_s=_GRACE_S), **fields)
    await watch.start_of(job_id)
    return AttemptRef(job_id, 1)


async def once_it_works(cluster: ServiceCaller, call: Callable[[], Awaitable[Any]]) -> Any:
    """The answer to a preemption: a cluster may refuse it while what is to be stopped still starts."""
    until_s = time.monotonic() + cluster.patience_s
    while True:
        try:
            return await call()
        except Conflict as error:
            if error.reason != "NOT_PREEMPTIBLE":
                raise
            if time.monotonic() >= until_s:
                raise Broken(
                    "a started attempt of a preemptible job to be stopped for another one",
                    f"{error.reason}: {error.message}",
                ) from None
        await asyncio.sleep(_AGAIN_S)


def one_end(watch: Watch, job_id: str, kind: EventKind) -> None:
    """Raises Broken where a job has not ended once, so."""
    ends = [event.kind.name for event in watch.of(job_id, *ENDS)]
    expect(ends == [kind.name], f"one end of {job_id}, {kind.name}", ends)


@rule
async def stops_others_for_a_launch(cluster: ServiceCaller) -> None:
    """A launch that preempts is accepted at once; the others end as PREEMPTED, and it starts, once, after the last."""
    needs_preemption(cluster)
    gpu_id = cluster.gpu_ids[0]
    async with cluster.watch_from_now() as watch:
        victim = await stoppable(cluster, watch, gpu_id)
        job_id = cluster.new_job()
        answer = await once_it_works(cluster, lambda: cluster.launch(job_id, gpu_id, 1.0, preempts=[victim]))
        expect(not answer.existing, "existing = false for a new attempt", "true")
        start = await watch.start_of(job_id)
        one_end(watch, victim.job_id, EventKind.PREEMPTED)
        end = watch.of(victim.job_id, *ENDS)[0]
        expect(
            end.revision < start.revision and end.time_s <= start.time_s,
            f"PREEMPTED of {victim.job_id} before STARTED of {job_id}",
            f"revision {end.revision} at {end.time_s} s, and {start.revision} at {start.time_s} s",
        )
        left = end.remaining_ratio
        expect(left is None or 0.0 < left <= 1.0, "remaining_ratio above 0 and at most 1, or none", left)
        running = [each.job_id for each in (await cluster.describe()).running]
        expect(running == [job_id], f"{job_id} alone", running)
        await watch.end_of(job_id)
        expect(len(watch.of(job_id, EventKind.STARTED)) == 1, "STARTED once", watch.told)
        again = await cluster.launch(victim.job_id, gpu_id, SHORT_S, attempt=2, resumes=True)
        expect(not again.existing, "the next attempt of the stopped job as a new one", "an existing one")


@rule
async def refuses_a_preemption_as_a_whole(cluster: ServiceCaller) -> None:
    """A launch that preempts what can't be stopped, or that does not fit even then, is refused, and stops nobody."""
    needs_preemption(cluster)
    first, second = two_gpus(cluster)
    node = next(node for node, gpu in (await cluster.describe()).cluster.gpus() if gpu.gpu_id == first)
    async with cluster.watch_from_now() as watch:
        victim = await stoppable(cluster, watch, first)
        stays = AttemptRef(cluster.new_job(), 1)
        await cluster.launch(stays.job_id, second)
        await watch.start_of(stays.job_id)
        other, nobody = AttemptRef(victim.job_id, 7), AttemptRef(cluster.new_job(), 1)
        tries: list[tuple[str, list[AttemptRef], dict[str, Any], str]] = [
            (second, [victim, stays], {}, "NOT_PREEMPTIBLE"),
            (first, [victim, victim], {}, "NOT_PREEMPTIBLE"),
            (first, [victim, nobody], {}, "NOT_RUNNING"),
            (first, [other], {}, "NOT_RUNNING"),
            (second, [victim], {}, "GPU_BUSY"),
            (first, [victim], {"cpu_cores": node.cpu_cores + 1}, "NODE_CORES_EXHAUSTED"),
        ]
        before = (await cluster.describe()).running
        for gpu_id, preempts, fields, reason in tries:
            launch = cluster.launch(cluster.new_job(), gpu_id, preempts=preempts, **fields)
            await refused(launch, Conflict, reason, f"a launch on {gpu_id} that preempts {preempts} with {fields}")
        await asyncio.sleep(SHORT_S)
        after = (await cluster.describe()).running
        expect(after == before, "all to run on", after)
        job_id = cluster.new_job()
        await once_it_works(cluster, lambda: cluster.launch(job_id, first, SHORT_S, preempts=[victim]))
        await watch.end_of(job_id)
        one_end(watch, victim.job_id, EventKind.PREEMPTED)


@rule
async def answers_a_repeated_preemption(cluster: ServiceCaller) -> None:
    """Of the same preempting launch at once and again, one is new; each victim ends once, the attempt starts once."""
    needs_preemption(cluster)
    gpu_id = cluster.gpu_ids[0]
    async with cluster.watch_from_now() as watch:
        victim = await stoppable(cluster, watch, gpu_id)
        job_id = cluster.new_job()

        def launch() -> Awaitable[pb.LaunchJobResponse]:
            return once_it_works(cluster, lambda: cluster.launch(job_id, gpu_id, 1.0, preempts=[victim]))

        existing = sorted(answer.existing for answer in await asyncio.gather(*(launch() for _ in range(4))))
        expect(existing == [False, True, True, True], "one new attempt, and three that exist", existing)
        await watch.start_of(job_id)
        expect((await launch()).existing, "existing = true after the start", "false")
        await watch.end_of(job_id)
        expect((await launch()).existing, "existing = true after the end", "false")
        one_end(watch, victim.job_id, EventKind.PREEMPTED)
        expect(len(watch.of(job_id, EventKind.STARTED)) == 1, "STARTED once", watch.told)


@rule
async def stops_what_waits_for_others(cluster: ServiceCaller) -> None:
    """An attempt that waits for others to end, and is stopped, ends as STOPPED and never starts; its GPU is free."""
    needs_preemption(cluster)
    gpu_id = cluster.gpu_ids[0]
    async with cluster.watch_from_now() as watch:
        victim = await stoppable(cluster, watch, gpu_id)
        job_id = cluster.new_job()
        await once_it_works(cluster, lambda: cluster.launch(job_id, gpu_id, LONG_S, preempts=[victim]))
        expect(await cluster.stop(job_id, attempt=1), "stopped = true", "false")
        end = await watch.end_of(job_id)
        expect(end.kind is EventKind.STOPPED, "STOPPED", end.kind.name)
        await watch.end_of(victim.job_id)
        one_end(watch, victim.job_id, EventKind.PREEMPTED)
        later = cluster.new_job()
        await cluster.launch(later, gpu_id, SHORT_S)
        await watch.end_of(later)
        one_end(watch, job_id, EventKind.STOPPED)
        late = [event for event in watch.of(job_id, EventKind.STARTED) if event.revision > end.revision]
        expect(not late, f"no start of {job_id} after its end", late)


@rule
async def ends_as_stopped_what_its_user_stops_meanwhile(cluster: ServiceCaller) -> None:
    """A preempted attempt that is stopped for good before it has ended, ends as STOPPED; the other one starts."""
    needs_preemption(cluster)
    gpu_id = cluster.gpu_ids[0]
    async with cluster.watch_from_now() as watch:
        victim = await stoppable(cluster, watch, gpu_id)
        job_id = cluster.new_job()
        await once_it_works(cluster, lambda: cluster.launch(job_id, gpu_id, 1.0, preempts=[victim]))
        stopped = await cluster.stop(victim.job_id, attempt=1)
        end = await watch.end_of(victim.job_id)
        wanted = EventKind.STOPPED if stopped else EventKind.PREEMPTED
        expect(end.kind is wanted, f"{wanted.name}, since stopped = {str(stopped).lower()}", end.kind.name)
        await watch.start_of(job_id)
        one_end(watch, victim.job_id, wanted)


@rule
async def preempts_without_a_successor(cluster: ServiceCaller) -> None:
    """StopJob with `preempt` ends an attempt as PREEMPTED, once, and refuses one whose job can't go on later."""
    needs_preemption(cluster)
    first, second = two_gpus(cluster)
    async with cluster.watch_from_now() as watch:
        victim, stays = await stoppable(cluster, watch, first), cluster.new_job()
        await cluster.launch(stays, second, 1.0)
        await watch.start_of(stays)
        await refused(cluster.stop(stays, preempt=True), Conflict, "NOT_PREEMPTIBLE", "a job that is not preemptible")
        expect(not await cluster.stop(cluster.new_job(), preempt=True), "stopped = false for an unknown job", "true")
        stop = await once_it_works(cluster, lambda: cluster.stop(victim.job_id, attempt=1, preempt=True))
        expect(stop, "stopped = true", "false")
        expect(not await cluster.stop(victim.job_id, preempt=True), "stopped = false for a second stop", "true")
        await watch.end_of(victim.job_id)
        one_end(watch, victim.job_id, EventKind.PREEMPTED)
        await cluster.launch(cluster.new_job(), first, SHORT_S)
        await watch.end_of(stays)
        one_end(watch, stays, EventKind.FINISHED)


@rule
async def refuses_preemption_that_it_can_not_do(cluster: ServiceCaller) -> None:
    """Without the capability `preemption`, a launch or a stop that preempts is UNIMPLEMENTED, and changes nothing."""
    if cluster.can is not None and cluster.can.preemption:
        raise Skipped("the cluster preempts")
    gpu_id = cluster.gpu_ids[0]
    async with cluster.watch_from_now() as watch:
        victim = await stoppable(cluster, watch, gpu_id)
        launch = cluster.launch(cluster.new_job(), gpu_id, preempts=[victim])
        error = await refused(launch, Unsupported, "", "a launch that preempts")
        expect(error.message, "a message with the reason", "none")
        await refused(cluster.stop(victim.job_id, preempt=True), Unsupported, "", "a stop that preempts")
        running = [each.job_id for each in (await cluster.describe()).running]
        expect(running == [victim.job_id], f"{victim.job_id} as before", running)
