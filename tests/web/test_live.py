"""The live stream over real sockets: what slow, hostile and too many pages do to the others, and the end of a login."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from websockets.asyncio.client import connect
from websockets.typing import Origin

from adlro.client import JobFilter, JobSpec, JobType
from adlro.kit.identity import Role
from adlro.records.jobs import KINDS_OF_WORK
from adlro.services.web import frames
from adlro.services.web.documents import job_document, job_row
from tests.unit.web.world import GPU_IDS, cluster_state, description, job, status
from tests.web.page_suite import USERS, World, page_here

HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(1)</script>",
    "'\"`${alert(1)}{{7*7}}",
    "a" * 253,
    "שלום <b>",
)


@pytest.fixture
async def world(redis_url: str, tmp_path: Path) -> AsyncIterator[World]:
    async with page_here(redis_url, tmp_path) as made:
        yield made


@pytest.fixture
async def alone(redis_url: str, tmp_path: Path) -> AsyncIterator[World]:
    """A page whose picture the test itself makes: no stream of a service changes it."""
    async with page_here(redis_url, tmp_path, users=False, ingest_address="127.0.0.1:1") as made:
        picture = made.running.parts.picture
        picture.take_description(description(), time.time())
        picture.take_status(status())
        picture.take_state(cluster_state())
        picture.begin_snapshot()
        for number in range(1, 2001):
            picture.take_job(job(number, name=f"train {'x' * 200}"))
        picture.end_snapshot()
        yield made


def rss_mib() -> float:
    """Memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / (1 << 20)


def handshake(address: str) -> bytes:
    """What a browser asks for a socket."""
    lines = (
        *("GET /live/v1 HTTP/1.1", f"Host: {address}", f"Origin: http://{address}", "Upgrade: websocket"),
        *("Connection: Upgrade", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="),
    )
    return "\r\n".join((*lines, "", "")).encode()


async def right(condition: Callable[[], bool]) -> None:
    """Waits until something is right."""
    async with asyncio.timeout(60.0):
        while not condition():  # noqa: ASYNC110 - the service under test has no event for it
            await asyncio.sleep(0.05)


async def test_a_page_gets_hello_sources_and_what_it_follows(world):
    ann = await world.logged_in("ann")
    async with world.client("ann") as client:
        submitted = await client.submit(JobSpec("train", "ann", JobType.MACHINE_LEARNING))
    async with ann.live("queue", f"job?id={submitted.job_id}") as live:
        await live.until(lambda live: len(live.page.state) == 2 and live.told["sources"]["ingest"]["state"] == "live")
        hello = live.told["hello"]
        assert (hello["user"], hello["roles"], hello["tick_s"]) == ("ann", ["submitter"], 0.5)
        assert hello["limits"] == {"subscriptions": 16, "rows": 200}
        sources = live.told["sources"]
        assert sources["ingest"]["error"] == ""
        await live.until(lambda live: live.told["sources"]["orchestrator"]["state"] == "away")
        assert "no service answers" in live.told["sources"]["orchestrator"]["error"]
    assert submitted.job_id in live.page.state["queue"]["rows"][0]["id"]


async def test_a_change_reaches_the_page_soon(world):
    ann = await world.logged_in("ann")
    async with ann.live("queue") as live, world.client("ann") as client:
        await live.until(lambda live: "queue" in live.page.state)
        for number in range(1, 4):
            await client.submit(JobSpec(f"train {number}", "ann", JobType.MACHINE_LEARNING))
            await live.until(lambda live, number=number: live.page.state["queue"]["total"] == number)


@pytest.mark.slow
async def test_twenty_pages_that_never_read_cost_little_and_disturb_nobody(alone):
    picture = alone.running.parts.picture
    address = alone.running.address
    keys = [f"queue?count=200&from={number}" for number in range(12)] + ["gpus", "head"]
    async with AsyncExitStack() as stack:
        browser = alone.browser()
        good = await stack.enter_async_context(browser.live("head", "queue?count=200"))
        await good.until(lambda live: len(live.page.state) == 2)
        before_mib = rss_mib()
        for _ in range(20):
            # A raw stream whose reader is never asked: what arrives stays in the kernel's buffers.
            reader, writer = await asyncio.open_connection(*address.split(":"))
            writer.write(handshake(address))
            await reader.readuntil(b"\r\n\r\n")
            writer.transport.pause_reading()  # type: ignore[attr-defined]  # a transport of both ways
            for key in keys:
                text = json.dumps({"op": "subscribe", "key": key}).encode()
                assert len(text) < 126
                writer.write(bytes([0x81, 0x80 | len(text), 0, 0, 0, 0]) + text)
            stack.callback(writer.close)
        late_s: list[float] = []
        for round_number in range(20):
            for number in range(1, 200, 2):
                picture.take_job(job(number, name=f"round {round_number} {'y' * 200}", revision=10_000 + round_number))
            began_s, seen = time.monotonic(), f"round {round_number} "
            await good.until(
                lambda live, seen=seen: live.page.state["queue?count=200"]["rows"][0]["name"].startswith(seen)
            )
            late_s.append(time.monotonic() - began_s)
        assert not good.page.stale
        assert rss_mib() - before_mib < 30.0
        # They did not read, so they did not acknowledge: each key has at most four frames on its way.
        hub = alone.running.parts.live._hub
        slow = [tab for tab in hub._tabs if len(tab.subscriptions) == len(keys)]
        assert len(slow) == 20
        assert all(len(each.unacknowledged) <= 4 for tab in slow for each in tab.subscriptions.values())


async def test_hostile_names_come_as_they_are_and_break_nothing(world):
    async with world.client("ann") as client:
        names = [name for name in HOSTILE if len(name) <= 253]
        for name in names:
            await client.submit(JobSpec(name, "ann", JobType.MACHINE_LEARNING, labels={"a": "b"}))
    async with (await world.logged_in("rea")).live("queue") as live:
        await live.until(lambda live: live.page.state.get("queue", {}).get("total") == len(names))
        assert {row["name"] for row in live.page.state["queue"]["rows"]} == set(names)


messages = st.one_of(
    st.text(max_size=60),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=20),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
        max_leaves=6,
    ).map(json.dumps),
    st.fixed_dictionaries(
        {
            "op": st.sampled_from(["subscribe", "unsubscribe", "ack", "sleep", "wake", "x"]),
            "key": st.sampled_from(["head", "gpus", "queue", "\ud800", "", "job?id=job-1"]) | st.text(max_size=20),
            "rev": st.integers() | st.booleans() | st.text(max_size=3),
        }
    ).map(json.dumps),
)


