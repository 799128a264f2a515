"""Attempts of several GPUs: a program on each node or for each GPU; begun together, ended together, over kills."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from adlro.attempt.journal import Journal
from adlro.errors import InvalidInput, NotFound, Unavailable
from adlro.records.events import EventKind
from adlro.records.payloads import Container, EndReason, LaunchStyle, LogStream, Payload
from adlro.services.local import driver as driver_module
from adlro.services.local.ports import FIRST_PORT, PORT_COUNT
from tests.unit.local.bench import Bench, shell

TWO_NODES = "a=v100_sxm2:2,b=v100_sxm2:2"
SLEEPS = "exec sleep 300"
EACH_GPU = LaunchStyle.ONE_PER_GPU


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Bench]:
    """Two nodes of two GPUs each: a/0, a/1, b/0, b/1."""
    made = Bench(tmp_path, fake_gpus=TWO_NODES)
    await made.begin()
    yield made
    await made.end()


async def lines(bench: Bench, job_id: str, rank: int = 0, attempt: int = 1) -> dict[str, str]:
    """The variables that `env` has printed."""
    chunk = await bench.driver.read_log(job_id, attempt, LogStream.STDOUT, 0, 65536, rank)
    return dict(each.split("=", 1) for each in chunk.data.decode().splitlines() if "=" in each)


def supervisor(bench: Bench, name: str) -> int:
    process = Journal(str(bench.attempts / name)).supervisor()
    assert process is not None
    return process[0]


def began(bench: Bench) -> list[str]:
    return [each for each in bench.names if bench.view(each).began is not None]


def gate(bench: Bench) -> Path:
    (found,) = {each.rpartition(".r")[0] for each in bench.names}
    return bench.folder / "local" / "gates" / f"{found}.json"


# ---- what programs are given


async def test_one_program_sees_all_gpus_of_its_node(bench):
    await bench.run_to_end("job-1", "env", 0, 1)
    assert [each.count(".r") for each in bench.names] == [0], "one program has one folder, and no gate"
    seen = await lines(bench, "job-1")
    node = seen["ADLRO_NODE"]
    assert seen["ADLRO_GPU_IDS"] == f"{node}/0,{node}/1"
    assert [seen[each] for each in ("NNODES", "NODE_RANK", "NPROC_PER_NODE")] == ["1", "0", "2"]
    assert seen["MASTER_ADDR"] == "127.0.0.1"
    assert FIRST_PORT <= int(seen["MASTER_PORT"]) < FIRST_PORT + PORT_COUNT
    assert "RANK" not in seen, "its launcher gives ranks"
    assert [seen[each] for each in ("PET_NNODES", "PET_NPROC_PER_NODE")] == ["1", "2"]
    assert "PET_MASTER_PORT" not in seen, "torchrun finds a port of its own on one node"


async def test_one_program_on_each_node(nodes):
    await nodes.run_to_end("job-1", "env", 1, 2, 3)
    assert [each.rpartition(".")[2] for each in nodes.names] == ["r0", "r1"]
    first, second = await lines(nodes, "job-1", 0), await lines(nodes, "job-1", 1)
    assert (first["ADLRO_GPU_IDS"], second["ADLRO_GPU_IDS"]) == ("a/1", "b/0,b/1")
    assert [first[each] for each in ("NNODES", "NODE_RANK", "NPROC_PER_NODE")] == ["2", "0", "1"]
    assert [second[each] for each in ("NNODES", "NODE_RANK", "NPROC_PER_NODE")] == ["2", "1", "2"]
    assert first["MASTER_PORT"] == second["MASTER_PORT"] == second["PET_MASTER_PORT"]
    assert second["PET_NODE_RANK"] == "1"


async def test_one_program_for_each_gpu(nodes):
    payload = shell("env", launch_style=EACH_GPU)
    await nodes.run_to_end("job-1", None, 0, 2, 3, payload=payload)
    seen = [await lines(nodes, "job-1", rank) for rank in range(3)]
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "NNODES")
    assert [[each[name] for name in names] for each in seen] == [
        ["0", "3", "0", "1", "0", "2"],
        ["1", "3", "0", "2", "1", "2"],
        ["2", "3", "1", "2", "1", "2"],
    ]
    assert [each["ADLRO_GPU_IDS"] for each in seen] == ["a/0", "b/0,b/1", "b/0,b/1"], "LOCAL_RANK counts these"
    assert not any(name.startswith("PET_") for name in seen[0])
    with pytest.raises(NotFound, match="3 programs, ranks 0 to 2; there is no rank 3"):
        await nodes.driver.read_log("job-1", 1, LogStream.STDOUT, 0, 10, 3)


async def test_the_output_of_a_program_that_is_about_to_be_written_down_will_be_there_soon(nodes, monkeypatch):
    runner, go_on = type(nodes.driver._runners["process"]), asyncio.Event()
    start = runner.start

    async def slowly(self: object, name: str, launch: object) -> object:
        if name.endswith(".r0"):
            await go_on.wait()
        return await start(self, name, launch)

    monkeypatch.setattr(runner, "start", slowly)
    nodes.launch("job-1", "echo $NODE_RANK", 0, 2)
    await nodes.until(lambda: nodes.driver._known.get("job-1", 1))
    soon = await nodes.driver.read_log("job-1", 1, LogStream.STDOUT, 0, 10, 1)
    assert (soon.data, soon.end) == (b"", False)
    with pytest.raises(NotFound, match="there is no rank 2"):
        await nodes.driver.read_log("job-1", 1, LogStream.STDOUT, 0, 10, 2)
    go_on.set()
    await nodes.ended("job-1")
    assert (await nodes.driver.read_log("job-1", 1, LogStream.STDOUT, 0, 10, 1)).data == b"1\n"


async def test_what_the_job_sets_itself_stays(bench):
    await bench.run_to_end("job-1", None, 0, 1, payload=shell("env", environment={"MASTER_PORT": "29501"}))
    assert (await lines(bench, "job-1"))["MASTER_PORT"] == "29501"


async def test_limits_are_those_of_all_gpus_of_a_program(nodes):
    nodes.driver._launches._enforced = frozenset(("memory_mib", "cpu_cores", "processes"))
    for style, expected in ((LaunchStyle.ONE_PER_NODE, [64, 128]), (EACH_GPU, [64, 64, 64])):
        job_id = f"job-{style}"
        await nodes.run_to_end(job_id, None, 1, 2, 3, payload=shell("true", launch_style=style))
        intents = [
            json.loads((nodes.attempts / each / "intent.json").read_text())
            for each in nodes.names
            if each.startswith(job_id)
        ]
        assert [each["limits"]["memory_mib"] for each in intents] == expected
        assert [each["limits"]["cpu_cores"] for each in intents] == [float(each // 64) for each in expected]


async def test_ports_of_attempts_differ_and_are_given_back(bench):
    for number in (0, 1):
        bench.launch(f"job-{number}", "env; exec sleep 300", number)
        await bench.running(f"job-{number}")
        while "MASTER_PORT" not in await lines(bench, f"job-{number}"):  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.01)
    seen = [(await lines(bench, f"job-{number}"))["MASTER_PORT"] for number in (0, 1)]
    assert len(set(seen)) == 2
    assert {str(each) for each in bench.driver._ports._port_of.values()} == set(seen)
    await bench.restart()
    await bench.until(lambda: {str(each) for each in bench.driver._ports._port_of.values()} == set(seen))
    for number in (0, 1):
        bench.side.stop(f"job-{number}", 1, 0)
        await bench.ended(f"job-{number}")
    assert bench.driver._ports._port_of == {}


async def test_containers_that_could_not_meet_are_refused(nodes, monkeypatch):
    nodes.driver._missing.clear()
    end = await nodes.run_to_end("job-1", None, 0, 2, payload=Payload(container=Container("x:1")))
    assert end.kind is EventKind.FAILED
    assert end.message.startswith("the 2 containers of this job could not reach each other")
    assert nodes.driver._ports._port_of == {}


# ---- how they begin and end


async def test_all_succeed(nodes):
    end = await nodes.run_to_end("job-1", "exit 0", 0, 1, 2, 3)
    assert (end.kind, end.message, end.exit.code) == (EventKind.FINISHED, "", 0)
    assert nodes.kinds("job-1") == ["STARTED", "RUNNING", "FINISHED"]
    assert end.placement.gpu_ids == ("a/0", "a/1", "b/0", "b/1")


async def test_nothing_begins_before_all_are_prepared(nodes, monkeypatch):
    """The second one's supervisor is held back."""
    from adlro.attempt.attempts import Attempts

    supervise, held = Attempts._supervise, asyncio.Event()
    loop = asyncio.get_running_loop()

    def late(self: Attempts, journal: Journal) -> None:
        if journal.name.endswith(".r1"):
            asyncio.run_coroutine_threadsafe(held.wait(), loop).result(30.0)
        supervise(self, journal)

    monkeypatch.setattr(Attempts, "_supervise", late)
    nodes.launch("job-1", SLEEPS, 0, 2)
    await nodes.until(lambda: len(nodes.names) == 2 and nodes.view(nodes.names[0]).prepared)
    assert began(nodes) == []
    assert not gate(nodes).exists()
    held.set()
    await nodes.running("job-1")
    assert began(nodes) == nodes.names
    await nodes.finish()


