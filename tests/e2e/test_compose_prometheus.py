"""`docker compose up prometheus`: each replica is scraped by its name, and all that the dashboard asks for is there."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from docker.errors import ImageNotFound

from adlro.client import Client
from adlro.errors import NotFound
from adlro.kit.testing import ROOT
from tests.e2e.compose_suite import ComposeSuite, engine, free_ports, running
from tests.e2e.running_suite import wait_until
from tests.prometheus_server import WITHOUT, Prometheus

pytestmark = [pytest.mark.slow, pytest.mark.compose, pytest.mark.timeout(900)]

STAND_IN = "adlro-test-prometheus:stand-in"
# One that nobody else of a suite has.
_PORT_OFFSET = 14
REPLICAS = {"ingest": 2, "decompose": 2, "orchestrator": 2, "simcluster": 1, "prometheus": 1}


def image() -> str:
    """That of compose.yaml where it is here, else a stand-in: no test pulls from a registry."""
    config = (ROOT / "compose.yaml").read_text()
    official = config.partition("image: prom/prometheus:")[2].partition("\n")[0].strip()
    try:
        engine().images.get(f"prom/prometheus:{official}")
        return f"prom/prometheus:{official}"
    except ImageNotFound:
        pass
    if shutil.which("prometheus") is None or shutil.which("busybox") is None:
        pytest.skip(
            f"prom/prometheus:{official} is not here, and no stand-in can be made: {WITHOUT}, busybox-static too"
        )
    made = subprocess.run(
        [ROOT / "tests" / "e2e" / "prometheus_image.sh", STAND_IN],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert made.returncode == 0, made.stderr
    return STAND_IN


@pytest.fixture(scope="module")
def suite(images: float, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ComposeSuite]:
    over: Path = tmp_path_factory.mktemp("prometheus") / "over.yaml"
    # Grafana's image can't be made from a package: it is left out here.
    prometheus = f"{{image: '{image()}', pull_policy: never}}"
    over.write_text(f"services:\n  prometheus: {prometheus}\n  grafana: {{profiles: !override [none]}}\n")
    base = free_ports()
    settings = {"HOST_PORT_PROMETHEUS": str(base + _PORT_OFFSET), "COMPOSE_PROFILES": "observability"}
    with running(ComposeSuite(settings=settings, files=(over,), base_port=base)) as started:
        started.up(*(part for name, count in REPLICAS.items() for part in ("--scale", f"{name}={count}")))
        yield started


def test_every_replica_is_scraped_and_every_query_of_the_dashboard_is_answered(suite: ComposeSuite) -> None:
    prometheus = Prometheus(f"http://127.0.0.1:{suite.base_port + _PORT_OFFSET}")

    def up() -> dict[str, float]:
        return {labels["job"]: value for labels, value in prometheus.query("sum by (job) (up)")}

    wait_until(lambda: up() == REPLICAS, 60.0, f"all replicas to be scraped, not {up()}")
    with Client(suite.server, patience_s=30.0) as client:
        with pytest.raises(NotFound):  # refused calls are a panel too
            client.get("job-0")
        # The workload of compose.yaml keeps jobs running.
        assert prometheus.lacks(120.0) == []
        assert prometheus.query("sum(adlro_orchestrator_acting)")[0][1] == 1
        found = prometheus.query("adlro_orchestrator_policy_info and on (instance) (adlro_orchestrator_acting == 1)")
        assert [labels["policy"] for labels, _ in found] == [client.status().policy]
        assert prometheus.query("count(gpu:utilization_ratio:max)")[0][1] == len(list(client.cluster().gpus()))
    groups = prometheus.ask("rules")["groups"]
    assert [rule["name"] for group in groups for rule in group["rules"] if rule["health"] != "ok"] == []


def test_an_orchestrator_that_goes_is_seen(suite: ComposeSuite) -> None:
    prometheus = Prometheus(f"http://127.0.0.1:{suite.base_port + _PORT_OFFSET}")
    suite.run("stop", "--timeout", "15", "orchestrator")

    def firing() -> set[str]:
        return {labels["alertname"] for labels, _ in prometheus.query('ALERTS{alertstate="firing"}')}

    wait_until(lambda: "NoActingOrchestrator" in firing(), 90.0, "the alert that nobody places jobs")
