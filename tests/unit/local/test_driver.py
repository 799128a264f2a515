"""Programs of this machine: what is told of them, over restarts of the service and losses of the store too."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
import os
import signal
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from adlro.attempt import tree
from adlro.attempt.containers import attempts as container_attempts
from adlro.attempt.journal import Journal
from adlro.clusterside.log_follower import LogFollower
from adlro.devices.records import ComputeProcess, Device, Found, Reading, Readings, Vendor
from adlro.errors import Conflict, InvalidInput, NotFound, Unavailable
from adlro.records.events import AttemptState, EventKind
from adlro.records.payloads import (
    Container,
    EndReason,
    ExitStatus,
    LaunchStyle,
    LogChunk,
    LogStream,
    Payload,
    process_payload,
)
from adlro.services.local import driver as driver_module
from adlro.services.local.driver import LocalDriver
from adlro.services.local.telemetry import GpuMetrics
from tests.unit.attempt.containers.fake_engine import FakeEngine
from tests.unit.attempt.node import own_cgroups
from tests.unit.local.bench import Bench, settings_of, shell, spec_of, users_map

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
SLEEPS = "echo here; exec sleep 300"


def kill_supervisor(bench: Bench, name: str) -> None:
    process = Journal(str(bench.attempts / name)).supervisor()
    assert process is not None
    os.kill(process[0], signal.SIGKILL)


# ---- how programs end


@pytest.mark.parametrize(
    ("script", "kind", "reason", "message"),
    [
        ("exit 0", EventKind.FINISHED, EndReason.EXITED, ""),
        ("exit 3", EventKind.FAILED, EndReason.EXITED, "exit code 3"),
        ("kill -9 $$", EventKind.FAILED, EndReason.SIGNALLED, "killed by SIGKILL"),
    ],
)
async def test_how_a_program_ends_is_told(bench, script, kind, reason, message):
    end = await bench.run_to_end("job-1", script)
    assert (end.kind, end.message, end.exit.reason) == (kind, message, reason)
    assert bench.kinds("job-1") == ["STARTED", "RUNNING", kind.name]
    assert bench.launch("job-1", script).state is AttemptState.ENDED, "it is not run again"


async def test_a_time_limit_is_kept_by_the_supervisor(bench):
    end = await bench.run_to_end("job-1", SLEEPS, time_limit_s=0.3)
    assert (end.kind, end.message) == (EventKind.FAILED, "time limit of 0.3 s reached")
    assert end.exit.reason is EndReason.TIME_LIMIT


async def test_a_stop_ends_all_of_a_program(bench):
    bench.launch("job-1", "setsid sleep 300 & echo here; wait")
    await bench.running("job-1")
    assert bench.side.stop("job-1", 1, 0)
    end = await bench.ended("job-1")
    assert (end.kind, end.message, end.exit.reason) == (EventKind.STOPPED, "stopped", EndReason.STOPPED)
    assert bench.left() == {}


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (None, "this job has no program: submit it with a command (adlro submit ... -- python train.py)"),
        (
            Payload(container=Container("python:3.13-slim")),
            "this node runs no container jobs: its operator has turned containers off",
        ),
        (
            shell("true", secret_names=("TOKEN",)),
            "this node has no secret 'TOKEN' for user ada: its operator names a directory in ADLRO_LOCAL_SECRETS_DIR",
        ),
        (
            process_payload(("true",), "/nowhere"),
            "not started: working directory '/nowhere' can't be entered: No such file or directory",
        ),
        (
            process_payload(("no-such",)),
            "not started: there is no program 'no-such' in PATH",
        ),
    ],
    ids=["no program", "container", "secret", "workdir", "interpreter"],
)
async def test_what_can_never_run_fails(bench, payload, message):
    end = await bench.run_to_end("job-1", None, payload=payload)
    assert end.kind is EventKind.FAILED
    assert end.message.startswith(message)
    assert await bench.run_to_end("job-2", "exit 0"), "its GPU is free"


async def test_what_the_node_can_not_start_is_lost_and_runs_elsewhere(bench, monkeypatch):
    def full(self: object) -> None:
        raise Unavailable("the disk has 3 MiB left", reason="DISK_FULL")

    monkeypatch.setattr("adlro.attempt.attempts.Attempts._check_room", full)
    end = await bench.run_to_end("job-1", "exit 0")
    assert (end.kind, end.message) == (EventKind.LOST, "it could not be started: the disk has 3 MiB left")
    assert bench.kinds("job-1") == ["LOST"]
    monkeypatch.undo()
    assert (await bench.run_to_end("job-1", "exit 0", attempt=2)).kind is EventKind.FINISHED


async def test_without_a_supervisor_nothing_begins_later(bench, monkeypatch):
    """What is written down when its start fails never runs: the job runs again, as another attempt."""

    def refuse(*_: object) -> None:
        raise Unavailable("no process can be made", reason="NO_SUPERVISOR")

    runs = bench.folder / "runs"
    monkeypatch.setattr("adlro.attempt.drivers.TreeDriver.start", refuse)
    bench.launch("job-1", f"echo started >> {runs}")
    await bench.until(lambda: (bench.attempts / bench.names[0] / "stop.json").exists() if bench.names else False)
    monkeypatch.undo()
    end = await bench.ended("job-1")
    assert end.kind is EventKind.LOST
    assert "no process can be made" in end.message
    assert not runs.exists()


async def test_a_killed_supervisor_loses_the_attempt_and_leaves_nothing(bench):
    bench.launch("job-1", "setsid sleep 300 & echo here; wait")
    await bench.running("job-1")
    kill_supervisor(bench, bench.names[0])
    end = await bench.ended("job-1")
    assert (end.kind, end.exit.reason) == (EventKind.LOST, EndReason.SUPERVISOR_LOST)
    assert bench.left() == {}


# ---- what a program is given


async def test_a_program_sees_its_job_and_its_gpu_and_nothing_of_the_service(bench):
    os.environ["SERVICE_SECRET"] = "hidden"
    try:
        await bench.run_to_end("job-1", "env", number=1, attempt=2)
    finally:
        del os.environ["SERVICE_SECRET"]
    chunk = await bench.driver.read_log("job-1", 2, LogStream.STDOUT, 0, 65536)
    lines = set(chunk.data.decode().splitlines())
    gpu_id = [gpu.gpu_id for _, gpu in bench.driver.cluster.gpus()][1]
    node = gpu_id.rpartition("/")[0]
    assert {"ADLRO_JOB_ID=job-1", "ADLRO_ATTEMPT=2", f"ADLRO_GPU_IDS={gpu_id}", f"ADLRO_NODE={node}"} <= lines
    assert "CUDA_VISIBLE_DEVICES=" in lines, "a pretended GPU shows no real one"
    assert not any("hidden" in line for line in lines)


async def test_one_program_for_each_gpu_has_the_ranks_of_one(bench):
    ranks = 'test "$RANK $WORLD_SIZE $LOCAL_RANK" = "0 1 0"'
    for job_id, style, code in (("job-1", LaunchStyle.ONE_PER_GPU, 0), ("job-2", LaunchStyle.ONE_PER_NODE, 1)):
        await bench.run_to_end(job_id, None, payload=shell(ranks, launch_style=style))
        assert (await bench.ended(job_id)).exit.code == code


async def test_a_secret_is_the_value_of_a_file_that_its_owner_alone_can_read(tmp_path):
    folder = tmp_path / "secrets" / "ada"
    folder.mkdir(parents=True)
    (folder / "TOKEN").write_text("s3cret\n")
    (folder / "TOKEN").chmod(0o600)
    (folder / "OPEN").write_text("for all")
    (folder / "OPEN").chmod(0o644)
    bench = Bench(tmp_path, secrets_dir=str(tmp_path / "secrets"))
    await bench.begin()
    await bench.run_to_end("job-1", None, payload=shell("echo $TOKEN", secret_names=("TOKEN",)))
    assert (await bench.driver.read_log("job-1", 1, LogStream.STDOUT, 0, 100)).data == b"s3cret\n"
    assert "s3cret" not in (bench.attempts / bench.names[0] / "intent.json").read_text()
    end = await bench.run_to_end("job-2", None, payload=shell("echo $OPEN", secret_names=("OPEN",)))
    assert end.kind is EventKind.FAILED
    assert "its owner alone can read" in end.message
    stranger = dataclasses.replace(spec_of(shell("true", secret_names=("TOKEN",))), user="..")
    bench.launch_spec("job-3", stranger)
    assert (await bench.ended("job-3")).kind is EventKind.FAILED
    await bench.finish()


@as_root
async def test_programs_run_as_the_users_of_the_map():
    with tempfile.TemporaryDirectory() as folder:
        # Pytest's own folders let nobody else through.
        await check_users(Bench(Path(folder), who="ada nobody\n* *\n"))


async def check_users(bench: Bench) -> None:
    await bench.begin()
    end = await bench.run_to_end("job-1", "id -un; id -u; touch mine; ls -ld .")
    assert end.kind is EventKind.FINISHED, end.message
    out = (await bench.driver.read_log("job-1", 1, LogStream.STDOUT, 0, 1000)).data.decode().splitlines()
    assert out[:2] == ["nobody", "65534"]
    for job_id, user in (("job-2", "no-such-user"), ("job-3", "root")):
        bench.launch_spec(job_id, dataclasses.replace(spec_of(shell("true")), user=user))
        end = await bench.ended(job_id)
        assert (end.kind, end.message) == (
            EventKind.FAILED,
            f"user {user} has no Unix user on this node: its operator can name one in the users' map",
        )
    await bench.finish()


# ---- restarts


async def test_a_restart_of_the_service_adopts_what_runs_and_finds_what_has_ended(bench):
    go = bench.folder / "go"
    bench.launch("job-1", f"echo 1 >> {bench.folder}/runs; while [ ! -e {go} ]; do sleep 0.05; done; exit 7")
    bench.launch("job-2", SLEEPS, number=1)
    await bench.running("job-1")
    await bench.running("job-2")
    kept = bench.kept()
    await bench.end()
    go.touch()
    await bench.until((bench.attempts / bench.names[0] / "exit.json").exists)
    await asyncio.sleep(0.2)
    await bench.begin(kept)
    end = await bench.ended("job-1")
    assert (end.kind, end.exit.code) == (EventKind.FAILED, 7), "the true exit code of an end that nobody watched"
    assert bench.kinds("job-2") == ["STARTED", "RUNNING"]
    assert bench.side.stop("job-2", 1, 0)
    assert (await bench.ended("job-2")).kind is EventKind.STOPPED
    assert (bench.folder / "runs").read_text() == "1\n"


async def test_a_stop_that_was_asked_for_before_the_kill_is_done_after_it(bench):
    bench.launch("job-1", SLEEPS)
    attempt = await bench.running("job-1")
    attempt.stop_asked = True  # journaled, and the service was killed before it could do anything
    await bench.restart()
    assert (await bench.ended("job-1")).kind is EventKind.STOPPED


async def test_an_attempt_that_was_accepted_and_not_begun_begins_once(bench):
    runs = bench.folder / "runs"
    kept = bench.kept()
    spec = spec_of(shell(f"echo started >> {runs}"))
    await bench.end()
    await bench.begin(kept)
    bench.launch_spec("job-1", spec)
    kept = bench.kept()  # it is accepted, and nothing else has happened
    await bench.restart(kept)
    assert (await bench.ended("job-1")).kind is EventKind.FINISHED
    assert runs.read_text() == "started\n"


async def test_what_the_record_has_as_ended_is_stopped_and_keeps_its_gpu_until_then(bench):
    bench.launch("job-1", "trap '' TERM; echo here; while :; do sleep 0.1; done")
    await bench.says("job-1", "here")
    (attempt,) = bench.side.open_attempts()
    bench.driver.ended(attempt, EventKind.LOST, "as if its GPU had left the cluster")
    await bench.restart()
    await bench.until(bench.driver.gpu_conditions)
    (condition,) = bench.driver.gpu_conditions()
    assert condition.reason == "attempt 1 of job-1 is being ended: the cluster has given it up"
    with pytest.raises(Conflict, match="is lost"):
        bench.launch("job-2", "true")
    await bench.until(lambda: not bench.driver.gpu_conditions())
    assert bench.left() == {}
    assert (await bench.run_to_end("job-2", "exit 0")).kind is EventKind.FINISHED


async def test_a_store_that_was_rolled_back_learns_of_what_runs_and_nobody_reads_its_output(bench):
    before = bench.kept()
    bench.launch("job-1", SLEEPS)
    bench.launch("job-2", "exit 0", number=1)
    await bench.running("job-1")
    await bench.ended("job-2")
    await bench.restart(before)
    assert [each.job_id for each in bench.side.describe().running] == ["job-1"], "the orchestrator decides on it"
    with pytest.raises(Conflict, match="runs job-1"):
        bench.launch("job-9", "true")
    for job_id in ("job-1", "job-2"):  # the store gives these ids to other users' jobs now
        with pytest.raises(NotFound):
            await bench.driver.read_log(job_id, 1, LogStream.STDOUT, 0, 100)
    end = await bench.run_to_end("job-2", "exit 0", number=1)
    assert (end.kind, "the store has lost its record" in end.message) == (EventKind.LOST, True)
    assert (await bench.run_to_end("job-2", "exit 0", number=1, attempt=2)).kind is EventKind.FINISHED
    await bench.restart()
    assert bench.side.stop("job-1", 1, 0)
    assert (await bench.ended("job-1")).kind is EventKind.STOPPED


async def test_an_emptied_store_lists_what_runs_under_a_name_of_its_own(bench):
    old = bench.side.incarnation[:8]
    bench.launch("job-1", SLEEPS)
    await bench.running("job-1")
    await bench.restart(emptied=True)
    listed = f"job-1~{old}"
    assert [each.job_id for each in bench.side.describe().running] == [listed]
    end = await bench.run_to_end("job-1", "echo mine", number=1)
    assert end.kind is EventKind.FINISHED, "another job of the same number is another one"
    assert (await bench.driver.read_log("job-1", 1, LogStream.STDOUT, 0, 100)).data == b"mine\n"
    await bench.restart()
    assert [each.job_id for each in bench.side.describe().running] == [listed]
    assert bench.side.stop(listed, 1, 0)
    assert (await bench.ended(listed)).kind is EventKind.STOPPED


async def test_a_record_that_can_not_be_read_keeps_no_other_attempt_from_the_service(bench):
    bench.launch("job-1", "exit 0")
    await bench.ended("job-1")
    bench.launch("job-2", SLEEPS)
    await bench.running("job-2")
    kept = bench.kept()
    await bench.end()
    path = bench.attempts / bench.names[0] / "exit.json"
    for text in ("not json", '{"reason": "of_a_later_release"}'):
        path.unlink()
        path.write_text(text)
        await bench.begin(kept)
        assert bench.view(bench.names[0]).exit.reason is EndReason.SUPERVISOR_LOST
        await bench.end()
    await bench.begin(kept)
    await bench.running("job-2")
    await bench.finish()


async def test_a_new_attempt_of_a_job_waits_until_the_older_one_has_ended(bench):
    """A GPU has left the cluster: its attempt is lost by the record, and its program has its grace yet."""
    overlap = bench.folder / "overlap"
    bench.launch(
        "job-1", None, number=1, payload=shell("trap '' TERM; echo deaf; while :; do sleep 0.1; done", grace_s=2.0)
    )
    await bench.says("job-1", "deaf")
    bench.settings = bench.settings.model_copy(update={"fake_gpus": "v100_sxm2:1"})
    await bench.restart()
    assert (await bench.ended("job-1")).kind is EventKind.LOST
    mark = json.loads((bench.attempts / bench.names[0] / "intent.json").read_text())["mark"]
    sees = f"grep -lz ADLRO_MARK={mark} /proc/[0-9]*/environ > {overlap} 2>/dev/null; true"
    assert (await bench.run_to_end("job-1", sees, attempt=2)).kind is EventKind.FINISHED
    assert overlap.read_text() == "", "the older attempt still ran"
    await bench.finish()


async def test_a_stop_of_an_attempt_that_waits_for_an_older_one_does_not_wait(bench):
    bench.launch(
        "job-1", None, number=1, payload=shell("trap '' TERM; echo deaf; while :; do sleep 0.1; done", grace_s=600.0)
    )
    await bench.says("job-1", "deaf")
    bench.settings = bench.settings.model_copy(update={"fake_gpus": "v100_sxm2:1"})
    await bench.restart()
    await bench.ended("job-1")
    bench.launch("job-1", "true", attempt=2)
    await asyncio.sleep(0.2)
    assert bench.side.stop("job-1", 2, 0)
    end = await bench.ended("job-1", 2)
    assert (end.kind, len(bench.names)) == (EventKind.LOST, 1), "it never began"
    assert "it waited for the end of attempt 1 of job-1" in end.message
    tree.send(tree.marked(json.loads((bench.attempts / bench.names[0] / "intent.json").read_text())["mark"]), 9)
    await bench.finish()


async def test_a_second_attempt_waits_for_the_first_one_of_an_older_incarnation(bench):
    """The cluster's record is lost and the jobs are not, as when the cluster gets another name."""
    old, both = bench.side.incarnation[:8], bench.folder / "both"
    bench.launch("job-1", SLEEPS)
    await bench.running("job-1")
    await bench.restart(emptied=True)
    bench.launch("job-1", f"echo here >> {both}", number=1, attempt=2)
    await asyncio.sleep(0.3)
    assert not both.exists()
    assert bench.side.stop(f"job-1~{old}", 1, 0), "as the orchestrator does with what no job has"
    assert (await bench.ended("job-1", 2)).kind is EventKind.FINISHED
    assert both.exists()


