"""Attempts of containers on a real engine: ends, limits, logs, isolation, kills of the service and of the engine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adlro.attempt.containers.attempts import ContainerAttempts
from adlro.attempt.containers.report import engine_report
from adlro.attempt.records import Launch, Limits, Stage
from adlro.errors import InvalidInput, Unavailable
from adlro.records.payloads import Container, EndReason, ExitStatus, Mount, Payload
from tests.e2e.private_engine import IMAGE, PrivateEngine, launch_of, private_engine

pytestmark = [pytest.mark.compose, pytest.mark.slow]

NOTE = "echo started >> /shared/runs; "


@pytest.fixture(scope="module")
def engine() -> Iterator[PrivateEngine]:
    with private_engine() as made:
        yield made


class Site:
    """A folder of attempts, and a directory that jobs may mount."""

    def __init__(self, engine: PrivateEngine, top: Path) -> None:
        self.engine = engine
        self.folder = top / "attempts"
        self.staging = f"{self.folder}.staging"
        self.shared = top / "shared"
        self.shared.mkdir()
        self.shared.chmod(0o777)
        self._services: list[ContainerAttempts] = []

    def service(self) -> ContainerAttempts:
        made = ContainerAttempts(
            self.folder,
            self.engine.socket,
            mount_prefixes=[str(self.shared)],
            network="none",
            staging=self.staging,
        )
        self._services.append(made)
        return made

    def launch(self, script: str, **more: Any) -> Launch:
        return launch_of(script, str(self.shared), **more)

    def child(self, name: str, script: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.e2e.container_service", self.engine.socket, str(self.folder)]
        return subprocess.Popen(
            [*command, str(self.shared), name, script],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )

    def swapper(self) -> subprocess.Popen[bytes]:
        """Exchanges a and b of the shared directory until it is killed."""
        swap = "os.rename('a', 'c'); os.rename('b', 'a'); os.rename('a', 'b'); os.rename('c', 'a')"
        program = f"import os, sys\nos.chdir(sys.argv[1])\nwhile True:\n {swap}"
        return subprocess.Popen([sys.executable, "-c", program, str(self.shared)])

    @property
    def runs(self) -> int:
        with contextlib.suppress(FileNotFoundError):
            return len((self.shared / "runs").read_text().split())
        return 0

    async def close(self) -> None:
        for each in self._services:
            await each.close()


@pytest.fixture
def top() -> Iterator[Path]:
    # Not pytest's folder: another user can't pass through that one.
    made = Path(tempfile.mkdtemp(prefix="adlro-site-"))
    made.chmod(0o755)
    yield made
    staging = made / "attempts.staging"
    assert not staging.exists() or os.listdir(staging) == [], "mounts were left"
    shutil.rmtree(made)


@pytest.fixture
async def site(engine: PrivateEngine, top: Path):
    made = Site(engine, top)
    yield made
    await made.close()
    # A service that is closed leaves its containers to the next one; the next test has another folder.
    await asyncio.to_thread(engine.remove_containers)


async def run(attempts: ContainerAttempts, launch: Launch, name: str = "a.1") -> ExitStatus:
    await attempts.start(name, launch)
    async with asyncio.timeout(120.0):
        return await attempts.ended(name)


def text(attempts: ContainerAttempts, name: str = "a.1", stream: str = "stdout") -> str:
    return attempts.read_log(name, stream, 0).data.decode()


async def wait_for(condition, why: str, timeout_s: float = 60.0) -> None:
    until = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until, why
        await asyncio.sleep(0.02)


# ---- ends


@pytest.mark.parametrize(
    ("script", "reason", "code", "number"),
    [
        ("exit 0", EndReason.EXITED, 0, 0),
        ("exit 7", EndReason.EXITED, 7, 0),
        ("exit 255", EndReason.EXITED, 255, 0),
        ("kill -9 $$", EndReason.SIGNALLED, 0, 9),
    ],
)
async def test_how_a_program_ends_is_reported(site, script, reason, code, number):
    attempts = site.service()
    end = await run(attempts, site.launch(script))
    assert (end.reason, end.code, end.signal) == (reason, code, number), end
    await attempts.forget("a.1")
    assert attempts.names() == []
    assert site.engine.containers() == []


async def test_memory_that_runs_out_is_reported(site):
    launch = site.launch("dd if=/dev/zero of=/dev/null bs=200M count=1", limits=Limits(memory_mib=32))
    end = await run(site.service(), launch)
    assert end.reason is EndReason.OUT_OF_MEMORY


async def test_what_is_no_program_is_not_started(site):
    launch = Launch(Payload(container=Container(IMAGE, ("/no/such/program",))), user="nobody")
    attempts = site.service()
    end = await run(attempts, launch)
    assert end.reason is EndReason.NOT_STARTED
    assert "/no/such/program" in end.detail


async def test_a_gpu_request_that_fails_leaves_no_container(site):
    end = await run(site.service(), replace(site.launch("true"), gpu_uuids=("GPU-0",)))
    assert end.reason is EndReason.NOT_STARTED
    assert "gpu" in end.detail
    await wait_for(lambda: site.engine.containers() == [], "the container is removed")


async def test_an_image_that_can_not_be_fetched_is_reported(site):
    launch = Launch(Payload(container=Container("127.0.0.1:9/nobody/nothing:1")), user="nobody")
    attempts = site.service()
    end = await run(attempts, launch)
    assert end.reason is EndReason.NOT_STARTED
    assert "this node can't fetch" in end.detail
    assert "127.0.0.1:9" in end.detail


async def test_the_time_limit_ends_a_program_that_traps_sigterm(site):
    script = "trap 'echo saved; exit 3' TERM; while :; do sleep 0.05; done"
    attempts = site.service()
    end = await run(attempts, site.launch(script, time_limit_s=1.0, grace_s=30.0))
    assert (end.reason, end.code) == (EndReason.TIME_LIMIT, 3)
    assert text(attempts) == "saved\n"


async def test_what_ignores_sigterm_is_killed_after_its_grace(site):
    attempts = site.service()
    await attempts.start("a.1", site.launch("trap '' TERM; echo here; while :; do sleep 0.05; done", grace_s=1.0))
    await wait_for(lambda: text(attempts), "it runs")
    await attempts.stop("a.1", EndReason.STOPPED, "enough")
    began_s = time.monotonic()
    end = await attempts.ended("a.1")
    assert (end.reason, end.signal, end.detail) == (EndReason.STOPPED, 9, "enough")
    assert time.monotonic() - began_s >= 0.9


# ---- what it is given


async def test_it_is_its_user_with_an_environment_of_its_own(site):
    attempts = site.service()
    secret = site.shared.parent / "secret"
    secret.write_text("hunter2\n")
    secret.chmod(0o600)
    launch = site.launch("id -u; env", environment={"A": "1"}, secret_names=("KEY",))
    launch = replace(launch, secrets={"KEY": str(secret)}, environment={"CUDA_VISIBLE_DEVICES": "GPU-5"})
    end = await run(attempts, launch)
    assert end.succeeded
    lines = text(attempts).splitlines()
    assert lines[0] == "65534"
    assert {"A=1", "KEY=hunter2", "CUDA_VISIBLE_DEVICES=GPU-5", "NVIDIA_VISIBLE_DEVICES=void", "USER=nobody"} <= {
        *lines
    }
    assert "hunter2" not in (site.folder / "a.1" / "intent.json").read_text()


async def test_it_has_no_capabilities_and_gains_none(site):
    attempts = site.service()
    end = await run(attempts, site.launch("cat /proc/self/status; touch /bin/x"))
    assert end.code == 1
    status = dict(line.split(":\t", 1) for line in text(attempts).splitlines() if ":\t" in line)
    assert {int(status[each], 16) for each in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {0}
    assert status["NoNewPrivs"].strip() == "1"
    assert status["Seccomp"].strip() == "2"


async def test_root_is_only_who_is_asked_for_as_root(site):
    attempts = site.service()
    with pytest.raises(InvalidInput, match="Unix user"):
        await attempts.start("a.1", replace(site.launch("true"), user=""))
    assert (await run(attempts, replace(site.launch("id -u"), user="root"))).succeeded
    assert text(attempts) == "0\n"


async def test_mounts_are_those_that_the_user_may_have(site):
    attempts = site.service()
    private = site.shared / "private"
    private.mkdir(mode=0o700)
    (site.shared / "link").symlink_to("/etc")
    (site.shared / "file").write_text("hello")
    (site.shared / "file").chmod(0o644)

    async def mounted(number: int, source: str, writable: bool = False) -> ExitStatus:
        container = Container(IMAGE, ("sh", "-c", "cat /m"), mounts=(Mount(source, "/m", writable),))
        return await run(attempts, Launch(Payload(container=container), user="nobody"), f"a.{number}")

    with pytest.raises(InvalidInput, match="must be below one of") as refused:
        await mounted(1, "/etc/passwd")
    assert refused.value.field == "payload.container.mounts[0].source"
    end = await mounted(2, f"{site.shared}/link/passwd")
    assert end.reason is EndReason.NOT_STARTED
    assert "'/etc/passwd' must be below one of" in end.detail
    end = await mounted(3, str(private))
    assert end.reason is EndReason.NOT_STARTED
    assert "it may not be read" in end.detail
    end = await mounted(4, f"{site.shared}/file", writable=True)
    assert end.reason is EndReason.NOT_STARTED
    assert "it may not be written to" in end.detail
    end = await mounted(5, f"{site.shared}/file")
    assert end.succeeded
    assert text(attempts, "a.5") == "hello"


async def test_a_source_that_becomes_a_link_is_mounted_as_it_was(site):
    """The user exchanges a directory for a link to the node's files, again and again, while containers are started."""
    (site.shared / "a").mkdir()
    (site.shared / "a" / "hostname").write_text("harmless\n")
    (site.shared / "b").symlink_to("/etc")
    swapping = site.swapper()
    try:
        attempts = site.service()
        seen = set()
        for number in range(10):
            container = Container(IMAGE, ("cat", "/m/hostname"), mounts=(Mount(str(site.shared / "a"), "/m"),))
            end = await run(attempts, Launch(Payload(container=container), user="nobody"), f"a.{number}")
            if end.reason is EndReason.EXITED:
                seen.add(text(attempts, f"a.{number}"))
            else:
                assert end.reason is EndReason.NOT_STARTED
        assert seen <= {"harmless\n"}
    finally:
        swapping.kill()
        swapping.wait()


