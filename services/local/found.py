"""What earlier processes of the service have left on this machine, before it is compared with the cluster's record."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from adlro.attempt.records import AttemptView
from adlro.clusterside.kept import Kept
from adlro.errors import Conflict
from adlro.records.cluster import Cluster
from adlro.services.local.notes import Note, Notes, attempt_name, name_of, rank_of
from adlro.services.local.runners import Runner

_NAME = re.compile(r"(.+)\.([0-9]{1,10})\.([0-9a-f]{8})")


@dataclass(frozen=True, slots=True)
class FoundAttempt:
    """A program of an attempt that was there at the start."""

    note: Note
    view: AttemptView


def find_attempts(runners: Mapping[str, Runner], notes: Notes) -> dict[str, FoundAttempt]:
    """The attempts that are there, by folder. Removes the notes of those that are not."""
    noted = notes.read_all()
    found: dict[str, FoundAttempt] = {}
    for kind, runner in runners.items():
        for name in runner.names():
            note = noted.pop(name, None) or _note_from(name, kind)
            found[name] = FoundAttempt(note, runner.look(name))
    for note in noted.values():
        if note.kind in runners:  # its attempt was never written down, or is forgotten
            notes.remove(note.name)
    return found


def check_record(kept: Kept, cluster: Cluster, found: Collection[str]) -> None:
    """Refuses the record of another machine: what runs there would be reported as lost, and run again here.

    Args:
        kept: the record.
        cluster: this machine.
        found: the attempts' folders that are here.

    Raises:
        Conflict: it is another machine's.
    """
    started = [each for each in kept.open_attempts if each.start_revision]
    names = {attempt_name(each) for each in found}
    here = any(name_of(each.job_id, each.attempt, kept.incarnation) in names for each in started)
    gpu_ids = {gpu.gpu_id for _, gpu in cluster.gpus()}
    if started and not here and gpu_ids.isdisjoint(gpu.gpu_id for _, gpu in kept.cluster.gpus()):
        raise Conflict(
            f"in this store, cluster '{cluster.name}' is another machine, on which {len(started)} jobs run: set "
            "ADLRO_LOCAL_CLUSTER_NAME to a name of this machine's own; if it is this one, whose GPUs and directory "
            "have changed, cancel these jobs first",
            field="ADLRO_LOCAL_CLUSTER_NAME",
            reason="OTHER_MACHINE",
        )


def _note_from(name: str, kind: str) -> Note:
    """What a folder's name says, where its note is lost: not the GPU."""
    match = _NAME.fullmatch(attempt_name(name))
    if match is None:
        return Note(name, name, 1, "", (), kind)
    rank = rank_of(name)
    count = 1 if name == attempt_name(name) else max(2, rank + 1)
    return Note(name, match[1], int(match[2]), match[3], (), kind, rank=rank, program_count=count)
