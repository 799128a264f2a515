"""Programs as real users have them: each ends with the state, code and reason that are true, and nothing is left."""

from __future__ import annotations

import asyncio
import os
import pwd
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from adlro.attempt.attempts import Attempts
from adlro.attempt.drivers import CgroupDriver, TreeDriver
from adlro.attempt.given import NotStartedError, user_of
from adlro.attempt.linux import open_process, process_stat
from adlro.attempt.records import Launch, Limits, Stage
from adlro.errors import AlreadyExists, Conflict, InvalidInput, NotFound, Unavailable
from adlro.records.payloads import EndReason, process_payload
from tests.unit.attempt.node import DAEMON, Node, own_cgroups, skip_without_holes, until

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[3]
TORCH_WORKER = re.compile(r"worker (\d+) (\d+)\n")
ROOT = os.geteuid() == 0
needs_root = pytest.mark.skipif(not ROOT, reason="running programs as another user needs root")


@pytest.fixture
def groups() -> Iterator[CgroupDriver | None]:
    with own_cgroups() as driver:
        yield driver


async def test_a_program_runs_once_in_a_folder_of_its_own_and_its_exit_code_is_told(node: Node):
    end = await node.run("pwd; echo oops >&2; exit 7")
    view = node.attempts.look("a.1")
    assert (view.stage, view.exit) == (Stage.ENDED, end)
    assert (end.reason, end.code, end.signal) == (EndReason.EXITED, 7, 0)
    assert not end.succeeded
    assert view.began is not None
    assert view.ended is not None
    assert 0.0 < view.ended.boottime_s - view.began.boottime_s < 30.0
    assert node.stdout() == f"{node.folder}/a.1/scratch\n"
    assert node.attempts.read_log("a.1", "stderr", 0).data == b"oops\n"
    assert node.runs() == 1


async def test_a_repeated_start_changes_nothing_and_another_program_of_that_name_is_refused(node: Node):
    first = node.launch("exit 0")
    await asyncio.gather(*(node.attempts.start("a.1", first) for _ in range(4)))
    assert (await node.ended()).succeeded
    assert (await node.attempts.start("a.1", first)).stage is Stage.ENDED
    with pytest.raises(AlreadyExists, match=r"a\.1"):
        await node.attempts.start("a.1", node.launch("exit 1"))
    assert node.runs() == 1


async def test_two_services_that_start_the_same_attempt_run_it_once(node: Node):
    services = [node.service() for _ in range(4)]
    await asyncio.gather(*(each.start("a.1", node.launch("sleep 0.2; exit 7")) for each in services))
    assert {(await each.ended("a.1")).code for each in services} == {7}
    assert node.runs() == 1


async def test_a_program_that_is_ended_by_a_signal(node: Node):
    end = await node.run("kill -SEGV $$")
    assert (end.reason, end.signal) == (EndReason.SIGNALLED, 11)


async def test_a_stop_lets_a_program_save_its_work_although_its_shell_dies_at_once(node: Node):
    saves = (
        "import signal, time\n"
        "signal.signal(15, lambda *_: (print('saved', flush=True), exit(3)))\n"
        "print('up', flush=True)\n"
        "time.sleep(60)\n"
    )
    (node.folder / "saves.py").write_text(saves)
    script = f"{sys.executable} -I -S {node.folder}/saves.py; exit 5"
    await node.attempts.start("a.1", node.launch(script, grace_s=20.0))
    await until(lambda: "up" in node.stdout())
    await node.attempts.stop("a.1", detail="ada wanted it")
    end = await node.ended()
    assert (end.reason, end.detail) == (EndReason.STOPPED, "ada wanted it")
    assert "saved" in node.stdout()
    await node.attempts.stop("a.1")  # of what has ended this ends nothing


