"""`adlro webhooks` without a suite: the file as it is, a test message, and what is wrong."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from adlro.cli.notify_process import WEBHOOKS_ENV, notify_address, notify_directory
from adlro.errors import Conflict
from adlro.webhooks.events import job_ended
from adlro.webhooks.file import read_webhooks
from adlro.webhooks.outbox import Outbox
from tests.unit.webhooks.samples import ended_job, webhooks_file
from tests.webhook_receiver import SECRET, receiver


def data_dir(folder: Path, path: Path) -> Path:
    """The data directory of a running suite with these webhooks."""
    (folder / "data").mkdir()
    notify = folder / "data" / "notify"
    (folder / "data" / "up.json").write_text(json.dumps({"webhooks_file": str(path), "notify_dir": str(notify)}))
    return folder / "data"


def test_without_webhooks_it_says_how_to_have_some(adlro: Callable[..., Any], tmp_path: Path) -> None:
    result = adlro("webhooks", "--data-dir", str(tmp_path))
    assert result.exit_code == 1
    assert "adlro up --webhooks FILE" in result.stderr


def test_a_file_is_checked_and_shown(adlro: Callable[..., Any], tmp_path: Path) -> None:
    path = webhooks_file(tmp_path, "http://127.0.0.1:1/secret-path")
    result = adlro("webhooks", "--file", str(path), "--data-dir", str(tmp_path))
    assert result.exit_code == 0
    assert "127.0.0.1:1" in result.stdout
    assert "secret-path" not in result.stdout
    assert "No suite with webhooks runs here" in result.stdout
    wrong = adlro("webhooks", "--file", str(webhooks_file(tmp_path, "ftp://x")), "--data-dir", str(tmp_path))
    assert wrong.exit_code == 1
    assert "webhook[0].url of 'ops': must be an http:// or https:// URL with a host (line 3)" in wrong.stderr


def test_the_file_of_the_environment(
    adlro: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(WEBHOOKS_ENV, str(webhooks_file(tmp_path)))
    document = json.loads(adlro("webhooks", "--data-dir", str(tmp_path), "-o", "json").stdout)
    assert (document["running"], [each["name"] for each in document["webhooks"]]) == (False, ["ops"])


def test_what_waits_and_what_went_wrong(adlro: Callable[..., Any], tmp_path: Path) -> None:
    path = webhooks_file(tmp_path)
    there = data_dir(tmp_path, path)
    outbox = Outbox(there / "notify", 100, 1 << 20)
    outbox.note([job_ended(ended_job(number), "paper", 1.0) for number in (1, 2, 3)], read_webhooks(path, "x"))
    message, _ = outbox.next_of("ops") or (None, 0)
    assert message is not None
    assert adlro("webhooks", "--data-dir", str(there)).exit_code == 0
    outbox.failed(message, "it answered 500", time.time() + 100.0, given_up=True)
    result = adlro("webhooks", "--data-dir", str(there))
    assert result.exit_code == 1
    assert "ops: it answered 500; the next try is in" in result.stdout
    (ops,) = json.loads(adlro("webhooks", "--data-dir", str(there), "-o", "json").stdout)["webhooks"]
    assert (ops["waiting_count"], ops["given_up_count"], ops["problem"]) == (2, 1, "it answered 500")
    outbox.close()


def test_nothing_of_others_reaches_the_terminal_as_it_is(adlro: Callable[..., Any], tmp_path: Path) -> None:
    hostile = "x\x1b]0;owned\x07\u202e[bold]y"
    path = webhooks_file(tmp_path)
    there = data_dir(tmp_path, path)
    outbox = Outbox(there / "notify", 100, 1 << 20)
    outbox.note([job_ended(ended_job(), "paper", 1.0)], read_webhooks(path, "x"))
    message, _ = outbox.next_of("ops") or (None, 0)
    assert message is not None
    outbox.failed(message, hostile, 1.0, given_up=False)
    outbox.close()
    shown = [adlro("webhooks", "--data-dir", str(there)), adlro("webhooks", "--data-dir", str(there), "-o", "json")]
    for key in ("name", "job_users", "events"):
        value = json.dumps(hostile).replace("\\u202e", "\\u202E")
        wrong = webhooks_file(tmp_path, **{key: value if key == "name" else f"[{value}, 1]"})
        shown.append(adlro("webhooks", "--file", str(wrong)))
        shown.append(adlro("webhooks", "--file", str(wrong), "--test", hostile))
    for result in shown:
        said = result.stdout + result.stderr
        assert "x" in said
        assert not {"\x1b]", "\x07", "\u202e"} & {said[i : i + n] for i in range(len(said)) for n in (1, 2)}


def test_a_test_message_is_signed_and_its_answer_shown(adlro: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "s.secret").write_text(SECRET)
    with receiver() as there:
        path = webhooks_file(tmp_path, there.url, unsigned="", secret_file='"s.secret"')
        result = adlro("webhooks", "--file", str(path), "--test", "ops")
        assert (result.exit_code, there.requests[0].document["event"]) == (0, "test")
        assert f"ops at 127.0.0.1:{there.port} took the test message: 204" in result.stdout
        there.answer = lambda request: (403, {})
        result = adlro("webhooks", "--file", str(path), "--test", "ops", "-o", "json")
        assert result.exit_code == 1
        assert json.loads(result.stdout)["problem"] == "it answered 403"
    result = adlro("webhooks", "--file", str(path), "--test", "ops")
    assert result.exit_code == 1
    assert "no connection: " in result.stdout


def test_notify_takes_its_port_or_another_one() -> None:
    assert notify_address(7706, lambda host, port: True, range(20_000, 21_000)) == "127.0.0.1:7706"
    assert notify_address(7706, lambda host, port: port == 20_005, range(20_000, 20_200)) == "127.0.0.1:20005"
    assert notify_address(65_536, lambda host, port: True, range(20_000, 20_200)).startswith("127.0.0.1:20")
    with pytest.raises(Conflict, match="no free port"):
        notify_address(7706, lambda host, port: False, range(20_000, 20_200))


def test_each_store_has_a_folder_of_its_own() -> None:
    assert notify_directory(closed=False) != notify_directory(closed=True)
