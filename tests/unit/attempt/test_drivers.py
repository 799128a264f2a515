"""Control groups by their files, units by their command line, and which driver a machine gets."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path

import pytest

from adlro.attempt.cgroup import UNIFIED, Groups, own_groups
from adlro.attempt.drivers import ALL_LIMITS, CgroupDriver, TreeDriver, UnitDriver, choose_driver
from adlro.attempt.records import Launch, Limits
from adlro.errors import Unavailable
from adlro.records.payloads import process_payload


def files(folder: Path, **texts: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name.replace("__", ".")).write_text(text)
    return folder


# ---- control groups; the kernel's files stand in a folder


def test_limits_in_version_2(tmp_path: Path):
    group = files(tmp_path / "g", memory__max="", memory__swap__max="", cpu__max="", pids__max="", cgroup__procs="")
    groups = Groups({UNIFIED: str(group)})
    groups.make({"memory_mib": 64, "cpu_cores": 1.5, "processes": 50, "devices": ["/dev/null"]})
    groups.add(4711)
    told = {path.name: path.read_text() for path in group.iterdir()}
    assert told == {
        "memory.max": str(64 << 20),
        "memory.swap.max": "0",
        "cpu.max": "150000 100000",
        "pids.max": "50",
        "cgroup.procs": "4711",
    }


def test_limits_in_version_1(tmp_path: Path):
    names = {
        "memory": ["memory.limit_in_bytes"],
        "cpu": ["cpu.cfs_period_us", "cpu.cfs_quota_us"],
        "pids": ["pids.max"],
        "devices": ["devices.deny", "devices.allow"],
    }
    for controller, of_it in names.items():
        files(tmp_path / controller, **{name.replace(".", "__"): "" for name in of_it})
    groups = Groups({controller: str(tmp_path / controller) for controller in names})
    groups.make({"memory_mib": 64, "cpu_cores": 2, "processes": 50, "devices": ["/dev/null"]})
    assert (tmp_path / "memory" / "memory.limit_in_bytes").read_text() == str(64 << 20)
    assert (tmp_path / "cpu" / "cpu.cfs_quota_us").read_text() == "200000"
    assert (tmp_path / "devices" / "devices.deny").read_text() == "a"


def test_a_limit_that_the_kernel_does_not_take_is_an_error_that_names_it(tmp_path: Path):
    groups = Groups({UNIFIED: str(files(tmp_path / "g"))})
    with pytest.raises(OSError, match=r"memory\.max does not take '67108864'"):
        groups.make({"memory_mib": 64})


@pytest.mark.parametrize(
    ("name", "text", "oom", "peak"),
    [
        ("memory.events", "low 0\nhigh 0\nmax 9\noom 1\noom_kill 1\n", True, 63),
        ("memory.events", "low 0\nhigh 0\nmax 9\noom 0\noom_kill 0\n", False, 63),
        ("memory.events", "", False, 63),
    ],
)
def test_what_a_group_tells_of_memory_in_version_2(tmp_path: Path, name, text, oom, peak):
    group = files(tmp_path / "g", memory__peak=f"{63 << 20}\n", **{name.replace(".", "__"): text})
    groups = Groups({UNIFIED: str(group)})
    assert (groups.out_of_memory(), groups.peak_mib()) == (oom, peak)


def test_what_a_group_tells_of_memory_in_version_1(tmp_path: Path):
    group = files(
        tmp_path / "m",
        memory__oom_control="oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
        memory__max_usage_in_bytes="",
    )
    groups = Groups({"memory": str(group)})
    assert (groups.out_of_memory(), groups.peak_mib()) == (True, None)


@pytest.mark.parametrize(
    ("own", "folders", "found"),
    [
        ("0::/a/b\n", ["root/a/b"], {UNIFIED: "root/a/b"}),
        ("0::/not/seen/here\n", ["root"], {UNIFIED: "root"}),
        (
            "4:cpu,cpuacct:/x\n3:memory:/x\n1:name=systemd:/x\n0::/x\n",
            ["root/cpu/x", "root/cpuacct/x", "root/memory/x", "root/unified/x", "root/systemd/x"],
            {
                "cpu": "root/cpu/x",
                "cpuacct": "root/cpuacct/x",
                "memory": "root/memory/x",
                "name=systemd": "root/systemd/x",
                UNIFIED: "root/unified/x",
            },
        ),
    ],
)
def test_where_the_own_groups_are(tmp_path: Path, own, folders, found):
    for folder in folders:
        (tmp_path / folder).mkdir(parents=True)
    if "memory" not in own:
        (tmp_path / "root" / "cgroup.controllers").write_text("memory")
    (tmp_path / "own").write_text(own)
    paths = own_groups(str(tmp_path / "root"), str(tmp_path / "own"))
    assert paths == {name: str(tmp_path / path) for name, path in found.items()}


def test_a_machine_without_control_groups_says_so(tmp_path: Path):
    (tmp_path / "own").write_text("")
    with pytest.raises(OSError, match="no control groups"):
        CgroupDriver.find(str(tmp_path), str(tmp_path / "own"))


# ---- units


def test_the_command_line_of_a_unit(tmp_path: Path):
    limits = Limits(memory_mib=1024, cpu_cores=1.5, processes=100, devices=("/dev/nvidia0", "/dev/nvidiactl"))
    launch = Launch(process_payload(("python", "train.py"), stop_grace_s=20.0), limits=limits)
    intent = launch.intent("job-17.1") | {"mark": "0123456789abcdef"}
    line = UnitDriver().arguments(["python", "-I"], intent, "/var/lib/adlro/job-17.1")
    options, program = line[: line.index("--")], line[line.index("--") + 1 :]
    assert program == ["python", "-I", "/var/lib/adlro/job-17.1"]
    assert options[0] == "systemd-run"
    assert "--unit=adlro-job-17.1-01234567.service" in options
    for wanted in (
        "MemoryMax=1024M",
        "CPUQuota=150%",
        "TasksMax=101",
        "DevicePolicy=closed",
        "DeviceAllow=/dev/nvidia0 rw",
        "DeviceAllow=/dev/nvidiactl rw",
        "KillMode=mixed",
        "OOMPolicy=continue",
        "TimeoutStopSec=50",
    ):
        assert f"--property={wanted}" in options


@pytest.mark.parametrize(("state", "refused"), [("not-found", True), ("loaded", False)])
def test_a_unit_that_systemd_refuses_is_told_unless_it_is_there(tmp_path: Path, monkeypatch, state, refused):
    systemd_run = tmp_path / "systemd-run"
    systemd_run.write_text(
        "#!/bin/sh\necho 'Failed to start transient service unit: Unit was already loaded' >&2\nexit 1\n"
    )
    systemd_run.chmod(0o755)
    intent = Launch(process_payload(("true",))).intent("a.1") | {"mark": "0" * 32}
    systemctl = tmp_path / "systemctl"
    systemctl.write_text(f"#!/bin/sh\necho {state}\n")
    systemctl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    expected = pytest.raises(Unavailable, match="already loaded") if refused else contextlib.nullcontext()
    with expected:
        assert UnitDriver(str(systemd_run)).start(["python"], intent, str(tmp_path)) is None
    assert (tmp_path / "supervisor.log").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("there", "user_id", "version", "told"),
    [
        (False, 0, "systemd 252 (252)", "does not run this machine"),
        (True, 1000, "systemd 252 (252)", "need root"),
        (True, 0, "systemd 240 (240)", "older than 244"),
        (True, 0, "what?", "does not tell its version"),
        (True, 0, "systemd 244", ""),
    ],
)
def test_units_are_used_where_systemd_runs_the_machine_and_we_may(monkeypatch, there, user_id, version, told):
    monkeypatch.setattr("os.path.isdir", lambda path: there)
    monkeypatch.setattr("os.geteuid", lambda: user_id)
    answer = subprocess.CompletedProcess([], 0, version, "")
    monkeypatch.setattr("subprocess.run", lambda *_, **__: answer)
    if told:
        with pytest.raises(OSError, match=told):
            UnitDriver.find()
    else:
        assert UnitDriver.find().enforced == ALL_LIMITS


def test_a_machine_gets_the_best_driver_that_it_has_and_is_told_what_does_not_hold(monkeypatch):
    def no_units() -> UnitDriver:
        raise OSError("no systemd")

    def no_groups() -> CgroupDriver:
        raise OSError("read-only")

    monkeypatch.setattr(UnitDriver, "find", no_units)
    groups = CgroupDriver({UNIFIED: "/sys/fs/cgroup/adlro"})
    monkeypatch.setattr(CgroupDriver, "find", lambda: groups)
    choice = choose_driver()
    assert choice.driver is groups
    assert choice.not_enforced == ("devices",)
    monkeypatch.setattr(CgroupDriver, "find", no_groups)
    choice = choose_driver()
    assert isinstance(choice.driver, TreeDriver)
    assert choice.passed_over == {"unit": "no systemd", "cgroup": "read-only"}
    assert set(choice.not_enforced) == ALL_LIMITS
