"""Clusters that break one rule each, named after the rule; each tells what it does wrong."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from typing import Any

from adlro.errors import Conflict, InvalidInput, NotFound
from adlro.v1 import cluster_service_pb2 as pb
from tests.unit.clusterside.double import Double, GangDouble, PreemptingDouble, SharingDouble

BROKEN: dict[str, type[Double]] = {}


def breaks(rule: str) -> Any:
    def add(kind: type[Double]) -> type[Double]:
        assert rule not in BROKEN
        BROKEN[rule] = kind
        return kind

    return add


@breaks("describes_itself")
class OneNameForTwoGpus(Double):
    async def DescribeCluster(self, request, context):
        answer = await super().DescribeCluster(request, context)
        answer.cluster.nodes[0].gpus.append(answer.cluster.nodes[0].gpus[0])
        return answer


@breaks("says_what_it_can_do")
class SaysNotWhatItCanDo(Double):
    async def DescribeCluster(self, request, context):
        answer = await super().DescribeCluster(request, context)
        answer.ClearField("capabilities")
        return answer


@breaks("keeps_its_incarnation")
class AnotherIncarnationEachTime(Double):
    count = 0

    async def DescribeCluster(self, request, context):
        answer = await super().DescribeCluster(request, context)
        self.count += 1
        answer.incarnation = f"{self.incarnation}-{self.count}"
        return answer

    def check_incarnation(self, incarnation):
        super().check_incarnation(incarnation.partition("-")[0])


@breaks("accepts_a_launch")
class SaysNotHowFarItIs(Double):
    def answer(self, request, existing):
        answer = super().answer(request, existing)
        answer.state = pb.ATTEMPT_STATE_UNSPECIFIED
        return answer


@breaks("tells_a_start")
class AnswersWithAStartOfItsOwn(Double):
    def answer(self, request, existing):
        answer = super().answer(request, existing)
        answer.start_s -= 0.001  # asked of the clock once more, instead of the event
        return answer


@breaks("describes_what_runs")
class DescribesNothing(Double):
    def running(self):
        return []


@breaks("tells_running_in_its_place")
class RunsBeforeItStarts(Double):
    def emit(self, kind, *rest):
        if kind in (pb.EVENT_KIND_STARTED, pb.EVENT_KIND_RUNNING):
            both = (pb.EVENT_KIND_STARTED, pb.EVENT_KIND_RUNNING)
            kind = both[1 - both.index(kind)]
        event = super().emit(kind, *rest)
        if kind == pb.EVENT_KIND_STARTED and rest:
            self.starts[rest[0], rest[1]] = event
        return event


@breaks("ends_what_was_declared")
class FailsWithoutReason(Double):
    def ending(self, request):
        return request.spec.expected_runtime.runtime_s, pb.EVENT_KIND_FAILED


@breaks("answers_a_repeated_launch")
class TakesALaunchForAnotherOne(Double):
    def answer(self, request, existing):
        return super().answer(request, existing=False)


@breaks("remembers_what_ended")
class ForgetsWhatEnded(Double):
    def known(self, request):
        return super().known(request) and request.job_id in self.open


@breaks("keeps_an_attempt_on_its_gpu")
class MindsNoGpu(Double):
    def refuse_other_gpu(self):
        return None


@breaks("refuses_an_old_attempt")
class MindsNoAge(Double):
    def refuse_old(self):
        return None

    def answer(self, request, existing):
        newest = self.attempts[request.job_id]
        return super().answer(newest, existing)


@breaks("runs_one_attempt_of_a_job")
class RunsTwoOfAJob(Double):
    def check_open(self, request):
        if request.job_id in self.open:
            self.open.pop(request.job_id).cancel()


@breaks("refuses_a_busy_gpu")
class SharesGpus(Double):
    def check_busy(self, request):
        return None


@breaks("names_an_unknown_gpu")
class DoesNotNameTheGpu(Double):
    def check_gpu(self, request):
        if request.gpu_id not in ("a/0", "a/1"):
            raise NotFound("no such GPU")


@breaks("refuses_what_does_not_fit")
class CountsNoCores(Double):
    def check_fit(self, request):
        if request.spec.gpu_memory_mib > 16_000:
            raise Conflict("too large", reason="GPU_MEMORY_TOO_SMALL")


@breaks("keeps_to_the_nodes_of_jobs")
class LetsAnybodyBesideAnExclusiveJob(Double):
    def check_nodes(self, request):
        if not any(self.attempts[job_id].spec.exclusive for job_id in self.open):
            super().check_nodes(request)


@breaks("forgets_a_refused_launch")
class RemembersWhatItRefused(Double):
    def check_fit(self, request):
        try:
            super().check_fit(request)
        except Conflict:
            self.starts[request.job_id, request.attempt] = pb.ClusterEvent()
            self.attempts[request.job_id] = request
            raise


@breaks("keeps_a_time_limit")
class KeepsNoTimeLimit(Double):
    def ending(self, request):
        return min(request.spec.expected_runtime.runtime_s, 1.5), pb.EVENT_KIND_FINISHED


@breaks("stops_what_runs")
class SaysFailedForStopped(Double):
    async def StopJob(self, request, context):
        if request.job_id in self.open and request.attempt in (0, self.attempts[request.job_id].attempt):
            self.end(request.job_id, pb.EVENT_KIND_FAILED)
            return pb.StopJobResponse(stopped=True)
        return pb.StopJobResponse(stopped=False)


@breaks("stops_once")
class StopsWhateverRuns(Double):
    async def StopJob(self, request, context):
        request.attempt = 0
        return await super().StopJob(request, context)


@breaks("counts_revisions_without_gaps")
class CountsByTwo(Double):
    def next_revision(self):
        return self.events[-1].revision + 2 if self.events else 1

    def check_position(self, after_revision):
        if after_revision > self.next_revision():
            super().check_position(1 << 40)

    async def DescribeCluster(self, request, context):
        answer = await super().DescribeCluster(request, context)
        answer.revision = self.events[-1].revision if self.events else 0
        return answer


@breaks("tells_no_newest_revision_before_the_event")
class TellsOfAnOlderNewestRevision(Double):
    async def WatchEvents(self, request, context) -> AsyncIterator[pb.WatchEventsResponse]:
        async for message in super().WatchEvents(request, context):
            message.newest_revision = max(1, message.events[-1].revision - 1)
            yield message


@breaks("resumes_after_any_revision")
class BeginsWithTheGivenRevision(Double):
    async def WatchEvents(self, request, context) -> AsyncIterator[pb.WatchEventsResponse]:
        if 0 < request.after_revision < len(self.events):
            request.after_revision -= 1
        async for message in super().WatchEvents(request, context):
            yield message


@breaks("tells_all_watchers_the_same")
class TellsEachEventToOneWatcher(Double):
    def __init__(self) -> None:
        super().__init__()
        self.watchers = itertools.count()
        self.taken: set[int] = set()

    async def WatchEvents(self, request, context) -> AsyncIterator[pb.WatchEventsResponse]:
        async for message in super().WatchEvents(request, context):
            fresh = [each for each in message.events if each.revision not in self.taken or each.kind == 2]
            self.taken.update(each.revision for each in fresh)
            if fresh:
                yield pb.WatchEventsResponse(incarnation=message.incarnation, events=fresh, clock=message.clock)


@breaks("tells_events_in_the_order_of_time")
class TellsEndsAtTheirStart(Double):
    def emit(self, kind, *rest):
        event = super().emit(kind, *rest)
        if kind == pb.EVENT_KIND_RUNNING:
            event.time_s -= 0.25
        return event


@breaks("refuses_another_incarnation")
class MindsNoIncarnation(Double):
    def check_incarnation(self, incarnation):
        return None


@breaks("refuses_a_revision_ahead")
class MindsNoPosition(Double):
    def check_position(self, after_revision):
        return None


@breaks("takes_acknowledgements_in_any_order")
class WantsEachAcknowledgementOnce(Double):
    async def AcknowledgeEvents(self, request, context):
        answer = await super().AcknowledgeEvents(request, context)
        if 0 < request.revision < self.acknowledged:
            raise InvalidInput("older than before", field="revision")
        return answer


@breaks("refuses_an_old_token")
class MindsNoOldToken(Double):
    def __init__(self) -> None:
        super().__init__()
        self.token = 3

    def check_token(self, token):
        super().check_token(max(token, self.token))


@breaks("refuses_an_unknown_token")
class TakesAnyNewToken(Double):
    """Whoever sends one locks all orchestrators out."""

    def check_token(self, token):
        self.token = max(self.token, token)
        super().check_token(token)


@breaks("tells_the_newest_token")
class TellsNoToken(Double):
    def __init__(self) -> None:
        super().__init__()
        self.token = 3

    async def DescribeCluster(self, request, context):
        answer = await super().DescribeCluster(request, context)
        answer.fencing_token = 0
        return answer


@breaks("wakes_at_once_for_what_has_passed")
class WakesForEachTime(Double):
    async def WakeAt(self, request, context):
        answer = await super().WakeAt(request, context)
        for time_s in request.times_s[1:]:
            if time_s <= answer.clock.time_s:
                self.emit(pb.EVENT_KIND_WAKE_UP)
        return answer


@breaks("wakes_at_a_time_to_come")
class WakesTooEarly(Double):
    async def WakeAt(self, request, context):
        request.times_s[:] = [0.8 * time_s for time_s in request.times_s]
        return await super().WakeAt(request, context)


@breaks("refuses_what_it_can_not_do")
class SaysYesAndDoesNothing(Double):
    async def SetClock(self, request, context):
        return pb.SetClockResponse(clock=self.clock())


@breaks("tells_that_its_clock_was_set")
class TellsNobodyOfItsClock(Double):
    async def DescribeCluster(self, request, context):
        answer = await super().DescribeCluster(request, context)
        answer.capabilities.virtual_clock = True
        return answer

    async def SetClock(self, request, context):
        return pb.SetClockResponse(clock=self.clock())


@breaks("loses_a_gpu_with_its_job")
class LosesAGpuAndKeepsItsJob(Double):
    async def DescribeCluster(self, request, context):
        answer = await super().DescribeCluster(request, context)
        answer.capabilities.gpu_availability = True
        return answer

    async def SetGpuAvailability(self, request, context):
        self.emit(pb.EVENT_KIND_GPU_BACK if request.available else pb.EVENT_KIND_GPU_LOST, "", 0, request.gpu_id)
        return pb.SetGpuAvailabilityResponse()


@breaks("starts_a_gang_on_all_its_gpus")
class HoldsTheFirstGpuOfAGangAlone(GangDouble):
    def check_busy(self, request):
        if any(self.attempts[job_id].gpu_id in self.members(request) for job_id in self.open):
            raise Conflict(f"{request.gpu_id} is busy", reason="GPU_BUSY")


@breaks("refuses_a_gang_as_a_whole")
class KeepsThePartThatIsFree(GangDouble):
    def check_busy(self, request):
        try:
            super().check_busy(request)
        except Conflict:
            if len(self.members(request)) > 1:
                self.begin(request)
            raise


@breaks("keeps_a_gang_on_its_gpus")
class LooksAtTheFirstGpuAlone(GangDouble):
    def known(self, request):
        known = self.attempts.get(request.job_id)
        if known is not None and known.gpu_id == request.gpu_id:
            return True
        return super().known(request)


@breaks("names_a_gang_of_another_size")
class TakesAnyNumberOfGpus(GangDouble):
    def check_size(self, request):
        pass


@breaks("stops_a_gang_on_all_its_gpus")
class TellsTheEndOnTheFirstGpuAlone(GangDouble):
    def end(self, job_id, kind):
        del self.attempts[job_id].placement.gpus[1:]
        super().end(job_id, kind)


@breaks("loses_a_gang_with_any_of_its_gpus")
class LosesAGangWithItsFirstGpuAlone(GangDouble):
    def jobs_on(self, gpu_id):
        return [job_id for job_id in self.open if self.attempts[job_id].gpu_id == gpu_id]


@breaks("refuses_gangs_that_it_can_not_run")
class RunsWhatItSaysItCanNot(GangDouble):
    async def DescribeCluster(self, request, context):
        answer = await super().DescribeCluster(request, context)
        answer.capabilities.gangs = False
        return answer


@breaks("stops_others_for_a_launch")
class StartsBesideThoseThatEnd(PreemptingDouble):
    async def LaunchJob(self, request, context):
        answer = await super().LaunchJob(request, context)
        if request.preempts and not answer.existing:
            self.begin(self.waiting.pop(request.job_id)[0])
        return answer


@breaks("refuses_a_preemption_as_a_whole")
class StopsThoseThatItCan(PreemptingDouble):
    """The one that can't be stopped is noticed when others are being stopped already."""

    def check_victims(self, request):
        for each in request.preempts:
            if each.job_id not in self.open:
                raise Conflict(f"{each.job_id} does not run", reason="NOT_RUNNING")
            self.check_victim(each.job_id)
            if len(request.preempts) > 1:
                self.ask_end(each.job_id, pb.EVENT_KIND_PREEMPTED)


