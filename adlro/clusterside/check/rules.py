"""The rules of ClusterService, one function each; its name is the rule's, its docstring the rule in words.

A rule raises `Broken` where it is not kept, and `Skipped` where the cluster says that it can't do what it is about.
Each begins on an idle cluster.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from adlro.clusterside.check.caller import SHORT_S, Broken, ServiceCaller, Skipped, expect
from adlro.errors import AdlroError, Conflict, InvalidInput, NotFound, OutOfRange, Stale, Unsupported
from adlro.records.events import ENDS, AttemptState, EventKind
from adlro.v1 import cluster_service_pb2 as pb

Rule = Callable[[ServiceCaller], Awaitable[None]]

RULES: dict[str, Rule] = {}
# Runs long enough for its time limit to be reached first.
LIMIT_S = 0.3


def rule(function: Rule) -> Rule:
    """Adds a rule."""
    RULES[function.__name__] = function
    return function


async def refused(call: Awaitable[object], kind: type[AdlroError], reason: str, what: str) -> AdlroError:
    """The refusal of a call that must be refused, with this error and reason ("": any)."""
    wanted = f"{what} to be refused with {kind.__name__}" + (f" {reason}" if reason else "")
    try:
        answer = await call
    except AdlroError as error:
        expect(
            isinstance(error, kind) and reason in ("", error.reason),
            wanted,
            f"{type(error).__name__} {error.reason}: {error.message}",
        )
        return error
    raise Broken(wanted, f"an answer: {str(answer).strip() or 'an empty message'}")


def needs(can: bool, what: str) -> None:
    """Raises Skipped where the cluster can't."""
    if not can:
        raise Skipped(f"the cluster has no {what}")


def two_gpus(cluster: ServiceCaller) -> tuple[str, str]:
    """Two GPUs; skipped where there is one."""
    if len(cluster.gpu_ids) < 2:
        raise Skipped("needs two GPUs")
    return cluster.gpu_ids[0], cluster.gpu_ids[1]


# ---- what it is


@rule
async def describes_itself(cluster: ServiceCaller) -> None:
    """A cluster has a name, GPUs with ids of their own, an incarnation, and a log that reaches to its newest event."""
    found = await cluster.describe()
    gpu_ids = [gpu.gpu_id for _, gpu in found.cluster.gpus()]
    expect(found.cluster.name, "a name", "none")
    expect(len(set(gpu_ids)) == len(gpu_ids), "GPU ids that are unique", gpu_ids)
    expect(found.incarnation, "an incarnation", "none")
    expect(
        0 < found.oldest_revision <= found.revision + 1,
        "oldest_revision from 1 to revision + 1",
        f"oldest_revision {found.oldest_revision}, revision {found.revision}",
    )


@rule
async def says_what_it_can_do(cluster: ServiceCaller) -> None:
    """DescribeCluster has the cluster's capabilities."""
    expect(cluster.can is not None, "capabilities in DescribeCluster", "none")


@rule
async def keeps_its_incarnation(cluster: ServiceCaller) -> None:
    """The incarnation stays, and neither revision nor clock go back, as long as the log goes on."""
    before = await cluster.describe()
    await cluster.run_to_its_end(cluster.gpu_ids[0])
    after = await cluster.describe()
    expect(after.incarnation == before.incarnation, f"incarnation {before.incarnation}", after.incarnation)
    expect(after.revision > before.revision, f"a revision after {before.revision}", after.revision)
    expect(after.clock.time_s >= before.clock.time_s, f"a time from {before.clock.time_s} s", after.clock.time_s)


# ---- launches


@rule
async def accepts_a_launch(cluster: ServiceCaller) -> None:
    """A launch that is taken is answered: as new, with how far it has come."""
    answer = await cluster.launch(cluster.new_job(), cluster.gpu_ids[0], SHORT_S)
    expect(not answer.existing, "existing = false for a new attempt", "true")
    states = {int(state) for state in AttemptState}
    expect(answer.state in states, "a state, such as ACCEPTED", pb.AttemptState.Name(answer.state))


