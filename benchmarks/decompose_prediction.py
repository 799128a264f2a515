"""Runtime prediction against its references on Gavel's tables, `paper` and Philly; part of benchmarks/decompose.py.

References: the mean of the GPU model, k nearest neighbours, gradient boosting (scikit-learn, extra `bench`), the
hypervector ridge with retrieval of the residual, and for `paper` the oracle that knows the mean of each user and
application.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from adlro.records.jobs import JobSpec, JobType
from adlro.services.decompose.hypervectors.similarity_kernel import Features, KernelTerm
from adlro.services.decompose.outcomes.model_speeds import ModelSpeeds
from adlro.services.decompose.outcomes.outcome_memory import FinishedJob, OutcomeMemory
from adlro.services.decompose.regression.kernel_regression import NOISES, KernelRegression, log_evidence, make_cells
from adlro.services.decompose.regression.tuned_regression import Hyperparameters, TunedRegression
from adlro.services.decompose.runtimes.learned_predictor import NOVEL, LearnedPredictor
from adlro.services.decompose.variables.job_features import REAL_COUNT, Category
from adlro.services.decompose.variables.variables import Variables
from adlro.workload.job_lists import draw_groups, draw_jobs
from adlro.workload.scenario import load_scenario
from benchmarks.decompose_baselines import Floats, boosting, hypervector_ridge, nearest_neighbours

SPLITS = 10
TEST_SHARE = 0.2
GAVEL_MODELS = ("v100", "p100", "k80")


class Row(NamedTuple):
    """One measured entry: a step's seconds of a configuration on a GPU model."""

    spec: JobSpec
    gpu_model: str
    step_s: float
    configuration: str


def gavel_rows(folder: Path) -> list[Row]:
    """The alone entries above 0."""
    rows = []
    with (folder / "isolated_throughputs_flat.csv").open(newline="") as file:
        for line in csv.DictReader(file):
            spec = gavel_spec(line["job_type"], int(line["scale_factor"]))
            for model in GAVEL_MODELS:
                steps_per_s = float(line[f"{model}_steps_per_s"])
                if steps_per_s > 0:
                    rows.append(Row(spec, model, 1 / steps_per_s, f"{line['job_type']}/{line['scale_factor']}"))
    return rows


def gavel_spec(job_type: str, scale_factor: int) -> JobSpec:
    """A job configuration as a user would submit it: the family is the application, the batch size a label."""
    match = re.fullmatch(r"(.+?)(?: \(batch size (\d+)\))?", job_type)
    assert match is not None
    labels = {} if match[2] is None else {"batch_size": match[2]}
    return JobSpec(
        name="gavel",
        user="gavel",
        job_type=JobType.MACHINE_LEARNING,
        application=match[1],
        gpu_count=scale_factor,
        labels=labels,
    )


def learned_predictor(rows: Sequence[Row], gpu_count: int = 0) -> LearnedPredictor:
    """The default predictor after these outcomes.

    Args:
        rows: what ran.
        gpu_count: GPUs on which they ran in turn, as in a service, where each is compared with its prediction; 0: it is
            not known where they ran.
    """
    variables, speeds = Variables(), ModelSpeeds()
    predictor = LearnedPredictor(OutcomeMemory(variables, speeds), variables, speeds, lambda: GAVEL_MODELS)
    for number, row in enumerate(rows):
        gpu_id = f"{row.gpu_model}/{number % gpu_count}" if gpu_count else ""
        predictor.learn(FinishedJob(str(number), row.spec, row.gpu_model, row.step_s, float(number), gpu_id))
    return predictor


def gavel_splits(rows: Sequence[Row], kind: str, seed: int) -> Iterator[tuple[list[Row], list[Row]]]:
    """Training and test rows.

    `entry` leaves out entries, `configuration` all entries of configurations, `application` all of each in turn.
    """
    groups = {
        "entry": [str(number) for number in range(len(rows))],
        "configuration": [row.configuration for row in rows],
        "application": [row.spec.application for row in rows],
    }[kind]
    distinct = sorted(set(groups))
    for split in range(len(distinct) if kind == "application" else SPLITS):
        rng = np.random.default_rng([seed, split])
        if kind == "application":
            left_out = {distinct[split]}
        else:
            left_out = set(rng.permutation(distinct)[: round(TEST_SHARE * len(distinct))].tolist())
        train = [row for row, group in zip(rows, groups, strict=True) if group not in left_out]
        test = [row for row, group in zip(rows, groups, strict=True) if group in left_out]
        rng.shuffle(train)
        yield train, test


