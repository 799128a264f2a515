"""Which waiting jobs of a long queue on a large cluster get an expected start, how good it is, and what it costs.

    python -m benchmarks.expected_start_scale [--gpus 1024] [--waiting 1000,3000] [--loads 0.9,1.1] [--looks 6]

Copies of the cluster of `paper` with the scenario's jobs: at time 0 come as many jobs as there are GPUs, and as many as
shall wait; from then on jobs come at the load, under `hold_greedy_fixed`. The looks are spread over the time in which
new jobs come. At each some waiting jobs are forecast, each alone as for a caller of the service, with the service's
bounds of a round, from what the scheduler knew then. `told` is the share of jobs with an interval, by place in
the queue (its quarters, by submission), `came in` the share of these with the true start: the record of a look has the
shipped errors, and the jobs of earlier looks that have started since.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from adlro.decide.forecast.calibration import (
    LEAST_WAIT_S,
    Calibration,
    Forecast,
    Interval,
    Raw,
    Setting,
    raw_of,
    setting_of,
)
from adlro.decide.forecast.futures import play_futures
from adlro.decide.policies import POLICIES
from adlro.hardware.speeds import SHIPPED
from adlro.lab.evaluate.cases import Case
from adlro.services.orchestrator.forecasts.forecasting import SIZE
from adlro.sim.batch import simulate
from adlro.workload.scenario import load_scenario
from benchmarks.expected_start_moments import ListReplay
from benchmarks.measuring import machine
from benchmarks.simulator import copies

FIRST_LOOK, LAST_LOOK = 0.02, 0.3
"""Of the time in which jobs come. Later ones must come after each look: a forecast can't know that they end."""


class Told(NamedTuple):
    """One forecast: its quarter of the queue, its interval or None, and the true start, all in cluster time."""

    quarter: int
    made_s: float
    start_s: float
    raw: Raw | None
    setting: Setting
    cpu_ms: float


def replayed(gpus: int, waiting: int, load: float, runtime: str, later: int, seed: int) -> tuple[ListReplay, float]:
    """A list that ran to its end, and the cluster time of its last submission."""
    paper, times = load_scenario("paper"), gpus // 16
    burst = gpus + waiting
    capacity = paper.capacity_jobs_per_h * times
    scenario = dataclasses.replace(paper, cluster=copies(paper.cluster, times), capacity_jobs_per_h=capacity)
    case = Case(scenario, SHIPPED, load, burst + later, 1, seed, runtime)
    arrays = case.arrays(0, 1)
    submit_s = np.maximum(arrays.submit_s - arrays.submit_s[:, burst - 1 : burst], 0.0)
    arrays = arrays._replace(submit_s=submit_s)
    outcome = simulate(case.cluster, arrays, POLICIES["hold_greedy_fixed"].for_load(load).act)
    assert not outcome.stuck.any()
    return ListReplay(case.cluster, arrays, outcome, 0), float(submit_s.max())


def looked(replay: ListReplay, time_s: float, each: int, rng: np.random.Generator) -> tuple[int, list[Told]]:
    """The jobs that wait at a moment: their number, and forecasts of some of each quarter."""
    queued, moment = replay.moment(time_s)
    past, told = replay.past(time_s), []
    # A forecast is for jobs that wait longer than that in all.
    waits = replay.start_s[queued] - replay.submit_s[queued] > LEAST_WAIT_S
    for quarter, part in enumerate(np.array_split(np.arange(len(queued)), 4)):
        known = part[waits[part]]
        for place in np.sort(rng.choice(known, min(each, len(known)), replace=False)).tolist():
            wanted = np.zeros(len(queued), dtype=np.bool_)
            wanted[place] = True
            began = time.process_time()
            starts_s = play_futures(moment, past, wanted, rng, SIZE)[:, place]
            cpu_ms = 1e3 * (time.process_time() - began)
            job = queued[place]
            waited_s = time_s - replay.submit_s[job]
            setting = setting_of(moment, past, waited_s < LEAST_WAIT_S)
            raw = raw_of(starts_s, waited_s)
            told.append(Told(quarter, time_s, float(replay.start_s[job]), raw, setting, cpu_ms))
    return len(queued), told


