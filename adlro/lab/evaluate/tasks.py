"""A task: one policy on some lists of one case; a worker process runs it. Arrays and plain records only."""

from __future__ import annotations

import asyncio
import copy
import functools
import hashlib
import importlib.util
import io
import json
import math
import multiprocessing.util
import os
import pickle
import threading
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from multiprocessing import parent_process
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

import adlro.records.cluster
import adlro.records.jobs
from adlro.decide.own_policy import Own
from adlro.decide.policies import Policy
from adlro.errors import InternalError, InvalidInput
from adlro.lab.evaluate.cases import Case
from adlro.lab.evaluate.measure import Figures, figures_of
from adlro.lab.evaluate.request import KNOWN, REFERENCE
from adlro.lab.evaluate.tally import Tally
from adlro.records.precedence import Precedence
from adlro.sim.batch import BatchOutcome, BatchSimulator
from adlro.state.job_arrays import JobArrays

if TYPE_CHECKING:
    from adlro.lab.evaluate.own_decompose import GivenDecompose, Source

RESULTS_FORMAT = 3
"""Increased when the content of a task's file changes its meaning."""

_WIDE = 50 * 256
"""Jobs of a task: enough for numpy, few enough for a processor's cache and for a distribution over cores."""
_CASES_KEPT = 8
# What figures depend on: rooms whose every file counts.
_CODE = ("adlro.decide", "adlro.lab.evaluate", "adlro.numeric", "adlro.sim", "adlro.state")
_LEARNING = ("adlro.services.decompose", "adlro.services.orchestrator", "adlro.store")


@dataclass(frozen=True, slots=True)
class Task:
    """Lists `first` to `last` - 1 of a case, by number, under a policy."""

    policy: str
    case: int
    first: int
    last: int


@dataclass(frozen=True)
class Setup:
    """The common data of all tasks: sent to each worker once.

    `decompose`: the address for cases with learned runtimes; None: each process starts its own.
    `wait_ratio`: ratio of every policy's limit on waits, 0 for none; None: each policy's own.
    `precedence`: which waiting jobs go before others, under every policy; None: none do by rule.
    """

    cases: tuple[Case, ...]
    own: Mapping[str, Policy]
    decompose: GivenDecompose | None = None
    wait_ratio: float | None = None
    precedence: Precedence | None = None

    def policy(self, name: str, case: Case) -> Policy:
        """The policy with its settings for a case."""
        given = self.own.get(name)
        if isinstance(given, Own):  # a new one for each task: what it remembers must not depend on the other tasks
            policy: Policy = type(given)(case.load)
        elif given is not None:
            policy = given if self.wait_ratio is None and self.precedence is None else copy.copy(given)
        else:
            policy = KNOWN[name]() if case.load is None else KNOWN[name].for_load(case.load)
        if self.wait_ratio is not None:
            policy.wait_ratio = self.wait_ratio or math.inf
        if self.precedence is not None:
            policy.precedence = self.precedence
        return policy

    def run(self, task: Task) -> Figures:
        """Simulates a task.

        Raises:
            InternalError: Little's law does not hold, or the policy's action is impossible.
            AdlroError: runtimes must be learned, and decompose or its store fails.
        """
        case = self.cases[task.case]
        arrays = self.arrays(task.case, task.first, task.last)
        policy = self.policy(task.policy, case)
        tally = Tally(policy, task.last - task.first)
        try:
            outcome = self._simulated(task, arrays, tally, policy)
            return figures_of(
                case.cluster, outcome, policy=task.policy, first_list=task.first, basis_counts=tally.counts
            )
        except ValueError as error:
            raise InternalError(
                f"policy {task.policy} on lists {task.first} to {task.last - 1} of {case.text}: {error}"
            ) from error
        except InternalError as error:
            raise InternalError(f"{case.text}, seed {case.seed}: {error.message}") from error

    def _simulated(self, task: Task, arrays: JobArrays, tally: Tally, policy: Policy) -> BatchOutcome:
        case = self.cases[task.case]
        # The reference uses no runtimes, so none must be learned for it.
        if not case.is_learned or task.policy == REFERENCE:
            simulator = simulator_for(case, arrays, policy)
            while len(simulator.active):
                simulator.act(*tally.act(simulator.observe(), simulator.active))
            return simulator.outcome()
        return asyncio.run(self._simulated_learned(case, task.first, arrays, tally))

    async def _simulated_learned(self, case: Case, number: int, arrays: JobArrays, tally: Tally) -> BatchOutcome:
        from adlro.lab.evaluate.learning import simulate_learned

        async with self._source.fresh() as decompose:
            return await simulate_learned(
                case.cluster,
                case.job_list(number),
                arrays,
                tally.of_one_list(),
                decompose,
                case.true_pairs.kept,
                case.expected_pairs.kept,
                math.inf if self.precedence is None else self.precedence.half_life_s,
            )

    @functools.cached_property
    def _source(self) -> Source:
        # Imported only for learned runtimes: it needs Redis and gRPC.
        from adlro.lab.evaluate.own_decompose import OwnDecompose

        return self.decompose or OwnDecompose()

    def close(self) -> None:
        """Ends the processes that tasks have started."""
        source: Source | None = self.__dict__.pop("_source", None)
        if source is not None:
            source.close()

    def arrays(self, case: int, first: int, last: int) -> JobArrays:
        """Lists of a case; the last few are cached, since the policies take turns on them."""
        return self._kept(case, first, last)

    @functools.cached_property
    def _kept(self) -> functools._lru_cache_wrapper[JobArrays]:
        @functools.lru_cache(maxsize=_CASES_KEPT)
        def arrays(case: int, first: int, last: int) -> JobArrays:
            return self.cases[case].arrays(first, last)

        return arrays

    def __getstate__(self) -> dict[str, object]:
        return {
            "cases": self.cases,
            "own": self.own,
            "decompose": self.decompose,
            "wait_ratio": self.wait_ratio,
            "precedence": self.precedence,
        }


