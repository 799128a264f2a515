"""The logic of attempts of containers, on an engine in memory."""

from __future__ import annotations

import asyncio
import os
import pwd
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from adlro.attempt.containers.attempts import ContainerAttempts
from adlro.attempt.containers.engine import RefusedError
from adlro.attempt.records import JOB_DIR_INSIDE, Launch, Stage
from adlro.errors import AlreadyExists, Conflict, InvalidInput, Unavailable, Unsupported
from adlro.records.payloads import Container, EndReason, ExitStatus, Mount, Payload, process_payload
from tests.unit.attempt.containers.fake_engine import FakeEngine

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")

USER = pwd.getpwuid(os.geteuid()).pw_name


def launch(image: str = "image:1", grace_s: float = 1.0, **more) -> Launch:
    return Launch(Payload(container=Container(image), stop_grace_s=grace_s), user=USER, **more)


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
async def services(engine: FakeEngine, tmp_path: Path):
    made: list[ContainerAttempts] = []

    def service() -> ContainerAttempts:
        made.append(ContainerAttempts(tmp_path / "attempts", engine, staging=str(tmp_path / "staging")))
        return made[-1]

    yield service
    engine.crash, engine.away = None, False
    for each in made:
        await each.close()


def keeper_threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("keeper of")]


async def end_of(attempts: ContainerAttempts, name: str = "a.1") -> ExitStatus:
    async with asyncio.timeout(30.0):
        return await attempts.ended(name)


async def wait_for(condition, timeout_s: float = 20.0) -> None:
    until = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until
        await asyncio.sleep(0.01)


async def test_nothing_is_asked_of_the_engine_for_what_has_ended_and_is_removed(engine, services):
    attempts = services()
    await attempts.start("a.1", launch())
    await end_of(attempts)
    await wait_for(lambda: not keeper_threads())
    engine.away = True
    successor = services()
    assert [view.exit.code for view in await successor.take_up()] == [5]
    assert keeper_threads() == [], "a node may have a thousand of them"
    async with asyncio.timeout(10.0):
        await successor.forget("a.1")


async def test_it_runs_once_however_often_it_is_ordered(engine, services):
    attempts = services()
    await asyncio.gather(*(attempts.start("a.1", launch()) for _ in range(8)))
    end = await end_of(attempts)
    assert (end.reason, end.code) == (EndReason.EXITED, 5)
    await attempts.start("a.1", launch())
    assert [each.runs for each in engine.all] == [1]
    assert attempts.read_log("a.1", "stdout", 0).data == b"hello\n"
    assert attempts.look("a.1").began is not None
    with pytest.raises(AlreadyExists):
        await attempts.start("a.1", launch(grace_s=2.0))
    await attempts.forget("a.1")
    assert engine.containers == {}
    assert attempts.names() == []


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("number", range(1, 13))
async def test_a_service_that_dies_in_a_call_never_runs_it_twice(engine, services, number, when):
    engine.crash = (number, when)
    first = services()
    await first.start("a.1", launch())
    keeper = first._keepers["a.1"]
    assert await asyncio.to_thread(keeper.done.wait, 20.0)
    crashed, engine.crash = sum(each.runs for each in engine.all), None
    second = services()
    await second.take_up()
    end = await end_of(second)
    runs = sum(each.runs for each in engine.all)
    if end.reason is EndReason.SUPERVISOR_LOST:
        assert "asked to start it" in end.detail
        assert runs == crashed == 0
    else:
        assert (end.reason, end.code, runs) == (EndReason.EXITED, 5, 1)
        assert second.read_log("a.1", "stdout", 0).data == b"hello\n"
    await second.forget("a.1")
    assert engine.containers == {}


async def test_an_order_is_refused_while_the_engine_is_away(engine, services):
    engine.away = True
    attempts = services()
    with pytest.raises(Unavailable, match="does not answer"):
        await attempts.start("a.1", launch())
    assert attempts.names() == []


