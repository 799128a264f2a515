"""What decompose can do, each figure beside its goal and its reference of the same run.

    python -m benchmarks.decompose [--only recovery,prediction,splits,scheduling,drift,speed,gangs,pairs] [--data DIR]
                                   [--lists 3] [--seed 1] [--trace FILE ...] [--split-seeds 3] [--json FILE]

`--data` is a folder with Gavel's throughput tables (`gavel/`) and the Philly trace (`traces/philly_first_half.csv`),
which the project does not ship; without it those parts are left out. `splits` takes further traces of three formats
by `--trace`: `*.swf` (Standard Workload Format), `philly*.csv`, else Gavel's CSV. Gradient boosting needs scikit-learn,
and torchhd's own cleanup torch-hd: without them these references are left out (`pip install -e .[bench]`).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

# One core, as the goals are stated: set before numpy starts its threads.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

from benchmarks import decompose_drift as drift  # noqa: E402
from benchmarks import decompose_gangs as gangs  # noqa: E402
from benchmarks import decompose_pairs as pairs  # noqa: E402
from benchmarks import decompose_prediction as prediction  # noqa: E402
from benchmarks import decompose_recovery as recovery  # noqa: E402
from benchmarks import decompose_scheduling as scheduling  # noqa: E402
from benchmarks import decompose_speed as speed  # noqa: E402
from benchmarks import decompose_splits as splits  # noqa: E402
from benchmarks.measuring import machine  # noqa: E402

PARTS = ("recovery", "prediction", "splits", "scheduling", "drift", "speed", "gangs", "pairs")


def show(title: str, rows: dict[str, Any], goals: dict[str, str] | None = None) -> None:
    """One block: a line for each figure, with its goal where it has one."""
    print(f"\n{title}")
    for name, value in rows.items():
        shown = f"{value:.4g}" if isinstance(value, float) else str(value)
        goal = (goals or {}).get(name, "")
        print(f"  {name:<52} {shown:>12}  {goal}".rstrip())


def show_recovery(seed: int) -> Any:
    """Part 1."""
    rows = recovery.measure(seed)
    print("\nRecovery of GPU model, utilization level and priority class of each GPU from the bundle alone")
    print(f"  {'GPUs':>5} {'d':>6} {'flipped':>8} {'recovered':>10} {'formula':>8} {'goal':>7}")
    for row in rows:
        goal = f">= {row['goal']:.3f}" if row["goal"] else ""
        print(
            f"  {row['gpus']:>5.0f} {row['dimension']:>6.0f} {row['flipped']:>8.2f} {row['recovered']:>10.4f} "
            f"{row['formula']:>8.4f} {goal:>9}"
        )
    worst = max(abs(row["recovered"] - row["formula"]) for row in rows)
    print(f"  farthest from the formula: {worst:.4f} (goal: within 0.03)")
    return rows


def show_prediction(seed: int, data: Path | None) -> Any:
    """Part 2."""
    result: dict[str, Any] = {"unseen_applications": prediction.unseen_applications(seed)}
    show(
        "Unseen applications: coverage of 0.8, by how many were seen and how they differ", result["unseen_applications"]
    )
    result["paper"] = prediction.paper(seed)
    show("paper, jobs 700 to 1,000 after 700: median relative error", result["paper"])
    if data is None:
        print("\nGavel and Philly: left out, no --data")
        return result
    result["gavel"] = prediction.gavel(data / "gavel", seed)
    for kind, figures in result["gavel"].items():
        show(
            f"Gavel, unseen {kind}: median relative error, mean of the splits",
            {
                **figures["median_relative_error"],
                "coverage of 0.8": figures["coverage"],
                "flagged novel": figures["flagged_novel"],
            },
            {
                "adlro": "goal <= 0.15, and <= 1.1 x boosting" if kind != "application" else "not expected to be known",
                "coverage of 0.8": "goal 0.77..0.83" if kind != "application" else "",
                "flagged novel": "goal >= 0.95" if kind == "application" else "goal <= 0.05",
            },
        )
    result["pairs"] = prediction.gavel_pairs(data / "gavel", seed)
    show("Gavel, slowdown of unseen pairs: absolute error", result["pairs"], {"adlro, median": "goal <= 0.03"})
    result["philly"] = prediction.philly(data / "traces" / "philly_first_half.csv")
    show("Philly, 6 x 500 jobs after 4,000 each: median factor off", result["philly"])
    return result


def show_splits(seed: int, count: int, data: Path | None, traces: list[Path]) -> Any:
    """Part 3."""
    of_seeds = []
    for number in range(seed, seed + count):
        found = {}
        for each in splits.data_sets(data, traces, number):
            for kind, figures in splits.measure(each, number).items():
                found[each.name, kind] = figures
        of_seeds.append(found)
    print(f"\nUsers, applications and sizes that were not seen, {count} seeds from {seed} on: median of the seeds")
    print(splits.table(of_seeds))
    return [{f"{name}, {kind}": figures for (name, kind), figures in each.items()} for each in of_seeds]


def show_scheduling(seed: int, count: int) -> Any:
    """Part 4."""
    rows = scheduling.measure(count, seed)
    for row in rows:
        low, high = row["recovered_ci95"]
        name = "share of the gap type..group recovered"
        show(
            f"{row['policy']} at load {row['load']:g}: mean JCT in s of jobs 500 to 1,000 of {count} lists, by what is "
            "known of runtimes",
            {**row["late_jct_s"], name: row["recovered"], "its 95 % interval": f"{low:.3f} .. {high:.3f}"},
            {name: "goal >= 0.8"},
        )
    return rows


def show_drift(seed: int, count: int) -> Any:
    """Part 5."""
    result: dict[str, Any] = {"gpu": drift.gpu(seed, 200)}
    show(
        "A GPU at 0.8 of its speed, job noise as in `paper` (sigma 0.4)",
        result["gpu"],
        {"suspected_within_20_jobs": "goal: suspected", "false_alarms_a_look": "goal <= 0.01"},
    )
    result["mix"] = drift.mix(seed, 300)
    show(
        "Mix changed by a total variation of 0.2, window of 256",
        result["mix"],
        {"power": "goal >= 0.95", "false_alarms_a_look": "goal <= 0.01"},
    )
    for policy in scheduling.POLICY_NAMES:
        result[f"recovery_{policy}"] = drift.recovery(count, seed, policy)
        show(
            f"{policy}: four of eight V100s at 0.8 from job 250, {count} lists: mean JCT in s of the jobs after",
            result[f"recovery_{policy}"],
            {"recovered": "goal >= 0.5"},
        )
    return result


def show_speed(seed: int) -> Any:
    """Part 6."""
    result = {"cluster": speed.cluster(seed), "recall": speed.recall(seed)}
    show(
        "p50 on one core, d = 4096",
        result["cluster"],
        {
            "encode_64_gpus_ms": "goal < 0.5",
            "decode_64_gpus_ms": "goal < 1.5",
            "times_faster_than_torchhd": "goal >= 10",
        },
    )
    show(
        "Recall of 8 of 10,000 records",
        result["recall"],
        {"recall_of_10k_ms": "goal < 3", "recall_at_8": "goal >= 0.95"},
    )
    result["million"] = speed.recall_of_a_million(seed)
    show("Search through 1,000,000 records", result["million"], {"recall_of_1m_ms": "goal < 100"})
    result["state"] = speed.state()
    show(
        "GetClusterState of 1,000 GPUs after a block of telemetry",
        result["state"],
        {"fold_and_answer_ms": "goal < 250, all in all"},
    )
    result["predict"] = speed.predict(seed)
    show(
        "PredictRuntime for three models at 10,000 records",
        result["predict"],
        {"predict_1_job_ms": "goal < 3", "predict_128_jobs_ms": "goal < 40"},
    )
    return result


def show_gangs(seed: int, count: int) -> Any:
    """Part 7."""
    result = gangs.measure(seed, count)
    gangs.show(result)
    return result


def show_pairs(seed: int) -> Any:
    """Part 8."""
    result = pairs.measure(seed)
    pairs.show(result)
    return result


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--data", type=Path)
    parser.add_argument("--lists", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--trace", type=Path, action="append", default=[])
    parser.add_argument("--split-seeds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    wanted = arguments.only.split(",")
    unknown = sorted(set(wanted) - set(PARTS))
    if unknown:
        sys.exit(f"--only: no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    began = time.time()
    facts = machine()
    print(" ".join(f"{name}={value}" for name, value in facts.items()))
    seed = arguments.seed
    parts = {
        "recovery": lambda: show_recovery(seed),
        "prediction": lambda: show_prediction(seed, arguments.data),
        "splits": lambda: show_splits(seed, arguments.split_seeds, arguments.data, arguments.trace),
        "scheduling": lambda: show_scheduling(seed, arguments.lists),
        "drift": lambda: show_drift(seed, 8 * arguments.lists),
        "speed": lambda: show_speed(seed),
        "gangs": lambda: show_gangs(seed, arguments.lists),
        "pairs": lambda: show_pairs(seed),
    }
    result = {name: parts[name]() for name in PARTS if name in wanted}
    print(f"\n{time.time() - began:.0f} s")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"machine": facts, **result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
