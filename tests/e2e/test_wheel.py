"""What `pip install` of the built wheel puts into an empty environment: a typed client, the command, and little else.

Packages come from the index that pip is set to use.
"""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from adlro.kit.testing import ROOT
from tests.e2e.running_suite import start_suite

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

CLIENT = {
    "cloudpickle",
    "googleapis-common-protos",
    "grpcio",
    "grpcio-health-checking",
    "numpy",
    "protobuf",
    "rich",
    "structlog",
    "typer",
}
"""What the client itself names; each may bring small packages of its own."""


def run(*command: str | Path, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={"PATH": "/usr/bin:/bin", "COLUMNS": "200", **env},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment of its own with the wheel in it, and nothing else that was not asked for by the wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    sources = folder / "sources"
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout.split("\0")
    for name in filter(None, listed):  # as they are now, committed or not
        if (ROOT / name).exists():
            (sources / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, sources / name, follow_symlinks=False)
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True, timeout=120)
    pip: list[str | Path] = [folder / "venv/bin/python", "-m", "pip", "--disable-pip-version-check", "--quiet"]
    steps: tuple[list[str | Path], ...] = (
        ["wheel", "--no-deps", "--wheel-dir", folder / "dist", sources],
        ["install", "-c", ROOT / "constraints.txt", "--find-links", folder / "dist", "--no-compile", "adlro==0.1.0"],
    )
    for arguments in steps:
        done = subprocess.run([*pip, *arguments], capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr
    return folder / "venv"


def test_an_empty_environment_gets_the_client_the_command_and_little_else(environment: Path, tmp_path: Path) -> None:
    listed = run(environment / "bin/python", "-m", "pip", "list", "--format=freeze", cwd=tmp_path)
    packages = {line.partition("==")[0].lower() for line in listed.stdout.split()}
    assert packages >= CLIENT | {"adlro"}
    assert not packages & {
        "torch",
        "numba",
        "onnxruntime",
        "redis",
        "pydantic-settings",
        "protovalidate",
        "uvloop",
        "scipy",
    }
    assert len(packages) <= 24, packages
    check = run(environment / "bin/python", "-m", "pip", "check", cwd=tmp_path)
    assert check.returncode == 0, check.stdout


def test_site_packages_has_one_name_of_ours(environment: Path) -> None:
    (site,) = environment.glob("lib/python*/site-packages")
    assert (site / "adlro/py.typed").is_file()
    assert (site / "adlro/services/ingest/__main__.py").is_file()
    assert not (site / "services").exists()


def test_every_module_of_the_client_is_typed_and_imports_there(environment: Path, tmp_path: Path) -> None:
    code = "import adlro.client, sys; print(sorted(adlro.client.__all__))"
    done = run(environment / "bin/python", "-c", code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "JobSpec" in ast.literal_eval(done.stdout)


def test_the_command_asks_a_suite_that_runs_elsewhere(environment: Path, tmp_path: Path) -> None:
    adlro = environment / "bin/adlro"
    suite = start_suite(tmp_path / "data", "--port", "0")
    try:
        server = ("--server", suite.server)
        submitted = run(adlro, "submit", "--user", "ada", "--type", "ml", *server, cwd=tmp_path)
        assert submitted.returncode == 0, submitted.stderr
        for command in ("queue", "status", "gpus"):
            shown = run(adlro, command, *server, cwd=tmp_path)
            assert shown.returncode == 0, shown.stderr
        assert "v100_sxm2" in shown.stdout
    finally:
        suite.end()


@pytest.mark.parametrize("command", ["up", "demo"])
def test_what_needs_the_suite_says_how_to_get_it(environment: Path, tmp_path: Path, command: str) -> None:
    done = run(environment / "bin/adlro", command, cwd=tmp_path)
    assert done.returncode == 1
    assert "[suite]" in done.stderr
    assert "ADLRO_SERVER" in done.stderr
    assert "Traceback" not in done.stderr
