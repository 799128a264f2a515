"""A launch that stops others: all of it or nothing, never two on a GPU, and so after a restart at any point."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from adlro.clusterside.attempts import Attempt
from adlro.clusterside.cluster_side import ClusterSide
from adlro.clusterside.journal import Journal
from adlro.clusterside.real_driver import RealDriver
from adlro.clusterside.record import _from_bytes, _to_bytes
from adlro.clusterside.timers import LoopTimers
from adlro.errors import Conflict, Unsupported
from adlro.placement import Placement
from adlro.records.cluster import Cluster, Gpu, Node
from adlro.records.events import Capabilities, EventKind
from adlro.records.jobs import AttemptRef, JobSpec, JobType, Preemptible
from adlro.records.payloads import process_payload
from tests.unit.clusterside.memory_record import MemoryRecord, kept_of

NODE_CORES = 8


def node(name: str, gpus: int = 2) -> Node:
    return Node(name, NODE_CORES, 65_536, tuple(Gpu(f"{name}/{number}", "v100_sxm2", 16_160) for number in range(gpus)))


CLUSTER = Cluster("c", (node("n"), node("m")))
SPEC = JobSpec("j", "ada", JobType.SIMULATION, memory_mib=1, preemptible=Preemptible(grace_s=7.0))
NOT_PREEMPTIBLE = replace(SPEC, preemptible=None)


class Programs(RealDriver):
    """An adapter whose programs outlive it; a test ends them."""

    capabilities = Capabilities(stop=True, gangs=True, preemption=True)

    def __init__(self, programs: dict[str, tuple[str, ...]], cluster: Cluster = CLUSTER) -> None:
        super().__init__(cluster)
        self.programs = programs
        self.attempts: dict[str, Attempt] = {}
        self.told: dict[str, float | None] = {}

    async def start(self, attempt: Attempt) -> None:
        self.attempts[attempt.job_id] = attempt
        taken = {gpu_id for gpu_ids in self.programs.values() for gpu_id in gpu_ids}
        assert taken.isdisjoint(attempt.placement.gpu_ids), "two programs on a GPU"
        assert attempt.job_id not in self.programs
        self.programs[attempt.job_id] = attempt.placement.gpu_ids
        self.runs(attempt)

    async def end(self, attempt: Attempt) -> None:
        self.told[attempt.job_id] = attempt.grace_s

    async def resume(self, attempt: Attempt) -> bool:
        self.attempts[attempt.job_id] = attempt
        if attempt.job_id in self.programs:
            self.runs(attempt)
        return attempt.job_id in self.programs

    def over(self, job_id: str, kind: EventKind = EventKind.FAILED, *, by_itself: bool = False) -> None:
        """A program ends."""
        self.programs.pop(job_id)
        self.ended(self.attempts[job_id], kind, by_itself=by_itself)


class Bench:
    def __init__(self) -> None:
        self.programs: dict[str, tuple[str, ...]] = {}
        self.driver = Programs(self.programs)
        self.side = ClusterSide(self.driver, LoopTimers())

    async def restart(self, cluster: Cluster = CLUSTER) -> None:
        kept = kept_of(self.side.collect(whole=True))
        await self.driver.close()
        self.driver = Programs(self.programs, cluster)
        self.side = ClusterSide(self.driver, LoopTimers())
        self.side.restore(kept)
        await self.driver.begin(kept)
        if cluster != kept.cluster:
            self.side.change_cluster(cluster)

    def launch(self, job_id: str, *gpu_ids: str, stops: tuple[str, ...] = (), attempt: int = 1, **fields: Any) -> Any:
        spec = replace(SPEC, gpu_count=len(gpu_ids), **fields)
        refs = [AttemptRef(each.partition(".")[0], int(each.partition(".")[2] or 1)) for each in stops]
        return self.side.launch(job_id, attempt, spec, Placement.on(*gpu_ids), 0, preempts=refs)

    async def run(self, job_id: str, *gpu_ids: str, **fields: Any) -> None:
        self.launch(job_id, *gpu_ids, **fields)
        await self.until_told(job_id, "STARTED", "RUNNING")

    def told(self, job_id: str) -> list[str]:
        events = [event for batch in self.side.log.after(0) for event in batch.events if event.job_id == job_id]
        return [event.kind.name + (f": {event.message}" if event.message else "") for event in events]

    def kinds(self) -> list[str]:
        events = [event for batch in self.side.log.after(0) for event in batch.events]
        return [f"{event.kind.name} {event.job_id}".strip() for event in events if event.kind is not EventKind.RUNNING]

    def free(self) -> tuple[dict[str, float], dict[str, int]]:
        """Of each GPU its share, of each node its cores."""
        free = self.side.attempts._free
        return (
            {gpu_id: gpu.share for gpu_id, gpu in free.gpus.items()},
            {node_id: node.cpu_cores for node_id, node in free.nodes.items()},
        )

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60.0):
            while not condition():  # noqa: ASYNC110 - of tasks that tell nobody
                await asyncio.sleep(0.002)

    async def until_told(self, job_id: str, *kinds: str) -> None:
        await self.until(lambda: len(self.told(job_id)) >= len(kinds))
        assert self.told(job_id) == list(kinds)

    async def settle(self) -> None:
        """Returns when the driver's tasks have done all that they can."""
        for _ in range(20):
            await asyncio.sleep(0)


