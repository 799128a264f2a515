"""What predicted speeds of pairs are worth in mean JCT, against knowing each pair, on jobs that may share GPUs.

    python -m benchmarks.decompose_pairs_jct [--seed 1] [--lists 60] [--tuning-lists 20]

One-GPU jobs of Gavel's 26 measured types (uniform), work 18 s x exp(0.9 N(0, 1)) on a V100, on 8 V100, 4 P100, 4 K80;
Poisson arrivals, 256 jobs a list; loads are against the capacity without sharing. A greedy rule that holds jobs for
faster GPUs (as hold_greedy) may also put a job beside a running one, if the two kept shares *as it believes them* add
up to `s_min` or more; it counts the stretched time of its own, and `pen` times what the other one loses. Both settings
are tuned for each belief, on lists of other seeds, one setting for all loads. Which pairs do not run together at all is
known. A row "without" predicts every pair from others: without that pair, without it on any model, without all pairs of
one of its applications or families (mean of both). A row "seen" knows a share of the pairs, drawn once, and predicts
the others. The simulator is this file's own.
"""

from __future__ import annotations

import argparse
import itertools
import math

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.optimize import linprog

from adlro.hardware.speeds import GAVEL_APPLICATIONS, GAVEL_STEPS_PER_S
from benchmarks.decompose_pairs import BASELINES, SEEN_SHARES, Pairs

Floats = NDArray[np.float64]
MODELS = ("v100", "p100", "k80")
GPU_MODEL = np.repeat(np.arange(3), (8, 4, 4))
LOADS = (0.6, 0.9, 1.1)
JOB_COUNT = 256
MEDIAN_WORK_S, WORK_LOG_STD = 18.0, 0.9
S_MINS, PENS = (1.1, 1.2, 1.3, 1.4, 1.5, 1.6), (0.5, 1.0, 1.5)
NEVER = 9.0
SPEED = np.array([[GAVEL_STEPS_PER_S[name][model] for model in MODELS] for name in GAVEL_APPLICATIONS])
SPEED /= SPEED[:, :1]
ALPHA, THETA, KAPPA, S_MAX = 2.0, 1.5, 1.0, 4.0


@njit(cache=False)
def mean_jct_s(
    arrival_s: Floats,
    kinds: NDArray[np.int64],
    work_s: Floats,
    speed: Floats,
    gpu_model: NDArray[np.int64],
    true: Floats,
    believed: Floats,
    s_min: float,
    pen: float,
    rule: tuple[float, float, float, float],
) -> float:
    """The mean JCT of a list.

    Args:
        arrival_s, kinds, work_s: of the jobs.
        speed: kinds x models.
        gpu_model: of each GPU.
        true, believed: models x kinds x kinds; kept share of the first beside the second; NaN: they can't.
        s_min, pen: of sharing.
        rule: alpha, theta, kappa, s_max.
    """
    alpha, theta, kappa, s_max = rule
    jobs, gpus = len(kinds), len(gpu_model)
    on = np.full((gpus, 2), -1)
    rest_s = np.zeros(jobs)  # alone on its GPU
    waiting = np.zeros(jobs, dtype=np.bool_)
    wait_s = np.zeros(gpus)
    now, arrived, ended, total = 0.0, 0, 0, 0.0
    while ended < jobs:
        step = arrival_s[arrived] - now if arrived < jobs else np.inf
        for g in range(gpus):
            for k in range(2):
                j = on[g, k]
                if j >= 0:
                    other = on[g, 1 - k]
                    kept = 1.0 if other < 0 else true[gpu_model[g], kinds[j], kinds[other]]
                    step = min(step, rest_s[j] / kept)
        now += step
        for g in range(gpus):
            a, b = on[g, 0], on[g, 1]
            if a >= 0:
                rest_s[a] -= step * (1.0 if b < 0 else true[gpu_model[g], kinds[a], kinds[b]])
            if b >= 0:
                rest_s[b] -= step * (1.0 if a < 0 else true[gpu_model[g], kinds[b], kinds[a]])
            for k in range(2):
                j = on[g, k]
                if j >= 0 and rest_s[j] <= 1e-9:
                    on[g, k] = -1
                    ended += 1
                    total += now - arrival_s[j]
        while arrived < jobs and arrival_s[arrived] <= now + 1e-12:
            waiting[arrived] = True
            arrived += 1
        while True:
            for g in range(gpus):
                wait_s[g] = 0.0
                for k in range(2):
                    if on[g, k] >= 0:
                        wait_s[g] = max(wait_s[g], rest_s[on[g, k]])
            best, best_j, best_g = np.inf, -1, -1
            for j in range(arrived):
                if not waiting[j]:
                    continue
                shortest, completion = np.inf, np.inf
                for g in range(gpus):
                    d = work_s[j] / speed[kinds[j], gpu_model[g]]
                    shortest = min(shortest, d)
                    completion = min(completion, kappa * wait_s[g] + d)
                for g in range(gpus):
                    m = gpu_model[g]
                    if on[g, 0] >= 0 and on[g, 1] >= 0:
                        continue
                    cost = work_s[j] / speed[kinds[j], m]
                    other = max(on[g, 0], on[g, 1])
                    if other >= 0:
                        mine, its = believed[m, kinds[j], kinds[other]], believed[m, kinds[other], kinds[j]]
                        if not (mine + its >= s_min):  # NaN: never
                            continue
                        together = min(cost / mine, rest_s[other] / its)
                        cost = together + (cost - mine * together) + pen * together * (1.0 - its)
                    if cost > s_max * shortest or cost > theta * completion:
                        continue
                    score = math.log(shortest) + alpha * math.log(cost / shortest)
                    if score < best:
                        best, best_j, best_g = score, j, g
            if best_j < 0:
                break
            waiting[best_j] = False
            rest_s[best_j] = work_s[best_j] / speed[kinds[best_j], gpu_model[best_g]]
            on[best_g, 0 if on[best_g, 0] < 0 else 1] = best_j
    return total / jobs


