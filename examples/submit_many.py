"""Submits a batch of jobs of all three kinds in one stream, and counts where they went.

The same request id prefix gives the same jobs: run it twice with `BATCH=monday`, and nothing is submitted twice.
Needs a running suite: start one with `adlro up`.
"""

from __future__ import annotations

import os
import random
import uuid
from collections import Counter
from collections.abc import Iterator

from adlro.client import JobSpec, JobType, SimulatedWork, connect

TYPES = (JobType.SIMULATION, JobType.MACHINE_LEARNING, JobType.DATA_PROCESSING)


def batch(count: int, seed: int) -> Iterator[JobSpec]:
    """Jobs that a simulated cluster runs for 1 to 5 s."""
    rng = random.Random(seed)
    for index in range(count):
        job_type = rng.choice(TYPES)
        yield JobSpec(
            name=f"{job_type.label}-{index}",
            user="ada",
            job_type=job_type,
            priority=rng.choice([0.25, 0.5, 1.0]),
            cpu_cores=rng.choice([1, 2, 4]),
            labels={"batch": "example"},
            simulated_work=SimulatedWork(rng.uniform(1.0, 5.0)),
        )


def main() -> None:
    """Submits, waits for all, prints a count a GPU model."""
    prefix = os.environ.get("BATCH") or str(uuid.uuid4())
    with connect() as client:
        answer = client.submit_many(batch(40, seed=0), request_id_prefix=prefix)
        for rejection in answer.rejected:
            print(f"job {rejection.index} was refused: {rejection.message}")
        jobs = client.wait(answer.accepted_ids, timeout_s=600)
    for gpu_model, count in sorted(Counter(job.gpu_model for job in jobs).items()):
        print(f"{count:3} jobs on {gpu_model}")
    waits_s = [job.start_s - job.submit_s for job in jobs if job.start_s is not None and job.submit_s is not None]
    print(f"{sum(waits_s) / len(waits_s):.1f} s mean wait")


if __name__ == "__main__":
    main()
