"""Who decided: what decisions rest on is counted list by list, and every policy has the same limit on waits."""

from __future__ import annotations

import io
import json
import math
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from adlro.decide.policies import POLICIES
from adlro.decide.policies.base import Judgement, Policy
from adlro.decide.policies.fcfs import Fcfs
from adlro.decide.policies.sjf import Sjf
from adlro.errors import InvalidInput
from adlro.lab.evaluate import Request, evaluate
from adlro.lab.evaluate import tasks as tasks_module
from adlro.lab.evaluate.cases import build_cases
from adlro.lab.evaluate.document import build_document
from adlro.lab.evaluate.tables import print_tables
from adlro.records.decisions import DecisionBasis
from adlro.state.observation import Floats, Ints, Observation

TIGHT = 1e-6
"""A limit that every job exceeds as soon as it waits."""


class Modest(Fcfs):
    """Leaves a decision to the fallback where more than one job waits; counts both."""

    def __init__(self) -> None:
        self.asked = self.left = 0

    def weigh(self, observation: Observation) -> Judgement:
        judgement = super().weigh(observation)
        many = np.flatnonzero(observation.job_waiting.sum(axis=1) > 1)
        self.asked += len(observation.time_s)
        self.left += len(many)
        judgement.basis = dict.fromkeys(many.tolist(), DecisionBasis.OUT_OF_RANGE)
        return judgement


class LastFirst(Policy):
    """The job that came last first, wherever it fits: who has come early waits for long."""

    def preferences(self, observation: Observation) -> Floats:
        return observation.table.of_job(observation.job_submit_s)


class Acts(Fcfs):
    """Says what to do, and not what that rests on."""

    def act(self, observation: Observation) -> Ints:
        return super().act(observation)


def request(**changes: Any) -> Request:
    return Request(**{"policies": ("fcfs", "sjf"), "loads": (1.1,), "jobs": 24, "lists": 5, **changes})


def rows(asked: Request, processes: int = 1) -> dict[str, dict[str, Any]]:
    document = build_document(evaluate(asked, processes=processes, time_decisions=False))
    json.dumps(document, allow_nan=False)
    return {row["policy"]: row for row in document["rows"]}


def test_decisions_of_the_fallback_are_counted_as_the_policy_counts_them() -> None:
    modest = Modest()
    row = rows(request(own={"modest": modest}))["modest"]
    assert 0 < modest.left < modest.asked
    assert row["decisions"] == modest.asked
    assert row["decisions_by_basis"] == {"policy": modest.asked - modest.left, "out_of_range": modest.left}
    assert row["fallback_share"] == pytest.approx(modest.left / modest.asked)
    low, high = row["fallback_share_ci95"]
    assert low < row["fallback_share"] < high
    assert row["overdue_share"] == 0.0


def test_a_policy_that_only_acts_is_not_counted() -> None:
    row = rows(request(own={"acts": Acts()}))["acts"]
    assert (row["decisions"], row["decisions_by_basis"]) == (None, None)
    assert (row["overdue_share"], row["fallback_share"]) == (None, None)
    assert row["overdue_share_ci95"] == [None, None]


def test_the_limit_is_the_same_for_all_and_its_decisions_are_counted() -> None:
    last, mine = LastFirst(), Sjf()
    own = {"last": last, "mine": mine}
    free = rows(request(own=own, jobs=80, loads=(1.5,), wait_ratio=0.0))
    assert {row["overdue_share"] for row in free.values()} == {0.0}
    bound = rows(request(own=own, jobs=80, loads=(1.5,), wait_ratio=TIGHT))
    assert bound["last"]["overdue_share"] > 0.02
    assert bound["last"]["decisions_by_basis"]["overdue"] > 0
    assert bound["last"]["max_wait_s"] < free["last"]["max_wait_s"]
    for name in ("mean_jct_s", "max_wait_s", "decisions_by_basis"):
        assert bound["mine"][name] == bound["sjf"][name]
    assert mine.wait_ratio == Sjf.wait_ratio, "a policy that was handed in is not changed"


