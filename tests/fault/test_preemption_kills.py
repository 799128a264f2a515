"""`kill -9` while real programs are stopped for another one: all of them end once, it starts once, and they go on.

A program that is asked to end takes seconds for it, so the kill comes between the stops and the start.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from adlro.client import Client
from adlro.records.jobs import ExpectedRuntime, Job, JobSpec, JobState, JobType, Preemptible
from adlro.records.payloads import LaunchStyle, process_payload
from tests.e2e.real_suite import RealSuite, start_real_suite
from tests.e2e.running_suite import wait_until
from tests.fault.counted_programs import send

ROUNDS = int(os.environ.get("ADLRO_TEST_STOPS_ROUNDS", "4"))
SEED = int(os.environ.get("ADLRO_TEST_STOPS_SEED", "1"))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900 + 240 * ROUNDS),
    pytest.mark.skipif(sys.platform != "linux", reason="real programs are run on Linux alone"),
]

V100 = "v100_sxm2"
TICKS = 40
LEAVES_S = 2.0
PATIENCE_S = 240.0
ALLOWED = {"ADLRO_ORCHESTRATOR_PREEMPTION": "on", "ADLRO_ORCHESTRATOR_PREEMPTION_MIN_RUN_S": "0"}
# Counts on from its last number, in its own time; claims its GPU alone; asked to end, it takes a while.
COUNTS = f"""
  own=$1/$ADLRO_JOB_ID.$RANK; place=$1/place.$(echo "$ADLRO_GPU_IDS" | tr '/' '-' | cut -d, -f$((LOCAL_RANK + 1)))
  leave() {{ sleep {LEAVES_S}; rmdir "$place"; exit 0; }}
  echo "$ADLRO_ATTEMPT" >>"$own.starts"; trap leave TERM
  mkdir "$place" || exit 9
  number=$(wc -l <"$own.numbers" 2>/dev/null || echo 0)
  while [ "$number" -lt {TICKS} ]; do number=$((number + 1)); echo $number >>"$own.numbers"; sleep 0.1; done
  rmdir "$place"
"""
SHORT = """
  own=$1/$ADLRO_JOB_ID.$RANK; place=$1/place.$(echo "$ADLRO_GPU_IDS" | tr '/' '-')
  echo "$ADLRO_ATTEMPT" >>"$own.starts"; mkdir "$place" || exit 9
  sleep 0.5; rmdir "$place"
"""


class Stopping:
    """A suite with two pretended GPUs, and a folder in which programs note what they do."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.notes = folder / "notes"
        self.notes.mkdir(mode=0o777)
        self.notes.chmod(0o777)
        self.suite = self._start()

    def _start(self) -> RealSuite:
        options = ("--policy", "srtf", "--fake-gpus", f"{V100}:2")
        return start_real_suite(self._folder / "data", self._folder / "home", *options, **ALLOWED)

    def fresh(self) -> None:
        """Starts the suite again after many kills: else `adlro up` waits long before it starts a service."""
        if self.suite.running.text.count("restarting it in") > 6:
            assert self.suite.running.end() == 0, self.suite.running.text
            self.suite = self._start()

    def submit(self, client: Client, script: str, expected_s: float, gpu_count: int) -> str:
        payload = process_payload(
            ("sh", "-c", script, "sh", str(self.notes)), stop_grace_s=1.0, launch_style=LaunchStyle.ONE_PER_GPU
        )
        spec = JobSpec(
            "counts",
            self.suite.user,
            JobType.MACHINE_LEARNING,
            memory_mib=128,
            gpu_count=gpu_count,
            expected_runtime=ExpectedRuntime(V100, expected_s),
            payload=payload,
            preemptible=Preemptible(restart_s=1.0, lost_s=1.0, grace_s=30.0) if gpu_count > 1 else None,
        )
        return client.submit(spec).job_id

    def lines(self, name: str) -> list[str]:
        path = self.notes / name
        return path.read_text().split() if path.exists() else []

    def check(self, client: Client, long: str, short: str) -> tuple[Job, Job]:
        """What must have become of the two, whoever was killed."""
        client.wait([long, short], timeout_s=PATIENCE_S)
        one, other = client.get(long), client.get(short)
        assert (one.state, other.state) == (JobState.SUCCEEDED, JobState.SUCCEEDED), f"{one.message}; {other.message}"
        assert [each.attempt for each in one.attempts] == list(range(1, one.attempt_count + 1))
        assert [each.outcome for each in one.attempts] == [f"preempted: for {short}", "succeeded"]
        assert 0.0 < one.remaining_ratio < 1.0
        assert other.attempt_count == 1
        assert [(ref.job_id, ref.attempt) for ref in other.attempts[0].preempts] == [(long, 1)]
        spans = sorted((each.start_s or 0.0, each.end_s or 0.0) for job in (one, other) for each in job.attempts)
        assert all(end_s <= start_s for (_, end_s), (start_s, _) in itertools.pairwise(spans)), spans
        for rank in range(2):
            assert self.lines(f"{long}.{rank}.starts") == ["1", "2"], "each attempt starts once, on all its GPUs"
            assert self.lines(f"{long}.{rank}.numbers") == [str(number) for number in range(1, TICKS + 1)]
        assert self.lines(f"{short}.0.starts") == ["1"]
        assert not list(self.notes.glob("place.*"))
        wait_until(lambda: not self.suite.processes(), 20.0, f"nothing is left running of {self.suite.processes()}")
        return one, other


