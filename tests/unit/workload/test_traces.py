"""Job lists from files: what is read, what is skipped and counted, and complaints that name file, line and field."""

from __future__ import annotations

import gzip
import os
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from adlro.errors import InvalidInput
from adlro.records.jobs import KINDS_OF_WORK, JobType, Preemptible
from adlro.workload.job_lists import WorkloadJob, draw_jobs
from adlro.workload.scenario import load_scenario
from adlro.workload.traces import (
    PAPER_COLUMNS,
    PAPER_OPTIONAL_COLUMNS,
    format_of,
    read_paper_csv,
    read_swf,
    read_trace,
    write_paper_csv,
)

SHARED_DATA = Path(os.environ.get("ADLRO_SHARED_DATA", Path(__file__).parents[4] / "shared" / "data"))

LINES = [
    "; Version: 2",
    "",
    # number submit wait run processors cpu mem requested time mem status user group exe queue partition previous think
    "1 500 -1 60 4 -1 -1 4 120 -1 1 7 1 -1 0 -1 -1 -1",
    "3 510 -1 -1 1 -1 -1 1 100 -1 1 7 1 -1 0 -1 -1 -1",
    "4 520 -1 30 1 -1 -1 1 100 -1 5 7 1 -1 0 -1 -1 -1",
    "5 530 -1 30 1 -1 -1 1 100 -1 2 7 1 -1 0 -1 -1 -1 ; a part",
    "9 560 -1 0.5 1 -1 -1 1 -1 -1 0 -1 1 -1 0 -1 -1 -1",
]


def swf(tmp_path: Path, lines: list[str]) -> Path:
    path = tmp_path / "trace.swf"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_an_swf_trace_is_read_and_what_was_done_is_counted(tmp_path):
    jobs, notes = read_swf(swf(tmp_path, LINES), seed=3)
    assert [(job.submit_s, job.work_s, job.expected_runtime_s) for job in jobs] == [
        (0.0, 60.0, 120.0),
        (60.0, 0.5, None),
    ]
    assert jobs[0].user == "user-7"
    assert (notes.lines, notes.jobs, notes.trace_format, notes.seed) == (5, 2, "swf", 3)
    assert notes.counts == {
        "without_run_time": 1,
        "cancelled": 1,
        "parts": 1,
        "several_processors": 1,
        "failed": 1,
        "without_user": 1,
        "without_requested_time": 1,
    }
    assert [job.source_line for job in jobs] == [3, 7]
    assert any("ran on several processors" in sentence for sentence in notes.sentences)
    assert "with seed 3" in notes.sentences[-1]
    for job in jobs:
        assert job.memory_mib == 4096 * job.cpu_cores


def test_a_seed_decides_what_a_trace_lacks(tmp_path):
    lines = [f"{i} {i} -1 60 1 -1 -1 1 120 -1 1 7 1 -1 0 -1 -1 -1" for i in range(50)]
    path = swf(tmp_path, lines)
    first, again, other = (read_swf(path, seed=seed)[0] for seed in (1, 1, 2))
    assert first == again
    assert [job.application for job in first] != [job.application for job in other]
    assert read_swf(path, seed=1, limit=10)[0] == first[:10]
    assert {job.job_type for job in first} == set(KINDS_OF_WORK)


def test_a_gzipped_trace_is_read_too(tmp_path):
    path = tmp_path / "trace.swf.gz"
    path.write_bytes(gzip.compress("\n".join(LINES).encode()))
    assert len(read_swf(path)[0]) == 2


def test_jobs_out_of_order_are_sorted_by_submission(tmp_path):
    jobs, notes = read_swf(swf(tmp_path, [LINES[6], LINES[2]]))
    assert [job.submit_s for job in jobs] == [0.0, 60.0]
    line = next(job.source_line for job in jobs)  # the earlier job stands later in the file
    assert f"1 of 2 lines (the first: line {line}): are earlier than the line before" in notes.sentences[0]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("1 500 -1 60 4", "line 2: average_cpu_time: 5 values where the format has 18"),
        (LINES[2] + " 9", "line 2: think_time: 19 values"),
        (LINES[2].replace(" 60 ", " sixty "), "line 2: run_time: must be a number .*'sixty'"),
        (LINES[2].replace(" 60 ", " nan "), "line 2: run_time"),
        (LINES[2].replace(" 60 ", " 1e9 "), "line 2: run_time: must be a number at most"),
        (LINES[2].replace("1 500", "1 -1"), "line 2: submit_time: must be a number from 0 at most 1e\\+11, not '-1'"),
        (LINES[2].replace(" 7 1 -1 0", " 7.5 1 -1 0"), "line 2: user_id: must be a whole number"),
    ],
)
def test_a_malformed_line_is_refused_with_file_line_and_field(tmp_path, line, complaint):
    with pytest.raises(InvalidInput, match=rf"trace.swf: {complaint}"):
        read_swf(swf(tmp_path, ["; comment", line]))


