"""Names of what is kept in Redis; see the package's description."""

from __future__ import annotations

PREFIX = "adlro:"
SEQUENCE = PREFIX + "jobs:sequence"
REVISION = PREFIX + "jobs:revision"
EVENTS = PREFIX + "jobs:events"
JOB = PREFIX + "job:"
ACTIVE = PREFIX + "jobs:active"
REQUESTS = PREFIX + "jobs:requests"
INDEX = PREFIX + "jobs:index"
USER = PREFIX + "jobs:user:"
OUTCOMES = PREFIX + "outcomes"
TOKEN = PREFIX + "orchestrator:token"
CURSOR = PREFIX + "orchestrator:cursor"
ATTAINED = PREFIX + "orchestrator:attained"

# Instead of a user's name: whose jobs these are could not be read when the index was made. No user is called so.
UNKNOWN_USER = "?"

# How many changes a watcher may be behind. Nobody loses a job by this: records live in hashes, and a follower that
# finds a gap in the revisions reads them anew.
EVENTS_KEPT = 500_000
OUTCOMES_KEPT = 100_000
