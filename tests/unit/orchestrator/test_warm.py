"""The code of stops is compiled before the first one: the learned policy makes those of `srtf`, and has a deadline."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adlro.decide import gang_scores, las_rule, srtf_rule, stops
from adlro.decide.policies import POLICIES
from adlro.records.jobs import Preemptible
from adlro.services.orchestrator.ledger.ledger import Ledger
from adlro.services.orchestrator.ledger.preempting import StopRules
from adlro.services.orchestrator.ledger.warm import warm
from tests.ledgers import queue, small_cluster

ROOT = Path(__file__).resolve().parents[3]
MODULE = "tests.unit.orchestrator.test_warm"
COMPILED: tuple[Any, ...] = (
    srtf_rule.choose_stop,
    las_rule.choose_by_service,
    stops.fill_stops,
    gang_scores.score_cluster,
)


def compiled() -> list[list[Any]]:
    return [list(function.signatures) for function in COMPILED]


def stop(policy: str, gpu_count: int) -> None:
    """Lets a short job of so many GPUs stop another on a full cluster."""
    cluster = small_cluster()
    ledger = Ledger(cluster, min_run_s=0.0)
    ledger.stop_rules = StopRules(0.0, starts_at_once=True)
    for gpu in range(len(ledger.layout.gpu_ids)):
        ledger.place(queue(ledger, gpu, (900, 900, 900), preemptible=Preemptible(1.0)), (gpu,), 0.0)
    queue(ledger, 99, (1, 1, 1), gpu_count=gpu_count)
    decides = POLICIES[policy]()
    decides.wait_ratio = np.inf
    assert decides.judge(ledger.observe(500.0)).busy[0].stops


@pytest.mark.timeout(600)  # with an empty cache all of the rules are compiled
def test_no_stop_waits_for_the_compiler() -> None:
    # In a process of its own: other tests call these functions with other types.
    command = [sys.executable, "-c", f"from {MODULE} import check; check()"]
    subprocess.run(command, check=True, cwd=ROOT, timeout=580.0)


def check() -> None:
    warm()
    before = compiled()
    for policy in ("srtf", "las_preemptive"):
        for gpu_count in (1, 2):
            stop(policy, gpu_count)
    assert compiled() == before
    assert all(before)  # one may have two: compiled code that calls it passes literals
