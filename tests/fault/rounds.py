"""Rounds of network faults against a suite whose every connection goes through a proxy, and what must hold after each.

The witnesses (followers, questions about time) have ways of their own to the services.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from adlro.client import AsyncClient, ClockMode, JobFilter, OrchestratorStatus
from adlro.client.endpoints import Endpoints
from adlro.errors import AdlroError, DeadlineExceeded, InternalError, InvalidInput, Unavailable
from adlro.kit.redis import connect
from adlro.kit.testing import spawn_service
from adlro.records.jobs import JobSpec, JobType, SimulatedWork
from tests.e2e.records import check_placements
from tests.ended_index import check_ended_index
from tests.fault import verdict
from tests.fault.followers import ClusterFollower, JobFollower
from tests.fault.network import Fault, Kind, Network
from tests.fault.stack import Stack, eventually, wait_until_serving

T = TypeVar("T")

SERVICES = ("ingest", "decompose", "orchestrator", "simcluster")
# Who speaks to whom: the setting by which the one finds the other.
PAIRS = {
    "ingest-redis": "ADLRO_REDIS_URL",
    "decompose-redis": "ADLRO_REDIS_URL",
    "orchestrator-redis": "ADLRO_REDIS_URL",
    "simcluster-ingest": "ADLRO_SIMCLUSTER_INGEST_ADDRESS",
    "orchestrator-decompose": "ADLRO_ORCHESTRATOR_DECOMPOSE_ADDRESS",
    "orchestrator-simcluster": "ADLRO_ORCHESTRATOR_CLUSTER_ADDRESS",
}
CLIENT_PAIRS = tuple(f"client-{name}" for name in SERVICES)
LINKS = (*PAIRS, *CLIENT_PAIRS)
LONGEST_JOB_S = 20.0  # of cluster time
SCALE = 20.0
TRIES = 5
# Whose tracebacks are no bug of ours: gRPC's, of a message of which bytes were lost.
OTHERS = ("grpc._common",)


class ProxiedStack(Stack):
    """The four services, with a link of the network in each of their connections.

    Args:
        data_dir: of Valkey.
        network: where the links are made.
        settings: more environment for all services.
    """

    def __init__(self, data_dir: Path, network: Network, **settings: str) -> None:
        super().__init__(data_dir, **settings)
        self.network = network

    async def start_all(self) -> None:
        """Starts Valkey, the links, the services; returns when all serve."""
        await asyncio.to_thread(self.redis.start)
        store = urlsplit(self.redis.url)
        addresses = self.addresses | {
            "redis": store.path if store.scheme == "unix" else store.netloc.rpartition("@")[2]
        }
        for name in LINKS:
            await self.network.add(name, addresses[name.partition("-")[2]])
        await asyncio.to_thread(self.start, *SERVICES)
        await wait_until_serving(self.addresses.values(), timeout_s=60.0)

    def through(self, link: str) -> str:
        """The address of a link."""
        return self.network.links[link].address

    def proxied_client(self) -> AsyncClient:
        """A client whose connections go through the network."""
        ingest, decompose, orchestrator, cluster = map(self.through, CLIENT_PAIRS)
        endpoints = Endpoints(ingest=ingest, decompose=decompose, orchestrator=orchestrator, cluster=cluster)
        return AsyncClient(endpoints=endpoints, timeout_s=20.0, patience_s=180.0)

    def _spawn(self, name: str) -> None:
        self.services[name] = spawn_service(name, self._environment(name, self.addresses[name]))

    def _environment(self, name: str, listen: str) -> dict[str, str]:
        found = super()._environment(name, listen)
        for pair, setting in PAIRS.items():
            if pair.startswith(f"{name}-"):
                found[setting] = self.through(pair)
        if f"{name}-redis" in PAIRS:
            login = "".join(urlsplit(self.redis.url).netloc.rpartition("@")[:2])
            found["ADLRO_REDIS_URL"] = f"redis://{login}{found['ADLRO_REDIS_URL']}/0"
        return found


def draw(rng: random.Random, number: int, longest_hole_s: float) -> list[Fault]:
    """One or two faults of a round, at once as a rule: each link has its turn, and another one with it."""
    links = {LINKS[number % len(LINKS)]: None} | dict.fromkeys(rng.sample(LINKS, rng.choice((0, 1, 1))))
    faults = []
    for link in links:
        kind = rng.choice((*Kind, Kind.RESET, Kind.RESET))
        long = kind in (Kind.BLACK_HOLE, Kind.VANISH)
        duration_s = rng.uniform(0.2, 1.0) * (longest_hole_s if long else 2.0)
        faults.append(Fault(kind, link, rng.uniform(0.0, 1.0), duration_s))
    return faults


class Rounds:
    """A suite under observation, from the first round to the last.

    Args:
        stack: started.
        rng: draws jobs and faults.
        longest_hole_s: of a black hole.
    """

    def __init__(self, stack: ProxiedStack, rng: random.Random, longest_hole_s: float) -> None:
        self.stack = stack
        self.acknowledged: dict[str, str] = {}  # job id by request id
        self.refusals: list[AdlroError] = []
        self._rng = rng
        self._longest_hole_s = longest_hole_s
        self._client: AsyncClient
        self._watched: JobFollower
        self._watched_through: JobFollower  # not a witness: a client that must see what the witness sees
        self._cluster_log: ClusterFollower
        self._times: asyncio.Task[None]

    @classmethod
    @asynccontextmanager
    async def begun(cls, stack: ProxiedStack, rng: random.Random, longest_hole_s: float) -> AsyncIterator[Rounds]:
        """With its witnesses at work."""
        self = cls(stack, rng, longest_hole_s)
        async with (
            JobFollower(stack.addresses["ingest"]) as self._watched,
            JobFollower(stack.through("client-ingest")) as self._watched_through,
            ClusterFollower(stack.addresses["simcluster"]) as self._cluster_log,
            stack.proxied_client() as self._client,
        ):
            self._times = asyncio.create_task(_watch_time(stack), name="watch cluster time")
            try:
                yield self
            finally:
                self._times.cancel()
                await asyncio.wait([self._times])

    async def play(self, number: int) -> None:
        """One round: jobs, faults, and the proof that all is well again."""
        faults = draw(self._rng, number, self._longest_hole_s)
        story = f"round {number}: " + ", ".join(
            f"{fault.kind.name} of {fault.link} from {fault.begin_s:.1f} s for {fault.duration_s:.1f} s"
            for fault in faults
        )
        began_s = time.monotonic()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._submit(number))
                group.create_task(self._ask())
                for fault in faults:
                    group.create_task(self.stack.network.suffer(fault))
            await self.wait_until_well()
        except BaseException:
            sys.stderr.write(f"{story}; not well after {time.monotonic() - began_s:.1f} s\n")
            raise
        sys.stderr.write(f"{story}; well after {time.monotonic() - began_s:.1f} s\n")

    async def wait_until_well(self) -> None:
        """Returns when all serve, one acts, and every acknowledged job has ended."""
        await wait_until_serving(self.stack.addresses.values(), timeout_s=90.0)
        wanted = set(self.acknowledged.values())
        await self._watched.until(lambda: wanted <= self._watched.final, "every acknowledged job to end", 120.0)
        self.check_alive()

    def check_alive(self) -> None:
        """No service has ended, or met what it takes for a bug; time did not go back."""
        for name, service in self.stack.services.items():
            assert service.process.poll() is None, f"{name} ended:\n" + "\n".join(service.raw_lines()[-20:])
            bugs = [line for line in service.log_lines() if "exception" in line and line.get("logger") not in OTHERS]
            assert not bugs, f"{name} met what it takes for a bug: {bugs[0]}"
        internal = [error for error in self.refusals if isinstance(error, InternalError)]
        assert not internal, internal
        if self._times.done():
            self._times.result()

    async def check_all(self) -> None:
        """The verdict over all rounds."""
        await self._cluster_log.catch_up()
        watched, jobs = self._watched, self._watched.latest
        async with AsyncClient(self.stack.addresses["ingest"]) as client:
            listed = {job.job_id: job async for job in client.list()}
            again = {request: await client.submit(spec(request), request) for request in self.acknowledged}
            cluster = await client.cluster()
        assert {request: job.job_id for request, job in again.items()} == self.acknowledged
        assert listed.keys() == set(self.acknowledged.values()), "a job was lost, or made twice"
        assert listed == jobs
        async with connect(self.stack.redis.url) as redis:
            await check_ended_index(redis)
        verdict.check_changes(watched)
        through = self._watched_through
        await through.until(lambda: through.revision >= watched.revision, f"revision {watched.revision}")
        verdict.check_changes(through)
        assert through.latest == jobs
        verdict.check_attempts(jobs.values())
        check_placements(list(jobs.values()), cluster)
        verdict.check_cluster_log(self._cluster_log, jobs)
        assert len(self._cluster_log.logs) == 1

    async def _submit(self, number: int) -> None:
        """Jobs as they come, one by one and in a stream; each must be acknowledged in the end."""
        singles = [f"{number}-{index}" for index in range(6)]
        mode = ClockMode.VIRTUAL if number % 2 else ClockMode.SCALED
        await self._insist(lambda: self._client.set_clock(mode, scale=SCALE))
        for request in singles:
            job = await self._insist(lambda request=request: self._client.submit(spec(request), request))  # type: ignore[misc]
            self.acknowledged[request] = job.job_id
            await asyncio.sleep(self._rng.uniform(0, 0.4))
        prefix = f"{number}-many"
        requests = [f"{prefix}-{index}" for index in range(10)]
        specs = [spec(request) for request in requests]
        answer = await self._insist(lambda: self._client.submit_many(specs, prefix))
        assert not answer.rejected, answer.rejected
        self.acknowledged.update(zip(requests, answer.job_ids, strict=True))

    async def _insist(self, call: Callable[[], Awaitable[T]]) -> T:
        """Its answer, also where bytes of the request or of the answer were lost and what is left could be read."""
        for tries_left in reversed(range(TRIES)):
            try:
                return await call()
            except (InvalidInput, DeadlineExceeded, Unavailable) as error:
                self.refusals.append(error)
                if not tries_left:
                    raise
        raise AssertionError("unreachable")

    async def _ask(self) -> None:
        """Questions of all kinds through the network; errors are noted, and none may be INTERNAL."""
        ends_s = time.monotonic() + 2.0
        questions: Sequence[Any] = (
            self._client.status,
            self._client.describe_cluster,
            self._client.cluster_state,
            self._client.telemetry,
            self._first_page,
        )
        while time.monotonic() < ends_s:
            for question in questions:
                try:
                    async with asyncio.timeout(2.0):
                        await question()
                except AdlroError as error:
                    self.refusals.append(error)
                except TimeoutError:
                    continue
            await asyncio.sleep(0.1)

    async def _first_page(self) -> None:
        async for _ in self._client.list(JobFilter(user="network")):
            return


def spec(request: str) -> JobSpec:
    """The job of a request: the same whenever it is asked for."""
    work_s = 1.0 + random.Random(request).random() * (LONGEST_JOB_S - 1.0)
    return JobSpec(request, "network", JobType.SIMULATION, simulated_work=SimulatedWork(work_s))


async def _watch_time(stack: ProxiedStack) -> None:
    """Asks the orchestrator and the cluster for the time again and again; it never goes back for anybody."""
    newest: dict[str, float] = {}

    def check(who: str, time_s: float) -> None:
        assert time_s >= newest.get(who, 0.0), f"cluster time of {who} went from {newest[who]} to {time_s}"
        newest[who] = time_s

    async with stack.client(patience_s=0.0) as client:
        while True:
            with contextlib.suppress(AdlroError):
                status: OrchestratorStatus = await client.status()
                check("the orchestrator", status.cluster_time_s)
            with contextlib.suppress(AdlroError):
                check("simcluster", (await client.describe_cluster()).clock.time_s)
            await asyncio.sleep(0.1)


async def until_acting(stack: ProxiedStack) -> None:
    """Returns when the orchestrator places jobs."""
    async with stack.client() as client:

        async def acts() -> bool:
            return (await client.status()).acting

        await eventually(acts, "the orchestrator to act", 60.0)
