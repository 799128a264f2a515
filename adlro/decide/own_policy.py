"""A policy of one's own as ADLRO runs it: its code is somebody else's, so that what it returns is looked at.

In service, and in the simulator, the same object decides. The limit on waits, and the start of some job where nothing
would ever happen again, are ADLRO's (`Policy.judge`), whatever the code does.
"""

from __future__ import annotations

import functools
import math
from typing import Any, ClassVar

import numpy as np

from adlro.decide.own_source import FIELD, OwnSource, digest_of, load, place_of
from adlro.decide.policies.base import Judgement, Policy
from adlro.errors import InvalidInput
from adlro.records.decisions import DecisionBasis
from adlro.state.observation import HOLD, Observation


class Own(Policy):
    """Runs a policy of a file or a package; `own_policy` makes it.

    `weigh` gives the code a copy of the observation, so that it can't change what others see.

    Raises:
        InvalidInput: the class can't be made; later, by `weigh`: the code raises, or its answer can't be used. The
            message names the line or what is wrong.
    """

    guarded = True
    source: ClassVar[OwnSource]
    _kind: ClassVar[type[Policy]]

    def __init__(self, load: float | None = None) -> None:
        try:
            self._policy = self._kind() if load is None else self._kind.for_load(load)
            self.wait_ratio = float(self._policy.wait_ratio)
        except (Exception, SystemExit) as error:
            raise self._failed(error, "it can't be made") from error
        if math.isnan(self.wait_ratio) or self.wait_ratio < 0:
            raise InvalidInput(
                f"{FIELD}: {self.source.text}: wait_ratio must be a number from 0 on, not {self.wait_ratio}",
                field=FIELD,
            )

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self.source, self.wait_ratio, self.version)

    @classmethod
    def for_load(cls, load: float) -> Policy:
        """The policy as its class tunes it for a known load."""
        return cls(load)

    def weigh(self, observation: Observation) -> Judgement:
        """The code's judgement, if it can be used."""
        try:
            judgement = self._policy.weigh(observation.copy())
        except (Exception, SystemExit) as error:
            raise self._failed(error, f"{self.name} raised") from error
        wrong = _wrong(observation, judgement)
        if wrong:
            raise InvalidInput(f"{self.name} ({self.source.text}): {wrong}", field=FIELD)
        return judgement

    def _failed(self, error: BaseException, what: str) -> InvalidInput:
        told = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return InvalidInput(f"{place_of(error, self.source)}: {what} {told}", field=FIELD)


def own_policy(source: OwnSource, taken: frozenset[str]) -> type[Own]:
    """The class of a policy of one's own, by the name that its author gave it.

    Args:
        source: its place.
        taken: names that it must not have.

    Raises:
        InvalidInput: the code can't be used; the message names file, line and the way out.
    """
    kind: Any = load(source, taken)
    return _wrapped(source, kind)


@functools.lru_cache(maxsize=64)
def _wrapped(source: OwnSource, kind: Any) -> type[Own]:
    doc = (kind.__doc__ or "").strip().partition("\n")[0]
    said: dict[str, Any] = {
        "source": source,
        "_kind": kind,
        "name": kind.__dict__["name"],
        "description": str(getattr(kind, "description", "") or doc or "a policy of one's own"),
        "advice": str(kind.__dict__.get("advice", "")),
        "version": digest_of(source),
        "__doc__": kind.__doc__,
        **{flag: bool(getattr(kind, flag)) for flag in ("one_cluster", "preempts", "shares")},
    }
    return type("Own", (Own,), said)


def _again(source: OwnSource, wait_ratio: float, version: str) -> Own:
    """The policy in another process, of the same code."""
    kind = own_policy(source, frozenset())
    if kind.version != version:
        raise InvalidInput(f"{FIELD}: {source.text} has changed meanwhile; start again", field=FIELD)
    made = kind()
    made.wait_ratio = wait_ratio
    return made


def _wrong(observation: Observation, judgement: object) -> str:
    """What is wrong with an answer, in words; empty: it can be used."""
    if not isinstance(judgement, Judgement):
        return f"weigh must return a Judgement, not {type(judgement).__name__}"
    rows, clusters = len(observation.table.job), len(observation.time_s)
    scores: object = judgement.scores
    if not isinstance(scores, np.ndarray) or scores.dtype != np.float64 or scores.shape != (rows,):
        got = f"{scores.dtype} of shape {scores.shape}" if isinstance(scores, np.ndarray) else type(scores).__name__
        return (
            f"preferences must be a new array of float64 of shape ({rows},), one for each row of observation.table, "
            f"not {got}"
        )
    if np.isnan(scores).any() or (scores == np.inf).any():
        return "a preference is no number (nan or inf); -inf refuses a row"
    for name, length in (("values", rows), ("hold_value", clusters), ("gpu", rows), ("reserve", clusters)):
        array = getattr(judgement, name)
        integer = name in ("gpu", "reserve")
        if array is None:
            continue
        fits = isinstance(array, np.ndarray) and array.shape == (length,)
        if not fits or array.dtype.kind != ("i" if integer else "f"):
            return f"{name} must be None or an array of {'int64' if integer else 'float64'} of shape ({length},)"
    return _wrong_gpu(observation, judgement) or _wrong_rest(observation, judgement)


def _wrong_gpu(observation: Observation, judgement: Judgement) -> str:
    if judgement.gpu is None:
        return ""
    table = observation.table
    other = (judgement.gpu != table.gpu) & np.isfinite(judgement.scores)
    for n in range(len(observation.time_s)):
        for row in np.flatnonzero(other[table.rows(n)]) + table.rows(n).start:
            if judgement.gpu[row] not in observation.group(n, int(row)):
                return f"gpu {judgement.gpu[row]} is not of the group of row {row}"
    return ""


def _wrong_rest(observation: Observation, judgement: Judgement) -> str:
    clusters = range(len(observation.time_s))
    for n, basis in judgement.basis.items():
        if n not in clusters or not isinstance(basis, DecisionBasis):
            return "basis must map numbers of clusters to a DecisionBasis"
    for n, note in judgement.notes.items():
        if n not in clusters or not isinstance(note, str):
            return "notes must map numbers of clusters to a text"
    if judgement.reserve is not None:
        for n, place in enumerate(judgement.reserve.tolist()):
            waiting = observation.job_waiting[n]
            if place != HOLD and not (0 <= place < len(waiting) and waiting[place]):
                return f"reserve names place {place}, where no job waits; {HOLD}: none"
    if any(n not in clusters for n in judgement.busy):
        return "busy must map numbers of clusters to a BusyStart"
    return ""