async def test_a_program_that_ignores_sigterm_is_killed_when_its_grace_is_over(node: Node):
    await node.attempts.start("a.1", node.launch("trap '' TERM; echo up; while :; do sleep 0.1; done", grace_s=0.6))
    await until(lambda: "up" in node.stdout())
    began = time.monotonic()
    await node.attempts.stop("a.1")
    end = await node.ended()
    assert time.monotonic() - began >= 0.6
    assert (end.reason, end.signal) == (EndReason.STOPPED, 9)


async def test_a_stop_may_bring_a_grace_of_its_own_and_the_first_stop_counts(node: Node):
    await node.attempts.start("a.1", node.launch("trap '' TERM; echo up; while :; do sleep 0.1; done", grace_s=60.0))
    await until(lambda: "up" in node.stdout())
    began = time.monotonic()
    await node.attempts.stop("a.1", grace_s=0.5)
    await node.attempts.stop("a.1", grace_s=60.0)
    end = await node.ended()
    assert 0.5 <= time.monotonic() - began < 30.0
    assert (end.reason, end.signal) == (EndReason.STOPPED, 9)


async def test_an_attempt_that_is_stopped_before_its_supervisor_begins_never_runs(node: Node):
    waits = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(0.5)"]
    broken = node.service(command=waits)
    await broken.start("a.1", node.launch("exit 0"))
    await broken.stop("a.1")
    end = await node.ended()
    assert end.reason is EndReason.STOPPED
    assert node.runs() == 0


async def test_stops_at_the_same_time_are_one_stop(node: Node):
    await node.attempts.start("a.1", node.launch("sleep 60"))
    await node.attempts.begun("a.1")
    services = [node.service() for _ in range(8)]
    await asyncio.gather(*(each.stop("a.1", detail=f"by {n}") for n, each in enumerate(services)))
    end = await node.ended()
    assert (end.reason, end.detail[:3]) == (EndReason.STOPPED, "by ")


async def test_signals_that_its_service_has_blocked_reach_a_supervisor(node: Node):
    # The C library's calls are this thread's alone, and what it starts has its mask.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGCHLD})
    try:
        node.attempts._start("a.1", node.launch("sleep 60"))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    await node.attempts.begun("a.1")
    await node.attempts.stop("a.1")
    assert (await node.ended()).reason is EndReason.STOPPED


async def test_a_program_whose_supervisor_ends_while_it_waits_for_its_turn_never_runs(node: Node):
    late = (
        "import os, signal, sys, time\n"
        f"sys.path.append({str(REPOSITORY)!r})\n"
        "from adlro.attempt import supervisor\n"
        "own, fork, write = os.getpid(), os.fork, os.write\n"
        "def late_fork():\n"
        "    pid = fork()\n"
        "    if pid == 0: time.sleep(0.5)\n"
        "    return pid\n"
        "def last_write(fd, data):\n"
        "    written = write(fd, data)\n"
        "    if data == b'\\n' and os.getpid() == own: os.kill(own, signal.SIGKILL)\n"
        "    return written\n"
        "os.fork, os.write = late_fork, last_write\n"
        "supervisor.main(sys.argv[1])\n"
    )
    service = node.service([sys.executable, "-I", "-S", "-c", late])
    await service.start("a.1", node.launch("sleep 60"))
    await until(lambda: node.journal().has("run.json") and not node.journal().supervised())
    await asyncio.sleep(1.0)
    assert node.runs() == 0
    assert (await node.ended()).reason is EndReason.SUPERVISOR_LOST


async def test_what_a_program_leaves_behind_in_a_session_of_its_own_is_ended_with_it(node: Node):
    end = await node.run(DAEMON * 3 + "sleep 0.3; exit 0")
    assert end.succeeded
    assert end.left_behind >= 3
    assert not node.left()


async def test_a_program_that_never_ends_has_its_time_limit_kept_without_a_service(node: Node):
    await node.attempts.start(
        "a.1", node.launch(DAEMON + "trap '' TERM; while :; do sleep 0.1; done", grace_s=0.5, time_limit_s=0.5)
    )
    await until(lambda: node.journal().has("exit.json"))  # nobody waits, nobody looks
    view = node.attempts.look("a.1")
    assert view.exit is not None
    assert (view.exit.reason, view.exit.signal) == (EndReason.TIME_LIMIT, 9)
    assert view.exit.text == "time limit of 0.5 s reached"
    assert view.began is not None
    assert view.ended is not None
    assert view.ended.boottime_s - view.began.boottime_s >= 0.9
    assert not node.left()