@breaks("answers_a_repeated_preemption")
class TakesARepeatedPreemptionForAnotherOne(PreemptingDouble):
    def answer(self, request, existing):
        return super().answer(request, existing and not request.preempts)


@breaks("stops_what_waits_for_others")
class StartsWhatWasStopped(PreemptingDouble):
    def stop_waiting(self, job_id):
        request, _ = self.waiting[job_id]
        self.emit(pb.EVENT_KIND_STOPPED, job_id, request.attempt, request.gpu_id)


@breaks("ends_as_stopped_what_its_user_stops_meanwhile")
class PreemptsWhatItsUserHasStopped(PreemptingDouble):
    def stop_for_good(self, job_id):
        return None


@breaks("preempts_without_a_successor")
class SaysStoppedForPreempted(PreemptingDouble):
    async def StopJob(self, request, context):
        answer = await super().StopJob(request, context)
        if request.job_id in self.stopping:
            self.stopping[request.job_id] = pb.EVENT_KIND_STOPPED
        return answer


@breaks("refuses_preemption_that_it_can_not_do")
class PreemptsAlthoughItSaysItCanNot(PreemptingDouble):
    async def DescribeCluster(self, request, context):
        answer = await super().DescribeCluster(request, context)
        answer.capabilities.preemption = False
        return answer


