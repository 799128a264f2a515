"""Fixtures for all tests: a Valkey of their own, and the shared data beside the repository."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from hypothesis import settings

from adlro.kit.embedded_redis import EmbeddedRedis
from tests.processors import levels

ROOT = Path(__file__).resolve().parents[1]

# readline, which pytest imports, puts the size of the terminal (80 x 24 without one) into the environment of every
# child, and so of pytest-xdist's workers. Whoever runs the tests, however, they see no terminal.
for _name in ("COLUMNS", "LINES"):
    os.environ.pop(_name, None)

# As adlro/lab/learn/__init__.py does: a test may import torch before it. Both workers use all cores.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# What is drawn may take as long as the machine stands still.
settings.register_profile("adlro", settings.default, deadline=None)
settings.load_profile("adlro")


SLOW_TIMEOUT_S = 600.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A slow test waits for several starts of services, each with a bound of its own, which has to show first."""
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_TIMEOUT_S))


def pytest_report_header() -> str:
    """On which kinds of processor test_processors.py draws; it depends on what this one can do."""
    return "processors: " + "; ".join(level.name for level in levels())


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedRedis]:
    """A Valkey for this module; a test that kills it starts it again."""
    with EmbeddedRedis(tmp_path_factory.mktemp("valkey")) as server:
        yield server


@pytest.fixture
def redis_url(redis_server: EmbeddedRedis) -> str:
    """The module's Valkey, emptied."""
    redis_server.start()
    with redis.Redis.from_url(redis_server.url) as client:
        client.flushall()
    return redis_server.url


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Data that several checkouts share; the test is skipped where it is absent."""
    path = Path(os.environ.get("ADLRO_SHARED_DATA", ROOT.parent / "shared" / "data"))
    if not path.is_dir():
        pytest.skip(f"shared data is absent: no {path}; set ADLRO_SHARED_DATA")
    return path
