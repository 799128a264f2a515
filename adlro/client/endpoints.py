"""Addresses of the suite's services. Uses addresses and environment variables only.

One address is enough: the other services are at the host's next ports (ingest, decompose, orchestrator, cluster).
"""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping
from dataclasses import dataclass

from adlro.errors import InvalidInput

DEFAULT_SERVER = "127.0.0.1:7701"
SERVER_ENV = "ADLRO_SERVER"
DECOMPOSE_ENV = "ADLRO_DECOMPOSE_SERVER"
ORCHESTRATOR_ENV = "ADLRO_ORCHESTRATOR_SERVER"
CLUSTER_ENV = "ADLRO_CLUSTER_SERVER"


class ServiceName(enum.StrEnum):
    """The services that a client talks to. The cluster's own service has a name of its own: simcluster, local."""

    INGEST = "ingest"
    DECOMPOSE = "decompose"
    ORCHESTRATOR = "orchestrator"
    CLUSTER = "cluster"

    @property
    def port_offset(self) -> int:
        """Distance of its port from ingest's if all services run on one host."""
        return list(ServiceName).index(self)


@dataclass(frozen=True, slots=True)
class Endpoints:
    """One address, `host:port`, for each service."""

    ingest: str
    decompose: str
    orchestrator: str
    cluster: str

    @classmethod
    def resolve(cls, server: str | None = None, environment: Mapping[str, str] | None = None) -> Endpoints:
        """All addresses, from the one of ingest and the environment.

        Args:
            server: `host:port` of ingest; None: `ADLRO_SERVER`, or 127.0.0.1:7701.
            environment: os.environ, unless given.

        Raises:
            InvalidInput: an address is not `host:port`, or the next ports would be beyond 65535.
        """
        env = os.environ if environment is None else environment
        named = server or env.get(SERVER_ENV) or DEFAULT_SERVER
        ingest = check_address(named, "--server" if server else SERVER_ENV)

        def other(key: str, service: ServiceName) -> str:
            # An address given by hand names one suite: variables of another one must not be mixed in.
            if server is None and env.get(key):
                return check_address(env[key], key)
            return next_to(ingest, service)

        return cls(
            ingest=ingest,
            decompose=other(DECOMPOSE_ENV, ServiceName.DECOMPOSE),
            orchestrator=other(ORCHESTRATOR_ENV, ServiceName.ORCHESTRATOR),
            cluster=other(CLUSTER_ENV, ServiceName.CLUSTER),
        )

    def address(self, service: ServiceName) -> str:
        """The address of one service."""
        return {
            ServiceName.INGEST: self.ingest,
            ServiceName.DECOMPOSE: self.decompose,
            ServiceName.ORCHESTRATOR: self.orchestrator,
            ServiceName.CLUSTER: self.cluster,
        }[service]


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port` or `[ipv6]:port`; raises ValueError otherwise."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(address)
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ValueError(address)
    return host, int(port)


def check_address(address: str, source: str) -> str:
    """The unchanged address; raises InvalidInput with its `source` if it is not `host:port`."""
    try:
        split_address(address)
    except ValueError:
        raise InvalidInput(
            f"{source}: {address!r} is no address; write host:port, such as {DEFAULT_SERVER}", field=source
        ) from None
    return address


def next_to(ingest: str, service: ServiceName) -> str:
    """A service's address if all services run on one host."""
    host, port = split_address(ingest)
    port += service.port_offset
    if port > 65535:
        raise InvalidInput(f"{ingest}: {service} would be at port {port}; name its address by its environment variable")
    return f"{host}:{port}"
