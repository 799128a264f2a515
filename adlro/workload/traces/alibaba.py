"""Alibaba's GPU trace of 2023, `openb_pod_list_*.csv`: one line per pod, in the order of creation.

Columns and units: https://github.com/alibaba/clusterdata, cluster-trace-gpu-v2023 (Q. Weng et al., "Beware of
Fragmentation", USENIX ATC 2023). Times in seconds, cores and GPUs in thousandths, memory in MiB. The sampled lists
without times cannot be replayed and are refused.
"""

from __future__ import annotations

import math
from pathlib import Path

from adlro.errors import InvalidInput
from adlro.records.cluster import Cluster
from adlro.workload.job_lists import WorkloadJob
from adlro.workload.scenario import Scenario, load_scenario
from adlro.workload.traces.complete import Found, TraceJob, TraceNotes, complete, require_multi_gpu
from adlro.workload.traces.rows import LARGEST, LATEST_S, LONGEST_S, InOrder, Row, csv_rows

ALIBABA_COLUMNS = (
    "name",
    "cpu_milli",
    "memory_mib",
    "num_gpu",
    "gpu_milli",
    "gpu_spec",
    "qos",
    "pod_phase",
    "creation_time",
    "deletion_time",
    "scheduled_time",
)
PRIORITY_OF_QOS: dict[str, float | None] = {
    "LSE": 1.0,
    "LSR": 1.0,
    "LS": 1.0,
    "Guaranteed": 1.0,
    "Burstable": 0.5,
    "BE": 0.25,
    "BestEffort": 0.25,
    "": None,
}
"""Latency-sensitive pods before burstable ones before best-effort ones, by the scenario's three levels: assumed."""
PHASES = ("Pending", "Running", "Succeeded", "Failed", "Unknown")

_DRAWN = ("job type", "application", "user", "GPU memory")
_REMARK = (
    "the time from schedule to deletion is a pod's work on the reference GPU; its quality of service is the priority"
)


def read_alibaba(
    path: str | Path,
    *,
    seed: int = 0,
    limit: int | None = None,
    scenario: Scenario | None = None,
    multi_gpu: str = "gang",
    cluster: Cluster | None = None,
) -> tuple[list[WorkloadJob], TraceNotes]:
    """Reads a list of pods (also gzipped, `.gz`).

    A pod is submitted at its creation; the time from schedule to deletion becomes work on the reference GPU, quality of
    service the priority (`PRIORITY_OF_QOS`). A pod of several GPUs keeps them, with their shares of its cores and
    memory, or becomes a job of one GPU with one share; a pod of a part of a GPU a job of a whole one; requested GPU
    models are ignored. Pods that request no GPU or never ran are left out. Missing fields (job type, application, user,
    GPU memory) are drawn by the scenario's rules.

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
    in_order = InOrder("creation_time")
    for row in csv_rows(path, ALIBABA_COLUMNS):
        found.lines += 1
        created_s = row.number("creation_time", least=0, most=LATEST_S)
        in_order.check(row, created_s)
        phase = row.text("pod_phase")
        if phase not in PHASES:
            row.refuse("pod_phase", f"must be one of {', '.join(PHASES)}, not '{phase}'")
        job = _job(row, created_s, phase, multi_gpu)
        if isinstance(job, str):
            found.left_out.append((row.line, job))
        else:
            found.jobs.append(job)
    if not found.lines:
        raise InvalidInput(f"{path}: line 2: name: there is no pod below the header", field="name")
    return complete(
        found,
        path=path,
        trace_format="alibaba",
        drawn=_DRAWN,
        scenario=scenario or load_scenario("paper"),
        seed=seed,
        limit=limit,
        cluster=cluster,
        remarks=(_REMARK,),
    )


def _job(row: Row, created_s: float, phase: str, multi_gpu: str) -> TraceJob | str:
    """The job of a pod, or the reason to leave it out."""
    gpus = row.whole("num_gpu", least=0)
    cpu_milli = row.number("cpu_milli", least=0, most=1000.0 * LARGEST)
    memory_mib = row.number("memory_mib", least=0, most=LARGEST)
    gpu_milli = row.number("gpu_milli", least=0, most=1000)
    qos = row.text("qos")
    if qos not in PRIORITY_OF_QOS:
        row.refuse("qos", f"must be one of {', '.join(name for name in PRIORITY_OF_QOS if name)}, not '{qos}'")
    if gpus == 0:
        return "without_gpu"
    if phase == "Pending" or not row.text("scheduled_time"):
        return "never_ran"
    scheduled_s = row.number("scheduled_time", least=0, most=LATEST_S)
    deleted_s = row.number("deletion_time", least=scheduled_s, most=scheduled_s + LONGEST_S)
    if deleted_s == scheduled_s:
        return "without_run_time"
    noted = (
        (gpus > 1, "gangs" if multi_gpu == "gang" else "several_gpus_shared"),
        (gpus == 1 and gpu_milli < 1000, "part_of_a_gpu"),
        (bool(row.text("gpu_spec")), "gpu_models_asked_for"),
        (phase == "Failed", "failed"),
        (phase == "Running", "ended_while_running"),
    )
    return TraceJob(
        line=row.line,
        submit_s=created_s,
        work_s=deleted_s - scheduled_s,
        cpu_cores=max(1, math.ceil(cpu_milli / 1000.0 / gpus)),
        memory_mib=max(1, math.ceil(memory_mib / gpus)),
        priority=PRIORITY_OF_QOS[qos],
        flags=tuple(key for holds, key in noted if holds),
        gpu_count=gpus if multi_gpu == "gang" else 1,
    )
