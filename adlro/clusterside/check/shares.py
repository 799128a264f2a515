"""The rules of ClusterService about two jobs on a GPU, one function each, as in `rules`.

They are about clusters with the capability `shares`, but the last. Their jobs do not say what application they are: so
nothing speaks against running them together.
"""

from __future__ import annotations

from typing import Any

from adlro.clusterside.check.caller import LONG_S, SHORT_S, ServiceCaller, Skipped, Watch, expect
from adlro.clusterside.check.preemption import needs_preemption, once_it_works, one_end, stoppable
from adlro.clusterside.check.rules import needs, refused, rule
from adlro.errors import Conflict, InvalidInput, Unsupported
from adlro.placement import SHARED, GpuShare, Placement
from adlro.records.events import ENDS, EventKind
from adlro.v1 import cluster_service_pb2 as pb


def part_of(gpu_id: str, share: float = SHARED) -> Placement:
    """A part of a GPU."""
    return Placement((GpuShare(gpu_id, share),))


def needs_shares(cluster: ServiceCaller) -> str:
    """A GPU; skipped where the cluster gives whole ones only."""
    needs(cluster.can is not None and cluster.can.shares, "capability `shares`")
    return cluster.gpu_ids[0]


async def sharing(cluster: ServiceCaller, watch: Watch, gpu_id: str, runtime_s: float = LONG_S, **fields: Any) -> str:
    """A started job that has a part of a GPU."""
    job_id = cluster.new_job()
    await cluster.launch(job_id, part_of(gpu_id), runtime_s, shareable=True, **fields)
    await watch.start_of(job_id)
    return job_id


@rule
async def runs_two_jobs_on_a_gpu(cluster: ServiceCaller) -> None:
    """With the capability `shares`: two shareable jobs with half of a GPU run side by side, each told with its half."""
    gpu_id = needs_shares(cluster)
    async with cluster.watch_from_now() as watch:
        both = [await sharing(cluster, watch, gpu_id, 2.0) for _ in range(2)]
        running = [(each.job_id, each.placement) for each in (await cluster.describe()).running]
        wanted = [(job_id, part_of(gpu_id)) for job_id in both]
        expect(
            sorted(running, key=str) == sorted(wanted, key=str),
            f"{both[0]} and {both[1]} on {part_of(gpu_id)}",
            running,
        )
        for job_id in both:
            end = await watch.end_of(job_id)
            told = [event.placement for event in watch.of(job_id, EventKind.STARTED, *ENDS)]
            expect(told == [part_of(gpu_id)] * 2, f"STARTED and an end on {part_of(gpu_id)}", told)
            expect(end.kind is EventKind.FINISHED, "FINISHED", end.kind.name)
    await cluster.launch(cluster.new_job(), gpu_id, SHORT_S)  # free again


@rule
async def refuses_a_third_job_on_a_gpu(cluster: ServiceCaller) -> None:
    """A GPU has two jobs at most: GPU_BUSY. When one of them has ended there is room for another."""
    gpu_id = needs_shares(cluster)
    async with cluster.watch_from_now() as watch:
        first = await sharing(cluster, watch, gpu_id, 1.0)
        await sharing(cluster, watch, gpu_id)
        third = cluster.new_job()
        launch = cluster.launch(third, part_of(gpu_id), shareable=True)
        error = await refused(launch, Conflict, "GPU_BUSY", f"a third job on {gpu_id}")
        expect(first in error.message, f"a message with {first}", error.message)
        await watch.end_of(first)
        answer = await cluster.launch(third, part_of(gpu_id), SHORT_S, shareable=True)
        expect(not answer.existing, "existing = false for an attempt that was refused before", "true")


@rule
async def refuses_a_whole_gpu_beside_a_part(cluster: ServiceCaller) -> None:
    """A job that has all of a GPU runs beside nobody, shareable or not, whoever was there first: GPU_BUSY."""
    gpu_id = needs_shares(cluster)
    async with cluster.watch_from_now() as watch:
        first = await sharing(cluster, watch, gpu_id, 1.0)
        for shareable in (True, False):
            launch = cluster.launch(cluster.new_job(), gpu_id, shareable=shareable)
            await refused(launch, Conflict, "GPU_BUSY", f"all of {gpu_id} beside {first}")
        await watch.end_of(first)
        await cluster.launch(cluster.new_job(), Placement.on(gpu_id), 1.0, shareable=True)
        launch = cluster.launch(cluster.new_job(), part_of(gpu_id), shareable=True)
        await refused(launch, Conflict, "GPU_BUSY", f"a part of {gpu_id} beside a job that has all of it")


@rule
async def counts_the_gpu_memory_of_both(cluster: ServiceCaller) -> None:
    """Two jobs on a GPU have its memory together: GPU_MEMORY_TOO_SMALL."""
    gpu_id = needs_shares(cluster)
    gpu = next(gpu for _, gpu in (await cluster.describe()).cluster.gpus() if gpu.gpu_id == gpu_id)
    most_mib = gpu.memory_mib // 2 + 1
    async with cluster.watch_from_now() as watch:
        await sharing(cluster, watch, gpu_id, gpu_memory_mib=most_mib)
        job_id = cluster.new_job()
        launch = cluster.launch(job_id, part_of(gpu_id), shareable=True, gpu_memory_mib=most_mib)
        await refused(launch, Conflict, "GPU_MEMORY_TOO_SMALL", f"two jobs of {most_mib} of {gpu.memory_mib} MiB")
        rest_mib = gpu.memory_mib - most_mib
        await cluster.launch(job_id, part_of(gpu_id), SHORT_S, shareable=True, gpu_memory_mib=rest_mib)


