"""A cluster adapter of one's own: each job is a program on this machine that sleeps for the job's declared runtime.

    ADLRO_CLUSTER_LISTEN=127.0.0.1:7704 python examples/own_cluster.py
    python -m adlro.clusterside.check 127.0.0.1:7704

`--help` lists its settings. It needs the store of the suite (ADLRO_REDIS_URL), and the orchestrator is pointed to it
with ADLRO_ORCHESTRATOR_CLUSTER_ADDRESS. What a cluster has to refuse, to remember and to tell is ADLRO's
(adlro/clusterside): here stands only how a program is started, watched and ended. The GPUs are made up; yours will ask
`nvidia-smi`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from adlro.clusterside.attempts import Attempt
from adlro.clusterside.real_driver import RealDriver
from adlro.clusterside.serve import serve_cluster
from adlro.errors import InvalidInput
from adlro.records.cluster import Cluster, Gpu, Node
from adlro.records.events import Capabilities, EventKind

GPUS = 4
LOOK_S = 0.02
APPEARS_WITHIN_S = 5.0
# It leaves its process id and its exit code in a folder, where they are found however often this adapter is restarted.
PROGRAM = """
import os, sys, time
def leave(name, text):
    with open(name + ".new", "w") as file:
        file.write(text)
    os.rename(name + ".new", name)
os.chdir(sys.argv[1])
leave("pid", str(os.getpid()))
time.sleep(float(sys.argv[2]))
leave("code", "0")
"""


class OwnCluster(RealDriver):
    """Runs each job as a program of this machine. One that was stopped for another job sleeps for the rest.

    Args:
        folder: where programs leave their process ids and exit codes.
    """

    capabilities = Capabilities(stop=True, preemption=True)

    def __init__(self, folder: Path) -> None:
        gpus = tuple(Gpu(f"here/{number}", "v100_sxm2", 16_160) for number in range(GPUS))
        super().__init__(Cluster("own", (Node("here", 8 * GPUS, 65_536 * GPUS, gpus),)))
        self._folder = folder

    async def start(self, attempt: Attempt) -> None:
        """Starts a program that sleeps for what is left of the job's declared runtime."""
        assert attempt.spec is not None
        declared = attempt.spec.expected_runtime
        if declared is None:
            raise InvalidInput("this cluster runs jobs that declare a runtime", field="job.expected_runtime")
        folder = self._folder_of(attempt)
        folder.mkdir(parents=True, exist_ok=True)
        self.started(attempt)
        rest_s = attempt.remaining_ratio * declared.runtime_s
        command = [sys.executable, "-S", "-c", PROGRAM, str(folder), str(rest_s)]
        none = subprocess.DEVNULL
        await asyncio.to_thread(
            lambda: subprocess.Popen(command, stdin=none, stdout=none, stderr=none, start_new_session=True)
        )
        while not (folder / "pid").exists():  # noqa: ASYNC110 - another process makes it
            await asyncio.sleep(LOOK_S)
        self.runs(attempt)
        self.spawn(self._watch(attempt), f"watch {attempt.job_id}")

    async def resume(self, attempt: Attempt) -> bool:
        """Finds a program again that was started before a restart of this adapter."""
        folder = self._folder_of(attempt)
        for _ in range(round(APPEARS_WITHIN_S / LOOK_S)):
            # A program that was only just started when this adapter died leaves its process id a little later.
            if (folder / "pid").exists() or not folder.exists():
                break
            await asyncio.sleep(LOOK_S)
        if not (folder / "pid").exists():
            return False
        self.runs(attempt)
        self.spawn(self._watch(attempt), f"watch {attempt.job_id}")
        return True

    async def end(self, attempt: Attempt) -> None:
        """Ends the program, and whatever it has started. Yours may send SIGTERM, and wait `attempt.grace_s`."""
        pid = self._pid(attempt)
        if is_alive(pid):
            os.killpg(pid, signal.SIGKILL)

    async def _watch(self, attempt: Attempt) -> None:
        """Tells how the program ended."""
        code, pid = self._folder_of(attempt) / "code", self._pid(attempt)
        while is_alive(pid):  # noqa: ASYNC110 - of another process nobody is told
            await asyncio.sleep(LOOK_S)
        if code.exists() and code.read_text() == "0":
            self.ended(attempt, EventKind.FINISHED)
        else:
            self.ended(attempt, EventKind.FAILED, "its program ended with an error")

    def _pid(self, attempt: Attempt) -> int:
        return int((self._folder_of(attempt) / "pid").read_text())

    def _folder_of(self, attempt: Attempt) -> Path:
        return self._folder / f"{attempt.job_id}.{attempt.attempt}"


def is_alive(pid: int) -> bool:
    """Whether a program runs, as a child of this process or of one before."""
    try:
        return os.waitpid(pid, os.WNOHANG) == (0, 0)
    except ChildProcessError:
        pass
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    serve_cluster(lambda: OwnCluster(Path(os.environ.get("OWN_CLUSTER_FOLDER") or tempfile.mkdtemp("own-cluster"))))