@pytest.mark.parametrize(("failing", "code"), [(0, 3), (1, 4)])
async def test_the_first_that_fails_ends_the_others(nodes, failing, code):
    script = f'if [ "$NODE_RANK" = {failing} ]; then exit {code}; fi; trap "sleep 0.2; exit 9" TERM; sleep 300 & wait'
    end = await nodes.run_to_end("job-1", script, 0, 2)
    assert (end.kind, end.exit.reason, end.exit.code) == (EventKind.FAILED, EndReason.EXITED, code)
    assert end.message == f"exit code {code}: rank {failing} on {'ab'[failing]}"
    other = nodes.view(nodes.names[1 - failing]).exit
    assert other.reason is EndReason.STOPPED
    assert other.detail == f"another program of the job ended: exit code {code}: rank {failing} on {'ab'[failing]}"
    assert nodes.left() == {}


async def test_a_program_that_does_not_end_has_the_grace_of_a_stop(nodes, tmp_path):
    """Rank 0 ends once rank 1 ignores the signal: a rank that has not begun by then would be ended without one."""
    ready = tmp_path / "ready"
    ends = f"while ! [ -e {ready} ]; do sleep 0.01; done; exit 3"
    ignores = f'trap "" TERM; : > {ready}; while :; do sleep 0.05; done'
    script = f'if [ "$RANK" = 0 ]; then {ends}; fi; {ignores}'
    end = await nodes.run_to_end("job-1", None, 0, 1, payload=shell(script, 0.3, launch_style=EACH_GPU))
    assert end.message == "exit code 3: rank 0 on a"
    assert nodes.view(nodes.names[1]).exit.signal == signal.SIGKILL


