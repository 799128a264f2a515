"""The cases of an evaluation: a scenario at a load, with its cluster and its job lists. Arrays and plain records only.

List s of a scenario is drawn from SeedSequence(seed, (s, 0)), for every policy, load, and division into tasks: all
policies get the same jobs, and at another load the same jobs come faster or slower. Noise of expected runtimes uses (s,
1), the place of a trace's window (s, 2); each window is scaled to the load by its own offered load, since a trace
offers far more at some times than at others.
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

from adlro.errors import InvalidInput
from adlro.hardware.cluster_files import read_cluster_file
from adlro.hardware.speeds import SHIPPED, SpeedTable
from adlro.lab.evaluate.request import DEFAULT_LISTS, LEARNED, TRACE, Request
from adlro.records.cluster import Cluster
from adlro.state.job_arrays import JobArrays, pack_jobs
from adlro.state.observation import Floats, Ints
from adlro.workload.arrivals import Batch
from adlro.workload.capacity import offered_load, scenario_on, stretched
from adlro.workload.demand import demand_warnings, find_unplaceable
from adlro.workload.estimates import claimed_spread, expected_s, expected_spread_speeds
from adlro.workload.job_lists import WorkloadJob, draw_jobs
from adlro.workload.pairs import PairTable, pair_table
from adlro.workload.scenario import SCENARIO_NAMES, Scenario, load_cluster, load_scenario
from adlro.workload.traces import TRACE_FORMATS, format_of, read_trace

_JOBS, _NOISE, _PLACE = range(3)

FEW_LISTS = 20
"""Below this number a percentile bootstrap's intervals are noticeably too narrow."""
_LATEST_S = 1e12
"""The latest submission that the simulator accepts."""


@dataclass(frozen=True)
class Case:
    """A scenario at a load.

    Attributes:
        scenario: its rules; its cluster is the simulated one.
        speeds: speeds of the cluster's GPUs.
        load: the load of the lists, which policies may know; None: a trace's own times, whose load is unknown (all at
            once).
        jobs: largest number of jobs of a list.
        lists: their number.
        seed: seed of all lists.
        runtime: the policies' knowledge of runtimes.
        pairs: their knowledge of two jobs that share a GPU.
        trace: the jobs of a trace, at its own times; None: lists are drawn.
        factors: factors of submission times of a trace's lists, so that each offers the load.
    """

    scenario: Scenario
    speeds: SpeedTable
    load: float | None
    jobs: int
    lists: int
    seed: int
    runtime: str
    trace: tuple[WorkloadJob, ...] | None = None
    factors: tuple[float, ...] | None = None
    pairs: str = "true"

    @property
    def name(self) -> str:
        """The scenario's name."""
        return self.scenario.name

    @property
    def cluster(self) -> Cluster:
        """The simulated cluster."""
        return self.scenario.cluster

    @property
    def is_learned(self) -> bool:
        """Whether runtimes are learned while a list runs."""
        return self.runtime == LEARNED

    @functools.cached_property
    def digest(self) -> str:
        """A digest of all inputs of its lists; without their number, except for a trace's only list."""
        of_trace = (self.trace, self.factors is not None, self.lists == 1) if self.trace is not None else None
        parts = (self.scenario, vars(self.speeds), self.load, self.jobs, self.seed, self.runtime, self.pairs, of_trace)
        return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()

    @property
    def text(self) -> str:
        """For people: `paper at load 0.9`."""
        return self.name if self.load is None else f"{self.name} at load {self.load:g}"

    def job_list(self, number: int) -> list[WorkloadJob]:
        """One list."""
        if self.trace is None:
            rng = np.random.default_rng(self._seeds(number, _JOBS))
            # A batch arrives at once at any load.
            return draw_jobs(self.scenario, load=self.load or 1.0, rng=rng, count=self.jobs)
        start = self._start(number)
        window = self.trace[start : start + self.jobs]
        begin_s = window[0].submit_s if start else 0.0
        if self.factors is None:
            return [dataclasses.replace(job, submit_s=job.submit_s - begin_s) for job in window]
        return stretched(window, self.factors[number])

    def windows(self) -> list[tuple[WorkloadJob, ...]]:
        """The jobs of a trace's lists, at the trace's times."""
        assert self.trace is not None
        return [self.trace[start : start + self.jobs] for start in map(self._start, range(self.lists))]

    def _start(self, number: int) -> int:
        """The first job of a list in the trace."""
        # A single list is the trace's beginning, as for `adlro replay --limit`.
        if self.lists == 1:
            return 0
        return int(self._places[np.random.default_rng(self._seeds(number, _PLACE)).integers(len(self._places))])

    @functools.cached_property
    def _places(self) -> Ints:
        """The possible first jobs of a list: not those whose jobs all come at once, if there are others."""
        assert self.trace is not None
        submit_s = np.array([job.submit_s for job in self.trace])
        first_s, last_s = submit_s[: len(submit_s) - self.jobs + 1], submit_s[self.jobs - 1 :]
        places = np.flatnonzero(last_s > first_s)
        return places if len(places) else np.arange(len(first_s))

    def expected_s(self, number: int, jobs: Sequence[WorkloadJob]) -> Floats:
        """(J, K) the runtimes that policies expect: their only source, except for learned ones.

        Learned ones are known only while a list runs (`learning`); for decision times the job types' figures are used
        here.
        """
        noise_seed = int(self._seeds(number, _NOISE).generate_state(1)[0])
        return expected_s(
            jobs, self.cluster.gpu_models, self._known_runtime, self.scenario, seed=noise_seed, speeds=self.speeds
        )

    @property
    def _known_runtime(self) -> str:
        return "type" if self.is_learned else self.runtime

    def arrays(self, first: int, last: int) -> JobArrays:
        """Lists `first` to `last` - 1 as arrays for the simulator."""
        models = self.cluster.gpu_models
        lists = [self.job_list(number) for number in range(first, last)]
        expected = [self.expected_s(first + i, jobs) for i, jobs in enumerate(lists)]
        node_ids = [node.node_id for node in self.cluster.nodes]
        packed = pack_jobs(lists, models, expected, speed_table=self.speeds, node_ids=node_ids)
        for i, jobs in enumerate(lists):
            row = (i, slice(0, len(jobs)))
            packed.expected_spread[row] = claimed_spread(jobs, packed.duration_s[row], expected[i])
            packed.expected_spread_speed[row] = expected_spread_speeds(jobs, models, self._known_runtime)
            packed.family[row] = self.true_pairs.families([job.application for job in jobs])
        return packed

    @functools.cached_property
    def true_pairs(self) -> PairTable:
        """The shares of their speeds that two jobs on a GPU keep."""
        return pair_table(self.cluster.gpu_models)

    @functools.cached_property
    def expected_pairs(self) -> PairTable:
        """The same as policies expect them."""
        return pair_table(self.cluster.gpu_models, self.pairs)

    def _seeds(self, number: int, stream: int) -> np.random.SeedSequence:
        return np.random.SeedSequence(self.seed, spawn_key=(number, stream))


