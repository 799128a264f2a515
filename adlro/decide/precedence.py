"""Which waiting jobs go before others, under any policy: levels of precedence. Arrays only.

A rule (adlro/records/precedence.py) gives each waiting job a level. The policy then

- sees the jobs in the order of their levels, the highest first, and of one level in the order of submission: so a
  policy that goes by order (fcfs, easy_backfill, the holds of a reservation) takes them in this order;
- chooses among the rows of the highest level of which it does not refuse all: so a policy that goes by scores (sjf,
  the learned one) keeps its choice within a level;
- is asked about the jobs of higher levels alone, if it would start a lower one while a higher one fits: so a policy
  that chooses one pair by a plan of its own (heft, min_min) makes that plan of these. So too where it starts nothing
  because it keeps GPUs free for a lower one, and where it would start a lower one on busy GPUs.

The rule never keeps a GPU idle for a job of a high level that does not fit now, unless the policy does. The limit on
waits (policies/bounded_wait.py) stands above it: an overdue job goes first at any level.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from adlro.numeric.exact import exp_array
from adlro.records.precedence import LEVELS, Precedence
from adlro.state.observation import HOLD, CandidateTable, Floats, Ints, Observation

_Start = Any
"""A start on busy GPUs, with the place of its `job`."""
_LN2 = 0.6931471805599453
_DIGITS = 9
"""Precedences are rounded to these: sums in another order must not change a level."""


def factors(rule: Precedence, observation: Observation) -> tuple[Floats, Floats, Floats]:
    """(N, J) each: fair share, age and priority of the waiting jobs, from 0 to 1; any value where none waits."""
    wait_s = observation.time_s[:, None] - observation.job_submit_s
    age: Floats = np.clip(np.where(observation.job_waiting, wait_s, 0.0) / rule.full_age_s, 0.0, 1.0)
    return _fair_share(observation), age, observation.job_priority


def precedences(rule: Precedence, observation: Observation) -> Floats:
    """(N, J) the weighted means of the factors."""
    share, age, priority = factors(rule, observation)
    total = rule.fair_share + rule.age + rule.priority
    found: Floats = (rule.fair_share * share + rule.age * age + rule.priority * priority) / total
    return found


def levels(rule: Precedence, observation: Observation) -> Ints:
    """(N, J) the levels of the waiting jobs, 0 to LEVELS - 1; 0 where none waits."""
    tenths = np.floor(np.round(precedences(rule, observation) * LEVELS, _DIGITS)).astype(np.int64)
    found: Ints = np.where(observation.job_waiting, np.clip(tenths, 0, LEVELS - 1), 0)
    return found


def order_of(level: Ints, observation: Observation) -> Ints | None:
    """(N, J) the places of the jobs, the highest level first; None: all are on one level.

    Args:
        level: (N, J) the jobs' levels.
    """
    highest = np.where(observation.job_waiting, level, -1).max(axis=1, initial=-1)
    lowest = np.where(observation.job_waiting, level, LEVELS).min(axis=1, initial=LEVELS)
    if (highest <= lowest).all():
        return None
    order: Ints = np.argsort(-level, axis=1, kind="stable")
    return order


def highest_that_fits(table: CandidateTable, level: Ints) -> Ints:
    """(N,) the highest level of a job that fits somewhere now; HOLD: none fits."""
    highest: Ints = np.where(table.rows_of_job > 0, level, HOLD).max(axis=1, initial=HOLD)
    return highest


def highest_that_waits(observation: Observation, level: Ints) -> Ints:
    """(N,) the highest level of a waiting job; HOLD: none waits."""
    highest: Ints = np.where(observation.job_waiting, level, HOLD).max(axis=1, initial=HOLD)
    return highest


def refuse_lower(table: CandidateTable, level: Ints, scores: Floats, busy: dict[int, _Start]) -> None:
    """Refuses the rows below the highest level that the policy would start something of, and lower busy starts.

    Args:
        level: (N, J) the jobs' levels.
        scores: (C,) the policy's, changed in place.
        busy: by cluster, its starts on busy GPUs, changed in place.
    """
    its: Ints = table.of_job(level)
    for n in range(len(table.first)):
        rows = table.rows(n)
        found = its[rows][scores[rows] > -np.inf]
        top = int(found.max(initial=-1))
        start = busy.get(n)
        if start is not None and level[n, start.job] < top:
            del busy[n]
        if len(found):
            scores[rows][its[rows] < top] = -np.inf


def _fair_share(observation: Observation) -> Floats:
    """(N, J) 2^(-2 S / largest S) of the jobs' accounts, S: `job_user_service_s`; 1 where nobody has had anything.

    By the largest and no mean: how many jobs an account submits, and how many accounts have had the same, must not
    matter.
    """
    service_s = np.where(observation.job_waiting, observation.job_user_service_s, 0.0)
    largest_s = service_s.max(axis=1, initial=0.0)
    return exp_array(-2.0 * _LN2 * service_s / np.where(largest_s > 0.0, largest_s, 1.0)[:, None])
