"""What `adlro doctor` looks at: each check is a function that returns findings, with the command that mends a fault.

Reads the machine: files of the kernel, the GPUs' drivers (in child processes), ports, a store. Changes nothing but
trial files in the data directory, which it removes.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import os
import platform
import resource
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from adlro.errors import AdlroError, with_extra

_LEAST_KERNEL = (5, 4)
"""The first long-term kernel with pidfd_open, by which supervisors signal programs."""
_FEW_FREE_MIB, _NO_FREE_MIB = 10_240, 1_024
_FEW_FILES = 4_096
_FEW_INOTIFY = 1_024
_NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "lustre", "gpfs", "beegfs", "9p", "afs"}
)
_PACKAGES = ("grpcio", "protobuf", "numpy", "redis", "onnxruntime", "numba", "nvidia-ml-py", "docker")
_TIME_ERROR = 5  # adjtimex: the clock is not synchronized


class Level(enum.StrEnum):
    """How grave a finding is."""

    OK = "ok"
    NOTE = "note"
    """It works, with less than it could."""
    FAULT = "fault"


@dataclass(frozen=True, slots=True)
class Finding:
    """A result of a check.

    Attributes:
        about: the part of the machine.
        level: how grave it is.
        text: what was found.
        mend: the command, or the step, that mends it; empty: nothing to mend.
    """

    about: str
    level: Level
    text: str
    mend: str = ""


def system() -> Iterator[Finding]:
    """Operating system, kernel, Python."""
    if sys.platform != "linux":
        yield Finding(
            "system",
            Level.FAULT,
            f"{platform.system()}: real programs are run on Linux alone; the simulated cluster works here",
            "adlro up",
        )
        return
    release = platform.release()
    numbers = tuple(int(each) for each in release.split("-")[0].split(".")[:2] if each.isdigit())
    if numbers < _LEAST_KERNEL:
        yield Finding("system", Level.FAULT, f"Linux {release}: 5.4 or newer is needed", "update the kernel")
    else:
        yield Finding("system", Level.OK, f"Linux {release}, Python {platform.python_version()}")


def packages() -> Iterator[Finding]:
    """Versions of ADLRO and of the packages that matter most."""
    found, missing = [f"adlro {_version('adlro') or '(not installed)'}"], []
    for name in _PACKAGES:
        version = _version(name)
        if version:
            found.append(f"{name} {version}")
        else:
            missing.append(name)
    text = ", ".join(found) + (f"; not installed: {', '.join(missing)}" if missing else "")
    yield Finding("versions", Level.OK, text)


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def supervision() -> Iterator[Finding]:
    """The driver that limits programs, and why better ones can't be used."""
    from adlro.attempt.drivers import choose_driver

    choice = choose_driver()
    words = {"unit": "systemd's transient units", "cgroup": "control groups", "tree": "process trees"}
    passed = "; ".join(f"{words.get(name, name)} not: {why}" for name, why in choice.passed_over.items())
    text = words.get(choice.driver.name, choice.driver.name) + (f" ({passed})" if passed else "")
    if not choice.not_enforced:
        yield Finding("limits", Level.OK, f"{text}: memory, cores, processes and devices are enforced")
        return
    not_enforced = ", ".join(each.replace("_mib", "").replace("cpu_", "") for each in choice.not_enforced)
    yield Finding(
        "limits",
        Level.NOTE,
        f"{text}: {not_enforced} not enforced: a program can use more than it asked for",
        "run the suite as root on a machine with systemd (see docs/own_machine.md)",
    )


def gpus() -> Iterator[Finding]:
    """The GPUs that a local cluster would have."""
    from adlro.devices.finding import find_devices

    found = find_devices()
    for device in found.devices:
        spec = "" if device.spec is None else "; a model without figures of ADLRO's own: those of the driver hold"
        yield Finding(
            "gpu",
            Level.OK,
            f"{device.product_name} ({device.gpu_model}), {device.memory_mib} MiB, {device.uuid}{spec}",
        )
    for left in found.left_out:
        yield Finding("gpu", Level.NOTE, f"{left.what} is left out: {left.why}")
    for problem in found.problems:
        yield Finding("gpu", Level.FAULT, problem.message)
    if not found.devices and not found.problems:
        yield Finding(
            "gpu",
            Level.NOTE,
            "no GPU of NVIDIA or AMD was found",
            "adlro up --cluster local --fake-gpus v100_sxm2:2   (real programs, pretended GPUs)",
        )


def engine() -> Iterator[Finding]:
    """The container engine."""
    from adlro.attempt.containers.engine import DEFAULT_SOCKET
    from adlro.attempt.containers.report import engine_report

    report = engine_report(os.environ.get("ADLRO_LOCAL_ENGINE") or DEFAULT_SOCKET)
    if report.reachable:
        parts = [
            f"engine {report.version}",
            f"storage {report.storage_driver}",
            f"control groups by {report.cgroup_driver}",
        ]
        parts.append("running containers survive its restart" if report.live_restore else "no live-restore")
        parts += ["CDI"] * report.cdi + ["NVIDIA's runtime"] * report.nvidia_runtime
        yield Finding("containers", Level.OK, ", ".join(parts))
    for advice in report.advice:
        yield Finding("containers", Level.NOTE, advice.problem, advice.command)