def build_cases(request: Request) -> tuple[list[Case], list[str]]:
    """All cases of a request, and notes for people before they run.

    Raises:
        InvalidInput: a file that cannot be read, or jobs that fit on no GPU; the message names file, line and field.
        Unsupported: a capacity must be computed, and scipy is not installed.
    """
    cases: list[Case] = []
    notes: list[str] = []
    cluster: tuple[Cluster, SpeedTable] | None = None
    if request.cluster is not None:
        cluster = _named_cluster(request.cluster)
    for name in request.scenarios:
        if name == TRACE:
            assert request.trace is not None
            cases += _trace_cases(request, cluster, notes)
        else:
            cases += _drawn_cases(request, load_scenario(name), cluster, notes)
    for name, lists in dict.fromkeys((case.name, case.lists) for case in cases):
        if 1 < lists < FEW_LISTS:
            notes.append(f"{name}: intervals over {lists} lists are rough; use {FEW_LISTS} or more (--seeds)")
    if len(set(request.wait_ratios.values())) > 1:
        notes.append(f"the policies have {request.wait_limit}; --wait-ratio gives all of them the same")
    return cases, notes


def _named_cluster(name: str) -> tuple[Cluster, SpeedTable]:
    """Cluster and speeds of a file, or of a scenario; a file of that name counts first."""
    if Path(name).is_file():
        return read_cluster_file(name)
    if name not in SCENARIO_NAMES:
        known = ", ".join(SCENARIO_NAMES)
        raise InvalidInput(f"cluster: {name}: cannot be read: it is neither a file nor one of {known}", field="cluster")
    return load_cluster(name), SHIPPED


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
        notes.append(f"{scenario.name}: the cluster of {request.cluster} carries {carries:.3g} jobs/h of this mix")
    loads = request.loads or scenario.loads
    if isinstance(scenario.arrivals, Batch):
        # All jobs come at once: the load has no effect, and a second load would repeat the first.
        notes.append(f"{scenario.name}: all jobs come at once; the load has no meaning")
        loads = (request.loads or (1.0,))[:1]
    return [
        Case(
            scenario=scenario,
            speeds=speeds,
            load=load,
            jobs=request.jobs or scenario.job_count,
            lists=request.lists or DEFAULT_LISTS,
            seed=request.seed,
            runtime=request.runtime,
            pairs=request.pairs,
        )
        for load in loads
    ]