def test_a_missing_file_is_refused(tmp_path):
    for read in (read_swf, read_paper_csv):
        with pytest.raises(InvalidInput, match="no such file"):
            read(tmp_path / "nothing")


@pytest.mark.skipif(not SHARED_DATA.is_dir(), reason="no shared data; ADLRO_SHARED_DATA says where it is")
def test_the_lublin_trace_is_read_whole():
    jobs, notes = read_swf(SHARED_DATA / "traces" / "lublin_256.swf")
    assert (len(jobs), notes.jobs, notes.lines) == (10_000, 10_000, 10_000)
    assert notes.counts["several_processors"] == 7507
    assert jobs[0].submit_s == 0.0
    assert jobs[-1].submit_s == 7711701 - 5094


ROW = "0.177,user-13,stream_triad,data_processing,4.58,4000,4,16384,0.5"


def paper(tmp_path: Path, *rows: str) -> Path:
    path = tmp_path / "jobs.csv"
    path.write_text("\n".join([",".join(PAPER_COLUMNS), *rows]) + "\n")
    return path


def test_a_paper_list_is_read(tmp_path):
    (job,) = read_paper_csv(paper(tmp_path, ROW))
    assert (job.submit_s, job.user, job.job_type, job.work_s) == (0.177, "user-13", JobType.DATA_PROCESSING, 4.58)
    assert (job.gpu_memory_mib, job.cpu_cores, job.memory_mib, job.priority) == (4000, 4, 16384, 0.5)


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        (ROW.replace("4.58", "-4"), "line 3: work_s: must be a number above 0"),
        (ROW.replace("4.58", "inf"), "line 3: work_s"),
        (ROW.replace("data_processing", "gaming"), "line 3: job_type: must be one of simulation, .* not 'gaming'"),
        (ROW.replace(",0.5", ",1.5"), "line 3: priority: must be a number from 0 at most 1, not '1.5'"),
        (ROW.replace(",4,", ",4.5,"), "line 3: cpu_cores: must be a whole number from 1 to 2147483647, not '4.5'"),
        (ROW.replace("user-13", ""), "line 3: user: must be given"),
        (ROW.replace("0.177", "0.1"), "line 3: submit_s: lines must be in the order of submission"),
        ("1,2", "line 3: application: 2 values where 9 columns are expected"),
    ],
)
def test_a_malformed_row_is_refused_with_file_line_and_field(tmp_path, row, complaint):
    with pytest.raises(InvalidInput, match=rf"jobs.csv: {complaint}"):
        read_paper_csv(paper(tmp_path, ROW, row))


ALL_COLUMNS = ",".join([*PAPER_COLUMNS, *PAPER_OPTIONAL_COLUMNS])


def test_a_list_may_have_gangs_stops_and_shares(tmp_path):
    path = tmp_path / "jobs.csv"
    rows = [f"{ROW},9.5,4,2,v100_sxm2; t4,60,600,0,false,true,n1;n2,n3", f"{ROW},,,,,0,,,true,,,", f"{ROW},,,,,,,,,,,"]
    path.write_text("\n".join([ALL_COLUMNS, *rows]) + "\n")
    gang, shared, plain = read_paper_csv(path)
    assert (gang.expected_runtime_s, gang.gpu_count, gang.max_node_count) == (9.5, 4, 2)
    assert (gang.gpu_models, gang.preemptible, gang.shareable) == (("v100_sxm2", "t4"), Preemptible(60, 600, 0), False)
    assert (gang.exclusive, gang.node_ids, gang.excluded_node_ids) == (True, ("n1", "n2"), ("n3",))
    assert (shared.preemptible, shared.shareable, shared.gpu_count) == (Preemptible(), True, 1)
    assert [plain] == read_paper_csv(paper(tmp_path, ROW))


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ("-1,,,,,,,", "expected_runtime_s: must be a number above 0"),
        (",0,,,,,,", "gpu_count: must be a whole number from 1 to 1024, not '0'"),
        (",,,t4;t4,,,,", "gpu_models: must be different names with ';' between them"),
        (",,,t4;,,,,", "gpu_models: must be different names"),
        (",,,,,600,,", "lost_s: a job with it needs restart_s too, which may be 0"),
        (",,,,-1,,,", "restart_s: must be a number from 0"),
        (",,,,0,,3601,", "grace_s: must be a number from 0 at most 3600"),
        (",,,,,,,yes", "shareable: must be true or false, not 'yes'"),
        (",,,,,,,true,true", "exclusive: an exclusive job shares no GPU"),
        (",,,,,,,,,n1;n1", "node_ids: must be different names with ';' between them"),
        (",2,,,,,,true", r"shareable: only a job of one GPU can share it \(gpu_count is 2\)"),
    ],
)
def test_a_wrong_optional_field_is_named(tmp_path, values, complaint):
    path = tmp_path / "jobs.csv"
    path.write_text(f"{ALL_COLUMNS}\n{ROW},{values}{',' * (10 - values.count(','))}\n")
    with pytest.raises(InvalidInput, match=rf"jobs.csv: line 2: {complaint}"):
        read_paper_csv(path)


