"""Answers over HTTP: JSON, files of the page, and errors of the one tree with the status that fits. Knows Starlette."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from adlro.errors import (
    AdlroError,
    AlreadyExists,
    Conflict,
    DeadlineExceeded,
    InvalidInput,
    LimitExceeded,
    NotFound,
    OutOfRange,
    PermissionDenied,
    Stale,
    Unauthenticated,
    Unavailable,
    Unsupported,
)
from adlro.kit.status import to_code
from adlro.services.web.assets import Asset
from adlro.services.web.frames import compact

# The HTTP status of each kind of error; others have 500.
_STATUS: Final[dict[type[AdlroError], int]] = {
    InvalidInput: 400,
    OutOfRange: 400,
    Unauthenticated: 401,
    PermissionDenied: 403,
    NotFound: 404,
    AlreadyExists: 409,
    Conflict: 409,
    Stale: 409,
    LimitExceeded: 429,
    Unsupported: 501,
    Unavailable: 503,
    DeadlineExceeded: 504,
}


def json_answer(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A value as JSON."""
    text = compact(value).encode("utf-8", "replace")
    return Response(text, status, headers=dict(headers or {}), media_type="application/json")


def file_answer(asset: Asset, request: Request, caching: str) -> Response:
    """A file of the page, packed for browsers that take that."""
    headers = {"cache-control": caching, "vary": "accept-encoding"}
    if asset.packed and "gzip" in request.headers.get("accept-encoding", ""):
        headers["content-encoding"] = "gzip"
        return Response(asset.packed, media_type=asset.media_type, headers=headers)
    return Response(asset.plain, media_type=asset.media_type, headers=headers)


async def error_answer(_: Request, error: Exception) -> Response:
    """An error of the tree, with the HTTP status that fits."""
    assert isinstance(error, AdlroError)
    status = next((found for kind, found in _STATUS.items() if isinstance(error, kind)), 500)
    code = to_code(error).name
    if error.reason == "TOO_LARGE":
        status = 413
    body = {"error": error.message, "code": code}
    if error.field:
        body["field"] = error.field
    headers = {}
    if error.retry_after_s is not None:
        headers["retry-after"] = str(max(round(error.retry_after_s), 1))
    return json_answer(body, status, headers)


async def not_found(_: Request, __: Exception) -> Response:
    """No such path."""
    return json_answer({"error": "there is nothing under this path", "code": "NOT_FOUND"}, 404)


async def not_allowed(_: Request, __: Exception) -> Response:
    """No such method."""
    return json_answer({"error": "this path does not know the method", "code": "UNIMPLEMENTED"}, 405)


async def broken(_: Request, __: Exception) -> Response:
    """A mistake of the page itself."""
    # Starlette raises the error again, and the server logs it with its traceback.
    return json_answer({"error": "the page's service made a mistake; its log says which", "code": "INTERNAL"}, 500)
