"""A systemd of the test's own: process 1 of namespaces of its own, with control groups below this process's.

Needs root and systemd's programs. The machine's files are seen through read-only mounts; a work folder is shared.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import adlro

SYSTEMD = "/lib/systemd/systemd"
START_S = 30.0
_TARGET = "adlro-test.target"

# $1: the root that is made, $2: shared folder, the rest: folders that are seen as they are.
_INSIDE = rf"""
set -e
root=$1; work=$2; shift 2
mount --make-rprivate /
mount -t tmpfs none "$root"
cd "$root"
mkdir -p usr etc/systemd/system proc sys dev run tmp var/log root
for link in bin sbin lib lib64; do ln -s usr/$link $link; done
mount --rbind /usr usr
for folder in "$@"; do
    mkdir -p ".$folder"; mount --rbind "$folder" ".$folder"; mount -o remount,ro,bind ".$folder"
done
mkdir -p ".$work"; mount --bind "$work" ".$work"
cp /etc/passwd /etc/group etc/
echo 0123456789abcdef0123456789abcdef > etc/machine-id
printf '[Unit]\nDescription=test\n' > etc/systemd/system/{_TARGET}
mount -t proc proc proc
mount -t sysfs none sys
mount -t tmpfs none dev
for node in 'null 1 3' 'zero 1 5' 'full 1 7' 'random 1 8' 'urandom 1 9' 'tty 5 0' 'kmsg 1 11'; do
    set -- $node; mknod -m 666 dev/$1 c $2 $3
done
mkdir dev/shm dev/pts
mount -t tmpfs none run
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
    mount -t cgroup2 none sys/fs/cgroup
else
    mount -t tmpfs none sys/fs/cgroup
    for one in cpu cpuacct memory devices freezer pids; do
        mkdir sys/fs/cgroup/$one; mount -t cgroup -o $one none sys/fs/cgroup/$one || true
    done
    mkdir sys/fs/cgroup/systemd; mount -t cgroup -o none,name=systemd none sys/fs/cgroup/systemd
fi
mkdir old; pivot_root . old; umount -l old
exec env -i container=test PATH=/usr/sbin:/usr/bin {SYSTEMD} --system --unit={_TARGET} </dev/null
"""


class PrivateSystemd:
    """Runs commands where systemd is process 1.

    Args:
        pid: of that systemd, as seen from outside.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def run(self, *command: str, timeout_s: float = 120.0) -> subprocess.CompletedProcess[str]:
        enter = ["nsenter", "-t", str(self._pid), "-m", "-p", "-C", "-i", "-u", "-r", "-w"]
        environment = ["env", "-i", "PATH=/usr/sbin:/usr/bin", "HOME=/root", "PYTHONDONTWRITEBYTECODE=1"]
        environment.append(f"PYTHONPATH={Path(adlro.__file__).parents[1]}")
        return subprocess.run(
            [*enter, *environment, *command], capture_output=True, text=True, timeout=timeout_s, check=False
        )


@contextlib.contextmanager
def private_systemd(work: Path) -> Iterator[PrivateSystemd]:
    """Starts one, and ends it with all that runs in it.

    Args:
        work: a folder that both sides can write to.

    Raises:
        OSError: it can't be had here, and why.
    """
    needed = ["unshare", "nsenter", "pivot_root", "mount", "systemd-run"]
    missing = [name for name in needed if shutil.which(name) is None]
    if os.geteuid() != 0 or missing or not os.path.exists(SYSTEMD):
        raise OSError(f"a systemd of our own needs root, {SYSTEMD} and {', '.join(needed)}")
    groups = _own_groups()
    (work / "root").mkdir()
    folders = {str(Path(adlro.__file__).resolve().parents[1]), sys.prefix, sys.base_prefix}
    seen = sorted(folder for folder in folders if not folder.startswith("/usr"))
    enter = "".join(f"echo $$ > {group}/cgroup.procs; " for group in groups)
    unshare = 'exec unshare -m -p -C -i -u -f sh -c "$1" sh "$2" "$3" $4'
    process = subprocess.Popen(
        ["sh", "-c", enter + unshare, "sh", _INSIDE, str(work / "root"), str(work), " ".join(seen)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield PrivateSystemd(_wait(process))
    finally:
        for child in _children(process.pid):
            os.kill(child, 9)  # process 1: the kernel ends the rest
        process.wait()
        assert process.stderr is not None
        process.stderr.close()
        for group in groups:
            _remove(Path(group))


def _own_groups() -> list[str]:
    from adlro.attempt.cgroup import own_groups

    made = [f"{path}/adlro-test-{os.getpid()}" for name, path in own_groups().items() if name != "cpuset"]
    for group in made:
        os.makedirs(group, exist_ok=True)
    return made


def _wait(process: subprocess.Popen[str]) -> int:
    deadline_s = time.monotonic() + START_S
    while time.monotonic() < deadline_s:
        if process.poll() is not None:
            assert process.stderr is not None
            raise OSError(f"systemd does not start here: {process.stderr.read().strip()}")
        for child in _children(process.pid):
            asked = PrivateSystemd(child).run("systemctl", "is-active", _TARGET)
            if asked.stdout.strip() == "active":
                return child
        time.sleep(0.1)
    raise OSError(f"systemd did not come up within {START_S:g} s")


def _children(pid: int) -> list[int]:
    try:
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:  # it has gone
        return []


def _remove(group: Path) -> None:
    """Removes a control group and those below it, when they are empty, which takes the kernel a moment."""
    below = sorted((Path(folder) for folder, _, _ in os.walk(group)), reverse=True)
    for each in below:
        for _ in range(100):
            with contextlib.suppress(OSError):
                each.rmdir()
                break
            time.sleep(0.02)
