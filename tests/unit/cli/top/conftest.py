from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.client.fake_suite import FakeSuite


@pytest.fixture
def suite() -> Iterator[FakeSuite]:
    with FakeSuite() as running:
        yield running
