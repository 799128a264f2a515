"""A job whose best GPUs are lost does not wait for them while others run on."""

from __future__ import annotations

import pytest

from adlro.decide.policies import POLICIES
from adlro.records.cluster import Cluster, Gpu, Node
from adlro.records.jobs import JobType
from adlro.sim.batch import simulate
from adlro.state.job_arrays import pack_jobs
from adlro.workload.job_lists import WorkloadJob
from tests.policies import made

CLUSTER = Cluster(
    "one fast, two slow",
    (
        Node("fast", 32, 100_000, (Gpu("fast/0", "v100_sxm2", 16000),)),
        Node("slow", 32, 100_000, tuple(Gpu(f"slow/{i}", "radeon_vii", 16000) for i in range(2))),
    ),
)


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_a_job_does_not_wait_for_a_gpu_that_is_lost(name):
    # Job 0 is nearly three times slower on a slow GPU; the others come every 6 s and keep the cluster busy.
    jobs = [WorkloadJob(0.0, "ann", "bert_large_fp16", JobType.MACHINE_LEARNING, 10.0, 1000, 2, 1, 0.5)]
    jobs += [WorkloadJob(6.0 * k, "bob", "neutral", JobType.SIMULATION, 7.0, 1000, 2, 1, 0.5) for k in range(60)]
    outcome = simulate(CLUSTER, pack_jobs([jobs], CLUSTER), made(name).act, gpu_changes=[[(0.0, 0, 0.0)]])
    assert not outcome.stuck[0]
    assert outcome.start_s[0, 0] < 60.0
