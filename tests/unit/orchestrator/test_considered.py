"""What a decision keeps of what it looked at: the best pairs of all jobs, the base's choice, the prediction; masks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adlro.decide.policies.base import Judgement
from adlro.decide.policies.sjf import Sjf
from adlro.placement import NOWHERE, Placement
from adlro.records.cluster import Cluster
from adlro.records.decisions import BaseChoice, DecisionBasis, DecisionPrediction
from adlro.records.jobs import ExpectedRuntime
from adlro.records.predictions import PredictedInterval, PredictionBasis
from adlro.services.orchestrator.deciding.considered import PAIRS_KEPT, best_rows, considered, prediction_of
from adlro.services.orchestrator.deciding.decisions import CANDIDATES_STORED, Made
from adlro.services.orchestrator.deciding.masks import Mask, in_words, masks
from adlro.services.orchestrator.ledger.entry import Entry
from adlro.services.orchestrator.ledger.ledger import Ledger
from adlro.state.observation import HOLD
from tests.ledgers import job, node, queue, small_cluster

FIGURES = st.one_of(st.sampled_from([-np.inf, np.nan, 0.0, 1.0]), st.integers(-5, 5).map(float))


@given(figures=st.lists(FIGURES, max_size=120), count=st.integers(1, 40))
def test_the_best_rows_are_the_first_of_all_sorted(figures: list[float], count: int) -> None:
    wanted = sorted(
        (row for row, each in enumerate(figures) if np.isfinite(each)), key=lambda row: (-figures[row], row)
    )
    assert best_rows(np.array(figures), count).tolist() == wanted[:count]


def waiting(count: int, nodes: int = 8) -> tuple[Ledger, list[Entry]]:
    """A ledger of many nodes with two idle GPUs each, and jobs that wait: as many pairs as jobs times nodes."""
    ledger = Ledger(Cluster("c", tuple(node(f"n{number}", "v100_sxm2", 16000) for number in range(nodes))))
    for number in range(1, count + 1):
        queue(ledger, number, (float(number),) * 3)
    return ledger, ledger.queued()


def test_pairs_of_all_jobs_are_kept_and_no_more_than_so_many() -> None:
    ledger, entries = waiting(9)
    observation = ledger.observe(0.0)
    scores = np.arange(len(observation.table.job), dtype=float)
    scores[-1] = -np.inf
    found = considered(Judgement(scores), observation.table, entries).pairs(ledger.layout)
    assert len(scores) == 72
    assert len(found) == PAIRS_KEPT
    assert [each.score for each in found] == [float(row) for row in range(70, 70 - PAIRS_KEPT, -1)]
    assert found[0].job_id == "job-9"
    assert {each.job_id for each in found} == {"job-9", "job-8", "job-7", "job-6", "job-5"}
    for each in found:
        assert each.equal_gpu_count == 2
        assert each.gpu_model == "v100_sxm2"
        assert each.expected_runtime_s == float(each.job_id.removeprefix("job-"))


def test_values_go_before_scores_and_the_base_s_choice_has_its_value() -> None:
    ledger, entries = waiting(2, nodes=2)
    observation = ledger.observe(0.0)
    judgement = Judgement(np.array([9.0, 1.0, 1.0, -np.inf]), values=np.array([0.1, 0.4, np.nan, 0.2]))
    judgement.base, judgement.margin, judgement.hold_value = 3, 0.05, np.array([0.3])
    found = considered(judgement, observation.table, entries)
    assert [(each.job_id, each.gpu_id, each.score) for each in found.pairs(ledger.layout)] == [
        ("job-1", "n1/0", 0.4),
        ("job-2", "n1/0", 0.2),
        ("job-1", "n0/0", 0.1),
    ]
    assert found.base_choice(ledger.layout) == BaseChoice("job-2", Placement.on("n1/0"), 0.2)
    assert found.margin == 0.05
    judgement.base = HOLD
    assert considered(judgement, observation.table, entries).base_choice(ledger.layout) == BaseChoice("", NOWHERE, 0.3)


def test_where_the_fallback_decides_its_scores_count_and_there_is_no_base() -> None:
    ledger, entries = waiting(1, nodes=2)
    observation = ledger.observe(0.0)
    judgement = Judgement(
        np.array([1.0, 2.0]), {0: DecisionBasis.LATE}, values=np.array([8.0, 7.0]), base=0, margin=0.1
    )
    found = considered(judgement, observation.table, entries)
    assert [each.gpu_id for each in found.pairs(ledger.layout)] == ["n1/0", "n0/0"]
    assert (found.base, found.margin) == (None, None)


def test_the_gpu_that_the_policy_takes_of_a_group_is_the_pair_s() -> None:
    ledger, entries = waiting(1, nodes=2)
    observation = ledger.observe(0.0)
    judgement = Judgement(np.array([1.0, 2.0]), gpu=np.array([1, 2]))
    found = considered(judgement, observation.table, entries).pairs(ledger.layout)
    assert [each.gpu_id for each in found] == ["n1/0", "n0/1"]


def test_the_prediction_is_that_of_the_moment_on_the_gpu_s_own_speed() -> None:
    ledger, (entry,) = waiting(1)
    interval = PredictedInterval([0.5], [4.0], 0.8, PredictionBasis.USER_APPLICATION)
    entry.interval = interval
    assert prediction_of(ledger, entry, (0,)) == DecisionPrediction(
        1.0, 0.5, 4.0, 0.8, PredictionBasis.USER_APPLICATION
    )
    ledger.set_speeds({"n0/0": 0.5})
    assert prediction_of(ledger, entry, (0,)) == DecisionPrediction(
        2.0, 1.0, 8.0, 0.8, PredictionBasis.USER_APPLICATION
    )
    told = prediction_of(ledger, entry, (0,))
    ledger.expect(entry, np.array([7.0]), interval=None)
    assert told.median_s == 2.0
    assert prediction_of(ledger, entry, (2,)) == DecisionPrediction(7.0, basis=PredictionBasis.PRIOR)


def test_without_decompose_the_declared_runtime_is_the_prediction() -> None:
    ledger = Ledger(small_cluster())
    entry = queue(ledger, 1, (5.0, 6.0, 7.0), expected_runtime=ExpectedRuntime("v100_sxm2", 5.0))
    assert prediction_of(ledger, entry, (0,)) == DecisionPrediction(5.0, basis=PredictionBasis.DECLARED)


def decided(ledger: Ledger, entry: Entry, scores: Sequence[float] | None = None) -> Made:
    observation, entries = ledger.observe(1.0), ledger.queued()
    judgement = Sjf().judge(observation) if scores is None else Judgement(np.array(scores))
    looked_at = considered(judgement, observation.table, entries, prediction_of(ledger, entry, (0,)))
    made = Made.now("d-1-1", entry, Sjf(), ledger, 1.0)
    return made.placed((0,), judgement, observation, entries.index(entry), 1, None, 9.0, considered=looked_at)


def test_a_stored_decision_has_the_best_candidates_and_a_summary_has_none() -> None:
    ledger, (entry, *_) = waiting(3, nodes=40)
    made = decided(ledger, entry)
    full, stored, summary = made.explained(), made.stored(), made.summarised()
    assert len(full.candidates) > CANDIDATES_STORED
    assert stored == replace(full, candidates=full.candidates[:CANDIDATES_STORED], masked=())
    assert summary == replace(full, candidates=(), masked=(), masked_groups=(), best_pairs=())
    assert full.prediction is not None
    assert (summary.decision_id, summary.prediction) == ("d-1-1", full.prediction)


def test_a_thousand_busy_gpus_are_one_group() -> None:
    ledger, entries = waiting(600, nodes=512)
    for gpu, entry in enumerate(entries[:599], start=1):
        ledger.place(entry, (gpu,), 0.0)
    found = decided(ledger, entries[599]).explained()
    busy = next(each for each in found.masked_groups if each.reason == "busy with other jobs")
    assert (busy.gpu_count, busy.example_gpu_ids) == (599, ("n0/1", "n1/0", "n1/1"))
    assert sum(each.reason.startswith("busy with job-") for each in found.masked) == 599


WORDS = {
    Mask.MODEL: "the job does not accept this model",
    Mask.NODE: "the job excludes",
    Mask.NODE_SHARED: "the job is exclusive, and",
    Mask.LOST: "the GPU is lost",
    Mask.DRAINED: "is drained",
    Mask.GPU_MEMORY: "MiB of GPU memory, it has",
    Mask.BUSY: "busy with",
    Mask.CORES: "cores, ",
    Mask.MEMORY: "MiB, ",
}


@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_masks_say_of_each_gpu_what_its_reason_says(data: st.DataObject) -> None:
    ledger = Ledger(small_cluster())
    count = len(ledger.layout.gpu_ids)
    for gpu in data.draw(st.sets(st.integers(0, count - 1))):
        cores = data.draw(st.integers(1, 3))
        ledger.place(queue(ledger, 100 + gpu, (9.0, 9.0, 9.0), cpu_cores=cores, memory_mib=1024), (gpu,), 0.0)
    ledger.set_lost({ledger.layout.gpu_ids[gpu] for gpu in data.draw(st.sets(st.integers(0, count - 1)))}, True)
    ledger.set_drained(data.draw(st.sets(st.sampled_from(ledger.layout.node_ids))))
    spec = job(
        1,
        cpu_cores=data.draw(st.integers(1, 9)),
        memory_mib=data.draw(st.sampled_from([1024, 40_000, 70_000, 1_000_000])),
        gpu_memory_mib=data.draw(st.sampled_from([0, 12_000, 16_100, 20_000])),
        gpu_models=data.draw(st.sampled_from([(), ("v100_sxm2",), ("radeon_vii", "rtx_2080_ti")])),
        exclusive=data.draw(st.booleans()),
        excluded_node_ids=tuple(data.draw(st.sets(st.sampled_from(ledger.layout.node_ids), max_size=2))),
    ).spec
    for gpu, number in enumerate(masks(spec, ledger.occupancy).tolist()):
        reason = ledger.occupancy.mask_reason(spec, gpu, 1.0)
        assert bool(reason) == bool(number)
        if number:
            assert WORDS[Mask(number)] in reason
            assert in_words(Mask(number), spec)


def test_a_group_of_the_policy_s_own_has_no_words_of_the_cluster() -> None:
    with pytest.raises(ValueError, match="EQUAL"):
        in_words(Mask.EQUAL, job(1).spec)


@settings(deadline=None, max_examples=50)
@given(data=st.data())
def test_groups_count_every_masked_gpu_once(data: st.DataObject) -> None:
    ledger = Ledger(small_cluster())
    entry = queue(ledger, 1, (1.0, 2.0, 3.0))
    queue(ledger, 2, (2.0, 2.0, 3.0))
    rows = int(ledger.observe(1.0).table.first[0, -1])
    made = decided(ledger, entry, [1.0, *data.draw(st.lists(FIGURES, min_size=rows - 1, max_size=rows - 1))])
    found = made.explained()
    assert sum(each.gpu_count for each in found.masked_groups) == len(found.masked)
    named = {gpu_id for each in found.masked_groups for gpu_id in each.example_gpu_ids}
    assert named <= {each.gpu_id for each in found.masked}
    assert len(found.candidates) + len(found.masked) == len(ledger.layout.gpu_ids)
