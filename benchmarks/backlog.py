"""A thousand jobs of one application at once, on a running suite: GPU time that stands idle beside the backlog.

    python -m benchmarks.backlog [--jobs 1000] [--clock scaled] [--scale 20]
                                 [--policies fcfs,hold_greedy_fixed,dqn] [--capture FILE]

Starts `adlro up` with a scaled or virtual clock on free ports, once for each policy, submits the jobs in one stream,
and waits for the end of all. GPU time is counted from the jobs' own records, from the first submission to the last
start, while jobs wait: idle, and *idle beside a backlog* (benchmarks/grid.py): a waiting job fits whose run there
would end before the queue is expected to drain. Between a job's end and the next launch some milliseconds pass, which
a clock at 20 times the speed shows as 20 times as many: `fcfs`, which never holds, shows what that comes to, and so
does a virtual clock, which waits for the scheduler. (There mean completion times are not compared: some jobs are done
before the last ones are submitted.) `--capture` writes what `adlro gpus` shows in the middle of the run under the
last policy.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from adlro.client import connect
from adlro.records.cluster import Cluster
from adlro.records.jobs import ExpectedRuntime, Job, JobSpec, JobState, JobType, SimulatedWork
from benchmarks.grid import idle_beside_backlog
from benchmarks.measuring import machine

APPLICATION, REFERENCE = "resnet50_fp16", "v100_sxm2"
RUNTIME_S = 30.0
CORES, MEMORY_MIB, GPU_MEMORY_MIB = 4, 16384, 8000
START_S, END_S = 240.0, 1800.0


@contextmanager
def suite(policy: str, clock: str, scale: float) -> Iterator[str]:
    """A suite under a policy; gives its address."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "adlro.cli", "up", "--port", "0", "--data-dir", folder]
        command += ["--clock", clock, "--scale", str(scale), "--policy", policy]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if "Ready in" in line:
                    break
            else:
                raise SystemExit(f"adlro up --policy {policy} did not come up: what it said stands above")
            status = json.loads((Path(folder) / "up.json").read_text(encoding="utf-8"))
            yield str(status["server"])
        finally:
            process.terminate()
            process.communicate(timeout=START_S)


def run(server: str, count: int, capture: Path | None) -> tuple[Cluster, tuple[Job, ...]]:
    """Submits the jobs, and gives them when all have ended."""
    spec = JobSpec(
        name=APPLICATION,
        user="backlog",
        job_type=JobType.MACHINE_LEARNING,
        application=APPLICATION,
        cpu_cores=CORES,
        memory_mib=MEMORY_MIB,
        gpu_memory_mib=GPU_MEMORY_MIB,
        expected_runtime=ExpectedRuntime(REFERENCE, RUNTIME_S),
        simulated_work=SimulatedWork(RUNTIME_S),
    )
    with connect(server) as client:
        ids = client.submit_many([spec] * count).accepted_ids
        if capture is not None:
            end_s = time.monotonic() + END_S
            while client.get(ids[count // 2]).state is JobState.PENDING and time.monotonic() < end_s:
                time.sleep(0.2)
            shown = subprocess.run(
                [sys.executable, "-m", "adlro.cli", "gpus", "--server", server],
                capture_output=True,
                text=True,
                check=True,
                timeout=START_S,
            )
            capture.write_text(shown.stdout, encoding="utf-8")
        return client.cluster(), client.wait(ids, timeout_s=END_S)


def idle_shares(cluster: Cluster, jobs: Sequence[Job]) -> dict[str, float]:
    """What stood idle while jobs waited: shares of GPU time, and the longest stretch of one GPU, in cluster seconds."""
    number = {gpu.gpu_id: index for index, (_, gpu) in enumerate(cluster.gpus())}
    nodes = {node.node_id: index for index, node in enumerate(cluster.nodes)}
    node = np.array([nodes[of.node_id] for of, _ in cluster.gpus()])
    models = [gpu.gpu_model for _, gpu in cluster.gpus()]
    submit_s, start_s, end_s = (
        np.array([float(getattr(job, name)) for job in jobs]) for name in ("submit_s", "start_s", "end_s")
    )
    on = np.array([number[job.gpu_id] for job in jobs])
    took_s: dict[str, list[float]] = {model: [] for model in models}
    for job, gpu, seconds in zip(jobs, on, end_s - start_s, strict=True):
        assert job.attempt_count == 1
        took_s[models[gpu]].append(seconds)
    # A model that took none would have taken as long as the slowest that did: it counts for little.
    slowest_s = max(np.mean(each) for each in took_s.values() if each)
    duration_s = np.array([float(np.mean(took_s[model])) if took_s[model] else slowest_s for model in models])
    cores = np.array([each.cpu_cores for each in cluster.nodes])
    moments = np.unique(np.concatenate([submit_s, start_s, end_s]))
    moments = moments[moments <= start_s.max()]
    gpus, idle_s, beside_s, all_s = len(models), 0.0, 0.0, 0.0
    stretch_s, longest_s = np.zeros(gpus), 0.0
    for now_s, next_s in itertools.pairwise(moments):
        waiting = int(((submit_s <= now_s) & (start_s > now_s)).sum())
        running = (start_s <= now_s) & (end_s > now_s)
        idle = np.ones(gpus, dtype=np.bool_)
        idle[on[running]] = False
        remaining_s = np.zeros(gpus)
        remaining_s[on[running]] = end_s[running] - now_s
        free = cores - CORES * np.bincount(node[on[running]], minlength=len(cores))
        fits = np.broadcast_to(idle & (free[node] >= CORES), (waiting, gpus))
        dt_s = float(next_s - now_s)
        if waiting:
            all_s += gpus * dt_s
            idle_s += float(idle.sum()) * dt_s
            rows = np.broadcast_to(duration_s, (waiting, gpus))
            beside_s += idle_beside_backlog(rows, fits, idle, remaining_s, node) * dt_s
            stretch_s = np.where(idle, stretch_s + dt_s, 0.0)
            longest_s = max(longest_s, float(stretch_s.max()))
    return {"idle": idle_s / all_s, "beside_backlog": beside_s / all_s, "longest_s": longest_s}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures and prints Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--clock", choices=("scaled", "virtual"), default="scaled")
    parser.add_argument("--scale", type=float, default=20.0, help="of a virtual clock: 0 for as fast as it can")
    parser.add_argument("--policies", default="fcfs,hold_greedy_fixed,dqn")
    parser.add_argument("--capture", type=Path)
    asked = parser.parse_args(arguments)
    print(f"{asked.jobs} jobs of {APPLICATION}, {asked.clock} clock, scale {asked.scale:g}; {machine()}")
    print("| policy | mean JCT, s | GPU time idle while jobs wait | idle beside a backlog | longest stretch, s |")
    print("| --- | --- | --- | --- | --- |")
    names = asked.policies.split(",")
    for name in names:
        with suite(name, asked.clock, asked.scale) as server:
            cluster, jobs = run(server, asked.jobs, asked.capture if name == names[-1] else None)
        assert all(job.state is JobState.SUCCEEDED for job in jobs)
        shares = idle_shares(cluster, jobs)
        mean_s = float(np.mean([job.jct_s for job in jobs]))
        print(
            f"| `{name}` | {mean_s:.1f} | {shares['idle']:.2%} | {shares['beside_backlog']:.2%} | "
            f"{shares['longest_s']:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
