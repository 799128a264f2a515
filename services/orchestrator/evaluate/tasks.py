"""A task: one policy on some lists of one case; what a worker process does. Arrays and plain records only."""

from __future__ import annotations

import functools
import hashlib
import io
import json
import os
import pickle
import threading
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from multiprocessing import parent_process
from pathlib import Path

import numpy as np

import adlro.cluster
import adlro.jobs
import adlro.sim
from adlro.errors import InternalError, InvalidInput
from adlro.sim.batch import simulate
from adlro.sim.job_arrays import JobArrays
from services.orchestrator import policies as policies_package
from services.orchestrator.evaluate.cases import Case
from services.orchestrator.evaluate.measure import Figures, figures_of
from services.orchestrator.policies import POLICIES, Policy

RESULTS_FORMAT = 1
"""Changes when what a task's file holds changes its meaning."""

_WIDE = 50 * 256
"""Jobs in a task: wide enough for numpy, small enough for a processor's cache and for work to spread over cores."""
_CASES_KEPT = 8


@dataclass(frozen=True, slots=True)
class Task:
    """Lists `first` to `last` - 1 of a case, by number, under a policy."""

    policy: str
    case: int
    first: int
    last: int


@dataclass(frozen=True)
class Setup:
    """What all tasks share: sent to each worker once."""

    cases: tuple[Case, ...]
    own: Mapping[str, Policy]

    def policy(self, name: str, case: Case) -> Policy:
        """The policy as it is set for a case."""
        if name in self.own:
            return self.own[name]
        known = POLICIES[name]
        return known() if case.load is None else known.for_load(case.load)

    def run(self, task: Task) -> Figures:
        """Simulates a task.

        Raises:
            InternalError: Little's law does not hold, or the policy's action cannot be carried out.
        """
        case = self.cases[task.case]
        arrays = self.arrays(task.case, task.first, task.last)
        act = self.policy(task.policy, case).act
        try:
            outcome = simulate(case.cluster, arrays, act)
            return figures_of(case.cluster, outcome, policy=task.policy, first_list=task.first)
        except ValueError as error:
            raise InternalError(
                f"policy {task.policy} on lists {task.first} to {task.last - 1} of {case.text}: {error}"
            ) from error
        except InternalError as error:
            raise InternalError(f"{case.text}, seed {case.seed}: {error.message}") from error

    def arrays(self, case: int, first: int, last: int) -> JobArrays:
        """Lists of a case; the last few are kept, since the policies take turns on them."""
        return self._kept(case, first, last)

    @functools.cached_property
    def _kept(self) -> functools._lru_cache_wrapper[JobArrays]:
        @functools.lru_cache(maxsize=_CASES_KEPT)
        def arrays(case: int, first: int, last: int) -> JobArrays:
            return self.cases[case].arrays(first, last)

        return arrays

    def __getstate__(self) -> dict[str, object]:
        return {"cases": self.cases, "own": self.own}


def cut(cases: Sequence[Case], names: Sequence[str]) -> list[Task]:
    """All tasks, those on the same lists one after the other. Does not depend on the machine, so a run can go on."""
    tasks = []
    for number, case in enumerate(cases):
        wide = max(1, min(50, _WIDE // case.jobs))
        for first in range(0, case.lists, wide):
            tasks += [Task(name, number, first, min(first + wide, case.lists)) for name in names]
    return tasks


def key_of(setup: Setup, task: Task) -> str:
    """A digest of everything on which a task's figures depend: a file of it never serves another question."""
    case = setup.cases[task.case]
    question = {
        "format": RESULTS_FORMAT,
        "code": code_digest(),
        "policy": task.policy,
        "own": _pickle_digest(task.policy, setup.own[task.policy]) if task.policy in setup.own else None,
        "case": case.digest,
        "lists": [task.first, task.last],
    }
    return hashlib.blake2b(json.dumps(question).encode(), digest_size=16).hexdigest()


@functools.cache
def code_digest() -> str:
    """A digest of the simulator's, the policies' and this package's files, and of the packages they compute with."""
    digest = hashlib.blake2b(digest_size=16)
    roots = [Path(str(each.__file__)).parent for each in (adlro.sim, policies_package)] + [Path(__file__).parent]
    for root in roots:
        for file in sorted(root.rglob("*")):
            if file.suffix in (".py", ".toml", ".csv", ".onnx", ".json"):
                digest.update(str(file.relative_to(root)).encode() + b"\0" + file.read_bytes())
    for module in (adlro.cluster, adlro.jobs):
        digest.update(Path(str(module.__file__)).read_bytes())
    for package in ("numpy", "numba", "scipy"):
        digest.update(metadata.version(package).encode())
    return digest.hexdigest()


def _pickle_digest(name: str, policy: Policy) -> str:
    try:
        return hashlib.blake2b(pickle.dumps(policy), digest_size=16).hexdigest()
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise InvalidInput(
            f"policies: '{name}' cannot be sent to a worker process: {error}", field="policies"
        ) from None


def to_bytes(figures: Figures) -> bytes:
    """Figures as a file."""
    buffer = io.BytesIO()
    np.savez(
        buffer,
        metrics=figures.metrics,
        stuck=figures.stuck,
        jct_counts=figures.jct_counts,
        gpu_busy=figures.gpu_busy,
        gantt=figures.gantt,
    )
    return buffer.getvalue()


def from_bytes(content: bytes) -> Figures | None:
    """Figures of a file; None where it is damaged."""
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as found:
            return Figures(**{name: found[name] for name in Figures.__slots__})
    except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile):
        return None


_setup: Setup | None = None


def begin_worker(setup: Setup) -> None:
    """Makes this process a worker: it ends when its parent does, and leaves Ctrl-C to it."""
    import signal

    global _setup
    _setup = setup
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def work(task: Task) -> tuple[Task, bytes]:
    """A task in a worker process."""
    assert _setup is not None
    return task, to_bytes(_setup.run(task))


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
