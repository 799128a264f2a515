"""Has the programs of attempts written down: each with its note and its folder, and after kills those that are missing.

The order of the writes is: the cluster's record, then for each program its note and its intent, at last the gate. A
service that finds no gate completes what is missing, or gives all up; one that finds it has nothing to start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial

import structlog

from adlro.attempt.records import Launch
from adlro.clusterside.attempts import Attempt
from adlro.clusterside.driver import Side
from adlro.errors import AdlroError, AlreadyExists, InvalidInput, NotFound
from adlro.records.payloads import EndReason
from adlro.services.local.found import FoundAttempt
from adlro.services.local.gates import Gates
from adlro.services.local.given import Launches, kind_of
from adlro.services.local.job_dirs import job_dir_name
from adlro.services.local.known import Known
from adlro.services.local.notes import Note, name_of, rank_names
from adlro.services.local.ports import Ports
from adlro.services.local.programs import Programs
from adlro.services.local.runners import Runner, until_done
from adlro.services.local.strays import Strays

_log = structlog.get_logger()


class Orders:
    """Writes the programs of attempts down.

    Args:
        launches: what programs are given.
        known: the attempts.
        runners: by kind, what runs them.
        gates: of attempts of several programs.
        ports: at which programs meet.
        programs: stops them.
        strays: ends what was written down for nothing.
        side: the incarnation that new attempts are of.
    """

    def __init__(
        self,
        launches: Launches,
        known: Known,
        runners: Mapping[str, Runner],
        gates: Gates,
        ports: Ports,
        programs: Programs,
        strays: Strays,
        side: Side,
    ) -> None:
        self._launches = launches
        self._known = known
        self._runners = runners
        self._gates = gates
        self._ports = ports
        self._programs = programs
        self._strays = strays
        self._side = side

    def name(self, attempt: Attempt) -> str:
        """Of an attempt: what its folders' names begin with."""
        notes = self._known.get(attempt.job_id, attempt.attempt)
        return notes[0].attempt_name if notes else name_of(attempt.job_id, attempt.attempt, self._side.incarnation)

    def plan(self, attempt: Attempt, port: int = 0) -> tuple[list[Note], list[Launch]]:
        """What each program of an attempt is, and is given, by rank.

        Args:
            attempt: it.
            port: at which its programs meet; 0: one that is free.

        Raises:
            InvalidInput: the job can't run here.
            Unavailable, OSError: it can't now.
        """
        name = self.name(attempt)
        self._launches.programs_of(attempt)  # a job that has none needs no port
        notes = self._new_notes(attempt, port or self._ports.take(name))
        gate = str(self._gates.path(name))
        names = [each.name for each in notes]
        return notes, self._launches.launches_of(attempt, names, notes[0].port, gate, notes[0].job_dir)

    async def write_down(
        self, notes: Sequence[Note], launches: Sequence[Launch], there: Sequence[Note] = ()
    ) -> list[Note]:
        """Has the programs of an attempt written down, one after the other; none begins before all are.

        Args:
            notes: of the programs that are to be written down.
            launches: theirs.
            there: those that were written down before.

        Returns:
            Those that are written down. Where they are not all, none of them ever begins.

        Raises:
            InvalidInput, Conflict, Unavailable, OSError: one was refused; those before it never begin.
        """
        written = list(there)
        for note, launch in zip(notes, launches, strict=True):
            runner = self._runners[note.kind]
            try:
                await self._known.store(note)
                await runner.start(note.name, launch)
            except Exception as error:
                refused = isinstance(error, (InvalidInput, AlreadyExists))
                if refused or await until_done(partial(asyncio.to_thread, runner.look, note.name)) is None:
                    self._known.drop(note)
                else:  # it may begin yet, and must not, since the job will run again
                    written.append(note)
                if not written:
                    raise
                if refused:
                    self._strays.end_all(written)
                    raise
                why = error.message if isinstance(error, AdlroError) else str(error)
                await self._give_up(written, f"it could not be started: {why}")
                return written
            written.append(note)
        return sorted(written, key=lambda each: each.rank)

    async def _give_up(self, notes: Sequence[Note], why: str) -> None:
        """Ends an attempt that can't begin as a whole; its job runs again."""
        _log.warning("an attempt is given up", attempt=notes[0].attempt_name, why=why)
        await self._programs.stop(notes, EndReason.STOPPED, why)

    async def written(self, attempt: Attempt, found_attempts: Mapping[str, FoundAttempt]) -> list[Note]:
        """The notes of an attempt's programs that earlier processes of the service have written down.

        Args:
            attempt: it.
            found_attempts: by folder, what was there at the start.
        """
        known = self._known.get(attempt.job_id, attempt.attempt)
        has_payload = attempt.spec is not None and attempt.spec.payload is not None
        if has_payload and (not known or len(known) < known[0].program_count):
            # Notes may not survive a power failure; folders do.
            for note in self._new_notes(attempt, known[0].port if known else 0):
                found = found_attempts.get(note.name)
                if found is not None and all(each.rank != note.rank for each in known):
                    self._known.change(found.note, note)
            known = self._known.get(attempt.job_id, attempt.attempt)
        return [each for each in known if await self._is_there(each)]

    async def complete(self, attempt: Attempt, there: Sequence[Note]) -> list[Note]:
        """Has the rest of an attempt's programs written down: the service was killed in between."""
        if self._gates.is_open(there[0].attempt_name) or not there[0].port:
            await self._give_up(there, "what is known of one of its programs is gone")
            return list(there)
        ranks = {each.rank for each in there}
        try:
            notes, launches = await asyncio.to_thread(self.plan, attempt, there[0].port)
            missing = [each for each in notes if each.rank not in ranks]
            return await self.write_down(missing, [launches[each.rank] for each in missing], there)
        except (AdlroError, OSError) as error:
            why = error.message if isinstance(error, AdlroError) else str(error)
            await self._give_up(there, f"it could not be started: {why}")
            return list(there)

    def _new_notes(self, attempt: Attempt, port: int) -> list[Note]:
        spec, incarnation = attempt.spec, self._side.incarnation
        assert spec is not None
        programs, kind = self._launches.programs_of(attempt), kind_of(attempt)
        names = rank_names(name_of(attempt.job_id, attempt.attempt, incarnation), len(programs))
        job_dir = job_dir_name(attempt, incarnation)
        return [
            Note(
                names[rank],
                attempt.job_id,
                attempt.attempt,
                incarnation,
                program.gpu_ids,
                kind,
                spec.user,
                spec.cpu_cores,
                spec.memory_mib,
                rank=rank,
                program_count=len(programs),
                port=port,
                job_dir=job_dir,
            )
            for rank, program in enumerate(programs)
        ]

    async def _is_there(self, note: Note) -> bool:
        try:
            await asyncio.to_thread(self._runners[note.kind].look, note.name)
        except NotFound:
            return False
        return True
