"""Job records as plain data. Knows no gRPC and no Redis: `adlro.store` stores them, `adlro.wire` translates them.

Times named `*_s` are seconds of cluster time, `*_unix_s` seconds of wall time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from adlro.errors import InvalidInput
from adlro.placement import NOWHERE, Placement
from adlro.records.dependencies import JobDependency, read_dependencies
from adlro.records.job_requests import JobHold, JobRequest
from adlro.records.named import NamedEnum
from adlro.records.outcomes import NeighbourTime
from adlro.records.payloads import ExitStatus, Payload
from adlro.records.spelling import Spelling, spelled
from adlro.text import visible
from adlro.units import given_duration_s, given_size_mib


class JobType(NamedEnum):
    """The kind of a job's work; numbers as in job.proto. UNSPECIFIED: its user did not state it."""

    UNSPECIFIED = 0
    SIMULATION = 1
    MACHINE_LEARNING = 2
    DATA_PROCESSING = 3

    @classmethod
    def short_names(cls) -> Mapping[str, str]:
        """`ml`, `data` and `sim`, as for `adlro submit --type`."""
        return {"ml": "machine_learning", "data": "data_processing", "sim": "simulation"}

    @property
    def label(self) -> str:
        """Lower-case name, as in tables and traces: `machine_learning`."""
        return self.name.lower()


REFERENCE_GPU_MODEL = "v100_sxm2"
"""The model of an expected runtime that names none, as of `adlro submit --on`."""

KINDS_OF_WORK = (JobType.SIMULATION, JobType.MACHINE_LEARNING, JobType.DATA_PROCESSING)
"""The three stated job types."""


class JobState(NamedEnum):
    """The state of a job; numbers as in job.proto."""

    PENDING = 1
    RUNNING = 2
    SUCCEEDED = 3
    FAILED = 4
    CANCELLED = 5

    @property
    def final(self) -> bool:
        """Whether the state never changes any more."""
        return self >= JobState.SUCCEEDED


class PendingReason(NamedEnum):
    """The reason why a pending job waits; numbers as in job.proto. NONE for jobs that are not pending."""

    NONE = 0
    SUBMITTED = 1
    BEGIN_TIME = 2
    RESOURCES = 3
    POLICY = 4
    LAUNCHING = 5
    NO_FITTING_GPU = 6
    CLUSTER_UNAVAILABLE = 7
    NODES_DRAINED = 8
    LAUNCH_REFUSED = 9
    GANG_NODES = 10
    RESERVED = 11
    NO_FITTING_NODES = 12
    HELD = 13
    DEPENDENCY = 14
    ARRAY_LIMIT = 15
    QUOTA = 16


@dataclass(frozen=True, slots=True)
class ArrayTask:
    """A job's place in its array.

    Attributes:
        array_id: such as "array-20"; empty until ingest has given it.
        index: as its user chose it.
        count: jobs of the array.
        max_running_count: the most of them that may run at once; 0: any number.
    """

    array_id: str
    index: int
    count: int
    max_running_count: int = 0


@dataclass(frozen=True, slots=True)
class ExpectedRuntime:
    """A user's estimate: `runtime_s` seconds on `gpu_model`, with all GPUs of the job on as few nodes as hold them."""

    gpu_model: str
    runtime_s: float


@dataclass(frozen=True, slots=True)
class SimulatedWork:
    """The work on a simulated cluster: seconds on reference GPUs, on few nodes; it may fail after a share of it."""

    work_s: float
    fails_at_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class Preemptible:
    """The cost of a stop for a job that can be stopped for another one and goes on later.

    Attributes:
        restart_s: each start after a stop holds the job's GPUs so long before its work goes on.
        lost_s: work that a stop loses.
        grace_s: between the request to stop (SIGTERM) and the end by force (SIGKILL); None: the payload's.
    """

    restart_s: float = 0.0
    lost_s: float = 0.0
    grace_s: float | None = None


@dataclass(frozen=True, slots=True)
class AttemptRef:
    """An attempt of a job."""

    job_id: str
    attempt: int


