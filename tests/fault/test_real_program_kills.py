"""Whoever is killed while real programs run: each attempt runs once, each end is known, and nothing is left running."""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from adlro.records.jobs import Job
from adlro.records.payloads import EndReason
from tests.e2e.running_suite import wait_until
from tests.fault.counted_programs import CountedPrograms, send

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="real programs are run on Linux alone"),
]

ROUNDS = int(os.environ.get("ADLRO_TEST_REAL_ROUNDS", "2"))
SEED = int(os.environ.get("ADLRO_TEST_REAL_SEED", "1"))
FAULTS = (
    *("local", "orchestrator", "ingest", "decompose", "valkey", "local", "supervisor", "supervisor", "pause", "all"),
    *("local+supervisor", "local+valkey", "local+orchestrator", "valkey+supervisor", "orchestrator+valkey"),
)
# A call of the orchestrator that has no answer after so long has failed (services/orchestrator/clients.py).
LAUNCH_DEADLINE_S = 10.0
# After more kills than this, `adlro up` waits long before it starts a service again.
MOST_KILLS = 8


@pytest.fixture(scope="module")
def shared() -> Iterator[CountedPrograms]:
    with tempfile.TemporaryDirectory(prefix="adlro-kills-") as name:
        programs = CountedPrograms(Path(name))
        try:
            yield programs
            code = programs.suite.running.end()
            assert code == 0, programs.suite.running.text
            assert programs.suite.processes() == {}
        finally:
            programs.suite.end_all()


@pytest.fixture
def programs(shared: CountedPrograms) -> CountedPrograms:
    if shared.suite.running.text.count("restarting it in") > MOST_KILLS:
        assert shared.suite.running.end() == 0, shared.suite.running.text
        shared.start_again()
    return shared


def attempts(jobs: list[Job]) -> list[int]:
    return [job.attempt_count for job in jobs]


@pytest.mark.parametrize("names", [("local",), ("valkey",), ("orchestrator",), ("ingest",), ("local", "valkey")])
def test_programs_go_on_when_services_are_killed(programs: CountedPrograms, names: tuple[str, ...]) -> None:
    with programs.suite.client() as client:
        jobs = programs.submit(client, [10, 30, 40, 30, 2])
        programs.wait_until_started(jobs[:2])
        programs.kill(*names)
        assert attempts(programs.check(client, jobs)) == [1] * 5


def test_a_program_whose_supervisor_is_killed_runs_again(programs: CountedPrograms) -> None:
    with programs.suite.client() as client:
        jobs = programs.submit(client, [40, 40])
        programs.wait_until_started(jobs)
        assert programs.kill_supervisor(jobs[0])
        first, other = programs.check(client, jobs)
    assert attempts([first, other]) == [2, 1]
    assert first.attempts[0].exit is not None
    assert first.attempts[0].exit.reason is EndReason.SUPERVISOR_LOST
    assert programs.starts()[jobs[0], 1] == programs.starts()[jobs[0], 2] == 1


def test_local_and_a_supervisor_are_killed_at_once(programs: CountedPrograms) -> None:
    with programs.suite.client() as client:
        jobs = programs.submit(client, [40, 40])
        programs.wait_until_started(jobs)
        programs.kill("local")
        assert programs.kill_supervisor(jobs[1])
        other, second = programs.check(client, jobs)
    assert attempts([other, second]) == [1, 2]
    assert second.attempts[0].exit is not None
    assert second.attempts[0].exit.reason is EndReason.SUPERVISOR_LOST


def test_local_is_killed_again_while_it_takes_up_what_runs(programs: CountedPrograms) -> None:
    rng = random.Random(SEED)
    with programs.suite.client() as client:
        jobs = programs.submit(client, [20, 80])
        programs.wait_until_started(jobs)
        pid = programs.suite.running.pids["local"]
        programs.kill("local")
        for _ in range(2):
            pid = programs.wait_until_back("local", pid)
            time.sleep(rng.uniform(0.0, 1.5))
            send(pid, signal.SIGKILL)
        assert attempts(programs.check(client, jobs)) == [1, 1]


def test_the_orchestrator_is_killed_between_intent_and_launch(programs: CountedPrograms) -> None:
    rng = random.Random(SEED)
    with programs.suite.client() as client:
        jobs = []
        pid = 0
        for _ in range(3):
            pid = programs.wait_until_back("orchestrator", pid)
            jobs += programs.submit(client, [2] * 6)
            time.sleep(rng.uniform(0.0, 0.3))
            programs.kill("orchestrator")
        assert attempts(programs.check(client, jobs)) == [1] * len(jobs)