async def test_a_reboot_loses_what_ran(bench, monkeypatch):
    bench.launch("job-1", SLEEPS)
    await bench.running("job-1")
    kept = bench.kept()
    await bench.end()
    kill_supervisor(bench, bench.names[0])
    for record in ("spawn.json", "run.json"):
        path = bench.attempts / bench.names[0] / record
        found = json.loads(path.read_text())
        found["at"]["boot_id"] = "11111111-2222-3333-4444-555555555555"
        path.write_text(json.dumps(found))
    await bench.begin(kept)
    end = await bench.ended("job-1")
    assert (end.kind, end.exit.reason) == (EventKind.LOST, EndReason.NODE_LOST)


async def test_the_record_of_another_machine_is_refused(bench):
    bench.launch("job-1", SLEEPS)
    await bench.running("job-1")
    kept = bench.kept()
    elsewhere = LocalDriver(
        settings_of(bench.folder, data_dir=str(bench.folder / "other"), fake_gpus="elsewhere=v100_sxm2:2")
    )
    await elsewhere.prepare()
    with pytest.raises(Conflict, match="cluster 'local' is another machine, on which 1 jobs run"):
        await elsewhere.begin(kept)
    bench.settings = settings_of(bench.folder, fake_gpus="renamed=v100_sxm2:2")
    await bench.restart()
    assert (await bench.ended("job-1")).kind is EventKind.LOST, "this machine's own GPUs may change"
    await bench.until(lambda: not bench.left())


