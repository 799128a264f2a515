"""A decision as it is kept, and its explanation, which is made when somebody asks. Plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from adlro.decide.policies.base import Judgement, Policy
from adlro.decide.policies.hold_gang import HoldGang
from adlro.placement import Placement
from adlro.records.decisions import (
    Candidate,
    Decision,
    DecisionBasis,
    MaskedCandidate,
    MaskedGroup,
    RunnerUp,
    ShadowDecision,
)
from adlro.records.jobs import AttemptRef, JobReservation, JobSpec
from adlro.services.orchestrator.deciding.considered import Considered
from adlro.services.orchestrator.deciding.masks import EXAMPLES, Mask, grouped, masks
from adlro.services.orchestrator.deciding.masks import in_words as mask_in_words
from adlro.services.orchestrator.deciding.sets import ScoredSet, scored_sets, why_no_set
from adlro.services.orchestrator.ledger.entry import Entry
from adlro.services.orchestrator.ledger.ledger import Ledger
from adlro.services.orchestrator.ledger.occupancy import Occupancy
from adlro.services.orchestrator.ledger.transitions import in_words, jobs_in_words
from adlro.state.observation import Bools, Floats, Ints, Observation

FALLBACK = HoldGang.name
CANDIDATES_STORED = 32
"""Candidates of a decision in the store."""
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
        considered: the best pairs of all jobs, and what else was looked at; None: not kept.
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
    considered: Considered | None = None

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
        considered: Considered | None = None,
    ) -> Made:
        """A copy with a judgement's scores and values, and the chosen GPUs.

        Args:
            busy_set: the chosen GPUs, where some are busy; `preempts`: the attempts of jobs that are stopped for that.
            beside: the job whose GPU it shares; empty: none.
            considered: what was looked at; None: it is not kept.
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
            considered=considered,
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
        single = self.spec.gpu_count == 1
        candidates, masked, groups = self._gpus(None) if single else self._sets()
        return self._record(candidates, masked, groups, with_pairs=True)

    def stored(self) -> Decision:
        """The same as it is stored: masked GPUs by group alone, and the first 32 candidates."""
        single = self.spec.gpu_count == 1
        candidates, _, groups = self._gpus(CANDIDATES_STORED) if single else self._sets()
        return self._record(candidates[:CANDIDATES_STORED], (), groups, with_pairs=True)

    def summarised(self) -> Decision:
        """The decision without candidates, masked GPUs and pairs."""
        return self._record((), (), (), with_pairs=False)

    def _record(
        self,
        candidates: tuple[Candidate, ...],
        masked: tuple[MaskedCandidate, ...],
        groups: tuple[MaskedGroup, ...],
        *,
        with_pairs: bool,
    ) -> Decision:
        layout, seen = self.occupancy.layout, self.considered
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
            masked_groups=groups,
            best_pairs=seen.pairs(layout) if seen is not None and with_pairs else (),
            base_choice=None if seen is None else seen.base_choice(layout),
            margin=None if seen is None else seen.margin,
            prediction=None if seen is None else seen.prediction,
        )

    def _sets(self) -> tuple[tuple[Candidate, ...], tuple[MaskedCandidate, ...], tuple[MaskedGroup, ...]]:
        layout = self.occupancy.layout
        candidates: list[tuple[ScoredSet, Candidate]] = []
        masked: list[MaskedCandidate] = []
        excluded: dict[str, list[int]] = {}
        for each in self.sets:
            model, placement = layout.model_of(each.gpus[0]), layout.placement(each.gpus)
            score = each.value if np.isfinite(each.value) else each.score
            if each.gpus != self.chosen and not np.isfinite(each.score):
                overdue = self.basis is DecisionBasis.OVERDUE
                why = (
                    "a job that has waited too long goes first" if overdue else f"{self._decider} rejects this set now"
                )
                masked.append(MaskedCandidate("", model, f"{in_words(placement)}: {why}"))
                excluded.setdefault(why, []).extend(each.gpus)
                continue
            candidates.append((each, Candidate(placement, model, each.duration_s, score, each.node_count, each.spread)))
        candidates.sort(key=lambda pair: (pair[0].gpus != self.chosen, -pair[1].score, pair[0].gpus))
        found = {layout.model_of(each.gpus[0]) for each in self.sets}
        for number, model in enumerate(layout.gpu_models):
            if model not in found:
                why = why_no_set(self.spec, self.occupancy, number)
                masked.append(MaskedCandidate("", model, why))
                excluded.setdefault(why, []).extend(np.flatnonzero(layout.gpu_model == number).tolist())
        groups = [self._group(why, gpus) for why, gpus in excluded.items()]
        groups.sort(key=lambda group: -group.gpu_count)
        return tuple(candidate for _, candidate in candidates), tuple(masked), tuple(groups)

    def _group(self, why: str, gpus: Sequence[int]) -> MaskedGroup:
        different = sorted(set(gpus))
        return MaskedGroup(
            why, len(different), tuple([self.occupancy.layout.gpu_ids[gpu] for gpu in different[:EXAMPLES]])
        )

    def _gpus(
        self, most: int | None
    ) -> tuple[tuple[Candidate, ...], tuple[MaskedCandidate, ...], tuple[MaskedGroup, ...]]:
        """The candidates, the masked GPUs, and these by group.

        Args:
            most: at most so many candidates, and no single masked GPUs; None: all.
        """
        layout, chosen = self.occupancy.layout, self.chosen[0] if self.chosen else -1
        scores = (self.scores if self.values is None else self.values).copy()
        why = masks(self.spec, self.occupancy)
        if chosen >= 0:
            if self.preempts or self.beside:  # it was busy
                why[chosen] = Mask.NONE
            if not np.isfinite(scores[chosen]):
                # The job went first for its age, and the network has not scored it.
                scores[chosen] = self.scores[chosen]
        unwanted = (why == Mask.NONE) & (~np.isfinite(scores) | self._overdue_first)
        why[unwanted] = self._unwanted[unwanted]
        words = {number: self._in_words(Mask(number)) for number in np.unique(why).tolist() if number}
        fits = np.flatnonzero(why == Mask.NONE)
        fits = fits[np.lexsort((fits, -scores[fits], fits != chosen))][:most]
        candidates = [
            Candidate(Placement.on(layout.gpu_ids[gpu]), layout.model_of(gpu), duration_s, score)
            for gpu, duration_s, score in zip(
                fits.tolist(), self.durations_s[fits].tolist(), scores[fits].tolist(), strict=True
            )
        ]
        masked: list[MaskedCandidate] = []
        if most is None:
            for gpu in np.flatnonzero(why).tolist():
                number = int(why[gpu])
                reason = words[number]
                if number < Mask.OVERDUE:
                    reason = self.occupancy.mask_reason(self.spec, gpu, self.time_s)
                masked.append(MaskedCandidate(layout.gpu_ids[gpu], layout.model_of(gpu), reason))
        return tuple(candidates), tuple(masked), grouped(why, words, layout.gpu_ids)

    @property
    def _decider(self) -> str:
        return FALLBACK if self.basis.fallback else self.policy

    @property
    def _overdue_first(self) -> Bools:
        """(G,) whether the limit on waits keeps the pair from the job, whatever its score."""
        if self.basis is not DecisionBasis.OVERDUE:
            return np.zeros(len(self.scores), dtype=np.bool_)
        kept: Bools = self.scores == -np.inf
        if self.chosen and self.values is not None:
            kept &= np.isfinite(self.values)
        return kept

    @property
    def _unwanted(self) -> Ints:
        """(G,) why the policy does not want each GPU on which the job fits, as numbers of `Mask`."""
        count = len(self.scores)
        if self.values is None:
            found = np.where(np.isnan(self.scores), Mask.EQUAL, Mask.REJECTED)
            found[(found == Mask.REJECTED) & self._kept_free] = Mask.REJECTED_KEPT_FREE
        else:
            found = np.full(count, Mask.EQUAL if np.isfinite(self.values).any() else Mask.OUTSIDE)
        found[self._overdue_first] = Mask.OVERDUE
        return found.astype(np.int64)

    @property
    def _kept_free(self) -> Bools:
        """(G,) whether GPUs of its node are kept free for another job, after what the policy decided."""
        layout, held = self.occupancy.layout, self.reservation
        if held is None or held.job_id == self.job_id:
            return np.zeros(len(layout.gpu_ids), dtype=np.bool_)
        nodes = set(held.node_ids)
        kept: Bools = np.array([node_id in nodes for node_id in layout.node_ids])[layout.gpu_node]
        return kept

    def _in_words(self, mask: Mask) -> str:
        rejects = f"{self._decider} rejects this GPU for the job now"
        match mask:
            case Mask.OVERDUE:
                first = "a job that has waited too long goes first"
                return f"{WAIT_LIMIT} excludes it now" if self.chosen else first
            case Mask.REJECTED:
                return rejects
            case Mask.REJECTED_KEPT_FREE:
                held = self.reservation
                return f"{rejects}; GPUs of its node are kept free for {held.job_id if held is not None else ''}"
            case Mask.EQUAL:
                return "equals another idle GPU of its node, which stands for both"
            case Mask.OUTSIDE:
                return "the job is outside the policy's window of waiting jobs"
        return mask_in_words(mask, self.spec)

    def _basis_text(self) -> str:
        match self.basis:
            case DecisionBasis.POLICY:
                return self.note
            case DecisionBasis.MARGIN:
                return f"its base's choice: {self.note}"
            case DecisionBasis.OVERDUE:
                return f"{WAIT_LIMIT} decided in place of {self.policy}: a job has waited too long, and goes first"
            case _:
                return f"{FALLBACK} decided in place of {self.policy}: {self.note}"
