"""A receiver of webhooks on loopback, which answers as a test wants it to and keeps what it got."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from adlro.webhooks import verify

SECRET = "whsec_" + "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="


@dataclass
class Request:
    """A message as it came."""

    path: str
    headers: dict[str, str]
    body: bytes
    at_s: float

    @property
    def document(self) -> dict[str, Any]:
        """The message, once its signature is verified."""
        found: dict[str, Any] = verify(self.headers, self.body, SECRET)
        return found


@dataclass
class Receiver:
    """The receiver.

    Attributes:
        port: on loopback.
        requests: what came, in order, whatever the answer was.
        accepted: documents that it answered with 2xx, in order; others count as not received.
        answer: makes the status, and more headers, of a request's answer.
    """

    port: int = 0
    requests: list[Request] = field(default_factory=list)
    accepted: list[dict[str, Any]] = field(default_factory=list)
    answer: Callable[[Request], tuple[int, dict[str, str]]] = field(default=lambda request: (204, {}))
    _server: http.server.ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        """Of the receiver."""
        return f"http://127.0.0.1:{self.port}/hook?x=1"

    def start(self) -> None:
        """Listens, at its port if it had one before."""
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                request = Request(self.path, headers, body, time.monotonic())
                receiver.requests.append(request)
                status, more = receiver.answer(request)
                # Before the answer: a sender that was told yes counts on it.
                if 200 <= status < 300:
                    receiver.accepted.append(request.document)
                with contextlib.suppress(OSError):
                    self.send_response(status)
                    for name, value in more.items():
                        self.send_header(name, value)
                    self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

        self._server = Server(("127.0.0.1", self.port), Handler)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        """Listens no more: connections are refused."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def ended_jobs(self) -> list[str]:
        """The jobs whose end it was told, each as often as it was."""
        return [each["job"]["job_id"] for each in self.accepted if each["event"] == "job_ended"]

    async def until(self, condition: Callable[[Receiver], bool], timeout_s: float = 60.0) -> None:
        """Returns when something is true of it."""
        end_s = time.monotonic() + timeout_s
        while not condition(self):
            assert time.monotonic() < end_s, f"waited {timeout_s:g} s in vain; {len(self.accepted)} accepted"
            await asyncio.sleep(0.01)


@contextlib.contextmanager
def receiver() -> Iterator[Receiver]:
    """A receiver that listens."""
    made = Receiver()
    made.start()
    try:
        yield made
    finally:
        made.stop()
