"""`adlro doctor`: each check tells what it found; a fault has the way out, and a broken check hides no other."""

from __future__ import annotations

import json
import os
import platform
import resource
import shutil
import socket
import sys
from collections import namedtuple
from pathlib import Path

import pytest
import redis
from typer.testing import CliRunner

from adlro.cli import machine_checks as checks
from adlro.cli.app import app
from adlro.cli.machine_checks import Finding, Level
from adlro.client import ServiceName
from adlro.kit.store_report import inspect_store

Usage = namedtuple("Usage", "total used free")


def levels(findings: list[Finding]) -> list[Level]:
    return [each.level for each in findings]


async def test_a_sound_store_is_reported_with_its_version(redis_url: str) -> None:
    (found,) = await checks.store(redis_url, "")
    assert found.level is Level.OK
    assert found.text.startswith(("valkey ", "redis "))


async def test_a_store_that_would_delete_jobs_is_a_fault_with_its_command(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        before = client.config_get("maxmemory-policy", "appendonly")
        client.config_set("maxmemory-policy", "allkeys-lru")
        client.config_set("appendonly", "no")
        try:
            found = list(await checks.store(redis_url, ""))
            report = await inspect_store(redis_url)
        finally:
            for key, value in before.items():
                client.config_set(key, value)
    assert levels(found) == [Level.FAULT, Level.FAULT]
    assert "CONFIG SET maxmemory-policy noeviction" in found[0].mend
    assert "CONFIG SET appendonly yes" in found[1].mend
    assert report.asks_password is True


async def test_a_store_that_does_not_answer_is_a_fault() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        (found,) = await checks.store(f"redis://127.0.0.1:{closed.getsockname()[1]}/0", "")
    assert found.level is Level.FAULT


def test_another_system_is_told_that_programs_need_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    (found,) = checks.system()
    assert (found.level, "Linux alone" in found.text) == (Level.FAULT, True)


@pytest.mark.parametrize(("release", "level"), [("4.19.0-27-amd64", Level.FAULT), ("6.8.0-45-generic", Level.OK)])
def test_an_old_kernel_is_a_fault(monkeypatch: pytest.MonkeyPatch, release: str, level: Level) -> None:
    monkeypatch.setattr(platform, "release", lambda: release)
    assert levels(list(checks.system())) == [level]


@pytest.mark.parametrize(("free_mib", "level"), [(100, Level.FAULT), (5_000, Level.NOTE), (50_000, Level.OK)])
def test_a_full_disk_is_a_fault(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free_mib: int, level: Level) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(0, 0, free_mib << 20))
    assert next(checks.disk(tmp_path / "not" / "there")).level is level


def test_a_data_directory_on_a_network_file_system_is_a_fault(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(checks, "_file_system", lambda _: "nfs4")
    found = next(checks.disk(tmp_path))
    assert (found.level, "nfs4" in found.text) == (Level.FAULT, True)


def test_the_file_system_of_a_path_is_found() -> None:
    assert checks._file_system(Path("/proc/self")) == "proc"


def test_few_open_files_are_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 524_288))
    found = next(checks.limits())
    assert (found.level, found.mend) == (Level.NOTE, "ulimit -n 65536")


def test_a_port_in_use_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1] - ServiceName.INGEST.port_offset
        (found,) = checks.ports(port)
    assert found.level is Level.NOTE
    assert str(port) in found.text


def test_a_check_that_fails_is_a_finding_and_the_others_are_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken() -> list[Finding]:
        raise PermissionError("no access")

    monkeypatch.setattr(checks, "gpus", broken)
    monkeypatch.setattr(checks, "engine", lambda: [Finding("containers", Level.OK, "engine 99")])
    monkeypatch.delitem(os.environ, "ADLRO_REDIS_URL", raising=False)
    result = CliRunner().invoke(app, ["doctor", "-o", "json", "--data-dir", str(tmp_path)])
    findings = json.loads(result.stdout)["findings"]
    by_part = {each["about"]: each for each in findings}
    assert by_part["gpu"]["level"] == "fault"
    assert "no access" in by_part["gpu"]["text"]
    assert by_part["containers"]["text"] == "engine 99"
    assert {"system", "limits", "disk", "files", "ports", "store", "versions"} <= by_part.keys()
    assert result.exit_code == 1
