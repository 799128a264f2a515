"""Coverage and error of predictions for users, applications and sizes never seen; part of benchmarks/decompose.py.

Rows of a data set are split by whole groups: a fifth of the users (applications, sizes, declared runtimes by octave) is
left out, the predictor learns from the rest, and is asked about those left out; each fifth in turn. References of the
same split: the *mean* of the log runtimes learned from, and where runtimes are declared, these as they stand.

Data sets: Gavel's tables; lists drawn from the scenario `paper`, once without and once with declared runtimes that each
user gets wrong in an own way; and traces in three formats (Philly's CSV, Standard Workload Format, Gavel's CSV).
"""

from __future__ import annotations

import csv
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from adlro.records.jobs import ExpectedRuntime, JobSpec, JobType
from adlro.services.decompose.runtimes.learned_predictor import NOVEL
from adlro.workload.job_lists import draw_groups, draw_jobs
from adlro.workload.scenario import load_scenario
from benchmarks.decompose_baselines import Floats
from benchmarks.decompose_prediction import Row, gavel_rows, gavel_spec, learned_predictor, philly_rows

FOLDS = 5
TRAIN_LIMIT = 1000
TEST_LIMIT = 300
"""Rows of a split, drawn where there are more; the predictor's own window holds 4,096."""
GPU_COUNT = 8
"""GPUs of a model on which rows ran in turn."""
REFERENCE_GPU_MODEL = "v100_sxm2"
_SWF_FIELDS = 18


class DataSet(NamedTuple):
    """Rows, and by what they are split: the name of a kind of group, and a row's group."""

    name: str
    rows: list[Row]
    group_of: Mapping[str, Callable[[Row], str]]


def by_user(row: Row) -> str:
    """The user."""
    return row.spec.user


def by_application(row: Row) -> str:
    """The application."""
    return row.spec.application


def by_gpu_count(row: Row) -> str:
    """How many GPUs (in traces of CPU jobs: processors)."""
    return str(row.spec.gpu_count)


def by_gpu_memory(row: Row) -> str:
    """The GPU memory asked for."""
    return str(row.spec.gpu_memory_mib)


def by_batch_size(row: Row) -> str:
    """The batch size."""
    return row.spec.labels.get("batch_size", "")


def by_declared(row: Row) -> str:
    """The octave of the declared runtime."""
    return str(round(math.log2(declared_s(row))))


def declared_s(row: Row) -> float:
    """The declared runtime; NaN where there is none."""
    declared = row.spec.expected_runtime
    return math.nan if declared is None else declared.runtime_s


def gavel(folder: Path) -> DataSet:
    """Step times of job configurations; there is one user."""
    kinds = {"application": by_application, "size": by_gpu_count, "batch size": by_batch_size}
    return DataSet("gavel", gavel_rows(folder), kinds)


def paper(seed: int, count: int = 1300, *, declared: bool) -> DataSet:
    """A list drawn from the scenario; declared runtimes are off by a factor of the user's and one of each job's own."""
    rng = np.random.default_rng([seed, 7])
    scenario = load_scenario("paper")
    groups = draw_groups(scenario, rng)
    rows = []
    bias_of: dict[str, float] = {}
    for job in draw_jobs(scenario, load=0.9, rng=rng, count=count, groups=groups):
        spec = job.spec("paper")
        if declared:
            bias = bias_of.setdefault(spec.user, float(rng.normal(math.log(2.0), 0.7)))
            declared_s = job.work_s * math.exp(bias + 0.4 * float(rng.standard_normal()))
            spec = dataclasses.replace(spec, expected_runtime=ExpectedRuntime(REFERENCE_GPU_MODEL, declared_s))
        rows.append(Row(spec, REFERENCE_GPU_MODEL, job.work_s, ""))
    kinds = {"user": by_user, "application": by_application, "size": by_gpu_memory}
    if declared:
        return DataSet("paper, declared", rows, kinds | {"declared runtime": by_declared})
    return DataSet("paper", rows, kinds)


def trace(path: Path, gavel_folder: Path | None = None) -> DataSet:
    """A trace by its file's name: `*.swf`, `philly*.csv`, else Gavel's CSV, whose steps need Gavel's tables."""
    if path.suffix == ".swf":
        rows = swf_rows(path)
    elif path.name.startswith("philly"):
        rows = philly_rows(path)
    elif gavel_folder is not None:
        rows = gavel_trace_rows(path, gavel_folder)
    else:
        raise ValueError(f"{path}: a trace of Gavel's needs its tables; give --data")
    kinds = {"user": by_user, "application": by_application, "size": by_gpu_count}
    if all(row.spec.expected_runtime is not None for row in rows):
        kinds["declared runtime"] = by_declared
    return DataSet(path.stem, rows, kinds)


def swf_rows(path: Path) -> list[Row]:
    """Standard Workload Format: run time, processors, requested time, user and executable, as far as stated."""
    rows = []
    for line in path.read_text().splitlines():
        fields = line.split()
        if line.startswith(";") or len(fields) < _SWF_FIELDS:
            continue
        runtime_s, processors, requested_s = float(fields[3]), int(fields[4]), float(fields[8])
        if runtime_s <= 0:
            continue
        spec = JobSpec(
            name="swf",
            user="" if fields[11] == "-1" else fields[11],
            job_type=JobType.SIMULATION,
            application="" if fields[13] in {"-1", "0"} else fields[13],
            gpu_count=max(1, processors),
            expected_runtime=ExpectedRuntime(REFERENCE_GPU_MODEL, requested_s) if requested_s > 0 else None,
        )
        rows.append(Row(spec, REFERENCE_GPU_MODEL, runtime_s, ""))
    return rows


