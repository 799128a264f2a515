"""Compiles the code of a simulated cluster before its first launch."""

from __future__ import annotations

from adlro.hardware.speeds import REFERENCE_GPU_MODEL
from adlro.placement import SHARED, GpuShare, Placement
from adlro.records.cluster import Cluster, Gpu, Node
from adlro.records.jobs import JobSpec, JobType, Preemptible, SimulatedWork
from adlro.sim.simulator import ClusterSimulator


def warm() -> None:
    """Compiles the code of a simulated cluster, or loads it from numba's cache, so that no launch waits."""
    gpu_ids = ("first", "second")
    nodes = tuple(Node(each, 2, 8192, (Gpu(each, REFERENCE_GPU_MODEL, 1),)) for each in gpu_ids)
    simulator = ClusterSimulator(Cluster("warm", nodes))
    work = SimulatedWork(1.0)
    spec = JobSpec("job", "user", JobType.SIMULATION, gpu_count=2, simulated_work=work, preemptible=Preemptible())
    simulator.launch("job", 1, spec, Placement.on(*gpu_ids))
    simulator.launch("other", 1, spec, Placement.on(*gpu_ids), stops=["job"])
    simulator.set_gpu_speed("first", 2.0)
    end_s = simulator.next_event_time()
    assert end_s is not None
    simulator.advance_to(end_s)
    halves = JobSpec("half", "user", JobType.SIMULATION, simulated_work=work, shareable=True)
    for job_id in ("half", "other half"):
        simulator.launch(job_id, 1, halves, Placement((GpuShare("first", SHARED),)))
    simulator.stop("half")
