"""What is read of a suite: jobs, decisions while they are kept, speeds of GPU models that no table has."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from adlro.errors import InvalidInput, Unavailable
from adlro.hardware.speeds import SHIPPED
from adlro.lab.compare import reading
from adlro.lab.compare.comparing import Request, compare
from adlro.lab.compare.reading import Suite, predicted_speeds, read_suite
from adlro.placement import Placement
from adlro.records.decisions import Candidate, Decision, DecisionView
from adlro.records.jobs import Job, JobSpec
from adlro.records.predictions import RuntimePrediction
from tests.unit.lab.compare.suites import drawn, ran, suite_after


@pytest.fixture(scope="module")
def suite() -> Suite:
    cluster, jobs = drawn("paper", 80)
    return suite_after(cluster, jobs, "fcfs", ran(cluster, jobs, "fcfs"))


class Client:
    """Answers as `AsyncClient` does, of a suite; keeps the decisions of its newest jobs alone, the newest first.

    Before each there was another one of the same job, which an older policy made.
    """

    def __init__(self, suite: Suite, kept: int = 10) -> None:
        self.suite, self.listed = suite, 0
        by_start = sorted(suite.jobs, key=lambda job: job.start_s or 0.0)
        self.kept = {job.job_id: job for job in by_start[len(by_start) - kept :]}

    async def status(self) -> Any:
        return self.suite.status

    async def cluster(self) -> Any:
        return self.suite.cluster

    async def describe_cluster(self) -> Any:
        clock = SimpleNamespace(time_s=77.0)
        return SimpleNamespace(capabilities=SimpleNamespace(shares=True), lost_gpu_ids=("a",), clock=clock)

    async def list(self, *, page_size: int) -> AsyncIterator[Job]:
        for job in self.suite.jobs:
            yield job

    async def decisions(self, *, view: DecisionView) -> AsyncGenerator[Decision]:
        assert view is DecisionView.FULL
        for job in reversed(self.kept.values()):
            for policy in ("sjf", "older"):
                self.listed += 1
                yield self.decision(job, policy)

    def decision(self, job: Job, policy: str) -> Decision:
        other = next(model for model in self.suite.cluster.gpu_models if model != job.gpu_model)
        candidates = (
            Candidate(job.placement, job.gpu_model, 12.0, 1.0),
            Candidate(Placement.on("other"), other, 34.0, 0.5),
            Candidate(Placement.on("another"), other, 99.0, 0.5),
        )
        return Decision(
            "d-1", job.job_id, job.placement, policy, 1.0, 1, candidates, (), "", 1.0, 1, policy_version="v1"
        )


async def test_decisions_are_read_from_the_newest_on_until_they_are_no_longer_kept(suite: Suite) -> None:
    client = Client(suite)
    found = await read_suite(client, decisions=True)  # type: ignore[arg-type]
    assert client.listed == 20, "each once"
    assert set(found.decided) == set(client.kept)
    job = next(iter(client.kept.values()))
    assert next(iter(found.decided[job.job_id].items())) == (job.gpu_model, 12.0)
    assert sorted(found.decided[job.job_id].values()) == [12.0, 34.0]
    assert (found.policies, found.versions) == ({"sjf": 10}, {("sjf", "v1"): 10})
    assert (found.jobs, found.shares, found.now_s, found.lost_gpu_ids) == (suite.jobs, True, 77.0, ("a",))
    told = compare(found, SHIPPED, Request()).notes
    assert any("of 10 decisions that are still kept, 10 under sjf, not fcfs" in note for note in told)
    assert any("now 1 GPUs are lost and 0 nodes are drained" in note for note in told)
    none = Client(suite)
    assert (await read_suite(none, decisions=False)).decided == {}  # type: ignore[arg-type]
    assert none.listed == 0


async def test_the_list_of_decisions_is_read_no_further_than_needed(
    suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "MOST_DECISIONS", 5)
    client = Client(suite)
    found = await read_suite(client, decisions=True)  # type: ignore[arg-type]
    assert set(found.decided) == set(list(client.kept)[-5:])
    assert client.listed == 9
    monkeypatch.setattr(reading, "MOST_LISTED", 4)
    client = Client(suite)
    assert len((await read_suite(client, decisions=True)).decided) == 2  # type: ignore[arg-type]
    assert client.listed == 4


async def test_a_cluster_that_does_not_answer_is_told(suite: Suite) -> None:
    class Away(Client):
        async def describe_cluster(self) -> Any:
            raise Unavailable("no service answers at 127.0.0.1:7704")

    found = await read_suite(Away(suite), decisions=False)  # type: ignore[arg-type]
    assert not found.shares
    assert found.now_s == suite.status.cluster_time_s
    assert "no service answers at 127.0.0.1:7704" in found.notes[0]


def _renamed(suite: Suite, old: str, new: str) -> Suite:
    """The suite with another name of a GPU model, of which no table has speeds."""
    nodes = tuple(
        replace(
            node,
            gpus=tuple(replace(gpu, gpu_model=new if gpu.gpu_model == old else gpu.gpu_model) for gpu in node.gpus),
        )
        for node in suite.cluster.nodes
    )
    jobs = tuple(
        replace(
            job,
            gpu_model=new if job.gpu_model == old else job.gpu_model,
            attempts=tuple(
                replace(each, gpu_model=new if each.gpu_model == old else each.gpu_model) for each in job.attempts
            ),
        )
        for job in suite.jobs
    )
    return replace(suite, jobs=jobs, cluster=replace(suite.cluster, nodes=nodes))


class Predicting(Client):
    """Predicts that the new GPU model is half as fast as the first known one."""

    async def predict(
        self, specs: Sequence[JobSpec], gpu_models: Sequence[str], *, max_evidence: int
    ) -> list[tuple[RuntimePrediction, ...]]:
        median_s = {model: 20.0 if model == "new_gpu" else 10.0 for model in gpu_models}
        return [
            tuple(RuntimePrediction(model, median_s[model], 1.0, 99.0, 0.9, None, 0.0) for model in gpu_models)
            for _ in specs
        ]


async def test_speeds_of_a_model_in_no_table_are_those_that_decompose_predicts(suite: Suite) -> None:
    first, *others = suite.cluster.gpu_models
    strange = _renamed(suite, others[-1], "new_gpu")
    speeds = await predicted_speeds(Predicting(strange), strange, SHIPPED)  # type: ignore[arg-type]
    spec = strange.jobs[0].spec
    assert speeds.speed(spec.application, spec.job_type, "new_gpu") == pytest.approx(
        SHIPPED.speed(spec.application, spec.job_type, first) / 2.0
    )
    assert set(compare(strange, speeds, Request(runtime="true")).replays) == {"fcfs", "hold_greedy_fixed"}
    assert await predicted_speeds(Predicting(suite), suite, SHIPPED) is SHIPPED  # type: ignore[arg-type]


async def test_without_any_speeds_the_way_out_is_named(suite: Suite) -> None:
    class Silent(Client):
        async def predict(self, *_: object, **__: object) -> Any:
            raise InvalidInput("no prior for new_gpu")

    strange = _renamed(suite, suite.cluster.gpu_models[-1], "new_gpu")
    with pytest.raises(InvalidInput, match=r"nothing says how fast new_gpu is: .* \(--speeds\)"):
        await predicted_speeds(Silent(strange), strange, SHIPPED)  # type: ignore[arg-type]