async def test_nothing_is_concluded_while_the_engine_is_away(engine, services):
    engine.lasts_s, engine.live_restore = 1e9, True
    attempts = services()
    await attempts.start("a.1", launch())
    await attempts.begun("a.1")
    engine.away = True
    engine.end(engine.all[0], 5)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(attempts.ended("a.1"), 1.0)
    engine.away = False
    assert (await end_of(attempts)).code == 5


async def test_without_live_restore_what_ended_meanwhile_was_ended(engine, services):
    engine.lasts_s = 1e9
    attempts = services()
    await attempts.start("a.1", launch())
    await attempts.begun("a.1")
    engine.away = True
    attempts._keepers["a.1"].tell()  # it would look within seconds
    await wait_for(lambda: attempts.doing("a.1") == "waiting for the container engine")
    # Not before it was seen that the engine is away: a busy machine may see that late.
    engine.end(engine.all[0], 0)
    engine.away = False
    end = await end_of(attempts)
    assert end.reason is EndReason.SUPERVISOR_LOST


async def test_what_is_stopped_before_it_began_never_runs(engine, services):
    engine.pulling.clear()
    attempts = services()
    await attempts.start("a.1", launch("other:1"))
    await wait_for(lambda: attempts.doing("a.1"))
    assert attempts.doing("a.1") == "fetching image other:1: 5 of 9 MiB"
    assert attempts.look("a.1").stage is Stage.ORDERED
    await attempts.stop("a.1", EndReason.STOPPED, "no longer wanted")
    end = await end_of(attempts)
    assert (end.reason, end.detail) == (EndReason.STOPPED, "no longer wanted")
    assert engine.all == []


async def test_an_image_is_fetched_once_for_all_who_want_it(engine, services):
    engine.pulling.clear()
    attempts = services()
    for number in range(4):
        await attempts.start(f"a.{number}", launch("other:1"))
    await wait_for(lambda: engine.calls.count("has_image") == 4)
    engine.pulling.set()
    ends = await asyncio.gather(*(end_of(attempts, f"a.{number}") for number in range(4)))
    assert {each.code for each in ends} == {5}
    assert engine.pulls == ["other:1"]


async def test_an_unknown_image_is_the_jobs_fault(engine, services):
    engine.pull_errors.append(RefusedError(404, "manifest for other:1 not found: manifest unknown"))
    attempts = services()
    await attempts.start("a.1", launch("other:1"))
    end = await end_of(attempts)
    assert end.reason is EndReason.NOT_STARTED
    assert "'other:1' is not known" in end.detail
    assert engine.pulls == ["other:1"]


async def test_a_fetch_that_fails_here_is_tried_again(engine, services, monkeypatch):
    monkeypatch.setattr("adlro.attempt.containers.keeper._PULL_PAUSES_S", (0.01, 0.01))
    engine.pull_errors += [RefusedError(500, "dial tcp: i/o timeout")] * 2
    attempts = services()
    await attempts.start("a.1", launch("other:1"))
    assert (await end_of(attempts)).code == 5
    assert len(engine.pulls) == 3


async def test_a_start_that_is_refused_leaves_no_container(engine, services):
    engine.refusal = "could not select device driver"
    attempts = services()
    await attempts.start("a.1", replace(launch(), gpu_uuids=("GPU-1",)))
    end = await end_of(attempts)
    assert end.reason is EndReason.NOT_STARTED
    assert "could not select device driver" in end.detail
    await attempts.forget("a.1")
    assert engine.containers == {}


async def test_a_container_of_that_name_that_is_not_ours_is_left_alone(engine, services):
    attempts = services()
    made = engine.create

    def taken(name, config):
        engine.create = made
        made(name, {"Labels": {"adlro.mark": "somebody"}})
        return made(name, config)

    engine.create = taken
    await attempts.start("a.1", launch())
    end = await end_of(attempts)
    assert end.reason is EndReason.NOT_STARTED
    assert "not this attempt's" in end.detail
    assert len(engine.containers) == 1


