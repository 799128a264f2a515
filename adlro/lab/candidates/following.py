"""When `adlro learn --follow` learns again, and where. Plain data and files."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from adlro.kit.promotion import CANDIDATE_FILE, VERDICT_FILE
from adlro.lab.candidates.drift import ANOTHER, drift
from adlro.lab.candidates.judging import LEAST_JOBS
from adlro.lab.candidates.past import Past
from adlro.lab.evaluate.partial import write_whole

LOOKING = "group"
"""What is read of runtimes when it only looks: decisions would cost the orchestrator time."""
KEPT = 5
"""Folders of learnings; older ones are removed."""
LEAST_NEW = 2 * LEAST_JOBS
"""Jobs of another mix that must have ended: they teach and judge alone then."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A learning that is due.

    Attributes:
        why: for people.
        since_s: only jobs that were submitted after that cluster time teach and judge; None: all.
    """

    why: str
    since_s: float | None = None


class Turns:
    """Says when a learning is due: at first, after a time with new jobs, and when the mix of jobs has changed.

    A turn counts whether its learning succeeds or not: what fails now would fail in ten minutes again.

    Args:
        every_s: the time between two learnings, at least.
    """

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._learned: Past | None = None
        self._until_s = 0.0
        self._at_s = 0.0

    def next(self, past: Past, now_s: float) -> Turn | None:
        """The turn that is due, which begins now; None: none is.

        Args:
            past: all finished jobs.
            now_s: of a clock that only goes forward.
        """
        turn = self._due(past, now_s)
        if turn is not None:
            self._learned = past if turn.since_s is None else past.after(turn.since_s)
            self._until_s, self._at_s = float(past.submit_s[-1]), now_s
        return turn

    def _due(self, past: Past, now_s: float) -> Turn | None:
        if self._learned is None or past.submit_s[-1] < self._until_s:
            return Turn("the first time" if self._learned is None else "the suite has begun anew")
        new = past.after(self._until_s)
        index = drift(self._learned, new) if len(new) >= LEAST_NEW else None
        if index is not None and index > ANOTHER:
            return Turn(
                f"the mix of jobs has changed: population stability index {index:.2f}, above {ANOTHER}", self._until_s
            )
        if len(new) and now_s - self._at_s >= self._every_s:
            return Turn(f"{len(new)} jobs were submitted and have ended since the last time")
        return None


def next_folder(folder: Path) -> Path:
    """The folder for the next learning; of the earlier ones only the last few stay."""
    numbers = sorted(int(each.name) for each in folder.glob("[0-9]*") if each.name.isdigit())
    for number in numbers[: -KEPT + 1]:
        shutil.rmtree(folder / f"{number:04d}", ignore_errors=True)
    return folder / f"{numbers[-1] + 1 if numbers else 1:04d}"


def publish(run: Path, folder: Path) -> None:
    """Copies the candidate of one learning, and its verdict, to the folder of several, each as a whole."""
    for name in (CANDIDATE_FILE, VERDICT_FILE):
        write_whole(folder / name, (run / name).read_bytes())
