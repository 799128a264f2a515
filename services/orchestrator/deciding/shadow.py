"""A shadow policy beside the acting one: it judges each decision a little later, and its choice is compared.

The shadow policy decides in its own thread, off the path from an event to a launch, and places nothing. If it can't
keep up, it skips decisions, which are counted. No I/O.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import structlog

from adlro.decide.policies import Policy
from adlro.placement import NOWHERE, Placement
from adlro.records.decisions import ShadowDecision
from adlro.records.status import ShadowStatus
from adlro.services.orchestrator.deciding.side_thread import LateError, SideThread
from adlro.state.gangs import gpus_of
from adlro.state.observation import HOLD, Observation

WAITING = 256
"""Largest number of decisions that wait for the shadow's answer,"""
WAITING_BYTES = 64 << 20
"""and of bytes in all their observations: one with 1,000 jobs on 1,024 GPUs, most of them busy, has about 0.2 MB."""
OUTCOMES = ("agreed", "differed", "failed", "skipped")
PATIENCE_S = 2.0
"""Seconds after which the shadow's decision counts as failed; its next decision follows when this one has ended."""


@dataclass(slots=True)
class _Task:
    observation: Observation | None  # None: skipped
    job_ids: tuple[str, ...]
    gpu_ids: Sequence[str]
    action: tuple[int, tuple[int, ...]]
    answered: Callable[[ShadowDecision | None], None]

    @property
    def byte_count(self) -> int:
        return 0 if self.observation is None else self.observation.byte_count


class Shadow:
    """Runs a policy beside the acting one.

    Args:
        log: a structlog logger.
        on_outcome: called with `agreed`, `differed`, `failed` or `skipped` for each decision.
    """

    def __init__(
        self, log: structlog.typing.FilteringBoundLogger, on_outcome: Callable[[str], None] = lambda _: None
    ) -> None:
        self.policy: Policy | None = None
        self._status = ShadowStatus("")
        self._log = log
        self._on_outcome = on_outcome
        self._tasks: deque[_Task] = deque()
        self._byte_count = 0
        self._worker = SideThread("shadow")
        self._working: asyncio.Task[None] | None = None
        self._told = False

    @property
    def status(self) -> ShadowStatus | None:
        """The shadow policy's status; None without one."""
        return None if self.policy is None else replace(self._status, policy=self.policy.name)

    def set(self, policy: Policy | None) -> None:
        """Sets another policy, another version of it, or none; a change of the name resets the counts."""
        before = self.policy.name if self.policy is not None else ""
        if (policy.name if policy is not None else "") != before:
            self._status = ShadowStatus(policy.name if policy is not None else "")
        self.policy, self._told = policy, False
        if self._worker.busy:  # the previous policy may hang
            self._worker.close()
            self._worker = SideThread("shadow")

    def decided(
        self,
        observation: Observation,
        job_ids: Callable[[], tuple[str, ...]],
        gpu_ids: Sequence[str],
        action: tuple[int, tuple[int, ...]],
        answered: Callable[[ShadowDecision | None], None],
    ) -> None:
        """Enqueues a decision for the shadow; its observation must not change any more.

        Args:
            job_ids: returns the ids of the observation's rows; called only if a shadow runs.
            gpu_ids: the cluster's GPU ids.
            action: (row, GPUs), or (HOLD, ()).
            answered: called in the order of the decisions, with the shadow's decision; None: it has none.
        """
        if self.policy is None and not self._tasks:
            answered(None)
            return
        full = len(self._tasks) >= WAITING or self._byte_count + observation.byte_count > WAITING_BYTES
        if self.policy is None or full:
            # In order, after the waiting decisions.
            self._enqueue(_Task(None, (), gpu_ids, action, answered))
            return
        self._enqueue(_Task(observation, job_ids(), gpu_ids, action, answered))

    async def settled(self) -> None:
        """Waits until all enqueued decisions are answered; for tests and a clean end."""
        if self._working is not None:
            await asyncio.wait([self._working])

    def close(self) -> None:
        """Ends the thread; waiting decisions are skipped."""
        if self._working is not None:
            self._working.cancel()
        self._worker.close()

    def _enqueue(self, task: _Task) -> None:
        self._tasks.append(task)
        self._byte_count += task.byte_count
        if self._working is None or self._working.done():
            self._working = asyncio.get_running_loop().create_task(self._work(), name="shadow")

    async def _work(self) -> None:
        while self._tasks:
            task = self._tasks.popleft()
            self._byte_count -= task.byte_count
            policy, observation = self.policy, task.observation
            found: ShadowDecision | None = None
            if policy is None or observation is None:
                self._count("skipped")
            else:
                found = await self._ask(policy, observation, task)
            task.answered(found)

    async def _ask(self, policy: Policy, observation: Observation, task: _Task) -> ShadowDecision | None:
        try:
            if self._worker.busy:
                raise LateError("it is still at an earlier decision")  # watchers of decisions have waited once
            action = await self._worker.run(lambda: policy.act(observation)[0], PATIENCE_S)
        except Exception as error:  # the shadow has no effect on jobs
            self._count("failed")
            if not self._told:
                self._told = True
                self._log.warning("the policy in the shadow fails", policy=policy.name, problem=str(error))
            return None
        job, gpus = int(action[0]), gpus_of(action[1:])
        agrees = (job, gpus) == task.action
        self._count("agreed" if agrees else "differed")
        if job == HOLD:
            return ShadowDecision(policy.name, "", NOWHERE, agrees)
        return ShadowDecision(
            policy.name, task.job_ids[job], Placement.on(*(task.gpu_ids[gpu] for gpu in gpus)), agrees
        )

    def _count(self, outcome: str) -> None:
        if self.policy is not None:
            count = f"{outcome}_count"
            self._status = replace(self._status, **{count: getattr(self._status, count) + 1})
            self._on_outcome(outcome)
