"""Which of the waiting jobs go before others: fair share, waiting time, priority. Plain data; no gRPC, no Redis."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from adlro.errors import InvalidInput
from adlro.units import duration_s

DAY_S = 86_400.0
LEVELS = 10
"""Levels of precedence, 0 to 9. Within a level the policy alone chooses."""
HIGHEST_WEIGHT = 1e6
LONGEST_S = 3650 * DAY_S

_WEIGHTS = ("fair_share", "age", "priority")
_DURATIONS = ("half_life", "full_age")
OFF = "off"
"""The text of no precedence."""

SPELLING = "such as fair_share=2,age=1,priority=1,half_life=7d,full_age=1d; or off"


@dataclass(frozen=True, slots=True)
class Precedence:
    """The rule by which waiting jobs go before others, as the multifactor priority of Slurm.

    A job's precedence is the weighted mean of three numbers from 0 to 1; its level is that mean in tenths, 0 to 9.

        fair share   2^(-2 S / largest), S: the GPU time that the job's account has had lately, for each of its shares,
                     and largest: that of the account that has had most, of those whose jobs wait; 1 for who has had
                     nothing, 1/4 for who has had most
        age          the time that it has waited, as a part of `full_age_s`, at most 1
        priority     that which its user gave it

    An account is a user, or a group of users (`adlro fair-share`).

    Attributes:
        fair_share, age, priority: the weights, from 0.
        half_life_s: after this time GPU time counts half; inf: it is never forgotten.
        full_age_s: wait from which `age` is 1.

    Raises:
        InvalidInput: a number is out of its range, or all weights are 0.
    """

    fair_share: float = 0.0
    age: float = 0.0
    priority: float = 0.0
    half_life_s: float = 7 * DAY_S
    full_age_s: float = 7 * DAY_S

    def __post_init__(self) -> None:
        for name in _WEIGHTS:
            weight = getattr(self, name)
            if not 0.0 <= weight <= HIGHEST_WEIGHT:
                raise _wrong(f"{name} is a weight from 0 to {HIGHEST_WEIGHT:,.0f}, not {weight:g}")
        if not any(getattr(self, name) for name in _WEIGHTS):
            raise _wrong(f"one of the weights {', '.join(_WEIGHTS)} must be above 0")
        if not (0.0 < self.half_life_s <= LONGEST_S or self.half_life_s == math.inf):
            raise _wrong("half_life must be above 0 and at most 3650d; or never")
        if not 0.0 < self.full_age_s <= LONGEST_S:
            raise _wrong("full_age must be above 0 and at most 3650d")

    @property
    def text(self) -> str:
        """The rule as `parse_precedence` reads it."""
        weights = [f"{name}={value:.10g}" for name in _WEIGHTS if (value := getattr(self, name))]
        half_life = "never" if self.half_life_s == math.inf else f"{self.half_life_s:.10g}"
        return ",".join([*weights, f"half_life={half_life}", f"full_age={self.full_age_s:.10g}"])


def parse_precedence(text: str) -> Precedence | None:
    """A rule of its text; None: empty or `off`, no job goes before others by rule.

    Raises:
        InvalidInput: with the reason and an example.
    """
    if text.strip() in ("", OFF):
        return None
    given: dict[str, float] = {}
    for part in text.split(","):
        name, equals, value = (each.strip() for each in part.partition("="))
        if name not in (*_WEIGHTS, *_DURATIONS):
            raise _wrong(f"'{name}' is none of {', '.join((*_WEIGHTS, *_DURATIONS))}")
        if not equals:
            raise _wrong(f"{name} has no value")
        key = f"{name}_s" if name in _DURATIONS else name
        if key in given:
            raise _wrong(f"{name} is given twice")
        given[key] = _duration_s(name, value) if name in _DURATIONS else _weight(name, value)
    return Precedence(**given)


def _weight(name: str, text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        weight = math.nan
    if math.isnan(weight):
        raise _wrong(f"{name} must be a number, not '{text}'")
    return weight


def _duration_s(name: str, text: str) -> float:
    if name == "half_life" and text == "never":
        return math.inf
    try:
        return duration_s(text)
    except InvalidInput as error:
        raise _wrong(f"{name}: {error.message}") from None


def _wrong(what: str) -> InvalidInput:
    return InvalidInput(f"precedence: {what}; {SPELLING}", field="precedence")


assert {*_WEIGHTS, *(f"{name}_s" for name in _DURATIONS)} == {each.name for each in fields(Precedence)}
