"""Decisions with their explanations: a bounded log, and its watchers. Plain data."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from adlro.decide.policies.base import Judgement, Policy
from adlro.decide.policies.hold_gang import HoldGang
from adlro.errors import NotFound
from adlro.placement import Placement
from adlro.records.decisions import Candidate, Decision, DecisionBasis, MaskedCandidate, RunnerUp, ShadowDecision
from adlro.records.jobs import AttemptRef, JobReservation, JobSpec
from adlro.services.orchestrator.deciding.sets import ScoredSet, scored_sets, why_no_set
from adlro.services.orchestrator.ledger.entry import Entry
from adlro.services.orchestrator.ledger.ledger import Ledger
from adlro.services.orchestrator.ledger.occupancy import Occupancy
from adlro.services.orchestrator.ledger.transitions import in_words, jobs_in_words
from adlro.state.observation import Floats, Observation

FALLBACK = HoldGang.name
WAIT_LIMIT = "the limit on waits"
"""The name of the limit that decides for overdue jobs, for people."""


def holds_back(policy: Policy, basis: DecisionBasis) -> str:
    """Why a job that could start does not, by the last decision's basis: `dqn holds it back`."""
    if basis is DecisionBasis.OVERDUE:
        return f"{WAIT_LIMIT} keeps GPUs for a job that has waited too long"
    if basis.fallback:
        return f"{FALLBACK} (in place of {policy.name}: {basis.replace('_', ' ')}) holds it back"
    return f"{policy.name} holds it back"


