"""The service's side of attempts of containers: starts each once, stops, looks, waits, takes all up after a restart."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import subprocess
import threading
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from adlro.attempt import journal as names
from adlro.attempt.attempts import Attempts
from adlro.attempt.containers.engine import DEFAULT_SOCKET, Engine, EngineAwayError, RefusedError
from adlro.attempt.containers.images import Images
from adlro.attempt.containers.keeper import CLEARED, Keeper, Surroundings
from adlro.attempt.containers.mounts import Mounts
from adlro.attempt.drivers import ALL_LIMITS
from adlro.attempt.given import NotStartedError
from adlro.attempt.journal import Journal
from adlro.attempt.linux import all_pids
from adlro.attempt.records import AttemptView, Launch, Stage
from adlro.errors import InvalidInput, Unavailable, Unsupported
from adlro.records.payloads import ExitStatus

STAGING = "/run/adlro/mounts"
# A container's files are removed with it.
_REMOVE_S = 60.0
_RETRY_S, _MOST_RETRY_S = 0.1, 10.0
# Who reaches an engine's socket is root on the node.
_NEVER = ("/run/docker.sock", "/run/docker", "/run/containerd", "/run/podman", "/var/lib/docker", "/var/lib/containerd")
_CONTAINER_ID = re.compile(r"[0-9a-f]{64}")


class EngineDriver:
    """Limits are the engine's; there are no supervisors of ours. See `drivers.Driver`."""

    name = "container"
    enforced = ALL_LIMITS

    def groups(self, mark: str) -> dict[str, str]:
        """See Driver. The engine makes them."""
        return {}

    def start(self, command: Sequence[str], intent: Mapping[str, Any], folder: str) -> subprocess.Popen[bytes] | None:
        """See Driver. Never called."""
        raise NotImplementedError


