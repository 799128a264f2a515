"""What a user sees of an error: its traceback has nothing of gRPC, whose own error is still there as `rpc`."""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from adlro.cli.certs import make_certificates
from adlro.client import AsyncClient, Client, Credentials, Endpoints
from adlro.errors import (
    AdlroError,
    Conflict,
    DeadlineExceeded,
    InternalError,
    InvalidInput,
    NotFound,
    PermissionDenied,
    Unauthenticated,
    Unavailable,
)
from adlro.records.jobs import JobSpec
from tests.unit.client.fake_suite import FakeSuite

SPEC = JobSpec("a", "ada", "ml")
REFUSALS = [
    InvalidInput("no node has so many", field="job.cpu_cores"),
    Unauthenticated("no such token"),
    PermissionDenied("not your job"),
    NotFound("there is no job job-9"),
    Conflict("it has ended"),
    InternalError("a bug", metadata={"error_id": "e-1"}),
    Unavailable("the store does not answer"),
]


def check_clean(error: BaseException, *, called: bool = True) -> None:
    """The traceback as Python prints it: one error, none of gRPC's words, and gRPC's own error at hand."""
    assert isinstance(error, AdlroError)
    text = "".join(traceback.format_exception(error))
    assert text.count("Traceback (most recent call last)") == 1, text
    for word in ("grpc", "RpcError", "During handling", "direct cause", "debug_error_string"):
        assert word not in text, text
    assert f"{type(error).__name__}: {error.message}" in text
    assert isinstance(error.rpc, grpc.RpcError) == called


def of_blocking(endpoints: Endpoints, call: Callable[[Any], Any], **options: Any) -> BaseException:
    with Client(endpoints=endpoints, patience_s=0, **options) as client, pytest.raises(AdlroError) as caught:
        call(client)
    return caught.value


async def of_asyncio(endpoints: Endpoints, call: Callable[[Any], Awaitable[Any]], **options: Any) -> BaseException:
    async with AsyncClient(endpoints=endpoints, patience_s=0, **options) as client:
        with pytest.raises(AdlroError) as caught:
            await call(client)
    return caught.value


async def first(stream: Any) -> Any:
    return await anext(aiter(stream))


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda each: type(each).__name__)
async def test_a_refusal(suite: FakeSuite, refusal: AdlroError) -> None:
    suite.fail("SubmitJob", refusal, refusal)
    check_clean(of_blocking(suite.endpoints, lambda client: client.submit(SPEC)))
    check_clean(await of_asyncio(suite.endpoints, lambda client: client.submit(SPEC)))


async def test_a_refused_stream(suite: FakeSuite) -> None:
    refusal = PermissionDenied("not your jobs")
    suite.fail("WatchJobs", refusal, refusal)
    check_clean(of_blocking(suite.endpoints, lambda client: next(client.watch())))
    check_clean(await of_asyncio(suite.endpoints, lambda client: first(client.watch())))


async def test_no_server() -> None:
    nowhere = Endpoints(*["127.0.0.1:1"] * 4)
    for error in (
        of_blocking(nowhere, lambda client: client.get("job-1")),
        of_blocking(nowhere, lambda client: next(client.watch())),
        of_blocking(nowhere, lambda client: client.submit_many([SPEC])),
        await of_asyncio(nowhere, lambda client: client.get("job-1")),
        await of_asyncio(nowhere, lambda client: first(client.watch())),
    ):
        assert isinstance(error, Unavailable)
        check_clean(error)


def test_a_wrong_address() -> None:
    with pytest.raises(InvalidInput, match="write host:port") as caught:
        Client("nowhere")
    check_clean(caught.value, called=False)
    unknown = Endpoints(*["no-such-host.invalid:7701"] * 4)
    check_clean(of_blocking(unknown, lambda client: client.get("job-1"), timeout_s=5.0))


def test_tls_that_does_not_fit(suite: FakeSuite, tmp_path: Path) -> None:
    make_certificates(tmp_path)
    shown = Credentials.from_environment({"ADLRO_TLS_CA_FILE": str(tmp_path / "ca.pem")})
    error = of_blocking(suite.endpoints, lambda client: client.get("job-1"), credentials=shown)
    check_clean(error)
    assert "does not speak TLS" in str(error)


async def test_a_deadline(suite: FakeSuite) -> None:
    suite.add(SPEC)
    check_clean(of_blocking(suite.endpoints, lambda client: client.wait(["job-1"], timeout_s=0.2)), called=False)
    error = await of_asyncio(suite.endpoints, lambda client: client.wait(["job-1"], timeout_s=0.2))
    assert isinstance(error, DeadlineExceeded)
    check_clean(error, called=False)


def test_an_error_of_another_thread(suite: FakeSuite) -> None:
    suite.fail("GetJob", NotFound("there is no job job-9"))
    with Client(endpoints=suite.endpoints, patience_s=0) as client, ThreadPoolExecutor(1) as threads:
        error = threads.submit(client.get, "job-9").exception()
    assert error is not None
    check_clean(error)


def test_a_second_try_that_fails_does_not_tell_of_the_first(suite: FakeSuite) -> None:
    suite.fail("GetJob", Unavailable("not now"), NotFound("there is no job job-9"))
    with Client(endpoints=suite.endpoints, patience_s=30) as client, pytest.raises(NotFound) as caught:
        client.get("job-9")
    check_clean(caught.value)
