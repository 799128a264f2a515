"""Records to discrete variables: the numbers of the levels, and vocabularies that grow."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adlro.records.jobs import ExpectedRuntime, JobSpec, JobType
from adlro.records.matrices import Variable
from adlro.services.decompose.variables.variables import Variables, gpu_levels
from adlro.services.decompose.variables.vocabulary import UNKNOWN, Vocabulary


def spec(**changes) -> JobSpec:
    return JobSpec(**{"name": "a", "user": "ann", "job_type": JobType.SIMULATION, **changes})


def value_of(variables: list[Variable], name: str) -> tuple[str, int]:
    return next((each.value, each.index) for each in variables if each.name == name)


@pytest.mark.parametrize(
    ("ratio", "value", "index"),
    [
        (0.0, "0.00..0.05", 0),
        (0.049, "0.00..0.05", 0),
        (0.05, "0.05..0.10", 1),
        (0.15, "0.15..0.20", 3),
        (float(np.float32(0.7)), "0.70..0.75", 14),  # 0.69999999 as stored
        (0.87, "0.85..0.90", 17),
        (1.0, "0.95..1.00", 19),
    ],
)
def test_utilization_goes_in_steps_of_five_percent(ratio, value, index):
    assert value_of(Variables().of_gpu("v100_sxm2", utilization_ratio=ratio), "utilization_level") == (value, index)


@pytest.mark.parametrize("step", range(20))
def test_each_step_begins_at_its_own_lower_end_even_as_float32(step):
    assert gpu_levels(np.array([step / 20], dtype=np.float32), np.array([0.0]), np.array([0.0]))[0, 0] == step


def test_memory_and_temperature_levels():
    variables = Variables().of_gpu("t4", 0.5, memory_used_mib=4096, temperature_c=64.9)
    assert value_of(variables, "memory_level") == ("4096..6144 MiB", 2)
    assert value_of(variables, "temperature_level") == ("60..65 C", 13)
    hot = Variables().of_gpu("t4", 0.5, memory_used_mib=200_000, temperature_c=150)
    assert value_of(hot, "memory_level") == (">=131072 MiB", 64)
    assert value_of(hot, "temperature_level") == (">=120 C", 25)
    assert value_of(Variables().of_gpu("t4", temperature_c=-3), "temperature_level") == ("<0 C", 0)


def test_what_a_gpu_does_not_report_has_no_variable():
    assert [each.name for each in Variables().of_gpu("t4", utilization_ratio=float("nan"))] == ["gpu_model"]


@pytest.mark.parametrize(
    ("priority", "value"),
    [(0.0, "low"), (0.25, "low"), (0.34, "normal"), (0.5, "normal"), (0.66, "normal"), (0.67, "high"), (1.0, "high")],
)
def test_priority_classes(priority, value):
    assert value_of(Variables().of_job(spec(priority=priority)), "priority_class")[0] == value


@pytest.mark.parametrize(
    ("runtime_s", "gpu_memory_mib", "value"),
    [
        (None, 0, "undeclared/any"),
        (9.99, 1, "<10 s/<=4 GiB"),
        (10.0, 4096, "10..60 s/<=4 GiB"),
        (60.0, 4097, "1..10 min/<=8 GiB"),
        (600.0, 12000, "10..60 min/<=12 GiB"),
        (3600.0, 15000, "1..24 h/<=16 GiB"),
        (86400.0, 32768, ">=1 d/<=32 GiB"),
        (86400.0, 81920, ">=1 d/>32 GiB"),
    ],
)
def test_size_classes(runtime_s, gpu_memory_mib, value):
    declared = None if runtime_s is None else ExpectedRuntime("v100_sxm2", runtime_s)
    job = spec(expected_runtime=declared, gpu_memory_mib=gpu_memory_mib)
    assert value_of(Variables().of_job(job), "size_class")[0] == value


def test_a_job_has_all_its_variables():
    variables = Variables().of_job(spec(application="tealeaf", job_type=JobType.DATA_PROCESSING, priority=1.0))
    assert [(each.name, each.value) for each in variables] == [
        ("priority_class", "high"),
        ("job_type", "data_processing"),
        ("application", "tealeaf"),
        ("user", "ann"),
        ("size_class", "undeclared/any"),
    ]


def test_vocabularies_grow_and_numbers_stay():
    variables = Variables()
    first = value_of(variables.of_job(spec(user="ann")), "user")
    second = value_of(variables.of_job(spec(user="bob")), "user")
    assert (first, second) == (("ann", 1), ("bob", 2))
    assert value_of(variables.of_job(spec(user="ann")), "user") == first


def test_looking_up_does_not_grow():
    variables = Variables()
    assert variables.codes_of_job(spec(user="ann", application="x"))[:2] == (UNKNOWN, UNKNOWN)
    assert len(variables.user) == 1
    assert variables.codes_of_job(spec(user="ann"), learn=True).application == 0  # "", not stated


def test_in_a_full_vocabulary_the_value_seen_longest_ago_gives_way_unless_it_is_held():
    full = Vocabulary("user", [""], grows=True, limit=4)
    assert [full.learn(value) for value in "abca"] == [1, 2, 3, 1]
    full.hold(3)
    assert full.learn("d") == 4  # in place of b
    assert [full.number(value) for value in "abcd"] == [1, UNKNOWN, 3, 4]
    assert full.learn("e") == 5  # of a
    assert full.learn("b") == 6  # of d: no number is given twice
    for number in (5, 6):
        full.hold(number)
    assert full.learn("f") == UNKNOWN
    full.release(3)
    assert full.learn("f") == 7
    assert full.numbers() == {"": 0, "e": 5, "b": 6, "f": 7}
    with pytest.raises(IndexError, match="user: no value has the number 3"):
        full.value(3)


def test_a_value_held_twice_is_released_twice():
    full = Vocabulary("user", [""], grows=True, limit=2)
    for _ in range(2):
        full.hold(full.learn("a"))
    full.release(1)
    assert full.learn("b") == UNKNOWN
    full.release(1)
    assert full.learn("b") == 2


def test_a_closed_vocabulary_takes_no_more():
    full = Vocabulary("user", ["a"], limit=2)
    assert Vocabulary("job_type", ["x"]).learn("y") == UNKNOWN
    with pytest.raises(IndexError, match="user: no value has the number -1"):
        full.value(UNKNOWN)


@given(st.lists(st.text(max_size=3), max_size=40))
def test_numbers_and_values_name_each_other(values):
    vocabulary = Vocabulary("v", grows=True)
    numbers = [vocabulary.learn(value) for value in values]
    assert [vocabulary.value(number) for number in numbers] == values
    assert len(vocabulary) == len(set(values))


@given(st.floats(0, 1), st.floats(0, 2e5), st.floats(-50, 200))
def test_every_valid_sample_has_levels_that_hold_it(ratio, mib, celsius):
    levels = gpu_levels(np.array([ratio]), np.array([mib]), np.array([celsius]))[:, 0]
    variables = Variables()
    low, high = variables.utilization_level.value(levels[0]).split("..")
    assert float(low) - 1e-6 <= ratio <= float(high) + 1e-6
    if levels[1] < 64:
        assert levels[1] * 2048 - 1e-2 <= mib < (levels[1] + 1) * 2048
    if 0 < levels[2] < 25:
        assert (levels[2] - 1) * 5 - 1e-4 <= celsius < levels[2] * 5