@rule
async def tells_a_start(cluster: ServiceCaller) -> None:
    """An accepted attempt is told STARTED once, with its attempt, its GPU and a time; the answer says nothing else."""
    job_id, gpu_id = cluster.new_job(), cluster.gpu_ids[0]
    async with cluster.watch_from_now() as watch:
        answer = await cluster.launch(job_id, gpu_id, SHORT_S, attempt=3)
        event = await watch.start_of(job_id)
        await watch.end_of(job_id)
    expect((event.attempt, event.gpu_id) == (3, gpu_id), f"attempt 3 on {gpu_id}", (event.attempt, event.gpu_id))
    expect(len(watch.of(job_id, EventKind.STARTED)) == 1, "STARTED once", watch.told)
    expect(
        (answer.revision, answer.start_s) in ((0, 0.0), (event.revision, event.time_s)),
        f"revision and start of the event ({event.revision}, {event.time_s}), or 0 before it",
        (answer.revision, answer.start_s),
    )


@rule
async def describes_what_runs(cluster: ServiceCaller) -> None:
    """What has started and not ended stands in DescribeCluster, with its attempt, GPU and start."""
    job_id, gpu_id = cluster.new_job(), cluster.gpu_ids[0]
    async with cluster.watch_from_now() as watch:
        await cluster.launch(job_id, gpu_id, 2.0)
        event = await watch.start_of(job_id)
        running = [
            (each.job_id, each.attempt, each.gpu_id, each.start_s) for each in (await cluster.describe()).running
        ]
        expect(running == [(job_id, 1, gpu_id, event.time_s)], f"{job_id} on {gpu_id} since {event.time_s} s", running)
        await watch.end_of(job_id)
        left = (await cluster.describe()).running
        expect(not left, "no running attempt after its end", left)


@rule
async def tells_running_in_its_place(cluster: ServiceCaller) -> None:
    """RUNNING, where a cluster tells it, comes between STARTED and the end."""
    job_id, events = await cluster.run_to_its_end(cluster.gpu_ids[0])
    kinds = [event.kind for event in events if event.job_id == job_id]
    if EventKind.RUNNING not in kinds:
        raise Skipped("the cluster does not report RUNNING")
    at = kinds.index(EventKind.RUNNING)
    kept = kinds.count(EventKind.RUNNING) == 1 and kinds.index(EventKind.STARTED) < at < len(kinds) - 1
    expect(kept, "STARTED, RUNNING, an end", [kind.name for kind in kinds])


@rule
async def ends_what_was_declared(cluster: ServiceCaller) -> None:
    """A job whose program ends without error is told FINISHED once, later than its start, and its GPU is free again."""
    for _ in range(2):  # the second one on the GPU of the first
        job_id, events = await cluster.run_to_its_end(cluster.gpu_ids[0])
        ends = [event for event in events if event.job_id == job_id and event.kind in ENDS]
        expect([end.kind for end in ends] == [EventKind.FINISHED], "FINISHED", [end.kind.name for end in ends])
        start = next((each for each in events if each.job_id == job_id and each.kind is EventKind.STARTED), None)
        if start is None:
            raise Broken("STARTED before FINISHED", [event.kind.name for event in events])
        expect(ends[0].time_s > start.time_s, f"an end after {start.time_s} s", f"{ends[0].time_s} s")
        expect((ends[0].attempt, ends[0].gpu_id) == (1, start.gpu_id), f"attempt 1 on {start.gpu_id}", ends[0])


@rule
async def answers_a_repeated_launch(cluster: ServiceCaller) -> None:
    """Of the same launch at once and again, one is new, all are answered alike, and the attempt runs once."""
    job_id, gpu_id = cluster.new_job(), cluster.gpu_ids[0]
    async with cluster.watch_from_now() as watch:
        answers = await asyncio.gather(*(cluster.launch(job_id, gpu_id, 1.0) for _ in range(5)))
        existing = sorted(answer.existing for answer in answers)
        expect(existing == [False, True, True, True, True], "one new attempt, and four that exist", existing)
        event = await watch.start_of(job_id)
        again = await cluster.launch(job_id, gpu_id, 1.0)
        expect(again.existing, "existing = true", "false")
        starts = {(each.start_s, each.revision) for each in (*answers, again)} - {(0.0, 0)}
        expect(starts <= {(event.time_s, event.revision)}, "the reported start, or 0 before it", starts)
        await watch.end_of(job_id)
    expect(len(watch.of(job_id, EventKind.STARTED)) == 1, "STARTED once", watch.told)


