"""The learned policy's checkpoint: found, read, and replaced while decisions continue. Knows files, no gRPC.

A new checkpoint is a new file at the path, or in the folder, where the newest valid one is used; it must be renamed
into its place, so that it is complete. The newest valid one that was promoted (`adlro policy promote`) goes before all
of these. A separate process tries it out, then a thread reads it; the next decision uses
it. An invalid checkpoint is refused, logged and counted, and the previous one stays. No content of a file delays later
ones, or the end of this process.
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

from adlro.decide.gang_network import blank_network
from adlro.decide.planes.choice import Margins, best_of
from adlro.decide.planes.compiled_network import compiled_forward
from adlro.decide.planes.fill import PlaneFiller
from adlro.decide.planes.ranges import ranges_of
from adlro.decide.policies.dqn import CHECKPOINT_MISSING, SHIPPED, Dqn
from adlro.decide.policies.hold_gang import HoldGang
from adlro.decide.policies.hold_greedy import HoldGreedyFixed
from adlro.errors import AdlroError, InvalidInput, Unavailable, Unsupported
from adlro.kit.promotion import promoted as promoted_files
from adlro.records.cluster import Cluster, Gpu, Node
from adlro.records.jobs import Job, JobSpec, JobType
from adlro.services.orchestrator.deciding.side_thread import LateError, SideThread
from adlro.services.orchestrator.deciding.trial import LIMIT_S as TRIAL_LIMIT_S
from adlro.services.orchestrator.deciding.trial import Trial
from adlro.services.orchestrator.ledger.ledger import Ledger
from adlro.state.observation import Observation

LOOK_S = 1.0
"""Seconds between two searches for a new checkpoint."""
READ_LIMIT_S = 30.0
"""Time limit for the search, and for reading a file that has passed its trial, in seconds."""
MOST_FILE_BYTES = 64 * 2**20

FALLBACK = HoldGang.name


class _Seen(NamedTuple):
    """A file's identity: a replaced file has another one."""

    changed_ns: int
    name: str
    size: int
    inode: int