@pytest.fixture
async def bench():
    made = Bench()
    await made.driver.begin(None)
    yield made
    await made.driver.close()


async def test_a_launch_stops_others_and_starts_after_the_last_end(bench):
    await bench.run("a", "n/0", "n/1")
    await bench.run("b", "m/0")
    launched = bench.launch("new", "n/0", "m/0", stops=("a", "b"))
    assert (launched.existing, launched.state.name, launched.start_s) == (False, "ACCEPTED", 0.0)
    await bench.until(lambda: bench.driver.told == {"a": 7.0, "b": 7.0})
    bench.driver.over("b")
    await bench.settle()
    assert bench.told("b")[-1] == "PREEMPTED: for new"
    assert bench.told("new") == []
    assert bench.launch("new", "n/0", "m/0", stops=("a", "b")).existing, "the same launch again"
    bench.driver.over("a", EventKind.FINISHED)
    await bench.until_told("new", "STARTED", "RUNNING")
    assert bench.told("a")[-1] == "PREEMPTED: for new", "it has kept its progress, and exits with 0"
    assert bench.kinds()[-3:] == ["PREEMPTED b", "PREEMPTED a", "STARTED new"]
    again = bench.launch("new", "n/0", "m/0", stops=("a", "b"))
    assert (again.existing, again.state.name) == (True, "RUNNING")
    # Later attempts of the stopped jobs have nothing to do with it.
    bench.launch("a", "n/1", attempt=2)
    bench.driver.over("new", EventKind.FINISHED)
    assert bench.told("new")[-1] == "FINISHED"


async def test_a_launch_that_can_not_be_is_refused_and_nothing_is_stopped(bench):
    await bench.run("a", "n/0", cpu_cores=2)
    await bench.run("stays", "n/1", cpu_cores=2, preemptible=None)
    await bench.run("stopping", "m/0")
    bench.side.stop("stopping", 1, 0, preempt=True)
    bench.launch("waits", "m/1")
    before, free = bench.kinds(), bench.free()
    for gpu_ids, stops, fields, reason, text in (
        (("n/1",), ("stays",), {}, "NOT_PREEMPTIBLE", "attempt 1 of stays can't be stopped for another job"),
        (("n/0",), ("a", "a"), {}, "NOT_PREEMPTIBLE", "attempt 1 of a is named twice"),
        (("n/0",), ("a.2",), {}, "NOT_RUNNING", "attempt 2 of a does not run"),
        (("n/0",), ("a", "nobody"), {}, "NOT_RUNNING", "attempt 1 of nobody does not run"),
        (("m/1",), ("waits",), {}, "NOT_RUNNING", "attempt 1 of waits has not started"),
        (("m/0",), ("stopping",), {}, "NOT_PREEMPTIBLE", "attempt 1 of stopping is being stopped already"),
        (("n/0", "n/1"), ("a",), {}, "GPU_BUSY", "GPU n/1 runs stays"),
        (("n/0",), ("a",), {"cpu_cores": 7}, "NODE_CORES_EXHAUSTED",
         "node n has 6 of 8 CPU cores free, new needs 7"),
    ):  # fmt: skip
        with pytest.raises(Conflict) as refused:
            bench.launch("new", *gpu_ids, stops=stops, **fields)
        assert refused.value.reason == reason
        assert text in refused.value.message
    with pytest.raises(Conflict, match="is an attempt of the job that is to have its GPUs"):
        bench.launch("a", "n/0", stops=("a",), attempt=2)
    bench.driver.capabilities = Capabilities(stop=True)
    with pytest.raises(Unsupported, match="can't stop a job for another one") as unsupported:
        bench.launch("new", "n/0", stops=("a",))
    assert (unsupported.value.reason, unsupported.value.field) == ("NO_PREEMPTION", "preempts")
    with pytest.raises(Unsupported) as unsupported:
        bench.side.stop("a", 1, 0, preempt=True)
    assert (unsupported.value.reason, unsupported.value.field) == ("NO_PREEMPTION", "preempt")
    assert bench.kinds() == before
    assert bench.free() == free
    assert bench.driver.told == {}
    assert not bench.side.attempts.open_attempt("a").stop_asked


