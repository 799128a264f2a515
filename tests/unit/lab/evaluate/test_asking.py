"""The evaluation lets policies stop jobs and share GPUs that say they do."""

from __future__ import annotations

import numpy as np

from adlro.decide.policies.base import BusyStart, Judgement
from adlro.decide.policies.sjf import Sjf
from adlro.lab.evaluate import Request
from adlro.lab.evaluate import tasks as tasks_module
from adlro.lab.evaluate.cases import build_cases
from adlro.lab.evaluate.measure import Figures
from adlro.lab.evaluate.timing import decision_times_us
from adlro.state.observation import Observation


class Pushes(Sjf):
    """Where no job fits, one job of one GPU takes that of the job there that will run longest, if it is shorter."""

    preempts = True

    def __init__(self) -> None:
        self.stopped = 0

    def weigh(self, observation: Observation) -> Judgement:
        judgement, says = super().weigh(observation), observation.preemption
        if says is None:
            return judgement
        for n in np.flatnonzero(observation.table.first[:, -1] == observation.table.first[:, 0]):
            alone = [(says.gpu_run[n] == run).sum() == 1 for run in says.gpu_run[n]]
            gpus = np.flatnonzero(says.gpu_stoppable[n] & np.array(alone))
            jobs = np.flatnonzero(observation.job_waiting[n])
            if observation.gangs is not None:
                jobs = jobs[observation.gangs.gpu_count[n, jobs] == 1]
            if not (len(gpus) and len(jobs)):
                continue
            gpu = int(gpus[observation.gpu_remaining_s[n, gpus].argmax()])
            shortest_s = [observation.durations_s(int(n), int(job))[gpu] for job in jobs]
            if min(shortest_s) + says.gpu_restart_s[n, gpu] < observation.gpu_remaining_s[n, gpu]:
                judgement.busy[int(n)] = BusyStart(int(jobs[np.argmin(shortest_s)]), (gpu,), stops=True)
                self.stopped += 1
        return judgement


def setup_of(scenario: str, *policies: str, own: Pushes | None = None) -> tasks_module.Setup:
    asked = Request(scenarios=(scenario,), loads=(1.1,), policies=policies, jobs=64, lists=2)
    (case,), _ = build_cases(asked)
    return tasks_module.Setup((case,), {} if own is None else {"pushes": own})


def jct_s(figures: Figures) -> float:
    return float(figures.metrics[:, 0].mean())


def test_a_policy_that_preempts_is_asked_and_stops_jobs():
    own = Pushes()
    setup = setup_of("preemptive", "sjf", own=own)
    pushed = setup.run(tasks_module.Task("pushes", 0, 0, 2))
    assert own.stopped > 10
    # It is asked for each start after a stop as well, and where it holds.
    assert pushed.basis_counts.sum() >= 2 * 64 + own.stopped
    assert np.isfinite(pushed.metrics[:, 0]).all()
    assert np.isfinite(decision_times_us(setup, "pushes", 0)).all()


def test_a_policy_that_shares_gets_the_tables_of_pairs():
    setup = setup_of("shared", "hold_greedy_fixed", "share_pairs")
    alone, shared = (setup.run(tasks_module.Task(name, 0, 0, 2)) for name in ("hold_greedy_fixed", "share_pairs"))
    assert jct_s(shared) < jct_s(alone)
