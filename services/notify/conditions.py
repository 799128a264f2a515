"""What lasts (a lost GPU, a policy that has fallen back, a flagged drift): since when, and whether it was told. Pure.

What was told is kept by the outbox with the messages about it: a change while notify was away is told at its next look,
and nothing twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from adlro.records.events import ClusterDescription
from adlro.records.matrices import ClusterPlanes
from adlro.records.status import OrchestratorStatus
from adlro.webhooks.events import Event, EventName, event_id


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of conditions: the events of its begin and end, and what they are about."""

    subject: str
    begins: EventName
    ends: EventName


GPUS = Kind("gpu", EventName.GPU_LOST, EventName.GPU_BACK)
POLICY = Kind("policy", EventName.POLICY_FELL_BACK, EventName.POLICY_RECOVERED)
DRIFT = Kind("drift", EventName.DRIFT_FLAGGED, EventName.DRIFT_ENDED)
KINDS = (GPUS, POLICY, DRIFT)


@dataclass(frozen=True, slots=True)
class Found:
    """The conditions of a kind that a look has found, by their keys, with what is known of each."""

    kind: Kind
    present: Mapping[str, Mapping[str, Any]]
    cluster: str
    cluster_time_s: float | None


class Conditions:
    """What was told, and what has changed since.

    Args:
        told: as `kept` said it last; empty: nothing was told ever.
    """

    def __init__(self, told: Mapping[str, Any]) -> None:
        self._told: dict[str, dict[str, dict[str, Any]]] = {
            kind.subject: {key: dict(each) for key, each in told.get(kind.subject, {}).items()} for kind in KINDS
        }
        # Changes that have not lasted long enough: (subject, key) -> when they were seen first.
        self._since_s: dict[tuple[str, str], float] = {}

    def kept(self) -> Mapping[str, Any]:
        """What was told, as JSON takes it."""
        return self._told

    def look(self, found: Found, now_unix_s: float, now_s: float, settle_s: float) -> list[Event]:
        """The events of what has changed, and has lasted.

        Args:
            found: what is there now.
            now_unix_s: wall time.
            now_s: of a clock that nobody sets.
            settle_s: how long a change must last before it is told; 0: it is told at once.
        """
        told = self._told[found.kind.subject]
        events = []
        waiting = {key for subject, key in self._since_s if subject == found.kind.subject}
        for key in sorted({*told, *found.present, *waiting}):
            change = (found.kind.subject, key)
            if (key in told) == (key in found.present):
                self._since_s.pop(change, None)
                continue
            since_s = self._since_s.setdefault(change, now_s)
            if now_s - since_s < settle_s:
                continue
            del self._since_s[change]
            begins = key in found.present
            if begins:
                told[key] = {**found.present[key], "since_unix_s": round(now_unix_s, 3)}
                about = told[key]
            else:
                about = told.pop(key)
            name = found.kind.begins if begins else found.kind.ends
            identity = event_id(name, found.cluster, key, about["since_unix_s"])
            subject = {found.kind.subject: dict(about)}
            events.append(Event(name, identity, found.cluster, now_unix_s, found.cluster_time_s, subject))
        return events


def lost_gpus(described: ClusterDescription) -> Found:
    """The GPUs that a cluster lacks."""
    reasons = {each.gpu_id: each.reason for each in described.gpu_conditions}
    known = {gpu.gpu_id: (node.node_id, gpu.gpu_model) for node, gpu in described.cluster.gpus()}
    present = {}
    for gpu_id in described.lost_gpu_ids:
        node_id, gpu_model = known.get(gpu_id, ("", ""))
        present[gpu_id] = {
            "gpu_id": gpu_id,
            "node_id": node_id,
            "gpu_model": gpu_model,
            "reason": reasons.get(gpu_id, ""),
        }
    return Found(GPUS, present, described.cluster.name, described.clock.time_s)


def fallback(status: OrchestratorStatus, cluster: str) -> Found | None:
    """Whether another one decides in the policy's place; None: nobody acts, so that nothing is known."""
    if not status.acting or status.deciding_basis is None:
        return None
    present: dict[str, Mapping[str, Any]] = {}
    if status.deciding_basis.fallback:
        # By policy: the fallback of another policy that was set meanwhile is another one.
        present[status.policy] = {
            "policy": status.policy,
            "deciding_policy": status.deciding_policy,
            "reason": str(status.deciding_basis),
            "problem": status.policy_problem,
        }
    return Found(POLICY, present, cluster, status.cluster_time_s)


def drifts(state: ClusterPlanes) -> Found:
    """The GPUs that are slower than their model, and the mix of jobs where it has changed."""
    models = {gpu_id: (node_id, gpu_model) for gpu_id, node_id, gpu_model in state.gpus}
    present: dict[str, Mapping[str, Any]] = {}
    for gpu_id, drift in _flagged(state):
        node_id, gpu_model = models.get(gpu_id, ("", ""))
        present[f"gpu {gpu_id}"] = {
            "of": "gpu",
            "gpu_id": gpu_id,
            "node_id": node_id,
            "gpu_model": gpu_model,
            "speed_ratio": round(drift.speed_ratio, 4),
            "score": round(drift.score, 6),
            "job_count": drift.job_count,
        }
    mix = state.drift_summary.mix_drift
    if mix.flagged:
        present["mix"] = {
            "of": "mix",
            "variable": mix.variable,
            "total_variation": round(mix.total_variation, 4),
            "score": round(mix.score, 6),
        }
    return Found(DRIFT, present, state.cluster, None)


def _flagged(state: ClusterPlanes) -> Iterable[tuple[str, Any]]:
    return ((gpu_id, drift) for gpu_id, drift in state.drifts.items() if drift.flagged)