async def test_memory_beyond_the_jobs_own_ends_its_program_where_the_driver_enforces_it(tmp_path):
    with own_cgroups() as groups:
        if groups is None or "memory_mib" not in groups.enforced:
            pytest.skip("this machine lets us make no control groups with memory limits")
        bench = Bench(tmp_path, driver="cgroup")
        await bench.begin()
        end = await bench.run_to_end("job-1", "head -c 300000000 /dev/zero | tail -c 299999999 > /dev/null; exit 1")
        assert end.exit is not None
        assert (end.kind, end.exit.reason) == (EventKind.FAILED, EndReason.OUT_OF_MEMORY), end.message
        assert (await bench.run_to_end("job-2", "exit 0")).kind is EventKind.FINISHED
        await bench.finish()


async def test_an_engine_that_is_started_after_the_service_is_found(tmp_path, monkeypatch):
    socket = tmp_path / "engine.sock"
    engine = FakeEngine()
    monkeypatch.setattr(container_attempts, "Engine", lambda path: engine)
    bench = Bench(tmp_path, engine=str(socket))
    await bench.begin()
    payload = Payload(container=Container("image:1"))
    end = await bench.run_to_end("job-1", None, payload=payload)
    assert (end.kind, bench.driver.capabilities.containers) == (EventKind.FAILED, False)
    assert f"there is no container engine at {socket}; start one" in end.message
    socket.touch()
    end = await bench.run_to_end("job-2", None, payload=payload)
    assert end.exit == ExitStatus(EndReason.EXITED, 5)
    assert bench.driver.capabilities.containers
    socket.unlink()
    await bench.restart()
    assert bench.driver.capabilities.containers, "it has run containers, so the engine is away"
    await bench.finish()