def simulator_for(case: Case, arrays: JobArrays, policy: Policy) -> BatchSimulator:
    """The simulator of lists of a case, which asks as the policy wants; GPUs are shared where it shares them."""
    half_life_s = math.inf if policy.precedence is None else policy.precedence.half_life_s
    if not policy.shares:
        return BatchSimulator(case.cluster, arrays, preempts=policy.preempts, half_life_s=half_life_s)
    return BatchSimulator(
        case.cluster,
        arrays,
        preempts=policy.preempts,
        shares=True,
        kept=case.true_pairs.kept,
        expected_kept=case.expected_pairs.kept,
        half_life_s=half_life_s,
    )


def cut(cases: Sequence[Case], names: Sequence[str], own: Mapping[str, Policy] = MappingProxyType({})) -> list[Task]:
    """All tasks, those on the same lists consecutive. Independent of the machine, so that a run can be resumed.

    Args:
        cases: with their lists.
        names: of all policies.
        own: those that are not ADLRO's, by name.
    """
    alone = {name for name in names if name in KNOWN and KNOWN[name].one_cluster}
    alone |= {name for name, policy in own.items() if policy.one_cluster}
    tasks = []
    for number, case in enumerate(cases):
        # An initially empty memory learns from only one list.
        wide = 1 if case.is_learned else max(1, min(50, _WIDE // case.jobs))
        for first in range(0, case.lists, wide):
            last = min(first + wide, case.lists)
            for name in names:
                # A policy with a cluster's memory gets a separate list and a new object for each.
                size = 1 if name in alone else last - first
                tasks += [Task(name, number, each, min(each + size, last)) for each in range(first, last, size)]
    return tasks


def key_of(setup: Setup, task: Task) -> str:
    """A digest of all inputs of a task's figures: its file is never used for another task."""
    case = setup.cases[task.case]
    question = {
        "format": RESULTS_FORMAT,
        "code": code_digest(),
        "policy": task.policy,
        "wait_ratio": setup.wait_ratio,
        "precedence": None if setup.precedence is None else setup.precedence.text,
        "own": _pickle_digest(task.policy, setup.own[task.policy]) if task.policy in setup.own else None,
        "case": case.digest,
        "lists": [task.first, task.last],
        "learns": learning_digest() if case.is_learned else None,
    }
    return hashlib.blake2b(json.dumps(question).encode(), digest_size=16).hexdigest()


@functools.cache
def code_digest() -> str:
    """A digest of the files of the simulator, the policies and this package, and of what they depend on."""
    digest = hashlib.blake2b(digest_size=16)
    for root in _CODE:
        _add_files(digest, _folder(root).rglob("*"), _folder(root))
    for module in (adlro.records.cluster, adlro.records.jobs):
        digest.update(Path(str(module.__file__)).read_bytes())
    for package in ("numpy", "numba", "scipy", "onnxruntime"):
        digest.update(metadata.version(package).encode())
    return digest.hexdigest()


@functools.cache
def learning_digest() -> str:
    """A digest of the files of an own decompose, and of what asks it."""
    digest = hashlib.blake2b(digest_size=16)
    for root in _LEARNING:
        if importlib.util.find_spec(root) is not None:
            _add_files(digest, _folder(root).rglob("*"), _folder(root))
    return digest.hexdigest()


def _folder(package: str) -> Path:
    found = importlib.util.find_spec(package)
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent


def _add_files(digest: hashlib.blake2b, files: Iterable[Path], root: Path) -> None:
    for file in sorted(files):
        if file.suffix in (".py", ".toml", ".csv", ".onnx", ".json"):
            digest.update(str(file.relative_to(root)).encode() + b"\0" + file.read_bytes())


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
        basis_counts=figures.basis_counts,
    )
    return buffer.getvalue()


def from_bytes(content: bytes) -> Figures | None:
    """Figures of a file; None if it is damaged."""
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as found:
            return Figures(**{name: found[name] for name in Figures.__slots__})
    except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile):
        return None


_setup: Setup | None = None


def begin_worker(setup: Setup) -> None:
    """Makes this process a worker: it ends with its parent, and leaves Ctrl-C to it."""
    import signal

    global _setup
    _setup = setup
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # If the worker ends in another way, its child processes end by themselves.
    multiprocessing.util.Finalize(None, setup.close, exitpriority=0)


def work(task: Task) -> tuple[Task, bytes]:
    """Runs a task in a worker process."""
    assert _setup is not None
    return task, to_bytes(_setup.run(task))


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
