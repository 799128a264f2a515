"""What waits for the policy in the shadow takes no more memory than it may."""

from __future__ import annotations

import threading
import tracemalloc

import numpy as np
import pytest
import structlog

from adlro.decide.policies.sjf import Sjf
from adlro.records.cluster import Cluster
from adlro.services.orchestrator.deciding import shadow as deciding
from adlro.services.orchestrator.deciding.shadow import Shadow
from adlro.services.orchestrator.ledger.ledger import Ledger
from adlro.state.observation import Ints, Observation
from tests.ledgers import node, queue


class Hangs(Sjf):
    """Answers nothing before it is allowed to."""

    name = "hangs"

    def __init__(self) -> None:
        self.allowed = threading.Event()

    def act(self, observation: Observation) -> Ints:
        self.allowed.wait()
        return np.full((1, 2), -1)


@pytest.mark.parametrize("cores", [1, 9])
async def test_decisions_that_wait_take_no_more_memory_than_they_may(
    cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GPUs that are all of different speeds; and many that are idle, on which nobody fits."""
    monkeypatch.setattr(deciding, "WAITING_BYTES", 1 << 20)
    ledger = Ledger(Cluster("c", tuple(node(f"n{i}", "v100_sxm2", 16000, gpus=8, cores=9) for i in range(8))))
    ledger.set_speeds({gpu_id: 0.5 + number / 200 for number, gpu_id in enumerate(ledger.layout.gpu_ids)})
    for number in range(8):
        ledger.place(queue(ledger, number, (9.0, 9.0, 9.0)), (8 * number,), 0.0)
    for number in range(8, 108):
        queue(ledger, number, (9.0, 9.0, 9.0), cpu_cores=cores)
    outcomes: list[str] = []
    policy = Hangs()
    shadow = Shadow(structlog.get_logger(), outcomes.append)
    shadow.set(policy)
    ledger.observe(1.0)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for moment in range(256):
        shadow.decided(ledger.observe(2.0 + moment), lambda: (), ledger.layout.gpu_ids, (0, (0,)), lambda _: None)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    policy.allowed.set()
    await shadow.settled()
    shadow.close()
    assert after - before < (1 << 20) + (1 << 18)  # 256 tasks that are left out
    assert len(outcomes) == 256
    assert 3 < 256 - outcomes.count("skipped") < 200
