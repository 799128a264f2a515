"""`adlro top` at a large cluster: the CPU of its process, and how soon it answers a key.

    python -m benchmarks.top [--gpus 1024] [--jobs 2000] [--starts 12] [--interval 500ms] [--seconds 30] [--rounds 3]
                             [--size 150x44] [--json]

The command runs as users run it, on a terminal of its own whose output is read. Its services are simulated by one other
process: half of the open jobs run, `starts` jobs a second end, start and are submitted (three changes each), the GPUs
report as decompose's matrix of them does, and time goes on. Key to answer: from the key until the terminal has what the
key shows. The goals: less than 10 % of a core, and an answer within 100 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from grpc_health.v1 import health_pb2, health_pb2_grpc

from adlro.cli.top.gpu_cells import StripMetric
from adlro.placement import Placement
from adlro.records.cluster import Cluster, Gpu, Node
from adlro.records.events import Clock, ClockMode, ClusterDescription
from adlro.records.jobs import Job, JobAttempt, JobSpec, JobState, JobType, PendingReason
from adlro.records.matrices import DriftSummary
from adlro.records.telemetry import Metric
from adlro.v1 import (
    cluster_service_pb2_grpc,
    decompose_service_pb2,
    decompose_service_pb2_grpc,
    job_service_pb2,
    job_service_pb2_grpc,
    orchestrator_service_pb2,
    orchestrator_service_pb2_grpc,
)
from adlro.wire import PlanesNow, VariableValues, description_to_proto, job_to_proto, planes_to_proto
from benchmarks.measuring import ROOT, cpu_s, machine, percentile, shown, spread
from tests.pty_screen import PtyProgram

GOAL_CPU_RATIO = 0.10
GOAL_ANSWER_MS = 100.0

_MODELS = (("v100_sxm2", 16160), ("rtx_2080_ti", 11264))
_NODE_GPUS = 8
_VARIABLES = (
    *("gpu_model", "utilization_level", "memory_level", "bandwidth_level", "temperature_level", "power_level"),
    *("load_trend", "temperature_trend", "node", "drift"),
)
_KINDS = job_service_pb2.WatchJobsResponse.Kind


class Services:
    """All services of a large cluster, simulated: what they say costs them little.

    Args:
        gpu_count: GPUs of the cluster.
        job_count: open jobs.
        starts_per_s: jobs that end, start and are submitted in a second.
    """

    def __init__(self, gpu_count: int, job_count: int, starts_per_s: float) -> None:
        self._random = random.Random(1)
        self._rate = starts_per_s
        self._began_s = time.monotonic()
        nodes = [
            Node(
                f"node-{first // _NODE_GPUS}",
                64,
                524288,
                tuple(
                    Gpu(f"node-{first // _NODE_GPUS}/{number}", *_MODELS[first * 2 >= gpu_count])
                    for number in range(min(_NODE_GPUS, gpu_count - first))
                ),
            )
            for first in range(0, gpu_count, _NODE_GPUS)
        ]
        self._cluster = Cluster("default", tuple(nodes))
        self._free = [gpu for _, gpu in self._cluster.gpus()]
        self._revision = 0
        self._number = 0
        self._running: list[Job] = []
        self._waiting: list[Job] = []
        for _ in range(job_count):
            self._submit()
        for _ in range(min(job_count // 2, gpu_count)):
            self._start()

    @property
    def _now_s(self) -> float:
        return 10_000.0 + time.monotonic() - self._began_s

    def _changed(self, job: Job) -> Job:
        self._revision += 1
        return replace(job, revision=self._revision)

    def _submit(self) -> Job:
        self._number += 1
        kind = self._random.choice(list(JobType)[1:])
        spec = JobSpec(
            f"{kind.label}-{self._number}",
            f"user-{self._random.randrange(40)}",
            kind,
            application="resnet50_fp16",
            priority=self._random.random(),
        )
        text = "waits for a GPU with 4 cores and 15000 MiB on its node"
        submit_s = self._now_s - self._random.uniform(0.0, 5000.0)
        reason = self._random.choice([PendingReason.RESOURCES, PendingReason.RESOURCES, PendingReason.POLICY])
        job = Job(f"job-{self._number}", spec, JobState.PENDING, reason, text, time.time(), submit_s)
        self._waiting.append(self._changed(job))
        return self._waiting[-1]

    def _start(self) -> Job:
        job, gpu = self._waiting.pop(0), self._free.pop(self._random.randrange(len(self._free)))
        placement, now_s = Placement.on(gpu.gpu_id), self._now_s
        running = replace(
            job,
            state=JobState.RUNNING,
            pending_reason=PendingReason.NONE,
            message="",
            start_s=now_s,
            placement=placement,
            gpu_model=gpu.gpu_model,
            attempts=(JobAttempt(1, placement, gpu.gpu_model, now_s),),
        )
        self._running.append(self._changed(running))
        return self._running[-1]

    def _end(self) -> Job:
        job = self._running.pop(self._random.randrange(len(self._running)))
        (gpu,) = (each for _, each in self._cluster.gpus() if each.gpu_id == job.gpu_id)
        self._free.append(gpu)
        return self._changed(replace(job, state=JobState.SUCCEEDED, end_s=self._now_s))

    async def WatchJobs(self, request: Any, _: Any) -> AsyncIterator[Any]:  # noqa: N802
        """The open jobs, then changes at the rate."""
        response = job_service_pb2.WatchJobsResponse
        if not request.HasField("after_revision"):
            for job in (*self._running, *self._waiting):
                yield response(kind=_KINDS.KIND_SNAPSHOT, job=job_to_proto(job), revision=job.revision)
            yield response(kind=_KINDS.KIND_SNAPSHOT_END, revision=self._revision)
        while True:
            await asyncio.sleep(1.0 / self._rate)
            for job in (self._end(), self._start(), self._submit()):
                yield response(kind=_KINDS.KIND_CHANGE, job=job_to_proto(job), revision=job.revision)

    async def WatchStatus(self, request: Any, _: Any) -> AsyncIterator[Any]:  # noqa: N802
        """Who decides, and how long the queue is: it changes all the time."""
        while True:
            yield orchestrator_service_pb2.WatchStatusResponse(status=self._status())
            await asyncio.sleep(max(request.min_interval_s, 0.1))

    def _status(self) -> orchestrator_service_pb2.GetStatusResponse:
        reasons = Counter(int(job.pending_reason) for job in self._waiting)
        types = Counter(int(job.spec.job_type) for job in self._waiting)
        users = Counter(job.spec.user for job in self._waiting)
        return orchestrator_service_pb2.GetStatusResponse(
            acting=True,
            instance_id="one",
            lease_holder="one",
            policy="dqn",
            policy_version="88d4162f1b29",
            deciding_policy="dqn",
            deciding_basis=orchestrator_service_pb2.DECISION_BASIS_POLICY,
            cluster_connected=True,
            cluster_incarnation="run",
            cluster_revision=self._revision,
            cluster_time_s=self._now_s,
            queue_length=len(self._waiting),
            running_count=len(self._running),
            event_lag=orchestrator_service_pb2.EventLag(newest_revision=self._revision),
            waiting_by_reason=[
                orchestrator_service_pb2.PendingReasonCount(reason=reason, count=count)  # type: ignore[arg-type]
                for reason, count in reasons.items()
            ],
            waiting_by_job_type=[
                orchestrator_service_pb2.JobTypeCount(job_type=kind, count=count)  # type: ignore[arg-type]
                for kind, count in types.items()
            ],
            waiting_by_user=[
                orchestrator_service_pb2.UserCount(user=user, count=count) for user, count in users.most_common(20)
            ],
            waiting_user_count=len(users),
        )

    async def DescribeCluster(self, _request: Any, _: Any) -> Any:  # noqa: N802
        """Nodes and GPUs, and the clock."""
        clock = Clock(ClockMode.REAL, 1.0, False, self._now_s)
        return description_to_proto(ClusterDescription(self._cluster, (), (), clock, "run", self._revision, 1))

    async def WatchClusterState(self, request: Any, _: Any) -> AsyncIterator[Any]:  # noqa: N802
        """The matrix of the GPUs in short, all of it new each time."""
        gpus = [(gpu.gpu_id, node.node_id, gpu.gpu_model) for node, gpu in self._cluster.gpus()]
        numbers = np.zeros(len(gpus), np.uint8)
        variables = {name: VariableValues(("0.85..0.90",), numbers) for name in _VARIABLES}
        before, revision = None, 0
        while True:
            held = {job.gpu_id for job in self._running}
            allocated = np.array([gpu_id in held for gpu_id, _, _ in gpus], np.float32)
            noise = np.random.default_rng()
            planes = {
                metric: allocated * (0.7 + 0.3 * noise.random(len(gpus), dtype=np.float32)) for metric in list(Metric)
            }
            revision += 1
            now = PlanesNow("default", revision, time.time(), tuple(gpus), planes, variables, {}, DriftSummary())
            yield decompose_service_pb2.WatchClusterStateResponse(planes=planes_to_proto(now, before))
            before = now
            await asyncio.sleep(max(request.min_interval_s, 0.1))

    async def PredictRuntime(self, request: Any, _: Any) -> Any:  # noqa: N802
        """The same runtime for each job."""
        answer = decompose_service_pb2.PredictRuntimeResponse()
        for _job in request.jobs:
            row = answer.predictions.add()
            for model in request.gpu_models:
                row.predictions.add(gpu_model=model, median_s=300.0, low_s=100.0, high_s=900.0, interval_coverage=0.8)
        return answer

    async def Check(self, _request: Any, _: Any) -> Any:  # noqa: N802
        """It serves."""
        return health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)

    def __getattr__(self, name: str) -> Any:
        """Methods that `adlro top` does not call."""
        if not name[:1].isupper():
            raise AttributeError(name)
        return lambda _request, context: context.abort(grpc.StatusCode.UNIMPLEMENTED, name)


async def serve(services: Any) -> None:
    """Serves all services by one object until stdin ends; prints its address."""
    server = grpc.aio.server()
    for add in (
        job_service_pb2_grpc.add_JobServiceServicer_to_server,
        orchestrator_service_pb2_grpc.add_OrchestratorServiceServicer_to_server,
        decompose_service_pb2_grpc.add_DecomposeServiceServicer_to_server,
        cluster_service_pb2_grpc.add_ClusterServiceServicer_to_server,
        health_pb2_grpc.add_HealthServicer_to_server,
    ):
        add(services, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"127.0.0.1:{port}", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(0)


@contextlib.contextmanager
def simulated(gpus: int, jobs: int, starts_per_s: float, module: str = "benchmarks.top") -> Iterator[str]:
    """The address of simulated services, which a module serves as a process of its own (`--serve`)."""
    given = ["--serve", f"--gpus={gpus}", f"--jobs={jobs}", f"--starts={starts_per_s}"]
    services = subprocess.Popen(
        [sys.executable, "-m", module, *given], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert services.stdin is not None
    assert services.stdout is not None
    try:
        yield services.stdout.readline().strip()
    finally:
        with contextlib.suppress(BrokenPipeError):
            services.stdin.close()
        services.wait(30)


def measure(address: str, options: argparse.Namespace) -> dict[str, float]:
    """One round: CPU while nobody touches it, then keys."""
    names = ("SERVER", "DECOMPOSE_SERVER", "ORCHESTRATOR_SERVER", "CLUSTER_SERVER")
    kept = {key: value for key, value in os.environ.items() if not key.startswith("ADLRO_")}
    env = {**kept, **{f"ADLRO_{name}": address for name in names}}
    columns, lines = map(int, options.size.split("x"))
    command = [sys.executable, "-m", "adlro.cli", "top", "--interval", options.interval]
    program = PtyProgram(command, env, ROOT, (columns, lines))
    try:
        begin_s = program.wait_for("waiting first") + program.wait_for("busy")
        time.sleep(5.0)
        before_s, written, start_s = cpu_s(program.process.pid) or 0.0, len(program.written), time.monotonic()
        time.sleep(options.seconds)
        passed_s = time.monotonic() - start_s
        used_s = (cpu_s(program.process.pid) or 0.0) - before_s
        bytes_per_s = (len(program.written) - written) / passed_s
        moved, opened = [], []
        for number in range(options.keys):
            metric = list(StripMetric)[(number + 1) % len(StripMetric)]
            moved.append(1e3 * answer_s(program, b"m", f"{metric}: "))
            opened.append(1e3 * answer_s(program, b"g", "POWER"))
            answer_s(program, b"\x1b", "waiting first")
            time.sleep(0.2)
        status = Path(f"/proc/{program.process.pid}/status").read_text()
        resident = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        program.press(b"q")
        program.end()
    finally:
        program.close()
    return {
        "cpu_ratio": used_s / passed_s,
        "first_picture_s": begin_s,
        "written_kb_per_s": bytes_per_s / 1e3,
        "metric_p50_ms": percentile(moved, 0.5),
        "metric_p95_ms": percentile(moved, 0.95),
        "page_p50_ms": percentile(opened, 0.5),
        "page_p95_ms": percentile(opened, 0.95),
        "resident_mb": int(resident.split()[1]) / 1e3,
    }


def answer_s(program: PtyProgram, key: bytes, text: str) -> float:
    """Presses a key; how long until its answer stands on the terminal, seconds."""
    time.sleep(0.15)
    after = len(program.written)
    program.press(key)
    return program.wait_for(text, after=after)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--gpus", type=int, default=1024)
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--starts", type=float, default=12.0)
    parser.add_argument("--interval", default="500ms")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--keys", type=int, default=20)
    parser.add_argument("--size", default="150x44", help="columns x lines")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve(Services(options.gpus, options.jobs, options.starts)))
        return
    with simulated(options.gpus, options.jobs, options.starts) as address:
        about = machine()
        rounds = [measure(address, options) for _ in range(options.rounds)]
        about["load_after"] = round(os.getloadavg()[0], 2)
    found = {key: spread([each[key] for each in rounds]) for key in rounds[0]}
    if options.json:
        print(json.dumps({"machine": about, "rounds": rounds, "figures": found}, indent=2))
        return
    print(", ".join(f"{key} {value}" for key, value in about.items()))
    print(f"{options.gpus} GPUs, {options.jobs} open jobs, {options.starts:g} starts/s, every {options.interval}")
    for key, value in found.items():
        goal = {"cpu_ratio": GOAL_CPU_RATIO, "metric_p95_ms": GOAL_ANSWER_MS, "page_p95_ms": GOAL_ANSWER_MS}.get(key)
        told = f"  (goal: less than {goal:g})" if goal is not None else ""
        print(f"{key:18} {shown(value, digits=3 if value['median'] < 10 else 0)}{told}")


if __name__ == "__main__":
    main()
