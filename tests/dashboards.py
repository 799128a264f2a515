"""What deploy/grafana and deploy/prometheus ask Prometheus for, as the tests read it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PROMETHEUS = ROOT / "deploy" / "prometheus"
GRAFANA = ROOT / "deploy" / "grafana"
DASHBOARD = GRAFANA / "dashboards" / "adlro.json"

_PARTS = {"_bucket", "_sum", "_count"}


def dashboard() -> dict[str, Any]:
    """The dashboard."""
    found: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return found


def targets() -> list[tuple[str, str]]:
    """Each query of the dashboard with its panel's title, as Grafana sends it with all variables at `All`."""
    variables = {variable["name"]: variable["allValue"] for variable in dashboard()["templating"]["list"]}
    variables["__rate_interval"] = "20s"
    found = []
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", []):
            expr = target["expr"]
            for name, value in variables.items():
                expr = re.sub(rf"\$({name}\b|{{{name}}})", value, expr)
            found.append((panel["title"], expr))
    return found


def rules_text() -> str:
    """The rules, as they are written."""
    return (PROMETHEUS / "rules.yml").read_text(encoding="utf-8")


def recorded() -> list[str]:
    """Names of the recording rules."""
    return re.findall(r"^\s*- record: (\S+)$", rules_text(), re.MULTILINE)


def metrics_in(text: str) -> set[str]:
    """The suite's metrics that PromQL names, without the suffixes of a histogram's parts."""
    found = set()
    for name in re.findall(r"(?<![\w:])adlro_[a-z0-9_]+", text):
        suffix = next((part for part in _PARTS if name.endswith(part)), "")
        found.add(name.removesuffix(suffix) if name.removesuffix(suffix).endswith("_seconds") else name)
    return found
