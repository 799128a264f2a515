"""Wall-clock times beside cluster time, as text for people. Pure functions on plain records; nothing printed.

A cluster's clock runs with that of the wall where it is real. What a simulated cluster's clock did before (scaled,
virtual, paused) is not recorded: a job's times are given only if the moment of its submission, which is recorded in
both times, fits.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from adlro.cli.units_text import UNKNOWN, seconds
from adlro.records.events import Clock, ClockMode, ClusterDescription
from adlro.records.jobs import Job

# So much later than ingest records a job, the orchestrator has read it at most, where nothing is wrong.
_READ_WITHIN_S = 60.0
_LONGEST_S = 1000 * 366 * 86_400.0


@dataclass(frozen=True, slots=True)
class WallClock:
    """The wall time of cluster times.

    Attributes:
        offset_s: wall time (seconds since 1970) at cluster time 0.
        certain: the clock has always been real, as that of a real cluster.
    """

    offset_s: float
    certain: bool = True

    def unix_s(self, time_s: float | None) -> float | None:
        """Wall time of a cluster time, seconds since 1970; None: not known."""
        if time_s is None or not math.isfinite(time_s) or abs(time_s) > _LONGEST_S:
            return None
        return self.offset_s + time_s

    def time_s(self, unix_s: float) -> float:
        """Cluster time of a wall time."""
        return unix_s - self.offset_s

    def tells(self, job: Job) -> bool:
        """Whether this clock's wall times are those of the job's course."""
        if self.certain:
            return True
        if job.submit_s is None or not job.created_unix_s or job.spec.begin_time_s is not None:
            return False
        return abs(self.offset_s + job.submit_s - job.created_unix_s) <= _READ_WITHIN_S


def runs_with_the_wall(clock: Clock | None) -> bool:
    """Whether a second of the cluster's clock is one of the wall's, now."""
    return clock is not None and clock.mode is ClockMode.REAL and not clock.paused


def wall_clock(described: ClusterDescription | None, now_unix_s: float | None = None) -> WallClock | None:
    """The wall clock of a cluster; None: its clock is not real, or not known.

    Args:
        described: the cluster's description of this moment.
        now_unix_s: wall time now.
    """
    if described is None or not runs_with_the_wall(described.clock):
        return None
    now_s = time.time() if now_unix_s is None else now_unix_s
    can = described.capabilities
    return WallClock(now_s - described.clock.time_s, certain=can is not None and not can.virtual_clock)


def iso_text(unix_s: float | None) -> str | None:
    """A wall time as ISO 8601, local with its offset from UTC, to the second; None: not known."""
    if unix_s is None or not math.isfinite(unix_s):
        return None
    try:
        return datetime.fromtimestamp(unix_s).astimezone().isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):
        return None


def moments(values: Sequence[float | None], *, iso: bool = False, now_unix_s: float | None = None) -> list[str]:
    """Local wall times of one column, all in one form.

    `14:05:09` if all are of today, `27 Nov 14:05` if all are of this year, else `2026-11-27 14:05`.

    Args:
        values: seconds since 1970; None: not known.
        iso: as ISO 8601 instead.
        now_unix_s: wall time now.
    """
    if iso:
        return [iso_text(each) or UNKNOWN for each in values]
    local = [None if iso_text(each) is None else datetime.fromtimestamp(each or 0.0).astimezone() for each in values]
    now = datetime.fromtimestamp(time.time() if now_unix_s is None else now_unix_s).astimezone()
    known = [each for each in local if each is not None]
    if all(each.date() == now.date() for each in known):
        form = "%H:%M:%S"
    elif all(each.year == now.year for each in known):
        form = "%d %b %H:%M"
    else:
        form = "%Y-%m-%d %H:%M"
    return [UNKNOWN if each is None else each.strftime(form) for each in local]


def time_text(time_s: float | None, wall: WallClock | None, *, iso: bool = False) -> str:
    """A cluster time by itself, with its wall time if known: `27 Nov 2026 14:05:09 (12m 5s of cluster time)`."""
    if time_s is None:
        return UNKNOWN
    unix_s = None if wall is None else wall.unix_s(time_s)
    of_cluster = f"{seconds(time_s)} of cluster time"
    if (exact := iso_text(unix_s)) is None or unix_s is None:
        return of_cluster
    shown = exact if iso else datetime.fromtimestamp(unix_s).astimezone().strftime("%d %b %Y %H:%M:%S")
    return f"{shown} ({of_cluster})"
