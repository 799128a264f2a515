"""A checkpoint is a program: one that never ends, or takes all memory, ends in a process of its own and not in this."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
import structlog
from onnx import TensorProto, helper, numpy_helper

from adlro.decide.planes import session as session_module
from adlro.decide.planes.probe import probe_planes
from adlro.decide.policies.dqn import Dqn
from adlro.decide.policies.hold_greedy import HoldGreedyFixed
from adlro.errors import InvalidInput, Unavailable
from adlro.kit.testing import spawn_service
from adlro.records.decisions import DecisionBasis
from adlro.services.orchestrator.deciding import checkpoint as checkpoint_module
from adlro.services.orchestrator.deciding import trial as trial_module
from adlro.services.orchestrator.deciding.checkpoint import Checkpoint
from adlro.services.orchestrator.deciding.guard import Guard
from adlro.services.orchestrator.deciding.trial import Trial
from tests.networks import SHORTEST, network, put

ENDLESS = network(SHORTEST, endless_but_for=())
PROBE_PAIRS = len(probe_planes().pairs)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_module, "CPU_LIMIT_S", 1)


@pytest.fixture
def compiled() -> None:
    checkpoint_module.warm()


def test_a_network_that_answers_passes() -> None:
    Trial().run(network(SHORTEST), "it")


@pytest.mark.each_python
@pytest.mark.slow
@pytest.mark.usefixtures("short")
def test_one_that_never_ends_is_refused_with_the_limit() -> None:
    with pytest.raises(InvalidInput, match="net: it did not answer 8 made-up decisions within 1 s of processor time"):
        Trial().run(ENDLESS, "net")


def test_one_that_takes_all_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_module, "MEMORY_LIMIT_MIB", 64)
    model = onnx.load_from_string(network(SHORTEST, endless_but_for=(PROBE_PAIRS,)))
    (q,) = (node for node in model.graph.node if node.output[0] == "q")
    q.output[0] = "without"
    large = [
        helper.make_node("Constant", [], ["size"], value=helper.make_tensor("s", TensorProto.INT64, [2], [2**26, 1])),
        helper.make_node("Expand", ["without", "size"], ["expanded"]),  # 2^26 x pairs figures of 4 bytes
        helper.make_node("ReduceMax", ["expanded"], ["q"], axes=[0], keepdims=0),
    ]
    at = list(model.graph.node).index(q) + 1
    nodes = [*model.graph.node[:at], *large, *model.graph.node[at:]]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    with pytest.raises(InvalidInput, match=r"net: (it can't answer: |the process that tried it out ended by)"):
        Trial().run(model.SerializeToString(), "net")


def test_nonsense_is_refused_with_what_onnx_runtime_says() -> None:
    with pytest.raises(InvalidInput, match="net: not an ONNX model that can be run: "):
        Trial().run(b"nonsense", "net")


def test_one_of_another_version_is_refused_with_what_differs() -> None:
    model = onnx.load_from_string(network(SHORTEST, planes="others"))
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 3
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.zeros(3, dtype=np.float32), "pair_weights"))
    with pytest.raises(InvalidInput, match="train it again"):
        Trial().run(model.SerializeToString(), "net")


def test_where_no_process_can_be_started_nothing_is_said_of_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", full)
    with pytest.raises(Unavailable, match="net can't be tried out: no process can be started: Resource temporarily"):
        Trial().run(network(SHORTEST), "net")


def test_a_trial_that_is_ended_ends_at_once() -> None:
    trial = Trial()
    problems: list[str] = []

    def run() -> None:
        try:
            trial.run(ENDLESS, "net")
        except InvalidInput as error:
            problems.append(error.message)

    thread = threading.Thread(target=run)
    thread.start()
    while trial._process is None:
        time.sleep(0.01)
    trial.end()
    thread.join(60)
    assert problems == ["net: the process that tried it out ended by SIGKILL"]


@pytest.mark.each_python
@pytest.mark.slow
@pytest.mark.usefixtures("short", "compiled")
async def test_one_that_never_ends_is_refused_and_keeps_no_later_one_waiting(tmp_path: Path) -> None:
    path = put(tmp_path / "net.onnx", network(SHORTEST))
    checkpoint = Checkpoint(path, structlog.get_logger())
    assert await checkpoint.look()
    before = checkpoint.policy
    put(path, ENDLESS)
    assert not await checkpoint.look()
    assert (checkpoint.policy, checkpoint.refused) == (before, 1)
    assert "within 1 s of processor time" in checkpoint.problem
    assert not await checkpoint.look()
    assert checkpoint.refused == 1  # once is enough
    put(path, network(SHORTEST, hold=1.0))
    assert await checkpoint.look()
    assert (checkpoint.policy.version != before.version, checkpoint.problem) == (True, "")
    checkpoint.close()


@pytest.mark.usefixtures("compiled")
async def test_one_that_never_ends_only_here_is_refused_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_module, "READ_LIMIT_S", 0.5)
    path = put(tmp_path / "net.onnx", network(SHORTEST, endless_but_for=(PROBE_PAIRS, 1000)))
    checkpoint = Checkpoint(path, structlog.get_logger())
    assert not await checkpoint.look()
    assert "took longer than 0.5 s" in checkpoint.problem
    monkeypatch.setattr(checkpoint_module, "READ_LIMIT_S", 30.0)
    put(path, network(SHORTEST))
    assert await checkpoint.look()
    checkpoint.close()


@pytest.mark.usefixtures("compiled")
async def test_one_that_passed_is_not_tried_again_and_the_shipped_one_never(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []
    monkeypatch.setattr(Trial, "run", lambda self, content, source: tried.append(source))
    shipped = Checkpoint(None, structlog.get_logger())
    assert await shipped.look()
    assert tried == []
    path = tmp_path / "net.onnx"
    checkpoint = Checkpoint(path, structlog.get_logger())
    for hold in (0.0, 1.0, 0.0, 1.0):
        put(path, network(SHORTEST, hold=hold))
        assert await checkpoint.look()
    assert len(tried) == 2
    shipped.close()
    checkpoint.close()


async def test_a_pipe_is_no_checkpoint(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "net.onnx")
    checkpoint = Checkpoint(tmp_path / "net.onnx", structlog.get_logger())
    async with asyncio.timeout(60):
        assert not await checkpoint.look()
    assert "there is no checkpoint" in checkpoint.problem
    checkpoint.close()


@pytest.mark.slow
def test_sigterm_while_a_checkpoint_is_tried_out_ends_the_orchestrator_in_time(tmp_path: Path) -> None:
    path = put(tmp_path / "net.onnx", ENDLESS)
    environment = {"ADLRO_ORCHESTRATOR_CHECKPOINT": str(path), "ADLRO_REDIS_URL": "redis://127.0.0.1:1/0"}
    with spawn_service("orchestrator", environment) as service:
        deadline = time.monotonic() + 60
        while not any(line["event"] == "a checkpoint is tried out" for line in service.log_lines()):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        service.terminate()
        assert service.wait(60) == 0


HANGS = """
import asyncio, sys
from pathlib import Path
import structlog
from adlro.services.orchestrator.deciding import checkpoint
from adlro.services.orchestrator.deciding.guard import Guard
from adlro.records.decisions import DecisionBasis
from adlro.decide.policies.dqn import Dqn

