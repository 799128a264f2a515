"""What a suite would say of jobs that the simulator ran: the records that the orchestrator would have written."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from adlro.decide.policies import POLICIES
from adlro.lab.compare.reading import Suite
from adlro.lab.evaluate.tally import Tally
from adlro.placement import Placement
from adlro.records.cluster import Cluster
from adlro.records.jobs import Job, JobAttempt, JobState
from adlro.records.outcomes import ApplicationSize, NeighbourTime
from adlro.records.status import OrchestratorStatus, ShadowStatus
from adlro.sim.batch import BatchOutcome, BatchSimulator, Run
from adlro.state.job_arrays import pack_jobs
from adlro.workload.job_lists import WorkloadJob, draw_jobs
from adlro.workload.pairs import pair_table
from adlro.workload.scenario import load_scenario

MIN_RUN_S = 1.0


def drawn(scenario: str, count: int, *, load: float = 0.9, seed: int = 1) -> tuple[Cluster, list[WorkloadJob]]:
    """Jobs of a scenario, and its cluster."""
    found = load_scenario(scenario)
    return found.cluster, draw_jobs(found, load=load, rng=np.random.default_rng(seed), count=count)


def ran(cluster: Cluster, jobs: list[WorkloadJob], name: str, *, preemption: bool = False) -> BatchOutcome:
    """The jobs under a policy that knows their true runtimes, simulated directly."""
    policy = POLICIES[name]()
    pairs = pair_table(cluster.gpu_models)
    arrays = pack_jobs([jobs], cluster)
    arrays.family[0] = pairs.families([job.application for job in jobs])
    tally = Tally(policy, 1)
    simulator = BatchSimulator(
        cluster,
        arrays,
        preempts=policy.preempts and preemption,
        min_run_s=MIN_RUN_S if preemption else 0.0,
        shares=policy.shares,
        kept=pairs.kept if policy.shares else None,
    )
    while len(simulator.active):
        simulator.act(*tally.act(simulator.observe(), simulator.active))
    return simulator.outcome()


def suite_after(
    cluster: Cluster,
    jobs: list[WorkloadJob],
    name: str,
    outcome: BatchOutcome,
    *,
    begin_s: float = 0.0,
    shadow: str = "",
    preemption: bool = False,
) -> Suite:
    """A suite whose jobs ran as an outcome says, from a cluster time on."""
    runs = list(outcome.runs(0))
    of_job: dict[int, list[Run]] = {}
    for run in runs:
        of_job.setdefault(run.job, []).append(run)
    gpus = [gpu for _, gpu in cluster.gpus()]
    records = []
    for number, asks in enumerate(jobs):
        attempts: list[JobAttempt] = []
        for each in sorted(of_job[number], key=lambda run: run.start_s):
            beside = [_beside(each, other, jobs) for other in runs if other is not each and other.gpu == each.gpu]
            attempts.append(
                JobAttempt(
                    attempt=len(attempts) + 1,
                    placement=Placement.on(*(gpus[gpu].gpu_id for gpu in each.gpus)),
                    gpu_model=gpus[each.gpu].gpu_model,
                    start_s=begin_s + each.start_s,
                    end_s=begin_s + each.end_s,
                    preempted=each.stopped,
                    neighbours=tuple(found for found in beside if found.time_s > 0),
                )
            )
        last = attempts[-1]
        records.append(
            Job(
                job_id=f"job-{number + 1}",
                spec=replace(asks.spec(f"past-{number}"), simulated_work=None),
                state=JobState.SUCCEEDED,
                submit_s=begin_s + asks.submit_s,
                start_s=last.start_s,
                end_s=last.end_s,
                placement=last.placement,
                gpu_model=last.gpu_model,
                attempts=tuple(attempts),
            )
        )
    own = POLICIES[name]().wait_ratio
    status = OrchestratorStatus(
        acting=True,
        instance_id="orchestrator-1",
        lease_holder="orchestrator-1",
        fencing_token=1,
        policy=name,
        cluster_connected=True,
        cluster_incarnation="one",
        cluster_revision=1,
        cluster_time_s=begin_s,
        queue_length=0,
        waiting_for_begin_time_count=0,
        running_count=0,
        decision_count=len(jobs),
        drained_node_ids=(),
        problem="",
        wait_ratio=0.0 if own == np.inf else own,
        shadow=ShadowStatus(shadow) if shadow else None,
        preemption=preemption,
        preemption_min_run_s=MIN_RUN_S,
    )
    return Suite(tuple(records), cluster, status, shares=True, now_s=begin_s + float(np.nanmax(outcome.end_s)))


def _beside(run: Run, other: Run, jobs: list[WorkloadJob]) -> NeighbourTime:
    time_s = min(run.end_s, other.end_s) - max(run.start_s, other.start_s)
    return NeighbourTime(ApplicationSize(jobs[other.job].application), max(time_s, 0.0))