class Checkpoint:
    """The checkpoint in use.

    Args:
        path: a file, or a folder of `.onnx` files; None: the checkpoint that ADLRO includes.
        log: a structlog logger.
        on_read: called after each read, with whether the checkpoint is used.
        promoted: the folder of the promoted ones, which need not be there; None: none are looked for.
        expected: without any file there is a warning.

    Attributes:
        path: the file or folder that is searched where nothing is promoted.
        policy: the policy of the newest valid checkpoint.
        problem: why there is none, or why the newest was refused; empty: the newest is in use.
        loaded, refused: numbers of checkpoints.
    """

    def __init__(
        self,
        path: Path | None,
        log: structlog.typing.FilteringBoundLogger,
        on_read: Callable[[bool], None] = lambda _: None,
        promoted: Path | None = None,
        *,
        expected: bool = True,
    ) -> None:
        self.path = SHIPPED if path is None else path
        self._promoted = promoted
        self.problem = "its checkpoint is not read yet"
        self.policy: Dqn = _Without(self)
        self.loaded = 0
        self.refused = 0
        self._log = log
        self._expected = expected
        self._on_read = on_read
        self._serving: _Seen | None = None
        self._refused: set[_Seen] = set()
        self._passed: set[bytes] = set()  # digests of contents that have passed their trial
        self._worker = SideThread("read checkpoint")

    async def look(self) -> bool:
        """Reads the newest checkpoint that was not refused before; True if it replaces the previous one."""
        found, missing = [], f"there is no checkpoint {self.path}"
        try:
            found = await self._worker.run(functools.partial(_in_order, self._promoted, self.path), READ_LIMIT_S)
            self._refused &= set(found)
        except (OSError, LateError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            missing = f"the checkpoint {self.path} can't be looked for: {why}"
        if not found:
            # The checkpoint in use stays, as it would if the new one were damaged.
            if self.problem != missing:
                self.problem = missing
                log = self._log.warning if self._expected else self._log.debug
                log("no checkpoint of the learned policy", problem=missing, **self._serves())
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
        except Unavailable as error:  # this says nothing about the file: it is tried again
            if self.problem != error.message:
                self.problem = error.message
                self._log.warning("a checkpoint waits for its trial", problem=error.message, **self._serves())
            return False
        except Exception as error:  # no content of a file may end the service
            why = error.message if isinstance(error, AdlroError) else f"{type(error).__name__}: {error}"
            self._refused.add(file)
            self.problem = why
            self.refused += 1
            self._on_read(False)
            self._log.error("checkpoint refused", path=file.name, problem=why, **self._serves())
            return False
        before, self.policy, self._serving = self.policy, policy, file
        policy.wait_ratio, policy.precedence = before.wait_ratio, before.precedence
        self.loaded += 1
        self._on_read(True)
        self._log.info("checkpoint in use", path=file.name, version=policy.version, before=before.version)
        return True

    async def _tried(self, path: Path) -> Dqn:
        """A policy that has made one decision, after its network has done so in a separate process.

        Raises:
            InvalidInput, Unsupported: the file can't be used.
            Unavailable: no trial is possible at present.
        """
        trial, policy = Trial(), None
        try:
            content = await self._worker.run(
                functools.partial(self._content, path, trial), READ_LIMIT_S + TRIAL_LIMIT_S
            )
            policy = await self._worker.run(functools.partial(Dqn(path).take, content), READ_LIMIT_S)
            # One decision, whatever its outcome: it allocates the memory, so that no later decision waits for that.
            await self._worker.run(functools.partial(policy.try_out, _decision()), READ_LIMIT_S)
            return policy
        except LateError as error:
            if policy is not None:
                policy.stop()
            self._worker.close()  # only this thread hangs
            self._worker = SideThread("read checkpoint")
            raise InvalidInput(f"checkpoint {path}: {error}", field="checkpoint") from error
        finally:
            trial.end()

    def _content(self, path: Path, trial: Trial) -> bytes:
        """The content of a file after its trial."""
        content = _content(path)
        if path == SHIPPED:
            return content  # part of the package, tested with it
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
        """Waits until the next search."""
        await asyncio.sleep(LOOK_S)


class _Without(Dqn):
    """Stands in for the policy while there is no checkpoint: it cannot decide, and gives the reason."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(checkpoint.path)
        self._why = checkpoint

    def _now_loaded(self) -> NoReturn:
        raise Unsupported(self._why.problem, field="checkpoint", reason=CHECKPOINT_MISSING)


def _in_order(folder: Path | None, path: Path) -> list[_Seen]:
    """The promoted checkpoints, and then those at the path, of both the one to use first.

    A folder of promoted ones that can't be read counts as empty: the others must not stand back for it.

    Raises:
        OSError: the path can't be read.
    """
    found = []
    if folder is not None:
        with contextlib.suppress(OSError):
            found = [seen for each in promoted_files(folder) if (seen := _seen(each.path)) is not None]
    return found + _newest_first(path)


def _newest_first(path: Path) -> list[_Seen]:
    """The checkpoint files at a path, newest first.

    Raises:
        OSError: the path can't be read.
    """
    try:
        is_folder = stat.S_ISDIR(path.stat().st_mode)
        # Not `glob`, which treats an unreadable folder as an empty one.
        files = [path / name for name in os.listdir(path) if name.endswith(".onnx")] if is_folder else [path]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted((seen for file in files if (seen := _seen(file)) is not None), reverse=True)


def _seen(file: Path) -> _Seen | None:
    """A file's identity; None: it is no file, or gone."""
    try:
        status = file.stat()
    except OSError:
        return None
    if not stat.S_ISREG(status.st_mode):
        return None  # reading a pipe may block for ever
    return _Seen(status.st_mtime_ns, str(file), status.st_size, status.st_ino)


def warm() -> None:
    """Compiles the observation code of the learned policy, or loads it from numba's cache, before the first decision.

    The compiler blocks all threads for seconds, and a checkpoint may appear at any time.
    """
    planes = PlaneFiller(HoldGreedyFixed().settings.rule()).fill(_decision())
    ranges_of([planes]).bring_in(planes)
    best_of(planes, np.zeros(len(planes.pairs), dtype=np.float32), np.zeros(1, dtype=np.float32), Margins())
    compiled_forward()
    blank_network().try_out()


def _decision() -> Observation:
    ledger = Ledger(Cluster("warm", (Node("node", 2, 2, (Gpu("gpu", "any", 1), Gpu("other", "any", 1))),)))
    for number in (1, 2):
        job = Job(f"job-{number}", JobSpec("job", "user", JobType.SIMULATION, memory_mib=1), submit_s=0.0)
        ledger.enqueue(ledger.enter(job, 0, np.array([10.0 * number])))
    return ledger.observe(1.0)


def _content(path: Path) -> bytes:
    """The content of a file.

    Raises:
        InvalidInput: the file can't be read, or its size is not a network's.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MOST_FILE_BYTES + 1)
    except OSError as error:
        raise InvalidInput(f"checkpoint {path}: {error.strerror}", field="checkpoint") from error
    if len(content) > MOST_FILE_BYTES:
        raise InvalidInput(f"checkpoint {path}: it has more than {MOST_FILE_BYTES} bytes", field="checkpoint")
    return content
