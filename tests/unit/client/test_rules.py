"""What is refused before anything is sent: numbers, lengths and kinds that the contract does not allow."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest

from adlro.client import AsyncClient, Client
from adlro.errors import InvalidInput
from adlro.records.jobs import JobSpec
from tests.unit.client.fake_suite import FakeSuite

BAD: dict[str, tuple[dict[str, Any], str, str]] = {
    "too much": ({"priority": 7}, "job.priority", "at most 1, not 7"),
    "too little": ({"gpus": -1}, "job.gpu_count", "at least 0, not -1"),
    "nothing": ({"time_limit": 0}, "job.time_limit_s", "more than 0"),
    "no number": ({"time_limit_s": math.nan}, "job.time_limit_s", "finite"),
    "a text with a unit": ({"time_limit_s": "1h"}, "job.time_limit_s", "time_limit='1h'"),
    "a size with a unit": ({"memory_mib": "16GiB"}, "job.memory_mib", "memory='16GiB'"),
    "half a core": ({"cores": 1.5}, "job.cpu_cores", "a whole number, not 1.5"),
    "a long user": ({"user": "x" * 65}, "job.user", "at most 64 characters"),
    "no text": ({"application": 3}, "job.application", "a text, not 3"),
    "a label that is no text": ({"labels": {"epochs": 3}}, "job.labels", "texts to texts"),
    "no labels": ({"labels": 3}, "job.labels", "texts to texts"),
    "no expected runtime": ({"expected_runtime": 5.0}, "job.expected_runtime", "of ExpectedRuntime, not 5.0"),
    "a runtime without an end": ({"runtime": 1e12}, "job.expected_runtime.runtime_s", "at most"),
    "many labels": ({"labels": {f"l{n}": "" for n in range(65)}}, "job.labels", "at most 64 entries"),
    "no type": ({"job_type": 0}, "job.job_type", "job_type='ml'"),
}


@pytest.fixture
def client(suite: FakeSuite) -> Iterator[Client]:
    with Client(endpoints=suite.endpoints) as opened:
        yield opened


@pytest.mark.parametrize("case", BAD)
def test_a_wrong_value_is_told_before_anything_is_sent(suite: FakeSuite, client: Client, case: str) -> None:
    fields, field, way_out = BAD[case]
    spec = JobSpec(**{"job_type": "ml", **fields})
    with pytest.raises(InvalidInput) as caught:
        client.submit(spec)
    assert field in caught.value.message
    assert way_out in caught.value.message
    assert suite.calls == {}


def test_all_wrong_fields_are_told_at_once(suite: FakeSuite, client: Client) -> None:
    spec = JobSpec(type="ml", priority=-1, gpus=3000)
    with pytest.raises(InvalidInput) as caught:
        client.submit(spec)
    assert [each.field for each in caught.value.violations] == ["job.priority", "job.gpu_count"]


def test_a_spec_without_user_and_name_gets_both(suite: FakeSuite, client: Client) -> None:
    import getpass

    (first, second) = client.submit_many([JobSpec(type="ml"), JobSpec(type="sim", application="cfd")]).job_ids
    third = client.submit(JobSpec(type="data", name="mine", user="bob")).job_id
    specs = [suite.jobs[each].spec for each in (first, second, third)]
    me = getpass.getuser()
    assert [(each.name, each.user) for each in specs] == [("machine_learning", me), ("cfd", me), ("mine", "bob")]


async def test_the_names_of_job_files_are_arguments_of_submit(suite: FakeSuite) -> None:
    async with AsyncClient(endpoints=suite.endpoints) as client:
        job = await client.submit(
            command=["python", "train.py"],
            type="ml",
            gpus=2,
            memory="16GiB",
            time_limit="1h",
            env={"A": "b"},
            secrets=["KEY"],
            stop_grace="1m",
            log_limit="1GiB",
        )
        spec = suite.jobs[job.job_id].spec
        assert (spec.gpu_count, spec.memory_mib, spec.time_limit_s) == (2, 16384, 3600.0)
        assert spec.payload is not None
        assert spec.payload.environment["A"] == "b"
        assert (spec.payload.secret_names, spec.payload.stop_grace_s, spec.payload.log_limit_mib) == (
            ("KEY",),
            60,
            1024,
        )
        with pytest.raises(InvalidInput, match=r"^gpu: JobSpec has no such field; do you mean gpus\?"):
            await client.submit(command=["x"], gpu=2)
        with pytest.raises(InvalidInput, match="env: is environment in other words"):
            await client.submit(command=["x"], env={"A": "b"}, environment={"C": "d"})
        with pytest.raises(InvalidInput, match="mounts: '/data' is none: write SRC:DST"):
            await client.submit(command=["x"], image="busybox", mounts=["/data"])