async def test_what_one_program_lacks_keeps_all_from_beginning(nodes, tmp_path):
    """Its working directory is looked for after the start, its secret before."""
    secrets = tmp_path / "secrets" / "ada"
    secrets.mkdir(parents=True)
    nodes.driver._launches._secrets_dir = str(secrets.parent)
    runs = tmp_path / "runs"
    end = await nodes.run_to_end("job-1", None, 0, 2, payload=shell(f"echo x >> {runs}", secret_names=("TOKEN",)))
    assert (end.kind, end.exit.reason) == (EventKind.FAILED, EndReason.NOT_STARTED)
    assert "this node has no secret 'TOKEN'" in end.message
    assert nodes.kinds("job-1") == ["STARTED", "FAILED"]
    assert not gate(nodes).exists()
    assert not runs.exists()


async def test_a_stop_ends_all(nodes):
    nodes.launch("job-1", "setsid sleep 300 & wait", 0, 1, 2)
    await nodes.running("job-1")
    assert nodes.side.stop("job-1", 1, 0)
    end = await nodes.ended("job-1")
    assert (end.kind, end.message) == (EventKind.STOPPED, "stopped")
    assert nodes.left() == {}


async def test_a_stop_before_the_gate_keeps_all_from_beginning(nodes, monkeypatch):
    monkeypatch.setattr("adlro.services.local.gates.Gates.open", lambda *_: asyncio.run(asyncio.sleep(0.5)))
    runs = nodes.folder / "runs"
    nodes.launch("job-1", f"echo x >> {runs}", 0, 2)
    await nodes.until(lambda: len(nodes.names) == 2 and all(nodes.view(each).prepared for each in nodes.names))
    nodes.side.stop("job-1", 1, 0)
    assert (await nodes.ended("job-1")).kind is EventKind.STOPPED
    assert not runs.exists()


