"""The drawn instances hold what they are for: each kind of thing occurs in some hundred of them."""

from __future__ import annotations

from tests.oracle.cluster import Oracle
from tests.oracle.instances import draw_instance
from tests.oracle.records import NOBODY
from tests.oracle.rules import HoldGang, at_random, easy_backfill, lets_nothing_wait_for_ever


def test_gangs_are_packed_spread_on_several_nodes_lost_and_never_held():
    seen: set[object] = set()
    for seed in range(300):
        oracle = Oracle(draw_instance(seed))
        outcome = oracle.run(at_random(seed))
        for decision in outcome.decisions:
            for each in decision.fitting:
                nodes = len({oracle.gpus[gpu].node for gpu in each.gpus})
                seen.add((each.spread, min(nodes, 3), len(each.gpus) > 1))
        seen |= {run.end for run in outcome.runs if len(run.gpus) > 1}
        seen |= {"impossible"} if oracle.impossible else set()
    assert seen >= {(False, 1, False), (False, 1, True), (False, 2, True), (True, 2, True), (True, 3, True)}
    assert seen >= {"completed", "lost", "impossible"}


def test_rules_hold_and_reserve():
    for rule in (easy_backfill, HoldGang(rho=0.5)):
        held = reserved = 0
        for seed in range(150):
            for decision in Oracle(draw_instance(seed)).run(lets_nothing_wait_for_ever(rule)).decisions:
                held += decision.choice.job == NOBODY
                reserved += decision.choice.reserve >= 0
        assert held > 20
        assert reserved > 20
