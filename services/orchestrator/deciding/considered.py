"""What a decision keeps of what it looked at: its best pairs, its base's choice, its prediction. Plain data and arrays.

Runs in the deciding loop: arrays are cut out here, and records are made of them when somebody asks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from adlro.decide.policies.base import Judgement
from adlro.placement import NOWHERE
from adlro.records.decisions import BaseChoice, DecisionPair, DecisionPrediction
from adlro.records.predictions import PredictionBasis
from adlro.services.orchestrator.ledger.entry import Entry
from adlro.services.orchestrator.ledger.ledger import Ledger
from adlro.services.orchestrator.ledger.occupancy import Layout
from adlro.state.gangs import gpus_of
from adlro.state.observation import HOLD, CandidateTable, Floats, Ints

PAIRS_KEPT = 32
"""Number of pairs that a decision keeps."""


@dataclass(frozen=True, slots=True)
class Considered:
    """What was looked at, as arrays over P pairs, best first.

    Attributes:
        job_ids: P.
        gpus: (P, W) the GPUs of each start, then -1.
        equal: (P,) number of GPUs that are equal for the job; of a set: 1.
        duration_s, score: (P,) expected duration and the policy's figure.
        base: the base's choice: its job's id, its GPUs, its value, nan: none; no id: a hold. None: no base.
        margin: of the policy; None: none.
        prediction: of the placed job; None: none is placed.
    """

    job_ids: tuple[str, ...]
    gpus: Ints
    equal: Ints
    duration_s: Floats
    score: Floats
    base: tuple[str, tuple[int, ...], float] | None = None
    margin: float | None = None
    prediction: DecisionPrediction | None = None

    def pairs(self, layout: Layout) -> tuple[DecisionPair, ...]:
        """The pairs as records."""
        made = []
        columns = zip(
            self.job_ids,
            self.gpus.tolist(),
            self.equal.tolist(),
            self.duration_s.tolist(),
            self.score.tolist(),
            strict=True,
        )
        for job_id, row, equal, duration_s, score in columns:
            gpus = [gpu for gpu in row if gpu >= 0]
            made.append(
                DecisionPair(job_id, layout.model_of(gpus[0]), layout.placement(gpus), equal, duration_s, score)
            )
        return tuple(made)

    def base_choice(self, layout: Layout) -> BaseChoice | None:
        """The base's choice as a record."""
        if self.base is None:
            return None
        job_id, gpus, score = self.base
        placement = layout.placement(gpus) if gpus else NOWHERE
        return BaseChoice(job_id, placement, score if np.isfinite(score) else None)


def considered(
    judgement: Judgement,
    table: CandidateTable,
    queue: Sequence[Entry],
    prediction: DecisionPrediction | None = None,
) -> Considered:
    """What a judgement of one observation looked at.

    Args:
        judgement: the judgement.
        table: the observation's table.
        queue: the jobs in the observation's order.
        prediction: of the job that is placed.
    """
    own = not judgement.basis_of(0).fallback
    figures = judgement.values if own and judgement.values is not None else judgement.scores
    rows = best_rows(figures, PAIRS_KEPT)
    gpus = table.gpus[rows]
    if judgement.gpu is not None and len(rows):
        single = gpus[:, 1] < 0 if gpus.shape[1] > 1 else np.ones(len(rows), dtype=np.bool_)
        gpus[single, 0] = judgement.gpu[rows][single]
    return Considered(
        tuple([queue[place].job.job_id for place in table.job[rows].tolist()]),
        gpus,
        table.size[rows],
        table.duration_s[rows],
        figures[rows],
        _base(judgement, table, queue) if own else None,
        judgement.margin if own else None,
        prediction,
    )


def best_rows(figures: Floats, count: int) -> Ints:
    """The rows with the highest finite figures, highest first; of equal ones the first.

    Args:
        figures: (C,) nan or infinite: not asked for.
        count: at most so many.
    """
    rows = np.flatnonzero(np.isfinite(figures))
    if len(rows) > count:
        found = figures[rows]
        least = np.partition(found, len(found) - count)[len(found) - count]
        above = rows[found > least]
        rows = np.concatenate((above, rows[found == least][: count - len(above)]))
    best: Ints = rows[np.lexsort((rows, -figures[rows]))]
    return best


def _base(
    judgement: Judgement, table: CandidateTable, queue: Sequence[Entry]
) -> tuple[str, tuple[int, ...], float] | None:
    if judgement.base is None:
        return None
    if judgement.base == HOLD:
        return "", (), np.nan if judgement.hold_value is None else float(judgement.hold_value[0])
    row = judgement.base
    value = np.nan if judgement.values is None else float(judgement.values[row])
    return queue[int(table.job[row])].job.job_id, gpus_of(table.gpus[row]), value


def prediction_of(ledger: Ledger, entry: Entry, gpus: Sequence[int]) -> DecisionPrediction:
    """The runtime that is expected now of all of a job's work on some GPUs of one model, at their speed."""
    median_s, interval = ledger.whole_duration_s(entry, gpus), entry.interval
    if interval is None:
        stated = entry.job.spec.expected_runtime is not None
        return DecisionPrediction(median_s, basis=PredictionBasis.DECLARED if stated else PredictionBasis.PRIOR)
    model = int(ledger.layout.gpu_model[gpus[0]])
    ratio = median_s / float(entry.expected_s[model])
    return DecisionPrediction(
        median_s,
        float(interval.low_s[model]) * ratio,
        float(interval.high_s[model]) * ratio,
        interval.coverage,
        interval.basis,
    )
