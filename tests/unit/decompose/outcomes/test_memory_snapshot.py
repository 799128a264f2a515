"""The memory as a file: comes back as it was, and says what is wrong with one that can't be read."""

from __future__ import annotations

import hashlib
import json
import os
import zlib

import pytest

from adlro.errors import InvalidInput
from adlro.records.jobs import ExpectedRuntime, JobSpec, JobType
from adlro.services.decompose.outcomes.memory_snapshot import MemorySnapshot, load, save
from adlro.services.decompose.outcomes.model_speeds import ModelSpeeds
from adlro.services.decompose.outcomes.outcome_memory import FinishedJob, OutcomeMemory
from adlro.services.decompose.variables.variables import Variables


def finished(number: int) -> FinishedJob:
    spec = JobSpec(
        name="ä",
        user=f"user-{number % 3}",
        job_type=JobType(1 + number % 3),
        application="tealeaf",
        labels={"batch_size": str(number)},
        expected_runtime=ExpectedRuntime("v100_sxm2", 1.5) if number % 2 else None,
    )
    return FinishedJob(f"job-{number}", spec, "radeon_vii", 0.1 + number, float(number), "n/0")


JOBS = [finished(number) for number in range(50)]


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "memory"
    save(path, MemorySnapshot(JOBS, {"user": ["", "user-0"]}, "17-3"))
    return path


def test_it_comes_back_as_it_was(path, tmp_path):
    found = load(path)
    assert list(found.jobs) == JOBS
    assert found.vocabularies == {"user": ["", "user-0"]}
    assert found.cursor == "17-3"
    assert [each.name for each in tmp_path.iterdir()] == ["memory"]
    memory = OutcomeMemory(Variables(), ModelSpeeds())
    for job in found.jobs:
        assert memory.add(job)


def test_jobs_of_several_gpus_come_back_with_what_they_ran_on(tmp_path):
    spec = JobSpec("gang", "ann", JobType.MACHINE_LEARNING, "gnmt_fp16", gpu_count=2, gpu_models=("v100_sxm2",))
    job = FinishedJob("job-1", spec, "v100_sxm2", 9.0, 10.0, "n/0", gpu_ids=("n/0", "m/0"), spread=True)
    save(tmp_path / "memory", MemorySnapshot([job, JOBS[0]], {}, "1-0"))
    assert list(load(tmp_path / "memory").jobs) == [job, JOBS[0]]


def test_vocabularies_keep_their_numbers():
    before, after = Variables(), Variables()
    for name in ("zoe", "ann", "bob"):
        before.user.learn(name)
    after.user.learn("someone before")
    after.restore(before.growing())
    assert [after.user.number(name) for name in ("zoe", "ann", "bob")] == [1, 2, 3]
    assert after.user.learn("new") == 4
    with pytest.raises(InvalidInput, match="invalid vocabulary"):
        after.restore({"user": ["no empty value first"]})
    with pytest.raises(InvalidInput, match="invalid vocabulary"):
        after.restore({"user": {"": 0, "a": 3, "b": 3}})


def test_numbers_with_gaps_and_lists_of_older_files_are_read():
    variables = Variables()
    variables.restore({"user": {"": 0, "zoe": 70_000}, "application": ["", "tealeaf"]})
    assert variables.user.number("zoe") == 70_000
    assert variables.application.number("tealeaf") == 1
    assert variables.user.learn("new") == 70_001


def test_which_labels_count_is_kept():
    before, after = Variables(), Variables()
    for number in range(64):
        before.labels.note({"run": f"run-{number}", "batch_size": "8", "epochs": "3", "optimizer": "adam"})
    after.restore(before.growing())
    assert after.labels.left_out() == ["run"]
    assert after.labels.columns() == {"batch_size": 0, "epochs": 1}
    with pytest.raises(InvalidInput, match="columns of labels must be different numbers below 8"):
        after.restore({"label_columns": {"a": 0, "b": 0}})


def test_a_file_from_before_clusters_were_kept_is_read(path):
    head, _, body = path.read_bytes().partition(b"\n")
    content = json.loads(zlib.decompress(body))
    for job in content["jobs"]:
        assert job.pop("cluster") == "default"
    body = zlib.compress(json.dumps(content).encode())
    header = {
        **json.loads(head),
        "version": 1,
        "bytes": len(body),
        "blake2b": hashlib.blake2b(body, digest_size=16).hexdigest(),
    }
    path.write_bytes(json.dumps(header).encode() + b"\n" + body)
    assert list(load(path).jobs) == JOBS


