"""The command line of `adlro learn`: its options, exit codes and texts; the learning itself is replaced."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adlro.errors import InvalidInput
from adlro.lab.candidates import command
from adlro.lab.candidates.following import KEPT, LEAST_NEW, Turns, next_folder, publish
from adlro.lab.candidates.judging import Change, Played, Verdict
from adlro.lab.candidates.learning import Plan
from adlro.lab.candidates.past import Past
from adlro.lab.candidates.reading import ListRequest, checkpoint_in_use, past_of_file
from adlro.state.job_arrays import JobArrays
from adlro.workload.traces import write_paper_csv
from tests.unit.lab.candidates.pasts import past
from tests.unit.lab.compare.suites import drawn

PLAYED = tuple(Played(name, "aa" * 6, 10.0, 20.0, 5.0, 11.0, 0.0) for name in ("candidate", "in use", "hold_gang"))


def verdict(*reasons: str) -> Verdict:
    changes = tuple(Change(name, 0.9, (0.85, 0.95), 0.9, (0.8, 1.0), 1.0, 0.9) for name in ("in use", "hold_gang"))
    return Verdict(not reasons, reasons, 8, 50, PLAYED, changes)


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.csv"
    write_paper_csv(path, drawn("gangs", 60)[1])
    return path


@pytest.fixture(autouse=True)
def not_nice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.nice", lambda _: 0)


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["learn", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        command.main()
    return int(ended.value.code or 0)


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the learning is called with, and what it answers."""
    seen: dict[str, Any] = {"verdict": verdict()}

    def learn(
        of: Past, in_use: Path, plan: Plan, folder: Path, say: Any, *, again: bool
    ) -> tuple[Verdict, dict[str, Any]]:
        from adlro.lab.candidates.document import verdict_document

        seen.update(past=of, plan=plan, folder=folder)
        return seen["verdict"], verdict_document(seen["verdict"], of, of, plan.making, str(folder / "candidate.onnx"))

    monkeypatch.setattr(command, "learn", learn)
    return seen


