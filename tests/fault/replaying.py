"""A replay through a running suite while something is done to the suite, and all that was seen of it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adlro.client import AsyncClient
from adlro.client.health import wait_until_serving
from adlro.kit.testing import ROOT
from adlro.records.cluster import Cluster
from adlro.records.jobs import Job
from tests.e2e.records import check_placements
from tests.e2e.running_suite import ADLRO, RunningSuite, adlro_json, environment, wait_until
from tests.fault import verdict
from tests.fault.followers import ClusterFollower, JobFollower

# Only what hangs takes so long: beside other tests, on a busy machine, a replay takes several times its own time.
TIMEOUT_S = 300.0
BACK_S = 60.0

Disturb = Callable[[JobFollower], Awaitable[None]]


@dataclass(frozen=True)
class Replayed:
    """A replay that ended, and its witnesses.

    Attributes:
        report: what the command said.
        rows: `adlro queue --all -o json` of its jobs, in the order of submission.
        jobs: the follower's last word on each.
    """

    report: Mapping[str, Any]
    rows: list[Mapping[str, Any]]
    jobs: dict[str, Job]
    watched: JobFollower
    cluster_log: ClusterFollower
    cluster: Cluster


async def replay(suite: RunningSuite, trace: Path, count: int, disturb: Disturb) -> Replayed:
    """Runs `adlro replay` to its end, which must be a good one, with `disturb` beside it."""
    server = suite.server
    async with JobFollower(server) as watched, ClusterFollower(suite.status["addresses"]["simcluster"]) as cluster_log:
        process = await asyncio.create_subprocess_exec(
            *ADLRO, "replay", str(trace), "--jobs", str(count), "--server", server, "--patience", "60", "-o", "json",
            cwd=ROOT,
            env=environment(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        ending = asyncio.create_task(process.communicate())
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await disturb(watched)
                stdout, stderr = await ending
        except BaseException:
            if process.returncode is None:
                process.kill()
            _, stderr = await ending
            print(stderr.decode(), suite.text, *suite.error_lines(), sep="\n")  # noqa: T201  # for whoever reads the failure
            raise
        assert process.returncode == 0, f"{stderr.decode()}\n{suite.text}"
        report = json.loads(stdout)
        for address in suite.status["addresses"].values():
            await wait_until_serving(address, BACK_S)
        label = f"adlro-replay={report['replay_id']}"
        rows = (await asyncio.to_thread(adlro_json, "queue", "--all", "--label", label, server=server))["jobs"]
        newest = max(row["revision"] for row in rows)
        await watched.until(lambda: watched.revision >= newest, f"revision {newest}")
        await cluster_log.catch_up()
        await verdict.check_views(server, watched, rows)
        async with AsyncClient(server) as client:
            cluster = await client.cluster()
    return Replayed(report, rows, watched.latest, watched, cluster_log, cluster)


def check(done: Replayed, count: int) -> None:
    """Nothing is lost, doubled, skipped or in two minds, whatever was killed."""
    assert len(done.rows) == len(done.jobs) == count
    assert [row["job_id"] for row in done.rows] == list(done.jobs)
    several = sum(job.attempt_count > 1 for job in done.jobs.values())
    assert done.report["jobs"] == {
        "total": count, "succeeded": count, "failed": 0, "cancelled": 0, "several_attempts": several, "stops": 0,
    }  # fmt: skip
    verdict.check_changes(done.watched)
    verdict.check_attempts(done.jobs.values())
    verdict.check_cluster_log(done.cluster_log, done.jobs)
    check_placements(list(done.jobs.values()), done.cluster)


def kill(suite: RunningSuite, name: str) -> int:
    """`kill -9` of one of a suite's processes; its pid."""
    pid = suite.pids[name]
    os.kill(pid, signal.SIGKILL)
    return pid


async def wait_until_back(suite: RunningSuite, name: str, killed_pid: int, times: int = 1) -> None:
    """Returns when `adlro up` has said so many times that it is back, as another process."""

    def is_back() -> bool:
        return suite.text.count(f"{name} is back") >= times and suite.pids[name] not in (None, killed_pid)

    await asyncio.to_thread(wait_until, is_back, BACK_S, f"{name} to be back in:\n{suite.text}")
