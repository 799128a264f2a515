"""GPU metrics: limits, closed-form temperature against step-by-step integration, lost GPUs."""

from __future__ import annotations

import numpy as np
import pytest

from adlro.errors import InvalidInput
from adlro.records.cluster import Cluster, Gpu, Node
from adlro.records.jobs import JobSpec, JobType
from adlro.sim.gpu_metrics import (
    AMBIENT_C,
    DRIVER_MEMORY_MIB,
    FULL_LOAD_TEMPERATURE_SHARE,
    IDLE_POWER_SHARE,
    TIME_CONSTANT_S,
    GpuMetrics,
    Load,
)

CLUSTER = Cluster("small", (Node("n", 8, 65536, (Gpu("n/0", "v100_sxm2", 16160), Gpu("n/1", "radeon_vii", 16368))),))
JOB = JobSpec("j", "ada", JobType.DATA_PROCESSING, application="stream_triad", gpu_memory_mib=8000)


def test_an_idle_gpu_stays_as_it_is():
    metrics = GpuMetrics(CLUSTER)
    before, after = metrics.sample(0.0), metrics.sample(1e6)
    np.testing.assert_array_equal(before.temperature_c, after.temperature_c)
    np.testing.assert_array_equal(after.utilization_ratio, 0.0)
    np.testing.assert_allclose(after.power_w, [300 * IDLE_POWER_SHARE] * 2)
    np.testing.assert_array_equal(after.memory_used_mib, DRIVER_MEMORY_MIB)


def test_a_running_job_loads_its_gpu_only_and_within_its_limits():
    metrics = GpuMetrics(CLUSTER)
    metrics.set_load(0, 0.0, [Load("job-1", JOB)])
    sample = metrics.sample(5.0)
    assert 0.9 < sample.utilization_ratio[0] <= 1.0
    assert sample.utilization_ratio[1] == 0.0
    assert sample.memory_used_mib[0] == DRIVER_MEMORY_MIB + 8000
    assert 0.8 * 897 < sample.memory_bandwidth_gb_per_s[0] <= 897
    idle_w = 300 * IDLE_POWER_SHARE
    assert sample.power_w[0] == pytest.approx(idle_w + sample.utilization_ratio[0] * (300 - idle_w))


def test_temperature_in_closed_form_is_what_small_steps_give():
    metrics = GpuMetrics(CLUSTER)
    metrics.set_load(0, 10.0, [Load("job-1", JOB)])
    full_w = metrics.sample(10.0).power_w[0]
    metrics.set_load(0, 70.0, [])
    metrics.set_load(0, 90.0, [Load("job-2", JOB)])
    second_w = metrics.sample(90.0).power_w[0]

    idle_w = 300 * IDLE_POWER_SHARE
    resistance = (FULL_LOAD_TEMPERATURE_SHARE * 90 - AMBIENT_C) / 300
    temperature, step_s = AMBIENT_C + resistance * idle_w, 0.001
    for step in range(int(150 / step_s)):
        time_s = step * step_s
        power_w = full_w if 10 <= time_s < 70 else second_w if time_s >= 90 else idle_w
        temperature += step_s * (AMBIENT_C + resistance * power_w - temperature) / TIME_CONSTANT_S
    assert metrics.sample(150.0).temperature_c[0] == pytest.approx(temperature, abs=0.01)


def test_a_gpu_under_full_load_settles_below_its_maximum():
    metrics = GpuMetrics(CLUSTER)
    metrics.set_load(1, 0.0, [Load("job-1", JOB)])
    settled_c = metrics.sample(1e5).temperature_c[1]
    assert 80 < settled_c <= FULL_LOAD_TEMPERATURE_SHARE * 110


def test_a_lost_gpu_reports_nothing_and_is_cooler_when_it_is_back():
    metrics = GpuMetrics(CLUSTER)
    metrics.set_load(0, 0.0, [Load("job-1", JOB)])
    hot_c = metrics.sample(300.0).temperature_c[0]
    metrics.lose(0, 300.0)
    lost = metrics.sample(310.0)
    for values in (lost.utilization_ratio, lost.memory_used_mib, lost.temperature_c, lost.power_w):
        assert np.isnan(values[0])
        assert np.isfinite(values[1])
    metrics.restore(0, 400.0)
    back = metrics.sample(400.0)
    assert AMBIENT_C < back.temperature_c[0] < hot_c - 20
    assert back.utilization_ratio[0] == 0.0


def test_memory_never_exceeds_the_gpu():
    metrics = GpuMetrics(CLUSTER)
    metrics.set_load(0, 0.0, [Load("job-1", JobSpec("j", "a", JobType.SIMULATION, gpu_memory_mib=16160))])
    assert metrics.sample(1.0).memory_used_mib[0] == 16160


def test_two_jobs_on_a_gpu_add_up_to_what_it_has():
    other = JobSpec("k", "ada", JobType.SIMULATION, application="cloverleaf_fp64", gpu_memory_mib=5000)
    alone = []
    for job_id, spec in (("job-1", JOB), ("job-2", other)):
        metrics = GpuMetrics(CLUSTER)
        metrics.set_load(0, 0.0, [Load(job_id, spec)])
        alone.append(metrics.sample(0.0))
    metrics.set_load(0, 10.0, [Load("job-1", JOB, 0.3), Load("job-2", other, 0.25)])
    both = metrics.sample(10.0)
    for name in ("utilization_ratio", "memory_bandwidth_gb_per_s"):
        first, second = (getattr(each, name)[0] for each in alone)
        assert getattr(both, name)[0] == pytest.approx(0.3 * first + 0.25 * second)
    assert both.memory_used_mib[0] == DRIVER_MEMORY_MIB + 13000
    idle_w = 300 * IDLE_POWER_SHARE
    assert both.power_w[0] == pytest.approx(idle_w + both.utilization_ratio[0] * (300 - idle_w))
    metrics.set_load(0, 20.0, [Load("job-1", JOB, 1.0), Load("job-2", JOB, 0.9)])
    most = metrics.sample(20.0)
    assert (most.utilization_ratio[0], most.memory_bandwidth_gb_per_s[0], most.power_w[0]) == (1.0, 897, 300)
    assert most.memory_used_mib[0] == 16160
    metrics.set_load(0, 30.0, [])
    assert metrics.sample(30.0).utilization_ratio[0] == 0.0


def test_an_unknown_model_without_figures_is_refused():
    with pytest.raises(InvalidInput, match="'warp9' is not known"):
        GpuMetrics(Cluster("x", (Node("n", 8, 65536, (Gpu("n/0", "warp9", 1024),)),)))
