"""Programs without a job type under every policy."""

from __future__ import annotations

import pytest

from adlro.decide.policies import POLICIES
from adlro.records.cluster import Cluster
from adlro.records.jobs import JobSpec, JobState, JobType
from adlro.records.payloads import process_payload
from adlro.records.specifications import completed
from adlro.services.orchestrator.runtimes.predictions import declared, declared_runtime_s
from tests.unit.orchestrator.core_house import CoreHouse

PROGRAM = process_payload(["python", "train.py"])


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_policy_starts_a_program_without_a_type(cluster: Cluster, policy: str) -> None:
    house = CoreHouse(cluster)
    house.start(policy)
    for number in range(12):
        job_type = JobType(number % 4)
        payload = PROGRAM if job_type is JobType.UNSPECIFIED else None
        house.submit(5.0 + number, job_type=job_type, payload=payload, user=f"user-{number % 3}")
    done = house.until_final(12)
    assert {job.state for job in done} == {JobState.SUCCEEDED}


def test_static_starts_it_on_the_model_of_machine_learning(cluster: Cluster) -> None:
    house = CoreHouse(cluster)
    house.start("static")
    house.submit(5.0, job_type=JobType.UNSPECIFIED, payload=PROGRAM)
    house.submit(5.0, job_type=JobType.MACHINE_LEARNING)
    assert {job.gpu_model for job in house.until_final(2)} == {"v100_sxm2"}


def test_without_a_prediction_it_has_a_typical_runtime_at_mean_speeds() -> None:
    spec = completed(JobSpec("a", "ann", JobType.UNSPECIFIED, payload=PROGRAM))
    typical_s = declared_runtime_s(spec, "v100_sxm2")
    of_types = [declared_runtime_s(JobSpec("a", "ann", each), "v100_sxm2") for each in JobType if each]
    assert min(of_types) < typical_s < max(of_types)
    on_v100_s, on_turing_s = declared(spec, ["v100_sxm2", "rtx_2080_ti"]).durations_s
    assert on_v100_s == typical_s < on_turing_s
