"""Jobs' records become a list for the simulator: what they truly ran, on other GPU models by the speeds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from adlro.hardware.gang_speeds import spread_speed
from adlro.hardware.shared_speeds import KEPT_SHARES
from adlro.hardware.speeds import SHIPPED
from adlro.lab.compare import history
from adlro.lab.compare.history import History, durations_s, history_of, window_of
from adlro.lab.compare.knowledge import ESTIMATE, GROUP, PRIOR, TYPE, counted, expected_s
from adlro.placement import Placement
from adlro.records.cluster import Cluster, Gpu, Node
from adlro.records.jobs import ExpectedRuntime, Job, JobAttempt, JobSpec, JobState, JobType, Preemptible
from adlro.records.outcomes import ApplicationSize, NeighbourTime
from adlro.workload.estimates import prior_work_s

FAST, SLOW = "v100_sxm2", "rtx_2080_ti"
MODELS = (FAST, SLOW)


def node(name: str, model: str, gpus: int = 2) -> Node:
    return Node(name, 16, 64_000, tuple(Gpu(f"{name}/{number}", model, 16_000) for number in range(gpus)))


CLUSTER = Cluster("two", (node("a", FAST), node("b", FAST), node("c", SLOW)))
SPEC = JobSpec(name="one", user="ada", job_type=JobType.MACHINE_LEARNING, application="resnet50_fp16")
RATIO = SHIPPED.speed(SPEC.application, SPEC.job_type, FAST) / SHIPPED.speed(SPEC.application, SPEC.job_type, SLOW)


def attempt(start_s: float, end_s: float, *gpus: str, model: str = FAST, **more: object) -> JobAttempt:
    return JobAttempt(1, Placement.on(*(gpus or ("a/0",))), model, start_s, end_s, **more)  # type: ignore[arg-type]


def job(number: int, submit_s: float, *attempts: JobAttempt, spec: JobSpec = SPEC, **more: object) -> Job:
    last = attempts[-1]
    found = Job(
        f"job-{number}",
        spec,
        JobState.SUCCEEDED,
        submit_s=submit_s,
        start_s=last.start_s,
        end_s=last.end_s,
        placement=last.placement,
        gpu_model=last.gpu_model,
        attempts=attempts,
    )
    return replace(found, **more)  # type: ignore[arg-type]


def past(*jobs: Job, now_s: float = 1e4) -> History:
    return history_of(jobs, CLUSTER, SHIPPED, now_s)


def held_s(*jobs: Job) -> list[list[float]]:
    found: list[list[float]] = durations_s(past(*jobs).jobs, MODELS, SHIPPED).tolist()
    return found


def test_a_runtime_is_brought_to_other_models_by_the_speeds() -> None:
    assert held_s(job(1, 0.0, attempt(5.0, 105.0))) == [[100.0, pytest.approx(100.0 * RATIO, abs=1e-5)]]
    assert held_s(job(1, 0.0, attempt(5.0, 105.0, "c/0", model=SLOW))) == [
        [pytest.approx(100.0 / RATIO, abs=1e-5), 100.0]
    ]


def test_the_start_of_a_program_takes_as_long_on_every_model() -> None:
    assert held_s(job(1, 0.0, attempt(5.0, 105.0, run_s=25.0))) == [
        [100.0, pytest.approx(20.0 + 80.0 * RATIO, abs=1e-5)]
    ]


def test_a_job_that_ended_at_its_limit_reaches_it_everywhere() -> None:
    limited = replace(SPEC, time_limit_s=100.0)
    late = job(1, 0.0, attempt(5.0, 105.0), spec=limited, state=JobState.FAILED)
    assert held_s(late) == [[100.0, 100.0]]
    # One that failed before by itself fails later on a slower GPU.
    early = job(1, 0.0, attempt(5.0, 55.0), spec=limited, state=JobState.FAILED)
    assert held_s(early) == [[50.0, pytest.approx(50.0 * RATIO, abs=1e-5)]]
    assert not past(early).jobs[0].measured


def test_a_stopped_job_has_the_work_of_all_attempts_less_what_stops_cost() -> None:
    spec = replace(SPEC, preemptible=Preemptible(restart_s=10.0, lost_s=5.0))
    stopped = job(
        1, 0.0, attempt(0.0, 40.0, "c/0", model=SLOW, preempted=True), attempt(60.0, 130.0), spec=spec
    )  # 35 s of work on the slow one, 60 s on the fast one
    assert held_s(stopped)[0][0] == pytest.approx(35.0 / RATIO + 60.0, abs=1e-5)
    assert past(stopped).handled == {history.STOPPED: 1}


def test_a_lost_attempt_does_not_count_as_work() -> None:
    again = job(1, 0.0, attempt(0.0, 40.0, outcome="lost: GPU a/0 was lost"), attempt(50.0, 150.0))
    assert held_s(again)[0][0] == 100.0
    assert past(again).handled == {history.REPEATED: 1}


def test_a_spread_gang_would_be_faster_packed() -> None:
    spec = replace(SPEC, gpu_count=2)
    share = spread_speed(spec.application, spec.job_type, 2, FAST)
    assert share < 1
    assert held_s(job(1, 0.0, attempt(0.0, 100.0, "a/0", "b/0"), spec=spec))[0][0] == pytest.approx(
        100.0 * share, abs=1e-5
    )
    packed = job(1, 0.0, attempt(0.0, 100.0, "a/0", "a/1"), spec=spec)
    assert held_s(packed)[0][0] == 100.0
    assert past(packed).handled == {history.GANG: 1}


def test_time_beside_another_job_counts_by_the_share_that_was_kept() -> None:
    (_, one, other), (keeps, _) = next((key, kept) for key, kept in KEPT_SHARES.items() if key[0] == "v100")
    spec = replace(SPEC, application=one, shareable=True)
    beside = (NeighbourTime(ApplicationSize(other), 60.0),)
    known = job(1, 0.0, attempt(0.0, 100.0, neighbours=beside), spec=spec)
    assert past(known).jobs[0].asks.work_s == pytest.approx(
        (100.0 - 60.0 * (1.0 - keeps)) * SHIPPED.speed(one, spec.job_type, FAST)
    )
    assert past(known).handled == {history.SHARED: 1}
    unknown = job(1, 0.0, attempt(0.0, 100.0, neighbours=(NeighbourTime(ApplicationSize("own"), 60.0),)), spec=spec)
    assert past(unknown).jobs[0].asks.work_s == pytest.approx(70.0 * SHIPPED.speed(one, spec.job_type, FAST))
    assert past(unknown).handled == {history.ASSUMED: 1}


def test_what_is_left_out_is_counted_with_the_gpu_time_that_it_held() -> None:
    runs = job(1, 0.0, attempt(10.0, 0.0), state=JobState.RUNNING, end_s=None)
    runs = replace(runs, attempts=(replace(runs.attempts[0], end_s=None),))
    gone = job(2, 0.0, attempt(0.0, 50.0, "x/0", model="gone_model"))
    found = past(runs, gone, now_s=110.0)
    assert found.jobs == ()
    assert {(each.why, each.jobs, each.gpu_time_s) for each in found.left_out} == {
        (history.NOT_ENDED, 1, 100.0),
        (history.NO_SPEED, 1, 50.0),
    }


def test_a_window_begins_and_ends_where_the_cluster_was_empty() -> None:
    # Two busy periods: 0-30 and 100-130; in the second, job 4 meets job 3.
    jobs = past(
        job(1, 0.0, attempt(0.0, 30.0)),
        job(2, 10.0, attempt(10.0, 20.0, "a/1")),
        job(3, 100.0, attempt(100.0, 130.0)),
        job(4, 110.0, attempt(110.0, 120.0, "a/1")),
        job(5, 115.0, attempt(115.0, 119.0, "b/1")),
        job(6, 200.0, attempt(200.0, 210.0)),
    ).jobs
    window = window_of(jobs, 105.0, 112.0, None)
    assert (window.first, window.last, window.warm_up) == (2, 5, 1)
    assert window.measured.tolist() == [False, True, False]
    assert window_of(jobs, 300.0, None, None).last == 0


def test_groups_know_only_what_had_ended() -> None:
    other = replace(SPEC, user="bob")
    jobs = past(
        job(1, 0.0, attempt(0.0, 30.0)),
        job(2, 20.0, attempt(20.0, 90.0, "a/1")),  # the first still runs
        job(3, 31.0, attempt(31.0, 41.0)),
        job(4, 32.0, attempt(32.0, 42.0, "b/0"), spec=other),
        job(5, 95.0, attempt(95.0, 99.0)),
    ).jobs
    speed = SHIPPED.speed(SPEC.application, SPEC.job_type, FAST)
    found, sources = expected_s(jobs, MODELS, SHIPPED, "group", {})
    assert sources == [PRIOR, PRIOR, GROUP, TYPE, GROUP]
    prior_s = prior_work_s(SPEC.job_type) / speed
    np.testing.assert_allclose(found[:, 0], [prior_s, prior_s, 30.0, 30.0, (30.0 + 70.0 + 10.0) / 3], rtol=1e-6)
    assert counted(sources) == {GROUP: 2, TYPE: 1, PRIOR: 2}


def test_what_was_expected_then_goes_before_estimates_and_groups() -> None:
    said = replace(SPEC, expected_runtime=ExpectedRuntime(FAST, 80.0))
    jobs = past(job(1, 0.0, attempt(0.0, 30.0), spec=said), job(2, 0.0, attempt(0.0, 30.0, "a/1"), spec=said)).jobs
    found, sources = expected_s(jobs, MODELS, SHIPPED, "known", {"job-2": {SLOW: 50.0}})
    assert sources == [ESTIMATE, "decision"]
    np.testing.assert_allclose(found, [[80.0, 80.0 * RATIO], [50.0 / RATIO, 50.0]], rtol=1e-9)
    true_s, _ = expected_s(jobs, MODELS, SHIPPED, "true", {"job-2": {SLOW: 50.0}})
    np.testing.assert_allclose(true_s[:, 0], 30.0)
