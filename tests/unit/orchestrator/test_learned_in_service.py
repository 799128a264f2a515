"""The learned policy in a session: guarded, replaced while it runs, watched by another; no decision is lost over it."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import redis

from adlro.decide.policies import POLICIES, Policy
from adlro.decide.policies.sjf import Sjf
from adlro.errors import InvalidInput
from adlro.records.cluster import Cluster
from adlro.records.decisions import DecisionBasis
from adlro.records.events import Clock, ClockMode
from adlro.records.jobs import Job, JobSpec, JobState, PendingReason
from adlro.services.orchestrator.deciding import checkpoint as checkpoint_module
from adlro.services.orchestrator.deciding.decisions import Made
from adlro.services.orchestrator.deciding.policy_selection import Choices
from adlro.services.orchestrator.lease import RENEWALS
from adlro.services.orchestrator.ports import Predicted
from adlro.state.observation import Floats, Observation
from adlro.store.keys import LEASE
from tests.networks import LIKE_THE_BASE, SHORTEST, network, put
from tests.unit.orchestrator.house import PATIENCE_S, Declared, House


@pytest.fixture
async def house(redis_url: str, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[House]:
    checkpoint_module.warm()
    monkeypatch.setattr(checkpoint_module, "LOOK_S", 0.05)
    made = House(redis_url, cluster)
    yield made
    await made.close()


def learned(path: Path, **more: object) -> Choices:
    return Choices("dqn", checkpoint=path, **more)  # type: ignore[arg-type]


def there(condition: Callable[[], bool]) -> Callable[[], Awaitable[bool]]:
    async def asked() -> bool:
        return condition()

    return asked


async def ended(house: House, count: int) -> list[Job]:
    jobs = await house.until_final(count)
    assert {job.state for job in jobs} == {JobState.SUCCEEDED}
    assert {job.attempt_count for job in jobs} == {1}
    return jobs


# ---- the guard


async def test_without_a_checkpoint_the_fallback_decides_until_there_is_one(house: House, tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    house.start(choices=learned(path), lease_s=5.0)
    await house.until_acting()
    status = await house.orchestrator.status()
    assert (status.policy, status.policy_version) == ("dqn", "")
    assert (status.deciding_policy, status.deciding_basis) == ("hold_gang", DecisionBasis.MISSING)
    assert "there is no checkpoint" in status.policy_problem
    await house.submit(5.0)
    (job,) = await ended(house, 1)
    decision = await house.orchestrator.answers.job(job.job_id)
    assert (decision.policy, decision.basis) == ("dqn", DecisionBasis.MISSING)
    assert "hold_gang starts job-1" in decision.summary
    assert "no checkpoint" in decision.basis_text
    assert (await house.orchestrator.status()).fallbacks == {DecisionBasis.MISSING: 1}

    put(path, network(SHORTEST, hold=-1e6))
    await house.until(there(lambda: bool(house.orchestrator.acting.policy.version)))
    await house.submit(5.0)
    await ended(house, 2)
    decision = await house.orchestrator.answers.job("job-2")
    status = await house.orchestrator.status()
    assert decision.basis in (DecisionBasis.POLICY, DecisionBasis.MARGIN)
    assert decision.policy_version == status.policy_version != ""
    assert (status.policy_problem, status.fallbacks, status.checkpoints_loaded_count) == (
        "",
        {DecisionBasis.MISSING: 1},
        1,
    )


class Broken(Policy):
    name = "broken"
    description = "fails"
    guarded = True

    def preferences(self, observation: Observation) -> Floats:
        raise RuntimeError("out of order")


class Slow(Sjf):
    name = "slow"
    guarded = True

    def preferences(self, observation: Observation) -> Floats:
        time.sleep(0.3)
        return super().preferences(observation)


class Hangs(Sjf):
    """Decides once it is released."""

    name = "hangs"
    guarded = True
    released: ClassVar[threading.Event]

    def preferences(self, observation: Observation) -> Floats:
        assert self.released.wait(PATIENCE_S)
        return super().preferences(observation)


@pytest.fixture
def released(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    monkeypatch.setitem(POLICIES, "hangs", Hangs)
    made = Hangs.released = threading.Event()
    yield made
    made.set()


async def test_under_a_policy_that_fails_every_job_ends(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POLICIES, "broken", Broken)
    house.start("broken", lease_s=5.0)
    await house.until_acting()
    for number in range(12):
        await house.submit(3.0 + number)
    await ended(house, 12)
    status = await house.orchestrator.status()
    assert status.fallbacks == {DecisionBasis.FAILED: status.decision_count}
    assert status.decisions_by_basis == {DecisionBasis.FAILED: status.decision_count}
    assert "RuntimeError: out of order" in status.policy_problem
    assert house.registry.get_sample_value("adlro_orchestrator_guard_fallbacks_total", {"reason": "failed"}) == 12
    assert house.registry.get_sample_value("adlro_orchestrator_sessions_total") == 1


class SlowElsewhere(Declared):
    """Every job takes a hundred times as long on all models but the first."""

    async def predict(self, specs: Sequence[JobSpec], gpu_models: Sequence[str]) -> Predicted:
        found = await super().predict(specs, gpu_models)
        return found._replace(median_s=found.median_s * np.where(np.arange(len(gpu_models)) == 0, 1.0, 100.0))


@pytest.mark.parametrize(
    ("policy", "decides", "basis", "text"),
    [
        ("hold_greedy", "hold_greedy", DecisionBasis.POLICY, "hold_greedy"),
        ("broken", "hold_gang", DecisionBasis.FAILED, "hold_gang (in place of broken: failed)"),
    ],
)
async def test_a_job_that_is_held_is_told_who_holds_it(
    house: House, monkeypatch: pytest.MonkeyPatch, policy: str, decides: str, basis: DecisionBasis, text: str
) -> None:
    monkeypatch.setitem(POLICIES, "broken", Broken)
    house.predictor = SlowElsewhere()
    await house.pause()
    house.start(policy, lease_s=5.0)
    await house.until_acting()
    status = await house.orchestrator.status()
    assert (status.deciding_policy, status.deciding_basis) == (policy, DecisionBasis.POLICY), "nobody has decided yet"
    for _ in range(3):
        await house.submit(100.0)

    async def held() -> bool:
        return any(job.pending_reason is PendingReason.POLICY for _, job in await house.store.active())

    await house.until(held)
    (job,) = [job for _, job in await house.store.active() if job.pending_reason is PendingReason.POLICY]
    assert job.message == f"could start, but {text} holds it back"
    status = await house.orchestrator.status()
    assert (status.policy, status.deciding_policy, status.deciding_basis) == (policy, decides, basis)
    explained = await house.orchestrator.answers.job(job.job_id)
    assert (explained.policy, explained.deciding_policy, explained.basis) == (policy, decides, basis)
    assert job.message in explained.summary
    assert f"{decides} rejects this GPU for the job now" in {each.reason for each in explained.masked}
    await house.orchestrator.set_policy("fcfs")
    assert (await house.orchestrator.status()).deciding_policy == "fcfs"


async def test_a_late_policy_holds_nothing_up_where_time_goes_on(house: House, released: threading.Event) -> None:
    await house.cluster.set_clock(Clock(ClockMode.REAL, 1.0, False, 0.0))
    house.start("hangs", lease_s=5.0)
    await house.until_acting()
    await house.submit(3.0)
    await ended(house, 1)
    assert not released.is_set()
    assert (await house.orchestrator.answers.job("job-1")).basis is DecisionBasis.LATE


async def test_in_virtual_time_a_slow_policy_decides_itself(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POLICIES, "slow", Slow)
    house.start("slow", lease_s=5.0)
    await house.until_acting()
    for _ in range(4):
        await house.submit(3.0)
    await ended(house, 4)
    status = await house.orchestrator.status()
    assert status.fallbacks == {}


@pytest.mark.slow
async def test_a_policy_may_think_for_longer_than_the_lease_lasts(
    house: House, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    until = time.monotonic() + 60.0

    class ThinksLong(Sjf):
        name = "thinks_long"
        guarded = True
        renewals = 0

        def preferences(self, observation: Observation) -> Floats:
            with redis.Redis.from_url(redis_url) as aside:
                before_ms = aside.pttl(LEASE)
                while ThinksLong.renewals <= RENEWALS and time.monotonic() < until:
                    left_ms = aside.pttl(LEASE)
                    ThinksLong.renewals += left_ms > before_ms
                    before_ms = left_ms
                    time.sleep(0.01)
            return super().preferences(observation)

    monkeypatch.setitem(POLICIES, "thinks_long", ThinksLong)
    house.start("thinks_long", lease_s=3.0)
    await house.until_acting()
    await house.submit(3.0)
    await ended(house, 1)
    assert ThinksLong.renewals > RENEWALS
    assert house.registry.get_sample_value("adlro_orchestrator_sessions_total") == 1


async def test_a_node_that_is_drained_while_the_policy_thinks_gets_nothing(
    house: House, released: threading.Event
) -> None:
    house.start("hangs", lease_s=5.0)
    await house.until_acting()
    submitted = await house.submit(3.0)
    guard = house.orchestrator.acting.guard
    await house.until(there(lambda: guard._worker.busy))
    for node in ("volta-0", "turing-0"):
        await house.orchestrator.drain(node, "")
    released.set()
    (job,) = await ended(house, 1)
    assert (job.job_id, job.gpu_id) == (submitted.job_id, "radeon-0/0")


# ---- checkpoints


@pytest.mark.each_python
@pytest.mark.slow
async def test_a_new_checkpoint_is_taken_up_and_a_bad_one_is_not(house: House, tmp_path: Path) -> None:
    put(tmp_path / "a.onnx", network(SHORTEST, hold=-1e6))
    house.start(choices=learned(tmp_path), lease_s=5.0)
    await house.until_acting()
    orchestrator = house.orchestrator
    first = (await orchestrator.status()).policy_version
    assert first
    put(tmp_path / "b.onnx", network({"duration": 1.0}, hold=-1e6))
    await house.until(there(lambda: orchestrator.acting.policy.version != first))
    second = orchestrator.acting.policy.version
    learned_from = orchestrator.choosing.checkpoint
    bad_ones = (b"nonsense", network(SHORTEST, planes="1-00"), network({"duration": np.nan}))
    for number, bad in enumerate(bad_ones, 1):
        put(tmp_path / "c.onnx", bad)
        await house.until(there(functools.partial(lambda count: learned_from.refused == count, number)))
        assert orchestrator.acting.policy.version == second
    status = await orchestrator.status()
    assert (status.checkpoints_loaded_count, status.checkpoints_refused_count) == (2, 3)
    (offered,) = [each for each in orchestrator.choosing.offered if each.name == "dqn"]
    assert offered.version == second
    assert "c.onnx" in offered.problem
    assert house.registry.get_sample_value("adlro_orchestrator_checkpoints_total", {"outcome": "refused"}) == 3
    await house.submit(5.0)
    await ended(house, 1)
    assert (await orchestrator.answers.job("job-1")).policy_version == second
    # What is taken away does not end what serves.
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.onnx").unlink()
    await house.until(there(lambda: "there is no checkpoint" in orchestrator.choosing.checkpoint.problem))
    await house.submit(5.0)
    await ended(house, 2)
    assert (await orchestrator.answers.job("job-2")).policy_version == second


@pytest.mark.each_python
@pytest.mark.slow
async def test_no_decision_is_lost_while_checkpoints_change(house: House, tmp_path: Path) -> None:
    contents = [network(SHORTEST, hold=-1e6), b"bad", network({"slowdown": -1.0}, hold=-1e6), network(LIKE_THE_BASE)]
    path = put(tmp_path / "net.onnx", contents[0])
    house.start(choices=learned(path), lease_s=5.0)
    await house.until_acting()
    number = 0

    async def change() -> None:
        nonlocal number
        while True:
            number += 1
            put(path, contents[number % len(contents)])
            await asyncio.sleep(0.06)

    changing = asyncio.create_task(change())
    count, status = 0, await house.orchestrator.status()
    # Each is tried out in a process of its own the first time, which takes longer than the jobs do.
    while count < 60 or status.checkpoints_loaded_count <= 3 or not status.checkpoints_refused_count:
        await house.submit(1.0 + count % 7, cpu_cores=1 + count % 8)
        await asyncio.sleep(0.01 if count < 60 else 0.1)
        status = await house.orchestrator.status()
        count += 1
    await ended(house, count)
    changing.cancel()
    status = await house.orchestrator.status()
    assert status.fallbacks == {}
    assert house.registry.get_sample_value("adlro_orchestrator_sessions_total") == 1


async def test_at_the_start_a_bad_newest_checkpoint_gives_way_to_the_one_before(house: House, tmp_path: Path) -> None:
    put(tmp_path / "good.onnx", network(SHORTEST, hold=-1e6))
    await asyncio.sleep(0.02)
    put(tmp_path / "newer.onnx", b"nonsense")
    house.start(choices=learned(tmp_path), lease_s=5.0)
    await house.until_acting()
    status = await house.orchestrator.status()
    assert status.policy_version
    assert (status.policy_problem, status.checkpoints_loaded_count, status.checkpoints_refused_count) == ("", 1, 1)
    assert "newer.onnx" in house.orchestrator.choosing.checkpoint.problem
    (tmp_path / "newer.onnx").unlink()
    await house.until(there(lambda: not house.orchestrator.choosing.checkpoint.problem))
    assert house.orchestrator.choosing.checkpoint.loaded == 1


async def test_an_overdue_job_that_no_network_looked_at_is_its_decisions_first_candidate(
    house: House, tmp_path: Path
) -> None:
    path = put(tmp_path / "net.onnx", network({"duration": -1.0}, hold=-1e6))
    house.start(choices=learned(path, wait_ratio=0.001), lease_s=5.0)
    await house.until_acting()
    await house.pause()
    for number in range(60):  # one after the other: those that come at once are equally old
        work_s = 40.0 if number == 5 else 1.0 + number / 100
        await house.submit(work_s, cpu_cores=4, begin_time_s=0.05 * number)
    await house.until_taken_up()
    await house.cluster.set_clock(Clock(ClockMode.VIRTUAL, 0.0, False, 0.0))
    await ended(house, 60)
    found = [each.explained() for each in house.orchestrator.acting.decisions.last(100)]
    assert DecisionBasis.OVERDUE in {each.basis for each in found}
    for each in found:
        assert each.candidates[0].gpu_id == each.gpu_id
        assert np.isfinite(each.candidates[0].score)
    status = await house.orchestrator.status()
    counted = status.decisions_by_basis
    assert counted[DecisionBasis.OVERDUE] == house.registry.get_sample_value(
        "adlro_orchestrator_overdue_decisions_total"
    )
    assert sum(counted.values()) >= status.decision_count, "to start nothing is a decision too"
    (first, *_) = [each for each in found if each.basis is DecisionBasis.OVERDUE]
    assert first.summary.startswith(f"the limit on waits starts {first.job_id} on {first.gpu_id}")
    assert first.basis_text.startswith("the limit on waits decided in place of dqn: a job has waited too long")
    assert (first.policy, first.deciding_policy) == ("dqn", "dqn")
    # A new session counts from 0, as does another policy.
    await house.kill()
    house.start(choices=learned(path), lease_s=5.0)
    await house.until_acting()
    await house.submit(1.0)
    await ended(house, 61)
    assert DecisionBasis.OVERDUE not in (await house.orchestrator.status()).decisions_by_basis
    assert sum((await house.orchestrator.status()).decisions_by_basis.values()) >= 1
    await house.orchestrator.set_policy("fcfs")
    assert (await house.orchestrator.status()).decisions_by_basis == {}


# ---- the shadow


async def test_the_shadow_says_what_it_would_have_done_and_places_nothing(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adlro.services.orchestrator.deciding.shadow.PATIENCE_S", PATIENCE_S)
    house.start("fcfs", lease_s=5.0)
    await house.until_acting()
    orchestrator = house.orchestrator
    assert await orchestrator.set_shadow("sjf") == ""
    made: list[Made] = []
    orchestrator.acting.decisions.listen(made.append)
    await house.pause()
    for work_s in (9.0, 2.0, 5.0, 3.0, 8.0, 4.0, 7.0):
        await house.submit(work_s, cpu_cores=8)  # one job a node
    await house.until_taken_up()
    await house.cluster.set_clock(Clock(ClockMode.VIRTUAL, 0.0, False, 0.0))
    await ended(house, 7)
    await orchestrator.acting.shadow.settled()
    shadow = (await orchestrator.status()).shadow
    assert shadow is not None
    assert shadow.policy == "sjf"
    assert (shadow.failed_count, shadow.skipped_count) == (0, 0)
    told = [each.explained() for each in made]
    assert [each.job_id for each in told] == [f"job-{number}" for number in range(1, 8)]
    assert all(each.shadow is not None for each in told)
    differed = [each for each in told if each.shadow is not None and not each.shadow.agrees]
    assert len(differed) == shadow.differed_count > 0
    assert shadow.agreed_count >= 7 - shadow.differed_count
    for each in differed:
        assert each.shadow is not None
        assert each.shadow.job_id != each.job_id
        assert await orchestrator.answers.decision(each.decision_id) == each


async def test_the_shadow_is_kept_for_later_starts_until_it_is_ended(house: House) -> None:
    house.start("fcfs", lease_s=5.0)
    await house.until_acting()
    await house.orchestrator.set_shadow("sjf")
    await house.kill()
    house.start()
    await house.until_acting()
    status = await house.orchestrator.status()
    assert (status.policy, status.shadow and status.shadow.policy) == ("fcfs", "sjf")
    assert await house.orchestrator.set_shadow("") == "sjf"
    assert (await house.orchestrator.status()).shadow is None
    with pytest.raises(InvalidInput, match="there is no policy 'magic'"):
        await house.orchestrator.set_shadow("magic")
    await house.submit(2.0)
    await ended(house, 1)


async def test_a_shadow_that_fails_or_lags_changes_nothing(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POLICIES, "broken", Broken)
    house.start("sjf", lease_s=5.0)
    await house.until_acting()
    await house.orchestrator.set_shadow("broken")
    made: list[Made] = []
    house.orchestrator.acting.decisions.listen(made.append)
    await house.submit(2.0)
    await ended(house, 1)
    await house.orchestrator.acting.shadow.settled()
    shadow = (await house.orchestrator.status()).shadow
    assert shadow is not None
    assert (shadow.agreed_count, shadow.differed_count, shadow.failed_count) == (0, 0, 1)
    assert [each.shadow for each in made] == [None]


# ---- explanations


async def test_a_decision_names_its_runner_up_and_what_it_rests_on(house: House, tmp_path: Path) -> None:
    path = put(tmp_path / "net.onnx", network(SHORTEST, hold=-50.0))
    house.start(choices=learned(path), lease_s=5.0)
    await house.until_acting()
    await house.pause()
    for work_s in (9.0, 2.0):
        await house.submit(work_s, begin_time_s=1.0)  # so that both join the queue at once
    await house.until_taken_up()
    await house.cluster.set_clock(Clock(ClockMode.VIRTUAL, 0.0, False, 0.0))
    await ended(house, 2)
    first = f"d-{(await house.orchestrator.status()).fencing_token}-1"
    decision = await house.orchestrator.answers.decision(first)
    assert decision.job_id == "job-2"  # the shorter
    assert decision.runner_up is not None
    assert (decision.runner_up.job_id, decision.hold_score) in (("job-2", None), ("job-1", None))
    assert decision.runner_up.score <= decision.candidates[0].score
    twins = [each.reason for each in decision.masked]
    assert twins.count("equals another idle GPU of its node, which stands for both") == 2
    assert len(decision.candidates) + len(decision.masked) == 5


async def test_a_waiting_job_is_explained_by_what_the_policy_would_say_now(house: House, tmp_path: Path) -> None:
    path = put(tmp_path / "net.onnx", network({"duration": -1.0}, hold=50.0))  # holds
    await house.pause()  # else the hold could be over when it is asked for
    house.start(choices=learned(path), lease_s=5.0)
    await house.until_acting()
    await house.submit(50.0)  # starts: where nothing runs no hold is allowed
    await house.submit(60.0)

    async def held() -> bool:
        jobs = [job for _, job in await house.store.list_page(0, 2)]
        return "could start, but dqn" in jobs[1].message

    await house.until(held)
    decision = await house.orchestrator.answers.job("job-2")
    assert not decision.decision_id
    assert decision.hold_score == pytest.approx(50.0)
    assert decision.candidates
    assert decision.candidates[0].score < 50.0
