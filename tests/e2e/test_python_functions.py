"""Python functions as jobs of `adlro up --cluster local`: results, exceptions, and what becomes of lost calls."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adlro
from adlro.client import AsyncClient, Client, Credentials
from adlro.client.executor import Executor
from adlro.client.functions.outcomes import JobFailed
from adlro.errors import Conflict, DeadlineExceeded, InvalidInput
from adlro.kit.testing import ROOT
from adlro.records.jobs import JobState
from tests.e2e.running_suite import RunningSuite, environment, start_suite, wait_until
from tests.unit.local.bench import users_map

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="real programs are run on Linux alone"),
]
SMALL: dict[str, Any] = {"memory": "64MiB", "cores": 1}
LONG_S = 120.0


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="adlro-functions-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(scope="module")
def suite(folder: Path) -> Iterator[RunningSuite]:
    mapped = users_map(folder)
    options = ("--users-map", mapped) if mapped else ()
    options = ("--cluster", "local", "--fake-gpus", "v100_sxm2:2,rtx_2080_ti:2", "--port", "0", *options)
    running = start_suite(folder / "data", *options, XDG_STATE_HOME=str(folder / "home"))
    try:
        yield running
    finally:
        assert running.end() == 0, running.text


def credentials(suite: RunningSuite) -> Credentials:
    return Credentials(token=(suite.data_dir / "secrets/operator.token").read_text().strip())


@pytest.fixture
def client(suite: RunningSuite, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "home"))
    with Client(suite.server, credentials=credentials(suite), patience_s=60.0) as opened:
        yield opened


def left(folder: Path) -> list[Path]:
    """Folders of calls whose results nobody has read."""
    return sorted((folder / "home" / "adlro-functions").glob("*"))


def test_a_result_comes_back_and_its_output_is_in_the_log(client: Client, folder: Path) -> None:
    before = left(folder)

    def train(rate: float, *, epochs: int) -> dict[str, Any]:
        sys.stdout.write(f"training at {rate}\n")
        names = ("ADLRO_JOB_ID", "ADLRO_GPU_IDS", "CUDA_VISIBLE_DEVICES")
        return {"loss": rate / epochs, "uid": os.getuid(), **{name: os.environ[name] for name in names}}

    future = client.submit_function(
        train, 3.0, kwargs={"epochs": 2}, gpus=2, type="ml", time_limit="1h", labels={"team": "vision"}, **SMALL
    )
    result = future.result(LONG_S)
    assert (result["loss"], result["uid"], result["ADLRO_JOB_ID"]) == (1.5, os.getuid(), future.job_id)
    assert len(result["ADLRO_GPU_IDS"].split(",")) == 2
    assert result["CUDA_VISIBLE_DEVICES"] == ""  # pretended GPUs hide the machine's own
    log = b"".join(chunk.data for chunk in client.logs(future.job_id))
    assert log == b"training at 3.0\n"
    job = future.job()
    assert (job.state, job.spec.name, job.spec.labels["team"]) == (JobState.SUCCEEDED, "train", "vision")
    assert left(folder) == before


@pytest.mark.parametrize("add", [lambda x: x + 1, int, np.negative], ids=["lambda", "builtin", "ufunc"])
def test_what_can_be_called_can_be_shipped(client: Client, add: Callable[[Any], Any]) -> None:
    assert client.submit_function(add, 41, **SMALL).result(LONG_S) == add(41)


def test_an_exception_comes_back_with_its_traceback_and_is_in_the_log(client: Client) -> None:
    def diverges() -> None:
        raise FloatingPointError("the loss is nan")

    future = client.submit_function(diverges, **SMALL)
    error = future.exception(LONG_S)
    assert type(error) is FloatingPointError
    assert "in diverges" in "".join(traceback.format_exception(error))
    assert b"FloatingPointError: the loss is nan" in b"".join(
        chunk.data for chunk in client.logs(future.job_id, "stderr")
    )
    assert future.job().state is JobState.FAILED


def test_a_running_function_is_cancelled_by_its_future(client: Client) -> None:
    future = client.submit_function(time.sleep, 600, **SMALL)
    wait_until(future.running, LONG_S, "the function runs")
    assert future.cancel()
    assert future.cancelled()
    assert future.cancel()
    with pytest.raises(futures.CancelledError):
        future.result()
    (job,) = client.wait([future.job_id], timeout_s=LONG_S)
    assert job.state is JobState.CANCELLED


def test_a_function_that_somebody_else_cancels_is_cancelled(client: Client) -> None:
    future = client.submit_function(time.sleep, 600, **SMALL)
    client.cancel(future.job_id)
    with pytest.raises(futures.CancelledError):
        future.result(LONG_S)
    assert not client.submit_function(int, "3", **SMALL).cancelled()
    done = client.submit_function(int, "3", **SMALL)
    assert done.result(LONG_S) == 3
    assert not done.cancel()


def test_a_killed_function_is_told_with_the_end_of_its_log(client: Client) -> None:
    def dies() -> None:
        sys.stderr.write("the last words\n")
        sys.stderr.flush()
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(JobFailed) as caught:
        client.submit_function(dies, **SMALL).result(LONG_S)
    assert "without a result: killed by SIGKILL" in caught.value.message
    assert caught.value.message.endswith("\n  the last words")


def test_a_function_beyond_its_time_limit_is_told(client: Client) -> None:
    with pytest.raises(JobFailed, match=r"its time limit of 1\.5 s was reached"):
        client.submit_function(time.sleep, 600, time_limit=1.5, stop_grace=0.5, **SMALL).result(LONG_S)


def test_a_large_result_comes_back(client: Client, folder: Path) -> None:
    before = left(folder)
    future = client.submit_function(np.arange, 6_500_000, memory="1GiB")
    found = future.result(LONG_S)
    assert (found.nbytes, str(found.dtype), int(found[-1])) == (52_000_000, "int64", 6_499_999)
    assert left(folder) == before


def test_large_arguments_travel(client: Client) -> None:
    data = np.ones(2_000_000)
    assert client.submit_function(lambda: float(data.sum()), memory="1GiB").result(LONG_S) == 2_000_000.0


def test_an_executor_maps_as_those_of_concurrent_futures_do(client: Client) -> None:
    scale = 3
    with Executor(client, options={"gpus": 1}, **SMALL) as executor:
        squares = list(executor.map(lambda x, y: scale * x + y, range(6), range(10, 16), timeout=LONG_S))
        first, second = executor.submit(int, "1"), executor.submit(int, "x")
        done, not_done = futures.wait([first, second], timeout=LONG_S)
        assert (len(done), len(not_done), first.result()) == (2, 0, 1)
        with pytest.raises(ValueError, match="invalid literal"):
            second.result()
        assert [each.result() for each in futures.as_completed([executor.submit(abs, -4)], timeout=LONG_S)] == [4]
    assert squares == [10, 14, 18, 22, 26, 30]
    with pytest.raises(RuntimeError, match="shut down"):
        executor.submit(int, "1")
    with pytest.raises(InvalidInput, match="gpu: JobSpec has no such field; do you mean gpus"):
        Executor(client, gpu=2)


def test_an_executor_cancels_what_is_left(client: Client) -> None:
    executor = Executor(client, **SMALL)
    sleeps = [executor.submit(time.sleep, 600) for _ in range(6)]
    executor.shutdown(cancel_futures=True)
    assert all(each.cancelled() for each in sleeps)


def test_callbacks_are_called(client: Client) -> None:
    called = threading.Event()
    client.submit_function(int, "7", **SMALL).add_done_callback(lambda future: called.set())
    assert called.wait(LONG_S)


def test_another_process_gets_the_result(client: Client, suite: RunningSuite, folder: Path) -> None:
    script = (
        "import adlro, os, sys\n"
        "def work(x):\n"
        "    import time; time.sleep(1); return [x, 'done']\n"
        "future = adlro.submit(work, 5, options={'memory': '64MiB'})\n"
        "print(future.job_id)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script],
        env=environment(ADLRO_SERVER=suite.server, XDG_STATE_HOME=str(folder / "home")),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=LONG_S,
    )
    job_id = ended.stdout.strip()
    again = client.future_of(job_id)
    assert client.future_of(job_id) is again
    assert again.result(LONG_S) == client.function_result(job_id, LONG_S) == [5, "done"]
    del again
    with pytest.raises(JobFailed, match="the result was read before"):
        client.function_result(job_id, LONG_S)


def test_a_closed_client_says_how_to_get_the_result(client: Client, suite: RunningSuite) -> None:
    gate = Path(tempfile.mkdtemp()) / "gate"

    def waits(path: str) -> str:
        while not os.path.exists(path):
            time.sleep(0.05)
        return "through"

    with Client(suite.server, credentials=credentials(suite)) as other:
        future = other.submit_function(waits, str(gate), **SMALL)
        with pytest.raises(TimeoutError):
            future.result(timeout=0.2)
    with pytest.raises(Conflict, match=rf"function_result\('{future.job_id}'\) waits for it"):
        future.result(LONG_S)
    gate.touch()
    assert client.function_result(future.job_id, LONG_S) == "through"


def test_a_lost_attempt_runs_again(client: Client, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    marks = tmp_path / "marks"

    def counts(path: str) -> int:
        with open(path, "a") as file:
            file.write(f"{os.getppid()}\n")
        with open(path) as file:
            starts = len(file.readlines())
        if starts == 1:
            time.sleep(600)
        return starts

    future = client.submit_function(counts, str(marks), **SMALL)
    wait_until(lambda: marks.exists() and marks.read_text().endswith("\n"), LONG_S, "the function runs")
    os.kill(int(marks.read_text()), signal.SIGKILL)  # its supervisor: the node does not know how it ended
    assert future.result(LONG_S) == 2
    assert future.job().attempt_count == 2


def test_a_result_comes_back_while_services_are_killed(client: Client, suite: RunningSuite) -> None:
    def rests() -> str:
        time.sleep(3)
        return "there"

    future = client.submit_function(rests, **SMALL)
    wait_until(future.running, LONG_S, "the function runs")
    for service in ("ingest", "orchestrator", "local"):
        os.kill(suite.pids[service], signal.SIGKILL)
    assert future.result(LONG_S) == "there"


def test_many_threads_share_a_client(client: Client) -> None:
    def one(number: int) -> int:
        return client.submit_function(lambda: number * number, **SMALL).result(LONG_S)

    with futures.ThreadPoolExecutor(8) as threads:
        assert list(threads.map(one, range(24))) == [number * number for number in range(24)]


async def test_the_asyncio_client_does_the_same(suite: RunningSuite, folder: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "home"))
    async with AsyncClient(suite.server, credentials=credentials(suite)) as client:
        calls = [await client.submit_function(lambda x: x * x, number, **SMALL) for number in range(3)]
        assert await asyncio.gather(*calls) == [0, 1, 4]
        failing = await client.submit_function(int, "x", **SMALL)
        with pytest.raises(ValueError, match="invalid literal"):
            await failing.result(LONG_S)
        sleeping = await client.submit_function(time.sleep, 600, **SMALL)
        with pytest.raises(DeadlineExceeded):
            await sleeping.result(0.2)
        assert await sleeping.cancel()
        with pytest.raises(futures.CancelledError):
            await sleeping
        assert await client.function_result((await client.submit_function(int, "8", **SMALL)).job_id, LONG_S) == 8


def test_a_refused_job_leaves_no_files(client: Client, folder: Path) -> None:
    before = left(folder)
    with pytest.raises(InvalidInput, match="cpu_cores"):
        client.submit_function(int, "1", cores=4000)
    with pytest.raises(InvalidInput, match=r"^lr: .*belongs into kwargs=\{'lr': \.\.\.\}"):
        client.submit_function(int, "1", lr=3)
    with pytest.raises(InvalidInput, match="priority"):
        adlro.submit(int, "1", options={"priority": 7}, client=client)
    assert left(folder) == before
