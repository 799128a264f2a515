"""Runs a cluster's service as this process: the last line of an adapter."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from adlro.clusterside.driver import Driver
from adlro.clusterside.server import ClusterServer
from adlro.clusterside.settings import ClusterSettings
from adlro.kit.server import main


def serve_cluster(build: Callable[[], Driver]) -> NoReturn:
    """Serves a cluster until a signal ends the process.

    Settings are read from the environment, as of ADLRO's other services: ADLRO_CLUSTER_LISTEN, ADLRO_REDIS_URL,
    ADLRO_CLUSTER_INGEST_ADDRESS and so on; `--help` lists them.

    Args:
        build: makes the driver; must not touch the network.
    """
    main(lambda settings: ClusterServer(build(), settings), ClusterSettings)
