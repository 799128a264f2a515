"""Starts web: `python -m adlro.services.web`."""

from __future__ import annotations

import os

from adlro.kit.server import run_process
from adlro.services.web.server import RunningWeb, start_web
from adlro.services.web.settings import WebSettings


async def start_below(settings: WebSettings) -> RunningWeb:
    """Starts the page, as a process that gives way to the services."""
    if hasattr(os, "nice"):
        os.nice(settings.niceness)
    return await start_web(settings)


if __name__ == "__main__":
    run_process(start_below, WebSettings)
