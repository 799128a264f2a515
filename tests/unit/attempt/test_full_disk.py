"""A full disk: nothing new is begun, what runs can be stopped, and how it ended is told."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from adlro.attempt.attempts import Attempts
from adlro.attempt.drivers import TreeDriver
from adlro.errors import Unavailable
from adlro.records.payloads import EndReason
from tests.unit.attempt.node import Node, until

pytestmark = pytest.mark.slow

FILL = "cat /dev/zero > full 2>/dev/null; "
"""Words that take all that is left of the disk."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Node]:
    """A node with a disk of 2 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(place)], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"this process may not mount a small disk: {mounted.stderr.strip()}")
    try:
        node = Node(place / "attempts")
        node.attempts = Attempts(node.folder, TreeDriver(), free_mib=0)
        yield node
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


async def test_the_end_of_a_program_that_fills_the_disk_is_told(disk: Node):
    end = await disk.run(FILL + "exit 7")
    assert (end.reason, end.code) == (EndReason.EXITED, 7)
    assert os.statvfs(disk.folder).f_bavail == 0, "the disk was full all the time"


async def test_a_program_that_fills_the_disk_can_be_stopped(disk: Node):
    await disk.attempts.start("a.1", disk.launch(FILL + "echo full >&2; sleep 60"))
    await until(lambda: os.statvfs(disk.folder).f_bavail == 0)
    await disk.attempts.stop("a.1")
    assert (await disk.ended()).reason is EndReason.STOPPED


async def test_the_loss_of_a_supervisor_is_told_on_a_full_disk(disk: Node):
    await disk.attempts.start("a.1", disk.launch(FILL + "sleep 60"))
    await until(lambda: os.statvfs(disk.folder).f_bavail == 0)
    assert disk.kill_supervisor()
    assert (await disk.ended()).reason is EndReason.SUPERVISOR_LOST


async def test_a_disk_that_fills_up_before_a_program_begins_keeps_it_from_beginning(disk: Node):
    waiting = disk.service(command=["true"])
    waiting._free_mib = 0
    await waiting.start("a.1", disk.launch("exit 7"))
    with (disk.folder.parent / "full").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
    end = await disk.ended()
    assert end.reason is EndReason.NOT_STARTED
    assert "No space left" in end.detail
    assert disk.runs() == 0


async def test_nothing_new_is_begun_on_a_disk_that_is_nearly_full(disk: Node):
    with pytest.raises(Unavailable, match="MiB left") as refused:
        await Attempts(disk.folder, TreeDriver(), free_mib=64).start("a.1", disk.launch("exit 0"))
    assert refused.value.reason == "DISK_FULL"
    assert disk.attempts.names() == []
