"""The cells of `benchmarks.grid`: what runs, how it arrives, on which cluster, and what is known of runtimes.

A cell is drawn from

- the jobs: each application alone, and six mixtures of applications and job types;
- the arrivals: backlogs of 200 and of 1,000 jobs that come at once, of which half are of equal jobs, and loads of 0.3,
  0.6, 0.9, 1.1 and 1.5;
- the clusters: of the scenarios `paper`, `paper_roomy` and `gavel`, and of the files in benchmarks/clusters, on which
  speeds are ten to twenty times apart;
- the runtimes that policies know: `true`, `group`, `type`.

The cells of the grid with jobs of several GPUs (`GANGS`) have sizes, clusters and runtimes of their own, and only the
mixtures. In those of `GANGS_LEARNED`, drawn in the same way but others, nobody tells runtimes: a decompose learns
them while a list runs.

Lists are drawn by the rules of the scenario of the cluster (`paper` for the files), from a population of the cell's
own.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from adlro.hardware.speeds import SHIPPED, SpeedTable
from adlro.records.cluster import Cluster
from adlro.records.jobs import KINDS_OF_WORK, JobType
from adlro.state.job_arrays import JobArrays, pack_jobs
from adlro.workload.arrivals import Batch, Poisson
from adlro.workload.capacity import scenario_on
from adlro.workload.estimates import claimed_spread, expected_s, expected_spread_speeds
from adlro.workload.job_lists import WorkloadJob, draw_groups, draw_jobs
from adlro.workload.scenario import GangSize, Scenario, load_cluster, load_scenario, load_speeds

_T = TypeVar("_T")

FILES = Path(__file__).with_name("clusters")
SCENARIOS = ("paper", "paper_roomy", "gavel")
GANG_SCENARIOS = ("gangs", "gangs_64")
CLUSTERS = (*SCENARIOS, "wide_speeds", "few_fast", "specialists")
BACKLOGS = (200, 1000)
LOADS = (0.3, 0.6, 0.9, 1.1, 1.5)
RUNTIMES = ("true", "group", "type")
LEARNED_RUNTIME = "learned"
"""Runtimes that are learned from the jobs of the list that have ended."""
JOBS = 256
"""Of a list that arrives at a load."""

ONE_GPU = "one"
SIZES: Mapping[str, tuple[GangSize, ...]] = {
    ONE_GPU: (),
    "pairs": (GangSize(1, 0.5), GangSize(2, 0.5)),
    "to_four": (GangSize(1, 0.4), GangSize(2, 0.2), GangSize(3, 0.1), GangSize(4, 0.3)),
    "few_wide": (GangSize(1, 0.92), GangSize(4, 0.08, 4.0)),
}
"""Shares of the jobs by their numbers of GPUs; the wide ones of the last have more work."""

_SIMULATION, _LEARNING, _DATA = JobType.SIMULATION, JobType.MACHINE_LEARNING, JobType.DATA_PROCESSING
MIXTURES: Mapping[str, Mapping[JobType, float]] = {
    "all": {_SIMULATION: 0.35, _LEARNING: 0.4, _DATA: 0.25},
    "equal": {_SIMULATION: 1 / 3, _LEARNING: 1 / 3, _DATA: 1 / 3},
    "simulation": {_SIMULATION: 1.0, _LEARNING: 0.0, _DATA: 0.0},
    "machine_learning": {_SIMULATION: 0.0, _LEARNING: 1.0, _DATA: 0.0},
    "mostly_data": {_SIMULATION: 0.1, _LEARNING: 0.1, _DATA: 0.8},
    "two_applications": {_SIMULATION: 0.5, _LEARNING: 0.5, _DATA: 0.0},
}
"""Shares of the job types; of `two_applications` each type has one application, drawn for the cell."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell.

    Attributes:
        number: of the cell in its grid; its lists are drawn by it.
        jobs: an application, or one of `MIXTURES`.
        backlog: jobs that come at once; 0: they arrive at `load`.
        equal: all jobs of an application are equally long (backlogs only).
        load: share of the cluster's capacity.
        cluster: one of `CLUSTERS`.
        runtime: one of `RUNTIMES`.
        sizes: one of `SIZES`.
    """

    number: int
    jobs: str
    backlog: int
    equal: bool
    load: float
    cluster: str
    runtime: str
    sizes: str = ONE_GPU

    @property
    def arrivals(self) -> str:
        """For people."""
        if not self.backlog:
            return f"load {self.load:g}"
        return f"{self.backlog} {'equal' if self.equal else 'at once'}"

    @property
    def text(self) -> str:
        """For people."""
        sizes = "" if self.sizes == ONE_GPU else f"{self.sizes}, "
        return f"{self.jobs}, {sizes}{self.arrivals}, {self.cluster}, {self.runtime}"


@dataclass(frozen=True, slots=True)
class Kinds:
    """What the cells of a grid are drawn from, besides the jobs.

    Attributes:
        clusters, runtimes, sizes: names.
        backlogs: jobs that come at once.
        loads: of lists that arrive one by one.
        applications: whether some cells have jobs of one application alone.
    """

    clusters: Sequence[str] = CLUSTERS
    runtimes: Sequence[str] = RUNTIMES
    sizes: Sequence[str] = (ONE_GPU,)
    backlogs: Sequence[int] = BACKLOGS
    loads: Sequence[float] = LOADS
    applications: bool = True


GANGS = Kinds(
    clusters=("gangs", "gangs_64", "wide_speeds", "few_fast", "specialists"),
    runtimes=("true", "noise:0.7", "group", "type", "none"),
    sizes=("pairs", "to_four", "few_wide"),
    backlogs=(200,),
    loads=(0.3, 0.6, 0.9, 1.1),
    applications=False,
)
GANGS_LEARNED = dataclasses.replace(GANGS, runtimes=(LEARNED_RUNTIME,))


def draw_cells(count: int, seed: int, kinds: Kinds | None = None) -> list[Cell]:
    """Different cells in a random order: jobs, arrivals, clusters and runtimes come about equally often."""
    kinds = Kinds() if kinds is None else kinds
    rng = np.random.default_rng(np.random.SeedSequence(seed))
    cells: list[Cell] = []
    seen: set[tuple[object, ...]] = set()
    decks: dict[str, list[int]] = {}

    def next_of(name: str, values: Sequence[_T]) -> _T:
        deck = decks.setdefault(name, [])
        if not deck:
            deck.extend(int(place) for place in rng.permutation(len(values)))
        return values[deck.pop()]

    arrivals = [(backlog, equal, 1.0) for backlog in kinds.backlogs for equal in (False, True)]
    arrivals += [(0, False, load) for load in kinds.loads]
    while len(cells) < count:
        cluster = next_of("cluster", kinds.clusters)
        its_jobs = kinds_of_jobs(cluster) if kinds.applications else tuple(MIXTURES)
        jobs = next_of(f"jobs of {cluster == 'gavel'}", its_jobs)
        backlog, equal, load = next_of("arrivals", arrivals)
        runtime = next_of("runtime", kinds.runtimes)
        sizes = next_of("sizes", kinds.sizes)
        key = (jobs, backlog, equal, load, cluster, runtime, sizes)
        if key not in seen:
            seen.add(key)
            cells.append(Cell(len(cells), jobs, backlog, equal, load, cluster, runtime, sizes))
    return cells


def kinds_of_jobs(cluster: str) -> tuple[str, ...]:
    """The applications that a cluster has speeds for, and the mixtures of them."""
    scenario = load_scenario(cluster if cluster in SCENARIOS else "paper")
    if cluster == "gavel":
        return (*scenario.job_types, "all")
    return (*scenario.job_types, *MIXTURES)


@functools.lru_cache(maxsize=4)
def scenario_of(cell: Cell, seed: int) -> tuple[Scenario, SpeedTable]:
    """The rules by which a cell's lists are drawn, and the speeds of its GPUs."""
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(cell.number, 0)))
    scenario = load_scenario(cell.cluster if cell.cluster in (*SCENARIOS, *GANG_SCENARIOS) else "paper")
    cluster, speeds = _cluster(cell.cluster)
    if cell.sizes != ONE_GPU:
        cluster = _with_cores(cluster)
    job_types, mix = dict(scenario.job_types), dict(scenario.mix)
    if cell.jobs in scenario.job_types:
        job_types = {cell.jobs: scenario.job_types[cell.jobs]}
        mix = {job_type: float(job_type is job_types[cell.jobs]) for job_type in KINDS_OF_WORK}
    elif cell.cluster != "gavel":
        mix = dict(MIXTURES[cell.jobs])
    if cell.jobs == "two_applications":
        job_types = {
            names[int(rng.integers(len(names)))]: job_type
            for job_type in (_SIMULATION, _LEARNING)
            if (names := scenario.applications(job_type))
        }
    changed = dataclasses.replace(
        scenario,
        job_types=job_types,
        mix=mix,
        arrivals=Batch() if cell.backlog else Poisson(),
        groups=(),
        gang_sizes=SIZES[cell.sizes],
    )
    if cell.equal:
        changed = dataclasses.replace(changed, work=_Equal(), sigma_group=0.0)
    return scenario_on(changed, cluster, speeds, draw_groups(changed, rng)), speeds