async def test_while_they_end_nothing_is_given_twice(bench):
    await bench.run("a", "n/0", "n/1", cpu_cores=3)
    await bench.run("b", "m/0", cpu_cores=6)
    empty = {"n/0": 0.0, "n/1": 0.0, "m/0": 0.0, "m/1": 1.0}
    assert bench.free() == (empty, {"n": 2, "m": 2})
    # At n/0 it needs more than "a" has there, at m/0 less than "b".
    bench.launch("new", "n/0", "m/0", stops=("a", "b"), cpu_cores=5)
    assert bench.free() == (empty, {"n": 0, "m": 2})
    for gpu_id, runs in (("n/0", "new"), ("n/1", "a"), ("m/0", "new")):
        with pytest.raises(Conflict, match=f"GPU {gpu_id} runs {runs}"):
            bench.launch("other", gpu_id)
    with pytest.raises(Conflict, match="node m has 2 of 8 CPU cores free"):
        bench.launch("other", "m/1", cpu_cores=3)
    bench.driver.over("b")
    assert bench.free() == (empty, {"n": 0, "m": 3})
    await bench.restart()
    assert bench.free() == (empty, {"n": 0, "m": 3}), "the same after a restart"
    await bench.until(lambda: "a" in bench.driver.told)
    bench.driver.over("a")
    assert bench.free() == (empty | {"n/1": 1.0}, {"n": 3, "m": 3})
    await bench.until_told("new", "STARTED", "RUNNING")
    await bench.restart()
    assert bench.free() == (empty | {"n/1": 1.0}, {"n": 3, "m": 3})


async def test_less_than_nothing_may_be_free_while_they_end(bench):
    await bench.run("a", "n/0", "n/1", cpu_cores=4)
    bench.launch("new", "n/0", stops=("a",), cpu_cores=7)
    assert bench.free()[1] == {"n": -3, "m": 8}
    bench.side.stop("new", 1, 0)
    assert bench.free()[1] == {"n": 0, "m": 8}
    bench.driver.over("a")
    assert bench.free()[1] == {"n": 8, "m": 8}


async def test_one_that_is_stopped_before_it_starts_leaves_their_gpus_to_the_others(bench):
    await bench.run("a", "n/0")
    bench.launch("new", "n/0", stops=("a",))
    with pytest.raises(Conflict, match="attempt 1 of new has not started"):
        bench.side.stop("new", 1, 0, preempt=True)
    assert bench.side.stop("new", 1, 0)
    assert bench.told("new") == ["STOPPED: stopped before it started"]
    assert not bench.side.stop("new", 1, 0)
    with pytest.raises(Conflict, match="GPU n/0 runs a"):
        bench.launch("other", "n/0")
    with pytest.raises(Conflict, match="attempt 1 of a is being stopped already"):
        bench.launch("other", "n/0", stops=("a",))
    await bench.settle()
    bench.driver.over("a")
    assert bench.told("a")[-1] == "PREEMPTED: on request"
    await bench.run("other", "n/0")
    assert bench.launch("new", "n/0", stops=("a",)).state.name == "ENDED"