@pytest.mark.slow
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sent=st.lists(messages, max_size=25))
def test_whatever_a_page_sends_the_service_goes_on(sent, tmp_path_factory, redis_server):
    async def fuzz() -> None:
        folder = tmp_path_factory.mktemp("page")
        async with page_here(redis_server.url, folder, users=False, ingest_address="127.0.0.1:1") as world:
            async with connect(
                f"ws://{world.running.address}/live/v1",
                origin=Origin(f"http://{world.running.address}"),
                max_size=None,
            ) as socket:
                for each in sent:
                    await socket.send(each)
                await asyncio.sleep(0.05)
            async with world.browser().live("bogus") as live:
                await live.until(lambda live: "bogus" in live.page.refused)
            assert not world.running.context.crashed.is_set()

    asyncio.run(fuzz())


async def test_a_page_that_talks_nonsense_or_too_much_is_let_go_with_a_word(world):
    ann = await world.logged_in("ann")
    async with ann.live() as live:
        for _ in range(30):
            await live.socket.send("nonsense")
        assert (await live.until_closed())["reason"] == "limit"
    async with ann.live() as live:
        for _ in range(600):
            await live.say(op="ack", key="head", rev=1)
        assert (await live.until_closed())["text"] == "this page sends too many messages"
    async with ann.live() as live:
        for number in range(1, 101):
            await live.say(op="subscribe", key=f"queue?count={number}")
            await live.say(op="unsubscribe", key=f"queue?count={number}")
        assert (await live.until_closed())["text"] == "this page sends too many messages"
    async with ann.live() as live:
        await live.socket.send("x" * 70_000)
        await live.until_closed()
    async with ann.live() as live:
        await live.socket.send(b"\x00\x01")
        await live.until(lambda live: "" in live.page.refused)


