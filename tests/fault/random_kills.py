"""Suites whose processes are killed at random moments of replays, round after round."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from adlro.cli.replaying import ReplayResult
from tests.e2e.running_suite import RunningSuite, marked_pids, start_suite
from tests.fault import verdict
from tests.fault.followers import ClusterFollower, JobFollower
from tests.fault.replaying import kill

FAULTS = (("orchestrator",), ("simcluster",), ("orchestrator", "simcluster"), ("valkey",), ("orchestrator", "valkey"))
# After more kills than this, `adlro up` waits long before it starts a service again.
MOST_KILLS = 8
# The follower of the cluster's log begins at its first event, of which a cluster keeps 10,000.
ROUNDS_ON_DATA = 25


class Suites:
    """A suite, and another one on the same data after many kills, or on new data after many rounds.

    Args:
        folder: for the data.
        options: of `adlro up`; `settings`: environment.
    """

    def __init__(self, folder: Path, options: Sequence[str], settings: Mapping[str, str]) -> None:
        self._folder, self._options, self._settings = folder, options, settings
        self._number = 0
        self.running = self._start()

    def _start(self) -> RunningSuite:
        return start_suite(self._folder / str(self._number // ROUNDS_ON_DATA), *self._options, **self._settings)

    def end(self) -> None:
        """Ends the suite, which must have ended well."""
        assert self.running.end() == 0, self.running.text
        assert marked_pids(self.running.mark) == []

    def fresh(self) -> RunningSuite:
        """A suite that starts its services at once after a kill."""
        new = self._number // ROUNDS_ON_DATA != (self._number + 1) // ROUNDS_ON_DATA
        self._number += 1
        if new or self.running.text.count("restarting it in") > MOST_KILLS:
            self.end()
            self.running = self._start()
        return self.running


class Killing:
    """Kills processes after so many changes of jobs; `count`: how many so far."""

    def __init__(self, suite: RunningSuite, moments: Sequence[tuple[int, Sequence[str]]]) -> None:
        self.count = 0
        self._suite, self._moments = suite, moments

    @contextlib.asynccontextmanager
    async def watched(self, results: list[ReplayResult]) -> AsyncIterator[None]:
        """Kills meanwhile; at the end everything must hold of the replay in `results` that holds after any fault."""
        suite = self._suite
        async with (
            JobFollower(suite.server) as watched,
            ClusterFollower(suite.status["addresses"]["simcluster"]) as cluster_log,
        ):
            killing = asyncio.create_task(self._kill(watched))
            yield
            await killing
            (result,) = results
            newest = max(job.revision for job in result.jobs)
            await watched.until(lambda: watched.revision >= newest, f"revision {newest}")
            await cluster_log.catch_up()
            verdict.check_changes(watched)
            mine = {job.job_id: job for job in result.jobs}
            verdict.check_attempts(mine.values())
            verdict.check_cluster_log(cluster_log, mine)

    async def _kill(self, watched: JobFollower) -> None:
        killed: set[int] = set()
        begin = len(watched.changes)

        def reached(moment: int) -> bool:
            return len(watched.changes) >= begin + moment

        for moment, names in self._moments:
            await watched.until(partial(reached, moment), f"change {moment}", 300.0)
            for name in names:
                if self._suite.pids[name] not in (None, *killed):  # else it is down already
                    killed.add(kill(self._suite, name))
        self.count = len(killed)


def told_round(story: str, began_s: float, how: str) -> str:
    """A line about a round that began at a time of the monotonic clock."""
    return f"{story}; {how} after {time.monotonic() - began_s:.1f} s\n"