@rule
async def remembers_what_ended(cluster: ServiceCaller) -> None:
    """A launch of an attempt that has ended is answered as existing, and does not run again."""
    gpu_id = cluster.gpu_ids[0]
    job_id, _ = await cluster.run_to_its_end(gpu_id)
    before = await cluster.describe()
    answer = await cluster.launch(job_id, gpu_id, SHORT_S)
    expect(answer.existing, "existing = true", "false")
    await asyncio.sleep(SHORT_S)
    after = await cluster.describe()
    expect((after.running, after.revision) == ((), before.revision), "no start and no event", after.running)


@rule
async def keeps_an_attempt_on_its_gpu(cluster: ServiceCaller) -> None:
    """An attempt that was launched on one GPU is refused on another: ATTEMPT_ON_OTHER_GPU."""
    first, second = two_gpus(cluster)
    job_id = cluster.new_job()
    await cluster.launch(job_id, first, 1.0)
    what = "the same attempt on another GPU"
    await refused(cluster.launch(job_id, second, 1.0), Conflict, "ATTEMPT_ON_OTHER_GPU", what)


@rule
async def refuses_an_old_attempt(cluster: ServiceCaller) -> None:
    """An attempt older than one that is known is refused, also after that has ended: OLD_ATTEMPT."""
    job_id, gpu_id = cluster.new_job(), cluster.gpu_ids[0]
    async with cluster.watch_from_now() as watch:
        await cluster.launch(job_id, gpu_id, SHORT_S, attempt=2)
        await watch.end_of(job_id)
    await refused(cluster.launch(job_id, gpu_id, SHORT_S), Conflict, "OLD_ATTEMPT", "attempt 1 after attempt 2")


@rule
async def runs_one_attempt_of_a_job(cluster: ServiceCaller) -> None:
    """Another attempt of a job is refused while one is open (JOB_RUNNING), and taken when that is over."""
    first, second = two_gpus(cluster)
    job_id = cluster.new_job()
    async with cluster.watch_from_now() as watch:
        await cluster.launch(job_id, first, 1.0)
        await refused(cluster.launch(job_id, second, attempt=2), Conflict, "JOB_RUNNING", "a second attempt beside one")
        await watch.end_of(job_id)
        answer = await cluster.launch(job_id, second, SHORT_S, attempt=2)
        expect(not answer.existing, "a new attempt", "an existing one")


@rule
async def refuses_a_busy_gpu(cluster: ServiceCaller) -> None:
    """A GPU has one job at a time: GPU_BUSY."""
    gpu_id = cluster.gpu_ids[0]
    await cluster.launch(cluster.new_job(), gpu_id, 1.0)
    await refused(cluster.launch(cluster.new_job(), gpu_id), Conflict, "GPU_BUSY", f"a second job on {gpu_id}")


@rule
async def names_an_unknown_gpu(cluster: ServiceCaller) -> None:
    """A GPU that the cluster does not have is NOT_FOUND, and named."""
    error = await refused(cluster.launch(cluster.new_job(), "nowhere/0"), NotFound, "", "an unknown GPU")
    expect("nowhere/0" in error.message, "a message with the GPU's id", error.message)


@rule
async def refuses_what_does_not_fit(cluster: ServiceCaller) -> None:
    """A job that needs more than its GPU or node has is refused with the reason."""
    node, gpu = next((await cluster.describe()).cluster.gpus())
    too_much: list[tuple[dict[str, Any], str]] = [
        ({"gpu_memory_mib": gpu.memory_mib + 1}, "GPU_MEMORY_TOO_SMALL"),
        ({"cpu_cores": node.cpu_cores + 1}, "NODE_CORES_EXHAUSTED"),
        ({"memory_mib": node.memory_mib + 1}, "NODE_MEMORY_EXHAUSTED"),
    ]
    for fields, reason in too_much:
        launch = cluster.launch(cluster.new_job(), gpu.gpu_id, **fields)
        await refused(launch, Conflict, reason, f"a job with {fields}")


