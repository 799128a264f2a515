"""The JSON document of an evaluation: rows, paired comparisons, statistics, and how they were computed."""

from __future__ import annotations

import datetime
import math
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

import numpy as np

from adlro.lab.evaluate import hyperscore, measure, resampling
from adlro.lab.evaluate.evaluation import Evaluation
from adlro.lab.evaluate.measure import METRICS
from adlro.lab.evaluate.request import LEARNED, REFERENCE
from adlro.lab.evaluate.tally import BASES, FALLBACKS, OVERDUE
from adlro.lab.evaluate.tasks import RESULTS_FORMAT
from adlro.state.observation import Floats, Ints

BASELINES = (REFERENCE, "static", "hold_greedy_fixed")
"""Every policy is compared with those of these that were simulated."""

ALL_POLICIES = "all policies"
"""The policy's name in a regression over the lists of all policies."""

JCT, P95, MAX_WAIT, THROUGHPUT, BUSY, USEFUL = map(
    METRICS.index,
    ("mean_jct_s", "p95_jct_s", "max_wait_s", "throughput_jobs_per_h", "utilization_busy", "utilization_useful"),
)

RATIOS = (
    ("jct", JCT),
    ("p95_jct", P95),
    ("max_wait", MAX_WAIT),
    ("throughput", THROUGHPUT),
    ("useful_utilization", USEFUL),
)
"""Columns of a comparison: name and column."""


def build_document(evaluation: Evaluation) -> dict[str, Any]:
    """The document. Undefined numbers (an interval over one list) are null.

    Row metrics are means over lists of each list's figures (`measure`); hyperscore is computed from these means,
    intervals from resampled lists.
    """
    resampled = _Resampled(evaluation)
    rows = [
        _row(evaluation, resampled, name, number)
        for number in range(len(evaluation.cases))
        for name in evaluation.request.names
        if resampled.there(name, number)
    ]
    paired = [entry for number in range(len(evaluation.cases)) for entry in _paired(evaluation, resampled, number)]
    document = {
        "rows": rows,
        "paired": paired,
        "statistics": {"jct_on_utilization": _regressions(evaluation, resampled)},
        "stuck": [
            {
                "policy": each.policy,
                "scenario": each.case.name,
                "load": each.case.load,
                "list": each.number,
                "seed": each.case.seed,
                "jobs_left": each.jobs_left,
            }
            for each in evaluation.stuck
        ],
        "meta": _meta(evaluation),
    }
    finite: dict[str, Any] = _finite(document)
    return finite


class _Resampled:
    """Means and resampled means of a policy's lists, computed once each."""

    def __init__(self, evaluation: Evaluation) -> None:
        self._evaluation = evaluation
        self._means: dict[tuple[str, int], Floats] = {}

    def counts(self, name: str, number: int) -> Ints:
        """(n, BASES) decisions of each list."""
        return self._evaluation.figures[name, number].basis_counts

    def there(self, name: str, number: int) -> bool:
        """Whether a policy was simulated in a case, and finished every list."""
        found = self._evaluation.figures.get((name, number))
        return found is not None and not found.stuck.any()

    def lists(self, name: str, number: int) -> Floats:
        """(n, METRICS)."""
        return self._evaluation.figures[name, number].metrics

    def means(self, name: str, number: int) -> Floats:
        """(1 + RESAMPLES, METRICS): the mean over lists first, then those of the resamples."""
        if (name, number) not in self._means:
            self._means[name, number] = self._resampled(self.lists(name, number))
        return self._means[name, number]

    def share(self, name: str, number: int, columns: Sequence[int]) -> Floats:
        """(1 + RESAMPLES,): share of the decisions with one of these bases; nan: no decision was counted."""
        counts = self.counts(name, number)
        of_these, of_all = counts[:, columns].sum(axis=1), counts.sum(axis=1)
        means = self._resampled(np.stack([of_these, of_all], axis=1).astype(np.float64))
        return _ratios(means[:, 0], means[:, 1])

    def _resampled(self, values: Floats) -> Floats:
        resamples = resampling.resampled_means(values, self._evaluation.request.seed)
        return np.concatenate([values.mean(axis=0, keepdims=True), resamples])


def _ratios(ours: Floats, theirs: Floats) -> Floats:
    """By element; nan for an undefined ratio, as when no job waited."""
    there = theirs > 0
    return np.where(there, ours / np.where(there, theirs, 1.0), np.nan)