async def test_a_stop_while_an_image_is_fetched_outlives_a_kill_of_the_service(tmp_path, monkeypatch):
    engine = FakeEngine()
    monkeypatch.setattr(container_attempts, "Engine", lambda path: engine)
    (tmp_path / "engine.sock").touch()
    bench = Bench(tmp_path, engine=str(tmp_path / "engine.sock"))
    await bench.begin()
    engine.pulling.clear()
    bench.launch("job-1", None, payload=Payload(container=Container("other:1")))
    await bench.until(lambda: engine.pulls)
    kept = bench.kept()
    assert bench.side.stop("job-1", 1, 0)
    stopped = bench.kept()  # the stop is accepted, and nothing has come of it
    await bench.end()
    await bench.begin(stopped)
    assert (await bench.ended("job-1")).kind is EventKind.STOPPED
    await bench.restart(kept, emptied=False)
    end = await bench.ended("job-1")
    assert (end.kind, end.message) == (EventKind.LOST, "it was stopped before it began")
    assert engine.all == []
    engine.pulling.set()
    await bench.finish()


async def test_without_an_engine_open_containers_are_not_reported_as_lost(bench):
    await bench.end()
    folder = bench.folder / "local" / "containers" / "job-1.1.abcdef12"
    folder.mkdir(parents=True)
    (folder / "intent.json").write_text('{"mark": "0123"}')
    with pytest.raises(InvalidInput, match=r"ADLRO_LOCAL_ENGINE is empty.*job-1\.1\.abcdef12"):
        await bench.begin()
    bench.driver._data_dir.give_back()
    (folder / "exit.json").write_text("{}")
    await bench.begin()


