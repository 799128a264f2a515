"""docs/metrics.md names every metric that a service shows, and none that no service shows."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from adlro.kit.server import start_server
from adlro.kit.settings import ServiceSettings
from adlro.services.web.server import start_web
from tests.unit.local.bench import users_map
from tests.unit.webhooks.samples import webhooks_file

ROOT = Path(__file__).resolve().parents[3]
# module, class of the service, class of its settings
SERVICES = {
    "ingest": ("server", "IngestService", "IngestSettings"),
    "decompose": ("server", "DecomposeServer", "DecomposeSettings"),
    "orchestrator": ("server", "OrchestratorServer", "OrchestratorSettings"),
    "simcluster": ("server", "SimclusterServer", "SimclusterSettings"),
    "local": ("server", "LocalServer", "LocalSettings"),
    "notify": ("server", "NotifyService", "NotifySettings"),
    "web": ("", "", "WebSettings"),  # it serves HTTP, and starts by itself
}
# What prometheus_client shows of each process.
COMMON = ("process_", "python_")
SUFFIXES = {"counter": "_total"}


def documented() -> dict[str, tuple[str, frozenset[str], frozenset[str]]]:
    """By metric: its type, its labels, the services that show it."""
    found = {}
    for line in (ROOT / "docs" / "metrics.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `adlro_"):
            name, kind, labels, services = cells[:4]
            assert name.strip("`") not in found, f"{name} stands twice"
            found[name.strip("`")] = (
                kind,
                frozenset(re.findall(r"`(\w+)`", labels)),
                frozenset(SERVICES if services == "all" else services.split(", ")),
            )
    return found


async def shown_by(service: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> CollectorRegistry:
    """The registry of a service that was started and ended; it has no Redis."""
    module, service_class, settings_class = SERVICES[service]
    settings_cls: Any = getattr(importlib.import_module(f"adlro.services.{service}.settings"), settings_class)
    if service == "web":
        page = await start_web(settings_cls(listen="127.0.0.1:0"))
        await page.stop(0)
        return page.context.registry
    more: dict[str, Any] = {}
    found: Any = getattr(importlib.import_module(f"adlro.services.{service}.{module}"), service_class)
    if service == "local":
        monkeypatch.setattr(found, "closed", False)
        more = {"data_dir": str(folder), "fake_gpus": "v100_sxm2:1", "users_map": users_map(folder), "driver": "tree"}
    if service == "notify":
        more = {"data_dir": str(folder), "webhooks_file": str(webhooks_file(folder))}
    settings: ServiceSettings = settings_cls(redis_url="redis://127.0.0.1:1/0", **more)
    made = found(settings)
    running = await start_server(made, settings)
    await running.stop(0)
    return running.context.registry


@pytest.mark.parametrize("service", SERVICES)
async def test_every_metric_is_documented_and_every_documented_one_is_shown(
    service: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: dict[str, tuple[str, set[str]]] = {}
    for metric in (await shown_by(service, tmp_path, monkeypatch)).collect():
        if metric.name.startswith(COMMON):
            continue
        labels = {label for sample in metric.samples for label in sample.labels} - {"le"}
        shown[metric.name + SUFFIXES.get(metric.type, "")] = (metric.type, labels)
    told = {name: entry for name, entry in documented().items() if service in entry[2]}
    assert set(shown) == set(told)
    for name, (kind, labels) in shown.items():
        assert kind == told[name][0], name
        assert labels <= told[name][1], name


def test_names_follow_the_conventions() -> None:
    for name, (kind, labels, _) in documented().items():
        assert re.fullmatch(r"adlro_[a-z0-9]+(_[a-z0-9]+)*", name), name
        assert name.endswith("_total") == (kind == "counter"), name
        assert not re.search(r"_(ms|us|mib|gb|percent|minutes|hours)(_|$)", name), f"{name}: base units"
        if kind == "histogram":
            assert name.endswith("_seconds"), name
        assert not labels & {"job", "instance", "le", "job_id", "user"}, f"{name}: taken, or without bound"