async def test_so_many_pages_of_one_user_and_no_more(redis_url, tmp_path):
    async with page_here(redis_url, tmp_path, max_sockets=5, max_sockets_per_user=2) as world:
        async with AsyncExitStack() as stack:
            for user in ("ann", "bob"):
                browser = await world.logged_in(user)
                for _ in range(2):
                    live = await stack.enter_async_context(browser.live())
                    await live.until(lambda live: "hello" in live.told)
            async with browser.live() as third:
                bye = await third.until_closed()
            assert (bye["reason"], "bob has 2 pages open" in bye["text"]) == ("limit", True)
            one_more = await world.logged_in("rea")
            fifth = await stack.enter_async_context(one_more.live())
            await fifth.until(lambda live: "hello" in live.told)
            async with one_more.live() as sixth:
                assert "5 pages are open" in (await sixth.until_closed())["text"]
        # Places of closed pages are free again.
        await right(lambda: not len(world.running.parts.live))
        async with browser.live() as again:
            await again.until(lambda live: "hello" in live.told)


@pytest.mark.slow
async def test_a_line_that_is_removed_from_the_users_file_ends_logins_and_pages_soon(world):
    ann, bob = await world.logged_in("ann"), await world.logged_in("bob")
    async with ann.live("head") as anns, bob.live("head") as bobs:
        await anns.until(lambda live: "hello" in live.told)
        await bobs.until(lambda live: "hello" in live.told)
        world.write_users({user: roles for user, roles in USERS.items() if user != "ann"})
        began_s = time.monotonic()
        bye = await anns.until_closed()
        took_s = time.monotonic() - began_s
        assert bye["reason"] == "role"
        assert (await ann.get("/api/me")).status == 401
        assert (await bob.get("/api/me")).status == 200
        world.write_users({user: roles for user, roles in USERS.items() if user != "ann"} | {"bob": [Role.READER]})
        assert (await bobs.until_closed())["reason"] == "role"
    # Promised are 2 s; a busy machine is not this test's matter.
    assert took_s < 20.0


async def test_a_logout_ends_the_pages_of_that_login_alone(world):
    one, two = await world.logged_in("ann"), await world.logged_in("ann")
    async with one.live() as first, two.live() as second:
        await second.until(lambda live: "hello" in live.told)
        assert (await one.post("/logout")).status == 204
        assert (await first.until_closed())["reason"] == "logout"
        await second.say(op="subscribe", key="bogus")
        await second.until(lambda live: "bogus" in live.page.refused)


async def test_a_drain_says_goodbye(redis_url, tmp_path):
    async with page_here(redis_url, tmp_path) as world, (await world.logged_in("ann")).live() as live:
        await live.until(lambda live: "hello" in live.told)
        stopping = asyncio.create_task(world.running.stop(1.0))
        assert (await live.until_closed())["reason"] == "drain"
        await stopping


async def test_the_streams_are_opened_with_the_first_page_and_closed_after_the_last(redis_url, tmp_path):
    async with page_here(redis_url, tmp_path, streams_idle_s=0.5) as world:
        feeds = world.running.feeds

        def closed() -> bool:
            return feeds._client is None

        assert closed()
        ann = await world.logged_in("ann")
        async with ann.live("queue") as live:
            await live.until(lambda live: "queue" in live.page.state)
            assert not closed()
        await right(closed)
        async with world.client("ann") as client:
            await client.submit(JobSpec("later", "ann", JobType.MACHINE_LEARNING))
        async with ann.live("queue") as live:
            await live.until(lambda live: live.page.state.get("queue", {}).get("total") == 1)
        assert not world.running.context.crashed.is_set()


specs = st.lists(
    st.tuples(
        st.sampled_from(["ann", "bob", "both"]),
        st.sampled_from(["train", "<b>", "résumé"]),
        st.sampled_from(KINDS_OF_WORK),
        st.sampled_from([0.0, 0.5, 1.0]),
        st.booleans(),
    ),
    max_size=6,
)