async def test_one_service_uses_a_directory(bench):
    other = LocalDriver(settings_of(bench.folder))
    with pytest.raises(Conflict, match=rf"another service \(pid {os.getpid()}\) uses"):
        await other.prepare()


# ---- logs


async def test_a_followed_log_has_every_byte_and_ends_with_the_attempt(bench):
    bench.launch("job-1", "for i in 1 2 3 4 5; do echo line $i; sleep 0.1; done")
    follower = LogFollower(bench.driver, "job-1", 0, LogStream.STDOUT, asyncio.Event())
    read = b"".join([chunk.data async for chunk in follower.chunks(None, 0, follow=True)])
    assert read == b"".join(b"line %d\n" % i for i in range(1, 6))
    rest = LogFollower(bench.driver, "job-1", 1, LogStream.STDOUT, asyncio.Event())
    chunks = [chunk async for chunk in rest.chunks(14, 0, follow=False)]
    assert b"".join(chunk.data for chunk in chunks) == b"line 3\nline 4\nline 5\n"
    assert chunks[-1].end
    tail = [chunk async for chunk in rest.chunks(None, 7, follow=True)]
    assert (tail[0].offset, tail[0].data) == (28, b"line 5\n")


async def test_a_followed_log_ends_when_the_service_does(bench):
    bench.launch("job-1", SLEEPS)
    await bench.running("job-1")
    closing = asyncio.Event()
    chunks = LogFollower(bench.driver, "job-1", 1, LogStream.STDOUT, closing).chunks(0, 0, follow=True)
    read = b""
    while read != b"here\n":
        read += (await anext(chunks)).data
    asyncio.get_running_loop().call_later(0.1, closing.set)
    async with asyncio.timeout(20):
        with pytest.raises(Unavailable, match="read on at the next offset"):
            await rest_of(chunks)
    await bench.finish()


