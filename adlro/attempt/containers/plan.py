"""The container of an attempt, as the engine's API has it: its user, its limits, its GPUs, and what it may not do."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from adlro.attempt.containers.engine import MARK_LABEL, NAME_LABEL

Record = Mapping[str, Any]

_LEAST_LOG_MIB = 1024

_NO_GPUS = "void"


def container_name(intent: Record) -> str:
    """The container of an attempt. Its mark tells it from one of that name of another installation."""
    return f"adlro-{intent['name']}-{intent['mark'][:8]}"


def log_config(limit_bytes: int) -> dict[str, Any]:
    """What the engine keeps of the logs until they are in the attempt's files.

    The engine drops the older of two files when the newer one is full, also what nobody has taken yet. So a file holds
    what a fast program writes until it is frozen, some seconds later; and no less than both streams may have in the
    attempt's files: what is lost even so lies before what is kept of the log.

    `local` keeps bytes as they were written; json-file makes others of what is not UTF-8, and took nearly twice the
    room.

    Args:
        limit_bytes: what the disk is to hold of each stream.
    """
    size_mib = max(_LEAST_LOG_MIB, 2 * limit_bytes >> 20)
    return {"Type": "local", "Config": {"max-size": f"{size_mib}m", "max-file": "2", "compress": "false"}}


def container_config(
    intent: Record,
    *,
    user: tuple[int, int],
    groups: Sequence[int],
    environment: Mapping[str, str],
    mounts: Sequence[Mapping[str, Any]],
    network: str = "bridge",
    cdi: bool = False,
) -> dict[str, Any]:
    """The body of the request that makes a container.

    Args:
        intent: of the attempt.
        user: user and group id of its program.
        groups: ids of further groups.
        environment: all that is added to the image's.
        mounts: `source`, `target`, `writable`.
        network: the engine's network.
        cdi: GPUs are asked for by their CDI names.
    """
    container, limits = intent["container"], intent["limits"]
    host: dict[str, Any] = {
        # Passes signals on and reaps orphans: as the first process, most programs would ignore SIGTERM.
        "Init": True,
        "LogConfig": log_config(intent["log_limit_bytes"]),
        "NetworkMode": network,
        "IpcMode": "private",
        "Privileged": False,
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges"],
        "RestartPolicy": {"Name": "no"},
        "GroupAdd": [str(each) for each in groups],
        "Mounts": [
            {
                "Type": "bind",
                "Source": each["source"],
                "Target": each["target"],
                "ReadOnly": not each["writable"],
                "BindOptions": {"Propagation": "rprivate"},
            }
            for each in mounts
        ],
        "Devices": [
            {"PathOnHost": path, "PathInContainer": path, "CgroupPermissions": "rw"} for path in intent["device_files"]
        ],
    }
    if "memory_mib" in limits:
        host["Memory"] = host["MemorySwap"] = limits["memory_mib"] << 20
    if "cpu_cores" in limits:
        # The engine refuses more than there are.
        host["NanoCpus"] = int(min(limits["cpu_cores"], os.cpu_count() or 1) * 1_000_000_000)
    if "processes" in limits:
        host["PidsLimit"] = limits["processes"] + 1  # the first process is the engine's
    if container["shared_memory_mib"]:
        host["ShmSize"] = container["shared_memory_mib"] << 20
    uuids = intent["gpu_uuids"]
    if uuids and cdi:
        host["DeviceRequests"] = [{"Driver": "cdi", "DeviceIDs": [cdi_name(each) for each in uuids]}]
    elif uuids:
        host["DeviceRequests"] = [{"Driver": "", "Count": 0, "DeviceIDs": uuids, "Capabilities": [["gpu"]]}]
    # Where NVIDIA's runtime is the engine's default, the image could ask for all GPUs by this variable.
    visible = ",".join(uuids) if uuids and not cdi else _NO_GPUS
    config: dict[str, Any] = {
        "Image": container["image"],
        "User": f"{user[0]}:{user[1]}",
        "Env": [f"{name}={value}" for name, value in {**environment, "NVIDIA_VISIBLE_DEVICES": visible}.items()],
        "Labels": {MARK_LABEL: intent["mark"], NAME_LABEL: intent["name"]},
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": host,
    }
    if intent.get("network_name"):
        config["NetworkingConfig"] = {"EndpointsConfig": {network: {"Aliases": [intent["network_name"]]}}}
    if container["argv"]:
        config["Cmd"] = list(container["argv"])
    if container["workdir"]:
        config["WorkingDir"] = container["workdir"]
    return config


def cdi_name(uuid: str) -> str:
    """The name of an NVIDIA GPU in the Container Device Interface."""
    return f"nvidia.com/gpu={uuid}"


def cdi_knows(folders: Sequence[str], uuids: Sequence[str]) -> bool:
    """The node's CDI specifications name all of these GPUs.

    Args:
        folders: that the engine reads; none: it does not know CDI.
        uuids: of the GPUs.
    """
    texts = []
    for folder in folders:
        try:
            names = [each for each in os.listdir(folder) if each.endswith((".yaml", ".yml", ".json"))]
            for name in names:
                with open(os.path.join(folder, name)) as file:
                    texts.append(file.read())
        except (OSError, UnicodeDecodeError):
            continue
    text = "\n".join(each for each in texts if "nvidia.com/gpu" in each)
    return bool(uuids) and all(each in text for each in uuids)
