"""What was decided and why: a bounded log of decisions, and its watchers. Plain data."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from dataclasses import dataclass, replace

import numpy as np

from adlro.errors import NotFound
from adlro.jobs import JobSpec
from adlro.sim.observation import Floats
from services.orchestrator.ledger import Entry, Ledger, Phase
from services.orchestrator.occupancy import Occupancy
from services.orchestrator.policies import Policy


@dataclass(frozen=True, slots=True)
class Candidate:
    """A GPU that the job could start on."""

    gpu_id: str
    gpu_model: str
    expected_runtime_s: float
    score: float


@dataclass(frozen=True, slots=True)
class Masked:
    """A GPU that was out of the question."""

    gpu_id: str
    gpu_model: str
    reason: str


@dataclass(frozen=True, slots=True)
class Decision:
    """One placement (`gpu_id` set), or why a job is not placed now."""

    decision_id: str
    job_id: str
    gpu_id: str
    policy: str
    time_s: float
    queue_length: int
    candidates: tuple[Candidate, ...]
    masked: tuple[Masked, ...]
    decision_us: float
    attempt: int = 0
    summary: str = ""


@dataclass(frozen=True, slots=True)
class Made:
    """A decision as it is kept: what its explanation is made from, when somebody asks.

    Attributes:
        spec: the job's.
        chosen: number of the GPU; -1: not placed.
        scores: (G,) the policy's, before the placement; -inf: the policy does not want the pair.
        durations_s: (G,) expected.
        occupancy: before the placement.
    """

    decision_id: str
    job_id: str
    spec: JobSpec
    chosen: int
    policy: str
    time_s: float
    queue_length: int
    attempt: int
    decision_us: float
    scores: Floats
    durations_s: Floats
    occupancy: Occupancy
    summary: str

    @classmethod
    def now(
        cls, decision_id: str, entry: Entry, policy_name: str, scores: Floats, ledger: Ledger, time_s: float
    ) -> Made:
        """How things stand for a waiting job, before it is placed."""
        return cls(
            decision_id=decision_id,
            job_id=entry.job.job_id,
            spec=entry.job.spec,
            chosen=-1,
            policy=policy_name,
            time_s=time_s,
            queue_length=ledger.queue_length,
            attempt=entry.job.attempt_count,
            decision_us=0.0,
            scores=scores.copy(),
            durations_s=ledger.durations_s(entry),
            occupancy=ledger.occupancy.copy(),
            summary="",
        )

    def placed(self, gpu: int, attempt: int, decision_us: float) -> Made:
        """The same with the GPU that was chosen."""
        layout = self.occupancy.layout
        summary = (
            f"{self.policy} starts {self.job_id} on {layout.gpu_ids[gpu]} ({layout.model_of(gpu)}), "
            f"where {self.durations_s[gpu]:.4g} s are expected"
        )
        return replace(self, chosen=gpu, attempt=attempt, decision_us=decision_us, summary=summary)

    def explained(self) -> Decision:
        """With every GPU of the cluster, either as a candidate (best first, the chosen one in front) or masked."""
        layout = self.occupancy.layout
        candidates: list[tuple[int, Candidate]] = []
        masked: list[Masked] = []
        for gpu, gpu_id in enumerate(layout.gpu_ids):
            model = layout.model_of(gpu)
            reason = self.occupancy.mask_reason(self.spec, gpu, self.time_s)
            if not reason and not np.isfinite(self.scores[gpu]):
                reason = "the policy does not take this pair now"
            if reason:
                masked.append(Masked(gpu_id, model, reason))
            else:
                score, duration_s = float(self.scores[gpu]), float(self.durations_s[gpu])
                candidates.append((gpu, Candidate(gpu_id, model, duration_s, score)))
        candidates.sort(key=lambda pair: (pair[0] != self.chosen, -pair[1].score, pair[0]))
        return Decision(
            decision_id=self.decision_id,
            job_id=self.job_id,
            gpu_id=layout.gpu_ids[self.chosen] if self.chosen >= 0 else "",
            policy=self.policy,
            time_s=self.time_s,
            queue_length=self.queue_length,
            candidates=tuple(candidate for _, candidate in candidates),
            masked=tuple(masked),
            decision_us=self.decision_us,
            attempt=self.attempt,
            summary=self.summary,
        )


class DecisionLog:
    """The newest decisions, by id and by job; watchers see each as it is made.

    Args:
        kept: how many are remembered, in a cluster of up to 200 GPUs; fewer in a larger one.
    """

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._by_id: OrderedDict[str, Made] = OrderedDict()
        self._newest_of_job: dict[str, str] = {}
        self._watchers: set[asyncio.Queue[Made]] = set()
        self.count = 0

    def add(self, decision: Made) -> None:
        """Remembers a decision and tells the watchers."""
        self.count += 1
        self._by_id[decision.decision_id] = decision
        self._newest_of_job[decision.job_id] = decision.decision_id
        # A decision's size grows with the cluster: 10,000 of 1,000 GPUs would be half a gigabyte.
        while len(self._by_id) > max(1, min(self._kept, self._kept * 200 // len(decision.durations_s))):
            dropped_id, dropped = self._by_id.popitem(last=False)
            if self._newest_of_job.get(dropped.job_id) == dropped_id:
                del self._newest_of_job[dropped.job_id]
        for watcher in self._watchers:
            if watcher.full():
                watcher.get_nowait()  # a slow watcher misses the oldest: decisions are for looking, not for keeping
            watcher.put_nowait(decision)

    def get(self, decision_id: str) -> Made:
        """A decision by its id.

        Raises:
            NotFound: unknown, or no longer kept.
        """
        if decision_id not in self._by_id:
            raise NotFound(
                f"decision_id: {decision_id!r} is not known here; the last {self._kept} decisions since the "
                "orchestrator's start are kept",
                field="decision_id",
            )
        return self._by_id[decision_id]

    def of_job(self, job_id: str) -> Made | None:
        """A job's newest decision; None where none is kept."""
        decision_id = self._newest_of_job.get(job_id)
        return None if decision_id is None else self._by_id[decision_id]

    def last(self, number: int) -> list[Made]:
        """The newest decisions, oldest first."""
        return list(deque(self._by_id.values(), maxlen=number)) if number > 0 else []

    def watch(self, queue_size: int = 1000) -> asyncio.Queue[Made]:
        """A queue that gets each new decision, until `unwatch`."""
        watcher: asyncio.Queue[Made] = asyncio.Queue(queue_size)
        self._watchers.add(watcher)
        return watcher

    def unwatch(self, watcher: asyncio.Queue[Made]) -> None:
        """Ends a watch."""
        self._watchers.discard(watcher)


def explain_waiting(ledger: Ledger, policy: Policy, time_s: float, job_id: str) -> Decision | None:
    """Why a job of the queue is not placed now; None where it does not wait in it."""
    entry = ledger.entries.get(job_id)
    if entry is None or entry.phase is not Phase.QUEUED:
        return None
    place = ledger.queued().index(entry)
    scores = policy.scores(ledger.observe(time_s))[0, place]
    made = Made.now("", entry, policy.name, scores, ledger, time_s)
    return replace(made, summary=f"{job_id} is number {place + 1} in the queue: {entry.job.message}").explained()
