"""The rules of ClusterService about jobs of several GPUs, one function each, as in `rules`."""

from __future__ import annotations

from adlro.clusterside.check.caller import SHORT_S, ServiceCaller, Skipped, expect
from adlro.clusterside.check.rules import needs, refused, rule, two_gpus
from adlro.errors import Conflict, InvalidInput, NotFound, Unsupported
from adlro.placement import Placement
from adlro.records.events import ENDS, EventKind
from adlro.v1 import cluster_service_pb2 as pb


def two_together(cluster: ServiceCaller) -> tuple[str, str]:
    """Two GPUs of one model, on one node where there are such; skipped where the cluster runs no gangs."""
    needs(cluster.can is not None and cluster.can.gangs, "capability `gangs`")
    found = [
        (one, other)
        for at, one in enumerate(cluster.gpu_ids)
        for other in cluster.gpu_ids[at + 1 :]
        if cluster.model_of[one] == cluster.model_of[other]
    ]
    if not found:
        raise Skipped("needs two GPUs of one model")
    return next((pair for pair in found if cluster.node_of[pair[0]] == cluster.node_of[pair[1]]), found[0])


@rule
async def starts_a_gang_on_all_its_gpus(cluster: ServiceCaller) -> None:
    """With the capability `gangs`: a job holds all GPUs of its placement from one start to one end, and is told so."""
    both = Placement.on(*two_together(cluster))
    job_id = cluster.new_job()
    async with cluster.watch_from_now() as watch:
        await cluster.launch(job_id, both, 1.0)
        start = await watch.start_of(job_id)
        expect(start.placement == both, f"STARTED on {both}", start.placement)
        running = [(each.job_id, each.placement) for each in (await cluster.describe()).running]
        expect(running == [(job_id, both)], f"{job_id} on {both}", running)
        for gpu_id in both.gpu_ids:
            await refused(cluster.launch(cluster.new_job(), gpu_id), Conflict, "GPU_BUSY", f"a second job on {gpu_id}")
        end = await watch.end_of(job_id)
    expect((end.kind, end.placement) == (EventKind.FINISHED, both), f"FINISHED on {both}", (end.kind, end.placement))
    told = [event.kind for event in watch.of(job_id, EventKind.STARTED, *ENDS)]
    expect(told == [EventKind.STARTED, EventKind.FINISHED], "one start and one end", [kind.name for kind in told])
    for gpu_id in both.gpu_ids:  # free again
        await cluster.launch(cluster.new_job(), gpu_id, SHORT_S)


