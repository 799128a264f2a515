"""The supervisor is small, and needs nothing that is installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from adlro.attempt.attempts import supervisor_command
from tests.unit.attempt.node import Node, until

MOST_PSS_MIB = 12.0


def imported(*command: str) -> tuple[set[str], str]:
    """The modules that a program imports, and all that it writes to stderr."""
    python, *rest = command
    told = subprocess.run([python, "-X", "importtime", *rest], capture_output=True, text=True, check=False).stderr
    return {line.rpartition("|")[2].strip() for line in told.splitlines() if line.startswith("import time:")}, told


def test_the_supervisor_imports_the_standard_library_and_its_own_modules_alone(tmp_path: Path):
    python, *flags, start = supervisor_command()
    assert flags == ["-I", "-S"]
    modules, told = imported(python, *flags, start, "/no/such/attempt")
    fails = tmp_path / "fails.py"
    fails.write_text("raise FileNotFoundError")
    for_an_error, _ = imported(python, *flags, str(fails))  # from Python 3.13 on these are many
    ours = {name.removeprefix("adlro.attempt.") for name in modules if name.partition(".")[0] == "adlro"}
    assert ours == {
        *("adlro", "adlro.attempt"),
        *("cgroup", "given", "journal", "linux", "log_files", "program", "supervisor", "tree"),
    }
    others = {name.partition(".")[0] for name in modules} - {"adlro", "imported package"}
    assert others <= sys.stdlib_module_names | {"encodings"}
    assert "FileNotFoundError" in told, "it has come as far as its folder"
    large = {"asyncio", "dataclasses", "pathlib", "subprocess", "threading", "traceback", "typing"}
    assert not large & (modules - for_an_error), "each costs every attempt time and memory"


def test_a_new_keyring_holds_no_key_of_the_one_before():
    asks = (
        "import ctypes, platform, sys\n"
        f"sys.path.append({str(Path(__file__).parents[3])!r})\n"
        "from adlro.attempt.linux import new_keyring\n"
        "libc = ctypes.CDLL(None)\n"
        "add, keyctl = {'x86_64': (248, 250), 'aarch64': (217, 219)}[platform.machine()]\n"
        "def found(): return libc.syscall(keyctl, 10, -3, b'user', b'adlro', 0) >= 0\n"
        "new_keyring()\n"
        "if libc.syscall(add, b'user', b'adlro', b'hush', 4, -3) < 0: sys.exit('refused')\n"
        "before = found()\n"
        "new_keyring()\n"
        "print(before, found())\n"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", asks], capture_output=True, text=True, check=False)
    if "refused" in done.stderr:
        pytest.skip("this machine lets us have no keys")
    assert done.stdout == "True False\n", done.stderr


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
