"""A cluster of this machine for tests: in this process, with what the store has; or as the service's process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from adlro.clusterside.attempts import Attempt
from adlro.clusterside.cluster_side import ClusterSide
from adlro.clusterside.kept import Kept
from adlro.clusterside.timers import LoopTimers
from adlro.devices.records import Machine
from adlro.errors import Conflict
from adlro.placement import Placement
from adlro.records.events import ENDS, ClusterEvent, EventKind
from adlro.records.jobs import JobSpec, JobType
from adlro.records.payloads import LogStream, Payload, process_payload
from adlro.services.local.driver import LocalDriver
from adlro.services.local.settings import LocalSettings
from tests.unit.attempt.node import plainly_marked
from tests.unit.clusterside.memory_record import kept_of

GPUS = "v100_sxm2:2"


def users_map(folder: Path, text: str = "* root\n") -> str:
    """A map where this process needs one; empty: it is not root, so it may not have one."""
    if os.geteuid() != 0:
        return ""
    path = folder / "users-map"
    path.write_text(text)
    path.chmod(0o644)
    return str(path)


def settings_of(folder: Path, **more: Any) -> LocalSettings:
    given: dict[str, Any] = {
        "data_dir": str(folder / "local"),
        "fake_gpus": GPUS,
        "driver": "tree",
        "engine": "",
        "users_map": str(folder / "users-map") if os.geteuid() == 0 else "",
    }
    return LocalSettings(**{**given, **more})


def shell(script: str, grace_s: float = 1.0, **more: Any) -> Payload:
    return process_payload(("sh", "-c", script), stop_grace_s=grace_s, **more)


def spec_of(payload: Payload | None, **more: Any) -> JobSpec:
    return JobSpec("j", "ada", JobType.MACHINE_LEARNING, memory_mib=64, payload=payload, **more)


class Bench:
    """A driver's life; `restart` begins another one, from what the store has."""

    def __init__(self, folder: Path, who: str = "* root\n", **more: Any) -> None:
        folder.chmod(0o755)  # programs of other users pass through
        self.folder = folder
        if mapped := users_map(folder, who):
            more.setdefault("users_map", mapped)
        self.settings = settings_of(folder, **more)
        self.machine = Machine(cpu_cores=8, memory_mib=65_536)
        self.make_driver: Callable[[], LocalDriver] = lambda: LocalDriver(self.settings, machine=lambda: self.machine)
        self.driver: LocalDriver
        self.side: ClusterSide
        self._run: asyncio.Task[None] | None = None
        self.threads: ThreadPoolExecutor

    async def begin(self, kept: Kept | None = None) -> None:
        self.driver = self.make_driver()
        async with asyncio.timeout(30.0):
            while True:
                try:
                    await self.driver.prepare()
                    break
                except Conflict as error:  # a process that the one before was just starting has the lock until its exec
                    if error.reason != "DATA_DIR_IN_USE":
                        raise
                    await asyncio.sleep(0.01)
        self.side = ClusterSide(self.driver, LoopTimers())
        if kept is not None:
            self.side.restore(kept)
        await self.driver.begin(kept)
        if kept is not None and kept.cluster != self.driver.cluster:
            self.side.change_cluster(self.driver.cluster)
        self._run = asyncio.create_task(self.driver.run(lambda _: None))

    async def end(self) -> None:
        if self._run is not None:
            self._run.cancel()
            await asyncio.wait([self._run])
        await self.driver.close()

    async def restart(self, kept: Kept | None = None, *, emptied: bool = False) -> None:
        """As after a kill of the service: programs run on."""
        now = self.kept()
        await self.end()
        await self.begin(None if emptied else kept or now)

    def kept(self) -> Kept:
        """What the store has now."""
        return kept_of(self.side.collect(whole=True))

    async def finish(self) -> None:
        """Stops all that runs, and fails if something is left."""
        left = list(self.side.open_attempts())
        for attempt in left:
            if not attempt.stop_asked:
                self.side.stop(attempt.job_id, attempt.attempt, 0)
        await self.until(lambda: not self.side.open_attempts())
        await self.until(lambda: all(self.view(name).exit for name in self.names))
        await self.end()

    # ---- what is asked

    def launch(self, job_id: str, script: str | None, *numbers: int, attempt: int = 1, **more: Any) -> Any:
        """On the GPUs of these numbers; none: on the first one."""
        payload = None if script is None else shell(script)
        numbers = numbers or (more.pop("number", 0),)
        spec = spec_of(more.pop("payload", payload), gpu_count=len(numbers), **more)
        return self.launch_spec(job_id, spec, *numbers, attempt=attempt)

    def launch_spec(self, job_id: str, spec: JobSpec, *numbers: int, attempt: int = 1) -> Any:
        gpu_ids = [gpu.gpu_id for _, gpu in self.driver.cluster.gpus()]
        placement = Placement.on(*(gpu_ids[each] for each in numbers or (0,)))
        return self.side.launch(job_id, attempt, spec, placement, 0)

    def events(self, job_id: str) -> list[ClusterEvent]:
        return [event for batch in self.side.log.after(0) for event in batch.events if event.job_id == job_id]

    def all_events(self) -> list[ClusterEvent]:
        return [event for batch in self.side.log.after(0) for event in batch.events]

    def kinds(self, job_id: str) -> list[str]:
        return [event.kind.name for event in self.events(job_id)]

    async def run_to_end(self, job_id: str, script: str | None, *numbers: int, **more: Any) -> ClusterEvent:
        self.launch(job_id, script, *numbers, **more)
        return await self.ended(job_id, more.get("attempt", 1))

    async def ended(self, job_id: str, attempt: int = 1) -> ClusterEvent:
        def ends() -> list[ClusterEvent]:
            return [each for each in self.events(job_id) if each.kind in ENDS and each.attempt == attempt]

        await self.until(ends)
        return ends()[-1]

    async def running(self, job_id: str) -> Attempt:
        await self.until(lambda: EventKind.RUNNING.name in self.kinds(job_id))
        return next(each for each in self.side.open_attempts() if each.job_id == job_id)

    async def says(self, job_id: str, words: str, rank: int = 0) -> None:
        """Its program runs and has written these words: as when it has set its traps."""
        await self.running(job_id)
        while words not in await self._output(job_id, rank):  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.01)

    async def _output(self, job_id: str, rank: int) -> str:
        return (await self.driver.read_log(job_id, 1, LogStream.STDOUT, 0, 65536, rank)).data.decode()

    async def until(self, condition: Callable[[], object], timeout_s: float = 60.0) -> None:
        async with asyncio.timeout(timeout_s):
            while not condition():  # noqa: ASYNC110 - of other processes
                await asyncio.sleep(0.01)

    # ---- what is on the disk

    @property
    def attempts(self) -> Path:
        return self.folder / "local" / "attempts"

    @property
    def names(self) -> list[str]:
        return sorted(path.parent.name for path in self.attempts.glob("*/intent.json"))

    def view(self, name: str) -> Any:
        return self.driver._runners["process"].look(name)

    def left(self) -> dict[str, dict[int, int]]:
        """What of any attempt runs, by a search of its own."""
        import json

        found = {}
        for path in self.attempts.glob("*/intent.json"):
            mark = json.loads(path.read_text())["mark"]
            if running := plainly_marked(mark):
                found[path.parent.name] = running
        return found
