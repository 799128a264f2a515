"""The attempts of a cluster: each is accepted once, holds its GPUs while it is open, and is stored afterwards.

Plain records. An attempt is *accepted* once its launch is accepted, *started* once it has its GPUs, and
*ended* once it is over; an open attempt has not ended. A repeated launch is answered from here and never runs again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from adlro.errors import Conflict
from adlro.placement import Placement
from adlro.records.cluster import Cluster, Gpu, Node
from adlro.records.events import AttemptState, RunningJob
from adlro.records.jobs import AttemptRef, JobSpec
from adlro.state.fit import check_placement, check_set, job_runs, unknown_gpu

# Number of stored ended attempts, so that a repeated launch is answered and does not run again.
OUTCOMES_KEPT = 10_000


@dataclass(slots=True)
class Attempt:
    """One attempt of a job.

    Attributes:
        job_id: the job.
        attempt: its number, from 1.
        placement: its GPUs.
        spec: the job to run; None after the end.
        start_s: cluster time of its start; 0 before.
        start_revision: of its STARTED event; 0: it has not started.
        runs: its own program runs.
        end_revision: of the event of its end; 0: it is open.
        stop_asked: its stop was requested, by its user or for another job.
        preempt_asked: that stop is for another job, and the job goes on later: the attempt ends as PREEMPTED.
        preempts: attempts of other jobs that are stopped to make room for it; it starts after the last one's end.
        remaining_ratio: the share of the job's work that is still to be done, as far as the orchestrator knows.
        resumes: an earlier attempt of the job was preempted.
        note: the driver's own text, returned after a restart; journaled with its next event.
    """

    job_id: str
    attempt: int
    placement: Placement
    spec: JobSpec | None
    start_s: float = 0.0
    start_revision: int = 0
    runs: bool = False
    end_revision: int = 0
    stop_asked: bool = False
    preempt_asked: bool = False
    preempts: tuple[AttemptRef, ...] = ()
    remaining_ratio: float = 1.0
    resumes: bool = False
    note: str = ""

    @property
    def ref(self) -> AttemptRef:
        """Its job and its number."""
        return AttemptRef(self.job_id, self.attempt)

    @property
    def grace_s(self) -> float | None:
        """Seconds between the request to end its program and the end by force; None: the job does not say."""
        spec = self.spec
        if spec is None:
            return None
        if self.preempt_asked and spec.preemptible is not None and spec.preemptible.grace_s is not None:
            return spec.preemptible.grace_s
        return None if spec.payload is None else spec.payload.stop_grace_s

    @property
    def gpu_id(self) -> str:
        """The first GPU of its placement."""
        return self.placement.gpu_id

    @property
    def state(self) -> AttemptState:
        """The attempt's state."""
        if self.end_revision:
            return AttemptState.ENDED
        if not self.start_revision:
            return AttemptState.ACCEPTED
        return AttemptState.RUNNING if self.runs else AttemptState.STARTED


class _Part(NamedTuple):
    """What an attempt holds at one of its GPUs: `memory_mib` of the node; `exclusive`: no other may be there."""

    gpu_id: str
    share: float
    gpu_memory_mib: int
    cpu_cores: int
    memory_mib: int
    exclusive: bool


