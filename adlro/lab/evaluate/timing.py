"""The duration of a policy's decisions, measured as in service: one cluster's observation at a time.

One process measures after the simulations, so that no workers take its cores: over the first lists of a case, the time
of the policy's scores and choice on a given observation, as the orchestrator asks for them. The first decisions of each
list warm the caches and do not count. In a long list the measurement ends before the list: its queues are then shorter
than later ones.
"""

from __future__ import annotations

import time

import numpy as np

from adlro.lab.evaluate.tally import Tally
from adlro.lab.evaluate.tasks import Setup, simulator_for
from adlro.state.observation import Floats

LISTS = 3
BUDGET_S = 2.0
WARM_UP = 10
_THE_LIST = np.zeros(1, dtype=np.int64)


def decision_times_us(setup: Setup, policy_name: str, case_number: int) -> Floats:
    """(D,) durations of single decisions, microseconds of wall time; at least one."""
    case = setup.cases[case_number]
    times_us: list[float] = []
    ends_s = time.monotonic() + BUDGET_S
    for number in range(min(LISTS, case.lists)):
        policy = setup.policy(policy_name, case)
        arrays, tally = setup.arrays(case_number, number, number + 1), Tally(policy, 1)
        simulator = simulator_for(case, arrays, policy)
        seen = 0
        while len(simulator.active) and time.monotonic() < ends_s:
            observation = simulator.observe()
            begin_ns = time.perf_counter_ns()
            chosen = tally.act(observation, _THE_LIST)
            took_us = (time.perf_counter_ns() - begin_ns) / 1000.0
            simulator.act(*chosen)
            seen += 1
            if seen > WARM_UP or case.jobs <= WARM_UP:
                times_us.append(took_us)
    return np.array(times_us or [np.nan])
