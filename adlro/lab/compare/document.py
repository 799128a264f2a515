"""The JSON document of a comparison; docs/evaluation.md describes its fields. Unknown numbers are null."""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

import numpy as np

from adlro.lab.compare import history, knowledge, resampling
from adlro.lab.compare.comparing import Comparison
from adlro.lab.compare.resampling import Estimate, estimate
from adlro.state.observation import Floats

SCHEMA = "adlro.compare.v1"
_SAME_S = 1e-3
"""Starts and ends that differ by less are the same."""


def build_document(comparison: Comparison) -> dict[str, Any]:
    """The document."""
    counts = comparison.measured
    found = {
        "schema": SCHEMA,
        "acted": comparison.acted,
        "window": {
            "since_s": comparison.request.since_s,
            "until_s": comparison.request.until_s,
            "first_submit_s": comparison.zero_s + float(comparison.submit_s[counts][0]),
            "last_submit_s": comparison.zero_s + float(comparison.submit_s[counts][-1]),
        },
        "jobs": _jobs(comparison),
        "runtime": {"kind": comparison.request.runtime, "sources": dict(comparison.sources)},
        "policies": [_policy(comparison, name) for name in comparison.replays],
        "paired": [_paired(comparison, name) for name in comparison.replays if name != comparison.acted],
        "interval": _interval(comparison),
        "check": _check(comparison),
        "notes": list(comparison.notes),
        "meta": {
            "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "version": metadata.version("adlro"),
            "cluster": comparison.cluster.name,
            "gpus": sum(1 for _ in comparison.cluster.gpus()),
            "gpu_models": list(comparison.cluster.gpu_models),
            "least_jobs": resampling.LEAST_JOBS,
            "definitions": definitions(),
        },
    }
    finite: dict[str, Any] = _finite(found)
    return finite


def _jobs(comparison: Comparison) -> dict[str, Any]:
    count = int(comparison.measured.sum())
    return {
        "measured": count,
        "replayed": len(comparison.measured),
        "warm_up": comparison.window.warm_up,
        "left_out": [
            {"why": each.why, "jobs": each.jobs, "gpu_time_s": each.gpu_time_s} for each in comparison.history.left_out
        ],
        "handled": [{"what": what, "jobs": jobs} for what, jobs in comparison.history.handled.items()],
        "gpu_time_s": comparison.history.gpu_time_s,
    }


def _policy(comparison: Comparison, name: str) -> dict[str, Any]:
    replay, jct_s = comparison.replays[name], _jct_s(comparison, name)
    mean, p95 = comparison.resampled[name].T
    return {
        "policy": name,
        "version": replay.version,
        "acted": name == comparison.acted,
        **_figure("mean_jct_s", estimate(float(jct_s.mean()), mean)),
        **_figure("p95_jct_s", estimate(float(np.percentile(jct_s, 95)), p95)),
        "max_wait_s": _longest_wait_s(comparison, name),
        "stops": replay.stops,
        "fallback_share": replay.fallback_ratio,
        "overdue_share": replay.overdue_ratio,
    }


def _paired(comparison: Comparison, name: str) -> dict[str, Any]:
    baseline = comparison.acted
    ours, theirs = _jct_s(comparison, name), _jct_s(comparison, baseline)
    off = ours - theirs
    (our_mean, our_p95), (their_mean, their_p95) = (comparison.resampled[each].T for each in (name, baseline))
    return {
        "policy": name,
        "baseline": baseline,
        **_figure("mean_jct_difference_s", estimate(float(off.mean()), our_mean - their_mean)),
        **_figure("mean_jct_ratio", estimate(float(ours.mean() / theirs.mean()), our_mean / their_mean)),
        **_figure(
            "p95_jct_difference_s",
            estimate(float(np.percentile(ours, 95) - np.percentile(theirs, 95)), our_p95 - their_p95),
        ),
        "max_wait_difference_s": _longest_wait_s(comparison, name) - _longest_wait_s(comparison, baseline),
        "jobs_sooner": int((off < -_SAME_S).sum()),
        "jobs_later": int((off > _SAME_S).sum()),
    }


def _jct_s(comparison: Comparison, name: str) -> Floats:
    jct_s: Floats = (comparison.replays[name].end_s - comparison.submit_s)[comparison.measured]
    return jct_s


def _longest_wait_s(comparison: Comparison, name: str) -> float:
    return float((comparison.replays[name].start_s - comparison.submit_s)[comparison.measured].max())


def _interval(comparison: Comparison) -> dict[str, Any]:
    """What the intervals rest on, or why there are none."""
    replayed, size = len(comparison.measured), resampling.block_size(len(comparison.measured))
    return {
        "confidence": resampling.CONFIDENCE,
        "resamples": 0 if comparison.refused else comparison.request.resamples,
        "jobs_in_block": size,
        "blocks": -(-replayed // size),
        "refused": comparison.refused or None,
    }


def _check(comparison: Comparison) -> dict[str, Any]:
    """How well the replay of the policy that acted reproduces what happened."""
    counts, submit_s = comparison.measured, comparison.submit_s[comparison.measured]
    replay = comparison.replays[comparison.acted]
    ours = {"start": replay.start_s[counts], "end": replay.end_s[counts]}
    real = {"start": comparison.real_start_s[counts], "end": comparison.real_end_s[counts]}
    jct_s, real_jct_s = ours["end"] - submit_s, real["end"] - submit_s
    return {
        "policy": comparison.acted,
        "mean_jct_s": float(jct_s.mean()),
        "real_mean_jct_s": float(real_jct_s.mean()),
        "mean_jct_ratio": float(jct_s.mean() / real_jct_s.mean()) if real_jct_s.mean() > 0 else None,
        "p95_jct_s": float(np.percentile(jct_s, 95)),
        "real_p95_jct_s": float(np.percentile(real_jct_s, 95)),
        "max_wait_s": float((ours["start"] - submit_s).max()),
        "real_max_wait_s": float((real["start"] - submit_s).max()),
        "mean_start_difference_s": float(np.abs(ours["start"] - real["start"]).mean()),
        "same_start_share": float((np.abs(ours["start"] - real["start"]) < _SAME_S).mean()),
    }


def _figure(name: str, estimate: Estimate) -> dict[str, Any]:
    return {name: estimate.value, f"{name}_ci95": [None, None] if estimate.interval is None else [*estimate.interval]}


def definitions() -> list[str]:
    """How the figures come about, from the docstrings of the modules that compute them."""
    items: list[str] = []
    for module in (history, knowledge, resampling):
        for paragraph in (module.__doc__ or "").strip().split("\n\n")[1:]:
            parts = paragraph.removeprefix("- ").split("\n- ") if paragraph.startswith("- ") else [paragraph]
            items += [" ".join(part.split()) for part in parts]
    return items


def _finite(value: Any) -> Any:
    """JSON has no nan and no inf: null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_finite(each) for each in value]
    return value
