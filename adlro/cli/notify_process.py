"""What tells webhooks, beside a suite: its process' settings, and where it keeps what is not delivered yet."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from adlro.cli.page import LAST_PORT
from adlro.client import ServiceName
from adlro.errors import Conflict
from adlro.kit.addresses import join_address

NOTIFY = "notify"
NOTIFY_MODULE = "adlro.services.notify"
WEBHOOKS_ENV = "ADLRO_NOTIFY_WEBHOOKS_FILE"

_HOST = "127.0.0.1"
_TRIES = 200


def notify_directory(*, closed: bool) -> str:
    """The name of its folder in a data directory; each store has its own, whose revisions it knows.

    Args:
        closed: of a suite that runs programs, which has a store of its own.
    """
    return "notify-local" if closed else "notify"


def notify_address(port: int, is_free: Callable[[str, int], bool], others: Sequence[int]) -> str:
    """Where it answers whether it serves: at a port, or, if that is in use, at any other one; nobody else asks it."""
    if port <= LAST_PORT and is_free(_HOST, port):
        return join_address(_HOST, port)
    for each in random.sample(others, _TRIES):
        if is_free(_HOST, each):
            return join_address(_HOST, each)
    raise Conflict("found no free port for notify; choose a --port")


def notify_settings(
    address: str, addresses: Mapping[ServiceName, str], webhooks_file: Path, data_dir: Path
) -> dict[str, str]:
    """The environment of its process.

    Args:
        address: its own, `host:port`.
        addresses: of the services.
        webhooks_file: of the operator's.
        data_dir: of what is not delivered yet.
    """
    return {
        "ADLRO_NOTIFY_LISTEN": address,
        WEBHOOKS_ENV: str(webhooks_file),
        "ADLRO_NOTIFY_DATA_DIR": str(data_dir),
        **{f"ADLRO_NOTIFY_{name.name}_ADDRESS": addresses[name] for name in ServiceName},
    }
