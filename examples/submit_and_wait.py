"""Submits one job, waits for its end, and asks why it was placed where it was.

Needs a running suite: start one with `adlro up`, then `python examples/submit_and_wait.py`.
"""

from __future__ import annotations

import adlro


def main() -> None:
    """Submits, waits, explains."""
    spec = adlro.JobSpec(
        name="hello",
        job_type="ml",
        application="resnet50_fp16",
        cores=4,
        memory="16GiB",
        gpu_memory="8GB",
        runtime="5s",  # what you expect on a v100_sxm2; `on` names another model
    )
    with adlro.connect() as client:
        job = client.submit(spec)
        print(f"{job.job_id} is on record")
        (job,) = client.wait([job.job_id], timeout_s=600)
        print(job)
        print(f"{job.jct_s:.1f} s from its submission to its end")
        print(client.explain(job.job_id).summary)


if __name__ == "__main__":
    main()
