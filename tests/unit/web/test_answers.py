"""What the page tells of jobs and decisions, and what lies in folders; files of the page; a job's command."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adlro.errors import NotFound
from adlro.placement import NOWHERE, Placement
from adlro.records.decisions import (
    BaseChoice,
    Candidate,
    MaskedCandidate,
)
from adlro.records.dependencies import JobDependency
from adlro.records.job_requests import JobHold, JobRequest, JobRequestKind
from adlro.records.jobs import (
    ArrayTask,
    ExpectedRuntime,
    Job,
    JobSpec,
    JobState,
    JobType,
    PendingReason,
    Preemptible,
)
from adlro.records.payloads import Container, Payload, process_payload
from adlro.services.web import folders
from adlro.services.web.actions import job_spec
from adlro.services.web.api import _whole_characters
from adlro.services.web.assets import FOLDER, Assets, without_comments
from adlro.services.web.command_line import command_line
from adlro.services.web.documents import (
    decision_document,
    decision_row,
    job_document,
)
from adlro.services.web.viewers import Viewer
from adlro.services.web.views import beside
from tests.unit.web.world import ANN, BOB, GPU_IDS, OPS, REA, decision, ended, job, known, running


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
        exclusive=True,
        node_ids=("n1", "n2"),
        excluded_node_ids=("n3",),
        cpu_cores=2,
        memory_mib=10_000,
        gpu_memory_mib=16_000,
        time_limit_s=90.0,
        expected_runtime=ExpectedRuntime("v100", 30.0),
        preemptible=Preemptible(5.0, grace_s=60.0),
        shareable=True,
        payload=process_payload(["python", "train.py", "--x=1 2"], "/home/ann", {"SECRET": "x"}),
    )
    assert command_line(full) == (
        "adlro submit --type machine_learning --name 'it'\"'\"'s; rm -rf /' --user ann --application resnet50"
        " --priority 0.75 --label 'team=a b' --gpus 4 --max-nodes 2 --gpu-model v100 --gpu-model a100 --exclusive"
        " --exclude n3 --nodelist n1,n2 --cores 2"
        " --memory 10000MiB --gpu-memory 16000MiB --time-limit 90 --runtime 30 --on v100 --preemptible --restart 5"
        " --preempt-grace 60 --shareable --workdir /home/ann --env SECRET -- python train.py '--x=1 2'"
    )


def test_a_job_has_its_attempts_and_nodes():
    made = ended(running(job(1), GPU_IDS[0], GPU_IDS[4]), JobState.FAILED)
    shown = job_document(
        made, {GPU_IDS[0]: "volta-0", GPU_IDS[4]: "turing-0"}, may_change=True, may_release=True, has_logs=True
    )
    assert (shown["state"], shown["reason"], shown["wait_s"], shown["may_cancel"]) == ("failed", None, 49.0, False)
    (attempt,) = shown["attempts"]
    assert (attempt["node_ids"], attempt["outcome"], attempt["end_s"]) == (["volta-0", "turing-0"], "failed", 90.0)
    json.dumps(shown, allow_nan=False)


def rights(made: Job, viewer: Viewer) -> set[str]:
    """What its document says that a viewer may do with a job."""
    change, release = viewer.may_change(made), viewer.may_release(made)
    shown = job_document(made, {}, may_change=change, may_release=release, has_logs=False)
    assert shown["may_change"] == change  # of its array, too
    return {name for name in ("cancel", "hold", "release", "requeue") if shown[f"may_{name}"]}


def test_who_may_hold_release_and_submit_again_is_told():
    waits = job(1)
    assert rights(waits, ANN) == rights(waits, OPS) == {"cancel", "hold"}
    assert rights(waits, REA) == rights(waits, BOB) == set()
    assert rights(replace(waits, pending_reason=PendingReason.LAUNCHING), ANN) == {"cancel"}
    assert rights(replace(waits, cancel_requested=True), ANN) == set()
    held = replace(waits, pending_reason=PendingReason.HELD, hold=JobHold("ann"))
    assert rights(held, ANN) == {"cancel", "release"}
    by_operator = replace(held, hold=JobHold("ops", by_operator=True))
    assert rights(by_operator, ANN) == {"cancel"}
    assert rights(by_operator, OPS) == {"cancel", "release"}
    assert rights(running(waits, GPU_IDS[0]), ANN) == {"cancel"}
    assert rights(ended(running(waits, GPU_IDS[0])), ANN) == {"requeue"}
    assert rights(ended(running(waits, GPU_IDS[0])), REA) == set()
    asked = replace(waits, requests=(JobRequest(JobRequestKind.HOLD, number=1),))
    assert job_document(asked, {}, may_change=True, may_release=True, has_logs=False)["asked"] == ["hold"]


def test_what_a_job_waits_for_is_told_with_its_state():
    of_array = [job(number, array=ArrayTask("array-3", number, 3, 2)) for number in (3, 4, 5)]
    others = [job(1), job(2, "bob"), running(of_array[0], GPU_IDS[0]), *of_array[1:]]
    after = tuple(map(JobDependency, ("job-1", "job-2", "array-3", "job-77")))
    waits = job(9, after=after, array=ArrayTask("array-9", 0, 1))
    shown = beside(waits, ANN, known(*others, waits))
    assert shown["after"] == [
        {"id": "job-1", "condition": "ok", "state": "pending"},
        {"id": "job-2", "condition": "ok", "state": None},  # bob's
        {"id": "array-3", "condition": "ok", "states": {"pending": 2, "running": 1}},
        {"id": "job-77", "condition": "ok", "state": None},
    ]
    assert shown["array_states"] == {"pending": 1}
    assert beside(waits, OPS, known(*others, waits))["after"][1]["state"] == "pending"


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


def test_no_link_leads_out_of_the_folder(tmp_path: Path):
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    for path in (inside / "one", inside / "two", outside / "elsewhere"):
        path.mkdir(parents=True)
    secret = json.dumps({"recipe": "secret", "title": "secret", "schema": "adlro.compare.v1", "paired": []})
    (outside / "secret.json").write_text(secret)
    (outside / "elsewhere" / "curve.jsonl").write_text('{"secret": 1}\n')
    (inside / "one" / "curve.jsonl").write_text('{"step": 1}\n')
    os.symlink(outside / "secret.json", inside / "one" / "settings.json")
    os.symlink(outside / "elsewhere" / "curve.jsonl", inside / "two" / "curve.jsonl")
    os.symlink(outside / "elsewhere", inside / "linked")
    os.symlink("circle", inside / "circle")
    (inside / "a.html").write_text("<p>")
    os.symlink(outside / "secret.json", inside / "a.json")
    os.symlink(outside / "secret.json", inside / "b.html")
    (shown,) = folders.runs(str(inside))
    assert (shown["id"], shown["recipe"], shown["last"]) == ("one", None, {"step": 1})
    assert folders.run(str(inside), "one")["settings"] == {}
    for name in ("two", "linked", "circle"):
        with pytest.raises(NotFound):
            folders.run(str(inside), name)
    assert [(each["name"], each["title"]) for each in folders.reports(str(inside))] == [("a.html", "a")]
    assert folders.comparison(str(inside), "dqn", "") is None
    # A link to what lies in the folder itself is one of its files, also where the folder is a link.
    os.symlink(inside / "one", inside / "again")
    os.symlink(inside, tmp_path / "name")
    assert [each["id"] for each in folders.runs(str(tmp_path / "name"))] == ["again", "one"]


@pytest.mark.parametrize("line", ['{"return": 1' + "0" * 400 + "}", "[" * 100_000, '{"return": NaN}', "{", "7"])
def test_one_strange_curve_hides_no_other(tmp_path: Path, line: str):
    for name, text in (("good", '{"step": 1}'), ("strange", line)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "curve.jsonl").write_text(text + "\n")
        (tmp_path / name / "settings.json").write_text("[" * 100_000 if name == "strange" else "{}")
    assert {each["id"]: each["last"] for each in folders.runs(str(tmp_path))} == {"good": {"step": 1}, "strange": {}}
    assert "return" not in folders.run(str(tmp_path), "strange")["columns"]


def test_a_training_began_when_its_settings_were_written_and_its_curve_is_read_once_for_each_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    read: list[str] = []
    rows = folders._rows

    def noted(curve: Path) -> list[dict[str, Any]]:
        read.append(curve.parent.name)
        return rows(curve)

    monkeypatch.setattr(folders, "_rows", noted)
    for at, name in enumerate(("older", "newer")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "curve.jsonl").write_text('{"step": 1}\n')
        (tmp_path / name / "settings.json").write_text("{}")
        os.utime(tmp_path / name / "settings.json", (1000.0 + at, 1000.0 + at))
    first = folders.runs(str(tmp_path))
    assert [(each["id"], each["started_unix_s"]) for each in first] == [("newer", 1001.0), ("older", 1000.0)]
    (tmp_path / "older" / "checkpoint.pt").write_text("x")
    assert folders.runs(str(tmp_path)) == first
    assert sorted(read) == ["newer", "older"]
    with (tmp_path / "older" / "curve.jsonl").open("a") as curve:
        curve.write('{"step": 2}\n')
    (_, older) = folders.runs(str(tmp_path))
    assert (older["started_unix_s"], older["row_count"], older["last"]) == (1000.0, 2, {"step": 2})
    assert sorted(read) == ["newer", "older", "older"]
    (tmp_path / "older" / "settings.json").unlink()
    assert {each["id"]: each["started_unix_s"] for each in folders.runs(str(tmp_path))}["older"] is None


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


def test_scripts_go_out_without_the_comments_that_stand_alone():
    kept = 'let a = "/* no */"; // here\nlet b = /** @type {any} */ (a);\n/** @type {any} */ (b).go("//");'
    lines = [
        "// @ts-check",
        "/** @type {Set<string>} */",
        "/**",
        " * @param {number} a",
        " */ ",
        *kept.split("\n"),
        "/* x */",
    ]
    assert without_comments("\n".join(lines)) == kept


def test_the_page_that_ships_is_complete_and_small():
    assets = Assets(FOLDER)
    assert b"The page's files are missing" not in assets.index.plain
    assert b'type="module"' in assets.index.plain
    packed = [asset.packed or asset.plain for asset in assets.files.values()]
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
