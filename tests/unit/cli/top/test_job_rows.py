"""The rows of the job table: filter, order, texts and widths."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from adlro.cli.top.job_rows import (
    Expected,
    JobEntry,
    JobSearch,
    Moment,
    RowOrder,
    cells_of,
    columns_for,
    order_named,
    ordered,
    row_text,
    short_seconds,
)
from adlro.errors import InvalidInput
from adlro.records.jobs import JobType, PendingReason
from tests.unit.cli.top.records import running, spec, waiting

NOW = Moment(100.0, 1000.0)
ENTRIES = [
    JobEntry(waiting(1, submit_s=50.0, spec=spec("resnet", "ada", priority=0.9, labels={"team": "vision"}))),
    JobEntry(waiting(2, submit_s=20.0, spec=spec("bert", "bob"), pending_reason=PendingReason.NO_FITTING_GPU)),
    JobEntry(running(3, 2, "volta-0/1", submit_s=5.0, start_s=30.0, spec=spec("resnet", "bob", priority=0.1))),
    JobEntry(running(10, 2, "turing-0/0", submit_s=6.0, start_s=10.0, spec=spec("sim", job_type=JobType.SIMULATION))),
]


def ids(entries: list[JobEntry]) -> list[int]:
    return [each.number for each in entries]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", [1, 2, 3, 10]),
        ("resnet", [1, 3]),
        ("RESNET bob", [3]),
        ("user:bob", [2, 3]),
        ("!user:bob", [1, 10]),
        ("!resnet", [2, 10]),
        ("state:waiting", [1, 2]),
        ("state:pending", [1, 2]),
        ("type:simulation", [10]),
        ("type:ml", [1, 2, 3]),
        ("reason:fitting", [2]),
        ("gpu:volta", [3]),
        ("label:team=vision", [1]),
        ("id:job-1", [1, 10]),
        ("user:", [1, 2, 3, 10]),  # half typed
        ("!", [1, 2, 3, 10]),
        ("nobody:here", []),  # no field: searched for as it stands
    ],
)
def test_filter(text: str, found: list[int]) -> None:
    assert sorted(ids(ordered(ENTRIES, JobSearch(text), RowOrder.STATE))) == found


@pytest.mark.parametrize(
    ("order", "found"),
    [
        (RowOrder.STATE, [2, 1, 10, 3]),
        (RowOrder.WAIT, [2, 1, 3, 10]),
        (RowOrder.PRIORITY, [1, 2, 10, 3]),
        (RowOrder.RUNTIME, [10, 3, 1, 2]),
        (RowOrder.USER, [1, 10, 2, 3]),
        (RowOrder.JOB, [10, 3, 2, 1]),
    ],
)
def test_order(order: RowOrder, found: list[int]) -> None:
    assert ids(ordered(ENTRIES, JobSearch(), order)) == found
    assert ids(ordered(list(reversed(ENTRIES)), JobSearch(), order)) == found
    assert ids(ordered(ENTRIES, JobSearch(), order, reverse=True)) == found[::-1]


def test_waiting_only() -> None:
    assert ids(ordered(ENTRIES, JobSearch(), RowOrder.JOB, waiting_only=True)) == [2, 1]


def test_the_orders_go_round_and_unknown_ones_name_the_known() -> None:
    order, seen = RowOrder.STATE, set()
    for _ in RowOrder:
        seen.add(order)
        order = order.next
    assert (order, seen) == (RowOrder.STATE, set(RowOrder))
    with pytest.raises(InvalidInput, match="state, wait, priority"):
        order_named("size")


def test_what_changes_with_time_is_made_when_drawn() -> None:
    cells = cells_of(ENTRIES[2], NOW, Expected(200.0, 100.0, 300.0))
    assert (cells["WAIT"], cells["RUN/EXP"], cells["GPU"]) == ("25s", "70s /   3m", "volta-0/1")
    assert cells_of(ENTRIES[0], NOW, None)["WAIT"] == "50s"
    assert cells_of(ENTRIES[0], NOW, None)["RUN/EXP"] == ""


def test_without_the_clusters_time_a_wait_is_wall_time() -> None:
    entry = JobEntry(waiting(1, submit_s=None, created_unix_s=940.0))
    assert cells_of(entry, Moment(None, 1000.0), None)["WAIT"] == "60s"
    assert cells_of(ENTRIES[2], Moment(None, 1000.0), None)["RUN/EXP"] == ""


@given(st.integers(60, 240), st.text(max_size=40), st.text(max_size=20))
def test_a_row_fills_the_screen_whatever_its_texts_are(width: int, name: str, user: str) -> None:
    columns = columns_for(width)
    entry = JobEntry(waiting(1, spec=spec(name, user)))
    line = " ".join(row_text(cells_of(entry, NOW, None), columns))
    assert cell_len(line) == width
    assert not set(line) & {"\x1b", "\n", "\u202e"}


def test_a_narrow_screen_leaves_out_what_is_less_wanted() -> None:
    assert "PRIO" in {each.head for each in columns_for(100)}
    assert "PRIO" not in {each.head for each in columns_for(99)}


@given(st.floats(0, 1e9))
def test_durations_take_five_columns_at_most(value_s: float) -> None:
    assert len(short_seconds(value_s)) <= 6
    assert short_seconds(None) == short_seconds(float("nan")) == "-"


@pytest.mark.parametrize(
    ("value_s", "text"), [(0.0, "0s"), (99.0, "99s"), (100.0, "1m"), (5999.0, "99m"), (12000.0, "3h20"), (4e5, "4d15h")]
)
def test_durations(value_s: float, text: str) -> None:
    assert short_seconds(value_s) == text
