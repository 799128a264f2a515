"""Job records in Redis and the scripts that change them: every change and its stream entry in one atomic step.

ingest creates jobs and requests cancellation; the acting orchestrator moves them on; nobody else writes.
Both call this package; nothing else touches these keys.

    adlro:jobs:sequence      counter; job n is `job-<n>`
    adlro:jobs:revision      counter; one for every change of any job
    adlro:jobs:events        stream; entry `<revision>-0`, field m = JobStreamEntry
    adlro:job:<job_id>       hash; m = Job (without revision), rev, version (of the orchestrator), state
    adlro:jobs:active        set; ids of jobs that are not final
    adlro:jobs:active:users  hash; user -> how many of his jobs are not final
    adlro:jobs:user:<user>   sorted set; ids of all his jobs, by number; under `?` those of nobody knows whom
    adlro:jobs:index         hash; which jobs are in these sets: 1 to `done`, and `from` to `to`; made anew if deleted
    adlro:jobs:buckets       hash; user -> "<what is left of his burst> <Redis' time then>", where the rate is limited
    adlro:jobs:requests      hash; "<user> <request_id>" -> "<job_id> <digest of the payload>"
    adlro:outcomes           stream; field m = OutcomeStreamEntry
    adlro:orchestrator:token, :lease   the acting orchestrator (see services/orchestrator/lease.py)
    adlro:orchestrator:cursor          hash; what of the cluster's events has been applied
    adlro:orchestrator:attained        hash; user -> GPU seconds of his ended attempts, written with the record of each
                                       end: nobody has to read all jobs that ever were
"""

from adlro.store.jobs import MOVES_AT_ONCE, JobStore
from adlro.store.keys import (
    ACTIVE,
    ATTAINED,
    CURSOR,
    EVENTS,
    EVENTS_KEPT,
    INDEX,
    JOB,
    OUTCOMES,
    OUTCOMES_KEPT,
    PREFIX,
    REQUESTS,
    REVISION,
    SEQUENCE,
    TOKEN,
    USER,
)
from adlro.store.reads import PAGE_BYTES, JobReads, not_found
from adlro.store.records import (
    Created,
    Cursor,
    JobChange,
    JobEvent,
    Move,
    NewJob,
    Outcome,
    SubmitLimits,
    sequence_of,
)
from adlro.store.unreadable import Unreadable

__all__ = [
    "ACTIVE",
    "ATTAINED",
    "CURSOR",
    "EVENTS",
    "EVENTS_KEPT",
    "INDEX",
    "JOB",
    "MOVES_AT_ONCE",
    "OUTCOMES",
    "OUTCOMES_KEPT",
    "PAGE_BYTES",
    "PREFIX",
    "REQUESTS",
    "REVISION",
    "SEQUENCE",
    "TOKEN",
    "USER",
    "Created",
    "Cursor",
    "JobChange",
    "JobEvent",
    "JobReads",
    "JobStore",
    "Move",
    "NewJob",
    "Outcome",
    "SubmitLimits",
    "Unreadable",
    "not_found",
    "sequence_of",
]
