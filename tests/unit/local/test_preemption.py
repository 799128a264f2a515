"""Real programs that are stopped for others: never two on a GPU, none lost, also where the service is killed."""

from __future__ import annotations

import asyncio
import json
import os
import random
import tempfile
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from adlro.attempt.journal import STOP
from adlro.clusterside.kept import Kept
from adlro.errors import Conflict
from adlro.placement import Placement
from adlro.records.events import EventKind
from adlro.records.jobs import AttemptRef, Preemptible
from adlro.records.payloads import LogStream
from adlro.services.local import driver as driver_module
from adlro.services.local.cleaning import clean
from adlro.services.local.ends import PEER_ENDED
from tests.unit.local.bench import Bench, shell, spec_of

TWO_NODES = "a=v100_sxm2:2,b=v100_sxm2:2"
# Says that it was asked to end, takes its time, and ends in good order.
SAVES = "trap 'sleep 0.2; echo saved; exit 0' TERM; echo began; while :; do sleep 0.02; done"
# Ends by force alone.
DEAF = "trap '' TERM; echo began; while :; do sleep 0.05; done"


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Bench]:
    made = Bench(tmp_path, fake_gpus=TWO_NODES)
    await made.begin()
    yield made
    await made.end()


def launch(
    bench: Bench,
    job_id: str,
    script: str,
    *numbers: int,
    stops: tuple[str, ...] = (),
    attempt: int = 1,
    resumes: bool = False,
    grace_s: float | None = 20.0,
    payload_grace_s: float = 1.0,
    **more: Any,
) -> Any:
    gpu_ids = [gpu.gpu_id for _, gpu in bench.driver.cluster.gpus()]
    payload = shell(script, payload_grace_s, **more)
    spec = spec_of(payload, gpu_count=len(numbers), preemptible=Preemptible(grace_s=grace_s))
    refs = [AttemptRef(each, 1) for each in stops]
    placement = Placement.on(*(gpu_ids[each] for each in numbers))
    return bench.side.launch(job_id, attempt, spec, placement, 0, preempts=refs, resumes=resumes)


async def output(bench: Bench, job_id: str, attempt: int = 1, rank: int = 0) -> str:
    return (await bench.driver.read_log(job_id, attempt, LogStream.STDOUT, 0, 65536, rank)).data.decode()


async def speaks(bench: Bench, job_id: str, ranks: int = 1) -> None:
    """Its programs have set their traps."""
    for rank in range(ranks):
        await bench.says(job_id, "began", rank)


def order(bench: Bench, *kinds: str) -> list[str]:
    return [f"{each.kind.name} {each.job_id}" for each in bench.all_events() if each.kind.name in kinds]


async def test_a_program_is_asked_to_end_and_the_next_begins_when_it_has(bench):
    launch(bench, "job-1", SAVES, 0)
    await speaks(bench, "job-1")
    assert launch(bench, "job-2", "exit 0", 0, stops=("job-1",)).state.name == "ACCEPTED"
    end = await bench.ended("job-1")
    assert (end.kind, end.message, end.exit.code) == (EventKind.PREEMPTED, "for job-2", 0)
    assert "saved" in await output(bench, "job-1")
    await bench.ended("job-2")
    assert order(bench, "PREEMPTED", "STARTED", "FINISHED") == [
        *("STARTED job-1", "PREEMPTED job-1", "STARTED job-2", "FINISHED job-2"),
    ]


async def test_the_grace_is_that_of_a_preemption_and_force_comes_after_it(bench):
    launch(bench, "job-1", DEAF, 0, grace_s=0.3, payload_grace_s=600.0)
    launch(bench, "job-2", DEAF, 1, grace_s=None, payload_grace_s=1.0)
    for each in ("job-1", "job-2"):
        await speaks(bench, each)
    asked_s = bench.driver.present_s()
    launch(bench, "job-3", "exit 0", 0, 1, stops=("job-1", "job-2"))
    first = await bench.ended("job-1")  # within a minute, so its payload's grace does not count
    second = await bench.ended("job-2")
    assert (first.exit.signal, second.exit.signal) == (9, 9)
    assert first.time_s - asked_s >= 0.3
    assert second.time_s - asked_s >= 1.0, "it has the payload's grace"
    await bench.ended("job-3")
    assert bench.left() == {}


