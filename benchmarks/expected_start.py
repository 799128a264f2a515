"""How often jobs start within the interval that a forecast told, and how wide it was.

    python -m benchmarks.expected_start --lists 100 --policies dqn --json expected_start.json
    python -m benchmarks.expected_start --calibrate adlro/decide/forecast/errors.csv

Lists of the scenario `paper` under the default policy and `hold_greedy_fixed`, at loads 0.6, 0.9 and 1.1, with exact
runtimes (`true`) and with each group's mean (`group`). Every job that waited more than 5 s is forecast at its
submission and at half its wait, from what the scheduler knew then. Each list is a cluster of its own: its record begins
with the shipped errors and learns from the list's own finished forecasts. Beside it stands the simple forecast:
quantiles of recent waits by job type and queue length.

The shipped errors come from lists of `TRAINING_SEED` (`--calibrate` makes them); the table is for lists of other seeds.
Deterministic but for the machine's rounding.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from adlro.decide.forecast.calibration import (
    HIGH,
    KINDS,
    LEAST_WAIT_S,
    LOW,
    Calibration,
    Forecast,
    Interval,
    Raw,
    Setting,
    error_of,
    kind_of,
    raw_of,
    setting_of,
)
from adlro.decide.forecast.futures import Size, play_futures
from adlro.decide.policies import DEFAULT_POLICY, POLICIES
from adlro.hardware.speeds import SHIPPED
from adlro.lab.evaluate.cases import Case
from adlro.sim.batch import simulate
from adlro.state.observation import Floats
from adlro.workload.scenario import load_scenario
from benchmarks.expected_start_moments import ListReplay

LOADS, RUNTIMES, MOMENTS = (0.6, 0.9, 1.1), ("true", "group"), ("submission", "half the wait")
TRAINING_SEED, HELD_OUT_SEED = 9001, 20_261_126
TRAINING_LISTS = {0.6: 96, 0.9: 24, 1.1: 24}
"""By load: at a low one few jobs of a list wait."""
SHIPPED_QUANTILES, FEWEST_OF_KIND = 41, 40
RESAMPLES = 1000


class Made(NamedTuple):
    """One forecast of a list, and its truth: seconds of cluster time."""

    moment: int
    made_s: float
    submit_s: float
    start_s: float
    job_type: int
    queue_length: int
    raw: Raw
    setting: Setting


class Judged(NamedTuple):
    """Forecasts of a cell, each with its list: whether they came in, missed below, and their width in seconds."""

    number: Floats
    came_in: Floats
    below: Floats
    width_s: Floats


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, prints a table, and writes JSON or the shipped errors where asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lists", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=256)
    parser.add_argument("--seed", type=int, default=HELD_OUT_SEED)
    parser.add_argument("--policies", default=f"{DEFAULT_POLICY},hold_greedy_fixed")
    parser.add_argument("--futures", type=int, default=Size().futures)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--calibrate", type=Path, help="write the shipped errors, from lists of the training seed")
    options = parser.parse_args(arguments)
    size = Size(futures=options.futures)
    names = options.policies.split(",")
    if options.calibrate is not None:
        calibrate(names, options.jobs, size, options.calibrate)
        return
    if options.seed == TRAINING_SEED:
        parser.error(f"--seed {TRAINING_SEED} made the shipped errors; take another one")
    earlier_s = simple_waits_s(names, options.jobs)
    rows: list[dict[str, Any]] = []
    for name in names:
        print(f"\n{name}: {options.lists} lists of {options.jobs} jobs, seed {options.seed}")
        print("load runtime forecast at    forecasts  came in (95 %)          median width   simple: came in, width")
        for load in LOADS:
            for runtime in RUNTIMES:
                began = time.monotonic()
                lists = made_forecasts(name, load, runtime, options.lists, options.jobs, options.seed, size)
                each_ms = 1e3 * (time.monotonic() - began) / max(sum(map(len, lists)), 1)
                for moment, text in enumerate(MOMENTS):
                    row = {"policy": name, "load": load, "runtime": runtime, "moment": text}
                    row |= figures(judged(lists, moment), options.seed)
                    row["simple"] = figures(judged_simple(lists, moment, earlier_s), options.seed)
                    row["forecast_ms"] = round(each_ms, 2)
                    rows.append(row)
                    print(
                        f"{load:<4} {runtime:<7} {text:<14} {row['forecasts']:>9}  {row['came_in']:.3f} "
                        f"({row['came_in_low']:.3f}..{row['came_in_high']:.3f})  {row['median_width_s']:>10.1f} s    "
                        f"{row['simple']['came_in']:.3f}  {row['simple']['median_width_s']:.1f} s",
                        flush=True,
                    )
    if options.json:
        document = {"lists": options.lists, "jobs": options.jobs, "seed": options.seed, "rows": rows}
        options.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def made_forecasts(
    name: str, load: float, runtime: str, lists: int, jobs: int, seed: int, size: Size, first: int = 0
) -> list[list[Made]]:
    """The forecasts of each list from number `first` on, in the order of their times."""
    scenario = load_scenario("paper")
    case = Case(scenario, SHIPPED, load, jobs, first + lists, seed, runtime)
    arrays = case.arrays(first, first + lists)
    outcome = simulate(case.cluster, arrays, POLICIES[name].for_load(load).act)
    assert not outcome.stuck.any()
    out = []
    for number in range(lists):
        replay = ListReplay(case.cluster, arrays, outcome, number)
        waits_s = replay.start_s - replay.submit_s
        made: list[Made] = []
        for job in np.flatnonzero(waits_s > LEAST_WAIT_S).tolist():
            for moment, share in enumerate((0.0, 0.5)):
                time_s = replay.submit_s[job] + share * waits_s[job]
                queued, state = replay.moment(time_s)
                wanted = queued == job
                rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(first + number, job, moment, 7)))
                past = replay.past(time_s)
                starts_s = play_futures(state, past, wanted, rng, size)[:, wanted][:, 0]
                raw = raw_of(starts_s, time_s - replay.submit_s[job])
                assert raw is not None
                figure = replay.submit_s[job], replay.start_s[job], int(replay.job_type[job]), len(queued)
                made.append(Made(moment, time_s, *figure, raw, setting_of(state, past, moment == 0)))
        out.append(sorted(made, key=lambda each: each.made_s))
    return out


def judged(lists: Sequence[Sequence[Made]], moment: int) -> Judged:
    """How forecasts with the record came out; each list begins with the shipped errors."""
    rows = []
    for number, made in enumerate(lists):
        calibration = Calibration()
        open_: list[tuple[float, Forecast]] = []
        for each in made:
            for start_s, earlier in [one for one in open_ if one[0] <= each.made_s]:
                calibration.learn(earlier, start_s)
            open_ = [one for one in open_ if one[0] > each.made_s]
            forecast = calibration.forecast(each.made_s, each.raw, each.setting)
            open_.append((each.start_s, forecast))
            if each.moment == moment:
                rows.append(_row(number, forecast.interval, each.start_s - each.made_s))
    return Judged(*np.array(rows).reshape(-1, 4).T)


def _row(number: int, interval: Interval, after_s: float) -> tuple[float, float, float, float]:
    below, above = after_s < interval.low_s - 1e-3, after_s > interval.high_s + 1e-3
    return number, not (below or above), below, interval.high_s - interval.low_s


# ---- the simple forecast

QUEUE_BANDS = (4, 12, 32)
FEWEST, NEWEST, EARLIER_WEIGHT = 10, 200, 20


def simple_waits_s(names: Sequence[str], jobs: int, lists: int = 8) -> Floats:
    """Waits of training lists, which the simple forecast begins with."""
    scenario, waits = load_scenario("paper"), []
    for name in names:
        for load in LOADS:
            case = Case(scenario, SHIPPED, load, jobs, lists, TRAINING_SEED, "true")
            arrays = case.arrays(0, lists)
            outcome = simulate(case.cluster, arrays, POLICIES[name].for_load(load).act)
            waits.append((outcome.start_s - arrays.submit_s).ravel())
    all_s = np.concatenate(waits)
    found: Floats = np.sort(all_s[all_s > LEAST_WAIT_S])
    return found


def judged_simple(lists: Sequence[Sequence[Made]], moment: int, earlier_s: Floats) -> Judged:
    """How quantiles of recent waits came out, of jobs of the type that came to a queue of about this length.

    A job that has waited already is compared with those that waited longer than that.
    """
    rows = []
    for number, made in enumerate(lists):
        arrived = [each for each in made if each.moment == 0]
        for each in made:
            if each.moment != moment:
                continue
            waited_s = each.made_s - each.submit_s
            started = [one for one in arrived if one.start_s <= each.made_s][-NEWEST:]
            length = each.queue_length
            same = [
                one.start_s - one.submit_s
                for one in started
                if one.job_type == each.job_type
                and np.searchsorted(QUEUE_BANDS, one.queue_length) == np.searchsorted(QUEUE_BANDS, length)
            ]
            typed = [one.start_s - one.submit_s for one in started if one.job_type == each.job_type]
            own = same if len(same) >= FEWEST else typed if len(typed) >= FEWEST else []
            own = own or [one.start_s - one.submit_s for one in started]
            before = earlier_s[np.linspace(0, len(earlier_s) - 1, EARLIER_WEIGHT).astype(int)]
            waits_s = np.concatenate([np.array(own), before])
            longer = waits_s[waits_s > max(waited_s, LEAST_WAIT_S)]
            if len(longer) < 3:
                longer = np.array([1.1, 1.5, 3.0]) * max(waited_s, LEAST_WAIT_S)
            low_s, middle_s, high_s = np.quantile(longer, [LOW, 0.5, HIGH]) - waited_s
            rows.append(_row(number, Interval(low_s, middle_s, high_s), each.start_s - each.made_s))
    return Judged(*np.array(rows).reshape(-1, 4).T)


# ---- figures


def figures(cell: Judged, seed: int) -> dict[str, Any]:
    """The share that came in with its 95 % interval over lists, and the median width."""
    numbers = np.unique(cell.number)
    counts = np.array([(cell.number == number).sum() for number in numbers])
    hits = np.array([cell.came_in[cell.number == number].sum() for number in numbers])
    picks = np.random.default_rng(seed).integers(len(numbers), size=(RESAMPLES, len(numbers)))
    shares = hits[picks].sum(axis=1) / counts[picks].sum(axis=1)
    return {
        "forecasts": len(cell.number),
        "came_in": round(float(cell.came_in.mean()), 4),
        "came_in_low": round(float(np.quantile(shares, 0.025)), 4),
        "came_in_high": round(float(np.quantile(shares, 0.975)), 4),
        "started_before": round(float(cell.below.mean()), 4),
        "median_width_s": round(float(np.median(cell.width_s)), 2),
    }


# ---- the shipped errors


def calibrate(names: Sequence[str], jobs: int, size: Size, path: Path) -> None:
    """Writes quantiles of the errors of training lists, by kind; each cell of the table counts as much as another."""
    errors: dict[str, list[Floats]] = {kind: [] for kind in KINDS}
    weights: dict[str, list[Floats]] = {kind: [] for kind in KINDS}
    for name in names:
        for load in LOADS:
            for runtime in RUNTIMES:
                of_lists = made_forecasts(name, load, runtime, TRAINING_LISTS[load], jobs, TRAINING_SEED, size)
                made = [each for one in of_lists for each in one]
                print(f"{name} {load} {runtime}: {len(made)} forecasts", flush=True)
                for kind in KINDS:
                    of_kind = [each for each in made if kind_of(each.raw, each.setting) == kind]
                    errors[kind].append(np.array([error_of(each.raw, each.start_s - each.made_s) for each in of_kind]))
                    weights[kind].append(np.full(len(of_kind), 1.0 / len(made)))
    lines = []
    places = (np.arange(SHIPPED_QUANTILES) + 0.5) / SHIPPED_QUANTILES
    for kind in KINDS:
        # Of a kind that is rare in these lists: as of all made at such a time with such a spread.
        alike = (
            [kind] if sum(map(len, errors[kind])) >= FEWEST_OF_KIND else [each for each in KINDS if _alike(each, kind)]
        )
        values = np.concatenate([each for one in alike for each in errors[one]])
        weight = np.concatenate([each for one in alike for each in weights[one]])
        order = np.argsort(values)
        passed = np.cumsum(weight[order])
        found = np.interp(places, (passed - 0.5 * weight[order]) / passed[-1], values[order])
        lines.append(",".join([kind, *(f"{round(float(each), 3) + 0.0:g}" for each in found)]))
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")


def _alike(one: str, other: str) -> bool:
    """Whether two kinds are of one age and one spread."""
    return one.split("_")[::2][:2] == other.split("_")[::2][:2]


if __name__ == "__main__":
    main()