async def rest_of(chunks: AsyncIterator[LogChunk]) -> list[LogChunk]:
    return [chunk async for chunk in chunks]


async def test_the_output_of_an_unknown_attempt_is_not_found(bench):
    for job_id in ("job-9", "../job-1"):
        with pytest.raises(NotFound):
            await bench.driver.read_log(job_id, 1, LogStream.STDOUT, 0, 100)


# ---- what is deleted


async def test_old_attempts_are_deleted_once_their_ends_are_acknowledged(tmp_path, monkeypatch):
    monkeypatch.setattr(driver_module, "CLEAN_S", 0.0)
    monkeypatch.setattr(driver_module, "OBSERVE_S", 0.02)
    bench = Bench(tmp_path, attempts_kept=1)
    await bench.begin()
    for number in (1, 2, 3):
        await bench.run_to_end(f"job-{number}", "exit 0")
    await asyncio.sleep(0.3)
    assert len(bench.names) == 3, "nobody has acknowledged their ends"
    bench.side.acknowledge(bench.side.incarnation, bench.side.log.revision, 0)
    await bench.until(lambda: len(bench.names) == 1)
    assert bench.names[0].startswith("job-3.1.")
    await bench.until(lambda: len(list((tmp_path / "local" / "notes").iterdir())) == 1)
    with pytest.raises(NotFound):
        await bench.driver.read_log("job-1", 1, LogStream.STDOUT, 0, 100)
    assert bench.launch("job-1", "exit 0").state is AttemptState.ENDED, "and it is not run again"
    await bench.finish()


