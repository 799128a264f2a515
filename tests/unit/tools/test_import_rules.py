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
    ("rooms", "adlro.kit.planted_1", "adlro.services.ingest"),
    ("rooms", "adlro.decide.planted_2", "adlro.services.orchestrator.clients"),
    ("rooms", "adlro.services.orchestrator.session.planted_21", "adlro.lab.learn"),
    ("rooms", "adlro.store.planted_3", "adlro.client"),
    ("rooms", "adlro.workload.planted_4", "adlro.sim.kernel"),
    ("rooms", "adlro.records.planted_5", "adlro.numeric"),
    ("services-independent", "adlro.services.decompose.outcomes.model_speeds", "adlro.services.ingest"),
    ("orchestrator-rooms", "adlro.services.orchestrator.ledger.planted_6", "adlro.services.orchestrator.session"),
    ("orchestrator-rooms", "adlro.services.orchestrator.deciding.planted_7", "adlro.services.orchestrator.explain"),
    (
        "session-rooms",
        "adlro.services.orchestrator.session.core.planted_22",
        "adlro.services.orchestrator.session.calls",
    ),
    ("core-without-surroundings", "adlro.services.orchestrator.session.core.planted_23", "asyncio"),
    ("core-without-surroundings", "adlro.services.orchestrator.session.core.planted_24", "redis"),
    ("core-without-surroundings", "adlro.services.orchestrator.session.core.planted_25", "grpc"),
    ("core-without-surroundings", "adlro.services.orchestrator.ledger.planted_26", "threading"),
    ("core-without-surroundings", "adlro.services.orchestrator.session.reconcile", "time"),
    ("core-without-surroundings", "adlro.services.orchestrator.session.holding", "random"),
    ("ingest-rooms", "adlro.services.ingest.units", "adlro.services.ingest.watch"),
    ("decompose-rooms", "adlro.services.decompose.hypervectors.planted_22", "adlro.services.decompose.outcomes"),
    ("decompose-rooms", "adlro.services.decompose.outcomes.planted_23", "adlro.services.decompose.runtimes.predictor"),
    ("decompose-rooms", "adlro.services.decompose.clusters.planted_24", "adlro.services.decompose.runtimes.drift"),
    ("decompose-rooms", "adlro.services.decompose.regression.planted_25", "adlro.services.decompose.outcomes"),
    ("decompose-hypervectors-arrays-only", "adlro.services.decompose.hypervectors.planted_26", "adlro.records.jobs"),
    ("simcluster-rooms", "adlro.services.simcluster.clock", "adlro.services.simcluster.driver"),
    ("local-rooms", "adlro.services.local.gpus", "adlro.services.local.driver"),
    ("clusterside-rooms", "adlro.clusterside.wake_ups", "adlro.clusterside.cluster_side"),
    ("no-circles", "adlro.kit.addresses", "adlro.kit.channel"),
    ("wire-at-the-edge", "adlro.services.orchestrator.session.planted_8", "grpc"),
    ("wire-at-the-edge", "adlro.services.ingest.units", "adlro.v1.job_pb2"),
    ("wire-at-the-edge", "adlro.cli.planted_9", "google.protobuf.message"),
    ("plain-records", "adlro.records.jobs", "numpy"),
    ("plain-records", "adlro.records.telemetry", "numpy"),
    ("plain-records", "adlro.records.matrices", "rich"),
    ("plain-records", "adlro.units", "rich"),
    ("arrays-only", "adlro.sim.planted_10", "redis"),
    ("arrays-only", "adlro.state.planted_11", "adlro.wire"),
    ("decide-arrays-only", "adlro.decide.policies.planted_12", "adlro.wire"),
    ("decide-arrays-only", "adlro.decide.planes.planted_13", "torch"),
    ("decide-without-time", "adlro.decide.policies.planted_14", "time"),
    ("decide-without-time", "adlro.decide.planted_15", "asyncio"),
    ("simulator-in-simulations-only", "adlro.services.orchestrator.ledger.planted_16", "adlro.sim.kernel"),
    ("simulator-in-simulations-only", "adlro.decide.policies.planted_17", "adlro.sim"),
    ("cli-through-the-client", "adlro.cli.planted_18", "redis"),
    ("scipy-in-capacity-only", "adlro.sim.planted_19", "scipy"),
    ("rooms", "adlro.attempt.records", "adlro.store"),
    ("attempt-rooms", "adlro.attempt.linux", "adlro.attempt.journal"),
    ("attempt-plain", "adlro.attempt.drivers", "adlro.placement"),
    ("containers-rooms", "adlro.attempt.containers.engine", "adlro.attempt.containers.keeper"),
    ("docker-in-engine-only", "adlro.attempt.records", "docker"),
    ("supervisor-alone", "adlro.attempt.program", "adlro.errors"),
    ("supervisor-alone", "adlro.attempt.cgroup", "structlog"),
    ("rooms", "adlro.hardware.planted_27", "adlro.devices"),
    ("devices-rooms", "adlro.devices.amd", "adlro.devices.watch"),
    ("devices-plain", "adlro.devices.machine", "adlro.placement"),
    ("devices-plain", "adlro.devices.finding", "grpc"),
    ("nvml-in-children-only", "adlro.devices.watch", "pynvml"),
    ("nvml-in-children-only", "adlro.devices.finding", "adlro.devices.nvidia"),
    ("judged-without-time", "adlro.devices.conditions", "time"),
    ("textual-in-the-screen-only", "adlro.cli.top.model", "textual"),
    ("web-rooms", "adlro.services.web.frames", "adlro.services.web.hub"),
    ("web-through-the-client", "adlro.services.web.views", "adlro.placement"),
    ("http-in-web-only", "adlro.cli.planted_28", "starlette"),
    ("page-state-without-surroundings", "adlro.services.web.hub", "asyncio"),
    ("notify-rooms", "adlro.services.notify.keeper", "adlro.services.notify.deliveries"),
    ("notify-through-the-client", "adlro.services.notify.watching", "adlro.store"),
    ("notify-judged-without-surroundings", "adlro.services.notify.conditions", "time"),
    ("webhooks-plain", "adlro.webhooks.posting", "adlro.client"),
    ("rooms", "adlro.webhooks.events", "adlro.services.web"),
    ("learning-in-learn-only", "adlro.services.orchestrator.deciding.planted_20", "gymnasium"),
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
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, folder / package, symlinks=True, ignore=ignored)
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
    if contract == "no-circles":  # told by the package in which the circle is
        assert f"No cycles are allowed in {module.rpartition('.')[0]}." in lines
        return
    # An external package is told by its first part.
    names = {imported, imported.partition(".")[0]}
    assert any(module in line and any(name in line for name in names) for line in lines), lines


def test_every_contract_is_tried() -> None:
    assert set(CONTRACTS) == {contract for contract, _, _ in PLANTED}