@pytest.fixture(scope="module")
def stopping() -> Iterator[Stopping]:
    with tempfile.TemporaryDirectory(prefix="adlro-stops-") as name:
        Path(name).chmod(0o755)
        made = Stopping(Path(name))
        try:
            yield made
            assert made.suite.running.end() == 0, made.suite.running.text
        finally:
            made.suite.end_all()


def begin(stopping: Stopping, client: Client) -> str:
    """A job on both GPUs that has done some of its work."""
    long = stopping.submit(client, COUNTS, 600.0, 2)
    wait_until(lambda: len(stopping.lines(f"{long}.1.numbers")) > 4, PATIENCE_S, f"{long} to work")
    wait_until(lambda: client.get(long).state is JobState.RUNNING, PATIENCE_S, f"{long} to run by its record")
    return long


@pytest.mark.parametrize(
    "names", [("orchestrator",), ("local",), ("orchestrator", "local"), ("orchestrator", "valkey")]
)
def test_between_the_stops_and_the_start(stopping: Stopping, names: tuple[str, ...]) -> None:
    stopping.fresh()
    with stopping.suite.client(PATIENCE_S) as client:
        long = begin(stopping, client)
        short = stopping.submit(client, SHORT, 2.0, 1)
        told = f"being stopped for {short}"
        wait_until(lambda: client.get(long).message == told, PATIENCE_S, told)
        waits = client.get(short)
        assert waits.message.startswith(f"waits until {long} has stopped, then starts on ")
        for name in names:
            send(stopping.suite.running.pids[name], signal.SIGKILL)
        stopping.check(client, long, short)


def test_at_random_moments(stopping: Stopping) -> None:
    for number in range(ROUNDS):
        stopping.fresh()
        chance = random.Random(f"{SEED}.{number}")
        kills = [
            (
                chance.uniform(0.0, LEAVES_S + 1.0),
                chance.choice(("orchestrator", "local", "orchestrator+local", "valkey")),
            )
            for _ in range(chance.choice((1, 2)))
        ]
        story = f"round {number} of seed {SEED}: {kills}"
        began_s = time.monotonic()
        try:
            with stopping.suite.client(PATIENCE_S) as client:
                long = begin(stopping, client)
                short = stopping.submit(client, SHORT, 2.0, 1)
                for pause_s, names in kills:
                    time.sleep(pause_s)
                    for name in names.split("+"):
                        send(stopping.suite.running.pids[name], signal.SIGKILL)
                stopping.check(client, long, short)
        except BaseException:
            sys.stderr.write(f"{story}; not well after {time.monotonic() - began_s:.1f} s\n")
            raise
        sys.stderr.write(f"{story}; well after {time.monotonic() - began_s:.1f} s\n")
