"""The orchestrator's placements and queue: the only source of occupancy and masks. Plain data and arrays.

Telemetry lags, so the ledger doesn't use it. No gRPC, no Redis, no clock: callers pass times in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from adlro.hardware.gang_speeds import spread_speeds
from adlro.placement import SHARED
from adlro.records.attained import AttainedService
from adlro.records.cluster import Cluster
from adlro.records.jobs import Job, JobSpec, JobState
from adlro.records.outcomes import ApplicationSize
from adlro.records.predictions import PredictedInterval
from adlro.services.orchestrator.ledger.counts import ELSEWHERE, Counts
from adlro.services.orchestrator.ledger.entry import Entry, Phase
from adlro.services.orchestrator.ledger.limits import Limits, within_rows
from adlro.services.orchestrator.ledger.occupancy import Layout, Occupancy
from adlro.services.orchestrator.ledger.preempting import StopRules, gpu_figures, share_left
from adlro.services.orchestrator.ledger.queue import Queue
from adlro.services.orchestrator.ledger.queue_columns import QueueFigures
from adlro.services.orchestrator.ledger.reflecting import reflected
from adlro.services.orchestrator.ledger.sharing import (
    PairTable,
    asks_for_a_part,
    expect_alone,
    expect_together,
    is_open,
    lost_beside_s,
    shared_duration_s,
    shares_of,
)
from adlro.services.orchestrator.ledger.user_rules import UserRules
from adlro.services.orchestrator.ledger.user_service import UserService
from adlro.state.gangs import NEVER
from adlro.state.machines import time_left_s
from adlro.state.observation import Floats, Ints, Observation
from adlro.state.scene import Shares, Stops, whole_queue


class Ledger:
    """Occupancy of one cluster and the queue before it.

    Args:
        cluster: the cluster; GPUs are numbered in its order.
        drained: ids of the drained nodes; a mapping gives the reasons.
        user_service: by user, the GPU time of ended attempts so far.
        min_run_s: a preemptible job may be stopped for another one once it has run so long; None: never.
        shares: the cluster lets two jobs share a GPU.
        pairs: what such jobs are expected to keep of their speeds.
        user_rules: quotas, shares and groups of users.
    """

    def __init__(
        self,
        cluster: Cluster,
        drained: Iterable[str] = (),
        user_service: Mapping[str, AttainedService] | None = None,
        min_run_s: float | None = None,
        *,
        shares: bool = False,
        pairs: PairTable | None = None,
        user_rules: UserRules | None = None,
    ) -> None:
        self.layout = Layout(cluster)
        self.occupancy = Occupancy.empty(self.layout)
        self.entries: dict[str, Entry] = {}
        self.counts = Counts()
        # Counts changes of GPUs, nodes or expected durations: each makes earlier observations invalid.
        self.changes = 0
        rules = user_rules or UserRules()
        self.user_service = UserService(user_service or {}, rules.half_life_s, rules.fair_shares)
        self.limits = Limits(self.user_service, rules.quotas)
        self._ended: list[Job] = []
        self._queue = Queue(len(self.layout.gpu_models))
        # The waiting job that GPUs are kept free for, and the cluster time since which it has that.
        self.reserved: Entry | None = None
        self.reserved_since_s = 0.0
        # Each GPU's user (-1: idle), the start of its job, and the job's submission time.
        self._holder_user: Ints = np.full(len(self.layout.gpu_ids), -1, dtype=np.int64)
        self._since_s: Floats = np.zeros(len(self.layout.gpu_ids))
        self._holder_submit_s: Floats = np.zeros(len(self.layout.gpu_ids))
        self.stop_rules = StopRules(min_run_s)
        self._preemptible: dict[str, Entry] = {}  # of the placed jobs
        self._parted: dict[str, Entry] = {}  # of these, by job, those that have a part of their GPU
        self._shares = shares
        self._refused_pairs: set[tuple[ApplicationSize, ApplicationSize, int]] = set()  # by the cluster, on a model
        self._pairs = pairs or PairTable.of((), np.zeros((0, 0, len(self.layout.gpu_models))))
        self.set_drained(drained)

    # ---- jobs

    def enter(
        self,
        job: Job,
        version: int,
        expected_s: Floats,
        spread: float = 0.0,
        generation: int = 0,
        spread_speed: Floats | None = None,
        restart_s: float = 0.0,
        interval: PredictedInterval | None = None,
    ) -> Entry:
        """Adds a job that is not final.

        Args:
            expected_s: (K,) expected duration on each of the cluster's GPU models, on a packed set of GPUs; inf: the
                job does not accept the model.
            spread: uncertainty of expected_s: standard deviation of ln(true / expected).
            generation: generation of these predictions.
            spread_speed: (K,) expected speed on a spread set, relative to a packed one; None: that of the speed table.
            restart_s: expected seconds of each start after a stop until the work of a preemptible job goes on.
            interval: around expected_s, for explanations; None: not known.
        """
        entry = Entry(job, version, expected_s, spread=spread, generation=generation, restart_cost_s=restart_s)
        entry.interval = interval
        entry.spread_speed = self._spread_speed(job.spec, spread_speed)
        self.entries[job.job_id] = entry
        self.count_anew(entry)
        return entry

    def expect(
        self,
        entry: Entry,
        expected_s: Floats,
        spread: float = 0.0,
        spread_speed: Floats | None = None,
        restart_s: float = 0.0,
        interval: PredictedInterval | None = None,
    ) -> bool:
        """Sets the expectations of a job that is not placed; the arguments are those of `enter`.

        Returns:
            Whether they differ from those before; the interval, by which nothing is decided, does not count.
        """
        entry.interval = interval
        if entry.gpu_count > 1:
            speed: Floats | float = self._spread_speed(entry.job.spec, spread_speed)
            same = np.array_equal(speed, entry.spread_speed)
        else:
            speed, same = 1.0, True
        if restart_s != entry.restart_cost_s:
            entry.restart_cost_s = restart_s
            same = same and not entry.job.resumes
        if same and spread == entry.spread and np.array_equal(expected_s, entry.expected_s):
            return False
        entry.expected_s, entry.spread, entry.spread_speed = expected_s, spread, speed
        if entry.row >= 0:
            self._queue.expect(entry)
            self.changes += 1
        return True

    def _spread_speed(self, spec: JobSpec, expected: Floats | None) -> Floats | float:
        if spec.gpu_count == 1:
            return 1.0
        if expected is not None:
            return expected
        speeds: Floats = spread_speeds([spec.application], [spec.job_type], [spec.gpu_count], self.layout.gpu_models)[0]
        return speeds

    def durations_s(self, entry: Entry) -> Floats:
        """(G,) expected duration of what is left of a job on each GPU; inf if the GPU can never hold the job.

        For a job of several GPUs: on a packed set whose slowest GPU this one is.
        """
        spec = entry.job.spec
        able = self.layout.can_ever_hold(spec)
        if spec.gpu_count > 1:
            able &= self.layout.possible_nodes(spec, entry.spread_speed)[self.layout.gpu_model] != NEVER
        whole_s = entry.expected_s[self.layout.gpu_model] / self.occupancy.speed
        return np.where(able, time_left_s(entry.restart_s, entry.job.remaining_ratio, whole_s), np.inf)

    def can_ever_start(self, entry: Entry) -> bool:
        """Whether some set of GPUs, with all nodes empty and no GPU lost, can hold the job."""
        return bool(np.isfinite(self.durations_s(entry)).any())

    def duration_on_s(self, entry: Entry, gpus: Sequence[int]) -> float:
        """Expected duration of what is left of a job on a set of GPUs of one model.

        Equal to that in a candidate table, to the bit.
        """
        whole_s = self.whole_duration_s(entry, gpus)
        return float(time_left_s(entry.restart_s, entry.job.remaining_ratio, whole_s))

    def whole_duration_s(self, entry: Entry, gpus: Sequence[int]) -> float:
        """Expected duration of all of a job's work, without a restart, on a set of GPUs of one model."""
        model = self.layout.gpu_model[gpus[0]]
        if len(gpus) == 1:
            return float(entry.expected_s[model] / self.occupancy.speed[gpus[0]])
        duration_s = entry.expected_s[model] / min(self.occupancy.speed[gpu] for gpu in gpus)
        if self.is_spread(entry.job.spec, gpus):
            duration_s /= np.broadcast_to(entry.spread_speed, entry.expected_s.shape)[model]
        return float(duration_s)

    def is_spread(self, spec: JobSpec, gpus: Sequence[int]) -> bool:
        """Whether a set of GPUs of one model is on more nodes than the job needs.

        It is not where the cluster, changed since the start, can hold no packed set of the model.
        """
        nodes = len({int(self.layout.gpu_node[gpu]) for gpu in gpus})
        return nodes > 1 and NEVER < int(self.layout.packed_nodes(spec)[self.layout.gpu_model[gpus[0]]]) < nodes

    def enqueue(self, entry: Entry) -> None:
        """Inserts a job into the queue, in the order of `Entry.order`."""
        entry.phase = Phase.QUEUED
        spec = entry.job.spec
        allowed = self.layout.allowed_nodes(spec) if spec.chooses_nodes else None
        user, array = self.user_service.number_of(spec.user), self.limits.number_of(spec)
        self._queue.add(entry, user, self._pairs, array, allowed)
        self.count_anew(entry)

    def hold(self, entry: Entry) -> None:
        """Keeps a job that is not placed out of the queue until its release."""
        self._leave_queue(entry)
        entry.phase = Phase.HELD
        self.count_anew(entry)

    def update(self, entry: Entry) -> None:
        """Notes that the request of a job that is not placed has changed."""
        if entry.row >= 0:
            self._queue.update(entry)
            self.changes += 1

    def set_user_rules(self, rules: UserRules) -> None:
        """Sets quotas, shares and groups of users, from now on; what runs beyond a quota runs on."""
        self.limits.set_quotas(rules.quotas)
        self.user_service.set_shares(rules.fair_shares)
        self.changes += 1

    @property
    def ended(self) -> list[Job]:
        """What the next call of `take_ended` returns."""
        return self._ended

    def take_ended(self) -> list[Job]:
        """The last records of the jobs that have ended since the last call, in order."""
        ended, self._ended = self._ended, []
        return ended

    def share_of(self, spec: JobSpec) -> float:
        """The share that a job is to have of each of its GPUs."""
        return SHARED if self._shares and asks_for_a_part(spec) else 1.0

    def place(
        self, entry: Entry, gpus: Sequence[int], time_s: float, preempts: Sequence[Entry] = (), share: float = 1.0
    ) -> None:
        """Places a job: it holds the GPUs, cores and memory, and leaves the queue if it was there.

        Where a job has a part of a GPU, and stays, this one has the rest.

        Args:
            gpus: all of one model.
            share: of each of them.
            preempts: the jobs that are stopped to make room; each holds one of these GPUs at least. It keeps its others
                until it ends, and all its cores and memory: the job holds what it needs beyond these. Where it needs
                more, less than nothing may be free on a node until then.
        """
        gpus = tuple(sorted(gpus))
        duration_s = self.duration_on_s(entry, gpus)
        for victim in preempts:
            self._let_go(victim)
            victim.ceded = tuple(gpu for gpu in victim.gpus if gpu in gpus)
            victim.preemptor, victim.stopped_for = entry, entry.job.job_id
            self._hold(victim)
        entry.since_s, entry.expected_end_s = time_s, time_s + duration_s
        entry.gpus, entry.victims = gpus, list(preempts)
        entry.has_part = share < 1.0
        if entry.has_part:
            self._put_beside(entry)
            self._parted[entry.job.job_id] = entry
        self._hold(entry)
        self._leave_queue(entry)
        entry.phase = Phase.PLACED
        self.limits.place(entry)
        self.count_anew(entry)
        if entry.job.spec.preemptible is not None:
            self._preemptible[entry.job.job_id] = entry

    def _put_beside(self, entry: Entry) -> None:
        """Makes a job, which is about to hold its GPU, the mate of the one that is there, if any."""
        gpu = entry.gpus[0]
        other = self.entries.get(self.occupancy.holder[gpu])
        if other is None or not other.has_part or other.mate is not None:
            return
        model, whole_s = int(self.layout.gpu_model[gpu]), self.whole_duration_s(entry, entry.gpus)
        expect_together(other, entry, self._pairs, model, whole_s)
        entry.mate, other.mate = other, entry
        self._tell_end(other)

    def is_second(self, entry: Entry) -> bool:
        """Whether the arrays of GPUs tell of the other job on its GPU."""
        mate = entry.mate
        return mate is not None and bool(entry.held and self.occupancy.holder[entry.held[0]] == mate.job.job_id)

    @property
    def _seconds(self) -> list[Entry]:
        """The second jobs on shared GPUs."""
        return [entry for entry in self._parted.values() if entry.held and self.is_second(entry)]

    def _tell_end(self, entry: Entry) -> None:
        """Writes the expected end of a job to the GPUs that it holds; the arrays tell of the first of two."""
        if entry.held and not self.is_second(entry):
            self.occupancy.expected_end_s[list(entry.held)] = entry.expected_end_s

    def _hold(self, entry: Entry) -> None:
        """Gives a placed job what it holds."""
        if not entry.held:
            return
        if self.is_second(entry):
            self.occupancy.take_beside(entry.held[0], entry.job.spec)
            return
        held, user = entry.held, self.user_service.number_of(entry.job.spec.user)
        more: dict[int, tuple[int, int]] = {}
        for victim in entry.victims:
            of_victim = self.layout.held_with(victim.job.spec, victim.gpus)
            for gpu in victim.ceded:
                cores, memory_mib = more.get(gpu, (0, 0))
                more[gpu] = cores + of_victim[gpu][0], memory_mib + of_victim[gpu][1]
        spec = entry.job.spec
        own = self.layout.held_with(spec, entry.gpus) if spec.exclusive else None
        self.occupancy.take(held, entry.job.job_id, spec, entry.expected_end_s, more, own)
        for gpu in held:
            self._holder_user[gpu] = user
            self._since_s[gpu] = entry.since_s
            self._holder_submit_s[gpu] = entry.job.submit_s or 0.0

    def _let_go(self, entry: Entry) -> None:
        if not entry.held:
            return
        if self.is_second(entry):
            self.occupancy.give_back_beside(entry.held[0], entry.job.spec)
            return
        mate = entry.mate if entry.mate is not None and entry.mate.held else None
        if mate is not None:
            self.occupancy.give_back_beside(mate.held[0], mate.job.spec)
        self.occupancy.give_back(entry.held)
        for gpu in entry.held:
            self._holder_user[gpu] = -1
        if mate is not None:  # it is the first there now
            self._hold(mate)

    def place_elsewhere(self, entry: Entry) -> None:
        """Marks a job as placed on a GPU that the cluster no longer has: it holds nothing here."""
        self._leave_queue(entry)
        entry.phase = Phase.PLACED
        self.limits.place(entry)
        self.count_anew(entry)

    def runs_since(self, entry: Entry, start_s: float) -> None:
        """Sets the start of a placed job, as reported by the cluster."""
        entry.since_s = start_s
        if entry.held and not self.is_second(entry):
            self._since_s[list(entry.held)] = start_s

    def program_runs(self, entry: Entry, run_s: float) -> None:
        """The program of a placed job runs since `run_s`: its expected duration counts from there."""
        if entry.gpus:
            entry.expected_end_s = run_s + shared_duration_s(entry, self.whole_duration_s(entry, entry.gpus))
            self._tell_end(entry)

    def has_run(self, entry: Entry) -> None:
        """Brings the expected end of a job that an earlier session placed, just placed here, up to date."""
        last = entry.job.attempts[-1]
        if last.run_s is not None:
            self.program_runs(entry, last.run_s)
        if last.neighbours:
            entry.expected_end_s += lost_beside_s(entry.job, self._pairs, int(self.layout.gpu_model[entry.gpus[0]]))
            self._tell_end(entry)

    def share_left(self, entry: Entry, time_s: float) -> float:
        """The share of its work that a placed job has left if it stops now, by what is expected."""
        if not entry.gpus:  # they have left the cluster
            return entry.job.remaining_ratio
        return share_left(entry, time_s, self.whole_duration_s(entry, entry.gpus))

    @property
    def shares(self) -> bool:
        """Whether two jobs may share a GPU of this cluster."""
        return self._shares

    def set_pairs(self, pairs: PairTable) -> None:
        """Sets what jobs are expected to keep beside others from now on; jobs that share a GPU already stay as told."""
        self._pairs = pairs.without(self._refused_pairs)
        self.changes += 1
        self._queue.set_pairs(self._pairs)

    def refuse_pair(self, entry: Entry) -> None:
        """Lets no pair of such jobs share any more: the cluster can't run a job beside the other one on its GPU."""
        if entry.mate is not None:
            kinds = ApplicationSize.of(entry.job.spec), ApplicationSize.of(entry.mate.job.spec)
            self._refused_pairs.add((*kinds, int(self.layout.gpu_model[entry.gpus[0]])))
            self.set_pairs(self._pairs)

    def release(self, entry: Entry, time_s: float, *, stops_asked: bool = True) -> None:
        """Releases the resources of a placed job; the entry stays.

        Jobs that were to be stopped for it, and have not ended, have their GPUs again. The other job on its GPU is
        alone from now on.

        Args:
            time_s: cluster time of its attempt's end.
            stops_asked: the cluster stops them nevertheless, or may; False: it does not.
        """
        self._let_go(entry)
        self.limits.release(entry)
        if entry.mate is not None:
            entry.mate.mate = None
            expect_alone(entry.mate, time_s)
            self._tell_end(entry.mate)
        entry.mate, entry.told, entry.has_part = None, 1.0, False
        self._parted.pop(entry.job.job_id, None)
        preemptor, victims = entry.preemptor, entry.victims
        entry.gpus, entry.ceded, entry.victims, entry.preemptor, entry.stopped_for = (), (), [], None, ""
        self._preemptible.pop(entry.job.job_id, None)
        if preemptor is not None:
            self._let_go(preemptor)
            preemptor.victims.remove(entry)
            self._hold(preemptor)
        for victim in victims:
            self._let_go(victim)
            victim.ceded, victim.preemptor = (), None
            if not stops_asked:
                victim.stopped_for = ""
            self._hold(victim)

    def forget(self, entry: Entry, time_s: float = 0.0) -> None:
        """Removes a final job; `time_s`: cluster time of its end, if it was placed."""
        self._leave_queue(entry)
        self.release(entry, time_s)
        del self.entries[entry.job.job_id]
        entry.phase = Phase.GONE
        self._ended.append(entry.job)
        self.count_anew(entry)

    def _leave_queue(self, entry: Entry) -> None:
        if entry.row < 0:
            return
        if self.reserved is entry:
            self.end_reservation()
        self._queue.remove(entry)

    # ---- the reservation

    def reserve(self, entry: Entry, since_s: float) -> None:
        """Keeps GPUs free for a job of the queue; a job that has the reservation keeps it as it is."""
        assert entry.phase is Phase.QUEUED, f"{entry.job.job_id} does not wait"
        if self.reserved is not entry:
            self.reserved, self.reserved_since_s = entry, since_s
            self.changes += 1

    def end_reservation(self) -> None:
        """Keeps GPUs free for no job any more."""
        if self.reserved is not None:
            self.reserved = None
            self.changes += 1

    # ---- GPUs

    def set_lost(self, gpu_ids: Iterable[str], lost: bool) -> None:
        """Marks GPUs as lost or as present; a mapping gives the reasons."""
        self.changes += 1
        reason_of = gpu_ids if isinstance(gpu_ids, Mapping) else {}
        reasons = dict(self.occupancy.lost_reasons)  # a copy of the occupancy keeps its own
        for gpu_id in gpu_ids:
            if gpu_id in self.layout.gpu_number:
                self.occupancy.lost[self.layout.gpu_number[gpu_id]] = lost
                reasons[gpu_id] = reason_of.get(gpu_id, "") if lost else ""
        self.occupancy.lost_reasons = {gpu_id: reason for gpu_id, reason in reasons.items() if reason}

    def set_speeds(self, speed_of: Mapping[str, float]) -> None:
        """Sets the speeds of single GPUs, by id, relative to their models; all other GPUs have speed 1."""
        speeds = np.array([speed_of.get(gpu_id, 1.0) for gpu_id in self.layout.gpu_ids])
        if not np.array_equal(speeds, self.occupancy.speed):
            self.changes += 1
            self.occupancy.speed[:] = speeds

    def set_drained(self, node_ids: Iterable[str]) -> None:
        """Sets the drained nodes; a mapping gives the reasons."""
        self.changes += 1
        names = set(node_ids)
        self.occupancy.drain_reasons = dict(node_ids) if isinstance(node_ids, Mapping) else {}
        self.occupancy.drained[:] = [node_id in names for node_id in self.layout.node_ids]

    # ---- reading

    @property
    def queue_length(self) -> int:
        """Waiting jobs whose begin time has come."""
        return len(self._queue.entries)

    @property
    def waiting_count(self) -> int:
        """Number of jobs in the queue, and of jobs whose next launch is due later."""
        return self.queue_length + self.count(Phase.PAUSED)

    def count(self, phase: Phase) -> int:
        """Number of entries in a phase."""
        return self.counts.phases[phase]

    def count_anew(self, entry: Entry) -> None:
        """Brings `counts` up to date after a change of a job's phase or record."""
        self.counts.note(entry, int(self.layout.gpu_model[entry.gpus[0]]) if entry.gpus else ELSEWHERE)

    def queued(self, start: int = 0, end: int | None = None) -> list[Entry]:
        """The queue or a part of it, in order."""
        return self._queue.entries[start:end]

    def place_of(self, entry: Entry) -> int:
        """The place of a queued job, from 0."""
        return self._queue.place_of(entry)

    def queue_figures(self) -> QueueFigures:
        """A copy of the figures of the queued jobs, in order."""
        return self._queue.columns.figures(self._queue.rows)

    @property
    def since_s(self) -> Floats:
        """(G,) a copy of the starts of the jobs on GPUs; without meaning for idle GPUs."""
        return self._since_s.copy()

    @property
    def can_start_something(self) -> bool:
        """Whether there is a waiting job and an idle GPU; cheap."""
        return bool(self._queue.entries) and bool(np.any(self.occupancy.usable & self.occupancy.idle))

    @property
    def idle_count(self) -> int:
        """Number of GPUs on which a job could start."""
        return int(np.count_nonzero(self.occupancy.usable & self.occupancy.idle))

    def can_stop_something(self, time_s: float) -> bool:
        """Whether there is a waiting job, and one runs that may be stopped for another, now or later; cheap."""
        if not self._queue.entries or self.stop_rules.min_run_s is None:
            return False
        return any(_under_way(self._preemptible.values(), time_s))

    def can_share_something(self, time_s: float) -> bool:
        """Whether there is a waiting job, and one that runs, or will, has a part of a GPU alone; cheap."""
        if not self._queue.entries or not self._shares:
            return False
        placed: Iterable[Entry] = self._parted.values()
        if self.stop_rules.starts_at_once:
            placed = _under_way(placed, time_s)
        return any(map(is_open, placed))

    def holders(self, gpus: Sequence[int]) -> list[Entry]:
        """The jobs that hold these GPUs, in the order of their lowest GPUs; of two on one GPU the first goes first."""
        held = {self.occupancy.holder[gpu] for gpu in gpus} - {""}
        first = sorted((self.entries[job_id] for job_id in held), key=lambda entry: entry.gpus)
        return [each for entry in first for each in (entry, entry.mate) if each is not None and each.held]

    @property
    def hold_allowed(self) -> bool:
        """Whether a job runs, or is known to join the queue later: its event will end a hold.

        Future submissions are unknown, so they do not justify a hold; nor do releases. A job that waits for others
        joins it after their ends, and these are jobs of the ledger as well.
        """
        stays = self.count(Phase.HELD) + self.count(Phase.DEPENDENT)
        return len(self.entries) - stays > len(self._queue.entries)  # the others are placed or join it later

    def observe(self, time_s: float, most: int | None = None) -> Observation:
        """The decision point as a policy observes it, N = 1. Row j is the j-th job of the queue.

        Args:
            time_s: cluster time.
            most: the first so many jobs alone; None: all. The job that has the reservation is among them.
        """
        return self._observe_rows(time_s, self._queue.rows[:most])

    def look(self, time_s: float, most: int | None = None) -> tuple[Observation, list[Entry]]:
        """As `observe`, without the jobs that are over a limit, and the jobs of the observation's rows."""
        rows, entries, columns = self._queue.rows[:most], self.queued(0, most), self._queue.columns
        within = within_rows(self.limits, rows, columns.jobs.gpu_count[0], columns.jobs.user[0], columns.array)
        if within is None:
            return self._observe_rows(time_s, rows), entries
        if self.reserved is not None and self.limits.over(self.reserved) is not None:
            self.end_reservation()
        entries = [entry for entry, may in zip(entries, within.tolist(), strict=True) if may]
        return self._observe_rows(time_s, rows[within]), entries

    def _observe_rows(self, time_s: float, rows: Ints) -> Observation:
        reserved = None
        if self.reserved is not None:
            reserved = np.flatnonzero(rows == self.reserved.row)
        return self._observe(time_s, rows, reserved)

    def observe_some(self, time_s: float, entries: Sequence[Entry]) -> Observation:
        """The same with some jobs of the queue alone: row j is the j-th of these; without the reservation."""
        return self._observe(time_s, np.array([entry.row for entry in entries], dtype=np.int64))

    def user_service_s(self, time_s: float) -> Floats:
        """(U,) GPU seconds that each user has had, by number, running attempts included."""
        held = self._holder_user >= 0
        users, since_s = self._holder_user[held], self._since_s[held]
        if seconds := self._seconds:
            numbers = [self.user_service.number_of(entry.job.spec.user) for entry in seconds]
            users = np.append(users, numbers)
            since_s = np.append(since_s, [entry.since_s for entry in seconds])
        return self.user_service.at(time_s, users, since_s)

    def _observe(self, time_s: float, rows: Ints, reserved: Ints | None = None) -> Observation:
        return whole_queue(
            self.layout.hardware,
            self.occupancy.scene(time_s, self._since_s),
            self._queue.columns.jobs,
            rows[None],
            np.array([len(rows)]),
            gpu_submit_s=self._holder_submit_s[None],
            user_service_s=self.user_service.per_share(self.user_service_s(time_s))[None],
            hold_allowed=np.array([self.hold_allowed]),
            gpu_models=self.layout.gpu_models,
            gpu_gang=self.occupancy.gang[None],
            reserved=reserved,
            stops=self._stops(time_s, rows),
            shares=self._shared(rows),
        )

    def _shared(self, rows: Ints) -> Shares | None:
        """What concerns shared GPUs; None: no job that may share one waits or runs."""
        jobs = self._queue.columns.jobs
        shareable = jobs.shareable[0, rows] & self._shares
        if not self._parted and not shareable.any():
            return None
        placed = [(entry, self.is_second(entry)) for entry in self._parted.values() if entry.held]
        return shares_of(self.layout, self._pairs, placed, shareable, jobs.family[0, rows])

    def _stops(self, time_s: float, rows: Ints) -> Stops | None:
        """What concerns jobs that may be stopped, and have been, for some rows of the queue; None: there are none."""
        columns, on = self._queue.columns, self.stop_rules.min_run_s is not None and bool(self._preemptible)
        if not on and not columns.stopped[0, rows].any():
            return None
        figures = gpu_figures(
            self.stop_rules,
            self._preemptible.values(),
            self._seconds,
            np.where(self.occupancy.idle, 0.0, self.occupancy.gang * (time_s - self._since_s)),
            time_s,
        )
        return Stops(
            row_share=columns.remaining_ratio[:, rows],
            row_restart_s=columns.restart_s[:, rows],
            row_attained_s=columns.attained_s[:, rows],
            gpu_stoppable=(figures.stoppable & self.occupancy.usable)[None],
            gpu_restart_s=figures.restart_s[None],
            gpu_attained_s=figures.attained_s[None],
        )

    def observe_after(
        self, observation: Observation, queue: list[Entry], job: int, gpus: Sequence[int], most: int | None = None
    ) -> tuple[Observation, list[Entry]]:
        """The observation after a placement of a job of another one, and the jobs of its rows.

        The arguments are those of `reflect`, the jobs of the rows before, and how many of the first jobs were looked
        at, as in `look`.
        """
        shared = observation.sharing is not None or self._parted
        preempted = observation.preemption is not None or self._preemptible
        # Which kinds of GPUs there are depends on the jobs that choose their nodes, those behind `most` aside.
        picky = observation.nodes is not None
        if shared or preempted or picky or self.limits.concern(queue[job]):
            if most is not None and self.reserved is not None and self.place_of(self.reserved) >= most:
                most = None
            return self.look(float(observation.time_s[0]), most)
        return self.reflect(observation, job, gpus), queue

    def reflect(self, observation: Observation, job: int, gpus: Sequence[int]) -> Observation:
        """The observation of this ledger after a placement of the observation's job; the job stays as padding.

        No job may be stopped, or has been, none shares a GPU, and none of the observation is exclusive or chooses its
        nodes: these figures are not brought up to date.

        Args:
            job: its place in the observation.
            gpus: those on which it was placed at the time of the observation.
        """
        return reflected(observation, self.occupancy, job, gpus, reserves=self.reserved is not None)


def _under_way(placed: Iterable[Entry], time_s: float) -> Iterator[Entry]:
    """Those of placed jobs whose end comes.

    What was placed just now runs at once. What was placed before, and has not started, is in trouble: its end may never
    come, and would never end a hold.
    """
    return (entry for entry in placed if entry.job.state is JobState.RUNNING or entry.since_s == time_s)
