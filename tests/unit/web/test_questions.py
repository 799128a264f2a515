"""Questions to the services, as the page answers them: why a job waits, what ran where, what fits, past decisions."""

from __future__ import annotations

import asyncio
import json
import math
import os
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from adlro.errors import (
    AdlroError,
    Conflict,
    DeadlineExceeded,
    InvalidInput,
    NotFound,
    Unavailable,
    Unsupported,
)
from adlro.placement import NOWHERE, Placement
from adlro.records.capacity import ClusterCapacity, GpuModelCapacity
from adlro.records.cluster import Cluster
from adlro.records.decisions import (
    Decision,
    DecisionFilter,
    DecisionPair,
    DecisionPrediction,
    MaskedGroup,
)
from adlro.records.history import AttemptBars, AttemptHistory, AttemptOccupancy, AttemptOutcome, RowKind
from adlro.records.jobs import Job, JobType, PendingReason
from adlro.records.matrices import MetricColumn, Telemetry, TelemetryBlock
from adlro.records.predictions import PredictionBasis
from adlro.records.status import OrchestratorStatus, ShadowStatus
from adlro.records.telemetry import Metric, Unit
from adlro.records.waiting import ExpectedStart, GpuObstacle, WaitingChange, WaitingChangeKind, WaitingExplanation
from adlro.services.web import api, folders
from adlro.services.web.api import capacity_answer, gantt_answer, gpu_answer, job_answer, policies_answer
from adlro.services.web.decisions import decisions_answer, differing_attempts
from adlro.services.web.documents import (
    decided_prediction,
    decision_document,
    waiting_document,
)
from adlro.services.web.gantt import gantt_document
from adlro.services.web.picture import Picture
from tests.unit.web.world import ANN, CLUSTER, GPU_IDS, REA, decision, description, job, known, running, status

NAMES: dict[str, str | None] = {"job-1": "one"}


def bars(*of_jobs: tuple[int, str, str, float, float, AttemptOutcome]) -> AttemptBars:
    """Bars as ingest tells them: place of the GPU, job, user, begin, end, outcome."""
    jobs = ("", *dict.fromkeys(each[1] for each in of_jobs if each[1]))
    users = ("", *dict.fromkeys(each[2] for each in of_jobs if each[2]))
    return AttemptBars(
        gpu_ids=(*GPU_IDS, "gone/0"),
        job_ids=jobs,
        users=users,
        gpu_indexes=tuple(each[0] for each in of_jobs),
        job_indexes=tuple(jobs.index(each[1]) for each in of_jobs),
        user_indexes=tuple(users.index(each[2]) for each in of_jobs),
        attempts=tuple(1 if each[1] else 0 for each in of_jobs),
        job_types=tuple(JobType.MACHINE_LEARNING if each[1] else JobType.UNSPECIFIED for each in of_jobs),
        starts_s=tuple(each[3] for each in of_jobs),
        ends_s=tuple(each[4] for each in of_jobs),
        outcomes=tuple(each[5] for each in of_jobs),
        shares=(),
    )


def test_the_past_is_bars_and_of_others_jobs_only_the_gpu_and_the_times():
    told = bars(
        (1, "job-1", "ann", 50.0, 100.0, AttemptOutcome.STOPPED),
        (0, "job-2", "ann", 60.0, math.inf, AttemptOutcome.RUNNING),
        (0, "", "", 10.0, 20.0, AttemptOutcome.UNSPECIFIED),
        (5, "job-3", "ann", 10.0, 20.0, AttemptOutcome.LOST),
    )
    history = AttemptHistory("default", 0.0, 120.0, 4, bars=told)
    shown = gantt_document(known().layout, history, 110.0, NAMES.get, {("job-2", 1)})
    found = shown["bars"]
    assert found["gpu"] == [0, 0, 1]
    assert found["job"] == ["", "job-2", "job-1"]
    assert found["end_s"] == [20.0, None, 100.0]
    assert found["outcome"] == [None, "running", "cancelled"]
    assert (found["name"], found["user"]) == ([None, None, "one"], [None, "ann", "ann"])
    assert (found["type"], found["differs"]) == ([None, *["machine_learning"] * 2], [False, True, False])
    # A GPU that the cluster has no more.
    assert (shown["bar_count"], shown["left_out"], shown["occupancy"]) == (4, 1, None)
    json.dumps(shown, allow_nan=False)
    assert gantt_document(known().layout, history, 1.0, NAMES.get, None)["bars"]["differs"] == [None] * 3