@breaks("runs_two_jobs_on_a_gpu")
class DescribesPartsAsWhole(SharingDouble):
    def running(self):
        found = super().running()
        for each in found:
            for part in each.placement.gpus:
                part.share = 1.0
        return found


@breaks("refuses_a_third_job_on_a_gpu")
class GivesAsManyPartsAsAreAskedFor(SharingDouble):
    def check_busy(self, request):
        if self.share(request) == 1.0 or any(self.share(self.attempts[each]) == 1.0 for each in self.jobs_on("a/0")):
            super().check_busy(request)


@breaks("refuses_a_whole_gpu_beside_a_part")
class LooksForIdleSharesOfPartsAlone(SharingDouble):
    """All of a GPU is given where half of it is free."""

    def check_busy(self, request):
        for gpu_id in self.members(request):
            if sum(self.share(self.attempts[each]) for each in self.jobs_on(gpu_id)) >= 1.0:
                raise Conflict(f"{gpu_id} is busy", reason="GPU_BUSY")


@breaks("counts_the_gpu_memory_of_both")
class CountsTheMemoryOfEachAlone(SharingDouble):
    def check_fit(self, request):
        Double.check_fit(self, request)


@breaks("answers_a_repeated_launch_of_a_part")
class LooksAtTheGpuAndNotAtTheShare(SharingDouble):
    def same_place(self, known, request):
        return self.members(known) == self.members(request)


