"""The routes: each request passes the protection, then finds its viewer, then its answer. Knows Starlette."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import structlog
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp
from starlette.websockets import WebSocket

from adlro.errors import (
    AdlroError,
    InvalidInput,
    NotFound,
    PermissionDenied,
    Unauthenticated,
    Unavailable,
)
from adlro.services.web import actions, api, decisions, folders, load, protection
from adlro.services.web.answers import broken, error_answer, file_answer, json_answer, not_allowed, not_found
from adlro.services.web.assets import Assets
from adlro.services.web.gate import Protected
from adlro.services.web.live import LiveSockets
from adlro.services.web.logins import Logins
from adlro.services.web.picture import Picture
from adlro.services.web.sessions import Session
from adlro.services.web.settings import WebSettings
from adlro.services.web.viewers import EVERYBODY, Viewer

# How long the first page waits for the cluster's own description.
_FIRST_LOOK_S: Final = 0.5
# How long a question waits for the table of jobs.
_SETTLED_WITHIN_S: Final = 3.0
_LOOK_EVERY_S: Final = 0.05
_BODY_WITHIN_S: Final = 20.0
# The paths that the page's own script fills.
PAGES: Final = (
    *("/", "/queue", "/gantt", "/decisions", "/policies", "/learning", "/reports", "/submit", "/login"),
    *("/jobs/{id:path}", "/gpus/{id:path}", "/decisions/{id:path}"),
)


@dataclass(frozen=True, slots=True)
class Parts:
    """What the routes use.

    Attributes:
        logins: None where there are no users: everybody may do all.
        serving: whether the page answers, for who looks after the process.
        jobs_settled: whether the picture's table of jobs is that of now.
    """

    settings: WebSettings
    picture: Picture
    live: LiveSockets
    clients: api.UserClients
    logins: Logins | None
    assets: Assets
    hosts: protection.Hosts
    log: structlog.typing.FilteringBoundLogger
    serving: Callable[[], bool]
    jobs_settled: Callable[[], bool]

    @property
    def tls(self) -> bool:
        """Whether the page is served over TLS."""
        return bool(self.settings.tls_cert_file)

    @property
    def cookie(self) -> str:
        """The name of the login's cookie; browsers take the first only from TLS."""
        return "__Host-adlro" if self.tls else "adlro"


def make_app(parts: Parts) -> ASGIApp:
    """The page as an ASGI application."""
    routes = _Routes(parts)
    starlette = Starlette(
        routes=[
            Route("/healthz", routes.health),
            Route("/static/{version}/{name:path}", routes.static),
            Route("/login", routes.login, methods=["POST"]),
            Route("/logout", routes.logout, methods=["POST"]),
            Route("/api/me", routes.me),
            Route("/api/jobs/{id}", routes.job),
            Route("/api/jobs/{id}/logs", routes.logs),
            Route("/api/gpus/{id:path}", routes.gpu),
            Route("/api/decisions", routes.decisions),
            Route("/api/decisions/{id}", routes.decision),
            Route("/api/gantt", routes.gantt),
            Route("/api/load", routes.load),
            Route("/api/policies", routes.policies),
            Route("/api/capacity", routes.capacity),
            Route("/api/runs", routes.runs),
            Route("/api/runs/{id}", routes.run),
            Route("/api/reports", routes.reports),
            Route("/reports/{name}", routes.report),
            Route("/api/actions/{name}", routes.act, methods=["POST"]),
            *(Route(path, routes.page) for path in PAGES),
            WebSocketRoute("/live/v1", routes.socket),
        ],
        exception_handlers={AdlroError: error_answer, 404: not_found, 405: not_allowed, 500: broken},
    )
    return Protected(starlette, parts.hosts, tls=parts.tls)