def _preemptible(given: object, field: str) -> Preemptible | None:
    """What a stop costs, of True, False, or a mapping such as `{"restart": "60s", "lost": "10m"}`."""
    if given is None or isinstance(given, Preemptible):
        return given
    if isinstance(given, bool):
        return Preemptible() if given else None
    if not isinstance(given, Mapping):
        raise InvalidInput(f"{field}: {given!r} is neither True nor False, nor what a stop costs", field=field)
    costs = {"restart": "restart_s", "lost": "lost_s", "grace": "grace_s"}
    for name in given:
        if name not in costs:
            raise InvalidInput(f"{field}: there is no {name!r}; there are {', '.join(costs)}", field=field)
    return Preemptible(**{costs[name]: given_duration_s(each, f"{field}.{name}") for name, each in given.items()})


def _begin_s(given: object, field: str) -> float:
    try:
        return given_duration_s(given, field)
    except InvalidInput:
        raise InvalidInput(
            f"{field}: {given!r} is no time of the cluster's clock, which counts seconds: in an hour is "
            f"{field}=client.clock().time_s + 3600 (adlro submit --begin reads other times, too)",
            field=field,
        ) from None


def _one_model(given: object, field: str) -> str:
    if not isinstance(given, str):
        raise InvalidInput(f"{field}: {given!r} is not the name of a GPU model", field=field)
    return given


def _models(given: object, field: str) -> tuple[str, ...]:
    """GPU models, of one name or several."""
    if isinstance(given, str):
        return (given,) if given else ()
    if isinstance(given, Collection) and all(isinstance(each, str) for each in given):
        return tuple(given)
    raise InvalidInput(f"{field}: {given!r} is neither the name of a GPU model nor a list of names", field=field)


def _nodes(given: object, field: str) -> tuple[str, ...]:
    """Ids of nodes, of a text such as "n1,n2" or a list of such texts."""
    parts = (given,) if isinstance(given, str) else given
    if isinstance(parts, Collection) and all(isinstance(each, str) for each in parts):
        names = (name.strip() for each in parts for name in each.split(","))
        return tuple(dict.fromkeys(name for name in names if name))
    raise InvalidInput(f"{field}: {given!r} is neither the name of a node nor a list of names", field=field)


def _as_given(given: object, field: str) -> object:
    return given


def _dependencies(given: object, field: str) -> tuple[JobDependency, ...]:
    parts = [given] if isinstance(given, str | JobDependency | Job) else given
    if not isinstance(parts, Collection):
        raise InvalidInput(f"{field}: must be jobs such as 'job-17:any', not {given!r}", field=field)
    found: list[JobDependency] = []
    for each in parts:
        if isinstance(each, JobDependency):
            found.append(each)
        elif isinstance(each, str | Job):
            found += read_dependencies(each if isinstance(each, str) else each.job_id)
        else:
            raise InvalidInput(f"{field}: must be jobs such as 'job-17:any', not {each!r}", field=field)
    return tuple(found)


# The names that `adlro submit` and job files use, and what they mean here.
_SPELLINGS: Mapping[str, Spelling] = {
    "type": Spelling("job_type", JobType.of),
    "gpus": Spelling("gpu_count", _as_given),
    "max_nodes": Spelling("max_node_count", _as_given),
    "gpu_model": Spelling("gpu_models", _models),
    "nodelist": Spelling("node_ids", _nodes),
    "exclude": Spelling("excluded_node_ids", _nodes),
    "cores": Spelling("cpu_cores", _as_given),
    "memory": Spelling("memory_mib", given_size_mib),
    "gpu_memory": Spelling("gpu_memory_mib", given_size_mib),
    "time_limit": Spelling("time_limit_s", given_duration_s),
    "begin": Spelling("begin_time_s", _begin_s),
    "hold": Spelling("held", _as_given),
    "work": Spelling("simulated_work", lambda given, field: SimulatedWork(given_duration_s(given, field))),
    "runtime": Spelling(
        "expected_runtime",
        lambda given, field: ExpectedRuntime(REFERENCE_GPU_MODEL, given_duration_s(given, field)),
        with_={"on": lambda made, given, field: ExpectedRuntime(_one_model(given, field), made.runtime_s)},
    ),
}


