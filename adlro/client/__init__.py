"""The typed client of ADLRO: what users import.

    from adlro.client import JobSpec, JobType, connect

    with connect() as client:
        job = client.submit(JobSpec(name="first", user="ada", job_type=JobType.MACHINE_LEARNING))
        (job,) = client.wait([job.job_id], timeout_s=600)
        print(job.state.name, job.gpu_id, job.jct_s)

        job = client.submit(command=["python", "train.py"], cpu_cores=4, time_limit_s=3600)
        for chunk in client.logs(job, follow=True):
            sys.stdout.buffer.write(chunk.data)

`AsyncClient` has the same methods for asyncio. Errors are those of `adlro.errors`. `Policy` is the older name of
`OfferedPolicy`.
"""

from adlro.client.aio import AsyncClient
from adlro.client.blocking import Client
from adlro.client.endpoints import DEFAULT_SERVER, Endpoints, ServiceName
from adlro.client.programs import program_spec
from adlro.client.transport import NO_ANSWER
from adlro.kit.credentials import Credentials
from adlro.records.capacity import ClusterCapacity, GpuModelCapacity
from adlro.records.cluster import Cluster, Gpu, GpuSpec, Node
from adlro.records.decisions import (
    BaseChoice,
    Candidate,
    Decision,
    DecisionBasis,
    DecisionFilter,
    DecisionPair,
    DecisionPrediction,
    DecisionView,
    MaskedCandidate,
    MaskedGroup,
    RunnerUp,
    ShadowDecision,
)
from adlro.records.events import Clock, ClockMode, ClusterDescription, RunningJob
from adlro.records.history import AttemptBars, AttemptHistory, AttemptOccupancy, AttemptOutcome, Bar, RowKind
from adlro.records.identity import Identity, Role
from adlro.records.jobs import (
    AttemptRef,
    ExpectedRuntime,
    Job,
    JobAttempt,
    JobSpec,
    JobState,
    JobType,
    PendingReason,
    Preemptible,
    SimulatedWork,
)
from adlro.records.matrices import (
    ClusterPlanes,
    ClusterState,
    DriftSummary,
    GpuDrift,
    GpuState,
    MetricColumn,
    MixDrift,
    StatePlane,
    Telemetry,
    TelemetryBlock,
    Variable,
)
from adlro.records.payloads import (
    Container,
    EndReason,
    ExitStatus,
    LaunchStyle,
    LogChunk,
    LogStream,
    Mount,
    Payload,
    Process,
)
from adlro.records.predictions import Evidence, PredictionBasis, Recollection, RuntimePrediction
from adlro.records.status import EventLag, GpuModelFigures, OfferedPolicy, OrchestratorStatus, ShadowStatus, UserCount
from adlro.records.submitting import Rejection, SubmittedJobs
from adlro.records.telemetry import Metric, Unit
from adlro.records.waiting import ExpectedStart, GpuObstacle, WaitingChange, WaitingChangeKind, WaitingExplanation
from adlro.records.watching import JobEvent, JobEventKind, JobFilter, JobOrder, JobPage, JobView

__all__ = [
    "DEFAULT_SERVER",
    "NO_ANSWER",
    "AsyncClient",
    "AttemptBars",
    "AttemptHistory",
    "AttemptOccupancy",
    "AttemptOutcome",
    "AttemptRef",
    "Bar",
    "BaseChoice",
    "Candidate",
    "Client",
    "Clock",
    "ClockMode",
    "Cluster",
    "ClusterCapacity",
    "ClusterDescription",
    "ClusterPlanes",
    "ClusterState",
    "Container",
    "Credentials",
    "Decision",
    "DecisionBasis",
    "DecisionFilter",
    "DecisionPair",
    "DecisionPrediction",
    "DecisionView",
    "DriftSummary",
    "EndReason",
    "Endpoints",
    "EventLag",
    "Evidence",
    "ExitStatus",
    "ExpectedRuntime",
    "ExpectedStart",
    "Gpu",
    "GpuDrift",
    "GpuModelCapacity",
    "GpuModelFigures",
    "GpuObstacle",
    "GpuSpec",
    "GpuState",
    "Identity",
    "Job",
    "JobAttempt",
    "JobEvent",
    "JobEventKind",
    "JobFilter",
    "JobOrder",
    "JobPage",
    "JobSpec",
    "JobState",
    "JobType",
    "JobView",
    "LaunchStyle",
    "LogChunk",
    "LogStream",
    "MaskedCandidate",
    "MaskedGroup",
    "Metric",
    "MetricColumn",
    "MixDrift",
    "Mount",
    "Node",
    "OfferedPolicy",
    "OrchestratorStatus",
    "Payload",
    "PendingReason",
    "Policy",
    "PredictionBasis",
    "Preemptible",
    "Process",
    "Recollection",
    "Rejection",
    "Role",
    "RowKind",
    "RunnerUp",
    "RunningJob",
    "RuntimePrediction",
    "ServiceName",
    "ShadowDecision",
    "ShadowStatus",
    "SimulatedWork",
    "StatePlane",
    "SubmittedJobs",
    "Telemetry",
    "TelemetryBlock",
    "Unit",
    "UserCount",
    "Variable",
    "WaitingChange",
    "WaitingChangeKind",
    "WaitingExplanation",
    "connect",
    "program_spec",
]

Policy = OfferedPolicy


def connect(server: str | None = None) -> Client:
    """A blocking client of the suite at `server`, with the credentials that `Client` finds by itself.

    Args:
        server: `host:port` of ingest; None: `ADLRO_SERVER`, or 127.0.0.1:7701.
    """
    return Client(server)
