"""Tests for slower GPUs and for a changed mix of jobs: scores with a false-alarm rate. Arrays only.

Both scores are 1 - p: the share of healthy checks with a smaller deviation. From SUSPECTED on the mix is flagged, so
each single check flags at most 1 % of unchanged mixes. That rate for each GPU would flag ten of 1,024 healthy ones at
any time, so GPUs are flagged together, by Benjamini and Hochberg's rule: with n GPUs the k most suspected ones are
flagged for the largest k for which the k-th p is at most 1 % of k / n, p being the smallest of those of the newest 20,
60 and 180 jobs, times three. If all are healthy, some are flagged in 1 % of looks; of flagged GPUs 1 % are
healthy on average (benchmarks/drift_flags.py). Consecutive looks share 19 of 20 jobs.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter, deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from statistics import NormalDist

import numpy as np

from adlro.records.matrices import SUSPECTED, DriftSummary, GpuDrift, MixDrift

FALSE_SHARE = 0.01
"""The share of flagged GPUs that may be healthy, and of looks at healthy GPUs that flag any."""

GPU_WINDOW = 20
"""Number of a GPU's newest jobs in its score."""
SPEED_WINDOW = 60
"""Largest number of a GPU's newest jobs in the estimate of its speed, since it changed."""
FLAG_WINDOWS = (GPU_WINDOW, SPEED_WINDOW, 180)
"""Numbers of newest jobs whose p count for the flag: few show a large slowdown soon, many show a small one."""
_LEAST_JOBS = 5
_CLIP = 3.0  # a deviation of more standard deviations counts as this many
_PEER_PRIOR = 20.0  # jobs; the prior that a model's residuals are 0 on average has this weight
# Before any job: one GPU in four has its own speed, slower by exp(N(0.15, 0.2)). Generous, since a 2 % underestimate of
# a healthy GPU costs a scheduler less than an unknown slow one.
_PRIOR_CHANGED, _PRIOR_MEAN, _PRIOR_SIGMA = 0.25, 0.15, 0.2

MIX_WINDOW = 256
"""Number of newest jobs whose mix is compared with that of the earlier jobs."""
REFERENCE_WINDOW = 4096
_REFERENCE_LEAST = 256
_LEAST_EXPECTED = 5.0  # least expected number of jobs of a value in the window; rarer values are merged
_HIGHEST = 0.99  # larger p count as this

_NORMAL = NormalDist()


HEALTHY = GpuDrift()


def summary_of(drifts: Iterable[GpuDrift], mix_drift: MixDrift) -> DriftSummary:
    """The drift of a cluster; `drifts`: of its GPUs."""
    tested = [each for each in drifts if each.job_count >= _LEAST_JOBS]
    return DriftSummary(
        mix_drift,
        sum(each.flagged for each in tested),
        sum(each.score >= SUSPECTED for each in tested),
        (1.0 - SUSPECTED) * len(tested),
    )


