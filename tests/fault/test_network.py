"""Rounds of network faults between all processes: resets, half-closed and silent connections, delays, missing bytes.

`make soak` plays 200 of them, with black holes of 30 s (ADLRO_TEST_NETWORK_ROUNDS, ADLRO_TEST_NETWORK_SEED).
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import pytest

from tests.fault.network import Network
from tests.fault.rounds import ProxiedStack, Rounds, until_acting

FEW = 10
ROUNDS = int(os.environ.get("ADLRO_TEST_NETWORK_ROUNDS", FEW))
SEED = int(os.environ.get("ADLRO_TEST_NETWORK_SEED", "12"))
LONGEST_HOLE_S = 3.0 if ROUNDS <= FEW else 30.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300 + 120 * ROUNDS)]


async def test_rounds_of_network_faults_end_nothing_and_lose_nothing(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    network = Network(random.Random(SEED))
    stack = ProxiedStack(tmp_path / "valkey", network)
    try:
        await stack.start_all()
        await until_acting(stack)
        async with Rounds.begun(stack, rng, LONGEST_HOLE_S) as rounds:
            sys.stderr.write(f"seed {SEED}\n")
            for number in range(ROUNDS):
                await rounds.play(number)
            await rounds.check_all()
    finally:
        await network.stop()
        stack.stop()
