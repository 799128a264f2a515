"""One simulated cluster: jobs start, run and end, GPUs are lost and return. No clock and no I/O of its own.

This module adds names, messages and refusals to the compiled physics (adlro/state/machines.py), which computes the ends
and resources of jobs and the effects of a GPU's loss or speed, for this cluster as for the thousands of a training.

Event-driven: the caller reads `next_event_time`, and moves the clock there with `advance_to`. The simulator refuses
what a real cluster would refuse; the caller handles idempotency, tokens and attempts (adlro/clusterside).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from adlro.errors import Conflict, InvalidInput
from adlro.hardware.shared_speeds import TURN_SHARE, simulated_shares
from adlro.hardware.speeds import SHIPPED, SpeedTable
from adlro.placement import Placement
from adlro.records.cluster import Cluster
from adlro.records.events import ClusterEvent, EventKind, RunningJob
from adlro.records.jobs import JobSpec, Preemptible
from adlro.sim.durations import plan_run
from adlro.sim.gpu_metrics import GpuMetrics, Load, MetricsSample
from adlro.sim.room_left import cannot_share, check_room, spread_speed
from adlro.sim.runs import EarlierRun, Moment, Run, RunState, SimulatedGpu
from adlro.sim.slots import NO_EXPECTED_END_S, launches_on, occupy, put_first, run_state, set_run_state
from adlro.state.cluster_arrays import empty_machines, hardware_of
from adlro.state.fit import check_set, job_runs, unknown_gpu
from adlro.state.machines import WHOLE_NODES, count_nodes, next_end_s, set_speed, share_at_stop, vacate
from adlro.workload.scenario import Scenario, load_scenario

_WHOLE_DIGITS = 6
"""Times of lists count as whole microseconds after the origin if they are as near to these as floats are."""


class ClusterSimulator:
    """A simulated cluster at one moment of cluster time, `now_s`.

    Returned events have no revision (0): a log assigns it.

    Inside, times are summed from an origin: otherwise the rounding of sums of floats, and so which ends are at one
    instant, would depend on the cluster time, and a list of jobs would not have the same schedule twice. A list that
    begins at the origin has exactly the schedule of time 0.

    Args:
        cluster: nodes and GPUs; every GPU model must have speeds.
        scenario: source of the work of jobs that state none; `paper` if left out.
        speeds: speeds of applications on its GPU models.
        time_s: initial cluster time.
        start_cost_s: seconds that each start takes before the work begins.

    Raises:
        InvalidInput: a GPU model cannot be simulated, or the start cost is not a number from 0.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        scenario: Scenario | None = None,
        speeds: SpeedTable = SHIPPED,
        time_s: float = 0.0,
        start_cost_s: float = 0.0,
    ) -> None:
        speeds.require(cluster.gpu_models)
        if not 0 <= start_cost_s < math.inf:
            raise InvalidInput(f"start_cost_s must be a number from 0, not {start_cost_s}", field="start_cost_s")
        self.cluster = cluster
        self.now_s = time_s
        self._origin_s = time_s
        self._start_cost_s = float(start_cost_s)
        self._scenario = scenario or load_scenario("paper")
        self._speeds = speeds
        self._metrics = GpuMetrics(cluster, time_s)
        # A batch of one cluster; its time counts from the origin.
        self._hardware = hardware_of([cluster], cluster.gpu_models)
        self._machines = empty_machines(self._hardware, shares=True)
        self._gpus = [gpu for _, gpu in cluster.gpus()]
        self._number_of = {gpu.gpu_id: number for number, gpu in enumerate(self._gpus)}
        # By the launch's number, so in the order of the launches.
        self._runs: dict[int, Run] = {}
        self._launch_of: dict[str, int] = {}
        # By launch the end of the job's time limit, whatever the rest of its work; those that have one.
        self._limit_end_s: dict[int, float] = {}
        # Jobs that work at another speed since a partner came or went.
        self._moved: dict[str, None] = {}

    @property
    def running(self) -> tuple[RunningJob, ...]:
        """The running attempts, in the order of the launches."""
        return tuple(run.job for run in self._runs.values())

    @property
    def gpus(self) -> Mapping[str, SimulatedGpu]:
        """The state of every GPU by its id, in the order of their numbers."""
        return {gpu_id: self._state(number) for gpu_id, number in self._number_of.items()}

    @property
    def lost_gpu_ids(self) -> tuple[str, ...]:
        """The ids of lost GPUs."""
        return tuple(self._gpus[number].gpu_id for number in np.flatnonzero(self._machines.gpu_speed[0] == 0.0))

    def running_job(self, job_id: str) -> RunningJob | None:
        """The attempt of a job that runs now."""
        launch = self._launch_of.get(job_id)
        return None if launch is None else self._runs[launch].job

    def state_of(self, job_id: str) -> RunState:
        """How far a running attempt is.

        Raises:
            KeyError: the job does not run.
        """
        launch = self._launch_of[job_id]
        return run_state(self._machines, self._runs[launch].gpus[0], launch)

    def take_moved(self) -> list[str]:
        """The jobs that run on at another speed, since a partner has come or gone; each is returned once."""
        moved, self._moved = self._moved, {}
        return [job_id for job_id in moved if job_id in self._launch_of]

    def sample(self, time_s: float) -> MetricsSample:
        """The metrics of the GPUs at a time between now and the next event."""
        return self._metrics.sample(time_s)

    def launch(
        self,
        job_id: str,
        attempt: int,
        spec: JobSpec,
        placement: Placement,
        *,
        share: float = 1.0,
        resumes: bool = False,
        stops: Collection[str] = (),
    ) -> list[ClusterEvent]:
        """Starts a job now, on all its GPUs or, if one of them can't take it, on none.

        A shareable job that has a part of a GPU is alone there, or runs beside the other one that has a part.

        Args:
            job_id: the job.
            attempt: its number.
            spec: the job's requirements.
            placement: its GPUs.
            share: of its work that is still to be done.
            resumes: an earlier attempt was preempted: its restart comes before its work.
            stops: running jobs that are stopped to make room, or, if the launch is refused, not.

        Returns:
            PREEMPTED of those, in the order of their lowest GPUs and of their launches, then STARTED.

        Raises:
            NotFound: no such GPU.
            InvalidInput, Conflict: as `check_set` and `check_placement` of adlro.state.fit; JOB_RUNNING, CANNOT_SHARE,
                NOT_RUNNING or NOT_PREEMPTIBLE.
        """
        gpus = self._numbers(placement)
        victims = sorted(
            map(self._stoppable, dict.fromkeys(stops)), key=lambda launch: (min(self._runs[launch].gpus), launch)
        )
        self._check_fit(job_id, spec, placement, gpus, frozenset(victims))
        events = [self._preempt(each, f"for {job_id}") for each in victims]
        job = RunningJob(job_id, attempt, placement, self.now_s)
        self._occupy(job, spec, gpus, share, resumes)
        return [*events, self._event(EventKind.STARTED, job)]

    def _occupy(self, job: RunningJob, spec: JobSpec, gpus: tuple[int, ...], share: float, resumes: bool) -> None:
        plan = plan_run(job.job_id, spec, self._gpus[gpus[0]].gpu_model, self._scenario, self._speeds)
        launch = int(self._machines.launch_count[0])
        full_s = float(plan.duration_s) / self._spread_speed(spec, gpus)
        kept = None
        for other in launches_on(self._machines, gpus[0]):
            first = self._runs[other]
            # Two that ran together before the figures were others run on.
            kept = self._kept_beside(spec, first.spec, gpus[0]) or (TURN_SHARE, TURN_SHARE)
            self._moved[first.job.job_id] = None
        restart_s = _cost_of(spec).restart_s if resumes else 0.0
        cores, memory_mib = WHOLE_NODES if spec.exclusive else spec.cpu_cores, spec.memory_mib
        demand = launch, full_s, share, self._start_cost_s, restart_s, NO_EXPECTED_END_S, cores, memory_mib
        occupy(self._hardware, self._machines, gpus, demand, kept)
        if spec.time_limit_s is not None:
            self._limit_end_s[launch] = float(self._machines.time_s[0]) + spec.time_limit_s
        self._runs[launch] = Run(job, plan, spec, gpus, full_s, share)
        self._launch_of[job.job_id] = launch
        for gpu in gpus:
            self._renew_load(gpu, job.start_s)

    def _kept_beside(self, spec: JobSpec, other: JobSpec, gpu: int) -> tuple[float, float] | None:
        """The shares of their speeds that two jobs keep on a GPU; None: they can't run together."""
        return simulated_shares(self._gpus[gpu].gpu_model, spec.application, other.application)

    def _spread_speed(self, spec: JobSpec, gpus: tuple[int, ...]) -> float:
        """The job's speed on these GPUs relative to a packed placement."""
        return spread_speed(self._hardware, spec, gpus, self._gpus[gpus[0]].gpu_model)

    @property
    def origin_s(self) -> float:
        """The time from which times are summed."""
        return self._origin_s

    @property
    def moment(self) -> Moment:
        """The present moment."""
        return Moment(self.now_s, float(self._machines.time_s[0]))

    def resume(
        self,
        origin_s: float,
        moment: Moment,
        runs: Sequence[EarlierRun],
        lost_gpu_ids: Iterable[str],
    ) -> None:
        """Restores the state of another simulator of this cluster; called before all other methods.

        Running attempts end exactly when they would have ended there. A GPU's temperature is that of its last start.

        Args:
            origin_s: the other simulator's origin.
            moment: its moment.
            runs: its running attempts, in the order of the launches.
            lost_gpu_ids: ids of lost GPUs.

        Raises:
            NotFound: no such GPU.
        """
        self._origin_s = origin_s
        for run in runs:
            self._machines.time_s[0] = run.start_s
            self._occupy(run.job, run.spec, self._numbers(run.job.placement), run.share, run.resumes)
        for launch, run in zip(self._runs, runs, strict=True):
            if run.state is not None:
                set_run_state(self._machines, self._runs[launch].gpus, launch, run.state)
        count_nodes(self._hardware, self._machines, 0)
        self._moved = {}
        self.now_s, self._machines.time_s[0] = moment.time_s, moment.after_origin_s
        for gpu_id in lost_gpu_ids:
            gpu = self._gpu(gpu_id)
            set_speed(self._hardware, self._machines, 0, gpu, 0.0)
            self._metrics.lose(gpu, self.now_s)

    def stop(self, job_id: str, message: str = "stopped") -> ClusterEvent | None:
        """Stops a job now; None if it does not run."""
        launch = self._launch_of.get(job_id)
        return None if launch is None else self._end(launch, EventKind.STOPPED, message)

    def preempt(self, job_id: str, message: str = "on request") -> ClusterEvent:
        """Stops a job now that goes on later; the event has the share of its work that is left then.

        Raises:
            Conflict: NOT_RUNNING; NOT_PREEMPTIBLE: it can't go on later, or it starts or restores now.
        """
        return self._preempt(self._stoppable(job_id), message)

    def _stoppable(self, job_id: str) -> int:
        """The launch of a job that can be stopped for another one."""
        launch = self._launch_of.get(job_id)
        if launch is None:
            raise Conflict(f"{job_id} does not run", reason="NOT_RUNNING", metadata={"job_id": job_id})
        run = self._runs[launch]
        work_from_s = run_state(self._machines, run.gpus[0], launch).work_from_s
        if run.spec.preemptible is None:
            why = "can't be stopped for another job: it is not preemptible"
        elif self._machines.time_s[0] < work_from_s:
            until_s = self._origin_s + work_from_s
            why = f"starts or restores until {until_s:g} s and can't be stopped for another job before"
        else:
            return launch
        raise Conflict(f"{job_id} {why}", reason="NOT_PREEMPTIBLE", metadata={"job_id": job_id})

    def _preempt(self, launch: int, message: str) -> ClusterEvent:
        run = self._runs[launch]
        put_first(self._machines, run.gpus[0], launch)
        share = share_at_stop(self._machines, 0, run.gpus[0], run.share, run.full_s, _cost_of(run.spec).lost_s)
        return replace(self._end(launch, EventKind.PREEMPTED, message), remaining_ratio=float(share))

    def lose_gpu(self, gpu_id: str) -> list[ClusterEvent]:
        """Removes a GPU now: GPU_LOST, then LOST of each job there, on all its GPUs. No events if it is lost already.

        Raises:
            NotFound: no such GPU.
        """
        gpu = self._gpu(gpu_id)
        if self._machines.gpu_speed[0, gpu] == 0.0:
            return []
        events = [ClusterEvent(0, EventKind.GPU_LOST, self.now_s, placement=Placement.on(gpu_id))]
        lost = f"GPU {gpu_id} was lost"
        events += [self._end(launch, EventKind.LOST, lost) for launch in launches_on(self._machines, gpu)]
        set_speed(self._hardware, self._machines, 0, gpu, 0.0)
        self._metrics.lose(gpu, self.now_s)
        return events

    def restore_gpu(self, gpu_id: str) -> list[ClusterEvent]:
        """Restores a lost GPU now, at its model's own speed: GPU_BACK. No events if it is not lost.

        Raises:
            NotFound: no such GPU.
        """
        gpu = self._gpu(gpu_id)
        if self._machines.gpu_speed[0, gpu] > 0.0:
            return []
        set_speed(self._hardware, self._machines, 0, gpu, 1.0)
        self._metrics.restore(gpu, self.now_s)
        return [ClusterEvent(0, EventKind.GPU_BACK, self.now_s, placement=Placement.on(gpu_id))]

    def set_gpu_speed(self, gpu_id: str, speed: float) -> None:
        """Changes a GPU's speed now, and with it the ends of what runs there. No event: clusters don't report speeds.

        Args:
            speed: relative to the model.

        Raises:
            NotFound: no such GPU.
            InvalidInput: the speed is not above 0; `lose_gpu` removes a GPU.
            Conflict: GPU_LOST.
        """
        gpu = self._gpu(gpu_id)
        if not 0 < speed < math.inf:
            raise InvalidInput(f"the speed of {gpu_id} must be a number above 0, not {speed}", field="speed")
        if self._machines.gpu_speed[0, gpu] == 0.0:
            raise Conflict(f"GPU {gpu_id} is lost", reason="GPU_LOST")
        set_speed(self._hardware, self._machines, 0, gpu, float(speed))

    def next_event_time(self) -> float | None:
        """The next end of a job; None if no job runs."""
        end_s = self._next_end_s()
        # Rounded to the precision of floats at this time: never before now.
        return None if end_s == math.inf else max(self._origin_s + end_s, self.now_s)

    def set_origin(self) -> None:
        """Moves the origin to the next whole second if no job runs; otherwise changes nothing."""
        if not self._runs:
            self._origin_s = float(math.ceil(self.now_s))
            self._machines.time_s[0] = self._after_origin_s(self.now_s)

    def advance_to(self, time_s: float) -> list[ClusterEvent]:
        """Advances to a time; returns the events of that instant, in the order of the launches.

        Further events may have the same time: check `next_event_time`.

        Raises:
            ValueError: the time is in the past, or an event comes before it.
        """
        if time_s < self.now_s:
            raise ValueError(f"cluster time cannot go back from {self.now_s} s to {time_s} s")
        next_s = self.next_event_time()
        if next_s is not None and next_s < time_s:
            raise ValueError(f"an event at {next_s} s comes before {time_s} s: go there first")
        if next_s is None or next_s > time_s:
            if time_s > self.now_s:
                self.now_s, self._machines.time_s[0] = time_s, self._after_origin_s(time_s)
            return []
        # Ends that differ only below the precision of the clock are separate instants; the caller advances again for
        # them.
        self.now_s = time_s
        end_s = self._machines.time_s[0] = self._next_end_s()
        machines = self._machines
        worked = {
            *map(int, machines.gpu_job[0, machines.gpu_end_s[0] == end_s]),
            *map(int, machines.mate_job[0, machines.mate_end_s[0] == end_s]),
        }
        at_limit = {launch for launch, limit_s in self._limit_end_s.items() if limit_s == end_s}
        events = []
        for launch in sorted(worked | at_limit):
            run = self._runs[launch]
            if launch in worked:
                events.append(self._end(launch, run.plan.kind, run.plan.message))
            else:
                reached = f"time limit of {run.spec.time_limit_s:g} s reached"
                events.append(self._end(launch, EventKind.FAILED, reached))
        return events

    def _next_end_s(self) -> float:
        """The next end of a job, by its work or its time limit, after the origin; inf if no job runs."""
        return min([next_end_s(self._machines, 0), *self._limit_end_s.values()])

    def _after_origin_s(self, time_s: float) -> float:
        elapsed_s = time_s - self._origin_s
        whole_s = round(elapsed_s, _WHOLE_DIGITS)
        return whole_s if self._origin_s + whole_s == time_s else elapsed_s

    def _end(self, launch: int, kind: EventKind, message: str) -> ClusterEvent:
        put_first(self._machines, self._runs[launch].gpus[0], launch)
        run = self._runs.pop(launch)
        del self._launch_of[run.job.job_id]
        vacate(self._hardware, self._machines, 0, run.gpus[0])
        self._limit_end_s.pop(launch, None)
        for partner in launches_on(self._machines, run.gpus[0]):
            self._moved[self._runs[partner].job.job_id] = None
        for gpu in run.gpus:
            self._renew_load(gpu, self.now_s)
        return self._event(kind, run.job, message)

    def _event(self, kind: EventKind, job: RunningJob, message: str = "") -> ClusterEvent:
        return ClusterEvent(0, kind, self.now_s, job.job_id, job.attempt, job.placement, message)

    def _state(self, gpu: int) -> SimulatedGpu:
        running, mate = [*(self._runs[launch].job for launch in launches_on(self._machines, gpu)), None, None][:2]
        return SimulatedGpu(
            gpu=self._gpus[gpu],
            number=gpu,
            node=int(self._hardware.gpu_node[0, gpu]),
            running=running,
            lost=bool(self._machines.gpu_speed[0, gpu] == 0.0),
            mate=mate,
        )

    def _renew_load(self, gpu: int, time_s: float) -> None:
        """Tells the metrics what runs on a GPU now."""
        loads = [
            Load(self._runs[each].job.job_id, self._runs[each].spec, run_state(self._machines, gpu, each).kept)
            for each in launches_on(self._machines, gpu)
        ]
        self._metrics.set_load(gpu, time_s, loads)

    def _gpu(self, gpu_id: str) -> int:
        number = self._number_of.get(gpu_id)
        if number is None:
            raise unknown_gpu(self.cluster, gpu_id)
        return number

    def _launches_of(self, node: int) -> list[int]:
        """The launches that hold GPUs of a node, each once."""
        first, end = self._hardware.node_first_gpu[0, node : node + 2].tolist()
        return list(dict.fromkeys(each for gpu in range(first, end) for each in launches_on(self._machines, gpu)))

    def _nodes_of(self, run: Run) -> set[int]:
        return {int(self._hardware.gpu_node[0, gpu]) for gpu in run.gpus}

    def _numbers(self, placement: Placement) -> tuple[int, ...]:
        return tuple(self._gpu(gpu_id) for gpu_id in placement.gpu_ids)

    def _check_fit(
        self, job_id: str, spec: JobSpec, placement: Placement, gpus: tuple[int, ...], gone: Collection[int]
    ) -> None:
        """Refuses a launch that does not fit when the attempts of some launches are `gone`."""
        earlier = self.running_job(job_id)
        if earlier is not None:
            raise job_runs(job_id, earlier.placement, earlier.attempt)
        check_set(job_id, spec, placement, self.cluster)
        states = [self._state(gpu) for gpu in gpus]
        there = {each.gpu.gpu_id: launches_on(self._machines, each.number) for each in states}
        staying = {gpu_id: [self._runs[each] for each in here if each not in gone] for gpu_id, here in there.items()}
        on_nodes = {
            node: [self._runs[launch] for launch in self._launches_of(node) if launch not in gone]
            for node in {each.node for each in states}
        }
        check_room(
            job_id,
            spec,
            placement,
            self.cluster,
            self._machines,
            states,
            staying,
            [self._runs[each] for each in gone],
            on_nodes,
        )
        for each in states:
            for other in staying[each.gpu.gpu_id]:
                if self._kept_beside(spec, other.spec, each.number) is None:
                    raise cannot_share(job_id, spec, other, each.gpu)


def _cost_of(spec: JobSpec) -> Preemptible:
    """What a stop costs a job, and going on afterwards."""
    return spec.preemptible or Preemptible()
