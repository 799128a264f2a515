"""The memory of finished jobs as a file: written as a whole or not at all, read only if complete and of this version.

    {"format": "adlro-outcomes", "version": 2, "vocabulary": "1", "cursor": ..., "bytes": ..., "blake2b": ...}
    <zlib: JSON of {"vocabularies": {name: {value: number}}, "jobs": [...], "restarts": [...],
                    "pairs": [...]}>

The file has the last folded position in the stream of outcomes, so that a process continues from there. Every type is
checked before its use (pydantic, strict), so that no content of a file can end the service.

Replicas fold the same stream, so they may share a file: one writes at a time, and an earlier position in the stream
never replaces a later one.
"""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import json
import os
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import AllowInfNan, Field, TypeAdapter, ValidationError

from adlro.errors import InvalidInput
from adlro.records.jobs import JobSpec
from adlro.services.decompose.outcomes.outcome_memory import DEFAULT_CLUSTER, FinishedJob
from adlro.services.decompose.outcomes.restart_costs import ObservedRestart
from adlro.services.decompose.variables.variables import VOCABULARY_VERSION

FORMAT, VERSION = "adlro-outcomes", 2
READABLE_VERSIONS = (1, 2)
"""Version 1 had lists of values as vocabularies, and jobs without their clusters. Files of version 2 may lack restarts
and pairs; releases without these ignore them, so that one can go back to such a release with its file."""
MOST_CONTENT_BYTES = 2**30
"""Limit of the decompressed size in bytes; a million jobs need about this."""
ANOTHER_VERSION = "ANOTHER_VERSION"
_ENTRY = re.compile("[0-9]{1,20}-[0-9]{1,20}")
_NO_ENTRY = (-1, 0)
_MOST_HEADER_BYTES = 4096
_MOST_NUMBER = 2**30
"""Limit of values' numbers: arrays store them as int32, and each new value increases them."""

_Figure = Annotated[float, AllowInfNan(False)]
_Vocabulary = list[str] | dict[str, Annotated[int, Field(ge=0, le=_MOST_NUMBER)]]


@dataclass(frozen=True, slots=True)
class _PlainJob:
    id: str
    spec: JobSpec
    gpu_model: str
    gpu_id: str
    runtime_s: _Figure
    end_s: _Figure
    cluster: str = DEFAULT_CLUSTER
    gpu_ids: tuple[str, ...] = ()
    spread: bool = False


@dataclass(frozen=True, slots=True)
class _PlainRestart:
    user: str
    application: str
    restart_s: _Figure
    std_s: _Figure
    stated_s: _Figure | None = None


@dataclass(frozen=True, slots=True)
class KeptPair:
    """A pair that shared a GPU: the kept share of the first of two kinds of jobs, and its standard deviation.

    size, beside_size: log2; None: not stated.
    """

    gpu_model: str
    name: str
    family: str
    beside_name: str
    beside_family: str
    kept_share: _Figure
    std: _Figure
    size: _Figure | None = None
    beside_size: _Figure | None = None


@dataclass(frozen=True, slots=True)
class _Content:
    vocabularies: dict[str, _Vocabulary]
    jobs: list[_PlainJob]
    restarts: list[_PlainRestart] = field(default_factory=list)
    pairs: list[KeptPair] = field(default_factory=list)


_CONTENT = TypeAdapter(_Content)


class WrittenSnapshot(NamedTuple):
    """The result of a write.

    bytes: size of the file; 0 if another process is writing it, or its position in the stream is later.
    put_aside: new path of an unreadable file that was in its place.
    """

    bytes: int
    put_aside: Path | None = None


@dataclass(frozen=True, slots=True)
class MemorySnapshot:
    """A file's content.

    Attributes:
        jobs: finished jobs, oldest first.
        vocabularies: those that grow.
        cursor: the id of the last folded entry.
        restarts: observed restart times, in the order in which to learn them.
        pairs: in the order in which to learn them.
    """

    jobs: Sequence[FinishedJob]
    vocabularies: Mapping[str, Sequence[str] | Mapping[str, int]]
    cursor: str
    restarts: Sequence[ObservedRestart] = ()
    pairs: Sequence[KeptPair] = ()


def save(path: Path, snapshot: MemorySnapshot) -> WrittenSnapshot:
    """Replaces the file, by way of a temporary file beside it.

    An unreadable file is put aside first. A file of another version is replaced: replicas of two releases with a common
    file would otherwise put aside each other's files for ever.

    Raises:
        OSError: it can't be written, or the present file can't be put aside.
    """
    with _alone(path.parent) as alone:
        if not alone:
            return WrittenSnapshot(0)
        aside = None
        try:
            if _reach(_header_on_disk(path)["cursor"]) > _reach(snapshot.cursor):
                return WrittenSnapshot(0)
        except FileNotFoundError:
            pass
        except InvalidInput as error:
            aside = put_aside(path) if error.reason != ANOTHER_VERSION else None
        return WrittenSnapshot(_write(path, snapshot), aside)


@contextmanager
def _alone(directory: Path) -> Iterator[bool]:
    """Whether no other process writes here: by a lock on the directory, which the kernel releases after a kill."""
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
    """The header of a file that this release reads.

    Raises:
        OSError: there is no file, or it can't be read.
        InvalidInput: as for `load`.
    """
    with path.open("rb") as file:
        return _header(path, file.readline(_MOST_HEADER_BYTES))


