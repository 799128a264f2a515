"""A served fake service, its stub, and logs that can be read."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import structlog

from adlro.kit.channel import open_channel
from adlro.kit.log import configure
from adlro.kit.testing import serve
from adlro.v1 import job_service_pb2_grpc
from tests.unit.kit.fake_service import FakeService, FakeSettings


@dataclass
class Served:
    """A fake service on this loop."""

    service: FakeService
    address: str
    stub: job_service_pb2_grpc.JobServiceStub


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    settings = FakeSettings()
    service = FakeService(settings)
    async with serve(service, settings) as address, open_channel(address) as channel:
        yield Served(service, address, job_service_pb2_grpc.JobServiceStub(channel))


@pytest.fixture
def log_lines(capsys) -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """Turns on the kit's logs; gives what has been logged since it was asked last."""
    configure("ingest", "info")
    asyncio_logger = logging.getLogger("asyncio")
    asyncio_logger.addFilter(_is_of_this_loop)
    yield lambda: [json.loads(line) for line in capsys.readouterr().err.splitlines() if line.startswith("{")]
    asyncio_logger.removeFilter(_is_of_this_loop)
    structlog.reset_defaults()


def _is_of_this_loop(record: logging.LogRecord) -> bool:
    """False: gRPC tells a loop that is closed of the end of a call. That is an earlier test's: all share its poller."""
    error = record.exc_info[1] if record.exc_info else None
    late = isinstance(error, RuntimeError) and str(error) == "Event loop is closed"
    return not (late and "PollerCompletionQueue._handle_events" in record.getMessage())
