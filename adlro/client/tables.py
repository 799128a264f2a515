"""Lists that print as tables, in a terminal and in a notebook, and become a DataFrame on request. No gRPC.

pandas is imported by `to_pandas` alone.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Self, SupportsIndex, TypeVar, overload

from adlro.errors import InvalidInput
from adlro.records.events import ClusterDescription
from adlro.records.jobs import Job, JobState
from adlro.records.status import OrchestratorStatus
from adlro.text import visible
from adlro.units import given_duration_s

if TYPE_CHECKING:
    import pandas

T = TypeVar("T")

_SHOWN_ROWS = 40
_SHOWN_CHARACTERS = 40
# A page is taller than a terminal.
_SHOWN_ROWS_HTML = 100


class Column(NamedTuple, Generic[T]):
    """A column.

    Attributes:
        name: with its unit, as in `to_dicts`.
        value: of a record; None: it has none.
        heading: above the column in a table; empty: it is not shown there.
        text: of a value, in a table.
    """

    name: str
    value: Callable[[T], Any]
    heading: str = ""
    text: Callable[[Any], str] = str


class Table(Sequence[T]):
    """Records in order: a sequence as any other, printed as a table.

    Args:
        records: in order.
    """

    columns: ClassVar[tuple[Column[Any], ...]] = ()
    what: ClassVar[str] = "rows"

    def __init__(self, records: Iterable[T] = ()) -> None:
        self._records = tuple(records)

    @overload
    def __getitem__(self, index: SupportsIndex, /) -> T: ...
    @overload
    def __getitem__(self, index: slice, /) -> Self: ...
    def __getitem__(self, index: Any, /) -> T | Self:
        found = self._records[index]
        return type(self)(found) if isinstance(index, slice) else found

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[T]:
        return iter(self._records)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Table) and self._records == other._records

    def __hash__(self) -> int:
        return hash(tuple(map(id, self._records)))

    def to_dicts(self) -> list[dict[str, Any]]:
        """A dictionary for each record, by column; plain values: texts, numbers, True and False, mappings, None."""
        return [{column.name: column.value(each) for column in self.columns} for each in self._records]

    def to_pandas(self) -> pandas.DataFrame:
        """A DataFrame with a row for each record; columns as of `to_dicts`, those of wall time (`*_unix_s`) as UTC.

        Raises:
            InvalidInput: pandas is not installed.
        """
        try:
            import pandas
        except ModuleNotFoundError:
            raise InvalidInput(
                "to_pandas needs the package pandas: pip install pandas; to_dicts needs nothing"
            ) from None
        rows = self.to_dicts()
        frame = pandas.DataFrame(rows, columns=[each.name for each in self.columns])
        for name in [each for each in frame.columns if each.endswith("_unix_s")]:
            times = pandas.to_datetime(frame.pop(name).astype("float64"), unit="s", utc=True)
            frame[name.removesuffix("_unix_s")] = times
        return frame

    def _cells(self, most: int) -> tuple[list[str], list[list[str]]]:
        """Headings, and the texts of the first rows."""
        shown = [column for column in self.columns if column.heading]
        rows = [
            [_cut("-" if (value := column.value(each)) is None else visible(column.text(value))) for column in shown]
            for each in self._records[:most]
        ]
        return [column.heading for column in shown], rows

    def _rest(self, most: int) -> str:
        """What is not shown, in words; empty: all is."""
        left = len(self._records) - most
        return f"... and {left:,} more; to_dicts() and to_pandas() have all" if left > 0 else ""

    def __str__(self) -> str:
        if not self._records:
            return f"no {self.what}"
        headings, rows = self._cells(_SHOWN_ROWS)
        widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in (headings, *rows)
        ]
        rest = self._rest(_SHOWN_ROWS)
        return "\n".join(line.rstrip() for line in (*lines, *([rest] if rest else [])))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """What notebooks show. Texts of others are escaped."""
        if not self._records:
            return f"<p>no {html.escape(self.what)}</p>"
        headings, rows = self._cells(_SHOWN_ROWS_HTML)
        head = "".join(f"<th>{html.escape(each)}</th>" for each in headings)
        body = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
        rest = self._rest(_SHOWN_ROWS_HTML)
        note = f"<p>{html.escape(rest)}</p>" if rest else ""
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{note}"


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 3]}..."


def seconds_text(value_s: float) -> str:
    """A duration as people read it: `8.3 s`, `12m 05s`, `3h 20m`, `1d 6h 04m`."""
    if value_s < 99.95:
        return f"{value_s:.1f} s"
    minutes, seconds = divmod(round(value_s), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d {hours}h {minutes:02}m"
    return f"{hours}h {minutes:02}m" if hours else f"{minutes}m {seconds:02}s"


def _local_time(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _waited_s(job: Job) -> float | None:
    return None if job.submit_s is None or job.start_s is None else max(job.start_s - job.submit_s, 0.0)


def _exit_code(job: Job) -> int | None:
    exit_ = job.attempts[-1].exit if job.attempts else None
    return None if exit_ is None else exit_.code


def _reason(job: Job) -> str | None:
    return str(job.pending_reason) if job.state is JobState.PENDING and job.pending_reason else None


class JobTable(Table[Job]):
    """Jobs in order, printed as a table. `table[0]` is a Job, `table[:10]` a table."""

    what = "jobs"
    columns: ClassVar[tuple[Column[Any], ...]] = (
        Column[Job]("job_id", lambda job: job.job_id, "ID"),
        Column[Job]("name", lambda job: job.spec.name, "NAME"),
        Column[Job]("user", lambda job: job.spec.user, "USER"),
        Column[Job]("job_type", lambda job: str(job.spec.job_type) if job.spec.job_type else None, "TYPE"),
        Column[Job]("application", lambda job: job.spec.application or None),
        Column[Job]("state", lambda job: str(job.state), "STATE"),
        Column[Job]("reason", _reason, "REASON"),
        Column[Job]("message", lambda job: job.message or None),
        Column[Job]("priority", lambda job: job.spec.priority),
        Column[Job]("gpu_count", lambda job: job.spec.gpu_count, "GPUS"),
        Column[Job]("gpu_model", lambda job: job.gpu_model or None, "MODEL"),
        Column[Job]("gpu_ids", lambda job: ",".join(job.placement.gpu_ids) or None),
        Column[Job]("cpu_cores", lambda job: job.spec.cpu_cores),
        Column[Job]("memory_mib", lambda job: job.spec.memory_mib),
        Column[Job]("gpu_memory_mib", lambda job: job.spec.gpu_memory_mib),
        Column[Job]("time_limit_s", lambda job: job.spec.time_limit_s),
        Column[Job]("created_unix_s", lambda job: job.created_unix_s, "SUBMITTED", _local_time),
        Column[Job]("submit_s", lambda job: job.submit_s),
        Column[Job]("start_s", lambda job: job.start_s),
        Column[Job]("end_s", lambda job: job.end_s),
        Column[Job]("waited_s", _waited_s, "WAITED", seconds_text),
        Column[Job]("runtime_s", lambda job: job.runtime_s, "RAN", seconds_text),
        Column[Job]("jct_s", lambda job: job.jct_s),
        Column[Job]("attempt_count", lambda job: job.attempt_count),
        Column[Job]("exit_code", _exit_code, "EXIT"),
        Column[Job]("labels", lambda job: dict(job.spec.labels)),
    )


class GpuRow(NamedTuple):
    """A GPU and what it does.

    Attributes:
        job_ids: of the attempts that it runs.
        state: idle, busy, drained (its node takes no more jobs) or lost.
        reason: why it is lost or drained, where that is known.
    """

    gpu_id: str
    node_id: str
    gpu_model: str
    memory_mib: int
    job_ids: tuple[str, ...]
    state: str
    reason: str


class GpuTable(Table[GpuRow]):
    """GPUs in the cluster's order, printed as a table."""

    what = "GPUs"
    columns: ClassVar[tuple[Column[Any], ...]] = (
        Column[GpuRow]("gpu_id", lambda gpu: gpu.gpu_id, "GPU"),
        Column[GpuRow]("node_id", lambda gpu: gpu.node_id, "NODE"),
        Column[GpuRow]("gpu_model", lambda gpu: gpu.gpu_model, "MODEL"),
        Column[GpuRow]("memory_mib", lambda gpu: gpu.memory_mib, "MEMORY", lambda mib: f"{mib / 1024:.1f} GiB"),
        Column[GpuRow]("state", lambda gpu: gpu.state, "STATE"),
        Column[GpuRow]("job_ids", lambda gpu: ",".join(gpu.job_ids) or None, "JOB"),
        Column[GpuRow]("reason", lambda gpu: gpu.reason or None, "REASON"),
    )


