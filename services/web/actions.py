"""What a user changes from the page. Each call carries his own token: the services are the judges; each is logged."""

from __future__ import annotations

import getpass
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from adlro.client import AsyncClient, ClockMode, JobFilter, JobState, JobView, RequestResult
from adlro.errors import AdlroError, Conflict, InvalidInput, NotFound, PermissionDenied
from adlro.records.arrays import read_array_indexes
from adlro.records.dependencies import JobDependency, read_dependencies
from adlro.records.jobs import ExpectedRuntime, JobSpec, JobType, Preemptible, SimulatedWork
from adlro.records.payloads import Container, Payload, process_payload
from adlro.services.web.viewers import Viewer

_TYPES: Final = {each.name.lower(): each for each in JobType}
_MOST_ITEMS: Final = 1000

T = TypeVar("T")
Given = Mapping[str, Any]
Action = Callable[[AsyncClient, Viewer, Given], Awaitable[dict[str, Any]]]


def action(name: str) -> Action:
    """An action by its name. Raises NotFound."""
    if name not in _ACTIONS:
        raise NotFound(f"there is no action of this name; actions are {', '.join(_ACTIONS)}")
    return _ACTIONS[name]


async def _submit(client: AsyncClient, viewer: Viewer, given: Given) -> dict[str, Any]:
    """A job, or with `array` as many as there are indexes."""
    _only(given, "job", "array", "request_id")
    wanted = dict(_mapping(given, "job"))
    begin = wanted.pop("begin", None)
    spec = job_spec(wanted, viewer.user)
    array, request_id = _text(given, "array"), _text(given, "request_id") or None
    indexes = _read(array, "array", read_array_indexes) if array else None
    if begin is not None:
        spec = replace(spec, begin_time_s=await _begin_time_s(client, _mapping({"begin": begin}, "begin")))
    if indexes is None:
        return {"job_id": (await client.submit(spec, request_id)).job_id}
    made = await client.submit_array(spec, indexes.indexes, max_running=indexes.max_running, request_id=request_id)
    return {"job_id": made.first_job_id, "array_id": made.array_id, "job_count": made.job_count}


async def _begin_time_s(client: AsyncClient, begin: Given) -> float:
    """The cluster time of a begin that was meant by the wall's clock, or from now on."""
    _only(begin, "from_now_s", "unix_s")
    from_now_s, unix_s = _number(begin, "from_now_s", None), _number(begin, "unix_s", None)
    if (from_now_s is None) == (unix_s is None):
        raise InvalidInput("begin: is either from_now_s or unix_s", field="begin")
    clock = await client.clock()
    if unix_s is not None:
        if clock.mode is not ClockMode.REAL or clock.paused:
            told = "paused" if clock.paused else clock.mode.name.lower()
            raise InvalidInput(
                f"begin: this is a time of the wall clock, and the cluster's clock is {told}: write now+1h, or a time "
                "of the cluster's clock, such as 3600s",
                field="begin",
            )
        from_now_s = unix_s - time.time()
    return max(clock.time_s + (from_now_s or 0.0), 0.0)


async def _cancel(client: AsyncClient, _: Viewer, given: Given) -> dict[str, Any]:
    _only(given, "job_id")
    named = _needed(given, "job_id")
    if not named.startswith("array-"):
        await client.cancel(named)
        return {}
    open_ids = await _tasks(client, named, (JobState.PENDING, JobState.RUNNING))
    return _count_of(await client.cancel_many(open_ids), final_is_done=True)


async def _hold(client: AsyncClient, _: Viewer, given: Given) -> dict[str, Any]:
    _only(given, "job_id")
    return _count_of(await client.hold(await _waiting_ids(client, _needed(given, "job_id"))))


async def _release(client: AsyncClient, _: Viewer, given: Given) -> dict[str, Any]:
    _only(given, "job_id")
    return _count_of(await client.release(await _waiting_ids(client, _needed(given, "job_id"))))


