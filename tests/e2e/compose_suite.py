"""The suite in containers, as users start it: `docker compose` on the repository's compose.yaml, under a name and ports
of its own. What it is asked goes through the host's ports; what is done to containers goes through the engine.

A test that needs an engine where none can be had is skipped with the reason.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import docker
import pytest
from docker.errors import DockerException, ImageNotFound
from docker.models.containers import Container

from adlro.cli.ports import port_is_free
from adlro.client import ServiceName
from adlro.kit.testing import ROOT
from tests.e2e.running_suite import wait_until

UP_TIMEOUT_S = 120
DOWN_TIMEOUT_S = 60
BUILD_TIMEOUT_S = 900
BASE_IMAGES = ("python:3.11-slim", "redis:7-alpine")
# Of the host; below what the kernel takes for outgoing connections.
_PORTS = range(20_000, 32_000, 16)
# Images that tests build are not those of a user who runs the suite on this machine.
_TAG = "test"
# Replicas of ingest have the ports from this offset on.
_REPLICAS_OFFSET, _REPLICAS = 5, 9


def compose_command() -> list[str] | None:
    """Compose v2: the engine's plug-in, or a program of its own; None: there is neither."""
    own = shutil.which("docker-compose", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    for command in (["docker", "compose"], [own] if own else []):
        if command and shutil.which(command[0]):
            said = _ended(*command, "version", "--short")
            right = said.returncode == 0 and said.stdout.strip().lstrip("v").startswith(("2", "3", "4", "5"))
            # One that ends with code 0 whatever happened would have every test go on to ask what is not there.
            if right and _ended(*command, "-f", "/nonexistent", "config").returncode != 0:
                return command
    return None


def _ended(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)


def have_base_images() -> None:
    """Pulls what the images are made of; skips the test where that is neither there nor to be had."""
    for name in BASE_IMAGES:
        try:
            try:
                engine().images.get(name)
            except ImageNotFound:
                engine().images.pull(name)
        except DockerException as error:
            pytest.skip(f"the base image {name} is not here and can't be pulled ({str(error)[:200]})")


@functools.cache
def engine() -> docker.DockerClient:
    """The engine of this machine; skips the test where there is none."""
    try:
        client = docker.from_env()
        client.ping()
    except DockerException as error:
        pytest.skip(f"no container engine answers ({str(error)[:200]}); `make test-compose` says how to get one")
    if compose_command() is None:
        pytest.skip("there is no Docker Compose v2; `make test-compose` says how to get one")
    return client


def free_ports() -> int:
    """The first of sixteen free ports in a row."""
    start = (os.getpid() * 7) % len(_PORTS)
    base: int
    for base in (*_PORTS[start:], *_PORTS[:start]):
        if all(port_is_free("127.0.0.1", base + offset) for offset in range(16)):
            return base
    raise AssertionError("there are no sixteen free ports in a row")


@dataclass
class ComposeSuite:
    """A compose project.

    Attributes:
        settings: what .env would hold.
        files: more files of compose, laid over compose.yaml.
        project: its name.
        base_port: ingest's on the host; the other services are at the next ones.
    """

    settings: Mapping[str, str] = field(default_factory=dict)
    files: tuple[Path, ...] = ()
    project: str = field(default_factory=lambda: f"adlro-test-{uuid.uuid4().hex[:8]}")
    base_port: int = field(default_factory=free_ports)

    @property
    def server(self) -> str:
        """What clients on the host need."""
        return f"127.0.0.1:{self.base_port}"

    @property
    def status(self) -> dict[str, Any]:
        """As of a suite of processes: addresses by service."""
        return {
            "addresses": {
                "simcluster"
                if name is ServiceName.CLUSTER
                else str(name): f"127.0.0.1:{self.base_port + name.port_offset}"
                for name in ServiceName
            },
        }

    @property
    def text(self) -> str:
        """The end of what each container has logged, and how it is."""
        found = []
        for container in self.containers():
            state = {key: container.attrs["State"].get(key) for key in ("Status", "ExitCode", "OOMKilled", "StartedAt")}
            logged = container.logs(tail=40).decode("utf-8", "replace")
            found.append(f"--- {container.name}: {state}, restarts: {container.attrs['RestartCount']}\n{logged}")
        return "\n".join(found)

    @property
    def environment(self) -> dict[str, str]:
        """What compose is run with: nothing of ADLRO's from outside."""
        ours = ("ADLRO_", "COMPOSE_", "WORKLOAD_", "HOST_PORT", "IMAGE_", "REDIS_", "DEMO_")
        outside = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
        ports = {
            f"HOST_PORT_{name.upper()}": address.rpartition(":")[2]
            for name, address in self.status["addresses"].items()
        } | {"HOST_PORT_WEB": str(self.base_port + len(ServiceName))}
        first = self.base_port + _REPLICAS_OFFSET
        return {
            **outside,
            **ports,
            "HOST_PORTS_INGEST_REPLICAS": f"{first}-{first + _REPLICAS - 1}",
            "IMAGE_TAG": _TAG,
            "COMPOSE_ANSI": "never",
            **self.settings,
        }

    def run(
        self, *arguments: str, timeout_s: float = UP_TIMEOUT_S, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """A command of compose, to its end."""
        command = compose_command()
        assert command is not None
        files = [part for path in (ROOT / "compose.yaml", *self.files) for part in ("-f", str(path))]
        # A .env that lies in the repository is its user's, and not meant for tests.
        ended = subprocess.run(
            [*command, "-p", self.project, "--env-file", os.devnull, *files, *arguments],
            cwd=ROOT,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
        )
        if check:
            assert ended.returncode == 0, f"compose {' '.join(arguments)}: {ended.stdout}\n{ended.stderr}"
        return ended

    def build(self) -> float:
        """Builds the images; how long that took."""
        began_s = time.monotonic()
        self.run("build", "--quiet", timeout_s=BUILD_TIMEOUT_S)
        return time.monotonic() - began_s

    def up(self, *arguments: str) -> float:
        """Starts all that is not there yet, and returns when all are healthy; how long that took."""
        began_s = time.monotonic()
        ended = self.run("up", "--detach", "--wait", "--no-build", *arguments, check=False)
        assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}\n{self.text}"
        return time.monotonic() - began_s

    def down(self, *arguments: str) -> float:
        """Stops and removes the containers, not the volumes; how long that took."""
        began_s = time.monotonic()
        self.run("--profile", "*", "down", "--remove-orphans", *arguments, timeout_s=DOWN_TIMEOUT_S)
        return time.monotonic() - began_s

    def containers(self, service: str = "") -> list[Container]:
        """Of one service, or all, ended ones too; in the order of their numbers."""
        labels = [f"com.docker.compose.project={self.project}", "com.docker.compose.oneoff=False"]
        if service:
            labels.append(f"com.docker.compose.service={service}")
        found = engine().containers.list(all=True, filters={"label": labels})
        return sorted(found, key=lambda each: str(each.name))

    def kill(self, container: Container) -> None:
        """`kill -9` of its process, as when it crashes: the engine's own kill counts as a stop by hand."""
        container.reload()
        pid = int(container.attrs["State"]["Pid"])
        assert pid > 1
        try:
            os.kill(pid, signal.SIGKILL)
        except (PermissionError, ProcessLookupError):  # not root, or the engine is on a machine of its own
            engine().containers.run(
                container.image.id,
                ["python", "-c", f"import os; os.kill({pid}, 9)"],
                entrypoint=[],
                user="0:0",
                pid_mode="host",
                privileged=True,
                remove=True,
            )

    def wait_until_back(self, container: Container, restarts: int, timeout_s: float = 40.0) -> None:
        """Returns when the engine has started it again after more than so many restarts."""

        def back() -> bool:
            container.reload()
            return bool(container.attrs["RestartCount"] > restarts and container.attrs["State"]["Running"])

        wait_until(back, timeout_s, f"{container.name} to be back")

    def error_lines(self) -> list[str]:
        """What its services logged as an error."""
        return [
            f"{container.name}: {line}"
            for container in self.containers()
            for line in container.logs().decode("utf-8", "replace").splitlines()
            if '"level": "error"' in line or line.startswith("Traceback")
        ]


@contextlib.contextmanager
def running(suite: ComposeSuite) -> Iterator[ComposeSuite]:
    """Leaves nothing behind: containers, networks and volumes of the project are removed at the end."""
    try:
        yield suite
    finally:
        suite.down("--volumes", "--timeout", "5")