async def test_a_time_limit_ends_all(nodes):
    end = await nodes.run_to_end("job-1", SLEEPS, 0, 2, time_limit_s=0.3)
    assert (end.kind, end.message) == (EventKind.FAILED, "time limit of 0.3 s reached")
    assert end.exit.reason is EndReason.TIME_LIMIT
    assert nodes.left() == {}


@pytest.mark.parametrize("rank", [0, 1])
async def test_a_killed_supervisor_loses_the_whole_attempt(nodes, rank):
    nodes.launch("job-1", "setsid sleep 300 & wait", 0, 2)
    await nodes.running("job-1")
    os.kill(supervisor(nodes, nodes.names[rank]), signal.SIGKILL)
    end = await nodes.ended("job-1")
    assert (end.kind, end.exit.reason) == (EventKind.LOST, EndReason.SUPERVISOR_LOST)
    assert f"rank {rank} on {'ab'[rank]}" in end.message
    assert nodes.left() == {}
    assert (await nodes.run_to_end("job-1", "exit 0", 0, 2, attempt=2)).kind is EventKind.FINISHED


async def test_a_peer_that_fails_since_a_supervisor_was_killed_does_not_make_it_a_failure(nodes):
    """Connections break at once, and are noticed before the loss is told."""
    fifo = nodes.folder / "fifo"
    os.mkfifo(fifo)
    fifo.chmod(0o666)
    script = f'if [ "$NODE_RANK" = 1 ]; then exec 3>{fifo}; sleep 300; else cat {fifo}; exit 1; fi'
    nodes.launch("job-1", script, 0, 2)
    await nodes.running("job-1")
    os.kill(supervisor(nodes, nodes.names[1]), signal.SIGKILL)
    end = await nodes.ended("job-1")
    assert end.kind is EventKind.LOST
    assert "rank 1 on b: its supervisor was killed while its program ran" in end.message


async def test_a_supervisor_that_is_killed_at_the_gate_is_followed_by_another(nodes, monkeypatch):
    from adlro.services.local.gates import Gates

    opened, may_open = Gates.open, asyncio.Event()
    loop = asyncio.get_running_loop()

    def late(self: Gates, name: str) -> None:
        asyncio.run_coroutine_threadsafe(may_open.wait(), loop).result(30.0)
        opened(self, name)

    monkeypatch.setattr(Gates, "open", late)
    runs = nodes.folder / "runs"
    nodes.launch("job-1", f"echo $NODE_RANK >> {runs}", 0, 2)
    await nodes.until(lambda: len(nodes.names) == 2 and all(nodes.view(each).prepared for each in nodes.names))
    os.kill(supervisor(nodes, nodes.names[1]), signal.SIGKILL)
    may_open.set()
    assert (await nodes.ended("job-1")).kind is EventKind.FINISHED
    assert sorted(runs.read_text().split()) == ["0", "1"]


