"""What predicted speeds of pairs are worth in mean JCT, against knowing each pair, on jobs that may share GPUs.

    python -m benchmarks.decompose_pairs_jct [--seed 1] [--lists 100] [--tuning-lists 100]

Lists, rule and simulator are those of benchmarks/sharing.py; the settings of sharing are tuned for each row, on lists
of other seeds, one setting for all loads. Which pairs do not run together at all is known. A row "without" predicts
every pair from others: without that pair, without it on any model, without all pairs of one of its applications or
families (mean of both). A row "seen" knows a share of the pairs, drawn once, and predicts the others.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np

from adlro.state.observation import Floats
from adlro.workload.pairs import LEAST_SHARE, pair_table
from adlro.workload.scenario import load_scenario
from benchmarks.decompose_pairs import SEEN_SHARES, Pairs
from benchmarks.sharing import LOADS, NAMES, SCENARIO, change, table_of, told, tuned


def beliefs(seed: int) -> dict[str, Floats]:
    """Tables of kept shares as each predictor expects them."""
    pairs = Pairs()
    everything = np.arange(len(pairs.keys))
    fit = pairs.fit(everything)
    models = load_scenario(SCENARIO).cluster.gpu_models
    true = pair_table(models)

    def table(values: Floats) -> Floats:
        kept = np.zeros_like(true.kept)
        for key, value in zip(pairs.keys, values, strict=True):
            one, other = true.families([key.kind.name, key.beside.name])
            kept[one, other, models.index(key.gpu_model)] = np.clip(value, LEAST_SHARE, 1.0)
        return kept

    found = {NAMES["true"]: true.kept}
    for split in ("pair", "pair everywhere", "application", "family"):
        predicted = np.full(len(everything), np.nan)
        for test, out in pairs.left_out(split):
            # Of a pair of two applications, each of which is left out in turn: the mean of both predictions.
            value = fit.left_out(np.where(np.isin(everything, out), -1, everything))[test]
            predicted[test] = np.where(np.isnan(predicted[test]), value, (predicted[test] + value) / 2)
        found[f"decompose, without the {split}"] = table(predicted)
    parts = pairs.left_out("pair")
    order = np.random.default_rng(seed).permutation(len(parts))
    for share in SEEN_SHARES:
        seen = np.concatenate([parts[each][0] for each in order[: round(share * len(parts))]])
        predicted = pairs.fit(seen).predict(pairs.keys).mean
        predicted[seen] = pairs.kept[seen]
        found[f"decompose, {share:.0%} seen"] = table(predicted)
    for known, name in NAMES.items():
        if known != "true":
            found[name] = table_of(known)
    return found


def main() -> None:
    """The command."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1, help="of the pairs that are seen")
    parser.add_argument("--lists", type=int, default=100)
    parser.add_argument("--tuning-lists", type=int, default=100)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    print(f"| knows | s_min, pen | {' | '.join(f'{load}: change %, share of the gain' for load in LOADS)} |")
    print(f"| --- | --- |{' --- |' * len(LOADS)}")
    gain: dict[float, float] = {}
    rows: list[dict[str, Any]] = []
    for name, expected in beliefs(arguments.seed).items():
        best, pays = tuned(expected, arguments.tuning_lists, LOADS)
        settings = best if pays else None
        cells = []
        for load in LOADS:
            found = change(load, arguments.lists, "true", expected, settings)["change_ci95_percent"]
            gain.setdefault(load, found[0])
            cells.append(f"{told(found)}, {found[0] / gain[load]:.2f}")
            setting = None if settings is None else dataclasses.asdict(settings)
            rows.append({"knows": name, "load": load, "settings": setting, "change_ci95_percent": found})
        told_settings = "none" if settings is None else f"{settings.s_min:g}, {settings.pen:g}"
        print(f"| {name} | {told_settings} | {' | '.join(cells)} |", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
