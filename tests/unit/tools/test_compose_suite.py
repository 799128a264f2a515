"""Where containers do not come up, their tests end, with what compose said. `docker` is a script here."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from docker.errors import APIError, ImageNotFound

from tests.e2e import compose_suite
from tests.e2e.compose_suite import BASE_IMAGES, ComposeSuite, compose_command, have_base_images

ENDS_WELL = "exit 0"
FAILS = 'case "$*" in *up*|*config*) echo "redis Error: no such host" >&2; exit 1;; esac'


def fake_docker(folder: Path, rest: str, name: str = "docker") -> None:
    path = folder / name
    path.write_text(f'#!/bin/sh\ncase "$*" in *version*) echo v2.40.3; exit 0;; esac\n{rest}\n')
    path.chmod(0o755)


@pytest.fixture
def bin_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    return tmp_path


def test_a_compose_that_ends_well_whatever_happened_is_none(bin_folder: Path) -> None:
    fake_docker(bin_folder, ENDS_WELL)
    assert compose_command() is None
    fake_docker(bin_folder, ENDS_WELL, "docker-compose")
    assert compose_command() is None
    fake_docker(bin_folder, FAILS, "docker-compose")
    assert compose_command() == [str(bin_folder / "docker-compose")]
    fake_docker(bin_folder, FAILS)
    assert compose_command() == ["docker", "compose"]


def test_containers_that_do_not_come_up_fail_the_test_with_what_compose_said(
    bin_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_docker(bin_folder, FAILS)
    none = SimpleNamespace(containers=SimpleNamespace(list=lambda **_: []))
    monkeypatch.setattr(compose_suite, "engine", lambda: none)
    with pytest.raises(AssertionError, match="redis Error: no such host"):
        ComposeSuite(base_port=1).up()


def engine_with(images: set[str], registry: set[str]) -> SimpleNamespace:
    def get(name: str) -> None:
        if name not in images:
            raise ImageNotFound(name)

    def pull(name: str) -> None:
        if name not in registry:
            raise APIError("dial tcp: lookup registry: no such host")

    return SimpleNamespace(images=SimpleNamespace(get=get, pull=pull))


@pytest.mark.parametrize(("here", "there"), [(set(BASE_IMAGES), set()), (set(), set(BASE_IMAGES))])
def test_base_images_are_here_or_pulled(here: set[str], there: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compose_suite, "engine", lambda: engine_with(here, there))
    have_base_images()


def test_without_base_images_the_tests_are_skipped_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compose_suite, "engine", lambda: engine_with({BASE_IMAGES[0]}, set()))
    with pytest.raises(pytest.skip.Exception, match=rf"{BASE_IMAGES[1]} is not here(.|\n)*no such host"):
        have_base_images()