@rule
async def answers_a_repeated_launch_of_a_part(cluster: ServiceCaller) -> None:
    """A repeated launch on a part of a GPU is answered as existing, and refused on all of it: ATTEMPT_ON_OTHER_GPU."""
    gpu_id = needs_shares(cluster)
    async with cluster.watch_from_now() as watch:
        job_id = await sharing(cluster, watch, gpu_id, 1.0)
        again = await cluster.launch(job_id, part_of(gpu_id), 1.0, shareable=True)
        expect(again.existing, "existing = true", "false")
        launch = cluster.launch(job_id, Placement.on(gpu_id), 1.0, shareable=True)
        await refused(launch, Conflict, "ATTEMPT_ON_OTHER_GPU", f"the same attempt on all of {gpu_id}")
        await watch.end_of(job_id)
    expect(len(watch.of(job_id, EventKind.STARTED)) == 1, "STARTED once", watch.told)


@rule
async def refuses_a_part_that_a_job_can_not_have(cluster: ServiceCaller) -> None:
    """A part for a job that is not shareable, or another part than half a GPU, is INVALID_ARGUMENT."""
    gpu_id = needs_shares(cluster)
    for where, shareable in ((part_of(gpu_id), False), (part_of(gpu_id, 0.25), True), (part_of(gpu_id, 0.75), True)):
        launch = cluster.launch(cluster.new_job(), where, shareable=shareable)
        await refused(launch, InvalidInput, "", f"{where} for a job with shareable = {str(shareable).lower()}")
    left = (await cluster.describe()).running
    expect(not left, "nothing that runs", left)


@rule
async def stops_one_of_two(cluster: ServiceCaller) -> None:
    """A stop of one of two jobs on a GPU ends it alone; the other runs on, to its own end."""
    gpu_id = needs_shares(cluster)
    needs(cluster.can is not None and cluster.can.stop, "capability `stop`")
    async with cluster.watch_from_now() as watch:
        stays = await sharing(cluster, watch, gpu_id, 1.0)
        goes = await sharing(cluster, watch, gpu_id)
        expect(await cluster.stop(goes), "stopped = true", "false")
        end = await watch.end_of(goes)
        expect((end.kind, end.placement) == (EventKind.STOPPED, part_of(gpu_id)), f"STOPPED on {part_of(gpu_id)}", end)
        await watch.end_of(stays)
        one_end(watch, stays, EventKind.FINISHED)


@rule
async def loses_both_with_their_gpu(cluster: ServiceCaller) -> None:
    """With the capability `gpu_availability`: both jobs of a lost GPU are LOST, once each."""
    gpu_id = needs_shares(cluster)
    needs(cluster.can is not None and cluster.can.gpu_availability, "capability `gpu_availability`")
    try:
        async with cluster.watch_from_now() as watch:
            both = [await sharing(cluster, watch, gpu_id) for _ in range(2)]
            lost = pb.SetGpuAvailabilityRequest(gpu_id=gpu_id, available=False)
            answer = await cluster.call("SetGpuAvailability", lost)
            expect(answer.lost_job_id in both, f"lost_job_id {both[0]}", answer.lost_job_id)
            for job_id in both:
                await watch.end_of(job_id)
                one_end(watch, job_id, EventKind.LOST)
        left = (await cluster.describe()).running
        expect(not left, "nothing that runs", left)
    finally:
        back = pb.SetGpuAvailabilityRequest(gpu_id=gpu_id, available=True)
        await cluster.call("SetGpuAvailability", back)


@rule
async def stops_both_of_a_gpu_for_a_launch(cluster: ServiceCaller) -> None:
    """With `preemption`: a launch on all of a GPU stops both jobs there, or nobody, and starts after the last end."""
    gpu_id = needs_shares(cluster)
    needs_preemption(cluster)
    async with cluster.watch_from_now() as watch:
        both = [await stoppable(cluster, watch, part_of(gpu_id), shareable=True) for _ in range(2)]
        job_id = cluster.new_job()
        one_alone = once_it_works(cluster, lambda: cluster.launch(job_id, gpu_id, SHORT_S, preempts=both[:1]))
        await refused(one_alone, Conflict, "GPU_BUSY", f"a launch that stops one of two jobs on {gpu_id}")
        await once_it_works(cluster, lambda: cluster.launch(job_id, gpu_id, SHORT_S, preempts=both))
        start = await watch.start_of(job_id)
        for each in both:
            one_end(watch, each.job_id, EventKind.PREEMPTED)
            end = watch.of(each.job_id, *ENDS)[0]
            expect(end.revision < start.revision, f"PREEMPTED of {each.job_id} before STARTED of {job_id}", watch.told)
        await watch.end_of(job_id)


@rule
async def refuses_parts_that_it_can_not_give(cluster: ServiceCaller) -> None:
    """Without the capability `shares`, a launch on a part of a GPU is UNIMPLEMENTED, and starts nothing."""
    if cluster.can is not None and cluster.can.shares:
        raise Skipped("the cluster gives parts of GPUs")
    launch = cluster.launch(cluster.new_job(), part_of(cluster.gpu_ids[0]), shareable=True)
    error = await refused(launch, Unsupported, "", "a job on a part of a GPU")
    expect(error.message, "a message with the reason", "none")
    left = (await cluster.describe()).running
    expect(not left, "nothing that runs", left)
