"""What lasts is told once, when it has lasted; its end too; and a restart changes nothing about it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from adlro.records.decisions import DecisionBasis
from adlro.records.events import Clock, ClockMode, ClusterDescription, GpuCondition
from adlro.records.matrices import ClusterPlanes, DriftSummary, GpuDrift, MixDrift
from adlro.records.status import OrchestratorStatus
from adlro.services.notify.conditions import DRIFT, GPUS, POLICY, Conditions, Found, Kind, drifts, fallback, lost_gpus
from adlro.webhooks.events import Event, EventName
from tests.contract.ingest_suite import CLUSTER

STATUS = OrchestratorStatus(
    acting=True,
    instance_id="a",
    lease_holder="a",
    fencing_token=1,
    policy="dqn",
    cluster_connected=True,
    cluster_incarnation="i",
    cluster_revision=3,
    cluster_time_s=70.0,
    queue_length=0,
    waiting_for_begin_time_count=0,
    running_count=0,
    decision_count=0,
    drained_node_ids=(),
    problem="",
    deciding_policy="dqn",
    deciding_basis=DecisionBasis.POLICY,
)


def found(*keys: str, kind: Kind = GPUS) -> Found:
    return Found(kind, {key: {"gpu_id": key} for key in keys}, "paper", 5.0)


def names(events: list[Event]) -> list[tuple[str, str]]:
    return [(str(each.name), next(iter(each.subject.values()))["gpu_id"]) for each in events]


def test_without_settling_each_change_is_told_once() -> None:
    conditions = Conditions({})
    assert conditions.look(found(), 1.0, 1.0, 0.0) == []
    assert names(conditions.look(found("a", "b"), 2.0, 2.0, 0.0)) == [("gpu_lost", "a"), ("gpu_lost", "b")]
    assert conditions.look(found("a", "b"), 3.0, 3.0, 0.0) == []
    assert names(conditions.look(found("b", "c"), 4.0, 4.0, 0.0)) == [("gpu_back", "a"), ("gpu_lost", "c")]


def test_a_change_is_told_when_it_has_lasted_and_a_short_one_never() -> None:
    conditions = Conditions({})
    for now_s in (0.0, 10.0, 29.9):
        assert conditions.look(found("dqn", kind=POLICY), now_s, now_s, 30.0) == []
    assert conditions.look(found(kind=POLICY), 29.95, 29.95, 30.0) == []  # over before it was told
    assert conditions.look(found("dqn", kind=POLICY), 31.0, 31.0, 30.0) == []
    (event,) = conditions.look(found("dqn", kind=POLICY), 61.0, 61.0, 30.0)
    assert (event.name, event.cluster_time_s) == (EventName.POLICY_FELL_BACK, 5.0)
    assert conditions.look(found(kind=POLICY), 62.0, 62.0, 30.0) == []
    assert conditions.look(found("dqn", kind=POLICY), 91.0, 91.0, 30.0) == []  # an end that did not last
    assert conditions.look(found(kind=POLICY), 92.0, 92.0, 30.0) == []
    (event,) = conditions.look(found(kind=POLICY), 122.0, 122.0, 30.0)
    assert event.name is EventName.POLICY_RECOVERED
    assert event.subject["policy"]["since_unix_s"] == 61.0


def test_what_was_told_is_not_told_again_after_a_restart_and_what_changed_meanwhile_is() -> None:
    before = Conditions({})
    told = before.look(found("a", "b"), 2.0, 2.0, 0.0)
    kept = json.loads(json.dumps(before.kept()))
    after = Conditions(kept)
    assert after.look(found("a", "b"), 1.0, 1.0, 0.0) == []
    assert names(Conditions(kept).look(found("b"), 3.0, 3.0, 0.0)) == [("gpu_back", "a")]
    # Without what was kept (a kill before it was written) the same is told again: at another time, as another event.
    again = Conditions({}).look(found("a", "b"), 2.0, 9.0, 0.0)
    assert [each.event_id for each in again] == [each.event_id for each in told]


def test_kinds_do_not_mix() -> None:
    conditions = Conditions({})
    conditions.look(found("a"), 1.0, 1.0, 0.0)
    assert [each.name for each in conditions.look(found("a", kind=DRIFT), 2.0, 2.0, 0.0)] == [EventName.DRIFT_FLAGGED]
    assert conditions.look(found(kind=POLICY), 3.0, 3.0, 0.0) == []


def test_lost_gpus_with_their_node_and_reason() -> None:
    described = ClusterDescription(
        CLUSTER, (), ("volta-0/1", "gone-0/0"), Clock(ClockMode.REAL, 1.0, False, 12.5), "i", 1, 1,
        gpu_conditions=(GpuCondition("volta-0/1", "xid 79"),),
    )  # fmt: skip
    one = lost_gpus(described)
    assert (one.kind, one.cluster, one.cluster_time_s) == (GPUS, "default", 12.5)
    assert one.present == {
        "volta-0/1": {"gpu_id": "volta-0/1", "node_id": "volta-0", "gpu_model": "v100_sxm2", "reason": "xid 79"},
        "gone-0/0": {"gpu_id": "gone-0/0", "node_id": "", "gpu_model": "", "reason": ""},
    }


@pytest.mark.parametrize("basis", DecisionBasis)
def test_a_fallback_of_the_policy(basis: DecisionBasis) -> None:
    status = replace(STATUS, deciding_basis=basis, deciding_policy="hold_gang", policy_problem="it is late")
    one = fallback(status, "paper")
    assert one is not None
    assert one.cluster_time_s == 70.0
    told: dict[str, Any] = {
        "dqn": {"policy": "dqn", "deciding_policy": "hold_gang", "reason": str(basis), "problem": "it is late"}
    }
    assert one.present == (told if basis.fallback else {})


def test_while_nobody_acts_nothing_is_known_of_the_policy() -> None:
    assert fallback(replace(STATUS, acting=False), "paper") is None
    assert fallback(replace(STATUS, deciding_basis=None), "paper") is None


def test_drifts_of_gpus_and_of_the_mix() -> None:
    state = ClusterPlanes(
        "paper",
        (("a", "n", "v100_sxm2"), ("b", "n", "v100_sxm2")),
        {},
        {},
        {"a": GpuDrift(0.9999, True, np.float64(0.81234567), 40), "b": GpuDrift(0.5, False, 1.0, 9)},
        DriftSummary(MixDrift(0.995, True, "job_type", 0.4)),
        None,
        1,
    )
    one = drifts(state)
    assert json.loads(json.dumps(one.present)) == {
        "gpu a": {
            "of": "gpu",
            "gpu_id": "a",
            "node_id": "n",
            "gpu_model": "v100_sxm2",
            "speed_ratio": 0.8123,
            "score": 0.9999,
            "job_count": 40,
        },
        "mix": {"of": "mix", "variable": "job_type", "total_variation": 0.4, "score": 0.995},
    }
