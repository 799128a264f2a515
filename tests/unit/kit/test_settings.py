from __future__ import annotations

import os
from typing import ClassVar

import pytest
from pydantic import Field

from adlro.kit.settings import ServiceSettings, UnknownSetting, describe_settings, load_settings


class IngestSettings(ServiceSettings):
    service_name: ClassVar[str] = "ingest"

    cluster: str = "default"
    watch_changes_kept: int = Field(default=8192, ge=1)
    units: tuple[str, ...] = ()


@pytest.fixture(autouse=True)
def _empty_environment(monkeypatch):
    for key in [key for key in os.environ if key.startswith("ADLRO_")]:
        monkeypatch.delenv(key)


def problem_of(capsys) -> str:
    with pytest.raises(SystemExit) as stopped:
        load_settings(IngestSettings)
    assert stopped.value.code == 2
    text: str = capsys.readouterr().err
    assert text.count("\n") == 1
    assert text.startswith("ingest: ")
    return text.removeprefix("ingest: ").rstrip("\n")


def test_defaults_without_any_key():
    settings = load_settings(IngestSettings)
    assert settings.listen == "127.0.0.1:0"
    assert settings.redis_url == "redis://127.0.0.1:6379/0"
    assert settings.drain_timeout_s == 8.0
    assert settings.require_deadline is True
    assert settings.max_message_bytes == 4 * 1024 * 1024


def test_the_services_own_key_wins_over_the_shared_one(monkeypatch):
    monkeypatch.setenv("ADLRO_REDIS_URL", "redis://shared:6379/0")
    assert load_settings(IngestSettings).redis_url == "redis://shared:6379/0"
    monkeypatch.setenv("ADLRO_INGEST_REDIS_URL", "redis://own:6379/0")
    assert load_settings(IngestSettings).redis_url == "redis://own:6379/0"


def test_lists_are_json(monkeypatch, capsys):
    monkeypatch.setenv("ADLRO_INGEST_UNITS", '["W", "MiB"]')
    assert load_settings(IngestSettings).units == ("W", "MiB")
    monkeypatch.setenv("ADLRO_INGEST_UNITS", "W,MiB")
    assert problem_of(capsys) == "ADLRO_INGEST_UNITS: must be JSON (got 'W,MiB')"


def test_an_argument_wins_over_the_environment(monkeypatch):
    monkeypatch.setenv("ADLRO_INGEST_CLUSTER", "from-environment")
    assert IngestSettings(cluster="from-argument").cluster == "from-argument"


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("ADLRO_INGEST_LISTN", "ADLRO_INGEST_LISTEN"),
        ("ADLRO_REDIS_ULR", "ADLRO_REDIS_URL"),
        ("ADLRO_INGST_CLUSTER", "ADLRO_INGEST_CLUSTER"),
        # A field of one service is no shared key.
        ("ADLRO_WATCH_CHANGES_KEPT", "ADLRO_INGEST_WATCH_CHANGES_KEPT"),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest_known_one(monkeypatch, capsys, key, meant):
    monkeypatch.setenv(key, "x")
    assert problem_of(capsys) == f"unknown setting {key}; did you mean {meant}?"


def test_an_unknown_key_near_to_nothing_gets_the_list(monkeypatch, capsys):
    monkeypatch.setenv("ADLRO_QQQQQQQQ_ZZZZ", "x")
    text = problem_of(capsys)
    assert text.startswith("unknown setting ADLRO_QQQQQQQQ_ZZZZ; known are ")
    assert "ADLRO_INGEST_CLUSTER" in text


def test_several_unknown_keys_are_all_named(monkeypatch, capsys):
    monkeypatch.setenv("ADLRO_INGEST_LISTN", "x")
    monkeypatch.setenv("ADLRO_LOG_LEVL", "x")
    text = problem_of(capsys)
    assert "ADLRO_INGEST_LISTN" in text
    assert "did you mean ADLRO_LOG_LEVEL?" in text


def test_an_unknown_key_also_stops_settings_made_in_code(monkeypatch):
    monkeypatch.setenv("ADLRO_INGEST_LISTN", "x")
    with pytest.raises(UnknownSetting, match="ADLRO_INGEST_LISTN"):
        IngestSettings()


def test_keys_of_other_services_and_of_the_command_are_let_be(monkeypatch):
    monkeypatch.setenv("ADLRO_SIMCLUSTER_INGEST_ADDRESS", "127.0.0.1:7701")
    monkeypatch.setenv("ADLRO_ORCHESTRATOR_SERVER", "127.0.0.1:7703")
    monkeypatch.setenv("ADLRO_SERVER", "127.0.0.1:7701")
    monkeypatch.setenv("ADLRO_SHARED_DATA", "data")
    assert load_settings(IngestSettings).cluster == "default"


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("ADLRO_INGEST_DRAIN_TIMEOUT_S", "soon", "ADLRO_INGEST_DRAIN_TIMEOUT_S: must be a number (got 'soon')"),
        ("ADLRO_DRAIN_TIMEOUT_S", "-1", "ADLRO_DRAIN_TIMEOUT_S: must be more than 0 (got '-1')"),
        ("ADLRO_INGEST_LISTEN", "7701", "ADLRO_INGEST_LISTEN: must be host:port, such as 127.0.0.1:7701"),
        ("ADLRO_INGEST_LISTEN", "::1:7701", "ADLRO_INGEST_LISTEN: must have brackets"),
        ("ADLRO_INGEST_LISTEN", "", "ADLRO_INGEST_LISTEN: must be host:port"),
        ("ADLRO_INGEST_METRICS_LISTEN", "127.0.0.1:99999", "ADLRO_INGEST_METRICS_LISTEN: must be host:port"),
        ("ADLRO_LOG_LEVEL", "loud", "ADLRO_LOG_LEVEL: must be one of debug, info, warning, error (got 'loud')"),
        ("ADLRO_REDIS_URL", "localhost:6379", "ADLRO_REDIS_URL: must be a URL such as redis://127.0.0.1:6379/0"),
    ],
)
def test_a_wrong_value_is_named_by_the_key_that_holds_it(monkeypatch, capsys, key, value, text):
    monkeypatch.setenv(key, value)
    assert problem_of(capsys).startswith(text)


def test_a_password_in_a_wrong_url_is_not_printed(monkeypatch, capsys):
    monkeypatch.setenv("ADLRO_REDIS_URL", "http://:secret@127.0.0.1/0")
    assert "secret" not in problem_of(capsys)


def test_describe_names_every_key():
    text = describe_settings(IngestSettings)
    assert "ADLRO_INGEST_CLUSTER=default" in text
    assert "ADLRO_INGEST_REDIS_URL=redis://127.0.0.1:6379/0  (or ADLRO_REDIS_URL, for all services)" in text
