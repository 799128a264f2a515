"""The attempts of a cluster: each is accepted once, holds its GPUs while it is open, and is stored afterwards.

Plain records. An attempt is *accepted* once its launch is accepted, *started* once it has its GPUs, and
*ended* once it is over; an open attempt has not ended. A repeated launch is answered from here and never runs again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from adlro.errors import Conflict
from adlro.placement import Placement
from adlro.records.cluster import Cluster, Gpu, Node
from adlro.records.events import AttemptState, RunningJob
from adlro.records.jobs import JobSpec
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
        stop_asked: its stop was requested.
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
    note: str = ""

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


class Attempts:
    """The attempts of one cluster, and the resources that they hold.

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
        self._job_on: dict[str, str] = {}
        for attempt in self._open.values():
            self._hold(attempt, overdrawn=True)

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

    def check(self, job_id: str, spec: JobSpec, placement: Placement) -> None:
        """Refuses a new attempt that can't start on all of its GPUs.

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
        if len(placement.gpus) > 1:
            check_set(job_id, spec, placement, self._cluster)
        check_placement(job_id, spec, placement, self._place_of, self._free, lost=self._lost, job_on=self._job_on)

    def accept(self, attempt: Attempt) -> Attempt | None:
        """Adds a new attempt that passed `check`; it holds its GPUs from now on. Returns the previous one."""
        before = self._known.get(attempt.job_id)
        self._known[attempt.job_id] = self._open[attempt.job_id] = attempt
        self._hold(attempt)
        self.changed(attempt)
        return before

    def adopt(self, attempt: Attempt) -> bool:
        """Adds an attempt that runs already, whatever it uses; False: a GPU is not free, or the job has another."""
        if (
            attempt.job_id in self._open
            or not self._place_of.keys() >= set(attempt.placement.gpu_ids)
            or not self._job_on.keys().isdisjoint(attempt.placement.gpu_ids)
        ):
            return False
        self._known[attempt.job_id] = self._open[attempt.job_id] = attempt
        self._hold(attempt, overdrawn=True)
        self.changed(attempt)
        return True

    def withdraw(self, attempt: Attempt, before: Attempt | None) -> None:
        """Removes an attempt that was just added; `before` is the previous one."""
        self._let_go(attempt)
        del self._open[attempt.job_id]
        if before is None:
            del self._known[attempt.job_id]
        else:
            self._known[attempt.job_id] = before
        self._changed[attempt.job_id] = before

    def end(self, attempt: Attempt, revision: int) -> None:
        """Ends an attempt, and frees its resources."""
        self._let_go(attempt)
        del self._open[attempt.job_id]
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

    def _hold(self, attempt: Attempt, *, overdrawn: bool = False) -> None:
        assert attempt.spec is not None
        attempt.placement.take(self._free, attempt.spec, overdrawn=overdrawn)
        self._job_on.update(dict.fromkeys(attempt.placement.gpu_ids, attempt.job_id))

    def _let_go(self, attempt: Attempt) -> None:
        assert attempt.spec is not None
        attempt.placement.give_back(self._free, attempt.spec)
        for gpu_id in attempt.placement.gpu_ids:
            del self._job_on[gpu_id]
