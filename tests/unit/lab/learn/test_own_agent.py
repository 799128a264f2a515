"""The example of an agent of one's own runs on the environment, and the same seed gives the same."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

EXAMPLE = Path(__file__).resolve().parents[4] / "examples" / "own_agent.py"


@pytest.mark.slow
def test_an_agent_of_ones_own_learns_on_the_environment() -> None:
    spec = importlib.util.spec_from_file_location("own_agent", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    returns, again = (example.train(steps=1536, envs=4, seed=1) for _ in range(2))
    assert len(returns) >= 4
    assert np.isfinite(returns).all()
    assert max(returns) < 0.0  # completion times are costs
    assert returns == again
