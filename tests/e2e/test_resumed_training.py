"""The training of examples/resumable_training.py, stopped for other jobs: it goes on, and ends with the same loss."""

from __future__ import annotations

import asyncio
import importlib.util
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from adlro.clusterside.check.caller import ServiceCaller, Watch
from adlro.records.events import ClusterEvent, EventKind
from adlro.records.jobs import AttemptRef, ExpectedRuntime, JobState, Preemptible
from adlro.records.payloads import process_payload
from adlro.v1.payload_pb2 import LOG_STREAM_STDERR as STDERR
from adlro.wire import attempt_ref_to_proto
from tests.e2e.real_suite import RealSuite, start_real_suite
from tests.e2e.running_suite import wait_until
from tests.e2e.test_local_gangs import TWO_NODES, GangSuite, output, request_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="real programs are run on Linux alone"),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch"),
]

EXAMPLE = Path(__file__).parents[2] / "examples" / "resumable_training.py"
TRAINING = (sys.executable, "-m", "torch.distributed.run", str(EXAMPLE), "--steps", "60", "--step-s", "0.05")


@pytest.fixture
def nodes(tmp_path: Path, redis_url: str) -> Iterator[GangSuite]:
    made = GangSuite(tmp_path, redis_url)
    made.start()
    yield made
    made.service.stop()
    assert made.left() == {}


async def launch(
    caller: ServiceCaller,
    job_id: str,
    words: tuple[str, ...],
    gpu_ids: tuple[str, ...],
    attempt: int = 1,
    stops: str = "",
) -> None:
    payload = process_payload(words, stop_grace_s=1.0)
    request = request_of(job_id, payload, gpu_ids, caller.token, attempt, preemptible=Preemptible(grace_s=60.0))
    request.spec.memory_mib = 2048
    request.resumes = attempt > 1
    if stops:
        request.preempts.append(attempt_ref_to_proto(AttemptRef(stops, 1)))
    await caller.call("LaunchJob", request)


async def ended(suite: GangSuite, watch: Watch, job_id: str, kind: EventKind, attempt: int = 1) -> ClusterEvent:
    def is_end(event: ClusterEvent) -> bool:
        of_attempt = (event.job_id, event.attempt) == (job_id, attempt)
        return of_attempt and event.kind not in (EventKind.STARTED, EventKind.RUNNING)

    end = await watch.until(is_end, f"the end of attempt {attempt} of {job_id}")
    if end.kind is not kind:
        pytest.fail(f"{end.kind.name}: {end.message}\n{await output(suite, job_id, 0, STDERR)}")
    return end


@pytest.mark.timeout(600)
async def test_a_training_on_two_nodes_goes_on_from_its_checkpoint(nodes: GangSuite) -> None:
    async with nodes.caller() as caller, caller.watch_from_now() as watch:
        watch._patience_s = caller.patience_s = 240.0
        await launch(caller, "undisturbed", TRAINING, TWO_NODES)
        await ended(nodes, watch, "undisturbed", EventKind.FINISHED)
        whole = (await output(nodes, "undisturbed", 0)).splitlines()
        assert whole[0] == "begins at step 0"
        await launch(caller, "job-1", TRAINING, TWO_NODES)
        await watch.program_of("job-1")
        while "begins" not in await output(nodes, "job-1", 0):  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.05)
        await launch(caller, "job-2", ("true",), TWO_NODES[:1], stops="job-1")
        end = await ended(nodes, watch, "job-1", EventKind.PREEMPTED)
        assert end.message == "for job-2"
        stopped = (await output(nodes, "job-1", 0)).splitlines()
        await ended(nodes, watch, "job-2", EventKind.FINISHED)
        nodes.service.kill()
        await asyncio.to_thread(nodes.start)
    async with nodes.caller() as caller, caller.watch_from_now() as watch:
        watch._patience_s = caller.patience_s = 240.0
        await launch(caller, "job-1", TRAINING, TWO_NODES, attempt=2)
        await ended(nodes, watch, "job-1", EventKind.FINISHED, attempt=2)
    resumed = (await output(nodes, "job-1", 0)).splitlines()
    assert stopped[0] == "begins at step 0"
    assert stopped[1].startswith("stopped at step ")
    assert resumed == [f"begins at step {stopped[1].rpartition(' ')[2]}", whole[-1]]
    assert whole[-1].startswith("final loss ")


def trained(suite: RealSuite, job_id: str, attempt: int) -> list[str]:
    """What an attempt of the training says."""
    folder = suite.folder(job_id, attempt)
    if folder is None or not (folder / "stdout").exists():  # it is there once its supervisor is
        return []
    return (folder / "stdout").read_text().splitlines()


@pytest.mark.timeout(900)
def test_a_training_is_stopped_for_a_shorter_job_and_goes_on() -> None:
    """As its users see it: `adlro submit`, the policy srtf, and a cluster whose owner allows stops."""
    with tempfile.TemporaryDirectory(prefix="adlro-training-") as name:
        folder = Path(name)
        allowed = {"ADLRO_ORCHESTRATOR_PREEMPTION": "on", "ADLRO_ORCHESTRATOR_PREEMPTION_MIN_RUN_S": "1"}
        suite = start_real_suite(folder / "data", folder / "home", "--policy", "srtf", **allowed)
        try:
            _train_through(suite)
            suite.check_end(suite.running.end())
        finally:
            suite.end_all()


def _train_through(suite: RealSuite) -> None:
    def submit(*words: str) -> str:
        """Both GPUs of the node with two of this model."""
        ended = suite.command("submit", "--gpus", "2", "--gpu-model", "v100_sxm2", "--memory", "2G", *words)
        assert ended.returncode == 0, ended.stderr
        found = re.search(r"job-[0-9]+", ended.stdout)
        assert found is not None, ended.stdout
        return found[0]

    with suite.client(240.0) as client:
        long_options = ("--preemptible", "--restart", "2s", "--preempt-grace", "60s", "--runtime", "30m")
        training = submit(*long_options, "--", *TRAINING[:-1], "0.5")
        wait_until(lambda: trained(suite, training, 1), 240.0, "the training begins")
        # Not by a command: a busy machine may take longer to start one than the training has left.
        expected = ExpectedRuntime("v100_sxm2", 10.0)
        short = client.submit(
            command=["true"], gpu_count=2, gpu_models=("v100_sxm2",), memory_mib=256, expected_runtime=expected
        ).job_id
        for job in client.wait([training, short], timeout_s=400.0):
            assert job.state is JobState.SUCCEEDED, job
        job = client.get(training)
        # Last: what it takes would be expected of the others.
        undisturbed = submit("--runtime", "5m", "--", *TRAINING[:-1], "0")
        (whole,) = client.wait([undisturbed], timeout_s=240.0)
        assert whole.state is JobState.SUCCEEDED
    first, second = job.attempts
    assert (first.preempted, first.outcome) == (True, f"preempted: for {short}")
    assert (second.preempted, second.outcome) == (False, "succeeded")
    stopped, resumed = trained(suite, training, 1), trained(suite, training, 2)
    assert stopped[0] == "begins at step 0"
    assert resumed[0] == f"begins at step {stopped[1].removeprefix('stopped at step ')}"
    assert resumed[-1] == trained(suite, undisturbed, 1)[-1]
    assert resumed[-1].startswith("final loss ")
    # Nobody ran beside it: the shorter one began when the training had ended, and it went on afterwards.
    by_job = {run.attempt: run for run in job.attempts}
    assert by_job[2].start_s is not None
    assert by_job[1].end_s is not None
    assert by_job[1].end_s <= by_job[2].start_s
