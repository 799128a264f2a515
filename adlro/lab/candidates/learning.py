"""One learning: a candidate from the earlier part of a past, and the verdict of the later part. Files in one folder.

FOLDER/settings.json     what is learned from, and how
FOLDER/one_gpu, gangs    the states of worlds; an interrupted learning goes on after the last
FOLDER/in_use.onnx       the checkpoint that was in use
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
from adlro.lab.candidates.judging import LEAST_JOBS, Verdict, best_rule, corrected_rule, judge
from adlro.lab.candidates.making import Making, make_candidate
from adlro.lab.candidates.past import Past
from adlro.lab.evaluate.partial import write_whole
from adlro.text import to_json

SETTINGS_FILE, IN_USE_FILE = "settings.json", "in_use.onnx"
UNTIL = "learned_until_s"
"""Cluster time of the last submission that is learned from."""
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

    def split(self, past: Past, until_s: float | None = None) -> tuple[Past, Past]:
        """The jobs to learn from, and those that judge.

        Args:
            past: all jobs.
            until_s: cluster time up to which a learning that goes on learned from them; None: one that begins.

        Raises:
            InvalidInput: too few jobs.
        """
        if until_s is None:
            first = len(past) - min(round(len(past) * self.judged_share), MOST_JUDGED)
        else:
            first = len(past) - len(past.after(until_s))
        for what, part in (("learn from", past.part(0, first)), ("judge", past.part(first, len(past)))):
            if int(part.measured.sum()) < LEAST_JOBS:
                raise InvalidInput(
                    f"jobs: {int(part.measured.sum())} finished jobs to {what}, and {LEAST_JOBS} are needed: let more "
                    f"jobs run, or change --judged-share from {self.judged_share:g}",
                    field="jobs",
                )
        return past.part(0, first), past.part(first, len(past))


def learn(
    past: Past,
    in_use: Path,
    plan: Plan,
    folder: Path,
    say: Callable[[str], None] = lambda _: None,
    *,
    again: bool = False,
) -> tuple[Verdict, dict[str, Any]]:
    """Makes a candidate and judges it.

    A learning that was interrupted in the folder goes on, and jobs that have ended since then judge too; after a
    verdict a new one begins.

    Args:
        past: all finished jobs.
        in_use: the checkpoint in use.
        plan: how.
        folder: for files; made if it is not there.
        say: called with a line of progress.
        again: begins anew in any case.

    Returns:
        The verdict, and its document.

    Raises:
        InvalidInput: too few jobs.
        Conflict: another learning was interrupted in the folder, or it holds something else.
    """
    content = in_use.read_bytes()
    begun = _begun(folder)
    ours = _settings(past, content, plan)
    goes_on = begun is not None and not again and not (folder / VERDICT_FILE).exists()
    if begun is not None and goes_on and {name: begun.get(name) for name in ours} != ours:
        raise Conflict(
            f"{folder} holds a learning with other settings, another checkpoint or cluster, which was interrupted: "
            "give its settings to go on, or --again to begin anew"
        )
    if begun is None and any(folder.glob("*.onnx")):
        raise Conflict(f"{folder} holds checkpoints of something else; name another folder")
    before, judged = plan.split(past, float(begun[UNTIL]) if begun is not None and goes_on else None)
    if not goes_on:
        clear(folder)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        text = to_json({**ours, UNTIL: float(before.submit_s[-1])}, indent=2)
        write_whole(folder / SETTINGS_FILE, f"{text}\n".encode())
    candidate, kept = folder / CANDIDATE_FILE, folder / IN_USE_FILE
    write_whole(kept, content)  # the file at `in_use` may be replaced meanwhile
    made = make_candidate(before, content, plan.making, folder, say)
    write_whole(candidate, made)
    single_rule = best_rule(before, corrected_rule(judged), lambda name: say(f"replaying earlier jobs under {name}"))
    verdict = judge(
        judged,
        candidate,
        kept,
        single_rule,
        lambda name: say(f"replaying {len(judged)} jobs under {name}"),
    )
    document = verdict_document(verdict, before, judged, plan.making, str(candidate.absolute()))
    write_whole(folder / VERDICT_FILE, (to_json(document, indent=2, allow_nan=False) + "\n").encode())
    return verdict, document


def clear(folder: Path) -> None:
    """Removes an earlier learning; nothing where there is none."""
    if _begun(folder) is None:
        return
    for name in ("one_gpu", "gangs"):
        shutil.rmtree(folder / name, ignore_errors=True)
    for name in (VERDICT_FILE, CANDIDATE_FILE, IN_USE_FILE, SETTINGS_FILE):
        (folder / name).unlink(missing_ok=True)


def _settings(past: Past, content: bytes, plan: Plan) -> dict[str, Any]:
    """What makes two learnings the same."""
    return {
        **asdict(plan.making),
        "judged_share": plan.judged_share,
        "cluster": hashlib.blake2b(repr(past.cluster).encode(), digest_size=8).hexdigest(),
        "checkpoint": hashlib.blake2b(content, digest_size=6).hexdigest(),
    }


def _begun(folder: Path) -> dict[str, Any] | None:
    """The settings of the learning in a folder; None: there is none."""
    try:
        found = json.loads((folder / SETTINGS_FILE).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and UNTIL in found else None
