"""The reference pages are complete: docs/settings.md has every setting, docs/commands.md every command."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest
from pydantic import Field

from adlro.kit.settings import HOST_SERVICES, OTHER_KEYS, SERVICES, ServiceSettings, environment_key
from tools.generate_settings_page import CLIENT_KEYS, TARGET, allowed, page, settings_of, table

ROOT = Path(__file__).resolve().parents[3]


class Samples(ServiceSettings):
    """Fields of each kind."""

    share: float = Field(default=0.5, gt=0, le=1)
    """A share."""
    count: int = Field(default=3, ge=1, lt=10_000)
    """A count."""
    mode: Literal["off", "on"] = "off"
    """A word."""
    level: str = Field(default="info", pattern="^(debug|info)$")
    """A pattern of words."""
    path: str = Field(default="", pattern=r"^$|^https?://")
    """Another pattern."""
    flag: bool = True
    """A flag | a switch."""
    name: str = Field(default="", max_length=64)
    """A name."""
    silent: str = ""


def test_the_settings_page_is_fresh() -> None:
    assert TARGET.read_text() == page(), "run: make settings"


@pytest.mark.parametrize("service", ["", *SERVICES, *HOST_SERVICES])
def test_the_settings_page_has_every_setting_once(service: str) -> None:
    settings = settings_of(service) if service else ServiceSettings
    own = [name for name in settings.model_fields if not service or name not in ServiceSettings.model_fields]
    assert own
    rows = re.findall(r"^\| `(\w+)` \|", TARGET.read_text(), re.MULTILINE)
    keys = [environment_key(settings, name) for name in own]
    assert {key: rows.count(key) for key in keys} == {key: 1 + (key in CLIENT_KEYS) for key in keys}


def test_every_service_of_the_tree_is_on_the_settings_page() -> None:
    services = {path.parent.name for path in (ROOT / "services").glob("*/settings.py")}
    assert services == {*SERVICES, *HOST_SERVICES}


def test_the_keys_of_command_and_client_are_read_by_them() -> None:
    code = "".join(path.read_text() for folder in ("cli", "client") for path in (ROOT / "adlro" / folder).rglob("*.py"))
    assert {key for key in CLIENT_KEYS if key not in code} == set()
    assert OTHER_KEYS - {"ADLRO_SHARED_DATA"} <= set(CLIENT_KEYS)  # that one is for tests


def test_ranges_and_words_are_told() -> None:
    told = {name: allowed(field) for name, field in Samples.model_fields.items()}
    assert told["share"] == "> 0, ≤ 1"
    assert told["count"] == "≥ 1, < 10,000"
    assert told["mode"] == "`off`, `on`"
    assert told["level"] == "`debug`, `info`"
    assert told["path"] == ""
    assert told["flag"] == "`true`, `false`"
    assert told["name"] == "≤ 64 characters"


def test_a_setting_without_a_text_is_refused_by_its_name() -> None:
    with pytest.raises(ValueError, match=r"Samples\.silent: has no text; write one in a docstring below the field"):
        table(Samples, {"silent": Samples.model_fields["silent"]})
    assert "A flag \\| a switch." in table(Samples, {"flag": Samples.model_fields["flag"]})


def test_a_stale_page_fails_the_check(tmp_path: Path) -> None:
    copy = tmp_path / "tools"
    copy.mkdir()
    (copy / "generate_settings_page.py").write_text((ROOT / "tools" / "generate_settings_page.py").read_text())
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "settings.md").write_text(page().replace("Log", "log").replace("to listen on", "to hear"))
    command = [sys.executable, str(copy / "generate_settings_page.py"), "--check"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert ended.stderr == "docs/settings.md is stale; run: make settings\n"


def test_every_command_is_on_the_page_of_commands() -> None:
    from typer.main import get_command

    from adlro.cli.app import app

    commands = set(get_command(app).commands)  # type: ignore[attr-defined]  # a group
    rows = re.findall(r"^\| (`adlro [^|]+)\|", (ROOT / "docs" / "commands.md").read_text(), re.MULTILINE)
    assert {name for cell in rows for name in re.findall(r"`adlro ([a-z-]+)", cell)} == commands
