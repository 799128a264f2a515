"""The source of a list's decompose: an own one, started anew for each list with an own Valkey, or a given one.

Own ones are child processes that end with this process, however it ends.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from adlro.errors import InternalError, Unsupported
from adlro.kit.settings import with_password
from adlro.kit.testing import ServiceEnded, SpawnedService, spawn_service
from adlro.lab.evaluate.decompose import RunningDecompose

_STORE_MODULE, _DECOMPOSE_MODULE = "adlro.lab.evaluate.store", "adlro.services.decompose"
_LOG_LINES_SHOWN = 3
_END_S = 1.0
"""A connection breaks a moment before its process has ended."""
_SETTINGS = {
    "ADLRO_DECOMPOSE_DESCRIPTIONS_POLL_S": "0.1",
    # Every answer includes the last outcome, however slow the machine.
    "ADLRO_DECOMPOSE_REFIT_PATIENCE_S": "60",
}


class Source(Protocol):
    """Gives each list a decompose without memory."""

    def fresh(self) -> AbstractAsyncContextManager[RunningDecompose]:
        """A decompose for one list."""

    def close(self) -> None:
        """Ends the source."""


@dataclass(frozen=True, slots=True)
class GivenDecompose:
    """A running decompose; it forgets each list after its end. Lists must take turns."""

    address: str
    redis_url: str

    def fresh(self) -> AbstractAsyncContextManager[RunningDecompose]:
        """The same for every list."""
        return RunningDecompose(self.address, self.redis_url)

    def close(self) -> None:
        """Leaves it running."""


class OwnDecompose:
    """A Valkey for all lists, and one decompose process per list.

    Raises:
        Unsupported: decompose is not installed here.
        InternalError: a process ended at its start; the message has the end of its log.
    """

    def __init__(self) -> None:
        require_decompose()
        self._store: SpawnedService | None = None

    @asynccontextmanager
    async def fresh(self) -> AsyncIterator[RunningDecompose]:
        """A new process."""
        if self._store is None:
            self._store = _spawn(_STORE_MODULE, "the store", {})
        redis_url = f"redis://{self._store.address}/0"
        (password_file,) = (line["password_file"] for line in self._store.log_lines() if "password_file" in line)
        settings = {"ADLRO_REDIS_URL": redis_url, "ADLRO_REDIS_PASSWORD_FILE": password_file, **_SETTINGS}
        redis_url = with_password(redis_url, password_file)
        process = _spawn(_DECOMPOSE_MODULE, "decompose", settings)
        try:
            async with RunningDecompose(
                process.address, redis_url, lambda: _how_it_ended(process), outlives_list=False
            ) as decompose:
                yield decompose
        finally:
            process.kill()  # its state is not needed, so it is not drained

    def close(self) -> None:
        """Ends the Valkey."""
        if self._store is not None:
            self._store.stop()
            self._store = None


def require_decompose() -> None:
    """Raises Unsupported if decompose is not installed."""
    if importlib.util.find_spec(_DECOMPOSE_MODULE) is None:
        raise Unsupported(
            f"runtime: learned starts a decompose, and {_DECOMPOSE_MODULE} is not installed here; name a running one "
            "with --decompose and --redis-url"
        )


def _spawn(module: str, name: str, settings: dict[str, str]) -> SpawnedService:
    try:
        return spawn_service(name, settings, arguments=("-m", "adlro.cli.child", module, str(os.getpid())))
    except ServiceEnded as error:
        raise InternalError(f"runtime: learned: {error}") from None


def _how_it_ended(process: SpawnedService) -> str:
    try:
        code = process.process.wait(_END_S)
    except subprocess.TimeoutExpired:
        return ""
    lines = "".join(f"\n  {line}" for line in process.raw_lines()[-_LOG_LINES_SHOWN:])
    return f"It ended (exit code {code}, negative: a signal); its log ends:{lines}"
