"""The screen, driven by keys and mouse without a terminal, on a fake suite."""

from __future__ import annotations

import asyncio
import functools
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import grpc
import numpy as np
import pytest
from textual.pilot import Pilot

from adlro.cli.top import feeds
from adlro.cli.top.job_rows import JobSearch, RowOrder
from adlro.cli.top.lines import plain
from adlro.cli.top.screen.app import TopApp
from adlro.cli.top.screen.drawn_lines import LineBlock, LineTable
from adlro.client import AsyncClient, health
from adlro.errors import PermissionDenied
from adlro.records.jobs import JobSpec, JobState, JobType
from adlro.records.matrices import DriftSummary, GpuDrift
from adlro.records.telemetry import Metric
from adlro.v1.decompose_service_pb2 import CLUSTER_STATE_VIEW_PLANES
from adlro.v1.orchestrator_service_pb2 import EventLag
from adlro.wire import PlanesNow
from tests.unit.client.fake_suite import CLUSTER, FakeSuite

SIZES = [(80, 24), (200, 60)]
HOSTILE = "[red]\x1b[31m[@click=app.quit]out\u202e\n[/]"


def spec(name: str = "train", user: str = "ada") -> JobSpec:
    return JobSpec(name=name, user=user, job_type=JobType.MACHINE_LEARNING)


@asynccontextmanager
async def shown(
    suite: FakeSuite, size: tuple[int, int] = (140, 40), *, search: str = "", job_count: int | None = None
) -> AsyncIterator[tuple[TopApp, Pilot[int]]]:
    """The running program, once it knows the jobs."""
    client = AsyncClient(endpoints=suite.endpoints, patience_s=0.0, timeout_s=10.0)
    app = TopApp(client, JobSearch(search), RowOrder.JOB, 0.1)
    async with app.run_test(size=size, notifications=True) as pilot:
        wanted = len(suite.jobs) if job_count is None else job_count
        await until(lambda: len(app.rows) == wanted and app.model.jobs_complete)
        await pilot.pause()
        yield app, pilot


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - it changes in other threads
            await asyncio.sleep(0.02)


def screen_text(app: TopApp) -> str:
    """What stands on the screen, line by line."""
    width, height = app.size
    strips = app.screen._compositor.render_strips()
    assert len(strips) <= height
    lines = ["".join(segment.text for segment in strip) for strip in strips]
    assert all(len(line) <= width or not line.isascii() for line in lines)
    return "\n".join(line.rstrip() for line in lines)


async def until_shown(app: TopApp, text: str) -> None:
    await until(lambda: text in screen_text(app))


@pytest.mark.parametrize("size", SIZES)
async def test_one_screen_has_head_gpus_jobs_and_keys(suite: FakeSuite, size: tuple[int, int]) -> None:
    for number in range(3):
        suite.add(spec(f"train-{number}"))
    suite.start("job-2")
    async with shown(suite, size) as (app, pilot):
        await until(lambda: bool(app.cells))
        await pilot.pause(0.3)
        text = screen_text(app)
        for wanted in (
            "ADLRO default",
            "decided by sjf",
            "1/3 GPUs",
            "v100_sxm2 2",
            "train-2",
            "resources",
            "volta-0/0",
        ):
            assert wanted in text, text
        last = text.splitlines()[-2:]
        assert "q quit" in "".join(last)
        assert "/ filter" in "".join(last)


async def test_names_are_shown_as_text_whatever_they_are(suite: FakeSuite) -> None:
    suite.add(spec(HOSTILE, "[bold]eve"))
    async with shown(suite) as (app, pilot):
        await until(lambda: "[red]\\x1b[31m[@click=app.quit]" in screen_text(app))
        for keys, page in ((["enter"], "OneJobPage"), (["escape", "c"], "CancelQuestion")):
            await pilot.press(*keys)
            await until(lambda: "[red]\\x1b[31m" in screen_text(app))
            assert type(app.screen).__name__ == page
        await pilot.press("n")
        await pilot.pause()
        app.note(HOSTILE)
        await pilot.pause(0.2)
        assert "\\x1b" in screen_text(app)
        assert app.is_running