class _Routes:
    """The handlers of the routes."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    # The page itself

    async def page(self, request: Request) -> Response:
        """The page; its script shows what the path names."""
        return file_answer(self._parts.assets.index, request, "no-cache")

    async def static(self, request: Request) -> Response:
        """A file of the page."""
        asset = self._parts.assets.find(request.path_params["version"], request.path_params["name"])
        if asset is None:
            raise NotFound("there is no such file; load the page again")
        return file_answer(asset, request, "public, max-age=31536000, immutable")

    async def health(self, _: Request) -> Response:
        """Whether the process serves."""
        return json_answer({"serving": self._parts.serving()}, 200 if self._parts.serving() else 503)

    # Login

    async def login(self, request: Request) -> Response:
        """A token for a cookie."""
        logins = self._parts.logins
        if logins is None:
            return Response(status_code=204)
        address = request.client.host if request.client else ""
        token = (await _body(request)).get("token")
        logins.sessions.count_try(address)
        try:
            session = await logins.begin(token.strip()) if isinstance(token, str) else None
        except BaseException:
            logins.sessions.forgive_try(address)  # ingest has not refused it
            raise
        if session is not None:
            logins.sessions.forgive_try(address)
        else:
            self._parts.log.warning("login refused", address=address)
            raise Unauthenticated("nobody has this token; `adlro token` makes one, and an operator adds its line")
        old = await self._session(request)
        if old is not None:
            self._end(old)
        self._parts.log.info("login", user=session.viewer.user, address=address)
        response = Response(status_code=204)
        response.set_cookie(
            self._parts.cookie,
            session.session_id,
            max_age=int(self._parts.settings.session_limit_s),
            path="/",
            httponly=True,
            secure=self._parts.tls,
            samesite="strict",
        )
        return response

    async def logout(self, request: Request) -> Response:
        """The end of a login, and of its pages."""
        session = await self._session(request)
        if session is not None:
            self._end(session)
            self._parts.log.info("logout", user=session.viewer.user)
        response = Response(status_code=204)
        response.delete_cookie(self._parts.cookie, path="/", httponly=True, secure=self._parts.tls, samesite="strict")
        return response

    def _end(self, session: Session) -> None:
        if self._parts.logins is not None:
            self._parts.logins.sessions.end(session)
        self._parts.live.end_session(session, "logout")

    async def me(self, request: Request) -> Response:
        """Who looks, and what he may see and do."""
        viewer, session = await self._viewer(request)
        settings, picture = self._parts.settings, self._parts.picture
        if viewer.sees_all and picture.described is None:
            # The first page of all asks before any stream has said what the cluster can do.
            with contextlib.suppress(AdlroError, TimeoutError):
                async with asyncio.timeout(_FIRST_LOOK_S):
                    picture.take_description(await self._parts.clients.of(session).describe_cluster(), time.time())
        told = [each for each in viewer.actions if each != "clock" or picture.capabilities.virtual_clock]
        screens = ["cluster", "queue", "gantt"]
        screens += ["submit"] if "submit" in viewer.actions else []
        there = {"learning": bool(settings.runs_dir), "reports": bool(settings.reports_dir)}
        screens += [each for each in viewer.readers_screens if there.get(each, True)]
        clock = picture.clock
        return json_answer(
            {
                "user": viewer.user,
                "roles": sorted(viewer.roles),
                "users_known": self._parts.logins is not None,
                "actions": told,
                "screens": screens,
                "clock": None if clock is None else clock.mode.name.lower(),
                "grafana_url": settings.grafana_url,
            }
        )

    # Questions

    async def job(self, request: Request) -> Response:
        """One job."""
        viewer, session = await self._viewer(request)
        client = self._parts.clients.of(session)
        return json_answer(await api.job_answer(client, viewer, self._parts.picture, request.path_params["id"]))

    async def logs(self, request: Request) -> Response:
        """A piece of a job's output."""
        _, session = await self._viewer(request)
        client = self._parts.clients.of(session)
        return json_answer(await api.logs_answer(client, request.path_params["id"], request.query_params))

    async def gpu(self, request: Request) -> Response:
        """One GPU."""
        _, session = await self._reader(request)
        client = self._parts.clients.of(session)
        gpu_id = request.path_params["id"]
        return json_answer(await api.gpu_answer(client, self._parts.picture, gpu_id, request.query_params))

    async def decision(self, request: Request) -> Response:
        """One decision."""
        _, session = await self._reader(request)
        client = self._parts.clients.of(session)
        return json_answer(await decisions.decision_answer(client, request.path_params["id"]))

    async def decisions(self, request: Request) -> Response:
        """Decisions of a time."""
        _, session = await self._reader(request)
        return json_answer(await decisions.decisions_answer(self._parts.clients.of(session), request.query_params))

    async def policies(self, request: Request) -> Response:
        """The policies."""
        _, session = await self._reader(request)
        client, folder = self._parts.clients.of(session), self._parts.settings.reports_dir
        return json_answer(await api.policies_answer(client, folder))

    async def capacity(self, request: Request) -> Response:
        """The GPUs by model, and what fits."""
        _, session = await self._viewer(request)
        client, query = self._parts.clients.of(session), request.query_params
        return json_answer(await api.capacity_answer(client, query, query.getlist("gpu_model")))

    async def gantt(self, request: Request) -> Response:
        """What ran where."""
        viewer, session = await self._viewer(request)
        client = self._parts.clients.of(session)
        return json_answer(await api.gantt_answer(client, viewer, self._parts.picture, request.query_params))

    async def load(self, request: Request) -> Response:
        """How many jobs waited and how many GPUs were allocated."""
        viewer, session = await self._viewer(request)
        # A page asks as soon as it is open: its streams are just being opened too.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SETTLED_WITHIN_S):
                while not self._parts.jobs_settled():  # noqa: ASYNC110 - many things together make it so
                    await asyncio.sleep(_LOOK_EVERY_S)
        if not self._parts.jobs_settled():
            raise Unavailable("the jobs are still being read; try again in a moment")
        client, picture = self._parts.clients.of(session), self._parts.picture
        return json_answer(await load.load_answer(client, viewer, picture, request.query_params))

    async def runs(self, request: Request) -> Response:
        """The trainings."""
        await self._reader(request)
        return json_answer({"runs": await _in_thread(folders.runs, self._parts.settings.runs_dir)})

    async def run(self, request: Request) -> Response:
        """One training."""
        await self._reader(request)
        return json_answer(await _in_thread(folders.run, self._parts.settings.runs_dir, request.path_params["id"]))

    async def reports(self, request: Request) -> Response:
        """The evaluations."""
        await self._reader(request)
        return json_answer({"reports": await _in_thread(folders.reports, self._parts.settings.reports_dir)})

    async def report(self, request: Request) -> Response:
        """An evaluation's own page, in a sandbox: it reaches neither the network nor the login."""
        await self._reader(request)
        content = await _in_thread(folders.report, self._parts.settings.reports_dir, request.path_params["name"])
        headers = {"content-security-policy": protection.REPORT_POLICY, "x-frame-options": "SAMEORIGIN"}
        return Response(content, media_type="text/html; charset=utf-8", headers=headers)

    # Actions

    async def act(self, request: Request) -> Response:
        """What a user changes."""
        viewer, session = await self._viewer(request)
        name = request.path_params["name"]
        do = actions.action(name)
        if name not in viewer.actions:
            roles = " and ".join(sorted(viewer.roles)) or "nobody"
            raise PermissionDenied(f"{viewer.user} is {roles}; {name} needs another role", reason="ROLE_MISSING")
        given = await _body(request)
        what = {key: value for key, value in given.items() if isinstance(value, str | int | float | bool)}
        try:
            answer = await do(self._parts.clients.of(session), viewer, given)
        except AdlroError as error:
            self._parts.log.warning("action refused", action=name, user=viewer.user, given=what, problem=error.message)
            raise
        self._parts.log.info("action", action=name, user=viewer.user, given=what, answer=answer)
        return json_answer(answer)

    # The live stream

    async def socket(self, websocket: WebSocket) -> None:
        """One page's live stream."""
        try:
            viewer, session = await self._viewer(websocket)
        except Unauthenticated:
            await websocket.close(1008, "log in first")
            return
        await self._parts.live.serve(websocket, viewer, session)

    # Who looks

    async def _session(self, request: Request | WebSocket) -> Session | None:
        logins = self._parts.logins
        return None if logins is None else await logins.find(request.cookies.get(self._parts.cookie, ""))

    async def _viewer(self, request: Request | WebSocket) -> tuple[Viewer, Session | None]:
        """Who looks. Raises Unauthenticated."""
        if self._parts.logins is None:
            return EVERYBODY, None
        session = await self._session(request)
        if session is None:
            raise Unauthenticated("log in first")
        return session.viewer, session

    async def _reader(self, request: Request) -> tuple[Viewer, Session | None]:
        """Who looks at what only readers see. Raises PermissionDenied too."""
        viewer, session = await self._viewer(request)
        if not viewer.sees_all:
            roles = " and ".join(sorted(viewer.roles))
            raise PermissionDenied(
                f"{viewer.user} is {roles}; this needs the role reader or operator", reason="ROLE_MISSING"
            )
        return viewer, session


async def _body(request: Request) -> Mapping[str, Any]:
    """A request's JSON object. Raises InvalidInput."""
    try:
        async with asyncio.timeout(_BODY_WITHIN_S):
            body = await request.body()
    except TimeoutError:
        raise InvalidInput(f"the body did not come within {_BODY_WITHIN_S:g} s", field="body") from None
    try:
        given = json.loads(body or b"{}")
    except (ValueError, RecursionError):
        raise InvalidInput("the body must be a JSON object", field="body") from None
    if not isinstance(given, dict):
        raise InvalidInput("the body must be a JSON object", field="body")
    return given


async def _in_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    return await asyncio.to_thread(function, *arguments)
