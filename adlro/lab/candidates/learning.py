"""One learning: a candidate from the earlier part of a past, and the verdict of the later part. Files in one folder.

FOLDER/settings.json     what is learned from, and how: another learning in the folder is refused
FOLDER/one_gpu, gangs    the states of worlds; an interrupted learning goes on after the last
FOLDER/candidate.onnx    the candidate
FOLDER/verdict.json      the verdict, with the candidate's version
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from adlro.errors import Conflict, InvalidInput
from adlro.kit.promotion import CANDIDATE_FILE, VERDICT_FILE
from adlro.lab.candidates.document import verdict_document
from adlro.lab.candidates.judging import LEAST_JOBS, Verdict, judge
from adlro.lab.candidates.making import Making, make_candidate
from adlro.lab.candidates.past import Past
from adlro.lab.evaluate.partial import write_whole
from adlro.text import to_json

SETTINGS_FILE = "settings.json"
MOST_JUDGED = 20_000


@dataclass(frozen=True)
class Plan:
    """How to learn.

    Attributes:
        making: the size of the training.
        judged_share: share of the jobs, the last ones, that judge the candidate; at most `MOST_JUDGED` of them.

    Raises:
        InvalidInput: names the invalid field.
    """

    making: Making = field(default_factory=Making)
    judged_share: float = 0.3

    def __post_init__(self) -> None:
        if not 0.05 <= self.judged_share <= 0.9:
            raise InvalidInput(
                f"judged_share: must be from 0.05 to 0.9, not {self.judged_share:g}", field="judged_share"
            )

    def split(self, past: Past) -> tuple[Past, Past]:
        """The jobs to learn from, and those that judge.

        Raises:
            InvalidInput: too few jobs.
        """
        judged = min(round(len(past) * self.judged_share), MOST_JUDGED)
        first = len(past) - judged
        for what, part in (("learn from", past.part(0, first)), ("judge", past.part(first, len(past)))):
            if int(part.measured.sum()) < LEAST_JOBS:
                raise InvalidInput(
                    f"jobs: {int(part.measured.sum())} finished jobs to {what}, and {LEAST_JOBS} are needed: let more "
                    f"jobs run, or change --judged-share from {self.judged_share:g}",
                    field="jobs",
                )
        return past.part(0, first), past.part(first, len(past))


def learn(
    past: Past, in_use: Path, plan: Plan, folder: Path, say: Callable[[str], None] = lambda _: None
) -> tuple[Verdict, dict[str, Any]]:
    """Makes a candidate and judges it.

    Args:
        past: all finished jobs.
        in_use: the checkpoint in use.
        plan: how.
        folder: for files; made if it is not there.
        say: called with a line of progress.

    Returns:
        The verdict, and its document.

    Raises:
        InvalidInput: too few jobs.
        Conflict: another learning is in the folder.
    """
    content = in_use.read_bytes()
    before, judged = plan.split(past)
    _claim(folder, before, content, plan)
    candidate = folder / CANDIDATE_FILE
    made = make_candidate(before, content, plan.making, folder, say)
    write_whole(candidate, made)
    kept = folder / "in_use.onnx"
    write_whole(kept, content)  # the file at `in_use` may be replaced meanwhile
    verdict = judge(
        judged,
        candidate,
        kept,
        lambda name: say(f"replaying {len(judged)} jobs under {name}"),
    )
    document = verdict_document(verdict, before, judged, plan.making, str(candidate.absolute()))
    write_whole(folder / VERDICT_FILE, (to_json(document, indent=2, allow_nan=False) + "\n").encode())
    return verdict, document


def publish(run: Path, folder: Path) -> None:
    """Copies the candidate and the verdict of one learning to the folder of several, each as a whole."""
    for name in (CANDIDATE_FILE, VERDICT_FILE):
        write_whole(folder / name, (run / name).read_bytes())


def clear(folder: Path) -> None:
    """Removes an earlier learning."""
    for name in ("one_gpu", "gangs"):
        shutil.rmtree(folder / name, ignore_errors=True)
    for name in (SETTINGS_FILE, VERDICT_FILE, CANDIDATE_FILE, "in_use.onnx"):
        (folder / name).unlink(missing_ok=True)


def _claim(folder: Path, before: Past, content: bytes, plan: Plan) -> None:
    """Notes what is learned in the folder.

    Raises:
        Conflict: it is another learning's.
    """
    ours = {
        **asdict(plan.making),
        "past": before.digest,
        "checkpoint": hashlib.blake2b(content, digest_size=6).hexdigest(),
    }
    path = folder / SETTINGS_FILE
    try:
        found = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        if any(folder.glob("*/*.npz")):
            raise Conflict(f"{folder} holds states of something else; name another folder") from None
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, (to_json(ours, indent=2) + "\n").encode())
        return
    except ValueError:
        found = None
    if found != ours:
        raise Conflict(
            f"{folder} holds a learning from other jobs, another checkpoint or other settings: go on with those, or "
            "begin anew with --again"
        )
