"""How torch's threads wait for one another: set before torch is imported, and only where nobody has set it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CODE = "import os, sys, adlro.lab.learn; print(os.environ['OMP_WAIT_POLICY'], 'torch' in sys.modules)"


@pytest.mark.parametrize(("given", "used"), [({}, "PASSIVE"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE")])
def test_they_do_not_spin_unless_that_is_asked_for(given: dict[str, str], used: str) -> None:
    others = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    ended = subprocess.run(
        [sys.executable, "-c", CODE], env=others | given, capture_output=True, text=True, check=True, timeout=60
    )
    assert ended.stdout.split() == [used, "False"]
