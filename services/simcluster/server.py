"""simcluster as a service: the simulated cluster behind the server half that every cluster has."""

from __future__ import annotations

from adlro.clusterside.server import ClusterServer
from adlro.services.simcluster.settings import SimclusterSettings
from adlro.services.simcluster.timed_cluster import TimedCluster


class SimclusterServer(ClusterServer):
    """The simulated cluster as a service of the kit.

    Args:
        settings: the cluster, the clock, and the receiver of telemetry.

    Raises:
        InvalidInput: the cluster or the clock's scale is not right.
    """

    name = "simcluster"
    driver: TimedCluster

    def __init__(self, settings: SimclusterSettings) -> None:
        super().__init__(TimedCluster(settings), settings)