def bad(path, change) -> str:
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(InvalidInput) as caught:
        load(path)
    assert str(path) in caught.value.message
    assert "move the file away" in caught.value.message
    return caught.value.reason


def with_header(content: bytes, **changes) -> bytes:
    head, _, body = content.partition(b"\n")
    return json.dumps({**json.loads(head), **changes}).encode() + b"\n" + body


def test_a_file_cut_short_is_refused(path):
    assert bad(path, lambda content: content[:-7]) == "CUT_SHORT"


@pytest.mark.parametrize("length", [0, 1, 20])
def test_a_file_cut_within_its_header_is_refused(path, length):
    assert bad(path, lambda content: content[:length]) == "NOT_A_MEMORY_FILE"


def test_a_damaged_file_is_refused(path):
    assert bad(path, lambda content: content[:-9] + b"x" + content[-8:]) == "DAMAGED"


@pytest.mark.parametrize("changes", [{"version": 3}, {"vocabulary": "0"}])
def test_another_version_is_refused_by_name(path, changes):
    assert bad(path, lambda content: with_header(content, **changes)) == "ANOTHER_VERSION"


@pytest.mark.parametrize("content", [b"[]\n", b"not json\n", b'{"format": "other"}\n'])
def test_other_files_are_refused(path, content):
    assert bad(path, lambda _: content) == "NOT_A_MEMORY_FILE"


def test_a_failed_write_leaves_the_old_file(path, monkeypatch):
    before = path.read_bytes()

    def full(_):
        raise OSError("no space left on device")

    monkeypatch.setattr("adlro.services.decompose.outcomes.memory_snapshot.os.fsync", full)
    with pytest.raises(OSError, match="no space"):
        save(path, MemorySnapshot([], {}, "18-0"))
    assert path.read_bytes() == before
    assert [each.name for each in path.parent.iterdir()] == ["memory"]


# Replicas that share a volume share the file: each in a container of its own, where every process has pid 1.


def test_an_older_snapshot_does_not_replace_a_newer_one(path):
    assert save(path, MemorySnapshot([], {}, "17-2")).bytes == 0
    assert save(path, MemorySnapshot([], {}, "9-9")).bytes == 0
    assert list(load(path).jobs) == JOBS
    assert (
        save(path, MemorySnapshot(JOBS[:1], {}, "17-3")).bytes > 0
    )  # as far, perhaps of more jobs that were known before
    assert save(path, MemorySnapshot(JOBS[:2], {}, "100-0")).bytes > 0
    assert list(load(path).jobs) == JOBS[:2]


@pytest.mark.parametrize("content", [b"", b"not json\n", b'{"format": "adlro-outcomes", "cursor": 7}\n'])
def test_what_no_replica_can_read_is_replaced(path, content):
    path.write_bytes(content)
    assert save(path, MemorySnapshot(JOBS[:3], {}, "1-0")).bytes > 0
    assert list(load(path).jobs) == JOBS[:3]


def test_one_of_another_version_is_replaced(path):
    path.write_bytes(with_header(path.read_bytes(), version=0, cursor="999-0"))
    assert save(path, MemorySnapshot(JOBS[:3], {}, "1-0")).bytes > 0


def test_two_that_write_at_once_leave_one_whole_file(path, monkeypatch):
    inner: list[int] = []
    fsync = os.fsync

    def meanwhile(number: int) -> None:
        if not inner:
            inner.append(-1)
            inner[0] = save(path, MemorySnapshot(JOBS[:5], {}, "40-0")).bytes
        fsync(number)

    monkeypatch.setattr("adlro.services.decompose.outcomes.memory_snapshot.os.fsync", meanwhile)
    written = save(path, MemorySnapshot(JOBS[:9], {}, "30-0")).bytes
    assert (written > 0, inner) == (True, [0])  # the other one comes again when it has learned more
    assert list(load(path).jobs) == JOBS[:9]
    assert save(path, MemorySnapshot(JOBS[:5], {}, "40-0")).bytes > 0
    assert [each.name for each in path.parent.iterdir()] == ["memory"]
