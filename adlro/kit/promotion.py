"""Promoted checkpoints of the learned policy: the files of one folder, of which the newest is in use. Touches files.

    FOLDER/0001-3f2a9c10b4de.onnx           a promoted checkpoint: its number, and its version
    FOLDER/0001-3f2a9c10b4de.onnx.withdrawn one that was taken back

The orchestrator looks at the folder every second (`ADLRO_ORCHESTRATOR_PROMOTED`). `adlro learn` makes candidates.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from adlro.errors import Conflict, NotFound
from adlro.kit.private_files import private_opener

CANDIDATE_FILE, VERDICT_FILE = "candidate.onnx", "verdict.json"
"""Of a folder of `adlro learn`."""

WITHDRAWN, LOCK = ".withdrawn", "lock"
_NAME = re.compile(r"(\d{4,})-([0-9a-f]+)\.onnx")


@dataclass(frozen=True, slots=True)
class Promoted:
    """A promoted checkpoint.

    Attributes:
        number: the greatest is in use.
        version: of its content.
        path: its file.
    """

    number: int
    version: str
    path: Path


def promoted(folder: Path) -> list[Promoted]:
    """Those that were not withdrawn, the one in use first."""
    try:
        names = [match for name in os.listdir(folder) if (match := _NAME.fullmatch(name)) is not None]
    except FileNotFoundError:
        return []
    found = [Promoted(int(name[1]), name[2], folder / name[0]) for name in names]
    return sorted(found, key=lambda each: -each.number)


def promote(folder: Path, content: bytes, version: str) -> Promoted:
    """Puts a checkpoint into use: the orchestrator takes it within seconds, if it can be used.

    Call it within `changing`.

    Raises:
        OSError: the folder can't be written.
    """
    there = [int(match[1]) for name in os.listdir(folder) if (match := re.match(_NAME, name)) is not None]
    number = max(there, default=0) + 1
    path = folder / f"{number:04d}-{version}.onnx"
    part = path.with_suffix(".part")
    with open(part, "wb", opener=private_opener) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    return Promoted(number, version, path)


def withdraw(folder: Path, which: Promoted | None = None) -> Promoted:
    """Takes a checkpoint back: the one that was promoted before it is in use again; its file is kept.

    Args:
        folder: of the promoted checkpoints.
        which: the checkpoint; None: the one in use.

    Raises:
        NotFound: none is promoted.
        OSError: the folder can't be written.
    """
    there = promoted(folder) if which is None else [which]
    if not there:
        raise NotFound(f"no checkpoint is promoted in {folder}: the one that ADLRO includes, or that is set, is in use")
    there[0].path.replace(there[0].path.with_name(there[0].path.name + WITHDRAWN))
    return there[0]


@contextlib.contextmanager
def changing(folder: Path) -> Iterator[None]:
    """Makes the folder, for its owner alone, and lets no other promotion or rollback change it meanwhile.

    Raises:
        Conflict: another one is under way.
        OSError: the folder can't be written.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(folder / LOCK, "a", opener=private_opener) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Conflict(
                f"another promotion or rollback is under way in {folder}; try again when it is done"
            ) from None
        yield
