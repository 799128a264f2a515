"""The physics against an independent program: the ten job lists of the paper scenario under three rules."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest

from adlro.workload.scenario import load_scenario
from adlro.workload.traces import read_paper_csv
from tests.unit.workload.paper_rules import PaperRun, fcfs, fcfs_fastest, sjf

SHARED_DATA = Path(os.environ.get("ADLRO_SHARED_DATA", Path(__file__).parents[4] / "shared" / "data"))
PAPER = SHARED_DATA / "paper"
RULES = {"fcfs": fcfs, "fcfs_fastest": fcfs_fastest, "sjf": sjf}

pytestmark = pytest.mark.skipif(
    not PAPER.is_dir(), reason="the paper scenario's job lists are not here; ADLRO_SHARED_DATA says where they are"
)


def expected_rows() -> list[dict[str, str]]:
    if not PAPER.is_dir():
        return []
    with (PAPER / "expected.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("row", expected_rows(), ids=lambda row: row["file"])
def test_a_list_under_a_rule_gives_the_expected_mean_jct_and_makespan(row, rule):
    jobs = read_paper_csv(PAPER / row["file"])
    assert len(jobs) == 256
    mean_jct_s, makespan_s = PaperRun(load_scenario("paper").cluster, jobs, RULES[rule]).run()
    assert mean_jct_s == pytest.approx(float(row[f"{rule}_mean_jct_s"]), rel=1e-4)
    assert makespan_s == pytest.approx(float(row[f"{rule}_makespan_s"]), rel=1e-4)


# Where ends fall on one instant, or all but on one: the ways that such lists go differ by 2 % in mean JCT.
@pytest.mark.parametrize(("file", "rule"), [("jobs_load0.9_102.csv", "fcfs_fastest"), ("jobs_load1.1_108.csv", "sjf")])
@pytest.mark.parametrize("begin_s", [620.0, 2887.0, 6618.0, 1_802_403.0])
def test_a_list_goes_the_same_way_however_late_it_begins(file, rule, begin_s):
    jobs = read_paper_csv(PAPER / file)
    runs = [PaperRun(load_scenario("paper").cluster, jobs, RULES[rule], at_s).run() for at_s in (0.0, begin_s)]
    assert runs[1] == pytest.approx(runs[0], rel=1e-9)


def test_the_package_ships_the_figures_of_the_shared_scenario():
    shipped = {(g.user, g.application, g.job_type.label, g.mean_work_s) for g in load_scenario("paper").groups}
    with (PAPER / "groups.csv").open() as file:
        shared = {
            (row["user"], row["application"], row["job_type"], float(row["mean_work_s"]))
            for row in csv.DictReader(file)
        }
    assert shipped == shared


def test_the_package_ships_the_shared_speeds():
    from adlro.hardware.speeds import GPU_MODELS, JOB_TYPE_OF, speed

    with (SHARED_DATA / "speeds.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["application"] for row in rows] == list(JOB_TYPE_OF)
    for row in rows:
        job_type = JOB_TYPE_OF[row["application"]]
        assert job_type.label == row["job_type"]
        for gpu_model in GPU_MODELS:
            assert speed(row["application"], job_type, gpu_model) == float(row[gpu_model])
