"""Records as JSON documents: field names are the keys, which are as stable as the records. Pure functions."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Mapping, Sequence
from typing import Any

from adlro.placement import Placement
from adlro.records.jobs import Job


def document(value: Any) -> Any:
    """A value for `json.dumps`: dataclasses as objects, enums as lower-case names, NaN and infinity as null.

    Jobs also have figures computed from their times: wait_s, runtime_s, jct_s, attempt_count.
    """
    if isinstance(value, enum.Enum):
        return value.name.lower()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        made = {each.name: document(getattr(value, each.name)) for each in dataclasses.fields(value)}
        if isinstance(getattr(value, "placement", None), Placement):
            made["gpu_id"] = value.placement.gpu_id  # type: ignore[attr-defined]
        if isinstance(value, Job):
            if not made["pending_reason"] or made["pending_reason"] == "none":
                made["pending_reason"] = None
            made |= {
                "attempt_count": value.attempt_count,
                "wait_s": wait_s(value),
                "runtime_s": value.runtime_s,
                "jct_s": value.jct_s,
            }
        return made
    if isinstance(value, Mapping):
        return {_key(key): document(each) for key, each in value.items()}
    if isinstance(value, str | int | bool) or value is None:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Sequence | set | frozenset):
        return [document(each) for each in value]
    if hasattr(value, "tolist"):  # arrays and their scalars
        return document(value.tolist())
    raise TypeError(f"no JSON for {type(value).__name__}")


def _key(key: Any) -> str:
    return key.name.lower() if isinstance(key, enum.Enum) else str(key)


def wait_s(job: Job) -> float | None:
    """Submission (or begin time) to the last start; None before a start."""
    return None if job.submit_s is None or job.start_s is None else job.start_s - job.submit_s
