"""Faults planted in the physics of the simulator: the comparison with the oracle finds each.

A fault is a passage of a module, and what replaces it. The passage must be there once: who changes it renews it here.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

KERNEL, FITS, STARTS = "adlro.sim.kernel", "adlro.sim.fits", "adlro.sim.starts"
COURSE, MACHINES, GANGS = "adlro.sim.course", "adlro.state.machines", "adlro.state.gangs"
POINTS, TABLE = "adlro.sim.decision_points", "adlro.state.candidate_table"

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
        "        member = member + 1 if member + 1 < count else 0\n",
        "        member += 1\n        if member == count:\n            break\n",
    ),
    "memory is not given back": (
        MACHINES,
        "cores, memory_mib = machines.gpu_cores[n, gpu], machines.gpu_memory_mib[n, gpu]",
        "cores, memory_mib = machines.gpu_cores[n, gpu], 0",
    ),
    "a rounding error moves an end": (
        MACHINES,
        "    if before == after:\n        return\n    time_s",
        "    time_s",
    ),
    "a gang's end moves, and its nodes do not know": (
        MACHINES,
        "            _find_node_end(hardware, machines, n, hardware.gpu_node[n, member])\n",
        "",
    ),
    "GPUs of a node with several kinds are all alike": (
        "adlro.state.cluster_arrays",
        "if len({(item.gpu_model, item.memory_mib) for item in node.gpus}) == 1:",
        "if node.gpus:",
    ),
    "a freed node counts only for sets of its first model": (
        FITS,
        "for other in range(course.job_nodes.shape[2]):",
        "for other in range(1):",
    ),
    "to be spread costs nothing": (
        STARTS,
        "            full_s /= jobs.spread_speed[number, job, model]\n",
        "",
    ),
    "whatever is on several nodes is spread": (
        STARTS,
        "if nodes > packed:",
        "if nodes > 1:",
    ),
    "cores and memory are checked once for each node": (
        STARTS,
        "on_node * jobs.cores[number, job],",
        "jobs.cores[number, job],",
    ),
    "more nodes than a job accepts": (
        STARTS,
        " or 0 < jobs.max_nodes[number, job] < nodes:",
        ":",
    ),
    "a gang of two models": (
        STARTS,
        "            or hardware.gpu_model[n, gpu] != hardware.gpu_model[n, gpus[0]]\n",
        "",
    ),
    "a user's GPU time counts a gang once": (
        STARTS,
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
        STARTS,
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

FAULTS_OF_STOPS: dict[str, tuple[str, str, str]] = {
    "whoever restores is stopped": (
        MACHINES,
        "return bool(machines.time_s[n] >= machines.gpu_work_from_s[n, gpu])",
        "return True",
    ),
    "a change of speed does not move the end of a restart": (
        MACHINES,
        "            machines.gpu_work_from_s[n, gpu] = _moved_s(work_from_s, time_s, before, after)\n",
        "            pass\n",
    ),
    "nor that of a gang": (
        MACHINES,
        "            machines.gpu_work_from_s[n, member] = work_from_s\n",
        "",
    ),
    "a restart costs nothing": (
        MACHINES,
        "    cost_s = start_cost_s + restart_s\n    end_s = machines.time_s[n] + (cost_s + share * full_s / speed)",
        "    cost_s = start_cost_s\n    end_s = machines.time_s[n] + (cost_s + share * full_s / speed)",
    ),
    "a gang's progress counts at the speed of one GPU": (
        MACHINES,
        "speed = min(speed, machines.gpu_speed[n, member])\n    return",
        "speed = speed\n    return",
    ),
    "a stop loses nothing": (
        MACHINES,
        "(left_s + lost_s) / full_s",
        "left_s / full_s",
    ),
    "a stop loses more than the attempt has done": (
        MACHINES,
        "float(min(share, (left_s + lost_s) / full_s))",
        "float(min(1.0, (left_s + lost_s) / full_s))",
    ),
    "what is left is a share of the packed duration": (
        STARTS,
        "    _note_start(machines, course, n, job, full_s)\n    for",
        "    _note_start(machines, course, n, job, jobs.duration_s[number, job, model])\n    for",
    ),
    "a job that can't be stopped is": (
        STARTS,
        "jobs.preemptible[course.list_of[n], machines.gpu_job[n, gpu]]\n        and works",
        "works",
    ),
    "a victim's other GPUs on the node keep their cores": (
        STARTS,
        "if machines.gpu_job[n, gpus[i]] == machines.gpu_job[n, gpu]:",
        "if gpus[i] == gpu:",
    ),
    "the first is stopped though the next can't be": (
        STARTS,
        "(machines.gpu_job[n, gpu] != IDLE and not (stops and _may_stop(machines, jobs, course, n, gpu)))",
        "(machines.gpu_job[n, gpu] != IDLE and not (stops and (i > 0 or _may_stop(machines, jobs, course, n, gpu))))",
    ),
    "what was stopped counts for nobody's GPU time": (
        STARTS,
        "    course.job_attained_s[n, job] += held_s\n    vacate(hardware, machines, n, gpu)\n    join_queue",
        "    vacate(hardware, machines, n, gpu)\n    join_queue",
    ),
    "a lost job starts from the beginning": (
        STARTS,
        "    if has_stops(course):\n        course.job_attained_s[n, job] += held_s\n",
        "    if has_stops(course):\n        course.job_share[n, job] = 1.0\n",
    ),
    "nobody is asked where nothing fits": (
        FITS,
        "if has_stops(course) and (asks & ASKS_STOPS) != 0:",
        "if False:",
    ),
    "a list begins with what was left of the one before": (
        KERNEL,
        "        course.job_share[n, job] = 1.0\n",
        "",
    ),
    "the scheduler does not know of restarts": (
        COURSE,
        "        return float(jobs.restart_s[course.list_of[n], job])\n",
        "        return 0.0\n",
    ),
    "a spread set takes as long as if the job were whole": (
        TABLE,
        "                    if job_share.shape[0] > 0:\n",
        "                    if job_share.shape[0] > 0 and spread == 0:\n",
    ),
    "whoever was never stopped has a restart": (
        POINTS,
        "np.where(stopped, jobs.restart_s[number, row], 0.0)",
        "jobs.restart_s[number, row]",
    ),
}

FAULTS_OF_SHARES: dict[str, tuple[str, str, str]] = {
    "who is left alone stays slow": (
        MACHINES,
        "    _keep(machines, n, gpu, 1.0, 1.0)\n",
        "",
    ),
    "who comes makes the first no slower": (
        MACHINES,
        "    _keep(machines, n, gpu, first_kept, first_told)\n",
        "",
    ),
    "a change of speed moves only the first of two": (
        MACHINES,
        "            _hasten(machines, n, gpu, before * kept, speed * kept)\n",
        "",
    ),
    "what is expected moves by what is true": (
        MACHINES,
        "_moved_s(end_s, time_s, told_before, told)",
        "_moved_s(end_s, time_s, machines.gpu_kept[n, gpu], kept)",
    ),
    "the second's end is overlooked": (
        MACHINES,
        "            end_s = min(end_s, machines.mate_end_s[n, gpu])\n    machines.node",
        "            pass\n    machines.node",
    ),
    "progress at a stop counts at the GPU's speed": (
        MACHINES,
        "        speed *= machines.gpu_kept[n, gpu]\n",
        "        pass\n",
    ),
    "the cores of the one that stays are given back": (
        MACHINES,
        "    cores, memory_mib = machines.mate_cores[n, gpu], machines.mate_memory_mib[n, gpu]\n    give_back",
        "    cores, memory_mib = machines.gpu_cores[n, gpu], machines.gpu_memory_mib[n, gpu]\n    give_back",
    ),
    "each keeps the other's share": (
        STARTS,
        "kept, first_kept = course.kept[family, first_family, model], course.kept[first_family, family, model]",
        "first_kept, kept = course.kept[family, first_family, model], course.kept[first_family, family, model]",
    ),
    "GPU memory is checked for one of two": (
        STARTS,
        "jobs.gpu_memory_mib[number, job] + jobs.gpu_memory_mib[number, first] <=",
        "jobs.gpu_memory_mib[number, job] <=",
    ),
    "who does not share gets a mate": (
        STARTS,
        "        and jobs.shareable[number, first]\n",
        "",
    ),
    "three on a GPU": (
        STARTS,
        " or machines.mate_job[n, gpu] != IDLE:\n        return False\n    first",
        ":\n        return False\n    first",
    ),
    "two are stopped where one allows it": (
        STARTS,
        "        if not may:\n            return False\n",
        "",
    ),
    "a stop leaves the second its cores": (
        STARTS,
        "                cores += machines.mate_cores[n, gpus[i]]\n",
        "",
    ),
    "a lost GPU ends the first of two": (
        KERNEL,
        "while not ends and machines.gpu_job[n, gpu] != IDLE:",
        "if not ends and machines.gpu_job[n, gpu] != IDLE:",
    ),
    "a list begins with the mates of the one before": (
        KERNEL,
        "        machines.mate_job[n, gpu] = IDLE\n",
        "",
    ),
    "a shared GPU is idle when the first has ended": (
        "adlro.state.scene",
        "                seen.gpu_remaining_s[a, gpu] = max(seen.gpu_remaining_s[a, gpu], left_s)\n",
        "",
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
@pytest.mark.parametrize("what", ["gangs", "stops", "shares"])
def test_without_a_fault_there_is_no_difference(what):
    assert compare(what) == ""


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault):
    assert compare("gangs", *FAULTS[fault]) != ""


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS_OF_STOPS)
def test_a_planted_fault_of_stops_is_found(fault):
    assert compare("stops", *FAULTS_OF_STOPS[fault]) != ""


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS_OF_SHARES)
def test_a_planted_fault_of_shares_is_found(fault):
    assert compare("shares", *FAULTS_OF_SHARES[fault]) != ""