def capacity_per_s() -> float:
    """Jobs a second that the GPUs can do without sharing: a linear program over types and models."""
    kinds, models = SPEED.shape
    mean_work_s = MEDIAN_WORK_S * math.exp(WORK_LOG_STD**2 / 2)
    busy = np.zeros((models, kinds * models + 1))
    each = np.zeros((kinds, kinds * models + 1))
    for k, m in itertools.product(range(kinds), range(models)):
        busy[m, k * models + m] = mean_work_s / SPEED[k, m]
        each[k, k * models + m] = 1.0
    each[:, -1] = -1.0 / kinds
    cost = np.zeros(kinds * models + 1)
    cost[-1] = -1.0
    found = linprog(cost, A_ub=busy, b_ub=np.bincount(GPU_MODEL), A_eq=each, b_eq=np.zeros(kinds))
    return float(-found.fun)


def draw(seed: int, number: int, rate_per_s: float) -> tuple[Floats, NDArray[np.int64], Floats]:
    """A list's arrivals, types, and works."""
    rng = np.random.default_rng([seed, number])
    arrival_s = np.cumsum(rng.exponential(1.0, JOB_COUNT)) / rate_per_s
    kinds = rng.integers(0, len(SPEED), JOB_COUNT)
    return arrival_s, kinds, MEDIAN_WORK_S * np.exp(WORK_LOG_STD * rng.standard_normal(JOB_COUNT))


def beliefs(seed: int) -> dict[str, Floats]:
    """Kept shares as each predictor believes them: models x types x types."""
    pairs = Pairs()
    everything = np.arange(len(pairs.keys))
    fit = pairs.fit(everything)

    def matrix(values: Floats) -> Floats:
        kept = np.full((len(MODELS), len(SPEED), len(SPEED)), np.nan)
        for key, value in zip(pairs.keys, values, strict=True):
            row, column = (GAVEL_APPLICATIONS.index(each.name) for each in (key.kind, key.beside))
            kept[MODELS.index(key.gpu_model), row, column] = np.clip(value, 0.02, 1.0)
        return kept

    found = {"each pair": matrix(pairs.kept)}
    for split in ("pair", "pair everywhere", "application", "family"):
        predicted = np.full(len(everything), np.nan)
        for test, out in pairs.left_out(split):
            # Of a pair of two applications, each of which is left out in turn: the mean of both predictions.
            value = fit.left_out(np.where(np.isin(everything, out), -1, everything))[test]
            predicted[test] = np.where(np.isnan(predicted[test]), value, (predicted[test] + value) / 2)
        found[f"decompose, without the {split}"] = matrix(predicted)
    parts = pairs.left_out("pair")
    order = np.random.default_rng(seed).permutation(len(parts))
    for share in SEEN_SHARES:
        seen = np.concatenate([parts[each][0] for each in order[: round(share * len(parts))]])
        predicted = pairs.fit(seen).predict(pairs.keys).mean
        predicted[seen] = pairs.kept[seen]
        found[f"decompose, {share:.0%} seen"] = matrix(predicted)
    for name, baseline in BASELINES.items():
        predicted = np.empty(len(everything))
        for test, out in pairs.left_out("pair"):
            predicted[test] = baseline(pairs, np.setdiff1d(everything, out), test)
        found[name] = matrix(predicted)
    return found


def main() -> None:
    """The command."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1, help="lists of this seed; settings are tuned on the next one's")
    parser.add_argument("--lists", type=int, default=60)
    parser.add_argument("--tuning-lists", type=int, default=20)
    arguments = parser.parse_args()
    capacity = capacity_per_s()
    known = beliefs(arguments.seed)
    true = known["each pair"]
    rule = (ALPHA, THETA, KAPPA, S_MAX)

    def jct_s(seed: int, lists: int, load: float, believed: Floats, s_min: float, pen: float) -> Floats:
        return np.array(
            [
                mean_jct_s(*draw(seed, number, load * capacity), SPEED, GPU_MODEL, true, believed, s_min, pen, rule)
                for number in range(lists)
            ]
        )

    alone = {load: jct_s(arguments.seed, arguments.lists, load, true, NEVER, 1.0) for load in LOADS}
    print(
        f"capacity without sharing {3600 * capacity:.0f} jobs/h; JCT without sharing, s: "
        + ", ".join(f"{load}: {alone[load].mean():.1f}" for load in LOADS)
    )
    print(f"| knows | s_min, pen | {' | '.join(f'{load}: change %, share of the gain' for load in LOADS)} |")
    print(f"| --- | --- |{' --- |' * len(LOADS)}")
    gain: dict[float, float] = {}
    for name, believed in known.items():

        def tuned(setting: tuple[float, float], believed: Floats = believed) -> float:
            return sum(
                float(jct_s(arguments.seed + 1, arguments.tuning_lists, load, believed, *setting).mean())
                / float(alone[load].mean())
                for load in LOADS
            )

        setting = min([*itertools.product(S_MINS, PENS), (NEVER, 1.0)], key=tuned)
        cells = []
        for load in LOADS:
            change = float(
                jct_s(arguments.seed, arguments.lists, load, believed, *setting).mean() / alone[load].mean() - 1
            )
            gain.setdefault(load, change)
            cells.append(f"{100 * change:+.1f}, {change / gain[load]:.2f}")
        print(f"| {name} | {setting[0]:g}, {setting[1]:g} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
