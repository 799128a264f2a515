"""Starts web: `python -m adlro.services.web`."""

from __future__ import annotations

from adlro.kit.server import run_process
from adlro.services.web.server import start_web
from adlro.services.web.settings import WebSettings

if __name__ == "__main__":
    run_process(start_web, WebSettings)
