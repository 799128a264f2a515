"""The GPUs' readings and conditions, from their drivers. Pretended GPUs are well, and report nothing."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping, Sequence

from adlro.devices.conditions import HELD_MIB, DeviceJudge
from adlro.devices.records import UNKNOWN, Reading, Vendor
from adlro.devices.watch import DeviceWatch
from adlro.services.local.gpus import Slot

# A program whose GPU is gone may end by itself, with its own words; after so long it is stopped.
GONE_S = 60.0
# A first report comes within seconds. Who waits longer for it does so in vain: silence keeps nothing from starting.
FIRST_REPORT_S = 20.0


class GpuHealth:
    """Watches GPUs.

    Args:
        slots: the GPUs.
        watch: reads them; None: by child processes.
    """

    def __init__(self, slots: Sequence[Slot], watch: DeviceWatch | None = None) -> None:
        self._slots = slots
        devices = [each.device for each in slots if not each.missing]
        self._watch = DeviceWatch(devices) if watch is None else watch
        self._judge = DeviceJudge(devices)
        self._uuid_of = {each.gpu_id: each.device.uuid for each in slots}
        self._failed: dict[str, str] = {}
        self._gone_since_s: dict[str, float] = {}
        # Those of which nothing was heard since the start, by UUID.
        self._unheard = {each.uuid for each in devices if each.vendor is not Vendor.PRETENDED}
        self._started_s = math.inf

    @property
    def watches(self) -> bool:
        """Whether there is a real GPU to watch."""
        return any(each.device.vendor is not Vendor.PRETENDED for each in self._slots)

    def start(self) -> None:
        """Starts to sample."""
        self._started_s = time.monotonic()
        self._watch.start()

    def stop(self) -> None:
        """Ends sampling; may take seconds."""
        self._watch.stop()

    def observe(self, running: Mapping[str, Collection[int]]) -> dict[str, str]:
        """Why GPUs are out now: by id the reason; empty: it can be used. A GPU of which nothing is known is not in it.

        Args:
            running: by id of each GPU on which an attempt runs: the PIDs of its processes.
        """
        now_s = time.monotonic()
        readings = self._watch.readings()
        found = self._judge.observe(readings, now_s, {self._uuid_of[gpu_id]: pids for gpu_id, pids in running.items()})
        self._failed = {}
        verdict: dict[str, str] = {}
        for slot in self._slots:
            uuid = slot.device.uuid
            if slot.missing:
                verdict[slot.gpu_id] = self._failed[slot.gpu_id] = f"{uuid} is not there any more"
                continue
            own = [each for each in found if each.uuid == uuid]
            reading = readings.by_uuid.get(uuid, UNKNOWN)
            reasons = "; ".join(each.reason for each in own if each.blocks_launches)
            if reasons or reading is not UNKNOWN or slot.device.vendor is Vendor.PRETENDED:
                verdict[slot.gpu_id] = reasons
            failures = [each.reason for each in own if each.ends_attempts]
            if failures:
                self._failed[slot.gpu_id] = failures[0]
            if reading.lost:
                self._gone_since_s.setdefault(slot.gpu_id, now_s)
            elif reading is not UNKNOWN:
                self._gone_since_s.pop(slot.gpu_id, None)
        return verdict

    def failure(self, gpu_id: str) -> str:
        """Why what fails on a GPU now fails because of it; empty: the GPU is well."""
        return self._failed.get(gpu_id, "")

    def released(self, gpu_id: str) -> bool:
        """Whether a GPU without an attempt is free of what the attempt before has used, as far as is known.

        Not before its first report: an earlier attempt, or somebody else, may be there.
        """
        uuid = self._uuid_of[gpu_id]
        if not self._judge.released(uuid) or not self._is_heard(uuid):
            return False
        # An attempt of less than a second may have passed between two looks of the judge.
        reading = self._watch.readings().by_uuid.get(uuid, UNKNOWN)
        held_mib = reading.memory_used_mib - reading.graphics_memory_mib  # unknown where a desktop's part is
        return not reading.processes and not held_mib >= HELD_MIB

    def _is_heard(self, uuid: str) -> bool:
        if self._watch.readings().by_uuid.get(uuid, UNKNOWN) is not UNKNOWN:
            self._unheard.discard(uuid)
        return uuid not in self._unheard or time.monotonic() - self._started_s >= FIRST_REPORT_S

    def gone(self) -> list[str]:
        """The GPUs whose driver has reported them lost for so long that what still runs there is to be stopped."""
        now_s = time.monotonic()
        return [gpu_id for gpu_id, since_s in self._gone_since_s.items() if now_s - since_s >= GONE_S]

    def readings(self) -> list[Reading]:
        """What the GPUs report, in their order. Of pretended ones all is unknown: nothing is measured."""
        by_uuid = self._watch.readings().by_uuid
        return [by_uuid.get(each.device.uuid, UNKNOWN) for each in self._slots]
