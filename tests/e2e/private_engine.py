"""A container engine of the tests' own: its containers and restarts are nobody else's. Needs root and dockerd."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import shutil
import signal
import socket
import struct
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import docker
import pytest
from docker.errors import APIError, DockerException

from adlro.attempt.records import Launch
from adlro.records.payloads import Container, Mount, Payload

REPOSITORY, TAG = "adlro-test-shell", "1"
IMAGE = f"{REPOSITORY}:{TAG}"
# Of linux/sockios.h.
_SET_FLAGS, _MAKE_BRIDGE, _REMOVE_BRIDGE = 0x8914, 0x89A0, 0x89A1
_APPLETS = "sh cat sleep seq id env echo head yes dd ls kill stat touch tr printf"


class PrivateEngine:
    """dockerd with a folder, a socket, a containerd and a bridge of its own.

    Args:
        folder: of all that it writes.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = str(folder / "socket")
        self.bridge = f"adlro{os.getpid() % 10_000_000}"
        self._process: subprocess.Popen[bytes] | None = None
        self._containerd: subprocess.Popen[bytes] | None = None

    def start(self, *options: str) -> None:
        (self.folder / "pid").unlink(missing_ok=True)
        if self.bridge not in {name for _, name in socket.if_nameindex()}:
            _change_bridge(_MAKE_BRIDGE, self.bridge)
        if self._containerd is None:  # as its own service, as on most machines: it outlives dockerd
            self._start_containerd()
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    "dockerd",
                    f"--data-root={self.folder}/data",
                    f"--exec-root={self.folder}/exec",
                    f"--pidfile={self.folder}/pid",
                    f"--containerd={self.folder}/containerd.sock",
                    f"--host=unix://{self.socket}",
                    # Not "none": that dockerd would remove docker0, the bridge of this machine's own engine.
                    f"--bridge={self.bridge}",
                    "--ip-forward=false",
                    "--ip-masq=false",
                    "--iptables=false",
                    "--ip6tables=false",
                    "--storage-driver=vfs",
                    *options,
                ],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        until = time.monotonic() + 60.0
        while time.monotonic() < until and self._process.poll() is None:
            try:
                self.client().close()
                return
            except DockerException:
                time.sleep(0.1)
        raise RuntimeError(f"dockerd does not start: {(self.folder / 'log').read_text()[-2000:]}")

    def _start_containerd(self) -> None:
        config = self.folder / "containerd.toml"
        config.write_text('version = 2\ndisabled_plugins = ["io.containerd.grpc.v1.cri"]\n')
        with (self.folder / "log").open("ab") as log:
            self._containerd = subprocess.Popen(
                [
                    "containerd",
                    f"--config={config}",
                    f"--address={self.folder}/containerd.sock",
                    f"--root={self.folder}/containerd",
                    f"--state={self.folder}/containerd-state",
                ],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def client(self) -> docker.APIClient:
        return docker.APIClient(base_url=f"unix://{self.socket}", version="auto", timeout=60)

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Ends dockerd; its containers too, but for SIGKILL, and where it was started with --live-restore."""
        assert self._process is not None
        self._process.send_signal(number)
        self._process.wait(60.0)

    def remove_containers(self) -> None:
        """Removes all containers, whatever they do; returns when they are gone."""
        client = self.client()
        until = time.monotonic() + 60.0
        while (found := client.containers(all=True)) and time.monotonic() < until:
            for each in found:
                # Another request may be at it: then it is gone soon, or is removed in the next round.
                with contextlib.suppress(APIError):
                    client.remove_container(each["Id"], force=True)
            time.sleep(0.05)
        client.close()
        assert not found, f"can't be removed: {found}"

    def close(self) -> None:
        """Removes all containers, and ends both daemons."""
        if self._process is not None and self._process.poll() is None:
            self.remove_containers()
        for daemon in (self._process, self._containerd):
            if daemon is not None and daemon.poll() is None:
                daemon.terminate()
                daemon.wait(60.0)
        if self.bridge in {name for _, name in socket.if_nameindex()}:
            _change_bridge(_REMOVE_BRIDGE, self.bridge)

    def containers(self) -> list[str]:
        client = self.client()
        try:
            return [each["Names"][0] for each in client.containers(all=True)]
        finally:
            client.close()

    def import_image(self) -> None:
        """Makes IMAGE from this machine's busybox, without a network."""
        client = self.client()
        try:
            client.import_image_from_data(_shell_image(), repository=REPOSITORY, tag=TAG, changes=["ENV PATH=/bin"])
        finally:
            client.close()


def _change_bridge(request: int, name: str) -> None:
    """Makes or removes a bridge; the kernel refuses to remove one that is up."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as any_socket:
        if request == _REMOVE_BRIDGE:
            flags = struct.pack("16sh14x", name.encode(), 0)
            fcntl.ioctl(any_socket, _SET_FLAGS, flags)
        fcntl.ioctl(any_socket, request, name.encode().ljust(16, b"\0"))


@contextmanager
def private_engine() -> Iterator[PrivateEngine]:
    """Skips the test where there can be none."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("dockerd", "containerd", "busybox"))):
        pytest.skip("a container engine of the tests' own needs root, dockerd, containerd and busybox")
    folder = Path(tempfile.mkdtemp(prefix="adlro-engine-"))  # short: a socket's path has 107 characters at most
    engine = PrivateEngine(folder)
    try:
        try:
            engine.start()
        except RuntimeError as error:
            pytest.skip(str(error))
        except OSError as error:
            pytest.skip(f"no bridge can be made: {error}")
        engine.import_image()
        yield engine
    finally:
        engine.close()
        # dockerd binds its folder to itself.
        subprocess.run(["umount", "-l", f"{folder}/data"], capture_output=True, check=False)
        shutil.rmtree(folder)


def _shell_image() -> bytes:
    busybox = shutil.which("busybox")
    assert busybox is not None
    found = subprocess.run(["ldd", busybox], capture_output=True, text=True, check=False).stdout
    libraries = [word for word in found.split() if word.startswith("/")]
    data = io.BytesIO()
    folders = {str(above) for each in ("/bin/sh", *libraries) for above in Path(each).parents} - {"/"}
    with tarfile.open(fileobj=data, mode="w", dereference=True) as tar:
        for folder in sorted(folders):
            room = tarfile.TarInfo(folder.lstrip("/"))
            room.type, room.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(room)
        tar.add(busybox, "bin/busybox")
        for library in libraries:
            tar.add(library, library.lstrip("/"))
        for applet in _APPLETS.split():
            link = tarfile.TarInfo(f"bin/{applet}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
        room = tarfile.TarInfo("tmp")
        room.type, room.mode = tarfile.DIRTYPE, 0o1777
        tar.addfile(room)
    return data.getvalue()


def launch_of(script: str, shared: str = "", grace_s: float = 1.0, **more: Any) -> Launch:
    """A shell program of user nobody; the directory `shared` of the node is /shared."""
    mounts = (Mount(shared, "/shared", writable=True),) if shared else ()
    payload = {name: more.pop(name) for name in ("log_limit_mib", "environment", "secret_names") if name in more}
    container = Container(IMAGE, ("sh", "-c", script), mounts=mounts)
    return Launch(Payload(container=container, stop_grace_s=grace_s, **payload), user="nobody", **more)