def judged(looks: Sequence[Sequence[Told]]) -> list[list[tuple[Told, Interval | None]]]:
    """The intervals of each look: the record begins with the shipped errors, and learns from the looks before."""
    calibration = Calibration()
    open_: list[tuple[float, Forecast]] = []
    out = []
    for told in looks:
        for start_s, forecast in [one for one in open_ if one[0] <= told[0].made_s]:
            calibration.learn(forecast, start_s)
        open_ = [one for one in open_ if one[0] > told[0].made_s]
        rows: list[tuple[Told, Interval | None]] = []
        for each in told:
            if each.raw is None:
                rows.append((each, None))
                continue
            forecast = calibration.forecast(each.made_s, each.raw, each.setting)
            open_.append((each.start_s, forecast))
            rows.append((each, forecast.interval))
        out.append(rows)
    return out


def figures(rows: Sequence[tuple[Told, Interval | None]]) -> dict[str, Any]:
    """What a cell of the table tells."""
    with_one = [(each, interval) for each, interval in rows if interval is not None]
    after_s = np.array([each.start_s - each.made_s for each, _ in with_one])
    low_s = np.array([interval.low_s for _, interval in with_one])
    high_s = np.array([interval.high_s for _, interval in with_one])
    inside = (low_s - 1e-3 <= after_s) & (after_s <= high_s + 1e-3)
    cpu_ms = np.array([each.cpu_ms for each, _ in rows])
    return {
        "forecasts": len(rows),
        "told": round(len(with_one) / max(len(rows), 1), 3),
        "came_in": round(float(inside.mean()), 3) if len(inside) else None,
        "started_before": round(float((after_s < low_s - 1e-3).mean()), 3) if len(inside) else None,
        "median_wait_s": round(float(np.median(after_s)), 1) if len(inside) else None,
        "median_width_s": round(float(np.median(high_s - low_s)), 1) if len(inside) else None,
        "cpu_ms_median": round(float(np.median(cpu_ms)), 1),
        "cpu_ms_most": round(float(cpu_ms.max()), 1),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, prints, and writes JSON where asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=1024)
    parser.add_argument("--waiting", default="1000,3000")
    parser.add_argument("--loads", default="0.9,1.1")
    parser.add_argument("--runtime", default="group")
    parser.add_argument("--later", type=int, default=12_000, help="jobs that come after the first")
    parser.add_argument("--looks", type=int, default=6)
    parser.add_argument("--each", type=int, default=10, help="forecasts of each look and quarter of the queue")
    parser.add_argument("--seed", type=int, default=20_261_127)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    for waiting in map(int, options.waiting.split(",")):
        for load in map(float, options.loads.split(",")):
            replay, last_s = replayed(options.gpus, waiting, load, options.runtime, options.later, options.seed)
            looks, counts = [], []
            for number in range(options.looks):
                time_s = last_s * (FIRST_LOOK + (LAST_LOOK - FIRST_LOOK) * number / max(options.looks - 1, 1))
                rng = np.random.default_rng(np.random.SeedSequence(options.seed, spawn_key=(waiting, number)))
                count, told = looked(replay, time_s, options.each, rng)
                counts.append(count)
                looks.append(told)
            of_looks = judged([told for told in looks if told])
            for quarter in (0, 1, 2, 3, None):
                of_quarter = [row for look in of_looks for row in look if quarter is None or row[0].quarter == quarter]
                row = {"waiting": waiting, "load": load, "quarter": quarter, **figures(of_quarter)}
                row["waited"] = counts
                rows.append(row)
                print(json.dumps(row), flush=True)
    if options.json:
        document = {"machine": machine(), **{name: each for name, each in vars(options).items() if name != "json"}}
        options.json.write_text(json.dumps({**document, "rows": rows}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
