"""`adlro up --cluster local` with pretended GPUs, as benchmarks of real programs start it. Linux only."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from adlro.client import Client, Credentials

START_TIMEOUT_S, END_TIMEOUT_S = 600.0, 60.0


@contextmanager
def local_suite(folder: Path, fake_gpus: str, settings: Mapping[str, str] | None = None) -> Iterator[Client]:
    """A running suite and its client, with the token that the suite made.

    Args:
        folder: of all its files.
        fake_gpus: its pretended GPUs.
        settings: further environment of its services.
    """
    data = folder / "data"
    arguments = ["up", "--cluster", "local", "--fake-gpus", fake_gpus, "--data-dir", str(data), "--port", "0"]
    if os.geteuid() == 0:  # root runs programs only as users of a map; these are a benchmark's own
        users_map = folder / "users_map"
        users_map.write_text("* root\n", encoding="utf-8")
        folder.chmod(0o755)
        arguments += ["--users-map", str(users_map)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ADLRO_")}
    with (folder / "up.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "adlro.cli", *arguments],
            env=environment | {"XDG_STATE_HOME": str(folder / "state"), **(settings or {})},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C ends the benchmark first, which then cancels what runs
        )
    try:
        status = _status(data, process, folder / "up.log")
        credentials = Credentials.from_files(token_file=status.get("token_file", ""))
        with Client(status["server"], credentials=credentials, patience_s=60.0) as client:
            yield client
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _status(data: Path, process: subprocess.Popen[bytes], log: Path) -> dict[str, Any]:
    """The suite's status file, once the suite is ready.

    Raises:
        SystemExit: the suite did not start.
    """
    until_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < until_s and process.poll() is None:
        try:
            status: dict[str, Any] = json.loads((data / "up.json").read_text())
        except (OSError, ValueError):
            status = {}
        if status.get("ready"):
            return status
        time.sleep(0.1)
    raise SystemExit(f"the suite did not start:\n{log.read_text(errors='replace')}")
