"""How well decompose predicts the speeds that two jobs keep on one GPU: Gavel's pairs. Part of benchmarks/decompose.py.

    python -m benchmarks.decompose_pairs [--seed 1] [--json FILE]

Each ordered pair (a job, and the one beside it, on a GPU model) is predicted from others; `SPLITS` says from which. The
errors are absolute, in kept shares, beside those of three baselines. `beneficial` is the share of pairs on V100 of
which it is told correctly whether the two kept shares add up to 1.4 or more, the sharing rule's threshold. Needs no
data beside the shipped ones (`adlro/hardware/data/interference_pairs.csv`).
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np  # noqa: E402
from numpy.typing import NDArray  # noqa: E402

from adlro.hardware.shared_speeds import KEPT_SHARES  # noqa: E402
from adlro.services.decompose.pairs.pair_memory import PairFit, PairKey  # noqa: E402
from adlro.services.decompose.pairs.shared_runs import LEAST_STD, SharingKind  # noqa: E402

Floats = NDArray[np.float64]
Ids = NDArray[np.intp]

SPLITS = {
    "pair": "all other pairs, and this pair on other models",
    "pair everywhere": "all other pairs",
    "application": "all pairs without the one application; those with it",
    "family": "all pairs without the one family; those with it",
}
SEEN_SHARES = (0.05, 0.1, 0.25, 0.5)
SEEDS = 3
BENEFICIAL = 1.4
FIRST_MODEL = "v100"


class Pairs:
    """The shipped pairs, both orders: N of them."""

    def __init__(self) -> None:
        self.keys = [
            PairKey(model, SharingKind.named(one), SharingKind.named(other)) for model, one, other in KEPT_SHARES
        ]
        self.kept = np.array([kept for kept, _ in KEPT_SHARES.values()])
        self.model = numbered([key.gpu_model for key in self.keys])
        self.on_first_model = np.array([key.gpu_model == FIRST_MODEL for key in self.keys])
        places = {key: number for number, key in enumerate(self.keys)}
        self.mirror = np.array([places[PairKey(key.gpu_model, key.beside, key.kind)] for key in self.keys])
        self.one = numbered([key.kind.name for key in self.keys])
        self.other = self.one[self.mirror]
        self.family = numbered([key.kind.family for key in self.keys])
        self.other_family = self.family[self.mirror]

    def fit(self, rows: Sequence[int] | Ids) -> PairFit:
        """Decompose's fit to some of them."""
        return PairFit.of([self.keys[row] for row in rows], [(self.kept[row], LEAST_STD**-2) for row in rows])

    def left_out(self, split: str) -> list[tuple[Ids, Ids]]:
        """What is predicted, and what is left out for it: rows of each part of a split."""
        if split in ("application", "family"):
            one, other = (self.one, self.other) if split == "application" else (self.family, self.other_family)
            parts = [np.flatnonzero((one == each) | (other == each)) for each in range(one.max() + 1)]
        else:
            least, greatest = np.minimum(self.one, self.other), np.maximum(self.one, self.other)
            label = least * len(self.keys) + greatest + (self.model * len(self.keys) ** 2 if split == "pair" else 0)
            order = np.argsort(label, kind="stable")
            parts = np.split(order, np.flatnonzero(np.diff(label[order])) + 1)
        return [(part, part) for part in parts]


def numbered(values: Sequence[str]) -> Ids:
    """The number of each value among the distinct ones."""
    return np.unique(np.array(values), return_inverse=True)[1]


def mean_of_model(pairs: Pairs, train: Ids, test: Ids) -> Floats:
    """One mean a GPU model."""
    return _means(pairs.model, pairs.kept, train, test, np.full(len(test), pairs.kept[train].mean()))


def row_and_column(pairs: Pairs, train: Ids, test: Ids) -> Floats:
    """The model's mean, and what the job's other pairs, and the neighbour's, differ from it."""
    mean = mean_of_model(pairs, train, test)
    rest = pairs.kept[train] - mean_of_model(pairs, train, train)
    values = np.zeros(len(pairs.kept))
    values[train] = rest
    number = len(pairs.keys)
    return mean + sum(
        _means(pairs.model * number + each, values, train, test, np.zeros(len(test)))
        for each in (pairs.one, pairs.other)
    )


def mean_of_families(pairs: Pairs, train: Ids, test: Ids) -> Floats:
    """The mean of the pairs of the two families on the model; without any, the model's."""
    number = len(pairs.keys)
    label = (pairs.model * number + pairs.family) * number + pairs.other_family
    return _means(label, pairs.kept, train, test, mean_of_model(pairs, train, test))


BASELINES: dict[str, Callable[[Pairs, Ids, Ids], Floats]] = {
    "one mean a model": mean_of_model,
    "row + column": row_and_column,
    "family means": mean_of_families,
}