def features(rows: Sequence[Row], train: Sequence[Row]) -> tuple[Floats, Floats]:
    """Explicit features for boosting and neighbours, scaled by eye to like spreads; and log seconds."""
    applications = sorted({row.spec.application for row in train})
    table = [
        [float(row.spec.application == name) * 4 for name in applications]
        + [float(row.gpu_model == model) * 2 for model in GAVEL_MODELS]
        + [math.log2(float(row.spec.labels.get("batch_size", 1))), math.log2(row.spec.gpu_count)]
        for row in rows
    ]
    return np.array(table), np.log([row.step_s for row in rows])


def gavel(folder: Path, seed: int) -> dict[str, Any]:
    """Errors, coverage and flags over the splits."""
    rows = gavel_rows(folder)
    result: dict[str, Any] = {}
    for kind in ("entry", "configuration", "application"):
        errors: dict[str, list[float]] = {}
        covered: list[bool] = []
        flagged: list[bool] = []
        for train, test in gavel_splits(rows, kind, seed):
            predictor = learned_predictor(train)
            answers = [predictor.predict([row.spec], [row.gpu_model]) for row in test]
            true_s = np.array([row.step_s for row in test])
            predicted = {"adlro": np.array([float(each.median_s[0, 0]) for each in answers])}
            covered += [
                bool(each.low_s[0, 0] <= row.step_s <= each.high_s[0, 0])
                for row, each in zip(test, answers, strict=True)
            ]
            flagged += [bool(each.novelty[0] >= NOVEL) for each in answers]
            x, y = features(train, train)
            x_test, _ = features(test, train)
            for name, method in baselines().items():
                found = method(x, y, x_test)
                if found is not None:
                    predicted[name] = np.exp(found)
            predicted["hypervector ridge + residual retrieval"] = np.exp(hypervector_ridge(train, test))
            for name, values in predicted.items():
                errors.setdefault(name, []).append(float(np.median(np.abs(values / true_s - 1))))
        result[kind] = {
            "median_relative_error": {name: float(np.mean(values)) for name, values in errors.items()},
            "coverage": float(np.mean(covered)),
            "flagged_novel": float(np.mean(flagged)),
        }
    return result


def baselines() -> dict[str, Callable[[Floats, Floats, Floats], Floats | None]]:
    """Predictors of log seconds from explicit features; None where a package is not installed."""
    return {
        "mean": lambda x, y, x_test: np.full(len(x_test), y.mean()),
        "k-NN": lambda x, y, x_test: nearest_neighbours(x, y, x_test, 3),
        "boosting": boosting,
    }


def unseen_applications(seed: int, lists: int = 40) -> dict[str, float]:
    """Coverage of 0.8 for an application that was not seen, by how many were and how they differ.

    Drawn: 6 jobs of each, that differ by 10 %; the logarithm of an application's runtime has the standard deviation
    0.3, 1 or 2, or (`leaps`) 30 % of applications run 55 times as long as the others.
    """
    rng = np.random.default_rng(seed)
    result: dict[str, float] = {}
    for count in (5, 12, 30):
        for kind in ("0.3", "1", "2", "leaps"):
            covered = []
            for _ in range(lists):
                if kind == "leaps":
                    log_s = np.where(rng.random(count + 1) < 0.3, 4.0, 0.0) + 0.3 * rng.standard_normal(count + 1)
                else:
                    log_s = float(kind) * rng.standard_normal(count + 1)
                categories = np.zeros((6 * count + 1, len(Category)), dtype=np.int32)
                categories[:, Category.APPLICATION] = np.append(np.repeat(np.arange(1, count + 1), 6), 0)
                categories[:-1, Category.USER] = np.tile(np.arange(1, 4), 2 * count)
                rows = Features(categories, np.zeros((len(categories), REAL_COUNT)))
                learner = TunedRegression(Hyperparameters())
                learner.fit(rows.rows(slice(-1)), np.repeat(log_s[1:], 6) + 0.1 * rng.standard_normal(6 * count))
                mean, variance, _ = learner.estimate(rows.rows(slice(-1, None)))
                low, high = learner.novel.ends(0.1, 0.9, -1.2816, 1.2816)
                z = (log_s[0] + 0.1 * rng.standard_normal(50) - mean) / np.sqrt(variance)
                covered.append(float(((low <= z) & (z <= high)).mean()))
            result[f"{count} applications, {kind}"] = float(np.mean(covered))
    return result