async def main():
    guard = Guard(0.05, structlog.get_logger())
    judgement = await guard.judge(Dqn(Path(sys.argv[1])), checkpoint._decision(), virtual=False)
    assert judgement.basis_of(0) is DecisionBasis.LATE, judgement.basis_of(0)

checkpoint.warm()
asyncio.run(main())
print("ends", flush=True)
"""


@pytest.mark.slow
def test_a_network_that_hangs_in_service_does_not_keep_the_process(tmp_path: Path) -> None:
    path = put(tmp_path / "net.onnx", network(SHORTEST, endless_but_for=(PROBE_PAIRS,)))
    command = [sys.executable, "-c", HANGS, str(path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "ends"), done.stderr


@pytest.mark.usefixtures("compiled")
async def test_a_network_that_hangs_is_ended_when_another_policy_takes_its_place(tmp_path: Path) -> None:
    path = put(tmp_path / "net.onnx", network(SHORTEST, endless_but_for=(PROBE_PAIRS,)))
    guard = Guard(0.05, structlog.get_logger())
    observation = checkpoint_module._decision()
    assert (await guard.judge(Dqn(path).load(), observation, virtual=False)).basis_of(0) is DecisionBasis.LATE
    assert session_module._ALL
    await guard.judge(HoldGreedyFixed(), observation, virtual=False)
    async with asyncio.timeout(60):
        while session_module._ALL:  # noqa: ASYNC110 (of another thread)
            await asyncio.sleep(0.01)
    guard.close()
