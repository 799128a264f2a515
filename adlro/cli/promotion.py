"""`adlro policy promote` and `adlro policy rollback`: which checkpoint the learned policy of this user's suite has."""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adlro.cli.data_dir import CHECKPOINTS, data_dir_of
from adlro.errors import AdlroError, Conflict, InvalidInput, NotFound
from adlro.kit.promotion import CANDIDATE_FILE, VERDICT_FILE, changing, promote, promoted, withdraw

if TYPE_CHECKING:
    from adlro.client import Client

LEARNED = "dqn"
MOST_BYTES = 64 * 2**20
_WAIT_S, _LOOK_S = 120.0, 0.3


@dataclass(frozen=True, slots=True)
class Change:
    """Of the checkpoint in use.

    Attributes:
        version, before: of the one in use now, and before; empty: not known, no suite answers.
        file: the promoted file, or the one that was withdrawn.
    """

    version: str
    before: str
    file: str


def folder_of(server: str | None, given: Path | None) -> Path:
    """The folder of promoted checkpoints.

    Raises:
        NotFound: no suite of this user runs at the address on this machine.
    """
    if given is not None:
        return given
    data_dir = data_dir_of(server)
    if data_dir is None:
        raise NotFound(
            "no suite of yours runs on this machine at --server: checkpoints are files, so promote where the "
            "orchestrator reads them, and name its folder ADLRO_ORCHESTRATOR_PROMOTED by --folder"
        )
    return data_dir / CHECKPOINTS


def promoted_now(client: Client | None, source: Path, folder: Path, *, force: bool) -> Change:
    """Promotes a checkpoint, and waits until the suite decides by it.

    Args:
        client: of the suite; None: nothing is waited for.
        source: an ONNX file, or a folder of `adlro learn`.
        folder: of the promoted checkpoints.
        force: also a candidate that was not offered, or not judged.

    Raises:
        NotFound, InvalidInput: no such file, or no checkpoint.
        Conflict: it was not offered; it is in use already; or the orchestrator refuses it, which takes it back.
    """
    file, verdict = _found(source, force=force)
    content = file.read_bytes()
    version = hashlib.blake2b(content, digest_size=6).hexdigest()
    if verdict is not None and verdict.get("version") != version:
        raise Conflict(f"{source}: its verdict is of version {verdict.get('version')}, and the file is {version}")
    if verdict is not None and not verdict.get("offered") and not force:
        reasons = "; ".join(map(str, verdict.get("reasons", ())))
        raise Conflict(f"this candidate was judged, and not offered: {reasons}. --force promotes it all the same")
    with changing(folder):
        before, refused = ("", 0) if client is None else _in_use(client)
        if version == before or (client is None and any(each.version == version for each in promoted(folder)[:1])):
            raise Conflict(f"version {version} is in use already")
        there = promote(folder, content, version)
        if client is None:
            return Change("", before, str(there.path))
        try:
            problem = _until(client, version, refused)
        except BaseException:  # Ctrl-C as well: what nobody has seen to work does not stay
            withdraw(folder, there)
            raise
        if problem:
            withdraw(folder, there)
            raise Conflict(f"the orchestrator does not take {file}: {problem}. Nothing has changed")
    return Change(version, before, str(there.path))


def rolled_back(client: Client | None, folder: Path) -> Change:
    """Takes the checkpoint in use back, and waits until the suite decides by the one before.

    Raises:
        NotFound: none is promoted.
        Conflict: it is withdrawn, and the suite still decides by it.
    """
    with changing(folder):
        before = "" if client is None else _in_use(client)[0]
        gone = withdraw(folder)
    if client is None:
        return Change("", before, str(gone.path))
    end = time.monotonic() + _WAIT_S
    while (version := _in_use(client)[0]) == gone.version:
        if time.monotonic() > end:
            raise Conflict(
                f"{gone.path} is withdrawn, and after {_WAIT_S:.0f} s the suite still decides by version {version}: "
                "adlro policy --long says why"
            )
        time.sleep(_LOOK_S)
    return Change(version, before, str(gone.path))


def _found(source: Path, *, force: bool) -> tuple[Path, dict[str, Any] | None]:
    """The file, and the verdict beside it; None: it is no candidate of `adlro learn`, or it may go without."""
    file = source / CANDIDATE_FILE if source.is_dir() else source
    if not file.is_file():
        raise NotFound(f"{file}: no such file; `adlro learn` makes candidates, `adlro train` networks")
    if file.stat().st_size > MOST_BYTES:
        raise InvalidInput(f"{file}: it has more than {MOST_BYTES} bytes, and is no checkpoint", field="file")
    if file.name != CANDIDATE_FILE:
        return file, None
    try:
        verdict: Any = json.loads((file.parent / VERDICT_FILE).read_text("utf-8"))
    except FileNotFoundError:
        verdict = None
    except ValueError as error:
        raise InvalidInput(f"{file.parent / VERDICT_FILE}: can't be read ({error})", field="file") from error
    if isinstance(verdict, dict):
        return file, verdict
    if not force:
        raise Conflict(
            f"{file} was not judged: let adlro learn come to its end with the same command, or promote it with --force"
        )
    return file, None


def _in_use(client: Client) -> tuple[str, int]:
    """The version of the learned policy, and the number of checkpoints that were refused so far."""
    version = next((each.version for each in client.policies() if each.name == LEARNED), "")
    return version, client.status().checkpoints_refused_count


def _until(client: Client, version: str, refused: int) -> str:
    """Waits until a version is in use; returns why it is not, or an empty text."""
    end = time.monotonic() + _WAIT_S
    while time.monotonic() < end:
        try:
            now, now_refused = _in_use(client)
        except AdlroError as error:
            return error.message
        if now == version:
            return ""
        if now_refused > refused:
            return next((each.problem for each in client.policies() if each.name == LEARNED), "") or "it was refused"
        time.sleep(_LOOK_S)
    return (
        f"after {_WAIT_S:.0f} s it still decides by another one; does its setting ADLRO_ORCHESTRATOR_PROMOTED name it?"
    )
