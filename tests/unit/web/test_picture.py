"""The picture: what each GPU does, planes of metrics, the clock, event lag, snapshots of jobs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from adlro.records.events import Clock, ClockMode, GpuCondition
from adlro.records.jobs import JobState, PendingReason
from adlro.records.matrices import MetricColumn, TelemetryBlock
from adlro.records.status import EventLag
from adlro.records.telemetry import Metric, Unit
from adlro.services.web import figures
from adlro.services.web.figures import alerts
from adlro.services.web.picture import Picture
from adlro.services.web.viewers import EVERYBODY, Viewer
from adlro.services.web.views import gpu_document
from tests.unit.web.world import (
    ANN,
    CLUSTER,
    GPU_IDS,
    REA,
    cluster_state,
    description,
    ended,
    job,
    known,
    queue_status,
    running,
    status,
)


def head(picture: Picture, viewer: Viewer, now: float) -> dict[str, Any]:
    """The figures, which are known."""
    found = figures.head(picture, viewer, now)
    assert found is not None
    return found


def test_each_gpu_has_one_byte_for_what_it_does():
    picture = known(running(job(1), "volta-0/0"), running(job(2), "volta-0/0"), running(job(3), "volta-0/1"))
    picture.take_job(running(job(4), "turing-0/0"))
    picture.take_status(status(drained_node_ids=("turing-0",)))
    picture.take_description(description(("volta-0/2",)), 0.0)
    picture.take_state(cluster_state(flagged=("volta-0/0", "turing-0/1")))
    assert picture.state_plane().tolist() == [2 + 16, 1, 3, 5, 4 + 16]


def test_planes_have_a_byte_for_each_ratio_and_255_for_what_is_not_reported():
    picture = known()
    picture.take_state(cluster_state({"volta-0/0": 0.0, "volta-0/1": 1.0, "turing-0/0": 0.5}))
    assert picture.metric_planes()["power"].tolist() == [0, 254, 255, 127, 255]


def test_planes_are_in_the_order_of_the_cluster_whatever_the_order_of_the_report():
    picture = known()
    state = cluster_state({"volta-0/1": 1.0})
    turned = replace(
        state, gpus=state.gpus[::-1], planes={metric: plane[::-1] for metric, plane in state.planes.items()}
    )
    picture.take_state(turned)
    assert picture.metric_planes()["utilization"].tolist() == [255, 254, 255, 255, 255]


@pytest.mark.parametrize(
    ("clock", "after_10_s"),
    [
        (Clock(ClockMode.REAL, 1.0, paused=False, time_s=200.0), 210.0),
        (Clock(ClockMode.SCALED, 5.0, paused=False, time_s=200.0), 250.0),
        (Clock(ClockMode.SCALED, 5.0, paused=True, time_s=200.0), 200.0),
        (Clock(ClockMode.VIRTUAL, 5.0, paused=False, time_s=200.0), 200.0),
        (Clock(ClockMode.VIRTUAL, 0.0, paused=False, time_s=50.0), 100.0),  # the orchestrator's is newer
    ],
)
def test_the_clock_goes_on_between_reports(clock, after_10_s):
    picture = known()
    picture.take_description(description(clock=clock), 1000.0)
    assert picture.time_s(1010.0) == after_10_s
    assert Picture().time_s(0.0) is None


def test_event_lag_is_what_the_orchestrator_says_of_itself():
    picture = known()
    picture.take_status(status(event_lag=EventLag(3000, 12.4, 3010)))
    shown = head(picture, REA, 1.0)
    assert shown["event_lag"] == 3000
    assert shown["alerts"][0]["text"] == (
        "The orchestrator is 3000 events behind the cluster, the oldest of them 12 s old: what it says is old."
    )
    picture.take_status(status(event_lag=EventLag(3000, 1.0, 3010)))
    assert (head(picture, REA, 1.0)["event_lag"], head(picture, REA, 1.0)["alerts"]) == (3000, [])
    picture.lose_status()
    assert head(picture, REA, 1.0)["event_lag"] is None
    picture.take_status(status(event_lag=None))
    assert head(picture, REA, 1.0)["event_lag"] is None


def test_the_numbers_of_the_queue_are_the_orchestrators_while_it_answers():
    picture = known(job(1), job(2, "bob"), running(job(3), GPU_IDS[0]))
    told = queue_status(*(job(number) for number in range(1, 6)), running(job(6), GPU_IDS[4]))
    picture.take_status(replace(told, waiting_for_begin_time_count=2))
    shown = head(picture, REA, 1.0)
    assert (shown["queue_length"], shown["running"]) == (7, 1)
    assert shown["queue_by_reason"] == {"resources": 5, "begin_time": 2}
    assert (shown["queue_by_type"], shown["queue_by_user"]) == ({"machine_learning": 5}, {"ann": 5})
    assert shown["running_by_model"] == {"volta": 1}
    assert head(picture, ANN, 1.0)["queue_length"] == 1
    for away in (picture.lose_status, lambda: picture.take_status(status(acting=False, queue_length=9))):
        away()
        shown = head(picture, REA, 1.0)
        assert (shown["queue_length"], shown["queue_by_user"], shown["running"]) == (2, {"ann": 1, "bob": 1}, 1)


def test_a_gpu_has_its_raw_values_once_somebody_follows_it():
    picture = known()
    assert set((gpu_document(GPU_IDS[1], picture) or {})["values"].values()) == {None}
    values = np.array([[0.5, np.nan]], np.float32)
    column = MetricColumn(Unit.RATIO, values, values)
    picture.take_readings(TelemetryBlock("default", GPU_IDS[:2], (1.0,), (1.0,), {Metric.UTILIZATION: column}))
    shown = [(gpu_document(each, picture) or {})["values"]["utilization_ratio"] for each in GPU_IDS[:3]]
    assert shown == [0.5, None, None]


def test_a_new_snapshot_forgets_jobs_that_are_no_more_and_takes_what_seems_older():
    picture = known(running(job(1), GPU_IDS[0]), job(2))
    picture.begin_snapshot()
    picture.take_job(job(1))  # the store was lost: numbers and revisions begin again
    picture.end_snapshot()
    assert [each.job_id for each in picture.jobs.jobs()] == ["job-1"]
    only = picture.jobs.get("job-1")
    assert only is not None
    assert only.state is JobState.PENDING
    assert picture.jobs.holders == {}


def test_figures_that_are_not_known_are_none_and_never_zero():
    picture = Picture()
    assert figures.head(picture, EVERYBODY, 1.0) is None
    picture.take_cluster(CLUSTER)
    picture.take_description(description(), 0.0)
    shown = head(picture, EVERYBODY, 1.0)
    known_now = {"wall_unix_s", "time_s", "cluster", "clock", "gpu_count", "usable_gpus", "lost_gpu_count", "alerts"}
    assert {name for name, value in shown.items() if value is not None} == known_now


def test_a_submitter_gets_the_figures_of_his_own_jobs_and_the_clusters_size():
    picture = known(job(1), job(2, "bob"), job(3, "bob"), running(job(4, "bob"), "volta-0/0"))
    picture.take_status(replace(queue_status(*picture.jobs.jobs()), problem="secret of the operators"))
    mine, all_of_it = head(picture, ANN, 1.0), head(picture, REA, 1.0)
    assert (mine["queue_length"], mine["running"], mine["queue_by_user"]) == (1, 0, {"ann": 1})
    assert (all_of_it["queue_length"], all_of_it["running"]) == (3, 1)
    assert (mine["gpu_count"], mine["allocated_gpus"]) == (5, 1)
    # No alerts either: without any, the page would say that nothing needs anybody.
    assert not mine.keys() & {"policy", "problem", "event_lag", "drained", "drift", "busy_ratio", "alerts"}


def test_alerts_are_sentences_with_a_page_that_has_more():
    picture = known(job(1))
    shown = head(picture, REA, 1.0)
    assert alerts(picture, shown) == []
    picture.take_status(
        status(problem="the cluster is away", drained_node_ids=("volta-0",), drain_reasons={"volta-0": "<b>fan</b>"})
    )
    picture.take_description(
        description(("volta-0/2",), gpu_conditions=(GpuCondition("volta-0/2", "fell off the bus"),)), 0.0
    )
    told = {each["text"]: each["href"] for each in head(picture, REA, 1.0)["alerts"]}
    assert told == {
        "No job can be placed: the cluster is away": "/policies",
        "Node volta-0 is drained: <b>fan</b>": "/",
        "GPU volta-0/2 is lost: fell off the bus": "/gpus/volta-0%2F2",
    }


def test_jobs_that_no_gpu_fits_are_an_alert_with_the_queue_of_them():
    refused = replace(job(1), pending_reason=PendingReason.NO_FITTING_GPU)
    picture = known(refused, replace(job(2), pending_reason=PendingReason.NO_FITTING_GPU))
    (alert,) = head(picture, REA, 1.0)["alerts"]
    assert (alert["text"], alert["href"]) == (
        "2 jobs ask for more than any GPU has.",
        "/queue?reason=no_fitting_gpu&state=pending",
    )


def test_gpus_that_are_flagged_are_an_alert_and_those_that_are_suspected_by_chance_are_none():
    picture = known()
    picture.take_state(cluster_state())
    shown = head(picture, REA, 1.0)
    assert shown["drift"] == {"flagged": 0, "suspected": 1, "by_chance": 0.2}
    assert shown["alerts"] == []
    picture.take_state(cluster_state(flagged=GPU_IDS[:1]))
    (alert,) = head(picture, REA, 1.0)["alerts"]
    assert alert["text"] == "1 GPU is slower than the model: volta-0/0 (80%) of its speed."
    assert alert["href"] == "/gpus/volta-0%2F0"
    picture.take_state(cluster_state(flagged=GPU_IDS))
    (alert,) = head(picture, REA, 1.0)["alerts"]
    assert "5 GPUs are slower than the model: " in alert["text"]
    assert "(80%) and 2 more of its speed" in alert["text"]


def test_the_wait_and_the_failures_of_the_last_hour():
    picture = known(
        running(job(1), GPU_IDS[0], start_s=41.0),
        ended(running(job(2), GPU_IDS[1], start_s=60.0), JobState.FAILED, end_s=70.0),
        ended(running(job(3), GPU_IDS[1], start_s=71.0), end_s=80.0),
    )
    shown = head(picture, REA, 1.0)
    assert shown["failed_ratio_1h"] == 0.5
    assert shown["wait_p95_s"] == pytest.approx(np.percentile([40.0, 58.0, 68.0], 95))
    assert shown["running_by_model"] == {"volta": 1}


def test_allocated_gpus_are_a_part_of_the_usable_ones():
    # Jobs still run on a node that is drained, and on a GPU that is lost.
    picture = known(*(running(job(number), gpu_id) for number, gpu_id in enumerate(GPU_IDS, start=1)))
    assert [head(picture, REA, 1.0)[each] for each in ("allocated_gpus", "usable_gpus", "gpu_count")] == [5, 5, 5]
    picture.take_status(status(drained_node_ids=("turing-0",)))
    picture.take_description(description(GPU_IDS[:1]), 0.0)
    assert [head(picture, REA, 1.0)[each] for each in ("allocated_gpus", "usable_gpus", "gpu_count")] == [2, 2, 5]