async def test_a_stop_of_what_ends_at_that_moment_is_no_error(node: Node, tmp_path: Path, monkeypatch):
    """Its supervisor has gone before it can be told."""
    go = tmp_path / "go"
    await node.attempts.start("a.1", node.launch(f"while [ ! -e {go} ]; do sleep 0.02; done"))
    await until(lambda: node.runs() == 1)
    gone = list[int]()

    def opened(pid: int, start_ticks: int) -> int | None:
        fd = open_process(pid, start_ticks)
        go.touch()
        while process_stat(pid) is not None:
            time.sleep(0.01)
        node.attempts._reap()
        gone.append(pid)
        return fd

    monkeypatch.setattr("adlro.attempt.attempts.open_process", opened)
    await node.attempts.stop("a.1")
    assert len(gone) == 1
    assert (await node.ended()).succeeded


async def test_workers_in_sessions_of_their_own_end_with_a_stop(node: Node):
    worker = "setsid sh -c 'while :; do sleep 0.1; done' & "
    await node.attempts.start("a.1", node.launch(worker * 4 + "echo up; wait", grace_s=5.0))
    await until(lambda: "up" in node.stdout())
    await node.attempts.stop("a.1")
    end = await node.ended()
    assert end.reason is EndReason.STOPPED
    assert not node.left()


HEADLESS = r"""
import ctypes, pathlib, platform, signal, sys, threading, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
threads_exit = {"x86_64": 60, "aarch64": 93}[platform.machine()]

def works():
    while True:
        pathlib.Path(sys.argv[1]).write_text("works")
        time.sleep(0.05)

threading.Thread(target=works).start()
ctypes.CDLL(None).syscall(threads_exit, 0)
"""
"""A program that works on after the end of its first thread. It says so in a file."""


@pytest.mark.parametrize("killed", [False, True], ids=["a stop", "a kill of the supervisor"])
async def test_a_process_whose_first_thread_has_ended_is_ended_with(node: Node, tmp_path: Path, killed):
    heart = tmp_path / "heart"
    (tmp_path / "headless.py").write_text(HEADLESS)
    starts = f"setsid {sys.executable} -I -S {tmp_path}/headless.py {heart} & echo $!; sleep 60"
    await node.attempts.start("a.1", node.launch(starts, grace_s=0.3))
    await until(lambda: heart.exists() and node.stdout().strip())
    process = int(node.stdout())
    await until(lambda: ") Z " in Path(f"/proc/{process}/stat").read_text())
    assert process_stat(process) is not None
    if killed:
        assert node.kill_supervisor()
    else:
        await node.attempts.stop("a.1")
    await node.ended()
    # Not by what is tested here: its heart.
    heart.unlink()
    await asyncio.sleep(0.3)
    assert not heart.exists()
    assert node.left() == {}


@pytest.mark.parametrize("killed", [False, True], ids=["a stop", "a kill of the supervisor"])
async def test_torchrun_s_workers_end_with(node: Node, tmp_path: Path, killed):
    torchrun = Path(sys.executable).with_name("torchrun")
    if not os.access(torchrun, os.X_OK):
        pytest.skip("torch is not installed")
    (tmp_path / "train.py").write_text(
        "import os, time\nos.write(1, f'worker {os.getpid()} {os.getsid(0)}\\n'.encode())\ntime.sleep(600)\n"
    )
    argv = (str(torchrun), "--standalone", "--nproc-per-node", "2", str(tmp_path / "train.py"))
    await node.attempts.start("a.1", Launch(process_payload(argv, stop_grace_s=5.0)))
    await until(lambda: len(TORCH_WORKER.findall(node.stdout())) == 2, timeout_s=120.0)
    workers = [(int(pid), int(session)) for pid, session in TORCH_WORKER.findall(node.stdout())]
    assert len({session for _, session in workers}) == 2, "each has a session of its own"
    if killed:
        assert node.kill_supervisor()
    else:
        await node.attempts.stop("a.1")
    end = await node.ended()
    assert end.reason is (EndReason.SUPERVISOR_LOST if killed else EndReason.STOPPED)
    assert [process_stat(pid) for pid, _ in workers] == [None, None]


