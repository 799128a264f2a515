"""`python -m adlro.services.notify` serves until SIGTERM."""

from __future__ import annotations

import os

from adlro.kit.server import Running, run_process, start_server
from adlro.services.notify.server import NotifyService
from adlro.services.notify.settings import NotifySettings


async def start_below(settings: NotifySettings) -> Running:
    """Starts notify, as a process that gives way to the services."""
    if hasattr(os, "nice"):
        os.nice(settings.niceness)
    return await start_server(NotifyService(settings), settings)


if __name__ == "__main__":
    run_process(start_below, NotifySettings)
