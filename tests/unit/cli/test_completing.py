"""What the shell is told for the words that only a suite knows; without an answer, nothing and no error."""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from adlro.cli import completing
from adlro.cli.completing import ENDED, OPEN, installed_policies, jobs_in, nodes, offered_policies, users
from adlro.client import Client
from adlro.decide.policies import POLICIES
from adlro.records.decisions import POLICY_GROUP
from adlro.records.jobs import ArrayTask, JobSpec, JobState, JobType, PendingReason
from adlro.records.status import BUILT_IN, OfferedPolicy
from tests.unit.client.fake_suite import FakeSuite

SPEC = JobSpec("train", "ada", JobType.MACHINE_LEARNING)


@pytest.fixture
def lived(suite: FakeSuite) -> FakeSuite:
    suite.add(SPEC)
    suite.change("job-1", state=JobState.SUCCEEDED, pending_reason=PendingReason.NONE)
    suite.add(JobSpec("sweep[0]", "bob", JobType.SIMULATION, array=ArrayTask("array-2", 0, 1)))
    suite.add(SPEC)
    return suite


@pytest.fixture
def ctx(suite: FakeSuite) -> Any:
    return SimpleNamespace(params={"server": suite.endpoints.ingest})


def words(found: list[tuple[str, str]]) -> list[str]:
    return [word for word, _ in found]


def test_jobs_come_newest_first_with_their_arrays(lived: FakeSuite, ctx: Any) -> None:
    assert jobs_in()(ctx, "") == [
        ("job-3", "train, pending"),
        ("job-2", "sweep[0], pending"),
        ("array-2", "array of 1 job"),
        ("job-1", "train, succeeded"),
    ]
    assert words(jobs_in(OPEN)(ctx, "job-")) == ["job-3", "job-2"]
    assert words(jobs_in(ENDED)(ctx, "")) == ["job-1"]
    assert words(jobs_in()(ctx, "a")) == ["array-2"]


def test_users_and_nodes(lived: FakeSuite, ctx: Any) -> None:
    assert words(users(ctx, "")) == ["ada", "bob"]
    assert words(nodes(ctx, "v")) == ["volta-0"]


def test_policies_of_this_release_and_of_packages(ctx: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert installed_policies(ctx, "hold_g") == [(f"hold_g{each}", "") for each in ("reedy", "reedy_fixed", "ang")]
    assert installed_policies(ctx, "nothing") == []
    assert words(installed_policies(ctx, ""))[: len(POLICIES)] == list(POLICIES)
    point = importlib.metadata.EntryPoint("shortest", "nowhere:Shortest", POLICY_GROUP)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [point] if group == POLICY_GROUP else [])
    assert installed_policies(ctx, "sh") == [
        *((name, "") for name in POLICIES if name.startswith("sh")),
        ("shortest", "from a package"),
    ]

    def broken(group: str) -> None:
        raise ValueError(group)

    monkeypatch.setattr(importlib.metadata, "entry_points", broken)
    assert words(installed_policies(ctx, "")) == list(POLICIES)


def test_policies_of_a_suite_are_those_that_it_offers(
    suite: FakeSuite, ctx: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, value in suite.environment().items():
        monkeypatch.setenv(key, value)
    ctx.params["server"] = None
    assert words(offered_policies(ctx, "")) == ["fcfs", "sjf"]
    offered = [
        OfferedPolicy("sjf", "", acting=True, source=BUILT_IN),
        OfferedPolicy("small", "", acting=False, source="/srv/mine.py:[small]"),
        OfferedPolicy("/srv/no.py:No", "", acting=False, source="/srv/no.py:No", problem="there is no such file"),
    ]
    with monkeypatch.context() as patched:
        patched.setattr(Client, "policies", lambda _client: offered)
        found = offered_policies(ctx, "")
    assert found == [("sjf", ""), ("small", r"/srv/mine.py:\[small]")]
    suite.fail("ListPolicies", *[grpc.StatusCode.UNAVAILABLE] * 9)
    assert words(offered_policies(ctx, "hold_ga")) == ["hold_gang"]
    ctx.params["server"] = "127.0.0.1:1"
    assert words(offered_policies(ctx, "")) == list(POLICIES)


@pytest.mark.parametrize("complete", [jobs_in(), users, nodes])
def test_a_suite_that_does_not_answer_gives_no_words_and_no_error(
    suite: FakeSuite, ctx: Any, complete: Callable[..., Any]
) -> None:
    began = time.monotonic()
    assert complete(SimpleNamespace(params={"server": "127.0.0.1:1"}), "") == []
    assert complete(SimpleNamespace(params={"server": "no address"}), "") == []
    suite.fail("ListJobs", *[grpc.StatusCode.UNAVAILABLE] * 9)
    suite.fail("GetCluster", *[grpc.StatusCode.UNAVAILABLE] * 9)
    assert complete(ctx, "") == []
    assert time.monotonic() - began < 20.0


def test_the_words_are_not_too_many(suite: FakeSuite, ctx: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completing, "_MOST_WORDS", 3)
    for _ in range(5):
        suite.add(SPEC)
    assert words(jobs_in()(ctx, "")) == ["job-5", "job-4", "job-3"]
