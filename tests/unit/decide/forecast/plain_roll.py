"""One future of a queue in plain Python, by the bare rule: `roll` must equal it bit by bit.

Every decision looks at every job, node and GPU: no bounds, no lists of what is new, no sums that are kept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from adlro.decide.forecast.placing import (
    AFFINITY,
    AGEING,
    ALPHA,
    BACKLOG,
    LATE_RATIO,
    PACKING,
    THETA,
)
from adlro.decide.forecast.site import Site, Sorts
from adlro.numeric.exact import exp, log, log1p
from adlro.state.observation import Bools, Floats, Ints

assert ALPHA == 4.0  # it is in `Sorts.cost`


@dataclass
class Run:
    """What runs on a GPU."""

    start_s: float
    expected_end_s: float
    end_s: float
    cores: int
    memory_mib: int


@dataclass
class Waiting:
    """A job of the queue."""

    job: int
    sort: int
    since_s: float


@dataclass
class Future:
    """The cluster and its queue in one future; times from now on."""

    site: Site
    sorts: Sorts
    factor: Floats
    starts_s: Floats
    time_s: float = 0.0
    runs: dict[int, Run] = field(default_factory=dict)
    queue: list[Waiting] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.gpus = range(len(self.site.gpu_kind))
        self.nodes = range(len(self.site.node_cores_free))
        self.kinds = range(self.sorts.jobs.duration_s.shape[1])
        self.cores_free, self.memory_free = self.site.node_cores_free.tolist(), self.site.node_memory_free_mib.tolist()

    def remaining_s(self, gpu: int) -> float:
        run = self.runs[gpu]
        return max(run.expected_end_s - self.time_s, LATE_RATIO * (self.time_s - run.start_s))

    def free(self, node: int, kind: int | None = None) -> list[int]:
        return [
            gpu
            for gpu in range(self.site.node_first[node], self.site.node_first[node + 1])
            if self.site.gpu_there[gpu] and gpu not in self.runs and kind in (None, self.site.gpu_kind[gpu])
        ]

    def set_of(self, sort: int, kind: int) -> list[int] | None:
        """The GPUs that a job of several would have now."""
        jobs = self.sorts.jobs
        gives = {}
        for node in self.nodes:
            gives[node] = len(self.free(node, kind))
            if jobs.cores[sort] > 0:
                gives[node] = min(gives[node], self.cores_free[node] // int(jobs.cores[sort]))
            if jobs.memory_mib[sort] > 0:
                gives[node] = min(gives[node], self.memory_free[node] // int(jobs.memory_mib[sort]))
        left, chosen = int(jobs.gpu_count[sort]), list[int]()
        for used, node in enumerate(sorted(self.nodes, key=lambda node: -gives[node])):
            if left == 0 or gives[node] <= 0 or 0 < jobs.max_nodes[sort] <= used:
                break
            chosen += self.free(node, kind)[: min(left, gives[node])]
            left -= min(left, gives[node])
        return None if left else sorted(chosen)

    def place_one(self) -> bool:
        sorts, jobs = self.sorts, self.sorts.jobs
        there = [gpu for gpu in self.gpus if self.site.gpu_there[gpu]]
        kind_wait_s = [math.inf for _ in self.kinds]
        work_s = 0.0
        for gpu in there:
            if gpu in self.runs:
                work_s += self.remaining_s(gpu)
                kind = self.site.gpu_kind[gpu]
                kind_wait_s[kind] = min(kind_wait_s[kind], self.remaining_s(gpu))
        idle = sum(gpu not in self.runs for gpu in there)
        for each in self.queue:
            work_s += float(sorts.best_s[each.sort] * jobs.gpu_count[each.sort])
        drain_s = work_s / max(len(there), 1) if len(self.queue) > idle else 0.0
        slowdown = [
            min(
                (
                    float(jobs.duration_s[each.sort, kind] / sorts.best_s[each.sort])
                    for each in self.queue
                    if sorts.best_s[each.sort] < math.inf
                ),
                default=math.inf,
            )
            for kind in self.kinds
        ]
        held = self.reservation()
        least, chosen, chosen_gpus = math.inf, None, list[int]()
        for each in self.queue:
            sort, best_s = each.sort, float(sorts.best_s[each.sort])
            if best_s == math.inf:
                continue
            places = self.places_of(sort)
            soonest_s = min(
                (0.0 if places[kind] else kind_wait_s[kind]) + float(jobs.duration_s[sort, kind]) for kind in self.kinds
            )
            aged = AGEING * log1p(max(self.time_s - each.since_s, 0.0) / best_s)
            for kind in self.kinds:
                duration_s = float(jobs.duration_s[sort, kind])
                if held and each is not held[0] and kind == held[1] and self.time_s + duration_s > held[2]:
                    continue
                if duration_s > THETA * soonest_s and duration_s > drain_s and self.runs:
                    unsuited = max(duration_s / best_s / slowdown[kind], 1.0)
                    if duration_s > BACKLOG * exp(-AFFINITY * log(unsuited)) * drain_s:
                        continue
                for gpus in places[kind]:
                    cost = float(sorts.cost[sort, kind]) - aged
                    if jobs.gpu_count[sort] == 1:
                        node = self.site.gpu_node[gpus[0]]
                        share = self.cores_free[node] / len(self.free(node))
                        cost += PACKING * abs(int(jobs.cores[sort]) - share) / max(share, 1.0)
                    if cost < least:
                        least, chosen, chosen_gpus, chosen_s = cost, each, gpus, duration_s
        if chosen is None:
            return False
        for gpu in chosen_gpus:
            cores, memory_mib = int(jobs.cores[chosen.sort]), int(jobs.memory_mib[chosen.sort])
            end_s = self.time_s + chosen_s * float(self.factor[chosen.job])
            self.runs[gpu] = Run(self.time_s, self.time_s + chosen_s, end_s, cores, memory_mib)
            self.cores_free[self.site.gpu_node[gpu]] -= cores
            self.memory_free[self.site.gpu_node[gpu]] -= memory_mib
        if chosen.job < len(self.starts_s):
            self.starts_s[chosen.job] = self.time_s
        self.queue.remove(chosen)
        return True

    def places_of(self, sort: int) -> list[list[list[int]]]:
        """By kind, sets of GPUs that the job could have now."""
        jobs, found = self.sorts.jobs, list[list[list[int]]]()
        for kind in self.kinds:
            sets: list[list[int]] = []
            if jobs.duration_s[sort, kind] < math.inf and jobs.gpu_count[sort] > 1:
                some = self.set_of(sort, kind)
                sets = [] if some is None else [some]
            elif jobs.duration_s[sort, kind] < math.inf:
                for node in self.nodes:
                    if jobs.cores[sort] <= self.cores_free[node] and jobs.memory_mib[sort] <= self.memory_free[node]:
                        sets += [[gpu] for gpu in self.free(node, kind)]
            found.append(sets)
        return found

    def reservation(self) -> tuple[Waiting, int, float] | None:
        """The job of several GPUs that waits longest, the kind that it shall have, and from when."""
        jobs, held, soonest_s = self.sorts.jobs, None, math.inf
        several = [each for each in self.queue if jobs.gpu_count[each.sort] > 1]
        if not several:
            return None
        first = min(several, key=lambda each: each.since_s)
        wanted = int(jobs.gpu_count[first.sort])
        for kind in self.kinds:
            duration_s = float(jobs.duration_s[first.sort, kind])
            of_kind = [gpu for gpu in self.gpus if self.site.gpu_there[gpu] and self.site.gpu_kind[gpu] == kind]
            free_s = sorted(self.remaining_s(gpu) if gpu in self.runs else 0.0 for gpu in of_kind)
            if duration_s < math.inf and len(free_s) >= wanted and free_s[wanted - 1] + duration_s < soonest_s:
                soonest_s = free_s[wanted - 1] + duration_s
                held = first, kind, self.time_s + free_s[wanted - 1]
        return held


def plain_roll(
    site: Site,
    sorts: Sorts,
    known: int,
    wanted: Bools,
    end_s: Floats,
    arrival_s: Floats,
    arrival_sort: Ints,
    factor: Floats,
    starts_s: Floats,
) -> None:
    """As `roll`, without a bound of its work."""
    future = Future(site, sorts, factor, starts_s)
    starts_s[:] = math.inf
    for gpu in future.gpus:
        if site.gpu_busy[gpu]:
            times = float(site.gpu_start_s[gpu]), float(site.gpu_expected_end_s[gpu]), float(end_s[gpu])
            future.runs[gpu] = Run(*times, int(site.gpu_cores[gpu]), int(site.gpu_memory_mib[gpu]))
    later = [(max(float(sorts.jobs.submit_s[job]), 0.0), job, job) for job in range(known)]
    come = [Waiting(job, sort, float(sorts.jobs.submit_s[job])) for since_s, job, sort in later if since_s == 0.0]
    future.queue = come
    coming = [each for each in later if each[0] > 0.0]
    coming += [(float(at_s), known + n, int(arrival_sort[n])) for n, at_s in enumerate(arrival_s)]
    while True:
        while future.place_one():
            pass
        if not any(wanted[job] and math.isinf(starts_s[job]) and sorts.best_s[job] < math.inf for job in range(known)):
            return
        events_s = [run.end_s for run in future.runs.values()] + [at_s for at_s, _, _ in coming]
        if not events_s:
            return
        future.time_s = min(events_s)
        for at_s, job, sort in coming:
            if at_s <= future.time_s:
                future.queue.append(Waiting(job, sort, at_s))
        coming = [each for each in coming if each[0] > future.time_s]
        for gpu, run in list(future.runs.items()):
            if run.end_s <= future.time_s:
                del future.runs[gpu]
                future.cores_free[site.gpu_node[gpu]] += run.cores
                future.memory_free[site.gpu_node[gpu]] += run.memory_mib
