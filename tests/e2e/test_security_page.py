"""The lines of docs/security.md, run as they stand there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from adlro.kit.testing import ROOT
from tests.e2e.running_suite import START_TIMEOUT_S, RunningSuite, _read, environment, new_mark

pytestmark = [pytest.mark.slow, pytest.mark.timeout(4 * START_TIMEOUT_S)]


def test_the_lines_that_turn_security_on_run_as_written(tmp_path: Path) -> None:
    services, client = re.findall(r"```sh\n(.*?)```", (ROOT / "docs" / "security.md").read_text(), re.DOTALL)
    # A free port and a directory of its own are all that differs.
    assert services.count("adlro up ") == 1
    services = services.replace("adlro up ", "exec adlro up --port 0 --data-dir data ")
    mark = new_mark()
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    process = subprocess.Popen(
        ["bash", "-ec", services],
        cwd=tmp_path,
        env=environment(mark, PATH=path, PYTHONPATH=str(ROOT)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    suite = RunningSuite(process, tmp_path / "data", mark)
    for stream in (process.stdout, process.stderr):
        reader = threading.Thread(target=_read, args=(stream, suite.said), daemon=True)
        reader.start()
        suite._readers.append(reader)
    try:
        suite.wait_until_said("Ready in", 3 * START_TIMEOUT_S)  # with four processes more
        asked = subprocess.run(
            ["bash", "-ec", client],
            cwd=tmp_path,
            env=environment(PATH=path, PYTHONPATH=str(ROOT), ADLRO_SERVER=suite.server),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
        assert asked.returncode == 0, asked.stderr
        assert asked.stdout.startswith("job-1\n")
        assert "ada" in asked.stdout
    finally:
        code = suite.end()
    assert code == 0, suite.text