def test_what_the_run_compared_is_said_with_its_limits() -> None:
    meta = build_document(evaluate(request(own={"mine": Sjf()}, wait_ratio=7.0), processes=1, time_decisions=False))[
        "meta"
    ]
    assert meta["wait_ratio"] == 7.0
    assert meta["wait_ratios"] == {"fcfs": 7.0, "sjf": 7.0, "mine": 7.0}
    assert any(
        item.startswith("Waits: limit on waits of ratio 7. Under every policy an overdue job goes first")
        for item in meta["definitions"]
    )
    own = Sjf()
    own.wait_ratio = math.inf
    asked = request(policies=("fcfs",), own={"mine": own, "other": Modest()})
    Modest.wait_ratio = 3.0
    try:
        meta = build_document(evaluate(asked, processes=1, time_decisions=False))["meta"]
        assert (meta["wait_ratio"], meta["wait_ratios"]["mine"], meta["wait_ratios"]["other"]) == (None, 0.0, 3.0)
        (note,) = [note for note in build_cases(asked)[1] if "limits on waits" in note]
        assert "other 3" in note
        assert "--wait-ratio" in note
    finally:
        del Modest.wait_ratio


@pytest.mark.parametrize("width", [80, 120, 200])
def test_a_screen_shows_whole_figures_and_tails_before_the_rest(width: int) -> None:
    document = build_document(
        evaluate(request(own={"modest": Modest()}, wait_ratio=7.0), processes=1, time_decisions=False)
    )
    console = Console(width=width, file=io.StringIO())
    print_tables(console, document)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= width
    head = next(line for line in shown.splitlines() if line.startswith("POLICY"))
    for name in ("MEAN JCT", "P95 JCT", "MAX WAIT", "JOBS/H", "FALLBACK"):
        assert name in head
    (row,) = [row for row in document["rows"] if row["policy"] == "modest"]
    assert f"{100 * row['fallback_share']:.1f}%" in next(line for line in shown.splitlines() if "modest" in line)
    assert "OVERDUE" not in head, "no decision was"
    assert ("JAIN" in head) is (width == 200)
    assert ("left out on a narrow screen: p50 us, JAIN" in shown) is (width < 200)
    words = " ".join(shown.split())
    assert "limit on waits of ratio 7" in words
    assert words.startswith(
        "Look first at MEAN JCT, the mean time from a job's submission to its end: lower is better."
    )
    assert ("beside the brackets" in words) is (row["seeds"] > 1)


def test_results_under_another_limit_are_not_taken_up() -> None:
    (case,), _ = build_cases(request())
    task = tasks_module.Task("sjf", 0, 0, 1)
    keys = {tasks_module.key_of(tasks_module.Setup((case,), {}, wait_ratio=each), task) for each in (None, 0.0, 7.0)}
    assert len(keys) == 3


@pytest.mark.parametrize("ratio", [-1.0, math.nan, math.inf, 1e10])
def test_a_limit_that_is_none_is_refused(ratio: float) -> None:
    with pytest.raises(InvalidInput, match=r"^wait_ratio: must be a number from 0 .*0: no limit"):
        request(wait_ratio=ratio)


@pytest.mark.slow
def test_counts_do_not_depend_on_chunks_or_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = request(policies=("sjf", "dqn"), wait_ratio=TIGHT)
    whole = rows(asked)
    assert whole["dqn"]["decisions"] > 0
    assert whole == rows(asked, processes=2)
    monkeypatch.setattr(tasks_module, "_WIDE", 48)
    assert whole == rows(asked)


def test_every_policy_decides_as_it_acts() -> None:
    """Counting goes another way than `act`: the schedule must be the same."""
    (case,), _ = build_cases(request(jobs=16, lists=2))
    from adlro.sim.batch import simulate

    for name in POLICIES:
        if name == "hungarian":
            continue
        setup = tasks_module.Setup((case,), {}, wait_ratio=TIGHT)
        counted = setup.run(tasks_module.Task(name, 0, 0, 2))
        outcome = simulate(case.cluster, setup.arrays(0, 0, 2), setup.policy(name, case).act)
        jct_s = (outcome.end_s - outcome.jobs.submit_s).mean(axis=1)
        assert counted.metrics[:, 0] == pytest.approx(jct_s, rel=1e-12), name
