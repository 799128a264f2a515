"""The generator finds what is stale, says one line, and writes nothing when it only checks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_the_committed_code_is_fresh_and_one_line_says_so() -> None:
    # protoc's plugins lie beside this Python.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    ended = subprocess.run(
        [sys.executable, "tools/generate_protos.py", "--check"],
        cwd=ROOT,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    assert len(ended.stdout.splitlines()) == 1
    assert ended.stdout.startswith("generated code is up to date")
