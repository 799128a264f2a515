"""Stands in for the service of `--cluster local`: the cluster of examples/own_cluster.py, closed to strangers.

What tests of `adlro up` and of its tokens need is in the suite and in the server half of every cluster.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from adlro.clusterside.server import ClusterServer
from adlro.clusterside.settings import ClusterSettings
from adlro.kit.server import main
from examples.own_cluster import OwnCluster


class StandInSettings(ClusterSettings):
    """The environment keys of the service."""

    service_name: ClassVar[str] = "local"

    fake_gpus: str = ""
    data_dir: str = ""
    users_map: str = ""


class StandIn(ClusterServer):
    """Programs of this machine that sleep."""

    name = "local"
    closed = True

    def __init__(self, settings: StandInSettings) -> None:
        super().__init__(OwnCluster(Path(settings.data_dir)), settings)


if __name__ == "__main__":
    main(StandIn, StandInSettings)
