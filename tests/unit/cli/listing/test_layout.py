"""What is cut where, on narrow screens, with long names, wide letters and many rows."""

from __future__ import annotations

import io
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from adlro.cli.job_listing import HISTORY, QUEUE, job_rows, job_table
from adlro.cli.listing.layout import TextTable, fitted
from adlro.cli.listing.options import make_view
from adlro.placement import NOWHERE, Placement
from adlro.records.events import Clock, ClockMode
from adlro.records.jobs import Job, JobReservation, JobSpec, JobState, JobType, PendingReason
from adlro.terminal import PlainConsole

CLOCK = Clock(ClockMode.REAL, 1.0, False, 2_000_000.0)
NAMES = ["x" * 253, "训练" * 100, "🚀" * 120, "é́́" * 60, "bert"]


def jobs(count: int = 5) -> list[Job]:
    made = []
    for number in range(count):
        running = number % 2 == 1
        spec = JobSpec(NAMES[number % len(NAMES)], ("ada", "grace-hopper-of-the-navy", "博士" * 10)[number % 3],
                       JobType.MACHINE_LEARNING, gpu_count=1 + 3 * (number % 2))  # fmt: skip
        made.append(
            Job(
                f"job-{number + 1000}",
                spec,
                JobState.RUNNING if running else JobState.PENDING,
                PendingReason.NONE if running else PendingReason.RESOURCES,
                message="" if running else "no idle GPU with 20 GiB has 8 free cores on its node",
                submit_s=1_000.0 * number,
                start_s=1_500_000.0 if running else None,
                placement=Placement.on(*(f"volta-{number}/{gpu}" for gpu in range(4))) if running else NOWHERE,
            )
        )
    return made


def printed(table: TextTable[Any], width: int) -> list[str]:
    console = PlainConsole(width=width, file=io.StringIO())
    console.print(table, soft_wrap=True)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]  # a StringIO
    return text.splitlines()


@pytest.mark.parametrize("width", [80, 100, 120, 160])
@pytest.mark.parametrize("listing", [QUEUE, HISTORY], ids=["queue", "history"])
def test_names_and_reasons_are_cut_and_figures_never(width: int, listing: Any) -> None:
    rows = job_rows(jobs(), CLOCK)
    lines = printed(TextTable(make_view(listing).columns(width, rows), rows), width)
    assert len(lines) == 6
    assert all(cell_len(line) <= width for line in lines), lines
    assert "USER" in lines[0]
    text = "\n".join(lines)
    for figure in ("job-1000", "job-1004", "23d 3h 33m", "5d 18h 53m"):
        assert figure in text
    assert "…" in text
    assert "ada" in text


def test_a_wide_screen_shows_all() -> None:
    lines = printed(job_table(jobs(), CLOCK, width=10_000), 10_000)
    assert "x" * 253 in lines[1]
    assert "no idle GPU with 20 GiB has 8 free cores on its node" in lines[1]


def test_ten_thousand_jobs_are_printed_within_seconds() -> None:
    many = jobs(10_000)
    began_s = time.process_time()
    lines = printed(job_table(many, CLOCK, width=80), 80)
    assert len(lines) == 10_001
    assert all(cell_len(line) <= 80 for line in lines)
    assert time.process_time() - began_s < 20


def test_a_chosen_width_cuts_texts_and_never_figures() -> None:
    view = make_view(QUEUE, columns="job:3,name:6,wait:2")
    rows = job_rows(jobs(1), CLOCK)
    lines = printed(TextTable(view.columns(80), rows, [width for _, width in view.chosen]), 80)
    assert lines[1] == "job-1000  xxxxx…  23d 3h 33m"


def test_headings_can_be_left_out() -> None:
    rows = job_rows(jobs(1), CLOCK)
    assert printed(TextTable(make_view(QUEUE, columns="job").columns(80), rows, header=False), 80) == ["job-1000"]


def test_a_table_without_rows_has_its_headings() -> None:
    assert printed(TextTable(make_view(QUEUE, columns="job,user").columns(80), []), 80) == ["JOB  USER"]


@given(st.text(max_size=40), st.integers(0, 30))
def test_what_is_cut_fits(text: str, width: int) -> None:
    assert cell_len(fitted(text, width)) <= width
    if cell_len(text) <= width:
        assert fitted(text, width) == text


def test_a_long_name_leaves_room_for_the_reason() -> None:
    held = JobReservation("job-2", 40.0, "v100_sxm2", ("volta-0",), 700.0, 3, 4)
    waits = jobs(1)[0]
    lines = printed(job_table([waits], None, {waits.job_id: held}, width=200), 200)
    assert "reserved from about 11m 40s of cluster time" in lines[1]