async def test_filter_as_it_is_typed_kept_and_taken_away(suite: FakeSuite) -> None:
    for name in ("sim", "resnet", "net[u]"):
        suite.add(spec(name))
    async with shown(suite) as (app, pilot):
        await pilot.press("slash", *"net")
        await until(lambda: [each.name for each in app.rows] == ["net[u]", "resnet"])
        await pilot.press("enter")
        assert isinstance(app.focused, LineTable)
        assert "2 of 3 jobs" in screen_text(app)
        await pilot.press("s")  # a key again, no letter of the filter
        assert app.search.text == "net"
        await pilot.press("escape")
        assert len(app.rows) == 3


async def test_it_starts_with_a_filter(suite: FakeSuite) -> None:
    suite.add(spec("one", "ada"))
    suite.add(spec("two", "bob"))
    async with shown(suite, search="user:bob", job_count=1) as (app, _):
        assert [each.name for each in app.rows] == ["two"]
        assert "filter user:bob" in screen_text(app)


async def test_sort_reverse_waiting_metric_and_pause(suite: FakeSuite) -> None:
    for number in range(3):
        suite.add(spec(f"train-{number}"))
    suite.start("job-1")
    async with shown(suite) as (app, pilot):
        await until(lambda: app.model.count(JobState.RUNNING) == 1)
        await pilot.press("S")
        assert [each.number for each in app.rows] == [1, 2, 3]
        await pilot.press("s")
        assert (app.order, app.reverse) == (RowOrder.STATE, False)
        assert [each.number for each in app.rows] == [2, 3, 1]
        await pilot.press("w")
        assert [each.number for each in app.rows] == [2, 3]
        await pilot.press("w", "m")
        await pilot.pause(0.2)
        assert "utilization:" in screen_text(app)
        await pilot.press("p")
        await pilot.pause(0.2)
        assert "PAUSED" in screen_text(app)
        suite.add(spec("late"))
        await until(lambda: "job-4" in app.model.entries)
        await pilot.pause(0.3)
        assert "late" not in screen_text(app)
        await pilot.press("p")
        await until(lambda: "late" in screen_text(app))


async def test_the_selection_stays_with_its_job(suite: FakeSuite) -> None:
    for number in range(4):
        suite.add(spec(f"train-{number}"))
    async with shown(suite) as (app, pilot):
        table = app.jobs_page.table
        await pilot.press("down", "down")
        assert table.selected == "job-2"
        suite.add(spec("new"))  # on top
        await until(lambda: len(table.keys) == 5)
        assert table.selected == "job-2"
        suite.change("job-2", state=JobState.SUCCEEDED)
        await until(lambda: len(table.keys) == 4)
        assert table.selected == "job-1"  # what took its place
        await pilot.press("home")
        assert table.selected == "job-5"
        suite.add(spec("newest"))
        await until(lambda: table.selected == "job-6")  # nobody chose another one
        await pilot.press("down", "up")
        suite.add(spec("still newer"))
        await until(lambda: len(table.keys) == 6)
        assert table.selected == "job-6"


async def test_thousands_of_jobs_scroll_and_the_selected_one_is_seen(suite: FakeSuite) -> None:
    for number in range(300):
        suite.add(spec(f"train-{number}"))
    async with shown(suite, (80, 24)) as (app, pilot):
        table = app.jobs_page.table
        await pilot.press("end")
        await pilot.pause(0.2)
        assert table.selected == "job-1"
        assert "job-1 " in screen_text(app)
        await pilot.press("pageup")
        assert table.selected in table.visible_keys
        await pilot.press("home")
        await pilot.pause(0.2)
        assert "job-300" in screen_text(app)


async def test_a_page_without_its_table_yet_shows_no_jobs(suite: FakeSuite) -> None:
    """On a busy machine it may come more than a second after the sources begin, which then ask for runtimes."""
    async with AsyncClient(endpoints=suite.endpoints) as client:
        assert TopApp(client).jobs_on_screen() == ()


async def test_enter_explains_a_waiting_job(suite: FakeSuite) -> None:
    suite.add(spec())
    async with shown(suite) as (app, pilot):
        await pilot.press("enter")
        await until(lambda: "Predicted runtime" in screen_text(app))
        text = screen_text(app)
        assert "Why it waits" in text
        assert "resources" in text
        assert "15 busy" in text
        assert "in 3m 0s to 9m 0s" in text  # as told at 100 s: 280 s to 640 s
        assert "(83% of the last 200 such forecasts came in)" in text
        assert "ask for 4 cores: 1 GPU fits now" in text
        assert suite.calls["ExplainDecision"] == 0
        assert "Esc back" in text
        await pilot.press("escape")
        assert app.screen is app.jobs_page