@pytest.mark.slow
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(found=specs)
def test_a_submitters_page_shows_what_ingest_would_show_him(found, tmp_path_factory, redis_server):
    """For any jobs of any users: the same jobs, with the same values, and none of the others' names anywhere."""

    async def compare() -> None:
        redis_server.start()
        import redis

        with redis.Redis.from_url(redis_server.url) as store:
            store.flushall()
        async with page_here(redis_server.url, tmp_path_factory.mktemp("page")) as world:
            for user, name, kind, priority, cancel in found:
                async with world.client(user) as client:
                    made = await client.submit(
                        JobSpec(f"{name} of {user}", user, kind, priority=priority, labels={"of": user})
                    )
                    if cancel:
                        await client.cancel(made.job_id)
            for user in ("ann", "bob", "both", "rea"):
                await check(world, user, len(found))

    async def check(world: World, user: str, count: int) -> None:
        async with world.client(user) as client:
            theirs = {each.job_id: each async for each in client.list(JobFilter())}
        keys = ["queue?count=200", *(f"job?id=job-{number}" for number in range(1, count + 1))]
        async with (await world.logged_in(user)).live(*keys) as live:
            await live.until(lambda live: "queue?count=200" in live.page.state)
            await live.until(lambda live: len(live.page.state) + len(live.page.refused) == len(keys))
            shown = live.page.state
            open_jobs = {job_id: each for job_id, each in theirs.items() if not each.state.final}
            rows = {row["id"]: row for row in shown["queue?count=200"]["rows"]}
            assert rows.keys() == open_jobs.keys()
            for job_id, row in rows.items():
                assert {name: value for name, value in row.items() if name != "place"} == job_row(theirs[job_id])
            for number in range(1, count + 1):
                key = f"job?id=job-{number}"
                assert (key in shown) == (f"job-{number}" in theirs)
                if key in shown:
                    rights = {"may_change": False, "may_release": False}
                    of_ingest = job_document(theirs[f"job-{number}"], {}, **rights, has_logs=False)
                    own = {name for name in of_ingest if name.startswith("may_")} | {"place", "array_states"}
                    told = {name: value for name, value in shown[key].items() if name not in own}
                    assert told == {name: value for name, value in of_ingest.items() if name not in own}
                else:
                    assert live.page.refused[key] == f"there is no job job-{number}"
            if user in ("ann", "bob"):
                others = {"ann", "bob", "both"} - {user}
                text = json.dumps(shown)
                assert not any(f"of {other}" in text for other in others)

    asyncio.run(compare())


async def test_the_gpus_of_a_submitter_show_his_own_jobs_alone(redis_url, tmp_path):
    async with page_here(redis_url, tmp_path, ingest_address="127.0.0.1:1") as world:
        from tests.unit.web.world import running

        picture = world.running.parts.picture
        picture.take_description(description((GPU_IDS[4],)), time.time())
        picture.take_state(cluster_state({GPU_IDS[0]: 0.5}))
        picture.begin_snapshot()
        picture.take_job(running(job(1, "ann"), GPU_IDS[0]))
        picture.take_job(running(job(2, "bob"), GPU_IDS[1]))
        picture.end_snapshot()
        async with (await world.logged_in("ann")).live("gpus") as live:
            await live.until(lambda live: "gpus" in live.page.state)
            assert live.page.state["gpus"]["bytes"] == {"state": [1, 255, 255, 255, 255]}
            assert live.page.state["gpus"]["jobs"] == {"0": ["job-1"]}
        async with (await world.logged_in("rea")).live("gpus") as live:
            await live.until(lambda live: "gpus" in live.page.state)
            assert live.page.state["gpus"]["bytes"]["state"] == [1, 1, 0, 0, 3]
            assert live.page.state["gpus"]["jobs"] == {"0": ["job-1"], "1": ["job-2"]}


def test_control_messages_are_json():
    assert json.loads(frames.control("bye", reason="role", text="x")) == {"op": "bye", "reason": "role", "text": "x"}
