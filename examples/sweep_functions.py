"""Calls a Python function on GPUs of the cluster, once for each of several arguments, and takes the best result.

Needs a suite that runs programs: start one with `adlro up --cluster local` (without GPUs: `--fake-gpus v100_sxm2:2`).
"""

from __future__ import annotations

import os

import adlro


def train(rate: float, steps: int = 200) -> tuple[float, float, str]:
    """Stands for a training: descends a parabola. Returns the rate, the loss at the end, and its job's GPUs."""
    x = 10.0
    for step in range(steps):
        x -= rate * 2 * x
        if step % 50 == 0:
            print(f"step {step}: loss {x * x:.3g}")
    if x * x > 1e12:
        raise FloatingPointError(f"the loss is {x * x:.3g} at a rate of {rate}")
    return rate, x * x, os.environ.get("ADLRO_GPU_IDS", "")


def main() -> None:
    """Sweeps a rate; one of them is too large."""
    with adlro.Executor(gpus=1, cores=1, memory="256MiB", time_limit="10m") as executor:
        futures = [executor.submit(train, rate) for rate in (0.001, 0.01, 0.1, 1.5)]
        results = []
        for future in futures:
            try:
                results.append(future.result())
            except FloatingPointError as error:
                print(f"{future.job_id} failed: {error}")
    rate, loss, gpu_ids = min(results, key=lambda result: result[1])
    print(f"best: rate {rate}, loss {loss:.3g}, on {gpu_ids}")


if __name__ == "__main__":
    main()
