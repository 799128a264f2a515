"""What watching decisions, and keeping them, costs the orchestrator: CPU a decision, and decisions a second.

    python -m benchmarks.watching [--gpus 16 1024] [--decisions 150] [--rounds 8] [--policy hold_greedy_fixed]
                                  [--seed 1] [--json]

Real processes: Valkey, simcluster in virtual time, orchestrator, without decompose. Most GPUs are busy with long jobs;
the others run a list of short ones (load 0.9, Poisson arrivals) as fast as the orchestrator decides. Each round runs
one list with each kind of watchers, in an order of its own: nobody, 1, 8 and 50 watchers of summaries, 1 and 8 of all
of each decision (view FULL), and nobody while no decision is stored. The watchers sit in this process. Figures
are ratios to nobody's run of the same round: neighbours on the machine then hit both; geometric mean over the rounds,
with its 95 % interval (Student's t). Also, in this process: microseconds of the deciding loop for what a decision
keeps of what it looked at.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from scipy import stats

from adlro.decide.policies import POLICIES
from adlro.kit.channel import open_channel
from adlro.kit.embedded_redis import EmbeddedRedis
from adlro.kit.redis import connect
from adlro.kit.testing import SpawnedService, spawn_service
from adlro.records.cluster import Cluster, Gpu, Node
from adlro.records.jobs import ExpectedRuntime, Job, JobSpec, JobType, NormalizedJob, SimulatedWork
from adlro.services.orchestrator.deciding.considered import considered, prediction_of
from adlro.services.orchestrator.deciding.decisions import Made
from adlro.services.orchestrator.ledger.ledger import Ledger
from adlro.store import JobStore, NewJob
from adlro.store.keys import DECISIONS, EXPLANATIONS
from adlro.v1 import cluster_service_pb2 as cluster_pb
from adlro.v1 import cluster_service_pb2_grpc as cluster_grpc
from adlro.v1 import orchestrator_service_pb2 as pb
from adlro.v1 import orchestrator_service_pb2_grpc as pb_grpc
from benchmarks.measuring import command, cpu_s, cpu_since, machine, spread

TIMEOUT_S = 600.0
MODEL = "v100_sxm2"
MODELS = (MODEL, "rtx_2080_ti", "radeon_vii")
FREE_GPUS = {16: 8, 1024: 64}
WORK_S = 10.0
LONG_S = 1e7
NOBODY, NOT_STORED = "nobody", "nobody, none stored"
# Watchers, and their view.
TARGETS: dict[str, tuple[int, int]] = {
    NOBODY: (0, pb.DECISION_VIEW_SUMMARY),
    NOT_STORED: (0, pb.DECISION_VIEW_SUMMARY),
    "1 summary": (1, pb.DECISION_VIEW_SUMMARY),
    "8 summary": (8, pb.DECISION_VIEW_SUMMARY),
    "50 summary": (50, pb.DECISION_VIEW_SUMMARY),
    "1 full": (1, pb.DECISION_VIEW_FULL),
    "8 full": (8, pb.DECISION_VIEW_FULL),
}


# ---- watchers


class Looking(Protocol):
    """Whoever looks at an orchestrator while it decides; a context manager.

    Attributes:
        bytes_each: bytes that each of them has taken so far; 0: not counted.
    """

    @property
    def bytes_each(self) -> float: ...  # noqa: D102

    async def __aenter__(self) -> Any: ...

    async def __aexit__(self, *_: object) -> None: ...

    async def until(self, count: int) -> None:
        """Waits until so many decisions have come."""


class Watchers:
    """Watchers of one orchestrator: the first reads its messages, the others only take them."""

    def __init__(self, address: str, count: int, view: int) -> None:
        self.decisions = 0
        self._bytes_taken = 0
        self._count, self._view = count, view
        self._channel = open_channel(address)
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def bytes_each(self) -> float:
        """Bytes that each watcher has taken so far."""
        return self._bytes_taken / max(self._count, 1)

    async def __aenter__(self) -> Watchers:
        self._tasks = [asyncio.create_task(self._take(reads=number == 0)) for number in range(self._count)]
        if self._tasks:
            await asyncio.sleep(1.0)  # the streams are open on the server
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._channel.close(None)

    async def until(self, count: int) -> None:
        """Waits until so many decisions have come."""
        async with asyncio.timeout(TIMEOUT_S):
            while self._tasks and self.decisions < count:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            await asyncio.sleep(0.5)

    async def _take(self, *, reads: bool) -> None:
        method = self._channel.unary_stream(
            "/adlro.v1.OrchestratorService/WatchDecisions",
            request_serializer=pb.WatchDecisionsRequest.SerializeToString,
            response_deserializer=bytes,
        )
        async for body in method(pb.WatchDecisionsRequest(view=self._view), timeout=TIMEOUT_S):  # type: ignore[arg-type]
            self._bytes_taken += len(body)
            if reads:
                message = pb.WatchDecisionsResponse.FromString(body)
                self.decisions += len(message.decisions) + message.HasField("decision") + message.missed_count


# ---- one suite


class Suite:
    """Valkey, a simulated cluster and an orchestrator, with long jobs on most GPUs."""

    def __init__(self, redis_url: str, cluster: SpawnedService, orchestrator: SpawnedService, gpus: int) -> None:
        self.redis_url, self.cluster, self.orchestrator, self.gpus = redis_url, cluster, orchestrator, gpus

    async def fill(self) -> None:
        """Starts the long jobs, while the clock stands."""
        busy = self.gpus - FREE_GPUS[self.gpus]
        async with self._stubs() as (stub, _, store):
            await _submit(store, [_spec(LONG_S) for _ in range(busy)])
            while (await stub.GetStatus(pb.GetStatusRequest(), timeout=TIMEOUT_S)).running_count < busy:  # noqa: ASYNC110
                await asyncio.sleep(0.1)

    def watchers(self, target: str) -> Watchers:
        """Watchers of one kind of TARGETS."""
        return Watchers(self.orchestrator.address, *TARGETS[target])

    async def measure(self, looking: Looking, count: int, rng: np.random.Generator) -> dict[str, float]:
        """One list while somebody looks."""
        busy = self.gpus - FREE_GPUS[self.gpus]
        async with self._stubs() as (stub, cluster, store):
            now_s = (await cluster.DescribeCluster(cluster_pb.DescribeClusterRequest(), timeout=TIMEOUT_S)).clock.time_s
            gaps_s = rng.exponential(WORK_S / (0.9 * FREE_GPUS[self.gpus]), count)
            begins_s = now_s + 1.0 + np.cumsum(gaps_s)
            works_s = rng.lognormal(math.log(WORK_S) - 0.5 * 0.6**2, 0.6, count)
            specs = [_spec(float(work), float(begin)) for work, begin in zip(works_s, begins_s, strict=True)]
            await _submit(store, specs)
            status = pb.GetStatusRequest()
            while (await stub.GetStatus(status, timeout=TIMEOUT_S)).waiting_for_begin_time_count < count:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            async with looking:
                decided = (await stub.GetStatus(status, timeout=TIMEOUT_S)).decision_count
                began_s, cpu_before = time.perf_counter(), cpu_s(self.orchestrator.pid)
                await cluster.SetClock(cluster_pb.SetClockRequest(paused=False), timeout=TIMEOUT_S)
                while len(await store.active_sequences()) > busy:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
                took_s = time.perf_counter() - began_s
                await cluster.SetClock(cluster_pb.SetClockRequest(paused=True), timeout=TIMEOUT_S)
                decisions = (await stub.GetStatus(status, timeout=TIMEOUT_S)).decision_count - decided
                await looking.until(decisions)  # what is told and stored later counts too
                cpu = cpu_since(self.orchestrator.pid, cpu_before)
                found = {"cpu_ms": 1e3 * (cpu or math.nan) / decisions, "decisions_per_s": decisions / took_s}
                if looking.bytes_each:
                    found["bytes"] = looking.bytes_each / decisions
        return found

    async def entry_bytes(self) -> dict[str, float]:
        """Mean size of the newest entries of the two streams."""
        redis: Any = connect(self.redis_url)
        sizes = {}
        for name, key in (("summary", DECISIONS), ("explanation", EXPLANATIONS)):
            entries = await redis.xrevrange(key, count=200)
            sizes[name] = float(np.mean([len(fields[b"m"]) for _, fields in entries])) if entries else 0.0
        await redis.aclose()
        return sizes

    @contextlib.asynccontextmanager
    async def _stubs(self) -> Any:
        redis = connect(self.redis_url)
        channels = [open_channel(self.orchestrator.address), open_channel(self.cluster.address)]
        try:
            yield (
                pb_grpc.OrchestratorServiceStub(channels[0]),
                cluster_grpc.ClusterServiceStub(channels[1]),
                JobStore(redis),
            )
        finally:
            for channel in channels:
                await channel.close(None)
            await redis.aclose()


def _spec(work_s: float, begin_s: float | None = None) -> JobSpec:
    return JobSpec(
        "j",
        "ann",
        JobType.SIMULATION,
        cpu_cores=1,
        memory_mib=1024,
        application="minifmm",
        simulated_work=SimulatedWork(work_s),
        expected_runtime=ExpectedRuntime(MODEL, work_s),
        begin_time_s=begin_s,
    )


async def _submit(store: JobStore, specs: Sequence[JobSpec]) -> None:
    for start in range(0, len(specs), 100):
        await store.create_many([NewJob(spec, NormalizedJob(), "", 0.0) for spec in specs[start : start + 100]])


@contextlib.contextmanager
def suite(gpus: int, policy: str, **settings: str) -> Iterator[Suite]:
    """A suite of its own, with settings of the orchestrator."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        redis = stack.enter_context(EmbeddedRedis(str(folder)))
        nodes = "".join(
            f'[[nodes]]\nname = "n{n}"\ngpu_model = "{MODELS[n % 3]}"\ngpus = 4\ngpu_memory_mib = 16000\n'
            "cpu_cores = 20\nmemory_mib = 262144\n"
            for n in range(gpus // 4)
        )
        (folder / "cluster.toml").write_text(f'name = "default"\n{nodes}', encoding="utf-8")
        clock = {
            "ADLRO_REDIS_URL": redis.url,
            "ADLRO_SIMCLUSTER_CLOCK_MODE": "virtual",
            "ADLRO_SIMCLUSTER_CLOCK_PAUSED": "true",
            # Else the clock would go to the long jobs' ends as soon as the others are done.
            "ADLRO_SIMCLUSTER_CLOCK_SCALE": "2000",
            "ADLRO_SIMCLUSTER_CLUSTER": str(folder / "cluster.toml"),
        }
        cluster = stack.enter_context(spawn_service("simcluster", clock))
        env = {
            "ADLRO_REDIS_URL": redis.url,
            "ADLRO_ORCHESTRATOR_CLUSTER_ADDRESS": cluster.address,
            "ADLRO_ORCHESTRATOR_DECOMPOSE_ADDRESS": "127.0.0.1:1",
            "ADLRO_ORCHESTRATOR_PREDICTION_TIMEOUT_S": "0.2",
            "ADLRO_ORCHESTRATOR_POLICY": policy,
            **settings,
        }
        yield Suite(redis.url, cluster, stack.enter_context(spawn_service("orchestrator", env)), gpus)


# ---- the figures


async def turns(gpus: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """All rounds at one size of cluster."""
    rng = np.random.default_rng((arguments.seed, gpus))
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in TARGETS}
    with (
        suite(gpus, arguments.policy) as ours,
        suite(gpus, arguments.policy, ADLRO_ORCHESTRATOR_DECISIONS_STORED="0") as without,
    ):
        for each in (ours, without):
            await each.fill()
            await each.measure(each.watchers(NOBODY), arguments.decisions, rng)  # to warm up
        for number in range(arguments.rounds):
            for name in rng.permutation(list(TARGETS)).tolist():
                list_rng = np.random.default_rng((arguments.seed, gpus, number))  # the same list for all of a round
                each = without if name == NOT_STORED else ours
                rounds[name].append(await each.measure(each.watchers(name), arguments.decisions, list_rng))
        sizes = await ours.entry_bytes()
    found: dict[str, Any] = {"entry_bytes": sizes, "targets": {}}
    for name, results in rounds.items():
        found["targets"][name] = {key: spread([each[key] for each in results]) for key in results[0]}
        if name != NOBODY:
            found["targets"][name]["against_nobody"] = {
                key: interval([ours[key] / theirs[key] for ours, theirs in zip(results, rounds[NOBODY], strict=True)])
                for key in ("cpu_ms", "decisions_per_s")
            }
    return found


def interval(ratios: Sequence[float]) -> dict[str, float]:
    """Geometric mean of ratios, with its 95 % interval."""
    logs = np.log(ratios)
    half = float(stats.t.ppf(0.975, len(logs) - 1) * logs.std(ddof=1) / math.sqrt(len(logs))) if len(logs) > 1 else 0.0
    mean = float(logs.mean())
    return {"mean": math.exp(mean), "low": math.exp(mean - half), "high": math.exp(mean + half)}


def loop_us(gpus: int, policy: str, count: int, seed: int) -> dict[str, dict[str, float]]:
    """Microseconds of the deciding loop: what a decision keeps of what was looked at, beside the decision itself."""
    rng = np.random.default_rng((seed, gpus))
    nodes = tuple(
        Node(f"n{n}", 20, 262_144, tuple(Gpu(f"n{n}/{i}", MODELS[n % 3], 16_000) for i in range(4)))
        for n in range(gpus // 4)
    )
    ledger, made = Ledger(Cluster("busy", nodes)), POLICIES[policy]()
    for number in range(gpus * 3 // 4 + 32):
        entry = ledger.enter(Job(f"job-{number}", _spec(10.0), submit_s=0.0), 0, rng.lognormal(2.5, 0.7, len(MODELS)))
        ledger.enqueue(entry)
        if number < gpus * 3 // 4:
            ledger.place(entry, [int(rng.choice(np.flatnonzero(ledger.occupancy.idle)))], 0.0)
    observation, queue = ledger.observe(1.0), ledger.queued()
    gpu = int(observation.table.gpu[0])
    took: dict[str, list[float]] = {"decision": [], "kept": [], "explained": [], "stored": [], "summarised": []}
    judgement = made.judge(observation)
    for _ in range(count):
        took["decision"].append(_us(lambda: made.judge(observation)))
        took["kept"].append(
            _us(lambda: considered(judgement, observation.table, queue, prediction_of(ledger, queue[0], (gpu,))))
        )
    seen = considered(judgement, observation.table, queue, prediction_of(ledger, queue[0], (gpu,)))
    decision = Made.now("d-1-1", queue[0], made, ledger, 1.0).placed(
        (gpu,), judgement, observation, 0, 1, None, 1.0, considered=seen
    )
    for _ in range(max(10, count // 10)):
        for name in ("explained", "stored", "summarised"):
            took[name].append(_us(getattr(decision, name)))
    return {name: {"p50": float(np.median(values))} for name, values in took.items()} | {
        "pairs": {"p50": float(len(observation.table.job))}
    }


def _us(work: Any) -> float:
    began = time.perf_counter()
    work()
    return 1e6 * (time.perf_counter() - began)


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """All sizes of cluster."""
    return {
        "policy": arguments.policy,
        "decisions": arguments.decisions,
        "loop_us": {str(gpus): loop_us(gpus, arguments.policy, 200, arguments.seed) for gpus in arguments.gpus},
        "gpus": {str(gpus): asyncio.run(turns(gpus, arguments)) for gpus in arguments.gpus},
    }


def report(result: dict[str, Any]) -> None:
    """The figures for people."""
    print(f"machine: {result['machine']}")
    print(
        f"{result['decisions']} decisions of {result['policy']} a list, {result['rounds']} rounds in turn, seed "
        f"{result['seed']}; medians, and ratios to nobody's run of the same round (95 % interval)"
    )
    for gpus, found in result["gpus"].items():
        sizes = found["entry_bytes"]
        print(f"{gpus} GPUs; stored: {sizes['summary']:.0f} B a summary, {sizes['explanation']:.0f} B an explanation")
        for name, each in found["targets"].items():
            line = (
                f"  {name:20s} {each['cpu_ms']['median']:7.2f} ms CPU a decision, "
                f"{each['decisions_per_s']['median']:6.1f} decisions/s"
            )
            for key, ratio in each.get("against_nobody", {}).items():
                line += f"  {key.split('_')[0]} x {ratio['mean']:.3f} ({ratio['low']:.3f}..{ratio['high']:.3f})"
            if "bytes" in each:
                line += f"  {each['bytes']['median']:.0f} B a decision"
            print(line)
    for gpus, took in result["loop_us"].items():
        print(f"in one process, {gpus} GPUs, us: " + ", ".join(f"{k} {v['p50']:.0f}" for k, v in took.items()))


def main() -> None:
    """Measures, and prints."""
    parser = command(__doc__, rounds=8, seconds=0.0)
    parser.add_argument("--gpus", type=int, nargs="+", choices=sorted(FREE_GPUS), default=sorted(FREE_GPUS))
    parser.add_argument("--decisions", type=int, default=150)
    parser.add_argument("--policy", default="hold_greedy_fixed", choices=sorted(POLICIES))
    arguments = parser.parse_args()
    facts = machine()
    result = {"machine": facts, "seed": arguments.seed, "rounds": arguments.rounds, **run(arguments)}
    if arguments.json:
        print(json.dumps(result, indent=2))
    else:
        report(result)


if __name__ == "__main__":
    main()