@spelled(_SPELLINGS)
@dataclass(frozen=True, slots=True, repr=False)
class JobSpec:
    """A user's request, with all defaults.

    It can be written with the names and values of `adlro submit` and of job files as well:
    `JobSpec(job_type="ml", gpus=4, memory="16GiB", time_limit="1h")`. These are `type`, `gpus`, `max_nodes`,
    `gpu_model`, `nodelist`, `exclude`, `cores`; `memory` and `gpu_memory` (texts with a unit); `time_limit`,
    `begin`, `runtime` with `on`, and `work` (numbers of seconds, texts such as `1h30m`, or timedelta).
    `preemptible` may be True, or a mapping of what a stop costs; `after` jobs such as `job-17:any`. The attributes
    always have the exact names and units.

    Attributes:
        name: empty: the client makes one, of application or type.
        user: empty: the user of the client's token, else the login.
        cpu_cores, memory_mib, gpu_memory_mib: with each of its GPUs.
        gpu_count: its GPUs, all of one model.
        max_node_count: the most nodes that they may be on; 0: any number.
        gpu_models: the GPU models that it may run on; empty: any.
        preemptible: it may be stopped for another job, at this cost; None: it is never stopped.
        shareable: it may share its GPU with one other job that may as well.
        after: what must have ended before it may start.
        held: it is submitted held, and starts after its release.
        array: its place in its array; None: it is in none.
        exclusive: no other job runs on its nodes while it runs.
        node_ids: the nodes that it may run on; empty: any.
        excluded_node_ids: the nodes that it must not run on.
    """

    name: str = ""
    user: str = ""
    job_type: JobType = JobType.UNSPECIFIED
    application: str = ""
    priority: float = 0.5
    cpu_cores: int = 1
    memory_mib: int = 4096
    gpu_memory_mib: int = 0
    gpu_count: int = 1
    expected_runtime: ExpectedRuntime | None = None
    time_limit_s: float | None = None
    begin_time_s: float | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    simulated_work: SimulatedWork | None = None
    payload: Payload | None = None
    max_node_count: int = 0
    gpu_models: tuple[str, ...] = ()
    preemptible: Preemptible | None = None
    shareable: bool = False
    after: tuple[JobDependency, ...] = ()
    held: bool = False
    array: ArrayTask | None = None
    exclusive: bool = False
    node_ids: tuple[str, ...] = ()
    excluded_node_ids: tuple[str, ...] = ()

    if TYPE_CHECKING:
        # What type checkers see; at run time `spelled` reads these names. A field of the class belongs here, too.
        def __init__(
            self,
            name: str = "",
            user: str = "",
            job_type: JobType | str = JobType.UNSPECIFIED,
            application: str = "",
            priority: float = 0.5,
            cpu_cores: int = 1,
            memory_mib: int = 4096,
            gpu_memory_mib: int = 0,
            gpu_count: int = 1,
            expected_runtime: ExpectedRuntime | None = None,
            time_limit_s: float | None = None,
            begin_time_s: float | None = None,
            labels: Mapping[str, str] = ...,
            simulated_work: SimulatedWork | None = None,
            payload: Payload | None = None,
            max_node_count: int = 0,
            gpu_models: Collection[str] | str = (),
            preemptible: Preemptible | Mapping[str, float | str | timedelta] | bool | None = None,
            shareable: bool = False,
            after: Collection[JobDependency | Job | str] | JobDependency | Job | str = (),
            held: bool = False,
            array: ArrayTask | None = None,
            exclusive: bool = False,
            node_ids: Collection[str] | str = (),
            excluded_node_ids: Collection[str] | str = (),
            *,
            type: JobType | str | None = None,  # noqa: A002  # the name in job files
            gpus: int | None = None,
            max_nodes: int | None = None,
            gpu_model: Collection[str] | str | None = None,
            nodelist: Collection[str] | str | None = None,
            exclude: Collection[str] | str | None = None,
            cores: int | None = None,
            memory: str | int | None = None,
            gpu_memory: str | int | None = None,
            time_limit: float | str | timedelta | None = None,
            begin: float | str | timedelta | None = None,
            runtime: float | str | timedelta | None = None,
            on: str | None = None,
            work: float | str | timedelta | None = None,
            hold: bool | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        # What was given, which may be more than the attributes' types say.
        job_type: object = self.job_type
        gpu_models: object = self.gpu_models
        preemptible: object = self.preemptible
        if not isinstance(job_type, JobType):
            object.__setattr__(self, "job_type", JobType.of(job_type, "job_type"))
        if type(gpu_models) is not tuple:
            object.__setattr__(self, "gpu_models", _models(gpu_models, "gpu_models"))
        node_ids: object = self.node_ids
        excluded: object = self.excluded_node_ids
        if type(node_ids) is not tuple:
            object.__setattr__(self, "node_ids", _nodes(node_ids, "node_ids"))
        if type(excluded) is not tuple:
            object.__setattr__(self, "excluded_node_ids", _nodes(excluded, "excluded_node_ids"))
        after: object = self.after
        if type(after) is not tuple or any(not isinstance(each, JobDependency) for each in after):
            object.__setattr__(self, "after", _dependencies(after, "after"))
        if preemptible is not None and not isinstance(preemptible, Preemptible):
            object.__setattr__(self, "preemptible", _preemptible(preemptible, "preemptible"))

    def __repr__(self) -> str:
        # Only what differs from the defaults: twenty fields in a row are not read.
        told = (f"{each.name}={getattr(self, each.name)!r}" for each in fields(self) if self._is_set(each))
        return f"JobSpec({', '.join(told)})"

    def _is_set(self, one: Field[Any]) -> bool:
        default = one.default_factory() if one.default_factory is not MISSING else one.default
        return bool(getattr(self, one.name) != default)

    def accepts(self, gpu_model: str) -> bool:
        """Whether it may run on a GPU model."""
        return not self.gpu_models or gpu_model in self.gpu_models

    @property
    def chooses_nodes(self) -> bool:
        """Whether it names nodes that it may, or must not, run on."""
        return bool(self.node_ids or self.excluded_node_ids)

    def accepts_node(self, node_id: str) -> bool:
        """Whether it may run on a node."""
        return (not self.node_ids or node_id in self.node_ids) and node_id not in self.excluded_node_ids

    def accepted_nodes(self, node_ids: Iterable[str]) -> frozenset[str]:
        """Those of some nodes that it may run on; for many at once quicker than `accepts_node`."""
        found = frozenset(node_ids).difference(self.excluded_node_ids)
        return found.intersection(self.node_ids) if self.node_ids else found


@dataclass(frozen=True, slots=True)
class JobReservation:
    """GPUs that are kept free for a job that waits for several.

    Others get GPUs of these nodes only if they are expected to end before it starts, or fit into the slack.

    Attributes:
        job_id: the job that holds it.
        since_s: cluster time since which it is held.
        gpu_model, node_ids: where the job is expected to start; worked out anew at each decision, as what follows.
        expected_start_s: cluster time at which it is expected to start there.
        slack_gpu_count: GPUs of the nodes that are expected to be free then, beyond those of the job.
        gpu_count: GPUs of the job.
    """

    job_id: str
    since_s: float
    gpu_model: str
    node_ids: tuple[str, ...]
    expected_start_s: float
    slack_gpu_count: int
    gpu_count: int


@dataclass(frozen=True, slots=True)
class NormalizedJob:
    """A job's fields normalised to 0..1 by ingest's table."""

    priority: float = 0.0
    cpu_cores: float = 0.0
    memory: float = 0.0
    gpu_memory: float = 0.0
    expected_runtime: float = 0.0


@dataclass(frozen=True, slots=True)
class JobAttempt:
    """One attempt to run a job.

    Attributes:
        outcome: how it ended; empty while it runs.
        excused: a restart of the cluster lost it.
        run_s: cluster time at which its program began to run, where the cluster reports that.
        exit: how its program ended, on a real cluster.
        preempted: it was stopped for another job.
        preempts: the attempts of other jobs that are stopped to make room for it.
        neighbours: the time beside jobs that shared its GPU and have left it, by kind.
    """

    attempt: int
    placement: Placement
    gpu_model: str
    start_s: float | None = None
    end_s: float | None = None
    outcome: str = ""
    excused: bool = False
    run_s: float | None = None
    exit: ExitStatus | None = None
    preempted: bool = False
    preempts: tuple[AttemptRef, ...] = ()
    neighbours: tuple[NeighbourTime, ...] = ()

    @property
    def gpu_id(self) -> str:
        """The placement's first GPU; empty: none."""
        return self.placement.gpu_id

    @property
    def runs_from_s(self) -> float | None:
        """Cluster time from which its program runs; the attempt's start where the cluster does not report that."""
        return self.start_s if self.run_s is None else self.run_s


_GPUS_TOLD = 4


@dataclass(frozen=True, slots=True, repr=False)
class Job:
    """A job and its state; changed only by `dataclasses.replace`.

    Attributes:
        reservation: that it holds, while it is pending, as of the record's last change.
        reserved_for_job_id, reserved_until_s: with RESERVED: the job for which GPUs are kept free, and the cluster time
            until about which.
        remaining_ratio: the share of its work that was still to be done at the begin of the present attempt, or is now
            while it waits.
        requests: asked for, and not applied yet, in order.
        applied_request: the number of the last request that was applied; 0: none.
        hold: None: the job is not held.
    """

    job_id: str
    spec: JobSpec
    state: JobState = JobState.PENDING
    pending_reason: PendingReason = PendingReason.SUBMITTED
    message: str = "recorded; the orchestrator has not taken it up yet"
    created_unix_s: float = 0.0
    submit_s: float | None = None
    start_s: float | None = None
    end_s: float | None = None
    placement: Placement = NOWHERE
    gpu_model: str = ""
    attempts: tuple[JobAttempt, ...] = ()
    revision: int = 0
    cancel_requested: bool = False
    normalized: NormalizedJob = NormalizedJob()
    reservation: JobReservation | None = None
    reserved_for_job_id: str = ""
    reserved_until_s: float | None = None
    remaining_ratio: float = 1.0
    requests: tuple[JobRequest, ...] = ()
    applied_request: int = 0
    hold: JobHold | None = None

    def __str__(self) -> str:
        """One line: `job-17 running on volta-0/0: resnet, of ada`; of a job that waits or has failed, why."""
        state = str(self.state)
        if self.state is JobState.PENDING and self.pending_reason:
            state += f" ({self.pending_reason})"
        elif gpu_ids := self.placement.gpu_ids:
            more = len(gpu_ids) - _GPUS_TOLD
            state += f" on {', '.join(gpu_ids[:_GPUS_TOLD])}" + (f" and {more} more" if more > 0 else "")
        why = f" ({self.message})" if self.state is JobState.FAILED and self.message else ""
        return visible(f"{self.job_id} {state}: {self.spec.name}, of {self.spec.user}{why}")

    def __repr__(self) -> str:
        return f"<Job {self}>"

    @property
    def gpu_id(self) -> str:
        """The placement's first GPU; empty: none."""
        return self.placement.gpu_id

    @property
    def attempt_count(self) -> int:
        """Number of attempts so far."""
        return len(self.attempts)

    @property
    def resumes(self) -> bool:
        """Whether an attempt of it was preempted: its next start costs a restart."""
        return any(each.preempted for each in self.attempts)

    @property
    def jct_s(self) -> float | None:
        """Seconds from submission (or begin time) to end; None before the end, or if the job ended before that time."""
        if self.end_s is None or self.submit_s is None or self.end_s < self.submit_s:
            return None
        return self.end_s - self.submit_s

    @property
    def runtime_s(self) -> float | None:
        """How long the last attempt's program ran; None before the end, or for a job that never ran.

        It counts from the start of the attempt where the cluster does not report the program's.
        """
        if self.start_s is None or self.end_s is None:
            return None
        run_s = self.attempts[-1].run_s if self.attempts else None
        return self.end_s - (self.start_s if run_s is None else run_s)