# ---- GPUs


async def test_of_a_pretended_gpu_nothing_is_measured(bench):
    bench.launch("job-1", SLEEPS, number=1)
    await bench.running("job-1")
    _, metrics = bench.driver.sample()
    for name in GpuMetrics.__dataclass_fields__:
        assert [math.isnan(each) for each in getattr(metrics, name)] == [True, True], name
    await bench.finish()


async def test_a_program_that_the_kernel_holds_takes_its_gpu_out(bench, monkeypatch):
    monkeypatch.setattr(driver_module, "LOOK_S", 0.0)
    monkeypatch.setattr(driver_module, "OBSERVE_S", 0.02)
    bench.launch("job-1", SLEEPS)
    await bench.running("job-1")
    stuck = bench.attempts / bench.names[0] / "stuck.json"
    stuck.write_text(json.dumps({"pids": [4711]}))
    await bench.until(bench.driver.gpu_conditions)
    (condition,) = bench.driver.gpu_conditions()
    assert "processes of attempt 1 of job-1 do not end although they were killed (pid 4711)" in condition.reason
    assert EventKind.GPU_LOST in {event.kind for event in bench.all_events()}
    stuck.unlink()
    await bench.until(lambda: not bench.driver.gpu_conditions())
    assert bench.all_events()[-1].kind is EventKind.GPU_BACK
    await bench.finish()


async def test_a_program_begins_when_its_gpu_has_released_its_memory(bench, monkeypatch):
    held = True
    monkeypatch.setattr(bench.driver._health, "released", lambda gpu_id: not held)
    bench.launch("job-1", "exit 0")
    await asyncio.sleep(0.3)
    assert bench.kinds("job-1") == []
    held = False
    assert (await bench.ended("job-1")).kind is EventKind.FINISHED
    held = True
    monkeypatch.setattr(driver_module, "RELEASE_S", 0.2 - driver_module._RELEASE_MORE_S)
    end = await bench.run_to_end("job-2", "exit 0")
    assert (end.kind, "does not release its memory" in end.message) == (EventKind.LOST, True)


class Gpus:
    """A watch of GPUs whose readings a test sets."""

    def __init__(self) -> None:
        self.now = Readings({})

    def readings(self) -> Readings:
        return self.now

    def start(self) -> None:
        pass

    stop = start


def bench_with_gpus(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Bench, Gpus]:
    gpus = Gpus()
    monkeypatch.setattr("adlro.services.local.health.DeviceWatch", lambda _: gpus)
    devices = tuple(
        Device(f"GPU-{n}", Vendor.NVIDIA, n, "a100", "A100", 40_536, device_files=(f"/dev/nvidia{n}",))
        for n in range(2)
    )
    bench = Bench(folder, fake_gpus="")
    bench.make_driver = lambda: LocalDriver(bench.settings, find=lambda: Found(devices), machine=lambda: bench.machine)
    return bench, gpus


async def test_nothing_begins_on_a_gpu_that_has_not_reported_or_that_somebody_else_uses(tmp_path, monkeypatch):
    monkeypatch.setattr(driver_module, "OBSERVE_S", 0.02)
    monkeypatch.setattr("adlro.devices.conditions.FOREIGN_S", 0.1)
    bench, gpus = bench_with_gpus(tmp_path, monkeypatch)
    await bench.begin()
    bench.launch("job-1", "exit 0")
    bench.launch("job-2", "exit 0", number=1)
    await asyncio.sleep(0.3)
    assert bench.names == [], "nothing is known of the GPUs yet"
    theirs = Reading(processes=(ComputeProcess(4711, "bob", 900.0),))
    gpus.now = Readings({"GPU-0": theirs, "GPU-1": Reading(processes=())})
    first, second = await bench.ended("job-1"), await bench.ended("job-2")
    assert (first.kind, second.kind) == (EventKind.LOST, EventKind.FINISHED)
    assert "is out: used by pid 4711 of user bob" in first.message
    assert [name.split(".")[0] for name in bench.names] == ["job-2"]
    await bench.finish()


async def test_a_gpu_of_which_nothing_is_ever_heard_keeps_nothing_from_starting(tmp_path, monkeypatch):
    monkeypatch.setattr("adlro.services.local.health.FIRST_REPORT_S", 0.2)
    bench, _ = bench_with_gpus(tmp_path, monkeypatch)
    await bench.begin()
    assert (await bench.run_to_end("job-1", "exit 0")).kind is EventKind.FINISHED
    await bench.finish()