class _NewestJobs:
    """The newest jobs of a GPU, as many as the longest window has."""

    def __init__(self) -> None:
        self._rows = np.empty((2 * FLAG_WINDOWS[-1], 2))
        self._end = 0

    def append(self, residual: float, spread: float) -> None:
        """Adds one."""
        if self._end == len(self._rows):
            self._end = FLAG_WINDOWS[-1]
            self._rows[: self._end] = self._rows[self._end :].copy()
        self._rows[self._end] = residual, spread
        self._end += 1

    def newest(self, count: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        """(n, 2) residual and spread of the newest ones, at most `count`, the oldest first."""
        return self._rows[max(self._end - min(count, FLAG_WINDOWS[-1]), 0) : self._end]


class GpuDriftDetector:
    """Compares each GPU's jobs with the predictions for its model, and with the jobs of its peers."""

    def __init__(self) -> None:
        self.start_over()

    def start_over(self) -> None:
        """Forgets everything."""
        self._jobs: dict[Hashable, _NewestJobs] = {}
        self._model: dict[Hashable, str] = {}
        self._states: dict[Hashable, GpuDrift] = {}
        self._sums: dict[Hashable, tuple[float, float]] = {}  # by GPU: of clipped residuals by precision, of precisions
        self._unit: deque[float] = deque(maxlen=512)  # |residual| / spread of all GPUs' newest jobs
        self._unit_count = 0  # all so far; the deque's length stays at its limit
        self._scale = 1.0
        self._p: dict[Hashable, float] = {}  # by GPU that has jobs enough
        self._flagged: frozenset[Hashable] | None = None  # None: to be worked out

    def observe(self, gpu: Hashable, gpu_model: str, residual: float, spread: float) -> None:
        """Adds a finished job.

        Args:
            gpu: key of its GPU.
            gpu_model: its model.
            residual: log(observed runtime / median prediction for the model before the run).
            spread: predicted standard deviation of the residual.
        """
        if not (math.isfinite(residual) and spread > 0):
            return
        if self._model.get(gpu) != gpu_model:
            self._jobs[gpu] = _NewestJobs()  # another card with the same name
            self._model[gpu] = gpu_model
        self._jobs[gpu].append(residual, spread)
        self._unit.append(abs(residual) / spread)
        self._unit_count += 1
        if self._unit_count >= 30 and self._unit_count % 10 == 0:
            # The predicted spread may have a constant error: the median of |N(0, 1)| is 0.6745.
            self._scale = float(np.clip(np.median(self._unit) / 0.6745, 0.3, 3.0))
        jobs = self._jobs[gpu].newest(SPEED_WINDOW)
        precision = 1 / (jobs[:, 1] * self._scale) ** 2
        clip = _CLIP * jobs[:, 1] * self._scale
        self._sums[gpu] = float((np.clip(jobs[:, 0], -clip, clip) * precision).sum()), float(precision.sum())
        self._states.pop(gpu, None)
        self._flagged = None

    def state(self, gpu: Hashable) -> GpuDrift:
        """The drift of a GPU."""
        if gpu not in self._jobs:
            return HEALTHY
        flagged = gpu in self._all_flagged()
        found = self._judged(gpu)
        return dataclasses.replace(found, flagged=True) if flagged else found

    def states(self) -> Mapping[Hashable, GpuDrift]:
        """The drift of every GPU that ran jobs."""
        return {gpu: self.state(gpu) for gpu in self._jobs}

    def log_slowdown(self, gpu: Hashable) -> float:
        """The logarithm of the slowdown of jobs on this GPU relative to its model."""
        return -math.log(self._judged(gpu).speed_ratio) if gpu in self._jobs else 0.0

    def _judged(self, gpu: Hashable) -> GpuDrift:
        """The drift of a GPU that ran jobs, looked at by itself: not flagged."""
        found = self._states.get(gpu)
        if found is None:
            found = self._states[gpu] = self._judge(gpu)
        return found

    def _all_flagged(self) -> frozenset[Hashable]:
        if self._flagged is None:
            for gpu in self._jobs:
                self._judged(gpu)
            gpus, limit = sorted(self._p, key=self._p.__getitem__), FALSE_SHARE / max(len(self._p), 1)
            most = max((k for k, gpu in enumerate(gpus, start=1) if self._p[gpu] <= limit * k), default=0)
            # Not one that is well again: its score falls within 20 jobs.
            self._flagged = frozenset(gpu for gpu in gpus[:most] if self._states[gpu].score >= SUSPECTED)
        return self._flagged

    def _judge(self, gpu: Hashable) -> GpuDrift:
        jobs = self._jobs[gpu].newest(FLAG_WINDOWS[-1])
        count = min(len(jobs), SPEED_WINDOW)
        if count < _LEAST_JOBS:
            self._p.pop(gpu, None)  # another card with the same name
            return GpuDrift(job_count=count)
        peers, peers_variance = self._peers(gpu)
        spread = jobs[:, 1] * self._scale
        residual = np.clip((jobs[:, 0] - peers) / spread, -_CLIP, _CLIP) * spread
        precision = 1 / spread**2
        # Sums over the newest 1, 2, ... n jobs.
        weights = np.cumsum(precision[::-1])
        sums = np.cumsum((residual * precision)[::-1])
        ats = [min(len(jobs), window) - 1 for window in FLAG_WINDOWS]
        of_windows = [float(sums[at] / math.sqrt(weights[at] * (1 + peers_variance * weights[at]))) for at in ats]
        # All of its newest jobs show a small slowdown that the newest of them are too few for, among many GPUs.
        self._p[gpu] = min(1.0, len(FLAG_WINDOWS) * _NORMAL.cdf(-max(of_windows)))
        speed = self._speed(sums[:count], weights[:count], peers_variance)
        return GpuDrift(_NORMAL.cdf(of_windows[0]), False, speed, count)

    def _speed(
        self,
        sums: np.ndarray[tuple[int], np.dtype[np.float64]],
        weights: np.ndarray[tuple[int], np.dtype[np.float64]],
        peers_variance: float,
    ) -> float:
        """The speed since the most probable moment of a change, shrunk to 1 by the probability of a change."""
        starts = np.arange(_LEAST_JOBS - 1, len(sums))
        variance = 1 / weights[starts] + peers_variance
        mean = sums[starts] / weights[starts]
        # The likelihood ratio of the mean with a change at that moment against no change.
        both = variance + _PRIOR_SIGMA**2
        log_factor = 0.5 * np.log(variance / both) - (mean - _PRIOR_MEAN) ** 2 / (2 * both) + mean**2 / (2 * variance)
        factor = _PRIOR_CHANGED / (1 - _PRIOR_CHANGED) * np.exp(np.minimum(log_factor, 50)) / len(starts)
        changed = factor / (1 + factor.sum())
        slowdown = (mean * _PRIOR_SIGMA**2 + _PRIOR_MEAN * variance) / both
        return math.exp(-max(0.0, float((changed * slowdown).sum())))

    def _peers(self, gpu: Hashable) -> tuple[float, float]:
        """Mean log residual of the other GPUs of the model that are not slow themselves, and its variance."""
        total = weight = 0.0
        for other, model in self._model.items():
            if model != self._model[gpu] or other == gpu:
                continue
            known = self._states.get(other)
            if known is not None and known.score >= SUSPECTED:
                continue
            of_other = self._sums[other]
            total += of_other[0]
            weight += of_other[1]
        if not weight:
            return 0.0, 0.0
        weight += _PEER_PRIOR / (self._jobs[gpu].newest(1)[0, 1] * self._scale) ** 2
        return total / weight, 1 / weight


UNCHANGED = MixDrift()


class MixDriftDetector:
    """Compares the mix of the newest jobs with that of the earlier ones, for each variable.

    A test of two samples (chi-square of homogeneity) for each variable. Cauchy combination (Liu, Xie 2020) combines
    their p; it keeps its rate for dependent variables, and loses less power than the least p.

    Args:
        variables: weights by name, in the order of the values in `observe`.
    """

    def __init__(self, variables: Mapping[str, float]) -> None:
        self.variables = tuple(variables)
        self._weights = [weight / sum(variables.values()) for weight in variables.values()]
        self.start_over()

    def start_over(self) -> None:
        """Forgets everything."""
        self._window: deque[tuple[Hashable, ...]] = deque()
        self._reference: deque[tuple[Hashable, ...]] = deque()
        self._new: list[Counter[Hashable]] = [Counter() for _ in self.variables]
        self._old: list[Counter[Hashable]] = [Counter() for _ in self.variables]

    def observe(self, values: Sequence[Hashable]) -> None:
        """Adds a job's values, one for each variable."""
        job = tuple(values)
        self._window.append(job)
        _count(self._new, job, 1)
        if len(self._window) > MIX_WINDOW:
            moved = self._window.popleft()
            _count(self._new, moved, -1)
            self._reference.append(moved)
            _count(self._old, moved, 1)
            if len(self._reference) > REFERENCE_WINDOW:
                _count(self._old, self._reference.popleft(), -1)

    def state(self) -> MixDrift:
        """The state of the mix; unchanged if there are too few jobs."""
        if len(self._window) < MIX_WINDOW or len(self._reference) < _REFERENCE_LEAST:
            return UNCHANGED
        compared = [_compare(new, old) for new, old in zip(self._new, self._old, strict=True)]
        # A variable with one value has no information, and must not outweigh the others.
        told = [
            (p, weight, name, variation)
            for (p, variation), weight, name in zip(compared, self._weights, self.variables, strict=True)
            if p is not None
        ]
        if not told:
            return UNCHANGED
        _, _, variable, variation = min(told, key=lambda each: each[0])
        total = sum(weight for _, weight, _, _ in told)
        combined = _combined([p for p, _, _, _ in told], [weight / total for _, weight, _, _ in told])
        score = 1.0 - combined
        return MixDrift(score, score >= SUSPECTED, variable, variation)


def _count(counters: Sequence[Counter[Hashable]], job: tuple[Hashable, ...], by: int) -> None:
    for counter, value in zip(counters, job, strict=True):
        counter[value] += by
        if not counter[value]:
            del counter[value]


def _compare(new: Counter[Hashable], old: Counter[Hashable]) -> tuple[float | None, float]:
    """The p that two samples have one mix, None without data to compare, and their total variation."""
    values = list(new.keys() | old.keys())
    counts = np.array([[new[value] for value in values], [old[value] for value in values]], dtype=np.float64)
    totals = counts.sum(axis=1)
    variation = 0.5 * float(np.abs(counts[0] / totals[0] - counts[1] / totals[1]).sum())
    expected = counts.sum(axis=0) * totals[0] / totals.sum()
    rare = expected < _LEAST_EXPECTED
    if rare.any():
        counts = np.concatenate([counts[:, ~rare], counts[:, rare].sum(axis=1, keepdims=True)], axis=1)
    if counts.shape[1] < 2:
        return None, variation
    ratio = math.sqrt(totals[1] / totals[0])
    statistic = float(((counts[0] * ratio - counts[1] / ratio) ** 2 / counts.sum(axis=0)).sum())
    return chi_square_tail(statistic, counts.shape[1] - 1), variation


def _combined(probabilities: Sequence[float], weights: Sequence[float]) -> float:
    """One p from several, possibly dependent ones; weights sum to 1."""
    # At most _HIGHEST: a p next to 1 would, as a Cauchy variable, outweigh any number of small ones.
    clipped = [min(max(each, 1e-15), _HIGHEST) for each in probabilities]
    mean = sum(weight * math.tan((0.5 - each) * math.pi) for each, weight in zip(clipped, weights, strict=True))
    return 0.5 - math.atan(mean) / math.pi


def chi_square_tail(statistic: float, degrees: int) -> float:
    """The probability of a greater chi-square: Wilson and Hilferty's cube root, relative error a few percent."""
    if statistic <= 0:
        return 1.0
    scale = 2.0 / (9.0 * degrees)
    return 1.0 - _NORMAL.cdf(((statistic / degrees) ** (1 / 3) - (1 - scale)) / math.sqrt(scale))


class DriftDetectors:
    """Both detectors: for each GPU, and for the mix of job types, applications and users."""

    def __init__(self) -> None:
        self.gpus = GpuDriftDetector()
        self.mix = MixDriftDetector({"job_type": 0.2, "application": 0.6, "user": 0.2})

    def start_over(self) -> None:
        """Forgets everything."""
        self.gpus.start_over()
        self.mix.start_over()
