"""Philly, Alibaba and Gavel traces: what is read, left out and counted; complaints with file, line and field."""

from __future__ import annotations

import gzip
import hashlib
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from adlro.errors import InvalidInput
from adlro.hardware.gang_speeds import GAVEL_GANG_STEPS_PER_S
from adlro.hardware.speeds import GAVEL_APPLICATIONS, GAVEL_STEPS_PER_S
from adlro.records.jobs import JobType
from adlro.workload.demand import find_unplaceable
from adlro.workload.scenario import load_scenario
from adlro.workload.traces import (
    ALIBABA_COLUMNS,
    GAVEL_COLUMNS,
    PAPER_COLUMNS,
    PHILLY_COLUMNS,
    TRACE_FORMATS,
    format_of,
    read_alibaba,
    read_gavel,
    read_paper_csv,
    read_philly,
    read_swf,
    read_trace,
)

SHARED_DATA = Path(os.environ.get("ADLRO_SHARED_DATA", Path(__file__).parents[4] / "shared" / "data"))
needs_shared_data = pytest.mark.skipif(
    not SHARED_DATA.is_dir(), reason="no shared data; ADLRO_SHARED_DATA says where it is"
)

PHILLY = (
    "2017-09-04 10:30:41,2240194.0,8,17921552.0,7f04ca",
    "2017-09-07 03:58:57,3600,1,3600,6214e9",
    "2017-09-07 03:58:57,0,1,0,6214e9",
    "2017-09-07 03:59:07,10,0,0,6214e9",
    "2017-09-07 04:58:57.500,1.5,1,1.5,6214e9",
)
ALIBABA = (
    "openb-pod-0000,12000,16384,1,1000,,LS,Running,0,12537496,0",
    "openb-pod-0005,20000,65536,0,0,,LS,Running,100,12902960,101",
    "openb-pod-0017,88000,327680,8,1000,,Burstable,Succeeded,9437497,10769854,9437500",
    "openb-pod-0022,4152,15258,1,220,T4|P100,BE,Failed,9679175,9973826,9679175",
    "openb-pod-0061,11908,47104,1,1000,,BE,Pending,10001278,10001403,",
    "openb-pod-0062,11908,47104,1,1000,,,Succeeded,10001279,10001403,10001403",
    "openb-pod-0063,500,47104,1,1000,,,Succeeded,10001279,10001403,10001300",
)
GAVEL = (
    '"Transformer (batch size 128)",13407515,0.000000,1',
    "A3C,1000,5.5,4",
)
READERS = {
    "philly": (read_philly, PHILLY_COLUMNS, PHILLY),
    "alibaba": (read_alibaba, ALIBABA_COLUMNS, ALIBABA),
    "gavel": (read_gavel, GAVEL_COLUMNS, GAVEL),
    "paper": (read_paper_csv, PAPER_COLUMNS, ("0.177,user-13,stream_triad,data_processing,4.58,4000,4,16384,0.5",)),
}


def write(tmp_path: Path, columns, rows, name: str = "trace.csv") -> Path:
    path = tmp_path / name
    path.write_text("\n".join([",".join(columns), *rows]) + "\n")
    return path


OLD_FIELDS = (
    *("submit_s", "user", "application", "job_type", "work_s", "gpu_memory_mib", "cpu_cores", "memory_mib", "priority"),
    *("expected_runtime_s", "source_line"),
)


def digest(jobs) -> str:
    lines = "\n".join(repr([getattr(job, name) for name in OLD_FIELDS]) for job in jobs)
    return hashlib.sha256(lines.encode()).hexdigest()[:16]


def test_a_philly_trace_is_read(tmp_path):
    jobs, notes = read_philly(write(tmp_path, PHILLY_COLUMNS, PHILLY), seed=3, multi_gpu="one")
    assert [(job.submit_s, job.work_s, job.user, job.source_line) for job in jobs] == [
        (0.0, 2240194.0, "vc-7f04ca", 2),
        (235696.0, 3600.0, "vc-6214e9", 3),
        (239296.5, 1.5, "vc-6214e9", 6),
    ]
    assert (notes.lines, notes.jobs, notes.seed, notes.scenario) == (5, 3, 3, "paper")
    assert notes.counts == {"several_gpus": 1, "without_run_time": 1, "without_gpu": 1}
    assert any("drawn for each job" in sentence and "seed 3" in sentence for sentence in notes.sentences)
    scenario = load_scenario("paper")
    for job in jobs:
        assert job.application in scenario.applications(job.job_type)
        assert job.gpu_memory_mib in scenario.gpu_memory_mib[job.job_type]


