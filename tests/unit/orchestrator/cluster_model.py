"""A cluster in memory with a virtual clock, for tests of sessions: strict, and easy to break. Nothing is awaited.

It stops jobs for others at once, or, with `grace_s`, as late as a real cluster would: then what they make room for
waits. It knows how much of each job is done, and lets nobody count it twice. With `shares` two jobs may have a GPU
between them, each slower beside the other; it counts for itself what each GPU and node has left.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from adlro.errors import AdlroError, Conflict, DeadlineExceeded, Stale, Unavailable, Unsupported
from adlro.placement import NOWHERE, Placement
from adlro.records.cluster import Cluster
from adlro.records.events import (
    NOT_BLOCKING,
    AttemptState,
    Capabilities,
    Clock,
    ClockMode,
    ClusterDescription,
    ClusterEvent,
    EventBatch,
    EventKind,
    RunningJob,
)
from adlro.records.jobs import AttemptRef, JobSpec, Preemptible
from adlro.services.orchestrator.ports import Launched


class HangsError(Exception):
    """The call is never answered."""


class UntoldError(Exception):
    """The call is carried out, and answered by the error that the cluster gives for that."""


@dataclass
class Course:
    """An attempt's work: the share that is left at its start, and when it goes on."""

    spec: JobSpec
    attempt: int
    share: float
    resumes: bool
    work_from_s: float = 0.0
    speed: float = 1.0  # below 1 beside another job

    @property
    def costs(self) -> Preemptible:
        return self.spec.preemptible or Preemptible()

    @property
    def takes_s(self) -> float:
        assert self.spec.simulated_work is not None
        return self.restart_s + self.share * self.spec.simulated_work.work_s

    @property
    def restart_s(self) -> float:
        return self.costs.restart_s if self.resumes else 0.0


@dataclass
class Waiting:
    """An accepted attempt that starts when others have ended."""

    placement: Placement
    course: Course
    victims: set[AttemptRef]


@dataclass
class Run:
    """What became of a started attempt; `end_s` None: it runs, or the cluster has forgotten it."""

    placement: Placement
    spec: JobSpec
    start_s: float
    end_s: float | None = None