@breaks("refuses_a_part_that_a_job_can_not_have")
class GivesAnyPartToAnyJob(SharingDouble):
    def check_parts(self, request):
        return None


@breaks("stops_one_of_two")
class StopsWhatIsOnTheGpu(SharingDouble):
    async def StopJob(self, request, context):
        for each in self.jobs_on("a/0"):
            if each != request.job_id:
                self.end(each, pb.EVENT_KIND_STOPPED)
        return await super().StopJob(request, context)


@breaks("loses_both_with_their_gpu")
class LosesTheFirstJobOfAGpu(SharingDouble):
    def jobs_on(self, gpu_id):
        found = super().jobs_on(gpu_id)
        return found[:1] if gpu_id in self.lost else found


@breaks("stops_both_of_a_gpu_for_a_launch")
class StartsAfterTheFirstEnd(SharingDouble):
    def end(self, job_id, kind):
        for waiting, (_, victims) in self.waiting.items():
            if job_id in victims:
                self.waiting[waiting][1].intersection_update({job_id})
        super().end(job_id, kind)


@breaks("refuses_parts_that_it_can_not_give")
class GivesPartsAlthoughItSaysItCanNot(SharingDouble):
    async def DescribeCluster(self, request, context):
        answer = await super().DescribeCluster(request, context)
        answer.capabilities.shares = False
        return answer
