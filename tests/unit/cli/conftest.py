from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from typer import testing
from typer.main import get_command
from typer.testing import CliRunner

from adlro.cli.app import app
from adlro.client import health
from tests.unit.client.fake_suite import FakeSuite


@pytest.fixture(autouse=True)
def patient_health_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service is away where it refuses a connection, not where the machine stood still."""
    check = health.check
    monkeypatch.setattr(health, "check", lambda address, _: check(address, 60.0))


@pytest.fixture(scope="session", autouse=True)
def commands_made_once() -> Iterator[None]:
    """Typer makes all commands anew for each call of the runner, which takes half of these tests' time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(testing, "_get_command", functools.cache(get_command))
        yield


@pytest.fixture
def suite() -> Iterator[FakeSuite]:
    with FakeSuite() as running:
        yield running


@pytest.fixture
def adlro(suite: FakeSuite) -> Callable[..., Any]:
    """Runs the command against the fake suite: `adlro("queue", "-o", "json")`."""

    def run(*arguments: str) -> Any:
        # Not set, and back to that afterwards: options such as --token-file set them for the process.
        shown = dict.fromkeys(f"ADLRO_{name}_FILE" for name in ("TLS_CA", "TLS_CERT", "TLS_KEY", "TOKEN"))
        return CliRunner().invoke(app, list(arguments), env={**shown, **suite.environment(), "COLUMNS": "200"})

    return run