@rule
async def keeps_to_the_nodes_of_jobs(cluster: ServiceCaller) -> None:
    """No job starts on a node that it does not accept, beside an exclusive job, or, being exclusive, beside another."""
    gpu_id = cluster.gpu_ids[0]
    node_id = cluster.node_of[gpu_id]
    choices: list[dict[str, Any]] = [{"excluded_node_ids": (node_id,)}, {"node_ids": ("nowhere",)}]
    for fields in choices:
        launch = cluster.launch(cluster.new_job(), gpu_id, **fields)
        await refused(launch, Conflict, "NODE_NOT_ACCEPTED", f"a job with {fields} on {node_id}")
    other = next((each for each in cluster.gpu_ids[1:] if cluster.node_of[each] == node_id), None)
    if other is None:
        return
    for exclusive, reason in ((False, "NODE_NOT_EMPTY"), (True, "NODE_EXCLUSIVE")):
        first = cluster.new_job()
        async with cluster.watch_from_now() as watch:
            await cluster.launch(first, gpu_id, 1.0, exclusive=exclusive)
            launch = cluster.launch(cluster.new_job(), other, exclusive=not exclusive)
            await refused(launch, Conflict, reason, f"two jobs on {node_id}, of which one is exclusive")
            await watch.end_of(first)
    await cluster.launch(cluster.new_job(), other, SHORT_S)


@rule
async def forgets_a_refused_launch(cluster: ServiceCaller) -> None:
    """A refusal changes nothing: no event, nothing that runs, and the same attempt may be launched later, as new."""
    gpu_id, job_id = cluster.gpu_ids[0], cluster.new_job()
    before = await cluster.describe()
    await refused(cluster.launch(job_id, gpu_id, gpu_memory_mib=1_048_576), Conflict, "", "a job that does not fit")
    after = await cluster.describe()
    expect((after.running, after.revision) == (before.running, before.revision), "no change", after)
    answer = await cluster.launch(job_id, gpu_id, SHORT_S)
    expect(not answer.existing, "existing = false for an attempt that was refused before", "true")


@rule
async def keeps_a_time_limit(cluster: ServiceCaller) -> None:
    """A job that reaches its time limit is ended, and told FAILED."""
    job_id = cluster.new_job()
    async with cluster.watch_from_now() as watch:
        await cluster.launch(job_id, cluster.gpu_ids[0], 60.0, time_limit_s=LIMIT_S)
        end = await watch.end_of(job_id)
        start = await watch.start_of(job_id)
    expect(end.kind is EventKind.FAILED, "FAILED", end.kind.name)
    expect(end.time_s >= start.time_s + LIMIT_S, f"an end {LIMIT_S} s after {start.time_s} s", f"{end.time_s} s")


# ---- stops


@rule
async def stops_what_runs(cluster: ServiceCaller) -> None:
    """StopJob ends what runs, and the end is told STOPPED."""
    needs(cluster.can is None or cluster.can.stop, "capability `stop`")
    job_id = cluster.new_job()
    async with cluster.watch_from_now() as watch:
        await cluster.launch(job_id, cluster.gpu_ids[0])
        await watch.start_of(job_id)
        expect(await cluster.stop(job_id, attempt=1), "stopped = true", "false")
        end = await watch.end_of(job_id)
    expect((end.kind, end.attempt) == (EventKind.STOPPED, 1), "STOPPED of attempt 1", (end.kind.name, end.attempt))
    left = (await cluster.describe()).running
    expect(not left, "nothing that runs", left)


@rule
async def stops_once(cluster: ServiceCaller) -> None:
    """A stop of another attempt, of an unknown job, or of what is stopped already, changes nothing and is no error."""
    needs(cluster.can is None or cluster.can.stop, "capability `stop`")
    job_id = cluster.new_job()
    async with cluster.watch_from_now() as watch:
        await cluster.launch(job_id, cluster.gpu_ids[0])
        await watch.start_of(job_id)
        expect(not await cluster.stop(job_id, attempt=7), "stopped = false for another attempt", "true")
        expect(not await cluster.stop(cluster.new_job()), "stopped = false for an unknown job", "true")
        expect(await cluster.stop(job_id), "stopped = true", "false")
        expect(not await cluster.stop(job_id), "stopped = false for a second stop", "true")
        await watch.end_of(job_id)
        expect(not await cluster.stop(job_id), "stopped = false after the end", "true")
        # What comes after is told after a second end, if there is one.
        await cluster.wake_at(0.0)
        await watch.until(lambda event: event.kind is EventKind.WAKE_UP, "WAKE_UP")
    expect(len(watch.of(job_id, *ENDS)) == 1, "one end", watch.told)


# ---- the log


