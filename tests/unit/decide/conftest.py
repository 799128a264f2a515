"""A small cluster."""

from __future__ import annotations

import pytest

from adlro.records.cluster import Cluster
from tests.ledgers import small_cluster


@pytest.fixture
def cluster() -> Cluster:
    return small_cluster()