@pytest.mark.parametrize("name", ["paper", "gangs", "preemptive", "preemptive_240s", "shared"])
def test_a_scenarios_list_is_the_same_after_a_file(tmp_path, name):
    jobs = draw_jobs(load_scenario(name), load=0.9, rng=np.random.default_rng(3), count=200)
    path = tmp_path / "jobs.csv"
    write_paper_csv(path, jobs)
    assert format_of(path) == "paper"
    read, notes = read_trace(path, "paper", cluster=load_scenario(name).cluster)
    assert read == jobs
    assert notes.counts == {}
    header = path.read_text().partition("\n")[0]
    assert (header == ",".join(PAPER_COLUMNS)) is (name == "paper"), "only what is needed"
    with pytest.raises(InvalidInput, match="cannot be written"):
        write_paper_csv(tmp_path / "not-there" / "jobs.csv", jobs)


def test_every_field_of_a_job_survives_a_file(tmp_path):
    job = WorkloadJob(
        *(0.1 + 0.2, "user-13", 'an "app", and more', JobType.SIMULATION, 1 / 3, 0, 1, 1, 0.1),
        expected_runtime_s=2 / 3,
        gpu_count=8,
        max_node_count=2,
        gpu_models=("a", "b"),
        preemptible=Preemptible(0.3, 1e-9, None),
        exclusive=True,
        node_ids=("n1", "n2"),
        excluded_node_ids=("n3",),
    )
    shared = replace(job, gpu_count=1, shareable=True, gpu_models=(), preemptible=None, exclusive=False)
    path = tmp_path / "jobs.csv"
    write_paper_csv(path, [job, shared])
    read = read_paper_csv(path)
    assert read == [job, shared]
    assert path.read_text().splitlines()[2].endswith(",1,2,,,,true,false,n1;n2,n3"), "defaults are written out"
    # A new field of a job must be written, too.
    assert {each.name for each in fields(WorkloadJob)} == {
        *PAPER_COLUMNS,
        *PAPER_OPTIONAL_COLUMNS,
        "preemptible",
        "source_line",
    } - {"restart_s", "lost_s", "grace_s"}


def test_of_a_list_gangs_that_are_too_large_are_left_out_or_become_one_gpu(tmp_path):
    jobs = draw_jobs(load_scenario("gangs"), load=0.9, rng=np.random.default_rng(3), count=100)
    jobs[10] = replace(jobs[10], gpu_count=64)
    path = tmp_path / "jobs.csv"
    write_paper_csv(path, jobs)
    cluster = load_scenario("gangs").cluster
    kept, notes = read_trace(path, "paper", cluster=cluster)
    assert kept == jobs[:10] + jobs[11:]
    assert (notes.counts, notes.first_lines, notes.lines) == ({"too_large": 1}, {"too_large": 12}, 100)
    few, notes = read_trace(path, "paper", cluster=cluster, limit=10)
    assert (few, notes.counts, notes.jobs_in_file) == (jobs[:10], {}, 99)
    ones, notes = read_trace(path, "paper", cluster=cluster, multi_gpu="one")
    assert ones == [replace(job, gpu_count=1) for job in jobs]
    assert notes.counts == {"several_gpus": sum(job.gpu_count > 1 for job in jobs)}
    write_paper_csv(path, jobs[10:11])
    with pytest.raises(InvalidInput, match="holds no job that can run"):
        read_trace(path, "paper", cluster=cluster)


def test_a_file_of_another_kind_is_refused(tmp_path):
    path = tmp_path / "other.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(InvalidInput, match=r"other.csv: line 1: header must be submit_s,user,"):
        read_paper_csv(path)


def test_a_byte_order_mark_and_an_endless_estimate_are_no_reason_to_refuse(tmp_path):
    path = tmp_path / "trace.swf"
    path.write_text("; Version: 2\n1 5 -1 60 1 -1 -1 1 99999999 -1 1 7 1 -1 0 -1 -1 -1\n", encoding="utf-8-sig")
    (job,), notes = read_swf(path)
    assert (job.work_s, job.expected_runtime_s, notes.counts["without_requested_time"]) == (60.0, None, 1)


@pytest.mark.parametrize("content", [b"no gzip at all", gzip.compress(b"1 2 3\n" * 1000)[:-20]], ids=["none", "cut"])
def test_a_broken_gzip_file_is_named(tmp_path, content):
    path = tmp_path / "trace.swf.gz"
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match=r"trace\.swf\.gz: "):
        read_swf(path)


def test_a_number_beyond_what_a_job_can_ask_for_is_refused_by_field(tmp_path):
    path = tmp_path / "jobs.csv"
    path.write_text(",".join(PAPER_COLUMNS) + "\n0,ann,neutral,simulation,5,1e30,1,4096,0.5\n  \n")
    with pytest.raises(InvalidInput, match="line 2: gpu_memory_mib: must be a whole number from 0 to 2147483647"):
        read_paper_csv(path)
