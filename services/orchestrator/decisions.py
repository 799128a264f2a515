"""What was decided and why: a bounded log of decisions, and its watchers. Plain data."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from dataclasses import dataclass, field

import numpy as np

from adlro.errors import NotFound
from adlro.sim.observation import Floats
from services.orchestrator.ledger import Entry, Ledger


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
    summary: str = field(default="")


def explain(
    ledger: Ledger, entry: Entry, scores: Floats, time_s: float, *, chosen: int = -1
) -> tuple[tuple[Candidate, ...], tuple[Masked, ...]]:
    """Every GPU of the cluster, either as a candidate (best first, the chosen one in front) or with what masks it.

    Args:
        scores: (G,) the policy's scores of this job before the placement; -inf: the policy does not want the pair.
        chosen: the number of the GPU that was taken; -1: none.
    """
    candidates: list[tuple[int, Candidate]] = []
    masked: list[Masked] = []
    for gpu, gpu_id in enumerate(ledger.gpu_ids):
        model = ledger.model_of(gpu)
        reason = ledger.mask_reason(entry, gpu, time_s)
        if not reason and not np.isfinite(scores[gpu]):
            reason = "the policy does not take this pair now"
        if reason:
            masked.append(Masked(gpu_id, model, reason))
        else:
            score = float(scores[gpu])
            candidates.append((gpu, Candidate(gpu_id, model, float(entry.durations_s[gpu]), score)))
    candidates.sort(key=lambda pair: (pair[0] != chosen, -pair[1].score, pair[0]))
    return tuple(candidate for _, candidate in candidates), tuple(masked)


class DecisionLog:
    """The newest decisions, by id and by job; watchers see each as it is made.

    Args:
        kept: how many are remembered.
    """

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._by_id: OrderedDict[str, Decision] = OrderedDict()
        self._newest_of_job: dict[str, str] = {}
        self._watchers: set[asyncio.Queue[Decision]] = set()
        self.count = 0

    def add(self, decision: Decision) -> None:
        """Remembers a decision and tells the watchers."""
        self.count += 1
        self._by_id[decision.decision_id] = decision
        self._newest_of_job[decision.job_id] = decision.decision_id
        if len(self._by_id) > self._kept:
            dropped_id, dropped = self._by_id.popitem(last=False)
            if self._newest_of_job.get(dropped.job_id) == dropped_id:
                del self._newest_of_job[dropped.job_id]
        for watcher in self._watchers:
            if watcher.full():
                watcher.get_nowait()  # a slow watcher misses the oldest: decisions are for looking, not for keeping
            watcher.put_nowait(decision)

    def get(self, decision_id: str) -> Decision:
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

    def of_job(self, job_id: str) -> Decision | None:
        """A job's newest decision; None where none is kept."""
        decision_id = self._newest_of_job.get(job_id)
        return None if decision_id is None else self._by_id[decision_id]

    def last(self, number: int) -> list[Decision]:
        """The newest decisions, oldest first."""
        return list(deque(self._by_id.values(), maxlen=number)) if number > 0 else []

    def watch(self, queue_size: int = 1000) -> asyncio.Queue[Decision]:
        """A queue that gets each new decision, until `unwatch`."""
        watcher: asyncio.Queue[Decision] = asyncio.Queue(queue_size)
        self._watchers.add(watcher)
        return watcher

    def unwatch(self, watcher: asyncio.Queue[Decision]) -> None:
        """Ends a watch."""
        self._watchers.discard(watcher)
