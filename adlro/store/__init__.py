"""Job records in Redis and the scripts that change them: every change and its stream entry in one atomic step.

ingest creates jobs and records what is asked for them (their end, a hold, a change); the acting orchestrator changes
their state; no other service writes.
Both call this package. `adlro.store.keys` lists all Redis keys, with their writers and readers.
"""

from adlro.store.jobs import MOVES_AT_ONCE, JobStore
from adlro.store.reads import PAGE_BYTES, JobReads, not_found
from adlro.store.records import (
    Created,
    CreatedArray,
    Cursor,
    JobChange,
    JobEnd,
    JobStreamEntry,
    Move,
    NewArray,
    NewJob,
    Outcome,
    SubmitLimits,
    sequence_of,
)
from adlro.store.unreadable import Unreadable

__all__ = [
    "MOVES_AT_ONCE",
    "PAGE_BYTES",
    "Created",
    "CreatedArray",
    "Cursor",
    "JobChange",
    "JobEnd",
    "JobReads",
    "JobStore",
    "JobStreamEntry",
    "Move",
    "NewArray",
    "NewJob",
    "Outcome",
    "SubmitLimits",
    "Unreadable",
    "not_found",
    "sequence_of",
]