@rule
async def refuses_a_gang_as_a_whole(cluster: ServiceCaller) -> None:
    """A gang that one of its GPUs or nodes can't take is refused, with its name, and holds none of the others."""
    first, second = two_together(cluster)
    job_id, both = cluster.new_job(), Placement.on(first, second)
    node = next(node for node, gpu in (await cluster.describe()).cluster.gpus() if gpu.gpu_id == first)
    if cluster.node_of[first] == cluster.node_of[second]:
        launch = cluster.launch(job_id, both, cpu_cores=node.cpu_cores // 2 + 1)
        error = await refused(launch, Conflict, "NODE_CORES_EXHAUSTED", "a gang with more cores than the node has")
        expect(node.node_id in error.message, f"a message with {node.node_id}", error.message)
    nowhere = cluster.launch(job_id, Placement.on(first, "nowhere/0"))
    error = await refused(nowhere, NotFound, "", "a gang with an unknown GPU")
    expect("nowhere/0" in error.message, "a message with the unknown GPU", error.message)
    other = cluster.new_job()
    async with cluster.watch_from_now() as watch:
        await cluster.launch(other, second, 1.0)
        error = await refused(cluster.launch(job_id, both), Conflict, "GPU_BUSY", "a gang with a busy GPU")
        expect(second in error.message, f"a message with {second}", error.message)
        await cluster.launch(cluster.new_job(), first, SHORT_S)
        await watch.end_of(other)
        expect(not watch.of(job_id, *EventKind), f"no event of {job_id}", watch.told)


@rule
async def keeps_a_gang_on_its_gpus(cluster: ServiceCaller) -> None:
    """A repeated launch of a gang is answered as existing, and refused on other GPUs, fewer, or in another order."""
    first, second = two_together(cluster)
    job_id = cluster.new_job()
    async with cluster.watch_from_now() as watch:
        await cluster.launch(job_id, Placement.on(first, second), 1.0)
        again = await cluster.launch(job_id, Placement.on(first, second), 1.0)
        expect(again.existing, "existing = true", "false")
        for other in (Placement.on(second, first), Placement.on(first)):
            what = f"the same attempt on {other}"
            await refused(cluster.launch(job_id, other, 1.0), Conflict, "ATTEMPT_ON_OTHER_GPU", what)
        await watch.end_of(job_id)
    expect(len(watch.of(job_id, EventKind.STARTED)) == 1, "STARTED once", watch.told)


@rule
async def names_a_gang_of_another_size(cluster: ServiceCaller) -> None:
    """A placement that has another number of GPUs than the job is INVALID_ARGUMENT."""
    first, second = two_together(cluster)
    fewer = cluster.launch(cluster.new_job(), first, gpu_count=2)
    await refused(fewer, InvalidInput, "", "a job of two GPUs on one")
    more = cluster.launch(cluster.new_job(), Placement.on(first, second), gpu_count=1)
    await refused(more, InvalidInput, "", "a job of one GPU on two")


@rule
async def stops_a_gang_on_all_its_gpus(cluster: ServiceCaller) -> None:
    """A stop ends a gang once, on all its GPUs."""
    both = Placement.on(*two_together(cluster))
    needs(cluster.can is not None and cluster.can.stop, "capability `stop`")
    job_id = cluster.new_job()
    async with cluster.watch_from_now() as watch:
        await cluster.launch(job_id, both)
        await watch.start_of(job_id)
        expect(await cluster.stop(job_id), "stopped = true", "false")
        end = await watch.end_of(job_id)
        expect((end.kind, end.placement) == (EventKind.STOPPED, both), f"STOPPED on {both}", (end.kind, end.placement))
        for gpu_id in both.gpu_ids:
            await cluster.launch(cluster.new_job(), gpu_id, SHORT_S)


@rule
async def loses_a_gang_with_any_of_its_gpus(cluster: ServiceCaller) -> None:
    """With the capability `gpu_availability`: a gang is LOST once, on all its GPUs, when one is lost."""
    first, second = two_together(cluster)
    needs(cluster.can is not None and cluster.can.gpu_availability, "capability `gpu_availability`")
    job_id, both = cluster.new_job(), Placement.on(first, second)
    try:
        async with cluster.watch_from_now() as watch:
            await cluster.launch(job_id, both)
            await watch.start_of(job_id)
            lost = pb.SetGpuAvailabilityRequest(gpu_id=second, available=False)
            answer = await cluster.call("SetGpuAvailability", lost)
            expect(answer.lost_job_id == job_id, f"lost_job_id {job_id}", answer.lost_job_id)
            end = await watch.end_of(job_id)
            expect((end.kind, end.placement) == (EventKind.LOST, both), f"LOST on {both}", (end.kind, end.placement))
            gone = await watch.until(lambda event: event.kind is EventKind.GPU_LOST, "GPU_LOST")
            expect(gone.gpu_id == second, f"GPU_LOST of {second}", gone.gpu_id)
        error = await refused(cluster.launch(job_id, both, attempt=2), Conflict, "GPU_LOST", "a launch on a lost GPU")
        expect(second in error.message, f"a message with {second}", error.message)
        described = (await cluster.describe()).lost_gpu_ids
        expect(described == (second,), f"{second} alone in lost_gpu_ids", described)
        await cluster.launch(cluster.new_job(), first, SHORT_S)
    finally:
        back = pb.SetGpuAvailabilityRequest(gpu_id=second, available=True)
        await cluster.call("SetGpuAvailability", back)


@rule
async def refuses_gangs_that_it_can_not_run(cluster: ServiceCaller) -> None:
    """Without the capability `gangs`, a launch on several GPUs is UNIMPLEMENTED, with a message, and starts nothing."""
    if cluster.can is not None and cluster.can.gangs:
        raise Skipped("the cluster runs gangs")
    launch = cluster.launch(cluster.new_job(), Placement.on(*two_gpus(cluster)))
    error = await refused(launch, Unsupported, "", "a job of two GPUs")
    expect(error.message, "a message with the reason", "none")
    left = (await cluster.describe()).running
    expect(not left, "nothing that runs", left)
