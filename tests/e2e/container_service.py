"""A service of attempts of containers, for tests that kill it: takes up what is there, starts one, waits for its end.

python container_service.py SOCKET FOLDER SHARED NAME SCRIPT
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from adlro.attempt.containers.attempts import ContainerAttempts
from tests.e2e.private_engine import launch_of


async def main(engine: str, folder: str, shared: str, name: str, script: str) -> None:
    attempts = ContainerAttempts(
        Path(folder), engine, mount_prefixes=[shared], network="none", staging=f"{folder}.staging"
    )
    await attempts.take_up()
    await attempts.start(name, launch_of(script, shared))
    sys.stdout.write(f"{await attempts.ended(name)}\n")
    await attempts.close()


asyncio.run(main(*sys.argv[1:]))