class ClusterModel:
    """What a cluster does when it is called. Every job takes its simulated work in seconds, on any GPU, if alone."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.clock = Clock(ClockMode.VIRTUAL, 0.0, False, 0.0)
        self.launches: list[tuple[str, int, str]] = []
        self.away = False  # every call fails
        self.refuse: str = ""  # launches fail with this,
        self.refusals = 1_000_000  # so many times
        self.poisoned: tuple[str, AdlroError] | None = None  # launches of this job fail with this
        self.lose_replies = 0  # so many launches are lost on their way
        self.refused: dict[str, list[AdlroError]] = {}  # by job, what its next launches fail with
        self.late: set[str] = set()  # jobs of which a launch failed
        self.unanswered: dict[str, int] = {}  # by job, so many launches are carried out, and answered by `error`
        self.error: AdlroError = DeadlineExceeded("no answer in 10 s")
        self.stops: list[tuple[str, int]] = []
        self.deaf = 0  # so many stops are carried out, and nobody is told
        self.linger = False  # what is stopped runs on until `end_stopped`
        self.start_later = False  # launches are accepted, and started by `start_accepted`
        self.grace_s = 0.0  # what is stopped for others ends so much later
        self.tells_share = True  # how much is left of what was stopped for others
        self.left: dict[str, float] = {}  # by job, the share of its work that is left, as its program kept it
        self.told: dict[str, float] = {}  # the same, as it was told in events that cannot have been missed
        self.preempted: list[tuple[str, int]] = []
        self.shares = False  # two jobs may have a GPU between them,
        self.kept = 0.6  # and keep this of their speed then
        self.foreign: set[str] = set()  # GPUs of which somebody else uses a part
        self.runs: dict[tuple[str, int], Run] = {}
        self._begin()

    def _begin(self) -> None:
        self.incarnation = uuid.uuid4().hex
        self.batches: list[EventBatch] = []
        self.revision = 0
        self.acknowledged = 0
        self.blocking = 0  # revision that is to be acknowledged before time goes on
        self.running: dict[str, tuple[RunningJob, float]] = {}
        self.known: dict[tuple[str, int], int] = {}
        self.wakes: set[float] = set()
        self.token = 0
        self.lost: set[str] = set()
        self.accepted: dict[tuple[str, int], tuple[Placement, float, Course]] = {}
        self.ending: dict[tuple[str, int], Placement] = {}
        self.courses: dict[str, Course] = {}  # of what runs
        self.waiting: dict[tuple[str, int], Waiting] = {}
        self.ends_at_s: dict[str, float] = {}  # of what is stopped for others
        self.told.clear()

    def restart(self) -> None:
        """As kill -9: everything but the configuration is gone, the clock begins at 0."""
        self.clock = replace(self.clock, time_s=0.0)
        self._begin()

    # ---- what it is asked for

    def on_describe(self) -> ClusterDescription:
        self.check_not_away()
        return ClusterDescription(
            self.cluster,
            tuple(running for running, _ in self.running.values()),
            tuple(self.lost),
            self.clock,
            self.incarnation,
            self.revision,
            1,
            self.token,
            Capabilities(
                virtual_clock=True,
                gpu_availability=True,
                stop=True,
                gangs=True,
                preemption=True,
                shares=self.shares,
            ),
        )

    def on_launch(
        self,
        job_id: str,
        attempt: int,
        spec: JobSpec,
        placement: Placement,
        token: int,
        incarnation: str,
        *,
        preempts: Sequence[AttemptRef] = (),
        remaining_ratio: float = 1.0,
        resumes: bool = False,
    ) -> Launched:
        self.check_not_away()
        self.check_incarnation(incarnation)
        self._fence(token)
        if (job_id, attempt) in self.known:
            return Launched(self.known[job_id, attempt], self._state_of(job_id, attempt))
        if self.lose_replies:
            self.lose_replies -= 1
            raise HangsError
        if self.refused.get(job_id):
            self.late.add(job_id)
            raise self.refused[job_id].pop(0)
        if self.poisoned and self.poisoned[0] == job_id:
            raise self.poisoned[1]
        if self.refuse and self.refusals:
            self.refusals -= 1
            raise Conflict(self.refuse)
        gone = sorted(self.lost.intersection(placement.gpu_ids))
        if gone:
            raise Conflict(f"GPU {gone[0]} is lost", reason="GPU_LOST")
        for ref in preempts:
            self._check_victim(ref)
        stopped = {ref.job_id for ref in preempts}
        assert job_id not in stopped, "it would stop itself"
        assert len(stopped) == len(preempts), "a job is to be stopped twice"
        left = self.left.get(job_id, 1.0)
        assert remaining_ratio >= left or not self.tells_share, f"{job_id}: what was never done counts as done"
        assert job_id not in self.told or remaining_ratio == self.told[job_id], (
            f"{job_id}: what it has done is forgotten"
        )
        if not self.shares and any(each.share < 1.0 for each in placement.gpus):
            raise Unsupported("placement: whole GPUs only", field="placement", reason="NO_SHARES")
        busy = sorted(self.foreign.intersection(placement.gpu_ids))
        if busy:
            raise Conflict(f"GPU {busy[0]} is busy", reason="GPU_BUSY")
        self._check_room(job_id, spec, placement, stopped)
        assert len(placement.gpus) == spec.gpu_count, f"{job_id} asks for {spec.gpu_count} GPUs, not {placement}"
        assert job_id not in self.running, f"{job_id} already runs"
        assert spec.simulated_work is not None
        self.launches.append((job_id, attempt, str(placement)))
        course = Course(spec, attempt, remaining_ratio, resumes)
        if preempts and self.grace_s > 0.0:
            self.known[job_id, attempt] = 0
            self.waiting[job_id, attempt] = Waiting(placement, course, set(preempts))
            self.ends_at_s.update(dict.fromkeys(stopped, self.clock.time_s + self.grace_s))
            if self.unanswered.get(job_id):
                self.unanswered[job_id] -= 1
                raise UntoldError
            if job_id in self.late:
                self.go_on()
            return Launched(0, AttemptState.ACCEPTED)
        if self.start_later:
            assert not preempts
            self.known[job_id, attempt] = 0
            self.accepted[job_id, attempt] = (placement, spec.simulated_work.work_s, course)
            return Launched(0, AttemptState.ACCEPTED)
        by_gpu = sorted(stopped, key=lambda each: self.running[each][0].placement.gpu_ids)
        self.emit(*(self._preempt(each, job_id) for each in by_gpu), self._start(job_id, placement, course))
        self.known[job_id, attempt] = self.revision
        if self.unanswered.get(job_id):
            self.unanswered[job_id] -= 1
            raise UntoldError
        start_revision = self.revision
        if job_id in self.late:  # the moment that it was meant for may be acknowledged already
            self.go_on()
        return Launched(start_revision, AttemptState.STARTED)

    def on_stop(self, job_id: str, attempt: int, token: int, incarnation: str) -> bool:
        self.check_not_away()
        self.check_incarnation(incarnation)
        self._fence(token)
        self.stops.append((job_id, attempt))
        runs = job_id in self.running and self.running[job_id][0].attempt == attempt
        key = (job_id, attempt)
        if key in self.waiting:
            runs = True
            self.emit((EventKind.STOPPED, job_id, attempt, self.waiting.pop(key).placement))
        elif self.linger and (runs or key in self.accepted):
            runs = key not in self.ending
            self.ending[key] = self.running[job_id][0].placement if job_id in self.running else self.accepted[key][0]
        elif key in self.accepted:
            runs = True
            self.emit((EventKind.STOPPED, job_id, attempt, self.accepted.pop(key)[0]))
        elif runs:
            running, _ = self._remove(job_id)
            self.emit((EventKind.STOPPED, job_id, attempt, running.placement))
            self._start_waiting()
        if self.deaf:
            self.deaf -= 1
            raise self.error
        return runs

    def on_acknowledge(self, incarnation: str, revision: int, token: int) -> None:
        self.check_not_away()
        self._fence(token)
        self.check_incarnation(incarnation)
        self.acknowledged = max(self.acknowledged, revision)
        self.go_on()

    def on_wake_at(self, times_s: Sequence[float]) -> Clock:
        self.check_not_away()
        clock = self.clock
        self.wakes.update(times_s)
        due = {time_s for time_s in self.wakes if time_s <= self.clock.time_s}
        if due:
            self.wakes -= due
            self.emit((EventKind.WAKE_UP, "", 0, NOWHERE))
        self.go_on()
        return clock

    def on_advance_to(self, time_s: float) -> Clock:
        self.on_set_clock(replace(self.clock, time_s=max(time_s, self.clock.time_s)))
        return self.clock

    def on_set_clock(self, clock: Clock) -> None:
        self.check_not_away()
        self.clock = clock
        self.emit((EventKind.CLOCK_SET, "", 0, NOWHERE))
        self.go_on()

    # ---- what tests do to it

    def start_accepted(self) -> None:
        """Everything that was accepted starts, and then its program runs."""
        for (job_id, attempt), (placement, _, course) in list(self.accepted.items()):
            del self.accepted[job_id, attempt]
            self.emit(self._start(job_id, placement, course))
            self.known[job_id, attempt] = self.revision
            self.emit((EventKind.RUNNING, job_id, attempt, placement))

    def lose_accepted(self) -> None:
        """Everything that was accepted is over without a start."""
        for (job_id, attempt), (placement, *_) in self.accepted.items():
            self.emit((EventKind.LOST, job_id, attempt, placement))
        self.accepted.clear()

    def end_stopped(self) -> None:
        """What was stopped is over."""
        for (job_id, attempt), placement in self.ending.items():
            if job_id in self.running:
                self._remove(job_id)
            self.accepted.pop((job_id, attempt), None)
            self.emit((EventKind.STOPPED, job_id, attempt, placement))
        self.ending.clear()
        self._start_waiting()

    def change(self, cluster: Cluster) -> None:
        """Nodes join or leave; what runs on those that leave is lost."""
        self.cluster = cluster
        gpu_ids = {gpu.gpu_id for _, gpu in cluster.gpus()}
        gone = [running for running, _ in self.running.values() if not gpu_ids.issuperset(running.placement.gpu_ids)]
        for running in gone:
            self._remove(running.job_id)
        lost = [(EventKind.LOST, running.job_id, running.attempt, running.placement) for running in gone]
        self.emit(*lost, (EventKind.CLUSTER_CHANGED, "", 0, NOWHERE))

    def lose(self, gpu_id: str) -> None:
        """Takes a GPU away, with what runs there."""
        self.lost.add(gpu_id)
        events = [(EventKind.GPU_LOST, "", 0, Placement.on(gpu_id))]
        for job_id, (running, _) in list(self.running.items()):
            if gpu_id in running.placement.gpu_ids:
                self._remove(job_id)
                events.append((EventKind.LOST, job_id, running.attempt, running.placement))
        for (job_id, attempt), each in list(self.waiting.items()):
            if gpu_id in each.placement.gpu_ids:
                del self.waiting[job_id, attempt]
                events.append((EventKind.LOST, job_id, attempt, each.placement))
        for (job_id, attempt), (placement, *_) in list(self.accepted.items()):
            if gpu_id in placement.gpu_ids:
                del self.accepted[job_id, attempt]
                events.append((EventKind.LOST, job_id, attempt, placement))
        self.emit(*events)
        self._start_waiting()

    def give_gpu_back(self, gpu_id: str) -> None:
        """A lost GPU is there again."""
        self.lost.discard(gpu_id)
        self.emit((EventKind.GPU_BACK, "", 0, Placement.on(gpu_id)))

    def end_preempted(self) -> None:
        """What is stopped for others is over, and they start."""
        for job_id in list(self.ends_at_s):
            self.emit(self._preempt(job_id))
        self._start_waiting()

    def emit(self, *events: tuple[Any, ...]) -> None:
        made = []
        for kind, job_id, attempt, placement, *more in events:
            self.revision += 1
            event = ClusterEvent(self.revision, kind, self.clock.time_s, job_id, attempt, placement)
            made.append(replace(event, **more[0]) if more else event)
        self.blocking = max([self.blocking, *(each.revision for each in made if each.kind not in NOT_BLOCKING)])
        self.batches.append(EventBatch(self.incarnation, tuple(made), self.clock))

    def go_on(self) -> None:
        """The virtual clock: to the next moment at which something happens, once everything is acknowledged."""
        if self.clock.paused or self.blocking > self.acknowledged:
            return
        times = [*self.wakes, *(end for _, end in self.running.values()), *self.ends_at_s.values()]
        if not times:
            return
        now_s = min(times)
        self.clock = replace(self.clock, time_s=now_s)
        events = []
        for job_id, (running, end_s) in list(self.running.items()):
            if end_s == now_s:
                self._remove(job_id)
                events.append((EventKind.FINISHED, job_id, running.attempt, running.placement))
            elif self.ends_at_s.get(job_id, now_s + 1.0) <= now_s:
                events.append(self._preempt(job_id))
        if now_s in self.wakes:
            self.wakes.discard(now_s)
            events.append((EventKind.WAKE_UP, "", 0, NOWHERE))
        self.emit(*events)
        self._start_waiting()

    def _check_victim(self, ref: AttemptRef) -> None:
        if ref.job_id not in self.running or self.running[ref.job_id][0].attempt != ref.attempt:
            raise Conflict(f"attempt {ref.attempt} of {ref.job_id} does not run", reason="NOT_RUNNING")
        course = self.courses[ref.job_id]
        if ref.job_id in self.ends_at_s or (ref.job_id, ref.attempt) in self.ending:
            raise Conflict(f"{ref.job_id} is being stopped already", reason="NOT_PREEMPTIBLE")
        if course.spec.preemptible is None or self.clock.time_s < course.work_from_s:
            raise Conflict(f"{ref.job_id} can't be stopped now", reason="NOT_PREEMPTIBLE")

    def _check_room(self, job_id: str, spec: JobSpec, placement: Placement, stopped: set[str]) -> None:
        """Whether there is room for a job, once others are stopped that are to be: its own count."""
        held = [(placement, spec), *((each.placement, each.course.spec) for each in self.waiting.values())]
        held += [(each, course.spec) for each, _, course in self.accepted.values()]
        going = stopped | {ref.job_id for each in self.waiting.values() for ref in each.victims}
        held += [
            (running.placement, self.courses[job].spec)
            for job, (running, _) in self.running.items()
            if job not in going
        ]
        share, gpu_memory_mib, cores, memory_mib = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
        node_of = {gpu.gpu_id: node.node_id for node in self.cluster.nodes for gpu in node.gpus}
        for each, its in held:
            for gpu in each.gpus:
                if gpu.gpu_id not in node_of:
                    continue  # it has left
                node_id = node_of[gpu.gpu_id]
                share[gpu.gpu_id] += gpu.share  # type: ignore[assignment]
                gpu_memory_mib[gpu.gpu_id] += its.gpu_memory_mib
                cores[node_id] += its.cpu_cores
                memory_mib[node_id] += its.memory_mib
        for node in self.cluster.nodes:
            assert cores[node.node_id] <= node.cpu_cores, f"{job_id} on {placement}: too few cores"
            assert memory_mib[node.node_id] <= node.memory_mib, f"{job_id} on {placement}: too little memory"
            for has in node.gpus:
                assert share[has.gpu_id] <= 1.0, f"{job_id} on {placement}: one of them is not free"
                assert gpu_memory_mib[has.gpu_id] <= has.memory_mib, f"{job_id} on {placement}: too little GPU memory"

    def _pace(self) -> None:
        """Moves all that is to come of jobs whose speed changes now, as others come and go on their GPUs."""
        now_s = self.clock.time_s
        there = Counter(gpu_id for running, _ in self.running.values() for gpu_id in running.placement.gpu_ids)
        for job_id, (running, end_s) in self.running.items():
            course, count = self.courses[job_id], max(there[gpu_id] for gpu_id in running.placement.gpu_ids)
            assert count <= 2, f"{count} jobs on {running.placement}"
            speed = self.kept if count == 2 else 1.0
            if speed != course.speed:
                longer, course.speed = course.speed / speed, speed
                self.running[job_id] = running, now_s + (end_s - now_s) * longer
                if course.work_from_s > now_s:
                    course.work_from_s = now_s + (course.work_from_s - now_s) * longer

    def _start(self, job_id: str, placement: Placement, course: Course) -> tuple[Any, ...]:
        start_s = self.clock.time_s
        course.work_from_s = start_s + course.restart_s
        self.running[job_id] = (RunningJob(job_id, course.attempt, placement, start_s), start_s + course.takes_s)
        self.courses[job_id] = course
        self.runs[job_id, course.attempt] = Run(placement, course.spec, start_s)
        self._pace()
        return (EventKind.STARTED, job_id, course.attempt, placement)

    def _preempt(self, job_id: str, for_job_id: str = "") -> tuple[Any, ...]:
        course, (running, end_s) = self.courses[job_id], self.running[job_id]
        assert course.spec.simulated_work is not None
        left_s = (end_s - self.clock.time_s) * course.speed + course.costs.lost_s
        share = min(course.share, left_s / course.spec.simulated_work.work_s)
        for_job_id = for_job_id or next(self._waits_for(job_id), "")
        self._remove(job_id)
        self.left[job_id] = share
        if self.tells_share:
            self.told[job_id] = share
        self.preempted.append((job_id, running.attempt))
        more = {
            "remaining_ratio": share if self.tells_share else None,
            "message": f"for {for_job_id}" if for_job_id else "",
        }
        return (EventKind.PREEMPTED, job_id, running.attempt, running.placement, more)

    def _waits_for(self, job_id: str) -> Iterator[str]:
        return (job for (job, _), each in self.waiting.items() if job_id in {ref.job_id for ref in each.victims})

    def _remove(self, job_id: str) -> tuple[RunningJob, float]:
        self.ends_at_s.pop(job_id, None)
        self.courses.pop(job_id, None)
        running, end_s = self.running.pop(job_id)
        self.runs[job_id, running.attempt].end_s = self.clock.time_s
        self._pace()
        return running, end_s

    def _start_waiting(self) -> None:
        for (job_id, attempt), each in list(self.waiting.items()):
            run = {AttemptRef(job, running.attempt) for job, (running, _) in self.running.items()}
            if not each.victims & run:
                del self.waiting[job_id, attempt]
                self.emit(self._start(job_id, each.placement, each.course))
                self.known[job_id, attempt] = self.revision

    def _state_of(self, job_id: str, attempt: int) -> AttemptState:
        if (job_id, attempt) in self.accepted or (job_id, attempt) in self.waiting:
            return AttemptState.ACCEPTED
        running = self.running.get(job_id)
        return AttemptState.STARTED if running and running[0].attempt == attempt else AttemptState.ENDED

    def _fence(self, token: int) -> None:
        if token < self.token:
            raise Conflict(f"token {token} is older than {self.token}", reason="STALE_FENCING_TOKEN")
        self.token = token

    def check_incarnation(self, incarnation: str) -> None:
        if incarnation != self.incarnation:
            raise Stale("another incarnation")

    def check_not_away(self) -> None:
        if self.away:
            raise Unavailable("the cluster does not answer")
