"""The memory of finished jobs as a file: written whole or not at all, read only when whole and of this version.

    {"format": "adlro-outcomes", "version": 2, "vocabulary": "1", "cursor": ..., "bytes": ..., "blake2b": ...}
    <zlib: JSON of {"vocabularies": {name: {value: number}}, "jobs": [...]}>

It carries the place in the stream of outcomes up to which it was folded, so that a process goes on from there.

Replicas fold the same stream, so they may share a file: one writes at a time, and what reaches less far into the stream
never replaces what reaches further.
"""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import json
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adlro.errors import InvalidInput
from adlro.jobs import ExpectedRuntime, JobSpec, JobType
from services.decompose.memory import DEFAULT_CLUSTER, FinishedJob
from services.decompose.variables import VOCABULARY_VERSION

FORMAT, VERSION = "adlro-outcomes", 2
READABLE_VERSIONS = (1, 2)
"""Version 1 had lists of values as vocabularies, and jobs without their clusters."""


@dataclass(frozen=True, slots=True)
class MemorySnapshot:
    """What a file holds: finished jobs, oldest first; the growing vocabularies; the id of the last entry folded."""

    jobs: Sequence[FinishedJob]
    vocabularies: Mapping[str, Sequence[str] | Mapping[str, int]]
    cursor: str


def save(path: Path, snapshot: MemorySnapshot) -> int:
    """Writes a file in place of the one that may be there, by way of a temporary one beside it.

    Returns:
        Bytes written; 0 where another process is writing it just now, or its file reaches further into the stream.

    Raises:
        OSError: it can't be written.
    """
    with _alone(path.parent) as alone:
        if not alone or _reach(_header_on_disk(path).get("cursor")) > _reach(snapshot.cursor):
            return 0
        return _write(path, snapshot)


@contextmanager
def _alone(directory: Path) -> Iterator[bool]:
    """Whether no other process is in here: by a lock on the directory, which a killed process leaves free."""
    held = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(held)


def _header_on_disk(path: Path) -> Mapping[str, Any]:
    """Of a file that this release reads; empty where there is none."""
    try:
        with path.open("rb") as file:
            header = json.loads(file.readline())
    except (OSError, ValueError):
        return {}
    wanted = {"format": FORMAT, "vocabulary": VOCABULARY_VERSION}
    readable = isinstance(header, dict) and wanted.items() <= header.items()
    return header if readable and header.get("version") in READABLE_VERSIONS else {}


def _reach(cursor: object) -> tuple[int, int]:
    """Orders entry ids ("<ms>-<n>"); what is none comes first."""
    ms, _, number = cursor.partition("-") if isinstance(cursor, str) else ("", "", "")
    return (int(ms), int(number or 0)) if ms.isdecimal() and (number or "0").isdecimal() else (-1, 0)


def _write(path: Path, snapshot: MemorySnapshot) -> int:
    content = {"vocabularies": dict(snapshot.vocabularies), "jobs": [_plain(job) for job in snapshot.jobs]}
    body = zlib.compress(json.dumps(content, separators=(",", ":")).encode(), level=1)
    header = {
        "format": FORMAT,
        "version": VERSION,
        "vocabulary": VOCABULARY_VERSION,
        "cursor": snapshot.cursor,
        "bytes": len(body),
        "blake2b": hashlib.blake2b(body, digest_size=16).hexdigest(),
    }
    beside = path.with_name(f"{path.name}.tmp")  # nobody else is writing; what a killed process left is written over
    try:
        with beside.open("wb") as file:
            file.write(json.dumps(header).encode() + b"\n" + body)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    return path.stat().st_size


def load(path: Path) -> MemorySnapshot:
    """Reads a file.

    Raises:
        FileNotFoundError: there is none.
        InvalidInput: it is no such file, of another version, cut short or damaged; says which and what to do.
    """
    head, newline, body = path.read_bytes().partition(b"\n")
    way_out = "move the file away: what it held is learned again from the stream of outcomes"
    try:
        header = json.loads(head)
        known = isinstance(header, dict) and header.get("format") == FORMAT and bool(newline)
    except ValueError:
        known = False
    if not known:
        raise _unreadable(path, f"is not a memory of finished jobs; {way_out}", "NOT_A_MEMORY_FILE")
    if header.get("version") not in READABLE_VERSIONS or header.get("vocabulary") != VOCABULARY_VERSION:
        found = f"version {header.get('version')} with vocabulary {header.get('vocabulary')}"
        raise _unreadable(
            path,
            f"is of {found}; this release reads versions {READABLE_VERSIONS[0]} to {VERSION} with vocabulary "
            f"{VOCABULARY_VERSION}; {way_out}",
            "ANOTHER_VERSION",
        )
    if len(body) != header.get("bytes"):
        raise _unreadable(
            path, f"has {len(body)} of {header.get('bytes')} bytes: it is cut short; {way_out}", "CUT_SHORT"
        )
    if hashlib.blake2b(body, digest_size=16).hexdigest() != header.get("blake2b"):
        raise _unreadable(path, f"is damaged: its checksum does not fit; {way_out}", "DAMAGED")
    try:
        content = json.loads(zlib.decompress(body))
        jobs = [_job(each) for each in content["jobs"]]
        return MemorySnapshot(jobs, content["vocabularies"], str(header["cursor"]))
    except (zlib.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable(path, f"is damaged: {error!r}; {way_out}", "DAMAGED") from error


def put_aside(path: Path) -> Path:
    """Renames a file that can't be read to `.unreadable`, or `.unreadable.2`, ... where files are put aside already.

    Returns:
        Where it is now.

    Raises:
        OSError: it can't be renamed.
    """
    aside = path.with_name(f"{path.name}.unreadable")
    number = 1
    while os.path.lexists(aside):
        number += 1
        aside = path.with_name(f"{path.name}.unreadable.{number}")
    path.rename(aside)
    return aside


def _unreadable(path: Path, problem: str, reason: str) -> InvalidInput:
    return InvalidInput(f"{path}: {problem}", field="memory_path", reason=reason)


def _plain(job: FinishedJob) -> dict[str, Any]:
    spec = dataclasses.asdict(dataclasses.replace(job.spec, simulated_work=None))
    defaults = _SPEC_DEFAULTS
    spec = {name: value for name, value in spec.items() if name not in defaults or value != defaults[name]}
    return {
        "id": job.job_id,
        "spec": spec,
        "gpu_model": job.gpu_model,
        "gpu_id": job.gpu_id,
        "cluster": job.cluster,
        "runtime_s": job.runtime_s,
        "end_s": job.end_s,
    }


def _job(plain: Mapping[str, Any]) -> FinishedJob:
    spec = dict(plain["spec"])
    spec["job_type"] = JobType(spec["job_type"])
    if spec.get("expected_runtime") is not None:
        spec["expected_runtime"] = ExpectedRuntime(**spec["expected_runtime"])
    return FinishedJob(
        job_id=str(plain["id"]),
        spec=JobSpec(**spec),
        gpu_model=str(plain["gpu_model"]),
        runtime_s=float(plain["runtime_s"]),
        end_s=float(plain["end_s"]),
        gpu_id=str(plain["gpu_id"]),
        cluster=str(plain.get("cluster", DEFAULT_CLUSTER)),
    )


_SPEC_DEFAULTS: dict[str, Any] = {
    field.name: {} if field.name == "labels" else field.default
    for field in dataclasses.fields(JobSpec)
    if field.default is not dataclasses.MISSING or field.name == "labels"
}