def gpu_table(described: ClusterDescription, status: OrchestratorStatus) -> GpuTable:
    """The GPUs of a cluster and what they do."""
    jobs: dict[str, list[str]] = {}
    for running in described.running:
        for gpu_id in running.placement.gpu_ids:
            jobs.setdefault(gpu_id, []).append(running.job_id)
    lost = dict.fromkeys(described.lost_gpu_ids, "")
    lost |= {each.gpu_id: each.reason for each in described.gpu_conditions if each.gpu_id in lost}
    return GpuTable(
        GpuRow(
            gpu.gpu_id,
            node.node_id,
            gpu.gpu_model,
            gpu.memory_mib,
            ids := tuple(jobs.get(gpu.gpu_id, ())),
            _state(gpu.gpu_id in lost, bool(ids), node.node_id in status.drained_node_ids),
            lost.get(gpu.gpu_id) or status.drain_reasons.get(node.node_id, ""),
        )
        for node, gpu in described.cluster.gpus()
    )


def _state(lost: bool, busy: bool, drained: bool) -> str:
    return "lost" if lost else "busy" if busy else "drained" if drained else "idle"


def moment_unix_s(given: object, field: str, now_unix_s: float) -> float:
    """A moment of wall time, of what a caller gave.

    Args:
        given: a datetime (without a zone: local time), an ISO text, or how long ago: `"2h"`, seconds, a timedelta.
        field: its name, for messages.
        now_unix_s: the present.

    Raises:
        InvalidInput: it is none.
    """
    if isinstance(given, datetime):
        return given.timestamp()
    if isinstance(given, str):
        try:
            return datetime.fromisoformat(given.strip()).timestamp()
        except ValueError:
            pass
    try:
        return now_unix_s - given_duration_s(given, field)
    except InvalidInput:
        raise InvalidInput(
            f"{field}: {given!r} is no time: write a datetime, an ISO text such as '2026-07-01 14:00', or how long "
            "ago, such as '2h' or '7d'",
            field=field,
        ) from None


def states_of(given: object, field: str) -> tuple[JobState, ...]:
    """Job states of one name or several; `active` is pending and running, `ended` the others.

    Raises:
        InvalidInput: there is no such state.
    """
    several = given if isinstance(given, Iterable) and not isinstance(given, str) else (given,)
    found: list[JobState] = []
    for each in several:
        found += _GROUPS[each] if isinstance(each, str) and each in _GROUPS else [JobState.of(each, field)]
    return tuple(dict.fromkeys(found))


_GROUPS: Mapping[str, list[JobState]] = {
    "active": [JobState.PENDING, JobState.RUNNING],
    "ended": [each for each in JobState if each.final],
}
