"""Comparisons: the replay of a simulated history gives it back, differences are those of direct simulations."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from adlro.decide.catalog import of_files
from adlro.decide.own_policy import Own
from adlro.errors import InvalidInput, NotFound
from adlro.hardware.speeds import SHIPPED
from adlro.lab.compare.comparing import Request, compare
from adlro.lab.compare.document import SCHEMA, build_document
from adlro.records.jobs import JobState
from adlro.sim.batch import BatchOutcome
from adlro.state.observation import Floats
from tests.unit.lab.compare.suites import drawn, ran, suite_after

BEGIN_S = 100_000.0
ROUNDING_S = 1e-4
"""Recorded times are differences of floats of this size, and work is brought back from them."""

TRUE = Request(runtime="true")


def jct_s(outcome: BatchOutcome) -> Floats:
    found: Floats = outcome.end_s[0] - outcome.jobs.submit_s[0]
    return found


@pytest.mark.parametrize(
    ("scenario", "acted", "other", "preemption"),
    [
        ("paper", "fcfs", "hold_greedy_fixed", False),
        ("paper", "hold_greedy_fixed", "sjf", False),
        ("gangs", "hold_gang", "fcfs", False),
        ("preemptive", "srtf", "hold_gang", True),
        ("shared", "share_pairs", "hold_gang", False),
    ],
)
def test_a_simulated_history_comes_back_and_differences_are_those_of_direct_simulations(
    scenario: str, acted: str, other: str, preemption: bool
) -> None:
    cluster, jobs = drawn(scenario, 120, load=1.0, seed=5)
    happened, instead = (ran(cluster, jobs, name, preemption=preemption) for name in (acted, other))
    suite = suite_after(cluster, jobs, acted, happened, begin_s=BEGIN_S, preemption=preemption)
    if preemption:
        assert happened.stops[0] > 0
    comparison = compare(suite, SHIPPED, replace(TRUE, policies=(other,)))
    for name, outcome in ((acted, happened), (other, instead)):
        ends_s = comparison.replays[name].end_s + comparison.zero_s - BEGIN_S
        np.testing.assert_allclose(ends_s, outcome.end_s[0], rtol=0, atol=ROUNDING_S)
    document = build_document(comparison)
    (row,) = document["paired"]
    assert (row["policy"], row["baseline"]) == (other, acted)
    assert row["mean_jct_difference_s"] == pytest.approx(
        float(jct_s(instead).mean() - jct_s(happened).mean()), abs=ROUNDING_S
    )
    p95 = [float(np.percentile(jct_s(each), 95)) for each in (instead, happened)]
    assert row["p95_jct_difference_s"] == pytest.approx(p95[0] - p95[1], abs=ROUNDING_S)
    waits = [float((each.start_s[0] - each.jobs.submit_s[0]).max()) for each in (instead, happened)]
    assert row["max_wait_difference_s"] == pytest.approx(waits[0] - waits[1], abs=ROUNDING_S)
    assert document["check"]["mean_jct_ratio"] == pytest.approx(1.0, abs=1e-6)
    assert document["check"]["same_start_share"] == 1.0


def test_the_acting_policy_and_its_shadow_are_compared_without_a_word() -> None:
    cluster, jobs = drawn("paper", 30)
    outcome = ran(cluster, jobs, "fcfs")
    assert list(compare(suite_after(cluster, jobs, "fcfs", outcome, shadow="sjf"), SHIPPED, TRUE).replays) == [
        "fcfs",
        "sjf",
    ]
    alone = suite_after(cluster, jobs, "fcfs", outcome)
    assert list(compare(alone, SHIPPED, TRUE).replays) == ["fcfs", "hold_greedy_fixed"]
    itself = replace(alone, status=replace(alone.status, policy="hold_greedy_fixed"))
    assert list(compare(itself, SHIPPED, TRUE).replays) == ["hold_greedy_fixed", "fcfs"]


def test_few_jobs_have_no_interval_and_it_says_so() -> None:
    cluster, jobs = drawn("paper", 37)
    document = build_document(compare(suite_after(cluster, jobs, "fcfs", ran(cluster, jobs, "fcfs")), SHIPPED, TRUE))
    (row,) = document["paired"]
    assert document["interval"]["refused"] == "too few finished jobs: 37 of 200"
    assert row["mean_jct_difference_s_ci95"] == [None, None]
    assert document["schema"] == SCHEMA


@pytest.mark.slow
def test_many_jobs_have_an_interval_that_knows_better_policies() -> None:
    cluster, jobs = drawn("paper", 250, load=0.8)
    suite = suite_after(cluster, jobs, "fcfs", ran(cluster, jobs, "fcfs"))
    asked = replace(TRUE, policies=("hold_greedy_fixed",), resamples=40)
    document = build_document(compare(suite, SHIPPED, asked))
    (row,) = document["paired"]
    low, high = row["mean_jct_difference_s_ci95"]
    assert low < row["mean_jct_difference_s"] < high < 0
    assert document["interval"] == {
        "confidence": 0.95,
        "resamples": 40,
        "jobs_in_block": 6,
        "blocks": 42,
        "refused": None,
    }
    assert build_document(compare(suite, SHIPPED, asked))["paired"] == [row]
    low, high = row["mean_jct_ratio_ci95"]
    assert 0 < low < row["mean_jct_ratio"] < high < 1


def test_the_policy_that_acted_has_no_difference_to_itself() -> None:
    cluster, jobs = drawn("paper", 40)
    suite = suite_after(cluster, jobs, "fcfs", ran(cluster, jobs, "fcfs"))
    document = build_document(compare(suite, SHIPPED, replace(TRUE, policies=("fcfs",))))
    assert document["paired"] == []
    assert [row["policy"] for row in document["policies"]] == ["fcfs"]


def own_sjf(folder: Path) -> dict[str, type[Own]]:
    (folder / "mine.py").write_text(
        "from adlro.decide.policies.sjf import Sjf\nclass Mine(Sjf):\n    name = 'mine'\n    description = 'as sjf'\n"
    )
    return of_files([f"{folder}/mine.py:Mine"])


def test_a_policy_of_a_file_is_compared_beside_the_named_ones(tmp_path: Path) -> None:
    cluster, jobs = drawn("paper", 40)
    suite = suite_after(cluster, jobs, "fcfs", ran(cluster, jobs, "fcfs"))
    request = replace(TRUE, policies=("sjf",), own=own_sjf(tmp_path))
    rows = {row["policy"]: row for row in build_document(compare(suite, SHIPPED, request))["policies"]}
    assert list(rows) == ["fcfs", "sjf", "mine"]
    assert rows["mine"]["mean_jct_s"] == rows["sjf"]["mean_jct_s"] != rows["fcfs"]["mean_jct_s"]


def test_a_suite_on_which_a_policy_of_a_file_acted_is_compared_with_the_baseline(tmp_path: Path) -> None:
    cluster, jobs = drawn("paper", 40)
    suite = suite_after(cluster, jobs, "sjf", ran(cluster, jobs, "sjf"))
    suite = replace(suite, status=replace(suite.status, policy="mine"))
    document = build_document(compare(suite, SHIPPED, replace(TRUE, own=own_sjf(tmp_path))))
    assert [row["policy"] for row in document["policies"]] == ["mine", "hold_greedy_fixed"]
    with pytest.raises(InvalidInput, match=r"acted: 'mine' acted, .* give its file by --policy-file"):
        compare(suite, SHIPPED, TRUE)


def test_a_window_counts_its_jobs_and_replays_what_they_met() -> None:
    cluster, jobs = drawn("paper", 200, load=0.9)
    outcome = ran(cluster, jobs, "fcfs")
    suite = suite_after(cluster, jobs, "fcfs", outcome, begin_s=BEGIN_S)
    since_s, until_s = BEGIN_S + jobs[120].submit_s, BEGIN_S + jobs[160].submit_s
    comparison = compare(suite, SHIPPED, replace(TRUE, since_s=since_s, until_s=until_s))
    assert comparison.measured.sum() == 40
    first = comparison.window.first
    counted = first + np.flatnonzero(comparison.measured)
    assert counted.tolist() == list(range(120, 160))
    ends_s = comparison.replays["fcfs"].end_s[comparison.measured] + comparison.zero_s - BEGIN_S
    np.testing.assert_allclose(ends_s, outcome.end_s[0, 120:160], rtol=0, atol=ROUNDING_S)
    newest = compare(suite, SHIPPED, replace(TRUE, limit=10))
    assert (newest.window.first + np.flatnonzero(newest.measured)).tolist() == list(range(190, 200))
    with pytest.raises(NotFound, match=r"no finished job .* was submitted in that time \(--since, --until"):
        compare(suite, SHIPPED, replace(TRUE, since_s=BEGIN_S + 1e6))


def test_failed_jobs_hold_gpus_but_do_not_count_and_others_are_named() -> None:
    cluster, jobs = drawn("paper", 60)
    outcome = ran(cluster, jobs, "fcfs")
    suite = suite_after(cluster, jobs, "fcfs", outcome)
    records = list(suite.jobs)
    records[3] = replace(records[3], state=JobState.FAILED)
    records[4] = replace(records[4], state=JobState.CANCELLED)
    never = replace(records[5], state=JobState.CANCELLED, start_s=None, attempts=(), gpu_model="", job_id="job-61")
    runs = replace(records[6], state=JobState.RUNNING, end_s=None, job_id="job-62")
    huge = replace(records[7], spec=replace(records[7].spec, cpu_cores=10_000), job_id="job-63")
    document = build_document(compare(replace(suite, jobs=(*records, never, runs, huge)), SHIPPED, TRUE))
    assert document["jobs"]["measured"] == 58
    assert document["jobs"]["replayed"] == 60
    assert {each["why"]: each["jobs"] for each in document["jobs"]["left_out"]} == {
        "cancelled or failed before they ran": 1,
        "not ended yet": 1,
        "fit on no GPUs of the cluster as it is now": 1,
    }
    assert sorted(each["what"].partition(":")[0] for each in document["jobs"]["handled"]) == [
        "cancelled while they ran",
        "failed",
    ]
    # What failed ran as long as it did, so the others waited for it as they did.
    assert document["check"]["same_start_share"] == 1.0


def test_another_limit_on_waits_of_the_suite_holds_in_all_replays() -> None:
    cluster, jobs = drawn("paper", 40)
    suite = suite_after(cluster, jobs, "fcfs", ran(cluster, jobs, "fcfs"))
    suite = replace(suite, status=replace(suite.status, wait_ratio=3.0))
    comparison = compare(suite, SHIPPED, TRUE)
    assert "every policy with the suite's limit on waits, of ratio 3" in comparison.notes


def test_decisions_under_another_policy_are_told() -> None:
    cluster, jobs = drawn("paper", 40)
    suite = suite_after(cluster, jobs, "fcfs", ran(cluster, jobs, "fcfs"))
    comparison = compare(replace(suite, policies={"fcfs": 10, "sjf": 30}), SHIPPED, TRUE)
    assert any("of 40 decisions that are still kept, 30 under sjf, not fcfs" in note for note in comparison.notes)


def test_another_version_of_the_policy_that_acted_is_told_by_what_it_is(tmp_path: Path) -> None:
    cluster, jobs = drawn("paper", 40)
    versions = {("mine", "of-then"): 40, ("dqn", "88"): 7}
    suite = replace(suite_after(cluster, jobs, "sjf", ran(cluster, jobs, "sjf")), versions=versions)
    suite = replace(suite, status=replace(suite.status, policy="mine"))
    (told,) = compare(suite, SHIPPED, replace(TRUE, own=own_sjf(tmp_path))).notes
    assert told.startswith("mine acted with other code (of-then) than that of the replay (")
    assert told.endswith("): name its file of then (--policy-file)")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"policies": ("fcsf",)}, "policies: unknown policy 'fcsf'; did you mean fcfs"),
        ({"acted": "sfj"}, "acted: unknown policy"),
        ({"runtime": "thruth"}, "runtime: unknown knowledge of runtimes 'thruth'"),
        ({"limit": 0}, "limit: must be at least 1"),
        ({"resamples": 5}, "resamples: must be from 40 to 10000, or 0 for no intervals, not 5"),
        ({"since_s": 5.0, "until_s": 5.0}, "until: must be after --since 5"),
        ({"wait_ratio": -1.0}, "wait_ratio: must be a number from 0"),
    ],
)
def test_impossible_requests_are_refused(change: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidInput, match="^" + said.replace("(", r"\(")):
        Request(**change)  # type: ignore[arg-type]
