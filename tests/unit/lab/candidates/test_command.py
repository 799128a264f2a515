"""The command line of `adlro learn`: its options, exit codes and texts; the learning itself is replaced."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from adlro.lab.candidates import command
from adlro.lab.candidates.judging import Change, Played, Verdict
from adlro.lab.candidates.learning import Plan
from adlro.lab.candidates.past import Past
from adlro.lab.candidates.reading import ListRequest, checkpoint_in_use, past_of_file
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

    def learn(of: Past, in_use: Path, plan: Plan, folder: Path, say: Any) -> tuple[Verdict, dict[str, Any]]:
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
    assert "offered: its gain is certain" in said
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
        (("--jobs", "JOBS", "--cluster", "gangs", "--follow"), "--follow goes with a running suite"),
        (("--jobs", "JOBS", "--cluster", "nowhere"), "--cluster: nowhere: neither a file nor one of"),
        (("--worlds", "1"), "--worlds: must be at least 2"),
        (("--judged-share", "2"), "--judged-share: must be from 0.05 to 0.9"),
        (("--runtime", "magic"), "--runtime: "),
        (("--jobs", "JOBS", "--cluster", "gangs"), "FOLDER: no suite of yours runs on this machine"),
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
    with pytest.raises(Exception, match="name its file by --checkpoint"):
        checkpoint_in_use("aabbccddeeff", tmp_path, None)


def test_it_learns_again_when_the_mix_changes_or_time_has_passed() -> None:
    learned = past(500, seed=1)
    assert command._why_now(None, learned, 0.0, 7.0) == "the first time"
    assert command._why_now(learned, learned, 9.0, 7.0) == ""  # nothing new
    grown = past(1000, seed=1)
    assert command._why_now(learned, grown, 1.0, 7.0) == ""
    assert "500 jobs have finished" in command._why_now(learned, grown, 9.0, 7.0)
    other = past(500, "paper_roomy", seed=2)
    from benchmarks.own_past import joined

    assert "population stability index" in command._why_now(learned, joined(learned, other), 1.0, 7.0)


def test_a_list_is_read_on_its_cluster(jobs: Path) -> None:
    found = past_of_file(ListRequest(jobs, "gangs", None, "true"))
    assert 50 < len(found) <= 60
    assert found.measured.all()
