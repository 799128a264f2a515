"""This machine as a driver of the cluster side: starts programs, reports their ends, finds them again. Plain: no gRPC.

What runs is known by the attempts' folders (adlro.attempt), what the cluster has promised by its record. At each start
the two are compared:

    the record has it open      it goes on; or its end is reported, with the exit status of its program
    the record has it ended     it is stopped; nothing new is placed on its GPU before it has ended
    the record does not have it the store was rolled back, or emptied. A program that runs goes on and is listed as
                                running: the orchestrator decides on it, and nothing else gets its GPU. One that has not
                                begun never begins
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from adlro.attempt.records import AttemptView
from adlro.attempt.users import UnixUsers
from adlro.clusterside.attempts import Attempt
from adlro.clusterside.kept import Kept
from adlro.clusterside.real_driver import RealDriver
from adlro.devices.conditions import RELEASE_S
from adlro.devices.finding import find_devices
from adlro.devices.machine import find_machine
from adlro.devices.pretended import parse_fake_gpus
from adlro.devices.records import Found, Machine
from adlro.errors import Conflict, NotFound, Unavailable
from adlro.placement import Placement
from adlro.records.cluster import Cluster
from adlro.records.events import Capabilities, EventKind, GpuCondition
from adlro.records.jobs import JobSpec, JobType
from adlro.records.payloads import EndReason, ExitStatus, LogChunk, LogStream
from adlro.services.local import runners
from adlro.services.local.cleaning import clean
from adlro.services.local.conditions import Conditions
from adlro.services.local.data_dir import DataDir
from adlro.services.local.ends import PEER_ENDED, decisive, end_of
from adlro.services.local.found import FoundAttempt, check_record, find_attempts
from adlro.services.local.gates import Gates
from adlro.services.local.given import Launches
from adlro.services.local.gpus import GpuIds, Slot, cluster_of, pretended_slots, real_slots
from adlro.services.local.health import GpuHealth
from adlro.services.local.job_dirs import JobDirs
from adlro.services.local.known import Known
from adlro.services.local.logs import Logs
from adlro.services.local.notes import (
    CONTAINER,
    PROCESS,
    Note,
    Notes,
    attempt_name,
    foreign_id,
)
from adlro.services.local.orders import Orders
from adlro.services.local.ports import Ports
from adlro.services.local.programs import Programs, has_run
from adlro.services.local.settings import LocalSettings
from adlro.services.local.strays import Strays
from adlro.services.local.telemetry import GpuMetrics, metrics_of

OBSERVE_S, LOOK_S, CLEAN_S = 1.0, 5.0, 60.0
# Without a supervisor for so long, an attempt's GPU is out: a new one is tried again and again.
_UNSUPERVISED_S = 30.0
# Beside the time that the judge of the GPUs takes: two of its looks.
_RELEASE_MORE_S, _MEMORY_LOOK_S = 2.0, 0.1
_BEFORE, _DEVICE = "before", "device"


class LocalDriver(RealDriver):
    """This machine.

    Args:
        settings: of the service.
        find: finds the GPUs.
        machine: finds cores and memory.

    Raises:
        InvalidInput: a setting does not fit this machine; its message names the setting.
    """

    capabilities = Capabilities(stop=True, logs=True, gangs=True, preemption=True)
    # The supervisor of each attempt does, also while this process is away.
    enforces_limits = False

    def __init__(
        self,
        settings: LocalSettings,
        find: Callable[[], Found] = find_devices,
        machine: Callable[[], Machine] = find_machine,
    ) -> None:
        super().__init__(Cluster(settings.cluster_name, ()))
        self._settings = settings
        self._find = find
        self._machine = machine
        self._data_dir = DataDir(Path(settings.data_dir))
        self._users = UnixUsers(settings.users_map)
        self._fake = parse_fake_gpus(settings.fake_gpus, "ADLRO_LOCAL_FAKE_GPUS") if settings.fake_gpus else ()
        self._conditions = Conditions(
            lambda gpu_id, reason: self.gpu_lost(gpu_id, reason, loses_attempt=False), self.gpu_back
        )
        self._slots: dict[str, Slot] = {}
        self._health = GpuHealth(())
        self._known: Known
        self._runners: dict[str, runners.Runner] = {}
        # By kind, why attempts of it can't run now.
        self._missing: dict[str, str] = {}
        self._launches: Launches
        self._strays: Strays
        self._logs: Logs
        self._gates: Gates
        self._job_dirs: JobDirs
        self._ports = Ports()
        self._programs: Programs
        self._orders: Orders
        self._found_attempts: dict[str, FoundAttempt] = {}
        self._gpu_failed: set[str] = set()
        self._unsupervised_since: dict[str, float] = {}

    # ---- its life

    async def prepare(self) -> None:
        """Finds the GPUs, and what earlier processes of this service have started.

        Raises:
            InvalidInput: there are no GPUs, or a setting does not fit this machine.
            Conflict: another service uses the directory.
            DataLoss: a file of the directory can't be read.
        """
        await asyncio.to_thread(self._prepare)

    def _prepare(self) -> None:
        self._data_dir.take()
        choice = runners.choose(self._settings.driver)
        folder = self._data_dir.path
        slots = pretended_slots(self._fake) if self._fake else real_slots(self._find(), GpuIds(folder / "gpus.json"))
        self._slots = {each.gpu_id: each for each in slots}
        machine = self._machine()
        shared = replace(
            machine,
            cpu_cores=self._settings.cpu_cores or machine.cpu_cores,
            memory_mib=self._settings.memory_mib or machine.memory_mib,
        )
        self.cluster = cluster_of(self._settings.cluster_name, slots, shared)
        self._health = GpuHealth(slots)
        notes = Notes(folder / "notes")
        self._known = Known(notes)
        self._runners = {PROCESS: runners.processes(folder / "attempts", choice.driver)}
        settings = self._settings
        # What says what runs here, and as whom, is no job's to mount and change.
        own = (settings.data_dir, settings.secrets_dir, settings.users_map, settings.users_file)
        never_mounted = [each for each in own if each]
        containers = runners.containers(
            folder / "containers", settings.engine, settings.prefixes, never_mounted, settings.container_network
        )
        if containers is not None:
            self._runners[CONTAINER] = containers
        self._look_for_engine()
        self._job_dirs = JobDirs(folder / "jobs")
        self._launches = Launches(
            self._slots,
            self._missing,
            choice.driver.enforced,
            self._users,
            self._job_dirs,
            settings.secrets_dir,
            settings.processes_of_job,
            settings.container_network,
        )
        self._gates = Gates(folder / "gates")
        self._programs = Programs(self._runners, self._gates, self._is_over)
        self._log.info(
            "programs run on this machine",
            driver=choice.driver.name,
            not_enforced=list(choice.not_enforced),
            passed_over=dict(choice.passed_over),
            cannot_run=self._missing,
            gpus={gpu_id: slot.device.product_name for gpu_id, slot in self._slots.items()},
        )
        self._found_attempts = find_attempts(self._runners, notes)
        self._gates.keep({attempt_name(each) for each in self._found_attempts})

    def _look_for_engine(self) -> None:
        """An engine may be started after this service. One that has gone is away: its containers are waited for."""
        if self.capabilities.containers:
            return
        why = runners.why_no_containers(self._settings.engine)
        has_attempts = CONTAINER in self._runners and bool(self._runners[CONTAINER].names())
        if why and not has_attempts:
            self._missing[CONTAINER] = why
            return
        if self._missing.pop(CONTAINER, None):
            self._log.info("jobs with an image run from now on", engine=self._settings.engine)
        self.capabilities = replace(self.capabilities, containers=True)

    async def begin(self, kept: Kept | None) -> None:
        """See Driver; compares what is there with the record.

        Raises:
            Conflict: the record is another machine's.
        """
        if kept is not None:
            check_record(kept, self.cluster, self._found_attempts)
        self._strays = Strays(self._runners, self._conditions, self._slots, self.spawn, self._is_over)
        self._orders = Orders(
            self._launches,
            self._known,
            self._runners,
            self._gates,
            self._ports,
            self._programs,
            self._strays,
            self.side,
        )
        self._logs = Logs(self._known, self._runners, self.side)
        await super().begin(kept)
        for gpu_id in kept.lost_gpu_ids if kept is not None else ():
            if gpu_id in self._slots:
                self._conditions.restore(gpu_id, _BEFORE, "it was out when the cluster's service ended")
        incarnation = self.side.incarnation
        for each in self._found_attempts.values():
            if each.note.incarnation == incarnation:
                self._known.put(each.note)
        # Those whose GPU has left are about to be reported as lost.
        open_names = {
            self._orders.name(each)
            for each in self.side.open_attempts()
            if self._slots.keys() >= set(each.placement.gpu_ids)
        }
        by_attempt: dict[str, list[FoundAttempt]] = {}
        for each in self._found_attempts.values():
            by_attempt.setdefault(each.note.attempt_name, []).append(each)
        for name, programs in by_attempt.items():
            if name not in open_names:
                self._sort_out(sorted(programs, key=lambda each: each.note.rank), incarnation)

    def _sort_out(self, programs: Sequence[FoundAttempt], incarnation: str) -> None:
        """Decides on the programs of an attempt that is not open by the record."""
        first = programs[0].note
        known = first.incarnation == incarnation and self.side.knows(*first.key)
        open_ones = [each.note for each in programs if each.view.ended is None]
        for each in programs:
            note = each.note
            if each.view.ended is not None:
                if note.incarnation == incarnation and not known and not note.forgotten:
                    note = self._known.change(note, replace(note, forgotten=True))
                self._known.ended_at[note.name] = each.view.ended.unix_s, note
        if not open_ones:
            return
        # A gate that is open lets the rest begin as well.
        begun = any(each.view.began is not None for each in programs)
        gpu_ids = [gpu_id for each in programs for gpu_id in each.note.gpu_ids]
        placed = all(each.note.gpu_ids for each in programs) and self._slots.keys() >= set(gpu_ids)
        if known or not begun or not placed:
            self._strays.end_all(open_ones)
            return
        job_id = first.job_id if first.incarnation == incarnation else foreign_id(first.job_id, first.incarnation)
        spec = JobSpec(
            job_id,
            first.user,
            JobType.UNSPECIFIED,
            cpu_cores=first.cpu_cores,
            memory_mib=first.memory_mib,
            gpu_count=len(gpu_ids),
        )
        attempt = Attempt(job_id, first.attempt, Placement.on(*gpu_ids), spec)
        if not self.side.adopt(attempt):
            self._strays.end_all(open_ones)
            return
        self._log.warning("an attempt runs that the store has lost", attempt=first.attempt_name, listed_as=job_id)
        adopted = []
        for each in programs:
            note = each.note
            if note in open_ones:
                self._strays.add(note)
            lost = replace(note, job_id=job_id, incarnation=incarnation, forgotten=True)
            adopted.append(self._known.change(note, lost))
        self._ports.keep(first.attempt_name, first.port)
        self._watch(attempt, adopted)

    async def run(self, tell: Callable[[str], None]) -> None:
        """Watches the GPUs and the attempts, and deletes old ones."""
        self._health.start()
        self.spawn(self._take_up(), "take up attempts")
        looked_s = cleaned_s = -CLEAN_S
        while True:
            try:
                await self._observe()
                if time.monotonic() - looked_s >= LOOK_S:
                    looked_s = time.monotonic()
                    self._look_for_engine()
                    await self._look()
                if time.monotonic() - cleaned_s >= CLEAN_S:
                    cleaned_s = time.monotonic()
                    await clean(
                        self._known,
                        self._runners,
                        self._gates,
                        self._job_dirs,
                        self.side,
                        self._settings.log_keep_days,
                        self._settings.attempts_kept,
                    )
            except Exception as error:  # of a disk, or of a driver's files: the next look may work
                self._log.exception("a look at this machine failed", why=str(error))
            await asyncio.sleep(OBSERVE_S)

    async def _take_up(self) -> None:
        """Has every attempt supervised, when those that must not begin are stopped; removes what kills have left."""
        await self._strays.stopped()
        for runner in self._runners.values():
            for view in await runner.take_up():
                if view.problem:
                    self._log.error("an attempt can't be taken up", attempt=view.name, why=view.problem)

    async def close(self) -> None:
        """Stops reports; programs run on."""
        await super().close()
        for runner in self._runners.values():
            await runner.close()
        await asyncio.to_thread(self._health.stop)
        self._data_dir.give_back()

    # ---- RealDriver

    async def start(self, attempt: Attempt) -> None:
        """See RealDriver.

        Raises:
            InvalidInput: the job can't run here.
            Conflict, Unavailable, OSError: it can't be started now.
        """
        self._look_for_engine()
        try:
            await self._start_all(attempt)
        except BaseException:
            self._ports.give_back(self._orders.name(attempt))
            raise

    async def _start_all(self, attempt: Attempt) -> None:
        notes, launches = await asyncio.to_thread(self._orders.plan, attempt)
        if any(each.forgotten for each in self._known.get(attempt.job_id, attempt.attempt)):
            raise Conflict(
                f"attempt {attempt.attempt} of {attempt.job_id} ran here before, and the store has lost its record",
                reason="ATTEMPT_FORGOTTEN",
            )
        await self._strays.make_way(attempt)
        await self._memory_released(attempt.placement.gpu_ids)
        self._watch(attempt, await self._orders.write_down(notes, launches))

    async def end(self, attempt: Attempt) -> None:
        """See RealDriver."""
        notes = self._known.get(attempt.job_id, attempt.attempt)
        stops = [self._runners[each.kind].stop(each.name, grace_s=attempt.grace_s) for each in notes]
        told = await asyncio.gather(*stops, return_exceptions=True)
        errors = [each for each in told if isinstance(each, BaseException)]
        if notes and all(isinstance(each, NotFound) for each in errors) and len(errors) == len(notes):
            self.ended(attempt, EventKind.FAILED, "stopped")
        for error in errors:
            if not isinstance(error, NotFound):
                raise error

    async def resume(self, attempt: Attempt) -> bool:
        """See RealDriver."""
        notes = await self._orders.written(attempt, self._found_attempts)
        if not notes:
            return False
        self._ports.keep(notes[0].attempt_name, notes[0].port)
        if attempt.stop_asked:
            await self._programs.stop(notes, grace_s=attempt.grace_s)  # before anybody begins it
        elif len(notes) < notes[0].program_count:
            notes = await self._orders.complete(attempt, notes)
        self._watch(attempt, notes)
        return True

    def _watch(self, attempt: Attempt, notes: Sequence[Note]) -> None:
        """Reports the start of an attempt that is written down, and follows it to its end."""
        self.started(attempt)
        self.spawn(self._tell_running(attempt, notes), f"begin {notes[0].attempt_name}")
        self.spawn(self._tell_end(attempt, notes), f"watch {notes[0].attempt_name}")

    async def _tell_running(self, attempt: Attempt, notes: Sequence[Note]) -> None:
        if await self._programs.begin(notes, lambda: self.side.is_open(attempt) and not attempt.stop_asked):
            self.runs(attempt)

    async def _tell_end(self, attempt: Attempt, notes: Sequence[Note]) -> None:
        time_limit_s = None if attempt.spec is None else attempt.spec.time_limit_s
        ends = await self._programs.ended(notes, lambda: attempt.grace_s)
        self._ports.give_back(notes[0].attempt_name)
        end = decisive(ends)
        status, view = end.told, end.view
        if status is None or view is None:
            self.ended(attempt, EventKind.LOST, "its folder is gone, so nothing is known of its program")
            return
        if any(each.view is not None and has_run(each.view) for each in ends):
            self.runs(attempt)
        kind, message = end_of(
            status,
            by_node=view.by_node,
            stop_asked=attempt.stop_asked,
            preempt_asked=attempt.preempt_asked,
            time_limit_s=time_limit_s,
        )
        failure = next(filter(None, map(self._health.failure, attempt.placement.gpu_ids)), "")
        if kind is EventKind.FAILED and failure and status.reason in (EndReason.EXITED, EndReason.SIGNALLED):
            status = replace(status, reason=EndReason.GPU_FAILED, detail=f"{failure}; its program: {status.text}")
            kind, message = EventKind.LOST, status.text
        if kind not in (EventKind.PREEMPTED, EventKind.LOST):
            for note in self._known.get(*notes[0].key):
                self._known.change(note, replace(note, final=True))
        # Whoever supervises it has noted whether it ended before it was asked to.
        self.ended(attempt, kind, message, status, by_itself=status.reason is not EndReason.STOPPED)

    def _is_over(self, note: Note, view: AttemptView | None = None) -> None:
        self._known.ended_at[note.name] = view.ended.unix_s if view is not None and view.ended else time.time(), note
        self._strays.remove(note.name)
        self._gpu_failed.discard(note.name)
        self._unsupervised_since.pop(note.name, None)
        self._set_condition(note, "")

    def _set_condition(self, note: Note, reason: str) -> None:
        for gpu_id in note.gpu_ids:
            if gpu_id in self._slots:
                self._conditions.set(gpu_id, note.name, reason)

    async def _memory_released(self, gpu_ids: Sequence[str]) -> None:
        """Returns when GPUs have released what the attempt before has used: a driver may need seconds for that.

        Raises:
            Unavailable: they do not, or somebody else uses one.
        """
        until_s = time.monotonic() + RELEASE_S + _RELEASE_MORE_S
        while held := [each for each in gpu_ids if not self._health.released(each)]:
            if why := self._conditions.reason(held[0]):
                raise Unavailable(f"GPU {held[0]} is out: {why}", reason="GPU_OUT")
            if time.monotonic() >= until_s:
                raise Unavailable(f"GPU {held[0]} does not release its memory", reason="MEMORY_HELD")
            await asyncio.sleep(_MEMORY_LOOK_S)

    # ---- logs

    def newest_attempt(self, job_id: str) -> int:
        """See Driver."""
        return self._logs.newest_attempt(job_id)

    async def read_log(
        self, job_id: str, attempt: int, stream: LogStream, offset: int, most_bytes: int, rank: int = 0
    ) -> LogChunk:
        """See Driver."""
        return await self._logs.read(job_id, attempt, rank, stream, offset, most_bytes)

    async def log_grown(self, job_id: str, attempt: int, stream: LogStream, size: int, rank: int = 0) -> None:
        """See Driver."""
        await self._logs.grown(job_id, attempt, rank, stream, size)

    # ---- GPUs

    def gpu_conditions(self) -> Sequence[GpuCondition]:
        """See Driver."""
        return self._conditions.all()

    def sample(self) -> tuple[float, GpuMetrics]:
        """See Driver."""
        return self.present_s(), metrics_of(self._health.readings())

    async def _observe(self) -> None:
        """Looks at the GPUs."""
        running: dict[str, frozenset[int]] = {}
        if self._health.watches:
            running = await asyncio.to_thread(self._processes, self._open_notes())
        for gpu_id, reason in self._health.observe(running).items():
            self._conditions.set(gpu_id, _DEVICE, reason)
            self._conditions.set(gpu_id, _BEFORE, "")
        gone = self._health.gone()
        for note in self._open_notes() if gone else ():
            lost = [each for each in note.gpu_ids if each in gone]
            if lost and note.name not in self._gpu_failed:
                self._gpu_failed.add(note.name)
                reason = self._health.failure(lost[0])
                self.spawn(self._fail(note, reason), f"end {note.name}")

    async def _fail(self, note: Note, reason: str) -> None:
        """Ends an attempt of which a GPU is gone: its program first, which may hang there, then the others."""
        self._log.warning("an attempt's GPU is gone; it is stopped", attempt=note.name, why=reason)
        await self._programs.stop([note], EndReason.GPU_FAILED, reason)
        peers = [each for each in self._known.get(*note.key) if each.rank != note.rank]
        await self._programs.stop(peers, detail=f"{PEER_ENDED}GPU failed: rank {note.rank}: {reason}")

    def _processes(self, notes: Sequence[Note]) -> dict[str, frozenset[int]]:
        """By GPU what its attempt runs. The ranks of a node may use each other's GPUs."""
        of_attempt: dict[tuple[str, int], frozenset[int]] = {}
        for kind, runner in self._runners.items():
            keys = {each.name: each.key for each in notes if each.kind == kind}
            for name, pids in runner.processes(keys).items():
                of_attempt[keys[name]] = of_attempt.get(keys[name], frozenset()) | pids
        return {gpu_id: of_attempt[each.key] for each in notes for gpu_id in each.gpu_ids}

    def _open_notes(self) -> list[Note]:
        found = (self._known.get(each.job_id, each.attempt) for each in self.side.open_attempts())
        return [each for notes in found for each in notes]

    async def _look(self) -> None:
        """Takes a GPU out while what runs there can't be ended, or has nobody to supervise it."""
        now_s = time.monotonic()
        noted = [(attempt, note) for attempt in self.side.open_attempts() for note in self._notes_of(attempt)]
        stuck: set[str] = set()
        for attempt, note in noted:
            if note.name in self._known.ended_at or not attempt.start_revision:
                continue
            try:
                view = await asyncio.to_thread(self._runners[note.kind].look, note.name)
            except NotFound:
                continue
            reason = ""
            who = f"attempt {note.attempt} of {note.job_id}"
            if view.supervised or view.exit is not None:
                self._unsupervised_since.pop(note.name, None)
            elif note.kind != PROCESS:  # containers have no supervisor of ours
                pass
            elif now_s - self._unsupervised_since.setdefault(note.name, now_s) >= _UNSUPERVISED_S:
                reason = f"{who} has no supervisor, and none can be started"
            if view.stuck_pids:
                pids = ", ".join(map(str, view.stuck_pids[:8]))
                reason = f"processes of {who} do not end although they were killed (pid {pids}); a reboot ends them"
            if note.name in self._known.ended_at:  # meanwhile
                continue
            self._set_condition(note, reason)
            if view.stuck_pids:
                stuck.add(note.name)
            names = {each.name for each in self._notes_of(attempt)}
            if names & stuck & self._gpu_failed and names <= stuck | self._known.ended_at.keys():
                # They never run a line of their program again, so the job may run elsewhere.
                failure = next(filter(None, map(self._health.failure, attempt.placement.gpu_ids)), "its GPU is gone")
                status = ExitStatus(EndReason.GPU_FAILED, detail=failure)
                self.ended(attempt, EventKind.LOST, status.text, status)

    def _notes_of(self, attempt: Attempt) -> tuple[Note, ...]:
        return self._known.get(attempt.job_id, attempt.attempt)