async def test_a_supervisor_that_somebody_else_ends_tells_that_the_node_was_lost(node: Node):
    await node.attempts.start("a.1", node.launch("sleep 60"))
    await until(lambda: node.runs() == 1)
    supervisor = node.journal().supervisor()
    assert supervisor is not None
    os.kill(supervisor[0], 15)
    end = await node.ended()
    assert end.reason is EndReason.NODE_LOST


# ---- logs


async def test_a_log_of_1_gib_is_kept_below_its_limit_at_unchanged_offsets(node: Node):
    line_bytes, lines = 64, (1 << 30) // 64
    script = (
        "import sys\n"
        "step = 16384\n"
        f"for n in range(0, {lines}, step):\n"
        "    sys.stdout.write(''.join(f'{k:063d}\\n' for k in range(n, n + step)))\n"
    )
    limit_mib = 64
    program = process_payload((sys.executable, "-I", "-S", "-c", script), log_limit_mib=limit_mib)
    skip_without_holes(node.folder)
    await node.attempts.start("a.1", Launch(program))
    log = node.folder / "a.1" / "stdout"
    supervisor = node.journal().supervisor()
    goes_before = supervisor is not None and os.getpriority(os.PRIO_PROCESS, supervisor[0]) < 0
    ended = asyncio.create_task(node.attempts.ended("a.1"))
    most = 0
    while not ended.done():
        if log.exists():
            most = max(most, log.stat().st_blocks * 512)
        await asyncio.sleep(0.01)
    assert ended.result().succeeded, ended.result()
    # Root's supervisors go before programs, where the machine lets them; another one's turn may come late.
    assert most <= (1.1 if goes_before else 1.5) * (limit_mib << 20)
    assert os.stat(log).st_blocks * 512 <= 1.1 * (limit_mib << 20)
    assert log.stat().st_size == 1 << 30
    first = node.attempts.read_log("a.1", "stdout", 0, 1)
    assert first.size == 1 << 30
    assert first.size - first.offset >= 0.79 * (limit_mib << 20)
    offset = first.offset
    while offset < first.size:
        piece = node.attempts.read_log("a.1", "stdout", offset, 1 << 20)
        begin, end = piece.offset // line_bytes, -(-(piece.offset + len(piece.data)) // line_bytes)
        wanted = b"".join(b"%063d\n" % k for k in range(begin, end))
        skipped = piece.offset - begin * line_bytes
        assert piece.offset == offset
        assert piece.data == wanted[skipped : skipped + len(piece.data)]
        offset += len(piece.data)


# ---- limits


async def test_a_program_that_takes_too_much_memory_is_ended_and_told_so(tmp_path: Path, groups):
    if groups is None or "memory_mib" not in groups.enforced:
        pytest.skip("this machine lets us make no control groups with memory limits")
    node = Node(tmp_path / "attempts", groups)
    other = asyncio.create_task(node.run("sleep 1; exit 7", "b.1"))
    eats = f"{sys.executable} -I -S -c 'x = bytearray(1 << 30)'; exit $?"
    end = await node.run(eats, limits=Limits(memory_mib=64, processes=50, cpu_cores=1.0))
    assert end.reason is EndReason.OUT_OF_MEMORY
    assert end.peak_memory_mib is not None
    assert 60 <= end.peak_memory_mib <= 64
    assert (await other).code == 7, "another attempt is undisturbed"
    intent = node.journal().read("intent.json")
    assert intent is not None
    assert not any(os.access(path, os.F_OK) for path in intent["groups"].values())


