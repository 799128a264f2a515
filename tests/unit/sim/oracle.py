"""One cluster's course, simulated a second time: plain Python, an event queue, no arrays. For tests only.

Written from the semantics alone; it shares no code with `adlro.sim` and knows nothing of it. What it does is held to
instances worked by hand (test_oracle_by_hand.py), so that the fast simulator can be held to it (test_oracle.py).

- At one instant: completions, then GPU changes, then submissions, then starts until none is wanted.
- A rule is asked when some (waiting job, GPU) pair fits. It names a pair, or holds: then nothing starts until the next
  event, or until as long again as nothing has happened, at least 30 s, rounded up to the millisecond. Where nothing
  runs and nothing will be submitted, a hold does not expire.
  An event is a completion, a submission, or a GPU that is lost or comes back; nobody is told of a GPU's speed.
- A run takes the start cost + duration on the GPU's model / the GPU's speed factor. A change of the factor while it
  runs scales what remains by old / new. Factor 0: the GPU is lost, its job waits again at its place by submission and
  starts from scratch.
- A job that no GPU could hold, were it all idle and present, waits for no rule and blocks nobody.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

COMPLETION, CHANGE, SUBMISSION, HOLD_ENDS = range(4)
"""What happens, in the order in which it happens at one instant."""


@dataclass(frozen=True)
class OracleNode:
    cores: int
    memory_mib: int


@dataclass(frozen=True)
class OracleGpu:
    node: int
    model: int
    memory_mib: int


@dataclass(frozen=True)
class OracleJob:
    """`duration_s` on each model; inf: it cannot run there. `expected_s`, what a rule is told, is the same if empty."""

    submit_s: float
    duration_s: tuple[float, ...]
    cores: int = 1
    memory_mib: int = 1
    gpu_memory_mib: int = 1
    user: int = 0
    expected_s: tuple[float, ...] = ()


@dataclass(frozen=True)
class OracleChange:
    time_s: float
    gpu: int
    speed_factor: float


@dataclass(frozen=True)
class OracleRun:
    """One attempt. `end_s`: when the job ended or its GPU was lost (then not `completed`)."""

    job: int
    gpu: int
    start_s: float
    end_s: float
    completed: bool


@dataclass(frozen=True)
class Event:
    time_s: float
    kind: str  # submitted, started, completed, lost, gpu_changed, hold
    job: int = -1
    gpu: int = -1


@dataclass(frozen=True)
class View:
    """What a rule sees.

    Attributes:
        waiting: numbers of the jobs that some GPU could hold, in the order of submission.
        fitting: (job, gpu) pairs that can start now, sorted.
        expected_s: of each pair of a waiting job and a GPU that could hold it.
        remaining_s: of each GPU, expected; 0 where idle, inf where lost. A job that outlasts what was expected of it is
            expected to go on for half of what it has run.
        cores_held, memory_held_mib: what the job on each GPU holds of its node; 0 where none runs.
        service_s: GPU time so far of each user with a waiting job, what runs included.
    """

    time_s: float
    waiting: tuple[int, ...]
    fitting: tuple[tuple[int, int], ...]
    expected_s: dict[tuple[int, int], float]
    idle: tuple[bool, ...]
    remaining_s: tuple[float, ...]
    cores_held: tuple[int, ...]
    memory_held_mib: tuple[int, ...]
    cores_free: tuple[int, ...]
    memory_free_mib: tuple[int, ...]
    service_s: dict[int, float]
    hold_allowed: bool
    decision: int


Rule = Callable[[View], tuple[int, int] | None]
"""Maps what it sees to a pair of `fitting`, or None: hold."""


@dataclass
class OracleOutcome:
    """What became of each job. `start_s` and `gpu` are of its last attempt, NaN and -1 before any; so is `end_s`."""

    start_s: list[float]
    end_s: list[float]
    gpu: list[int]
    attempts: list[int]
    runs: list[OracleRun] = field(default_factory=list)
    log: list[Event] = field(default_factory=list)
    views: list[View] = field(default_factory=list)

    @property
    def stuck(self) -> list[int]:
        return [job for job, end_s in enumerate(self.end_s) if math.isnan(end_s)]


@dataclass
class _Running:
    job: int
    start_s: float
    end_s: float
    expected_end_s: float


class Oracle:
    """Runs a list of jobs, in the order of submission, to its end."""

    def __init__(
        self,
        nodes: Sequence[OracleNode],
        gpus: Sequence[OracleGpu],
        jobs: Sequence[OracleJob],
        changes: Sequence[OracleChange] = (),
        start_cost_s: float = 0.0,
    ) -> None:
        assert all(a.submit_s <= b.submit_s for a, b in itertools.pairwise(jobs))
        self.nodes, self.gpus, self.jobs, self.changes = nodes, gpus, jobs, changes
        self.start_cost_s = start_cost_s
        self.now_s = 0.0
        self.last_event_s = 0.0
        self.held_until_s = -math.inf
        self.factor = [1.0] * len(gpus)
        self.running: dict[int, _Running] = {}
        self.waiting: list[int] = []
        self.to_come = len(jobs)
        self.decisions = 0
        self.able_gpus = [[gpu for gpu in range(len(gpus)) if self.could_hold(job, gpu)] for job in range(len(jobs))]
        unknown = [math.nan] * len(jobs)
        self.outcome = OracleOutcome(list(unknown), list(unknown), [-1] * len(jobs), [0] * len(jobs))
        # (time, what, number of the job or of the change). Entries that are no longer true are passed over.
        self.heap = [(job.submit_s, SUBMISSION, number) for number, job in enumerate(jobs)]
        self.heap += [(change.time_s, CHANGE, number) for number, change in enumerate(changes)]
        heapq.heapify(self.heap)

    def run(self, rule: Rule) -> OracleOutcome:
        while self.heap:
            self.now_s = self.heap[0][0]
            while self.heap and self.heap[0][0] == self.now_s:
                _, what, number = heapq.heappop(self.heap)
                self.happen(what, number)
            self.decide(rule)
        return self.outcome

    def happen(self, what: int, number: int) -> None:
        if what == COMPLETION:
            gpu = next((g for g, run in self.running.items() if run.job == number), None)
            if gpu is None or self.running[gpu].end_s != self.now_s:
                return
            self.end(gpu, completed=True)
        elif what == CHANGE:
            if not self.change(self.changes[number]):
                return  # nobody is told that a GPU has become slower or faster
        elif what == SUBMISSION:
            self.to_come -= 1
            bisect.insort(self.waiting, number)
            self.log("submitted", number)
        else:
            return  # a hold ends: the rule is asked again, but nothing has happened
        self.last_event_s = self.now_s
        self.held_until_s = -math.inf

    def change(self, change: OracleChange) -> bool:
        """Returns whether the GPU was lost, or came back."""
        gpu, old, new = change.gpu, self.factor[change.gpu], change.speed_factor
        self.log("gpu_changed", gpu=gpu)
        self.factor[gpu] = new
        run = self.running.get(gpu)
        told = (old == 0.0) != (new == 0.0)
        if run is None:
            return told
        if new == 0.0:
            bisect.insort(self.waiting, run.job)
            self.end(gpu, completed=False)
        elif new != old:
            run.end_s = self.now_s + (run.end_s - self.now_s) * (old / new)
            heapq.heappush(self.heap, (run.end_s, COMPLETION, run.job))
        return told

    def end(self, gpu: int, *, completed: bool) -> None:
        run = self.running.pop(gpu)
        self.outcome.runs.append(OracleRun(run.job, gpu, run.start_s, self.now_s, completed))
        self.log("completed" if completed else "lost", run.job, gpu)
        if completed:
            self.outcome.end_s[run.job] = self.now_s

    def start(self, job: int, gpu: int) -> None:
        model = self.gpus[gpu].model
        takes_s = self.start_cost_s + self.jobs[job].duration_s[model] / self.factor[gpu]
        expected_end_s = self.now_s + self.expected_s(job, gpu)
        self.waiting.remove(job)
        self.running[gpu] = run = _Running(job, self.now_s, self.now_s + takes_s, expected_end_s)
        heapq.heappush(self.heap, (run.end_s, COMPLETION, job))
        self.outcome.attempts[job] += 1
        self.outcome.start_s[job], self.outcome.gpu[job] = self.now_s, gpu
        self.log("started", job, gpu)

    def decide(self, rule: Rule) -> None:
        while self.now_s >= self.held_until_s:
            view = self.view()
            if not view.fitting:
                return
            self.outcome.views.append(view)
            self.decisions += 1
            chosen = rule(view)
            if chosen is not None:
                assert chosen in view.fitting
                self.start(*chosen)
                continue
            self.log("hold")
            if not view.hold_allowed:
                self.held_until_s = math.inf
                return
            quiet_s = max(30.0, self.now_s - self.last_event_s)
            self.held_until_s = math.ceil((self.now_s + quiet_s) * 1000.0 - 0.0005) / 1000.0
            heapq.heappush(self.heap, (self.held_until_s, HOLD_ENDS, 0))

    # ---- looking

    def could_hold(self, job: int, gpu: int) -> bool:
        """The GPU, present, and its node, empty, are big enough."""
        wants, card = self.jobs[job], self.gpus[gpu]
        node = self.nodes[card.node]
        return (
            wants.duration_s[card.model] < math.inf
            and wants.gpu_memory_mib <= card.memory_mib
            and wants.cores <= node.cores
            and wants.memory_mib <= node.memory_mib
        )

    def expected_s(self, job: int, gpu: int) -> float:
        wants = self.jobs[job]
        return (wants.expected_s or wants.duration_s)[self.gpus[gpu].model]

    def free(self, node: int) -> tuple[int, int]:
        """Cores and memory: what the node has, less what runs there."""
        held = [self.jobs[run.job] for gpu, run in self.running.items() if self.gpus[gpu].node == node]
        return (
            self.nodes[node].cores - sum(job.cores for job in held),
            self.nodes[node].memory_mib - sum(job.memory_mib for job in held),
        )

    def remaining_s(self, gpu: int) -> float:
        if self.factor[gpu] == 0.0:
            return math.inf
        run = self.running.get(gpu)
        if run is None:
            return 0.0
        left_s = run.expected_end_s - self.now_s
        # Whatever ends when expected, but for the rounding of sums, does not outlast it.
        return 0.5 * (self.now_s - run.start_s) if left_s < -1e-6 else max(left_s, 0.0)

    def service_s(self, user: int) -> float:
        ended = [run.end_s - run.start_s for run in self.outcome.runs if self.jobs[run.job].user == user]
        runs = [self.now_s - run.start_s for run in self.running.values() if self.jobs[run.job].user == user]
        return math.fsum(ended + runs)

    def view(self) -> View:
        free = [self.free(node) for node in range(len(self.nodes))]
        able = [(job, gpu) for job in self.waiting for gpu in self.able_gpus[job]]
        waiting = tuple(dict.fromkeys(job for job, _ in able))
        on_gpu = [self.running.get(gpu) for gpu in range(len(self.gpus))]
        idle = tuple(self.factor[gpu] > 0.0 and gpu not in self.running for gpu in range(len(self.gpus)))
        fitting = tuple(
            (job, gpu)
            for job, gpu in able
            if idle[gpu]
            and self.jobs[job].cores <= free[self.gpus[gpu].node][0]
            and self.jobs[job].memory_mib <= free[self.gpus[gpu].node][1]
        )
        return View(
            time_s=self.now_s,
            waiting=waiting,
            fitting=fitting,
            expected_s={(job, gpu): self.expected_s(job, gpu) for job, gpu in able},
            idle=idle,
            remaining_s=tuple(self.remaining_s(gpu) for gpu in range(len(self.gpus))),
            cores_held=tuple(self.jobs[run.job].cores if run else 0 for run in on_gpu),
            memory_held_mib=tuple(self.jobs[run.job].memory_mib if run else 0 for run in on_gpu),
            cores_free=tuple(cores for cores, _ in free),
            memory_free_mib=tuple(memory for _, memory in free),
            service_s={user: self.service_s(user) for user in {self.jobs[job].user for job in waiting}},
            hold_allowed=bool(self.running) or self.to_come > 0,
            decision=self.decisions,
        )

    def log(self, kind: str, job: int = -1, gpu: int = -1) -> None:
        self.outcome.log.append(Event(self.now_s, kind, job, gpu))