@pytest.mark.parametrize(
    ("kind", "names", "held"),
    [
        (RowKind.NODE, ("turing-0", "volta-0"), [[1.0, 0.0], [0.0, 0.502]]),
        (RowKind.GPU_MODEL, ("volta", "turing"), [[0.0, 0.502], [1.0, 0.0]]),
        (RowKind.NODE, ("volta-0", "elsewhere"), [[0.0, 0.502], [0.0, 0.0]]),
    ],
)
def test_many_bars_are_the_occupancy_of_each_node(kind, names, held):
    given = AttemptOccupancy(kind, names, (3, 2), 2, 60.0, bytes([0, 128, 255, 0]), 9000)
    shown = gantt_document(
        known().layout, AttemptHistory("default", 0.0, 120.0, 9000, occupancy=given), 110.0, NAMES.get, None
    )
    assert (shown["bars"], shown["bar_count"], shown["left_out"]) == (None, 9000, 9000)
    # In the order of the cluster: volta-0, turing-0.
    assert shown["occupancy"]["node"] == held


def test_why_a_job_waits_has_what_could_be_changed_and_when_it_may_start():
    told = WaitingExplanation(
        "job-1",
        100.0,
        PendingReason.RESOURCES,
        "All GPUs that it accepts are busy.",
        3,
        9,
        {GpuObstacle.BUSY: 4, GpuObstacle.LOST: 0, GpuObstacle.MODEL: 2},
        (WaitingChange(WaitingChangeKind.GPU_MODELS, 0, ("turing",), 2, "Accept turing too: 2 GPUs are free."),),
        ExpectedStart(90.0, 130.0, 200.0, 100.0, 40, 0.775),
    )
    shown = waiting_document(told)
    assert shown["start"] == {"low_s": 0.0, "median_s": 30.0, "high_s": 100.0}
    assert shown["record"] == {"forecast_count": 40, "within_ratio": 0.775}
    assert [(each["reason"], each["gpu_count"]) for each in shown["gpus"]] == [("busy", 4), ("model", 2)]
    assert shown["advice"] == [{"text": "Accept turing too: 2 GPUs are free.", "gpu_count": 2}]
    assert (shown["category"], shown["place"], shown["queue_length"]) == ("resources", 3, 9)
    none = waiting_document(
        replace(told, expected_start=None, no_expected_start="too few jobs have ended", queue_place=0)
    )
    assert (none["start"], none["record"], none["place"]) == (None, None, None)
    assert none["no_start"] == "too few jobs have ended"


def test_what_was_predicted_when_a_job_was_placed_has_an_interval_only_where_there_was_one():
    assert decided_prediction(decision(1), "volta") is None
    told = DecisionPrediction(30.0, 20.0, 50.0, 0.8, PredictionBasis.USER_APPLICATION)
    shown = decided_prediction(replace(decision(1), prediction=told), "volta")
    assert shown == {
        "gpu_model": "volta",
        "median_s": 30.0,
        "low_s": 20.0,
        "high_s": 50.0,
        "basis": "user_application",
        "time_s": 1.0,
    }
    alone = decided_prediction(replace(decision(1), prediction=DecisionPrediction(30.0)), "")
    assert alone is not None
    assert (alone["low_s"], alone["high_s"], alone["basis"], alone["gpu_model"]) == (None, None, None, None)


def test_a_decision_of_the_store_has_groups_of_excluded_gpus_and_the_best_pairs():
    pair = DecisionPair("job-2", "volta", Placement.on("volta-0/0"), 3, 30.0, 0.75)
    made = replace(
        decision(1),
        masked_groups=(MaskedGroup("too small", 2, ("a", "b")), MaskedGroup("busy", 9, ("c",))),
        best_pairs=(pair, replace(pair, job_id="job-4", score=0.5)),
    )
    shown = decision_document(made, 32)
    assert shown["masked"][0] == {"reason": "busy", "gpu_count": 9, "example_gpu_ids": ["c"]}
    assert [(each["job"], each["chosen"], each["equal_gpu_count"]) for each in shown["pairs"]] == [
        ("job-2", True, 3),
        ("job-4", False, 3),
    ]


class Decided:
    """An orchestrator that has made decisions."""

    def __init__(self, *times_s: float) -> None:
        self.made = [replace(decision(number), time_s=time_s) for number, time_s in enumerate(times_s, start=1)]

    async def decisions(self, chosen: DecisionFilter, page_size: int) -> AsyncIterator[Decision]:
        assert page_size >= 1
        for each in reversed(self.made):
            if chosen.matches(each):
                yield each


