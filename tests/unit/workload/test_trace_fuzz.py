"""Whatever the bytes, a reader gives jobs in order or InvalidInput with the file's name; never anything else."""

from __future__ import annotations

import contextlib
import gzip
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adlro.errors import InvalidInput
from adlro.workload.traces import (
    ALIBABA_COLUMNS,
    GAVEL_COLUMNS,
    PAPER_COLUMNS,
    PAPER_OPTIONAL_COLUMNS,
    PHILLY_COLUMNS,
    TRACE_FORMATS,
    format_of,
    read_trace,
)

COLUMNS = {
    "swf": (),
    "philly": PHILLY_COLUMNS,
    "alibaba": ALIBABA_COLUMNS,
    "gavel": GAVEL_COLUMNS,
    "paper": (*PAPER_COLUMNS, *PAPER_OPTIONAL_COLUMNS),
}
GOOD = {
    "swf": ["1", "500", "-1", "60", "4", "-1", "-1", "4", "120", "-1", "1", "7", "1", "-1", "0", "-1", "-1", "-1"],
    "philly": ["2017-09-07 03:58:57", "3600", "1", "3600", "6214e9"],
    "alibaba": ["pod", "12000", "16384", "1", "1000", "", "LS", "Running", "0", "12537496", "0"],
    "gavel": ["A3C", "1000", "5.5", "1"],
    "paper": [
        *("0.177", "user-13", "stream_triad", "data_processing", "4.58", "4000", "4", "16384", "0.5"),
        *("9.5", "1", "2", "a;b", "60", "600", "10", "true"),
    ],
}

NEAR_MISSES = (
    *("0", "1", "-1", "2", "4.0", "1e308", "1e999", "nan", "inf", "-inf", "", " ", "1_0", "0x1", "9" * 400, "٣"),
    *("2017-09-04 10:30:41", "0001-01-01T00:00:00+14:00", "9999-12-31", "A3C", "LS", "Running", "Pending"),
    *("neutral", "simulation", "0.5", "500", "1000", '"', '"\n"', "\x00", "\r", "; c", "1;", "\ufeff"),
)
TEXTS = st.one_of(
    st.sampled_from(NEAR_MISSES),
    st.floats(allow_nan=True).map(repr),
    st.integers().map(str),
    st.text(max_size=8),
)


def check(path, trace_format):
    with contextlib.suppress(InvalidInput):
        format_of(path)
    refused = None
    try:
        jobs, notes = read_trace(path, trace_format, limit=20)
    except InvalidInput as error:
        refused = error
    if refused is not None:
        assert str(path) in refused.message
        assert refused.field
        return
    assert len(jobs) == notes.jobs > 0
    assert [job.submit_s for job in jobs] == sorted(job.submit_s for job in jobs)
    for job in jobs:
        assert 0 <= job.submit_s < math.inf
        assert 0 < job.work_s < math.inf
        assert job.cpu_cores >= 1
        assert job.memory_mib >= 1
        assert job.gpu_memory_mib >= 0
        assert 0 <= job.priority <= 1
    assert notes.sentences or trace_format == "paper"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz")


@pytest.mark.parametrize("trace_format", TRACE_FORMATS)
@given(st.binary(max_size=400), st.booleans(), st.integers(0, 12))
@settings(max_examples=60, deadline=None)
def test_any_bytes(folder, trace_format, content, packed, cut):
    for header in (b"", ",".join(COLUMNS[trace_format]).encode() + b"\n"):
        data = header + content
        path = folder / ("trace.csv.gz" if packed else "trace.csv")
        path.write_bytes(gzip.compress(data)[: -cut or None] if packed else data)
        check(path, trace_format)


@pytest.mark.parametrize("trace_format", TRACE_FORMATS)
@given(st.lists(st.lists(st.tuples(st.integers(0, 17), TEXTS), max_size=2), min_size=1, max_size=4))
@settings(max_examples=100, deadline=None)
def test_good_lines_with_fields_changed(folder, trace_format, changes):
    lines = [",".join(COLUMNS[trace_format])]
    for changed in changes:
        fields = list(GOOD[trace_format])
        for number, text in changed:
            fields[number % len(fields)] = text
        lines.append((" " if trace_format == "swf" else ",").join(fields))
    path = folder / "trace.csv"
    path.write_bytes("\n".join(lines).encode("utf-8", errors="surrogatepass"))
    check(path, trace_format)
