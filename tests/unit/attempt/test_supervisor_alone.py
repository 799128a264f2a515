"""The supervisor is small, and needs nothing that is installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from adlro.attempt.attempts import supervisor_command
from tests.unit.attempt.node import Node, until

MOST_PSS_MIB = 12.0


def test_the_supervisor_imports_the_standard_library_and_its_own_modules_alone():
    python, *flags, start = supervisor_command()
    assert flags == ["-I", "-S"]
    told = subprocess.run(
        [python, *flags, "-X", "importtime", start, "/no/such/attempt"], capture_output=True, text=True, check=False
    ).stderr
    modules = {line.rpartition("|")[2].strip() for line in told.splitlines() if line.startswith("import time:")}
    ours = {name.removeprefix("adlro.attempt.") for name in modules if name.partition(".")[0] == "adlro"}
    assert ours == {
        *("adlro", "adlro.attempt"),
        *("cgroup", "given", "journal", "linux", "log_files", "program", "supervisor", "tree"),
    }
    others = {name.partition(".")[0] for name in modules} - {"adlro", "imported package"}
    assert others <= sys.stdlib_module_names | {"encodings"}
    assert "FileNotFoundError" in told, "it has come as far as its folder"
    large = {"asyncio", "dataclasses", "pathlib", "subprocess", "threading", "traceback", "typing"}
    assert not large & modules, "each costs every attempt time and memory"


@pytest.mark.slow
async def test_an_idle_supervisor_is_small_and_sleeps(node: Node):
    await node.attempts.start("a.1", node.launch("sleep 60"))
    await until(lambda: node.runs() == 1)
    supervisor = node.journal().supervisor()
    assert supervisor is not None
    proc = Path(f"/proc/{supervisor[0]}")
    await until(lambda: "S (sleeping)" in (proc / "status").read_text())
    pss_kib = next(int(line.split()[1]) for line in (proc / "smaps_rollup").read_text().splitlines() if "Pss:" in line)
    assert pss_kib / 1024 < MOST_PSS_MIB
    command = (proc / "cmdline").read_bytes().split(b"\0")[:-1]
    assert command == [each.encode() for each in [*supervisor_command(), str(node.folder / "a.1")]]
    await node.attempts.stop("a.1")
    await node.ended()