async def test_a_gpu_that_is_gone_ends_all(nodes, monkeypatch):
    nodes.launch("job-1", SLEEPS, 0, 2)
    await nodes.running("job-1")
    health = nodes.driver._health
    monkeypatch.setattr(health, "gone", lambda: ["b/0"])
    monkeypatch.setattr(health, "failure", lambda gpu_id: "it fell off the bus" if gpu_id == "b/0" else "")
    end = await nodes.ended("job-1")
    assert (end.kind, end.exit.reason) == (EventKind.LOST, EndReason.GPU_FAILED)
    assert end.message == "gpu failed: rank 1 on b: it fell off the bus"
    assert nodes.left() == {}


async def test_programs_that_hang_on_their_lost_gpus_do_not_keep_the_job_from_running_elsewhere(nodes, monkeypatch):
    monkeypatch.setattr(driver_module, "LOOK_S", 0.0)
    monkeypatch.setattr(driver_module, "OBSERVE_S", 0.02)

    async def killed_in_vain(self: object, name: str, *_: object) -> None:
        (nodes.attempts / name / "stuck.json").write_text(json.dumps({"pids": [4711]}))

    nodes.launch("job-1", SLEEPS, 0, 2)
    await nodes.running("job-1")
    runner = type(nodes.driver._runners["process"])
    monkeypatch.setattr(runner, "stop", killed_in_vain)
    health = nodes.driver._health
    monkeypatch.setattr(health, "gone", lambda: ["a/0", "b/0"])
    monkeypatch.setattr(health, "failure", lambda gpu_id: "it fell off the bus" if gpu_id in ("a/0", "b/0") else "")
    end = await asyncio.wait_for(nodes.ended("job-1"), 20.0)
    assert (end.kind, end.exit.reason) == (EventKind.LOST, EndReason.GPU_FAILED)
    monkeypatch.undo()
    for name in nodes.names:
        await nodes.driver._runners["process"].stop(name)
    await nodes.until(lambda: not nodes.left())


async def test_a_program_that_fails_beside_a_failed_gpu_of_its_attempt_is_lost(nodes, monkeypatch):
    monkeypatch.setattr(nodes.driver._health, "failure", lambda gpu_id: "Xid 79" if gpu_id == "b/0" else "")
    end = await nodes.run_to_end("job-1", "test $NODE_RANK = 1 || exit 5; sleep 300", 0, 2)
    assert (end.kind, end.exit.reason) == (EventKind.LOST, EndReason.GPU_FAILED)


async def test_a_disk_that_is_full_for_one_program_starts_none(nodes, monkeypatch):
    checks: list[int] = []

    def full(self: object) -> None:
        checks.append(1)
        if len(checks) > 1:
            raise Unavailable("the disk has 3 MiB left", reason="DISK_FULL")

    monkeypatch.setattr("adlro.attempt.attempts.Attempts._check_room", full)
    runs = nodes.folder / "runs"
    end = await nodes.run_to_end("job-1", f"echo x >> {runs}", 0, 2)
    monkeypatch.undo()
    assert end.kind is EventKind.LOST
    assert end.message == "rank 0 on a: it could not be started: the disk has 3 MiB left"
    assert not runs.exists()
    assert (await nodes.run_to_end("job-1", "exit 0", 0, 2, attempt=2)).kind is EventKind.FINISHED


