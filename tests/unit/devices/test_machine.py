"""The cores and the memory that this process may use."""

from __future__ import annotations

import os

import pytest

from adlro.devices.machine import find_machine
from adlro.devices.records import NumaNode
from tests.unit.devices.conftest import write_files

MEMINFO = {"proc/meminfo": "MemTotal:       16777216 kB\nMemFree:         1 kB\n"}
CPUS = frozenset(range(8))


def test_this_machine():
    machine = find_machine()
    assert 1 <= machine.cpu_cores <= (os.cpu_count() or 1)
    assert machine.memory_mib >= 64


def test_without_control_groups(tmp_path):
    write_files(tmp_path, MEMINFO)
    machine = find_machine(str(tmp_path), CPUS)
    assert (machine.cpu_cores, machine.memory_mib) == (8, 16384)


@pytest.mark.parametrize(
    ("limits", "cores", "memory_mib"),
    [
        ({"a/b/cpu.max": "250000 100000", "a/b/memory.max": str(4 << 30)}, 2, 4096),
        ({"a/cpu.max": "50000 100000", "a/b/cpu.max": "max 100000"}, 1, 16384),  # of a group above; never below one
        ({"a/b/cpu.max": "max 100000", "a/b/memory.max": "max"}, 8, 16384),
        ({"a/memory.max": str(1 << 30), "a/b/memory.max": str(2 << 30)}, 8, 1024),
    ],
)
def test_the_narrowest_limit_of_control_groups_holds(tmp_path, limits, cores, memory_mib):
    groups = {"cgroup.controllers": "cpu memory", "a/b/cgroup.procs": "", **limits}
    write_files(tmp_path, MEMINFO | {"proc/self/cgroup": "0::/a/b\n"})
    write_files(tmp_path / "sys/fs/cgroup", groups)
    machine = find_machine(str(tmp_path), CPUS)
    assert (machine.cpu_cores, machine.memory_mib) == (cores, memory_mib)


def test_control_groups_of_version_1(tmp_path):
    write_files(tmp_path, MEMINFO | {"proc/self/cgroup": "4:cpu,cpuacct:/job\n3:memory:/job\n"})
    write_files(
        tmp_path / "sys/fs/cgroup",
        {
            "cpu/job/cpu.cfs_quota_us": "300000",
            "cpu/job/cpu.cfs_period_us": "100000",
            "cpu/cpu.cfs_quota_us": "-1",
            "cpu/cpu.cfs_period_us": "100000",
            "memory/job/memory.limit_in_bytes": str(2 << 30),
            "memory/memory.limit_in_bytes": "9223372036854771712",
        },
    )
    machine = find_machine(str(tmp_path), CPUS)
    assert (machine.cpu_cores, machine.memory_mib) == (3, 2048)


def test_numa_nodes_with_the_cpus_that_may_be_used(tmp_path):
    write_files(tmp_path, MEMINFO)
    write_files(
        tmp_path / "sys/devices/system/node",
        {"node0/cpulist": "0-3,16-19\n", "node1/cpulist": "4-7,20-23\n", "node10/cpulist": "\n", "possible": "0-1"},
    )
    machine = find_machine(str(tmp_path), frozenset({0, 1, 5, 6, 20}))
    assert machine.numa_nodes == (NumaNode(0, (0, 1)), NumaNode(1, (5, 6, 20)), NumaNode(10, ()))
    assert machine.cpu_cores == 5
