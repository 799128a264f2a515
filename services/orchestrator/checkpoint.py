"""The learned policy's checkpoint: found, read, and replaced while decisions go on. Knows files, and no gRPC.

A new checkpoint is a new file under the path's name, or in the folder, where the newest counts: renamed into its place,
so that it is whole. It is read and tried out in a thread; the next decision is the new one's. One that can't be used is
refused, told, and counted, and the one before stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import numpy as np
import structlog

from adlro.cluster import Cluster, Gpu, Node
from adlro.errors import AdlroError, Unsupported
from adlro.jobs import Job, JobSpec, JobType
from adlro.sim.observation import Observation
from services.orchestrator.ledger import Ledger
from services.orchestrator.planes.choice import Margins, best_of
from services.orchestrator.planes.fill import PlaneFiller
from services.orchestrator.planes.ranges import ranges_of
from services.orchestrator.policies.dqn import CHECKPOINT_MISSING, SHIPPED, Dqn
from services.orchestrator.policies.hold_greedy import HoldGreedyFixed

LOOK_S = 1.0
"""How often it is looked for a new one."""

_Seen = tuple[str, int, int, int]


class Checkpoint:
    """The checkpoint that serves.

    Args:
        path: a file, or a folder of `.onnx` files; None: the one that comes with ADLRO.
        log: a structlog logger.
        on_read: called with whether it is used, after each that was read.

    Attributes:
        policy: decides by the newest checkpoint that can be used.
        problem: why there is none, or why the newest was refused; empty: it is in use.
        loaded, refused: counts.
    """

    def __init__(
        self,
        path: Path | None,
        log: structlog.typing.FilteringBoundLogger,
        on_read: Callable[[bool], None] = lambda _: None,
    ) -> None:
        self._path = SHIPPED if path is None else path
        self.problem = "its checkpoint is not read yet"
        self.policy: Dqn = _Without(self)
        self.loaded = 0
        self.refused = 0
        self._log = log
        self._on_read = on_read
        self._seen: _Seen | None = None

    async def look(self) -> bool:
        """Reads the newest checkpoint, where it is not the one that was read last; True where it serves from now on."""
        found = await asyncio.to_thread(_newest, self._path)
        if found == self._seen and (found is not None or self.problem == self._missing()):
            return False
        self._seen = found
        if found is None:
            # The one that serves goes on, as it would if the new one were damaged.
            self.problem = self._missing()
            self._log.warning("no checkpoint of the learned policy", path=str(self._path), serves=self.policy.version)
            return False
        try:
            policy = await asyncio.to_thread(_tried, Path(found[0]))
        except AdlroError as error:
            self._refuse(found[0], error.message)
            return False
        except Exception as error:  # whatever is in the file: it must not end what serves
            self._refuse(found[0], f"{type(error).__name__}: {error}")
            return False
        before, self.policy = self.policy, policy
        policy.wait_ratio = before.wait_ratio
        self.problem = ""
        self.loaded += 1
        self._on_read(True)
        self._log.info("checkpoint in use", path=found[0], version=policy.version, before=before.version)
        return True

    async def pause(self) -> None:
        """Until it is to be looked again."""
        await asyncio.sleep(LOOK_S)

    def _missing(self) -> str:
        return f"there is no checkpoint {self._path}"

    def _refuse(self, path: str, why: str) -> None:
        self.refused += 1
        self.problem = why
        self._on_read(False)
        self._log.error("checkpoint refused", path=path, problem=why, serves=self.policy.version or "none")


class _Without(Dqn):
    """Stands in the policy's place as long as there is no checkpoint: it cannot decide, and says why."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__()
        self._why = checkpoint

    def load(self) -> Dqn:
        raise Unsupported(self._why.problem, field="checkpoint", reason=CHECKPOINT_MISSING)


def _newest(path: Path) -> _Seen | None:
    files = path.glob("*.onnx") if path.is_dir() else [path]
    found = []
    for file in files:
        try:
            status = file.stat()
        except OSError:
            continue
        found.append((status.st_mtime_ns, str(file), status.st_size, status.st_ino))
    if not found:
        return None
    changed_ns, name, size, inode = max(found)
    return name, changed_ns, size, inode


def warm() -> None:
    """Compiles what the learned policy sees with, or fetches it from where numba keeps it: before anything is decided.

    A compiler lets nobody else run for seconds, and a checkpoint may come at any time.
    """
    planes = PlaneFiller(HoldGreedyFixed().settings.rule()).fill(_decision())
    ranges_of([planes]).outside(planes)
    best_of(planes, np.zeros(len(planes.pairs), dtype=np.float32), np.zeros(1, dtype=np.float32), Margins())


def _decision() -> Observation:
    ledger = Ledger(Cluster("warm", (Node("node", 2, 2, (Gpu("gpu", "any", 1), Gpu("other", "any", 1))),)))
    for number in (1, 2):
        job = Job(f"job-{number}", JobSpec("job", "user", JobType.SIMULATION, memory_mib=1), submit_s=0.0)
        ledger.enqueue(ledger.enter(job, 0, np.array([10.0 * number])))
    return ledger.observe(1.0)


def _tried(path: Path) -> Dqn:
    """A policy that has decided once, whatever it thought of that: what is allocated first, no decision waits for.

    Raises:
        InvalidInput, Unsupported: it can't be used.
    """
    policy = Dqn(path)
    policy.try_out(_decision())
    return policy
