"""What ListDecisions gives is what WatchDecisions sent, whatever was decided, and whenever the shadow answers."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import structlog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from adlro.decide.policies.base import Judgement
from adlro.decide.policies.sjf import Sjf
from adlro.kit.redis import connect
from adlro.placement import NOWHERE, Placement
from adlro.records.cluster import Cluster
from adlro.records.decisions import DecisionBasis, DecisionFilter, DecisionView, ShadowDecision
from adlro.services.orchestrator.deciding.considered import considered, prediction_of
from adlro.services.orchestrator.deciding.decision_log import DecisionLog
from adlro.services.orchestrator.deciding.decisions import CANDIDATES_STORED, Made
from adlro.services.orchestrator.deciding.feed import DecisionFeed, Watch
from adlro.services.orchestrator.deciding.side_thread import SideThread
from adlro.services.orchestrator.deciding.storing import StoringDecisions
from adlro.services.orchestrator.ledger.ledger import Ledger
from adlro.services.orchestrator.metrics import OrchestratorMetrics
from adlro.services.orchestrator.server import watch_message
from adlro.store import Unreadable
from adlro.store.decisions import DecisionStore
from adlro.v1 import orchestrator_service_pb2 as pb
from adlro.wire import decision_to_proto
from tests.ledgers import queue, small_cluster

WAIT_S = 60.0


class Drawn(NamedTuple):
    """A decision: for which of the waiting jobs, where, why; and after how many later ones the shadow answers."""

    job: int
    gpu: int
    basis: DecisionBasis
    scores: tuple[float, ...]
    shadow: ShadowDecision | None
    answers_after: int


SHADOWS = st.one_of(
    st.none(),
    st.builds(ShadowDecision, st.just("fcfs"), st.just(""), st.just(NOWHERE), st.booleans()),
    st.builds(ShadowDecision, st.just("fcfs"), st.just("job-2"), st.just(Placement.on("volta-0/1")), st.booleans()),
)
DRAWN = st.builds(
    Drawn,
    st.integers(0, 2),
    st.integers(0, 4),
    st.sampled_from(list(DecisionBasis)),
    st.tuples(*[st.one_of(st.floats(-9, 9), st.just(-np.inf))] * 9),
    SHADOWS,
    st.integers(0, 3),
)


def made_of(drawn: Drawn, decision_id: str, cluster: Cluster) -> Made:
    ledger = Ledger(cluster)
    for number in range(1, 4):
        queue(ledger, number, (1.0 * number, 2.0, 3.0))
    observation, entries = ledger.observe(5.0), ledger.queued()
    rows = len(observation.table.job)
    judgement = Judgement(np.resize(np.array(drawn.scores), rows), {0: drawn.basis}, notes={0: "why"})
    judgement.scores[observation.table.row_of(0, drawn.job, drawn.gpu)] = 10.0
    entry = entries[drawn.job]
    seen = considered(judgement, observation.table, entries, prediction_of(ledger, entry, (drawn.gpu,)))
    made = Made.now(decision_id, entry, Sjf(), ledger, 5.0)
    return made.placed((drawn.gpu,), judgement, observation, drawn.job, 1, None, 9.0, considered=seen)


async def _sent(watch: Watch, count: int) -> list[pb.Decision]:
    found: list[pb.Decision] = []
    async with asyncio.timeout(WAIT_S):
        while len(found) < count:
            news = await watch.news(WAIT_S)
            assert news is not None
            assert news.missed == 0
            message = pb.WatchDecisionsResponse.FromString(b"".join(news.messages))
            found += message.decisions or [message.decision]
    return found


async def _listed(store: DecisionStore, *, full: bool) -> list[pb.Decision]:
    found, token = [], ""
    while True:
        page, token = await store.page(DecisionFilter(), 3, token, full=full)
        found += [decision_to_proto(each) for each in page]
        if not token:
            return found


async def _run(redis_url: str, sessions: list[list[Drawn]]) -> None:
    """Sessions of one process, each with a token of its own."""
    redis = connect(redis_url)
    await redis.flushall()
    worker, metrics = SideThread("tell decisions"), OrchestratorMetrics(CollectorRegistry())
    store = DecisionStore(redis, worker, 1000, 1000, Unreadable())
    log, out = DecisionLog(1000), structlog.get_logger()
    feed = DecisionFeed(watch_message, worker, out, pause_s=0.001)
    storing = StoringDecisions(store, worker, metrics.count_stored, metrics.count_unstored, out)
    log.listen(feed.tell)
    log.listen(storing.take)
    task = asyncio.create_task(storing.run())
    cluster = small_cluster()
    count = sum(map(len, sessions))
    with feed.watch(DecisionView.SUMMARY) as brief, feed.watch(DecisionView.FULL) as whole:
        untold: list[tuple[Made, Drawn]] = []
        for token, decisions in enumerate(sessions, start=1):
            for drawn in decisions:
                made = made_of(drawn, f"d-{token}-{log.count + 1}", cluster)
                log.add(made)
                untold.append((made, drawn))
                while len(untold) > untold[0][1].answers_after:
                    log.tell(untold[0][0], untold[0][1].shadow)
                    del untold[0]
                    if not untold:
                        break
        for made, drawn in untold:
            log.tell(made, drawn.shadow)
        summaries, explanations = await _sent(brief, count), await _sent(whole, count)
    await storing.flush(WAIT_S)
    for each in explanations:
        each.ClearField("masked")
        del each.candidates[CANDIDATES_STORED:]
    assert await _listed(store, full=False) == summaries[::-1]
    assert await _listed(store, full=True) == explanations[::-1]
    for each in explanations:
        kept = await store.get(each.decision_id)
        assert kept is not None
        assert decision_to_proto(kept) == each
    assert len({each.decision_id for each in summaries}) == count
    task.cancel()
    feed.close()
    worker.close()
    await redis.aclose()


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(sessions=st.lists(st.lists(DRAWN, max_size=8), min_size=1, max_size=3))
def test_the_list_is_what_watchers_were_sent(redis_url: str, sessions: list[list[Drawn]]) -> None:
    asyncio.run(_run(redis_url, sessions))


def test_the_copy_of_a_decision_with_the_shadow_s_answer_keeps_all_else() -> None:
    drawn = Drawn(0, 0, DecisionBasis.POLICY, (1.0,) * 9, None, 0)
    made = made_of(drawn, "d-1-1", small_cluster())
    answer = ShadowDecision("fcfs", "", NOWHERE, agrees=False)
    assert replace(made, shadow=answer).explained() == replace(made.explained(), shadow=answer)