# ---- logs


async def test_bytes_of_both_streams_are_as_they_were_written(site):
    attempts = site.service()
    end = await run(attempts, site.launch(r"printf '\377\0x\n'; printf 'e\n' >&2; yes 0123456789 | head -c 100001 >&2"))
    assert end.succeeded
    assert attempts.read_log("a.1", "stdout", 0).data == b"\xff\0x\n"
    stderr = attempts.read_log("a.1", "stderr", 0).data
    assert stderr.startswith(b"e\n0123456789\n")
    assert len(stderr) - 2 in {100_001, 100_002}


@pytest.mark.timeout(900)
async def test_a_log_of_a_gibibyte_is_whole_and_bounded(site):
    attempts = site.service()
    script = f"l=$(dd if=/dev/zero bs=1023 count=1 2>/dev/null | tr '\\0' x); yes $l | head -n {1 << 20}"
    await attempts.start("a.1", site.launch(script, log_limit_mib=64))
    async with asyncio.timeout(800.0):
        end = await attempts.ended("a.1")
    piece = attempts.read_log("a.1", "stdout", -2048)
    assert end.succeeded, end
    assert piece.size == 1 << 30
    assert piece.data == (b"x" * 1023 + b"\n") * 2
    assert (site.folder / "a.1" / "stdout").stat().st_blocks * 512 <= 70 << 20


