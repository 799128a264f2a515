"""Submits one job, waits for its end, and asks why it was placed where it was.

Needs a running suite: start one with `adlro up`, then `python examples/submit_and_wait.py`.
"""

from __future__ import annotations

import getpass

from adlro.client import ExpectedRuntime, JobSpec, JobType, connect


def main() -> None:
    """Submits, waits, explains."""
    spec = JobSpec(
        name="hello",
        user=getpass.getuser(),
        job_type=JobType.MACHINE_LEARNING,
        application="resnet50_fp16",
        cpu_cores=4,
        memory_mib=16384,
        gpu_memory_mib=8000,
        expected_runtime=ExpectedRuntime("v100_sxm2", 5.0),
    )
    with connect() as client:
        job = client.submit(spec)
        print(f"{job.job_id} is on record")
        (job,) = client.wait([job.job_id], timeout_s=600)
        print(f"{job.job_id} {job.state.name.lower()} on {job.gpu_id}, {job.jct_s:.1f} s after its submission")
        print(client.explain(job.job_id).summary)


if __name__ == "__main__":
    main()
