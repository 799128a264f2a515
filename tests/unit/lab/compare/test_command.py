"""The command: options, output, files and exit codes; the suite's answers are given."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from adlro.errors import PermissionDenied
from adlro.hardware.speeds import SHIPPED, SpeedTable
from adlro.lab.compare import command
from adlro.lab.compare.reading import Suite
from tests.unit.lab.compare.suites import drawn, ran, suite_after


@pytest.fixture(scope="module")
def suite() -> Suite:
    cluster, jobs = drawn("paper", 60)
    return suite_after(cluster, jobs, "fcfs", ran(cluster, jobs, "fcfs"), shadow="sjf")


@pytest.fixture
def given(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    async def read(server: str | None, speeds: SpeedTable, *, decisions: bool) -> tuple[Suite, SpeedTable, tuple[str]]:
        return suite, SHIPPED, ("a note",)

    monkeypatch.setattr(command, "_read", read)


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["compare", *arguments])
    with pytest.raises(SystemExit) as ended:
        command.main()
    return int(ended.value.code or 0)


@pytest.mark.usefixtures("given")
def test_the_table_says_what_differs_why_no_interval_and_how_good_the_replay_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--runtime", "true") == 0
    said = capsys.readouterr().out
    assert "60 finished jobs of default (16 GPUs)" in said
    assert "fcfs (acted)" in said
    assert "sjf - fcfs" in said
    assert "no interval: too few finished jobs: 60 of 200" in said
    assert "under fcfs, which acted, the replay's mean JCT equals the real one" in said
    assert "100 % of the jobs start when they did" in said
    assert "the true runtime (60)" in said
    assert "a note" in said


@pytest.mark.usefixtures("given")
def test_the_document_goes_to_stdout_and_to_a_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "compared.json"
    assert run(monkeypatch, "mct", "-o", "json", "--json", str(out)) == 0
    document = json.loads(capsys.readouterr().out)
    assert document == json.loads(out.read_text(encoding="utf-8"))
    assert [row["policy"] for row in document["policies"]] == ["fcfs", "mct"]
    assert document["schema"] == "adlro.compare.v1"
    assert document["runtime"]["kind"] == "known"
    assert sum(document["runtime"]["sources"].values()) == 60


@pytest.mark.usefixtures("given")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["fcsf"], "POLICY: unknown policy 'fcsf'; did you mean fcfs"),
        (["--limit", "few"], "'--limit': must be a whole number, not few"),
        (["--limit", "0"], "--limit: must be at least 1, not 0"),
        (["--wait-ratio=-1"], "--wait-ratio: must be a number from 0"),
        (["--since", "10", "--until", "5"], "--until: must be after --since 10, not 5"),
        (["--json", "/nowhere/at/all.json"], "--json: "),
    ],
)
def test_wrong_options_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert run(monkeypatch, *arguments) == 2
    assert said in " ".join(capsys.readouterr().err.split())


@pytest.mark.usefixtures("given")
def test_no_job_in_that_time_is_an_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "--since", "1e9") == 1
    assert "no finished job to compare policies on was submitted in that time" in " ".join(
        capsys.readouterr().err.split()
    )


def test_a_refusal_of_the_suite_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    async def refused(*_: object, **__: object) -> None:
        raise PermissionDenied("GetStatus: needs the role reader")

    monkeypatch.setattr(command, "_read", refused)
    assert run(monkeypatch) == 1
    assert "needs the role reader" in capsys.readouterr().err


def test_nobody_answers(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(command, "_PATIENCE_S", 0.0)
    assert run(monkeypatch, "--server", "127.0.0.1:1") == 3
    assert "no service answers at 127.0.0.1" in " ".join(capsys.readouterr().err.split())


@pytest.mark.usefixtures("given")
def test_hostile_names_are_written_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], suite: Suite
) -> None:
    hostile = replace(suite, cluster=replace(suite.cluster, name="a\x1b]0;owned\x07[red]"))

    async def read(*_: object, **__: object) -> tuple[Suite, SpeedTable, tuple[str, ...]]:
        return hostile, SHIPPED, ()

    monkeypatch.setattr(command, "_read", read)
    assert run(monkeypatch) == 0
    said = capsys.readouterr().out
    assert "\x1b" not in said
    assert "a\\x1b]0;owned\\x07[red]" in said
