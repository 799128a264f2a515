"""The verdict: what is offered, what is not, and why."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from adlro.decide.policies.base import Policy
from adlro.decide.policies.dqn import SHIPPED, Dqn
from adlro.errors import InvalidInput
from adlro.lab.candidates import judging
from adlro.lab.candidates.document import verdict_document, verdict_lines
from adlro.lab.candidates.judging import (
    LEAST_JOBS,
    MOST_CHOOSING,
    Change,
    _reasons,
    best_rule,
    corrected_rule,
    judge,
    parts_of,
)
from adlro.lab.candidates.learning import Plan
from adlro.lab.candidates.making import Making
from adlro.lab.candidates.past import Past
from tests.networks import network, put
from tests.unit.lab.candidates.pasts import past

GAIN = Change("in use", 0.95, (0.93, 0.97), 0.96, (0.9, 1.0), 1.0, 0.96)
OVER_RULE = dataclasses.replace(GAIN, against="hold_gang")


@pytest.mark.parametrize(
    ("in_use", "rule", "told"),
    [
        (GAIN, OVER_RULE, []),
        (dataclasses.replace(GAIN, mean_jct_interval=(0.9, 1.001)), OVER_RULE, ["not certainly below"]),
        (GAIN, dataclasses.replace(OVER_RULE, mean_jct=1.01), ["+1.0 % against hold_gang"]),
        (dataclasses.replace(GAIN, p95_jct=1.03), OVER_RULE, ["95th percentile is +3.0 %"]),
        (dataclasses.replace(GAIN, longest_wait=1.2), OVER_RULE, ["longest wait is +20.0 %"]),
        (dataclasses.replace(GAIN, whole_mean_jct=1.06), OVER_RULE, ["in one piece, is +6.0 %"]),
        (
            dataclasses.replace(GAIN, p95_jct=1.03, longest_wait=1.2),
            dataclasses.replace(OVER_RULE, mean_jct=1.01),
            ["against hold_gang", "95th percentile", "longest wait"],
        ),
    ],
)
def test_each_limit_has_its_reason(in_use: Change, rule: Change, told: list[str]) -> None:
    reasons = _reasons((in_use, rule))
    assert len(reasons) == len(told)
    for reason, part in zip(reasons, told, strict=True):
        assert part in reason


def test_parts_are_consecutive_and_hold_as_many_jobs_each() -> None:
    whole = past(LEAST_JOBS + 13)
    parts = parts_of(whole)
    assert {len(part) for part in parts} == {len(parts[0])}
    durations = np.concatenate([part.jobs.duration_s[0] for part in parts])
    np.testing.assert_array_equal(durations, whole.jobs.duration_s[0, len(whole) - len(durations) :])
    uncounted = dataclasses.replace(whole, measured=np.arange(len(whole)) > 200)
    assert 0 < len(parts_of(uncounted)) < len(parts)


def test_the_checkpoint_in_use_is_not_better_than_itself(tmp_path: Path) -> None:
    judged = past(LEAST_JOBS, "paper")
    same = put(tmp_path / "same.onnx", SHIPPED.read_bytes())
    verdict = judge(judged, same, SHIPPED, "hold_greedy_fixed")
    assert not verdict.offered
    assert "not certainly below" in verdict.reasons[0]
    assert verdict.changes[0].mean_jct == 1.0
    assert verdict.changes[0].mean_jct_interval == (1.0, 1.0)
    assert [each.name for each in verdict.played] == ["candidate", "in use", "hold_greedy_fixed"]


def test_a_candidate_that_would_have_lost_is_not_offered_and_the_document_says_why(tmp_path: Path) -> None:
    judged = past(LEAST_JOBS, "paper")
    longest_first = put(tmp_path / "bad.onnx", network({"duration": 1.0}))
    verdict = judge(judged, longest_first, SHIPPED, "sjf")
    assert not verdict.offered
    assert verdict.changes[0].mean_jct_interval[0] > 1.0
    document = verdict_document(verdict, judged, judged, Making(), "bad.onnx")
    text = "\n".join(verdict_lines(document))
    assert "not offered" in text
    assert document["reasons"][0].replace("[", "\\[") in text
    assert document["judged_by"]["parts"] == 8


def test_a_rule_that_is_better_than_the_checkpoint_in_use_is_told_with_the_command(tmp_path: Path) -> None:
    judged = past(LEAST_JOBS, "paper", load=1.1)
    longest_first = put(tmp_path / "bad.onnx", network({"duration": 1.0}))
    same = put(tmp_path / "same.onnx", longest_first.read_bytes())
    verdict = judge(judged, same, longest_first, "sjf")
    assert [each.name for each in verdict.played] == ["candidate", "in use", "hold_greedy_fixed", "sjf"]
    assert [each.against for each in verdict.changes] == ["in use", "hold_greedy_fixed", "sjf"]
    assert verdict.better_rule is not None
    assert (verdict.better_rule.policy, verdict.better_rule.against) == ("sjf", "in use")
    assert verdict.better_rule.mean_jct_interval[1] < 1.0
    document = verdict_document(verdict, judged, judged, Making(), "same.onnx")
    assert document["better_rule"]["mean_jct"] == verdict.better_rule.mean_jct
    told = list(verdict_lines(document))[-1]
    assert "a single rule has a lower mean here: sjf" in told
    assert "adlro policy sjf" in told
    # The rule that a checkpoint corrects may be the one that is better.
    of_base = judge(judged, same, longest_first, "hold_greedy_fixed").better_rule
    assert of_base is not None
    assert of_base.policy == "hold_greedy_fixed"


def test_no_rule_is_told_where_none_is_better_than_a_checkpoint(tmp_path: Path) -> None:
    judged = past(LEAST_JOBS, "paper")
    same = put(tmp_path / "same.onnx", SHIPPED.read_bytes())
    verdict = judge(judged, same, SHIPPED, "fcfs")
    assert verdict.better_rule is None
    assert verdict.changes[-1].mean_jct_interval[1] < 1.0
    assert verdict_document(verdict, judged, judged, Making(), "same.onnx")["better_rule"] is None
    # An offered candidate stands alone, unless the rule is better than that, too.
    longest_first = put(tmp_path / "bad.onnx", network({"duration": 1.0}))
    offered = judge(judged, same, longest_first, "sjf")
    assert offered.offered
    assert offered.better_rule is None


@pytest.mark.parametrize(
    ("of_rule", "in_one_piece", "told"), [(0.8, 0.8, True), (0.95, 0.95, False), (0.8, 1.04, True), (0.8, 1.06, False)]
)
def test_a_rule_must_be_better_than_an_offered_candidate_and_not_worse_in_one_piece(
    of_rule: float, in_one_piece: float, told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    candidate = put(tmp_path / "candidate.onnx", SHIPPED.read_bytes())

    def figures(part: Past, policy: Policy) -> tuple[float, ...]:
        mean_s = 1.0
        if policy.name == "min_min":
            mean_s = in_one_piece if len(part) == LEAST_JOBS else of_rule
        elif isinstance(policy, Dqn) and policy.checkpoint == candidate:
            mean_s = 0.9
        return mean_s, 1.0, 1.0, 0.0

    monkeypatch.setattr(judging, "_figures", figures)
    verdict = judge(past(LEAST_JOBS), candidate, SHIPPED, "min_min")
    assert verdict.offered
    assert (verdict.better_rule is not None) == told


def test_the_best_rule_is_that_of_the_lowest_mean_and_knows_what_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    one_gpu = past(LEAST_JOBS, "paper", load=1.1)
    assert corrected_rule(one_gpu) == "hold_greedy_fixed"
    assert best_rule(one_gpu, "hold_greedy_fixed", tried.append) == "hold_greedy_fixed"
    assert "drain_gang" not in tried
    assert "srtf" not in tried
    seen: list[Past] = []

    def figures(part: Past, policy: Policy) -> tuple[float, ...]:
        seen.append(part)
        return (float(policy.name != "min_min"), 0.0, 0.0, 0.0)

    monkeypatch.setattr(judging, "_figures", figures)
    tried.clear()
    whole = past(LEAST_JOBS + MOST_CHOOSING)
    # Jobs without figures, as failed ones, are played and do not count.
    measured = np.arange(len(whole)) % 2 == 0
    rules = dataclasses.replace(whole.rules, min_run_s=60.0)
    stops = dataclasses.replace(whole, rules=rules, measured=measured)
    assert best_rule(stops, corrected_rule(stops), tried.append) == "min_min"
    assert tried[0] == "hold_gang"
    assert {"drain_gang", "srtf"} < set(tried)
    assert sum(len(part) for part in seen) > len(tried) * MOST_CHOOSING
    seen.clear()
    best_rule(whole, "hold_gang")
    assert sum(len(part) for part in seen) == MOST_CHOOSING * len({*tried} - {"srtf"})
    assert min(part.zero_s for part in seen) > whole.submit_s[LEAST_JOBS - 2]


def test_too_few_jobs_are_told_with_the_way_out() -> None:
    with pytest.raises(InvalidInput, match=r"120 finished jobs to judge, and 400 are needed.*--judged-share"):
        Plan(judged_share=0.2).split(past(600))
    before, judged = Plan(judged_share=0.5).split(past(LEAST_JOBS * 2))
    assert (len(before), len(judged)) == (LEAST_JOBS, LEAST_JOBS)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Plan(judged_share=0.99), "judged_share"),
        (lambda: Making(worlds=1), "worlds"),
        (lambda: Making(epochs=0), "epochs"),
        (lambda: Making(seed=-1), "seed"),
    ],
)
def test_wrong_values_name_their_field(make: object, named: str) -> None:
    with pytest.raises(InvalidInput, match=f"{named}: must be") as caught:
        make()  # type: ignore[operator]
    assert caught.value.field == named
