"""A start is waited for as long as it gets on, and no longer. Time is the test's own."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from adlro.cli import starting
from adlro.cli.processes import NewLogLines, ServiceProcess
from adlro.cli.starting import SILENCE_S, StartFailed, until_serving
from tests.unit.client.fake_suite import until


class Start:
    """A service that starts: what it logs, when it serves, when it ends."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.now_s = 0.0
        self.looked = 0
        self.serving = asyncio.Event()
        self.code: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.notes: list[str] = []
        self.service = ServiceProcess("orchestrator", "none", {}, log.parent)

    def clock(self) -> float:
        """Read at the end of each look, and for each line of progress in the log."""
        self.looked += 1
        return self.now_s

    async def looks(self) -> None:
        """Until what is logged has been read, and there was a look after it."""
        enough = self.looked + 8
        await until(lambda: self.looked >= enough)

    def says(self, event: str, level: str = "info") -> None:
        with self.log.open("a") as file:
            file.write(json.dumps({"level": level, "event": event}) + "\n")

    def waited(self) -> asyncio.Task[None]:
        return asyncio.create_task(until_serving(self.service, "nowhere:1", self.notes.append))


@pytest.fixture
async def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    made = Start(tmp_path / "orchestrator.log")

    async def serving(address: str) -> None:
        await made.serving.wait()

    async def ended() -> int:
        return await asyncio.shield(made.code)

    monkeypatch.setattr(made.service, "ended", ended)
    monkeypatch.setattr(starting, "wait_until_serving", serving)
    monkeypatch.setattr(starting, "_LOOK_S", 0.005)
    monkeypatch.setattr(starting, "monotonic", made.clock)
    return made


async def test_a_start_that_gets_on_is_waited_for_however_long_it_takes(start: Start) -> None:
    waited = start.waited()
    await start.looks()
    for _ in range(20):
        start.says("starting")
        start.now_s += SILENCE_S - 1
        await start.looks()
        assert not waited.done()
    start.serving.set()
    await asyncio.wait_for(waited, 60)
    assert start.now_s > 10 * SILENCE_S


async def test_people_are_told_once_why_they_wait(start: Start) -> None:
    waited = start.waited()
    start.says("starting")
    start.says("starting")
    start.says("compiling, first start only")
    start.says("compiling, first start only")
    start.says("redis answers")
    await until(lambda: len(start.notes) == 2)
    start.serving.set()
    await asyncio.wait_for(waited, 60)
    assert start.notes == ["orchestrator: still starting", "orchestrator: compiling, first start only"]


async def test_a_long_wait_that_was_explained_is_seen_to_go_on(start: Start) -> None:
    waited = start.waited()
    start.says("compiling, first start only")
    await until(lambda: len(start.notes) == 1)
    await start.looks()
    assert len(start.notes) == 1
    for now_s in (16.0, 20.0, 32.0):
        start.now_s = now_s
        await start.looks()
    start.serving.set()
    await asyncio.wait_for(waited, 60)
    assert start.notes[1:] == [f"orchestrator: still starting, {now_s} s so far" for now_s in (16, 32)]


@pytest.mark.parametrize("level", [None, "warning", "error"])
async def test_one_that_stands_still_has_failed_and_complaints_are_no_progress(start: Start, level: str | None) -> None:
    waited = start.waited()
    await start.looks()
    start.now_s += SILENCE_S + 1
    if level is not None:
        start.says("the store does not answer", level)
    with pytest.raises(StartFailed, match="orchestrator is not serving, and has made no progress for 40 s") as failed:
        await asyncio.wait_for(waited, 60)
    assert str(start.log) in failed.value.message
    assert ("the store does not answer" in failed.value.message) == (level is not None)


async def test_one_that_ends_has_failed_with_what_it_said_last(start: Start) -> None:
    start.says("can't start", "error")
    waited = start.waited()
    start.code.set_result(1)
    with pytest.raises(StartFailed, match=r"orchestrator ended at its start \(exit code 1\)(.|\n)*can't start"):
        await asyncio.wait_for(waited, 60)


def test_each_line_of_a_log_is_read_once_and_only_when_it_is_whole(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    lines = NewLogLines(log)
    assert lines.read() == []
    log.write_text('{"event": "a"}\nno json\n[1]\n{"eve')
    assert lines.read() == [{"event": "a"}]
    assert lines.read() == []
    with log.open("a") as file:
        file.write('nt": "b"}\n{"event": "c"}\n')
    assert lines.read() == [{"event": "b"}, {"event": "c"}]
    assert lines.read() == []
