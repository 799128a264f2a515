"""web's settings: environment keys ADLRO_WEB_*."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, field_validator

from adlro.kit.addresses import split_address
from adlro.kit.settings import ServiceSettings

DEFAULT_PORT = 7705


class WebSettings(ServiceSettings):
    """The settings of the live page.

    The settings of the store and of gRPC, which web shares with all services, have no effect here.
    """

    service_name: ClassVar[str] = "web"

    listen: str = f"127.0.0.1:{DEFAULT_PORT}"
    """Address of the page, `host:port`."""
    ingest_address: str = "127.0.0.1:7701"
    """Address of ingest."""
    decompose_address: str = "127.0.0.1:7702"
    """Address of decompose."""
    orchestrator_address: str = "127.0.0.1:7703"
    """Address of the orchestrator."""
    cluster_address: str = "127.0.0.1:7704"
    """Address of the cluster's service."""
    hosts: str = ""
    """Names under which browsers reach the page, separated by commas, beside this machine's loopback and the address it
    listens on; a request for another name is refused.
    """
    runs_dir: str = ""
    """Folder of trainings, for the page's learning screen; empty: no such screen."""
    reports_dir: str = ""
    """Folder of evaluations, for the page's reports, and of comparisons (`adlro compare -o json`), for its policies;
    empty: none.
    """
    grafana_url: str = Field(default="", pattern=r"^$|^https?://[^\s\"'<>]+$")
    """Grafana's address, for links from a GPU; empty: none."""
    niceness: int = Field(default=10, ge=0, le=19)
    """On a full machine the page's process gives way to the services, as `nice` does; 0: it does not."""
    max_sockets: int = Field(default=200, ge=1, le=10_000)
    """Open pages of all users together."""
    max_sockets_per_user: int = Field(default=10, ge=1, le=1000)
    """Open pages of one user, where people log in."""
    session_idle_s: float = Field(default=3600.0, ge=1, le=604_800)
    """A login ends after so long without a request."""
    session_limit_s: float = Field(default=43_200.0, ge=1, le=604_800)
    """A login ends after so long in any case."""
    streams_idle_s: float = Field(default=60.0, ge=0, le=86_400)
    """The page reads the services for so long after the last page was closed."""

    @field_validator("ingest_address", "decompose_address", "orchestrator_address", "cluster_address")
    @classmethod
    def _check_service(cls, value: str) -> str:
        split_address(value)
        return value

    @property
    def host_names(self) -> tuple[str, ...]:
        """The names of `hosts`."""
        return tuple(each.strip().lower() for each in self.hosts.split(",") if each.strip())
