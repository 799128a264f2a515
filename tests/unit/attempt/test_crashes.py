"""Killed at every point where it touches a file: no attempt runs twice, none is lost without a word, nothing is left.

The real processes are killed, before and after each of their file operations. Starts are counted by a file that the
program itself appends to.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from adlro.attempt import tree
from adlro.attempt.attempts import Attempts
from adlro.attempt.drivers import CgroupDriver
from adlro.attempt.linux import process_stat
from adlro.records.payloads import EndReason, ExitStatus
from tests.unit.attempt.node import DAEMON, Node, own_cgroups, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

CRASHING = str(Path(__file__).with_name("crashing.py"))
ROUNDS = int(os.environ.get("ADLRO_TEST_ATTEMPT_ROUNDS", "200"))
SEED = int(os.environ.get("ADLRO_TEST_ATTEMPT_SEED", "12"))
AT_ONCE = 6
T = TypeVar("T")


async def side_by_side(work: Callable[[T], Awaitable[None]], over: Iterable[T]) -> None:
    room = asyncio.Semaphore(AT_ONCE)

    async def one(each: T) -> None:
        async with room:
            await work(each)

    async with asyncio.TaskGroup() as group:
        for each in over:
            group.create_task(one(each))


def say(line: str) -> None:
    """What a person who runs this with -s wants to see."""
    sys.stdout.write(line + "\n")


def crashing(at: int, when: str, count_file: Path) -> list[str]:
    return [sys.executable, "-I", "-S", CRASHING, str(at), when, str(count_file)]


@pytest.mark.parametrize("gated", [False, True], ids=["without a gate", "with an open gate"])
async def test_a_supervisor_that_is_killed_at_any_of_its_operations(node: Node, tmp_path: Path, gated: bool):
    script = DAEMON + "sleep 0.1; exit 7"
    whole, opened = tmp_path / "whole", tmp_path / "gate"
    opened.touch()
    more: dict[str, Any] = {"gate": str(opened)} if gated else {}
    undisturbed = node.service(crashing(0, "before", whole))
    await undisturbed.start("whole.1", node.launch(script, "whole.1", **more))
    assert (await undisturbed.ended("whole.1")).code == 7
    operations = whole.read_text().split("\n")[:-1]
    # As the journal describes it; what lies between is read off the operations' names.
    links = [number for number, operation in enumerate(operations, 1) if operation == "link"]
    links = links[gated:]  # ready.json
    spawned, gate = links[0], operations.index("fork") + 1
    waited = links[2]  # spawn.json, run.json, wait.json
    told: dict[tuple[int, str], str] = {}

    async def killed(point: tuple[int, str]) -> None:
        at, when = point
        name = f"{when}.{at}"
        crashes = node.service(crashing(at, when, tmp_path / f"ops-{name}"))
        await crashes.start(name, node.launch(script, name, **more))
        supervisor = crashes._children[name]
        assert supervisor is not None
        await until(lambda: supervisor.poll() is not None)
        # How many there are at the end, when what was left behind is ended, is not the same each time.
        assert supervisor.returncode == -9 or at > waited, point
        end = await node.ended(name)
        runs = node.runs(name)
        told[point] = f"{end.reason.value} {end.code}, {runs} runs"
        assert not node.left(name), point
        after = at > waited or (at == waited and when == "after")
        if at < spawned or (at == spawned and when == "before") or after:
            assert (end.reason, end.code, runs) == (EndReason.EXITED, 7, 1), (point, end)
        elif at <= gate:
            assert (end.reason, runs) == (EndReason.SUPERVISOR_LOST, 0), (point, end)
            assert "before its program began" in end.detail
        else:
            assert end.reason is EndReason.SUPERVISOR_LOST, (point, end)
            assert runs <= 1, point

    points = list(itertools.product(range(1, len(operations) + 1), ("before", "after")))
    await side_by_side(killed, points)
    assert waited > gate > spawned
    assert len(points) > 60
    for at, operation in enumerate(operations, 1):
        say(f"{at:3d} {operation:16s} before: {told[at, 'before']:32s} after: {told[at, 'after']}")


async def test_a_service_that_is_killed_at_any_operation_of_a_start(node: Node, tmp_path: Path):
    async def service(at: int, when: str, name: str) -> tuple[Node, list[str]]:
        one = Node(tmp_path / name / "attempts")
        count = tmp_path / name / "ops"
        process = await asyncio.create_subprocess_exec(
            sys.executable, CRASHING, str(at), when, str(count), "service", str(one.folder), str(one.runs_file("a.1"))
        )
        assert await process.wait() == (-9 if at else 0)
        return one, count.read_text().split("\n")[:-1]

    whole, operations = await service(0, "before", "whole")
    assert (await whole.ended()).code == 7
    written = operations.index("link") + 1
    begun: dict[tuple[int, str], bool] = {}

    async def killed(point: tuple[int, str]) -> None:
        at, when = point
        one, _ = await service(at, when, f"{when}-{at}")
        views = await one.attempts.take_up()
        begun[point] = bool(views)
        assert begun[point] == (at > written or (at == written and when == "after")), point
        if views:
            assert (await one.ended()).code == 7
        # The caller, who had no answer, asks again.
        await one.attempts.start("a.1", one.launch("exit 7"))
        end = await one.ended()
        assert (end.reason, end.code, one.runs()) == (EndReason.EXITED, 7, 1), point

    await side_by_side(killed, itertools.product(range(1, len(operations) + 1), ("before", "after")))
    say(f"{len(begun)} points, the attempt is written down from operation {written} on")


async def test_a_service_that_is_killed_at_any_operation_of_a_forget_runs_nothing_again(tmp_path: Path):
    async def forgets(at: int, when: str, name: str) -> tuple[Node, list[str]]:
        one = Node(tmp_path / name / "attempts")
        assert (await one.run("mkdir -p x/y; echo > x/y/z; exit 7")).code == 7
        count = tmp_path / name / "ops"
        process = await asyncio.create_subprocess_exec(
            sys.executable, CRASHING, str(at), when, str(count), "forget", str(one.folder)
        )
        assert await process.wait() == (-9 if at else 0)
        return one, count.read_text().split("\n")[:-1]

    _, operations = await forgets(0, "before", "whole")
    renamed = operations.index("rename") + 1

    async def killed(point: tuple[int, str]) -> None:
        at, when = point
        one, _ = await forgets(at, when, f"{when}-{at}")
        views = await one.service().take_up()
        assert bool(views) == (at < renamed or (at == renamed and when == "before")), point
        assert all(view.exit is not None and view.exit.code == 7 for view in views), point
        assert [path.name for path in one.folder.iterdir()] == [view.name for view in views], point
        assert one.runs() == 1, point

    await side_by_side(killed, itertools.product(range(1, len(operations) + 1), ("before", "after")))
    assert len(operations) > 20


async def test_a_killed_supervisor_takes_its_program_and_all_of_its_daemons_along(node: Node):
    await node.attempts.start("a.1", node.launch(DAEMON * 2 + "trap '' TERM; sleep 60 & wait; exit 7"))
    await until(lambda: node.runs() == 1)
    await until(lambda: len(node.left()) >= 4)
    assert node.kill_supervisor()
    end = await node.ended()
    assert (end.reason, end.detail) == (EndReason.SUPERVISOR_LOST, "its supervisor was killed while its program ran")
    assert end.left_behind >= 2
    assert not node.left()
    assert node.runs() == 1


@pytest.fixture
def groups() -> Iterator[CgroupDriver | None]:
    with own_cgroups() as driver:
        yield driver


async def test_what_has_erased_its_environment_is_found_by_its_control_group(tmp_path: Path, groups):
    if groups is None:
        pytest.skip("this machine lets us make no control groups")
    node = Node(tmp_path / "attempts", groups)
    hidden = "env -i setsid sh -c 'echo $$ > {}; exec sleep 60' & "
    await node.attempts.start("a.1", node.launch(hidden.format(tmp_path / "pid") + "sleep 60"))
    await until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip())
    pid = int((tmp_path / "pid").read_text())
    assert process_stat(pid) is not None
    assert pid not in node.left()
    assert node.kill_supervisor()
    assert (await node.ended()).reason is EndReason.SUPERVISOR_LOST
    assert process_stat(pid) is None


async def test_attempts_run_on_while_there_is_no_service_and_are_taken_up_by_the_next(node: Node):
    for number in range(1, 5):
        await node.attempts.start(f"a.{number}", node.launch(f"sleep 0.{number}; exit {number}", f"a.{number}"))
    await until(lambda: node.journal("a.1").has("exit.json"))
    await until(lambda: node.journal("a.4").has("run.json"))
    assert node.kill_supervisor("a.4") or node.journal("a.4").has("exit.json")
    node.attempts = node.service()
    views = await node.attempts.take_up()
    assert [view.name for view in views] == [f"a.{number}" for number in range(1, 5)]
    ends = [await node.ended(view.name) for view in views]
    assert [end.code for end in ends[:3]] == [1, 2, 3]
    assert ends[3].reason in {EndReason.SUPERVISOR_LOST, EndReason.EXITED}
    assert [node.runs(view.name) for view in views] == [1] * 4


@pytest.mark.parametrize("ran_to_its_end", [False, True])
async def test_after_a_reboot_what_ran_is_lost_what_had_ended_is_not_and_what_was_ordered_begins(
    node: Node, ran_to_its_end
):
    await node.attempts.start("a.1", node.launch("sleep 60"))
    await until(lambda: node.runs() == 1)
    assert node.kill_supervisor()
    tree.kill_all(node.left)
    ordered = node.service(command=[sys.executable, "-I", "-S", "-c", ""])
    await ordered.start("b.1", node.launch("exit 7", "b.1"))
    folder = node.folder / "a.1"
    for name in ("spawn.json", "run.json"):
        record = json.loads((folder / name).read_text())
        record["at"]["boot_id"] = "another boot"
        (folder / name).write_text(json.dumps(record))
    if ran_to_its_end:
        node.journal().write_reserved("wait.json", {"reason": "exited", "code": 7, "signal": 0, "detail": ""})
    node.attempts = node.service()
    await node.attempts.take_up()
    end = await node.ended()
    if ran_to_its_end:
        assert (end.reason, end.code) == (EndReason.EXITED, 7)
    else:
        assert (end.reason, end.detail) == (EndReason.NODE_LOST, "the node went down while its program ran")
    assert (await node.ended("b.1")).code == 7
    assert (node.runs("a.1"), node.runs("b.1")) == (1, 1)


async def test_a_record_that_a_power_failure_has_spoilt_does_not_keep_an_attempt_from_its_end(node: Node):
    await node.attempts.start("a.1", node.launch("sleep 60"))
    await until(lambda: node.runs() == 1)
    assert node.kill_supervisor()
    (node.folder / "a.1" / "run.json").write_bytes(bytes(64))
    assert (await node.ended()).reason is EndReason.SUPERVISOR_LOST
    assert node.attempts.look("a.1").began is None


# ---- at random

SCRIPTS = {
    "quick": "exit 7",
    "works": "sleep 0.4; exit 7",
    "leaves a daemon": DAEMON + "sleep 0.3; exit 7",
    "ignores SIGTERM": "trap '' TERM; sleep 0.6; exit 7",
    "workers": "for n in 1 2 3; do setsid sleep 0.5 & done; wait; exit 7",
}


class Rounds:
    """Rounds of one node's attempts, whose supervisors and services are killed at random moments."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.told: dict[str, int] = {}

    async def run(self, number: int) -> None:
        chance = random.Random(f"{SEED}.{number}")
        name, node = f"r.{number}", self.node
        script = chance.choice(sorted(SCRIPTS))
        limit_s = chance.choice([None, None, None, 0.2])
        services = [node.service()]
        launch = node.launch(SCRIPTS[script], name, grace_s=0.3, time_limit_s=limit_s)
        await services[0].start(name, launch)
        kills, restarts, stops = (chance.random() < share for share in (0.5, 0.5, 0.2))
        done: list[str] = []

        async def kill() -> None:
            await asyncio.sleep(chance.uniform(0.0, chance.choice([0.15, 0.7])))
            if node.kill_supervisor(name):
                done.append("kill")

        async def restart() -> None:
            await asyncio.sleep(chance.uniform(0.0, 0.5))
            services.append(node.service())
            await services[-1].take_up()
            await services[-1].start(name, launch)

        async def stop() -> None:
            await asyncio.sleep(chance.uniform(0.0, 0.5))
            await services[-1].stop(name)
            done.append("stop")

        wanted = [(kills, kill), (restarts, restart), (stops, stop)]
        await asyncio.gather(*(work() for asked, work in wanted if asked))
        async with asyncio.timeout(120.0):
            ends = {await each.ended(name) for each in services}
        assert len(ends) == 1, number
        self.judge(number, ends.pop(), done, limit_s)

    def judge(self, number: int, end: ExitStatus, done: list[str], limit_s: float | None) -> None:
        name = f"r.{number}"
        runs = self.node.runs(name)
        assert runs <= 1, (number, end)
        assert not self.node.left(name), (number, end)
        allowed = {EndReason.EXITED}
        allowed |= {EndReason.SUPERVISOR_LOST} if "kill" in done else set()
        allowed |= {EndReason.STOPPED} if "stop" in done else set()
        allowed |= {EndReason.TIME_LIMIT} if limit_s is not None else set()
        assert end.reason in allowed, (number, end, done)
        if end.reason is EndReason.EXITED:
            assert (end.code, runs) == (7, 1), (number, end)
        if end.reason is EndReason.SUPERVISOR_LOST:
            assert end.detail, number
        self.told[end.reason.name] = self.told.get(end.reason.name, 0) + 1


async def test_random_rounds_of_kills_restarts_and_stops(node: Node):
    rounds = Rounds(node)
    await side_by_side(rounds.run, range(ROUNDS))
    say(f"{ROUNDS} rounds: {rounds.told}")
    assert sum(rounds.told.values()) == ROUNDS
    services: list[Attempts] = [node.service()]
    assert all(view.exit is not None for view in await services[0].take_up())