async def test_a_program_that_is_refused_starts_none(nodes, monkeypatch):
    start = type(nodes.driver._runners["process"]).start

    async def picky(self: object, name: str, launch: object) -> object:
        if name.endswith(".r1"):
            raise InvalidInput("not here", field="x")
        return await start(self, name, launch)

    monkeypatch.setattr(type(nodes.driver._runners["process"]), "start", picky)
    runs = nodes.folder / "runs"
    end = await nodes.run_to_end("job-1", f"echo x >> {runs}", 0, 2)
    monkeypatch.undo()
    assert (end.kind, end.message) == (EventKind.FAILED, "not here")
    await nodes.until(lambda: not nodes.driver.gpu_conditions())
    assert not runs.exists()


# ---- over kills of the service


async def test_a_service_that_is_followed_by_another_keeps_all(nodes):
    nodes.launch("job-1", "echo once; exec sleep 300", 0, 2)
    for rank in (0, 1):
        await nodes.says("job-1", "once", rank)
    await nodes.restart()
    assert nodes.side.stop("job-1", 1, 0)
    assert (await nodes.ended("job-1")).kind is EventKind.STOPPED
    for rank in (0, 1):
        assert (await nodes.driver.read_log("job-1", 1, LogStream.STDOUT, 0, 100, rank)).data == b"once\n"


async def test_ends_while_no_service_runs_are_told(nodes):
    go = nodes.folder / "go"
    script = f"while [ ! -e {go} ]; do sleep 0.02; done; exit $((3 * NODE_RANK))"
    nodes.launch("job-1", script, 0, 2)
    await nodes.running("job-1")
    kept = nodes.kept()
    await nodes.end()
    go.touch()
    await nodes.until(lambda: all(Journal(str(nodes.attempts / each)).has("exit.json") for each in nodes.names))
    await nodes.begin(kept)
    end = await nodes.ended("job-1")
    assert (end.kind, end.message) == (EventKind.FAILED, "exit code 3: rank 1 on b")


class Killed(BaseException):
    """The service dies here."""


POINTS = [
    "before all",
    "before the second is written down",
    "before the gate",
    "after the gate",
]


@pytest.mark.parametrize("stop_meanwhile", [False, True], ids=["goes on", "is stopped"])
@pytest.mark.parametrize("point", POINTS)
async def test_a_service_that_dies_between_two_writes_starts_all_or_none(nodes, monkeypatch, point, stop_meanwhile):
    from adlro.services.local.gates import Gates

    runner = type(nodes.driver._runners["process"])
    start, opened, reached = runner.start, Gates.open, asyncio.Event()
    loop = asyncio.get_running_loop()

    async def killed_start(self: object, name: str, launch: object) -> object:
        if point == POINTS[0] or (point == POINTS[1] and name.endswith(".r1")):
            reached.set()
            await asyncio.Event().wait()
        return await start(self, name, launch)

    def killed_open(self: Gates, name: str) -> None:
        if point == POINTS[3]:
            opened(self, name)
        loop.call_soon_threadsafe(reached.set)
        raise OSError("nothing more of this service")

    monkeypatch.setattr(runner, "start", killed_start)
    monkeypatch.setattr(Gates, "open", killed_open)
    runs = nodes.folder / "runs"
    nodes.launch("job-1", f"echo $NODE_RANK >> {runs}; exit 0", 0, 2)
    await asyncio.wait_for(reached.wait(), 30.0)
    kept = nodes.kept()
    await nodes.end()
    monkeypatch.undo()
    if stop_meanwhile:
        for each in kept.attempts:
            each.stop_asked = True
    await nodes.begin(kept)
    end = await nodes.ended("job-1")
    ran = sorted(runs.read_text().split()) if runs.exists() else []
    if stop_meanwhile and point != POINTS[3]:
        assert end.kind in (EventKind.STOPPED, EventKind.LOST)
        assert ran == []
    elif not stop_meanwhile:
        assert end.kind is EventKind.FINISHED, end.message
        assert ran == ["0", "1"]
    else:
        assert len(ran) == len(set(ran)), "no program runs twice"
    assert nodes.left() == {}