def test_local_stands_still_for_longer_than_a_launch_may_take(programs: CountedPrograms) -> None:
    with programs.suite.client() as client:
        before = programs.submit(client, [20, 20])
        programs.wait_until_started(before)
        pid = programs.pause("local")
        try:
            during = programs.submit(client, [5, 5, 5])
            time.sleep(LAUNCH_DEADLINE_S + 2.0)
        finally:
            send(pid, signal.SIGCONT)
        found = programs.check(client, before + during)
    assert attempts(found[:2]) == [1, 1]


def test_output_is_followed_through_kills_without_loss_or_repetition(programs: CountedPrograms) -> None:
    with programs.suite.client() as client, ThreadPoolExecutor(1) as pool:
        (job,) = programs.submit(client, [80])
        programs.wait_until_started([job])

        def follow() -> bytes:
            with programs.suite.client() as own:
                return b"".join(chunk.data for chunk in own.logs(job, follow=True))

        followed = pool.submit(follow)
        for name in ("local", "ingest"):
            time.sleep(0.5)
            programs.kill(name)
        programs.check(client, [job])
        assert followed.result(60.0) == programs.suite.log(job)[1]


@pytest.mark.parametrize("names", [("local",), ("orchestrator", "local", "valkey")])
def test_a_cancellation_is_kept_whoever_is_killed(programs: CountedPrograms, names: tuple[str, ...]) -> None:
    with programs.suite.client() as client:
        jobs = programs.submit(client, [2000, 20])
        programs.wait_until_started(jobs)
        programs.cancel(client, jobs[0])
        programs.kill(*names)
        assert attempts(programs.check(client, jobs)) == [1, 1]


def test_all_is_killed_and_started_again_on_the_same_data(programs: CountedPrograms) -> None:
    with programs.suite.client() as client:
        limited = programs.submit_one(client, 2000, 0, time_limit_s=2.0)
        jobs = programs.submit(client, [180, 5])
        programs.wait_until_started([limited, jobs[0]])
    programs.kill_all()
    assert (jobs[0], 1) in programs.running(), "it goes on without any service"
    # Without any service, the supervisor keeps the time limit.
    wait_until(lambda: (limited, 1) not in programs.running(), 20.0, "the end at the time limit")
    programs.start_again()
    with programs.suite.client() as client:
        assert client.get(jobs[0]).attempt_count == 1
        assert attempts(programs.check(client, [limited, *jobs])) == [1, 1, 1]


@pytest.mark.timeout(300 + 60 * ROUNDS)
def test_random_kills(programs: CountedPrograms) -> None:
    rng = random.Random(SEED)
    for number in range(ROUNDS):
        if programs.suite.running.text.count("restarting it in") > MOST_KILLS:
            assert programs.suite.running.end() == 0, programs.suite.running.text
            programs.start_again()
        kinds = [rng.choice(FAULTS) for _ in range(rng.choice((1, 2, 2, 3)))]
        faults = [(rng.uniform(0.0, 3.0 / len(kinds)), kind) for kind in kinds]
        story = f"round {number} of seed {SEED}: " + ", ".join(f"{pause_s:.2f} s, {kind}" for pause_s, kind in faults)
        began_s = time.monotonic()
        try:
            jobs = _play(programs, faults, rng)
        except BaseException:
            sys.stderr.write(f"{story}; not well after {time.monotonic() - began_s:.1f} s\n")
            raise
        sys.stderr.write(f"{story}; well after {time.monotonic() - began_s:.1f} s, attempts {attempts(jobs)}\n")


def _play(programs: CountedPrograms, faults: list[tuple[float, str]], rng: random.Random) -> list[Job]:
    """Submits programs before and after some faults; their jobs, when all have ended."""
    resumed: list[threading.Timer] = []
    with programs.suite.client() as client:
        jobs = programs.submit(client, [rng.randint(1, 60) for _ in range(5)])
        cancelled = programs.submit(client, [2000])[0] if rng.random() < 0.3 else ""
    if rng.random() < 0.7:
        programs.wait_until_started(jobs[: rng.randint(1, 2)])
    for number, (pause_s, kind) in enumerate(faults):
        if number == 1 and cancelled and rng.random() < 0.5:
            with programs.suite.client() as client:
                programs.cancel(client, cancelled)
        time.sleep(pause_s)
        if kind == "all":
            programs.kill_all()
            programs.start_again()
        elif kind == "pause":
            timer = threading.Timer(rng.uniform(0.2, 3.0), send, [programs.pause("local"), signal.SIGCONT])
            timer.start()
            resumed.append(timer)
        else:
            programs.kill(*kind.split("+"))
    for timer in resumed:
        timer.join()
    with programs.suite.client() as client:
        jobs += programs.submit(client, [rng.randint(1, 30) for _ in range(3)])
        if cancelled:
            programs.cancel(client, cancelled)
            jobs.append(cancelled)
        return programs.check(client, jobs)
