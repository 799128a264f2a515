"""Which GPUs can't be used, and why: what is observed second by second, and what is said of it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import pytest

from adlro.devices.conditions import Condition, ConditionKind, DeviceJudge
from adlro.devices.pretended import parse_fake_gpus
from adlro.devices.records import (
    UNKNOWN,
    ComputeProcess,
    Device,
    Problem,
    ProblemKind,
    Reading,
    Readings,
    Vendor,
    XidEvent,
)

GPU = Device("GPU-a", Vendor.NVIDIA, 0, "t4", "Tesla T4", 15360)
AMD = Device("GPU-00aa", Vendor.AMD, 0, "mi210", "AMD Instinct MI210", 65520)
IDLE = Reading(0.0, 3.0, 0.0, 40.0, 30.0, graphics_memory_mib=0.0, processes=(), ecc_uncorrectable=0)
BOB = ComputeProcess(4711, "bob", 9000.0)
OURS = ComputeProcess(100, "ann", 2000.0)
MISMATCH = Problem(Vendor.NVIDIA, ProblemKind.DRIVER_MISMATCH, "reboot needed: it was updated")


class Course:
    """One GPU, observed each second."""

    def __init__(self, device: Device = GPU) -> None:
        self.device = device
        self.judge = DeviceJudge([device])
        self.now_s = 1000.0

    def see(
        self,
        reading: Reading,
        seconds: float = 1,
        pids: Sequence[int] | None = None,
        silent_s: float = 0.0,
        problems: tuple[Problem, ...] = (),
    ) -> list[tuple[ConditionKind, str]]:
        """What is said at the end of so many seconds of the same; `pids`: of an attempt of ours."""
        attempts: Mapping[str, Sequence[int]] = {} if pids is None else {self.device.uuid: pids}
        said: tuple[Condition, ...] = ()
        for _ in range(max(1, round(seconds))):
            self.now_s += 1
            readings = Readings({self.device.uuid: reading}, {self.device.uuid: silent_s}, problems)
            said = self.judge.observe(readings, self.now_s, attempts)
        assert all(each.uuid == self.device.uuid for each in said)
        return [(each.kind, each.reason) for each in said]

    def kinds(self, *args, **kwargs) -> list[ConditionKind]:
        return [kind for kind, _ in self.see(*args, **kwargs)]


def with_(reading: Reading = IDLE, **changes) -> Reading:
    return dataclasses.replace(reading, **changes)


def test_an_idle_gpu_is_well():
    assert Course().see(IDLE, 100) == []


def test_utilization_alone_never_marks_a_gpu():
    assert Course().see(with_(utilization=1.0, power_w=300.0), 1000) == []


# ---- foreign use


def test_foreign_use_while_the_process_is_there():
    course = Course()
    assert course.see(with_(processes=(BOB,), memory_used_mib=9000.0)) == []  # one look may be a moment's
    (said,) = course.see(with_(processes=(BOB,), memory_used_mib=9000.0), 3)
    assert said == (ConditionKind.FOREIGN_USE, "used by pid 4711 of user bob")
    assert course.see(IDLE) == []


def test_several_foreign_processes():
    course = Course()
    others = (BOB, ComputeProcess(4712, "bob"), ComputeProcess(5, ""))
    (said,) = course.see(with_(processes=others), 4)
    assert said[1] == "used by pid 4711 of user bob and 2 more"


def test_processes_that_come_and_go_are_nobodys_use():
    course = Course()
    for pid in range(1000, 1030):
        assert course.see(with_(processes=(ComputeProcess(pid, "bob"),))) == []


def test_our_own_processes_are_not_foreign():
    course = Course()
    assert course.see(with_(processes=(OURS,), memory_used_mib=2000.0), 60, pids=[100, 101]) == []


def test_a_foreign_process_beside_ours():
    course = Course()
    assert course.kinds(with_(processes=(OURS, BOB)), 5, pids=[100]) == [ConditionKind.FOREIGN_USE]


def test_a_process_of_ours_that_has_ended_since_the_reading_is_ours():
    course = Course()
    reading = with_(processes=(OURS, ComputeProcess(101, "ann")))
    assert course.see(reading, 5, pids=[100, 101]) == []
    assert course.see(reading, 5, pids=[100]) == []


def test_a_pid_of_an_earlier_attempt_is_not_ours_for_ever():
    course = Course()
    course.see(with_(processes=(OURS,)), 5, pids=[100])
    course.see(IDLE, 40)
    course.see(IDLE, 5, pids=[200])
    assert course.kinds(with_(processes=(OURS,)), 5, pids=[200]) == [ConditionKind.FOREIGN_USE]


def test_processes_that_can_t_be_seen_are_foreign_only_where_none_of_ours_runs():
    unseen = with_(processes=(ComputeProcess(7, ""),))
    assert Course().see(unseen, 5, pids=[]) == []
    ((kind, reason),) = Course().see(unseen, 5)
    assert (kind, reason) == (ConditionKind.FOREIGN_USE, "used by pid 7")


def test_a_silence_neither_accuses_nor_acquits():
    course = Course()
    course.see(with_(processes=(BOB,)), 4)
    assert course.kinds(UNKNOWN, 3, silent_s=5.0) == [ConditionKind.FOREIGN_USE]
    assert Course().see(UNKNOWN, 3, silent_s=5.0) == []
    for reading in (with_(ecc_uncorrectable=1), with_(memory_used_mib=9000.0)):
        course = Course()
        said = course.see(reading, 40)
        assert len(said) == 1
        assert course.see(UNKNOWN, 3, silent_s=5.0) == said
        assert course.see(IDLE) == []


# ---- memory


def test_memory_is_waited_for_after_an_attempt():
    course = Course()
    course.see(with_(processes=(OURS,), memory_used_mib=9000.0), 10, pids=[100])
    assert course.see(with_(memory_used_mib=9000.0), 30) == []
    (said,) = course.see(with_(memory_used_mib=9000.0), 2)
    assert said[0] is ConditionKind.MEMORY_HELD
    assert said[1].startswith("9000 MiB of its memory are held by no process")
    assert course.see(with_(memory_used_mib=8000.0), 5) == [said]  # the same words: no news
    assert course.see(IDLE) == []


def test_memory_that_is_released_in_time_is_nothing():
    course = Course()
    course.see(with_(processes=(OURS,), memory_used_mib=9000.0), 10, pids=[100])
    assert course.see(with_(memory_used_mib=9000.0), 20) == []
    assert course.see(IDLE, 60) == []


def test_a_launch_waits_until_memory_was_seen_to_be_free():
    course = Course()

    def released() -> bool:
        return course.judge.released(GPU.uuid)

    assert released()
    course.see(with_(processes=(OURS,), memory_used_mib=9000.0), 10, pids=[100])
    assert not released()
    course.see(IDLE, silent_s=0.5)  # read before the attempt's end was noticed: it says nothing
    assert not released()
    course.see(with_(memory_used_mib=9000.0), 5)
    assert not released()
    course.see(IDLE)
    assert released()
    course.see(IDLE, 1, pids=[100])
    course.see(UNKNOWN, 29)
    assert not released()
    course.see(UNKNOWN, 2)
    assert released()  # not for ever
    assert course.judge.released("GPU-of-nobody")


def test_a_process_of_ours_that_stays_holds_memory_and_is_foreign_later():
    course = Course()
    stuck = with_(processes=(OURS,), memory_used_mib=9000.0)
    course.see(stuck, 10, pids=[100])
    assert course.see(stuck, 20) == []
    assert course.kinds(stuck, 20) == [ConditionKind.FOREIGN_USE]


def test_memory_held_from_the_start_is_found():
    course = Course()
    assert course.see(with_(memory_used_mib=4000.0), 30) == []
    assert course.kinds(with_(memory_used_mib=4000.0), 5) == [ConditionKind.MEMORY_HELD]


def test_a_desktop_holds_no_memory():
    desktop = with_(memory_used_mib=1500.0, graphics_memory_mib=1400.0)
    assert Course().see(desktop, 100) == []


def test_what_was_in_use_before_an_attempt_is_not_held_where_a_desktop_is_unknown():
    course = Course(AMD)
    desktop = with_(memory_used_mib=1500.0, graphics_memory_mib=math.nan)
    assert course.see(desktop, 100) == []
    course.see(with_(desktop, memory_used_mib=30_000.0, processes=(OURS,)), 10, pids=[100])
    assert course.see(desktop, 100) == []
    course.see(with_(desktop, memory_used_mib=30_000.0, processes=(OURS,)), 10, pids=[100])
    assert course.kinds(with_(desktop, memory_used_mib=30_000.0), 40) == [ConditionKind.MEMORY_HELD]


# ---- loss


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 68, 109])
def test_a_programs_fault_leaves_the_gpu_well(xid):
    assert Course().see(with_(xids=(XidEvent(xid, 1000.5),)), 5) == []


@pytest.mark.parametrize("xid", [48, 79, 95, 119, 999])
def test_an_error_of_the_gpu_itself_loses_it_for_ten_quiet_minutes(xid):
    course = Course()
    broken = with_(xids=(XidEvent(13, 1000.5), XidEvent(xid, 1000.5)))
    ((kind, reason),) = course.see(broken)
    assert kind is ConditionKind.LOST
    assert f"Xid {xid}" in reason
    assert course.kinds(broken, 598) == [ConditionKind.LOST]  # the same event is told again and again
    assert course.see(broken, 2) == []
    assert course.kinds(with_(xids=(XidEvent(xid, course.now_s),))) == [ConditionKind.LOST]


def test_a_lost_gpu_counts_as_well_after_ten_quiet_minutes():
    course = Course()
    gone = Reading(lost="the driver has lost it")
    assert course.see(gone, 100) == [(ConditionKind.LOST, "the driver has lost it")]
    ((kind, reason),) = course.see(IDLE, 60)
    assert (kind, reason.startswith("the driver has lost it; it counts as well again")) == (ConditionKind.LOST, True)
    course.see(gone)  # not quiet: the minutes begin anew
    assert course.kinds(IDLE, 599) == [ConditionKind.LOST]
    assert course.see(IDLE, 2) == []


def test_a_person_can_say_that_a_gpu_is_well():
    course = Course()
    course.see(Reading(lost="gone"))
    course.judge.clear(GPU.uuid)
    assert course.see(IDLE) == []
    course.judge.clear("GPU-of-nobody")


def test_silence_is_unknown_then_loss():
    course = Course()
    assert course.see(UNKNOWN, silent_s=9.9) == []
    assert course.kinds(UNKNOWN, silent_s=10.0) == [ConditionKind.UNKNOWN]
    assert course.see(IDLE) == []
    assert course.kinds(UNKNOWN, silent_s=59.0) == [ConditionKind.UNKNOWN]
    assert course.kinds(UNKNOWN, silent_s=60.0) == [ConditionKind.LOST]
    assert course.kinds(IDLE) == [ConditionKind.LOST]
    assert course.see(IDLE, 601) == []


def test_a_driver_that_fails_loses_all_its_gpus():
    unreadable = Problem(Vendor.NVIDIA, ProblemKind.UNREADABLE, "NVIDIA's driver refuses: unknown error")
    assert Course().see(UNKNOWN, problems=(unreadable,)) == [(ConditionKind.LOST, unreadable.message)]
    assert Course(AMD).see(IDLE, problems=(unreadable,)) == []


def test_a_driver_mismatch_needs_a_reboot_and_loses_nothing():
    course = Course()
    assert course.see(UNKNOWN, 100, problems=(MISMATCH,)) == [(ConditionKind.DRIVER_MISMATCH, MISMATCH.message)]
    assert course.see(IDLE) == []
    assert Course(AMD).see(IDLE, problems=(MISMATCH,)) == []


# ---- drain


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ecc_uncorrectable": 1}, "1 uncorrectable memory error since"),
        ({"ecc_uncorrectable": 3}, "3 uncorrectable memory errors since"),
        ({"row_remap_pending": True}, "to be replaced"),
    ],
)
def test_memory_errors_drain(changes, words):
    course = Course()
    ((kind, reason),) = course.see(with_(**changes))
    assert kind is ConditionKind.DRAIN
    assert words in reason
    assert course.kinds(with_(**changes), 2000) == [ConditionKind.DRAIN]
    assert course.see(IDLE) == []


def test_the_gravest_comes_first():
    both = with_(lost="gone", ecc_uncorrectable=1)
    assert Course().kinds(both) == [ConditionKind.LOST, ConditionKind.DRAIN]


def test_what_conditions_mean_for_attempts():
    meaning = {kind: Condition("", kind, "") for kind in ConditionKind}
    assert {kind for kind, each in meaning.items() if not each.blocks_launches} == {ConditionKind.UNKNOWN}
    assert {kind for kind, each in meaning.items() if each.ends_attempts} == {ConditionKind.LOST}


def test_pretended_gpus_are_always_well():
    devices = parse_fake_gpus("t4:2")
    judge = DeviceJudge(devices)
    assert judge.observe(Readings({each.uuid: UNKNOWN for each in devices}), 1.0, {}) == ()
