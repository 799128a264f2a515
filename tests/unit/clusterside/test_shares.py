"""Two attempts on a GPU, each with its part: what is free, preemption with its waits, adoption, restarts."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from adlro.clusterside.attempts import Attempt, Attempts
from adlro.clusterside.cluster_side import ClusterSide
from adlro.clusterside.timers import LoopTimers
from adlro.errors import Conflict, InvalidInput
from adlro.placement import SHARED, GpuShare, Placement
from adlro.records.events import Capabilities, EventKind
from adlro.records.jobs import AttemptRef
from tests.unit.clusterside.memory_record import kept_of
from tests.unit.clusterside.test_preemption import CLUSTER, NODE_CORES, SPEC, Bench, Programs

GPU_MEMORY_MIB = 16_160
SHAREABLE = replace(SPEC, shareable=True)
GPU_IDS = [gpu.gpu_id for _, gpu in CLUSTER.gpus()]


class SharingPrograms(Programs):
    """An adapter whose programs may share a GPU."""

    capabilities = Capabilities(stop=True, gangs=True, shares=True, preemption=True)

    async def start(self, attempt: Attempt) -> None:
        self.attempts[attempt.job_id] = attempt
        assert attempt.job_id not in self.programs
        self.programs[attempt.job_id] = attempt.placement.gpu_ids
        used = CLUSTER.free()
        for job_id in self.programs:
            there = self.attempts[job_id]
            assert there.spec is not None
            there.placement.take(used, there.spec)  # raises where all of them do not fit
        self.runs(attempt)


class SharingBench(Bench):
    def __init__(self) -> None:
        super().__init__()
        self.driver = SharingPrograms(self.programs)
        self.side = ClusterSide(self.driver, LoopTimers())

    def half(self, job_id: str, gpu_id: str, *stops: str, **fields: Any) -> Any:
        refs = [AttemptRef(each, 1) for each in stops]
        part = Placement((GpuShare(gpu_id, SHARED),))
        return self.side.launch(job_id, 1, replace(SHAREABLE, **fields), part, 0, preempts=refs)

    async def run_half(self, job_id: str, gpu_id: str, **fields: Any) -> None:
        self.half(job_id, gpu_id, **fields)
        await self.until_told(job_id, "STARTED", "RUNNING")

    def on(self, gpu_id: str) -> tuple[float, int]:
        """Its free share and memory."""
        gpu = self.side.attempts._free.gpus[gpu_id]
        return gpu.share, gpu.memory_mib


@pytest.fixture
async def bench():
    made = SharingBench()
    await made.driver.begin(None)
    yield made
    await made.driver.close()


async def test_two_halves_and_their_memory_fill_a_gpu(bench):
    await bench.run_half("a", "n/0", gpu_memory_mib=10_000)
    assert bench.on("n/0") == (0.5, 6160)
    with pytest.raises(Conflict, match="GPU n/0 has 6160 MiB left beside a, b needs 6161 MiB"):
        bench.half("b", "n/0", gpu_memory_mib=6161)
    with pytest.raises(Conflict, match=r"GPU n/0 runs a; 0\.5 of it is free, and whole is to have all of it"):
        bench.launch("whole", "n/0")
    with pytest.raises(Conflict, match=r"GPU n/0 runs a; 0\.5 of it is free, and whole is to have all of it"):
        bench.launch("whole", "n/1", "n/0")
    await bench.run_half("b", "n/0", gpu_memory_mib=6160)
    assert bench.on("n/0") == (0.0, 0)
    with pytest.raises(Conflict, match="GPU n/0 runs a and b"):
        bench.half("c", "n/0")
    bench.driver.over("a")
    assert bench.on("n/0") == (0.5, 10_000)
    await bench.run_half("c", "n/0")


async def test_parts_that_a_job_can_not_have_are_refused(bench):
    for placement, spec in (
        (Placement((GpuShare("n/0", 0.25),)), SHAREABLE),
        (Placement((GpuShare("n/0", SHARED),)), SPEC),
        (Placement((GpuShare("n/0", SHARED), GpuShare("n/1", SHARED))), replace(SHAREABLE, gpu_count=2)),
    ):
        with pytest.raises(InvalidInput, match=r"^placement: ") as refused:
            bench.side.launch("a", 1, spec, placement, 0)
        assert refused.value.violations[0].field == "placement"


async def test_one_that_stops_both_waits_for_both_and_what_they_have_stays_theirs(bench):
    await bench.run_half("a", "n/0", cpu_cores=2, gpu_memory_mib=9000)
    await bench.run_half("b", "n/0", cpu_cores=3, gpu_memory_mib=7000)
    bench.launch("new", "n/0", stops=("a", "b"), cpu_cores=4, gpu_memory_mib=12_000)
    assert bench.on("n/0") == (0.0, 160)
    assert bench.free()[1]["n"] == 3
    await bench.until(lambda: set(bench.driver.told) == {"a", "b"})
    bench.driver.over("a")
    await bench.settle()
    assert bench.told("new") == []
    assert bench.on("n/0") == (0.0, 4160)
    assert bench.free()[1]["n"] == 4
    with pytest.raises(Conflict, match="GPU n/0 runs new"):
        bench.half("c", "n/0")
    kept = kept_of(bench.side.collect(whole=True))
    again = ClusterSide(SharingPrograms({}), LoopTimers())
    again.restore(kept)
    assert again.attempts._free == bench.side.attempts._free
    bench.driver.over("b")
    await bench.until_told("new", "STARTED", "RUNNING")
    assert bench.on("n/0") == (0.0, 4160)


async def test_one_of_two_makes_room_for_a_third(bench):
    await bench.run_half("a", "n/0", gpu_memory_mib=8000)
    await bench.run_half("b", "n/0", gpu_memory_mib=8000)
    with pytest.raises(Conflict, match=r"GPU n/0 runs b; 0\.5 of it is free"):
        bench.launch("new", "n/0", stops=("a",))
    with pytest.raises(Conflict, match="GPU n/0 has 8160 MiB left beside b, new needs 8161"):
        bench.half("new", "n/0", "a", gpu_memory_mib=8161)
    bench.half("new", "n/0", "a", gpu_memory_mib=8160)
    with pytest.raises(Conflict, match="GPU n/0 runs b and new"):
        bench.half("c", "n/0")
    assert bench.on("n/0") == (0.0, 0)
    await bench.until(lambda: "a" in bench.driver.told)
    bench.driver.over("a")
    await bench.until_told("new", "STARTED", "RUNNING")
    assert {each.job_id for each in bench.side.describe().running} == {"b", "new"}


async def test_beside_one_that_makes_room_there_is_place_for_another(bench):
    await bench.run_half("a", "n/0")
    bench.half("new", "n/0", "a")
    assert bench.on("n/0")[0] == 0.5
    bench.half("c", "n/0")
    assert bench.on("n/0")[0] == 0.0
    assert bench.side.stop("new", 1, 0)
    assert bench.on("n/0")[0] == 0.0, "a and c"
    await bench.until(lambda: "a" in bench.driver.told)
    bench.driver.over("a")
    assert bench.on("n/0")[0] == 0.5


def test_what_runs_already_is_adopted_with_its_part():
    attempts = Attempts(CLUSTER)

    def found(job_id: str, share: float) -> Attempt:
        return Attempt(job_id, 1, Placement((GpuShare("n/0", share),)), SHAREABLE)

    assert attempts.adopt(found("a", SHARED))
    assert not attempts.adopt(found("whole", 1.0))
    assert attempts.adopt(found("b", SHARED))
    assert not attempts.adopt(found("c", SHARED))


@pytest.mark.parametrize("seed", range(8))
async def test_no_gpu_and_no_node_is_overbooked_and_so_after_a_restart_at_any_moment(bench, seed):
    draw = random.Random(seed)
    shared = accepted = refused = 0
    for number in range(200):
        await bench.settle()
        open_ones = bench.side.open_attempts()
        match draw.randrange(6):
            case 0 | 1 | 2 | 3:
                gpu_ids = draw.sample(GPU_IDS, draw.choice((1, 1, 1, 2)))
                shareable = len(gpu_ids) == 1 and draw.random() < 0.8
                there = [each for each in open_ones if set(gpu_ids) & set(each.placement.gpu_ids)]
                stops = draw.choice(([], [], there, there[:1], there[-1:]))
                spec = replace(
                    SPEC, gpu_count=len(gpu_ids), shareable=shareable, cpu_cores=draw.randrange(1, 4),
                    gpu_memory_mib=draw.choice((0, 5000, 9000, 16_000)),
                )  # fmt: skip
                where = Placement(tuple(GpuShare(each, SHARED if shareable else 1.0) for each in gpu_ids))
                try:
                    bench.side.launch(f"j{number}", 1, spec, where, 0, preempts=[each.ref for each in stops])
                    accepted += bool(stops)
                except Conflict:
                    refused += 1
            case 4 if bench.programs:
                ended = draw.choice((EventKind.FINISHED, EventKind.FAILED))
                bench.driver.over(draw.choice(list(bench.programs)), ended)
            case 5 if open_ones:
                bench.side.stop(draw.choice(open_ones).job_id, 0, 0)
        # Those that have started and those that will have: whatever comes of the waits, no GPU has too much.
        for of in (lambda each: each.start_revision > 0, lambda each: not bench.side.preemptor_of(each)):
            shares, memory_mib = dict.fromkeys(GPU_IDS, 0.0), dict.fromkeys(GPU_IDS, 0)
            for each in filter(of, bench.side.open_attempts()):
                for part in each.placement.gpus:
                    shares[part.gpu_id] += part.share
                    memory_mib[part.gpu_id] += each.spec.gpu_memory_mib
            assert max(shares.values()) <= 1.0
            assert max(memory_mib.values()) <= GPU_MEMORY_MIB
        free = bench.side.attempts._free
        assert all(0.0 <= gpu.share <= 1.0 and 0 <= gpu.memory_mib <= GPU_MEMORY_MIB for gpu in free.gpus.values())
        assert all(each.cpu_cores <= NODE_CORES for each in free.nodes.values())
        running = [each.gpu_id for each in bench.side.describe().running if not each.placement.whole]
        shared += len(running) - len(set(running))
        again = ClusterSide(SharingPrograms({}), LoopTimers())
        again.restore(kept_of(bench.side.collect(whole=True)))
        assert again.attempts._free == free
        assert again.attempts._held == bench.side.attempts._held
        assert set(again._waiting) == set(bench.side._waiting)
    for job_id in [each.job_id for each in bench.side.open_attempts()]:
        bench.side.stop(job_id, 0, 0)
    await bench.settle()
    for job_id in list(bench.programs):
        bench.driver.over(job_id)
    await bench.settle()
    for job_id in list(bench.programs):
        bench.driver.over(job_id)
    assert bench.side.attempts._free == CLUSTER.free()
    assert min(shared, accepted, refused) > 5
