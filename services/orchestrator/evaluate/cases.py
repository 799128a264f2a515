"""The cases of an evaluation: a scenario at a load, with its cluster and its job lists. Arrays and plain records only.

List s of a scenario is drawn from SeedSequence(seed, (s, 0)), whatever the policy, the load, and the way the work is
cut up: all policies see the same jobs, and at another load the same jobs come faster or slower. Noise of expected
runtimes has (s, 1), the place of a trace's window (s, 2).
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from adlro.cluster import Cluster
from adlro.errors import InvalidInput
from adlro.sim.arrivals import Batch
from adlro.sim.capacity import offered_load, scale_to_load, scenario_on
from adlro.sim.cluster_files import read_cluster_file
from adlro.sim.demand import demand_warnings, find_unplaceable
from adlro.sim.estimates import expected_s
from adlro.sim.job_arrays import JobArrays, pack_jobs
from adlro.sim.observation import Floats
from adlro.sim.scenario import Scenario, load_scenario
from adlro.sim.speeds import SHIPPED, SpeedTable
from adlro.sim.traces import TRACE_FORMATS, format_of, read_trace
from adlro.sim.workload import WorkloadJob, draw_jobs
from services.orchestrator.evaluate.request import DEFAULT_LISTS, TRACE, Request

_JOBS, _NOISE, _PLACE = range(3)


@dataclass(frozen=True)
class Case:
    """A scenario at a load.

    Attributes:
        scenario: its rules; the cluster is the one that is simulated.
        speeds: of the cluster's GPUs.
        load: what the policies may be told, and what lists are drawn or scaled by; None: a trace's own times, whose
            load is not known (all at once).
        jobs: of a list, at most.
        lists: their number.
        seed: of all lists.
        runtime: what policies know of runtimes.
        trace: the jobs of a trace, at this load; None: lists are drawn.
    """

    scenario: Scenario
    speeds: SpeedTable
    load: float | None
    jobs: int
    lists: int
    seed: int
    runtime: str
    trace: tuple[WorkloadJob, ...] | None = None

    @property
    def name(self) -> str:
        """Of the scenario."""
        return self.scenario.name

    @property
    def cluster(self) -> Cluster:
        """On which the lists run."""
        return self.scenario.cluster

    @functools.cached_property
    def digest(self) -> str:
        """Of all on which its lists depend; how many there are is not part of it."""
        parts = (self.scenario, vars(self.speeds), self.load, self.jobs, self.seed, self.runtime, self.trace)
        return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()

    @property
    def text(self) -> str:
        """For people: `paper at load 0.9`."""
        return self.name if self.load is None else f"{self.name} at load {self.load:g}"

    def job_list(self, number: int) -> list[WorkloadJob]:
        """One list."""
        if self.trace is None:
            rng = np.random.default_rng(self._seeds(number, _JOBS))
            # A batch comes at once at any load.
            return draw_jobs(self.scenario, load=self.load or 1.0, rng=rng, count=self.jobs)
        last_start = len(self.trace) - self.jobs
        # The first list is the trace's beginning, as `adlro replay --limit` takes it.
        start = int(np.random.default_rng(self._seeds(number, _PLACE)).integers(last_start + 1)) if number else 0
        window = self.trace[start : start + self.jobs]
        begin_s = window[0].submit_s if start else 0.0
        return [dataclasses.replace(job, submit_s=job.submit_s - begin_s) for job in window]

    def expected_s(self, number: int, jobs: Sequence[WorkloadJob]) -> Floats:
        """(J, K) the runtimes that policies see. The one place where they come from."""
        noise_seed = int(self._seeds(number, _NOISE).generate_state(1)[0])
        return expected_s(
            jobs, self.cluster.gpu_models, self.runtime, self.scenario, seed=noise_seed, speeds=self.speeds
        )

    def arrays(self, first: int, last: int) -> JobArrays:
        """Lists `first` to `last` - 1 for the simulator."""
        models = self.cluster.gpu_models
        lists = [self.job_list(number) for number in range(first, last)]
        expected = [self.expected_s(first + i, jobs) for i, jobs in enumerate(lists)]
        return pack_jobs(lists, models, expected, speed_table=self.speeds)

    def _seeds(self, number: int, stream: int) -> np.random.SeedSequence:
        return np.random.SeedSequence(self.seed, spawn_key=(number, stream))


def build_cases(request: Request) -> tuple[list[Case], list[str]]:
    """All cases of a request, and what people should be told before they run.

    Raises:
        InvalidInput: naming file, line and field: a file that cannot be read, jobs that fit nowhere.
        Unsupported: a capacity is to be computed, and scipy is not installed.
    """
    cases: list[Case] = []
    notes: list[str] = []
    cluster: tuple[Cluster, SpeedTable] | None = None
    if request.cluster is not None:
        cluster = read_cluster_file(request.cluster)
    for name in request.scenarios:
        if name == TRACE:
            assert request.trace is not None
            cases += _trace_cases(request, cluster, notes)
        else:
            cases += _drawn_cases(request, load_scenario(name), cluster, notes)
    return cases, notes


def _drawn_cases(
    request: Request, scenario: Scenario, cluster: tuple[Cluster, SpeedTable] | None, notes: list[str]
) -> list[Case]:
    speeds = SHIPPED
    if cluster is not None:
        own, speeds = cluster
        try:
            scenario = scenario_on(scenario, own, speeds)
        except InvalidInput as error:
            message = f"cluster: {request.cluster}: the scenario {scenario.name} cannot run there: {error.message}"
            raise InvalidInput(message, field="cluster") from None
        carries = scenario.capacity_jobs_per_h
        notes.append(f"{scenario.name}: the cluster of {request.cluster} carries {carries:.0f} jobs/h of this mix")
    loads = request.loads or scenario.loads
    if isinstance(scenario.arrivals, Batch):
        # All jobs come at once: one load is as good as another, and a second would repeat the first.
        notes.append(f"{scenario.name}: all jobs come at once; the load has no meaning")
        loads = request.loads or (1.0,)
    return [
        Case(
            scenario=scenario,
            speeds=speeds,
            load=load,
            jobs=request.jobs or scenario.job_count,
            lists=request.lists or DEFAULT_LISTS,
            seed=request.seed,
            runtime=request.runtime,
        )
        for load in loads
    ]


def _trace_cases(request: Request, cluster: tuple[Cluster, SpeedTable] | None, notes: list[str]) -> list[Case]:
    path = Path(request.trace or "")
    if not path.is_file():
        raise InvalidInput(f"trace: {path}: no such file", field="trace")
    trace_format = request.trace_format or format_of(path)
    if trace_format is None:
        raise InvalidInput(
            f"trace_format: {path}: its name does not tell the format; name one of {', '.join(TRACE_FORMATS)} with "
            "--trace-format",
            field="trace_format",
        )
    # What Gavel's traces lack is drawn for Gavel's cluster, on which its figures were measured.
    scenario = load_scenario("gavel" if trace_format == "gavel" else TRACE)
    scenario = dataclasses.replace(scenario, name=TRACE, arrivals=load_scenario(TRACE).arrivals)
    speeds = SHIPPED
    if cluster is not None:
        own, speeds = cluster
        scenario = dataclasses.replace(scenario, cluster=own)
    jobs, trace_notes = read_trace(path, trace_format, seed=request.seed)
    notes += [f"{path}: {sentence}" for sentence in trace_notes.sentences]
    if unplaceable := find_unplaceable(scenario.cluster, jobs):
        raise InvalidInput(
            f"trace: {path}: {unplaceable.sentence}. Take a larger cluster (--cluster), or leave these jobs out",
            field="trace",
        )
    speeds.require(scenario.cluster.gpu_models)
    count = min(request.jobs or len(jobs), len(jobs))
    if count < len(jobs):
        lists = request.lists or DEFAULT_LISTS
    else:
        lists = 1
        if request.lists not in (None, 1):
            notes.append(f"{path}: all {len(jobs)} jobs make one list; --seeds {request.lists} needs --jobs below that")
    offered = offered_load(scenario.cluster, jobs, speeds) if len(jobs) > 1 else math.inf
    cases = []
    for load in request.loads or (None,):
        scaled = jobs if load is None else scale_to_load(jobs, offered, load)
        at_load = load if load is not None else (round(offered, 4) if math.isfinite(offered) else None)
        notes += [f"{path}: {text}" for text in demand_warnings(None, offered if load is None else load)]
        cases.append(Case(scenario, speeds, at_load, count, lists, request.seed, request.runtime, trace=tuple(scaled)))
    return cases
