"""How often the intervals of `adlro compare` cover the true difference: synthetic histories of known distribution.

    python benchmarks/paired_replay.py [--histories 100] [--resamples 100]

- `queue`: one GPU, random submissions and works, and the same jobs on a GPU that is faster by a tenth. Each history
  gives an interval of the difference of the mean JCT, from the blocks that `adlro compare` draws. The true difference
  is the mean over 20,000 other histories of that length and load.
- `scenario`: histories of `paper` (16 GPUs) under two policies with the simulator, as in `adlro compare --runtime
  group`; the true difference is the mean over all histories of the run.

A correct 95 % interval covers the true difference in 95 % of the histories. Beside it: the interval that takes jobs for
independent, and that of means of 20 blocks of the history (batch means).
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable

import numpy as np

from adlro.decide.policies import Policy
from adlro.hardware.speeds import SHIPPED
from adlro.lab.compare.replaying import Rules, policy_of, resampled_figures
from adlro.lab.compare.resampling import drawn_places, estimate
from adlro.lab.evaluate.cases import Case
from adlro.lab.evaluate.tally import Tally
from adlro.lab.evaluate.tasks import simulator_for
from adlro.state.observation import Floats
from adlro.workload.pairs import pair_table
from adlro.workload.scenario import load_scenario

FASTER = 1.1
TRUE_HISTORIES = 20_000
_Z, _T19 = 1.959963984540054, 2.093024054408263


def queue_differences_s(gap_s: Floats, work_s: Floats) -> Floats:
    """(J, H) by how much each job ends later on the faster GPU; gaps and works are (J, H)."""
    off_s = np.empty_like(work_s)
    slow_s = np.zeros(work_s.shape[1])
    fast_s = np.zeros(work_s.shape[1])
    for job in range(len(work_s)):
        # What is left of the work in front of it, and its own.
        slow_s = np.maximum(slow_s - gap_s[job], 0.0) + work_s[job]
        fast_s = np.maximum(fast_s - gap_s[job], 0.0) + work_s[job] / FASTER
        off_s[job] = fast_s - slow_s
    return off_s


def queue_row(load: float, jobs: int, histories: int, resamples: int) -> dict[str, object]:
    """Coverage in the queue of one GPU."""
    rng = np.random.default_rng([round(100 * load), jobs])

    def inputs(count: int) -> tuple[Floats, Floats]:
        return rng.exponential(1.0 / load, (jobs, count)), rng.exponential(1.0, (jobs, count))

    true_s = float(np.mean([queue_differences_s(*inputs(1000)).mean() for _ in range(TRUE_HISTORIES // 1000)]))
    gap_s, work_s = inputs(histories)
    off_s = queue_differences_s(gap_s, work_s)
    found = []
    for number in range(histories):
        places = drawn_places(jobs, resamples, number).T
        found.append(queue_differences_s(gap_s[places, number], work_s[places, number]).mean(axis=0))
    return {"kind": "queue", "load": load, "jobs": jobs} | coverage(off_s.T, found, true_s)


def scenario_row(load: float, jobs: int, histories: int, resamples: int, names: list[str]) -> dict[str, object]:
    """Coverage in the simulator, of the second policy's difference to the first."""
    case = Case(load_scenario("paper"), SHIPPED, load, jobs, histories, 17, "group")
    pairs, rules = pair_table(case.cluster.gpu_models), Rules()
    arrays = case.arrays(0, histories)
    ends_s = []
    for name in names:
        policy = policy_of(name, rules)
        tally, simulator = Tally(policy, histories), simulator_for(case, arrays, policy)
        while len(simulator.active):
            simulator.act(*tally.act(simulator.observe(), simulator.active))
        ends_s.append(simulator.outcome().end_s)
    off_s = ends_s[1] - ends_s[0]
    measured, found = np.ones(jobs, dtype=np.bool_), []
    for number in range(histories):
        one = case.arrays(number, number + 1)
        base, other = (
            resampled_figures(case.cluster, one, measured, _maker(name, rules), rules, pairs, resamples, number)
            for name in names
        )
        found.append((other - base)[:, 0])
    row = {"kind": f"{names[1]} - {names[0]}", "load": load, "jobs": jobs}
    return row | coverage(off_s, found, float(off_s.mean()))


def _maker(name: str, rules: Rules) -> Callable[[], Policy]:
    return lambda: policy_of(name, rules)


def coverage(off_s: Floats, of_resamples: list[Floats], true_s: float) -> dict[str, object]:
    """Shares of histories whose intervals cover the true difference.

    Args:
        off_s: (H, J) differences of single jobs.
        of_resamples: for each history the mean differences of its resampled histories.
        true_s: the true mean difference.
    """
    ours = single = batches = sign = 0
    widths = []
    for one, resampled in zip(off_s, of_resamples, strict=True):
        mean_s = float(one.mean())
        low, high = estimate(mean_s, resampled).interval or (math.nan, math.nan)
        ours += low <= true_s <= high
        sign += high < 0 if true_s < 0 else low > 0
        widths.append((high - low) / 2.0)
        single += abs(mean_s - true_s) <= _Z * float(one.std(ddof=1)) / math.sqrt(len(one))
        means = one[: len(one) // 20 * 20].reshape(20, -1).mean(axis=1)
        batches += abs(float(means.mean()) - true_s) <= _T19 * float(means.std(ddof=1)) / math.sqrt(20)
    histories = len(off_s)
    return {
        "histories": histories,
        "true_difference_s": round(true_s, 3),
        "coverage": ours / histories,
        "coverage_batch_means": batches / histories,
        "coverage_single_jobs": single / histories,
        "half_width_s": round(float(np.median(widths)), 3),
        "sign_told": sign / histories,
    }


def main() -> None:
    """Prints one JSON line for each row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--histories", type=int, default=100)
    parser.add_argument("--resamples", type=int, default=100)
    parser.add_argument("--jobs", default="200,500,2000")
    parser.add_argument("--load", default="0.6,0.9,1.1")
    parser.add_argument("--policies", default="fcfs,hold_greedy_fixed", help="two for the scenario; empty: queue only")
    given = parser.parse_args()
    cells = [(load, jobs) for load in map(float, given.load.split(",")) for jobs in map(int, given.jobs.split(","))]
    for load, jobs in cells:
        print(json.dumps(queue_row(load, jobs, given.histories, given.resamples)), flush=True)
    for load, jobs in cells if given.policies else []:
        names = given.policies.split(",")
        print(json.dumps(scenario_row(load, jobs, given.histories, given.resamples, names)), flush=True)


if __name__ == "__main__":
    main()
