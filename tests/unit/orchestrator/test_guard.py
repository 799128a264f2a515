"""Whatever a policy does, a decision is made, in time, and who made it is told and counted."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
import structlog

from adlro.decide.policies.base import Judgement, Policy
from adlro.decide.policies.dqn import Dqn
from adlro.decide.policies.hold_greedy import HoldGreedyFixed
from adlro.decide.policies.sjf import Sjf
from adlro.decide.rollouts.policy import DqnLookahead
from adlro.records.decisions import DecisionBasis
from adlro.services.orchestrator.deciding import guard as guard_module
from adlro.services.orchestrator.deciding.acting import Acting
from adlro.services.orchestrator.deciding.decision_log import DecisionLog
from adlro.services.orchestrator.deciding.decisions import holds_back
from adlro.services.orchestrator.deciding.guard import INLINE_PAIRS, Guard
from adlro.services.orchestrator.deciding.shadow import Shadow
from adlro.state.observation import HOLD, Floats, Observation
from tests.unit.decide.decision_points import Waiting, decision, drawn
from tests.unit.decide.gang_points import Several, point
from tests.unit.decide.stop_points import stop_point
from tests.unit.orchestrator.house import NO_CHECKPOINT

POINT = drawn(np.random.default_rng(2), 6)
DEADLINE_S = 60.0
"""Which no policy that is well misses, whatever the machine does meanwhile."""
SHORT_S = 0.1
"""For policies that are to be late: those answer once they are released."""
THE_BASES = HoldGreedyFixed().scores(POINT)


class Made(Policy):
    """Does what a test wants."""

    name = "made"
    guarded = True

    def __init__(self, does: Callable[[Observation], Floats]) -> None:
        self.does = does
        self.threads: list[int] = []

    def preferences(self, observation: Observation) -> Floats:
        self.threads.append(threading.get_ident())
        return self.does(observation)


def sjf(observation: Observation) -> Floats:
    return Sjf().preferences(observation)


LATE_POINT = decision([Waiting((1.0, 50.0)), Waiting((40.0, 60.0))], [0.0, 0.0], time_s=1e6)
"""Two jobs that have waited for days."""


def sjf_last(observation: Observation) -> Floats:
    """The second job first, which came after the other."""
    times: Floats = observation.table.of_job(np.array([[1.0, 0.01]]))
    return sjf(observation) * times


def fail(_: Observation) -> Floats:
    raise ZeroDivisionError("of all things")


def sleep_s(seconds: float) -> Callable[[Observation], Floats]:
    def sleeping(observation: Observation) -> Floats:
        time.sleep(seconds)
        return sjf(observation)

    return sleeping


class Hang:
    """Answers once it is released."""

    def __init__(self) -> None:
        self.begun, self.released = threading.Event(), threading.Event()

    def __call__(self, observation: Observation) -> Floats:
        self.begun.set()
        assert self.released.wait(30.0)
        return sjf(observation)


@pytest.fixture
def hang() -> Iterator[Hang]:
    made = Hang()
    yield made
    made.released.set()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60.0):
        while not condition():  # noqa: ASYNC110 (of another thread)
            await asyncio.sleep(0.01)


@pytest.fixture
def seen() -> Counter[DecisionBasis]:
    return Counter()


@pytest.fixture
def guard(seen: Counter[DecisionBasis]) -> Iterator[Guard]:
    made = Guard(DEADLINE_S, structlog.get_logger(), lambda reason: seen.update([reason]))
    yield made
    made.close()


@pytest.fixture
def any_time_is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard_module, "INLINE_S", np.inf)


class Rule(Made):
    """The same, but trusted."""

    guarded = False


@pytest.mark.usefixtures("any_time_is_quick")
@pytest.mark.parametrize(
    ("kind", "virtual", "on_the_loop"), [(Rule, False, True), (Made, True, True), (Made, False, False)]
)
async def test_a_policy_that_is_well_decides(
    guard: Guard, seen: Counter[DecisionBasis], kind: type[Made], virtual: bool, on_the_loop: bool
) -> None:
    policy = kind(sjf)
    for _ in range(4):
        judgement = await guard.judge(policy, POINT, virtual=virtual)
        np.testing.assert_array_equal(judgement.scores, Sjf().scores(POINT))
        assert judgement.basis_of(0) is DecisionBasis.POLICY
    assert not seen
    assert guard.problem == ""
    # The first beside the loop, since nobody knew how long it takes.
    assert policy.threads[0] != threading.get_ident()
    assert (policy.threads[-1] == threading.get_ident()) is on_the_loop
    assert (threading.get_ident() in policy.threads) is on_the_loop


@pytest.mark.usefixtures("any_time_is_quick")
async def test_one_that_was_quick_and_hangs_hangs_alone(guard: Guard, seen: Counter[DecisionBasis], hang: Hang) -> None:
    policy = Made(sjf)
    for _ in range(4):
        assert (await guard.judge(policy, POINT, virtual=False)).basis_of(0) is DecisionBasis.POLICY
    policy.does, guard._deadline_s = hang, SHORT_S
    judgement = await guard.judge(policy, POINT, virtual=False)
    assert hang.begun.is_set()
    assert not hang.released.is_set()
    assert judgement.basis_of(0) is DecisionBasis.LATE
    np.testing.assert_array_equal(judgement.scores, THE_BASES)
    assert seen == {DecisionBasis.LATE: 1}


@pytest.mark.parametrize(
    ("does", "says"),
    [
        (fail, "ZeroDivisionError: of all things"),
        (lambda observation: sjf(observation) * np.nan, "its answer is no number"),
        (lambda observation: np.full_like(sjf(observation), np.inf), "its answer is no number"),
        (lambda observation: sjf(observation)[:-1], "its answer is no number"),
        (lambda _: "yes", "AttributeError"),
    ],
)
async def test_one_that_fails_is_replaced_and_told(
    guard: Guard, seen: Counter[DecisionBasis], does: Callable[[Observation], Floats], says: str
) -> None:
    for count in (1, 2, 3):
        judgement = await guard.judge(Made(does), POINT, virtual=count == 2)
        np.testing.assert_array_equal(judgement.scores, THE_BASES)
        assert judgement.basis_of(0) is DecisionBasis.FAILED
        assert says in judgement.notes[0]
        assert guard.counts == seen == {DecisionBasis.FAILED: count}
        assert says in guard.problem
    await guard.judge(Made(sjf), POINT, virtual=False)
    assert guard.problem == ""


async def test_a_reservation_of_the_replacement_ends_with_the_next_decision_of_a_policy_that_keeps_none(
    guard: Guard,
) -> None:
    free = point([Several(1, 5.0)], [[0.0]])
    held = point([Several(4, 10.0), Several(1, 5.0)], [[100.0, 100.0, 100.0, 0.0]], reserved=0)
    assert (await guard.judge(Made(sjf), free, virtual=False)).reserve is None
    replaced = await guard.judge(Made(fail), held, virtual=False)
    assert replaced.reserve is not None
    assert replaced.reserve.tolist() == [0]
    again = await guard.judge(Made(sjf), held, virtual=False)
    assert again.reserve is not None
    assert again.reserve.tolist() == [HOLD]


async def test_one_without_a_checkpoint_is_replaced(guard: Guard, seen: Counter[DecisionBasis]) -> None:
    judgement = await guard.judge(Dqn(NO_CHECKPOINT), POINT, virtual=False)
    assert judgement.basis_of(0) is DecisionBasis.MISSING
    np.testing.assert_array_equal(judgement.scores, THE_BASES)
    assert seen == {DecisionBasis.MISSING: 1}


async def test_one_that_says_that_it_is_out_of_range_is_counted(guard: Guard, seen: Counter[DecisionBasis]) -> None:
    class Modest(Policy):
        name = "modest"

        def weigh(self, observation: Observation) -> Judgement:
            return Judgement(THE_BASES.copy(), {0: DecisionBasis.OUT_OF_RANGE}, notes={0: "never seen such a thing"})

    judgement = await guard.judge(Modest(), POINT, virtual=False)
    assert judgement.basis_of(0) is DecisionBasis.OUT_OF_RANGE
    assert seen == {DecisionBasis.OUT_OF_RANGE: 1}
    assert "never seen" in guard.problem


async def test_one_that_is_late_is_replaced_in_time_and_the_loop_goes_on(
    guard: Guard, seen: Counter[DecisionBasis], hang: Hang
) -> None:
    policy, guard._deadline_s = Made(hang), SHORT_S
    deciding = asyncio.create_task(guard.judge(policy, POINT, virtual=False))
    await until(hang.begun.is_set)
    judgement = await deciding
    assert not hang.released.is_set()
    assert judgement.basis_of(0) is DecisionBasis.LATE
    # It is still at it: nobody waits for it again.
    guard._deadline_s = 3600.0
    async with asyncio.timeout(20.0):
        await guard.judge(policy, POINT, virtual=False)
    assert seen == {DecisionBasis.LATE: 2}
    hang.released.set()
    await until(lambda: not guard._worker.busy)
    policy.does = sjf
    assert (await guard.judge(policy, POINT, virtual=False)).basis_of(0) is DecisionBasis.POLICY


async def test_after_one_that_hangs_the_next_policy_is_not_late(guard: Guard, hang: Hang) -> None:
    guard._deadline_s = SHORT_S
    assert (await guard.judge(Made(hang), POINT, virtual=False)).basis_of(0) is DecisionBasis.LATE
    assert (await guard.judge(Made(sjf), POINT, virtual=True)).basis_of(0) is DecisionBasis.POLICY
    assert not hang.released.is_set()


async def test_in_virtual_time_it_may_take_its_time(guard: Guard, seen: Counter[DecisionBasis]) -> None:
    guard._deadline_s = SHORT_S
    judgement = await guard.judge(Made(sleep_s(3 * SHORT_S)), POINT, virtual=True)
    assert judgement.basis_of(0) is DecisionBasis.POLICY
    assert not seen


async def test_a_policy_that_was_slow_decides_beside_the_loop(guard: Guard) -> None:
    policy = Made(sleep_s(0.02))
    for _ in range(3):
        assert (await guard.judge(policy, POINT, virtual=False)).basis_of(0) is DecisionBasis.POLICY
    assert threading.get_ident() not in policy.threads


@pytest.mark.usefixtures("any_time_is_quick")
async def test_a_large_decision_is_made_beside_the_loop_and_has_more_time(guard: Guard) -> None:
    jobs = [Waiting((5.0,) * 64)] * (INLINE_PAIRS // 64 + 1)
    large = decision(jobs, [0.0] * 64)
    policy = Made(sjf)
    for _ in range(3):
        await guard.judge(policy, large, virtual=False)
    assert threading.get_ident() not in policy.threads
    assert guard.deadline_s(large) == pytest.approx(DEADLINE_S * large.pair_count / INLINE_PAIRS)
    assert guard.deadline_s(POINT) == DEADLINE_S


async def test_the_replacement_lets_no_job_wait_longer_than_the_policy_would(guard: Guard) -> None:
    policy = Made(fail)
    policy.wait_ratio = 1.0
    # hold_greedy_fixed would hold job 0 for its fast GPU.
    point = decision([Waiting((1.0, 50.0))], [5.0, 0.0], time_s=1e6)
    patient = HoldGreedyFixed()
    patient.wait_ratio = np.inf
    assert (patient.act(point) == -1).all()
    judgement = await guard.judge(policy, point, virtual=False)
    assert Policy.choose(point, judgement)[0].tolist() == [0, 1]
    assert judgement.basis_of(0) is DecisionBasis.FAILED


async def test_looking_counts_nothing_and_holds_up_no_decision(
    guard: Guard, seen: Counter[DecisionBasis], hang: Hang
) -> None:
    decides = Made(sjf)
    await guard.judge(decides, POINT, virtual=False)
    looking = asyncio.create_task(guard.look(Made(hang), POINT))
    await until(hang.begun.is_set)
    assert (await guard.judge(decides, POINT, virtual=False)).basis_of(0) is DecisionBasis.POLICY
    assert not looking.done()
    hang.released.set()
    assert (await looking).basis_of(0) is DecisionBasis.POLICY
    looked = await guard.look(Made(fail), POINT)
    assert looked.basis_of(0) is DecisionBasis.FAILED
    np.testing.assert_array_equal(looked.scores, THE_BASES)
    assert not seen
    assert guard.problem == ""


async def test_decisions_are_counted_by_what_they_rest_on_since_the_session_began_or_the_policy_was_set(
    guard: Guard,
) -> None:
    async def decided(policy: Policy) -> dict[DecisionBasis, int]:
        await guard.judge(policy, POINT, virtual=True)
        return dict(guard.decisions_of(policy))

    policy, other = Made(sjf), Rule(sjf)
    other.name = "other"  # type: ignore[misc]
    assert guard.decisions_of(policy) == {}
    assert await decided(policy) == {DecisionBasis.POLICY: 1}
    policy.does = fail
    assert await decided(policy) == {DecisionBasis.POLICY: 1, DecisionBasis.FAILED: 1}
    # The same policy with another checkpoint goes on; another policy begins at 0.
    assert await decided(Made(sjf)) == {DecisionBasis.POLICY: 2, DecisionBasis.FAILED: 1}
    assert guard.decisions_of(other) == {}
    assert await decided(other) == {DecisionBasis.POLICY: 1}
    assert guard.decisions_of(policy) == {}
    other.does, other.wait_ratio = sjf_last, 1.0
    await guard.judge(other, LATE_POINT, virtual=True)
    assert guard.decisions_of(other) == {DecisionBasis.POLICY: 1, DecisionBasis.OVERDUE: 1}
    guard.begin_session()
    assert guard.decisions_of(other) == {}
    assert guard.counts == {DecisionBasis.FAILED: 1}, "what metrics show goes on"


async def test_looking_at_one_that_was_late_shows_who_decided_and_asks_it_nothing(guard: Guard, hang: Hang) -> None:
    policy, guard._deadline_s = Made(hang), SHORT_S
    assert (await guard.judge(policy, POINT, virtual=False)).basis_of(0) is DecisionBasis.LATE
    async with asyncio.timeout(20.0):  # less than a look at what hangs would take
        looked = await guard.look(policy, POINT)
    assert not hang.released.is_set()
    assert looked.basis_of(0) is DecisionBasis.LATE
    assert "no decision within 0.1 s" in looked.notes[0]
    np.testing.assert_array_equal(looked.scores, THE_BASES)
    # Of another policy that says nothing.
    assert (await guard.look(Made(sjf), POINT)).basis_of(0) is DecisionBasis.POLICY


def said(acting: Acting) -> str:
    return holds_back(acting.policy, acting.deciding[1])


async def test_who_decided_last_is_told_in_words(guard: Guard) -> None:
    policy = Made(sjf)
    acting = Acting(policy, {}, DecisionLog(1), guard, Shadow(structlog.get_logger()))
    assert said(acting) == "made holds it back", "nobody has decided yet"
    await guard.judge(policy, POINT, virtual=True)
    assert said(acting) == "made holds it back"
    policy.does = fail
    await guard.judge(policy, POINT, virtual=True)
    assert acting.deciding == ("hold_gang", DecisionBasis.FAILED)
    assert said(acting) == "hold_gang (in place of made: failed) holds it back"
    policy.does, policy.wait_ratio = sjf_last, 1.0
    await guard.judge(policy, LATE_POINT, virtual=True)
    assert acting.deciding == ("made", DecisionBasis.OVERDUE)
    assert said(acting) == "the limit on waits keeps GPUs for a job that has waited too long"
    acting.policy = Rule(sjf)
    acting.policy.name = "other"  # type: ignore[misc]
    assert said(acting) == "other holds it back"


async def test_a_look_at_a_policy_with_a_memory_shows_what_it_would_do() -> None:
    """Without its memory, but with the limit on waits: what has just started is not stopped."""
    guard, policy = Guard(DEADLINE_S, structlog.get_logger()), DqnLookahead()
    stops = stop_point([Several(1, 1.0)], [[90.0, 80.0], [70.0, 95.0]])
    assert stops.preemption is not None
    just_started = replace(stops, gpu_elapsed_s=np.zeros_like(stops.gpu_elapsed_s))
    try:
        assert (await guard.look(policy, stops)).busy
        assert not (await guard.look(policy, just_started)).busy
        assert policy.lookahead.seen is None, "an explanation is no decision"
    finally:
        guard.close()
