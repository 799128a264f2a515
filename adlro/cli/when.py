"""Moments as users write them: `now-2h`, `2026-11-01T10:00`, `14:00`, or a time of the cluster's clock, `3600s`."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

import typer

from adlro.cli.times import runs_with_the_wall
from adlro.errors import InvalidInput
from adlro.records.events import Clock
from adlro.units import duration_s

WHEN = "TIME"
"""Metavar of moments."""
MOMENTS = "now-2h, today, 14:00, 2026-11-01, 2026-11-01T10:00, or a time of the cluster's clock such as 3600s"
"""What `when` accepts, in words."""

_FROM_NOW = re.compile(r"now\s*([+-])\s*(.+)")
_TIME_OF_DAY = re.compile(r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))?")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}([t ].+)?", re.IGNORECASE)
_MONTH = re.compile(r"[0-9]{4}-[0-9]{2}")
_DAYS_BACK = {"today": 0, "midnight": 0, "yesterday": 1}


@dataclass(frozen=True, slots=True)
class When:
    """A moment; one of the three is set.

    Attributes:
        text: as it was written.
        time_s: cluster time.
        from_now_s: seconds of the cluster's clock from now on.
        unix_s: wall time, seconds since 1970.
        of_day: it was written as a time of the day, without a date.
    """

    text: str
    time_s: float | None = None
    from_now_s: float | None = None
    unix_s: float | None = None
    of_day: bool = False

    def cluster_s(self, read_clock: Callable[[], Clock], option: str) -> float:
        """The moment in cluster time, not before 0.

        Args:
            read_clock: asks the cluster for its clock; called only where that is needed.
            option: for the error.

        Raises:
            InvalidInput: a wall time, and the cluster's clock is not real.
            AdlroError: of `read_clock`.
        """
        if self.time_s is not None:
            return self.time_s
        clock = read_clock()
        if self.from_now_s is not None:
            return max(clock.time_s + self.from_now_s, 0.0)
        if not runs_with_the_wall(clock) or self.unix_s is None:
            told = "paused" if clock.paused else clock.mode.name.lower()
            raise InvalidInput(
                f"{option}: {self.text!r} is a time of the wall clock, and the cluster's clock is {told}: write a time "
                "of the cluster's clock, such as 3600s, or now-1h (adlro clock shows it)"
            )
        return max(clock.time_s + self.unix_s - time.time(), 0.0)


def when(value: str | When) -> When:
    """Reads a moment, for options."""
    if isinstance(value, When):
        return value
    try:
        return read_when(value)
    except InvalidInput as error:
        raise typer.BadParameter(error.message) from None


def read_when(text: str, now_unix_s: float | None = None) -> When:
    """Reads a moment.

    Dates and times of the day are local, and a time of the day is today's. A plain number is seconds of the cluster's
    clock.

    Args:
        text: as written.
        now_unix_s: wall time now.

    Raises:
        InvalidInput: it is none.
    """
    asked = " ".join(text.split()).lower()
    now = datetime.fromtimestamp(time.time() if now_unix_s is None else now_unix_s).astimezone()
    if asked == "now":
        return When(text, from_now_s=0.0)
    if match := _FROM_NOW.fullmatch(asked):
        return When(text, from_now_s=float(f"{match[1]}1") * duration_s(match[2]))
    if asked in _DAYS_BACK:
        day = (now - timedelta(days=_DAYS_BACK[asked])).date()
        return When(text, unix_s=datetime(day.year, day.month, day.day).astimezone().timestamp())
    try:
        if match := _TIME_OF_DAY.fullmatch(asked):
            hour, minute, second = (int(each or 0) for each in match.groups())
            given = datetime(now.year, now.month, now.day, hour, minute, second).astimezone()
            return When(text, unix_s=given.timestamp(), of_day=True)
        if _DATE.fullmatch(asked):
            given = datetime.fromisoformat(asked.upper())
            return When(text, unix_s=(given if given.tzinfo else given.astimezone()).timestamp())
        if not _MONTH.fullmatch(asked):
            return When(text, time_s=duration_s(asked))
    except (ValueError, InvalidInput, OverflowError):
        pass
    raise InvalidInput(f"{text[:40]!r} is no time: write now+1h, {MOMENTS}")
