"""Tables of jobs and GPUs: as lists, as text, in notebooks, and as DataFrames."""

from __future__ import annotations

import html.parser
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from adlro.client import AsyncClient, Client, JobTable
from adlro.client.tables import moment_unix_s, seconds_text, states_of
from adlro.errors import InvalidInput
from adlro.placement import Placement
from adlro.records.events import GpuCondition
from adlro.records.jobs import Job, JobAttempt, JobSpec, JobState, JobType, PendingReason
from adlro.records.payloads import EndReason, ExitStatus
from tests.unit.client.fake_suite import FakeSuite

NOW_S = 1_800_000_000.0


def job(number: int, state: JobState = JobState.SUCCEEDED, name: str = "resnet", **fields: Any) -> Job:
    ended = {"submit_s": 10.0, "start_s": 25.0, "end_s": 115.0} if state.final else {}
    place = Placement.on("volta-0/0")
    attempt = JobAttempt(1, place, "v100_sxm2", 25.0, 115.0, exit=ExitStatus(EndReason.EXITED, 3))
    given: dict[str, Any] = {"attempts": (attempt,) if state.final else (), "created_unix_s": NOW_S, **ended, **fields}
    return Job(f"job-{number}", JobSpec(name, "ada", "ml", labels={"team": "vision"}), state, **given)


TABLE = JobTable([job(2, JobState.FAILED), job(1, JobState.PENDING, pending_reason=PendingReason.RESOURCES)])


def test_a_table_is_a_sequence_of_jobs() -> None:
    assert [each.job_id for each in TABLE] == ["job-2", "job-1"]
    assert (len(TABLE), TABLE[0], TABLE[-1].job_id) == (2, job(2, JobState.FAILED), "job-1")
    assert isinstance(TABLE[:1], JobTable)
    assert TABLE[:1] == JobTable([TABLE[0]])
    assert TABLE[0] in TABLE
    assert JobTable() == JobTable([])
    assert not JobTable()


def test_a_table_prints_as_one() -> None:
    lines = str(TABLE).splitlines()
    headings = "ID     NAME    USER  TYPE              STATE    REASON     GPUS  MODEL  SUBMITTED"
    assert lines[0] == f"{headings}            WAITED  RAN     EXIT"
    assert lines[1].startswith("job-2  resnet  ada   machine_learning  failed   -          1     -      2027-01-15 ")
    assert lines[1].endswith("15.0 s  90.0 s  3")
    assert "pending  resources" in lines[2]
    assert repr(TABLE) == str(TABLE)
    assert str(JobTable()) == repr(JobTable()) == "no jobs"
    assert max(map(len, lines)) <= 120


