"""The import rules bite: in a copy of the tree, each planted import breaks the contract that forbids it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

# Contract, module below the root, the import to plant there.
PLANTED = [
    ("services-independent", "services/decompose/planted.py", "import services.ingest"),
    ("adlro-below-services", "adlro/planted.py", "import services.ingest"),
    ("wire-at-the-edge", "services/orchestrator/planted.py", "import grpc"),
    ("wire-at-the-edge", "services/ingest/planted.py", "from adlro.v1 import job_pb2"),
    ("wire-at-the-edge", "adlro/cli/planted.py", "import google.protobuf.message"),
    ("plain-records", "adlro/jobs.py", "import numpy"),
    ("sim-arrays-only", "adlro/sim/planted.py", "import redis"),
    ("sim-arrays-only", "adlro/sim/planted.py", "import adlro.wire"),
    ("policies-arrays-only", "services/orchestrator/policies/planted.py", "import services.orchestrator.clients"),
    ("cli-through-the-client", "adlro/cli/planted.py", "import redis"),
]


def lint_imports(tree: Path, contract: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(Path(sys.executable).parent / "lint-imports"), "--no-logo", "--no-cache", "--contract", contract],
        cwd=tree,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for package in ("adlro", "services"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "tools" / "import_contracts.py", tmp_path / "tools")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


@pytest.mark.parametrize(("contract", "file", "planted"), PLANTED)
def test_planted_import_breaks_its_contract(tree: Path, contract: str, file: str, planted: str) -> None:
    before = lint_imports(tree, contract)
    assert before.returncode == 0, before.stdout + before.stderr

    path = tree / file
    path.write_text((path.read_text() if path.exists() else "") + f"\n{planted}\n")
    after = lint_imports(tree, contract)

    assert after.returncode == 1
    assert re.search(r"BROKEN", after.stdout), after.stdout
    assert Path(file).stem in after.stdout


def test_every_contract_is_tried() -> None:
    named = set(re.findall(r'^id = "([^"]+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE))
    assert named == {contract for contract, _, _ in PLANTED}