@rule
async def counts_revisions_without_gaps(cluster: ServiceCaller) -> None:
    """Revisions are 1, 2, 3, ...: none is left out, none comes twice, and the description names the newest."""
    before = await cluster.describe()
    _, events = await cluster.run_to_its_end(cluster.gpu_ids[0])
    revisions = [event.revision for event in events]
    wanted = list(range(before.revision + 1, before.revision + 1 + len(events)))
    expect(revisions == wanted, f"{wanted}", revisions)
    newest = (await cluster.describe()).revision
    expect(newest >= revisions[-1], f"revision {revisions[-1]} in DescribeCluster", newest)


@rule
async def tells_no_newest_revision_before_the_event(cluster: ServiceCaller) -> None:
    """A message of events that names the newest revision names that of its last event, or a later one of the log."""
    before = await cluster.describe()
    _, events = await cluster.run_to_its_end(cluster.gpu_ids[0])
    async with cluster.watch(before.revision, before.incarnation) as watch:
        while not watch.events or watch.events[-1].revision < events[-1].revision:
            told = await watch.next_batch()
            if told.newest_revision:
                last, newest = told.events[-1].revision, (await cluster.describe()).revision
                named = f"newest_revision {told.newest_revision}"
                expect(last <= told.newest_revision <= newest, f"newest_revision from {last} to {newest}", named)


@rule
async def resumes_after_any_revision(cluster: ServiceCaller) -> None:
    """A watch after any revision that is kept gives every event after it, and begins with the next one."""
    before = await cluster.describe()
    _, events = await cluster.run_to_its_end(cluster.gpu_ids[0])
    for after in range(before.revision, events[-1].revision):
        async with cluster.watch(after, before.incarnation) as watch:
            while not watch.events or watch.events[-1].revision < events[-1].revision:
                await watch.next_batch()
        wanted = [event for event in events if event.revision > after]
        expect(watch.events[: len(wanted)] == wanted, f"the events after {after} as before", watch.events)


@rule
async def tells_all_watchers_the_same(cluster: ServiceCaller) -> None:
    """Every watcher gets every event."""
    job_id = cluster.new_job()
    async with cluster.watch_from_now() as one, cluster.watch_from_now() as other:
        await cluster.launch(job_id, cluster.gpu_ids[0], SHORT_S)
        await one.end_of(job_id)
        await other.end_of(job_id)
    wanted, seen = ([each for each in watch.events if each.job_id == job_id] for watch in (one, other))
    expect(wanted == seen, f"{wanted}", seen)


@rule
async def tells_events_in_the_order_of_time(cluster: ServiceCaller) -> None:
    """Times of events never fall, and the clock that comes with them is not behind them."""
    async with cluster.watch_from_now() as watch:
        for _ in range(2):
            job_id = cluster.new_job()
            await cluster.launch(job_id, cluster.gpu_ids[0], SHORT_S)
            await watch.end_of(job_id)
    times_s = [event.time_s for event in watch.events]
    expect(times_s == sorted(times_s), "times that do not fall", times_s)
    expect(watch.clocks[-1].time_s >= times_s[-1], f"a clock from {times_s[-1]} s", watch.clocks[-1].time_s)
    expect(min(times_s) >= 0.0, "times from 0", min(times_s))


@rule
async def refuses_another_incarnation(cluster: ServiceCaller) -> None:
    """What is meant for another incarnation is ABORTED: a watch, an acknowledgement, a launch, a stop."""
    found, other = await cluster.describe(), "another-incarnation"
    async with cluster.watch(found.revision, other) as watch:
        await refused(watch.next_batch(), Stale, "", "a watch of another incarnation")
    await refused(cluster.acknowledge(other, 0), Stale, "", "an acknowledgement for another incarnation")
    launch = cluster.launch(cluster.new_job(), cluster.gpu_ids[0], SHORT_S, incarnation=other)
    await refused(launch, Stale, "", "a launch for another incarnation")
    if cluster.can is None or cluster.can.stop:
        await refused(cluster.stop(cluster.new_job(), incarnation=other), Stale, "", "a stop for another incarnation")


@rule
async def refuses_a_revision_ahead(cluster: ServiceCaller) -> None:
    """An event that is not there yet can't be acknowledged, and nothing can be watched after it: OUT_OF_RANGE."""
    found = await cluster.describe()
    ahead = found.revision + 1000
    await refused(cluster.acknowledge(found.incarnation, ahead), OutOfRange, "", f"revision {ahead}")
    async with cluster.watch(ahead, found.incarnation) as watch:
        await refused(watch.next_batch(), OutOfRange, "", f"a watch after {ahead}")


