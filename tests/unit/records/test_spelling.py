"""Specifications as people type them: other names, units in texts, and what is said of a slip."""

from __future__ import annotations

import ast
import copy
import dataclasses
import inspect
import pickle
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adlro.errors import InvalidInput
from adlro.records import jobs
from adlro.records.dependencies import JobDependency
from adlro.records.jobs import ExpectedRuntime, Job, JobSpec, JobType, Preemptible, SimulatedWork

PLAIN = {
    "job_type": JobType.MACHINE_LEARNING,
    "gpu_count": 4,
    "max_node_count": 2,
    "gpu_models": ("v100_sxm2",),
    "node_ids": ("n2",),
    "excluded_node_ids": ("n1", "n3"),
    "cpu_cores": 8,
    "memory_mib": 16384,
    "gpu_memory_mib": 20480,
    "time_limit_s": 3600.0,
    "begin_time_s": 60.0,
    "expected_runtime": ExpectedRuntime("t4", 5400.0),
    "simulated_work": SimulatedWork(10.0),
    "preemptible": Preemptible(60.0, 600.0, None),
}


def test_the_names_of_job_files_mean_the_exact_fields() -> None:
    spec = JobSpec(
        "a",
        "ada",
        type="ml",
        gpus=4,
        max_nodes=2,
        gpu_model="v100_sxm2",
        nodelist="n2",
        exclude=["n1", "n3"],
        cores=8,
        memory="16GiB",
        gpu_memory="20 GiB",
        time_limit="1h",
        begin="1m",
        runtime="1h30m",
        on="t4",
        work=10,
        preemptible={"restart": "60s", "lost": timedelta(minutes=10)},
    )
    assert spec == JobSpec("a", "ada", **PLAIN)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["1h", "60m", "01:00:00", 3600, 3600.0, timedelta(hours=1)])
def test_a_time_is_a_text_a_number_or_a_timedelta(value: str | float | timedelta) -> None:
    assert JobSpec(time_limit=value).time_limit_s == 3600.0


@pytest.mark.parametrize("name", ["ml", "ML", "machine_learning", "machine-learning", JobType.MACHINE_LEARNING])
def test_a_job_type_has_its_short_name(name: str) -> None:
    assert JobSpec(job_type=name).job_type is JobType.MACHINE_LEARNING
    assert JobType(name) is JobType.MACHINE_LEARNING


def test_what_is_not_given_is_the_default() -> None:
    assert JobSpec(type=None, gpus=None, memory=None, time_limit=None) == JobSpec()
    assert JobSpec(gpu_models=["a", "b"]).gpu_models == ("a", "b")
    assert JobSpec(exclude=["n1,n2", " n3 ", ""]).excluded_node_ids == ("n1", "n2", "n3")
    assert JobSpec(preemptible=True).preemptible == Preemptible()
    assert JobSpec(preemptible=False).preemptible is None