def _trace_cases(request: Request, cluster: tuple[Cluster, SpeedTable] | None, notes: list[str]) -> list[Case]:
    path = Path(request.trace or "")
    if not path.is_file():
        problem = "is a directory" if path.is_dir() else "is not a file" if path.exists() else "no such file"
        raise InvalidInput(f"trace: {path}: {problem}", field="trace")
    trace_format = request.trace_format or format_of(path)
    if trace_format is None:
        raise InvalidInput(
            f"trace_format: {path}: its name does not show the format; name one of {', '.join(TRACE_FORMATS)} with "
            "--trace-format",
            field="trace_format",
        )
    # Fields that Gavel's traces lack are drawn for Gavel's cluster, on which its figures were measured.
    scenario = load_scenario("gavel" if trace_format == "gavel" else TRACE)
    scenario = dataclasses.replace(scenario, name=TRACE, arrivals=load_scenario(TRACE).arrivals)
    speeds = SHIPPED
    if cluster is not None:
        own, speeds = cluster
        scenario = dataclasses.replace(scenario, cluster=own)
    jobs, trace_notes = read_trace(
        path, trace_format, seed=request.seed, multi_gpu=request.multi_gpu, cluster=scenario.cluster
    )
    notes += [f"{path}: {sentence}" for sentence in trace_notes.sentences]
    if unplaceable := find_unplaceable(scenario.cluster, jobs):
        raise InvalidInput(
            f"trace: {path}: {unplaceable.sentence}. Use a larger cluster (--cluster), or remove these jobs",
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
    as_it_is = Case(
        scenario, speeds, None, count, lists, request.seed, request.runtime, trace=tuple(jobs), pairs=request.pairs
    )
    offered = _offered_loads(as_it_is)
    if request.loads is None:
        return [_at_its_own_times(as_it_is, offered, path, notes)]
    return [_at_load(as_it_is, offered, load, path, notes) for load in request.loads]


def _offered_loads(case: Case) -> list[float]:
    """The offered load of each of a trace's lists; inf if all its jobs come at once."""
    found: dict[int, float] = {}  # by first job: a short trace draws places repeatedly
    for window in (windows := case.windows()):
        if id(window[0]) not in found:
            at_once = window[-1].submit_s <= window[0].submit_s
            found[id(window[0])] = math.inf if at_once else offered_load(case.cluster, window, case.speeds)
    return [found[id(window[0])] for window in windows]


def _at_its_own_times(case: Case, offered: Sequence[float], path: Path, notes: list[str]) -> Case:
    assert case.trace is not None
    whole = offered[0]
    if len(offered) > 1:
        notes.append(
            f"{path}: the {len(offered)} lists of {case.jobs} jobs offer loads from {min(offered):.3g} to "
            f"{max(offered):.3g}; --load L brings each of them to L"
        )
        at_once = case.trace[-1].submit_s <= case.trace[0].submit_s
        whole = math.inf if at_once else offered_load(case.cluster, case.trace, case.speeds)
    notes += [f"{path}: {text}" for text in demand_warnings(None, whole)]
    return dataclasses.replace(case, load=round(whole, 4) if math.isfinite(whole) else None)


def _at_load(case: Case, offered: Sequence[float], load: float, path: Path, notes: list[str]) -> Case:
    if math.isinf(max(offered)):
        raise InvalidInput(
            f"load: {path}: {'all' if case.jobs > 1 else 'the'} {case.jobs} jobs of a list are submitted at once, so "
            "there is no rate to scale to a load; omit --load",
            field="load",
        )
    factors = tuple(each / load for each in offered)
    longest_s = max((w[-1].submit_s - w[0].submit_s) * f for w, f in zip(case.windows(), factors, strict=True))
    if longest_s > _LATEST_S:
        raise InvalidInput(
            f"load: {path}: at {load:g} the jobs of a list would come over {longest_s:.3g} s, and {_LATEST_S:g} s is "
            "the longest; take a higher load",
            field="load",
        )
    notes += [f"{path}: {text}" for text in demand_warnings(None, load)]
    return dataclasses.replace(case, load=load, factors=factors)
