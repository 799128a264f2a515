"""One loop for each webhook: its oldest message, again and again until it is delivered or given up, then the next.

So messages arrive in the order in which events were noted, and a receiver that is slow or away delays no other.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable

import structlog

from adlro.services.notify.keeper import Keeper
from adlro.services.notify.metrics import NotifyMetrics
from adlro.services.notify.retrying import Failure, Schedule
from adlro.webhooks.file import Webhook
from adlro.webhooks.outbox import Message
from adlro.webhooks.posting import Answer, PostFailed, post
from adlro.webhooks.signature import signed_headers

# A receiver that is away is named in the log at its first failure, and then as often as this.
_TELL_EVERY = 20


class Deliveries:
    """The loops.

    Args:
        keeper: of webhooks and messages.
        schedule: of tries.
        timeouts_s: for the connection, and for the answer.
        log, metrics: of the process.
        crashed: called with an error if a loop ends by a mistake of ours.
    """

    def __init__(
        self,
        keeper: Keeper,
        schedule: Schedule,
        timeouts_s: tuple[float, float],
        log: structlog.typing.FilteringBoundLogger,
        metrics: NotifyMetrics,
        crashed: Callable[[BaseException], None],
    ) -> None:
        self._keeper = keeper
        self._schedule = schedule
        self._connect_timeout_s, self._answer_timeout_s = timeouts_s
        self._log = log
        self._metrics = metrics
        self._crashed = crashed
        self._loops: dict[str, tuple[Webhook, asyncio.Task[None]]] = {}
        self._closed = False

    def renew(self) -> None:
        """Has a loop for each webhook as it is now; those that were changed begin with their next try at once."""
        if self._closed:
            return
        webhooks = self._keeper.webhooks
        for name, (webhook, task) in list(self._loops.items()):
            if webhooks.get(name) != webhook:
                task.cancel()
                del self._loops[name]
        for name, webhook in webhooks.items():
            if name not in self._loops:
                task = asyncio.create_task(self._deliver(webhook), name=f"webhook {name}")
                task.add_done_callback(self._ended)
                self._loops[name] = (webhook, task)

    async def close(self) -> None:
        """Ends all loops; what is under way is sent again by the next process."""
        self._closed = True
        tasks = [task for _, task in self._loops.values()]
        self._loops.clear()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._crashed(error)

    async def _deliver(self, webhook: Webhook) -> None:
        failures = 0
        while True:
            message, lost_count = await self._keeper.next_of(webhook.name)
            result = await self._try(webhook, message, lost_count)
            if isinstance(result, Answer):
                await self._keeper.delivered(message, lost_count)
                self._metrics.delivered.labels(webhook.name).inc()
                if failures:
                    self._log.info("the receiver takes messages again", webhook=webhook.name, failed_tries=failures)
                failures = 0
                continue
            failures += 1
            await self._fail(webhook, message, failures, result)

    async def _try(self, webhook: Webhook, message: Message, lost_count: int) -> Answer | Failure:
        body = json.dumps({**message.document, "lost_count": lost_count}, separators=(",", ":")).encode()
        headers = signed_headers(webhook.secrets, message.event_id, int(time.time()), body)
        try:
            answer = await post(
                webhook,
                headers,
                body,
                connect_timeout_s=self._connect_timeout_s,
                answer_timeout_s=self._answer_timeout_s,
            )
        except PostFailed as error:
            return Failure(str(error))
        self._metrics.answer_s.labels(webhook.name).observe(answer.took_s)
        if answer.accepted:
            return answer
        return Failure(f"it answered {answer.status}", answer.refused, answer.retry_after_s)

    async def _fail(self, webhook: Webhook, message: Message, failures: int, failure: Failure) -> None:
        now_unix_s = time.time()
        given_up = self._schedule.gives_up(message.tries + 1, now_unix_s - message.noted_unix_s, failure)
        pause_s = self._schedule.pause_s(failures, random.random(), failure)
        await self._keeper.failed(message, failure.problem, now_unix_s + pause_s, given_up=given_up)
        self._metrics.failed_tries.labels(webhook.name).inc()
        told = {"webhook": webhook.name, "receiver": webhook.receiver, "problem": failure.problem}
        if given_up:
            self._metrics.given_up.labels(webhook.name).inc()
            told |= {"event_name": message.event, "event_id": message.event_id}
            self._log.error("a message was given up", tries=message.tries + 1, **told)
        elif failures % _TELL_EVERY == 1:
            self._log.warning("a message was not delivered; it is tried again", pause_s=round(pause_s, 1), **told)
        await asyncio.sleep(pause_s)
