"""A Valkey for one evaluation, in a process that ends with it and leaves no files.

`python -m adlro.cli.child adlro.lab.evaluate.store PARENT_PID`; its first line on stderr has its address.
"""

from __future__ import annotations

import json
import signal
import sys
import tempfile
import threading
from pathlib import Path

from adlro.errors import AdlroError
from adlro.kit.embedded_redis import EmbeddedRedis


def main() -> None:
    """Runs until SIGTERM or SIGINT."""
    ending = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ending.set())
    with tempfile.TemporaryDirectory(prefix="adlro-evaluate-") as folder:
        store = EmbeddedRedis(Path(folder))
        try:
            store.start()
        except AdlroError as error:
            sys.exit(error.message)
        try:
            where = {"address": store.address, "password_file": str(store.password_file)}
            sys.stderr.write(json.dumps({"event": "listening", **where}) + "\n")
            sys.stderr.flush()
            ending.wait()
        finally:
            store.stop()


if __name__ == "__main__":
    main()
