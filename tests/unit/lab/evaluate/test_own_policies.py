"""Policies of files in an evaluation: code and checkpoints beside named policies, refused before anything runs."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adlro.decide.policies.dqn import SHIPPED
from adlro.errors import InvalidInput
from adlro.lab.evaluate import Request, evaluate
from adlro.lab.evaluate.cases import build_cases
from adlro.lab.evaluate.document import build_document
from adlro.lab.evaluate.evaluation import Evaluation
from adlro.lab.evaluate.request import parse_policies, split_own
from adlro.lab.evaluate.tasks import Setup, Task, cut, key_of
from adlro.lab.own_policies import given_policies
from tests.networks import SHORTEST, network, put
from tests.unit.lab.evaluate.test_command import run

AS_SJF = "from adlro.decide.policies.sjf import Sjf\nclass Mine(Sjf):\n    name = 'mine'\n    description = 'as sjf'\n"
COUNTS = (
    AS_SJF
    + """
    one_cluster = True

    def __init__(self):
        self.seen = 0

    def preferences(self, observation):
        assert len(observation.time_s) == 1
        self.seen += 1
        return super().preferences(observation) * (1.0 if self.seen < 9 else -1.0)
"""
)


def given(tmp_path: Path, text: str = AS_SJF) -> dict[str, Any]:
    (tmp_path / "mine.py").write_text(text)
    return dict(given_policies([f"{tmp_path}/mine.py:Mine"], []))


def evaluated(own: dict[str, Any], processes: int = 1) -> Evaluation:
    request = Request(policies=("sjf",), own=own, loads=(0.9,), jobs=24, lists=3)
    return evaluate(request, processes=processes, time_decisions=False)


def test_a_policy_of_a_file_scores_as_what_it_does(tmp_path: Path) -> None:
    found = evaluated(given(tmp_path))
    np.testing.assert_array_equal(found.figures["mine", 0].metrics, found.figures["sjf", 0].metrics)


def test_what_remembers_has_an_object_for_each_list_and_the_same_results_however_it_is_divided(tmp_path: Path) -> None:
    own = given(tmp_path, COUNTS)
    alone, again = evaluated(own), evaluated(own)
    np.testing.assert_array_equal(alone.figures["mine", 0].metrics, again.figures["mine", 0].metrics)
    cases, _ = build_cases(alone.request)
    assert sum(task.policy == "mine" for task in cut(cases, ["sjf", "mine"], own)) == 3
    assert sum(task.policy == "sjf" for task in cut(cases, ["sjf", "mine"], own)) == 1


@pytest.mark.slow
def test_workers_load_the_file_themselves(tmp_path: Path) -> None:
    own = given(tmp_path)
    here, there = evaluated(own), evaluated(own, processes=2)
    np.testing.assert_array_equal(here.figures["mine", 0].metrics, there.figures["mine", 0].metrics)


def test_finished_parts_of_other_code_are_not_taken(tmp_path: Path) -> None:
    request = Request(policies=("sjf",), loads=(0.9,), jobs=24, lists=3)
    cases, _ = build_cases(request)

    def key(own: dict[str, Any]) -> str:
        return key_of(Setup(tuple(cases), own), Task("mine", 0, 0, 3))

    before = key(given(tmp_path))
    assert key(given(tmp_path)) == before
    assert key(given(tmp_path, AS_SJF + "# changed\n")) != before


def test_checkpoints_are_compared_by_the_names_of_their_files(tmp_path: Path) -> None:
    put(tmp_path / "net-2.onnx", network(SHORTEST))
    own = given_policies([], [str(tmp_path / "net-2.onnx"), f"shipped={SHIPPED}"])
    assert list(own) == ["net_2", "shipped"]
    request = Request(policies=("dqn",), own=own, loads=(0.9,), jobs=24, lists=2)
    found = evaluate(request, processes=1, time_decisions=False)
    np.testing.assert_array_equal(found.figures["shipped", 0].metrics, found.figures["dqn", 0].metrics)
    assert (found.figures["net_2", 0].metrics != found.figures["dqn", 0].metrics).any()
    versions = build_document(found)["meta"]["versions"]
    assert versions["shipped"] == versions["dqn"] != versions["net_2"]


def test_a_checkpoint_that_changes_meanwhile_is_refused_by_a_worker(tmp_path: Path) -> None:
    path = put(tmp_path / "net.onnx", network(SHORTEST))
    sent = pickle.dumps(given_policies([], [str(path)])["net"])
    assert pickle.loads(sent).version
    put(path, network(SHORTEST, hold=-1e6))
    with pytest.raises(InvalidInput, match=r"net\.onnx has changed meanwhile"):
        pickle.loads(sent)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--checkpoint", "{tmp}/nowhere.onnx"], "--checkpoint: {tmp}/nowhere.onnx: there is no such file"),
        (["--checkpoint", "{tmp}/text.onnx"], "--checkpoint: {tmp}/text.onnx: the model: not an ONNX model"),
        (["--checkpoint", str(SHIPPED)], "--checkpoint: the name 'dqn' is taken; give another one: --checkpoint NAME="),
        (["--checkpoint", "No-Name=x"], "--checkpoint: the name 'No-Name' must be small letters, digits and under"),
        (["--policy-file", "mine.py"], "--policy-file: 'mine.py' must be PATH:CLASS, such as mine.py:MyPolicy"),
        (["--policy-file", "{tmp}/bad.py:Mine"], "--policy-file: {tmp}/bad.py, line 1: ZeroDivisionError"),
    ],
)
def test_bad_files_are_refused_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    arguments: list[str],
    said: str,
) -> None:
    (tmp_path / "text.onnx").write_text("no model")
    (tmp_path / "bad.py").write_text("1 / 0\n")
    assert run(monkeypatch, "--policies", "fcfs", *(each.format(tmp=tmp_path) for each in arguments)) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert said.format(tmp=tmp_path) in told
    assert "simulating" not in told


def test_the_command_evaluates_files_beside_named_policies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(AS_SJF)
    out = tmp_path / "out.json"
    options = ["--load", "0.9", "--jobs", "16", "--seeds", "2", "--processes", "1", "--json", str(out)]
    files = ["--policy-file", f"{tmp_path}/mine.py:Mine", "--checkpoint", f"again={SHIPPED}"]
    assert run(monkeypatch, "--policies", "sjf", *files, *options) == 0
    rows = {row["policy"]: row for row in json.loads(out.read_text())["rows"]}
    assert list(rows) == ["sjf", "mine", "again"]
    assert rows["mine"]["mean_jct_s"] == rows["sjf"]["mean_jct_s"]


def test_an_error_of_the_code_ends_the_evaluation_with_its_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(AS_SJF + "    def preferences(self, observation):\n        return 1 / 0\n")
    options = ["--load", "0.9", "--jobs", "16", "--seeds", "2", "--processes", "1"]
    assert run(monkeypatch, "--policies", "sjf", "--policy-file", f"{tmp_path}/mine.py:Mine", *options) == 2
    assert "mine.py, line 6: mine raised ZeroDivisionError" in " ".join(capsys.readouterr().err.split())


def test_names_of_packages_are_known_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adlro.lab.evaluate.request.package_names", lambda: ("theirs",))
    assert parse_policies("fcfs,theirs") == ("fcfs", "theirs")
    with pytest.raises(InvalidInput, match="no installed package offers 'theirs'"):
        split_own(("fcfs", "theirs"))