async def test_a_program_that_makes_processes_faster_than_they_are_found_is_ended(tmp_path: Path, groups):
    if groups is None or "processes" not in groups.enforced:
        pytest.skip("this machine lets us make no control groups with a limit of processes")
    node = Node(tmp_path / "attempts", groups)
    bomb = (
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "while True:\n"
        "    try:\n"
        "        os.fork()\n"
        "    except OSError:\n"
        "        time.sleep(0.01)\n"
    )
    program = process_payload((sys.executable, "-I", "-S", "-c", bomb), stop_grace_s=0.2)
    await node.attempts.start("a.1", Launch(program, time_limit_s=0.5, limits=Limits(processes=60)))
    end = await node.ended()
    assert end.reason is EndReason.TIME_LIMIT
    assert not node.left()


async def test_only_the_devices_that_were_given_can_be_opened(tmp_path: Path, groups):
    if groups is None or "devices" not in groups.enforced:
        pytest.skip("this machine lets us make no control groups for devices")
    node = Node(tmp_path / "attempts", groups)
    reads = "head -c 1 /dev/null && (exec 3</dev/kmsg) && echo kmsg; (exec 3</dev/net/tun) && echo tun; exit 0"
    if not all(os.access(path, os.R_OK) for path in ("/dev/kmsg", "/dev/net/tun")):
        pytest.skip("this machine has not the two devices of this test")
    await node.run(reads, limits=Limits(devices=("/dev/net/tun",)))
    assert "kmsg" not in node.stdout()
    assert "tun" in node.stdout()


async def test_limits_that_no_driver_keeps_keep_no_program_from_running(node: Node):
    limits = Limits(memory_mib=64, cpu_cores=1.0, processes=50, devices=())
    assert node.attempts.driver.enforced == frozenset()
    assert (await node.run("exit 7", limits=limits)).code == 7


# ---- what can't be run


@pytest.mark.parametrize(
    ("argv", "workdir", "told"),
    [
        (("no-such-program",), "", "there is no program 'no-such-program' in PATH"),
        (("/no/such/program",), "", "there is no program '/no/such/program'"),
        (("sub/program",), "", "there is no program 'sub/program', seen from '/"),
        (("{tmp}/wrong-interpreter",), "", "the interpreter that it names"),
        (("{tmp}/no-first-line",), "", "does not name an interpreter"),
        (("{tmp}/not-executable",), "", "Permission denied"),
        (("true",), "{tmp}/missing", "working directory '{tmp}/missing' can't be entered: No such file"),
        (("true",), "{tmp}/not-executable", "Not a directory"),
    ],
)
async def test_what_can_t_be_run_is_told_to_its_user_and_disturbs_nobody(node: Node, tmp_path, argv, workdir, told):
    for name, text, mode in (
        ("wrong-interpreter", "#!/no/such/interpreter\n", 0o755),
        ("no-first-line", "just text\n", 0o755),
        ("not-executable", "#!/bin/sh\n", 0o644),
    ):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(mode)

    def filled(text: str) -> str:
        return text.replace("{tmp}", str(tmp_path))

    other = asyncio.create_task(node.run("sleep 0.3; exit 7", "b.1"))
    await node.attempts.start("a.1", Launch(process_payload(tuple(map(filled, argv)), workdir=filled(workdir))))
    end = await node.ended()
    assert end.reason is EndReason.NOT_STARTED
    assert filled(told) in end.detail
    assert ("seen from" in end.detail) == ("seen from" in told)
    assert (await other).code == 7


async def test_what_a_supervisor_did_not_expect_before_the_start_is_told_and_not_tried_for_ever(node: Node):
    waiting = node.service(command=["true"])
    await waiting.start("a.1", node.launch("exit 7"))
    intent = node.folder / "a.1" / "intent.json"
    intent.write_text(intent.read_text().replace('"log_limit_bytes"', '"unknown"'))
    end = await node.ended()
    assert (end.reason, node.runs()) == (EndReason.NOT_STARTED, 0)
    assert "log_limit_bytes" in end.detail