async def test_several_programs_are_stopped_together_for_one_that_has_several(nodes):
    launch(nodes, "job-1", SAVES, 0, 2)
    launch(nodes, "job-2", SAVES, 1)
    await speaks(nodes, "job-1", ranks=2)
    await speaks(nodes, "job-2")
    launch(nodes, "job-3", "exit 0", 0, 1, 2, stops=("job-1", "job-2"))
    await nodes.ended("job-3")
    assert [nodes.kinds(each)[-1] for each in ("job-1", "job-2", "job-3")] == ["PREEMPTED", "PREEMPTED", "FINISHED"]
    assert ["saved" in await output(nodes, "job-1", rank=rank) for rank in (0, 1)] == [True, True]
    assert order(nodes, "PREEMPTED", "STARTED")[-1] == "STARTED job-3"


async def test_ranks_that_were_not_told_yet_have_the_grace_of_the_preemption_too(nodes, monkeypatch):
    """The first rank ends before the stop of the second one is written down."""
    from adlro.attempt.attempts import Attempts

    stop, stops, held = Attempts._stop, list[tuple[str, float | None]](), threading.Event()

    def late(self: Attempts, name: str, reason: Any, detail: str, grace_s: float | None) -> None:
        if name.endswith(".r1") and not detail:
            assert held.wait(30.0), "nobody else has ended it"
        stop(self, name, reason, detail, grace_s)
        if name.endswith(".r1"):
            held.set()
        stops.append((name[-2:], grace_s))

    monkeypatch.setattr(Attempts, "_stop", late)
    launch(nodes, "job-1", SAVES, 0, 2, grace_s=7.0)
    await speaks(nodes, "job-1", ranks=2)
    launch(nodes, "job-2", "exit 0", 2, stops=("job-1",))
    end = await nodes.ended("job-1")
    assert (end.kind, end.message) == (EventKind.PREEMPTED, "for job-2")
    first, second = (
        json.loads((nodes.attempts / each / STOP).read_text()) for each in nodes.names if each.startswith("job-1")
    )
    assert (first["detail"], first.get("grace_s")) == ("", 7.0)
    assert (second["detail"].startswith(PEER_ENDED), second.get("grace_s")) == (True, 7.0)
    # Threads write the stops down: which of them comes first, and which is the last to return, is nobody's promise.
    await nodes.until(lambda: len(stops) == 3)
    assert sorted(stops, key=str) == [("r0", 7.0), ("r1", 7.0), ("r1", 7.0)]
    await nodes.ended("job-2")


async def test_who_ends_by_itself_before_it_is_asked_has_ended(bench):
    launch(bench, "job-1", "exit 0", 0)
    launch(bench, "job-2", "exit 3", 1)
    await bench.until(lambda: all(bench.view(each).exit for each in bench.names) and len(bench.names) == 2)
    # Whatever is asked for now comes too late.
    for each in bench.side.open_attempts():
        each.stop_asked = each.preempt_asked = True
    assert ((await bench.ended("job-1")).kind, (await bench.ended("job-2")).kind) == (
        EventKind.FINISHED,
        EventKind.FAILED,
    )


async def test_a_user_who_cancels_meanwhile(bench):
    launch(bench, "job-1", SAVES, 0)
    await speaks(bench, "job-1")
    launch(bench, "job-2", "exit 0", 0, stops=("job-1",))
    assert bench.side.stop("job-1", 1, 0)
    assert (await bench.ended("job-1")).kind is EventKind.STOPPED
    await bench.ended("job-2")
    launch(bench, "job-3", DEAF, 0, grace_s=0.2)
    await speaks(bench, "job-3")
    launch(bench, "job-4", "exit 0", 0, stops=("job-3",))
    assert bench.side.stop("job-4", 1, 0)
    assert (await bench.ended("job-3")).message == "on request"
    assert bench.kinds("job-4") == ["STOPPED"]
    assert not [each for each in bench.names if each.startswith("job-4")]