def test_an_alibaba_trace_is_read(tmp_path):
    jobs, notes = read_alibaba(write(tmp_path, ALIBABA_COLUMNS, ALIBABA), multi_gpu="one")
    assert [(job.submit_s, job.work_s, job.cpu_cores, job.memory_mib) for job in jobs] == [
        (0.0, 12537496.0, 12, 16384),
        (9437497.0, 10769854.0 - 9437500.0, 11, 40960),
        (9679175.0, 9973826.0 - 9679175.0, 5, 15258),
        (10001279.0, 103.0, 1, 47104),
    ]
    assert [job.priority for job in jobs[:3]] == [1.0, 0.5, 0.25]
    assert jobs[3].priority in (0.25, 0.5, 1.0)
    assert notes.counts == {
        "without_run_time": 1,
        "never_ran": 1,
        "without_gpu": 1,
        "several_gpus_shared": 1,
        "part_of_a_gpu": 1,
        "gpu_models_asked_for": 1,
        "failed": 1,
        "ended_while_running": 1,
    }
    assert "7 lines: ask for no GPU" in " ".join(notes.sentences)


def test_a_gavel_trace_is_read(tmp_path):
    jobs, notes = read_gavel(write(tmp_path, GAVEL_COLUMNS, GAVEL), multi_gpu="one")
    first, second = jobs
    assert first.work_s == 13407515 / GAVEL_STEPS_PER_S["Transformer (batch size 128)"]["v100"]
    assert (second.application, second.job_type, second.submit_s) == ("A3C", JobType.MACHINE_LEARNING, 5.5)
    assert second.gpu_memory_mib == 0
    assert notes.counts == {"several_gpus": 1}
    assert notes.scenario == "gavel"
    on_paper, _ = read_gavel(write(tmp_path, GAVEL_COLUMNS, GAVEL), scenario=load_scenario("paper"))
    assert [job.application for job in on_paper] == [job.application for job in jobs]


@pytest.mark.parametrize("trace_format", list(READERS))
def test_a_limit_takes_the_first_and_changes_nothing_about_them(tmp_path, trace_format):
    _, columns, rows = READERS[trace_format]
    path = write(tmp_path, columns, rows)
    assert format_of(path) == trace_format
    whole, _ = read_trace(path, trace_format, seed=5)
    some, notes = read_trace(path, trace_format, seed=5, limit=1)
    assert some == whole[:1]
    assert (notes.jobs, notes.jobs_in_file, notes.trace_format) == (1, len(whole), trace_format)
    if len(whole) > 1:
        assert f"the first 1 of {len(whole)} jobs by submission" in notes.sentences
        assert read_trace(path, trace_format, seed=6)[0] != whole


def test_the_first_jobs_of_an_swf_trace_are_the_first_submitted_ones(tmp_path):
    path = tmp_path / "trace.swf"
    rows = [f"{i} {submit} -1 60 1 -1 -1 1 120 -1 1 {i} 1 -1 0 -1 -1 -1" for i, submit in enumerate((900, 100, 500))]
    path.write_text("\n".join(rows) + "\n")
    jobs, notes = read_swf(path, limit=2)
    assert [(job.user, job.submit_s) for job in jobs] == [("user-1", 0.0), ("user-2", 400.0)]
    assert notes.counts == {"out_of_order": 1}
    assert (notes.lines, notes.jobs, notes.jobs_in_file) == (2, 2, 3)
    assert jobs == read_swf(path)[0][:2]


@pytest.mark.parametrize("trace_format", list(READERS))
def test_gzipped_files_with_columns_in_another_order_are_read_too(tmp_path, trace_format):
    _, columns, rows = READERS[trace_format]
    plain, _ = read_trace(write(tmp_path, columns, rows), trace_format)
    turned = [",".join(reversed(row.split(","))) for row in (",".join(columns), *rows)]
    path = tmp_path / "turned.csv.gz"
    path.write_bytes(gzip.compress(("\ufeff" + "\r\n".join(turned) + "\r\n\r\n").encode()))
    assert read_trace(path, trace_format)[0] == plain
    assert format_of(path) == trace_format


