"""Drift: how soon a slow GPU and a changed mix are seen, and what is recovered; part of benchmarks/decompose.py."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from adlro.decide.policies import POLICIES
from adlro.records.matrices import SUSPECTED
from adlro.services.decompose.runtimes.drift import GPU_WINDOW, MIX_WINDOW, GpuDriftDetector, MixDriftDetector
from adlro.sim.batch import BatchSimulator
from adlro.state.candidate_table import with_new_table
from adlro.state.job_arrays import pack_jobs
from adlro.state.observation import Floats, Observation
from adlro.workload.estimates import expected_s
from adlro.workload.scenario import load_scenario
from benchmarks.decompose_scheduling import LOAD, lists

SIGMA = load_scenario("paper").sigma_job
SLOWDOWN_LOG = -math.log(0.8)
"""A GPU slowed by 20 %: its speed is 0.8 of its kind's."""
GPUS = 8
JOBS, CHANGE_AT_JOB = 1000, 250
SLOW = (0, 2, 4, 6)


def gpu(seed: int, runs: int) -> dict[str, float]:
    """Suspicions of GPUs whose jobs are off by the scenario's own noise, as they would be with perfect predictions.

    `benchmarks/drift_flags.py` has flags. The reference is the most powerful test there is of 20 jobs at this rate
    (Neyman and Pearson), with everything known.
    """
    rng = np.random.default_rng(seed)
    within, at_end, looks, flags, ever = [], [], 0, 0, []
    for _ in range(runs):
        drift = GpuDriftDetector()
        for _ in range(40):
            for number in range(GPUS):
                drift.observe(f"{number}", "v100_sxm2", SIGMA * rng.standard_normal(), SIGMA)
        slow, healthy = [], []
        for _ in range(GPU_WINDOW):
            for number in range(GPUS):
                shift = SLOWDOWN_LOG if number == 0 else 0.0
                drift.observe(f"{number}", "v100_sxm2", shift + SIGMA * rng.standard_normal(), SIGMA)
            slow.append(drift.state("0").score >= SUSPECTED)
            healthy.append([drift.state(f"{number}").score >= SUSPECTED for number in (1, 2)])
        within.append(any(slow))
        at_end.append(slow[-1])
        flags += int(np.sum(healthy))
        looks += 2 * GPU_WINDOW
        ever += np.any(healthy, axis=0).tolist()
    normal = NormalDist()
    bound = normal.cdf(SLOWDOWN_LOG / SIGMA * math.sqrt(GPU_WINDOW) - normal.inv_cdf(0.99))
    return {
        "suspected_within_20_jobs": float(np.mean(within)),
        "suspected_at_the_20th_job": float(np.mean(at_end)),
        "best_possible_at_the_20th_job": bound,
        "false_alarms_a_look": flags / looks,
        "healthy_suspected_at_any_of_20_looks": float(np.mean(ever)),
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
            drift = MixDriftDetector({"job_type": 0.2, "application": 0.6, "user": 0.2})
            for shares, count in ((p, 3000), (q, MIX_WINDOW)):
                for number in rng.choice(len(p), count, p=shares / shares.sum()).tolist():
                    of_application = [kind for kind in kinds if kind[1] == applications[number]]
                    drift.observe(of_application[int(rng.integers(len(of_application)))])
            found.append(drift.state().flagged)
    return {"power": float(np.mean(flagged[0.2])), "false_alarms_a_look": float(np.mean(flagged[0.0]))}


def _believed(observation: Observation, speed: Floats) -> Observation:
    """The same observation where GPUs are believed to run at such speeds (N, G): each is a kind of its own."""
    duration_s = np.take_along_axis(observation.kind_duration_s, observation.gpu_kind[:, None, :], axis=2)
    kinds = np.broadcast_to(np.arange(speed.shape[1]), speed.shape).copy()
    changed = replace(observation, gpu_kind=kinds, kind_duration_s=duration_s / speed[:, None, :])
    return with_new_table(changed)


def recovery(count: int, seed: int, policy_name: str) -> dict[str, float]:
    """Mean JCT of the jobs after four of eight V100s lose 20 % of their speed, by what the policy knows of it.

    The policy knows the mean of each user and application (`group`), so that what is measured is the drift alone. All
    lists run side by side; differences are between the same lists.
    """
    scenario = load_scenario("paper")
    drawn = lists(count, seed, JOBS)
    believed = [expected_s(jobs, scenario.cluster.gpu_models, "group", scenario, seed) for jobs in drawn]
    arrays = pack_jobs(drawn, scenario.cluster, believed)
    changes = [[(jobs[CHANGE_AT_JOB].submit_s, number, 0.8) for number in SLOW] for jobs in drawn]
    gpus = [(gpu.gpu_id, gpu.gpu_model) for _, gpu in scenario.cluster.gpus()]
    model_of = np.array([scenario.cluster.gpu_models.index(model) for _, model in gpus])
    jct_s: dict[str, NDArray[np.float64]] = {}
    for knowledge in ("uncorrected", "corrected", "known"):
        simulator = BatchSimulator(scenario.cluster, arrays, gpu_changes=changes)
        policy = POLICIES[policy_name].for_load(LOAD)
        drifts = [GpuDriftDetector() for _ in drawn]
        taken = [0] * count
        speed = np.ones((count, len(gpus)))
        while len(simulator.active):
            observation = simulator.observe()
            active = simulator.active.tolist()
            if knowledge == "known":
                for row, number in enumerate(active):
                    if observation.time_s[row] >= changes[number][0][0]:
                        speed[number, list(SLOW)] = 0.8
            elif knowledge == "corrected":
                outcome = simulator.outcome()
                for number in active:
                    runs = int(outcome._run_count[number])
                    for run in range(taken[number], runs):
                        job, gpu = int(outcome._run_job[number, run]), int(outcome._run_gpus[number, run, 0])
                        took_s = float(outcome._run_end_s[number, run] - outcome._run_start_s[number, run])
                        residual = math.log(took_s / believed[number][job, model_of[gpu]])
                        drifts[number].observe(*gpus[gpu], residual, SIGMA)
                        speed[number, gpu] = drifts[number].state(gpus[gpu][0]).speed_ratio
                    taken[number] = runs
            simulator.act(policy.act(_believed(observation, speed[active])))
        jct_s[knowledge] = (simulator.outcome().end_s - arrays.submit_s)[:, CHANGE_AT_JOB:].mean(axis=1)
    gain, got = jct_s["uncorrected"] - jct_s["known"], jct_s["uncorrected"] - jct_s["corrected"]
    return {
        **{f"{name}_s": float(values.mean()) for name, values in jct_s.items()},
        "gain_of_perfect_knowledge_s": float(gain.mean()),
        "its_standard_error_s": float(gain.std(ddof=1) / math.sqrt(count)),
        "recovered": float(got.mean() / gain.mean()),
    }
