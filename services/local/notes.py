"""What each attempt's folder belongs to: a small file for each, beside the folders of adlro.attempt.

A folder's name has the job, the attempt and the first digits of the cluster's incarnation. If the store is emptied, the
next incarnation counts jobs from 1 again; its job-1 is another one, and so is its folder. An attempt of several
programs has a folder for each, with the program's rank at the end: job-1.1.5f0c33d2.r0, job-1.1.5f0c33d2.r1.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from adlro.attempt.records import is_name

_INCARNATION_DIGITS = 8
# The longest name of a job in ClusterService.
_MOST_JOB_CHARACTERS = 64
PROCESS, CONTAINER = "process", "container"
_RANK = re.compile(r"(.+)\.r([0-9]{1,4})")


@dataclass(frozen=True, slots=True)
class Note:
    """One program of an attempt on this machine; most attempts have one.

    Attributes:
        name: of its folder.
        job_id, attempt: as the cluster lists it.
        incarnation: of the event log that lists it.
        gpu_ids: its GPUs; none: this is a folder whose note is lost.
        kind: PROCESS or CONTAINER.
        user: whose job it is.
        cpu_cores, memory_mib: that it holds.
        forgotten: the store has lost the record of it, and may give its number to another user's job: its output is
            not shown to anybody, and no launch continues it.
        rank: of the program among those of its attempt.
        program_count: of the attempt.
        port: at which the programs of the attempt meet; 0: not known any more.
        job_dir: the name of the job's directory; empty: it has none.
        final: the job has ended with this attempt, so nobody needs its directory any more.
    """

    name: str
    job_id: str
    attempt: int
    incarnation: str
    gpu_ids: tuple[str, ...]
    kind: str = PROCESS
    user: str = ""
    cpu_cores: int = 1
    memory_mib: int = 0
    forgotten: bool = False
    rank: int = 0
    program_count: int = 1
    port: int = 0
    job_dir: str = ""
    final: bool = False

    @property
    def attempt_name(self) -> str:
        """Of the attempt: the folder's name without the rank."""
        return attempt_name(self.name)

    @property
    def node_id(self) -> str:
        """The node of its GPUs; empty: not known."""
        return self.gpu_ids[0].rpartition("/")[0] if self.gpu_ids else ""

    @property
    def key(self) -> tuple[str, int]:
        """The job and the attempt."""
        return self.job_id, self.attempt


class Notes:
    """The notes of a folder.

    Args:
        folder: theirs; made where it is not there.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def write(self, note: Note) -> None:
        """Writes a note, or replaces the one of that name. It survives this process, but perhaps no power failure.

        Raises:
            OSError: the disk does not accept it.
        """
        draft = self._folder / f".{note.name}"
        draft.write_text(json.dumps(asdict(note)))
        draft.rename(self._folder / note.name)

    def remove(self, name: str) -> None:
        """Removes a note."""
        with contextlib.suppress(FileNotFoundError):
            (self._folder / name).unlink()

    def read_all(self) -> dict[str, Note]:
        """All notes that can be read, by name."""
        found: dict[str, Note] = {}
        for entry in os.scandir(self._folder):
            if not is_name(entry.name):
                continue
            with contextlib.suppress(OSError, ValueError, TypeError):
                found[entry.name] = _note_of(json.loads(Path(entry.path).read_bytes()))
        return found


def _note_of(stored: dict[str, Any]) -> Note:
    # Notes of the releases in which an attempt had one GPU.
    found = dict(stored)
    if "gpu_id" in found:
        found["gpu_ids"] = [found.pop("gpu_id")]
    note = Note(**found)
    return replace(note, gpu_ids=tuple(each for each in note.gpu_ids if each))


def rank_names(name: str, program_count: int) -> Sequence[str]:
    """The names of the folders of an attempt's programs, by rank."""
    return (name,) if program_count == 1 else [f"{name}.r{rank}" for rank in range(program_count)]


def attempt_name(name: str) -> str:
    """From a folder's name to that of its attempt."""
    match = _RANK.fullmatch(name)
    return name if match is None else match[1]


def rank_of(name: str) -> int:
    """The rank in a folder's name; 0: the attempt has one program."""
    match = _RANK.fullmatch(name)
    return 0 if match is None else int(match[2])


def name_of(job_id: str, attempt: int, incarnation: str) -> str:
    """The name of an attempt's folder."""
    end = f"{attempt}.{incarnation[:_INCARNATION_DIGITS]}"
    name = f"{job_id}.{end}"
    if is_name(name):
        return name
    # An id may have characters that a folder's name can't have.
    return f"x{hashlib.sha256(job_id.encode()).hexdigest()[:32]}.{end}"


def foreign_id(job_id: str, incarnation: str) -> str:
    """The id under which a job of another incarnation is listed: no job of this one can have it."""
    end = f"~{incarnation[:_INCARNATION_DIGITS]}"
    return job_id[: _MOST_JOB_CHARACTERS - len(end)] + end