@pytest.mark.parametrize(
    ("trace_format", "old", "new", "field", "complaint"),
    [
        ("philly", "3600,1,", "nan,1,", "duration", "line 3: duration: must be a number from 0 at most"),
        ("philly", "3600,1,", "-5,1,", "duration", "line 3: duration"),
        ("philly", "3600,1,", "1e12,1,", "duration", "line 3: duration"),
        ("philly", "3600,1,", "3600,1.5,", "num_gpus", "line 3: num_gpus: must be a whole number from 0"),
        ("philly", "3600,1,3600", "3600,1,x", "gpu_time", "line 3: gpu_time: must be a number from 0, not 'x'"),
        ("philly", "2017-09-04", "2017-09-08", "timestamp", "line 3: timestamp: lines must be in the order of"),
        ("philly", "2017-09-04", "2017-13-04", "timestamp", "line 2: timestamp: must be a time such as 2017-09-04"),
        ("philly", "7f04ca", "", "cluster", "line 2: cluster: must be given"),
        ("philly", "7f04ca", "a b", "cluster", "line 2: cluster: must be up to 61 letters"),
        ("philly", ",7f04ca", "", "cluster", "line 2: cluster: 4 values where 5 columns are expected"),
        ("philly", ",7f04ca", ",7f04ca,1", "cluster", "line 2: cluster: 6 values where 5 columns are expected"),
        (
            "philly",
            "num_gpus",
            "gpus",
            "num_gpus",
            "line 1: header must be timestamp,.* num_gpus: the column is missing",
        ),
        ("philly", "cluster", "cluster,x", "x", "line 1: header must be timestamp,.*: x: the column is unknown"),
        ("philly", "cluster", "cluster,cluster", "cluster", "line 1: .* cluster: the column is given twice"),
        ("alibaba", "327680,8,", "327680,-8,", "num_gpu", "line 4: num_gpu"),
        ("alibaba", "12000,", "inf,", "cpu_milli", "line 2: cpu_milli: must be a number from 0"),
        ("alibaba", "1000,,LS,Running,0,", "1001,,LS,Running,0,", "gpu_milli", "line 2: gpu_milli"),
        ("alibaba", "Burstable", "Bursting", "qos", "line 4: qos: must be one of LSE, .* not 'Bursting'"),
        ("alibaba", "Succeeded", "Done", "pod_phase", "line 4: pod_phase: must be one of Pending, .* not 'Done'"),
        ("alibaba", "10769854", "10", "deletion_time", "line 4: deletion_time: must be a number from 9.4375e"),
        ("alibaba", "10769854", "", "deletion_time", "line 4: deletion_time"),
        (
            "alibaba",
            "9679175,9973826",
            "9,9973826",
            "creation_time",
            "line 5: creation_time: lines must be in the order",
        ),
        (
            "alibaba",
            ",creation_time,deletion_time,scheduled_time",
            "",
            "creation_time",
            "creation_time: the column is mi",
        ),
        ("gavel", "A3C", "A4C", "job_type", "line 3: job_type: must be one of Gavel's configurations .* not 'A4C'"),
        ("gavel", "1000", "0", "total_steps", "line 3: total_steps: must be a number above 0"),
        ("gavel", "1000", "1_000", "total_steps", "line 3: total_steps"),
        ("gavel", "5.5", "-1", "arrival_s", "line 3: arrival_s"),
        ("gavel", "5.5,4", "5.5,0", "scale_factor", "line 3: scale_factor: must be a whole number from 1"),
        (
            "gavel",
            "0.000000",
            "6",
            "arrival_s",
            "line 3: arrival_s: lines must be in the order of submission, but '5.5'",
        ),
        ("paper", "user-13", "a b", "user", "line 2: user: must be up to 64 letters"),
        ("paper", "stream_triad", "s\x01", "application", "line 2: application: must be up to 128 characters"),
    ],
)
def test_bad_input_is_refused_with_file_line_and_field(tmp_path, trace_format, old, new, field, complaint):
    _, columns, rows = READERS[trace_format]
    path = tmp_path / "trace.csv"
    text = "\n".join([",".join(columns), *rows]) + "\n"
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(InvalidInput, match=rf"trace\.csv: .*{complaint}") as caught:
        read_trace(path, trace_format)
    assert caught.value.field == field


