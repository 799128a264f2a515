"""What machines count by node stays what their GPUs say."""

from __future__ import annotations

import numpy as np
import pytest

from adlro.sim.batch import BatchSimulator
from adlro.state.machines import count_nodes
from adlro.state.observation import HOLD
from tests.unit.sim.test_gang_physics import draw

COUNTED = ("node_idle", "node_end_s", "gang_count", "lost_count")


@pytest.mark.parametrize("seed", range(40))
def test_counts_by_node_are_those_of_the_gpus(seed: int):
    rng = np.random.default_rng(seed)
    there, jobs, changes = draw(rng)
    made = BatchSimulator(there, jobs, gpu_changes=[changes])
    while len(made.active):
        machines = made._machines
        anew = machines._replace(**{name: np.full_like(getattr(machines, name), -7) for name in COUNTED})
        count_nodes(made._hardware, anew, 0)
        for name in COUNTED:
            np.testing.assert_array_equal(getattr(machines, name), getattr(anew, name), err_msg=name)
        table = made.observe().table
        row = int(rng.integers(len(table.job)))
        action = np.concatenate([[table.job[row]], table.gpus[row]])[None]
        made.act(np.full_like(action, HOLD) if rng.random() < 0.2 else action)