def gavel_trace_rows(path: Path, folder: Path) -> list[Row]:
    """Jobs of so many steps each, at the steps/s that were measured on a V100."""
    step_s = {row.configuration: row.step_s for row in gavel_rows(folder) if row.gpu_model == "v100"}
    rows = []
    with path.open(newline="") as file:
        for line in csv.DictReader(file):
            name, gpu_count = line["job_type"], int(line["scale_factor"])
            one_step_s = step_s.get(f"{name}/{gpu_count}")
            if one_step_s is not None:
                runtime_s = float(line["total_steps"]) * one_step_s
                rows.append(Row(gavel_spec(name, gpu_count), "v100", runtime_s, ""))
    return rows


def folds(rows: Sequence[Row], group_of: Callable[[Row], str], seed: int) -> Iterator[tuple[list[Row], list[Row]]]:
    """Training and test rows, in the order of the data set; each group is in the test rows once."""
    groups = np.array([group_of(row) for row in rows])
    distinct = np.unique(groups)
    rng = np.random.default_rng(seed)
    order = rng.permutation(distinct)
    for number in range(min(FOLDS, len(order))):
        is_test = np.isin(groups, order[number::FOLDS])
        sides = []
        for side, limit in ((~is_test, TRAIN_LIMIT), (is_test, TEST_LIMIT)):
            numbers = np.flatnonzero(side)
            chosen = np.sort(rng.permutation(numbers)[:limit])
            sides.append([rows[each] for each in chosen.tolist()])
        yield sides[0], sides[1]


def measure(data: DataSet, seed: int) -> dict[str, dict[str, Any]]:
    """For each kind of split: coverage of 0.8, median factors, and the least and greatest coverage of a fold."""
    result: dict[str, dict[str, Any]] = {}
    for kind, group_of in data.group_of.items():
        if len({group_of(row) for row in data.rows}) < 2:
            continue
        covered: list[Floats] = []
        off: dict[str, list[Floats]] = {}
        novel: list[Floats] = []
        width: list[Floats] = []
        for train, test in folds(data.rows, group_of, seed):
            predictor = learned_predictor(train, GPU_COUNT)
            answers = [predictor.predict([row.spec], [row.gpu_model]) for row in test]
            log_s = np.log([row.step_s for row in test])
            low, median, high = (
                np.log([float(getattr(each, name)[0, 0]) for each in answers])
                for name in ("low_s", "median_s", "high_s")
            )
            covered.append(((low <= log_s) & (log_s <= high)).astype(float))
            novel.append(np.array([float(each.novelty[0] >= NOVEL) for each in answers]))
            width.append(high - low)
            predicted = {"adlro": median, "mean": np.full(len(test), np.log([row.step_s for row in train]).mean())}
            declared = np.log([declared_s(row) for row in test])
            if not np.isnan(declared).any():
                predicted["declared"] = declared
            for name, values in predicted.items():
                off.setdefault(name, []).append(np.abs(values - log_s))
        of_folds = [float(each.mean()) for each in covered]
        result[kind] = {
            "coverage": float(np.concatenate(covered).mean()),
            "folds": (min(of_folds), max(of_folds)),
            "factor": {name: math.exp(float(np.median(np.concatenate(each)))) for name, each in off.items()},
            "width": math.exp(float(np.median(np.concatenate(width)))),
            "flagged_novel": float(np.concatenate(novel).mean()),
        }
    return result


def data_sets(data: Path | None, traces: Sequence[Path], seed: int) -> Iterator[DataSet]:
    """Those that there are: drawn ones always, Gavel's tables and the traces where the data are given."""
    yield paper(seed, declared=False)
    yield paper(seed, declared=True)
    if data is not None:
        yield gavel(data / "gavel")
    found = [] if data is None else sorted(each for each in (data / "traces").glob("*") if each.is_file())
    for path in dict.fromkeys([*found, *traces]):
        yield trace(path, None if data is None else data / "gavel")


def table(of_seeds: Sequence[Mapping[tuple[str, str], dict[str, Any]]]) -> str:
    """Rows of a document's table: over the seeds the median, and the least and greatest coverage."""
    lines = [
        "| data | unseen | coverage of 0.8 (seeds) | folds | interval, times | median factor off | mean | declared |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for key in of_seeds[0]:
        rows = [each[key] for each in of_seeds if key in each]
        coverage = [row["coverage"] for row in rows]
        low, high = min(row["folds"][0] for row in rows), max(row["folds"][1] for row in rows)
        factors = {
            name: f"{np.median([row['factor'][name] for row in rows]):.2f}" if name in rows[0]["factor"] else ""
            for name in ("adlro", "mean", "declared")
        }
        width = np.median([row["width"] for row in rows])
        spread = f"{np.median(coverage):.2f} ({min(coverage):.2f}..{max(coverage):.2f})"
        lines.append(
            f"| {key[0]} | {key[1]} | {spread} | {low:.2f}..{high:.2f} | {width:.3g} "
            f"| {factors['adlro']} | {factors['mean']} | {factors['declared']} |"
        )
    return "\n".join(lines)
