"""Replays a list, and resampled ones, under a policy in the simulator. Arrays and plain records only."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from adlro.decide.catalog import of_package
from adlro.decide.own_policy import Own
from adlro.decide.policies.base import Policy
from adlro.decide.policies.dqn import Dqn
from adlro.decide.rollouts.policy import DqnLookahead
from adlro.errors import InvalidInput
from adlro.lab.compare.resampling import resampled
from adlro.lab.evaluate.measure import check_little
from adlro.lab.evaluate.request import KNOWN, all_names, require_known
from adlro.lab.evaluate.tally import FALLBACKS, OVERDUE, Tally
from adlro.records.cluster import Cluster
from adlro.records.precedence import Precedence
from adlro.sim.batch import BatchOutcome, BatchSimulator
from adlro.state.job_arrays import JobArrays
from adlro.state.observation import Bools, Floats
from adlro.workload.pairs import PairTable


@dataclass(frozen=True, slots=True)
class Rules:
    """What the owner of the cluster allows, and sets for every policy.

    Attributes:
        min_run_s: a job is stopped for others only after as long; None: no job is ever stopped.
        shares: two jobs may share a GPU.
        wait_ratio: ratio of every policy's limit on waits, 0 for none; None: each policy's own.
        precedence: which waiting jobs go before others, under every policy; None: none do by rule.
        checkpoint: of the learned policy; None: the one that ADLRO includes.
        own: policies of files, by name.
    """

    min_run_s: float | None = None
    shares: bool = False
    wait_ratio: float | None = None
    precedence: Precedence | None = None
    checkpoint: Path | None = None
    own: Mapping[str, type[Own]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Replay:
    """A list's course under a policy.

    Attributes:
        policy: its name.
        version: of a learned policy's weights.
        start_s, end_s: (J,) of each job's last attempt, since the list's time 0.
        stops: number of attempts that were stopped for other jobs.
        fallback_ratio, overdue_ratio: shares of the decisions that the fallback, or the limit on waits, made; nan: not
            counted.
    """

    policy: str
    version: str
    start_s: Floats
    end_s: Floats
    stops: int
    fallback_ratio: float
    overdue_ratio: float


def policy_of(name: str, rules: Rules) -> Policy:
    """A policy with the owner's settings.

    Raises:
        InvalidInput: no such policy, or the checkpoint can't be used.
        Unsupported: there is no such checkpoint.
    """
    require_known(name, all_names(rules.own), "policies", "policy")
    kind = rules.own.get(name) or KNOWN.get(name) or of_package(name)
    policy: Policy
    if issubclass(kind, Dqn):
        learned = Dqn(rules.checkpoint).load()
        policy = kind.of(learned, None) if issubclass(kind, DqnLookahead) else learned
    else:
        policy = kind()
    if rules.wait_ratio is not None:
        policy.wait_ratio = rules.wait_ratio or math.inf
    policy.precedence = rules.precedence
    return policy


def replay(cluster: Cluster, jobs: JobArrays, policy: Policy, rules: Rules, pairs: PairTable) -> Replay:
    """Runs one list to its end.

    Raises:
        InvalidInput: jobs remain that the policy never starts.
        InternalError: Little's law does not hold.
    """
    outcome, tally = _simulated(cluster, jobs, policy, rules, pairs)
    left = int(np.isnan(outcome.end_s[0]).sum())
    if left:
        raise InvalidInput(
            f"policies: under {policy.name} {left} of {int(jobs.job_count[0])} jobs never ended: it does not start "
            "them",
            field="policies",
        )
    end_s = outcome.end_s[0]
    check_little(
        float(outcome.jobs_integral_s[0]), float((end_s - jobs.submit_s[0]).sum()), policy=policy.name, number=0
    )
    return Replay(
        policy.name,
        policy.version,
        outcome.start_s[0],
        end_s,
        int(outcome.stops[0]),
        *_shares(tally),
    )


def resampled_figures(
    cluster: Cluster,
    jobs: JobArrays,
    measured: Bools,
    policy: Callable[[], Policy],
    rules: Rules,
    pairs: PairTable,
    resamples: int,
    seed: int = 0,
) -> Floats:
    """(resamples, 2) mean and 95 % percentile of the JCT in resampled histories; the same ones for each policy.

    Args:
        cluster: of the jobs.
        jobs: one list of J jobs.
        measured: (J,) which count.
        policy: makes the policy; one with a cluster's memory is made for each history.
        rules: what the owner allows.
        pairs: of jobs that share a GPU.
        resamples: number of histories.
        seed: of the draw.
    """
    found = np.full((resamples, 2), np.nan)
    row = 0
    if not resamples:
        return found
    for lists, counts in resampled(jobs, measured, resamples, seed):
        decides = policy()
        if decides.one_cluster:
            parts = [JobArrays._make(field[each : each + 1] for field in lists) for each in range(len(counts))]
            end_s = np.concatenate([_simulated(cluster, part, policy(), rules, pairs)[0].end_s for part in parts])
        else:
            end_s = _simulated(cluster, lists, decides, rules, pairs)[0].end_s
        for jct_s, which in zip(end_s - lists.submit_s, counts, strict=True):
            if which.any():
                found[row] = jct_s[which].mean(), np.percentile(jct_s[which], 95)
            row += 1
    return found


def _simulated(
    cluster: Cluster, jobs: JobArrays, policy: Policy, rules: Rules, pairs: PairTable
) -> tuple[BatchOutcome, Tally]:
    if rules.min_run_s is None:
        jobs = jobs._replace(preemptible=np.zeros_like(jobs.preemptible))
    if not rules.shares:
        jobs = jobs._replace(shareable=np.zeros_like(jobs.shareable))
    tally = Tally(policy, len(jobs.job_count))
    simulator = BatchSimulator(
        cluster,
        jobs,
        preempts=policy.preempts and rules.min_run_s is not None,
        min_run_s=rules.min_run_s or 0.0,
        shares=policy.shares and rules.shares,
        kept=pairs.kept if policy.shares and rules.shares else None,
        half_life_s=math.inf if policy.precedence is None else policy.precedence.half_life_s,
    )
    while len(simulator.active):
        simulator.act(*tally.act(simulator.observe(), simulator.active))
    return simulator.outcome(), tally


def _shares(tally: Tally) -> tuple[float, float]:
    decisions = int(tally.counts.sum())
    if not decisions:
        return math.nan, math.nan
    return float(tally.counts[0, FALLBACKS].sum() / decisions), float(tally.counts[0, OVERDUE] / decisions)
