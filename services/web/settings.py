"""web's settings: environment keys ADLRO_WEB_*."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, field_validator

from adlro.kit.addresses import split_address
from adlro.kit.settings import ServiceSettings

DEFAULT_PORT = 7705


class WebSettings(ServiceSettings):
    """The settings of web; those of a store and of gRPC, which it shares with all services, have no effect here."""

    service_name: ClassVar[str] = "web"

    listen: str = f"127.0.0.1:{DEFAULT_PORT}"
    # The services that it reads: `host:port`.
    ingest_address: str = "127.0.0.1:7701"
    decompose_address: str = "127.0.0.1:7702"
    orchestrator_address: str = "127.0.0.1:7703"
    cluster_address: str = "127.0.0.1:7704"
    # Names under which browsers reach the page, separated by commas, beside this machine's loopback and the address it
    # listens on. A request for any other name is refused: it may be another page's.
    hosts: str = ""
    # Folders of trainings (curve.jsonl, settings.json) and of evaluations (JSON, HTML). Empty: without their screens.
    runs_dir: str = ""
    reports_dir: str = ""
    # Grafana's address for links from a GPU; empty: none.
    grafana_url: str = Field(default="", pattern=r"^$|^https?://[^\s\"'<>]+$")
    # On a full machine the page's process gives way to the services, as `nice` does; 0: it does not.
    niceness: int = Field(default=10, ge=0, le=19)
    max_sockets: int = Field(default=200, ge=1, le=10_000)
    # Of one user, over all of his logins; where nobody logs in, without effect.
    max_sockets_per_user: int = Field(default=10, ge=1, le=1000)
    # A login ends after so long without a request, and after so long in any case.
    session_idle_s: float = Field(default=3600.0, ge=1, le=604_800)
    session_limit_s: float = Field(default=43_200.0, ge=1, le=604_800)
    # The streams of the services stay open so long after the last page was closed.
    streams_idle_s: float = Field(default=60.0, ge=0, le=86_400)

    @field_validator("ingest_address", "decompose_address", "orchestrator_address", "cluster_address")
    @classmethod
    def _check_service(cls, value: str) -> str:
        split_address(value)
        return value

    @property
    def host_names(self) -> tuple[str, ...]:
        """The names of `hosts`."""
        return tuple(each.strip().lower() for each in self.hosts.split(",") if each.strip())
