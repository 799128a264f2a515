"""How many jobs waited and how many GPUs were allocated, over the cluster's time: the curves of the first screen.

When jobs came and ended stands in the page's table, of which a submitter's own are taken; when they ran is asked of
ingest under the user's own token. The counts are exact to each change; for the page they are thinned so that what a
screen can show of them stays: the first, the lowest, the highest and the last of each small part of the range.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adlro.client import AsyncClient
from adlro.errors import Unavailable
from adlro.records.history import AttemptBars, AttemptHistory, AttemptOccupancy
from adlro.services.web.documents import number
from adlro.services.web.jobs_table import Lives
from adlro.services.web.picture import LONGEST_WINDOW_S, Layout, Picture
from adlro.services.web.questions import or_none, real
from adlro.services.web.viewers import Viewer

DEFAULT_SPAN_S: Final = 3600.0
_SHORTEST_SPAN_S: Final = 60.0
MOST_BARS: Final = 50_000
# Parts of the range, of which each keeps at most four points.
PARTS: Final = 400
Numbers = NDArray[np.int64]
Times = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Spans:
    """Spans of time of some owners, such as the attempts of jobs; (N,) each.

    Attributes:
        owner: numbers.
        start_s, end_s: cluster time; the end is inf where it has not come yet.
    """

    owner: Numbers
    start_s: Times
    end_s: Times

    @classmethod
    def of(cls, owner: Numbers, start_s: Times, end_s: Times) -> Spans:
        """Those with an end after their begin."""
        kept = end_s > start_s
        return cls(owner[kept], start_s[kept], end_s[kept])

    def merged(self) -> Spans:
        """The times in which an owner has at least one of his spans: those that touch become one.

        Times are compared by their ranks, so that equal times stay equal.
        """
        if not len(self.owner):
            return self
        moments, ranks = np.unique(np.concatenate((self.start_s, self.end_s)), return_inverse=True)
        first, last = ranks[: len(self.owner)], ranks[len(self.owner) :]
        order = np.lexsort((first, self.owner))
        owner, first, last = self.owner[order], first[order], last[order]
        # Owners follow each other on one axis, so that one running maximum serves all.
        axis = owner * np.int64(len(moments))
        reached = np.maximum.accumulate(axis + last)
        begins = np.ones(len(owner), np.bool_)
        begins[1:] = (axis + first)[1:] > reached[:-1]
        begins[1:] |= owner[1:] != owner[:-1]
        at = np.flatnonzero(begins)
        return Spans(owner[at], moments[first[at]], moments[np.maximum.reduceat(last, at)])


@dataclass(frozen=True, slots=True)
class Curve:
    """A count that stays until its next change; (N,) each, the first at the begin of the range, the last at its end.

    Attributes:
        time_s: cluster time, rising.
        count: from then on.
    """

    time_s: Times
    count: NDArray[np.float64]

    @classmethod
    def of(cls, changes_s: Times, changes: NDArray[np.float64], from_s: float, to_s: float) -> Curve:
        """The sum of all changes up to each moment of a range.

        Args:
            changes_s: (N,) when.
            changes: (N,) by how much.
            from_s, to_s: the range.
        """
        moments, places = np.unique(changes_s, return_inverse=True)
        counts = np.cumsum(np.bincount(places, weights=changes, minlength=len(moments)))
        before, within = moments <= from_s, (moments > from_s) & (moments <= to_s)
        first = counts[before][-1] if before.any() else 0.0
        times = np.concatenate(([from_s], moments[within], [to_s]))
        values = np.concatenate(([first], counts[within]))
        return cls(times, np.append(values, values[-1]))

    def thinned(self, parts: int) -> Curve:
        """At most about four points for each part of the range: its first, lowest, highest and last."""
        if len(self.time_s) <= 4 * parts:
            return self
        length_s = max(float(self.time_s[-1] - self.time_s[0]), 1e-9)
        part = np.minimum(((self.time_s - self.time_s[0]) / length_s * parts).astype(np.int64), parts - 1)
        begins = np.flatnonzero(np.concatenate(([True], part[1:] != part[:-1])))
        ends = np.append(begins[1:], len(part)) - 1
        by_count = np.lexsort((self.count, part))  # each part's points from the lowest to the highest
        kept = np.unique(np.concatenate((begins, ends, by_count[begins], by_count[ends])))
        return Curve(self.time_s[kept], self.count[kept])

    def document(self) -> dict[str, Any]:
        """The curve for the page."""
        return {
            "time_s": [round(float(each), 3) for each in self.time_s],
            "count": [number(round(float(each), 2)) for each in self.count],
        }


def waiting_curve(lives: Lives, bars: AttemptBars | None, from_s: float, now_s: float) -> Curve:
    """How many of these jobs waited: submitted, with their begin time come, not ended and not running.

    Args:
        lives: all jobs that had not ended at the begin of the range.
        bars: what ran in the range; None: of each job only its last start is known.
        from_s, now_s: the range.
    """
    # One that the orchestrator has not taken up has no time of the cluster yet: it waits now.
    submit_s = np.where(np.isnan(lives.submit_s) & np.isinf(lives.end_s), now_s, lives.submit_s)
    everyone = np.arange(len(lives.job_ids))
    there = submit_s < lives.end_s
    exist = Spans.of(everyone[there], submit_s[there], lives.end_s[there])
    ran = [(everyone, lives.start_s, lives.end_s)]
    if bars is not None:
        place_of = {job_id: place for place, job_id in enumerate(lives.job_ids)}
        places = np.array([place_of.get(each, -1) for each in bars.job_ids], np.int64)[
            np.asarray(bars.job_indexes, np.int64)
        ]
        known = places >= 0
        ran.append((places[known], np.asarray(bars.starts_s)[known], np.asarray(bars.ends_s)[known]))
    owner, starts_s, ends_s = (np.concatenate(columns) for columns in zip(*ran, strict=True))
    starts_s, ends_s = np.maximum(starts_s, submit_s[owner]), np.minimum(ends_s, lives.end_s[owner])
    run = Spans.of(owner, starts_s, ends_s).merged()
    return Curve.of(
        np.concatenate((exist.start_s, exist.end_s, run.start_s, run.end_s)),
        np.repeat([1.0, -1.0, -1.0, 1.0], [len(exist.owner)] * 2 + [len(run.owner)] * 2),
        from_s,
        now_s,
    )


def allocated_curve(bars: AttemptBars, layout: Layout, from_s: float, now_s: float) -> Curve:
    """How many GPUs of the cluster were allocated to at least one job; all that were, where no cluster is known."""
    counted = np.array([not layout.gpu_ids or each in layout.index for each in bars.gpu_ids], np.bool_)
    gpus = np.asarray(bars.gpu_indexes, np.int64)
    there = counted[gpus] if len(gpus) else np.zeros(0, np.bool_)
    starts_s, ends_s = np.asarray(bars.starts_s, np.float64)[there], np.asarray(bars.ends_s, np.float64)[there]
    held = Spans.of(gpus[there], starts_s, ends_s).merged()
    changes = np.repeat([1.0, -1.0], len(held.owner))
    return Curve.of(np.concatenate((held.start_s, held.end_s)), changes, from_s, now_s)


def folded_curve(given: AttemptOccupancy, from_s: float, now_s: float) -> Curve:
    """The mean number of GPUs that were allocated in each part of the range, where single attempts are too many."""
    held = np.frombuffer(given.held, np.uint8).reshape(len(given.row_names), given.bucket_count) / 255.0
    named = np.array([bool(each) for each in given.row_names], np.bool_)
    counts = (held * np.asarray(given.gpu_counts, np.float64)[:, None])[named].sum(axis=0)
    times = from_s + given.bucket_s * np.arange(given.bucket_count)
    there = times < now_s
    if not there.any():
        return Curve(np.array([from_s, now_s]), np.zeros(2))
    return Curve(np.append(times[there], now_s), np.append(counts[there], counts[there][-1]))


def load_document(
    lives: Lives, history: AttemptHistory, layout: Layout, asked_s: float, from_s: float, now_s: float
) -> dict[str, Any]:
    """Both curves for the page.

    Args:
        lives: the user's jobs, all that had not ended at the begin of the range.
        history: what ran in it.
        layout: the cluster's GPUs.
        asked_s: where the range was asked to begin.
        from_s: where it begins: later, where jobs of the time before are not known.
        now_s: its end.
    """
    if history.bars is not None:
        allocated = allocated_curve(history.bars, layout, from_s, now_s).thinned(PARTS)
    else:
        assert history.occupancy is not None
        allocated = folded_curve(history.occupancy, from_s, now_s)
    return {
        "asked_s": number(asked_s),
        "from_s": number(from_s),
        "now_s": number(now_s),
        "exact": history.bars is not None,
        "waiting": waiting_curve(lives, history.bars, from_s, now_s).thinned(PARTS).document(),
        "allocated": allocated.document(),
    }


async def load_answer(
    client: AsyncClient, viewer: Viewer, picture: Picture, query: Mapping[str, str]
) -> dict[str, Any]:
    """The curves of the last `span_s` seconds, or since the cluster's clock began. Raises Unavailable.

    Args:
        client: the user's.
        viewer: whose jobs are counted.
        picture: with the table of jobs, which is that of now.
        query: the range.
    """
    span_s = real(query, "span_s", DEFAULT_SPAN_S, _SHORTEST_SPAN_S, LONGEST_WINDOW_S)
    now_s = picture.time_s(time.time())
    if now_s is None:
        raise Unavailable("the services have not said yet what time it is; try again in a moment")
    asked_s = max(now_s - span_s, 0.0)
    known_s = picture.jobs.known_since_s
    from_s = max(asked_s, known_s) if known_s < now_s else asked_s
    layout = picture.layout
    if picture.cluster is None and (cluster := await or_none(client.cluster())) is not None:
        layout = Layout.of(cluster)
    history = await client.query_attempts(from_s, now_s, max_bars=MOST_BARS, bucket_count=PARTS)
    # After the attempts: what started meanwhile has its start here.
    lives = picture.jobs.lives(from_s, viewer.only_user)
    # Tens of thousands of jobs take some hundredths of a second: beside the loop that serves every page.
    return await asyncio.to_thread(load_document, lives, history, layout, asked_s, from_s, now_s)