async def test_an_attempt_that_can_t_be_read_keeps_no_other_one_from_being_taken_up(node: Node):
    waiting = node.service(command=["true"])
    for name in ("a.1", "b.1", "c.1"):
        await waiting.start(name, node.launch("exit 7", name))
    (node.folder / "a.1" / "intent.json").write_text("{")
    (node.folder / "b.1" / "intent.json").write_text("{")
    (node.folder / "b.1" / "spawn.json").write_text("{}")
    views = {view.name: view for view in await node.attempts.take_up()}
    assert "intent of attempt b.1 can't be read" in views["b.1"].problem
    assert (views["a.1"].problem, views["c.1"].problem) == ("", "")
    end = await node.ended("a.1")
    assert end.reason is EndReason.NOT_STARTED
    assert "its intent can't be read" in end.detail
    assert (await node.ended("c.1")).code == 7
    with pytest.raises(Unavailable, match=r"b\.1"):
        await node.attempts.stop("b.1")
    with pytest.raises(Conflict, match=r"b\.1"):
        await node.attempts.forget("b.1")
    await node.attempts.forget("a.1")
    (node.folder / "b.1" / "intent.json").unlink()  # for who looks at what is left


async def test_what_its_driver_can_t_start_can_be_stopped(node: Node):
    class Broken(TreeDriver):
        def start(self, *_: object) -> None:
            raise Unavailable("no systemd")

    broken = Attempts(node.folder, Broken())
    with pytest.raises(Unavailable):
        await broken.start("a.1", node.launch("exit 7"))
    await broken.stop("a.1")
    async with asyncio.timeout(30.0):
        assert (await broken.ended("a.1")).reason is EndReason.STOPPED
    assert node.runs() == 0


async def test_a_stop_that_can_t_be_read_is_a_stop(node: Node):
    await node.service(command=["true"]).start("a.1", node.launch("exit 7"))
    (node.folder / "a.1" / "stop.json").write_text("{")
    assert (await node.ended()).reason is EndReason.STOPPED
    assert node.runs() == 0


async def test_a_long_argument_list_is_refused_with_its_field_and_nothing_is_left(node: Node):
    with pytest.raises(InvalidInput) as refused:
        await node.attempts.start("a.1", Launch(process_payload(("echo", "x" * (1 << 20)))))
    assert refused.value.field == "payload.process.argv"
    with pytest.raises(NotFound):
        node.attempts.look("a.1")


@needs_root
async def test_a_program_runs_as_its_user_with_nothing_of_root(node: Node, tmp_path: Path):
    open_way(tmp_path)
    end = await node.run(
        "id -u; id -G; echo $HOME $USER; pwd; touch mine && ls -l /proc/self/fd >/dev/null", user="nobody"
    )
    entry = pwd.getpwnam("nobody")
    # The runs file is root's: the note of the start fails, and the rest goes on.
    lines = node.stdout().splitlines()
    assert end.code == 0, node.attempts.read_log("a.1", "stderr", 0).data
    assert lines[0] == str(entry.pw_uid)
    assert "0" not in lines[1].split()
    assert lines[2] == f"{entry.pw_dir} nobody"
    assert (node.folder / "a.1" / "scratch" / "mine").stat().st_uid == entry.pw_uid


@needs_root
async def test_a_working_directory_is_entered_as_the_user(node: Node, tmp_path: Path):
    open_way(tmp_path)
    (tmp_path / "closed").mkdir(mode=0o700)
    program = process_payload(("true",), workdir=str(tmp_path / "closed"))
    await node.attempts.start("a.1", Launch(program, user="nobody"))
    assert "can't be entered: Permission denied" in (await node.ended()).detail
    await node.attempts.start("b.1", Launch(process_payload(("true",)), user="no-such-user"))
    end = await node.ended("b.1")
    assert (end.reason, end.detail) == (EndReason.NOT_STARTED, "this node has no user 'no-such-user'")


