"""What an arm of the ablation leaves out, and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from adlro.decide.planes.fill import PlaneFiller
from adlro.decide.planes.table import CLUSTER_PLANES, GPU_PLANES, GROUPS, JOB_PLANES, PAIR_PLANES
from adlro.decide.policies.hold_greedy import FIXED
from adlro.lab.learn.dataset import Chunk
from benchmarks.ablation import ARMS
from tests.unit.decide.decision_points import drawn

TABLES = {"gpus": GPU_PLANES, "jobs": JOB_PLANES, "pairs": PAIR_PLANES, "cluster": CLUSTER_PLANES}


@pytest.mark.parametrize("name", GROUPS)
def test_an_arm_sees_all_but_its_group(name):
    planes = PlaneFiller(FIXED.rule()).fill(drawn(np.random.default_rng(3), 9))
    before = {table: getattr(planes, table).copy() for table in TABLES}
    blind = ARMS[name].blind(planes)
    left_out = 0
    for table, rows in TABLES.items():
        axis = 1 if table == "gpus" else -1
        own = np.moveaxis(getattr(blind, table), axis, -1)
        others = np.moveaxis(before[table], axis, -1)
        np.testing.assert_array_equal(getattr(planes, table), before[table])
        for number, plane in enumerate(rows):
            if plane.group == name and plane.name != "present":
                assert not own[..., number].any(), plane.name
                left_out += 1
            else:
                np.testing.assert_array_equal(own[..., number], others[..., number], err_msg=plane.name)
    assert left_out


def test_states_to_learn_from_are_blinded_alike():
    # Chunks of states are as long as the states that they hold.
    others: dict[str, Any] = dict.fromkeys(Chunk._fields[len(TABLES) :], np.arange(3))
    chunk = Chunk(
        np.ones((3, len(GPU_PLANES), 2, 2), dtype=np.float16),
        np.ones((3, 4, len(JOB_PLANES)), dtype=np.float16),
        np.ones((3, len(CLUSTER_PLANES)), dtype=np.float16),
        np.ones((5, len(PAIR_PLANES)), dtype=np.float16),
        **others,
    )
    blind = ARMS["waiting"].blind(chunk)
    assert isinstance(blind, Chunk)
    assert len(blind) == 3
    of_waiting = [plane.group == "waiting" for plane in JOB_PLANES]
    np.testing.assert_array_equal(blind.jobs[0, 0], np.where(of_waiting, 0, 1))
    assert blind.gain is chunk.gain


def test_arms_are_of_groups_that_there_are():
    assert set(GROUPS) <= set(ARMS)
    assert set(ARMS["estimates"].groups) <= set(GROUPS)
    assert not ARMS["cnn"].convolutions