class Attempts:
    """The attempts of one cluster, and the resources that they hold.

    An attempt that waits for others to end (`Attempt.preempts`) has its GPUs from its acceptance on. What the others
    hold at these GPUs (shares, memory, cores and memory of the node) stays theirs until they have ended; it holds what
    it needs beyond that. So neither it nor they are overbooked, and where it needs more cores or memory of a node than
    they had at its GPUs, less than nothing may be free there.

    Args:
        cluster: nodes and GPUs.
        outcomes_kept: stored ended attempts, beyond unacknowledged ones.
    """

    def __init__(self, cluster: Cluster, outcomes_kept: int = OUTCOMES_KEPT) -> None:
        self._outcomes_kept = outcomes_kept
        # By job its newest attempt.
        self._known: dict[str, Attempt] = {}
        self._open: dict[str, Attempt] = {}
        self._ended: deque[tuple[int, str]] = deque()
        self._lost: dict[str, None] = {}
        # What was not written down yet; None: it is forgotten.
        self._changed: dict[str, Attempt | None] = {}
        self.set_cluster(cluster)

    def set_cluster(self, cluster: Cluster) -> None:
        """Replaces nodes and GPUs; no attempt is open on removed ones."""
        self._cluster = cluster
        self._place_of: dict[str, tuple[Node, Gpu]] = {gpu.gpu_id: (node, gpu) for node, gpu in cluster.gpus()}
        self._free = cluster.free()
        self._lost = {gpu_id: None for gpu_id in self._lost if gpu_id in self._place_of}
        # By job what its open attempt holds.
        self._held: dict[str, tuple[_Part, ...]] = {}
        for attempt in self._open.values():
            self._hold(attempt)

    @property
    def open_attempts(self) -> list[Attempt]:
        """Those that have not ended, in the order of their launches."""
        return list(self._open.values())

    @property
    def running(self) -> tuple[RunningJob, ...]:
        """What has started and not ended, in the order of the starts."""
        started = [each for each in self._open.values() if each.start_revision]
        started.sort(key=lambda each: each.start_revision)
        return tuple(RunningJob(each.job_id, each.attempt, each.placement, each.start_s) for each in started)

    @property
    def running_count(self) -> int:
        """How many have started and not ended."""
        return sum(each.start_revision > 0 for each in self._open.values())

    @property
    def lost_gpu_ids(self) -> tuple[str, ...]:
        """Lost GPUs, in the order of the cluster."""
        return tuple(gpu_id for gpu_id in self._place_of if gpu_id in self._lost)

    def lost_gpus_of(self, attempt: Attempt) -> list[str]:
        """Those of an attempt's GPUs that are lost."""
        return [gpu_id for gpu_id in attempt.placement.gpu_ids if gpu_id in self._lost]

    def open_attempt(self, job_id: str) -> Attempt | None:
        """The open attempt of a job."""
        return self._open.get(job_id)

    def known(self, job_id: str, attempt: int, placement: Placement) -> Attempt | None:
        """An attempt that was launched before; None: this one is new.

        Raises:
            Conflict: ATTEMPT_ON_OTHER_GPU; OLD_ATTEMPT: a later one is known.
        """
        known = self._known.get(job_id)
        if known is None or known.attempt < attempt:
            return None
        if known.attempt > attempt:
            raise Conflict(
                f"attempt {attempt} of {job_id} is older than the known attempt {known.attempt}",
                reason="OLD_ATTEMPT",
                metadata={"attempt": str(known.attempt)},
            )
        if known.placement != placement:
            raise Conflict(
                f"attempt {attempt} of {job_id} was launched on {known.placement}, not {placement}",
                reason="ATTEMPT_ON_OTHER_GPU",
                metadata={"gpu_id": known.gpu_id},
            )
        return known

    def victims(self, job_id: str, preempts: Sequence[AttemptRef]) -> list[Attempt]:
        """The attempts that a launch of a job is to stop.

        Raises:
            Conflict: NOT_RUNNING, NOT_PREEMPTIBLE: one of them can't be stopped for this job.
        """
        found: list[Attempt] = []
        for ref in preempts:
            attempt = self._open.get(ref.job_id)
            if attempt is None or attempt.attempt != ref.attempt:
                raise _not_preemptible(ref, "does not run", reason="NOT_RUNNING")
            check_preemptible(attempt)
            if ref.job_id == job_id:
                raise _not_preemptible(ref, "is an attempt of the job that is to have its GPUs")
            if attempt in found:
                raise _not_preemptible(ref, "is named twice")
            found.append(attempt)
        return found

    def check(self, job_id: str, spec: JobSpec, placement: Placement, victims: Sequence[Attempt] = ()) -> None:
        """Refuses a new attempt that can't start on all of its GPUs.

        Args:
            job_id: its job.
            spec: its job's requirements.
            placement: its GPUs.
            victims: attempts that will have ended by then.

        Raises:
            NotFound: no such GPU.
            InvalidInput, Conflict: JOB_RUNNING, and what `check_set` and `check_placement` of `adlro.state.fit` refuse.
        """
        for gpu_id in placement.gpu_ids:
            if gpu_id not in self._place_of:
                raise unknown_gpu(self._cluster, gpu_id)
        open_one = self._open.get(job_id)
        if open_one is not None:
            raise job_runs(job_id, open_one.placement, open_one.attempt)
        if len(placement.gpus) > 1 or not placement.whole:
            check_set(job_id, spec, placement, self._cluster)
        for each in victims:
            self._let_go(each)

        def jobs_on(gpu_id: str) -> list[str]:
            return [each.job_id for each in self._attempts_on(gpu_id) if each not in victims]

        try:
            check_placement(job_id, spec, placement, self._place_of, self._free, lost=self._lost, jobs_on=jobs_on)
        finally:
            for each in victims:
                self._hold(each)

    def _attempts_on(self, gpu_id: str) -> list[Attempt]:
        """The open attempts that a GPU is given to: not those that end for another one of them."""
        here = [each for each in self._open.values() if gpu_id in each.placement.gpu_ids]
        ending = [victim for each in here for victim in self.waits_for(each)]
        return [each for each in here if each not in ending]

    def accept(self, attempt: Attempt) -> Attempt | None:
        """Adds a new attempt that passed `check`; it holds its GPUs from now on. Returns the previous one.

        The stop of those that it preempts is requested with it.
        """
        before = self._known.get(attempt.job_id)
        self._known[attempt.job_id] = self._open[attempt.job_id] = attempt
        for victim in self.waits_for(attempt):
            victim.stop_asked = victim.preempt_asked = True
            self.changed(victim)
        self._hold(attempt)
        self.changed(attempt)
        return before

    def waits_for(self, attempt: Attempt) -> list[Attempt]:
        """The open attempts whose ends an attempt waits for before it starts."""
        found = (self._open.get(each.job_id) for each in attempt.preempts)
        return [each for each in found if each is not None and each.ref in attempt.preempts]

    def waiting_for(self, attempt: Attempt) -> Attempt | None:
        """The open attempt for which this one is to end; None: there is none, or not any more."""
        if not attempt.preempt_asked and not attempt.stop_asked:
            return None
        return next((each for each in self._open.values() if attempt.ref in each.preempts), None)

    def adopt(self, attempt: Attempt) -> bool:
        """Adds an attempt that runs already, whatever it uses; False: a GPU is not free, or the job has another."""
        if (
            attempt.job_id in self._open
            or not self._place_of.keys() >= set(attempt.placement.gpu_ids)
            or not all(self._free.gpus[each.gpu_id].has(each.share) for each in attempt.placement.gpus)
        ):
            return False
        self._known[attempt.job_id] = self._open[attempt.job_id] = attempt
        self._hold(attempt)
        self.changed(attempt)
        return True

    def withdraw(self, attempt: Attempt, before: Attempt | None) -> None:
        """Removes an attempt that was just added; `before` is the previous one. What it preempted runs on."""
        for victim in self._remove(attempt):
            victim.stop_asked = victim.preempt_asked = False
            self.changed(victim)
        if before is None:
            del self._known[attempt.job_id]
        else:
            self._known[attempt.job_id] = before
        self._changed[attempt.job_id] = before

    def end(self, attempt: Attempt, revision: int) -> None:
        """Ends an attempt, and frees its resources."""
        self._remove(attempt)
        attempt.end_revision, attempt.spec = revision, None
        self.changed(attempt)
        self._ended.append((revision, attempt.job_id))

    def set_lost(self, gpu_id: str, lost: bool) -> None:
        """Marks a GPU as lost, or as back."""
        if lost:
            self._lost[gpu_id] = None
        else:
            self._lost.pop(gpu_id, None)

    def forget(self, acknowledged: int) -> None:
        """Drops the oldest outcomes.

        Args:
            acknowledged: revision up to which ends are acknowledged; later ones are kept.
        """
        while len(self._ended) > self._outcomes_kept and self._ended[0][0] <= acknowledged:
            revision, job_id = self._ended.popleft()
            known = self._known.get(job_id)
            if known is not None and known.end_revision == revision:
                del self._known[job_id]
                self._changed[job_id] = None

    def changed(self, attempt: Attempt) -> None:
        """Marks an attempt as changed, for the journal."""
        self._changed[attempt.job_id] = attempt

    def take_changes(self) -> dict[str, Attempt | None]:
        """The changes to journal, by job; None: dropped. Each change is returned once."""
        changed, self._changed = self._changed, {}
        return changed

    @property
    def all_known(self) -> dict[str, Attempt]:
        """By job its newest attempt, open or ended."""
        return self._known

    def restore(self, cluster: Cluster, attempts: Iterable[Attempt], lost_gpu_ids: Iterable[str]) -> None:
        """Restores journaled attempts.

        Args:
            cluster: as it was.
            attempts: all that were known.
            lost_gpu_ids: GPUs that were lost.
        """
        self._known = {each.job_id: each for each in attempts}
        started = sorted(self._known.values(), key=lambda each: each.start_revision)
        self._open = {each.job_id: each for each in started if not each.end_revision}
        ended = sorted((each.end_revision, each.job_id) for each in self._known.values() if each.end_revision)
        self._ended = deque(ended)
        self._lost = dict.fromkeys(lost_gpu_ids)
        self._changed = {}
        self.set_cluster(cluster)

    def outside(self, cluster: Cluster) -> list[tuple[Attempt, str]]:
        """The open attempts with a GPU that a cluster does not have, and the first such GPU of each."""
        gpu_ids = {gpu.gpu_id for _, gpu in cluster.gpus()}
        gone = (
            (each, [gpu_id for gpu_id in each.placement.gpu_ids if gpu_id not in gpu_ids])
            for each in self._open.values()
        )
        return [(each, missing[0]) for each, missing in gone if missing]

    def _remove(self, attempt: Attempt) -> list[Attempt]:
        """Takes an attempt out of the open ones; returns those that it waited for, which keep their GPUs."""
        victims, waiting = self.waits_for(attempt), self.waiting_for(attempt)
        self._let_go(attempt)
        del self._open[attempt.job_id]
        if waiting is not None:
            self._hold(waiting)
        return victims

    def _hold(self, attempt: Attempt) -> None:
        """Renews what an open attempt holds: all that it was launched with, unless preemption says otherwise."""
        self._let_go(attempt)
        self._held[attempt.job_id] = self._parts_of(attempt)
        self._change(attempt, -1)

    def _let_go(self, attempt: Attempt) -> None:
        self._change(attempt, 1)
        self._held.pop(attempt.job_id, None)

    def _change(self, attempt: Attempt, sign: int) -> None:
        for part in self._held.get(attempt.job_id, ()):
            gpu = self._free.gpus[part.gpu_id]
            node = self._free.nodes[gpu.node_id]
            gpu.share += sign * part.share
            gpu.memory_mib += sign * part.gpu_memory_mib
            node.cpu_cores += sign * part.cpu_cores
            node.memory_mib += sign * part.memory_mib
            node.parts -= sign
            node.alone -= sign * part.exclusive

    def _parts_of(self, attempt: Attempt) -> tuple[_Part, ...]:
        spec = attempt.spec
        assert spec is not None
        victims = self.waits_for(attempt)
        parts = []
        for each in attempt.placement.gpus:
            there = [
                (other.spec, has.share)
                for other in victims
                for has in other.placement.gpus
                if has.gpu_id == each.gpu_id and other.spec is not None
            ]
            parts.append(
                _Part(
                    each.gpu_id,
                    max(0.0, each.share - sum(share for _, share in there)),
                    max(0, spec.gpu_memory_mib - sum(other.gpu_memory_mib for other, _ in there)),
                    max(0, spec.cpu_cores - sum(other.cpu_cores for other, _ in there)),
                    max(0, spec.memory_mib - sum(other.memory_mib for other, _ in there)),
                    spec.exclusive,
                )
            )
        return tuple(parts)


def check_preemptible(attempt: Attempt, field: str = "preempts") -> None:
    """Refuses to stop an open attempt for another job.

    Args:
        attempt: it.
        field: of the request that asks for it.

    Raises:
        Conflict: NOT_RUNNING: it has not started; NOT_PREEMPTIBLE: its job can't go on later, or it is being stopped.
    """
    if not attempt.start_revision:
        raise _not_preemptible(attempt.ref, "has not started", field, reason="NOT_RUNNING")
    if attempt.spec is None or attempt.spec.preemptible is None:
        raise _not_preemptible(attempt.ref, "can't be stopped for another job: its job is not preemptible", field)
    if attempt.stop_asked:
        raise _not_preemptible(attempt.ref, "is being stopped already", field)


def _not_preemptible(ref: AttemptRef, why: str, field: str = "preempts", reason: str = "NOT_PREEMPTIBLE") -> Conflict:
    message = f"attempt {ref.attempt} of {ref.job_id} {why}"
    return Conflict(message, field=field, reason=reason, metadata={"job_id": ref.job_id})
