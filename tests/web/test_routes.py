"""Every route and topic for every role and for nobody; requests that another page made; headers; limits."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from adlro.client import JobSpec, JobType
from adlro.kit.access import ROLES
from adlro.kit.identity import Role
from adlro.services.web.app import PAGES, make_app
from adlro.services.web.gate import Protected
from adlro.services.web.topics import NAMES
from tests.web.page_suite import USERS, Browser, World, page_here

SUBMIT, READ, OPERATE, SERVE = Role.SUBMITTER, Role.READER, Role.OPERATOR, Role.SERVICE
ALL = frozenset(Role)
READERS = frozenset({READ, OPERATE, SERVE})


def roles_of(*methods: str) -> frozenset[Role]:
    """Who may call all of these methods."""
    full = {name.rpartition("/")[2]: roles for name, roles in ROLES.items()}
    return frozenset.intersection(*(full[each] for each in methods))


# Each route, an example of its path, and who may use it: those who may make the calls that its answer rests on.
QUESTIONS = {
    "/api/me": ("/api/me", ALL),
    "/api/jobs/{id}": ("/api/jobs/job-1", roles_of("GetJob")),
    "/api/jobs/{id}/logs": ("/api/jobs/job-1/logs", roles_of("ReadJobLogs")),
    "/api/gpus/{id:path}": ("/api/gpus/volta-0%2F0", roles_of("GetTelemetry", "GetClusterState", "QueryAttempts")),
    "/api/decisions/{id}": ("/api/decisions/d-1-1", roles_of("ExplainDecision")),
    "/api/decisions": ("/api/decisions", roles_of("ListDecisions")),
    "/api/gantt": ("/api/gantt", roles_of("QueryAttempts", "GetCluster")),
    "/api/load": ("/api/load?span_s=600", roles_of("ListJobs", "QueryAttempts")),
    "/api/policies": ("/api/policies", roles_of("ListPolicies", "GetStatus")),
    "/api/capacity": ("/api/capacity", roles_of("GetCluster", "GetClusterCapacity")),
    "/api/runs": ("/api/runs", READERS),
    "/api/runs/{id}": ("/api/runs/one", READERS),
    "/api/reports": ("/api/reports", READERS),
    "/reports/{name}": ("/reports/one.html", READERS),
}
ACTIONS = {
    "submit": ({"job": {"job_type": "simulation"}}, roles_of("SubmitJob")),
    "cancel": ({"job_id": "job-1"}, roles_of("CancelJob")),
    "hold": ({"job_id": "job-1"}, roles_of("HoldJobs")),
    "release": ({"job_id": "job-1"}, roles_of("ReleaseJobs")),
    "requeue": ({"job_id": "job-1"}, roles_of("SubmitJob")),
    "drain": ({"node_id": "volta-0"}, roles_of("DrainNode")),
    "undrain": ({"node_id": "volta-0"}, roles_of("UndrainNode")),
    "policy": ({"policy": "fcfs"}, roles_of("SetPolicy")),
    "shadow": ({"policy": "fcfs"}, roles_of("SetShadowPolicy")),
    # Services of the suite set it in evaluations; nobody logs in as one to press a button.
    "clock": ({"paused": True}, roles_of("SetClock") - {SERVE}),
}
TOPICS = {
    "head": ("head", ALL),
    "gpus": ("gpus", ALL),
    "queue": ("queue", roles_of("WatchJobs")),
    "job": ("job?id=job-1", roles_of("WatchJobs")),
    "gpu": ("gpu?id=volta-0%2F0", roles_of("WatchClusterState")),
    "decisions": ("decisions", roles_of("WatchDecisions")),
}
OPEN = {"/healthz", "/static/{version}/{name:path}", "/login", "/logout", "/api/actions/{name}", *PAGES}


@pytest.fixture
async def world(redis_url: str, tmp_path: Path) -> AsyncIterator[World]:
    (tmp_path / "runs" / "one").mkdir(parents=True)
    (tmp_path / "runs" / "one" / "curve.jsonl").write_text('{"step": 1, "return": 2.0}\n')
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports" / "one.html").write_text("<script>1</script>")
    folders: dict[str, Any] = {"runs_dir": str(tmp_path / "runs"), "reports_dir": str(tmp_path / "reports")}
    async with page_here(redis_url, tmp_path, **folders) as made:
        async with made.client("ann") as client:
            await client.submit(JobSpec("train", "ann", JobType.MACHINE_LEARNING))
        yield made


def may(user: str, roles: frozenset[Role]) -> bool:
    return bool(set(USERS[user]) & roles)


async def test_the_tables_have_every_route_action_and_topic(world):
    app = make_app(world.running.parts)
    assert isinstance(app, Protected)
    assert isinstance(app._app, Starlette)
    paths = {route.path for route in app._app.routes if isinstance(route, Route)}
    assert paths == OPEN | set(QUESTIONS)
    assert set(TOPICS) == set(NAMES)
    answer = await (await world.logged_in("ops")).post("/api/actions/nothing")
    assert answer.status == 404
    assert set(re.findall(r"\w+", answer.json["error"].partition("actions are ")[2])) == set(ACTIONS)


@pytest.mark.slow
@pytest.mark.parametrize("user", USERS)
async def test_each_question_is_answered_to_those_who_may_ask_the_services(world, user):
    browser = await world.logged_in(user)
    # All at once: most of them wait for services that are not there.
    answers = await asyncio.gather(*(browser.get(path) for path, _ in QUESTIONS.values()))
    for answer, (path, roles) in zip(answers, QUESTIONS.values(), strict=True):
        # The job is ann's: another submitter learns no more of it than of one that does not exist.
        hidden = user == "bob" and "job-1" in path
        if not may(user, roles):
            assert answer.status == 403, path
            assert answer.json["code"] == "PERMISSION_DENIED"
        elif hidden:
            assert answer.status == 404, path
        else:
            # Of the services only ingest is there; its cluster is not described, and its jobs have no output.
            assert answer.status in (200, 404, 409, 503), (path, answer.body)


@pytest.mark.slow
@pytest.mark.parametrize("user", USERS)
async def test_each_action_is_done_for_those_whom_the_services_let(world, user):
    browser = await world.logged_in(user)
    for name, (body, roles) in ACTIONS.items():
        answer = await browser.post(f"/api/actions/{name}", body)
        if not may(user, roles):
            assert answer.status == 403, name
        elif name in ("cancel", "hold", "release") and user in ("bob", "both"):
            assert answer.status in (403, 404), name
        elif name == "requeue" and user in ("bob", "both"):
            # A reader may know that it has not ended.
            assert answer.status == (404 if user == "bob" else 409)
        else:
            assert answer.status in (200, 400, 409, 503), (name, answer.body)
    me = (await browser.get("/api/me")).json
    assert set(me["actions"]) == {name for name, (_, roles) in ACTIONS.items() if may(user, roles)} - {"clock"}
    assert me["users_known"]
    assert me["user"] == user


@pytest.mark.slow
@pytest.mark.parametrize("user", USERS)
async def test_each_topic_is_for_those_who_may_ask_the_services(world, user):
    browser = await world.logged_in(user)
    async with browser.live(*(key for key, _ in TOPICS.values())) as live:
        # Nobody describes a cluster here: what is made of one does not come, and is not refused either.
        await live.until(lambda live: "queue" in live.page.state)
        for _ in range(3):
            await live.take()
        for key, roles in TOPICS.values():
            if not may(user, roles):
                assert "needs the role" in live.page.refused[key]
            elif user == "bob" and key.startswith("job?"):
                assert live.page.refused[key] == "there is no job job-1"
            else:
                assert key not in live.page.refused


async def test_nobody_gets_nothing_without_a_login(world):
    browser = world.browser()
    for path, _ in QUESTIONS.values():
        answer = await browser.get(path)
        assert (answer.status, answer.json["code"]) == (401, "UNAUTHENTICATED"), path
    for name, (body, _) in ACTIONS.items():
        assert (await browser.post(f"/api/actions/{name}", body)).status == 401
    with pytest.raises(Exception, match="403"):
        async with browser.live():
            pass
    for cookie in ("adlro=wrong", "adlro=", "__Host-adlro=x"):
        assert (await Browser(browser.address, cookie).get("/api/me")).status == 401


async def test_the_page_itself_and_its_health_need_no_login(world):
    browser = world.browser()
    for path in ("/", "/queue", "/jobs/job-1", "/gpus/volta-0/2", "/decisions/d-1-2", "/login"):
        answer = await browser.get(path)
        assert (answer.status, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert b"__VERSION__" not in answer.body
    assert (await browser.get("/healthz")).json == {"serving": True}
    assert (await browser.get("/nothing")).status == 404


async def test_every_answer_has_the_headers(world):
    browser = await world.logged_in("rea")
    for path in ("/", "/api/me", "/nothing", "/static/x/y.js", "/api/jobs/job-99", "/reports/none.html"):
        answer = await browser.get(path)
        assert answer.headers["x-content-type-options"] == "nosniff", path
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; "), path
        assert f"connect-src 'self' ws://{browser.address}" in policy
        assert "unsafe" not in policy
        assert "server" not in answer.headers
    assert (await browser.get("/api/me")).headers["cache-control"] == "no-store"


async def test_a_report_is_in_a_sandbox(world):
    answer = await (await world.logged_in("rea")).get("/reports/one.html")
    assert answer.body == b"<script>1</script>"
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("sandbox allow-scripts; default-src 'none'")
    assert "allow-same-origin" not in policy
    assert "connect-src" not in policy


@pytest.mark.parametrize(
    "name", ["..%2Fusers", "%2e%2e%2fusers", ".hidden", "one.txt", "a%00b", "one.html%2F..%2F..%2Fusers"]
)
async def test_no_file_outside_the_folders_is_shown(world, name):
    browser = await world.logged_in("ops")
    assert (await browser.get(f"/reports/{name}")).status == 404
    assert (await browser.get(f"/api/runs/{name}")).status == 404
    assert (await browser.get(f"/static/{world.running.parts.assets.version}/{name}")).status == 404


async def test_another_host_is_refused_with_and_without_users(world):
    browser = await world.logged_in("ops")
    for path in ("/", "/api/me", "/static/x/y"):
        answer = await browser.get(path, host="evil.example")
        assert answer.status == 421
        assert "evil.example" not in answer.headers["content-security-policy"]
    assert (await browser.post("/login", {}, host="evil.example", origin="http://evil.example")).status == 421


async def test_requests_that_other_pages_made_are_refused(world):
    browser = await world.logged_in("ops")
    path = "/api/actions/cancel"
    for headers in (
        {"origin": "http://evil.example"},
        {"origin": ""},
        {"origin": "null"},
        {"x_adlro": ""},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
    ):
        for where in (path, "/login", "/logout"):
            assert (await browser.post(where, {"job_id": "job-1"}, **headers)).status == 403, headers
    assert (await browser.get("/api/me", sec_fetch_site="cross-site")).status == 403
    assert (await browser.get("/", sec_fetch_site="cross-site")).status == 200  # a link in a mail
    for origin in ("http://evil.example", None, "null"):
        with pytest.raises(Exception, match="403"):
            async with browser.live(origin=origin):
                pass


async def test_methods_and_bodies_have_limits(world):
    browser = await world.logged_in("ann")
    assert (await browser.post("/api/actions/submit", b"{" + b" " * 70_000)).status == 413
    for body in (b"[]", b"{", b"\xff", b"[" * 30_000):
        answer = await browser.post("/api/actions/submit", body)
        assert (answer.status, answer.json["field"]) == (400, "body")
    assert (await browser.post("/", {})).status == 405
    assert (await asyncio.to_thread(browser._ask, "DELETE", "/api/me", None, {})).status == 405
    assert (await asyncio.to_thread(browser._ask, "PUT", "/api/me", b"x", {})).status == 405


async def test_a_job_is_submitted_in_the_users_own_name_and_cancelled(world):
    ann = await world.logged_in("ann")
    answer = await ann.post(
        "/api/actions/submit", {"job": {"job_type": "simulation", "name": "<b>x</b>"}, "request_id": "r"}
    )
    again = await ann.post(
        "/api/actions/submit", {"job": {"job_type": "simulation", "name": "<b>x</b>"}, "request_id": "r"}
    )
    assert answer.json == again.json
    job_id = answer.json["job_id"]
    shown = (await ann.get(f"/api/jobs/{job_id}")).json["job"]
    assert (shown["user"], shown["name"], shown["may_cancel"]) == ("ann", "<b>x</b>", True)
    other = await ann.post("/api/actions/submit", {"job": {"job_type": "simulation", "user": "bob"}})
    assert (other.status, other.json["field"]) == (403, "job.user")
    assert (await (await world.logged_in("bob")).post("/api/actions/cancel", {"job_id": job_id})).status == 404
    assert (await ann.post("/api/actions/cancel", {"job_id": job_id})).status == 200
    # Without an orchestrator here it is asked for, and not done yet.
    assert (await ann.get(f"/api/jobs/{job_id}")).json["job"]["cancel_requested"]


async def test_a_job_is_held_and_an_array_waits_for_it(world):
    ann = await world.logged_in("ann")
    assert (await ann.post("/api/actions/hold", {"job_id": "job-1"})).json == {"job_count": 1}
    # Without an orchestrator here it is asked for, and not done yet.
    assert (await ann.get("/api/jobs/job-1")).json["job"]["asked"] == ["hold"]
    wanted = {"job": {"job_type": "simulation", "held": True, "after": ["1:any"]}, "array": "0-2%2"}
    made = (await ann.post("/api/actions/submit", wanted)).json
    assert made == {"job_id": "job-2", "array_id": "array-2", "job_count": 3}
    shown = (await ann.get("/api/jobs/job-3")).json["job"]
    assert shown["array"] == {"id": "array-2", "index": 1, "count": 3, "max_running": 2}
    assert [(each["id"], each["condition"]) for each in shown["after"]] == [("job-1", "any")]
    assert (await ann.post("/api/actions/hold", {"job_id": "array-2"})).json == {"job_count": 3}
    assert (await ann.post("/api/actions/cancel", {"job_id": "array-2"})).json == {"job_count": 3}
    # Nobody else learns of it, and an operator's hold is his to end.
    assert (await (await world.logged_in("bob")).post("/api/actions/hold", {"job_id": "job-1"})).status == 404
    assert (await (await world.logged_in("ops")).post("/api/actions/hold", {"job_id": "job-1"})).status == 200
    refused = await ann.post("/api/actions/release", {"job_id": "job-1"})
    assert (refused.status, refused.json["error"].count("an operator holds job-1")) == (403, 1)


@pytest.mark.parametrize(
    ("job", "field"),
    [
        ({"job_type": "x"}, "job_type"),
        ({}, "job_type"),
        ({"argv": [""]}, "payload.process.argv"),
        ({"argv": ["x"], "image": "-x"}, "payload.container.image"),
        ({"job_type": "simulation", "cpu_cores": "4"}, "cpu_cores"),
        ({"job_type": "simulation", "cpu_cores": -1}, "cpu_cores"),
        ({"job_type": "simulation", "labels": {"a": 1}}, "labels"),
        ({"job_type": "simulation", "gpu_models": "v100"}, "gpu_models"),
        ({"job_type": "simulation", "shareable": 1}, "shareable"),
        ({"job_type": "simulation", "exclusive": 1}, "exclusive"),
        ({"job_type": "simulation", "excluded_node_ids": "v100-1"}, "excluded_node_ids"),
        ({"job_type": "simulation", "node_ids": ["n", "n"]}, "job.node_ids"),
        ({"job_type": "simulation", "expected_runtime": {"gpu_model": "v100"}}, "expected_runtime.runtime_s"),
        ({"job_type": "simulation", "nothing": 1}, "body"),
        ({"job_type": "simulation", "priority": 7}, "job.priority"),
        ({"job_type": "simulation", "workdir": "/x"}, "argv"),
        ({"job_type": "simulation", "after": ["job-1", "job-4711"]}, "job.after[1].job_id"),
        ({"job_type": "simulation", "after": ["x"]}, "after"),
    ],
)
async def test_wrong_fields_of_a_job_are_named(world, job, field):
    answer = await (await world.logged_in("ann")).post("/api/actions/submit", {"job": job})
    assert (answer.status, answer.json["field"]) == (400, field), answer.body


async def test_files_of_the_page_are_packed_and_kept(world):
    browser, version = world.browser(), world.running.parts.assets.version
    plain = await browser.get(f"/static/{version}/live.js")
    packed = await browser.get(f"/static/{version}/live.js", accept_encoding="gzip")
    assert plain.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert plain.headers["content-type"] == "text/javascript; charset=utf-8"
    assert packed.headers["content-encoding"] == "gzip"
    assert len(packed.body) < len(plain.body)
    assert (await browser.get("/static/another/live.js")).status == 404


async def test_large_answers_are_packed_for_browsers_that_take_that(world):
    browser = await world.logged_in("ann")
    async with world.client("ann") as client:
        made = await client.submit(JobSpec("x" * 200, "ann", JobType.MACHINE_LEARNING, labels={"a": "b" * 60}))
    plain = await browser.get(f"/api/jobs/{made.job_id}")
    packed = await browser.get(f"/api/jobs/{made.job_id}", accept_encoding="gzip")
    assert "content-encoding" not in plain.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert int(packed.headers["content-length"]) == len(packed.body) < len(plain.body)
    assert json.loads(gzip.decompress(packed.body))["job"] == plain.json["job"]
    assert packed.headers["x-content-type-options"] == "nosniff"
    small = await browser.get("/api/me", accept_encoding="gzip")
    assert "content-encoding" not in small.headers
    assert small.json["user"] == "ann"


async def test_without_users_everybody_may_do_all_and_no_login_is_needed(redis_url, tmp_path):
    async with page_here(redis_url, tmp_path, users=False) as world:
        browser = world.browser()
        me = (await browser.get("/api/me")).json
        assert (me["users_known"], me["user"], me["roles"]) == (False, "", [])
        assert set(me["actions"]) == set(ACTIONS) - {"clock"}
        assert (await browser.post("/login", {"token": "x"})).status == 204
        answer = await browser.post("/api/actions/submit", {"job": {"job_type": "simulation", "user": "ann"}})
        assert answer.status == 200
        async with browser.live("queue") as live:
            await live.until(lambda live: live.page.state.get("queue", {}).get("total") == 1)
        # What is open to everybody on this machine is open to no other page in his browser.
        assert (await browser.get("/api/me", host="evil.example")).status == 421
        assert (
            await browser.post("/api/actions/cancel", {"job_id": "job-1"}, origin="http://evil.example")
        ).status == 403


async def test_a_login_by_the_page(world):
    browser = world.browser()
    refused = await browser.login("ann." + "x" * 43)
    assert (refused.status, refused.json["code"]) == (401, "UNAUTHENTICATED")
    answer = await browser.login(world.tokens["ann"] + "\n")
    assert answer.status == 204
    cookie = answer.headers["set-cookie"].lower()
    assert all(part in cookie for part in ("httponly", "samesite=strict", "path=/", "max-age=43200"))
    assert "secure" not in cookie  # over HTTP on loopback a browser would not keep it
    assert world.tokens["ann"] not in json.dumps(dict(answer.headers))
    assert (await browser.get("/api/me")).json["user"] == "ann"
    old = browser.cookie
    assert (await browser.login(world.tokens["ann"])).status == 204
    assert (await Browser(browser.address, old).get("/api/me")).status == 401
    assert (await browser.post("/logout")).status == 204
    assert (await browser.get("/api/me")).status == 401


async def test_five_tries_to_log_in_a_minute(world):
    browser = world.browser()
    # Those that are right are not counted.
    assert [(await browser.login(world.tokens["ann"])).status for _ in range(7)] == [204] * 7
    assert [(await browser.login("x")).status for _ in range(5)] == [401] * 5
    answer = await browser.login(world.tokens["ann"])
    assert answer.status == 429
    assert "try again in" in answer.json["error"]
    assert 0 < int(answer.headers["retry-after"]) <= 60
