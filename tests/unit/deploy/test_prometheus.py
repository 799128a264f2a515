"""What Prometheus' own tool says of deploy/prometheus: configuration, rules, their tests, the dashboard's queries."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from adlro.kit.settings import SERVICES
from tests.dashboards import PROMETHEUS, rules_text, targets

HERE = Path(__file__).resolve().parent
pytestmark = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not on PATH; the Debian package `prometheus` brings it"
)


def promtool(*arguments: str | Path) -> str:
    ended = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


def test_the_configuration_and_the_rules_are_valid() -> None:
    said = promtool("check", "config", PROMETHEUS / "prometheus.yml")
    assert "valid prometheus config" in said
    assert re.search(r"\d\d rules found", said)


def test_the_rules_do_as_their_tests_say() -> None:
    assert "SUCCESS" in promtool("test", "rules", HERE / "prometheus_rules_test.yml")


def test_every_alert_is_tried() -> None:
    tried = (HERE / "prometheus_rules_test.yml").read_text()
    alerts = re.findall(r"^\s*- alert: (\w+)$", rules_text(), re.MULTILINE)
    assert len(set(alerts)) == len(alerts) >= 12
    # As one that fires: named by an expected alert, or by a query that counts it.
    assert [alert for alert in alerts if alert not in tried] == []


def test_every_query_of_the_dashboard_is_promql(tmp_path: Path) -> None:
    lines = ["groups:", "- name: dashboard", "  rules:"]
    for number, (_, expr) in enumerate(targets()):
        lines += [f"  - record: query:{number}", f"    expr: {json.dumps(expr)}"]
    path = tmp_path / "dashboard.yml"
    path.write_text("\n".join(lines) + "\n")
    assert f"{len(targets())} rules found" in promtool("check", "rules", path)


def test_every_service_is_scraped_by_its_name_in_compose() -> None:
    config = (PROMETHEUS / "prometheus.yml").read_text()
    found = re.findall(r"job_name: (\w+)\n\s+dns_sd_configs: \[\{names: \[(\w+)\], type: A, port: (\d+),", config)
    assert [(job, name) for job, name, _ in found] == [(service, service) for service in SERVICES]
    ports = {port for _, _, port in found}
    compose = (PROMETHEUS.parents[1] / "compose.yaml").read_text()
    assert ports == set(re.findall(r"ADLRO_METRICS_LISTEN: [^\n]*:(\d+)", compose))
