"""The README's tables name every setting with its default, and every command."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
from pydantic_core import PydanticUndefined

from adlro.kit.settings import ServiceSettings

ROOT = Path(__file__).resolve().parents[3]
SERVICES = ("ingest", "decompose", "orchestrator", "simcluster", "local", "web")


def rows(heading: str) -> list[list[str]]:
    section = (ROOT / "README.md").read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    assert section, heading
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]


def shown(default: object) -> str:
    if default is None or default == "" or default is PydanticUndefined:
        return ""
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, float):
        return f"`{default:.10g}`"
    return f"`{default}`"


def settings_of(service: str) -> type[ServiceSettings]:
    module = importlib.import_module(f"adlro.services.{service}.settings")
    (found,) = (
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, ServiceSettings) and value.__module__ == module.__name__
    )
    return found


@pytest.mark.parametrize("service", ["", *SERVICES])
def test_settings_and_defaults(service: str) -> None:
    base = ServiceSettings.model_fields
    if service:
        fields = {key: field for key, field in settings_of(service).model_fields.items() if key not in base}
        prefix = f"ADLRO_{service.upper()}_"
    else:
        fields, prefix = dict(base), "ADLRO_"
    expected = {f"`{prefix}{key.upper()}`": shown(field.default) for key, field in fields.items()}

    heads = {"": "all services"} | {name: name for name in SERVICES}
    named: dict[str, str] = {}
    inside = False
    for cells in rows("Configuration"):
        if cells[0].startswith("**") or cells[0] == "key":
            inside = cells[0] == f"**{heads[service]}**"
        elif inside:
            named[cells[0]] = cells[1]

    assert named == expected


def test_commands() -> None:
    from typer.main import get_command

    from adlro.cli.app import app

    commands = set(get_command(app).commands)  # type: ignore[attr-defined]  # a group
    named = {name for cells in rows("The command") for name in re.findall(r"`adlro ([a-z]+)", cells[0])}
    assert named == commands