async def test_a_gpu_that_fails_while_its_program_ends_keeps_the_next_from_beginning(bench):
    launch(bench, "job-1", DEAF, 0, grace_s=0.5)
    await speaks(bench, "job-1")
    launch(bench, "job-2", "exit 0", 0, stops=("job-1",))
    gpu_id = next(bench.driver.cluster.gpus())[1].gpu_id
    bench.driver.gpu_lost(gpu_id, "it fell off the bus", loses_attempt=False)
    assert bench.kinds("job-2") == ["LOST"]
    assert (await bench.ended("job-1")).kind is EventKind.PREEMPTED
    assert not [each for each in bench.names if each.startswith("job-2")]


# ---- what programs are given to go on


async def test_all_attempts_of_a_job_have_one_directory_and_a_resumed_one_is_told(bench):
    launch(bench, "job-1", f'echo "$ADLRO_ATTEMPT/$ADLRO_RESUMED" >>"$ADLRO_JOB_DIR/log"; {SAVES}', 0)
    launch(bench, "job-9", 'echo "$ADLRO_JOB_DIR"; ls "$ADLRO_JOB_DIR"; stat -c %a "$ADLRO_JOB_DIR"', 1)
    await speaks(bench, "job-1")
    assert bench.side.stop("job-1", 1, 0, preempt=True)
    await bench.ended("job-1")
    show = 'echo "$ADLRO_ATTEMPT/$ADLRO_RESUMED" >>"$ADLRO_JOB_DIR/log"; cat "$ADLRO_JOB_DIR/log"'
    # Another program of that id, as a store that was rolled back may give it, sees nothing of it.
    launch(bench, "job-1", f"{show} 2>&1", 0, attempt=2, resumes=True)
    await bench.ended("job-1", 2)
    assert await output(bench, "job-1", 2) == "2/1\n"
    script = f'echo "$ADLRO_ATTEMPT/$ADLRO_RESUMED" >>"$ADLRO_JOB_DIR/log"; {SAVES}'
    launch(bench, "job-1", script, 0, attempt=3, resumes=True)
    jobs = bench.folder / "local" / "jobs"

    def logs() -> list[str]:
        return sorted(path.read_text() for path in jobs.glob("job-1.*/log"))

    await bench.until(lambda: logs() == ["1/\n3/1\n", "2/1\n"])
    bench.side.stop("job-1", 3, 0)
    await bench.ended("job-1", 3)
    await bench.ended("job-9")
    first, mode = (await output(bench, "job-9")).split()
    assert first.startswith(str(jobs / "job-9."))
    assert mode == "700", "it is empty, and its owner's alone"


