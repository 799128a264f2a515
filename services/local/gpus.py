"""The GPUs of this machine by the ids that the cluster gives them, and the cluster that is described.

A GPU's identity is its UUID. Which UUID has which id is stored in a file: after a reboot that changes the order, or
without a GPU that was removed, each GPU has the id that it had. A new GPU gets a new id. Pretended GPUs are not stored.
"""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from adlro.devices.records import Device, Found, Machine, device_of, to_plain
from adlro.errors import DataLoss, InvalidInput
from adlro.records.cluster import Cluster, Node

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Slot:
    """A GPU of the cluster.

    Attributes:
        gpu_id: as the cluster calls it.
        node_id: of its node.
        device: as it was found; or, where it is `missing`, as it was found last.
        missing: it was there before, and is not now.
    """

    gpu_id: str
    node_id: str
    device: Device
    missing: bool = False


def host_name() -> str:
    """This machine's name, as a node's id may be."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname()).strip("-._")[:63] or "node"


def pretended_slots(devices: Sequence[Device]) -> tuple[Slot, ...]:
    """The ids of pretended GPUs: by node, in their order."""
    counts: dict[str, int] = {}
    found = []
    for device in sorted(devices, key=lambda each: (each.node, each.index)):
        node_id = device.node or host_name()
        number = counts[node_id] = counts.get(node_id, -1) + 1
        found.append(Slot(f"{node_id}/{number}", node_id, device))
    return tuple(found)


class GpuIds:
    """The stored ids.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def assign(self, devices: Sequence[Device], node_id: str = "") -> tuple[Slot, ...]:
        """The ids of GPUs: those that they had, and new ones after the others. Stores them.

        Args:
            devices: that were found now.
            node_id: for the first time; empty: this machine's name. A machine that is renamed keeps its ids.

        Raises:
            DataLoss: the file can't be read.
            OSError: it can't be written.
        """
        stored = self._read()
        node_id = stored[0] if stored else node_id or host_name()
        known = stored[1] if stored else {}
        here = {each.uuid: each for each in devices}
        slots = [
            Slot(gpu_id, node_id, here.get(device.uuid, device), missing=device.uuid not in here)
            for gpu_id, device in known.items()
        ]
        taken = {device.uuid for device in known.values()}
        number = max((int(gpu_id.rpartition("/")[2]) for gpu_id in known), default=-1)
        for device in devices:
            if device.uuid not in taken:
                number += 1
                slots.append(Slot(f"{node_id}/{number}", node_id, device))
                _log.info("a GPU was found", gpu_id=slots[-1].gpu_id, uuid=device.uuid, model=device.gpu_model)
        self._write(node_id, slots)
        return tuple(slots)

    def _read(self) -> tuple[str, dict[str, Device]] | None:
        try:
            found = json.loads(self._path.read_text("utf-8"))
            gpus = {each["gpu_id"]: device_of(each["device"]) for each in found["gpus"]}
            if any(not re.fullmatch(r".+/[0-9]{1,6}", gpu_id) for gpu_id in gpus):
                raise ValueError("an id is not <node>/<number>")
            return str(found["node"]), gpus
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataLoss(
                f"{self._path}, which says which GPU has which id, can't be read ({error}); mend it or delete it: GPUs "
                "are then numbered in the order in which they are found",
                reason="GPU_IDS_UNREADABLE",
            ) from error

    def _write(self, node_id: str, slots: Sequence[Slot]) -> None:
        gpus = [{"gpu_id": each.gpu_id, "device": to_plain(each.device)} for each in slots]
        draft = self._path.with_suffix(".new")
        with draft.open("w", encoding="utf-8") as file:
            json.dump({"node": node_id, "gpus": gpus}, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        draft.rename(self._path)


def real_slots(found: Found, ids: GpuIds) -> tuple[Slot, ...]:
    """The ids of this machine's GPUs.

    Args:
        found: on this machine.
        ids: the stored ones.

    Raises:
        InvalidInput: there are no GPUs, and never were.
        DataLoss: the stored ids can't be read.
        OSError: they can't be written.
    """
    for each in found.left_out:
        _log.warning("a GPU is left out", what=each.what, why=each.why)
    for problem in found.problems:
        _log.warning("GPUs can't be found", vendor=problem.vendor, why=problem.message)
    slots = ids.assign(found.devices)
    if not slots:
        whys = [*(each.message for each in found.problems), *(f"{each.what}: {each.why}" for each in found.left_out)]
        why = f" ({'; '.join(whys)})" if whys else ""
        raise InvalidInput(
            f"this machine has no GPUs that can be used{why}; --fake-gpus v100_sxm2:2 (ADLRO_LOCAL_FAKE_GPUS) runs "
            "real programs on pretended ones",
            field="ADLRO_LOCAL_FAKE_GPUS",
            reason="NO_GPUS",
        )
    return slots


def cluster_of(name: str, slots: Sequence[Slot], machine: Machine) -> Cluster:
    """The cluster that is described. Pretended nodes share the machine's cores and memory, each an equal part."""
    by_node: dict[str, list[Slot]] = {}
    for each in slots:
        by_node.setdefault(each.node_id, []).append(each)
    cores, memory_mib = (max(1, whole // len(by_node)) for whole in (machine.cpu_cores, machine.memory_mib))
    nodes = [
        Node(node_id, cores, memory_mib, tuple(each.device.as_gpu(each.gpu_id) for each in members))
        for node_id, members in by_node.items()
    ]
    return Cluster(name, tuple(nodes))
