"""What one command line is to submit: its jobs with the jobs that they wait for, checked before anything is sent."""

from __future__ import annotations

import contextlib
import hashlib
import heapq
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter

import typer

from adlro.cli.job_command import GivenJob
from adlro.cli.job_options import JobOptions, dependencies, spec_of
from adlro.cli.shell import USAGE_ERROR
from adlro.errors import InvalidInput
from adlro.records.arrays import ArrayIndexes
from adlro.records.dependencies import JobDependency
from adlro.records.jobs import JobSpec


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """A job to submit.

    Attributes:
        spec: without the dependencies on other jobs of the plan.
        array: None: it is one job.
        name: in its file; empty: it stands alone.
        where: file, line and name, for messages; empty: the command line.
        after: other jobs of the plan that it waits for, by name.
    """

    spec: JobSpec
    array: ArrayIndexes | None = None
    name: str = ""
    where: str = ""
    after: tuple[JobDependency, ...] = ()


def plan_of(options: JobOptions, argv: Sequence[str], server: str | None) -> PlannedJob:
    """The job of a command line, a script, or a file with one job."""
    spec = spec_of(options, argv, server)
    _check(spec)
    return PlannedJob(spec, options.array)


def plan_of_several(jobs: Sequence[GivenJob], server: str | None) -> list[PlannedJob]:
    """The jobs of a file, each behind those that it waits for.

    Raises:
        BadParameter: a job is wrong, or they wait for one another in a circle; names the line.
    """
    names = {each.name for each in jobs}
    planned = []
    for each in jobs:
        with _at(each.where):
            planned.append(_planned(each, names, server))
    return _in_order(planned)


def _planned(job: GivenJob, names: Collection[str], server: str | None) -> PlannedJob:
    found = dependencies(job.options.after, names)
    spec = spec_of(replace(job.options, after=None), job.argv, server)
    spec = replace(spec, after=tuple(each for each in found if each.job_id not in names))
    _check(spec)
    return PlannedJob(
        spec, job.options.array, job.name, job.where, tuple(each for each in found if each.job_id in names)
    )


def _in_order(planned: Sequence[PlannedJob]) -> list[PlannedJob]:
    """The jobs in the order of the file, but each behind those that it waits for."""
    order = TopologicalSorter({each.name: [one.job_id for one in each.after] for each in planned})
    try:
        order.prepare()
    except CycleError as error:
        circle: list[str] = error.args[1]
        first = next(each for each in planned if each.name in circle)
        raise typer.BadParameter(
            f"{first.where}: waits for itself, through other jobs ({' after '.join(circle)}): none of them could ever "
            "start; take one of their entries `after` out"
        ) from None
    by_name = {each.name: (place, each) for place, each in enumerate(planned)}
    ready: list[tuple[int, str]] = []
    out = []
    while order.is_active():
        for name in order.get_ready():
            heapq.heappush(ready, (by_name[name][0], name))
        _, name = heapq.heappop(ready)
        out.append(by_name[name][1])
        order.done(name)
    return out


def _check(spec: JobSpec) -> None:
    """Raises InvalidInput for what no service would accept."""
    from adlro.client.rules import checked_spec

    checked_spec(spec)


@contextlib.contextmanager
def _at(where: str) -> Iterator[None]:
    """Puts a job's place before what is wrong with it."""
    try:
        yield
    except USAGE_ERROR as error:
        hint = getattr(error, "param_hint", None)
        raise typer.BadParameter(f"{where}: {f'{hint}: ' if hint else ''}{error.message}") from None
    except InvalidInput as error:
        raise typer.BadParameter(f"{where}: {error.message}") from None


def request_id_of(planned: Sequence[PlannedJob]) -> str:
    """A request id that the same jobs always have: submitted twice, they are recorded once."""
    from adlro.client.rules import checked_spec

    seen = hashlib.sha256()
    for each in planned:
        array = each.array or ArrayIndexes(())
        parts = (each.name, repr(each.after), repr(array))
        for part in (*(text.encode() for text in parts), checked_spec(each.spec).SerializeToString(deterministic=True)):
            seen.update(len(part).to_bytes(8, "big") + part)
    return f"same-{seen.hexdigest()[:32]}"
