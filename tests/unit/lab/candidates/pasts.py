"""Small pasts for tests."""

from __future__ import annotations

import numpy as np

from adlro.lab.candidates.past import Past, past_of_list
from adlro.workload.job_lists import draw_jobs
from adlro.workload.scenario import load_scenario


def past(count: int, scenario: str = "gangs", load: float = 0.9, seed: int = 1, runtime: str = "group") -> Past:
    """The past of a drawn list."""
    drawn = load_scenario(scenario)
    jobs = draw_jobs(drawn, load=load, rng=np.random.default_rng(seed), count=count)
    return past_of_list(drawn.cluster, jobs, runtime)