def _with_interval(name: str, values: Floats, lists: int) -> dict[str, Any]:
    """A figure and its interval, from its value and its resampled values; one list allows no interval."""
    interval = list(resampling.interval(values[1:])) if lists > 1 else [None, None]
    return {name: float(values[0]), f"{name}_ci95": interval}


def _row(evaluation: Evaluation, resampled: _Resampled, name: str, number: int) -> dict[str, Any]:
    case = evaluation.cases[number]
    lists, means = resampled.lists(name, number), resampled.means(name, number)
    row: dict[str, Any] = {
        "policy": name,
        "scenario": case.name,
        "load": case.load,
        "jobs": case.jobs,
        "seeds": case.lists,
    }
    for column, metric in enumerate(METRICS):
        row |= _with_interval(metric, means[:, column], case.lists)
        row[f"{metric}_sd"] = float(lists[:, column].std(ddof=1)) if len(lists) > 1 else None
    row |= _who_decided(resampled, name, number, case.lists)
    times_us = evaluation.decision_us.get((name, number))
    for percent in (50, 99):
        row[f"decision_us_p{percent}"] = None if times_us is None else float(np.percentile(times_us, percent))
    if resampled.there(REFERENCE, number):
        reference = resampled.means(REFERENCE, number)
        v = hyperscore.value(
            reference[:, JCT] / means[:, JCT],
            means[:, THROUGHPUT] / reference[:, THROUGHPUT],
            means[:, USEFUL] / reference[:, USEFUL],
            evaluation.request.weights,
        )
        row |= _with_interval("hyperscore", hyperscore.hyperscore(v), case.lists)
    else:
        row |= {"hyperscore": None, "hyperscore_ci95": [None, None]}
    return row


def _who_decided(resampled: _Resampled, name: str, number: int, lists: int) -> dict[str, Any]:
    """The number of decisions, and their bases; null: the policy does not report them."""
    counts = resampled.counts(name, number).sum(axis=0)
    counted = counts.any()
    who: dict[str, Any] = {
        "decisions": int(counts.sum()) if counted else None,
        "decisions_by_basis": {str(basis): int(count) for basis, count in zip(BASES, counts, strict=True) if count}
        if counted
        else None,
    }
    for label, columns in (("overdue", [OVERDUE]), ("fallback", FALLBACKS)):
        who |= _with_interval(f"{label}_share", resampled.share(name, number, columns), lists)
    return who


def _paired(evaluation: Evaluation, resampled: _Resampled, number: int) -> list[dict[str, Any]]:
    case = evaluation.cases[number]
    entries: list[dict[str, Any]] = []
    for baseline in BASELINES:
        if not resampled.there(baseline, number):
            continue
        of_baseline = []
        theirs, their_lists = resampled.means(baseline, number), resampled.lists(baseline, number)
        for name in evaluation.request.names:
            if name == baseline or not resampled.there(name, number):
                continue
            ours, our_lists = resampled.means(name, number), resampled.lists(name, number)
            entry: dict[str, Any] = {
                "policy": name,
                "baseline": baseline,
                "scenario": case.name,
                "load": case.load,
                "jobs": case.jobs,
                "seeds": case.lists,
            }
            for label, column in RATIOS:
                entry |= _with_interval(f"{label}_ratio", _ratios(ours[:, column], theirs[:, column]), case.lists)
            entry |= _with_interval("jct_difference_s", ours[:, JCT] - theirs[:, JCT], case.lists)
            busy = ours[:, BUSY] - theirs[:, BUSY]
            entry |= _with_interval("busy_utilization_difference", busy, case.lists)
            entry["jct_lower_lists"] = int((our_lists[:, JCT] < their_lists[:, JCT]).sum())
            entry["jct_p_value"] = resampling.paired_p_value(our_lists[:, JCT], their_lists[:, JCT])
            of_baseline.append(entry)
        adjusted = resampling.holm([entry["jct_p_value"] for entry in of_baseline])
        for entry, p_value in zip(of_baseline, adjusted, strict=True):
            entry["jct_p_value_holm"] = p_value
        entries += of_baseline
    return entries


def _regressions(evaluation: Evaluation, resampled: _Resampled) -> list[dict[str, Any]]:
    """Regressions of mean JCT on busy utilization: over each policy's lists, and over all policies, in each case.

    The latter has no p-value: its points are repeated lists, which are not independent.
    """
    found = []
    for number, case in enumerate(evaluation.cases):
        names = [name for name in evaluation.request.names if resampled.there(name, number)]
        groups = {name: resampled.lists(name, number) for name in names}
        if len(groups) > 1:
            groups = {ALL_POLICIES: np.concatenate(list(groups.values())), **groups}
        for name, lists in groups.items():
            line = resampling.regression(lists[:, BUSY], lists[:, JCT])
            if line is not None:
                of = {"policy": name, "scenario": case.name, "load": case.load, "points": len(lists)}
                found.append(of | line._asdict() | ({"p_value": None} if name == ALL_POLICIES else {}))
    return found


