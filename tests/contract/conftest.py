"""Fixtures of the contract suites: ingest in this process and as a process of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from adlro.kit.embedded_redis import EmbeddedRedis
from adlro.kit.testing import SpawnedService, spawn_service
from tests.contract.ingest_suite import Ingest, ingest_here


@pytest.fixture(scope="module")
def spawned_ingest(redis_server: EmbeddedRedis) -> Iterator[SpawnedService]:
    """One process for the module. Redis is emptied before each test, so it must not trust what it read before."""
    environment = {"ADLRO_REDIS_URL": redis_server.url, "ADLRO_INGEST_CLUSTER_CACHE_S": "0"}
    with spawn_service("ingest", environment) as service:
        yield service


@pytest.fixture(params=["in-process", "spawned"])
async def ingest_address(request: pytest.FixtureRequest, redis_url: str) -> AsyncIterator[str]:
    """Where ingest listens; Redis is empty."""
    if request.param == "spawned":
        yield request.getfixturevalue("spawned_ingest").address
        return
    async with ingest_here(redis_url) as where:
        yield where


@pytest.fixture
async def ingest(ingest_address: str) -> AsyncIterator[Ingest]:
    """A caller of ingest."""
    async with Ingest(ingest_address) as caller:
        yield caller