def test_a_supervisor_without_root_says_that_it_can_t_become_another_user(monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 12345)
    with pytest.raises(NotStartedError, match="does not run as root, so it can't run programs as 'nobody'"):
        user_of("nobody")


def open_way(folder: Path) -> None:
    """Lets every user through to a test's folder."""
    entry = pwd.getpwnam("nobody")
    for each in (folder, *folder.parents):
        mode = each.stat().st_mode
        if mode & 0o001:
            continue
        if each.stat().st_uid != os.geteuid() or each in Path.home().parents or each == Path.home():
            pytest.skip(f"{each} is closed to {entry.pw_name}, and not the test's to open")
        each.chmod(mode | 0o011)


# ---- environment and secrets


async def test_a_program_has_its_environment_and_nothing_of_the_service_s(node: Node, monkeypatch, tmp_path: Path):
    monkeypatch.setenv("SERVICE_PASSWORD", "hush")
    secret = tmp_path / "token"
    secret.write_text("s3cret\n")
    secret.chmod(0o600)
    program = process_payload(("env",), environment={"EPOCHS": "3"}, secret_names=("HF_TOKEN",))
    launch = Launch(program, environment={"CUDA_VISIBLE_DEVICES": "GPU-1"}, secrets={"HF_TOKEN": str(secret)})
    await node.attempts.start("a.1", launch)
    await node.ended()
    lines = node.stdout().splitlines()
    assert {"EPOCHS=3", "HF_TOKEN=s3cret", "CUDA_VISIBLE_DEVICES=GPU-1", "ADLRO_ATTEMPT=a.1"} <= set(lines)
    assert not any("hush" in line for line in lines)
    for path in (node.folder / "a.1").iterdir():
        if path.is_file() and path.name != "stdout":
            assert "s3cret" not in path.read_text()
            assert path.stat().st_mode & 0o077 == 0, path


@pytest.mark.parametrize(("mode", "told"), [(0o644, "mode 0600"), (None, "token, mode 0600")])
async def test_a_secret_that_others_can_read_or_that_is_missing_keeps_a_program_from_starting(
    node: Node, tmp_path: Path, mode, told
):
    secret = tmp_path / "token"
    if mode is not None:
        secret.write_text("s3cret")
        secret.chmod(mode)
    launch = Launch(process_payload(("env",), secret_names=("HF_TOKEN",)), secrets={"HF_TOKEN": str(secret)})
    await node.attempts.start("a.1", launch)
    end = await node.ended()
    assert end.reason is EndReason.NOT_STARTED
    assert told in end.detail
    assert "s3cret" not in end.detail


@needs_root
async def test_another_user_s_secret_keeps_a_program_from_starting(node: Node, tmp_path: Path):
    secret = tmp_path / "token"
    secret.write_text("s3cret")
    secret.chmod(0o600)
    os.chown(secret, pwd.getpwnam("nobody").pw_uid, -1)
    launch = Launch(process_payload(("env",), secret_names=("HF_TOKEN",)), secrets={"HF_TOKEN": str(secret)})
    await node.attempts.start("a.1", launch)
    end = await node.ended()
    assert (end.reason, "of its user, or of root" in end.detail) == (EndReason.NOT_STARTED, True)


@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_a_folder_that_others_can_write_to_is_refused(tmp_path: Path, mode):
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(mode)
    with pytest.raises(PermissionError, match="neither its group nor others"):
        Attempts(tmp_path / "shared", TreeDriver())


async def test_an_attempt_is_forgotten_only_when_it_has_ended(node: Node):
    await node.attempts.start("a.1", node.launch("sleep 60"))
    with pytest.raises(Conflict):
        await node.attempts.forget("a.1")
    await node.attempts.stop("a.1")
    await node.ended()
    await node.attempts.forget("a.1")
    assert node.attempts.names() == []
    with pytest.raises(NotFound):
        node.attempts.look("a.1")


