"""Fetches images: one that several attempts wait for is fetched once."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from typing import Any

from adlro.attempt.containers.engine import Engine, RefusedError

# What a registry says of a name that it does not know, or does not show to everybody.
_UNKNOWN = re.compile(
    r"manifest (for .* )?(not found|unknown)|repository .*(not found|does not exist)|name (unknown|invalid)|"
    r"no such image|invalid reference format|pull access denied|no matching manifest|not known to registry",
    re.IGNORECASE,
)


class UnknownImageError(Exception):
    """There is no such image: another node would not find it either."""


class NoImageError(Exception):
    """This node can't fetch it now."""


class CancelledError(Exception):
    """Nobody waits for it any more."""


class Images:
    """The images of one engine.

    Args:
        engine: it.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._pulls: dict[str, _Pull] = {}

    def get(self, name: str, *, always: bool, wanted: Callable[[], bool], look_s: float = 0.5) -> None:
        """Returns when the engine has an image.

        Args:
            name: of the image.
            always: fetches it even if the engine has one of that name.
            wanted: False: it is not waited for any more. Asked again and again.
            look_s: between two such questions.

        Raises:
            UnknownImageError: there is no such image.
            NoImageError: it can't be fetched now.
            CancelledError: it is not wanted any more.
            EngineAwayError: the engine does not answer.
        """
        try:
            if not always and self._engine.has_image(name):
                return
        except RefusedError as error:
            raise _judged(name, error) from error
        with self._lock:
            pull = self._pulls.get(name)
            begins = pull is None
            if pull is None:
                pull = self._pulls[name] = _Pull(self._engine, name, self._gone)
            pull.waiting += 1
            if begins:
                pull.thread.start()
        try:
            while not pull.done.wait(look_s):
                if not wanted():
                    raise CancelledError(name)
        finally:
            with self._lock:
                pull.waiting -= 1
        if isinstance(pull.error, CancelledError):  # it was given up just before this call came to it
            self.get(name, always=always, wanted=wanted, look_s=look_s)
        elif pull.error is not None:
            raise pull.error

    def progress(self, name: str) -> str:
        """How far the transfer of an image is, for people; empty: it is not being fetched."""
        with self._lock:
            pull = self._pulls.get(name)
        return "" if pull is None else pull.text()

    def _gone(self, name: str) -> None:
        with self._lock:
            self._pulls.pop(name, None)


class _Pull:
    """One transfer of an image, in a thread of its own."""

    def __init__(self, engine: Engine, name: str, gone: Callable[[str], None]) -> None:
        self.waiting = 0
        self.done = threading.Event()
        self.error: Exception | None = None
        self.thread = threading.Thread(target=self._run, name=f"pull {name}", daemon=True)
        self._engine, self._name, self._gone = engine, name, gone
        self._layers: dict[str, tuple[int, int]] = {}

    def text(self) -> str:
        layers = list(self._layers.values())
        here, total = (sum(each[number] for each in layers) >> 20 for number in (0, 1))
        return f"fetching image {self._name}: {here} of {total} MiB"

    def _run(self) -> None:
        try:
            self._engine.pull(self._name, self._told)
        except RefusedError as error:
            self.error = _judged(self._name, error)
        except Exception as error:  # the threads that wait raise it
            self.error = error
        finally:
            # Who comes from now on begins another transfer.
            self._gone(self._name)
            self.done.set()

    def _told(self, line: Mapping[str, Any]) -> None:
        if self.waiting == 0:
            raise CancelledError(self._name)
        detail = line.get("progressDetail") or {}
        layer = str(line.get("id", ""))
        if line.get("status") == "Downloading" and detail.get("total"):
            self._layers[layer] = (int(detail["current"]), int(detail["total"]))
        elif line.get("status") in {"Download complete", "Pull complete"} and layer in self._layers:
            total = self._layers[layer][1]
            self._layers[layer] = (total, total)


def _judged(name: str, error: RefusedError) -> Exception:
    if error.status in {400, 404} or _UNKNOWN.search(error.text):
        return UnknownImageError(
            f"the image '{name}' is not known: check its name, and whether this node may fetch it (docker login). "
            f"The engine says: {error.text}"
        )
    return NoImageError(f"this node can't fetch the image '{name}'. The engine says: {error.text}")
