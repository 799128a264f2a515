"""What a restart costs: from the job's statement, from its user's and application's restarts, from noisy figures."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest

from adlro.services.decompose.outcomes.restart_costs import (
    DEFAULT_RESTART_S,
    AttemptRun,
    ObservedRestart,
    RestartCosts,
    observed_restart,
)


def learn(costs, restart_s, count=1, *, user="ann", application="bert", std_s=1.0, stated_s=None):
    for _ in range(count):
        costs.learn(ObservedRestart(user, application, restart_s, std_s, stated_s))


def test_before_any_restart_the_statement_stands():
    costs = RestartCosts()
    found = costs.predict("ann", "bert", 120.0)
    assert found.median_s == pytest.approx(120)
    assert found.low_s < 60 < 240 < found.high_s
    assert found.restart_count == 0
    unstated = costs.predict("ann", "bert")
    assert unstated.median_s == pytest.approx(DEFAULT_RESTART_S)
    assert unstated.high_s / unstated.low_s > found.high_s / found.low_s


def test_restarts_of_the_user_and_application_say_most_then_others_of_the_application():
    costs = RestartCosts()
    learn(costs, 90.0, 8)
    own = costs.predict("ann", "bert")
    assert own.median_s == pytest.approx(90, rel=0.05)
    assert own.restart_count == 8
    other_user, other_application = costs.predict("bob", "bert"), costs.predict("ann", "gnmt")
    assert 60 < other_user.median_s < 90
    assert DEFAULT_RESTART_S < other_application.median_s < other_user.median_s
    width = [each.high_s / each.low_s for each in (own, other_user, other_application)]
    assert width == sorted(width)


def test_a_users_statements_are_corrected_by_their_factor():
    costs = RestartCosts()
    for stated_s in (20.0, 40.0, 80.0, 160.0):
        learn(costs, 3 * stated_s, stated_s=stated_s)
    assert costs.predict("ann", "bert", 100.0).median_s == pytest.approx(300, rel=0.1)
    # Jobs without a statement have factors of their own.
    assert costs.predict("ann", "bert").median_s == pytest.approx(DEFAULT_RESTART_S)


def test_a_figure_with_a_large_error_says_little_but_bounds():
    costs = RestartCosts()
    learn(costs, 400.0, std_s=1000.0)
    assert costs.predict("ann", "bert").median_s == pytest.approx(DEFAULT_RESTART_S, rel=0.3)
    costs = RestartCosts()
    learn(costs, -5.0, 10, std_s=10.0)  # shorter than the error
    assert costs.predict("ann", "bert").median_s < 15
    assert costs.predict("ann", "bert").low_s > 0


def test_a_restart_that_hung_is_an_outlier():
    costs = RestartCosts()
    learn(costs, 40.0, 8)
    learn(costs, 3600.0)
    assert costs.predict("ann", "bert").median_s == pytest.approx(40, rel=0.15)


def test_intervals_cover_what_they_claim():
    rng = random.Random(5)
    costs = RestartCosts()
    hits = []
    factor = {each: rng.gauss(0, 0.4) + rng.gauss(0, 0.5) for each in itertools.product("abcde", "uvwx")}
    for number in range(400):
        application, user = rng.choice("abcde"), rng.choice("uvwx")
        true_s = DEFAULT_RESTART_S * math.exp(factor[application, user] + rng.gauss(0, 0.2))
        if number > 50:
            found = costs.predict(user, application)
            hits.append(found.low_s <= true_s <= found.high_s)
        learn(costs, true_s + rng.gauss(0, 3.0), user=user, application=application, std_s=3.0)
    assert 0.74 < np.mean(hits) < 0.95


def test_the_order_of_learning_does_not_matter_and_dropped_groups_leave_nothing():
    figures = [("ann", "bert", 40.0), ("bob", "bert", 90.0), ("ann", "gnmt", 10.0), ("eve", "ncf", 200.0)]
    found = []
    for order in itertools.permutations(figures):
        costs = RestartCosts()
        for user, application, restart_s in order:
            learn(costs, restart_s, user=user, application=application)
        found.append(costs.predict("bob", "gnmt").median_s)
    assert found == pytest.approx([found[0]] * len(found))
    costs, small = RestartCosts(), RestartCosts(limit=2)
    for number, (user, application, restart_s) in enumerate(figures):
        learn(small, restart_s, user=user, application=application)
        if number >= 2:
            learn(costs, restart_s, user=user, application=application)
    assert len(small) == 2
    for user, application in itertools.product(("ann", "bob", "eve"), ("bert", "gnmt", "ncf")):
        assert small.predict(user, application) == pytest.approx(costs.predict(user, application))
    small.clear()
    assert small.predict("ann", "bert") == RestartCosts().predict("ann", "bert")


def test_exact_values_of_one_group_are_those_of_a_direct_sum():
    costs = RestartCosts()
    learn(costs, 60.0, 2)
    grid = np.linspace(-5, 5, 201)
    variance = 1.0**2 + 0.7**2 + 0.4**2
    expected_s = DEFAULT_RESTART_S * np.exp(grid)
    scale = np.hypot(1.0, 0.2 * expected_s)
    student = (1 + ((60.0 - expected_s) / scale) ** 2 / 4) ** -2.5 / scale
    weights = np.exp(-0.5 * grid**2 / variance) * student**2
    mean = (weights * grid).sum() / weights.sum()
    assert math.log(costs.predict("ann", "bert").median_s / DEFAULT_RESTART_S) == pytest.approx(mean, abs=0.02)


def test_what_attempts_took_beyond_the_work_is_the_restarts():
    # 100 s of work at speed 1, then at 0.5: 40 + 5 lost; (100 - 40) / 0.5 + 30 s of restart.
    runs = [AttemptRun(45.0, 1.0), AttemptRun(150.0, 0.5)]
    found = observed_restart(runs, 100.0, 0.1, lost_s=5.0)
    assert found == pytest.approx((30.0, 0.1 * 100 / 0.5))
    # Two stops: a third attempt with the same cost.
    runs = [AttemptRun(40.0, 1.0), AttemptRun(30.0 + 20.0, 1.0), AttemptRun(30.0 + 40.0, 1.0)]
    assert observed_restart(runs, 100.0, 0.0) == pytest.approx((30.0, 0.0))
    assert observed_restart([AttemptRun(100.0, 1.0)], 100.0, 0.0) is None
    # An attempt that was stopped before it had done anything loses no more than it had.
    assert observed_restart([AttemptRun(2.0, 1.0), AttemptRun(130.0, 1.0)], 100.0, 0.0, lost_s=60.0) == (30.0, 0.0)


@pytest.mark.parametrize(
    "figures", [(math.nan, 1.0, None), (1.0, -1.0, None), (1.0, math.inf, None), (1.0, 1.0, 0.0), (1.0, 1.0, math.inf)]
)
def test_impossible_figures_are_refused_before_anything_changes(figures):
    costs = RestartCosts()
    with pytest.raises(ValueError, match="restart time"):
        costs.learn(ObservedRestart("ann", "bert", *figures))
    assert len(costs) == 0
