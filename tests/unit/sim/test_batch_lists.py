"""Whole lists through the batched simulator: the paper scenario's expected figures; one process or four."""

from __future__ import annotations

import csv
import multiprocessing
import os
from pathlib import Path

import numpy as np
import pytest

from adlro.decide.policies.base import Policy
from adlro.decide.policies.fcfs import Fcfs
from adlro.decide.policies.fcfs_fastest import FcfsFastest
from adlro.decide.policies.sjf import Sjf
from adlro.sim.batch import simulate
from adlro.state.job_arrays import pack_jobs
from adlro.workload.job_lists import draw_jobs
from adlro.workload.scenario import load_scenario
from adlro.workload.traces import read_paper_csv
from tests.unit.sim import oracle_rules
from tests.unit.sim.event_logs import digests
from tests.unit.sim.oracle import Rule
from tests.unit.sim.oracle_instances import assert_same, of_workload

PAPER = Path(os.environ.get("ADLRO_SHARED_DATA", Path(__file__).parents[4] / "shared" / "data")) / "paper"
RULES: dict[str, tuple[type[Policy], Rule]] = {
    "fcfs": (Fcfs, oracle_rules.fcfs),
    "fcfs_fastest": (FcfsFastest, oracle_rules.fcfs_fastest),
    "sjf": (Sjf, oracle_rules.sjf),
}

REL = 1e-6
MEAN_DIGIT_S, MAKESPAN_DIGIT_S = 1e-4, 1e-3
"""The last digit of the file's mean completion times and makespans."""


def printed(value: float, expected: str, digit: float) -> bool:
    """The value is the printed one to 1e-6, where that was rounded to `digit`."""
    return abs(value - float(expected)) <= digit / 2 + REL * float(expected)


@pytest.mark.skipif(
    not PAPER.is_dir(), reason="the paper scenario's job lists are not here; ADLRO_SHARED_DATA says where they are"
)
@pytest.mark.parametrize("name", RULES)
def test_the_ten_lists_of_the_paper_scenario_as_one_batch_give_the_expected_figures(name):
    with (PAPER / "expected.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 10
    lists = [read_paper_csv(PAPER / row["file"]) for row in rows]
    cluster = load_scenario("paper").cluster
    outcome = simulate(cluster, pack_jobs(lists, cluster), RULES[name][0]().act)
    for number, (row, jobs) in enumerate(zip(rows, lists, strict=True)):
        assert len(jobs) == 256
        ends_s = outcome.end_s[number]
        mean_jct_s = float(np.mean(ends_s - [job.submit_s for job in jobs]))
        assert printed(mean_jct_s, row[f"{name}_mean_jct_s"], MEAN_DIGIT_S)
        assert printed(float(ends_s.max()) - jobs[0].submit_s, row[f"{name}_makespan_s"], MAKESPAN_DIGIT_S)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("scenario_name", ["paper", "paper_roomy"])
def test_drawn_lists_go_as_the_oracle_says(name, scenario_name):
    """What stands in for the ten lists where they are absent, and more: every start and end, equal floats."""
    policy, rule = RULES[name]
    scenario = load_scenario(scenario_name)
    lists = [
        draw_jobs(scenario, load=load, rng=np.random.default_rng(seed), count=count)
        for seed, (load, count) in enumerate(((0.6, 48), (0.9, 64), (1.1, 80)))
    ]
    outcome = simulate(scenario.cluster, pack_jobs(lists, scenario.cluster), policy().act)
    for number, jobs in enumerate(lists):
        assert_same(outcome, number, of_workload(scenario.cluster, jobs).oracle(rule))


@pytest.mark.slow
def test_the_same_seeds_give_the_same_event_logs_in_one_process_or_four():
    seeds = list(range(100, 124))
    together = digests(seeds)
    assert len(set(together)) > 20
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        apart = pool.map(digests, [seeds[part::4] for part in range(4)], chunksize=1)
    assert [apart[number % 4][number // 4] for number in range(len(seeds))] == together
