"""Columns by name, orders, and the forms of their cells."""

from __future__ import annotations

import pytest

from adlro.cli.job_listing import QUEUE, JobRow
from adlro.cli.listing.columns import chosen_columns, custom_columns, ordered
from adlro.cli.units_text import durations
from adlro.errors import InvalidInput
from adlro.records.jobs import Job, JobSpec, JobState, JobType


def row(number: int, user: str = "ada", **fields: object) -> JobRow:
    spec = JobSpec("train", user, JobType.MACHINE_LEARNING, labels={"team": "vision"})
    return JobRow(Job(f"job-{number}", spec, **fields), 100.0)  # type: ignore[arg-type]  # fields of a job


@pytest.mark.parametrize(
    ("seconds", "texts"),
    [
        ([0.0, 8.26, 99.9], ["0.0 s", "8.3 s", "99.9 s"]),
        ([8.26, 725.0, None], ["8s", "12m 05s", "-"]),
        ([8.26, 725.0, 12_005.0], ["8s", "12m 05s", "3h 20m 05s"]),
        ([8.0, 725.0, 12_005.0, 108_240.0], ["< 1m", "12m", "3h 20m", "1d 6h 04m"]),
        ([0.0, -5.0, 86_399.7], ["0m", "-< 1m", "1d 0h 00m"]),
        ([float("nan"), float("inf")], ["-", "-"]),
    ],
)
def test_the_durations_of_a_column_have_one_form(seconds: list[float | None], texts: list[str]) -> None:
    assert durations(seconds) == texts


def test_columns_are_chosen_by_name_or_heading_with_a_width() -> None:
    chosen = chosen_columns(QUEUE, "job, NAME:20,gpu/why")
    assert [(column.name, width) for column, width in chosen] == [("job", None), ("name", 20), ("where", None)]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("job,usr", ["--format", "'usr'", "did you mean user", "job, name, user"]),
        ("xyzzy", ["no column 'xyzzy'", "there are job, name"]),
        ("name:wide", ["width of name", "name:20"]),
        ("name:0", ["width of name"]),
        ("", ["no column ''"]),
    ],
)
def test_a_wrong_column_names_the_way_out(text: str, told: list[str]) -> None:
    with pytest.raises(InvalidInput) as refused:
        chosen_columns(QUEUE, text)
    assert all(part in refused.value.message for part in told), refused.value.message


def test_own_columns_are_columns_or_fields_of_the_document() -> None:
    columns = custom_columns(QUEUE, "ID=job_id,WHO=user,CORES=spec.cpu_cores,TEAM=spec.labels.team,L=spec.labels.none")
    assert [each.heading for each in columns] == ["ID", "WHO", "CORES", "TEAM", "L"]
    assert [each.value(row(7)) for each in columns] == ["job-7", "ada", 1, "vision", None]
    assert [each.cells([each.value(row(7))])[0] for each in columns] == ["job-7", "ada", "1", "vision", "-"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("ID=jobid", ["no field 'jobid'", "did you mean job_id"]),
        ("C=spec.cores", ["no field 'cores' in spec", "cpu_cores"]),
        ("ID=", ["HEADING=FIELD"]),
        ("ID=job_id,who", ["'who'", "HEADING=FIELD"]),
    ],
)
def test_a_wrong_field_names_the_way_out(text: str, told: list[str]) -> None:
    with pytest.raises(InvalidInput) as refused:
        custom_columns(QUEUE, text)
    assert all(part in refused.value.message for part in told), refused.value.message


def test_rows_are_ordered_as_people_number_things_and_unknown_ones_last() -> None:
    rows = [
        row(10, "bob"),
        row(9, "bob", state=JobState.RUNNING, submit_s=0.0, start_s=50.0),
        row(2, "ada", submit_s=90.0),
    ]
    by = QUEUE.by_name

    def ids(*keys: tuple[str, bool]) -> list[str]:
        return [each.job.job_id for each in ordered(rows, [(by[name], down) for name, down in keys])]

    assert ids(("job", False)) == ["job-2", "job-9", "job-10"]
    assert ids(("job", True)) == ["job-10", "job-9", "job-2"]
    assert ids(("user", True), ("job", False)) == ["job-9", "job-10", "job-2"]
    assert ids(("wait", True)) == ["job-9", "job-2", "job-10"]
    assert ids(("wait", False)) == ["job-2", "job-9", "job-10"]
