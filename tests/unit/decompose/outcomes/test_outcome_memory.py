"""The memory of finished jobs: similarity, bounds, groups."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from adlro.records.jobs import ExpectedRuntime, JobSpec, JobType
from adlro.services.decompose.outcomes.job_groups import (
    ALL_DECLARED,
    GROUP_WINDOW,
    JobGroup,
    application_key,
    declared_key,
    job_type_key,
    quantile,
    user_application_key,
)
from adlro.services.decompose.outcomes.model_speeds import ModelSpeeds
from adlro.services.decompose.outcomes.outcome_memory import CROWDED, FinishedJob, OutcomeMemory
from adlro.services.decompose.variables.variables import Variables
from adlro.services.decompose.variables.vocabulary import UNKNOWN, Vocabulary


def spec(user="ann", application="tealeaf", **changes) -> JobSpec:
    return JobSpec(**{"name": "a", "user": user, "job_type": JobType.SIMULATION, "application": application, **changes})


def finished(number: int, job: JobSpec | None = None, gpu_model="v100_sxm2", runtime_s=10.0) -> FinishedJob:
    return FinishedJob(f"job-{number}", job or spec(), gpu_model, runtime_s, float(number))


def memory_of(*jobs: FinishedJob, capacity=1000) -> tuple[OutcomeMemory, Variables]:
    variables = Variables()
    memory = OutcomeMemory(variables, ModelSpeeds(), capacity)
    for job in jobs:
        assert memory.add(job)
    return memory, variables


def test_a_job_is_left_out_by_its_id_and_the_next_takes_its_place():
    memory, _ = memory_of(*(finished(number) for number in range(5)), finished(5, spec("bob")))
    found = memory.nearest(spec(), 3, without="job-3")
    assert [each.job.job_id for each in found] == ["job-4", "job-2", "job-1"]
    assert [each.job.job_id for each in memory.nearest(spec("bob"), 1, without="job-5")] == ["job-4"]
    assert memory.nearest(spec(), 3, without="job-unknown") == memory.nearest(spec(), 3)
    assert memory_of(finished(1))[0].nearest(spec(), 3, without="job-1") == []


def test_similarity_is_the_weight_of_what_is_alike():
    # Stated: application 40, user 25, job type 15, priority 8, GPU count and cores 2 each: 92 in all.
    memory, _ = memory_of(
        finished(1, spec()),
        finished(2, spec(user="bob")),
        finished(3, spec(application="neutral")),
        finished(4, spec(user="bob", application="neutral", cpu_cores=4)),  # two doublings: exp(-2 / 2) as alike
        finished(5, spec(user="bob", application="x", job_type=JobType.MACHINE_LEARNING, priority=1.0)),
    )
    found = memory.nearest(spec(), 10)
    assert [each.job.job_id for each in found] == ["job-1", "job-2", "job-3", "job-4", "job-5"]
    assert [each.similarity for each in found] == pytest.approx(
        [
            1.0,
            67 / 92,
            52 / 92,
            (15 + 8 + 2 + 2 * math.exp(-1)) / 92,
            (8 * math.exp(-1) + 2 + 2) / 92,
        ]
    )


def test_the_gpu_model_counts_where_asked_for():
    memory, _ = memory_of(finished(1, gpu_model="v100_sxm2"), finished(2, gpu_model="radeon_vii"))
    assert [each.job.job_id for each in memory.nearest(spec(), 2)] == ["job-2", "job-1"]  # equal: the newer first
    found = memory.nearest(spec(), 2, "v100_sxm2")
    assert [each.job.job_id for each in found] == ["job-1", "job-2"]
    assert [each.similarity for each in found] == pytest.approx([1.0, 92 / 112])


def test_an_unknown_user_or_application_equals_nothing_and_one_not_stated_does_not_count():
    memory, _ = memory_of(finished(1, spec(application="")), finished(2, spec()))
    unknown = memory.nearest(spec(application="unseen"), 2)
    assert [each.similarity for each in unknown] == pytest.approx([52 / 92] * 2)
    not_stated = memory.nearest(spec(application=""), 2)
    assert [each.similarity for each in not_stated] == pytest.approx([1.0, 1.0])


def test_labels_count_by_value():
    jobs = [finished(number, spec(labels={"batch_size": str(2**number)})) for number in range(1, 8)]
    memory, _ = memory_of(*jobs)
    found = memory.nearest(spec(labels={"batch_size": "32"}), 3)
    assert found[0].job.job_id == "job-5"
    assert {each.job.job_id for each in found[1:]} == {"job-4", "job-6"}


def test_no_more_than_asked_for_newest_first_among_equals():
    memory, _ = memory_of(*(finished(i) for i in range(10)))
    found = memory.nearest(spec(), 3)
    assert [each.job.job_id for each in found] == ["job-9", "job-8", "job-7"]
    assert memory.nearest(spec(), 0) == []


def test_an_empty_memory_recalls_nothing():
    memory, _ = memory_of()
    assert memory.nearest(spec(), 5) == []


def random_job(rng: random.Random, number: int) -> FinishedJob:
    job = spec(
        user=rng.choice("abcdef"),
        application=rng.choice(["", "tealeaf", "neutral", "x"]),
        job_type=rng.choice(list(JobType)),
        priority=rng.choice([0.25, 0.5, 1.0]),
        gpu_memory_mib=rng.choice([0, 4000, 8000]),
        expected_runtime=rng.choice([None, ExpectedRuntime("radeon_vii", rng.uniform(1, 100))]),
    )
    return finished(number, job, rng.choice(["v100_sxm2", "radeon_vii", "a100"]), rng.uniform(1, 100))


@pytest.mark.parametrize("seed", range(5))
def test_after_forgetting_it_is_as_if_it_had_only_seen_the_newest(seed):
    rng = random.Random(seed)
    jobs = [random_job(rng, number) for number in range(400)]
    queries = [random_job(rng, 0).spec for _ in range(30)]
    bounded, _ = memory_of(*jobs, capacity=60)
    fresh, _ = memory_of(*jobs[-60:], capacity=60)
    assert len(bounded) == 60

    for query in queries:
        for model in ("", "radeon_vii", "unseen"):
            assert bounded.nearest(query, 7, model) == fresh.nearest(query, 7, model)
        for key in (user_application_key(query), application_key(query), job_type_key(query), declared_key(query)):
            old, new = bounded.group(key), fresh.group(key)
            assert (old and old.quantiles()) == (new and new.quantiles())
    old, new = bounded.group(ALL_DECLARED), fresh.group(ALL_DECLARED)
    assert old is not None
    assert new is not None
    assert old.quantiles() == new.quantiles()


def similarity_by_hand(query: FinishedJob, job: FinishedJob) -> float:
    asked, has = query.spec, job.spec

    def declared_log(spec: JobSpec) -> float | None:
        if spec.expected_runtime is None:
            return None
        ratio = ModelSpeeds().of(spec, spec.expected_runtime.gpu_model).ratio
        return round(math.log2(spec.expected_runtime.runtime_s * ratio) * 4) / 4

    def memory_log(spec: JobSpec) -> float | None:
        return round(math.log2(spec.gpu_memory_mib) * 4) / 4 if spec.gpu_memory_mib else None

    equal = [
        (40, asked.application or None, has.application),
        (25, asked.user, has.user),
        (15, asked.job_type or None, has.job_type),
        (20, query.gpu_model, job.gpu_model),
    ]
    near = [
        (8, 4 * asked.priority, 4 * has.priority),
        (4, memory_log(asked), memory_log(has)),
        (2, math.log2(asked.gpu_count), math.log2(has.gpu_count)),
        (2, math.log2(asked.cpu_cores), math.log2(has.cpu_cores)),
        (4, declared_log(asked), declared_log(has)),
    ]
    alike: float = sum(weight for weight, wanted, found in equal if wanted is not None and wanted == found)
    alike += sum(
        weight * math.exp(-abs(wanted - found) / 2)
        for weight, wanted, found in near
        if wanted is not None and found is not None
    )
    return alike / sum(weight for weight, wanted, _ in [*equal, *near] if wanted is not None)


@pytest.mark.parametrize("seed", range(3))
def test_the_nearest_are_those_of_a_search_through_everything(seed):
    rng = random.Random(seed)
    jobs = [random_job(rng, number) for number in range(300)]
    memory, _ = memory_of(*jobs)
    for _ in range(20):
        query = random_job(rng, 0)
        everything = memory.nearest(query.spec, 300, query.gpu_model)
        assert len(everything) == 300
        found = memory.nearest(query.spec, 9, query.gpu_model)
        assert [each.similarity for each in found] == [each.similarity for each in everything[:9]]
        # Not asked of the memory: the stated weights, variable by variable, over all jobs.
        by_hand = {job.job_id: similarity_by_hand(query, job) for job in jobs}
        assert [each.similarity for each in found] == pytest.approx(sorted(by_hand.values(), reverse=True)[:9])
        assert [each.similarity for each in found] == pytest.approx([by_hand[each.job.job_id] for each in found])


def test_a_crowded_row_is_forgotten_first():
    rare = [finished(number, spec(user=f"rare-{number}")) for number in range(10)]
    crowd = [finished(100 + number) for number in range(CROWDED + 50)]
    memory, _ = memory_of(*rare, *crowd, capacity=CROWDED + 20)
    assert len(memory) == CROWDED + 20
    kept = {job.job_id for job in memory.jobs()}
    assert {job.job_id for job in rare} <= kept  # the oldest, but each the only one of its kind
    assert crowd[-1].job_id in kept
    assert crowd[0].job_id not in kept


def test_old_jobs_are_forgotten():
    variables = Variables()
    memory = OutcomeMemory(variables, ModelSpeeds(), max_age_s=100.0)
    for number in range(0, 300, 10):
        assert memory.add(finished(number))
    assert [job.end_s for job in memory.jobs()] == [float(end) for end in range(190, 300, 10)]
    assert not memory.add(finished(5))
    assert memory.row_count == 1


def test_each_cluster_has_a_clock_of_its_own():
    memory = OutcomeMemory(Variables(), ModelSpeeds(), max_age_s=100.0)

    def end(number: int, end_s: float, cluster: str) -> bool:
        return memory.add(FinishedJob(f"job-{number}", spec(), "v100_sxm2", 10.0, end_s, "n/0", cluster))

    # All are of one row; the far-ahead clock of one cluster makes none of the other's old.
    assert [end(0, 5.0, "slow"), end(1, 1e9, "ahead"), end(2, 6.0, "slow"), end(3, 1e9 + 200, "ahead")] == [True] * 4
    assert [job.job_id for job in memory.jobs()] == ["job-0", "job-2", "job-3"]
    assert not end(4, 1e9 + 99, "ahead")
    assert end(5, 7.0, "slow")
    assert [each.job.job_id for each in memory.nearest(spec(), 9)] == ["job-5", "job-3", "job-2", "job-0"]
    assert end(6, 106.5, "slow")
    assert [job.job_id for job in memory.jobs()] == ["job-3", "job-5", "job-6"]


def test_names_of_forgotten_jobs_give_way_and_those_of_kept_ones_stay():
    variables = Variables()
    variables.user = Vocabulary("user", [""], grows=True, limit=6)
    memory = OutcomeMemory(variables, ModelSpeeds(), capacity=4)
    for number in range(30):
        memory.add(finished(number, spec(user=f"user-{number}")))
        for invented in range(10):
            variables.of_job(spec(user=f"{number}.{invented}"))
        kept = [job.spec.user for job in memory.jobs()]
        assert all(variables.user.number(user) > 0 for user in kept)
    assert len(variables.user) == 6
    assert [each.job.job_id for each in memory.nearest(spec(user="user-28"), 1)] == ["job-28"]
    memory.clear()
    for number in range(5):
        assert variables.user.learn(f"later-{number}") > 0
    assert all(variables.user.number(user) == UNKNOWN for user in kept)


def test_merged_memories_are_one_that_saw_all():
    rng = random.Random(2)
    jobs = [random_job(rng, number) for number in range(120)]
    first, _ = memory_of(*jobs[0::2], *jobs[3:30:4])
    all_of_them, _ = memory_of(*jobs)
    assert first.merge(jobs[1::2]) == 120 - 60 - 7
    for _ in range(10):
        query = random_job(rng, 0).spec
        assert first.nearest(query, 9) == all_of_them.nearest(query, 9)


def test_a_job_counts_once_and_one_without_runtime_not_at_all():
    memory, _ = memory_of(finished(1))
    revision = memory.revision
    assert not memory.add(finished(1, runtime_s=99.0))
    assert not memory.add(finished(2, runtime_s=0.0))
    assert not memory.add(finished(3, runtime_s=math.nan))
    assert (len(memory), memory.revision) == (1, revision)


def test_the_revision_grows_also_when_all_is_forgotten():
    memory, _ = memory_of(finished(1), finished(2))
    assert memory.revision == 2
    memory.clear()
    assert (memory.revision, len(memory)) == (3, 0)
    assert memory.nearest(spec(), 5) == []
    assert memory.add(finished(1))


def test_groups_hold_reference_seconds_and_ratios_to_what_was_declared():
    # tealeaf runs at 0.97 on radeon_vii and 0.70 on rtx_2080_ti: 10 s and 20 s there are 9.7 s and 14 s of reference.
    declared = ExpectedRuntime("rtx_2080_ti", 20.0)
    memory, _ = memory_of(finished(1, spec(expected_runtime=declared), "radeon_vii", 10.0))
    for key in (user_application_key(spec()), application_key(spec()), job_type_key(spec())):
        group = memory.group(key)
        assert group is not None
        assert group.quantiles()[1] == pytest.approx(math.log(9.7))
    for key in (declared_key(spec()), ALL_DECLARED):
        group = memory.group(key)
        assert group is not None
        assert group.quantiles()[1] == pytest.approx(math.log(9.7 / 14.0))


def test_jobs_without_application_or_declaration_join_no_such_group():
    memory, _ = memory_of(finished(1, spec(application="")))
    assert memory.group(user_application_key(spec(application=""))) is None
    assert memory.group(application_key(spec(application=""))) is None
    assert memory.group(ALL_DECLARED) is None
    assert memory.group(job_type_key(spec())) is not None


def test_a_group_keeps_its_newest_values():
    group = JobGroup()
    for number in range(GROUP_WINDOW + 10):
        group.add(number, float(number))
    group.drop(3)  # long gone
    assert len(group) == GROUP_WINDOW
    assert group.quantiles()[1] == pytest.approx((10 + GROUP_WINDOW + 9) / 2)
    group.drop(10)
    assert len(group) == GROUP_WINDOW - 1


@pytest.mark.parametrize("count", [1, 2, 3, 10, 11])
def test_quantiles_are_numpys_weibull(count):
    values = sorted(random.Random(count).random() for _ in range(count))
    for probability in (0.0, 0.1, 0.5, 0.9, 1.0):
        assert quantile(values, probability) == pytest.approx(float(np.quantile(values, probability, method="weibull")))


def test_capacity_must_hold_a_job():
    with pytest.raises(ValueError, match="capacity must be at least 1, not 0"):
        memory_of(capacity=0)


def test_a_job_that_cannot_be_learned_leaves_no_trace():
    memory, _ = memory_of(finished(1))
    with pytest.raises(ValueError, match=r"math domain|positive"):
        memory.add(finished(2, spec("bob", "cloverleaf_fp64"), "k80", runtime_s=5e-324))
    assert [each.job.job_id for each in memory.nearest(spec(user="bob"), 5)] == ["job-1"]
    assert memory.row_count == len(memory) == 1
