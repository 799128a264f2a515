"""The installed parts of ADLRO: commands of the others print how to install them. Standard library only."""

from __future__ import annotations

from importlib.util import find_spec

from adlro.errors import Unsupported, with_extra

_SUITE = ("grpc_reflection", "numba", "onnxruntime", "prometheus_client", "protovalidate", "pydantic_settings", "redis")


def require_suite(command: str) -> None:
    """For commands that start services.

    Raises:
        Unsupported: this installation has only the client and the command.
    """
    if missing := [package for package in _SUITE if find_spec(package) is None]:
        raise Unsupported(
            f"`{command}` needs the suite's packages ({', '.join(missing)} missing); install them "
            f"{with_extra('suite')}. For a suite that runs elsewhere: ADLRO_SERVER=HOST:PORT"
        )


def has_textual() -> bool:
    """Whether `adlro top` can draw its screen."""
    return find_spec("textual") is not None


def require_textual() -> None:
    """For the screen of `adlro top`.

    Raises:
        Unsupported: this installation has no Textual.
    """
    if not has_textual():
        raise Unsupported(
            f"`adlro top` needs Textual; install it {with_extra('top')}. Without it: `adlro top --once` prints one "
            "picture, and `adlro gpus --watch` shows the GPUs"
        )
