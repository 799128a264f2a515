"""Waits for a service's start while it makes progress: a loaded machine and a first compilation may take minutes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

from adlro.cli.processes import NewLogLines, ServiceProcess, exit_text, log_tail
from adlro.client.health import wait_until_serving
from adlro.errors import AdlroError
from adlro.kit import start_report

# A start with progress logs it every few seconds (adlro.kit.start_report).
SILENCE_S = 40.0
_LOOK_S = 0.2
_TELL_EVERY_S = 15.0
_PROGRESS_LEVELS = ("debug", "info")
_COMPILING = "compiling"


class StartFailed(AdlroError):
    """The suite could not be started; the message names the log."""

    default_reason = "START_FAILED"


async def until_serving(
    service: ServiceProcess, address: str, notify: Callable[[str], None], silence_s: float = SILENCE_S
) -> None:
    """Returns once a started service reports that it is serving.

    Args:
        service: its process, whose log is read from the beginning.
        address: its address.
        notify: called with a line for people during a long start, and every 15 s of it: it compiles, or its machine
            is loaded.
        silence_s: longest time without progress in its log.

    Raises:
        StartFailed: it has ended, or is stuck.
    """
    log = NewLogLines(service.log)
    heard_s = started_s = monotonic()
    told: set[str] = set()
    tell_s = started_s + _TELL_EVERY_S
    ended = asyncio.create_task(service.ended())
    serving = asyncio.create_task(wait_until_serving(address))
    try:
        while not serving.done():
            await asyncio.wait([ended, serving], timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                raise _failed(service, f"{service.name} ended at its start ({exit_text(ended.result())})")
            for line in log.read():
                if line.get("level") in _PROGRESS_LEVELS:
                    heard_s = monotonic()
                    _tell(service.name, str(line.get("event", "")), told, notify)
            if told and monotonic() >= tell_s and not serving.done():
                tell_s = monotonic() + _TELL_EVERY_S
                notify(f"{service.name}: still starting, {monotonic() - started_s:.0f} s so far")
            if monotonic() - heard_s > silence_s and not serving.done():
                raise _failed(service, f"{service.name} is not serving, and has made no progress for {silence_s:g} s")
        await serving
    finally:
        ended.cancel()
        serving.cancel()


def _tell(name: str, event: str, told: set[str], notify: Callable[[str], None]) -> None:
    """Reports each reason of a wait once."""
    kind = event.partition(",")[0]
    if kind in (_COMPILING, start_report.EVENT) and kind not in told:
        told.add(kind)
        notify(f"{name}: {event if kind == _COMPILING else 'still starting'}")


def _failed(service: ServiceProcess, message: str) -> StartFailed:
    said = "".join(f"\n  {line}" for line in log_tail(service.log))
    return StartFailed(f"{message}; its log is {service.log}{said}")
