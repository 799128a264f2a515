"""The roles of each method, and the guard that checks them before a call's first message is read.

A method that is not in the table is refused to every caller; a test compares the table with the contracts.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

from adlro.errors import AdlroError, PermissionDenied, Unauthenticated
from adlro.kit.identity import CALLER, Caller, Role, UsersFile
from adlro.kit.log import get_logger

_SUBMITTER, _READER, _OPERATOR, _SERVICE = Role.SUBMITTER, Role.READER, Role.OPERATOR, Role.SERVICE
_ALL: Final = frozenset(Role)
_OWNERS: Final = frozenset({_SUBMITTER, _OPERATOR})
_READERS: Final = frozenset({_READER, _OPERATOR, _SERVICE})
_OPERATORS: Final = frozenset({_OPERATOR})
_SERVICES: Final = frozenset({_SERVICE})
_OPERATORS_AND_SERVICES: Final = frozenset({_OPERATOR, _SERVICE})

# Roles by full name of the method. A submitter gets only his own jobs.
ROLES: Final[dict[str, frozenset[Role]]] = {
    "/adlro.v1.JobService/SubmitJob": _OWNERS,
    "/adlro.v1.JobService/SubmitJobs": _OWNERS,
    "/adlro.v1.JobService/GetJob": _ALL,
    "/adlro.v1.JobService/ListJobs": _ALL,
    "/adlro.v1.JobService/CancelJob": _OWNERS,
    "/adlro.v1.JobService/CancelJobs": _OWNERS,
    "/adlro.v1.JobService/SubmitArray": _OWNERS,
    "/adlro.v1.JobService/HoldJobs": _OWNERS,
    "/adlro.v1.JobService/ReleaseJobs": _OWNERS,
    "/adlro.v1.JobService/UpdateJobs": _OWNERS,
    "/adlro.v1.JobService/WatchJobs": _ALL,
    "/adlro.v1.JobService/ReadJobLogs": _ALL,
    # A submitter gets the attempts of others without whose they are.
    "/adlro.v1.JobService/QueryAttempts": _ALL,
    "/adlro.v1.JobService/WhoAmI": _ALL,
    "/adlro.v1.TelemetryService/UpsertCluster": _OPERATORS_AND_SERVICES,
    # A submitter needs the cluster's description to write a job that fits.
    "/adlro.v1.TelemetryService/GetCluster": _ALL,
    "/adlro.v1.TelemetryService/PushTelemetry": _SERVICES,
    "/adlro.v1.TelemetryService/GetTelemetry": _READERS,
    "/adlro.v1.DecomposeService/Decompose": _READERS,
    "/adlro.v1.DecomposeService/GetClusterState": _READERS,
    "/adlro.v1.DecomposeService/WatchClusterState": _READERS,
    # Both show other users' jobs as evidence.
    "/adlro.v1.DecomposeService/PredictPairs": _READERS,
    "/adlro.v1.DecomposeService/PredictRuntime": _READERS,
    "/adlro.v1.DecomposeService/Recall": _READERS,
    "/adlro.v1.OrchestratorService/GetStatus": _READERS,
    "/adlro.v1.OrchestratorService/WatchStatus": _READERS,
    "/adlro.v1.OrchestratorService/ListPolicies": _READERS,
    "/adlro.v1.OrchestratorService/SetPolicy": _OPERATORS,
    "/adlro.v1.OrchestratorService/SetShadowPolicy": _OPERATORS,
    "/adlro.v1.OrchestratorService/ExplainDecision": _READERS,
    "/adlro.v1.OrchestratorService/ExplainWaiting": _ALL,
    "/adlro.v1.OrchestratorService/WatchDecisions": _READERS,
    "/adlro.v1.OrchestratorService/ListDecisions": _READERS,
    "/adlro.v1.OrchestratorService/DrainNode": _OPERATORS,
    "/adlro.v1.OrchestratorService/UndrainNode": _OPERATORS,
    # What a job may ask for now; it names no job and no user.
    "/adlro.v1.OrchestratorService/GetClusterCapacity": _ALL,
    "/adlro.v1.OrchestratorService/SetQuota": _OPERATORS,
    # A submitter gets his own alone.
    "/adlro.v1.OrchestratorService/ListQuotas": _ALL,
    "/adlro.v1.OrchestratorService/SetFairShare": _OPERATORS,
    # A submitter gets his own, and his group's.
    "/adlro.v1.OrchestratorService/ListFairShares": _ALL,
    "/adlro.v1.ClusterService/DescribeCluster": _READERS,
    "/adlro.v1.ClusterService/LaunchJob": _SERVICES,
    "/adlro.v1.ClusterService/StopJob": _SERVICES,
    "/adlro.v1.ClusterService/WatchEvents": _READERS,
    "/adlro.v1.ClusterService/AcknowledgeEvents": _SERVICES,
    "/adlro.v1.ClusterService/WakeAt": _SERVICES,
    "/adlro.v1.ClusterService/SetClock": _OPERATORS_AND_SERVICES,
    "/adlro.v1.ClusterService/SetGpuAvailability": _OPERATORS,
    # Not a submitter: ingest checks whose job it is, and asks in his place.
    "/adlro.v1.ClusterService/ReadLogs": _READERS,
}

# It reports only whether a process serves; the container engine must be able to call it. Its streams
# (Watch) need a token, since strangers could keep them open.
OPEN: Final = frozenset({"/grpc.health.v1.Health/Check"})
# The rest of health, and reflection, which gives the contracts to tools such as grpcurl: for every role.
_ANY_ROLE_PREFIX = "/grpc."

_SCHEME = "bearer "
_LOG_EVERY_S = 10.0


class AccessGuard:
    """Checks calls by their token.

    Args:
        users: the known users.
    """

    def __init__(self, users: UsersFile) -> None:
        self._users = users
        self._refused = 0
        self._log_at_s = 0.0

    def refusal(self, method: str, metadata: Iterable[tuple[str, str | bytes]] | None) -> AdlroError | None:
        """The error for a caller without the right; None for an admitted one, who becomes the `current_caller`.

        Args:
            method: full name, such as `/adlro.v1.JobService/GetJob`.
            metadata: of the call.
        """
        if method in OPEN:
            return None
        caller = self._caller(metadata)
        if caller is None:
            self._note("unauthenticated", method)
            # The same answer for a missing and a wrong token: it reveals no user.
            return Unauthenticated(
                "this service needs a token that it knows; set ADLRO_TOKEN_FILE, or send the metadata "
                "`authorization: Bearer <token>`"
            )
        CALLER.set(caller)
        if method.startswith(_ANY_ROLE_PREFIX):
            return None
        needed = ROLES.get(method, frozenset())
        if caller.roles & needed:
            return None
        self._note("permission denied", method)
        name = method.rpartition("/")[2]
        roles = " or ".join(sorted(needed)) or "that nobody has"
        return PermissionDenied(
            f"{caller.user} is {' and '.join(sorted(caller.roles))}; {name} needs the role {roles}",
            reason="ROLE_MISSING",
            metadata={"method": method},
        )

    def _caller(self, metadata: Iterable[tuple[str, str | bytes]] | None) -> Caller | None:
        for key, value in metadata or ():
            if key == "authorization" and isinstance(value, str) and value[: len(_SCHEME)].lower() == _SCHEME:
                return self._users.caller(value[len(_SCHEME) :].strip())
        return None

    def _note(self, why: str, method: str) -> None:
        """At most one line in a while: a flood of refused calls must not become a flood of lines."""
        self._refused += 1
        now_s = time.monotonic()
        if now_s >= self._log_at_s:
            get_logger().warning("calls refused", why=why, method=method[:128], count=self._refused)
            self._refused = 0
            self._log_at_s = now_s + _LOG_EVERY_S