async def test_a_directory_goes_with_the_logs_of_a_job_that_is_over_and_stays_for_one_that_goes_on(bench):
    keeps = 'echo kept >"$ADLRO_JOB_DIR/file"; '
    launch(bench, "job-1", keeps + SAVES, 0)
    launch(bench, "job-2", keeps, 1)
    await speaks(bench, "job-1")
    assert bench.side.stop("job-1", 1, 0, preempt=True)
    for each in ("job-1", "job-2"):
        await bench.ended(each)
    jobs = bench.folder / "local" / "jobs"
    assert len(list(jobs.glob("*/file"))) == 2
    await bench.restart()
    bench.side.acknowledge(bench.side.incarnation, bench.side.log.revision, 0)

    async def cleaned(keep_days: float) -> None:
        driver = bench.driver
        await clean(driver._known, driver._runners, driver._gates, driver._job_dirs, bench.side, keep_days, 0)

    await cleaned(30.0)
    assert bench.names == []
    (left,) = jobs.iterdir()
    assert left.name.startswith("job-1.")
    launch(bench, "job-1", keeps + SAVES, 0, attempt=2, resumes=True)
    await bench.until(lambda: bench.kinds("job-1").count("RUNNING") == 2)
    await cleaned(0.0)
    assert left.exists(), "it has an attempt"
    bench.side.stop("job-1", 2, 0, preempt=True)
    await bench.ended("job-1", 2)
    bench.side.acknowledge(bench.side.incarnation, bench.side.log.revision, 0)
    await cleaned(30.0)
    assert left.exists()
    os.utime(left, (0.0, 0.0))
    await cleaned(30.0)
    assert list(jobs.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs programs as others")
async def test_a_directory_belongs_to_the_programs_user():
    with tempfile.TemporaryDirectory() as folder:  # pytest's own folders let nobody else through
        bench = Bench(Path(folder), who="* nobody\n")
        await bench.begin()
        launch(bench, "job-1", 'touch "$ADLRO_JOB_DIR/mine" && stat -c "%U %a" "$ADLRO_JOB_DIR"', 0)
        assert (await bench.ended("job-1")).kind is EventKind.FINISHED
        assert await output(bench, "job-1") == "nobody 700\n"
        await bench.end()


# ---- over kills of the service


class KilledError(BaseException):
    """The service is killed here."""


MOMENTS = ("accepted", "told one", "told all", "one has ended", "all have ended", "start written down", "runs")


@pytest.mark.parametrize("moment", MOMENTS)
async def test_the_service_is_killed_at_each_moment_of_a_preemption(nodes, moment, monkeypatch):
    """It begins again from what the store has: none of its programs runs twice, or beside another one."""
    log = nodes.folder / "log"
    says = f'echo "+$ADLRO_JOB_ID.$ADLRO_ATTEMPT" >>{log}; '
    ends = f"trap 'sleep 0.1; echo \"-$ADLRO_JOB_ID.$ADLRO_ATTEMPT\" >>{log}; exit 0' TERM; echo began; "
    waits = "while :; do sleep 0.02; done"
    launch(nodes, "job-1", says + ends + waits, 0)
    launch(nodes, "job-2", says + ends + waits, 2)
    for each in ("job-1", "job-2"):
        await speaks(nodes, each)
    stops, ended = list[Any](), list[str]()
    from adlro.attempt.attempts import Attempts

    stop, tell_end = Attempts.stop, driver_module.LocalDriver.ended
    kept: list[Kept] = []

    async def stopping(self: Attempts, *args: Any, **more: Any) -> None:
        if moment == "accepted" or (moment == "told one" and stops):
            await asyncio.Event().wait()
        stops.append(args)
        await stop(self, *args, **more)

    def ending(self: Any, attempt: Any, *args: Any, **more: Any) -> None:
        if moment == "told all" or (moment == "one has ended" and ended):
            return  # the end is not told any more
        ended.append(attempt.job_id)
        tell_end(self, attempt, *args, **more)
        if len(ended) == 2 and moment == "all have ended":
            kept.append(nodes.kept())

    monkeypatch.setattr(Attempts, "stop", stopping)
    monkeypatch.setattr(driver_module.LocalDriver, "ended", ending)
    if moment == "all have ended":
        monkeypatch.setattr(driver_module.LocalDriver, "launch", lambda self, attempt: None)
    launch(nodes, "job-3", says + "exit 0", 0, 2, stops=("job-1", "job-2"))
    reached = {
        "accepted": lambda: True,
        "told one": lambda: len(stops) == 1,
        "told all": lambda: all(nodes.view(each).exit for each in nodes.names),
        "one has ended": lambda: ended and all(nodes.view(each).exit for each in nodes.names),
        "all have ended": lambda: kept,
        "start written down": lambda: any(each.startswith("job-3") for each in nodes.names),
        "runs": lambda: "RUNNING" in nodes.kinds("job-3"),
    }[moment]
    await nodes.until(reached)
    monkeypatch.undo()
    await nodes.restart(kept[0] if kept else None)
    await nodes.ended("job-3")
    for _ in range(2):
        assert order(nodes, "PREEMPTED", "STARTED", "FINISHED", "LOST")[-2:] == ["STARTED job-3", "FINISHED job-3"]
        assert [nodes.events(each)[-1].kind for each in ("job-1", "job-2")] == [EventKind.PREEMPTED] * 2
        assert sorted(log.read_text().split()) == sorted(
            ["+job-1.1", "-job-1.1", "+job-2.1", "-job-2.1", "+job-3.1", "+job-3.1"]
        )
        assert log.read_text().split()[-2:] == ["+job-3.1", "+job-3.1"], "they began when the others had ended"
        await nodes.restart()


async def killed(bench: Bench) -> None:
    """As a kill of the service: its threads are gone before the next one looks at what is there."""
    loop, threads = asyncio.get_running_loop(), bench.threads
    kept = bench.kept()
    await bench.end()
    bench.threads = ThreadPoolExecutor()
    loop.set_default_executor(bench.threads)
    await loop.run_in_executor(None, threads.shutdown)
    await bench.begin(kept)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [1, 2])
