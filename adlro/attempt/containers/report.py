"""What `adlro doctor` says of a node's container engine: whether it can be asked, what it has, what to do about it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from adlro.attempt.containers.engine import DEFAULT_SOCKET, Engine, EngineAwayError, RefusedError
from adlro.errors import Unsupported


@dataclass(frozen=True, slots=True)
class Advice:
    """Something that is missing or worse than it could be.

    Attributes:
        problem: what, and what follows from it.
        command: that mends it; empty: there is none.
    """

    problem: str
    command: str = ""


@dataclass(frozen=True, slots=True)
class EngineReport:
    """A container engine, as this process sees it.

    Attributes:
        reachable: attempts of containers can be run.
        version: of the engine; the following are empty, or False, where it is not reachable.
        storage_driver: where images and containers lie.
        cgroup_driver: `systemd` or `cgroupfs`.
        live_restore: containers go on while the engine is restarted.
        cdi: the engine knows the Container Device Interface.
        nvidia_runtime: the engine has NVIDIA's runtime.
        not_enforced: limits that do not hold.
        advice: what to do, the most important thing first.
    """

    reachable: bool
    version: str = ""
    storage_driver: str = ""
    cgroup_driver: str = ""
    live_restore: bool = False
    cdi: bool = False
    nvidia_runtime: bool = False
    not_enforced: tuple[str, ...] = ()
    advice: tuple[Advice, ...] = ()


def engine_report(path: str = DEFAULT_SOCKET) -> EngineReport:
    """Asks an engine what it is.

    Args:
        path: of its socket.
    """
    if not os.path.exists(path):
        return EngineReport(False, advice=(Advice(f"there is no container engine at {path}", _START),))
    if not os.access(path, os.R_OK | os.W_OK):
        problem = f"{path} may not be used by this user; whoever may is root on this machine"
        return EngineReport(False, advice=(Advice(problem, "sudo usermod -aG docker $USER  # then log in again"),))
    try:
        engine = Engine(path)
        return report_of(engine.info(), same_mounts=_same_mounts(engine.process()))
    except Unsupported as error:
        return EngineReport(False, advice=(Advice(error.message),))
    except (EngineAwayError, RefusedError) as error:
        return EngineReport(False, advice=(Advice(f"the container engine does not answer: {error}", _START),))


def report_of(info: Mapping[str, Any], *, same_mounts: bool | None = None) -> EngineReport:
    """A report from what an engine says of itself.

    Args:
        info: as the engine's API has it.
        same_mounts: the engine sees this process's mounts; None: not known.
    """
    runtimes, cdi = info.get("Runtimes") or {}, bool(info.get("CDISpecDirs"))
    nvidia, cgroup_driver = "nvidia" in runtimes, info.get("CgroupDriver", "")
    limits = {"memory_mib": "MemoryLimit", "cpu_cores": "CpuCfsQuota", "processes": "PidsLimit"}
    missing = tuple(sorted(limit for limit, flag in limits.items() if not info.get(flag, True)))
    advice = []
    if missing:
        advice.append(Advice(f"the kernel or the engine does not enforce {', '.join(missing)} for containers"))
    if same_mounts is False:
        advice.append(
            Advice(
                "the engine has mounts of its own (a snap, or a unit with PrivateMounts): mounts of jobs may be empty "
                "in their containers"
            )
        )
    if not info.get("LiveRestoreEnabled"):
        advice.append(Advice("a restart of the engine, as with an upgrade, ends all containers", _LIVE_RESTORE))
    if nvidia and not cdi and cgroup_driver == "systemd":
        advice.append(Advice("containers may lose their GPUs at `systemctl daemon-reload`: give the engine CDI", _CDI))
    if info.get("DefaultRuntime") == "nvidia":
        advice.append(Advice("NVIDIA's runtime is the default; ADLRO's containers without GPUs get none all the same"))
    return EngineReport(
        True,
        str(info.get("ServerVersion", "")),
        str(info.get("Driver", "")),
        str(cgroup_driver),
        bool(info.get("LiveRestoreEnabled")),
        cdi,
        nvidia,
        missing,
        tuple(advice),
    )


_START = "sudo systemctl enable --now docker"
_LIVE_RESTORE = (
    """echo '{"live-restore": true}' | sudo tee /etc/docker/daemon.json; sudo systemctl reload docker"""
    "  # where that file is there already, add the key to it"
)
_CDI = "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"


def _same_mounts(engine: int | None) -> bool | None:
    try:
        return None if engine is None else os.readlink(f"/proc/{engine}/ns/mnt") == os.readlink("/proc/self/ns/mnt")
    except OSError:
        return None