def clock() -> Iterator[Finding]:
    """Whether the wall clock is synchronized: times of jobs are told by it."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        state = libc.adjtimex(ctypes.create_string_buffer(512))
    except (OSError, AttributeError):
        return
    if state == _TIME_ERROR:
        yield Finding(
            "clock", Level.NOTE, "the wall clock is not synchronized with a time server", "timedatectl set-ntp true"
        )
    elif state >= 0:
        yield Finding("clock", Level.OK, "synchronized")


def disk(data_dir: Path) -> Iterator[Finding]:
    """The data directory: kind of file system, free room, holes, ownership."""
    there = data_dir
    while not there.exists():
        there = there.parent
    kind = _file_system(there)
    if kind in _NETWORK_FILE_SYSTEMS:
        yield Finding(
            "disk",
            Level.FAULT,
            f"{data_dir} is on {kind}: locks and links of a network file system are not safe",
            "adlro up --data-dir /var/lib/adlro",
        )
    free_mib = shutil.disk_usage(there).free >> 20
    if free_mib < _NO_FREE_MIB:
        yield Finding("disk", Level.FAULT, f"{there} has {free_mib} MiB left", "free the disk, or another --data-dir")
    elif free_mib < _FEW_FREE_MIB:
        yield Finding("disk", Level.NOTE, f"{there} has {free_mib} MiB left: logs and records of jobs need room")
    else:
        yield Finding("disk", Level.OK, f"{there}: {free_mib >> 10} GiB free" + (f" on {kind}" if kind else ""))
    if not os.access(there, os.W_OK):
        yield Finding("disk", Level.FAULT, f"{there} can't be written by this user", f"sudo chown $USER {there}")
    elif not _can_punch_holes(there):
        yield Finding(
            "disk",
            Level.NOTE,
            f"{kind or 'this file system'} can't free the beginning of a file: logs are not kept below their limit",
            "a data directory on ext4, xfs, btrfs or tmpfs",
        )


def _file_system(path: Path) -> str:
    """The kind of file system of a path; empty: unknown."""
    best, kind = "", ""
    with contextlib.suppress(OSError, IndexError):
        for line in Path("/proc/self/mounts").read_text().splitlines():
            mount, found = line.split()[1:3]
            mount = mount.encode().decode("unicode_escape")
            if path.resolve().is_relative_to(mount) and len(mount) >= len(best):
                best, kind = mount, found
    return kind


def _can_punch_holes(folder: Path) -> bool:
    from adlro.attempt.linux import punch_hole

    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(8192))
            file.flush()
            punch_hole(file.fileno(), 0, 4096)
    except OSError:
        return False
    return True


def limits() -> Iterator[Finding]:
    """Open files and inotify instances: each running program needs some."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < _FEW_FILES:
        more = f"ulimit -n {min(hard, 65_536)}" if hard > soft else "LimitNOFILE=65536 in the service's unit"
        yield Finding("files", Level.NOTE, f"{soft} open files: enough for some {soft // 8} running programs", more)
    else:
        yield Finding("files", Level.OK, f"{soft} open files")
    with contextlib.suppress(OSError, ValueError):
        instances = int(Path("/proc/sys/fs/inotify/max_user_instances").read_text())
        if instances < _FEW_INOTIFY:
            yield Finding(
                "files",
                Level.NOTE,
                f"{instances} inotify instances for each user: one for each running program",
                f"sudo sysctl fs.inotify.max_user_instances={_FEW_INOTIFY}",
            )


def ports(base_port: int) -> Iterator[Finding]:
    """Whether the suite's ports are free, or used by a suite."""
    from adlro.cli.ports import port_is_free
    from adlro.client import ServiceName

    taken = [
        str(base_port + name.port_offset)
        for name in ServiceName
        if not port_is_free("127.0.0.1", base_port + name.port_offset)
    ]
    if not taken:
        last = base_port + max(name.port_offset for name in ServiceName)
        yield Finding("ports", Level.OK, f"{base_port} to {last} are free")
    else:
        yield Finding(
            "ports",
            Level.NOTE,
            f"{', '.join(taken)} in use: by a running suite (adlro status), or another program",
            "adlro up --port 0   (free ports)",
        )


async def page(base_port: int) -> Sequence[Finding]:
    """Whether the live page is installed, and whether it answers beside the suite at a port."""
    from adlro.cli.page import LAST_PORT, PORT_OFFSET, page_is_installed, page_of
    from adlro.cli.ports import port_is_free

    found = await page_of(f"127.0.0.1:{base_port}")
    if found is not None and found.serving:
        return [Finding("page", Level.OK, f"{found.link} answers")]
    if found is not None:
        mend = "its log, web.log, lies with the services'; then start the suite again"
        return [Finding("page", Level.FAULT, f"{found.link} does not answer, and its suite runs", mend)]
    if not page_is_installed():
        text = "the live page is not installed: adlro up runs without it"
        return [Finding("page", Level.NOTE, text, f"install it {with_extra('web')}")]
    port = base_port + PORT_OFFSET
    if port > LAST_PORT or not port_is_free("127.0.0.1", port):
        text = f"port {port} is not free, and no page answers there: adlro up would run without it"
        return [Finding("page", Level.NOTE, text, "adlro up --port 0   (free ports)")]
    return [Finding("page", Level.OK, f"installed; adlro up serves it at port {port}")]


async def store(url: str, password_file: str) -> Sequence[Finding]:
    """The store that ADLRO_REDIS_URL names."""
    if not url:
        return [Finding("store", Level.OK, "an own Valkey (ADLRO_REDIS_URL is not set)")]
    from adlro.kit.store_report import inspect_store

    try:
        report = await inspect_store(url, password_file)
    except AdlroError as error:
        return [Finding("store", Level.FAULT, error.message, "start it, or unset ADLRO_REDIS_URL")]
    found = [Finding("store", Level.FAULT, text, mend) for text, mend in report.problems.items()]
    return found or [Finding("store", Level.OK, report.version)]
