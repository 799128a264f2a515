"""A policy of one's own in the suite as users start it: it acts, survives a broken file, and is refused at a start."""

from __future__ import annotations

from pathlib import Path

import pytest

from adlro.client import Client
from adlro.kit.testing import ROOT
from adlro.records.decisions import DecisionBasis
from adlro.records.jobs import JobSpec, JobState, JobType, SimulatedWork
from tests.e2e.running_suite import adlro, start_suite

EXAMPLE = (ROOT / "examples" / "own_policy.py").read_text()

pytestmark = pytest.mark.slow


def decided(client: Client) -> tuple[str, DecisionBasis | None]:
    """The policy and the basis of a job's decision; the job ends."""
    job = client.submit(JobSpec("one", "ada", JobType.SIMULATION, simulated_work=SimulatedWork(1.0)))
    (done,) = client.wait([job.job_id], timeout_s=60)
    assert done.state is JobState.SUCCEEDED
    decision = client.explain(job.job_id)
    return decision.policy, decision.basis


def test_it_acts_and_goes_on_by_the_fallback_when_its_file_breaks(tmp_path: Path) -> None:
    mine, data, line = tmp_path / "mine.py", tmp_path / "data", len(EXAMPLE.splitlines()) + 1
    mine.write_text(EXAMPLE)
    options = ["--port", "0", "--no-page", "--clock", "virtual"]
    running = start_suite(data, *options, "--policy-file", f"{mine}:SmallFirst", "--policy", "small_first")
    try:
        with Client(running.server) as client:
            assert decided(client) == ("small_first", DecisionBasis.POLICY)
            (offered,) = (each for each in client.policies() if each.name == "small_first")
            assert (offered.acting, offered.source) == (True, f"{mine}:SmallFirst")
        assert "small_first" in adlro("policy", server=running.server).stdout
    finally:
        assert running.end() == 0, running.text

    mine.write_text(EXAMPLE + "retrun 1\n")
    refused = adlro("up", "--data-dir", str(data), *options, "--policy-file", f"{mine}:SmallFirst")
    assert refused.returncode == 2
    assert f"mine.py, line {line}: SyntaxError" in refused.stderr.replace("\n", "")
    assert refused.stderr.startswith("error: --policy-file: ")
    assert not (data / "up.json").exists()

    # As a service manager starts it: by the setting, which `adlro up` leaves to the orchestrator.
    running = start_suite(data, *options, ADLRO_ORCHESTRATOR_POLICY_FILE=f"{mine}:SmallFirst")
    try:
        with Client(running.server) as client:
            assert decided(client) == ("small_first", DecisionBasis.MISSING)
            status = client.status()
            assert "small_first is not used" in status.policy_problem
            assert f"mine.py, line {line}: SyntaxError" in status.policy_problem
        shown = adlro("status", server=running.server).stdout
        assert "small_first (missing: hold_gang decides)" in shown
        assert adlro("policy", "fcfs", server=running.server).returncode == 0
        with Client(running.server) as client:
            assert decided(client) == ("fcfs", DecisionBasis.POLICY)
    finally:
        assert running.end() == 0, running.text
