"""Times of decompose's parts on one core; part of benchmarks/decompose.py. Ratios say more than times."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from adlro.records.cluster import Cluster, Gpu, Node
from adlro.records.jobs import JobSpec
from adlro.records.matrices import MetricColumn, TelemetryBlock
from adlro.records.telemetry import Metric
from adlro.services.decompose.clusters.cluster_memory import ClusterMemory, GpuRecordCode
from adlro.services.decompose.clusters.gpu_matrix import METRIC_UNITS, GpuMatrix
from adlro.services.decompose.hypervectors.codebook import Codebook
from adlro.services.decompose.hypervectors.packed_index import PackedIndex
from adlro.services.decompose.hypervectors.similarity_kernel import Features
from adlro.services.decompose.outcomes.job_record_code import similarity
from adlro.services.decompose.outcomes.model_speeds import ModelSpeeds
from adlro.services.decompose.outcomes.outcome_memory import FinishedJob, OutcomeMemory
from adlro.services.decompose.runtimes.learned_predictor import LearnedPredictor
from adlro.services.decompose.server import DecomposeServer
from adlro.services.decompose.settings import DecomposeSettings
from adlro.services.decompose.variables.variables import Variables
from adlro.workload.job_lists import draw_groups, draw_jobs
from adlro.workload.scenario import load_scenario
from benchmarks.decompose_recovery import SIZES

GPUS = 64
RECORDS = 10_000
MODELS = ("v100_sxm2", "rtx_2080_ti", "radeon_vii")
K = 8


def p50_ms(work: Callable[[], object], seconds: float = 1.5, least: int = 15) -> float:
    """The median time of a call."""
    work()
    took: list[float] = []
    until = time.perf_counter() + seconds
    while len(took) < least or time.perf_counter() < until:
        began = time.perf_counter()
        work()
        took.append(time.perf_counter() - began)
    return 1000 * float(np.median(took))


def cluster(seed: int) -> dict[str, float]:
    """Encoding and decoding of 64 GPUs, d = 4096."""
    rng = np.random.default_rng(seed)
    code = GpuRecordCode(Codebook(), SIZES)
    slots = [f"gpu-{number}" for number in range(GPUS)]
    states = [np.stack([rng.integers(size, size=GPUS) for size in SIZES.values()], axis=1) for _ in range(2)]
    memory = ClusterMemory(code, slots)
    memory.update(slots, states[0])
    turn = [0]

    def encode() -> None:
        fresh = ClusterMemory.__new__(ClusterMemory)
        fresh.__dict__.update(memory.__dict__)
        fresh.bundle = np.zeros_like(memory.bundle)
        fresh._values = np.full_like(memory._values, -1)
        fresh.update(slots, states[0])

    def update_one() -> None:
        turn[0] += 1
        memory.update(slots[:1], states[turn[0] % 2][:1])

    return {
        "encode_64_gpus_ms": p50_ms(encode),
        "update_one_gpu_ms": p50_ms(update_one),
        "decode_64_gpus_ms": p50_ms(memory.decode),
        **torchhd_cleanup(code, memory),
    }


def torchhd_cleanup(code: GpuRecordCode, memory: ClusterMemory) -> dict[str, float]:
    """The cleanup of one record by us and by torchhd, over the same product codebook."""
    ours = p50_ms(lambda: memory.decode(memory.slots[:1]))
    try:
        import torch
        import torchhd
    except ImportError:
        return {"decode_one_gpu_ms": ours}
    torch.set_num_threads(1)
    numbers = np.stack(np.unravel_index(np.arange(code.combinations), tuple(code.sizes.values())), axis=1)
    products = torchhd.MAPTensor(torch.from_numpy(code.encode(numbers).astype(np.float32)))
    query = torchhd.MAPTensor(torch.from_numpy((memory.bundle * memory._atoms[0]).astype(np.float32)))
    theirs = p50_ms(lambda: torchhd.cleanup(query, products))
    return {"decode_one_gpu_ms": ours, "torchhd_cleanup_ms": theirs, "times_faster_than_torchhd": theirs / ours}


def some_jobs(count: int, seed: int) -> list[JobSpec]:
    """Jobs of the scenario `paper`, with a label so that most are records of their own."""
    rng = np.random.default_rng(seed)
    scenario = load_scenario("paper")
    jobs = draw_jobs(scenario, load=0.9, rng=rng, count=count, groups=draw_groups(scenario, rng))
    return [
        dataclasses.replace(job.spec("job"), labels={"batch_size": str(int(rng.integers(1, 5000)))}) for job in jobs
    ]


def recall(seed: int) -> dict[str, float]:
    """Recall of 8 of 10,000 records, and how many of the exact ones are found."""
    rng = np.random.default_rng(seed)
    memory = OutcomeMemory(Variables(), ModelSpeeds(), 2 * RECORDS)
    for number, spec in enumerate(some_jobs(RECORDS, seed)):
        model = MODELS[int(rng.integers(3))]
        memory.add(FinishedJob(f"job-{number}", spec, model, float(rng.uniform(1, 100)), float(number)))
    queries = some_jobs(100, seed + 1)
    found = []
    rows = memory.row_count
    features = Features(memory._categories[:rows], memory._reals[:rows])
    by_float_vectors = []
    floats = np.array(
        [memory._code.sum(c.tolist(), r.tolist()) for c, r in zip(*features, strict=True)], dtype=np.float32
    )
    lengths = np.linalg.norm(floats, axis=1)
    for spec in queries:
        query = memory._query(spec, "")
        exact = np.sort(similarity(query, features))[::-1]
        counts = np.sort([each.similarity for each in memory.nearest(spec, K)])[::-1]
        # Records as alike as the eighth are as good as the eighth.
        found.append(float((counts >= exact[K - 1] - 1e-9).mean()))
        vector = memory._code.sum(query.categories[0].tolist(), query.reals[0].tolist()).astype(np.float32)
        cosine = floats @ vector / lengths
        best = {int(row) for row in np.argsort(-cosine)[:K]}
        packed = memory._code.packed(query.categories[0].tolist(), query.reals[0].tolist())
        shortlist = set(memory._index.nearest(packed, 256).tolist())
        by_float_vectors.append(len(best & shortlist) / K)
    packed_ms = p50_ms(lambda: memory.nearest(queries[0], K))
    return {
        "rows": float(rows),
        "recall_of_10k_ms": packed_ms,
        "recall_at_8": float(np.mean(found)),
        "float_hypervectors_top_8_in_shortlist": float(np.mean(by_float_vectors)),
        "float_hypervectors_ms": p50_ms(lambda: np.argpartition(floats @ vector / lengths, -K)[-K:]),
        "packed_mb": memory._index.nbytes / 1e6,
        "float_mb": floats.nbytes / 1e6,
    }


def recall_of_a_million(seed: int, records: int = 1_000_000) -> dict[str, float]:
    """The search through a million packed hypervectors, all different; and whether near copies are found."""
    rng = np.random.default_rng(seed)
    index = PackedIndex(64)
    centres = rng.integers(2**64, size=(2000, 64), dtype=np.uint64)
    for start in range(0, records, 50_000):
        rows = np.arange(start, start + 50_000)
        # Kinds of jobs, each record with a quarter of the bits of its own.
        noise = rng.integers(2**64, size=(2, len(rows), 64), dtype=np.uint64)
        index.put_many(rows, centres[rng.integers(len(centres), size=len(rows))] ^ (noise[0] & noise[1]))
    hits = []
    for _ in range(20):
        row = int(rng.integers(records))
        noise = rng.integers(2**64, size=(3, 64), dtype=np.uint64)
        hits.append(int(index.nearest(index._all[row] ^ (noise[0] & noise[1] & noise[2]), 256)[0]) == row)
    query = index._all[7]
    return {
        "recall_of_1m_ms": p50_ms(lambda: index.nearest(query, 256), least=10),
        "near_copies_found": float(np.mean(hits)),
        "bytes_a_record": index.nbytes / records,
    }


def state(gpus: int = 1000) -> dict[str, float]:
    """What stands between a block of telemetry and the answer of GetClusterState: folding, and the message."""
    nodes = tuple(
        Node(f"n{number}", 32, 262144, tuple(Gpu(f"n{number}/{i}", MODELS[number % 3], 16160) for i in range(8)))
        for number in range(gpus // 8)
    )
    server = DecomposeServer(DecomposeSettings())
    matrix = GpuMatrix(Cluster("default", nodes))
    ids = tuple(gpu.gpu_id for node in nodes for gpu in node.gpus)
    rng = np.random.default_rng(0)
    clock = [0.0]

    def block() -> TelemetryBlock:
        clock[0] += 1.0
        values = rng.random((1, len(ids)), dtype=np.float32)
        columns = {metric: MetricColumn(METRIC_UNITS[metric], values * 50, values) for metric in Metric}
        return TelemetryBlock("speed", ids, (clock[0],), (), columns)

    def fold_and_answer() -> None:
        matrix.fold(block())
        server._state(matrix.snapshot()).SerializeToString()

    return {"fold_1000_gpus_ms": p50_ms(lambda: matrix.fold(block())), "fold_and_answer_ms": p50_ms(fold_and_answer)}


def predict(seed: int) -> dict[str, Any]:
    """PredictRuntime at 10,000 records."""
    rng = np.random.default_rng(seed)
    variables, speeds = Variables(), ModelSpeeds()
    predictor = LearnedPredictor(OutcomeMemory(variables, speeds, 2 * RECORDS), variables, speeds, lambda: ())
    scenario = load_scenario("paper")
    jobs = draw_jobs(scenario, load=0.9, rng=rng, count=RECORDS, groups=draw_groups(scenario, rng))
    began = time.perf_counter()
    for number, job in enumerate(jobs):
        model = MODELS[int(rng.integers(3))]
        spec = job.spec(f"{number}")
        predictor.learn(FinishedJob(f"{number}", spec, model, job.work_s / speeds.of(spec, model).ratio, float(number)))
    learned_s = time.perf_counter() - began
    specs = [job.spec("x") for job in jobs[:128]]
    predictor.predict(specs, MODELS)
    began = time.perf_counter()
    predictor._refit_itself()
    refit_s = time.perf_counter() - began
    return {
        "learn_10k_s": learned_s,
        "refit_ms": 1000 * refit_s,
        "predict_1_job_ms": p50_ms(lambda: predictor.predict(specs[:1], MODELS)),
        "predict_128_jobs_ms": p50_ms(lambda: predictor.predict(specs, MODELS)),
    }
