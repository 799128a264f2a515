"""Units of a real systemd: limits hold, devices are closed, and what hides from the tree ends with its supervisor.

Runs where ADLRO_TEST_SYSTEMD is set, and there a systemd of the test's own can be started: it takes root.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.attempt.private_systemd import PrivateSystemd, private_systemd

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("ADLRO_TEST_SYSTEMD" not in os.environ, reason="ADLRO_TEST_SYSTEMD is not set"),
]

INSIDE = r"""
import asyncio, json, os, pathlib, subprocess, sys, tempfile
from adlro.attempt.attempts import Attempts
from adlro.attempt.drivers import choose_driver
from adlro.attempt.records import Launch, Limits
from adlro.records.payloads import process_payload

found = {}

async def main():
    choice = choose_driver()
    attempts = Attempts(pathlib.Path(tempfile.mkdtemp(dir=sys.argv[1])), choice.driver)
    found["driver"] = [choice.driver.name, list(choice.not_enforced)]

    async def run(name, script, act=None, **more):
        await attempts.start(name, Launch(process_payload(("sh", "-c", script), stop_grace_s=1.0), **more))
        if act is not None:
            await attempts.begun(name)
            await asyncio.sleep(0.3)
            act(name)
        end = await attempts.ended(name)
        told = [attempts.read_log(name, stream, 0).data.decode() for stream in ("stdout", "stderr")]
        found[name] = [end.reason.value, end.code, end.signal, *told]

    def kill(name):
        os.kill(attempts._journal(name).supervisor()[0], 9)

    def stop_unit(name):
        subprocess.run(f"systemctl stop 'adlro-{name}-*'", shell=True, check=True)

    await run("exit", "echo hi; exit 7")
    eats = f"{sys.executable} -I -S -c 'x = bytearray(1 << 30)'; exit $?"
    await run("memory", eats, limits=Limits(memory_mib=64, cpu_cores=1.0, processes=50))
    await run("closed", "exec 3</dev/kmsg; exit 0", limits=Limits(devices=()))
    await run("open", "exec 3</dev/kmsg; exit 0", limits=Limits(devices=("/dev/kmsg",)))
    await run("killed", "env -i setsid sleep 60 & sleep 60", kill)
    found["left"] = subprocess.run(["pgrep", "-x", "sleep"], capture_output=True, text=True).stdout
    await run("stopped-unit", "sleep 60", stop_unit)
    await run("limit", "trap '' TERM; while :; do sleep 0.1; done", time_limit_s=0.5)
    units = subprocess.run(["systemctl", "list-units", "--no-legend", "adlro-*.service"], capture_output=True)
    found["units"] = units.stdout.decode()

asyncio.run(main())
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    work: Path = tmp_path_factory.mktemp("systemd")
    try:
        with private_systemd(work) as systemd:
            yield told_inside(systemd, work)
    except OSError as error:
        pytest.skip(str(error))


def told_inside(systemd: PrivateSystemd, work: Path) -> dict[str, Any]:
    done = systemd.run(sys.executable, "-c", INSIDE, str(work))
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def test_units_are_this_machine_s_best_driver_and_all_limits_hold(found):
    assert found["driver"] == ["unit", []]


def test_a_program_runs_and_its_exit_code_and_logs_are_told(found):
    assert found["exit"] == ["exited", 7, 0, "hi\n", ""]


def test_memory_beyond_the_limit_ends_the_program_and_not_its_supervisor(found):
    assert found["memory"][:2] == ["out_of_memory", 137]


def test_a_device_can_be_opened_only_where_it_was_given(found):
    assert "Operation not permitted" in found["closed"][4]
    assert found["open"][:2] == ["exited", 0]


def test_what_hides_from_the_tree_ends_with_its_supervisor(found):
    assert found["killed"][0] == "supervisor_lost"
    assert found["left"] == ""


def test_a_unit_that_an_administrator_stops_is_lost_and_not_failed(found):
    assert found["stopped-unit"][0] == "node_lost"


def test_time_limits_hold_and_no_unit_stays(found):
    assert found["limit"][:3] == ["time_limit", 0, 9]
    assert found["units"] == ""
