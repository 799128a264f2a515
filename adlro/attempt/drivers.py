"""What keeps an attempt within its limits, the best that the machine has: systemd units, control groups, or nothing.

A driver starts supervisors, and says in which control groups their programs run. All of them end an attempt's whole
tree of processes. Which limits hold is the driver's to say: none is taken for granted.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from adlro.attempt import journal
from adlro.attempt.cgroup import UNIFIED, Groups, own_groups
from adlro.errors import Unavailable

ALL_LIMITS = frozenset({"memory_mib", "cpu_cores", "processes", "devices"})
SUPERVISOR_ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
"""All that a supervisor is given of an environment: what the service has in its own is nobody else's."""

_OLDEST_SYSTEMD = 244
_ASK_S = 20.0
_CONTROLLER_OF = {"memory_mib": "memory", "cpu_cores": "cpu", "processes": "pids", "devices": "devices"}


class Driver(Protocol):
    """Starts supervisors.

    Attributes:
        name: as doctor and records tell it.
        enforced: the limits that hold.
    """

    name: str
    enforced: frozenset[str]

    def groups(self, mark: str) -> dict[str, str]:
        """The folders of an attempt's control groups by controller, which its supervisor makes. Empty: none."""

    def start(self, command: Sequence[str], intent: Mapping[str, Any], folder: str) -> subprocess.Popen[bytes] | None:
        """Starts a supervisor, which outlives this process.

        Args:
            command: that runs it.
            intent: of the attempt.
            folder: of the attempt.

        Returns:
            The supervisor, where it is this process's child.

        Raises:
            Unavailable: it can't be started now.
        """


class TreeDriver:
    """Ends whole trees of processes, and enforces no limit."""

    name = "tree"
    enforced: frozenset[str] = frozenset()

    def groups(self, mark: str) -> dict[str, str]:
        """See Driver."""
        return {}

    def start(self, command: Sequence[str], intent: Mapping[str, Any], folder: str) -> subprocess.Popen[bytes] | None:
        """See Driver."""
        try:
            with open(os.path.join(folder, journal.SUPERVISOR_LOG), "ab", opener=_private) as log:
                return subprocess.Popen(
                    [*command, folder],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=log,
                    cwd="/",
                    env=SUPERVISOR_ENVIRONMENT,
                    start_new_session=True,
                )
        except OSError as error:
            raise Unavailable(f"a supervisor can't be started: {error}", reason="NO_SUPERVISOR") from error


class CgroupDriver(TreeDriver):
    """Control groups of our own, version 2 or 1.

    Args:
        tops: the folders below which an attempt's groups are made, by controller.
    """

    name = "cgroup"

    def __init__(self, tops: Mapping[str, str]) -> None:
        self._tops = dict(tops)
        # Which device may be opened is in version 2 a program in the kernel, which systemd can load and we don't.
        has = {"memory", "cpu", "pids"} if UNIFIED in tops else set(tops)
        self.enforced = frozenset(limit for limit, controller in _CONTROLLER_OF.items() if controller in has)

    @classmethod
    def find(cls, root: str = "/sys/fs/cgroup", own: str = "/proc/self/cgroup") -> CgroupDriver:
        """Control groups that this process may make; made and removed once, to be sure.

        Args:
            root: where the hierarchies are mounted.
            own: the kernel's list for this process.

        Raises:
            OSError: it may not, and why.
        """
        groups = own_groups(root, own)
        if not set(_CONTROLLER_OF.values()) & set(groups):
            tops = {UNIFIED: _delegate(groups)}
        else:
            wanted = [each for each in (*_CONTROLLER_OF.values(), "freezer") if each in groups]
            tops = {each: f"{groups[each]}/adlro" for each in wanted}
        for top in tops.values():
            os.makedirs(top, exist_ok=True)
        made = cls(tops)
        trial = Groups(made.groups(f"trial-{os.getpid()}"))
        try:
            most = {"memory_mib": 64, "cpu_cores": 1.0, "processes": 64}
            trial.make({name: value for name, value in most.items() if name in made.enforced})
        finally:
            trial.remove()
        return made

    def groups(self, mark: str) -> dict[str, str]:
        """See Driver."""
        return {controller: f"{top}/{mark}" for controller, top in self._tops.items()}


def _delegate(groups: Mapping[str, str]) -> str:
    """Version 2: a folder whose groups have the controllers that limits need.

    Raises:
        OSError: it can't be made so.
    """
    if UNIFIED not in groups:
        raise OSError("there are no control groups")
    top = groups[UNIFIED]
    # Limits can be given only below a group that holds no processes itself. The whole machine's is the exception.
    parent = top if os.path.basename(top) == "adlro" else os.path.dirname(top) if _holds_processes(top) else top
    if not os.path.exists(f"{parent}/cgroup.subtree_control"):
        parent = top
    wanted = "+memory +cpu +pids"
    for folder in (parent, f"{parent}/adlro"):
        os.makedirs(folder, exist_ok=True)
        with open(f"{folder}/cgroup.subtree_control", "w") as file:
            file.write(wanted)
    return f"{parent}/adlro"


