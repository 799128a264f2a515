"""What is asked of a container engine, by its API on this machine's socket. Blocking; two kinds of errors."""

from __future__ import annotations

import calendar
import contextlib
import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from adlro.attempt.linux import all_pids
from adlro.errors import Unsupported, with_extra

DEFAULT_SOCKET = "/var/run/docker.sock"
MARK_LABEL, NAME_LABEL = "adlro.mark", "adlro.attempt"

_CALL_TIMEOUT_S = 120.0  # a start with many layers, on a disk that has other work
# An image is fetched with pauses: a layer of gigabytes is unpacked without a word.
_PULL_TIMEOUT_S = 1800.0
_READ_BYTES = 1 << 18
# The stream of the engine's own words, where it can't go on.
_ERROR_STREAM = 3
_NO_TIME = "0001-01-01"


class EngineAwayError(Exception):
    """The engine does not answer. Whether it did what it was asked is not known."""


class RefusedError(Exception):
    """The engine's answer is an error.

    Attributes:
        status: of HTTP; 0: it came in the middle of an answer.
        text: the engine's words.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


@dataclass(frozen=True, slots=True)
class ContainerState:
    """A container as the engine sees it.

    Attributes:
        id: of the container.
        mark: of the attempt whose it is; empty: it is not ours.
        status: `created`, `running`, `paused`, `exited`, `dead`, ...
        code: its exit code; 128 + n: signal n ended it.
        out_of_memory: the kernel ended something in it for lack of memory.
        error: why it could not be started; empty: it could, or nobody tried.
        pid: of its first process on the node; 0: there is none.
        began_unix_s: start; 0: there was none.
        ended_unix_s: end; 0: there was none.
    """

    id: str
    mark: str
    status: str
    code: int = 0
    out_of_memory: bool = False
    error: str = ""
    pid: int = 0
    began_unix_s: float = 0.0
    ended_unix_s: float = 0.0


class OutputStream:
    """The engine's log of a container: frames of both streams, each with its time before the bytes.

    HTTP 1.0 on a socket of its own: the engine then sends bytes without chunks, and another thread can close it.

    Args:
        path: of the engine's socket.
        container: its id.
        since_s: Unix time; entries of that second and later ones are sent.
        follow: sends what comes until the container ends.

    Raises:
        EngineAwayError: the engine does not answer.
        RefusedError: it says no; 404: there is no such container.
    """

    def __init__(self, path: str, container: str, since_s: int, *, follow: bool) -> None:
        query = urlencode({"stdout": 1, "stderr": 1, "timestamps": 1, "since": since_s, "follow": int(follow)})
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.settimeout(_CALL_TIMEOUT_S)
            self._socket.connect(path)
            self._socket.sendall(f"GET /containers/{container}/logs?{query} HTTP/1.0\r\nHost: engine\r\n\r\n".encode())
            self._rest = self._past_head()
            self._socket.settimeout(None)
            self._failed = ""
        except OSError as error:
            self._socket.close()
            raise EngineAwayError(str(error)) from error
        except RefusedError:
            self._socket.close()
            raise

    def read(self) -> list[tuple[int, bytes]]:
        """Frames: stream (1: stdout, 2: stderr) with time and bytes. Empty: it is over, or broken, or was closed."""
        while True:
            frames, self._rest = _frames(self._rest)
            if frames:
                return self._without_error(frames)
            if self._failed:
                raise RefusedError(0, self._failed)
            try:
                data = self._socket.recv(_READ_BYTES)
            except OSError:
                return []
            if not data:
                return []
            self._rest += data

    def _without_error(self, frames: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        for number, frame in frames:
            if number == _ERROR_STREAM:
                self._failed = frame.decode(errors="replace").strip()
        return [each for each in frames if each[0] != _ERROR_STREAM]

    def close(self) -> None:
        """Ends it; a read in another thread returns."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _past_head(self) -> bytes:
        data = b""
        while b"\r\n\r\n" not in data:
            more = self._socket.recv(4096)
            if not more:
                raise EngineAwayError("the engine ended the connection")
            data += more
        head, rest = data.split(b"\r\n\r\n", 1)
        status = int(head.split(b" ", 2)[1])
        if status != 200:
            raise RefusedError(status, rest.decode(errors="replace").strip())
        return rest


