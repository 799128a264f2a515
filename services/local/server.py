"""local as a service: this machine behind the server half that every cluster has."""

from __future__ import annotations

from typing import ClassVar

from adlro.clusterside.server import ClusterServer
from adlro.services.local.driver import LocalDriver
from adlro.services.local.settings import LocalSettings


class LocalServer(ClusterServer):
    """This machine as a service of the kit.

    Attributes:
        closed: it runs programs, so it serves authenticated callers alone.

    Args:
        settings: of the service.

    Raises:
        InvalidInput: a setting does not fit this machine; its message names the setting.
    """

    name = "local"
    closed: ClassVar[bool] = True
    driver: LocalDriver

    def __init__(self, settings: LocalSettings) -> None:
        super().__init__(LocalDriver(settings), settings)
