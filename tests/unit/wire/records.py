"""Draws records of any kind, and lists the records, enumerations and messages that there are."""

from __future__ import annotations

import dataclasses
import enum
import importlib
import pkgutil
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np
from google.protobuf.descriptor import Descriptor, EnumDescriptor
from hypothesis import strategies as st

import adlro.records
import adlro.v1
from adlro.placement import GpuShare, Placement
from adlro.records.jobs import Job, JobSpec, JobType
from adlro.records.matrices import ClusterState, FloatArray, MetricColumn, StatePlane, TelemetryBlock
from adlro.records.named import NamedEnum
from adlro.records.payloads import Payload
from adlro.records.submitting import Rejection, RequestResult
from adlro.records.telemetry import Metric, Unit

Draw = Callable[[Any], Any]
words = st.text(min_size=1, max_size=8)
shares = st.floats(0, 1, exclude_min=True)


def modules(package: types.ModuleType) -> Iterator[types.ModuleType]:
    for each in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        yield importlib.import_module(each.name)


def record_classes() -> list[type[Any]]:
    """Dataclasses and enumerations of adlro.records, and placements, which stand below them."""
    found = [
        each
        for module in modules(adlro.records)
        for each in vars(module).values()
        if isinstance(each, type) and each.__module__ == module.__name__ and each is not NamedEnum
    ]
    return [*found, Placement, GpuShare]


def messages() -> list[Descriptor]:
    """All messages of the contracts, those inside others too."""
    return [each for module in _contracts() for each in _with_inner(module.DESCRIPTOR.message_types_by_name.values())]


def enumerations() -> list[EnumDescriptor]:
    at_the_top = [each for module in _contracts() for each in module.DESCRIPTOR.enum_types_by_name.values()]
    return at_the_top + [inner for each in messages() for inner in each.enum_types]


def _contracts() -> list[Any]:
    return [module for module in modules(adlro.v1) if module.__name__.endswith("_pb2")]


def _with_inner(found: Collection[Descriptor]) -> Iterator[Descriptor]:
    for each in found:
        if not each.GetOptions().map_entry:
            yield each
            yield from _with_inner(each.nested_types)


def matrices(rows: int, columns: int) -> st.SearchStrategy[FloatArray]:
    values = st.lists(st.floats(0, 1, width=32), min_size=rows * columns, max_size=rows * columns)
    return values.map(lambda drawn: np.array(drawn, np.float32).reshape(rows, columns))


@st.composite
def blocks(draw: Draw) -> TelemetryBlock:
    times, gpu_ids = draw(st.lists(st.floats(1, 9), min_size=1, max_size=3)), draw(st.lists(words, min_size=1))
    column = st.builds(
        MetricColumn, st.sampled_from(Unit), matrices(len(times), len(gpu_ids)), matrices(len(times), len(gpu_ids))
    )
    columns = draw(st.dictionaries(st.sampled_from(Metric), column, min_size=1))
    return TelemetryBlock(draw(words), tuple(gpu_ids), tuple(times), tuple(times), columns, draw(st.integers(1, 9)))


of_gpus = matrices(1, 2).map(lambda each: each[0])
planes = st.builds(StatePlane, st.sampled_from(Unit), of_gpus, of_gpus)
codes = st.sampled_from(["INVALID_ARGUMENT", "RESOURCE_EXHAUSTED", "17"])
specs = st.builds(JobSpec, name=words, user=words, job_type=st.sampled_from(JobType), priority=st.floats(0, 1))
placements = st.dictionaries(words, shares, min_size=1, max_size=3).map(
    lambda found: Placement(tuple(GpuShare(gpu_id, share) for gpu_id, share in found.items()))
)
_OF_CLASS: dict[Any, st.SearchStrategy[Any]] = {
    str: words,
    bytes: st.binary(min_size=1, max_size=8),
    bool: st.just(True),
    int: st.integers(1, 2**31 - 1),
    float: st.floats(0.001, 1e9),
    JobSpec: specs,
    Job: st.builds(Job, job_id=words, spec=specs, placement=placements),
    Placement: placements,
    TelemetryBlock: blocks(),
    StatePlane: planes,
    Rejection: st.builds(Rejection, st.integers(1, 9), codes, words),
}


def drawn(hint: Any, *, full: bool) -> st.SearchStrategy[Any]:
    """Values of a type.

    Args:
        hint: as annotated.
        full: nothing is empty, absent or False.
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    least = int(full)
    if origin in (typing.Union, types.UnionType):
        (kind,) = (each for each in arguments if each is not type(None))
        return drawn(kind, full=full) if full else st.none() | drawn(kind, full=full)
    if origin is tuple:
        return st.lists(drawn(arguments[0], full=full), min_size=least, max_size=3).map(tuple)
    if origin is Collection:
        return st.frozensets(drawn(arguments[0], full=full), min_size=least, max_size=3)
    if origin is Mapping:
        key, value = (drawn(each, full=full) for each in arguments)
        return st.dictionaries(key, value, min_size=least, max_size=3)
    if hint is bool and not full:
        return st.booleans()
    if hint in _OF_CLASS:
        return _OF_CLASS[hint]
    if issubclass(hint, enum.Enum):
        # Number 0 stands for what is not stated, and is not written.
        return st.sampled_from([each for each in hint if not full or each.value != 0])
    hints = typing.get_type_hints(hint)
    fields = {each.name: drawn(hints[each.name], full=full) for each in dataclasses.fields(hint)}
    if hint is RequestResult:
        fields["code"] = codes
    if hint is Payload:  # it has one of two programs
        return st.builds(hint, **fields | {"container": st.none()}) | st.builds(hint, **fields | {"process": st.none()})
    return st.builds(hint, **fields)


def has_arrays(record: type[Any]) -> bool:
    return record in (ClusterState, TelemetryBlock) or any(
        TelemetryBlock in (each, *typing.get_args(each)) for each in typing.get_type_hints(record).values()
    )
