"""Rules for the oracle, from their text, and one that places or holds at random."""

from __future__ import annotations

import random

from tests.unit.sim.oracle import Rule, View

Pair = tuple[int, int]


def fcfs(view: View) -> Pair | None:
    """The head of the queue only, on the lowest-numbered GPU that fits."""
    head = view.waiting[0]
    gpus = [gpu for job, gpu in view.fitting if job == head]
    return (head, min(gpus)) if gpus else None


def fcfs_fastest(view: View) -> Pair | None:
    """The head of the queue only, on the GPU that is fastest for it; the lowest-numbered of equals."""
    head = view.waiting[0]
    gpus = [gpu for job, gpu in view.fitting if job == head]
    return (head, min(gpus, key=lambda gpu: (view.expected_s[head, gpu], gpu))) if gpus else None


def sjf(view: View) -> Pair | None:
    """The shortest pair that fits; the earlier submitted of equals, then the lower-numbered GPU."""
    return min(view.fitting, key=lambda pair: (view.expected_s[pair], *pair))


def lets_nothing_wait_for_ever(rule: Rule) -> Rule:
    """What every policy does where a hold is not allowed and it wants no pair: the first job that fits, where fastest.

    So it is when the head of the queue can only run on GPUs that are lost, and nothing runs or will be submitted.
    """

    def wanting(view: View) -> Pair | None:
        chosen = rule(view)
        if chosen is not None or view.hold_allowed:
            return chosen
        first = view.fitting[0][0]
        return min((pair for pair in view.fitting if pair[0] == first), key=lambda pair: (view.expected_s[pair], pair))

    return wanting


def at_random(seed: int, hold_share: float = 0.2) -> Rule:
    """Any fitting pair, or a hold; the same for the same pairs, decision and seed."""

    def rule(view: View) -> Pair | None:
        return choose_at_random(seed, view, hold_share)

    return rule


def choose_at_random(seed: int, view: View, hold_share: float) -> Pair | None:
    """The choice itself, so that a policy on arrays can make the same one."""
    draw = random.Random(f"{seed} {view.decision} {view.fitting}")
    # Now and then it holds where that is not allowed, and all that waits is left there.
    share = hold_share if view.hold_allowed else hold_share / 50
    return None if draw.random() < share else draw.choice(view.fitting)