@pytest.mark.parametrize("trace_format", TRACE_FORMATS)
@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xef\xbb\xbf", "only a header"])
def test_empty_files_are_refused(tmp_path, trace_format, content):
    path = tmp_path / "trace.csv"
    if isinstance(content, str):
        content = b"; no jobs\n" if trace_format == "swf" else ",".join(READERS[trace_format][1]).encode()
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match=r"trace\.csv: line [12]: \w+: ") as caught:
        read_trace(path, trace_format)
    assert caught.value.field


def test_a_trace_without_a_job_that_ran_is_refused_with_the_reasons(tmp_path):
    path = write(tmp_path, PHILLY_COLUMNS, [PHILLY[2], PHILLY[3]])
    with pytest.raises(
        InvalidInput, match=r"trace\.csv: holds no job that can run: 2 job lines, of which 1 have no run"
    ):
        read_philly(path)


@pytest.mark.parametrize("trace_format", list(READERS))
def test_files_in_another_encoding_are_refused_with_the_line(tmp_path, trace_format):
    _, columns, rows = READERS[trace_format]
    text = "\n".join([",".join(columns), rows[0].replace(",", "\xe9,", 1)])
    path = tmp_path / "trace.csv"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(InvalidInput, match=r"trace\.csv: line 2: is not UTF-8 \(byte 0xe9\)"):
        read_trace(path, trace_format)
    path.write_text(text, encoding="utf-16")
    with pytest.raises(InvalidInput, match=r"trace\.csv: line 1: is not UTF-8"):
        read_trace(path, trace_format)


def test_an_swf_file_in_another_encoding_is_refused_by_field_but_its_comments_may_be(tmp_path):
    path = tmp_path / "trace.swf"
    job = "1 500 -1 60 4 -1 -1 4 120 -1 1 7 1 -1 0 -1 -1 -1\n"
    path.write_bytes(b"; M\xfcnchen\n" + job.encode())
    assert len(read_swf(path)[0]) == 1
    path.write_text(job, encoding="utf-16")
    with pytest.raises(InvalidInput, match=r"trace\.swf: line 1: \w+: "):
        read_swf(path)


@pytest.mark.parametrize("trace_format", TRACE_FORMATS)
def test_a_truncated_gzip_file_is_refused(tmp_path, trace_format):
    path = tmp_path / "trace.csv.gz"
    path.write_bytes(gzip.compress(b"a,b\n" * 500)[:-12])
    with pytest.raises(InvalidInput, match=r"trace\.csv\.gz: cannot be read: "):
        read_trace(path, trace_format)


def test_other_formats_and_limits_are_refused(tmp_path):
    path = write(tmp_path, GAVEL_COLUMNS, GAVEL)
    with pytest.raises(InvalidInput, match="must be one of swf, philly, alibaba, gavel, paper, not 'csv'"):
        read_trace(path, "csv")
    with pytest.raises(InvalidInput, match="the number of jobs must be at least 1, not 0"):
        read_trace(path, "gavel", limit=0)


def test_what_a_name_tells_of_a_format(tmp_path):
    assert format_of(tmp_path / "x.swf.gz") == "swf"
    assert format_of(tmp_path / "x.txt") is None
    assert format_of(write(tmp_path, ["a", "b"], [])) == "paper"


@pytest.mark.parametrize(
    ("trace_format", "columns"),
    [
        ("philly", PHILLY_COLUMNS),
        ("alibaba", ALIBABA_COLUMNS),
        ("gavel", GAVEL_COLUMNS),
        ("paper", PAPER_COLUMNS),
    ],
)
def test_a_missing_column_is_complained_of_in_the_format_it_is_missing_from(tmp_path, trace_format, columns):
    for missing in columns:
        left = [name for name in columns if name != missing]
        path = write(tmp_path, left, [])
        assert format_of(path) == trace_format, missing
        with pytest.raises(InvalidInput, match=missing):
            read_trace(path, trace_format)


