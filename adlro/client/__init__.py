"""The typed client of ADLRO: what users import.

    from adlro.client import JobSpec, connect

    with connect() as client:
        job = client.submit(JobSpec(job_type="ml", gpus=2, memory="16GiB"))
        (job,) = client.wait([job.job_id], timeout_s=600)
        print(job.state, job.gpu_id, job.jct_s)

        job = client.submit(command=["python", "train.py"], cores=4, time_limit="1h")
        for chunk in client.logs(job, follow=True):
            sys.stdout.buffer.write(chunk.data)

`AsyncClient` has the same methods for asyncio. Errors are those of `adlro.errors`. `Policy` is the older name of
`OfferedPolicy`.
"""

from adlro.client.aio import AsyncClient
from adlro.client.blocking import Client
from adlro.client.endpoints import DEFAULT_SERVER, Endpoints, ServiceName
from adlro.client.programs import program_spec
from adlro.client.tables import GpuTable, JobTable
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
from adlro.records.dependencies import DependencyCondition, JobDependency
from adlro.records.events import Clock, ClockMode, ClusterDescription, RunningJob
from adlro.records.fair_share import FairShare
from adlro.records.history import AttemptBars, AttemptHistory, AttemptOccupancy, AttemptOutcome, Bar, RowKind
from adlro.records.identity import Identity, Role
from adlro.records.job_requests import JobHold, JobRequest, JobRequestKind, JobUpdate
from adlro.records.jobs import (
    ArrayTask,
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
from adlro.records.quotas import Quota
from adlro.records.status import EventLag, GpuModelFigures, OfferedPolicy, OrchestratorStatus, ShadowStatus, UserCount
from adlro.records.submitting import Rejection, RequestResult, SubmittedArray, SubmittedJobs
from adlro.records.telemetry import Metric, Unit
from adlro.records.waiting import ExpectedStart, GpuObstacle, WaitingChange, WaitingChangeKind, WaitingExplanation
from adlro.records.watching import JobEvent, JobEventKind, JobFilter, JobOrder, JobPage, JobView

__all__ = [
    "DEFAULT_SERVER",
    "NO_ANSWER",
    "ArrayTask",
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
    "DependencyCondition",
    "DriftSummary",
    "EndReason",
    "Endpoints",
    "EventLag",
    "Evidence",
    "ExitStatus",
    "ExpectedRuntime",
    "ExpectedStart",
    "FairShare",
    "Gpu",
    "GpuDrift",
    "GpuModelCapacity",
    "GpuModelFigures",
    "GpuObstacle",
    "GpuSpec",
    "GpuState",
    "GpuTable",
    "Identity",
    "Job",
    "JobAttempt",
    "JobDependency",
    "JobEvent",
    "JobEventKind",
    "JobFilter",
    "JobHold",
    "JobOrder",
    "JobPage",
    "JobRequest",
    "JobRequestKind",
    "JobSpec",
    "JobState",
    "JobTable",
    "JobType",
    "JobUpdate",
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
    "Quota",
    "Recollection",
    "Rejection",
    "RequestResult",
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
    "SubmittedArray",
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
