"""The references of the benchmarks: the same methods on the same stack (grpc.aio, uvloop), without the work.

    python -m benchmarks.reference_server bare    no interceptor, handlers that answer at once
    python -m benchmarks.reference_server kit     the same behind the kit: deadline, field rules, metrics, log ids
    python -m benchmarks.reference_server decode  bare, and columns are made into arrays

Prints the same "listening" line as a service. Ends with SIGTERM.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import numpy as np
import uvloop

from adlro.kit.server import ServiceContext, main, server_options
from adlro.services.ingest.settings import IngestSettings
from adlro.v1 import job_service_pb2, job_service_pb2_grpc, telemetry_service_pb2, telemetry_service_pb2_grpc

Context = grpc.aio.ServicerContext[Any, Any]


class EmptyJobs(job_service_pb2_grpc.JobServiceServicer):
    """Answers at once."""

    async def SubmitJob(  # noqa: N802 - named in the .proto
        self, request: job_service_pb2.SubmitJobRequest, context: Context
    ) -> job_service_pb2.SubmitJobResponse:
        """Nothing."""
        return job_service_pb2.SubmitJobResponse()


class EmptyTelemetry(telemetry_service_pb2_grpc.TelemetryServiceServicer):
    """Takes blocks and counts them; decodes the columns to arrays where `decodes`."""

    def __init__(self, decodes: bool) -> None:
        self._decodes = decodes

    async def PushTelemetry(  # noqa: N802 - named in the .proto
        self, request_iterator: AsyncIterator[telemetry_service_pb2.PushTelemetryRequest], context: Context
    ) -> telemetry_service_pb2.PushTelemetryResponse:
        """Nothing but the count of blocks."""
        blocks = 0
        checksum = 0.0
        async for request in request_iterator:
            blocks += 1
            if self._decodes:
                for column in request.block.columns:
                    checksum += float(np.frombuffer(column.values_f32, "<f4")[0])
        return telemetry_service_pb2.PushTelemetryResponse(block_count=blocks)


class EmptyService:
    """The empty handlers as a service of the kit."""

    name: str = "ingest"
    service_names: Sequence[str] = ("adlro.v1.JobService", "adlro.v1.TelemetryService")

    def __init__(self, settings: IngestSettings) -> None:
        pass

    def add_to(self, server: grpc.aio.Server) -> None:
        """Registers the servicers."""
        _register(server, decodes=False)

    async def start(self, context: ServiceContext) -> None:
        """Nothing to start."""

    async def stop(self) -> None:
        """Nothing to stop."""


async def serve_bare(decodes: bool) -> None:
    """Serves without the kit until SIGTERM."""
    server = grpc.aio.server(options=server_options(16 * 2**20))
    _register(server, decodes)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    sys.stderr.write(json.dumps({"event": "listening", "address": f"127.0.0.1:{port}", "pid": os.getpid()}) + "\n")
    sys.stderr.flush()
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    await ended.wait()
    await server.stop(0.2)


def _register(server: grpc.aio.Server, decodes: bool) -> None:
    # The other methods are the generated base class's, which answer UNIMPLEMENTED; the stubs call them abstract.
    jobs = EmptyJobs()  # type: ignore[abstract]
    telemetry = EmptyTelemetry(decodes)  # type: ignore[abstract]
    job_service_pb2_grpc.add_JobServiceServicer_to_server(jobs, server)
    telemetry_service_pb2_grpc.add_TelemetryServiceServicer_to_server(telemetry, server)


if __name__ == "__main__":
    kind = sys.argv.pop(1)
    if kind == "kit":
        main(EmptyService, IngestSettings)
    uvloop.run(serve_bare(decodes=kind == "decode"))
