"""Drift: how soon a slow GPU and a changed mix are seen, and what is recovered; part of benchmarks/decompose.py."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np

from adlro.sim.scenario import load_scenario
from benchmarks.decompose_scheduling import LOAD, lists, run
from services.decompose.drift import GPU_WINDOW, MIX_WINDOW, GpuDrift, MixDrift

SIGMA = load_scenario("paper").sigma_job
SLOWDOWN_LOG = -math.log(0.8)
"""A GPU slowed by 20 %: its speed is 0.8 of its kind's."""
GPUS = 8


def gpu(seed: int, runs: int) -> dict[str, float]:
    """Flags of GPUs whose jobs are off by the scenario's own noise, as they would be with perfect predictions.

    The reference is the most powerful test there is of 20 jobs at this rate (Neyman and Pearson), with everything
    known.
    """
    rng = np.random.default_rng(seed)
    within, at_end, looks, flags, ever = [], [], 0, 0, []
    for _ in range(runs):
        drift = GpuDrift()
        for _ in range(40):
            for number in range(GPUS):
                drift.observe(f"{number}", "v100_sxm2", SIGMA * rng.standard_normal(), SIGMA)
        slow, healthy = [], []
        for _ in range(GPU_WINDOW):
            for number in range(GPUS):
                shift = SLOWDOWN_LOG if number == 0 else 0.0
                drift.observe(f"{number}", "v100_sxm2", shift + SIGMA * rng.standard_normal(), SIGMA)
            slow.append(drift.state("0").flagged)
            healthy.append([drift.state(f"{number}").flagged for number in (1, 2)])
        within.append(any(slow))
        at_end.append(slow[-1])
        flags += int(np.sum(healthy))
        looks += 2 * GPU_WINDOW
        ever += np.any(healthy, axis=0).tolist()
    normal = NormalDist()
    bound = normal.cdf(SLOWDOWN_LOG / SIGMA * math.sqrt(GPU_WINDOW) - normal.inv_cdf(0.99))
    return {
        "flagged_within_20_jobs": float(np.mean(within)),
        "flagged_at_the_20th_job": float(np.mean(at_end)),
        "best_possible_at_the_20th_job": bound,
        "false_alarms_a_look": flags / looks,
        "healthy_flagged_at_any_of_20_looks": float(np.mean(ever)),
    }


def mix(seed: int, runs: int) -> dict[str, float]:
    """Flags of a changed mix of total variation 0.2, spread over applications as it is hardest to see, and of none."""
    scenario = load_scenario("paper")
    kinds = [(group.job_type, group.application, group.user) for group in scenario.groups]
    applications = sorted({application for _, application, _ in kinds})
    share = {
        application: scenario.mix[job_type] / len(scenario.applications(job_type)) for job_type, application, _ in kinds
    }
    p = np.array([share[application] for application in applications])
    rng = np.random.default_rng(seed)
    flagged: dict[float, list[bool]] = {0.0: [], 0.2: []}
    for variation, found in flagged.items():
        for _ in range(runs):
            more = np.zeros(len(p), dtype=bool)
            more[rng.permutation(len(p))[: len(p) // 2]] = True
            q = p + variation * np.where(more, p / p[more].sum(), -p / p[~more].sum())
            drift = MixDrift({"job_type": 0.2, "application": 0.6, "user": 0.2})
            for shares, count in ((p, 3000), (q, MIX_WINDOW)):
                for number in rng.choice(len(p), count, p=shares / shares.sum()).tolist():
                    of_application = [kind for kind in kinds if kind[1] == applications[number]]
                    drift.observe(of_application[int(rng.integers(len(of_application)))])
            found.append(drift.state().flagged)
    return {"power": float(np.mean(flagged[0.2])), "false_alarms_a_look": float(np.mean(flagged[0.0]))}


def recovery(count: int, seed: int, policy: str = "hold_greedy_fixed") -> dict[str, float]:
    """Mean JCT of the jobs after two V100s lose 20 % of their speed, by what the policy knows of it."""
    jcts: dict[str, list[float]] = {"uncorrected": [], "corrected": [], "known": []}
    slow = (0, 5)
    for jobs in lists(count, seed, 1000):
        at_s = jobs[250].submit_s
        changes = [(at_s, number, 0.8) for number in slow]
        for name, values in jcts.items():
            known = dict.fromkeys(slow, (at_s, 0.8)) if name == "known" else None
            jct_s, _ = run(
                jobs, policy, None, gpu_changes=changes, known_speeds=known, correct_speeds=name == "corrected"
            )
            values.append(float(jct_s[250:].mean()))
    means = {name: float(np.mean(values)) for name, values in jcts.items()}
    gain = means["uncorrected"] - means["known"]
    return {
        **means,
        "load": LOAD,
        "recovered": (means["uncorrected"] - means["corrected"]) / gain if gain else math.nan,
    }