@needs_shared_data
@pytest.mark.slow
def test_the_philly_trace_is_read_whole():
    jobs, notes = read_philly(SHARED_DATA / "traces" / "philly_first_half.csv", multi_gpu="one")
    assert (len(jobs), notes.lines) == (41123, 41123)
    assert notes.counts == {"several_gpus": 41123 - 39276}
    assert len({job.user for job in jobs}) == 12
    # As it was before jobs could have several GPUs: published results rest on it.
    assert digest(jobs) == "c530c0aefd24b6ca"
    gangs, notes = read_philly(SHARED_DATA / "traces" / "philly_first_half.csv")
    assert notes.counts["gangs"] == 41123 - 39276
    sizes = Counter(job.gpu_count for job in gangs)
    assert (sizes[1], sizes[2], sizes[4], sizes[8]) == (39276, 678, 565, 541)
    assert [replace(job, gpu_count=1) for job in gangs if job.gpu_count == 1] == [
        job for job, gang in zip(jobs, gangs, strict=True) if gang.gpu_count == 1
    ]
    on_64, notes = read_philly(
        SHARED_DATA / "traces" / "philly_first_half.csv", cluster=load_scenario("gangs_64").cluster
    )
    assert notes.counts.get("too_large", 0) + len(on_64) == 41123
    assert max(job.gpu_count for job in on_64) == 32
    assert find_unplaceable(load_scenario("gangs_64").cluster, on_64) is None


@needs_shared_data
@pytest.mark.parametrize("name", ["11cb48", "6214e9"])
def test_gavels_traces_are_read_whole(name):
    jobs, notes = read_gavel(SHARED_DATA / "traces" / f"{name}.csv", multi_gpu="one")
    assert (len(jobs), notes.lines) == (2000, 2000)
    assert digest(jobs) == {"11cb48": "3a444d6d5828caad", "6214e9": "5800506970ee1574"}[name]
    assert {job.application for job in jobs} == set(GAVEL_APPLICATIONS)


@pytest.mark.parametrize(
    ("trace_format", "sizes", "key", "alone"),
    [
        ("philly", [8, 1, 1], "gangs", "several_gpus"),
        ("alibaba", [1, 8, 1, 1], "gangs", "several_gpus_shared"),
        ("gavel", [1, 4], "gangs", "several_gpus"),
    ],
)
def test_jobs_of_several_gpus_keep_them_unless_one_is_asked_for(tmp_path, trace_format, sizes, key, alone):
    _, columns, rows = READERS[trace_format]
    path = write(tmp_path, columns, rows)
    gangs, notes = read_trace(path, trace_format, seed=3)
    ones, said = read_trace(path, trace_format, seed=3, multi_gpu="one")
    assert [job.gpu_count for job in gangs] == sizes
    assert {job.gpu_count for job in ones} == {1}
    assert (notes.counts[key], said.counts[alone]) == (1, 1)
    assert key not in said.counts
    assert alone not in notes.counts
    assert (gangs, notes) == read_trace(path, trace_format, seed=3, multi_gpu="gang")
    # Jobs of one GPU are the same, whatever becomes of the others.
    for gang, one in zip(gangs, ones, strict=True):
        if gang.gpu_count == 1:
            assert gang == one
        else:
            assert (gang.user, gang.application, gang.priority) == (one.user, one.application, one.priority)


def test_a_pod_keeps_its_share_of_cores_and_memory_with_each_gpu(tmp_path):
    jobs, _ = read_alibaba(write(tmp_path, ALIBABA_COLUMNS, ALIBABA))
    assert (jobs[1].gpu_count, jobs[1].cpu_cores, jobs[1].memory_mib) == (8, 11, 40960)


def test_gavel_s_steps_run_at_the_measured_speed_of_so_many_gpus(tmp_path):
    rows = ('"LM (batch size 10)",1000,0,8', '"LM (batch size 10)",1000,1,16', "A3C,1000,5.5,4")
    jobs, notes = read_gavel(write(tmp_path, GAVEL_COLUMNS, rows))
    on_eight = GAVEL_GANG_STEPS_PER_S["LM (batch size 10)", 8]
    assert on_eight == 615.0934647748222
    assert [job.work_s for job in jobs] == [
        1000 / on_eight,
        1000 / (2 * on_eight),
        1000 / (4 * GAVEL_STEPS_PER_S["A3C"]["v100"]),
    ]
    assert (notes.counts["gangs"], notes.counts["steps_assumed"]) == (3, 2)
    assert "2 of 3 lines: were not measured on as many GPUs" in " ".join(notes.sentences)


