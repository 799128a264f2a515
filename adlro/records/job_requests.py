"""What is asked for about a job that waits: to hold it, to release it, to change it. Plain data; no gRPC, no Redis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, dataclass, field, replace
from typing import Any, ClassVar, Protocol, TypeVar

from adlro.records.named import NamedEnum


class _Changeable(Protocol):
    """What an update changes: a JobSpec, whose module knows this one."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def priority(self) -> float: ...
    @property
    def time_limit_s(self) -> float | None: ...
    @property
    def labels(self) -> Mapping[str, str]: ...


_Spec = TypeVar("_Spec", bound=_Changeable)


@dataclass(frozen=True, slots=True)
class JobUpdate:
    """A change of a job that waits; what is None stays.

    Attributes:
        time_limit_s: 0: no limit.
        set_labels: labels to add or to change.
        remove_labels: labels to remove.
    """

    priority: float | None = None
    time_limit_s: float | None = None
    set_labels: Mapping[str, str] = field(default_factory=dict)
    remove_labels: tuple[str, ...] = ()

    def applied_to(self, spec: _Spec) -> _Spec:
        """The changed specification."""
        labels = {key: value for key, value in spec.labels.items() if key not in self.remove_labels}
        limit_s = spec.time_limit_s if self.time_limit_s is None else (self.time_limit_s or None)
        return replace(
            spec,
            priority=spec.priority if self.priority is None else self.priority,
            time_limit_s=limit_s,
            labels={**labels, **self.set_labels},
        )


class JobRequestKind(NamedEnum):
    """The kinds of requests about a job that waits; numbers as in job.proto."""

    HOLD = 1
    RELEASE = 2
    UPDATE = 3


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A change of a job that was asked for.

    Attributes:
        number: 1, 2, ... of its job; 0: not recorded yet.
        update: of an UPDATE.
        user: who asked; empty where no tokens are needed.
        by_operator: an operator asked, and it is another user's job.
    """

    kind: JobRequestKind
    update: JobUpdate | None = None
    user: str = ""
    by_operator: bool = False
    number: int = 0


@dataclass(frozen=True, slots=True)
class JobHold:
    """Who holds a job; `user` is empty where no tokens are needed, or where the job was submitted held."""

    user: str = ""
    by_operator: bool = False
