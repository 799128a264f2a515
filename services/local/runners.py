"""What runs attempts on this machine: processes now, containers where an engine is. One interface for both."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol, TypeVar

import structlog

from adlro.attempt.attempts import Attempts
from adlro.attempt.drivers import CgroupDriver, Choice, Driver, TreeDriver, UnitDriver, choose_driver
from adlro.attempt.journal import EXIT, INTENT
from adlro.attempt.log_files import Piece
from adlro.attempt.records import AttemptView, Launch
from adlro.errors import InvalidInput, NotFound, with_extra
from adlro.records.payloads import EndReason, ExitStatus

T = TypeVar("T")
_log = structlog.get_logger()
# Between two tries of what the disk refused: shortest, and longest.
_AGAIN_S, _MOST_AGAIN_S = 0.5, 30.0


class Runner(Protocol):
    """Runs attempts of one kind; `adlro.attempt.attempts.Attempts` describes each method."""

    async def start(self, name: str, launch: Launch) -> AttemptView:
        """Starts an attempt, once."""

    async def stop(
        self, name: str, reason: EndReason = EndReason.STOPPED, detail: str = "", grace_s: float | None = None
    ) -> None:
        """Asks for an attempt's end."""

    async def prepared(self, name: str) -> AttemptView:
        """Returns when it waits at its gate, was let go, or has ended."""

    async def begun(self, name: str) -> AttemptView:
        """Returns when its program was let go, or it has ended."""

    async def ended(self, name: str) -> ExitStatus:
        """Returns when it has ended, and sees to it that it does."""

    async def forget(self, name: str) -> None:
        """Removes an attempt that has ended."""

    async def take_up(self) -> list[AttemptView]:
        """Goes on with what was there before a restart."""

    def names(self) -> list[str]:
        """The attempts."""

    def look(self, name: str) -> AttemptView:
        """An attempt as it is now."""

    def read_log(self, name: str, stream: str, offset: int, most_bytes: int) -> Piece:
        """Reads an attempt's log."""

    def log_size(self, name: str, stream: str) -> int:
        """The length of an attempt's log so far."""

    def processes(self, attempts: Collection[str]) -> Mapping[str, frozenset[int]]:
        """What attempts run now: by attempt the PIDs."""

    async def close(self) -> None:
        """Ends what this process does for them; they run on."""


async def until_done(call: Callable[[], Awaitable[T]]) -> T | None:
    """Repeats a call of a runner until the disk lets it; None: there is no such attempt."""
    pause_s = _AGAIN_S
    while True:
        try:
            return await call()
        except NotFound:
            return None
        except Exception as error:
            _log.warning("an attempt's folder can't be used; trying again", why=str(error))
            await asyncio.sleep(pause_s)
            pause_s = min(2.0 * pause_s, _MOST_AGAIN_S)


def choose(wanted: str) -> Choice:
    """The driver of processes.

    Args:
        wanted: auto, unit, cgroup or tree.

    Raises:
        InvalidInput: this machine does not have it.
    """
    if wanted == "auto":
        return choose_driver()
    try:
        driver: Driver
        match wanted:
            case "unit":
                driver = UnitDriver.find()
            case "cgroup":
                driver = CgroupDriver.find()
            case _:
                driver = TreeDriver()
    except OSError as error:
        key = "ADLRO_LOCAL_DRIVER"
        raise InvalidInput(f"{key}: {wanted} can't be used here: {error}; auto finds what can", field=key) from None
    return Choice(driver, {})


def containers(
    folder: Path, engine: str, mount_prefixes: Sequence[str], never_mounted: Sequence[str], network: str
) -> Runner | None:
    """Runs containers; None: this node runs none. The engine need not be there yet.

    Args:
        folder: of their attempts.
        engine: path of its socket; empty: none.
        mount_prefixes: directories below which jobs may mount.
        never_mounted: files and directories that no job may mount.
        network: of the engine, that containers are in.

    Raises:
        InvalidInput: there is to be no engine, and attempts are open: they would be reported as lost, and run again.
        Unsupported: attempts are open, and the package `docker` is gone.
    """
    left = _open_attempts(folder)
    if not engine and left:
        raise InvalidInput(
            f"ADLRO_LOCAL_ENGINE is empty, and containers of jobs have not ended ({', '.join(left[:3])}): set it to "
            f"the engine's socket until they have; or, if they are gone, delete their folders in {folder}",
            field="ADLRO_LOCAL_ENGINE",
            reason="CONTAINERS_OPEN",
        )
    if not engine or (find_spec("docker") is None and not left):
        return None
    from adlro.attempt.containers.attempts import ContainerAttempts

    return ContainerAttempts(
        folder, engine, mount_prefixes=mount_prefixes, never_mounted=never_mounted, network=network
    )


def why_no_containers(engine: str) -> str:
    """Why this node can't run a container now, with the way out; empty: it can.

    Args:
        engine: path of the engine's socket; empty: none.
    """
    if not engine:
        return "its operator has turned containers off (ADLRO_LOCAL_ENGINE is empty)"
    if find_spec("docker") is None:
        return f"the package 'docker' is missing: install it {with_extra('containers')}, and restart this service"
    if not os.path.exists(engine):
        return f"there is no container engine at {engine}; start one, and submit the job again"
    return ""


def _open_attempts(folder: Path) -> list[str]:
    """Those that have not ended."""
    return sorted(path.parent.name for path in folder.glob(f"*/{INTENT}") if not path.with_name(EXIT).exists())


def processes(folder: Path, driver: Driver) -> Runner:
    """Runs processes of this machine.

    Args:
        folder: of their attempts.
        driver: keeps them within their limits.
    """
    return Attempts(folder, driver)