async def test_enter_shows_how_a_job_runs_and_what_it_writes(suite: FakeSuite) -> None:
    from adlro.records.payloads import Payload, Process

    suite.add(
        JobSpec(name="p", user="ada", job_type=JobType.MACHINE_LEARNING, payload=Payload(Process(("true",), "/")))
    )
    suite.start("job-1")
    suite.write("job-1", b"epoch 1\nloss \x1b[31m0.5\n")
    async with shown(suite) as (app, pilot):
        await pilot.press("enter")
        await until(lambda: "epoch 1" in screen_text(app))
        text = screen_text(app)
        assert "loss \\x1b[31m0.5" in text
        assert "Course" in text
        assert "97 %" in text  # of its GPU


async def test_gpus_decisions_and_help_are_pages_with_a_way_back(suite: FakeSuite) -> None:
    suite.add(spec())
    suite.start("job-1")
    async with shown(suite) as (app, pilot):
        await until(lambda: bool(app.cells))
        for key, wanted in (("g", "turing-0/0"), ("d", "d-1"), ("question_mark", "the mouse wheel scrolls")):
            await pilot.press(key)
            await until_shown(app, wanted)
        await pilot.press("escape", "enter")
        await until(lambda: "shortest of the jobs that fit" in screen_text(app))
        await pilot.press("escape", "escape", "enter")
        await until(lambda: "Course" in screen_text(app))  # of the job on the first GPU
        await pilot.press("escape", "escape", "escape")
        assert app.screen is app.jobs_page


async def test_decisions_are_watched_only_while_somebody_looks(suite: FakeSuite) -> None:
    """Each costs the orchestrator work."""
    suite.add(spec())
    async with shown(suite) as (app, pilot):
        await pilot.pause(0.5)
        assert suite.calls["WatchDecisions"] == 0
        await pilot.press("d")
        await until(lambda: suite.calls["WatchDecisions"] == 1)
        await pilot.press("escape")
        await pilot.pause()
        assert not [each for each in app.workers if each.node is not app and each.is_running]


async def test_cancel_asks_first(suite: FakeSuite) -> None:
    for _ in range(2):
        suite.add(spec())
    async with shown(suite) as (app, pilot):
        for key in ("escape", "n", "enter", "x"):
            await pilot.press("c")
            assert "Cancel job-2 (train, of ada), which is waiting?" in screen_text(app)
            await pilot.press(key)
            assert app.screen is app.jobs_page
        assert suite.calls["CancelJob"] == 0
        await pilot.press("c", "y")
        await until(lambda: suite.jobs["job-2"].state is JobState.CANCELLED)
        await until(lambda: [each.number for each in app.rows] == [1])
        assert suite.calls["CancelJob"] == 1


async def test_a_refused_cancel_is_told(suite: FakeSuite) -> None:
    suite.add(spec())
    suite.fail("CancelJob", PermissionDenied("job-1 is [b]ada's; only he or an operator may cancel it"))
    async with shown(suite, (200, 60)) as (app, pilot):
        await pilot.press("c", "y")
        await until(lambda: "job-1 is not cancelled" in screen_text(app))
        assert "[b]ada's" in screen_text(app)


async def test_the_mouse_selects_opens_sorts_and_presses_keys(suite: FakeSuite) -> None:
    for _ in range(3):
        suite.add(spec())
    async with shown(suite) as (app, pilot):
        await pilot.click(LineTable, offset=(3, 2))
        assert app.jobs_page.table.selected == "job-2"
        await pilot.click(LineTable, offset=(3, 0))
        assert app.reverse
        await pilot.click(LineTable, offset=(3, 2), times=2)
        assert type(app.screen).__name__ == "OneJobPage"
        await pilot.click("#hints", offset=(1, 0))  # Esc
        assert app.screen is app.jobs_page
        text = "".join(plain(line) for line in app.jobs_page.query_one("#hints", LineBlock).lines)
        await pilot.click("#hints", offset=(text.index("g GPUs"), 0))
        assert type(app.screen).__name__ == "GpusPage"


