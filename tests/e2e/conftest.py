"""One suite for each test process, in virtual time; each test leaves it without open jobs, as it found it.

For tests of containers: the images, built once.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from adlro.client import Client
from adlro.records.events import ClockMode
from tests.e2e.compose_suite import ComposeSuite, have_base_images
from tests.e2e.running_suite import RunningSuite, clear, marked_pids, start_suite

POLICY = "fcfs"
SCALE = 60.0


@pytest.fixture(scope="session")
def whole_suite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSuite]:
    """`adlro up` for all tests of this process; at its end nothing must have crashed, logged an error or be left."""
    suite = start_suite(tmp_path_factory.mktemp("suite"), "--port", "0", "--clock", "virtual", "--policy", POLICY)
    try:
        yield suite
    finally:
        code = suite.end()
    assert code == 0, suite.text
    assert "restarting it in" not in suite.text
    assert suite.error_lines() == []
    assert marked_pids(suite.mark) == []


@pytest.fixture
def suite(whole_suite: RunningSuite) -> Iterator[RunningSuite]:
    """The suite, in virtual time, without open jobs."""
    yield whole_suite
    with Client(whole_suite.server) as client:
        clear(client, (ClockMode.VIRTUAL, 0.0), POLICY)


@pytest.fixture
def scaled_suite(suite: RunningSuite) -> RunningSuite:
    """The suite while a minute of cluster time takes a second."""
    with Client(suite.server) as client:
        client.set_clock(ClockMode.SCALED, scale=SCALE)
    return suite


@pytest.fixture(scope="session")
def images() -> float:
    """The images of compose.yaml as the repository stands; how long the build took, seconds."""
    have_base_images()
    return ComposeSuite().build()