def test_an_offered_candidate_comes_with_the_next_commands(
    given: dict[str, Any],
    jobs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(monkeypatch, tmp_path / "f", "--jobs", jobs, "--cluster", "gangs", "--worlds", 3, "--load", 0.9) == 0
    said = capsys.readouterr().out
    assert "offered: its gain is above 0" in said
    assert f"adlro policy promote {tmp_path / 'f'}" in said.replace("\n", "")
    assert given["plan"].making.worlds == 3
    assert len(given["past"]) > 50
    assert "offers a load of 0.9" in " ".join(given["past"].notes)


def test_one_that_is_not_offered_has_an_exit_code_of_its_own_and_its_reasons(
    given: dict[str, Any],
    jobs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given["verdict"] = verdict("its longest wait is +20.0 %")
    asked = (tmp_path, "--jobs", jobs, "--cluster", "gangs", "--runtime", "true")
    assert run(monkeypatch, *asked) == command.EXIT_NOT_OFFERED
    assert "- its longest wait is +20.0 %" in capsys.readouterr().out
    assert run(monkeypatch, *asked, "-o", "json") == command.EXIT_NOT_OFFERED
    document = json.loads(capsys.readouterr().out)
    assert (document["offered"], document["reasons"]) == (False, ["its longest wait is +20.0 %"])
    assert document["learned_from"]["runtimes_known_by"] == {"true": len(given["past"])}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--jobs", "JOBS"), "--jobs and --cluster belong together"),
        (("--load", "0.9"), "--load goes with --jobs"),
        (("--jobs", "JOBS", "--cluster", "gangs", "--follow"), "--follow goes neither with --jobs"),
        (("--follow", "--again"), "--follow goes neither with --jobs"),
        (("--jobs", "JOBS", "--cluster", "gangs", "--speeds", "JOBS"), "--speeds goes with a suite"),
        (("--jobs", "JOBS", "--cluster", "nowhere"), "--cluster: nowhere: neither a file nor one of"),
        (("--worlds", "1"), "--worlds: must be at least 2"),
        (("--judged-share", "2"), "--judged-share: must be from 0.05 to 0.9"),
        (("--runtime", "magic"), "--runtime: "),
        (("--jobs", "JOBS", "--cluster", "gangs"), "FOLDER: is needed with --jobs"),
        ((), "FOLDER: no suite of yours runs on this machine"),
    ],
)
def test_wrong_options_are_named_with_the_way_out(
    arguments: tuple[str, ...],
    told: str,
    jobs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder = () if told.startswith("FOLDER") else (str(tmp_path),)
    assert run(monkeypatch, *folder, *(str(jobs) if each == "JOBS" else each for each in arguments)) == 2
    assert told in capsys.readouterr().err.replace("\n", " ")


def test_too_few_jobs_are_told_before_anything_is_learned(
    jobs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, tmp_path / "f", "--jobs", jobs, "--cluster", "gangs") == 2
    assert "400 are needed" in capsys.readouterr().err.replace("\n", " ")
    assert not (tmp_path / "f").exists()


def test_the_checkpoint_in_use_must_be_found(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="name its file by --checkpoint"):
        checkpoint_in_use("aabbccddeeff", tmp_path, None)
    assert checkpoint_in_use("aabbccddeeff", tmp_path, tmp_path / "given.onnx") == tmp_path / "given.onnx"


def joined(one: Past, other: Past) -> Past:
    """Two pasts of one cluster, one after the other."""
    shift_s = float(one.jobs.submit_s[0, -1]) + 1.0
    fields: dict[str, Any] = {
        name: np.concatenate([mine, np.add(others, shift_s) if name == "submit_s" else others], axis=1)
        for name, mine, others in zip(one.jobs._fields, one.jobs, other.jobs, strict=True)
        if name != "job_count"
    }
    jobs = JobArrays(job_count=one.jobs.job_count + other.jobs.job_count, **fields)
    return dataclasses.replace(one, jobs=jobs, measured=np.concatenate([one.measured, other.measured]))


def test_it_learns_again_when_the_mix_changes_or_time_has_passed() -> None:
    grown = past(1500, seed=1)
    first = grown.part(0, 500)
    turns = Turns(7.0)
    turn = turns.next(first, 0.0)
    assert turn is not None
    assert (turn.why, turn.since_s) == ("the first time", None)
    assert turns.next(first, 9.0) is None  # nothing new
    assert turns.next(grown, 1.0) is None  # of the same mix, and too soon
    turn = turns.next(grown, 9.0)
    assert turn is not None
    assert turn.why.startswith("1000 jobs")
    assert turn.since_s is None

    # Of another mix: once there are enough to teach and to judge, these alone do so; and only once.
    other = past(LEAST_NEW + 300, "paper_roomy", seed=2)
    assert turns.next(joined(grown, other.part(0, LEAST_NEW - 1)), 10.0) is None
    mixed = joined(grown, other.part(0, LEAST_NEW))
    turn = turns.next(mixed, 11.0)
    assert turn is not None
    assert "population stability index" in turn.why
    assert turn.since_s is not None
    assert len(mixed.after(turn.since_s)) == LEAST_NEW
    assert turns.next(joined(grown, other), 12.0) is None
    turn = turns.next(first, 13.0)
    assert turn is not None
    assert turn.why == "the suite has begun anew"


def test_folders_of_turns_ascend_and_the_old_ones_go(tmp_path: Path) -> None:
    for number in range(1, KEPT + 3):
        made = next_folder(tmp_path)
        assert made.name == f"{number:04d}"
        made.mkdir()
    assert len(list(tmp_path.iterdir())) == KEPT
    for name in ("candidate.onnx", "verdict.json"):
        (made / name).write_text(name)
    publish(made, tmp_path)
    assert (tmp_path / "candidate.onnx").read_text() == "candidate.onnx"


def test_a_list_is_read_on_its_cluster(jobs: Path) -> None:
    found = past_of_file(ListRequest(jobs, "gangs", None, "true"))
    assert 50 < len(found) <= 60
    assert found.measured.all()
