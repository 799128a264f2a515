"""Which cluster `adlro up` and `adlro demo` have, and how a wrong one is refused before anything starts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from adlro.cli import clusters, suite
from adlro.cli.app import app
from adlro.cli.clusters import SETTING, USERS_MAP_ENV, check_passable
from adlro.errors import InvalidInput
from adlro.kit.testing import ROOT
from tests.cluster_files import LAB
from tests.unit.local.bench import users_map

LOCAL = ("up", "--port", "0", "--cluster", "local")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root's suite has a users' map")


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


@pytest.mark.parametrize("name", ["slurm", "ray"])
def test_reserved_names_are_refused(plans: list[suite.SuitePlan], name: str) -> None:
    result = run("up", "--port", "0", "--cluster", name)
    assert result.exit_code == 2
    assert (
        f"--cluster: '{name}' is kept for clusters that are not simulated, which are not supported yet" in result.stderr
    )
    assert plans == []


def test_this_machine_is_a_cluster_only_where_it_is_asked_for(
    plans: list[suite.SuitePlan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    started = run("up", "--port", "0", "--cluster", "local", "--data-dir", str(data), "--fake-gpus", "v100_sxm2:2")
    assert isinstance(started.exception, Started), started.output
    assert plans[-1] == suite.SuitePlan(
        data_dir=data,
        base_port=0,
        redis_url=None,
        settings={"ADLRO_LOCAL_FAKE_GPUS": "v100_sxm2:2", "ADLRO_LOCAL_DATA_DIR": str(data / "local")},
        cluster_module="adlro.services.local",
        closed=True,
        page=True,
    )
    run("up", "--port", "0")
    assert (plans[-1].closed, plans[-1].cluster_module) == (False, "adlro.services.simcluster")
    for refused in (run("up", **{SETTING: "local"}), run("demo", "--cluster", "local")):
        assert refused.exit_code in (1, 2)
        assert "'local' is no simulated cluster: `adlro up --cluster local` runs programs" in refused.stderr
    assert len(plans) == 2


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--fake-gpus", "v100_sxm2:2"], "--fake-gpus belongs to --cluster local"),
        (["--cluster", "paper", "--users-map", "map"], "--users-map belongs to --cluster local"),
        (["--cluster", "local", "--clock", "virtual"], "--clock: belongs to simulated clusters"),
        (["--cluster", "local", "--scale", "2"], "--scale: belongs to simulated clusters"),
        (["--cluster", "local", "--scenario", "paper"], "--scenario: belongs to simulated clusters"),
        (["--cluster", "local", "--users-map", "no such"], "--users-map: there is no file no such"),
    ],
)
def test_options_that_do_not_belong_together_are_refused(
    plans: list[suite.SuitePlan], options: list[str], says: str
) -> None:
    result = run("up", "--port", "0", *options)
    assert (result.exit_code, says in result.stderr) == (2, True), result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert plans == []


@as_root
def test_users_who_run_programs_must_come_to_their_files(plans: list[suite.SuitePlan], tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    options = [*LOCAL, "--users-map", users_map(tmp_path, "* *\n")]
    refused = run(*options, "--data-dir", str(closed / "data"))
    assert refused.exit_code == 2
    assert "closed to them; name a --data-dir elsewhere" in refused.stderr
    assert plans == []
    with pytest.raises(InvalidInput, match=f"{closed} is closed to them"):
        check_passable(closed / "data")
    check_passable(Path("/var/lib/adlro"))
    users_map(tmp_path, "* root\n")
    started = run(*options, "--data-dir", str(closed / "data"))  # root comes everywhere
    assert isinstance(started.exception, Started), started.output


def test_root_is_told_of_the_users_map_before_anything_starts(
    plans: list[suite.SuitePlan], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.delenv(USERS_MAP_ENV, raising=False)
    options = ["--fake-gpus", "v100_sxm2:1", "--data-dir", "my data", "-p", "fcfs", "--no-page", "-v"]
    result = run(*LOCAL, *options, "--policy-file", "a.py:A", "--policy-file", "b.py:B")
    assert (result.exit_code, plans) == (2, [])
    assert "you are root, so --users-map must name a file" in result.stderr
    # What was given, so that the command does what was wanted.
    ready = (
        "echo '* root' > users.map && adlro up --port 0 --data-dir 'my data' --policy fcfs --policy-file a.py:A "
        "--policy-file b.py:B --cluster local --fake-gpus v100_sxm2:1 --no-page --verbose --users-map users.map. "
    )
    assert ready in result.stderr
    assert USERS_MAP_ENV not in result.stderr
    assert "> users.map && adlro up --cluster local --users-map users.map. " in run("up", "--cluster", "local").stderr


@as_root
def test_the_users_map_is_checked_before_anything_starts(
    plans: list[suite.SuitePlan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(users_map(tmp_path, "* root\n"))
    monkeypatch.chdir(tmp_path)
    for options, environment in ((["--users-map", path.name], {}), ([], {USERS_MAP_ENV: path.name})):
        run(*LOCAL, *options, **environment)
        assert plans.pop().settings[USERS_MAP_ENV] == str(path)
    path.write_text("ada\n")
    assert f"--users-map: line 1 of {path.name} must be" in run(*LOCAL, "--users-map", path.name).stderr
    path.chmod(0o664)
    assert "nobody else may write to it" in run(*LOCAL, "--users-map", path.name).stderr
    path.chmod(0o644)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "--users-map: only root can run programs as other users" in run(*LOCAL, "--users-map", path.name).stderr
    assert plans == []


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"ADLRO_USERS_FILE": "users"}, "ADLRO_SERVICE_TOKEN_FILE and ADLRO_TOKEN_FILE is not set"),
        ({"ADLRO_SERVICE_TOKEN_FILE": "t", "ADLRO_TOKEN_FILE": "t"}, "ADLRO_USERS_FILE is not set"),
        ({"ADLRO_INGEST_USERS_FILE": ""}, "ADLRO_INGEST_USERS_FILE is empty"),
    ],
)
def test_half_given_tokens_are_refused(
    plans: list[suite.SuitePlan], environment: dict[str, str], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    result = run(*LOCAL, **environment)
    assert (result.exit_code, says in result.stderr) == (2, True), result.stderr
    assert plans == []


def test_given_tokens_are_used(plans: list[suite.SuitePlan], monkeypatch: pytest.MonkeyPatch) -> None:
    given = dict.fromkeys(("ADLRO_USERS_FILE", "ADLRO_SERVICE_TOKEN_FILE", "ADLRO_TOKEN_FILE"), "x")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    run(*LOCAL, **given)
    assert (plans[-1].closed, plans[-1].own_secrets) == (True, False)


def test_gpus_are_seen_by_the_files_of_their_drivers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "_DEV", tmp_path)
    (tmp_path / "nvidiactl").touch()
    assert not clusters.has_gpus()
    (tmp_path / "nvidia0").touch()
    assert clusters.has_gpus()
    (tmp_path / "nvidia0").unlink()
    (tmp_path / "kfd").touch()
    assert clusters.has_gpus()


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
