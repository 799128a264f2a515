"""`adlro train`: recipes, and their options; help, and what is told, where torch is not installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from adlro.errors import InvalidInput
from adlro.lab.learn.recipes import DEFAULT, RECIPES, recipe_named
from adlro.lab.learn.train import app

WITHOUT_TORCH = """
import sys
for name in ("torch", "onnx", "onnxscript", "tensorboard"):
    sys.modules[name] = None
from adlro.lab.learn.__main__ import main
main()
"""


def train(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT_TORCH, *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=240)


@pytest.mark.slow
def test_help_needs_no_torch() -> None:
    told = train("--help")
    assert told.returncode == 0, told.stderr
    said = " ".join(told.stdout.replace("│", " ").split())
    assert "--recipe" in said
    assert "adlro is dqn's old name" in said


def test_training_without_torch_says_how_to_install_it() -> None:
    told = train("folder")
    assert told.returncode == 1
    assert "adlro train needs torch, onnx, onnxscript, tensorboard; install it with" in told.stderr
    assert "`pip install '.[train]'` in a checkout of ADLRO" in told.stderr


def test_recipes_are_three_of_which_one_has_an_old_name() -> None:
    assert list(RECIPES) == ["policy_iteration", "dqn", "paper"]
    assert DEFAULT == "policy_iteration"
    assert recipe_named("adlro", idle=0.2) == recipe_named("dqn", idle=0.2)
    with pytest.raises(InvalidInput, match="no recipe 'secret'; there are policy_iteration, dqn, paper"):
        recipe_named("secret")


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (["--episodes", "5"], "--episodes is of dqn, paper; policy_iteration ends by itself: leave it out"),
        (["--decisions", "5"], "--decisions is of dqn, paper; policy_iteration ends by itself: leave it out"),
        (["--idle", "0.2"], "--idle is of dqn, paper, and policy_iteration has no such setting: leave it out"),
        (["--set", "batch=3"], "with policy_iteration one of ahead, by_priority, epochs"),
        (["--recipe", "paper", "--set", "worlds=3"], "with paper one of batch, by_priority, discount_per_decision"),
        (["--recipe", "adlro", "--set", "worlds=3"], "with dqn one of"),
        (["--set", "worlds=many"], "'many' is no int"),
        (["--set", "worlds=0"], "worlds must be at least 1, not 0"),
        (["--set", "share=2"], "share must be above 0"),
        (["--recipe", "paper", "--set", "validation_lists=1"], "validation_lists must be at least 2"),
    ],
)
def test_options_of_other_recipes_are_refused_by_name(asked: list[str], told: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput) as refused:
        app([str(tmp_path / "run"), *asked], standalone_mode=False)
    assert told in str(refused.value)
    assert not (tmp_path / "run").exists()