@dataclass(frozen=True, slots=True)
class Made:
    """A stored decision: the data of its explanation, which is made on request.

    Attributes:
        spec: the job's spec.
        chosen: the GPUs; none: not placed.
        scores: of a job of one GPU, (G,) the policy's scores before the placement; -inf: the policy refuses the pair;
            nan: an equal GPU stands for this one.
        values: (G,) the figures behind the scores, where they differ from these; nan: the policy has none for the pair.
        durations_s: (G,) expected durations.
        sets: of a job of several GPUs, the sets that it could have.
        reservation: GPUs that are kept free for a job after the decision; None: none.
        preempts: attempts of other jobs that are stopped to make room. The policy gives the GPUs no score then; minus
            the expected duration stands for it.
        beside: the job whose GPU it shares; empty: none. The same stands for the score then.
        share: of the chosen GPUs.
        occupancy: the occupancy before the placement.
    """

    decision_id: str
    job_id: str
    spec: JobSpec
    chosen: tuple[int, ...]
    policy: str
    time_s: float
    queue_length: int
    attempt: int
    decision_us: float
    scores: Floats
    durations_s: Floats
    occupancy: Occupancy
    summary: str
    values: Floats | None = None
    hold_score: float | None = None
    basis: DecisionBasis = DecisionBasis.POLICY
    note: str = ""
    version: str = ""
    runner_up: RunnerUp | None = None
    shadow: ShadowDecision | None = None
    sets: tuple[ScoredSet, ...] = ()
    reservation: JobReservation | None = None
    preempts: tuple[AttemptRef, ...] = ()
    beside: str = ""
    share: float = 1.0

    @classmethod
    def now(cls, decision_id: str, entry: Entry, policy: Policy, ledger: Ledger, time_s: float) -> Made:
        """The state of a waiting job before a judgement."""
        return cls(
            decision_id=decision_id,
            job_id=entry.job.job_id,
            spec=entry.job.spec,
            chosen=(),
            policy=policy.name,
            time_s=time_s,
            queue_length=ledger.queue_length,
            attempt=entry.job.attempt_count,
            decision_us=0.0,
            scores=np.empty(0),
            durations_s=ledger.durations_s(entry),
            occupancy=ledger.occupancy.copy(),
            summary="",
            version=policy.version,
            share=ledger.share_of(entry.job.spec),
        )

    def judged(self, judgement: Judgement, observation: Observation, place: int, **more: Any) -> Made:
        """A copy with a judgement's scores and values.

        Args:
            judgement: the judgement of one observation.
            observation: this observation.
            place: the job's place in the observation.
            more: other fields.
        """
        basis = judgement.basis_of(0)
        values, hold = (None, None) if basis.fallback else (judgement.values, judgement.hold_value)
        several = self.spec.gpu_count > 1
        return replace(
            self,
            scores=self.scores if several else judgement.scores_of_gpus(observation, place),
            values=None if values is None or several else judgement.values_of_gpus(observation, place),
            sets=scored_sets(judgement.scores, values, observation, place, self.occupancy.layout) if several else (),
            hold_score=None if hold is None or not np.isfinite(hold[0]) else float(hold[0]),
            basis=basis,
            note=judgement.notes.get(0, ""),
            **more,
        )

    def placed(
        self,
        gpus: tuple[int, ...],
        judgement: Judgement,
        observation: Observation,
        place: int,
        attempt: int,
        runner_up: RunnerUp | None,
        decision_us: float,
        busy_set: ScoredSet | None = None,
        preempts: tuple[AttemptRef, ...] = (),
        beside: str = "",
    ) -> Made:
        """A copy with a judgement's scores and values, and the chosen GPUs.

        Args:
            busy_set: the chosen GPUs, where some are busy; `preempts`: the attempts of jobs that are stopped for that.
            beside: the job whose GPU it shares; empty: none.
        """
        layout = self.occupancy.layout
        basis = judgement.basis_of(0)
        who = FALLBACK if basis.fallback else WAIT_LIMIT if basis is DecisionBasis.OVERDUE else self.policy
        made = self.judged(
            judgement,
            observation,
            place,
            chosen=gpus,
            attempt=attempt,
            decision_us=decision_us,
            runner_up=runner_up,
            preempts=preempts,
            beside=beside,
        )
        duration_s = float(self.durations_s[gpus[0]])
        if busy_set is not None:
            duration_s = busy_set.duration_s
            if len(gpus) == 1:
                scores, durations_s = made.scores.copy(), made.durations_s.copy()
                scores[gpus[0]], durations_s[gpus[0]] = busy_set.score, duration_s
                made = replace(made, scores=scores, durations_s=durations_s)
            else:
                made = replace(made, sets=(busy_set, *made.sets))
        if made.chosen_set is not None:
            duration_s = made.chosen_set.duration_s
        spread = (
            f", spread over {made.chosen_set.node_count} nodes" if made.chosen_set and made.chosen_set.spread else ""
        )
        summary = (
            f"{who} starts {self.job_id} on {in_words(layout.placement(gpus))} ({layout.model_of(gpus[0])}){spread}"
            f"{f', which it shares with {beside}' if beside else ''}, "
            f"where {duration_s:.4g} s are expected"
        )
        if preempts:
            summary += f", once {jobs_in_words(preempts)} stopped"
        return replace(made, summary=summary)

    @property
    def chosen_set(self) -> ScoredSet | None:
        """The chosen set of a job of several GPUs; None: a job of one GPU, or not placed."""
        return next((each for each in self.sets if each.gpus == self.chosen), None)

    def explained(self) -> Decision:
        """The explanation: each GPU of the cluster as a candidate (the chosen one first, then by score) or masked.

        For a job of several GPUs: each set that it could have, and the models of which it could have none.
        """
        layout = self.occupancy.layout
        candidates, masked = self._candidate_gpus() if self.spec.gpu_count == 1 else self._candidate_sets()
        return Decision(
            decision_id=self.decision_id,
            job_id=self.job_id,
            placement=layout.placement(self.chosen, self.share),
            policy=self.policy,
            time_s=self.time_s,
            queue_length=self.queue_length,
            candidates=candidates,
            masked=masked,
            decision_us=self.decision_us,
            attempt=self.attempt,
            summary=self.summary,
            basis=self.basis,
            basis_text=self._basis_text(),
            policy_version=self.version,
            runner_up=self.runner_up,
            hold_score=self.hold_score,
            shadow=self.shadow,
            deciding_policy=self._decider,
            reservation=self.reservation,
            preempts=self.preempts,
        )

    def _candidate_sets(self) -> tuple[tuple[Candidate, ...], tuple[MaskedCandidate, ...]]:
        layout = self.occupancy.layout
        candidates: list[tuple[ScoredSet, Candidate]] = []
        masked: list[MaskedCandidate] = []
        for each in self.sets:
            model, placement = layout.model_of(each.gpus[0]), layout.placement(each.gpus)
            score = each.value if np.isfinite(each.value) else each.score
            if each.gpus != self.chosen and not np.isfinite(each.score):
                overdue = self.basis is DecisionBasis.OVERDUE
                why = (
                    "a job that has waited too long goes first" if overdue else f"{self._decider} rejects this set now"
                )
                masked.append(MaskedCandidate("", model, f"{in_words(placement)}: {why}"))
                continue
            candidates.append((each, Candidate(placement, model, each.duration_s, score, each.node_count, each.spread)))
        candidates.sort(key=lambda pair: (pair[0].gpus != self.chosen, -pair[1].score, pair[0].gpus))
        found = {layout.model_of(each.gpus[0]) for each in self.sets}
        for number, model in enumerate(layout.gpu_models):
            if model not in found:
                masked.append(MaskedCandidate("", model, why_no_set(self.spec, self.occupancy, number)))
        return tuple(candidate for _, candidate in candidates), tuple(masked)

    def _candidate_gpus(self) -> tuple[tuple[Candidate, ...], tuple[MaskedCandidate, ...]]:
        layout, chosen = self.occupancy.layout, self.chosen[0] if self.chosen else -1
        candidates: list[tuple[int, Candidate]] = []
        masked: list[MaskedCandidate] = []
        for gpu, gpu_id in enumerate(layout.gpu_ids):
            model = layout.model_of(gpu)
            was_busy = gpu == chosen and bool(self.preempts or self.beside)
            reason = "" if was_busy else self.occupancy.mask_reason(self.spec, gpu, self.time_s)
            score = float(self.scores[gpu] if self.values is None else self.values[gpu])
            if gpu == chosen and not np.isfinite(score):
                # The job went first for its age, and the network has not scored it.
                score = float(self.scores[gpu])
            if not reason and (not np.isfinite(score) or self._overdue_first(gpu)):
                reason = self._unwanted(gpu)
            if reason:
                masked.append(MaskedCandidate(gpu_id, model, reason))
            else:
                duration_s = float(self.durations_s[gpu])
                candidates.append((gpu, Candidate(Placement.on(gpu_id), model, duration_s, score)))
        candidates.sort(key=lambda pair: (pair[0] != chosen, -pair[1].score, pair[0]))
        return tuple(candidate for _, candidate in candidates), tuple(masked)

    @property
    def _decider(self) -> str:
        return FALLBACK if self.basis.fallback else self.policy

    def _overdue_first(self, gpu: int) -> bool:
        """Whether the limit on waits keeps the pair from the job, whatever its score."""
        looked_at = self.values is None or bool(np.isfinite(self.values[gpu]))
        return self.basis is DecisionBasis.OVERDUE and self.scores[gpu] == -np.inf and (not self.chosen or looked_at)

    def _unwanted(self, gpu: int) -> str:
        if self._overdue_first(gpu):
            return "a job that has waited too long goes first" if not self.chosen else f"{WAIT_LIMIT} excludes it now"
        if self.values is None and not np.isnan(self.scores[gpu]):
            return f"{self._decider} rejects this GPU for the job now{self._kept_free(gpu)}"
        if self.values is None or np.isfinite(self.values).any():
            return "equals another idle GPU of its node, which stands for both"
        return "the job is outside the policy's window of waiting jobs"

    def _kept_free(self, gpu: int) -> str:
        """For whom GPUs of its node are kept free, after what the policy decided; empty: for nobody else."""
        layout, held = self.occupancy.layout, self.reservation
        if held is None or held.job_id == self.job_id or layout.node_ids[layout.gpu_node[gpu]] not in held.node_ids:
            return ""
        return f"; GPUs of its node are kept free for {held.job_id}"

    def _basis_text(self) -> str:
        match self.basis:
            case DecisionBasis.POLICY:
                return ""
            case DecisionBasis.MARGIN:
                return f"its base's choice: {self.note}"
            case DecisionBasis.OVERDUE:
                return f"{WAIT_LIMIT} decided in place of {self.policy}: a job has waited too long, and goes first"
            case _:
                return f"{FALLBACK} decided in place of {self.policy}: {self.note}"