PHILLY_GANGS = tuple(
    f"2017-09-07 03:58:{second:02d},3600,{gpus},3600,6214e9" for second, gpus in enumerate((9, 1, 8, 4, 64, 2, 1))
)


def test_what_is_too_large_for_the_cluster_is_left_out_and_said(tmp_path):
    path = write(tmp_path, PHILLY_COLUMNS, PHILLY_GANGS)
    cluster = load_scenario("paper").cluster
    whole, _ = read_philly(path, seed=3)
    assert [job.gpu_count for job in whole] == [9, 1, 8, 4, 64, 2, 1]
    jobs, notes = read_philly(path, seed=3, cluster=cluster)
    assert [job.gpu_count for job in jobs] == [1, 8, 4, 2, 1]
    assert [job.submit_s for job in jobs] == [0.0, 1.0, 2.0, 4.0, 5.0]  # counted from the first that is left
    assert (notes.lines, notes.jobs, notes.jobs_in_file) == (7, 5, 5)
    assert (notes.counts["too_large"], notes.counts["gangs"], notes.first_lines) == (2, 3, {"too_large": 2})
    said = "2 of 7 lines (the first: line 2): ask for more GPUs of one model than the cluster can give them"
    assert said in " ".join(notes.sentences)
    assert find_unplaceable(cluster, jobs) is None
    # The drawn values of the rest are as they would be without a cluster.
    alike = [replace(job, submit_s=0.0) for job in whole if job.gpu_count not in (9, 64)]
    assert [replace(job, submit_s=0.0) for job in jobs] == alike
    some, told = read_philly(path, seed=3, cluster=cluster, limit=3)
    assert some == jobs[:3]
    assert (told.jobs, told.jobs_in_file, told.counts["too_large"], told.lines) == (3, 6, 1, 4)
    with pytest.raises(InvalidInput, match=r"holds no job that can run: 1 job lines, of which 1 ask for more GPUs"):
        read_philly(write(tmp_path, PHILLY_COLUMNS, PHILLY_GANGS[:1], "large.csv"), cluster=cluster)


def test_drawn_cores_of_a_gang_are_at_most_a_gpu_s_share_of_a_node(tmp_path):
    rows = [f"2017-09-07 03:{number // 60:02d}:{number % 60:02d},3600,8,3600,6214e9" for number in range(60)]
    path = write(tmp_path, PHILLY_COLUMNS, rows)
    cluster = load_scenario("paper").cluster
    for each in (None, cluster):
        jobs, notes = read_philly(path, seed=3, cluster=each)
        assert len(jobs) == 60
        assert max(job.cpu_cores for job in jobs) == 5
        assert notes.counts["share_of_a_node"] == sum(
            one.cpu_cores > 5 for one in read_philly(path, seed=3, multi_gpu="one")[0]
        )
    roomy, _ = read_philly(path, seed=3, cluster=load_scenario("gangs").cluster)
    assert max(job.cpu_cores for job in roomy) == 16
    # A trace's own figures are left as they are.
    pods, _ = read_alibaba(write(tmp_path, ALIBABA_COLUMNS, ALIBABA, "pods.csv"))
    assert pods[1].cpu_cores == 11


def test_swf_has_processors_and_they_become_gpus_only_if_asked_for(tmp_path):
    path = tmp_path / "trace.swf"
    path.write_text(
        "1 0 -1 60 4 -1 -1 -1 120 -1 1 1 1 -1 0 -1 -1 -1\n2 5 -1 60 -1 -1 -1 1 120 -1 1 1 1 -1 0 -1 -1 -1\n"
    )
    ones, notes = read_trace(path, "swf")
    assert [job.gpu_count for job in ones] == [1, 1]
    assert notes.counts == {"several_processors": 1}
    gangs, notes = read_trace(path, "swf", multi_gpu="gang")
    assert [job.gpu_count for job in gangs] == [4, 1]
    assert notes.counts["gangs_of_processors"] == 1


def test_there_is_no_third_way(tmp_path):
    for trace_format, (_, columns, rows) in READERS.items():
        with pytest.raises(InvalidInput, match="multi_gpu: must be gang or one, not 'split'") as caught:
            read_trace(write(tmp_path, columns, rows), trace_format, multi_gpu="split")
        assert caught.value.field == "multi_gpu"