async def test_another_size_of_the_terminal(suite: FakeSuite) -> None:
    suite.add(spec())
    async with shown(suite, (200, 60)) as (app, pilot):
        assert "PRIO" in screen_text(app)
        await pilot.resize_terminal(80, 24)
        await pilot.pause(0.3)
        text = screen_text(app)
        assert "PRIO" not in text
        assert "REASON" in text
        await pilot.resize_terminal(20, 6)
        await pilot.pause(0.3)
        assert app.is_running


async def test_no_colour_where_none_is_wanted(suite: FakeSuite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    suite.add(spec())
    async with shown(suite) as (app, pilot):
        await until(lambda: bool(app.cells))
        await pilot.pause(0.3)
        assert app.no_color
        ground = app.screen.background_colors[1]
        for strip in app.screen._compositor.render_strips():
            for segment in functools.reduce(lambda made, each: made.apply_filter(each, ground), app._filters, strip):
                style = segment.style
                assert style is None or (style.color is None or style.color.is_default), segment
                assert style is None or (style.bgcolor is None or style.bgcolor.is_default), segment


async def test_a_service_that_goes_and_comes_back(suite: FakeSuite) -> None:
    suite.add(spec())
    async with shown(suite) as (app, _):
        await until(lambda: "live" in screen_text(app))
        suite.fail("WatchStatus", *[grpc.StatusCode.UNAVAILABLE] * 200)
        suite.break_streams()
        await until(lambda: "decider away" in screen_text(app))
        await until(lambda: "! decider:" in screen_text(app))
        assert "decided by sjf" in screen_text(app)  # the last data stay
        suite.failures["WatchStatus"].clear()
        await until(lambda: "decider away" not in screen_text(app))


async def test_a_watch_that_breaks_goes_on_where_it_was(suite: FakeSuite) -> None:
    suite.add(spec())
    async with shown(suite) as (app, _):
        suite.break_streams()
        suite.add(spec("after"))
        await until(lambda: len(app.rows) == 2)
        suite.break_streams()
        suite.oldest_revision = 100  # what was missed is no longer stored
        suite.change("job-1", state=JobState.SUCCEEDED)
        await until(lambda: [each.name for each in app.rows] == ["after"])


async def test_a_submitter_gets_his_own_jobs_and_sees_why(suite: FakeSuite) -> None:
    suite.add(spec())
    told = PermissionDenied("ada is submitter; it needs the role reader", reason="ROLE_MISSING")
    for method in ("WatchStatus", "DescribeCluster", "WatchClusterState", "ExplainDecision", "PredictRuntime"):
        suite.fail(method, *[told] * 100)
    async with shown(suite) as (app, pilot):
        await until(lambda: app.model.own_jobs_only)
        await until(lambda: "your own jobs only: ada has the roles submitter and reader" in screen_text(app))
        await until_shown(app, "free GPUs: v100_sxm2 1/2 (nodes with up to 16 cores, 128.0 GiB)   rtx_2080_ti 0/1")
        await until_shown(app, "in 3m-9m")  # of the job, as told at 100 s
        assert "your jobs: running 0   waiting 1" in screen_text(app)
        assert "!" not in screen_text(app)
        await pilot.press("g")
        await until(lambda: "GPUs: your token shows only your own jobs" in screen_text(app))
        await pilot.press("escape", "enter")
        await until(lambda: "in 3m 0s to 9m 0s" in screen_text(app))
        assert "resources" in screen_text(app)


async def test_a_submitter_of_a_suite_of_an_earlier_release_is_told_which_service_is_too_old(suite: FakeSuite) -> None:
    suite.add(spec())
    told = PermissionDenied("ada is submitter; it needs the role reader", reason="ROLE_MISSING")
    for method in ("WatchStatus", "DescribeCluster", "WatchClusterState"):
        suite.fail(method, *[told] * 100)
    suite.fail("GetClusterCapacity", *[grpc.StatusCode.UNIMPLEMENTED] * 100)
    async with shown(suite, (200, 60)) as (app, _):
        await until_shown(app, "the orchestrator is of an earlier release than this command")
        assert "your own jobs only: ada is submitter" in screen_text(app)


async def test_a_suite_of_an_earlier_release_is_asked_as_before(suite: FakeSuite) -> None:
    suite.add(spec())
    suite.start("job-1")
    suite.add(spec())
    for method in ("WatchStatus", "ListDecisions", "ExplainWaiting"):
        suite.fail(method, *[grpc.StatusCode.UNIMPLEMENTED] * 100)
    async with shown(suite) as (app, pilot):
        await until_shown(app, "decided by sjf")
        await until(lambda: bool(app.cells) and bool(app.cells[0].ratios))  # the fake's matrix has no short form
        assert suite.calls["GetStatus"] >= 1
        await pilot.press("enter")
        await until_shown(app, "turing-0/0: busy with job-12 for about 8 s")
        await until_shown(app, "no expected start: the orchestrator is of an earlier release")
        await pilot.press("escape", "d")
        await until_shown(app, "d-1")


async def test_gpus_are_read_in_short_and_shown_in_their_units(suite: FakeSuite) -> None:
    ratio = np.array([0.5, 0.25, np.nan], np.float32)
    gpus = tuple((gpu.gpu_id, node.node_id, gpu.gpu_model) for node, gpu in CLUSTER.gpus())
    planes = {Metric.UTILIZATION: ratio, Metric.POWER: ratio, Metric.MEMORY_USED: ratio}
    suite.planes = PlanesNow("default", 3, 5.0, gpus, planes, {}, {0: GpuDrift(0.5, False, 0.9, 7)}, DriftSummary())
    suite.add(spec())
    async with shown(suite) as (app, pilot):
        await until(lambda: bool(app.cells) and bool(app.cells[0].raw))
        assert [each.view for each in suite.state_requests] == [CLUSTER_STATE_VIEW_PLANES]
        first, second, third = app.cells
        assert first.raw[Metric.POWER] == pytest.approx(150.0, abs=1.2)  # of 300 W
        assert second.raw[Metric.MEMORY_USED] == pytest.approx(16160 / 4, abs=64)
        assert (third.raw, third.ratios) == ({}, {})
        assert first.drift.job_count == 7
        await pilot.press("g")
        await until_shown(app, "150 W")


async def test_the_orchestrators_lag_is_told(suite: FakeSuite) -> None:
    suite.add(spec())
    suite.event_lag = EventLag(unapplied_count=412, oldest_unapplied_s=0.4, newest_revision=512)
    async with shown(suite) as (app, _):
        await until_shown(app, "events behind 412 for 0.4 s")
        assert "!" not in screen_text(app)
        suite.event_lag = EventLag(unapplied_count=500, oldest_unapplied_s=3.0, newest_revision=600)
        await until_shown(app, "! the orchestrator is 500 events behind the cluster, the oldest of 3.0 s ago")


@pytest.mark.parametrize(("key", "code"), [("q", 0), ("ctrl+c", 130)])
async def test_ways_out(suite: FakeSuite, key: str, code: int) -> None:
    async with shown(suite) as (app, pilot):
        await pilot.press("d", key)
        await until(lambda: not app.is_running)
    assert (app.return_value or 0) == code


def test_other_commands_do_not_import_textual_nor_the_rest_of_top() -> None:
    code = "import adlro.cli.app, sys; print([m for m in sys.modules if m.startswith(('textual', 'adlro.cli.top.'))])"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told.strip() == "['adlro.cli.top.command']"


async def test_a_service_without_health_is_judged_by_its_answers(
    suite: FakeSuite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a cluster may be that somebody wrote in another language."""

    async def never(check: health.ServingCheck, _timeout_s: float) -> bool:
        checked.append(check.address)
        return False

    checked: list[str] = []
    monkeypatch.setattr(health.ServingCheck, "serves", never)
    monkeypatch.setattr(feeds, "_CHECK_EVERY_S", 0.05)
    suite.add(spec())
    async with shown(suite) as (app, _):
        await until(lambda: len(checked) > 9)
        await until(lambda: "live" in screen_text(app))
        assert "away" not in screen_text(app)


async def test_a_service_that_stands_still_is_told_though_its_streams_are_open(
    suite: FakeSuite, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving = [True]

    async def serves(_check: health.ServingCheck, _timeout_s: float) -> bool:
        return serving[0]

    monkeypatch.setattr(health.ServingCheck, "serves", serves)
    monkeypatch.setattr(feeds, "_CHECK_EVERY_S", 0.05)
    suite.add(spec())
    async with shown(suite) as (app, _):
        await until(lambda: "live" in screen_text(app))
        await asyncio.sleep(0.2)
        serving[0] = False
        await until(lambda: "jobs away" in screen_text(app))
        await until(lambda: "does not serve" in screen_text(app))
        serving[0] = True
        await until(lambda: "jobs away" not in screen_text(app))