async def test_whoever_is_cancelled_by_its_user_while_it_is_preempted_ends_as_stopped(bench):
    await bench.run("a", "n/0")
    await bench.run("b", "n/1")
    bench.launch("new", "n/0", "n/1", stops=("a", "b"))
    assert not bench.side.stop("a", 1, 0, preempt=True), "its stop is asked for already"
    assert bench.side.stop("a", 1, 0)
    assert not bench.side.stop("a", 1, 0)
    await bench.until(lambda: len(bench.driver.told) == 2)
    bench.driver.over("a", EventKind.FINISHED)  # it saves its progress, whatever it is stopped for
    bench.driver.over("b")
    assert (bench.told("a")[-1], bench.told("b")[-1]) == ("STOPPED: stopped", "PREEMPTED: for new")
    await bench.until_told("new", "STARTED", "RUNNING")


async def test_who_ends_before_it_is_told_to_has_ended_by_itself(bench):
    await bench.run("done", "n/0")
    await bench.run("broken", "n/1")
    await bench.run("late", "m/0")
    bench.launch("new", "n/0", "n/1", stops=("done", "broken"))
    bench.driver.over("done", EventKind.FINISHED)  # the order to end it is not on the disk yet
    bench.driver.over("broken", EventKind.FAILED)
    assert (bench.told("done")[-1], bench.told("broken")[-1]) == ("FINISHED", "FAILED")
    await bench.until_told("new", "STARTED", "RUNNING")
    # What supervises a program may know better.
    bench.side.stop("late", 1, 0, preempt=True)
    await bench.until(lambda: "late" in bench.driver.told)
    bench.driver.over("late", EventKind.FINISHED, by_itself=True)
    assert bench.told("late")[-1] == "FINISHED"


async def test_a_preemption_without_a_successor(bench):
    await bench.run("a", "n/0")
    await bench.run("stays", "n/1", preemptible=None)
    with pytest.raises(Conflict, match="not preemptible") as refused:
        bench.side.stop("stays", 1, 0, preempt=True)
    assert (refused.value.reason, refused.value.field) == ("NOT_PREEMPTIBLE", "preempt")
    assert not bench.side.stop("nobody", 1, 0, preempt=True)
    assert bench.side.stop("a", 0, 0, preempt=True)
    assert not bench.side.stop("a", 1, 0, preempt=True)
    await bench.until(lambda: "a" in bench.driver.told)
    bench.driver.over("a")
    assert bench.told("a")[-1] == "PREEMPTED: on request"


async def test_a_gpu_that_is_lost_meanwhile(bench):
    await bench.run("a", "n/0")
    await bench.run("b", "n/1")
    await bench.run("c", "m/0", "m/1")
    bench.launch("new", "n/0", "n/1", stops=("a", "b"))
    bench.driver.gpu_lost("n/0", loses_attempt=False)
    assert bench.told("new") == ["LOST: GPU n/0 was lost before the attempt started"]
    await bench.settle()
    bench.driver.over("a")
    bench.driver.over("b")
    assert (bench.told("a")[-1], bench.told("b")[-1]) == ("PREEMPTED: on request", "PREEMPTED: on request")
    # One that loses another GPU than that for which it is stopped.
    bench.launch("next", "m/0", stops=("c",))
    bench.programs.pop("c")
    bench.driver.gpu_lost("m/1", "it broke")
    assert bench.told("c")[-1] == "LOST: GPU m/1 was lost: it broke"
    await bench.until_told("next", "STARTED", "RUNNING")
    assert "next" in bench.programs
    assert "new" not in bench.programs


async def test_a_gpu_that_both_lose(bench):
    await bench.run("a", "n/0")
    bench.launch("new", "n/0", stops=("a",))
    bench.driver.gpu_lost("n/0", "it broke")
    assert bench.told("a")[-1] == "LOST: GPU n/0 was lost: it broke"
    assert bench.told("new") == ["LOST: GPU n/0 was lost before the attempt started"]
    await bench.settle()
    assert "new" not in bench.programs
    assert bench.free()[0]["n/0"] == 1.0


