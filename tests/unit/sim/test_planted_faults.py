"""Faults planted in the physics of the simulator: the comparison with the oracle finds each.

A fault is a passage of a module, and what replaces it. The passage must be there once: who changes it renews it here.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

KERNEL, MACHINES, GANGS = "adlro.sim.kernel", "adlro.state.machines", "adlro.state.gangs"
COURSE, TABLE = "adlro.sim.course", "adlro.state.candidate_table"

FAULTS: dict[str, tuple[str, str, str]] = {
    "a gang is as slow as the GPU whose speed changed": (
        MACHINES,
        "after = min(after, speed if member == gpu else machines.gpu_speed[n, member])",
        "after = min(after, speed)",
    ),
    "a gang starts at the speed of its last GPU": (
        MACHINES,
        "speed = min(speed, machines.gpu_speed[n, gpus[size]])",
        "speed = machines.gpu_speed[n, gpus[size]]",
    ),
    "a lost GPU frees only the members from it on": (
        MACHINES,
        "if member != gpu and machines.gpu_gang[n, member] > 0",
        "if member > gpu and machines.gpu_gang[n, member] > 0",
    ),
    "memory is not given back": (
        MACHINES,
        "give_back(machines.cores_free, machines.memory_free_mib, n, node, cores, memory_mib)",
        "give_back(machines.cores_free, machines.memory_free_mib, n, node, cores, 0)",
    ),
    "a rounding error moves an end": (
        MACHINES,
        "    if before == after:\n        return\n    time_s",
        "    time_s",
    ),
    "to be spread costs nothing": (
        KERNEL,
        "        duration_s /= jobs.spread_speed[number, job, model]\n",
        "",
    ),
    "whatever is on several nodes is spread": (
        KERNEL,
        "    if nodes > packed:",
        "    if nodes > 1:",
    ),
    "cores and memory are checked once for each node": (
        KERNEL,
        "on_node * jobs.cores[number, job],",
        "jobs.cores[number, job],",
    ),
    "more nodes than a job accepts": (
        KERNEL,
        " or 0 < jobs.max_nodes[number, job] < nodes:",
        ":",
    ),
    "a gang of two models": (
        KERNEL,
        "            or hardware.gpu_model[n, gpu] != model\n",
        "",
    ),
    "a user's GPU time counts a gang once": (
        KERNEL,
        "        held_s *= machines.gpu_gang[n, gpu]\n",
        "        pass\n",
    ),
    "what fits on the gang's other nodes when it ends is not seen": (
        KERNEL,
        "end_node = max(end_node, _last_node(hardware, course, n) + 1)",
        "end_node = max(end_node, hardware.gpu_node[n, gpu] + 1)",
    ),
    "a change of speed ends a hold": (
        KERNEL,
        "if (speed == 0.0) != (machines.gpu_speed[n, gpu] == 0.0):",
        "if speed != machines.gpu_speed[n, gpu]:",
    ),
    "a reservation outlives the start of its job": (
        KERNEL,
        "    if course.reserved_job[n] == job:\n        course.reserved_job[n] = -1\n",
        "",
    ),
    "a list begins with the gangs of the one before": (
        KERNEL,
        "        machines.gpu_gang[n, gpu] = 0\n",
        "",
    ),
    "a lost job waits at the end of the queue": (
        COURSE,
        "    place = place_in_order(queue, length, job)\n",
        "    place = length\n",
    ),
    "the last node of a packed set is the emptiest": (
        GANGS,
        "and (best < 0 or gives[i] < gives[best])",
        "and (best < 0 or gives[i] > gives[best])",
    ),
    "spread sets never take the emptiest nodes": (
        GANGS,
        "used = _in_order(gives, count, gpu_count, True, taken)",
        "used = _in_order(gives, count, gpu_count, False, taken)",
    ),
    "packed nodes are counted without cores": (
        GANGS,
        "able = most_given(able, cores, memory_mib, hardware",
        "able = most_given(able, 0, memory_mib, hardware",
    ),
    "nobody is asked where a job fits only spread": (
        GANGS,
        "can_give(gives, count, gpu_count, max_nodes if spread_speed > 0.0 else packed)",
        "can_give(gives, count, gpu_count, packed)",
    ),
    "a set takes GPUs that are too small": (
        TABLE,
        "if gpu_idle[gpu] and gpu_model[gpu] == model and duration_s < np.inf:",
        "if gpu_idle[gpu] and gpu_model[gpu] == model:",
    ),
}

ROOT = Path(__file__).parents[3]


def compare(*planted: str) -> str:
    """The first difference that the comparison finds."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.sim.planted", *planted],
        cwd=ROOT,
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
def test_without_a_fault_there_is_no_difference():
    assert compare() == ""


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault):
    assert compare(*FAULTS[fault]) != ""
