"""What the learned policy gains on a suite's finished jobs: `adlro compare` replays them in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from adlro.cli.compare import MODULE
from adlro.cli.processes import import_path
from adlro.cli.units_text import seconds
from adlro.errors import Conflict, InvalidInput

if TYPE_CHECKING:
    from adlro.client import OfferedPolicy


@dataclass(frozen=True, slots=True)
class Gain:
    """The result of a paired replay of finished jobs under a learned policy and a baseline.

    Attributes:
        policy: the learned one; `baseline`: the other.
        acted: the one of them under which the jobs truly ran.
        job_count: the jobs.
        mean_jct_s, baseline_mean_jct_s: mean completion time under each, seconds.
        saved_ratio: by how much the mean completion time is shorter under the learned policy, as a share of that under
            the baseline; below 0: it is longer.
        low_ratio, high_ratio: 95 % interval of it; None: there is none, for the reason in `refused`.
    """

    policy: str
    baseline: str
    acted: str
    job_count: int
    mean_jct_s: float
    baseline_mean_jct_s: float
    saved_ratio: float
    low_ratio: float | None
    high_ratio: float | None
    refused: str


def compared(policies: Sequence[OfferedPolicy], baseline: str) -> tuple[str, str]:
    """The learned policy whose gain is asked for, and the policy to replay beside the one that acted.

    Args:
        policies: of the suite.
        baseline: to compare the learned policy with.

    Raises:
        Conflict: the suite has no learned policy that can decide.
        InvalidInput: the baseline is the learned policy.
    """
    acting = next((each for each in policies if each.acting), None)
    learned = [each.name for each in policies if each.version and not each.problem]
    if acting is not None and acting.version:
        learned.insert(0, acting.name)
    if not learned:
        raise Conflict("no learned policy of this suite can decide: adlro policy says why")
    if baseline == learned[0]:
        raise InvalidInput(f"--baseline: {baseline} is the learned policy itself: name another one, such as fcfs")
    acts = acting.name if acting is not None else baseline
    if acts not in (baseline, learned[0]):
        raise Conflict(
            f"the jobs ran under {acts}, and a gain is told between the policy that acted and another one: write "
            f"--baseline {acts}, or compare several with adlro compare"
        )
    return learned[0], baseline if acts == learned[0] else learned[0]


def replayed(other: str, since_s: float | None, until_s: float | None, server: str | None) -> dict[str, Any]:
    """The document of `adlro compare`, with its progress and errors on stderr.

    Args:
        other: the policy to replay beside the one that acted.
        since_s, until_s: count jobs that were submitted from the one to before the other, cluster time; None: no bound.
        server: of the suite; None: the default one.

    Raises:
        Exit: the comparison failed, and has said why; with its exit code.
    """
    command = [sys.executable, "-m", MODULE, other, "-o", "json"]
    for option, value in (("--since", since_s), ("--until", until_s), ("--server", server)):
        if value is not None:
            command += [option, str(value)]
    sys.stdout.flush()
    done = subprocess.run(command, env={**os.environ, **import_path()}, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise typer.Exit(done.returncode)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def gain_of(document: dict[str, Any], policy: str, baseline: str) -> Gain:
    """The learned policy's gain in a comparison's document, whichever of the two acted."""
    acted = document["acted"]
    (row,) = document["paired"]
    mean_s = {each["policy"]: each["mean_jct_s"] for each in document["policies"]}
    low, high = row["mean_jct_ratio_ci95"]
    # The row's ratio is that of the other policy to the one that acted.
    if acted == baseline:
        saved, bounds = (
            1.0 - row["mean_jct_ratio"],
            (None if high is None else 1.0 - high, None if low is None else 1.0 - low),
        )
    else:
        saved = 1.0 - 1.0 / row["mean_jct_ratio"]
        bounds = (None if low is None else 1.0 - 1.0 / low, None if high is None else 1.0 - 1.0 / high)
    return Gain(
        policy,
        baseline,
        acted,
        document["jobs"]["measured"],
        mean_s[policy],
        mean_s[baseline],
        saved,
        *bounds,
        document["interval"]["refused"] or "",
    )


def gain_text(gain: Gain) -> str:
    """The gain in a sentence."""
    times = f"{seconds(gain.mean_jct_s)} under {gain.policy}, {seconds(gain.baseline_mean_jct_s)} under {gain.baseline}"
    jobs = f"the {gain.job_count} finished jobs of the range, replayed in the simulator under both"
    if gain.low_ratio is None or gain.high_ratio is None:
        return f"gain: no interval: {gain.refused} ({times}: {_longer(gain.saved_ratio)}; {jobs})"
    between = f"95 % interval: {_shorter(gain.low_ratio)} to {_shorter(gain.high_ratio)}"
    if gain.low_ratio <= 0.0 <= gain.high_ratio:
        return f"gain: these jobs do not tell {gain.policy} and {gain.baseline} apart: {times} ({between}; {jobs})"
    return (
        f"gain: jobs take {_longer(gain.saved_ratio)} on average under {gain.policy}, from submission to end: {times} "
        f"({between}; {jobs})"
    )


def _shorter(saved_ratio: float) -> str:
    return f"{_percent(abs(saved_ratio))} {'shorter' if saved_ratio >= 0.0 else 'longer'}"


def _percent(ratio: float) -> str:
    return f"{100.0 * ratio:.1f} %"


def _longer(saved_ratio: float) -> str:
    return f"{_percent(abs(saved_ratio))} {'less' if saved_ratio >= 0.0 else 'more'} time"