def _frames(data: bytes) -> tuple[list[tuple[int, bytes]], bytes]:
    """The whole frames at the beginning of some bytes, and the rest."""
    found = []
    at, end = 0, len(data)
    while end - at >= 8:
        length = int.from_bytes(data[at + 4 : at + 8], "big")
        if end - at - 8 < length:
            break
        found.append((data[at], data[at + 8 : at + 8 + length]))
        at += 8 + length
    return found, data[at:]


class Engine:
    """The container engine of this machine.

    Args:
        path: of its socket.

    Raises:
        Unsupported: the package `docker` is not installed.
    """

    def __init__(self, path: str = DEFAULT_SOCKET) -> None:
        try:
            import docker
            import requests
        except ImportError as error:
            raise Unsupported(
                f"containers need the package 'docker'; install it {with_extra('containers')}",
                field="payload.container",
                reason="NO_CONTAINERS",
            ) from error
        self.path = path
        self._docker = docker
        # Also what the package lets through of the layers below it.
        self._away = (requests.RequestException, docker.errors.DockerException, OSError)
        self._client: Any = None

    # ---- the engine

    def info(self) -> dict[str, Any]:
        """What the engine says of itself, as its API has it.

        Raises:
            EngineAwayError: it does not answer.
            RefusedError: it says no.
        """
        found: dict[str, Any] = self._call("info")
        return found

    def process(self) -> int | None:
        """PID of the engine; None: it is not found, or there are several and the socket is systemd's."""
        candidates = [pid for pid in all_pids() if _command(pid) == "dockerd"]
        if len(candidates) <= 1:
            return candidates[0] if candidates else None
        listener = self._listener()
        return listener if listener in candidates else None

    def began_unix_s(self) -> float | None:
        """When the engine was started; None: that is not known."""
        pid = self.process()
        try:
            # The folder of a process has the time of its first look; its start stands in the file.
            with open(f"/proc/{pid}/stat", "rb") as file:
                ticks = int(file.read().rsplit(b")", 1)[1].split()[19])
        except OSError:
            return None
        since_boot_s = ticks / os.sysconf("SC_CLK_TCK")
        return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + since_boot_s

    def _listener(self) -> int | None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            try:
                probe.connect(self.path)
                return int.from_bytes(probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)[:4], "little")
            except OSError:
                return None

    # ---- images

    def has_image(self, name: str) -> bool:
        """The engine has an image of that name.

        Raises:
            EngineAwayError: it does not answer.
            RefusedError: it is no name of an image.
        """
        try:
            self._call("inspect_image", name)
        except RefusedError as error:
            if error.status == 404:
                return False
            raise
        return True

    def pull(self, name: str, told: Callable[[Mapping[str, Any]], None]) -> None:
        """Fetches an image.

        Args:
            name: of the image; without a tag: `latest`.
            told: is called with each line of progress; what it raises ends the transfer.

        Raises:
            EngineAwayError: the engine does not answer.
            RefusedError: the image can't be fetched.
        """
        repository, tag = self._docker.utils.parse_repository_tag(name)
        client = self._new_client(_PULL_TIMEOUT_S)
        try:
            lines = self._guarded(client.pull, repository, tag=tag or "latest", stream=True, decode=True)
            while (line := self._guarded(next, lines, None)) is not None:
                if "error" in line:
                    raise RefusedError(0, str(line["error"]))
                told(line)
        finally:
            client.close()

    # ---- containers

    def find(self, name: str) -> ContainerState | None:
        """A container, by name or id; None: there is none.

        Raises:
            EngineAwayError: the engine does not answer.
            RefusedError: it says no.
        """
        try:
            found = self._call("inspect_container", name)
        except RefusedError as error:
            if error.status == 404:
                return None
            raise
        state = found["State"]
        return ContainerState(
            found["Id"],
            (found["Config"].get("Labels") or {}).get(MARK_LABEL, ""),
            state["Status"],
            state["ExitCode"],
            bool(state.get("OOMKilled")),
            state.get("Error") or "",
            state.get("Pid") or 0,
            unix_s(state["StartedAt"]),
            unix_s(state["FinishedAt"]),
        )

    def create(self, name: str, config: Mapping[str, Any]) -> str:
        """Makes a container, which does not run yet; returns its id.

        Args:
            name: of the container.
            config: as the engine's API has it.

        Raises:
            EngineAwayError: the engine does not answer; it may have made it.
            RefusedError: it can't be made. 409: the name is taken; 404: there is no such image.
        """
        created: dict[str, Any] = self._call("create_container_from_config", dict(config), name)
        return str(created["Id"])

    def start(self, container: str) -> None:
        """Starts a container. Each call runs it, also once more after it has ended.

        Raises:
            EngineAwayError: the engine does not answer; it may have started it.
            RefusedError: it can't be started.
        """
        self._call("start", container)

    def signal(self, container: str, number: int) -> None:
        """Signals a container's program. One that has ended is left alone.

        Raises:
            EngineAwayError: the engine does not answer.
            RefusedError: it says no.
        """
        try:
            self._call("kill", container, number)
        except RefusedError as error:
            if error.status not in {404, 409}:  # gone, not running
                raise

    def freeze(self, container: str, *, frozen: bool) -> None:
        """Stops a container's processes where they are, or lets them go on.

        Raises:
            EngineAwayError: the engine does not answer.
            RefusedError: it says no.
        """
        try:
            self._call("pause" if frozen else "unpause", container)
        except RefusedError as error:
            if error.status not in {404, 409} and "not paused" not in error.text:
                raise

    def remove(self, container: str) -> None:
        """Removes a container, and ends it where it runs. Returns when it is gone.

        Raises:
            EngineAwayError: the engine does not answer.
            RefusedError: it says no.
        """
        try:
            self._call("remove_container", container, v=True, force=True)
        except RefusedError as error:
            if error.status not in {404, 409}:  # gone; somebody removes it
                raise

    def logs(self, container: str, since_s: int, *, follow: bool) -> OutputStream:
        """See OutputStream."""
        return OutputStream(self.path, container, since_s, follow=follow)

    # ---- calls

    def _call(self, name: str, *args: Any, **more: Any) -> Any:
        client = self._client
        if client is None:
            # Asks the engine for its version, so it can't be made while the engine is away.
            client = self._client = self._new_client(_CALL_TIMEOUT_S)
        try:
            return self._guarded(getattr(client, name), *args, **more)
        except EngineAwayError:
            self._client = None  # the engine that comes back may be another version
            raise

    def _new_client(self, timeout_s: float) -> Any:
        return self._guarded(
            self._docker.APIClient, base_url=f"unix://{self.path}", timeout=timeout_s, num_pools=16, version="auto"
        )

    def _guarded(self, call: Callable[..., Any], *args: Any, **more: Any) -> Any:
        try:
            return call(*args, **more)
        except self._docker.errors.APIError as error:
            text = error.explanation
            raise RefusedError(error.status_code or 0, str(text or error)) from error
        except self._away as error:
            raise EngineAwayError(str(error)) from error


def unix_s(text: str) -> float:
    """A time of the engine's, such as 2026-11-23T16:03:30.290464508Z, as Unix time; 0: none."""
    if text.startswith(_NO_TIME):
        return 0.0
    whole, _, fraction = text.rstrip("Z").partition(".")
    return calendar.timegm(time.strptime(whole, "%Y-%m-%dT%H:%M:%S")) + float(f"0.{fraction or 0}")


def _command(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm") as file:
            return file.read().strip()
    except OSError:
        return ""
