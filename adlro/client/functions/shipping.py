"""A function and its arguments as files of their caller's, and the job that runs them. Touches files; no gRPC.

    <folder>/<id>/run.py       the program of the job (adlro.client.functions.runner)
    <folder>/<id>/call.pkl     function and arguments
    <folder>/<id>/result.pkl   written by the job

The client and the nodes see the folder under the same path: on a cluster `local` any local folder, elsewhere one on a
file system that they share. It belongs to the caller alone (mode 0700), and the job runs as the same user: whoever can
write into it can run code as both.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from adlro.client.functions import runner
from adlro.client.programs import program_spec
from adlro.errors import Conflict, InvalidInput, NotFound
from adlro.kit.running_suites import default_data_dir
from adlro.records.applications import MOST_CHARACTERS
from adlro.records.jobs import Job, JobSpec
from adlro.records.spelling import NO_SUCH_FIELD

PROGRAM = "run.py"

Folder = str | os.PathLike[str] | None
"""Of all calls; None: `default_folder()`."""
Options = Mapping[str, Any] | JobSpec
"""What a function's job asks for: arguments of `program_spec` other than the command, or a spec without payload."""


def default_folder() -> Path:
    """`$XDG_STATE_HOME/adlro-functions`, or `~/.local/state/adlro-functions`."""
    return default_data_dir().with_name("adlro-functions")


@dataclass(frozen=True, slots=True)
class ShippedCall:
    """A call of a function that a job runs.

    Attributes:
        folder: its files.
        keep: they stay when the result was read.
    """

    folder: Path
    keep: bool = False

    @property
    def request_id(self) -> str:
        """Of the job's submission: a repeated one gives the same job."""
        return self.folder.name

    @property
    def result_path(self) -> Path:
        """Where the job writes what came out."""
        return self.folder / runner.RESULT

    def remove(self) -> None:
        """Removes the files."""
        shutil.rmtree(self.folder, ignore_errors=True)


def ship(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    folder: Folder = None,
    keep: bool = False,
) -> ShippedCall:
    """Writes a function and its arguments into a folder of their own.

    Args:
        function: anything that cloudpickle can write: also a lambda, a closure, or a function of `__main__`.
        args, kwargs: its arguments.
        folder: of all calls; None: `default_folder()`. It is made, for this user only.
        keep: leave the files when the result was read.

    Raises:
        InvalidInput: the function or an argument can't be pickled.
        Conflict: others could change what is in the folder.
    """
    import cloudpickle  # late: most clients ship nothing

    if not callable(function):
        raise InvalidInput(f"function: {function!r} can't be called: give the function itself", field="function")
    top = default_folder() if folder is None else Path(folder).expanduser().absolute()
    try:
        _make_safe(top)
        call = ShippedCall(top / uuid.uuid4().hex, keep)
        call.folder.mkdir(mode=0o700)
    except OSError as error:
        raise InvalidInput(f"folder: {top} can't be used: {error.strerror}; name another one", field="folder") from None
    try:
        shutil.copyfile(runner.__file__, call.folder / PROGRAM)
        head = {"function": name_of(function), "sys_path": [os.path.abspath(each) for each in sys.path]}
        runner.write_own(
            str(call.folder / runner.CALL),
            head,
            lambda file: cloudpickle.dump((function, tuple(args), dict(kwargs)), file, protocol=5),
        )
    except OSError as error:
        call.remove()
        raise InvalidInput(
            f"folder: {top} can't be written: {error.strerror}; name another one", field="folder"
        ) from None
    except Exception as error:  # what a pickler raises depends on what it is given
        call.remove()
        raise InvalidInput(
            f"{name_of(function)} or one of its arguments can't be pickled: {type(error).__name__}: {error}; open "
            "files, locks and connections inside the function",
            field="function",
        ) from error
    return call


def _make_safe(top: Path) -> None:
    """Makes the folder, or refuses one in which others could put another program in the place of a call's.

    Raises:
        Conflict: that is so.
    """
    top.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = top.stat()
    others_write = found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX
    if found.st_uid not in (os.geteuid(), 0) or others_write:
        raise Conflict(
            f"folder: others could change what is in {top}, and so what the job runs: name a folder of your own, such "
            f"as {top / 'mine'} made by `mkdir -m 700`",
            field="folder",
        )


def joined(options: Options | None, more: Mapping[str, Any]) -> Options:
    """Options of a job from both places.

    Raises:
        InvalidInput: a spec and further options.
    """
    if not isinstance(options, JobSpec):
        return {**(options or {}), **more}
    if more:
        raise InvalidInput("options: a spec has all of a job: change it by dataclasses.replace", field="options")
    return options


def spec_of(
    call: ShippedCall, function: Callable[..., Any], options: Options, python: str | os.PathLike[str] | None
) -> JobSpec:
    """The job that runs a call.

    Args:
        call: as shipped.
        function: for its name.
        options: what the job asks for.
        python: the interpreter; None: this one's. It needs the same minor version, and cloudpickle.

    Raises:
        InvalidInput: an option is unknown or wrong.
    """
    name = name_of(function)
    command = [python or sys.executable or "python3", call.folder / PROGRAM]
    if not isinstance(options, JobSpec):
        if "command" in options or options.get("image"):
            raise InvalidInput(
                "a function has no command and no image: it runs in an interpreter of the node (python=)"
            )
        given = {"name": name.rpartition(".")[2], "application": _application(function), **options}
        try:
            return program_spec(command, **given)
        except InvalidInput as error:
            if error.reason != NO_SUCH_FIELD:
                raise
            told = f"{error.message}; an argument of the function belongs into kwargs={{{error.field!r}: ...}}"
            raise InvalidInput(told, field=error.field, reason=NO_SUCH_FIELD) from None
    if options.payload is not None:
        raise InvalidInput("options: a function is what the job runs: give a spec without a payload", field="options")
    return replace(
        options,
        payload=program_spec(command).payload,
        name=options.name or name.rpartition(".")[2],
        application=options.application or _application(function),
    )


def check_options(options: Options) -> None:
    """Raises InvalidInput for an option that no job of a function has."""
    spec_of(ShippedCall(Path("/")), check_options, options, None)


def shipped_call_of(job: Job) -> ShippedCall:
    """The call that a job runs.

    Raises:
        NotFound: it runs no function.
    """
    argv = () if job.spec.payload is None else job.spec.payload.argv
    if len(argv) != 2 or os.path.basename(argv[1]) != PROGRAM:
        raise NotFound(
            f"{job.job_id} runs no Python function of submit_function: adlro logs {job.job_id} has its output"
        )
    return ShippedCall(Path(argv[1]).parent)


def name_of(function: Callable[..., Any]) -> str:
    """A function's name with its module, such as `train.main`; of a lambda `<lambda>`."""
    inner = getattr(function, "func", function)  # of functools.partial
    name = getattr(inner, "__qualname__", type(inner).__qualname__).replace("<locals>.", "")
    module = getattr(inner, "__module__", None) or ""
    return name if module in ("", "__main__", "builtins") else f"{module}.{name}"


def _application(function: Callable[..., Any]) -> str:
    # Jobs of one function take alike, whatever folder its call lies in.
    return f"python:{name_of(function)}"[:MOST_CHARACTERS]