async def test_random_preemptions_with_kills_of_the_service(nodes, seed):
    """Each job goes on until it has counted to its figure; a file for each GPU shows that nobody else is there.

    None is done before there were enough of all that is to happen, however fast or slow this machine is.
    """
    nodes.threads = ThreadPoolExecutor()
    asyncio.get_running_loop().set_default_executor(nodes.threads)
    draw = random.Random(seed)
    places = nodes.folder / "places"
    places.mkdir()
    places.chmod(0o777)
    enough = nodes.folder / "enough"
    count = 'f="$ADLRO_JOB_DIR/count$NODE_RANK"; n=$(cat "$f" 2>/dev/null || echo 0); '
    claim = f'for g in $(echo $ADLRO_GPU_IDS | tr "/," "- "); do mkdir {places}/$g || exit 9; done; '
    leave = f'for g in $(echo $ADLRO_GPU_IDS | tr "/," "- "); do rmdir {places}/$g; done; '
    script = (
        f"{count}asked=; stop() {{ {leave} exit 0; }}; trap asked=1 TERM; {claim} trap stop TERM; "
        '[ -z "$asked" ] || stop; '
        f"while [ $n -lt 8 ] || [ ! -e {enough} ]; do "
        f'sleep 0.05; n=$((n+1)); echo $n >"$f.new"; mv "$f.new" "$f"; done; {leave}'
    )
    attempts = {f"job-{number}": 0 for number in range(8)}
    sizes = {job_id: draw.choice((1, 1, 2)) for job_id in attempts}
    over: set[str] = set()
    kills = kills_amid = 0
    gpus = range(4)
    gpu_ids = [gpu.gpu_id for _, gpu in nodes.driver.cluster.gpus()]
    async with asyncio.timeout(500.0):
        while len(over) < len(attempts):
            await asyncio.sleep(draw.choice((0.0, 0.02, 0.1)))
            events = nodes.all_events()
            preempted = sum(event.kind is EventKind.PREEMPTED for event in events)
            if preempted > 12 and kills > 6 and kills_amid > 2:
                enough.touch()
            for event in events:
                if event.kind is EventKind.FINISHED:
                    over.add(event.job_id)
                assert event.kind is not EventKind.FAILED, (event, seed)
            open_ones = {each.job_id: each for each in nodes.side.open_attempts()}
            waiting = [each for each in attempts if each not in over and each not in open_ones]
            if waiting and draw.random() < 0.5:
                job_id = draw.choice(waiting)
                chosen = draw.sample(gpus, sizes[job_id])
                stops = [
                    each.ref
                    for each in open_ones.values()
                    if {gpu_ids[gpu] for gpu in chosen} & set(each.placement.gpu_ids)
                ]
                spec = spec_of(shell(script), gpu_count=len(chosen), preemptible=Preemptible(grace_s=20.0))
                placement = Placement.on(*(gpu_ids[each] for each in sorted(chosen)))
                try:
                    nodes.side.launch(
                        job_id, attempts[job_id] + 1, spec, placement, 0,
                        preempts=stops, resumes=attempts[job_id] > 0,
                    )  # fmt: skip
                except Conflict:
                    continue
                attempts[job_id] += 1
            elif draw.random() < 0.15:
                kills += 1
                kills_amid += any(each.preempt_asked for each in open_ones.values())
                await killed(nodes)
    assert enough.exists(), "a program was done before its time"
    assert list(places.iterdir()) == []
    for job_id in attempts:
        told = [event for event in nodes.events(job_id) if event.kind is EventKind.STARTED]
        assert len({event.attempt for event in told}) == len(told), "each attempt has started once"