async def test_the_grace_goes_on_where_a_service_was_killed(engine, services):
    engine.lasts_s, engine.traps_signals = 1e9, True
    attempts = services()
    await attempts.start("a.1", launch(grace_s=1.0))
    await attempts.begun("a.1")
    began_s = time.monotonic()
    await attempts.stop("a.1")
    await wait_for(lambda: engine.all[0].signals == [15])
    await attempts.close()
    await asyncio.sleep(1.0)
    later = services()
    await later.take_up()
    end = await end_of(later)
    assert (end.reason, end.signal) == (EndReason.STOPPED, 9)
    assert engine.all[0].signals[-1] == 9
    assert time.monotonic() - began_s < 10.0


async def test_a_stop_may_bring_a_grace_of_its_own(engine, services):
    engine.lasts_s, engine.traps_signals = 1e9, True
    attempts = services()
    await attempts.start("a.1", launch(grace_s=60.0))
    await attempts.begun("a.1")
    await attempts.stop("a.1", grace_s=0.2)
    end = await end_of(attempts)
    assert (end.reason, end.signal) == (EndReason.STOPPED, 9)


async def test_a_container_sees_the_directory_of_its_job(engine, services, tmp_path):
    attempts = services()
    await attempts.start("a.1", launch(job_dir=str(tmp_path), environment={"ADLRO_JOB_DIR": JOB_DIR_INSIDE}))
    await end_of(attempts)
    (made,) = engine.all
    (mount,) = made.config["HostConfig"]["Mounts"]
    assert (mount["Source"], mount["Target"], mount["ReadOnly"]) == (str(tmp_path), "/adlro/job", False)
    assert "ADLRO_JOB_DIR=/adlro/job" in made.config["Env"]


async def test_what_is_asked_for_is_checked(engine, services):
    attempts = services()
    with pytest.raises(Unsupported):
        await attempts.start("a.1", Launch(process_payload(["true"])))
    container = Container("image:1", mounts=(Mount("/etc", "/etc"),))
    with pytest.raises(InvalidInput, match="mounts nothing") as refused:
        await attempts.start("a.1", Launch(Payload(container=container), user=USER))
    assert refused.value.field == "payload.container.mounts[0].source"
    with pytest.raises(InvalidInput, match="below /dev"):
        await attempts.start("a.1", launch(device_files=("/etc/passwd",)))
    engine.lasts_s = 1e9
    await attempts.start("a.1", launch())
    with pytest.raises(Conflict):
        await attempts.forget("a.1")
    await attempts.stop("a.1")
    await end_of(attempts)


async def test_a_container_waits_made_at_its_gate(engine, services, tmp_path):
    attempts, gate = services(), tmp_path / "gate"
    await attempts.start("a.1", launch(gate=str(gate)))
    view = await asyncio.wait_for(attempts.prepared("a.1"), 20.0)
    assert view.stage is Stage.ORDERED
    assert [each.runs for each in engine.all] == [0], "it is made, and not started"
    assert attempts.doing("a.1") == "waiting for the other programs of its job"
    gate.touch()
    assert (await end_of(attempts)).code == 5
    assert [each.runs for each in engine.all] == [1]


async def test_a_container_that_is_stopped_at_its_gate_never_runs(engine, services, tmp_path):
    attempts = services()
    await attempts.start("a.1", launch(gate=str(tmp_path / "gate")))
    await attempts.prepared("a.1")
    await attempts.stop("a.1")
    assert (await end_of(attempts)).reason is EndReason.STOPPED
    assert [each.runs for each in engine.all] == [0]


async def test_a_service_that_dies_at_the_gate_is_followed_by_one_that_waits_there(engine, services, tmp_path):
    gate = tmp_path / "gate"
    first = services()
    await first.start("a.1", launch(gate=str(gate)))
    await first.prepared("a.1")
    await first.close()
    second = services()
    await second.take_up()
    gate.touch()
    assert (await end_of(second)).code == 5
    assert sum(each.runs for each in engine.all) == 1