class _Equal:
    """Work of equal jobs: each takes its group's mean."""

    def draw_s(self, mean_s: float, rng: np.random.Generator) -> float:
        """The mean; takes no random number."""
        return mean_s

    def expected_s(self, mean_s: float) -> float:
        """The mean itself."""
        return mean_s


def _cluster(name: str) -> tuple[Cluster, SpeedTable]:
    if name in (*SCENARIOS, *GANG_SCENARIOS):
        return load_scenario(name).cluster, SHIPPED
    path = str(FILES / f"{name}.toml")
    return load_cluster(path), load_speeds(path)


def _with_cores(cluster: Cluster) -> Cluster:
    """The cluster with cores and memory for the most that a job asks for with each GPU, as in the gang scenarios."""
    nodes = [
        dataclasses.replace(node, cpu_cores=16 * len(node.gpus), memory_mib=65536 * len(node.gpus))
        for node in cluster.nodes
    ]
    return dataclasses.replace(cluster, nodes=tuple(nodes))


def drawn_lists(cell: Cell, seed: int, first: int, count: int) -> list[list[WorkloadJob]]:
    """Lists `first` to `first + count - 1` of a cell."""
    return [jobs for jobs, _ in _drawn(cell, seed, first, count)]


def _drawn(cell: Cell, seed: int, first: int, count: int) -> list[tuple[list[WorkloadJob], int]]:
    """The lists, each with the seed of its noise."""
    scenario, _ = scenario_of(cell, seed)
    drawn = []
    for number in range(first, first + count):
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(cell.number, 1, number)))
        jobs = draw_jobs(scenario, load=cell.load, rng=rng, count=cell.backlog or JOBS)
        drawn.append((jobs, int(rng.integers(2**31))))
    return drawn


def lists_of(cell: Cell, seed: int, first: int, count: int) -> tuple[Cluster, JobArrays]:
    """Lists `first` to `first + count - 1` of a cell, as policies see them, and the cluster that they run on.

    Where runtimes are learned the expectations are those of the job type, and no policy sees them.
    """
    scenario, speeds = scenario_of(cell, seed)
    drawn, noise = zip(*_drawn(cell, seed, first, count), strict=True)
    models = scenario.cluster.gpu_models
    if cell.runtime == "true":
        return scenario.cluster, pack_jobs(drawn, models, speed_table=speeds)
    runtime = "type" if cell.runtime == LEARNED_RUNTIME else cell.runtime
    believed = [
        expected_s(jobs, models, runtime, scenario, seed=of_noise, speeds=speeds)
        for jobs, of_noise in zip(drawn, noise, strict=True)
    ]
    packed = pack_jobs(drawn, models, believed, speed_table=speeds)
    if cell.sizes != ONE_GPU:
        for row, jobs in enumerate(drawn):
            packed.expected_spread[row] = claimed_spread(jobs, packed.duration_s[row], believed[row])
            packed.expected_spread_speed[row] = expected_spread_speeds(jobs, models, runtime)
    return scenario.cluster, packed