class ContainerAttempts(Attempts):
    """The attempts of containers of one node.

    Each that has not ended is kept by a thread of this process: without it the container runs on, and its time limit
    and its stop wait for the next service.

    Args:
        folder: theirs, on a local disk, and not that of the attempts of processes; made where it is not there.
        engine: the container engine, or the path of its socket.
        mount_prefixes: directories below which jobs may mount what their user can reach; none: no mounts.
        never_mounted: further files and directories of the node that are never mounted, such as secrets.
        network: of the engine, that containers are in.
        staging: a folder that root alone can write to, not below `folder`; made where it is not there.
        free_mib: of the disk, below which nothing new is begun.

    Raises:
        Unsupported: this is not Linux, or the package `docker` is not installed.
        OSError: the folder can't be made, or is not ours alone to write to.
    """

    def __init__(
        self,
        folder: Path,
        engine: Engine | str = DEFAULT_SOCKET,
        *,
        mount_prefixes: Sequence[str] = (),
        never_mounted: Sequence[str] = (),
        network: str = "bridge",
        staging: str = STAGING,
        free_mib: int = 64,
    ) -> None:
        super().__init__(folder, EngineDriver(), free_mib=free_mib)
        self._engine = Engine(engine) if isinstance(engine, str) else engine
        never = (*_NEVER, *never_mounted, str(self._folder), staging, self._engine.path)
        mounts = Mounts(mount_prefixes, never, staging)
        self._around = Surroundings(self._engine, Images(self._engine), mounts, network)
        self._keepers: dict[str, Keeper] = {}
        self._keepers_lock = threading.Lock()
        self._closed = False

    async def close(self) -> None:
        """Ends the threads of this process. Containers run on; `take_up` of the next service takes them up."""
        with self._keepers_lock:
            self._closed = True
            keepers = list(self._keepers.values())
        await asyncio.gather(*(asyncio.to_thread(each.close) for each in keepers))

    def doing(self, name: str) -> str:
        """What an attempt waits for before its program runs, for people; empty: nothing."""
        with self._keepers_lock:
            keeper = self._keepers.get(name)
        if keeper is None:
            return ""
        return self._around.images.progress(keeper.image) or keeper.doing

    def processes(self, attempts: Collection[str]) -> dict[str, frozenset[int]]:
        """What attempts run now: by attempt the PIDs in its container.

        Args:
            attempts: their names. One look at all processes of the machine answers for all of them.
        """
        found: dict[str, set[int]] = {name: set() for name in attempts}
        attempt_of: dict[str, str] = {}
        for name in attempts:
            with contextlib.suppress(ValueError):
                spawned = self._journal(name).read(names.SPAWN)
                if spawned is not None:
                    attempt_of[spawned["container"]] = name
        for pid in all_pids() if attempt_of else ():
            for container in _containers_of(pid) & attempt_of.keys():
                found[attempt_of[container]].add(pid)
        return {name: frozenset(pids) for name, pids in found.items()}

    async def ended(self, name: str) -> ExitStatus:
        """Returns when an attempt has ended. It sees to it that it does, unless the engine is away: then it waits.

        Raises:
            NotFound: no such attempt.
            Unavailable: this object is closed.
        """
        loop = asyncio.get_running_loop()
        pause_s = _RETRY_S
        while True:
            view = await asyncio.to_thread(self.look, name)
            if view.exit is not None:
                return view.exit
            keeper = await asyncio.to_thread(self._keep, self._journal(name))
            done = asyncio.Event()

            def told(done: asyncio.Event = done) -> None:
                with contextlib.suppress(RuntimeError):  # nobody waits any more
                    loop.call_soon_threadsafe(done.set)

            keeper.call_when_exited(told)
            await done.wait()
            if not await asyncio.to_thread(self._journal(name).has, names.EXIT):
                await asyncio.sleep(pause_s)  # it failed: its log says why
                pause_s = min(2.0 * pause_s, _MOST_RETRY_S)

    # ---- what differs from processes

    def _intent(self, name: str, launch: Launch) -> dict[str, Any]:
        if launch.payload.process is not None:
            raise Unsupported("containers are run here, no processes", field="payload.process", reason="NO_PROCESSES")
        intent = launch.intent(name)
        if not launch.user and os.geteuid() == 0:
            raise InvalidInput(
                "must name the Unix user of a container: the service is root, and so would its program be", field="user"
            )
        try:
            self._around.mounts.check(intent["container"]["mounts"])
        except NotStartedError as error:
            raise InvalidInput(str(error), field=str(error).split(":")[0]) from None
        if not self._journal(name).has(names.INTENT):
            try:
                self._engine.info()
            except EngineAwayError as error:
                raise Unavailable(f"the container engine does not answer: {error}", reason="NO_ENGINE") from error
            except RefusedError as error:
                raise Unavailable(f"the container engine refuses: {error.text}", reason="NO_ENGINE") from error
        return intent

    def _tell_of_stop(self, journal: Journal) -> None:
        self._keep(journal).tell()

    def _supervise(self, journal: Journal) -> None:
        if not journal.has(names.EXIT):
            self._keep(journal)

    def _take_up_one(self, name: str) -> AttemptView:
        view = super()._take_up_one(name)
        if view.exit is not None and not self._journal(name).has(CLEARED):
            self._keep(self._journal(name))  # a kill may have come before its container was removed
        return view

    def _forget(self, name: str) -> None:
        if self.look(name).stage is Stage.ENDED and not self._journal(name).has(CLEARED):
            keeper = self._keep(self._journal(name))
            if not keeper.done.wait(_REMOVE_S):
                raise Unavailable(
                    f"the container of attempt {name} is not removed yet: {keeper.doing or 'the engine is at it'}",
                    reason="NO_ENGINE",
                )
        super()._forget(name)
        with self._keepers_lock:
            self._keepers.pop(name, None)

    def _keep(self, journal: Journal) -> Keeper:
        """The keeper of an attempt: the one that there is, or a new one.

        Raises:
            Unavailable: this object is closed.
        """
        with self._keepers_lock:
            if self._closed:
                raise Unavailable("this node's service is about to end", reason="CLOSED")
            keeper = self._keepers.get(journal.name)
            if keeper is None or keeper.done.is_set():
                keeper = self._keepers[journal.name] = Keeper(journal, self._around)
            return keeper


def _containers_of(pid: int) -> set[str]:
    try:
        with open(f"/proc/{pid}/cgroup") as file:
            return set(_CONTAINER_ID.findall(file.read()))
    except OSError:
        return set()
