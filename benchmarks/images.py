"""What the images of compose.yaml weigh, how long a container of each takes until it is healthy, what they may do.

    python -m benchmarks.images            builds them, starts the suite under a name of its own, removes it again
    python -m benchmarks.images --no-build the images as they are

Needs a container engine with Docker Compose v2. Sizes are those that the engine tells: all layers of an image, the base
image's included. `pip check` looks from outside into the finished image, which has no pip of its own.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import resource
import subprocess
import sys
import tarfile
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import pip

ROOT = Path(__file__).resolve().parents[1]
SERVICES = ("ingest", "decompose", "orchestrator", "simcluster", "web", "gateway", "client")
LIMITS_MB = {"ingest": 300, "decompose": 300, "orchestrator": 600, "simcluster": 600, "web": 300}

# Names of files that have no place in an image, and what gives a key or a token away.
_SECRET_NAMES = re.compile(r"(^|/)(\.env|\.git|\.netrc|\.pypirc|id_[a-z0-9]+|users|[^/]+\.(key|token|password))$")
_SECRET_TEXT = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----\s+[A-Za-z0-9+/]{20}|sha256:[0-9a-f]{64}$", re.MULTILINE)
_READ_BYTES = 1_000_000


@dataclass(frozen=True, slots=True)
class Image:
    """An image as it was found.

    Attributes:
        name: of the service.
        size_mb: all its layers, in 10^6 bytes, as `docker images` tells.
        user: whom it runs as.
        pip_check: what pip says of its packages.
        healthy_s: from the start of a container to the first answer that it serves; None: it has no such check.
    """

    name: str
    size_mb: float
    user: str
    pip_check: str
    healthy_s: float | None = None


def size_mb(engine: docker.DockerClient, tag: str) -> float:
    """In 10^6 bytes."""
    return float(engine.images.get(tag).attrs["Size"]) / 1e6


def pip_check(engine: docker.DockerClient, tag: str) -> str:
    """What `pip check` says of the packages in an image, by this interpreter's pip."""
    folder = str(Path(pip.__file__).parents[1] / "pip")
    try:
        said: bytes = engine.containers.run(
            tag,
            ["-m", "pip", "--disable-pip-version-check", "check"],
            entrypoint=["python"],
            environment={"PYTHONPATH": "/pip"},
            volumes={folder: {"bind": "/pip/pip", "mode": "ro"}},
            network_mode="none",
            remove=True,
        )
    except docker.errors.ContainerError as error:
        return str(error.stderr.decode("utf-8", "replace")).strip() or f"exit code {error.exit_status}"
    return said.decode().strip()


def own_files(engine: docker.DockerClient, tag: str, base: str) -> Iterator[tuple[str, bytes]]:
    """Every file of every layer above the base image, also one that a later layer removes.

    Yields:
        Its path, and its first bytes where it is below /app: the rest are packages as their index has them.
    """
    base_layers = len(engine.images.get(base).attrs["RootFS"]["Layers"])
    with tempfile.TemporaryFile() as saved:
        for chunk in engine.images.get(tag).save():
            saved.write(chunk)
        saved.seek(0)
        with tarfile.open(fileobj=saved) as image:
            manifest = json.load(_member(image, "manifest.json"))
            for layer in manifest[0]["Layers"][base_layers:]:
                with tarfile.open(fileobj=_member(image, layer)) as files:
                    for entry in files:
                        ours = entry.isfile() and entry.name.startswith("app/")
                        content = files.extractfile(entry) if ours else None
                        yield entry.name, content.read(_READ_BYTES) if content is not None else b""


def _member(archive: tarfile.TarFile, name: str) -> Any:
    found = archive.extractfile(name)
    assert found is not None, f"{name} is no file"
    return found


def secrets_in(engine: docker.DockerClient, tag: str, base: str = "python:3.11-slim") -> list[str]:
    """What looks like a secret in an image's layers, its environment or its history."""
    image = engine.images.get(tag)
    found = [
        path
        for path, content in own_files(engine, tag, base)
        if _SECRET_NAMES.search(path) or _SECRET_TEXT.search(content)
    ]
    told = [*image.attrs["Config"].get("Env", []), *(each["CreatedBy"] for each in image.history())]
    return found + [
        text for text in told if re.search(r"(?i)(password|secret|token)[^ ]*=[^ /]|://[^/ ]*:[^/ ]*@", text)
    ]


