"""Microsoft's Philly trace as a flat CSV file: timestamp, duration, num_gpus, gpu_time, cluster.

One line per job, in the order of submission; `cluster` is its virtual cluster (M. Jeon et al., "Analysis of Large-Scale
Multi-Tenant GPU Clusters for DNN Training Workloads", USENIX ATC 2019).
"""

from __future__ import annotations

from pathlib import Path

from adlro.errors import InvalidInput
from adlro.records.cluster import Cluster
from adlro.workload.job_lists import WorkloadJob
from adlro.workload.scenario import Scenario, load_scenario
from adlro.workload.traces.complete import Found, TraceJob, TraceNotes, complete, require_multi_gpu
from adlro.workload.traces.rows import LONGEST_S, InOrder, csv_rows

PHILLY_COLUMNS = ("timestamp", "duration", "num_gpus", "gpu_time", "cluster")

_DRAWN = ("job type", "application", "CPU cores", "memory", "GPU memory", "priority")
_REMARK = "the virtual cluster is the user; a job's duration is its work on the reference GPU"


def read_philly(
    path: str | Path,
    *,
    seed: int = 0,
    limit: int | None = None,
    scenario: Scenario | None = None,
    multi_gpu: str = "gang",
    cluster: Cluster | None = None,
) -> tuple[list[WorkloadJob], TraceNotes]:
    """Reads a Philly CSV file (also gzipped, `.gz`).

    The duration becomes work on the reference GPU, the virtual cluster the user `vc-<cluster>`; a job of several GPUs
    keeps them, or becomes one of one GPU; jobs without duration or GPU are left out. `gpu_time` must be a number and is
    not used. Missing fields are drawn by the scenario's rules (see `adlro.workload.traces.complete`).

    Args:
        path: the file.
        seed: seed of the drawn fields.
        limit: only the first jobs, up to this number.
        scenario: source of the drawn fields; `paper` if left out.
        multi_gpu: one of `MULTI_GPU`.
        cluster: where the jobs are to run; jobs of more GPUs than it can give are left out. None: all are taken.

    Raises:
        InvalidInput: names file, line and field; or `multi_gpu` is no such word.
    """
    require_multi_gpu(multi_gpu)
    found = Found()
    in_order = InOrder("timestamp")
    for row in csv_rows(path, PHILLY_COLUMNS):
        found.lines += 1
        submit_s = row.time("timestamp")
        in_order.check(row, submit_s)
        duration_s = row.number("duration", least=0, most=LONGEST_S)
        gpus = row.whole("num_gpus", least=0)
        row.number("gpu_time", least=0)
        user = row.user("cluster", prefix="vc-")
        if gpus == 0:
            found.left_out.append((row.line, "without_gpu"))
        elif duration_s == 0:
            found.left_out.append((row.line, "without_run_time"))
        else:
            kept = gpus if multi_gpu == "gang" else 1
            flags = (("gangs" if kept > 1 else "several_gpus"),) if gpus > 1 else ()
            found.jobs.append(TraceJob(row.line, submit_s, duration_s, user=user, flags=flags, gpu_count=kept))
    if not found.lines:
        raise InvalidInput(f"{path}: line 2: timestamp: there is no job below the header", field="timestamp")
    return complete(
        found,
        path=path,
        trace_format="philly",
        drawn=_DRAWN,
        scenario=scenario or load_scenario("paper"),
        seed=seed,
        limit=limit,
        cluster=cluster,
        remarks=(_REMARK,),
    )
