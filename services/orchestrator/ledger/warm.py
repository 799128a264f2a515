"""A ledger for which all compiled code of decisions is used once."""

from __future__ import annotations

import numpy as np

from adlro.decide.gang_actions import GangActionFinder
from adlro.decide.policies.hold_gang import ONE_SETTING, HoldGang
from adlro.decide.policies.hold_greedy import HoldGreedy
from adlro.decide.policies.las_preemptive import LasPreemptive
from adlro.decide.policies.share_pairs import SharePairs
from adlro.decide.policies.srtf import Srtf
from adlro.placement import SHARED
from adlro.records.cluster import Cluster, Gpu, Node
from adlro.records.jobs import Job, JobSpec, JobType, Preemptible
from adlro.records.outcomes import ApplicationSize
from adlro.services.orchestrator.ledger.ledger import Ledger
from adlro.services.orchestrator.ledger.preempting import StopRules
from adlro.services.orchestrator.ledger.sharing import PairTable


def warm() -> Ledger:
    """Compiles the code for decisions, or loads it from numba's cache, so that no decision waits for a compilation.

    Returns:
        A ledger with a running job of several GPUs and a queue with another, which has a reservation.
    """
    gpus = tuple(Gpu(str(number), "any", 1) for number in range(4))
    ledger = Ledger(Cluster("warm", (Node("node", 1, 1, gpus),)))
    entries = []
    for number, gpu_count in enumerate((2, 4, 2, 1), start=1):
        spec = JobSpec("warm", "warm", JobType.SIMULATION, gpu_count=gpu_count, cpu_cores=0, memory_mib=0)
        job = Job(f"job-{number}", spec, submit_s=0.0)
        entries.append(ledger.enter(job, 0, np.ones(1)))
    # The compiled policies; the acting policy may change at any time.
    policies = (HoldGreedy(), HoldGang())
    for entry in (entries[-1], *entries[:-1]):
        ledger.enqueue(entry)
        for policy in policies:
            policy.judge(ledger.observe(0.0))
    seen = ledger.observe(0.0)
    ledger.place(entries[0], (0, 1), 0.0)
    ledger.reflect(seen, 0, (0, 1))
    ledger.reserve(entries[1], 0.0)
    for policy in policies:
        policy.judge(ledger.observe(100.0))
    GangActionFinder(ONE_SETTING.rule()).find(ledger.observe(100.0))  # the learned policy's
    _warm_shares(None)
    _warm_shares(entries[1].job)
    for gpu_count in (1, 2):
        _warm_stops(gpu_count)
    return ledger


def _warm_stops(gpu_count: int) -> None:
    """The same for jobs that can be stopped, and for one of so many GPUs that stops them."""
    gpus = tuple(Gpu(str(number), "any", 1) for number in range(2))
    ledger = Ledger(Cluster("warm", (Node("node", 1, 1, gpus),)), min_run_s=0.0)
    ledger.stop_rules = StopRules(0.0, starts_at_once=True)
    for number, its_count, expected_s in ((1, 1, 1000.0), (2, 1, 1000.0), (3, gpu_count, 1.0), (4, 1, 1000.0)):
        preemptible = None if number == 3 else Preemptible(1.0)
        spec = JobSpec("warm", "warm", JobType.SIMULATION, gpu_count=its_count, cpu_cores=0, preemptible=preemptible)
        entry = ledger.enter(Job(f"job-{number}", spec, submit_s=0.0), 0, np.full(1, expected_s))
        ledger.enqueue(entry)
        if number < 3:
            ledger.place(entry, (number - 1,), 0.0)
    for policy in (Srtf(), LasPreemptive()):
        policy.judge(ledger.observe(2.0))


def _warm_shares(gang: Job | None) -> None:
    """The same for shared GPUs, with and without a job of several GPUs in the queue."""
    gpus = tuple(Gpu(str(number), "any", 1) for number in range(4))
    spec = JobSpec("warm", "warm", JobType.SIMULATION, cpu_cores=0, memory_mib=0, shareable=True)
    pairs = PairTable.of([ApplicationSize.of(spec)], np.ones((1, 1, 1)))
    ledger = Ledger(Cluster("warm", (Node("node", 1, 1, gpus),)), shares=True, pairs=pairs)
    entries = [ledger.enter(Job(f"job-{number}", spec, submit_s=0.0), 0, np.ones(1)) for number in range(11, 14)]
    if gang is not None:
        ledger.enqueue(ledger.enter(gang, 0, np.ones(1)))
    for entry in entries:
        ledger.enqueue(entry)
    for entry in entries[:2]:
        ledger.place(entry, (0,), 0.0, share=SHARED)
        SharePairs().judge(ledger.observe(0.0))