@pytest.mark.timeout(600)
async def test_a_log_through_kills_of_the_service_has_each_line_once(site):
    lines = 60_000
    pause = "[ $((i % 500)) = 0 ] && sleep 0.1"
    script = f"{NOTE}i=0; while [ $i -lt {lines} ]; do i=$((i+1)); echo line $i; {pause}; done; echo over >&2; exit 5"
    random.seed(7)
    log = site.folder / "a.1" / "stdout"
    for number in range(6):
        size = log.stat().st_size if number else 0
        child = site.child("a.1", script)
        await wait_for(lambda size=size: log.exists() and log.stat().st_size > size + 5_000, "the log grows")
        await asyncio.sleep(random.uniform(0.0, 0.5))
        child.kill()
        child.wait()
    attempts = site.service()
    await attempts.take_up()
    async with asyncio.timeout(120.0):
        end = await attempts.ended("a.1")
    assert (end.reason, end.code) == (EndReason.EXITED, 5)
    data = b""
    while piece := attempts.read_log("a.1", "stdout", len(data)).data:
        data += piece
    assert data.decode().splitlines() == [f"line {number}" for number in range(1, lines + 1)]
    assert text(attempts, stream="stderr") == "over\n"
    assert site.runs == 1


# ---- kills


@pytest.mark.timeout(900)
async def test_a_service_killed_at_any_moment_runs_a_program_at_most_once(site):
    random.seed(11)
    lost = 0
    for number in range(25):
        (site.shared / "runs").unlink(missing_ok=True)
        name = f"k.{number}"
        child = site.child(name, f"{NOTE}exit 5")
        await wait_for(lambda name=name: (site.folder / name / "intent.json").exists(), "it is ordered")
        await asyncio.sleep(random.uniform(0.0, 0.6))
        child.kill()
        child.wait()
        again = site.child(name, f"{NOTE}exit 5")
        said, _ = await asyncio.to_thread(again.communicate, timeout=120)
        assert again.returncode == 0
        if "SUPERVISOR_LOST" in said:
            lost += 1
            assert site.runs <= 1
        else:
            assert "code=5" in said, said
            assert site.runs == 1
    assert lost < 25
    # A service may have ended before it removed a container: the next one does.
    await site.service().take_up()
    await wait_for(lambda: site.engine.containers() == [], "all are removed")