async def test_a_gpu_that_is_gone_loses_what_fails_there_and_stops_what_does_not_end(tmp_path, monkeypatch):
    monkeypatch.setattr(driver_module, "OBSERVE_S", 0.02)
    monkeypatch.setattr("adlro.services.local.health.GONE_S", 600.0)  # until the first one has ended by itself
    bench, gpus = bench_with_gpus(tmp_path, monkeypatch)
    gpus.now = Readings({"GPU-0": Reading(processes=()), "GPU-1": Reading(processes=())})
    await bench.begin()
    go = tmp_path / "go"
    bench.launch("job-1", f"while [ ! -e {go} ]; do sleep 0.02; done; env; exit 9")
    bench.launch("job-2", SLEEPS, number=1)
    await bench.running("job-1")
    await bench.running("job-2")
    lost = Reading(lost="it has fallen off the bus")
    gpus.now = Readings({"GPU-0": lost, "GPU-1": lost})
    await bench.until(lambda: len(bench.driver.gpu_conditions()) == 2)
    go.touch()
    first = await bench.ended("job-1")
    monkeypatch.setattr("adlro.services.local.health.GONE_S", 0.5)
    second = await bench.ended("job-2")
    out = (await bench.driver.read_log("job-1", 1, LogStream.STDOUT, 0, 65536)).data.decode()
    assert "CUDA_VISIBLE_DEVICES=GPU-0" in out.splitlines()
    for end in (first, second):
        assert end.exit is not None
        assert (end.kind, end.exit.reason) == (EventKind.LOST, EndReason.GPU_FAILED)
        assert "it has fallen off the bus" in end.message
    assert first.exit is not None
    assert first.exit.code == 9
    await bench.restart()
    assert len(bench.side.describe().lost_gpu_ids) == 2, "a restart makes no GPU well"
    monkeypatch.setattr("adlro.devices.conditions.QUIET_S", 0.0)
    gpus.now = Readings({"GPU-0": Reading(processes=()), "GPU-1": Reading(processes=())})
    await bench.until(lambda: not bench.side.describe().lost_gpu_ids)
    await bench.finish()


async def test_a_machine_without_gpus_is_refused_with_the_way_out(tmp_path):
    users_map(tmp_path)
    driver = LocalDriver(settings_of(tmp_path, fake_gpus=""), find=Found)
    with pytest.raises(InvalidInput, match="no GPUs that can be used; --fake-gpus v100_sxm2:2") as raised:
        await driver.prepare()
    assert raised.value.reason == "NO_GPUS"


async def test_gpus_that_join_and_leave_between_two_starts_change_the_cluster(bench):
    bench.launch("job-1", SLEEPS, number=1)
    await bench.running("job-1")
    bench.settings = settings_of(bench.folder, fake_gpus="v100_sxm2:1")
    began_s = time.monotonic()
    await bench.restart()
    end = await bench.ended("job-1")
    assert end.kind is EventKind.LOST
    assert EventKind.CLUSTER_CHANGED in {event.kind for event in bench.all_events()}
    await bench.until(lambda: not bench.left())
    assert time.monotonic() - began_s < 30.0


async def test_jobs_share_as_many_cores_as_the_operator_says(tmp_path):
    bench = Bench(tmp_path, cpu_cores=12, memory_mib=4096)
    await bench.begin()
    try:
        (node,) = bench.driver.cluster.nodes
        assert (node.cpu_cores, node.memory_mib) == (12, 4096)
    finally:
        await bench.finish()


async def test_a_fork_bomb_stays_within_its_limit(tmp_path):
    with own_cgroups() as driver:
        if driver is None or "processes" not in driver.enforced:
            pytest.skip("this machine lets us make no control groups that limit processes")
        bench = Bench(tmp_path, driver="cgroup", processes_of_job=20)
        await bench.begin()
        try:
            script = "i=0; while [ $i -lt 60 ]; do sleep 5 & i=$((i+1)); done; wait"
            end = await bench.run_to_end("job-1", script)
            assert end.kind is EventKind.FAILED
            (name,) = bench.names
            log = (bench.attempts / name / "stderr").read_text()
            assert "fork" in log.lower()
        finally:
            await bench.finish()