@rule
async def takes_acknowledgements_in_any_order(cluster: ServiceCaller) -> None:
    """An acknowledgement may come twice, and after a newer one."""
    await cluster.run_to_its_end(cluster.gpu_ids[0])
    found = await cluster.describe()
    for revision in (found.revision, found.revision, max(found.revision - 1, 0)):
        await cluster.acknowledge(found.incarnation, revision)
    async with cluster.watch(found.revision, found.incarnation) as watch:
        job_id = cluster.new_job()
        await cluster.launch(job_id, cluster.gpu_ids[0], SHORT_S)
        await watch.end_of(job_id)


# ---- fencing


@rule
async def refuses_an_old_token(cluster: ServiceCaller) -> None:
    """A fencing token that is older than one that was given is refused (STALE_FENCING_TOKEN), and changes nothing."""
    found, gpu_id = await cluster.describe(), cluster.gpu_ids[0]
    await cluster.acknowledge(found.incarnation, 0)  # so that the newest one has been seen
    if cluster.token < 1:
        raise Skipped("no lease was issued yet: name the store that issues them (redis_url)")
    old, reason = cluster.token - 1, "STALE_FENCING_TOKEN"
    launch = cluster.launch(cluster.new_job(), gpu_id, token=old)
    await refused(launch, Conflict, reason, f"a launch with token {old}")
    await refused(cluster.acknowledge(found.incarnation, 0, token=old), Conflict, reason, "an acknowledgement")
    if cluster.can is None or cluster.can.stop:
        await refused(cluster.stop(cluster.new_job(), token=old), Conflict, reason, "a stop")
    left = (await cluster.describe()).running
    expect(not left, "nothing that runs", left)


@rule
async def refuses_an_unknown_token(cluster: ServiceCaller) -> None:
    """A fencing token that no lease has given is refused (UNKNOWN_FENCING_TOKEN), and keeps no lease from acting."""
    found, gpu_id, reason = await cluster.describe(), cluster.gpu_ids[0], "UNKNOWN_FENCING_TOKEN"
    for unknown in (cluster.token + 5, 2**53 - 10):
        what = f"token {unknown}, where {cluster.token} is the newest"
        await refused(cluster.launch(cluster.new_job(), gpu_id, token=unknown), Conflict, reason, what)
        await refused(cluster.acknowledge(found.incarnation, 0, token=unknown), Conflict, reason, what)
    await cluster.acknowledge(found.incarnation, 0)


@rule
async def tells_the_newest_token(cluster: ServiceCaller) -> None:
    """DescribeCluster tells the newest fencing token that was used."""
    found = await cluster.describe()
    await cluster.acknowledge(found.incarnation, 0)
    told = (await cluster.describe()).fencing_token
    expect(told == cluster.token, f"fencing_token {cluster.token}", told)


@rule
async def takes_the_token_of_a_new_lease(cluster: ServiceCaller) -> None:
    """The token of a new lease is taken at its first use, and the one before it refused from then on."""
    old = cluster.token
    new = await cluster.take_lease()
    found = await cluster.describe()
    await cluster.acknowledge(found.incarnation, 0, token=new)
    late = cluster.acknowledge(found.incarnation, 0, token=old)
    await refused(late, Conflict, "STALE_FENCING_TOKEN", "the token of the lease before")


# ---- wake-ups


@rule
async def wakes_at_once_for_what_has_passed(cluster: ServiceCaller) -> None:
    """Times that have passed, all of one call together, give one WAKE_UP now."""
    async with cluster.watch_from_now() as watch:
        await cluster.wake_at(0.0, 0.0)
        await watch.until(lambda event: event.kind is EventKind.WAKE_UP, "WAKE_UP")
        job_id = cluster.new_job()
        await cluster.launch(job_id, cluster.gpu_ids[0], SHORT_S)
        await watch.end_of(job_id)
    count = sum(event.kind is EventKind.WAKE_UP for event in watch.events)
    expect(count == 1, "one WAKE_UP", count)


@rule
async def wakes_at_a_time_to_come(cluster: ServiceCaller) -> None:
    """A time to come gives one WAKE_UP, not before it; the answer has the clock when it was asked."""
    before = (await cluster.describe()).clock
    wanted_s = before.time_s + LIMIT_S * max(before.scale, 1.0)
    async with cluster.watch_from_now() as watch:
        clock = await cluster.wake_at(wanted_s, wanted_s)
        expect(clock.time_s >= before.time_s, f"a clock from {before.time_s} s", clock.time_s)
        event = await watch.until(lambda event: event.kind is EventKind.WAKE_UP, f"WAKE_UP at {wanted_s} s")
        expect(event.time_s >= wanted_s, f"not before {wanted_s} s", event.time_s)


