"""What ran where between two times, as ingest tells a user: bars or, where they are too many, how much was held.

Of another user's job, which he may not know, a bar has the GPU and the times, and nothing else. No I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final

import numpy as np

from adlro.records.history import AttemptBars, AttemptHistory, AttemptOccupancy, AttemptOutcome, RowKind
from adlro.records.jobs import JobType
from adlro.services.web.documents import number, type_name
from adlro.services.web.picture import Layout

MAX_BARS: Final = 5000
BUCKETS: Final = 240
OUTCOMES: Final = {
    AttemptOutcome.UNSPECIFIED: None,
    AttemptOutcome.RUNNING: "running",
    AttemptOutcome.SUCCEEDED: "succeeded",
    AttemptOutcome.FAILED: "failed",
    AttemptOutcome.LOST: "lost",
    AttemptOutcome.STOPPED: "cancelled",
    AttemptOutcome.PREEMPTED: "preempted",
}


def gantt_document(
    layout: Layout,
    history: AttemptHistory,
    now_s: float,
    name_of: Callable[[str], str | None],
    differing: Collection[tuple[str, int]] | None,
) -> dict[str, Any]:
    """An answer for the Gantt screen.

    Args:
        layout: the cluster's GPUs; bars on others are left out.
        history: ingest's answer to the user.
        now_s: the clock's time now.
        name_of: the name of a job that he may see; None: not known here.
        differing: attempts that the shadow policy would have started otherwise; None: not known.
    """
    bars = None if history.bars is None else _bars(layout, history.bars, name_of, differing)
    return {
        "from_s": history.from_s,
        "to_s": history.to_s,
        "now_s": number(now_s),
        "gpus": layout.gpu_ids,
        "nodes": layout.nodes,
        "node": layout.node,
        "models": layout.models,
        "model": layout.model,
        "bars": bars,
        "occupancy": None if history.occupancy is None else _occupancy(layout, history.occupancy),
        "bar_count": history.bar_count,
        "left_out": history.bar_count if bars is None else history.bar_count - len(bars["gpu"]),
    }


def _bars(
    layout: Layout,
    bars: AttemptBars,
    name_of: Callable[[str], str | None],
    differing: Collection[tuple[str, int]] | None,
) -> dict[str, list[Any]]:
    found = [(layout.index[bar.gpu_id], bar) for bar in bars if bar.gpu_id in layout.index]
    found.sort(key=lambda each: (each[0], each[1].start_s))
    shown = [bar for _, bar in found]
    return {
        "gpu": [at for at, _ in found],
        "start_s": [bar.start_s for bar in shown],
        "end_s": [number(bar.end_s) for bar in shown],
        "job": [bar.job_id for bar in shown],
        "name": [name_of(bar.job_id) if bar.job_id else None for bar in shown],
        "user": [bar.user or None for bar in shown],
        "type": [type_name(JobType(bar.job_type)) for bar in shown],
        "outcome": [OUTCOMES[bar.outcome] for bar in shown],
        "differs": [None if differing is None else (bar.job_id, bar.attempt) in differing for bar in shown],
    }


def _occupancy(layout: Layout, given: AttemptOccupancy) -> dict[str, Any]:
    """The share of each node's GPU time that was held, in each part of the range.

    With very many nodes ingest tells it by GPU model: then each node shows its model's.
    """
    ratios = np.frombuffer(given.held, np.uint8).reshape(len(given.row_names), given.bucket_count) / 255.0
    rows = {name: [round(float(each), 3) for each in row] for name, row in zip(given.row_names, ratios, strict=True)}
    model_of = {layout.node_of[gpu_id]: model for gpu_id, model in layout.model_of.items()}
    by_node = given.row_kind is RowKind.NODE
    names = [name if by_node else model_of.get(name, "") for name in layout.nodes]
    return {
        "bucket_s": given.bucket_s,
        "row_kind": given.row_kind.name.lower(),
        "node": [rows.get(name, [0.0] * given.bucket_count) for name in names],
    }