def _means(label: Ids, values: Floats, train: Ids, test: Ids, fallback: Floats) -> Floats:
    """The mean of the training rows of each test row's label."""
    distinct, at = np.unique(label[train], return_inverse=True)
    mean = np.bincount(at, values[train]) / np.bincount(at)
    place = np.minimum(np.searchsorted(distinct, label[test]), len(distinct) - 1)
    return np.where(distinct[place] == label[test], mean[place], fallback)


def figures(pairs: Pairs, rows: Ids, predicted: Floats) -> dict[str, float]:
    """Errors of some rows, and how often a beneficial pair is told from another one.

    Args:
        pairs: the pairs.
        rows: n of them, perhaps repeated.
        predicted: n kept shares.
    """
    predicted = np.clip(predicted, 0.0, 1.0)
    off = np.abs(predicted - pairs.kept[rows])
    first = pairs.on_first_model[rows]
    found = {
        "median": float(np.median(off)),
        "p90": float(np.quantile(off, 0.9)),
        f"median, {FIRST_MODEL}": float(np.median(off[first])),
        f"p90, {FIRST_MODEL}": float(np.quantile(off[first], 0.9)),
    }
    # Of each part both orders are predicted, so that a row's mirror is among them.
    by_row = np.full(len(pairs.keys), np.nan)
    by_row[rows] = predicted
    both = rows[first & ~np.isnan(by_row[pairs.mirror[rows]])]
    told = by_row[both] + by_row[pairs.mirror[both]] >= BENEFICIAL
    found["beneficial"] = float((told == (pairs.kept[both] + pairs.kept[pairs.mirror[both]] >= BENEFICIAL)).mean())
    return found


def measure_split(pairs: Pairs, fit: PairFit, split: str) -> dict[str, dict[str, float]]:
    """The figures of one split, by predictor."""
    everything = np.arange(len(pairs.keys))
    parts = pairs.left_out(split)
    rows = np.concatenate([test for test, _ in parts])
    result = {}
    if split in ("pair", "pair everywhere"):
        groups = np.empty(len(everything), dtype=np.intp)
        for number, (test, _) in enumerate(parts):
            groups[test] = number
        result["decompose"] = figures(pairs, rows, fit.left_out(groups)[rows])
    else:
        found = [fit.left_out(np.where(np.isin(everything, out), -1, everything))[test] for test, out in parts]
        result["decompose"] = figures(pairs, rows, np.concatenate(found))
    for name, baseline in BASELINES.items():
        predicted = [baseline(pairs, np.setdiff1d(everything, out), test) for test, out in parts]
        result[name] = figures(pairs, rows, np.concatenate(predicted))
    return result


def measure_few(pairs: Pairs, seed: int) -> dict[str, dict[str, float]]:
    """Median and p90 of the errors on the rest, after a share of the (unordered) pairs; mean of the seeds."""
    parts = pairs.left_out("pair")
    result = {}
    for share in SEEN_SHARES:
        found: dict[str, list[dict[str, float]]] = {}
        for number in range(SEEDS):
            order = np.random.default_rng([seed, number]).permutation(len(parts))
            count = round(share * len(parts))
            train, test = (np.concatenate([parts[each][0] for each in some]) for some in (order[:count], order[count:]))
            kept = pairs.fit(train).predict([pairs.keys[row] for row in test])
            found.setdefault("decompose", []).append(figures(pairs, test, kept.mean))
            for name, baseline in BASELINES.items():
                found.setdefault(name, []).append(figures(pairs, test, baseline(pairs, train, test)))
        for name, each in found.items():
            result[f"{share:.0%} of the pairs seen: {name}"] = {
                key: float(np.mean([one[key] for one in each])) for key in each[0]
            }
    return result


def measure(seed: int) -> dict[str, Any]:
    """All figures."""
    pairs = Pairs()
    # Leaving out is exact, in closed form: nothing but the centre, a mean of 1,900 values, knows what is left out.
    fit = pairs.fit(np.arange(len(pairs.keys)))
    result: dict[str, Any] = {split: measure_split(pairs, fit, split) for split in SPLITS}
    result["few"] = measure_few(pairs, seed)
    return result


def table(rows: dict[str, dict[str, float]]) -> str:
    """Rows of figures, as Markdown."""
    columns = list(next(iter(rows.values())))
    lines = [f"| | {' | '.join(columns)} |", f"| --- |{' --- |' * len(columns)}"]
    lines += [f"| {name} | {' | '.join(f'{each[key]:.3f}' for key in columns)} |" for name, each in rows.items()]
    return "\n".join(lines)


def show(result: dict[str, Any]) -> None:
    """Prints the figures."""
    for split, told in SPLITS.items():
        print(f"\nKept shares, left out: {split} (learned: {told})")
        print(table(result[split]))
    print("\nKept shares of the other pairs, mean of the seeds")
    print(table(result["few"]))


def main() -> None:
    """The command."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1, help="of the pairs that are seen first")
    parser.add_argument("--json", type=Path, help="writes the figures there")
    arguments = parser.parse_args()
    result = measure(arguments.seed)
    show(result)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
