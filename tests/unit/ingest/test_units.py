from __future__ import annotations

from adlro import client
from adlro.records.jobs import NormalizedJob
from adlro.records.telemetry import Metric, Unit
from adlro.services.ingest.clusters import ClusterView
from adlro.services.ingest.units import JOB_FIELD_RULES, METRIC_RULES
from adlro.v1 import telemetry_pb2
from tests.unit.ingest.clusters_for_tests import VIEW


def test_metrics_and_units_are_those_of_the_contract():
    for ours, theirs, prefix in (
        (Metric, telemetry_pb2.Metric, "METRIC_"),
        (Unit, telemetry_pb2.Unit, "UNIT_"),
    ):
        assert {f"{prefix}{each.name}": int(each) for each in ours} | {f"{prefix}UNSPECIFIED": 0} == dict(
            theirs.items()
        )


def test_users_get_the_same_metrics_and_units():
    assert client.Metric is Metric
    assert client.Unit is Unit


def test_every_metric_has_a_rule_and_takes_its_own_unit_unchanged():
    assert set(METRIC_RULES) == set(Metric)
    for rule in METRIC_RULES.values():
        own = rule.accepted[rule.canonical]
        assert (own.factor, own.offset, own.of_full_scale) == (1.0, 0.0, False)


def test_every_unit_is_accepted_for_some_metric():
    assert {unit for rule in METRIC_RULES.values() for unit in rule.accepted} == set(Unit)


def test_every_job_field_has_a_rule_whose_reference_exists():
    assert set(JOB_FIELD_RULES) == set(NormalizedJob.__dataclass_fields__)
    assert isinstance(VIEW, ClusterView)
    for rule in JOB_FIELD_RULES.values():
        assert rule.reference > 0
        assert not rule.of_cluster or getattr(VIEW, rule.of_cluster) > 0