async def test_a_part_whose_folder_is_gone_ends_the_rest(nodes):
    nodes.launch("job-1", SLEEPS, 0, 2)
    await nodes.running("job-1")
    kept = nodes.kept()
    await nodes.end()
    # What ran there is ended by hand, as an operator would who removes a folder.
    gone = nodes.attempts / nodes.names[1]
    os.kill(supervisor(nodes, gone.name), signal.SIGKILL)
    await nodes.until(lambda: not nodes.left().get(gone.name))
    gone.rename(nodes.folder / "gone")
    await nodes.begin(kept)
    end = await nodes.ended("job-1")
    assert end.kind is EventKind.LOST
    assert "what is known of one of its programs is gone" in end.message
    assert nodes.left() == {}


async def test_lost_notes_do_not_lose_a_program(nodes):
    nodes.launch("job-1", SLEEPS, 0, 2)
    await nodes.running("job-1")
    kept = nodes.kept()
    await nodes.end()
    for each in (nodes.folder / "local" / "notes").iterdir():
        each.unlink()
    await nodes.begin(kept)
    nodes.side.stop("job-1", 1, 0)
    assert (await nodes.ended("job-1")).kind is EventKind.STOPPED


async def test_an_emptied_store_leaves_the_decision_to_the_orchestrator(nodes):
    nodes.launch("job-1", SLEEPS, 0, 2)
    await nodes.running("job-1")
    await nodes.restart(emptied=True)
    (running,) = nodes.side.describe().running
    assert running.job_id.startswith("job-1~")
    assert running.placement.gpu_ids == ("a/0", "b/0")
    await nodes.restart()
    assert nodes.side.stop(running.job_id, 1, 0)
    assert (await nodes.ended(running.job_id)).kind is EventKind.STOPPED
    assert nodes.left() == {}


async def test_an_emptied_store_and_a_closed_gate_begin_nothing(nodes, monkeypatch):
    monkeypatch.setattr("adlro.services.local.gates.Gates.open", lambda *_: asyncio.run(asyncio.sleep(0.5)))
    runs = nodes.folder / "runs"
    nodes.launch("job-1", f"echo x >> {runs}", 0, 2)
    await nodes.until(lambda: len(nodes.names) == 2 and all(nodes.view(each).prepared for each in nodes.names))
    await nodes.restart(emptied=True)
    await nodes.until(lambda: all(nodes.view(each).exit for each in nodes.names))
    assert not runs.exists()


async def test_what_the_record_has_ended_is_ended_on_all_gpus(nodes):
    nodes.launch("job-1", "trap '' TERM; echo deaf; while :; do sleep 0.05; done", 0, 2)
    for rank in range(2):
        await nodes.says("job-1", "deaf", rank)
    nodes.driver.ended(next(iter(nodes.side.open_attempts())), EventKind.LOST, "given up")
    await nodes.restart()
    await nodes.until(lambda: {each.gpu_id for each in nodes.driver.gpu_conditions()} == {"a/0", "b/0"})
    await nodes.until(lambda: not nodes.driver.gpu_conditions())
    assert nodes.left() == {}


async def test_gates_go_with_their_attempts(nodes):
    await nodes.run_to_end("job-1", "exit 0", 0, 2)
    assert gate(nodes).exists()
    nodes.side.acknowledge(nodes.side.incarnation, nodes.side.log.revision, 0)
    from adlro.services.local.cleaning import clean

    driver = nodes.driver
    await clean(driver._known, driver._runners, driver._gates, driver._job_dirs, nodes.side, 30.0, 0)
    assert nodes.names == []
    assert list((nodes.folder / "local" / "gates").iterdir()) == []
    stale = nodes.folder / "local" / "gates" / "job-9.1.abcdef12.json"
    stale.touch()
    await nodes.restart()
    with contextlib.suppress(FileNotFoundError):
        pytest.fail(f"{stale.stat()} is of no attempt")