def gavel_pairs(folder: Path, seed: int) -> dict[str, float]:
    """The slowdown of a job that shares a GPU: absolute errors on unseen pairs, in shares of its speed alone.

    Jobs of one GPU; a pair is left out on one GPU model, in both orders.
    """
    table = json.loads((folder / "simulation_throughputs.json").read_text())
    names: dict[str, int] = {}
    categories, reals, slowdown, pair_of = [], [], [], []
    for number, model in enumerate(GAVEL_MODELS):
        for one, entries in table[model].items():
            for other, rates in entries.items():
                alone = float(entries["null"])
                if other != "null" and min(map(float, rates)) <= 0:
                    continue  # the pair does not fit on the GPU
                if other == "null" or alone <= 0 or not all(each.endswith(", 1)") for each in (one, other)):
                    continue
                pair = [gavel_spec(*_configuration(each)) for each in (one, other)]
                families = [names.setdefault(spec.application, len(names)) for spec in pair]
                exact = [names.setdefault(each, len(names)) for each in (one, other)]
                categories.append([number, *families, *exact])
                reals.append([math.log2(float(spec.labels.get("batch_size", 1))) for spec in pair])
                slowdown.append(float(rates[0]) / alone)
                pair_of.append((number, *sorted((one, other))))
    features = Features(np.array(categories, dtype=np.int32), np.array(reals))
    y = np.array(slowdown)
    pairs = sorted(set(pair_of))
    errors: dict[str, list[float]] = {}
    for split in range(3):
        chosen = np.random.default_rng([seed, split]).permutation(len(pairs))[: len(pairs) // 5].tolist()
        left_out = {pairs[each] for each in chosen}
        test = np.array([each in left_out for each in pair_of])
        train = np.flatnonzero(~test)
        test_rows = np.flatnonzero(test)
        mean = y[train].mean()
        cells, _ = make_cells(features.rows(train), y[train] - mean, range(5), (0, 1))
        some = cells.rows(np.random.default_rng(split).permutation(len(cells))[:400])
        scale, noise = max(
            ((s, n) for s in (0.003, 0.01, 0.03) for n in (NOISES[0], NOISES[2], NOISES[4])),
            key=lambda each: log_evidence(some, pair_terms(each[0]), 4.0, each[1]),
        )
        fitted = KernelRegression(cells, pair_terms(scale), 4.0, noise)
        predicted = {
            "adlro": fitted.estimate(features.rows(test_rows)).mean + mean,
            "mean": np.full(len(test_rows), mean),
        }
        x = np.concatenate(
            [np.eye(3)[features.categories[:, 0]], features.categories[:, 1:].astype(float), features.reals], axis=1
        )
        boosted = boosting(x[train], y[train], x[test_rows])
        if boosted is not None:
            predicted["boosting"] = boosted
        for name, values in predicted.items():
            off = np.abs(np.clip(values, 0, None) - y[test_rows])
            errors.setdefault(f"{name}, median", []).append(float(np.median(off)))
            errors.setdefault(f"{name}, mean", []).append(float(off.mean()))
    return {name: float(np.mean(values)) for name, values in errors.items()}


def pair_terms(scale: float) -> list[KernelTerm]:
    """Similarity of ordered pairs: GPU model x (family, configuration, batch size) of the one and of the other."""
    gpu, family, other_family, exact, other_exact = range(5)
    terms = []
    for shared in ((), (gpu,)):
        terms += [
            KernelTerm(scale, shared),
            KernelTerm(scale, (*shared, family)),
            KernelTerm(scale, (*shared, other_family)),
            KernelTerm(scale, (*shared, family, other_family)),
            KernelTerm(scale, (*shared, exact)),
            KernelTerm(scale, (*shared, other_exact)),
            KernelTerm(scale, (*shared, family), (0,)),
            KernelTerm(scale, (*shared, other_family), (1,)),
            KernelTerm(scale, (*shared, family, other_family), (0,)),
            KernelTerm(scale, (*shared, family, other_family), (1,)),
            KernelTerm(scale, (*shared, family, other_family), (0, 1)),
        ]
    return terms


def _configuration(key: str) -> tuple[str, int]:
    match = re.fullmatch(r"\('(.+)', (\d+)\)", key)
    assert match is not None
    return match[1], int(match[2])


def paper(seed: int, count: int = 3) -> dict[str, float]:
    """Median relative error over the last 300 of 1,000 jobs of `paper`, learned from the first 700."""
    scenario = load_scenario("paper")
    errors: dict[str, list[float]] = {}
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        groups = draw_groups(scenario, rng)
        jobs = draw_jobs(scenario, load=0.9, rng=rng, count=1000, groups=groups)
        rows = [Row(job.spec("paper"), "v100_sxm2", job.work_s, "") for job in jobs]
        # The median of a log-normal about the mean that the scenario states.
        known = {(group.user, group.application): group.mean_work_s for group in groups}
        oracle = np.array([known[row.spec.user, row.spec.application] for row in rows[700:]])
        _compare(errors, rows[:700], rows[700:], {"oracle: the group's own work": oracle})
    return {name: float(np.mean(values)) for name, values in errors.items()}


def philly_rows(path: Path) -> list[Row]:
    """The jobs of the Philly trace, by time: runtime, GPU count, and the virtual cluster as the user."""
    rows = []
    with path.open(newline="") as file:
        for line in csv.DictReader(file):
            runtime_s = float(line["duration"])
            if runtime_s <= 0:
                continue
            spec = JobSpec(
                name="philly",
                user=line["cluster"],
                job_type=JobType.MACHINE_LEARNING,
                application="",
                gpu_count=max(1, int(float(line["num_gpus"]))),
            )
            rows.append(Row(spec, "v100_sxm2", runtime_s, ""))
    return rows


def philly(path: Path, train: int = 4000, test: int = 500, places: int = 6) -> dict[str, float]:
    """Median factor by which predictions are off on the Philly trace, at several places, after the jobs before.

    Only GPU count and virtual cluster are known of a job.
    """
    rows = philly_rows(path)
    errors: dict[str, list[float]] = {}
    for place in np.linspace(train, len(rows) - test, places).astype(int).tolist():
        _compare(errors, rows[place - train : place], rows[place : place + test], {}, factor=True)
    return {name: float(np.mean(values)) for name, values in errors.items()}


def _compare(
    errors: dict[str, list[float]],
    train: Sequence[Row],
    test: Sequence[Row],
    more: dict[str, Floats],
    *,
    factor: bool = False,
) -> None:
    predictor = learned_predictor(train)
    true_s = np.array([row.step_s for row in test])
    answer = predictor.predict([row.spec for row in test], ["v100_sxm2"])
    predicted = {"adlro": answer.median_s[:, 0], **more}
    kinds: dict[str, dict[str, int]] = {"user": {}, "application": {}, "pair": {}}

    def table(rows: Sequence[Row]) -> Floats:
        made = []
        for row in rows:
            spec = row.spec
            names = {"user": spec.user, "application": spec.application, "pair": f"{spec.user}/{spec.application}"}
            numbers = [float(kinds[kind].setdefault(name, len(kinds[kind]))) for kind, name in names.items()]
            made.append([*numbers, float(spec.job_type), math.log2(spec.gpu_count), math.log2(spec.gpu_memory_mib + 1)])
        return np.array(made)

    x, x_test, y = table(train), table(test), np.log([row.step_s for row in train])
    for name, method in baselines().items():
        # Numbers of users and applications are no distances: neighbours are compared by these alone, far apart.
        scale = np.array([1e3, 1e3, 1e3, 1e3, 1.0, 1.0]) if name == "k-NN" else np.ones(6)
        found = method(x * scale, y, x_test * scale)
        if found is not None:
            predicted[name] = np.exp(found)
    for name, values in predicted.items():
        off = np.exp(np.abs(np.log(values / true_s))) if factor else np.abs(values / true_s - 1)
        errors.setdefault(name, []).append(float(np.median(off)))
    covered = (answer.low_s[:, 0] <= true_s) & (true_s <= answer.high_s[:, 0])
    errors.setdefault("coverage of 0.8", []).append(float(covered.mean()))
