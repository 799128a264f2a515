"""Deliveries to real receivers on loopback: order, retries, bounds, signatures, and that none delays another."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from adlro.kit.log import get_logger
from adlro.services.notify.deliveries import Deliveries
from adlro.services.notify.keeper import Keeper
from adlro.services.notify.metrics import NotifyMetrics
from adlro.services.notify.retrying import Schedule
from adlro.webhooks import BadSignature
from adlro.webhooks.events import Event, job_ended
from adlro.webhooks.outbox import read_states
from tests.unit.webhooks.samples import ended_job
from tests.webhook_receiver import SECRET, receiver

# Quick ones: a pause of at most 50 ms.
SCHEDULE = Schedule(longest_pause_s=0.05, give_up_after_s=3600.0)


def ends(*numbers: int) -> Sequence[Event]:
    # Noted now: an old message is given up.
    return [job_ended(ended_job(number), "paper", time.time()) for number in numbers]


def write(folder: Path, **urls: str) -> Path:
    """A file with a webhook for each receiver."""
    (folder / "s.secret").write_text(SECRET)
    path = folder / "webhooks.toml"
    path.write_text(
        "".join(
            f'[[webhook]]\nname = "{name}"\nurl = "{url}"\nevents = ["job_ended"]\nsecret_file = "s.secret"\n'
            for name, url in urls.items()
        )
    )
    return path


class Delivering:
    """What delivers, and what it counted."""

    def __init__(self, keeper: Keeper, deliveries: Deliveries, registry: CollectorRegistry) -> None:
        self.keeper, self.deliveries, self.registry = keeper, deliveries, registry

    def count(self, name: str, webhook: str) -> float:
        return self.registry.get_sample_value(f"adlro_notify_{name}", {"webhook": webhook}) or 0.0


@asynccontextmanager
async def delivering(
    folder: Path, schedule: Schedule = SCHEDULE, most_count: int = 1000, answer_timeout_s: float = 30.0, **urls: str
) -> AsyncIterator[Delivering]:
    keeper = Keeper(write(folder, **urls), folder / "notify", most_count, 1 << 24, get_logger())
    registry = CollectorRegistry()
    metrics = keeper.metrics = NotifyMetrics(registry, keeper.waiting)
    crashes: list[BaseException] = []
    deliveries = Deliveries(keeper, schedule, (30.0, answer_timeout_s), get_logger(), metrics, crashes.append)
    deliveries.renew()
    rereading = asyncio.create_task(keeper.run(deliveries.renew))
    try:
        yield Delivering(keeper, deliveries, registry)
    finally:
        rereading.cancel()
        await deliveries.close()
        await keeper.close()
    assert crashes == []


async def test_messages_arrive_signed_and_in_order(tmp_path: Path) -> None:
    with receiver() as ops:
        async with delivering(tmp_path, ops=ops.url) as running:
            await running.keeper.note(ends(*range(1, 30)))
            await ops.until(lambda it: len(it.accepted) == 29)
    assert ops.ended_jobs() == [f"job-{number}" for number in range(1, 30)]
    first = ops.requests[0]
    assert first.headers["webhook-id"] == first.document["id"]
    assert first.document["lost_count"] == 0
    first.body = first.body.replace(b"job-1", b"job-2")
    with pytest.raises(BadSignature):
        _ = first.document


async def test_a_failed_message_is_sent_again_with_the_same_id_before_those_behind_it(tmp_path: Path) -> None:
    answers = iter([500, 429, 503, 204, 204])
    with receiver() as ops:
        ops.answer = lambda request: (next(answers), {})
        async with delivering(tmp_path, ops=ops.url) as running:
            await running.keeper.note(ends(1, 2))
            await ops.until(lambda it: len(it.accepted) == 2)
            assert running.count("failed_tries_total", "ops") == 3
    assert len({request.headers["webhook-id"] for request in ops.requests[:4]}) == 1
    assert ops.ended_jobs() == ["job-1", "job-2"]


async def test_a_receiver_that_was_away_gets_all_when_it_is_back(tmp_path: Path) -> None:
    with receiver() as ops:
        ops.stop()
        async with delivering(tmp_path, ops=ops.url) as running:
            await running.keeper.note(ends(*range(1, 6)))
            async with asyncio.timeout(60.0):
                while running.count("failed_tries_total", "ops") < 3:  # noqa: ASYNC110 - counted, not announced
                    await asyncio.sleep(0.01)
            (state,) = read_states(tmp_path / "notify")
            assert state.problem.startswith("no connection: ")
            assert state.waiting_count == 5
            ops.start()
            await ops.until(lambda it: len(it.accepted) == 5)
    assert ops.ended_jobs() == [f"job-{number}" for number in range(1, 6)]


async def test_a_message_that_is_refused_is_given_up_and_the_next_one_tells_that(tmp_path: Path) -> None:
    with receiver() as ops:
        ops.answer = lambda request: (400 if request.document["job"]["job_id"] == "job-1" else 204, {})
        async with delivering(tmp_path, ops=ops.url) as running:
            await running.keeper.note(ends(1, 2, 3))
            await ops.until(lambda it: len(it.accepted) == 2)
            assert running.count("given_up_total", "ops") == 1
    assert len(ops.requests) == 5 + 2
    assert [(each["job"]["job_id"], each["lost_count"]) for each in ops.accepted] == [("job-2", 1), ("job-3", 0)]


async def test_what_was_dropped_is_told_by_the_next_message(tmp_path: Path) -> None:
    with receiver() as ops:
        ops.stop()
        async with delivering(tmp_path, most_count=3, ops=ops.url) as running:
            await running.keeper.note(ends(*range(1, 11)))
            assert running.count("dropped_total", "ops") == 7
            assert running.count("waiting_messages", "ops") == 3
            ops.start()
            await ops.until(lambda it: len(it.accepted) == 3)
    assert [(each["job"]["job_id"], each["lost_count"]) for each in ops.accepted] == [
        ("job-8", 7),
        ("job-9", 0),
        ("job-10", 0),
    ]


async def test_slow_dead_and_hostile_receivers_delay_no_other(tmp_path: Path) -> None:
    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(65_536):
            pass

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not writer.is_closing():
            writer.write(b"x")
            await asyncio.sleep(0.01)

    servers = [await asyncio.start_server(each, "127.0.0.1", 0) for each in (swallow, drip)]
    slow, hostile = (f"http://127.0.0.1:{each.sockets[0].getsockname()[1]}/" for each in servers)
    with receiver() as ops, receiver() as dead:
        dead.stop()
        urls = {"slow": slow, "hostile": hostile, "dead": dead.url, "ops": ops.url}
        async with delivering(tmp_path, SCHEDULE, 1000, 3600.0, **urls) as running:
            await running.keeper.note(ends(*range(1, 50)))
            await ops.until(lambda it: len(it.accepted) == 49, timeout_s=30.0)
            assert running.count("waiting_messages", "slow") == 49
            assert running.count("delivered_total", "ops") >= 48
    for server in servers:
        server.close()


@pytest.mark.slow
async def test_a_changed_file_is_read_again_and_a_wrong_one_leaves_all_as_it_was(tmp_path: Path) -> None:
    with receiver() as old, receiver() as new:
        async with delivering(tmp_path, ops=old.url) as running:
            await running.keeper.note(ends(1))
            await old.until(lambda it: len(it.accepted) == 1)
            (tmp_path / "webhooks.toml").write_text('[[webhook]]\nname = "ops"\n')
            async with asyncio.timeout(60.0):
                while running.keeper._file.changed():  # noqa: ASYNC110 - until it was read again
                    await asyncio.sleep(0.01)
            await running.keeper.note(ends(2))
            await old.until(lambda it: len(it.accepted) == 2)
            old.stop()
            await running.keeper.note(ends(3))
            write(tmp_path, ops=new.url, dev=new.url)
            await new.until(lambda it: len(it.accepted) == 1)
            await running.keeper.note(ends(4))
            await new.until(lambda it: len(it.accepted) == 3)
    # What waited for `ops` went to its new address; `dev` is told of what came then.
    assert sorted(new.ended_jobs()) == ["job-3", "job-4", "job-4"]


async def test_messages_wait_for_the_next_process(tmp_path: Path) -> None:
    with receiver() as ops:
        ops.stop()
        async with delivering(tmp_path, ops=ops.url) as running:
            await running.keeper.note(ends(1, 2), position=6)
        ops.start()
        async with delivering(tmp_path, ops=ops.url) as running:
            assert await running.keeper.position() == 6
            await ops.until(lambda it: len(it.accepted) == 2)
