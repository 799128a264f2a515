"""`adlro learn` with a running suite: from its finished jobs to a candidate in the shadow, in service, and back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from adlro.cli.replaying import ReplayOptions, ReplayResult, replay, replay_specs
from adlro.client import AsyncClient, Client
from adlro.kit.promotion import promoted
from adlro.workload.demand import split_placeable
from adlro.workload.job_lists import draw_jobs
from adlro.workload.scenario import load_scenario
from tests.e2e.running_suite import RunningSuite, adlro, adlro_json, start_suite

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

JOBS = 860


def version(suite: RunningSuite) -> str:
    with Client(suite.server, patience_s=30.0) as client:
        return next(each.version for each in client.policies() if each.name == "dqn")


def test_a_suite_learns_from_what_it_ran_and_can_take_it_back(tmp_path: Path) -> None:
    suite = start_suite(tmp_path / "data", "--port", "0", "--no-page")
    try:
        drawn = draw_jobs(load_scenario("gangs"), load=0.9, count=JOBS + 60, rng=np.random.default_rng(4))
        jobs = split_placeable(load_scenario("paper").cluster, drawn)[:JOBS]

        async def run() -> ReplayResult:
            async with AsyncClient(suite.server, patience_s=30.0) as client:
                return await replay(client, replay_specs(jobs), ReplayOptions(policy="dqn"))

        assert len(asyncio.run(run()).jobs) == JOBS
        shipped = version(suite)
        asked = ("--worlds", "2", "--epochs", "1", "--judged-share", "0.48", "--nice", "0")
        learned = adlro("learn", *asked, "-o", "json", server=suite.server, timeout_s=600.0)
        assert learned.returncode in (0, 4), learned.stderr
        folder = suite.data_dir / "learn"
        assert {each.name for each in folder.iterdir()} >= {"candidate.onnx", "verdict.json", "gangs"}
        assert version(suite) == shipped  # nothing has changed

        adlro_json("policy", "--shadow", "dqn_candidate", server=suite.server)
        with Client(suite.server, patience_s=30.0) as client:
            offered = {each.name: each for each in client.policies()}
        candidate = offered["dqn_candidate"].version
        assert offered["dqn_candidate"].shadow
        assert candidate not in ("", shipped)

        done = adlro_json("policy", "promote", str(folder), "--force", server=suite.server)
        assert (done["version"], done["previous_version"]) == (candidate, shipped)
        assert version(suite) == candidate
        assert adlro("policy", "promote", str(folder), "--force", server=suite.server).returncode == 1
        (tmp_path / "junk.onnx").write_text("no network")
        refused = adlro("policy", "promote", str(tmp_path / "junk.onnx"), server=suite.server)
        assert refused.returncode == 1
        assert "Nothing has changed" in refused.stderr
        assert [each.version for each in promoted(suite.data_dir / "checkpoints")] == [candidate]
        assert version(suite) == candidate

        back = adlro_json("policy", "rollback", server=suite.server)
        assert (back["version"], back["previous_version"]) == (shipped, candidate)
    finally:
        code = suite.end()
    assert code == 0, suite.text

    # A promotion outlives the suite's end.
    adlro("policy", "promote", str(folder), "--force", "--folder", str(suite.data_dir / "checkpoints"))
    again = start_suite(tmp_path / "data", "--port", "0", "--no-page")
    try:
        assert version(again) == candidate
    finally:
        assert again.end() == 0, again.text