def seconds_to_healthy(state: Mapping[str, Any]) -> float | None:
    """From a container's start to the end of its first good health check."""
    ends = [check["End"] for check in state.get("Health", {}).get("Log", []) if check["ExitCode"] == 0]
    return (_time(min(ends)) - _time(state["StartedAt"])).total_seconds() if ends else None


def _time(text: str) -> datetime.datetime:
    """The engine's times have nanoseconds, in two forms."""
    whole, fraction = re.match(r"([\d-]+)[T ]([\d:]+)", text), re.search(r"\.(\d{1,6})", text)
    assert whole is not None
    stamp = datetime.datetime.fromisoformat(f"{whole[1]}T{whole[2]}+00:00")
    return stamp.replace(microsecond=int(fraction[1].ljust(6, "0")) if fraction else 0)


def health_check_cpu_s(*, by_hand: bool, times: int = 10) -> float:
    """CPU that one health check takes on this machine: deploy/healthcheck.py's way, or with grpc imported.

    Nothing listens there, so that it is the start that is measured.
    """
    code = "from grpc_health.v1 import health_pb2_grpc"
    way = ["-I", "-S", str(ROOT / "deploy" / "healthcheck.py"), "127.0.0.1:1", "ingest"] if by_hand else ["-c", code]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    for _ in range(times):
        subprocess.run([sys.executable, *way], check=False, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / times


def measure(*, build: bool) -> list[Image]:
    """Builds (if asked to), starts the suite, looks at it, and removes it."""
    engine = docker.from_env()
    project = f"adlro-images-{uuid.uuid4().hex[:8]}"
    if build:
        _compose(project, "build", "--quiet")
    try:
        _compose(project, "up", "--detach", "--wait", "--no-build")
        containers = engine.containers.list(filters={"label": f"com.docker.compose.project={project}"})
        states = {each.labels["com.docker.compose.service"]: each.attrs["State"] for each in containers}
    finally:
        _compose(project, "down", "--volumes", "--timeout", "12")
    found = []
    for name in SERVICES:
        tag = f"{os.environ.get('IMAGE_PREFIX', 'adlro')}-{name}:{os.environ.get('IMAGE_TAG', 'latest')}"
        has_packages = name != "gateway"
        found.append(
            Image(
                name=name,
                size_mb=size_mb(engine, tag),
                user=engine.images.get(tag).attrs["Config"]["User"],
                pip_check=pip_check(engine, tag) if has_packages else "no packages",
                healthy_s=seconds_to_healthy(states[name]) if name in states else None,
            )
        )
    return found


def _compose(project: str, *arguments: str) -> None:
    subprocess.run(["docker", "compose", "-p", project, *arguments], cwd=ROOT, check=True, stdout=sys.stderr)


def table(images: Sequence[Image]) -> str:
    """In Markdown."""
    lines = [
        "| image | size, MB | at most | start to healthy, s | user | pip check |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for each in images:
        healthy = "" if each.healthy_s is None else f"{each.healthy_s:.1f}"
        limit = LIMITS_MB.get(each.name, "")
        lines.append(f"| {each.name} | {each.size_mb:.0f} | {limit} | {healthy} | {each.user} | {each.pip_check} |")
    return "\n".join(lines)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Sizes and start times of the images.")
    parser.add_argument("--no-build", action="store_true", help="the images as they are")
    arguments = parser.parse_args()
    images = measure(build=not arguments.no_build)
    print(table(images))
    quick_s, slow_s = health_check_cpu_s(by_hand=True), health_check_cpu_s(by_hand=False)
    print(f"\nCPU of a health check: {quick_s * 1e3:.0f} ms; with grpc imported {slow_s * 1e3:.0f} ms.")
    print(f"\n{platform.platform()}, {os.cpu_count()} cores; health is looked at every 5 s.")


if __name__ == "__main__":
    main()
