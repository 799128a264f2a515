"""Tables of docs/learned_policy.md from what `benchmarks.learned_policy run` has left in a folder."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from adlro.sim.observation import Floats
from services.orchestrator.evaluate.measure import METRICS

RESAMPLES = 4000

Found = dict[tuple[str, str], dict[str, Floats]]
"""By (group, cell), then by policy: (lists, METRICS)."""

GUARDS = (
    ("throughput_jobs_per_h", "throughput", -1.0),
    ("p95_jct_s", "p95 JCT", 2.0),
    ("max_wait_s", "longest wait", 15.0),
    ("weighted_jct_s", "priority-weighted JCT", 1.0),
)
"""Figures that must not pay: name, heading, limit in %."""


def read(folder: Path) -> Found:
    """All files of a folder."""
    found: Found = {}
    for path in sorted(folder.glob("*.npz")):
        with np.load(path) as file:
            about = json.loads(str(file["about"]))
            of_cell = found.setdefault((about["group"], about["cell"]), {})
            of_cell[about["policy"]] = np.full_like(file["metrics"], np.nan) if file["stuck"].any() else file["metrics"]
    return found


def change(ours: Floats, theirs: Floats, metric: str) -> str:
    """`-2.1 % (-2.5 .. -1.7)`: of the means, with its interval."""
    column, count = METRICS.index(metric), min(len(ours), len(theirs))
    a, b = ours[:count, column], theirs[:count, column]  # lists are numbered: the first are the same
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return "stuck"
    weights = np.random.default_rng(len(a)).multinomial(len(a), np.full(len(a), 1.0 / len(a)), size=RESAMPLES)
    low, high = np.percentile(100.0 * ((weights @ a) / (weights @ b) - 1.0), (2.5, 97.5))
    return f"{100.0 * (a.mean() / b.mean() - 1.0):+.1f} % ({low:+.1f} .. {high:+.1f})"


def show(folder: Path) -> str:
    """All tables."""
    found = read(folder)
    parts = [_against(found, "main", ("hold_greedy_fixed", "fcfs", "static"), "mean_jct_s")]
    parts.append(_trainings(found))
    parts.append(_guards(found))
    parts.append(_against(found, "short", ("fcfs", "static", "hold_greedy_fixed"), "throughput_jobs_per_h"))
    parts.append(_against(found, "guess", ("hold_greedy_fixed", "hold_greedy_retuned"), "mean_jct_s"))
    parts.append(_lookahead(found))
    parts.append(_priority(found))
    parts.append(_elsewhere(found))
    return "\n\n".join(part for part in parts if part)


def _rows(found: Found, group: str) -> list[tuple[str, dict[str, Floats]]]:
    return [(cell, policies) for (of, cell), policies in found.items() if of == group and "dqn" in policies]


def _table(heads: list[str], lines: list[list[str]]) -> str:
    if not lines:
        return ""
    rule = ["---"] * len(heads)
    return "\n".join("| " + " | ".join(line) + " |" for line in (heads, rule, *lines))


def _against(found: Found, group: str, baselines: tuple[str, ...], metric: str) -> str:
    lines = []
    for cell, policies in _rows(found, group):
        ours = policies["dqn"]
        line = [cell, str(len(ours)), f"{ours[:, METRICS.index(metric)].mean():.1f}"]
        line += [change(ours, policies[each], metric) if each in policies else "" for each in baselines]
        lines.append(line)
    unit = {"mean_jct_s": "mean JCT, s", "throughput_jobs_per_h": "jobs/h"}[metric]
    return _table([group, "lists", f"dqn, {unit}", *(f"against {each}" for each in baselines)], lines)


def _trainings(found: Found) -> str:
    names: dict[str, None] = {}
    for group in ("main", "guess"):
        for _, policies in _rows(found, group):
            names |= dict.fromkeys(each for each in policies if each.startswith("seed"))
    lines = []
    for group, base in (("main", "hold_greedy_fixed"), ("guess", "hold_greedy_retuned")):
        for cell, policies in _rows(found, group):
            if base in policies:
                line = [cell, change(policies["dqn"], policies[base], "mean_jct_s")]
                line += [
                    change(policies[each], policies[base], "mean_jct_s") if each in policies else "" for each in names
                ]
                lines.append(line)
    return _table(["trainings, mean JCT", "dqn (shipped)", *names], lines) if names else ""


def _guards(found: Found) -> str:
    lines = []
    for cell, policies in _rows(found, "main"):
        ours, base = policies["dqn"], policies["hold_greedy_fixed"]
        lines.append([cell, *(change(ours, base, metric) for metric, _, _ in GUARDS)])
    heads = [f"{head} (limit {limit:+.0f} %)" for _, head, limit in GUARDS]
    return _table(["against hold_greedy_fixed", *heads], lines)


def _lookahead(found: Found) -> str:
    lines = []
    for cell, policies in _rows(found, "lookahead"):
        if "dqn_lookahead" not in policies:
            continue
        ours = policies["dqn_lookahead"]
        line = [cell, str(len(ours)), f"{ours[:, 0].mean():.1f}"]
        line += [change(ours, policies[each], "mean_jct_s") for each in ("hold_greedy_fixed", "dqn")]
        lines.append([*line, change(policies["dqn"], policies["hold_greedy_fixed"], "mean_jct_s")])
    heads = ["against hold_greedy_fixed", "against dqn", "dqn against hold_greedy_fixed"]
    return _table(["lookahead", "lists", "dqn_lookahead, mean JCT, s", *heads], lines)


def _priority(found: Found) -> str:
    lines = []
    for cell, policies in _rows(found, "priority"):
        base = policies["hold_greedy_fixed"]
        for name, ours in policies.items():
            if ours is not base:
                changes = [change(ours, base, metric) for metric in ("weighted_jct_s", "mean_jct_s")]
                lines.append([cell, str(len(ours)), name, *changes])
    heads = ["lists", "policy", "priority-weighted JCT", "mean JCT"]
    return _table(["priority, against hold_greedy_fixed", *heads], lines)


def _elsewhere(found: Found) -> str:
    names: dict[str, None] = {}
    for _, policies in _rows(found, "elsewhere"):
        names |= dict.fromkeys(each for each in policies if each != "dqn")
    lines = []
    for cell, policies in _rows(found, "elsewhere"):
        ours = policies["dqn"]
        line = [cell, str(len(ours)), f"{ours[:, 0].mean():.4g}"]
        line += [change(ours, policies[each], "mean_jct_s") if each in policies else "" for each in names]
        lines.append(line)
    return _table(["elsewhere", "lists", "dqn, mean JCT, s", *names], lines)