async def _requeue(client: AsyncClient, _: Viewer, given: Given) -> dict[str, Any]:
    _only(given, "job_id", "request_id")
    job = await client.requeue(_needed(given, "job_id"), _text(given, "request_id") or None)
    return {"job_id": job.job_id}


async def _waiting_ids(client: AsyncClient, named: str) -> Sequence[str]:
    """A job's id itself, or those of an array's jobs that wait."""
    return await _tasks(client, named, (JobState.PENDING,)) if named.startswith("array-") else [named]


async def _tasks(client: AsyncClient, array_id: str, states: Sequence[JobState]) -> Sequence[str]:
    found = client.list(JobFilter(array_id=array_id, states=states), view=JobView.BASIC)
    ids = [job.job_id async for job in found]
    if not ids:
        raise NotFound(f"there is no job of {array_id} that this could be done to", field="job_id")
    return ids


_REFUSALS: Final[dict[str, type[AdlroError]]] = {
    "NOT_FOUND": NotFound,
    "PERMISSION_DENIED": PermissionDenied,
    "INVALID_ARGUMENT": InvalidInput,
}


def _count_of(results: Sequence[RequestResult], *, final_is_done: bool = False) -> dict[str, Any]:
    """How many requests are recorded.

    Args:
        results: what became of each.
        final_is_done: what has ended meanwhile is no refusal.

    Raises:
        AdlroError: the first refusal, if there is any.
    """
    refused = [each for each in results if not each.accepted and not (final_is_done and each.reason == "JOB_FINAL")]
    if refused:
        first = refused[0]
        of_all = f" ({len(refused)} of {len(results)} jobs)" if len(results) > 1 else ""
        raise _REFUSALS.get(first.code, Conflict)(first.message + of_all, reason=first.reason)
    return {"job_count": sum(each.accepted for each in results)}


async def _drain(client: AsyncClient, _: Viewer, given: Given) -> dict[str, Any]:
    _only(given, "node_id", "reason")
    return {"running_job_ids": list(await client.drain(_needed(given, "node_id"), _text(given, "reason")))}


async def _undrain(client: AsyncClient, _: Viewer, given: Given) -> dict[str, Any]:
    _only(given, "node_id")
    await client.undrain(_needed(given, "node_id"))
    return {}


async def _policy(client: AsyncClient, _: Viewer, given: Given) -> dict[str, Any]:
    _only(given, "policy")
    return {"previous": await client.set_policy(_needed(given, "policy"))}


async def _shadow(client: AsyncClient, _: Viewer, given: Given) -> dict[str, Any]:
    _only(given, "policy")
    return {"previous": await client.set_shadow_policy(_text(given, "policy"))}


async def _clock(client: AsyncClient, _: Viewer, given: Given) -> dict[str, Any]:
    _only(given, "mode", "scale", "paused")
    mode = _text(given, "mode").upper()
    if mode and mode not in ClockMode.__members__:
        names = ", ".join(each.name.lower() for each in ClockMode)
        raise InvalidInput(f"mode: must be one of {names}", field="mode")
    paused = given.get("paused")
    if paused is not None and not isinstance(paused, bool):
        raise InvalidInput("paused: must be true or false", field="paused")
    clock = await client.set_clock(
        ClockMode[mode] if mode else None, scale=_number(given, "scale", None), paused=paused
    )
    return {"mode": clock.mode.name.lower(), "scale": clock.scale, "paused": clock.paused}


_ACTIONS: Final[dict[str, Action]] = {
    "submit": _submit,
    "cancel": _cancel,
    "hold": _hold,
    "release": _release,
    "requeue": _requeue,
    "drain": _drain,
    "undrain": _undrain,
    "policy": _policy,
    "shadow": _shadow,
    "clock": _clock,
}

