"""Follows jobs and GPUs at once with the asyncio client, for ten seconds or as many as you name.

Needs a running suite with something to do: `adlro up`, and `python examples/submit_many.py` beside it.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys

import numpy as np

from adlro.client import AsyncClient, JobEventKind, Metric


async def follow_jobs(client: AsyncClient) -> None:
    """Prints every change of every job; goes on by itself after ingest was away."""
    async for event in client.watch():
        if event.kind is JobEventKind.CHANGE and event.job is not None:
            print(f"{event.job.job_id:>8} {event.job.state.name.lower():<9} {event.job.gpu_id}")


async def follow_gpus(client: AsyncClient) -> None:
    """Prints the mean utilization of the cluster, once a second."""
    async for state in client.watch_cluster_state(min_interval_s=1.0):
        if Metric.UTILIZATION in state.planes:
            known = state.planes[Metric.UTILIZATION].raw
            print(f"{len(state.gpus)} GPUs, {np.nanmean(known):.0%} busy")


async def main(seconds: float) -> None:
    """Both, side by side."""
    async with AsyncClient() as client:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await asyncio.gather(follow_jobs(client), follow_gpus(client))


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1]) if len(sys.argv) > 1 else 10.0))