# ---- what not every cluster has


@rule
async def names_a_broken_field(cluster: ServiceCaller) -> None:
    """A request that breaks a rule of the contract is INVALID_ARGUMENT, and the field is named."""
    for method, request, field in (
        ("LaunchJob", pb.LaunchJobRequest(job_id="j", attempt=1, gpu_id="g"), "spec"),
        ("StopJob", pb.StopJobRequest(job_id="x" * 65), "job_id"),
        ("WakeAt", pb.WakeAtRequest(), "times_s"),
        ("AcknowledgeEvents", pb.AcknowledgeEventsRequest(revision=1), "incarnation"),
    ):
        error = await refused(cluster.call(method, request), InvalidInput, "", f"{method} without a valid {field}")
        named = [violation.field for violation in error.violations]
        expect(field in named, f"the field {field}", named)


@rule
async def refuses_what_it_can_not_do(cluster: ServiceCaller) -> None:
    """A call for which the cluster lacks the capability is UNIMPLEMENTED or FAILED_PRECONDITION, with a message."""
    calls: list[tuple[str, object]] = []
    if cluster.can is not None and not cluster.can.virtual_clock:
        calls.append(("SetClock", pb.SetClockRequest(paused=True)))
    if cluster.can is not None and not cluster.can.gpu_availability:
        calls.append(("SetGpuAvailability", pb.SetGpuAvailabilityRequest(gpu_id=cluster.gpu_ids[0])))
    if not calls:
        raise Skipped("the cluster can do it all")
    for method, request in calls:
        try:
            await cluster.call(method, request)
        except (Unsupported, Conflict) as error:
            expect(error.message, "a message with the reason", "none")
        else:
            raise Broken(f"{method} to be refused", "an answer")


@rule
async def tells_that_its_clock_was_set(cluster: ServiceCaller) -> None:
    """With the capability `virtual_clock`, SetClock answers with the clock, and CLOCK_SET is told."""
    needs(cluster.can is not None and cluster.can.virtual_clock, "capability `virtual_clock`")
    before = (await cluster.describe()).clock
    async with cluster.watch_from_now() as watch:
        answer = (await cluster.call("SetClock", pb.SetClockRequest())).clock
        kept = (answer.mode, answer.scale, answer.paused) == (before.mode, before.scale, before.paused)
        expect(kept and answer.time_s >= before.time_s, f"the clock as it was: {before}", answer)
        await watch.until(lambda event: event.kind is EventKind.CLOCK_SET, "CLOCK_SET")


@rule
async def loses_a_gpu_with_its_job(cluster: ServiceCaller) -> None:
    """With the capability `gpu_availability`: a lost GPU is told and described, its job LOST; back, it takes jobs."""
    needs(cluster.can is not None and cluster.can.gpu_availability, "capability `gpu_availability`")
    job_id, gpu_id = cluster.new_job(), cluster.gpu_ids[0]
    try:
        async with cluster.watch_from_now() as watch:
            await cluster.launch(job_id, gpu_id)
            lost = pb.SetGpuAvailabilityRequest(gpu_id=gpu_id, available=False)
            answer = await cluster.call("SetGpuAvailability", lost)
            expect(answer.lost_job_id == job_id, f"lost_job_id {job_id}", answer.lost_job_id)
            end = await watch.end_of(job_id)
            expect(end.kind is EventKind.LOST, "LOST", end.kind.name)
            await watch.until(lambda event: event.kind is EventKind.GPU_LOST, "GPU_LOST")
        described = (await cluster.describe()).lost_gpu_ids
        expect(described == (gpu_id,), f"{gpu_id} in lost_gpu_ids", described)
        await refused(cluster.launch(job_id, gpu_id, attempt=2), Conflict, "GPU_LOST", "a launch on a lost GPU")
    finally:
        back = pb.SetGpuAvailabilityRequest(gpu_id=gpu_id, available=True)
        await cluster.call("SetGpuAvailability", back)
    expect(not (await cluster.describe()).lost_gpu_ids, "no lost GPU", "one")
    await cluster.launch(job_id, gpu_id, SHORT_S, attempt=2)