_JOB_FIELDS: Final = (
    *("name", "user", "job_type", "application", "priority", "cpu_cores", "memory_mib", "gpu_memory_mib", "gpu_count"),
    *("max_node_count", "gpu_models", "labels", "time_limit_s", "begin_time_s", "expected_runtime", "simulated_work"),
    *("preemptible", "shareable", "after", "held", "argv", "image", "workdir", "environment", "stop_grace_s"),
    *("log_limit_mib", "exclusive", "node_ids", "excluded_node_ids"),
)


def job_spec(given: Given, user: str) -> JobSpec:
    """A job from the fields of a form, with the defaults of `adlro submit`.

    Args:
        given: fields of `JobSpec`, its type by name, `after` as texts such as `job-17:any`; `argv` and `image` for a
            program.
        user: in whose name, unless the form names one.

    Raises:
        InvalidInput: there is no such field, or a value is of the wrong kind. The services check the rest.
    """
    _only(given, *_JOB_FIELDS)
    kind = _text(given, "job_type") or "unspecified"
    if kind not in _TYPES:
        raise InvalidInput(f"job_type: must be one of {', '.join(_TYPES)}", field="job_type")
    fields: dict[str, Any] = {
        "user": _text(given, "user") or user or _own_user(),
        "job_type": _TYPES[kind],
        "application": _text(given, "application"),
        "priority": _number(given, "priority", 0.5),
        "cpu_cores": _count(given, "cpu_cores", 1),
        "memory_mib": _count(given, "memory_mib", 0),
        "gpu_memory_mib": _count(given, "gpu_memory_mib", 0),
        "gpu_count": _count(given, "gpu_count", 1),
        "max_node_count": _count(given, "max_node_count", 0),
        "gpu_models": tuple(_texts(given, "gpu_models")),
        "exclusive": _flag(given, "exclusive"),
        "node_ids": tuple(_texts(given, "node_ids")),
        "excluded_node_ids": tuple(_texts(given, "excluded_node_ids")),
        "labels": _labels(given, "labels"),
        "time_limit_s": _number(given, "time_limit_s", None),
        "begin_time_s": _number(given, "begin_time_s", None),
        "expected_runtime": _expected(given),
        "simulated_work": _work(given),
        "preemptible": _preemptible(given),
        "shareable": _flag(given, "shareable"),
        "after": _after(given),
        "held": _flag(given, "held"),
    }
    payload = _payload(given)
    if payload is None and fields["job_type"] is JobType.UNSPECIFIED:
        raise InvalidInput("job_type: a job without a program needs a type", field="job_type")
    name = _text(given, "name") or fields["application"] or (_program_name(payload) if payload else _TYPES[kind].label)
    return JobSpec(name=name, payload=payload, **fields)


def _payload(given: Given) -> Payload | None:
    words, image, workdir = _texts(given, "argv"), _text(given, "image"), _text(given, "workdir")
    environment = _labels(given, "environment")
    more: dict[str, Any] = {}
    if (stop_grace_s := _number(given, "stop_grace_s", None)) is not None:
        more["stop_grace_s"] = stop_grace_s
    if (log_limit_mib := _count(given, "log_limit_mib", 0)) > 0:
        more["log_limit_mib"] = log_limit_mib
    if image:
        payload = Payload(container=Container(image, tuple(words), workdir), environment=environment, **more)
    elif words:
        # Without a folder it begins in one of its own: the page's is nobody's.
        payload = process_payload(words, workdir, environment, **more)
    elif workdir or environment or more:
        raise InvalidInput("argv: folder, variables and limits of output are a program's: name one", field="argv")
    else:
        return None
    payload.check()
    return payload


def _program_name(payload: Payload) -> str:
    """A program's name, without its folder; that of its image where it names none."""
    image = payload.container.image if payload.container is not None else ""
    return (payload.argv[0] if payload.argv else image).rpartition("/")[2]


def _after(given: Given) -> tuple[JobDependency, ...]:
    """What it waits for, of texts as `adlro submit --after` takes them."""
    return tuple(each for text in _texts(given, "after") for each in _read(text, "after", read_dependencies))


