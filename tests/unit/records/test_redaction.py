"""Records and explanations without others' jobs: whatever stands in them, no other id is left, and one's own are."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from adlro.placement import Placement
from adlro.records.jobs import AttemptRef, Job, JobAttempt, JobSpec, JobType, PendingReason
from adlro.records.outcomes import ApplicationSize, NeighbourTime
from adlro.records.payloads import EndReason, ExitStatus
from adlro.records.redaction import ANOTHER, explanation_without_others, job_without_others, jobs_named_by
from adlro.records.waiting import WaitingExplanation
from adlro.wire import job_to_proto

MINE = Job("job-61", JobSpec("train", "ann", JobType.SIMULATION))
ids = st.integers(1, 60).map(lambda number: f"job-{number}")
words = st.one_of(ids, st.sampled_from(["waits for", "(", "stopped for", ".", "jobs", "job-", "my-job"]))
texts = st.lists(words, max_size=8).map(" ".join)
own_jobs = st.sets(ids).map(lambda own: own | {MINE.job_id})
attempts = st.builds(
    lambda outcome, detail, preempts, beside_s: JobAttempt(
        1,
        Placement.on("a/0"),
        "big",
        outcome=outcome,
        exit=ExitStatus(EndReason.EXITED, detail=detail),
        preempts=tuple(AttemptRef(job_id, 1) for job_id in preempts),
        neighbours=tuple(NeighbourTime(ApplicationSize(f"secret-{each}"), each) for each in beside_s),
    ),
    texts,
    texts,
    st.lists(ids, max_size=3),
    st.lists(st.sampled_from([1.0, 2.0]), max_size=2, unique=True),
)


@given(sentence=texts, own=own_jobs)
def test_an_explanation_names_ones_own_jobs_alone(sentence: str, own: set[str]) -> None:
    raw = WaitingExplanation(
        MINE.job_id, 0.0, PendingReason.RESERVED, sentence, 1, 2, no_expected_start=f"because {sentence}"
    )
    seen = explanation_without_others(raw, own.__contains__)
    assert jobs_named_by(seen) <= own
    for before, after in ((raw.sentence, seen.sentence), (raw.no_expected_start, seen.no_expected_start)):
        expected = [ANOTHER if each in jobs_named_by(raw) - own else each for each in before.split(" ")]
        assert after == " ".join(expected)
    if jobs_named_by(raw) <= own:
        assert seen is raw


@given(message=texts, reserved=st.one_of(st.just(""), ids), tried=st.lists(attempts, max_size=2), own=own_jobs)
def test_a_record_names_ones_own_jobs_alone(
    message: str, reserved: str, tried: list[JobAttempt], own: set[str]
) -> None:
    raw = replace(MINE, message=message, reserved_for_job_id=reserved, reserved_until_s=9.0, attempts=tuple(tried))
    seen = job_without_others(raw, own.__contains__)
    shown = str(job_to_proto(seen))
    assert "secret" not in shown
    assert jobs_named_by(seen) == jobs_named_by(raw) & own
    for stranger in jobs_named_by(raw) - own:
        assert stranger not in shown.replace('"', " ").split()
    assert seen.reserved_until_s == 9.0
    for before, after in zip(raw.attempts, seen.attempts, strict=True):
        assert after.preempts == tuple(ref for ref in before.preempts if ref.job_id in own)
        assert sum(each.time_s for each in after.neighbours) == sum(each.time_s for each in before.neighbours)
    if jobs_named_by(raw) <= own and not any(each.neighbours for each in tried):
        assert seen is raw
