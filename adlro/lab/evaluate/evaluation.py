"""Runs an evaluation: all tasks on all cores, then decision times; returns figures by (policy, case).

    from adlro.lab.evaluate import Request, evaluate
    build_document(evaluate(Request(policies=("sjf",), own={"mine": MyPolicy()}, loads=(0.9,))))["rows"]

With several processes, these are spawned: a script that calls this needs `if __name__ == "__main__"`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

import numpy as np

from adlro.errors import InternalError
from adlro.lab.evaluate.cases import Case, build_cases
from adlro.lab.evaluate.measure import Figures
from adlro.lab.evaluate.partial import PartialResults
from adlro.lab.evaluate.request import LEARNED, REFERENCE, Request
from adlro.lab.evaluate.tasks import Setup, Task, cut, from_bytes, key_of, to_bytes
from adlro.lab.evaluate.timing import decision_times_us
from adlro.lab.evaluate.workers import WorkerLostError, results
from adlro.sim.batch import simulate
from adlro.state.observation import Floats

Progress = Callable[[str, int, int], None]
"""Called with (phase, done, total): phase "simulating" counts lists, "timing decisions" measurements."""

SIMULATING, TIMING = "simulating", "timing decisions"


@dataclass(frozen=True, slots=True)
class Stuck:
    """A list that a policy did not finish."""

    policy: str
    case: Case
    number: int
    jobs_left: int

    @property
    def sentence(self) -> str:
        """For people."""
        return (
            f"policy {self.policy} got stuck in {self.case.text}, list {self.number} of seed {self.case.seed}: "
            f"{self.jobs_left} jobs never ended, no job ran and none was still to come"
        )


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The results of an evaluation.

    Attributes:
        request: the request.
        cases: in the order of scenarios, then of loads.
        figures: by (policy, number of the case), all lists; includes the reference policy.
        decision_us: durations of single decisions, for the requested policies; empty without measurements.
        stuck: lists without an end; their policies have no row in that case.
        notes: notes for people.
        processes: number of simulating processes.
    """

    request: Request
    cases: tuple[Case, ...]
    figures: dict[tuple[str, int], Figures]
    decision_us: dict[tuple[str, int], Floats]
    stuck: tuple[Stuck, ...]
    notes: tuple[str, ...]
    processes: int


def evaluate(
    request: Request,
    *,
    processes: int | None = None,
    partial: PartialResults | None = None,
    progress: Progress | None = None,
    time_decisions: bool = True,
    prepared: tuple[list[Case], list[str]] | None = None,
) -> Evaluation:
    """Evaluates policies.

    Args:
        request: the request.
        processes: number of workers; None: one per core of this process; 1: none, this process simulates. The result is
            the same.
        partial: stores and finds the results of finished tasks.
        progress: called with the progress.
        time_decisions: measures decision times at the end.
        prepared: the result of `build_cases` for the request, if there is one already.

    Raises:
        InvalidInput: the request is impossible; raised before any simulation.
        InternalError: Little's law does not hold, or a policy's action is impossible.
        Unsupported: runtimes must be learned, the request names no decompose, and none is installed here.
        AdlroError: the decompose that learns them, or its store, fails.
    """
    cases, notes = prepared or build_cases(request)
    given = None
    if request.decompose is not None:
        from adlro.lab.evaluate.own_decompose import GivenDecompose

        given = GivenDecompose(request.decompose, request.redis_url or "")
        processes = 1  # it has one memory: lists take turns
        partial = None  # a later run may have another decompose
    elif request.runtime == LEARNED:
        from adlro.lab.evaluate.own_decompose import require_decompose

        require_decompose()
    setup = Setup(tuple(cases), dict(request.own), given, request.wait_ratio, request.precedence)
    names = tuple(dict.fromkeys([REFERENCE, *request.names]))
    tasks = cut(cases, names, request.own)
    keys = {task: key_of(setup, task) for task in tasks} if partial else {}
    done: dict[Task, Figures] = {}
    if partial is not None:
        done = {task: found for task in tasks if (found := partial.get(keys[task])) is not None}
    left = [task for task in tasks if task not in done]
    tell = progress or (lambda *_: None)
    total = sum(task.last - task.first for task in tasks)
    finished = sum(task.last - task.first for task in done)
    tell(SIMULATING, finished, total)
    count = min(processes or cores(), max(1, len(left)))
    # Whatever ends this, the workers end as well.
    with contextlib.closing(setup), contextlib.closing(_results(setup, left, count, kept=partial is not None)) as each:
        for task, content in each:
            figures = from_bytes(content)
            assert figures is not None
            done[task] = figures
            if partial is not None:
                partial.put(keys[task], content)
            finished += task.last - task.first
            tell(SIMULATING, finished, total)
    figures_by = {
        (name, number): _joined([done[t] for t in tasks if t.policy == name and t.case == number])
        for name in names
        for number in range(len(cases))
    }
    stuck = [
        Stuck(name, cases[number], int(place), int(found.stuck[place]))
        for (name, number), found in figures_by.items()
        for place in np.flatnonzero(found.stuck)
    ]
    timed = [(name, number) for name in request.names for number in range(len(cases))] if time_decisions else []
    decision_us = {}
    for i, (name, number) in enumerate(timed):
        tell(TIMING, i, len(timed))
        decision_us[name, number] = decision_times_us(setup, name, number)
    tell(TIMING if timed else SIMULATING, len(timed) if timed else total, len(timed) if timed else total)
    return Evaluation(request, tuple(cases), figures_by, decision_us, tuple(stuck), tuple(notes), count)


def cores() -> int:
    """Number of cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        return os.cpu_count() or 1


def _results(setup: Setup, tasks: Sequence[Task], processes: int, *, kept: bool) -> Generator[tuple[Task, bytes]]:
    """Each task's figures, as soon as they are complete."""
    if not tasks:
        return
    # Compiles once here, so that workers load the code from disk instead of all compiling it.
    case = setup.cases[0]
    simulate(case.cluster, setup.cases[0].arrays(0, 1), setup.policy(REFERENCE, case).act)
    if processes == 1:
        for task in tasks:
            yield task, to_bytes(setup.run(task))
        return
    try:
        with contextlib.closing(results(setup, tasks, processes)) as found:
            yield from found
    except WorkerLostError:
        raise InternalError(
            "a worker process was killed, perhaps by a lack of memory; try fewer processes (--processes), or "
            "shorter lists" + ("; finished parts are kept: the same command resumes from them" if kept else "")
        ) from None


def _joined(parts: Sequence[Figures]) -> Figures:
    """Figures of consecutive chunks of lists, concatenated."""
    jct_counts, gpu_busy = parts[0].jct_counts.copy(), parts[0].gpu_busy.copy()
    for part in parts[1:]:
        jct_counts += part.jct_counts
        gpu_busy += part.gpu_busy
    return Figures(
        metrics=np.concatenate([part.metrics for part in parts]),
        stuck=np.concatenate([part.stuck for part in parts]),
        jct_counts=jct_counts,
        gpu_busy=gpu_busy,
        gantt=parts[0].gantt,
        basis_counts=np.concatenate([part.basis_counts for part in parts]),
    )
