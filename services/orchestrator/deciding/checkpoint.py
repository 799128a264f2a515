"""The learned policy's checkpoint: found, read, and replaced while decisions go on. Knows files, and no gRPC.

A new checkpoint is a new file under the path's name, or in the folder, where the newest that can be used counts:
renamed into its place, so that it is whole. It is tried out in a process of its own, then read in a thread; the next
decision is the new one's. One that can't be used is refused, told, and counted, and the one before stays. Nothing that
a file holds keeps later ones, or the end of this process, waiting.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np
import structlog

from adlro.decide.planes.choice import Margins, best_of
from adlro.decide.planes.compiled_network import compiled_forward
from adlro.decide.planes.fill import PlaneFiller
from adlro.decide.planes.ranges import ranges_of
from adlro.decide.policies.dqn import CHECKPOINT_MISSING, SHIPPED, Dqn
from adlro.decide.policies.hold_greedy import HoldGreedyFixed
from adlro.errors import AdlroError, InvalidInput, Unavailable, Unsupported
from adlro.records.cluster import Cluster, Gpu, Node
from adlro.records.jobs import Job, JobSpec, JobType
from adlro.services.orchestrator.deciding.side_thread import LateError, SideThread
from adlro.services.orchestrator.deciding.trial import LIMIT_S as TRIAL_LIMIT_S
from adlro.services.orchestrator.deciding.trial import Trial
from adlro.services.orchestrator.ledger.ledger import Ledger
from adlro.state.observation import Observation

LOOK_S = 1.0
"""How often it is looked for a new one."""
READ_LIMIT_S = 30.0
"""How long it may take to look for files, and to read one that has passed its trial."""
MOST_FILE_BYTES = 64 * 2**20

FALLBACK = HoldGreedyFixed.name


class _Seen(NamedTuple):
    """A file as it was; another one in its place is another."""

    changed_ns: int
    name: str
    size: int
    inode: int


class Checkpoint:
    """The checkpoint that serves.

    Args:
        path: a file, or a folder of `.onnx` files; None: the one that comes with ADLRO.
        log: a structlog logger.
        on_read: called with whether it is used, after each that was read.

    Attributes:
        path: where it is looked for.
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
        self.path = SHIPPED if path is None else path
        self.problem = "its checkpoint is not read yet"
        self.policy: Dqn = _Without(self)
        self.loaded = 0
        self.refused = 0
        self._log = log
        self._on_read = on_read
        self._serving: _Seen | None = None
        self._refused: set[_Seen] = set()
        self._passed: set[bytes] = set()  # digests of what has passed its trial
        self._worker = SideThread("read checkpoint")

    async def look(self) -> bool:
        """Reads the newest checkpoint that was not refused before; True where another one serves from now on."""
        found, missing = [], f"there is no checkpoint {self.path}"
        try:
            found = await self._worker.run(functools.partial(_newest_first, self.path), READ_LIMIT_S)
            self._refused &= set(found)
        except (OSError, LateError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            missing = f"the checkpoint {self.path} can't be looked for: {why}"
        if not found:
            # The one that serves goes on, as it would if the new one were damaged.
            if self.problem != missing:
                self.problem = missing
                self._log.warning("no checkpoint of the learned policy", problem=missing, **self._serves())
            return False
        if found[0] == self._serving:
            self.problem = ""
        for file in found:
            if file == self._serving:
                return False
            if file in self._refused:
                continue
            if await self._read(file):
                if file == found[0]:
                    self.problem = ""
                return True
        return False

    async def _read(self, file: _Seen) -> bool:
        try:
            policy = await self._tried(Path(file.name))
        except Unavailable as error:  # that says nothing of the file: it is asked again
            if self.problem != error.message:
                self.problem = error.message
                self._log.warning("a checkpoint waits for its trial", problem=error.message, **self._serves())
            return False
        except Exception as error:  # whatever is in the file: it must not end what serves
            why = error.message if isinstance(error, AdlroError) else f"{type(error).__name__}: {error}"
            self._refused.add(file)
            self.problem = why
            self.refused += 1
            self._on_read(False)
            self._log.error("checkpoint refused", path=file.name, problem=why, **self._serves())
            return False
        before, self.policy, self._serving = self.policy, policy, file
        policy.wait_ratio = before.wait_ratio
        self.loaded += 1
        self._on_read(True)
        self._log.info("checkpoint in use", path=file.name, version=policy.version, before=before.version)
        return True

    async def _tried(self, path: Path) -> Dqn:
        """A policy that has decided once, after its network has done so in a process of its own.

        Raises:
            InvalidInput, Unsupported: it can't be used.
            Unavailable: there can be no trial at present.
        """
        trial, policy = Trial(), None
        try:
            content = await self._worker.run(
                functools.partial(self._content, path, trial), READ_LIMIT_S + TRIAL_LIMIT_S
            )
            policy = await self._worker.run(functools.partial(Dqn(path).take, content), READ_LIMIT_S)
            # Once, whatever it thinks of that: what is allocated first, no decision waits for.
            await self._worker.run(functools.partial(policy.try_out, _decision()), READ_LIMIT_S)
            return policy
        except LateError as error:
            if policy is not None:
                policy.stop()
            self._worker.close()  # what hangs hangs alone
            self._worker = SideThread("read checkpoint")
            raise InvalidInput(f"checkpoint {path}: {error}", field="checkpoint") from error
        finally:
            trial.end()

    def _content(self, path: Path, trial: Trial) -> bytes:
        """What is in a file, once that has passed its trial."""
        content = _content(path)
        if path == SHIPPED:
            return content  # that is part of the code
        digest = hashlib.blake2b(content, digest_size=16).digest()
        if digest not in self._passed:
            self._log.info("a checkpoint is tried out", path=str(path))
            trial.run(content, f"checkpoint {path}")
            self._passed.add(digest)
        return content

    def close(self) -> None:
        """Lets the thread end."""
        self._worker.close()

    def _serves(self) -> dict[str, str]:
        return {"serves": self.policy.version or FALLBACK}

    async def pause(self) -> None:
        """Until it is to be looked again."""
        await asyncio.sleep(LOOK_S)


class _Without(Dqn):
    """Stands in the policy's place as long as there is no checkpoint: it cannot decide, and says why."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(checkpoint.path)
        self._why = checkpoint

    def _now_loaded(self) -> NoReturn:
        raise Unsupported(self._why.problem, field="checkpoint", reason=CHECKPOINT_MISSING)


def _newest_first(path: Path) -> list[_Seen]:
    """What is there.

    Raises:
        OSError: there may be something, but it can't be looked at.
    """
    try:
        is_folder = stat.S_ISDIR(path.stat().st_mode)
        # Not `glob`, which takes a folder that can't be read for an empty one.
        files = [path / name for name in os.listdir(path) if name.endswith(".onnx")] if is_folder else [path]
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = []
    for file in files:
        with contextlib.suppress(OSError):
            status = file.stat()
            if not stat.S_ISREG(status.st_mode):
                continue  # to read a pipe may take for ever
            found.append(_Seen(status.st_mtime_ns, str(file), status.st_size, status.st_ino))
    return sorted(found, reverse=True)


def warm() -> None:
    """Compiles what the learned policy sees with, or fetches it from where numba keeps it: before anything is decided.

    A compiler lets nobody else run for seconds, and a checkpoint may come at any time.
    """
    planes = PlaneFiller(HoldGreedyFixed().settings.rule()).fill(_decision())
    ranges_of([planes]).bring_in(planes)
    best_of(planes, np.zeros(len(planes.pairs), dtype=np.float32), np.zeros(1, dtype=np.float32), Margins())
    compiled_forward()


def _decision() -> Observation:
    ledger = Ledger(Cluster("warm", (Node("node", 2, 2, (Gpu("gpu", "any", 1), Gpu("other", "any", 1))),)))
    for number in (1, 2):
        job = Job(f"job-{number}", JobSpec("job", "user", JobType.SIMULATION, memory_mib=1), submit_s=0.0)
        ledger.enqueue(ledger.enter(job, 0, np.array([10.0 * number])))
    return ledger.observe(1.0)


def _content(path: Path) -> bytes:
    """What is in a file.

    Raises:
        InvalidInput: it can't be read, or is no network by its size.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MOST_FILE_BYTES + 1)
    except OSError as error:
        raise InvalidInput(f"checkpoint {path}: {error.strerror}", field="checkpoint") from error
    if len(content) > MOST_FILE_BYTES:
        raise InvalidInput(f"checkpoint {path}: it has more than {MOST_FILE_BYTES} bytes", field="checkpoint")
    return content