class DecisionLog:
    """The newest decisions, by id and by job; watchers receive each new one.

    Args:
        kept: number of stored decisions, in a cluster of up to 200 GPUs; fewer in a larger one.
    """

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._by_id: OrderedDict[str, Made] = OrderedDict()
        self._newest_of_job: dict[str, str] = {}
        self._watchers: set[asyncio.Queue[Made]] = set()
        self.count = 0

    def add(self, decision: Made) -> None:
        """Stores a decision; the caller calls `tell` afterwards."""
        self.count += 1
        self._by_id[decision.decision_id] = decision
        self._newest_of_job[decision.job_id] = decision.decision_id
        # A decision's size grows with the cluster: 10,000 decisions with 1,000 GPUs would take half a gigabyte.
        while len(self._by_id) > max(1, min(self._kept, self._kept * 200 // len(decision.durations_s))):
            dropped_id, dropped = self._by_id.popitem(last=False)
            if self._newest_of_job.get(dropped.job_id) == dropped_id:
                del self._newest_of_job[dropped.job_id]

    def tell(self, decision: Made, shadow: ShadowDecision | None) -> None:
        """Sends the watchers a decision, with the shadow policy's decision."""
        if shadow is not None:
            decision = replace(decision, shadow=shadow)
            if decision.decision_id in self._by_id:
                self._by_id[decision.decision_id] = decision
        for watcher in self._watchers:
            if watcher.full():
                watcher.get_nowait()  # a slow watcher loses the oldest decision: watches are for viewing only
            watcher.put_nowait(decision)

    def get(self, decision_id: str) -> Made:
        """A decision by its id.

        Raises:
            NotFound: unknown, or no longer stored.
        """
        if decision_id not in self._by_id:
            raise NotFound(
                f"decision_id: {decision_id!r} is not known here; the last {self._kept} decisions since the "
                "orchestrator's start are kept",
                field="decision_id",
            )
        return self._by_id[decision_id]

    def of_job(self, job_id: str) -> Made | None:
        """A job's newest decision; None if none is stored."""
        decision_id = self._newest_of_job.get(job_id)
        return None if decision_id is None else self._by_id[decision_id]

    def last(self, number: int) -> list[Made]:
        """The newest decisions, oldest first."""
        return list(deque(self._by_id.values(), maxlen=number)) if number > 0 else []

    def watch(self, queue_size: int = 1000) -> asyncio.Queue[Made]:
        """A queue that receives each new decision, until `unwatch`."""
        watcher: asyncio.Queue[Made] = asyncio.Queue(queue_size)
        self._watchers.add(watcher)
        return watcher

    def unwatch(self, watcher: asyncio.Queue[Made]) -> None:
        """Ends a watch."""
        self._watchers.discard(watcher)
