"""Which cluster `adlro up` and `adlro demo` simulate, and how a wrong one is refused before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from adlro.cli import suite
from adlro.cli.app import app
from adlro.cli.clusters import SETTING
from adlro.kit.testing import ROOT
from tests.cluster_files import LAB


class Started(Exception):
    """In place of a start."""


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[suite.SuitePlan]:
    """What would have been started."""
    found: list[suite.SuitePlan] = []

    def start(plan: suite.SuitePlan, notify: Any) -> None:
        found.append(plan)
        raise Started

    monkeypatch.setattr(suite, "Suite", start)
    monkeypatch.delenv(SETTING, raising=False)
    return found


def run(*arguments: str, **env: str) -> Any:
    return CliRunner().invoke(app, list(arguments), env=env)


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    path = tmp_path / "a lab.toml"
    path.write_text(LAB)
    return path


def test_the_option_chooses_then_the_environment_then_the_paper(plans: list[suite.SuitePlan], lab: Path) -> None:
    for options, environment, chosen in (
        ([], {}, "paper"),
        ([], {SETTING: "gavel"}, "gavel"),
        ([], {SETTING: str(lab)}, str(lab)),
        (["--cluster", "paper_roomy"], {SETTING: "gavel"}, "paper_roomy"),
        (["--cluster", str(lab)], {}, str(lab)),
    ):
        result = run("up", "--port", "0", *options, **environment)
        assert isinstance(result.exception, Started), result.output
        assert plans[-1].settings == {SETTING: chosen}
        assert result.stderr == ""


def test_a_relative_path_is_handed_on_as_an_absolute_one(
    plans: list[suite.SuitePlan], lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(lab.parent)
    run("up", "--port", "0", "--cluster", lab.name)
    assert plans[-1].settings == {SETTING: str(lab)}


def test_the_former_option_is_taken_with_a_warning(plans: list[suite.SuitePlan]) -> None:
    result = run("up", "--port", "0", "--scenario", "paper_roomy")
    assert plans[-1].settings == {SETTING: "paper_roomy"}
    assert result.stderr == "--scenario is deprecated: write --cluster\n"
    both = run("up", "--port", "0", "--scenario", "paper", "--cluster", "paper")
    assert (both.exit_code, "leave it out" in both.stderr) == (2, True)


@pytest.mark.parametrize("name", ["local", "slurm", "ray"])
def test_reserved_names_are_refused(plans: list[suite.SuitePlan], name: str) -> None:
    result = run("up", "--port", "0", "--cluster", name)
    assert result.exit_code == 2
    assert (
        f"--cluster: '{name}' is kept for clusters that are not simulated, which are not supported yet" in result.stderr
    )
    assert plans == []


BAD: dict[str, tuple[str, str, str]] = {
    "not TOML": ("name = ", "", "is not TOML"),
    "no nodes": ('name = "lab"', "nodes", "[[nodes]]"),
    "a key left out": (LAB.replace("cpu_cores = 12", ""), "nodes[0].cpu_cores", "whole number above 0, and is missing"),
    "an unknown model": (LAB.replace("v100_sxm2", "a100"), "nodes[0].gpu_model", "add its speeds in [[speeds]]"),
    "a model without figures": (
        LAB.replace("v100_sxm2", "a100")
        + '[[speeds]]\napplication = "resnet50_fp16"\njob_type = "machine_learning"\na100 = 2.1\n',
        "nodes[0].gpu_model",
        "add memory_bandwidth_gb_per_s, power_limit_w and max_temperature_c",
    ),
    "a name that no cluster has": (LAB.replace('"lab"', '"My Lab"'), "name", "small letters a-z, digits and -"),
    "cores that no node has": (LAB.replace("= 12", "= 5000"), "nodes[0].cpu_cores", "4096"),
    "memory that no GPU has": (LAB.replace("16160", "9999999"), "nodes[0].gpu_memory_mib", "1048576"),
    "more GPUs than a node has": (LAB.replace("gpus = 2", "gpus = 65"), "nodes[0].gpus", "64"),
    "a name that a terminal obeys": (LAB.replace("box-0", "box\\u001b[2J"), "nodes[0].name", "remove U+001B"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("by", ["option", "environment"])
def test_a_bad_file_is_refused_by_file_and_field_before_anything_starts(
    plans: list[suite.SuitePlan], tmp_path: Path, case: str, by: str
) -> None:
    text, field, way_out = BAD[case]
    path = tmp_path / "bad.toml"
    path.write_text(text)
    chosen = ["--cluster", str(path)] if by == "option" else []
    result = run("up", "--data-dir", str(tmp_path / "data"), *chosen, **({SETTING: str(path)} if not chosen else {}))
    assert result.exit_code == 2
    assert f"{path}: {field}" in result.stderr
    assert way_out in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert plans == []
    assert not (tmp_path / "data").exists()


def test_the_example_of_the_docs_is_taken(plans: list[suite.SuitePlan], tmp_path: Path) -> None:
    page = (ROOT / "docs" / "workloads.md").read_text(encoding="utf-8")
    path = tmp_path / "lab.toml"
    path.write_text(page.partition("```toml\n")[2].partition("```")[0])
    run("up", "--port", "0", "--cluster", str(path))
    assert plans[-1].settings == {SETTING: str(path)}


def test_what_is_neither_name_nor_file_is_said_with_where_it_was_named(plans: list[suite.SuitePlan]) -> None:
    assert "--cluster: 'papre' is neither a cluster's name (paper, paper_roomy, gavel) nor a file" in (
        run("up", "--cluster", "papre").stderr
    )
    assert f"{SETTING}: 'papre' is neither" in run("up", **{SETTING: "papre"}).stderr
    assert plans == []


def test_the_demo_takes_a_cluster_whose_load_is_known(plans: list[suite.SuitePlan], lab: Path) -> None:
    result = run("demo", "--cluster", "paper_roomy", "-n", "4")
    assert isinstance(result.exception, Started), result.output
    assert plans[-1].settings[SETTING] == "paper_roomy"
    run("demo", "-n", "4", **{SETTING: "paper_roomy"})
    assert plans[-1].settings[SETTING] == "paper_roomy"
    refused = run("demo", "--cluster", str(lab))
    assert (refused.exit_code, "name paper or paper_roomy" in refused.stderr) == (1, True)
    assert run("demo", "--running", "--cluster", "paper").exit_code == 2
    assert len(plans) == 2
