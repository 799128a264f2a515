"""notify as a process of the kit: health, metrics, settings and drain are the kit's; it offers no calls of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import grpc

from adlro.client import AsyncClient, Endpoints
from adlro.errors import InvalidInput
from adlro.kit.addresses import ListenFailed
from adlro.kit.server import ServiceContext
from adlro.services.notify.deliveries import Deliveries
from adlro.services.notify.keeper import Keeper
from adlro.services.notify.metrics import NotifyMetrics
from adlro.services.notify.retrying import Schedule
from adlro.services.notify.settings import NotifySettings
from adlro.services.notify.watching import Watching

_CALL_TIMEOUT_S = 10.0


class NotifyService:
    """The service that the kit runs."""

    name: str = "notify"
    service_names: Sequence[str] = ()

    def __init__(self, settings: NotifySettings) -> None:
        self._settings = settings
        self._keeper: Keeper | None = None
        self._deliveries: Deliveries | None = None
        self._client: AsyncClient | None = None

    def add_to(self, server: grpc.aio.Server) -> None:
        """Registers nothing."""

    async def start(self, context: ServiceContext) -> None:
        """Reads the file and the outbox, and spawns the loops; the services may be away.

        Raises:
            ListenFailed: a setting, or something in the file of webhooks, is wrong.
            AdlroError: the outbox can't be used.
        """
        settings = self._settings
        for key in ("webhooks_file", "data_dir"):
            if not getattr(settings, key):
                raise ListenFailed(f"ADLRO_NOTIFY_{key.upper()} must be set; `adlro up --webhooks FILE` sets it")
        try:
            keeper = Keeper(
                Path(settings.webhooks_file),
                Path(settings.data_dir),
                settings.queue_messages,
                settings.queue_mib << 20,
                context.log,
            )
        except InvalidInput as error:
            raise ListenFailed(error.message) from None
        except OSError as error:
            raise ListenFailed(f"ADLRO_NOTIFY_DATA_DIR: can't write {settings.data_dir}: {error.strerror}") from None
        self._keeper = keeper
        metrics = keeper.metrics = NotifyMetrics(context.registry, keeper.waiting)
        metrics.know(keeper.webhooks)

        def crashed(error: BaseException) -> None:
            context.log.error("a delivery crashed", exc_info=error)
            context.crashed.set()

        self._deliveries = deliveries = Deliveries(
            keeper,
            Schedule(settings.longest_pause_s, settings.give_up_after_s),
            (settings.connect_timeout_s, settings.answer_timeout_s),
            context.log,
            metrics,
            crashed,
        )
        endpoints = Endpoints(
            settings.ingest_address, settings.decompose_address, settings.orchestrator_address, settings.cluster_address
        )
        self._client = client = AsyncClient(
            endpoints=endpoints, credentials=context.credentials, timeout_s=_CALL_TIMEOUT_S, patience_s=0.0
        )
        # Whoever waits until it serves knows that no job that ends from then on is passed over.
        context.health.set_serving(False, "ingest has not told which changes are new", source="position")
        watching = Watching(
            client,
            keeper,
            settings.look_every_s,
            settings.settle_s,
            context.log,
            lambda: context.health.set_serving(True, source="position"),
        )
        context.spawn(keeper.run(deliveries.renew), "webhooks")
        context.spawn(watching.ends(), "ends")
        context.spawn(watching.looks(), "looks")
        context.spawn(self._end_with(context), "end")
        deliveries.renew()
        context.log.info(
            "webhooks", names=sorted(keeper.webhooks), receivers=sorted({w.receiver for w in keeper.webhooks.values()})
        )

    async def stop(self) -> None:
        """Ends the loops, and closes the outbox."""
        if self._deliveries is not None:
            await self._deliveries.close()
        if self._client is not None:
            await self._client.close()
        if self._keeper is not None:
            await self._keeper.close()

    async def _end_with(self, context: ServiceContext) -> None:
        """Sends nothing more once the process is to end."""
        await context.draining.wait()
        if self._deliveries is not None:
            await self._deliveries.close()
