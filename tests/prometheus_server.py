"""A Prometheus on loopback, with the shipped rules, that scrapes what a test names; ended by its own pid."""

from __future__ import annotations

import json
import math
import re
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.dashboards import PROMETHEUS, metrics_in, recorded, rules_text, targets

WITHOUT = "prometheus is not on PATH; the Debian package `prometheus` brings it"
SCRAPE_INTERVAL_S = 1
_READY_S, _END_S = 120.0, 60.0
# Prometheus is on this machine, whatever proxies the environment names.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Prometheus:
    """The HTTP API of a Prometheus that runs.

    Args:
        url: such as http://127.0.0.1:9090.
    """

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, path: str, **parameters: str) -> Any:
        """The data of an answer of its HTTP API."""
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with _OPENER.open(url, timeout=60) as answer:
            said = json.load(answer)
        assert said["status"] == "success", said
        return said["data"]

    def query(self, expr: str) -> list[tuple[dict[str, str], float]]:
        """What an expression gives now: labels and value of each series."""
        found = self.ask("query", query=expr)["result"]
        return [(each["metric"], float(each["value"][1])) for each in found]

    def lacks(self, within_s: float) -> list[str]:
        """Waits until each query of the dashboard, recorded series and metric of an alert gives something; the rest."""
        wanted = [expr for _, expr in targets()] + recorded() + sorted(metrics_in(rules_text()))
        end_s = time.monotonic() + within_s
        while wanted and time.monotonic() < end_s:
            time.sleep(0.5)
            wanted = [each for each in wanted if not self._gives_something(each)]
        return wanted

    def _gives_something(self, expr: str) -> bool:
        if re.fullmatch(r"adlro_\w+_seconds", expr) and expr.endswith(("jct_seconds", "latency_seconds")):
            expr += "_count"
        # A quantile of nothing is NaN.
        return any(not math.isnan(value) for _, value in self.query(expr))


class PrometheusServer(Prometheus):
    """A running Prometheus.

    Args:
        directory: for its configuration, data and log.
        targets: by job, the `host:port` of each replica.
    """

    def __init__(self, directory: Path, targets: Mapping[str, Sequence[str]]) -> None:
        if shutil.which("prometheus") is None:
            pytest.skip(WITHOUT)
        directory.mkdir(parents=True)
        lines = [
            f"global: {{scrape_interval: {SCRAPE_INTERVAL_S}s, scrape_timeout: {SCRAPE_INTERVAL_S}s, "
            f"evaluation_interval: {SCRAPE_INTERVAL_S}s}}",
            f"rule_files: [{json.dumps(str(PROMETHEUS / 'rules.yml'))}]",
            "scrape_configs:",
        ]
        for job, addresses in targets.items():
            lines.append(f"- {{job_name: {job}, static_configs: [{{targets: {json.dumps(list(addresses))}}}]}}")
        config = directory / "prometheus.yml"
        config.write_text("\n".join(lines) + "\n")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            super().__init__(f"http://127.0.0.1:{probe.getsockname()[1]}")
        self._log = (directory / "log").open("w")
        self._process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={config}",
                f"--storage.tsdb.path={directory / 'data'}",
                f"--web.listen-address={self.url.removeprefix('http://')}",
            ],
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        try:
            self._until_ready()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Ends it."""
        self._process.terminate()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def _until_ready(self) -> None:
        end_s = time.monotonic() + _READY_S
        while True:
            try:
                _OPENER.open(f"{self.url}/-/ready", timeout=30).close()
                return
            except (urllib.error.URLError, OSError):
                ended = self._process.poll()
                if ended is not None or time.monotonic() > end_s:
                    raise AssertionError(
                        f"prometheus is not ready ({ended}):\n{Path(self._log.name).read_text()}"
                    ) from None
                time.sleep(0.1)