def _header(path: Path, line: bytes) -> Mapping[str, Any]:
    try:
        header = json.loads(line)
    except (ValueError, RecursionError):
        header = None
    if not (isinstance(header, dict) and header.get("format") == FORMAT and line.endswith(b"\n")):
        raise _unreadable(path, "is not a memory of finished jobs", "NOT_A_MEMORY_FILE")
    if header.get("version") not in READABLE_VERSIONS or header.get("vocabulary") != VOCABULARY_VERSION:
        raise _unreadable(
            path,
            f"is of version {header.get('version')} with vocabulary {header.get('vocabulary')}; this release reads "
            f"versions {READABLE_VERSIONS[0]} to {VERSION} with vocabulary {VOCABULARY_VERSION}",
            ANOTHER_VERSION,
        )
    if _reach(header.get("cursor")) == _NO_ENTRY:
        raise _unreadable(path, "is damaged: its cursor is no entry of a stream", "DAMAGED")
    return header


def _reach(cursor: object) -> tuple[int, int]:
    """The sort key of an entry id ("<ms>-<n>", 64 bits each); an invalid id comes first."""
    if not isinstance(cursor, str) or not _ENTRY.fullmatch(cursor):
        return _NO_ENTRY
    ms, number = (int(each) for each in cursor.split("-"))
    return (ms, number) if max(ms, number) < 2**64 else _NO_ENTRY


def _write(path: Path, snapshot: MemorySnapshot) -> int:
    content = {
        "vocabularies": dict(snapshot.vocabularies),
        "jobs": [_plain(job) for job in snapshot.jobs],
        "restarts": [dataclasses.asdict(each) for each in snapshot.restarts],
        "pairs": [dataclasses.asdict(each) for each in snapshot.pairs],
    }
    body = zlib.compress(json.dumps(content, separators=(",", ":")).encode(), level=1)
    header = {
        "format": FORMAT,
        "version": VERSION,
        "vocabulary": VOCABULARY_VERSION,
        "cursor": snapshot.cursor,
        "bytes": len(body),
        "blake2b": hashlib.blake2b(body, digest_size=16).hexdigest(),
    }
    beside = path.with_name(f"{path.name}.tmp")  # no other process is writing; a killed process's rest is overwritten
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
    """Reads a snapshot file.

    Raises:
        FileNotFoundError: there is no file.
        InvalidInput: another file type or version, cut short or damaged; the message names the fault and the remedy.
    """
    with path.open("rb") as file:
        header = _header(path, file.readline(_MOST_HEADER_BYTES))
        body = file.read()
    if len(body) != header.get("bytes"):
        raise _unreadable(path, f"has {len(body)} of {header.get('bytes')} bytes: it is truncated", "CUT_SHORT")
    if hashlib.blake2b(body, digest_size=16).hexdigest() != header.get("blake2b"):
        raise _unreadable(path, "is damaged: its checksum does not fit", "DAMAGED")
    try:
        unpacked = zlib.decompressobj()
        text = unpacked.decompress(body, MOST_CONTENT_BYTES)
        if unpacked.unconsumed_tail or not unpacked.eof:
            raise _unreadable(
                path, f"is damaged: it is no complete document of up to {MOST_CONTENT_BYTES} bytes", "DAMAGED"
            )
        content = _CONTENT.validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise _unreadable(path, f"is damaged: {where and where + ': '}{first['msg']}", "DAMAGED") from error
    except zlib.error as error:
        raise _unreadable(path, f"is damaged: {error}", "DAMAGED") from error
    return MemorySnapshot(
        [_job(each) for each in content.jobs],
        content.vocabularies,
        header["cursor"],
        [
            ObservedRestart(each.user, each.application, each.restart_s, each.std_s, each.stated_s)
            for each in content.restarts
        ],
        content.pairs,
    )


def put_aside(path: Path) -> Path:
    """Renames an unreadable file to `.unreadable`, or `.unreadable.2`, ... if there are such files already.

    Returns:
        The new path.

    Raises:
        OSError: the file can't be renamed.
    """
    aside = path.with_name(f"{path.name}.unreadable")
    number = 1
    while os.path.lexists(aside):
        number += 1
        aside = path.with_name(f"{path.name}.unreadable.{number}")
    path.rename(aside)
    return aside


def _unreadable(path: Path, problem: str, reason: str) -> InvalidInput:
    way_out = "move the file away: decompose learns its content again from the stream of outcomes"
    return InvalidInput(f"{path}: {problem}; {way_out}", field="memory_path", reason=reason)


def _plain(job: FinishedJob) -> dict[str, Any]:
    spec = dataclasses.asdict(dataclasses.replace(job.spec, simulated_work=None))
    defaults = _SPEC_DEFAULTS
    spec = {name: value for name, value in spec.items() if name not in defaults or value != defaults[name]}
    plain = {
        "id": job.job_id,
        "spec": spec,
        "gpu_model": job.gpu_model,
        "gpu_id": job.gpu_id,
        "cluster": job.cluster,
        "runtime_s": job.runtime_s,
        "end_s": job.end_s,
    }
    if job.gpu_ids or job.spread:
        # Releases without jobs of several GPUs ignore these.
        plain |= {"gpu_ids": job.gpu_ids, "spread": job.spread}
    return plain


def _job(plain: _PlainJob) -> FinishedJob:
    return FinishedJob(
        plain.id,
        plain.spec,
        plain.gpu_model,
        plain.runtime_s,
        plain.end_s,
        plain.gpu_id,
        plain.cluster,
        plain.gpu_ids,
        plain.spread,
    )


_SPEC_DEFAULTS: dict[str, Any] = {
    each.name: {} if each.name == "labels" else each.default
    for each in dataclasses.fields(JobSpec)
    if each.default is not dataclasses.MISSING or each.name == "labels"
}