def _meta(evaluation: Evaluation) -> dict[str, Any]:
    request = evaluation.request
    return {
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": sys.argv[1:],
        "version": metadata.version("adlro"),
        "results_format": RESULTS_FORMAT,
        "machine": {
            "platform": platform.platform(),
            "python": platform.python_version(),
            "numpy": metadata.version("numpy"),
            "numba": metadata.version("numba"),
            "cores": os.cpu_count(),
            "processes": evaluation.processes,
        },
        "seed": request.seed,
        "runtime": request.runtime,
        "pairs": request.pairs,
        "wait_ratio": request.wait_ratio,
        "wait_ratios": request.wait_ratios,
        "wait_limit": request.wait_limit,
        "precedence": None if request.precedence is None else request.precedence.text,
        "versions": request.versions,
        "decompose": request.decompose,
        "trace": request.trace,
        "cluster": request.cluster,
        "cases": [
            {
                "scenario": case.name,
                "load": case.load,
                "jobs": case.jobs,
                "seeds": case.lists,
                "gpus": sum(1 for _ in case.cluster.gpus()),
                "gpu_models": list(case.cluster.gpu_models),
            }
            for case in evaluation.cases
        ],
        "hyperscore": {
            "beta": hyperscore.BETA,
            "gamma": hyperscore.GAMMA,
            "kappa": hyperscore.KAPPA,
            "reference": REFERENCE,
            "weights": dict(zip(("jct", "throughput", "useful_utilization"), request.weights.all, strict=True)),
        },
        "bootstrap": {"resamples": resampling.RESAMPLES, "seed": request.seed, "confidence": resampling.CONFIDENCE},
        "bounded_slowdown_threshold_s": measure.SLOWDOWN_BOUND_S,
        "little_tolerance": measure.LITTLE_TOLERANCE,
        "decisions_measured": {
            f"{name} in {evaluation.cases[number].text}": len(times_us)
            for (name, number), times_us in evaluation.decision_us.items()
        },
        "notes": list(evaluation.notes),
        "definitions": definitions(evaluation),
    }


def definitions(evaluation: Evaluation) -> list[str]:
    """The definitions of the figures, from the docstrings of the modules that compute them."""
    items: list[str] = []
    resamples = (resampling.__doc__ or "").replace("`RESAMPLES`", str(resampling.RESAMPLES))
    for text in (measure.__doc__ or "", resamples):
        for paragraph in text.split("\n\n")[1:]:
            parts = paragraph.removeprefix("- ").split("\n- ") if paragraph.startswith("- ") else [paragraph]
            items += [" ".join(part.split()) for part in parts]
    jct, throughput, useful = evaluation.request.weights.all
    items.append(
        f"HyperScore = 100 [1 + sigmoid({hyperscore.BETA:g} ln V − ln 2)^{hyperscore.KAPPA:g}]; V = weighted geometric "
        f"mean of the improvements over {REFERENCE} in JCT, throughput and useful utilization (weights {jct:g}, "
        f"{throughput:g}, {useful:g}). As good as {REFERENCE}: 109.96."
    )
    items.append(
        f"Waits: {evaluation.request.wait_limit}. Under every policy an overdue job goes first: one that has waited "
        "longer than the ratio times the sum in policies/bounded_wait.py."
    )
    if (rule := evaluation.request.precedence) is not None:
        items.append(
            f"Precedence: {rule.text}, under every policy: it sees the jobs in the order of their levels, and chooses "
            "among the starts of the highest level of which it does not refuse all (adlro/decide/precedence.py)."
        )
    items.append(
        "Decision times: one observation at a time, in one process, after the simulations; wall time on "
        f"{platform.platform()}."
    )
    if evaluation.request.runtime == LEARNED:
        items.append(
            "Runtimes are learned: for each list under each policy a decompose begins with nothing and learns from the "
            "list's own jobs as they end; it is asked over gRPC when jobs join the queue, and about those that wait "
            f"whenever enough was learned. {REFERENCE} looks at no runtimes. Decision times are measured with the "
            "runtimes of --runtime type."
        )
    return items


def _finite(value: Any) -> Any:
    """JSON has no nan and no inf: null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return value