async def test_folders_deeper_than_a_path_can_be_are_forgotten_too(node: Node):
    deep = (
        "import os\n"
        "for _ in range(3000):\n"
        "    os.mkdir('x', 0o700)\n"
        "    open('f', 'w').close()\n"
        "    os.symlink('/', 'l')\n"
        "    os.chdir('x')\n"
        "os.chmod('.', 0)\n"
    )
    await node.attempts.start("a.1", Launch(process_payload((sys.executable, "-I", "-S", "-c", deep))))
    assert (await node.ended()).succeeded
    await node.attempts.forget("a.1")
    assert list(node.folder.iterdir()) == []


async def test_what_can_t_be_removed_is_forgotten_and_tried_again_by_the_next_service(node: Node, monkeypatch):
    await node.run("exit 7")

    def refuses(top: str) -> None:
        raise OSError("in use")

    with monkeypatch.context() as refusing:
        refusing.setattr("adlro.attempt.attempts.remove_tree", refuses)
        await node.attempts.forget("a.1")
    assert len(list(node.folder.iterdir())) == 1
    assert node.attempts.names() == []
    assert await node.service().take_up() == []
    assert list(node.folder.iterdir()) == []
    assert node.runs() == 1


def test_another_system_than_linux_is_told_so(monkeypatch, tmp_path: Path):
    monkeypatch.setattr(sys, "platform", "darwin")
    from adlro.errors import Unsupported

    with pytest.raises(Unsupported, match="Linux"):
        Attempts(tmp_path)


# ---- gates


async def test_a_program_waits_at_its_gate_with_all_that_it_needs(node, tmp_path):
    gate = tmp_path / "gate"
    await node.attempts.start("a.1", node.launch("exit 7", gate=str(gate)))
    view = await asyncio.wait_for(node.attempts.prepared("a.1"), 30.0)
    assert (view.stage, view.prepared, view.supervised) == (Stage.ORDERED, True, True)
    await asyncio.sleep(0.1)
    assert node.runs() == 0
    gate.touch()
    end = await node.ended()
    assert (end.reason, end.code, node.runs()) == (EndReason.EXITED, 7, 1)
    assert (await node.attempts.prepared("a.1")).exit == end


@pytest.mark.parametrize("opened", [False, True], ids=["closed", "opened meanwhile"])
async def test_a_stop_at_the_gate_is_a_stop_before_the_start(node, tmp_path, opened):
    gate = tmp_path / "gate"
    await node.attempts.start("a.1", node.launch("exit 7", gate=str(gate)))
    await node.attempts.prepared("a.1")
    process = node.journal().supervisor()
    os.kill(process[0], signal.SIGSTOP)
    await node.attempts.stop("a.1", detail="not any more")
    if opened:
        gate.touch()
    os.kill(process[0], signal.SIGCONT)
    end = await node.ended()
    assert (end.reason, end.detail, node.runs()) == (EndReason.STOPPED, "not any more", 0)


async def test_a_supervisor_that_is_killed_at_the_gate_has_a_successor_who_waits(node, tmp_path):
    gate = tmp_path / "gate"
    await node.attempts.start("a.1", node.launch("exit 7", gate=str(gate)))
    await node.attempts.prepared("a.1")
    ended = asyncio.create_task(node.ended())
    first = node.journal().supervisor()
    assert node.kill_supervisor()
    await until(lambda: (now := node.journal().supervisor()) is not None and now != first)
    assert node.runs() == 0
    gate.touch()
    assert ((await ended).code, node.runs()) == (7, 1)


async def test_a_supervisor_that_is_ended_at_the_gate_tells_it(node, tmp_path):
    await node.attempts.start("a.1", node.launch("exit 7", gate=str(tmp_path / "gate")))
    await node.attempts.prepared("a.1")
    os.kill(node.journal().supervisor()[0], signal.SIGTERM)
    assert (await node.ended()).reason is EndReason.NODE_LOST


async def test_when_a_program_itself_ended_is_told_beside_the_end_of_what_it_left(node):
    await node.run(DAEMON + "exit 7")
    view = node.attempts.look("a.1")
    assert view.ended.boottime_s - view.program_ended.boottime_s > 1.0
