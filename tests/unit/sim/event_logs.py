"""The event log of drawn lists under a random policy, as a digest: run by processes that have nothing in common."""

from __future__ import annotations

import hashlib
import random

from tests.unit.sim.oracle_instances import SeenPolicy, draw_instance, run_batch


def digests(seeds: list[int]) -> list[str]:
    """One digest for each list, of every attempt to the last bit; all lists run as one batch."""
    batch = [draw_instance(random.Random(seed), 60) for seed in seeds]
    # Each list's decisions follow from its own seed and course, not from its place in the batch.
    outcome = run_batch(batch, SeenPolicy(batch, 0, 0.2, list_seeds=seeds).act, start_cost_s=0.3)
    return [
        hashlib.sha256(
            "\n".join(
                f"{run.job} {run.gpu} {run.start_s.hex()} {run.end_s.hex()} {run.completed}"
                for run in outcome.runs(number)
            ).encode()
        ).hexdigest()
        for number in range(len(seeds))
    ]
