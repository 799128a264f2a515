"""Several replicas of each service on one Valkey, as processes: what `--scale` makes of the containers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from adlro.cli.ports import ClaimedPorts
from adlro.client import AsyncClient
from adlro.client.endpoints import Endpoints
from adlro.kit.testing import SpawnedService
from tests.fault.stack import Stack

COUNTS = {"ingest": 3, "decompose": 2, "orchestrator": 2, "simcluster": 1}


class Replicas:
    """Three of ingest, two of decompose, which share a memory file, two orchestrators, and a simulated cluster.

    Args:
        directory: for Valkey's data and the memory file.
        settings: more environment for all services.
    """

    def __init__(self, directory: Path, **settings: str) -> None:
        self.memory = directory / "memory"
        self.memory.mkdir(parents=True)
        self._settings = {
            **settings,
            "ADLRO_METRICS_LISTEN": "127.0.0.1:0",
            "ADLRO_DECOMPOSE_MEMORY_PATH": str(self.memory / "outcomes"),
            "ADLRO_DECOMPOSE_MEMORY_SAVE_INTERVAL_S": "0.5",
        }
        self.stack = Stack(directory / "valkey")
        self.of: dict[str, list[SpawnedService]] = {name: [] for name in COUNTS}
        self._ports: list[ClaimedPorts] = []

    def start(self) -> None:
        """Starts all; returns when they listen."""
        self.stack.redis.start()
        for names in (("ingest", "decompose"), ("simcluster",), ("orchestrator",)):
            wanted = [name for name in names for _ in range(COUNTS[name])]
            listens = [self._free_address() for _ in wanted]
            with ThreadPoolExecutor(len(wanted)) as pool:
                for service in pool.map(self._start, wanted, listens):
                    self.of[service.name].append(service)

    def start_again(self, killed: SpawnedService) -> SpawnedService:
        """Starts a replica in the place of one that was killed, at its address."""
        place = self.of[killed.name].index(killed)
        self.of[killed.name][place] = again = self._start(killed.name, killed.address)
        return again

    def stop(self) -> None:
        """Ends all."""
        order = [service for name in reversed(COUNTS) for service in self.of[name]]
        with ThreadPoolExecutor(max(len(order), 1)) as pool:
            list(pool.map(lambda service: service.stop(), order))
        self.stack.stop()
        for each in self._ports:
            each.release()

    def client(self, ingest: int = 0, decompose: int = 0, orchestrator: int = 0) -> AsyncClient:
        """A client of one replica of each."""
        endpoints = Endpoints(
            ingest=self.of["ingest"][ingest].address,
            decompose=self.of["decompose"][decompose].address,
            orchestrator=self.of["orchestrator"][orchestrator].address,
            cluster=self.of["simcluster"][0].address,
        )
        return AsyncClient(endpoints=endpoints, timeout_s=30.0, patience_s=120.0)

    def metrics(self) -> dict[str, list[str]]:
        """By service, where each replica's metrics are."""
        return {name: [_metrics_address(service) for service in services] for name, services in self.of.items()}

    def _free_address(self) -> str:
        """One that nobody takes while the replica is down, as one of port 0 might be, and that no other one has."""
        self._ports.append(ClaimedPorts())
        return f"127.0.0.1:{self._ports[-1].base}"

    def _start(self, name: str, listen: str) -> SpawnedService:
        return self.stack.start_another(name, listen, **self._settings, **self._addresses(name))

    def _addresses(self, name: str) -> dict[str, str]:
        one_of = {each: "ipv4:" + ",".join(service.address for service in self.of[each]) for each in COUNTS}
        if name == "simcluster":
            return {"ADLRO_SIMCLUSTER_INGEST_ADDRESS": one_of["ingest"]}
        if name == "orchestrator":
            return {
                "ADLRO_ORCHESTRATOR_CLUSTER_ADDRESS": self.of["simcluster"][0].address,
                "ADLRO_ORCHESTRATOR_DECOMPOSE_ADDRESS": one_of["decompose"],
            }
        return {}


def _metrics_address(service: SpawnedService) -> str:
    (address,) = [line["metrics_address"] for line in service.log_lines() if line["event"] == "listening"]
    return str(address)
