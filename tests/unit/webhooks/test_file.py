"""The file of webhooks: what it may say, and that each mistake is named with its line, its field and the way out."""

from __future__ import annotations

import base64
import os
from dataclasses import replace
from pathlib import Path

import pytest

from adlro.errors import InvalidInput
from adlro.records.jobs import JobState
from adlro.webhooks.events import CHOSEN, Event, EventName, sample_event
from adlro.webhooks.file import WebhooksFile, read_webhooks
from tests.unit.webhooks.samples import ended_job

SECRET = base64.b64encode(bytes(32)).decode()
GOOD = """
# Who is told.
[[webhook]]
name = "ops"
url = "https://alerts.example.org:8443/adlro?team=a#part"
events = ["gpu_lost", "job_ended"]
secret_file = "ops.secret"
job_states = ["failed", "cancelled"]
job_users = ["ada", "grace"]
job_labels = {team = "vision"}

[[webhook]]
name = "all"
url = "http://127.0.0.1:9/x"
events = ["job_ended", "gpu_lost", "gpu_back", "policy_fell_back", "policy_recovered", "drift_flagged", "drift_ended"]
unsigned = true
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "ops.secret").write_text(SECRET)
    return tmp_path


def written(folder: Path, text: str) -> Path:
    path = folder / "hooks.toml"
    path.write_text(text)
    return path


def test_a_good_file(folder: Path) -> None:
    ops, everything = read_webhooks(written(folder, GOOD), "--webhooks")
    assert (ops.name, ops.receiver, ops.secrets) == ("ops", "alerts.example.org:8443", (bytes(32),))
    assert ops.url == "https://alerts.example.org:8443/adlro?team=a"
    assert ops.events == {EventName.GPU_LOST, EventName.JOB_ENDED}
    assert ops.job_states == {JobState.FAILED, JobState.CANCELLED}
    assert ops.job_users == {"ada", "grace"}
    assert ops.job_labels == {"team": "vision"}
    assert (everything.events, everything.secrets) == (frozenset(CHOSEN), ())


def test_neither_url_nor_secret_is_shown(folder: Path) -> None:
    shown = repr(read_webhooks(written(folder, GOOD), "--webhooks"))
    assert "?team" not in shown
    assert repr(bytes(32)) not in shown


def test_filters_choose_jobs(folder: Path) -> None:
    ops, everything = read_webhooks(written(folder, GOOD), "--webhooks")

    def event(**job: object) -> Event:
        about = {"state": "failed", "user": "ada", "labels": {"team": "vision", "run": "7"}, **job}
        return replace(sample_event("x", "paper", 0.0), name=EventName.JOB_ENDED, subject={"job": about})

    assert ops.wants(event())
    assert not ops.wants(event(state="succeeded"))
    assert not ops.wants(event(user="bob"))
    assert not ops.wants(event(labels={"team": "speech"}))
    assert not ops.wants(event(labels={}))
    assert everything.wants(event(state="succeeded", user="bob", labels={}))
    lost = replace(sample_event("x", "paper", 0.0), name=EventName.GPU_LOST, subject={"gpu": {}})
    back = replace(lost, name=EventName.GPU_BACK)
    assert ops.wants(lost)
    assert not ops.wants(back)


def test_a_jobs_document_passes_the_filters(folder: Path) -> None:
    from adlro.webhooks.events import job_ended

    (ops, _) = read_webhooks(written(folder, GOOD), "--webhooks")
    job = ended_job(state=JobState.FAILED)
    assert not ops.wants(job_ended(job, "paper", 0.0))
    assert ops.wants(job_ended(replace(job, spec=replace(job.spec, labels={"team": "vision"})), "paper", 0.0))


BAD = [
    ('url = "https', 'ulr = "https', r"webhook\[0\].ulr of 'ops': is an unknown key; did you mean url\?.*\(line 5\)"),
    (
        '"gpu_lost", "job_ended"]\ns',
        '"gpu_lots"]\ns',
        r"webhook\[0\].events of 'ops': there is no 'gpu_lots'; did you mean gpu_lost\?.*\(line 6\)",
    ),
    ('name = "ops"', 'name = "o p"', r"webhook\[0\].name: 'o p' must be letters.*\(line 4\)"),
    ('name = "all"', 'name = "ops"', r"webhook\[1\].name: there are two webhooks 'ops'.*\(line 13\)"),
    ('name = "all"\n', "", r"webhook\[1\].name: is missing.*\(line 12\)"),
    ("unsigned = true", "", r"webhook\[1\].secret_file of 'all': is missing.*unsigned = true \(line 12\)"),
    (
        "unsigned = true",
        'unsigned = true\nsecret_file = "ops.secret"',
        r"webhook\[1\].unsigned.*leave one.*\(line 16\)",
    ),
    ("unsigned = true", "unsigned = 1", r"webhook\[1\].unsigned of 'all': must be true or false \(line 16\)"),
    (
        '"ops.secret"',
        '"none.secret"',
        r"webhook\[0\].secret_file of 'ops': can't read .*none.secret: No such file.*\(line 7\)",
    ),
    (
        '"failed", "cancelled"',
        '"running"',
        r"webhook\[0\].job_states of 'ops': there is no 'running'; there are.*\(line 8\)",
    ),
    ('["ada", "grace"]', "[]", r"webhook\[0\].job_users of 'ops': is empty; leave it out for all \(line 9\)"),
    ('"vision"}', "1}", r"webhook\[0\].job_labels of 'ops': must be a table of texts.*\(line 10\)"),
    (
        '"gpu_lost", "job_ended"]\ns',
        '"gpu_lost"]\ns',
        r"webhook\[0\].job_states of 'ops': chooses among job_ended.*\(line 8\)",
    ),
    ("https://alerts", "ftp://alerts", r"webhook\[0\].url of 'ops': must be an http:// or https:// URL.*\(line 5\)"),
    ("https://alerts", "https://me:hunter2@alerts", r"webhook\[0\].url of 'ops': has a user or a password.*\(line 5\)"),
    (":8443", ":99999", r"webhook\[0\].url of 'ops': is no URL.*\(line 5\)"),
    ("/adlro?", "/a dlro?", r"webhook\[0\].url of 'ops': has characters.*\(line 5\)"),
    ("[[webhook]]", "[[webhooks]]", r"webhooks: is an unknown key \(line 3\); the file has \[\[webhook\]\] tables"),
    ('name = "ops"', 'name = "ops', r"hooks.toml: is no TOML: .*line 4"),
    (
        "unsigned = true",
        'unsigned = true\nca_file = "ops.secret"',
        r"webhook\[1\].ca_file of 'all': has no effect without https",
    ),
    ("job_users", 'ca_file = "ops.secret"\njob_users', r"webhook\[0\].ca_file of 'ops': can't read certificates"),
]


@pytest.mark.parametrize(("old", "new", "said"), BAD)
def test_a_mistake_is_named_with_field_line_and_way_out(folder: Path, old: str, new: str, said: str) -> None:
    assert old in GOOD
    path = written(folder, GOOD.replace(old, new))
    with pytest.raises(InvalidInput, match=said) as refused:
        read_webhooks(path, "--webhooks")
    assert "hunter2" not in refused.value.message


@pytest.mark.parametrize("text", ["", "webhook = []", 'webhook = "x"', "webhook = [1]"])
def test_a_file_without_webhooks_is_refused(folder: Path, text: str) -> None:
    with pytest.raises(InvalidInput, match=r"needs at least one \[\[webhook\]\] table"):
        read_webhooks(written(folder, text), "--webhooks")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"--webhooks: can't read .*none.toml: No such file"):
        read_webhooks(tmp_path / "none.toml", "--webhooks")


def test_a_change_of_the_file_or_of_a_secret_is_seen(folder: Path) -> None:
    file = WebhooksFile(written(folder, GOOD), "--webhooks")
    file.read()
    assert not file.changed()
    (folder / "ops.secret").write_text(f"{SECRET}\n{SECRET}\n")
    assert file.changed()
    assert file.read()[0].secrets == (bytes(32), bytes(32))
    assert not file.changed()
    os.utime(file.path, (1, 1))
    assert file.changed()
