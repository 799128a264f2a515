"""Writes what reading commands print at 80 and 120 columns, for the documentation: `python tools/terminal_captures.py`.

A suite of its own runs a fixed list of jobs in virtual time, and is paused at a fixed moment, so that a second run
differs in little but what GPUs report. Writes docs/captures/NAME-80.txt and NAME-120.txt: the command, and what it
printed on stdout and stderr. Needs the packages of the `dev` extra.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from adlro.cli.replaying import replay_specs  # noqa: E402
from adlro.client import Client  # noqa: E402
from adlro.records.events import ClockMode  # noqa: E402
from adlro.records.jobs import JobSpec, JobState, JobType, Preemptible, SimulatedWork  # noqa: E402
from adlro.workload.job_lists import draw_jobs  # noqa: E402
from adlro.workload.scenario import load_scenario  # noqa: E402
from tests.e2e.running_suite import ADLRO, RunningSuite, environment, start_suite  # noqa: E402

OUT = ROOT / "docs" / "captures"
WIDTHS = (80, 120)
POLICY, SHADOW = "hold_greedy_fixed", "fcfs"
PAST_JOBS = 240
BEGIN_S = 600.0
"""Cluster time of the first submission."""
MOMENT_S = 14_400.0
"""When the clock is paused: a job begins then, and nothing else happens for hours of cluster time."""
# The clock is at MOMENT_S for as long as the way to the next event takes at this speed.
CLUSTER_SECONDS_A_SECOND = 4000.0
LONG_S = 200_000.0

COMMANDS: dict[str, Sequence[str]] = {
    "queue": ("queue",),
    "queue-format": ("queue", "--state", "pending", "--sort", "-wait", "--format", "job,name:20,user,prio,gpus,wait"),
    "queue-fields": ("queue", "-n", "4", "-o", "ID=job_id,WHO=user,CORES=spec.cpu_cores,TEAM=spec.labels.team"),
    "history": ("history", "-n", "12"),
    "history-failed": ("history", "--state", "failed", "--format", "job,name,user,gpu,end,run,why"),
    "nodes": ("nodes",),
    "describe-node": ("describe", "node", "volta-0"),
    "gpus": ("gpus",),
    "usage": ("usage", "--by", "type,model"),
    "usage-gain": ("usage", "--by", "user", "--gain", "--baseline", POLICY),
    "decisions": ("decisions", "-n", "8"),
    "describe-job": ("describe", "job", "RUNNING"),
    "why": ("why", "WAITING"),
    "status": ("status",),
}


def past_jobs() -> list[JobSpec]:
    """The jobs that have ended at the moment: those of a scenario, some of which fail."""
    drawn = draw_jobs(load_scenario("paper"), load=0.9, count=PAST_JOBS, rng=np.random.default_rng(18))
    users = ("ada", "grace-hopper", "wu-jianxiong", "linus")
    made = []
    for number, spec in enumerate(replay_specs(drawn)):
        work = spec.simulated_work
        if work is not None and number % 17 == 3:
            work = replace(work, fails_at_ratio=0.5)
        # The clock is paused within seconds of the start.
        begin_s = BEGIN_S + (spec.begin_time_s or 0.0)
        made.append(replace(spec, user=users[number % 4], simulated_work=work, begin_time_s=begin_s))
    return made


def present_jobs() -> list[JobSpec]:
    """The jobs that run and wait at the moment; each runs for days."""
    made = []
    for number in range(26):
        several = number % 5 == 1
        name = (
            "train-bert-large",
            "训练-多语言模型-第三阶段",
            "🚀-launch-simulation",
            "etl-" + "very-long-name-" * 16,
        )[number % 4]
        made.append(
            JobSpec(
                name,
                ("ada", "grace-hopper", "wu-jianxiong", "linus")[number % 4],
                (JobType.MACHINE_LEARNING, JobType.SIMULATION, JobType.DATA_PROCESSING)[number % 3],
                application="resnet50_fp16" if number % 3 == 0 else "",
                priority=0.5 + 0.02 * (number % 7),
                cpu_cores=2 + number % 3,
                memory_mib=16_384,
                gpu_count=4 if several else 1,
                gpu_models=("v100_sxm2",) if several else (),
                begin_time_s=9_000.0 + 150.0 * number if number else MOMENT_S,
                labels={"team": ("vision", "speech")[number % 2]},
                simulated_work=SimulatedWork(LONG_S + 1000.0 * number),
                preemptible=Preemptible(60.0, 600.0) if number == 6 else None,
            )
        )
    return made


@contextmanager
def paused_suite(folder: Path) -> Iterator[RunningSuite]:
    """The suite at the moment."""
    suite = start_suite(folder / "data", "--port", "0", "--clock", "virtual", "--policy", POLICY, "--no-page")
    try:
        with Client(suite.server) as client:
            client.set_shadow_policy(SHADOW)
            client.set_clock(paused=True)
            answer = client.submit_many([*past_jobs(), *present_jobs()], "captures")
            if answer.rejected:
                raise SystemExit(f"a job was refused: {answer.rejected[0].message}")
            wait_until_read(client)
            client.set_clock(ClockMode.VIRTUAL, scale=CLUSTER_SECONDS_A_SECOND, paused=False)
            end = time.monotonic() + 300
            while client.clock().time_s < MOMENT_S:
                if time.monotonic() > end:
                    raise SystemExit("the clock did not reach the moment of the captures")
                time.sleep(0.05)
            client.set_clock(paused=True)
            if client.clock().time_s != MOMENT_S:
                raise SystemExit(f"the clock stands at {client.clock().time_s} s, not at the moment of the captures")
            client.drain("turing-0", "a fan is replaced")
            time.sleep(3.0)  # what the services tell of each other has arrived
        yield suite
    finally:
        suite.end()


def wait_until_read(client: Client) -> None:
    """Returns when the orchestrator has read all jobs."""
    end = time.monotonic() + 120
    while True:
        told = client.status()
        read = told.waiting_for_begin_time_count + told.queue_length + told.running_count
        if read == PAST_JOBS + len(present_jobs()):
            return
        if time.monotonic() > end:
            raise SystemExit(f"the orchestrator has read {read} jobs, not all")
        time.sleep(0.1)


def capture(arguments: Sequence[str], width: int, server: str) -> str:
    """The command, and what it printed."""
    env = environment(COLUMNS=str(width), ADLRO_SERVER=server, NO_COLOR="1")
    ended = subprocess.run(
        [*ADLRO, *arguments],
        cwd=ROOT,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=900,
    )
    if ended.returncode:
        raise SystemExit(f"adlro {' '.join(arguments)} failed:\n{ended.stdout}")
    shown = " ".join(f"'{each}'" if "=" in each else each for each in arguments)
    return f"$ adlro {shown}\n{settled(ended.stdout, server)}"


def settled(text: str, server: str) -> str:
    """The text without what differs from run to run: ports and measured times."""
    host, _, port = server.rpartition(":")
    for number in range(5):
        text = text.replace(f"{host}:{int(port) + number}", f"{host}:{7701 + number}")
    text = re.sub(r"[0-9]+ µs", "120 µs", text)
    return "".join(line.rstrip() + "\n" for line in text.splitlines())


def main() -> None:
    """Writes all captures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT, help="where to write; default: docs/captures")
    parser.add_argument("names", nargs="*", help=f"only these: {', '.join(COMMANDS)}")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, paused_suite(Path(folder)) as suite:
        with Client(suite.server) as client:
            jobs = list(client.list())
        named = {
            "RUNNING": next(each.job_id for each in jobs if each.state is JobState.RUNNING and each.spec.gpu_count > 1),
            "WAITING": next(each.job_id for each in jobs if each.state is JobState.PENDING),
        }
        for name, words in COMMANDS.items():
            if given.names and name not in given.names:
                continue
            arguments = [named.get(each, each) for each in words]
            for width in WIDTHS:
                path = given.out / f"{name}-{width}.txt"
                path.write_text(capture(arguments, width, suite.server), encoding="utf-8")
                print(path)


if __name__ == "__main__":
    main()
