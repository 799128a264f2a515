"""The import rules bite: in a copy of the tree, each planted import breaks the contract that forbids it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

# Contract, module in which to plant, what it imports there.
PLANTED = [
    ("services-independent", "services.decompose.planted_1", "services.ingest"),
    ("adlro-below-services", "adlro.planted_2", "services.ingest"),
    ("wire-at-the-edge", "services.orchestrator.planted_3", "grpc"),
    ("wire-at-the-edge", "services.ingest.planted_4", "adlro.v1.job_pb2"),
    ("wire-at-the-edge", "adlro.cli.planted_5", "google.protobuf.message"),
    ("plain-records", "adlro.jobs", "numpy"),
    ("plain-records", "adlro.telemetry", "numpy"),
    ("sim-arrays-only", "adlro.sim.planted_6", "redis"),
    ("sim-arrays-only", "adlro.sim.planted_7", "adlro.wire"),
    ("policies-arrays-only", "services.orchestrator.policies.planted_8", "services.orchestrator.clients"),
    ("planes-arrays-only", "services.orchestrator.planes.planted_12", "torch"),
    ("cli-through-the-client", "adlro.cli.planted_9", "redis"),
    ("scipy-in-capacity-only", "adlro.sim.planted_10", "scipy"),
    ("learning-in-learn-only", "services.orchestrator.planted_11", "gymnasium"),
]
CONTRACTS = {
    contract["id"]: contract["name"]
    for contract in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
}


def lint_imports(tree: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(Path(sys.executable).parent / "lint-imports"), "--no-logo", "--no-cache"],
        cwd=tree,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tree")
    for package in ("adlro", "services"):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "tools").mkdir()
    shutil.copy(ROOT / "tools" / "import_contracts.py", folder / "tools")
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


@pytest.fixture(scope="module")
def complaints(tree: Path) -> dict[str, str]:
    """What is said under each contract's name, with everything planted."""
    before = lint_imports(tree)
    assert before.returncode == 0, before.stdout + before.stderr
    for _, module, imported in PLANTED:
        path = tree.joinpath(*module.split(".")).with_suffix(".py")
        path.write_text((path.read_text() if path.exists() else "") + f"\nimport {imported}\n")
    after = lint_imports(tree)
    assert after.returncode == 1
    details = after.stdout.partition("\nBroken contracts\n")[2]
    assert details, after.stdout
    parts = re.split(rf"^({'|'.join(map(re.escape, CONTRACTS.values()))})$", details, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize(("contract", "module", "imported"), PLANTED)
def test_a_planted_import_breaks_its_contract(
    complaints: dict[str, str], contract: str, module: str, imported: str
) -> None:
    lines = complaints[CONTRACTS[contract]].splitlines()
    # An external package is told by its first part.
    names = {imported, imported.partition(".")[0]}
    assert any(module in line and any(name in line for name in names) for line in lines), lines


def test_every_contract_is_tried() -> None:
    assert set(CONTRACTS) == {contract for contract, _, _ in PLANTED}