def _read(text: str, name: str, read: Callable[[str], T]) -> T:
    """A text that people write, read; an error names the field."""
    try:
        return read(text)
    except InvalidInput as error:
        raise InvalidInput(f"{name}: {error.message.removeprefix(f'{name}: ')}", field=name) from None


def _own_user() -> str:
    """In whose name a job is submitted where nobody logs in: that of who started the page, as with `adlro submit`."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user has no name
        return "page"


def _expected(given: Given) -> ExpectedRuntime | None:
    if given.get("expected_runtime") is None:
        return None
    each = _mapping(given, "expected_runtime")
    _only(each, "gpu_model", "runtime_s")
    runtime_s = _number(each, "runtime_s", None)
    if runtime_s is None:
        raise InvalidInput("expected_runtime.runtime_s: is missing", field="expected_runtime.runtime_s")
    return ExpectedRuntime(_needed(each, "gpu_model"), runtime_s)


def _work(given: Given) -> SimulatedWork | None:
    if given.get("simulated_work") is None:
        return None
    each = _mapping(given, "simulated_work")
    _only(each, "work_s", "fails_at_ratio")
    work_s = _number(each, "work_s", None)
    if work_s is None:
        raise InvalidInput("simulated_work.work_s: is missing", field="simulated_work.work_s")
    return SimulatedWork(work_s, _number(each, "fails_at_ratio", None))


def _preemptible(given: Given) -> Preemptible | None:
    value = given.get("preemptible")
    if value is None or isinstance(value, bool):
        return Preemptible() if value else None
    each = _mapping(given, "preemptible")
    _only(each, "restart_s", "lost_s", "grace_s")
    return Preemptible(
        _number(each, "restart_s", 0.0) or 0.0, _number(each, "lost_s", 0.0) or 0.0, _number(each, "grace_s", None)
    )


# Below: values of JSON, checked for their kind alone


def _only(given: Given, *names: str) -> None:
    for name in given:
        if name not in names:
            raise InvalidInput(f"there is no field {str(name)[:60]!r}; fields are {', '.join(names)}", field="body")


def _is_text(value: Any) -> bool:
    """Whether a value is a text that can be sent on: JSON also writes halves of characters."""
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False


def _text(given: Given, name: str) -> str:
    value = given.get(name)
    if value is None:
        return ""
    if not _is_text(value):
        raise InvalidInput(f"{name}: must be a text", field=name)
    return str(value)


def _needed(given: Given, name: str) -> str:
    value = _text(given, name)
    if not value:
        raise InvalidInput(f"{name}: is missing", field=name)
    return value


def _number(given: Given, name: str, default: float | None) -> float | None:
    value = given.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidInput(f"{name}: must be a number", field=name)
    try:
        return float(value)
    except OverflowError:
        raise InvalidInput(f"{name}: is too large", field=name) from None


def _count(given: Given, name: str, default: int) -> int:
    value = given.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 31:
        raise InvalidInput(f"{name}: must be a whole number, not below 0", field=name)
    return value


def _flag(given: Given, name: str) -> bool:
    value = given.get(name, False)
    if not isinstance(value, bool):
        raise InvalidInput(f"{name}: must be true or false", field=name)
    return value


def _texts(given: Given, name: str) -> list[str]:
    value = given.get(name) or []
    if not isinstance(value, list) or len(value) > _MOST_ITEMS or not all(map(_is_text, value)):
        raise InvalidInput(f"{name}: must be a list of at most {_MOST_ITEMS} texts", field=name)
    return value


def _mapping(given: Given, name: str) -> Given:
    value = given.get(name)
    if not isinstance(value, Mapping):
        raise InvalidInput(f"{name}: must be an object", field=name)
    return value


def _labels(given: Given, name: str) -> dict[str, str]:
    value = given.get(name) or {}
    if not isinstance(value, Mapping) or not all(_is_text(each) for pair in value.items() for each in pair):
        raise InvalidInput(f"{name}: must be an object of texts", field=name)
    return dict(value)