async def test_of_eight_services_one_makes_the_container(site):
    children = [site.child("r.1", f"{NOTE}exit 5") for _ in range(8)]
    for child in children:
        said, _ = await asyncio.to_thread(child.communicate, timeout=120)
        assert "code=5" in said
    assert site.runs == 1


async def test_an_overdue_container_is_ended_by_the_next_service(site):
    attempts = site.service()
    await attempts.start("a.1", site.launch("trap 'exit 4' TERM; while :; do sleep 0.05; done", time_limit_s=2.0))
    await attempts.begun("a.1")
    await attempts.close()
    await asyncio.sleep(2.5)
    later = site.service()
    views = await later.take_up()
    assert [each.stage for each in views] == [Stage.RUNNING]
    end = await later.ended("a.1")
    assert (end.reason, end.code) == (EndReason.TIME_LIMIT, 4)


async def test_a_container_that_somebody_removes_is_lost(site):
    attempts = site.service()
    await attempts.start("a.1", site.launch("sleep 600"))
    await attempts.begun("a.1")
    client = site.engine.client()
    client.remove_container(site.engine.containers()[0].lstrip("/"), force=True)
    client.close()
    end = await attempts.ended("a.1")
    assert end.reason is EndReason.SUPERVISOR_LOST
    assert "removed by somebody else" in end.detail


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("watched", [True, False])
@pytest.mark.parametrize("script", ["sleep 600", "trap 'exit 0' TERM; while :; do sleep 0.05; done"])
async def test_an_engine_that_is_restarted_loses_its_containers(site, number, watched, script):
    attempts = site.service()
    await attempts.start("a.1", site.launch(script))
    await attempts.begun("a.1")
    await asyncio.sleep(0.5)
    if not watched:
        await attempts.close()
    site.engine.end(number)
    try:
        if watched:
            with pytest.raises(Unavailable, match="does not answer"):
                await attempts.start("a.2", site.launch("true"))
            with pytest.raises(TimeoutError):  # nothing is concluded
                await asyncio.wait_for(attempts.ended("a.1"), 1.0)
    finally:
        site.engine.start()
    if not watched:
        attempts = site.service()
        await attempts.take_up()
    async with asyncio.timeout(60.0):
        end = await attempts.ended("a.1")
    assert end.reason is EndReason.SUPERVISOR_LOST, end
    assert "engine was restarted" in end.detail


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_with_live_restore_a_container_runs_on(site, number):
    site.engine.end()
    site.engine.start("--live-restore")
    try:
        attempts = site.service()
        script = f"{NOTE}i=0; while [ $i -lt 30 ]; do i=$((i+1)); echo $i; sleep 0.1; done; exit 7"
        await attempts.start("a.1", site.launch(script))
        await wait_for(lambda: text(attempts), "it writes")
        site.engine.end(number)
        site.engine.start("--live-restore")
        async with asyncio.timeout(60.0):
            end = await attempts.ended("a.1")
        assert (end.reason, end.code) == (EndReason.EXITED, 7)
        assert text(attempts).split() == [str(each) for each in range(1, 31)]
        assert site.runs == 1
    finally:
        site.engine.end()
        site.engine.start()


async def test_what_runs_in_a_container_is_known(site):
    attempts = site.service()
    await attempts.start("a.1", site.launch("sleep 600 & sleep 600"))
    await attempts.begun("a.1")
    await wait_for(lambda: len(attempts.processes(["a.1"])["a.1"]) >= 3, "its processes are found")
    await attempts.stop("a.1")
    assert (await attempts.ended("a.1")).reason is EndReason.STOPPED
    assert attempts.processes(["a.1"]) == {"a.1": frozenset()}


def test_the_report_says_what_the_engine_is(engine):
    report = engine_report(engine.socket)
    assert report.reachable
    assert report.version
    assert report.storage_driver == "vfs"
    assert not report.live_restore
    assert any("live-restore" in each.command for each in report.advice)
    assert not engine_report("/nonexistent/socket").reachable