async def test_older_decisions_come_in_pages_that_end_between_two_moments():
    client: Any = Decided(1.0, 2.0, 3.0, 3.0, 3.0, 4.0, 5.0)
    query = {"count": "3"}
    pages = []
    while True:
        found = await decisions_answer(client, query)
        pages.append([each["time_s"] for each in found["decisions"]])
        if found["older_s"] is None:
            break
        query = {"count": "3", "to": str(found["older_s"])}
    assert pages == [[5.0, 4.0, 3.0, 3.0, 3.0], [2.0, 1.0]]
    assert [each["time_s"] for each in (await decisions_answer(client, {"from": "2", "to": "4"}))["decisions"]] == [
        *[3.0] * 3,
        2.0,
    ]


@pytest.mark.parametrize(
    ("query", "field"),
    [({"basis": "luck"}, "basis"), ({"differs": "yes"}, "differs"), ({"to": "x"}, "to"), ({"count": "0"}, "count")],
)
async def test_wrong_parameters_of_decisions_are_named(query, field):
    with pytest.raises(InvalidInput) as refused:
        await decisions_answer(cast(Any, Decided(1.0)), query)
    assert refused.value.field == field


class Past:
    """An ingest and an orchestrator that remember; asked by somebody."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    async def query_attempts(self, from_s: float, to_s: float | None = None, **more: Any) -> AttemptHistory:
        self.asked.append((from_s, to_s, more.get("gpu_ids")))
        told = bars((1, "job-1", "ann", 50.0, 60.0, AttemptOutcome.SUCCEEDED), (1, "", "", 70.0, 80.0, OTHERS))
        return AttemptHistory("default", from_s, to_s or 100.0, 2, bars=told)

    async def telemetry(self, *, window_s: float, gpu_ids: list[str], step_s: float) -> Telemetry:
        self.asked.append(("telemetry", window_s, gpu_ids))
        assert window_s / step_s <= 1000
        values = np.array([[0.25], [0.5]], np.float32)
        block = TelemetryBlock(
            "default",
            tuple(gpu_ids),
            (1.0, 2.0),
            (1.0, 2.0),
            {Metric.UTILIZATION: MetricColumn(Unit.RATIO, values, values)},
        )
        return Telemetry(block, (block,))

    async def decisions(self, chosen: DecisionFilter, page_size: int) -> AsyncIterator[Decision]:
        self.asked.append(("decisions", chosen.from_s, chosen.to_s, chosen.differs_only))
        yield replace(decision(0, differs=True), job_id="job-1", attempt=1)


OTHERS = AttemptOutcome.UNSPECIFIED


async def test_a_readers_bars_tell_where_the_shadow_differed_and_a_submitter_asks_for_none(
    monkeypatch: pytest.MonkeyPatch,
):
    picture = known(job(1), job(2, "bob"))
    picture.take_status(status(shadow=ShadowStatus("fcfs")))
    for viewer, differs in ((REA, [True, False]), (ANN, [None, None])):
        past = Past()
        shown = await gantt_answer(cast(Any, past), viewer, picture, {"from": "10", "to": "90", "gpus": "volta-0/1"})
        assert past.asked[0] == (10.0, 90.0, ["volta-0/1"])
        assert (("decisions", 10.0, 90.0, True) in past.asked) == viewer.sees_all
        assert shown["bars"]["differs"] == differs
        assert shown["bars"]["job"] == ["job-1", ""]
        assert shown["bars"]["name"] == ["train 1", None]
    with pytest.raises(InvalidInput, match="before to"):
        await gantt_answer(cast(Any, Past()), REA, picture, {"from": "10", "to": "10"})
    monkeypatch.setattr(api, "_FIRST_WORDS_S", 0.01)
    with pytest.raises(Unavailable):
        await gantt_answer(cast(Any, Past()), REA, Picture(), {})


async def test_where_the_past_is_told_as_occupancy_no_decisions_are_asked_for():
    class Full(Past):
        async def query_attempts(self, from_s: float, to_s: float | None = None, **_: Any) -> AttemptHistory:
            given = AttemptOccupancy(RowKind.NODE, ("volta-0",), (3,), 2, 60.0, bytes([0, 128]), 9000)
            return AttemptHistory("default", from_s, to_s or 100.0, 9000, occupancy=given)

    picture, past = known(), Full()
    picture.take_status(status(shadow=ShadowStatus("fcfs")))
    assert (await gantt_answer(cast(Any, past), REA, picture, {"from": "10"}))["bars"] is None
    assert past.asked == []


async def test_decisions_that_place_nothing_are_read_up_to_a_limit():
    class Holding:
        read = 0

        async def decisions(self, chosen: DecisionFilter, page_size: int) -> AsyncIterator[Decision]:
            while True:
                self.read += 1
                yield replace(decision(1, differs=True), placement=NOWHERE)

    picture, client = known(), Holding()
    picture.take_status(status(shadow=ShadowStatus("fcfs")))
    assert await differing_attempts(cast(Any, client), REA, picture, 0.0, 100.0) == set()
    assert client.read == 5000


async def test_a_question_that_comes_with_the_first_page_waits_for_the_first_words():
    picture = Picture()
    asking = asyncio.create_task(gantt_answer(cast(Any, Past()), ANN, picture, {"from": "10"}))
    await asyncio.sleep(0.01)
    picture.take_description(description(), time.time())
    assert (await asking)["bar_count"] == 2


async def test_a_gpu_has_its_values_and_what_ran_there():
    past = Past()
    shown = await gpu_answer(cast(Any, past), known(), GPU_IDS[1], {"window_s": "60"})
    assert past.asked == [("telemetry", 60.0, [GPU_IDS[1]]), (40.0, None, [GPU_IDS[1]])]
    assert shown["gpu"]["values"]["utilization_ratio"] == 0.5
    assert shown["series"]["metrics"]["utilization_ratio"] == [0.25, 0.5]
    assert [each["job"] for each in shown["attempts"]] == ["job-1"]
    with pytest.raises(NotFound):
        await gpu_answer(cast(Any, past), known(), "nowhere", {})


@pytest.mark.parametrize("cluster_times_known", [True, False])
async def test_the_steps_that_ingest_makes_are_shown_as_they_are(cluster_times_known: bool):
    count = 361  # ingest's steps of an hour: one more than what was asked for
    wall = [time.time() - 3600.0 + 10.0 * at for at in range(count)]
    values = np.linspace(0.0, 1.0, count, dtype=np.float32)[:, None]
    columns = {Metric.UTILIZATION: MetricColumn(Unit.RATIO, values, values)}
    times = tuple(float(at) for at in range(count)) if cluster_times_known else ()

    class Stepped(Past):
        async def telemetry(self, **_: Any) -> Telemetry:
            block = TelemetryBlock("default", (GPU_IDS[1],), tuple(wall), times, columns)
            return Telemetry(block, (block,))

    picture = known()
    series = (await gpu_answer(cast(Any, Stepped()), picture, GPU_IDS[1], {}))["series"]
    assert series["metrics"]["utilization_ratio"][-1] == 1.0
    assert {len(each) for each in (series["time_s"], *series["metrics"].values())} == {count}
    if cluster_times_known:
        assert series["time_s"] == list(times)
    else:
        # By the clock: its time now, and how fast it runs.
        scale = picture.clock.scale if picture.clock is not None else 1.0
        steps = np.diff(series["time_s"])
        assert steps == pytest.approx(np.full(count - 1, 10.0 * scale), rel=0.01)


class Waiting:
    """A job that waits, or waited a moment ago, and an orchestrator that is asked about it."""

    def __init__(self, told: AdlroError, *records: Job) -> None:
        self.told = told
        self.records = list(records)

    async def get(self, _: str) -> Job:
        return self.records.pop(0) if len(self.records) > 1 else self.records[0]

    async def explain_waiting(self, _: str) -> WaitingExplanation:
        raise self.told

    async def cluster(self) -> Cluster:
        return CLUSTER


async def test_that_the_orchestrator_does_not_answer_is_said_only_where_it_does_not():
    async def asked(told: AdlroError, *records: Job) -> Any:
        return await job_answer(cast(Any, Waiting(told, *records)), ANN, known(job(1)), "job-1")

    for away in (Unavailable("away"), DeadlineExceeded("too late")):
        assert (await asked(away, job(1)))["waiting"]["no_start"] == "the orchestrator does not answer now"
    older = await asked(Unsupported("ExplainWaiting: this version does not have it"), job(1))
    assert older["waiting"]["no_start"] == "ExplainWaiting: this version does not have it"
    # It was placed since its record was read.
    placed = await asked(Conflict("it does not wait"), job(1), running(job(1), GPU_IDS[0]))
    assert (placed["waiting"], placed["job"]["state"]) == (None, "running")
    soon = await asked(Conflict("it does not wait"), job(1))
    assert soon["waiting"]["no_start"] == "the orchestrator places it at this moment"


class Room:
    """A cluster whose orchestrator counts what is free, or is away."""

    def __init__(self, *models: GpuModelCapacity) -> None:
        self._models = models

    async def cluster(self) -> Cluster:
        return CLUSTER

    async def cluster_capacity(self) -> ClusterCapacity:
        if not self._models:
            raise Unavailable("the orchestrator is away")
        return ClusterCapacity("default", self._models)


@pytest.mark.parametrize(
    ("query", "models", "fitting"),
    [
        ({}, (), 3),
        ({"cpu_cores": "8"}, (), 2),
        ({"memory_mib": "5000"}, (), 1),
        ({"gpu_memory_mib": "20000"}, (), 0),
        ({}, ("volta",), 2),
        ({"memory_mib": "5000"}, ("volta", "turing"), 1),
    ],
)
async def test_what_fits_now_is_what_the_orchestrator_counts(query, models, fitting):
    room = Room(GpuModelCapacity("volta", 3, 3, 2, 8, 4096), GpuModelCapacity("turing", 2, 1, 1, 4, 8192))
    shown = await capacity_answer(cast(Any, room), query, models)
    assert [(each["model"], each["gpu_count"], each["free_gpu_count"]) for each in shown["models"]] == [
        ("volta", 3, 2),
        ("turing", 2, 1),
    ]
    assert shown["fits"]["gpu_count"] == fitting
    # Of a model the orchestrator tells the node with most cores free: on the others it may not fit.
    words = {0: "No free GPU is", 1: "At most 1 free GPU is"}.get(fitting, f"Up to {fitting} free GPUs are")
    assert shown["fits"]["sentence"] == f"{words} large enough now; the job asks for 1."
    away = await capacity_answer(cast(Any, Room()), query, models)
    assert (away["fits"], away["models"][0]["free_gpu_count"]) == (None, None)


def compared(acting: str, other: str, **more: Any) -> str:
    """A document of `adlro compare`."""
    pair = {"policy": other, "baseline": acting, "mean_jct_ratio": 0.9, "mean_jct_ratio_ci95": [0.85, 0.96]}
    document = {"schema": "adlro.compare.v1", "jobs": {"measured": 640}, "paired": [pair | more]}
    return json.dumps(document | {"interval": {"refused": None if not more else "too few jobs"}})


def test_the_newest_comparison_of_the_acting_policy_and_the_shadow_is_shown(tmp_path: Path):
    folder = str(tmp_path)
    assert folders.comparison("", "dqn", "fcfs") is None
    files = {
        "old.json": compared("dqn", "fcfs", mean_jct_ratio=2.0),
        "best.json": compared("dqn", "fcfs"),
        "other.json": compared("sjf", "fcfs"),
        "turned.json": compared("fcfs", "dqn"),
        "report.json": '{"paired": [{"policy": "fcfs", "baseline": "dqn", "mean_jct_ratio": 3}]}',
        "wrong.json": '{"schema": "adlro.compare.v1", "paired": [1, {"policy": "fcfs"}], "jobs": 3}',
        "broken.json": "{",
    }
    for at, (name, text) in enumerate(files.items()):
        (tmp_path / name).write_text(text)
        os.utime(tmp_path / name, (1000.0 + at, 1000.0 + at))
    found = folders.comparison(folder, "dqn", "fcfs")
    assert found is not None
    assert (found["name"], found["policy"], found["other"], found["job_count"]) == ("best.json", "dqn", "fcfs", 640)
    assert found["difference_ratio"] == pytest.approx(-0.1)
    assert (found["low_ratio"], found["high_ratio"]) == (pytest.approx(-0.15), pytest.approx(-0.04))
    assert folders.comparison(folder, "dqn", "") == found
    assert folders.comparison(folder, "dqn", "sjf") is None
    # Written anew: without an interval it says why.
    (tmp_path / "best.json").write_text(compared("dqn", "fcfs", mean_jct_ratio_ci95=[None, None]))
    anew = folders.comparison(folder, "dqn", "fcfs")
    assert anew is not None
    assert (anew["low_ratio"], anew["refused"]) == (None, "too few jobs")


async def test_without_a_comparison_the_command_that_makes_one_is_told(tmp_path: Path):
    class Orchestrator:
        async def policies(self) -> tuple[()]:
            return ()

        async def status(self) -> OrchestratorStatus:
            return status(shadow=ShadowStatus("fcfs", 3, 1))

    shown = await policies_answer(cast(Any, Orchestrator()), f"{tmp_path}/a b/")
    assert shown["paired_replay"] is None
    assert shown["paired_command"] == f"adlro compare fcfs -o json > '{tmp_path}/a b/compare.json'"
    (tmp_path / "compare.json").write_text(compared("dqn", "fcfs"))
    shown = await policies_answer(cast(Any, Orchestrator()), str(tmp_path))
    assert (shown["paired_replay"]["other"], shown["paired_command"]) == ("fcfs", None)