class Cells(html.parser.HTMLParser):
    """The tags of a text, and what stands between them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        assert not attrs
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_texts_of_others_are_only_text_in_a_notebook() -> None:
    evil = '<script>alert("x")</script><b onload=1>\x1b[2J&amp;'
    found = Cells(JobTable([job(1, name=evil)])._repr_html_())
    assert set(found.tags) == {"table", "thead", "tbody", "tr", "th", "td"}
    shown = next(each for each in found.texts if "script" in each)
    assert shown == '<script>alert("x")</script><b onload=...'
    assert "\x1b" not in str(JobTable([job(1, name=evil[-12:])]))
    assert Cells(JobTable()._repr_html_()).texts == ["no jobs"]


def test_a_long_table_is_shortened_and_says_so() -> None:
    table = JobTable(job(number) for number in range(1000))
    assert str(table).endswith("... and 960 more; to_dicts() and to_pandas() have all")
    assert len(str(table).splitlines()) == 42
    found = Cells(table._repr_html_())
    assert (found.tags.count("tr"), found.texts[-1][:16]) == (101, "... and 900 more")
    assert len(table.to_dicts()) == 1000


def test_dictionaries_have_plain_values() -> None:
    failed, waits = TABLE.to_dicts()
    told = {
        "job_id": "job-2",
        "state": "failed",
        "job_type": "machine_learning",
        "gpu_ids": None,
        "waited_s": 15.0,
        "runtime_s": 90.0,
        "exit_code": 3,
    }
    assert {name: failed[name] for name in told} == told
    assert (waits["reason"], waits["start_s"], waits["labels"]) == ("resources", None, {"team": "vision"})
    assert type(failed["state"]) is str


def test_a_frame_has_all_columns_and_real_times() -> None:
    pandas = pytest.importorskip("pandas")
    frame = TABLE.to_pandas()
    assert list(frame["job_id"]) == ["job-2", "job-1"]
    assert frame["created"][0] == pandas.Timestamp(NOW_S, unit="s", tz="UTC")
    assert frame.loc[frame.state == "failed", "runtime_s"].mean() == 90.0
    empty = JobTable().to_pandas()
    assert (len(empty), list(empty.columns)) == (0, list(frame.columns))


def test_without_pandas_the_way_out_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InvalidInput, match="pip install pandas; to_dicts needs nothing"):
        TABLE.to_pandas()


@pytest.mark.parametrize(
    ("given", "unix_s"),
    [
        ("2h", NOW_S - 7200),
        (90, NOW_S - 90),
        (timedelta(days=1), NOW_S - 86400),
        (datetime(2027, 1, 15, 8, 0, tzinfo=UTC), 1_800_000_000.0),
        ("2027-01-15T08:00:00+00:00", 1_800_000_000.0),
        ("2027-01-15", datetime(2027, 1, 15).timestamp()),  # noqa: DTZ001  # local time is meant
    ],
)
def test_a_moment_is_a_time_or_how_long_ago(given: Any, unix_s: float) -> None:
    assert moment_unix_s(given, "since", NOW_S) == unix_s


@pytest.mark.parametrize("given", ["yesterday-ish", None, True, [1]])
def test_what_is_no_moment_is_told(given: Any) -> None:
    with pytest.raises(InvalidInput, match=r"^since: .* is no time: write a datetime"):
        moment_unix_s(given, "since", NOW_S)


def test_states_have_names_and_groups() -> None:
    assert states_of("running", "state") == (JobState.RUNNING,)
    assert states_of(["active", JobState.FAILED, "pending"], "state") == (
        JobState.PENDING,
        JobState.RUNNING,
        JobState.FAILED,
    )
    assert states_of((), "state") == ()
    with pytest.raises(InvalidInput, match=r"^state: 'finished' is none of pending, running"):
        states_of("finished", "state")


def test_durations_keep_their_minutes() -> None:
    assert [seconds_text(each) for each in (0.0, 99.9, 725.0, 12000.0, 108240.0)] == [
        "0.0 s",
        "99.9 s",
        "12m 05s",
        "3h 20m",
        "1d 6h 04m",
    ]


@pytest.fixture
def client(suite: FakeSuite) -> Iterator[Client]:
    with Client(endpoints=suite.endpoints) as opened:
        yield opened


async def test_jobs_come_newest_first_by_state_user_and_time(suite: FakeSuite, client: Client) -> None:
    for number, user in enumerate(("ada", "bob", "ada", "ada")):
        suite.add(JobSpec(f"j{number}", user, JobType.SIMULATION))
    suite.start("job-3")
    suite.end("job-3", ExitStatus(EndReason.EXITED))
    assert [each.job_id for each in client.jobs()] == ["job-4", "job-3", "job-2", "job-1"]
    assert [each.job_id for each in client.jobs(user="ada", state="active")] == ["job-4", "job-1"]
    assert [each.job_id for each in client.jobs(state=["succeeded"])] == ["job-3"]
    assert [each.job_id for each in client.jobs(limit=2)] == ["job-4", "job-3"]
    assert [each.job_id for each in client.jobs(limit=0)] == []
    async with AsyncClient(endpoints=suite.endpoints) as other:
        assert await other.jobs(user="bob") == client.jobs(user="bob")
        with pytest.raises(InvalidInput, match="until: 'soon' is no time"):
            await other.jobs(until="soon")


def test_gpus_say_what_they_do(suite: FakeSuite, client: Client) -> None:
    suite.drained, suite.drain_reasons = ["turing-0"], {"turing-0": "a new fan"}
    suite.gpu_conditions = (GpuCondition("volta-0/1", "fell off the bus"),)
    table = client.gpus()
    assert (table[0].gpu_id, table[0].state) == ("volta-0/0", "idle")
    assert table.to_dicts()[-1] == {
        "gpu_id": "turing-0/0",
        "node_id": "turing-0",
        "gpu_model": "rtx_2080_ti",
        "memory_mib": 11264,
        "state": "drained",
        "job_ids": None,
        "reason": "a new fan",
    }
    assert "11.0 GiB  drained  -    a new fan" in str(table)
