"""docs/notifications.md: its code verifies our messages, its file is valid, its tables name every key and event."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest

from adlro.webhooks.events import CHOSEN, VERSION, EventName, job_ended
from adlro.webhooks.file import _KEYS, read_webhooks
from adlro.webhooks.signature import secret_bytes, signed_headers
from tests.unit.webhooks.samples import ended_job
from tests.webhook_receiver import SECRET

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "notifications.md").read_text()


def table(heading: str) -> dict[str, str]:
    """The rows of a section's table, by the code in their first cells."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [line.split(" | ", 1) for line in section.splitlines() if line.startswith("| `")]
    return {name: rest for first, rest in rows for name in re.findall(r"`(\w+)`", first)}


def test_the_ten_lines_of_python_verify_our_messages() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(code.strip().splitlines()) <= 12
    names: dict[str, Any] = {}
    exec(code, names)
    body = b'{"event": "test"}'
    now_s = int(time.time())
    headers = signed_headers([secret_bytes(SECRET)], "id-1", now_s, body)
    assert names["verify"](headers, body, SECRET + "\n") == {"event": "test"}
    with pytest.raises(ValueError, match="not signed"):
        names["verify"](headers, body + b" ", SECRET)
    old = signed_headers([secret_bytes(SECRET)], "id-1", now_s - 400, body)
    with pytest.raises(ValueError, match="is old"):
        names["verify"](old, body, SECRET)


def test_the_files_example_is_valid(tmp_path: Path) -> None:
    (example,) = re.findall(r"<<END\n(.*?)END\n", PAGE, re.DOTALL)
    (tmp_path / "ops.secret").write_text(SECRET)
    path = tmp_path / "webhooks.toml"
    path.write_text(example)
    (webhook,) = read_webhooks(path, "--webhooks")
    assert webhook.name == "ops"


def test_every_key_and_event_is_there() -> None:
    assert set(table("The file")) == set(_KEYS)
    assert set(table("Events")) == {str(each) for each in EventName}
    assert {str(each) for each in CHOSEN} | {"test"} == {str(each) for each in EventName}


def test_every_field_of_a_document_is_there() -> None:
    document = job_ended(ended_job(), "paper", 0.0).document()
    section = PAGE.partition("\n## Events\n")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(\w+)`", section))
    assert {*document, *document["job"], "lost_count"} <= named
    assert f"`version` ({VERSION})" in section
