"""A small cluster, and the services around it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from adlro.records.cluster import Cluster
from tests.ledgers import small_cluster
from tests.unit.orchestrator.core_house import CoreHouse
from tests.unit.orchestrator.house import House


@pytest.fixture
def cluster() -> Cluster:
    return small_cluster()


@pytest.fixture
def core_house(cluster: Cluster) -> CoreHouse:
    return CoreHouse(cluster)


@pytest.fixture
async def house(redis_url: str, cluster: Cluster) -> AsyncIterator[House]:
    made = House(redis_url, cluster)
    yield made
    await made.close()