def _holds_processes(group: str) -> bool:
    with open(f"{group}/cgroup.procs") as file:
        return bool(file.read().strip())


class UnitDriver:
    """Transient units of systemd: all limits, device files included; survives whatever becomes of the service.

    A unit of that name is there once at a time, which is a second guard beside the journal.

    Args:
        systemd_run: the command.
    """

    name = "unit"
    enforced = ALL_LIMITS

    def __init__(self, systemd_run: str = "systemd-run") -> None:
        self._systemd_run = systemd_run

    @classmethod
    def find(cls) -> UnitDriver:
        """systemd, where it runs this machine and this process may give it orders.

        Raises:
            OSError: it does not, or may not, and why.
        """
        if not os.path.isdir("/run/systemd/system"):
            raise OSError("systemd does not run this machine")
        if os.geteuid() != 0:
            raise OSError("units need root")
        try:
            asked = subprocess.run(
                ["systemctl", "--version"], capture_output=True, text=True, timeout=_ASK_S, check=True
            )
            version = int(asked.stdout.split()[1])
        except (subprocess.SubprocessError, ValueError, IndexError) as error:
            raise OSError(f"systemctl does not tell its version: {error}") from error
        if version < _OLDEST_SYSTEMD:
            raise OSError(f"systemd {version} is older than {_OLDEST_SYSTEMD}")
        return cls()

    def groups(self, mark: str) -> dict[str, str]:
        """See Driver. systemd makes them."""
        return {}

    def start(self, command: Sequence[str], intent: Mapping[str, Any], folder: str) -> subprocess.Popen[bytes] | None:
        """See Driver."""
        try:
            # systemd would make it for all to read.
            os.close(_private(os.path.join(folder, journal.SUPERVISOR_LOG), os.O_WRONLY | os.O_CREAT))
            started = _ask(self.arguments(command, intent, folder))
            if started.returncode != 0:
                state = _ask(["systemctl", "show", "--property=LoadState", "--value", unit_name(intent)])
                if state.stdout.strip() != "loaded":
                    raise Unavailable(
                        f"systemd does not start a unit: {started.stderr.strip()}", reason="NO_SUPERVISOR"
                    )
                # It is there: about to begin, or about to end. The journal will say.
        except (subprocess.TimeoutExpired, OSError) as error:
            raise Unavailable(f"systemd does not answer: {error}", reason="NO_SUPERVISOR") from error
        return None

    def arguments(self, command: Sequence[str], intent: Mapping[str, Any], folder: str) -> list[str]:
        """The command line of a unit.

        Args:
            command: that runs the supervisor.
            intent: of the attempt.
            folder: of the attempt.
        """
        limits = intent["limits"]
        properties = {
            # The supervisor ends its program; what is there after its end is killed.
            "KillMode": "mixed",
            "TimeoutStopSec": f"{intent['stop_grace_s'] + 30.0:g}",
            # Memory that runs out ends the program, and the supervisor tells of it.
            "OOMPolicy": "continue",
            "OOMScoreAdjust": "-900",
            "StandardError": f"append:{folder}/{journal.SUPERVISOR_LOG}",
        }
        if "memory_mib" in limits:
            properties |= {"MemoryMax": f"{limits['memory_mib']}M", "MemorySwapMax": "0"}
        if "cpu_cores" in limits:
            properties["CPUQuota"] = f"{round(100 * limits['cpu_cores'])}%"
        if "processes" in limits:
            properties["TasksMax"] = str(limits["processes"] + 1)  # the supervisor is in the unit too
        given = [f"--property={name}={value}" for name, value in properties.items()]
        if "devices" in limits:
            given.append("--property=DevicePolicy=closed")
            given += [f"--property=DeviceAllow={path} rw" for path in limits["devices"]]
        first = [self._systemd_run, "--quiet", "--collect", "--slice=adlro.slice", f"--unit={unit_name(intent)}"]
        environment = [f"--setenv={name}={value}" for name, value in SUPERVISOR_ENVIRONMENT.items()]
        return [*first, *given, *environment, "--", *command, folder]


@dataclass(frozen=True, slots=True)
class Choice:
    """The best driver of this machine.

    Attributes:
        driver: it.
        passed_over: better ones, each with why it is not to be had.
    """

    driver: Driver
    passed_over: Mapping[str, str]

    @property
    def not_enforced(self) -> tuple[str, ...]:
        """The limits that do not hold on this machine."""
        return tuple(sorted(ALL_LIMITS - self.driver.enforced))


def choose_driver() -> Choice:
    """The best that this machine has: units, else control groups, else trees alone."""
    passed_over: dict[str, str] = {}
    for kind in (UnitDriver, CgroupDriver):
        try:
            return Choice(kind.find(), passed_over)
        except OSError as error:
            passed_over[kind.name] = str(error)
    return Choice(TreeDriver(), passed_over)


def unit_name(intent: Mapping[str, Any]) -> str:
    """The unit of an attempt. Its mark tells it from one of that name of another installation."""
    return f"adlro-{intent['name']}-{intent['mark'][:8]}.service"


def _ask(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(list(command), capture_output=True, text=True, timeout=_ASK_S, check=False)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)
