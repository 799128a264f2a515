"""What reading commands ask of a suite besides their rows, and how long they wait for it."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

from adlro.cli.shell import PATIENCE_S
from adlro.cli.times import WallClock, wall_clock
from adlro.cli.when import When
from adlro.errors import AdlroError
from adlro.records.events import ClusterDescription

if TYPE_CHECKING:
    from adlro.client import Client

_WATCH_PATIENCE_S = 30.0


def patience_s(every_s: float | None) -> float:
    """How long a command retries a call: while it watches, a service may be away for a while.

    Args:
        every_s: of --watch; None: it reads once.
    """
    return PATIENCE_S if every_s is None else _WATCH_PATIENCE_S


def described(client: Client) -> ClusterDescription | None:
    """The cluster, its clock and what runs on it; None: it does not answer, or not this caller."""
    with contextlib.suppress(AdlroError):
        return client.describe_cluster()
    return None


def certain_wall(client: Client, known: ClusterDescription | None) -> WallClock | None:
    """The wall clock of what has happened since the first job; None: the cluster's clock has not been real since then.

    Decisions, unlike jobs, have no wall time of their own by which a simulated clock could be checked. The first job
    has one: a clock that has stood, or run at another speed since, does not fit it any more.

    Args:
        client: asked for the first job, where the clock is simulated.
        known: the cluster's description of this moment.
    """
    wall = wall_clock(known)
    if wall is None or wall.certain:
        return wall
    with contextlib.suppress(AdlroError):
        first = client.list_page(page_size=1).jobs
        if first and wall.tells(first[0]):
            return replace(wall, certain=True)
    return None


def bound_s(client: Client, moment: When | None, option: str, known: ClusterDescription | None = None) -> float | None:
    """The cluster time of an option's moment; None: it is not given.

    Args:
        client: asked for the cluster's clock where that is needed.
        moment: the option's value.
        option: its name, for errors.
        known: the description of this moment, if it has been asked for.

    Raises:
        InvalidInput: a wall time, and the cluster's clock is not real.
        AdlroError: the cluster does not say what its clock is.
    """
    return None if moment is None else moment.cluster_s(client.clock if known is None else lambda: known.clock, option)
