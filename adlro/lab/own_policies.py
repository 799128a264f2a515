"""Policies that a command line of the laboratory gets from files: a policy's code, a learned policy's checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from adlro.decide.catalog import built_in, of_files
from adlro.decide.own_source import NAMES, RESERVED, package_names
from adlro.decide.policies import Policy
from adlro.decide.policies.dqn import Dqn
from adlro.errors import AdlroError, InvalidInput


def given_policies(files: Sequence[str], checkpoints: Sequence[str]) -> dict[str, Policy]:
    """The policies of files, by name, ready to decide.

    Args:
        files: of code, each as PATH:CLASS.
        checkpoints: of the learned policy, each as FILE, whose name without ending is the policy's, or as NAME=FILE.

    Raises:
        InvalidInput: one can't be used; the message names the option, the file and the way out.
    """
    found: dict[str, Policy] = {name: kind() for name, kind in of_files(files).items()}
    taken = {*built_in(), *package_names(), *RESERVED}
    for text in checkpoints:
        name, file = _named(text)
        if name in taken or name in found or not NAMES.fullmatch(name):
            why = "is taken" if name in taken or name in found else "must be small letters, digits and underscores"
            raise InvalidInput(
                f"checkpoint: the name '{name}' {why}; give another one: --checkpoint NAME={file}", field="checkpoint"
            )
        found[name] = _learned(file)
    return found


def _named(text: str) -> tuple[str, Path]:
    name, equals, path = text.partition("=")
    if equals and "/" not in name:
        return name, Path(path).expanduser()
    file = Path(text).expanduser()
    return file.stem.lower().replace("-", "_").replace(".", "_"), file


def _learned(file: Path) -> Policy:
    try:
        if not file.is_file():
            raise InvalidInput(f"{file}: there is no such file")
        return Dqn(file.absolute()).load()
    except AdlroError as error:
        message = error.message.removeprefix("checkpoint ")
        raise InvalidInput(f"checkpoint: {message}", field="checkpoint") from error