@pytest.mark.parametrize("restarts", [False, True])
async def test_nodes_that_leave_meanwhile(bench, restarts):
    await bench.run("a", "n/0", "m/0")
    await bench.run("b", "m/1")
    bench.launch("stays", "n/0", stops=("a",))
    bench.launch("leaves", "m/1", stops=("b",))
    left = Cluster("c", (node("n"),))
    for each in ("a", "b"):
        bench.programs.pop(each)
    if restarts:
        await bench.restart(left)
    else:
        bench.side.change_cluster(left)
    assert (bench.told("a")[-1], bench.told("b")[-1]) == ("LOST: GPU m/0 left", "LOST: GPU m/1 left")
    assert bench.told("leaves") == ["LOST: GPU m/1 left"]
    await bench.until_told("stays", "STARTED", "RUNNING")
    assert bench.kinds().index("STARTED stays") > bench.kinds().index("LOST a")
    assert bench.free()[1] == {"n": 7}


async def test_after_a_restart_at_each_point_it_starts_once_when_all_have_ended(bench):
    await bench.run("a", "n/0")
    await bench.run("b", "n/1")
    bench.side.launch(
        "new", 3, replace(SPEC, gpu_count=2), Placement.on("n/0", "n/1"), 0,
        preempts=[AttemptRef("a", 1), AttemptRef("b", 1)], remaining_ratio=0.25, resumes=True,
    )  # fmt: skip
    await bench.restart()  # before anybody was told to end
    await bench.until(lambda: set(bench.driver.told) == {"a", "b"})
    assert bench.told("new") == []
    made = bench.side.attempts.open_attempt("new")
    assert (made.remaining_ratio, made.resumes, made.attempt) == (0.25, True, 3)
    bench.driver.over("a", EventKind.FINISHED)
    await bench.restart()
    await bench.until(lambda: set(bench.driver.told) == {"b"})
    assert bench.told("new") == []
    # It may have been told to end by the process before: whatever it says, it was preempted.
    bench.driver.over("b", EventKind.FINISHED)
    await bench.restart()  # the end is written down, and nothing has started
    await bench.until_told("new", "STARTED", "RUNNING")
    await bench.restart()
    await bench.settle()
    assert bench.told("new") == ["STARTED", "RUNNING"]
    assert (bench.told("a")[-1], bench.told("b")[-1]) == ("PREEMPTED: for new", "PREEMPTED: for new")
    assert bench.programs == {"new": ("n/0", "n/1")}


async def test_the_launch_and_the_stops_are_one_write_and_nobody_is_told_to_end_before_it(bench):
    await bench.run("a", "n/0")
    await bench.run("b", "n/1")
    record = MemoryRecord()
    bench.side.journal = Journal(record, bench.side.collect, bench.side.written)
    running = asyncio.create_task(bench.side.journal.run(lambda problem: None))
    bench.side.journal.touch()
    await bench.side.settled()
    record.writes.clear()
    record.go.clear()
    bench.launch("new", "n/0", "n/1", stops=("a", "b"))
    await bench.settle()
    assert bench.driver.told == {}
    record.go.set()
    await bench.until(lambda: set(bench.driver.told) == {"a", "b"})
    (write, *_) = record.writes
    stored = {job_id: attempt for job_id, attempt in write.attempts.items() if attempt is not None}
    assert {job_id: (each.preempt_asked, len(each.preempts)) for job_id, each in stored.items()} == {
        "a": (True, 0),
        "b": (True, 0),
        "new": (False, 2),
    }
    running.cancel()
    await asyncio.wait([running])


async def test_a_driver_that_stops_at_once_starts_at_once(bench):
    class AtOnce(Programs):
        def launch(self, attempt: Attempt) -> None:
            self.runs(attempt)

        def stop(self, attempt: Attempt) -> None:
            self.ended(attempt, EventKind.PREEMPTED)

    bench.driver = AtOnce(bench.programs)
    bench.side = ClusterSide(bench.driver, LoopTimers())
    bench.launch("a", "n/0")
    bench.launch("b", "n/1")
    launched = bench.launch("new", "n/0", "n/1", stops=("a", "b"))
    assert launched.state.name == "RUNNING"
    assert bench.kinds() == ["STARTED a", "STARTED b", "PREEMPTED a", "PREEMPTED b", "STARTED new"]


