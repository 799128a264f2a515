"""Makes docs/settings.md from the settings classes of all services; `--check` fails where the committed page is stale.

Run by `make settings` and `make check`. Writes nothing else. A setting without a text below its field is an error.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MaxLen
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from adlro.kit.settings import HOST_SERVICES, PREFIX, SERVICES, ServiceSettings, environment_key

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "settings.md"

HEADER = f"""# Settings

<!-- Generated from the classes of settings by `make settings`. Don't edit. -->

Environment variables configure the services. A key that no service knows is an error that names the nearest known key;
a value outside its range is an error that names the key.

- A key of [all services](#all-services) can be set for one service as `{PREFIX}<SERVICE>_<KEY>`, which overrides
  `{PREFIX}<KEY>`: `{PREFIX}LOG_LEVEL=warning` with `{PREFIX}INGEST_LOG_LEVEL=debug`.
- `adlro up` hands its own environment to the services that it starts. With Docker, keys stand in the file `.env`
  ([details](deploy.md)).
- `python -m adlro.services.ingest --help` (`decompose`, ...) prints a service's keys with their defaults.
- Keys that end in `_S` are seconds, `_MIB` mebibytes, `_HZ` samples a second. `true` and `false` are also `1` and `0`.
- Every service reads its settings once, at its start.
"""

# Keys of the command and the client: read by adlro.cli and adlro.client, which have no settings classes.
CLIENT_KEYS = {
    "ADLRO_SERVER": ("`127.0.0.1:7701`", "Address of ingest; the other services are at the next three ports."),
    "ADLRO_DECOMPOSE_SERVER": ("", "Address of decompose, if it is elsewhere."),
    "ADLRO_ORCHESTRATOR_SERVER": ("", "Address of the orchestrator, if it is elsewhere."),
    "ADLRO_CLUSTER_SERVER": ("", "Address of the cluster's service, if it is elsewhere."),
    "ADLRO_TLS_CA_FILE": ("", "The authorities for the services' certificates, in PEM; empty: no TLS."),
    "ADLRO_TLS_CERT_FILE": ("", "The client's certificate, in PEM, for services that ask for one (mTLS)."),
    "ADLRO_TLS_KEY_FILE": ("", "Its private key."),
    "ADLRO_TOKEN_FILE": (
        "",
        "File with the caller's token; empty: that of your running `adlro up --cluster local` at this address.",
    ),
}


def page() -> str:
    """The page's text.

    Raises:
        ValueError: a setting has no text; names it.
    """
    parts = [HEADER, "## All services\n", table(ServiceSettings, dict(ServiceSettings.model_fields))]
    for service in (*SERVICES, *HOST_SERVICES):
        settings = settings_of(service)
        shared = ServiceSettings.model_fields
        own = {
            name: field
            for name, field in settings.model_fields.items()
            if name not in shared or field.default != shared[name].default
        }
        parts += [f"## {service}\n", *_notes(settings), table(settings, own)]
    rows = [f"| `{key}` | {default} | {text} |" for key, (default, text) in CLIENT_KEYS.items()]
    parts += [
        "## The command and the client\n",
        _lines("| key | default | what it does |", "| --- | --- | --- |", *rows),
    ]
    return "\n".join(parts).replace("|  |", "| |").replace("|  |", "| |")


def settings_of(service: str) -> type[ServiceSettings]:
    """The settings class of the service with this name."""
    module = importlib.import_module(f"adlro.services.{service}.settings")
    (found,) = (
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, ServiceSettings) and value.__module__ == module.__name__
    )
    return found


def _notes(settings: type[ServiceSettings]) -> list[str]:
    """What the class's docstring says after its first paragraph."""
    _, _, rest = (settings.__doc__ or "").partition("\n\n")
    text = " ".join(rest.split())
    return [f"{text}\n"] if text else []


def table(settings: type[ServiceSettings], fields: dict[str, FieldInfo]) -> str:
    """The rows of these fields of a settings class, with their head.

    Raises:
        ValueError: a setting has no text; names it.
    """
    rows = []
    for name, field in fields.items():
        if not field.description:
            raise ValueError(f"{settings.__name__}.{name}: has no text; write one in a docstring below the field")
        text = " ".join(field.description.split()).replace("|", "\\|")
        key = environment_key(settings, name)
        rows.append(f"| `{key}` | {shown(field.default)} | {allowed(field)} | {text} |")
    return _lines("| key | default | values | what it does |", "| --- | --- | --- | --- |", *rows)


def _lines(*lines: str) -> str:
    return "".join(f"{line}\n" for line in lines)


def shown(default: object) -> str:
    """A default as it is written in the environment; empty for none."""
    if default is None or default == "" or default is PydanticUndefined:
        return ""
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, float):
        return f"`{default:.10g}`"
    return f"`{default}`"


def allowed(field: FieldInfo) -> str:
    """The values that a field takes: a range, a list of words, `true` or `false`; empty for any text."""
    kind: Any = field.annotation
    if get_origin(kind) is Literal:
        return ", ".join(f"`{each}`" for each in get_args(kind))
    if kind is bool:
        return "`true`, `false`"
    for rule in field.metadata:
        words = str(getattr(rule, "pattern", None) or "").removeprefix("^(").removesuffix(")$")
        if words.replace("|", "").isalpha():
            return ", ".join(f"`{word}`" for word in words.split("|"))
    least = most = ""
    for rule in field.metadata:
        match rule:
            case Ge(ge=limit):
                least = f"≥ {_number(limit)}"
            case Gt(gt=limit):
                least = f"> {_number(limit)}"
            case Le(le=limit):
                most = f"≤ {_number(limit)}"
            case Lt(lt=limit):
                most = f"< {_number(limit)}"
            case MaxLen(max_length=limit):
                most = f"≤ {limit} characters"
            case _:
                pass
    return ", ".join(each for each in (least, most) if each)


def _number(value: Any) -> str:
    return f"{value:,.10g}"


def main() -> int:
    """Writes the page, or checks it; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page is stale")
    check = parser.parse_args().check
    try:
        text = page()
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    if check:
        if not TARGET.exists() or TARGET.read_text(encoding="utf-8") != text:
            sys.stderr.write("docs/settings.md is stale; run: make settings\n")
            return 1
        sys.stdout.write("docs/settings.md is up to date\n")
    else:
        TARGET.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
