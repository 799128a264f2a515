"""The names of all Redis keys of ADLRO. No other file below adlro/ and services/ spells one; a test checks.

Writers (by) and readers (for): I ingest, O the acting orchestrator, D decompose, S simcluster, C the
service of any cluster, E an evaluation (which also
writes jobs, outcomes and clusters into its own store, as I and O do). Only `adlro.store` touches the jobs' record,
the first part; but O's lease makes the tokens, and D reads the outcomes itself.

    key                                   type    by  for what it holds
    adlro:jobs:sequence                   number  I   I   how many jobs there are; job n is `job-<n>`
    adlro:jobs:revision                   number  IO  IO  how many changes of all jobs there were
    adlro:jobs:events                     stream  IO  IO  entry `<revision>-0`: m = JobStreamEntry
    adlro:job:<job_id>                    hash    IO  IO  m = Job (without revision), rev, version (of the
                                                          orchestrator), state; cancel where its end was asked for;
                                                          ran = in which adlro:jobs:ran it is; asked = how many
                                                          requests there were, applied = up to which one they are
                                                          applied, r<n> = JobRequest n as a field of Job; once =
                                                          digests of the last 32 that had a request_id
    adlro:jobs:array:<array_id>           hash    IO  IO  count = jobs of the array, ended = how many are final,
                                                          failed = how many of these have not succeeded
    adlro:jobs:active                     set     IO  IO  ids of the jobs that are not final
    adlro:jobs:active:users               hash    IO  I   user -> how many of his jobs are not final
    adlro:jobs:user:<user>                zset    I   IO  ids of all his jobs, by number; under `?` those of nobody
                                                          knows whom
    adlro:jobs:index                      hash    I   I   which jobs are in these sets: 1 to `done`, and `from` to
                                                          `to`; made anew if deleted
    adlro:jobs:ended                      zset    IO  I   numbers of all jobs that are final, in 18 digits, by the
                                                          cluster time of their end; -inf: not known. Written with
                                                          the move to the end; I adds those of older releases
    adlro:jobs:ran:<class>                zset    IO  I   likewise, of the jobs that began to run: from the first
                                                          attempt's start to the end it took at most 2^<class>
                                                          seconds; class 31: any time. The record has its class (ran)
    adlro:jobs:buckets                    hash    I   I   user -> "<what is left of his burst> <Redis' time then>",
                                                          where the rate is limited
    adlro:jobs:requests                   hash    I   I   "<user> <request_id>" -> "<job_id> <digest of the payload>"
    adlro:outcomes                        stream  O   D   m = OutcomeStreamEntry
    adlro:orchestrator:token              number  O   OS  the newest fencing token: adlro.store refuses moves with
                                                          another one, clusters an older one
    adlro:orchestrator:cursor             hash    O   O   what of the cluster's events has been applied: incarnation,
                                                          revision, time_s, last_event_s, hold_until_s; reserved =
                                                          "<revision> <since> <job_id>", whom GPUs are kept free for
    adlro:orchestrator:attained           hash    O   O   user -> GPU seconds of his ended attempts, and the cluster
                                                          time of this figure (with a half-life); written with the
                                                          record of each end: nobody has to read all jobs that ever
                                                          were

    adlro:orchestrator:lease              string  O   O   the instance id of the one that acts; expires
    adlro:orchestrator:policy             string  O   O   the name of the policy that was set
    adlro:orchestrator:shadow             string  O   O   the name of the policy in its shadow; empty: none
    adlro:orchestrator:drained            hash    O   O   node id -> why nothing starts there
    adlro:orchestrator:quotas             hash    O   O   user, or * -> the most GPUs that his jobs may hold at once
    adlro:orchestrator:fair_shares        hash    O   O   user, or @group -> "<shares> <group>", for fair share
    adlro:orchestrator:decisions          stream  O   O   entry `3-17` of decision d-3-17: m = DecisionStreamEntry, a
                                                          summary; the oldest entries go
    adlro:orchestrator:explanations       stream  O   O   the same, with all that is kept of a decision; fewer of them
    adlro:orchestrator:forecasts          stream  O   O   forecasts of starts that have finished: kind, error, in = 1
                                                          where the job started in the interval; the oldest go
    adlro:clusters                        hash    I   ID  cluster -> Cluster
    adlro:current_cluster                 string  I   ID  the cluster that was described last; who names none means
                                                          that one
    adlro:telemetry:<cluster>             stream  I   ID  m = TelemetryStreamEntry; the oldest entries go
    adlro:telemetry:latest:<cluster>      hash    I   ID  source -> NormalizedBlock of one sample time
    adlro:telemetry:latest_time:<cluster> hash    I   I   source -> that time, unix seconds
    adlro:page_secret                     string  IO  IO  the key that page tokens are signed with: of all replicas
    adlro:cluster:<cluster>:side          hash    C   C   incarnation, revision, acknowledged, token, lost, note,
                                                          m = Cluster; term, write = which process wrote it, and its
                                                          how manieth time
    adlro:cluster:<cluster>:events        stream  C   C   entry `<revision of its last event>-0`: m =
                                                          WatchEventsResponse
    adlro:cluster:<cluster>:attempts      hash    C   C   job id -> AttemptRecord
    adlro:cluster:<cluster>:wake_ups      zset    C   C   cluster times
    adlro:cluster:<cluster>:clock         hash    S   S   mode, scale, paused; time_s = no time beyond it was told to
                                                          anybody; settings = the clock that the settings asked for
                                                          when these were written; term, write = which process wrote
                                                          it, and its how manieth time
    adlro:store                           hash    IOS IODS format = of all that is kept here; oldest_user = the oldest
                                                          format whose releases may use it; release = what wrote that
    adlro:evaluation                      string  E   E   "taken": an evaluation uses this store, and no other one may
    adlro:probe                           none            never there: asked for to see whether Redis takes changes
                                                          (adlro/kit/redis.py, which stands below this room)
"""

