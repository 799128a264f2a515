"""docs/operators_guide.md: the lines of its backup, run as they stand there; the copy has the jobs and who decides."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from adlro.kit.testing import ROOT
from tests.e2e.running_suite import START_TIMEOUT_S, adlro, adlro_json, marked_pids, start_suite

pytestmark = [pytest.mark.slow, pytest.mark.timeout(4 * START_TIMEOUT_S)]


def test_a_copy_of_a_stopped_suite_has_its_jobs_and_its_policy(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "operators_guide.md").read_text()
    (lines,) = re.findall(r"^## Backup\n.*?```sh\n(.*?)```", page, re.DOTALL | re.MULTILINE)
    copying, starting = (line.partition("#")[0].strip() for line in lines.splitlines())
    home, backup = tmp_path / "home" / ".local" / "state" / "adlro", tmp_path / "backup" / "adlro"
    backup.parent.mkdir()

    first = start_suite(home, "--port", "0", "--no-page")
    try:
        assert adlro("submit", "--type", "ml", "--runtime", "3600", server=first.server).stdout == "job-1\n"
        assert adlro("policy", "sjf", server=first.server).returncode == 0
    finally:
        assert first.end() == 0, first.text
    subprocess.run(
        ["sh", "-ec", copying.replace("/backup", str(backup.parent))],
        env={"HOME": str(tmp_path / "home"), "PATH": "/usr/bin:/bin"},
        check=True,
        timeout=60,
    )
    shutil.rmtree(home)

    words = starting.replace("/backup", str(backup.parent)).split()
    assert words[:4] == ["adlro", "up", "--data-dir", str(backup)]
    second = start_suite(backup, *words[4:], "--no-page")
    try:
        (job,) = adlro_json("queue", "--all", server=second.server)["jobs"]
        assert job["job_id"] == "job-1"
        assert adlro_json("status", server=second.server)["orchestrator"]["policy"] == "sjf"
    finally:
        assert second.end() == 0, second.text
    assert [*marked_pids(first.mark), *marked_pids(second.mark)] == []