async def test_a_driver_that_refuses_changes_nothing(bench):
    def refuse(*_: object) -> None:
        raise Conflict("it restores", reason="NOT_PREEMPTIBLE")

    await bench.run("a", "n/0")
    free = bench.free()
    bench.driver.preempt = bench.driver.stop = refuse
    for call in (lambda: bench.launch("new", "n/0", stops=("a",)), lambda: bench.side.stop("a", 1, 0, preempt=True)):
        with pytest.raises(Conflict, match="it restores"):
            call()
        attempt = bench.side.attempts.open_attempt("a")
        assert (attempt.stop_asked, attempt.preempt_asked) == (False, False)
        assert bench.free() == free
        assert bench.side.attempts.open_attempt("new") is None


@pytest.mark.parametrize("seed", range(8))
async def test_what_is_free_is_the_same_after_a_restart_at_any_moment(bench, seed):
    draw = random.Random(seed)
    gpu_ids = [gpu.gpu_id for _, gpu in CLUSTER.gpus()]
    refused = accepted = 0
    for number in range(150):
        await bench.settle()
        open_ones = bench.side.open_attempts()
        match draw.randrange(5):
            case 0 | 1 | 2:
                chosen = draw.sample(gpu_ids, draw.choice((1, 1, 2, 3)))
                busy = [each.job_id for each in open_ones if set(chosen) & set(each.placement.gpu_ids)]
                cores = draw.randrange(1, 5)
                try:
                    bench.launch(f"j{number}", *chosen, stops=tuple(busy), cpu_cores=cores)
                    accepted += bool(busy)
                except Conflict:
                    refused += 1
            case 3 if bench.programs:
                bench.driver.over(
                    draw.choice(list(bench.programs)), draw.choice((EventKind.FINISHED, EventKind.FAILED))
                )
            case 4 if open_ones:
                bench.side.stop(draw.choice(open_ones).job_id, 0, 0, preempt=False)
        shares, cores_free = bench.free()
        held = [set(each.placement.gpu_ids) for each in bench.side.open_attempts()]
        assert shares == {gpu_id: 0.0 if any(gpu_id in each for each in held) else 1.0 for gpu_id in gpu_ids}
        # Whatever runs really, and whatever has started since, the cores of the nodes are enough.
        for each in CLUSTER.nodes:
            used = [
                open_one.spec.cpu_cores * sum(gpu_id.startswith(f"{each.node_id}/") for gpu_id in gpus)
                for open_one in bench.side.open_attempts()
                if (gpus := bench.programs.get(open_one.job_id))
            ]
            assert sum(used) <= NODE_CORES
            assert cores_free[each.node_id] <= NODE_CORES - sum(used)
        again = ClusterSide(Programs({}), LoopTimers())
        again.restore(kept_of(bench.side.collect(whole=True)))
        assert again.attempts._free == bench.side.attempts._free
        assert again.attempts._held == bench.side.attempts._held
        assert set(again._waiting) == set(bench.side._waiting)
    assert accepted > 5
    assert refused > 5


def test_an_attempt_is_read_as_it_was_written():
    attempt = Attempt(
        "a", 2, Placement.on("n/0"), SPEC, preempts=(AttemptRef("b", 1), AttemptRef("c", 7)), remaining_ratio=1 / 3,
        resumes=True, stop_asked=True, preempt_asked=True,
    )  # fmt: skip
    assert _from_bytes(_to_bytes(attempt)) == attempt
    plain = Attempt("a", 2, Placement.on("n/0"), SPEC)
    assert _from_bytes(_to_bytes(plain)) == plain


def test_the_time_between_the_request_to_end_and_the_end_by_force():
    spec = replace(SPEC, payload=process_payload(("sleep", "1"), stop_grace_s=3.0))
    attempt = Attempt("a", 1, Placement.on("n/0"), spec)
    assert attempt.grace_s == 3.0
    attempt.preempt_asked = True
    assert attempt.grace_s == 7.0
    attempt.spec = replace(spec, preemptible=Preemptible())
    assert attempt.grace_s == 3.0
    attempt.spec = None
    assert attempt.grace_s is None
