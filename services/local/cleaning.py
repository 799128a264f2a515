"""Deletes ended attempts with their logs, and jobs' directories: the too old ones, and the oldest of too many."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

import structlog

from adlro.clusterside.driver import Side
from adlro.errors import AdlroError, NotFound
from adlro.services.local.gates import Gates
from adlro.services.local.job_dirs import JobDirs
from adlro.services.local.known import Known
from adlro.services.local.runners import Runner

_log = structlog.get_logger()
_DAY_S = 86_400.0


async def clean(
    known: Known,
    runners: Mapping[str, Runner],
    gates: Gates,
    job_dirs: JobDirs,
    side: Side,
    keep_days: float,
    attempts_kept: int,
) -> None:
    """Deletes what is due, and whose end is acknowledged.

    Args:
        known: the attempts.
        runners: by kind, what has their folders.
        gates: of attempts of several programs.
        job_dirs: the directories of jobs.
        side: which ends are acknowledged.
        keep_days: after its end.
        attempts_kept: the newest ones.
    """
    await _clean_attempts(known, runners, gates, job_dirs, side, keep_days, attempts_kept)
    await asyncio.to_thread(job_dirs.remove_old, keep_days * _DAY_S, {each.job_dir for each in known.all()})


async def _clean_attempts(
    known: Known,
    runners: Mapping[str, Runner],
    gates: Gates,
    job_dirs: JobDirs,
    side: Side,
    keep_days: float,
    attempts_kept: int,
) -> None:
    oldest_s = time.time() - keep_days * _DAY_S
    ended = sorted(known.ended_at.items(), key=lambda each: each[1][0])
    too_many = len(ended) - attempts_kept
    for number, (name, (ended_s, note)) in enumerate(ended):
        if number >= too_many and ended_s > oldest_s:
            return
        if note.incarnation == side.incarnation and not side.is_over(*note.key):
            continue
        try:
            await runners[note.kind].forget(name)
        except NotFound:
            pass
        except AdlroError as error:
            _log.warning("an ended attempt can't be deleted", attempt=name, why=error.message)
            continue
        known.drop(note)
        del known.ended_at[name]
        if note.program_count > 1 and not any(each.attempt_name == note.attempt_name for each in known.all_ended()):
            gates.remove(note.attempt_name)
        if note.job_dir and note.final and all(each.job_dir != note.job_dir for each in known.all()):
            await asyncio.to_thread(job_dirs.remove, note.job_dir)