BAD = {
    "an unknown name": ({"time_limt": "1h"}, "time_limt", "do you mean time_limit?"),
    "a name like no other": ({"zzz": 1}, "zzz", "there are name, user"),
    "a program": ({"command": ["x"]}, "command", "client.submit(command=[...]"),
    "twice": ({"time_limit": "1h", "time_limit_s": 1.0}, "time_limit", "give one of the two"),
    "no duration": ({"time_limit": "an hour"}, "time_limit", "10m, 1h30m"),
    "a truth value": ({"time_limit": True}, "time_limit", "True is no duration"),
    "no unit": ({"memory": 16}, "memory", "memory='16GiB'"),
    "no unit in a text": ({"memory": "16"}, "memory", "16GiB"),
    "no size": ({"gpu_memory": [1]}, "gpu_memory", "20GiB"),
    "no type": ({"job_type": "mll"}, "job_type", "machine_learning (ml)"),
    "a type nearly": ({"job_type": "simulatoin"}, "job_type", "do you mean simulation?"),
    "a model without a runtime": ({"on": "t4"}, "on", "belongs to runtime"),
    "no cost of a stop": ({"preemptible": {"reboot": "1s"}}, "preemptible", "restart, lost, grace"),
    "a cost that is no time": ({"preemptible": {"lost": "x"}}, "preemptible.lost", "is no duration"),
    "no truth value": ({"preemptible": "yes"}, "preemptible", "True nor False"),
    "no models": ({"gpu_models": 3}, "gpu_models", "a list of names"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_slip_is_told_with_field_and_way_out(case: str) -> None:
    fields, field, way_out = BAD[case]
    with pytest.raises(InvalidInput) as caught:
        JobSpec(**fields)  # type: ignore[arg-type]
    assert caught.value.field == field
    assert caught.value.message.startswith(f"{field}: ")
    assert way_out in caught.value.message


def test_a_spec_is_still_a_frozen_record() -> None:
    spec = JobSpec(name="a", time_limit="1h", labels={"x": "y"})
    assert pickle.loads(pickle.dumps(spec)) == copy.deepcopy(spec) == spec
    assert dataclasses.replace(spec, gpu_count=2) == JobSpec(name="a", time_limit_s=3600.0, labels={"x": "y"}, gpus=2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.gpu_count = 3  # type: ignore[misc]
    assert repr(spec) == "JobSpec(name='a', time_limit_s=3600.0, labels={'x': 'y'})"
    assert eval(repr(spec)) == spec


def test_type_checkers_see_the_fields_and_names_that_there_are_at_run_time() -> None:
    """`JobSpec.__init__` is written out for them: a field that is added must be there, too."""
    tree = ast.parse(inspect.getsource(jobs))
    record = next(each for each in tree.body if isinstance(each, ast.ClassDef) and each.name == "JobSpec")
    block = next(each for each in record.body if isinstance(each, ast.If))
    (init,) = (each for each in block.body if isinstance(each, ast.FunctionDef))
    exact = [each.arg for each in init.args.args if each.arg != "self"]
    assert exact == [each.name for each in dataclasses.fields(JobSpec)]
    others = {each.arg for each in init.args.kwonlyargs}
    assert {*exact, *others} == set(inspect.signature(JobSpec).parameters)


@given(st.text(max_size=30))
def test_any_text_is_a_duration_or_told(text: str) -> None:
    told = ""
    limit_s: float | None = None
    try:
        limit_s = JobSpec(time_limit=text).time_limit_s
    except InvalidInput as error:
        told = error.field
    assert told == "time_limit" or (limit_s is not None and limit_s >= 0)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("job-17", [("job-17", "succeeded")]),
        ("17:any", [("job-17", "ended")]),
        ("array-20:fail,18", [("array-20", "not_succeeded"), ("job-18", "succeeded")]),
        (Job("job-3", JobSpec()), [("job-3", "succeeded")]),
        (JobDependency("job-4"), [("job-4", "succeeded")]),
        (["job-1:afterany", Job("job-3", JobSpec())], [("job-1", "ended"), ("job-3", "succeeded")]),
        ([], []),
    ],
)
def test_what_a_job_waits_for_is_ids_or_jobs(given: Any, told: list[tuple[str, str]]) -> None:
    assert [(each.job_id, str(each.condition)) for each in JobSpec(after=given).after] == told


@pytest.mark.parametrize("given", ["job17x", "job-17:perhaps", 17, [None]])
def test_what_is_no_job_is_told(given: Any) -> None:
    with pytest.raises(InvalidInput, match=r"^after: ") as caught:
        JobSpec(after=given)
    assert caught.value.field == "after"


def test_a_wall_time_is_not_a_time_of_the_clusters_clock() -> None:
    with pytest.raises(InvalidInput, match=r"begin=client\.clock\(\)\.time_s \+ 3600"):
        JobSpec(begin="now+1h")
    assert JobSpec(hold=True).held
