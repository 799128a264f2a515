"""What the page tells of jobs, decisions, the past, and what lies in folders; files of the page; a job's command."""

from __future__ import annotations

import json
import math
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from adlro.errors import InvalidInput, NotFound
from adlro.placement import NOWHERE, Placement
from adlro.records.decisions import (
    BaseChoice,
    Candidate,
    Decision,
    DecisionFilter,
    DecisionPair,
    DecisionPrediction,
    MaskedCandidate,
    MaskedGroup,
)
from adlro.records.history import AttemptBars, AttemptHistory, AttemptOccupancy, AttemptOutcome, RowKind
from adlro.records.jobs import ExpectedRuntime, JobSpec, JobState, JobType, PendingReason, Preemptible
from adlro.records.payloads import Container, Payload, process_payload
from adlro.records.predictions import PredictionBasis
from adlro.records.status import OrchestratorStatus, ShadowStatus
from adlro.records.waiting import ExpectedStart, GpuObstacle, WaitingChange, WaitingChangeKind, WaitingExplanation
from adlro.services.web import folders
from adlro.services.web.actions import job_spec
from adlro.services.web.api import _whole_characters, policies_answer
from adlro.services.web.assets import FOLDER, Assets
from adlro.services.web.command_line import command_line
from adlro.services.web.decisions import decisions_answer
from adlro.services.web.documents import (
    decided_prediction,
    decision_document,
    decision_row,
    job_document,
    waiting_document,
)
from adlro.services.web.gantt import gantt_document
from tests.unit.web.world import GPU_IDS, decision, ended, job, known, running, status


def test_the_command_of_a_job_has_what_differs_from_the_defaults():
    plain = JobSpec("train", "ann", JobType.MACHINE_LEARNING)
    assert command_line(plain) == "adlro submit --type machine_learning --name train --user ann"
    full = replace(
        plain,
        name="it's; rm -rf /",
        application="resnet50",
        priority=0.75,
        labels={"team": "a b"},
        gpu_count=4,
        max_node_count=2,
        gpu_models=("v100", "a100"),
        cpu_cores=2,
        memory_mib=10_000,
        gpu_memory_mib=16_000,
        time_limit_s=90.0,
        expected_runtime=ExpectedRuntime("v100", 30.0),
        preemptible=Preemptible(5.0),
        shareable=True,
        payload=process_payload(["python", "train.py", "--x=1 2"], "/home/ann", {"SECRET": "x"}),
    )
    assert command_line(full) == (
        "adlro submit --type machine_learning --name 'it'\"'\"'s; rm -rf /' --user ann --application resnet50"
        " --priority 0.75 --label 'team=a b' --gpus 4 --max-nodes 2 --gpu-model v100 --gpu-model a100 --cores 2"
        " --memory 10000MiB --gpu-memory 16000MiB --time-limit 90 --runtime 30 --on v100 --preemptible --restart 5"
        " --shareable --workdir /home/ann --env SECRET -- python train.py '--x=1 2'"
    )


def test_a_job_has_its_attempts_and_nodes():
    made = ended(running(job(1), GPU_IDS[0], GPU_IDS[4]), JobState.FAILED)
    shown = job_document(made, {GPU_IDS[0]: "volta-0", GPU_IDS[4]: "turing-0"}, may_cancel=True, has_logs=True)
    assert (shown["state"], shown["reason"], shown["wait_s"], shown["may_cancel"]) == ("failed", None, 49.0, False)
    (attempt,) = shown["attempts"]
    assert (attempt["node_ids"], attempt["outcome"], attempt["end_s"]) == (["volta-0", "turing-0"], "failed", 90.0)
    json.dumps(shown, allow_nan=False)


def test_a_decision_has_its_best_candidates_and_the_masked_by_reason():
    made = replace(
        decision(1),
        candidates=tuple(
            Candidate(Placement.on(each), "volta", 10.0, score)
            for each, score in zip(GPU_IDS[:3], (0.9, 0.5, 0.1), strict=True)
        ),
        masked=(
            *(MaskedCandidate(f"g{at}", "volta", "busy") for at in range(9)),
            MaskedCandidate("", "turing", "too small"),
        ),
    )
    shown = decision_document(made, 2)
    assert [each["gpu_id"] for each in shown["candidates"]] == list(GPU_IDS[:2])
    assert (shown["candidates_left_out"], shown["score"], shown["margin"]) == (1, 0.9, 0.4)
    assert shown["masked"] == [
        {"reason": "busy", "gpu_count": 9, "example_gpu_ids": ["g0", "g1", "g2", "g3"]},
        {"reason": "too small", "gpu_count": 1, "example_gpu_ids": ["turing"]},
    ]


def test_a_decision_tells_what_its_base_would_have_done():
    assert decision_row(decision(1))["base"] is None
    same = BaseChoice("job-2", Placement.on("volta-0/0"), 0.25)
    row = decision_row(replace(decision(1), base_choice=same, margin=0.1))
    assert row["base"] == {"job": "job-2", "gpu": "volta-0/0", "score": 0.25, "agrees": True}
    assert row["needed_margin"] == 0.1
    held = decision_row(replace(decision(1), base_choice=BaseChoice("", NOWHERE)))
    assert held["base"] == {"job": None, "gpu": None, "score": None, "agrees": False}


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


