"""Finds the GPUs of this machine."""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading

from adlro.devices import amd, children
from adlro.devices.records import Found, Problem, ProblemKind, Vendor, found_of

LIMIT_S = 60.0
"""For NVML: without the persistence daemon, eight GPUs take twenty seconds to wake up."""
_UNKILLABLE_S = 2.0


def find_devices(root: str = "/", limit_s: float = LIMIT_S) -> Found:
    """The GPUs of this machine: NVIDIA's, then AMD's, each in the order of PCI addresses.

    Never hangs and never raises: what is wrong is in `problems` and `left_out`.

    Args:
        root: where /sys is, for AMD.
        limit_s: for each vendor's driver to answer.
    """
    parts = [_find_nvidia(limit_s), _find_amd(root, limit_s)]
    return Found(
        devices=tuple(each for part in parts for each in part.devices),
        left_out=tuple(each for part in parts for each in part.left_out),
        problems=tuple(each for part in parts for each in part.problems),
    )


def _find_nvidia(limit_s: float) -> Found:
    with subprocess.Popen(
        children.command("adlro.devices.nvidia"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=children.environment(),
    ) as child:
        try:
            out, errors = child.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            child.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.communicate(timeout=_UNKILLABLE_S)
            _abandon(child)
            return _failed(
                Vendor.NVIDIA,
                ProblemKind.NO_ANSWER,
                f"NVIDIA's driver did not answer within {limit_s:g} s: see `dmesg` for Xid errors; a GPU may have "
                "fallen off the bus, which a reboot mends",
            )
    if child.returncode != 0:
        last = errors.decode(errors="replace").strip().splitlines()[-1:]
        how = ": ".join([children.ended_text(child.returncode), *last])
        return _failed(Vendor.NVIDIA, ProblemKind.UNREADABLE, f"asking NVIDIA's driver ended with {how}; see `dmesg`")
    try:
        return found_of(json.loads(out))
    except (ValueError, KeyError, TypeError) as error:
        return _failed(Vendor.NVIDIA, ProblemKind.UNREADABLE, f"the answer about NVIDIA's GPUs can't be read: {error}")


def _abandon(child: subprocess.Popen[bytes]) -> None:
    """Lets go of a process that the kernel holds although it was killed: nobody may wait for it."""
    if child.poll() is None:
        child.returncode = -9


def _find_amd(root: str, limit_s: float) -> Found:
    """In a thread: files of a driver that hangs hang as well, and are not read in the caller's."""
    found: list[Found] = []

    def find() -> None:
        try:
            found.append(amd.find(root))
        except Exception as error:  # the kernel's files are another program's: whatever is odd there is told
            found.append(
                _failed(Vendor.AMD, ProblemKind.UNREADABLE, f"the kernel's list of AMD GPUs can't be read: {error}")
            )

    thread = threading.Thread(target=find, name="find-amd-gpus", daemon=True)
    thread.start()
    thread.join(limit_s)
    if found:
        return found[0]
    return _failed(
        Vendor.AMD,
        ProblemKind.NO_ANSWER,
        f"AMD's driver did not answer within {limit_s:g} s: see `dmesg` for amdgpu; a reboot may be needed",
    )


def _failed(vendor: Vendor, kind: ProblemKind, message: str) -> Found:
    return Found(problems=(Problem(vendor, kind, message),))
