"""What the GPUs report, by way of ingest and decompose, agrees with what runs on them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from adlro.client import AsyncClient, ClusterState, Metric, Telemetry
from adlro.records.jobs import JobSpec, JobState, JobType, SimulatedWork
from tests.e2e.running_suite import RunningSuite

pytestmark = pytest.mark.slow

FloatArray = NDArray[np.float32]

BUSY, IDLE = 0.3, 0.1
WARMER_C = 5.0
SETTLED_C = 1.0
LOOKED_FOR_S = 60.0


@dataclass(frozen=True)
class Seen:
    """One look at all GPUs, from one of the two services; arrays in the order of `gpu_ids`."""

    gpu_ids: tuple[str, ...]
    utilization_ratio: FloatArray
    memory_used_mib: FloatArray
    temperature_c: FloatArray
    power_w: FloatArray
    normalized: FloatArray


def of_telemetry(telemetry: Telemetry) -> Seen:
    latest = telemetry.latest
    raw = {metric: latest.columns[metric].raw[-1] for metric in Metric}
    return seen_of(latest.gpu_ids, raw, [latest.columns[metric].normalized[-1] for metric in Metric])


def of_state(state: ClusterState) -> Seen:
    raw = {metric: state.planes[metric].raw for metric in Metric}
    gpu_ids = tuple(gpu.gpu_id for gpu in state.gpus)
    return seen_of(gpu_ids, raw, [state.planes[metric].normalized for metric in Metric])


def seen_of(gpu_ids: tuple[str, ...], raw: Mapping[Metric, FloatArray], normalized: Sequence[FloatArray]) -> Seen:
    return Seen(
        gpu_ids,
        utilization_ratio=raw[Metric.UTILIZATION],
        memory_used_mib=raw[Metric.MEMORY_USED],
        temperature_c=raw[Metric.TEMPERATURE],
        power_w=raw[Metric.POWER],
        normalized=np.stack(normalized),
    )


async def look(client: AsyncClient, side: str) -> Seen:
    if side == "ingest":
        return of_telemetry(await client.telemetry())
    return of_state(await client.cluster_state())


async def until(client: AsyncClient, side: str, holds: Callable[[Seen], bool]) -> Seen:
    """Looks until something holds, or for so long that it won't: what was seen last, for the test to judge."""
    seen = await look(client, side)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LOOKED_FOR_S):
            while not holds(seen):
                await asyncio.sleep(0.1)
                seen = await look(client, side)
    return seen


def settled(seen: Seen, model_of: Mapping[str, str]) -> bool:
    """All are idle, and those of one model equally warm."""
    models = np.array([model_of[gpu_id] for gpu_id in seen.gpu_ids])
    spread_c = max(np.ptp(seen.temperature_c[models == model]) for model in set(models.tolist()))
    return bool((seen.utilization_ratio < IDLE).all() and spread_c < SETTLED_C)


async def test_telemetry_and_cluster_state_agree_with_what_runs(scaled_suite: RunningSuite) -> None:
    async with AsyncClient(scaled_suite.server) as client:
        model_of = {gpu.gpu_id: gpu.gpu_model for _, gpu in (await client.cluster()).gpus()}
        # What ran in a test before cools down first; a minute passes in a second.
        cool = {
            side: await until(client, side, lambda seen: settled(seen, model_of)) for side in ("ingest", "decompose")
        }
        assert all(settled(seen, model_of) for seen in cool.values())
        submitted = await client.submit_many(
            JobSpec(f"busy {number}", "ada", JobType.MACHINE_LEARNING, "resnet50_fp16", cpu_cores=4,
                    gpu_memory_mib=10_000, simulated_work=SimulatedWork(36_000.0))
            for number in range(6)
        )  # fmt: skip
        mine = set(submitted.accepted_ids)
        assert len(mine) == 6
        async with asyncio.timeout(60.0):
            async for event in client.watch():
                if event.job is not None and event.job.job_id in mine and event.job.state is JobState.RUNNING:
                    mine.discard(event.job.job_id)
                if not mine:
                    break
        running = {job.gpu_id: job.job_id for job in (await client.describe_cluster()).running}
        assert len(running) == 6

        for side in ("ingest", "decompose"):
            before = cool[side]
            busy = np.array([gpu_id in running for gpu_id in before.gpu_ids])

            def warm(seen: Seen, busy: NDArray[np.bool_] = busy, before: Seen = before) -> bool:
                return bool((seen.temperature_c - before.temperature_c > WARMER_C)[busy].all())

            seen = await until(client, side, warm)
            assert len(seen.gpu_ids) == 16
            assert busy.sum() == 6
            assert (seen.utilization_ratio[busy] > BUSY).all(), side
            assert (seen.utilization_ratio[~busy] < IDLE).all(), side
            assert (seen.memory_used_mib[busy] >= 10_000).all(), side
            assert (seen.memory_used_mib[~busy] < 1_000).all(), side
            assert (seen.temperature_c - before.temperature_c > WARMER_C)[busy].all(), side
            assert (seen.temperature_c - before.temperature_c < WARMER_C)[~busy].all(), side
            assert seen.power_w[busy].min() > seen.power_w[~busy].max(), side
            assert ((seen.normalized >= 0) & (seen.normalized <= 1)).all(), side

        # Both tell of one sample: what ingest keeps is what decompose read.
        state = await client.cluster_state()
        window = (await client.telemetry(window_s=60.0)).window
        moments = {
            time_s: block.columns[Metric.UTILIZATION].raw[row]
            for block in window
            for row, time_s in enumerate(block.sample_times_unix_s)
        }
        assert state.newest_sample_unix_s in moments
        np.testing.assert_array_equal(state.planes[Metric.UTILIZATION].raw, moments[state.newest_sample_unix_s or 0.0])