def test_trainings_and_reports_are_read_from_folders(tmp_path: Path):
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "curve.jsonl").write_text(
        '{"step": 1, "return": 1.5, "x": NaN}\n{"step": 2, "return": 2}\n{"st'
    )
    (tmp_path / "one" / "settings.json").write_text('{"recipe": "dqn", "rate": 0.1}')
    (tmp_path / "empty").mkdir()
    (found,) = folders.runs(str(tmp_path))
    assert (found["id"], found["recipe"], found["row_count"], found["last"]) == (
        "one",
        "dqn",
        2,
        {"step": 2, "return": 2},
    )
    run = folders.run(str(tmp_path), "one")
    assert run["columns"] == {"step": [1, 2], "return": [1.5, 2]}
    assert run["settings"] == {"recipe": "dqn", "rate": 0.1}
    (tmp_path / "a.html").write_text("<p>")
    row = {"policy": "dqn", "scenario": "paper", "load": 0.9, "mean_jct_s": 41.5, "mean_jct_s_ci95": [40.0, 43.0]}
    row |= {"p95_jct_s": 99.0, "p95_jct_s_ci95": [None, None], "max_wait_s": "long", "max_wait_s_ci95": 3}
    (tmp_path / "a.json").write_text(json.dumps({"title": "A", "rows": [row, 5]}))
    (report,) = folders.reports(str(tmp_path))
    assert (report["name"], report["title"], report["size_bytes"]) == ("a.html", "A", 3)
    case = {"policy": "dqn", "scenario": "paper", "load": 0.9}
    assert report["rows"] == [
        {**case, "metric": "mean_jct_s", "mean": 41.5, "low": 40.0, "high": 43.0},
        {**case, "metric": "p95_jct_s", "mean": 99.0, "low": None, "high": None},
    ]
    assert folders.report(str(tmp_path), "a.html") == b"<p>"
    assert (folders.runs(""), folders.reports(str(tmp_path / "none"))) == ([], [])


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


@pytest.mark.parametrize(
    "name", ["..", ".", "", "../one", "/etc/passwd", "one/x", ".hidden.html", "out.html", "a\0b", "x" * 200]
)
def test_nothing_outside_the_folder_is_read(tmp_path: Path, name: str):
    (tmp_path / "inside").mkdir()
    (tmp_path / "secret.html").write_text("secret")
    os.symlink(tmp_path / "secret.html", tmp_path / "inside" / "out.html")
    with pytest.raises(NotFound):
        folders.report(str(tmp_path / "inside"), name)
    with pytest.raises(NotFound):
        folders.run(str(tmp_path / "inside"), name)


@pytest.mark.parametrize("text", ["plain", "é", "a€", "x😀", ""])
def test_output_is_cut_between_characters(text: str):
    data = text.encode()
    for count in range(len(data) + 1):
        whole = _whole_characters(data[:count], last=False)
        assert text.startswith(whole.decode())
        assert len(data[:count]) - len(whole) < 4
    assert _whole_characters(b"\xff\xfe", last=True) == b"\xff\xfe"
    assert _whole_characters(b"ok\xff", last=False) in (b"ok\xff", b"ok")


def test_the_page_is_named_by_its_content(tmp_path: Path):
    (tmp_path / "index.html").write_text('<script src="/static/__VERSION__/app.js"></script>')
    (tmp_path / "app.js").write_text("let a = 1\n" * 100)
    (tmp_path / "app.d.ts").write_text("types")
    (tmp_path / "notes.md").write_text("notes")
    first = Assets(tmp_path)
    assert first.version.encode() in first.index.plain
    assert b"__VERSION__" not in first.index.plain
    found = first.find(first.version, "app.js")
    assert found is not None
    assert len(found.packed) < len(found.plain)
    for name in ("index.html", "app.d.ts", "notes.md", "../secret", "none.js"):
        assert first.find(first.version, name) is None
    (tmp_path / "app.js").write_text("let a = 2\n" * 100)
    assert Assets(tmp_path).version != first.version


def test_the_page_that_ships_is_complete_and_small():
    assets = Assets(FOLDER)
    assert b"The page's files are missing" not in assets.index.plain
    assert b'type="module"' in assets.index.plain
    packed = [asset.packed or asset.plain for asset in assets._files.values()]
    assert sum(map(len, packed)) < 120 * 1024


def test_a_form_becomes_the_job_that_the_command_submits():
    made = job_spec(
        {
            "name": "",
            "job_type": "",
            "priority": 0.25,
            "memory_mib": 0,
            "expected_runtime": {"gpu_model": "v100", "runtime_s": 30},
            "preemptible": {"restart_s": 0, "lost_s": 0},
            "argv": ["/usr/bin/python", "train.py"],
            "image": "",
        },
        "ann",
    )
    assert (made.name, made.user, made.job_type, made.priority) == ("python", "ann", JobType.UNSPECIFIED, 0.25)
    assert made.expected_runtime == ExpectedRuntime("v100", 30.0)
    assert made.preemptible == Preemptible()
    assert made.payload == process_payload(["/usr/bin/python", "train.py"])
    contained = job_spec({"argv": ["x"], "image": "repo/image:1"}, "ann")
    assert contained.payload == Payload(container=Container("repo/image:1", ("x",)))
    assert job_spec({"image": "repo/image:1"}, "ann").name == "image:1"
    assert job_spec({"job_type": "simulation"}, "").user
    assert job_spec({"job_type": "simulation"}, "ann").payload is None
