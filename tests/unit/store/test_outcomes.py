"""What the stream of outcomes holds of a job."""

from __future__ import annotations

from adlro.placement import Placement
from adlro.records.jobs import Job, JobSpec, JobType
from adlro.records.outcomes import ApplicationSize, NeighbourTime, StoppedRun
from adlro.records.payloads import process_payload
from adlro.store import Outcome
from adlro.store.records import outcome_entry
from adlro.v1 import stream_pb2
from adlro.wire import neighbour_time_from_proto, stopped_run_from_proto


def test_an_outcome_has_the_application_and_nothing_else_of_what_ran():
    payload = process_payload(["python", "train.py"], environment={"PASSWORD": "hidden"})
    job = Job("job-1", JobSpec("a", "ann", JobType.UNSPECIFIED, application="python:train.py", payload=payload))
    body = outcome_entry(job, Outcome(3.0, True))
    entry = stream_pb2.OutcomeStreamEntry.FromString(body)
    assert (entry.spec.application, entry.spec.job_type, entry.runtime_s) == ("python:train.py", 0, 3.0)
    assert not entry.spec.HasField("payload")
    assert b"hidden" not in body


def test_an_outcome_has_all_gpus_of_a_job_and_the_first_beside_them():
    job = Job("job-1", JobSpec("a", "ann", JobType.SIMULATION, gpu_count=2), placement=Placement.on("n/0", "n/1"))
    entry = stream_pb2.OutcomeStreamEntry.FromString(outcome_entry(job, Outcome(3.0, True)))
    assert (entry.gpu_id, [each.gpu_id for each in entry.placement.gpus]) == ("n/0", ["n/0", "n/1"])
    assert entry.spec.gpu_count == 2
    assert not entry.spread
    entry = stream_pb2.OutcomeStreamEntry.FromString(outcome_entry(job, Outcome(3.0, True, spread=True)))
    assert entry.spread


def test_an_outcome_has_the_earlier_attempts_and_the_neighbours_of_a_job():
    job = Job("job-1", JobSpec("a", "ann", JobType.SIMULATION), placement=Placement.on("n/0"))
    beside = (NeighbourTime(ApplicationSize("bert", "32"), 1.5),)
    runs = (StoppedRun("v100_sxm2", 4.0, True, beside), StoppedRun("", 0.5))
    body = outcome_entry(job, Outcome(3.0, True, stopped_runs=runs, neighbours=beside))
    entry = stream_pb2.OutcomeStreamEntry.FromString(body)
    assert tuple(map(stopped_run_from_proto, entry.stopped_runs)) == runs
    assert tuple(map(neighbour_time_from_proto, entry.neighbours)) == beside