from __future__ import annotations

SEQUENCE = "adlro:jobs:sequence"
REVISION = "adlro:jobs:revision"
EVENTS = "adlro:jobs:events"
JOB = "adlro:job:"
"""Prefix of a job's id; see `job_key`."""
ACTIVE = "adlro:jobs:active"
ACTIVE_COUNTS = "adlro:jobs:active:users"
USER = "adlro:jobs:user:"
"""Prefix of a user's name; see `user_key`."""
ARRAY = "adlro:jobs:array:"
"""Prefix of an array's id; see `array_key`."""
INDEX = "adlro:jobs:index"
ENDED = "adlro:jobs:ended"
RAN = "adlro:jobs:ran:"
"""Prefix of a class of durations; see `ran_key`."""
BUCKETS = "adlro:jobs:buckets"
REQUESTS = "adlro:jobs:requests"
OUTCOMES = "adlro:outcomes"
TOKEN = "adlro:orchestrator:token"
CURSOR = "adlro:orchestrator:cursor"
ATTAINED = "adlro:orchestrator:attained"

LEASE = "adlro:orchestrator:lease"
POLICY = "adlro:orchestrator:policy"
SHADOW = "adlro:orchestrator:shadow"
DRAINED = "adlro:orchestrator:drained"
QUOTAS = "adlro:orchestrator:quotas"
FAIR_SHARES = "adlro:orchestrator:fair_shares"
DECISIONS = "adlro:orchestrator:decisions"
EXPLANATIONS = "adlro:orchestrator:explanations"
FORECASTS = "adlro:orchestrator:forecasts"
CLUSTERS = "adlro:clusters"
CURRENT_CLUSTER = "adlro:current_cluster"
PAGE_SECRET = "adlro:page_secret"
EVALUATION = "adlro:evaluation"
STORE = "adlro:store"

OF_JOBS = "adlro:job*"
"""A pattern, not a key: what of the jobs' record is neither the outcomes nor the orchestrator's."""

# The last class of durations, of any length.
LONGEST_RAN = 31

# Instead of a user's name: whose jobs these are could not be read when the index was made. No user is called so.
UNKNOWN_USER = "?"

# How many changes a watcher may be behind. Trimming loses no job: records are in hashes, and a follower that
# finds a gap in the revisions reads them again.
EVENTS_KEPT = 500_000
OUTCOMES_KEPT = 100_000


def job_key(job_id: str) -> str:
    """The key of a job's record."""
    return JOB + job_id


def user_key(user: str) -> str:
    """The key of the index of a user's jobs."""
    return USER + user


def array_key(array_id: str) -> str:
    """The key of the counts of an array's jobs."""
    return ARRAY + array_id


def ran_key(duration_class: int) -> str:
    """The key of the ended jobs of a class of durations."""
    return f"{RAN}{duration_class}"


def telemetry_key(cluster: str) -> str:
    """The key of the stream of a cluster's telemetry."""
    return f"adlro:telemetry:{cluster}"


def telemetry_latest_key(cluster: str) -> str:
    """The key of the newest sample of each source."""
    return f"adlro:telemetry:latest:{cluster}"


def telemetry_latest_time_key(cluster: str) -> str:
    """The key of the times of these samples."""
    return f"adlro:telemetry:latest_time:{cluster}"


def cluster_keys(cluster: str) -> tuple[str, str, str, str]:
    """The keys of a cluster's record: its state, its event log, its attempts, its wake-ups."""
    before = f"adlro:cluster:{cluster}:"
    return f"{before}side", f"{before}events", f"{before}attempts", f"{before}wake_ups"


def clock_key(cluster: str) -> str:
    """The key of a simulated cluster's clock."""
    return f"adlro:cluster:{cluster}:clock"
