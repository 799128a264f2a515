"""The outbox: bounds, what is noted once, what a kill between two transactions leaves, and what the command reads."""

from __future__ import annotations

import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from adlro.errors import Conflict, DataLoss
from adlro.webhooks import outbox as module
from adlro.webhooks.events import CHOSEN, Event, EventName, job_ended, sample_event
from adlro.webhooks.file import Webhook
from adlro.webhooks.outbox import DATABASE, Message, Outbox, read_states
from tests.unit.webhooks.samples import ended_job

OPS = Webhook("ops", "http://127.0.0.1:1/", frozenset(CHOSEN))
DEV = Webhook("dev", "http://127.0.0.1:2/", frozenset({EventName.JOB_ENDED}))


@pytest.fixture
def outbox(tmp_path: Path) -> Iterator[Outbox]:
    made = Outbox(tmp_path / "notify", 3, 1 << 20)
    yield made
    made.close()


def end(number: int) -> Event:
    return job_ended(ended_job(number), "paper", float(number))


def next_of(outbox: Outbox) -> tuple[Message, int]:
    found = outbox.next_of("ops")
    assert found is not None
    return found


def ids_of(outbox: Outbox, webhook: str) -> list[str]:
    rows = outbox._db.execute("SELECT event_id FROM messages WHERE webhook = ? ORDER BY number", (webhook,))
    return [row[0] for row in rows]


def test_each_webhook_has_its_own_messages_in_order(outbox: Outbox) -> None:
    lost = replace(sample_event("x", "paper", 1.0), name=EventName.GPU_LOST)
    assert outbox.note([end(1), lost, end(2)], [OPS, DEV], position=6) == {}
    assert ids_of(outbox, "ops") == [end(1).event_id, lost.event_id, end(2).event_id]
    assert ids_of(outbox, "dev") == [end(1).event_id, end(2).event_id]
    found = outbox.next_of("dev")
    assert found is not None
    message, lost_count = found
    assert (message.event, message.document, message.tries, lost_count) == ("job_ended", end(1).document(), 0, 0)
    assert outbox.position == 6
    assert outbox.last_end == ("job-2", end(2).event_id)
    outbox.delivered(message, 0, 9.0)
    assert ids_of(outbox, "dev") == [end(2).event_id]
    assert outbox.held("dev")[0] == 1


def test_an_end_is_noted_once_whatever_is_read_again(outbox: Outbox) -> None:
    outbox.note([end(1)], [OPS], position=3)
    message, _ = next_of(outbox)
    outbox.delivered(message, 0, 1.0)
    outbox.note([end(1), end(1), end(2)], [OPS], position=6)
    assert ids_of(outbox, "ops") == [end(2).event_id]


def test_the_oldest_messages_beyond_the_count_are_dropped_and_counted(outbox: Outbox, tmp_path: Path) -> None:
    assert outbox.note([end(number) for number in range(1, 6)], [OPS, DEV]) == {"ops": 2, "dev": 2}
    assert ids_of(outbox, "ops") == [end(number).event_id for number in (3, 4, 5)]
    message, lost_count = next_of(outbox)
    assert lost_count == 2
    outbox.delivered(message, lost_count, 7.0)
    ops = next(each for each in read_states(tmp_path / "notify") if each.name == "ops")
    assert (ops.waiting_count, ops.delivered_count, ops.dropped_count, ops.untold_count) == (2, 1, 2, 0)
    assert ops.delivered_unix_s == 7.0


def test_the_oldest_messages_beyond_the_bytes_are_dropped_but_never_the_last(tmp_path: Path) -> None:
    size = len(str(end(1).document()))
    outbox = Outbox(tmp_path / "notify", 1000, 3 * size)
    for number in range(1, 30):
        outbox.note([end(number)], [OPS])
        assert outbox.held("ops")[1] <= 3 * size
    assert 1 < outbox.held("ops")[0] <= 4
    outbox.close()
    tiny = Outbox(tmp_path / "tiny", 1000, 1)
    tiny.note([end(1), end(2)], [OPS])
    assert ids_of(tiny, "ops") == [end(2).event_id]
    tiny.close()


def test_a_message_that_was_dropped_while_it_was_sent_is_no_error(outbox: Outbox) -> None:
    outbox.note([end(1)], [OPS])
    message, _ = next_of(outbox)
    outbox.note([end(number) for number in range(2, 6)], [OPS])
    outbox.delivered(message, 0, 1.0)
    outbox.failed(message, "it answered 500", 2.0, given_up=True)
    assert outbox.held("ops")[0] == 3


def test_failures_count_tries_and_a_given_up_message_goes(outbox: Outbox, tmp_path: Path) -> None:
    outbox.note([end(1), end(2)], [OPS])
    message, _ = next_of(outbox)
    outbox.failed(message, "no connection", 5.0, given_up=False)
    again, _ = next_of(outbox)
    assert (again.number, again.tries) == (message.number, 1)
    (state,) = read_states(tmp_path / "notify")
    assert (state.problem, state.next_try_unix_s) == ("no connection", 5.0)
    outbox.failed(again, "it answered 404", 6.0, given_up=True)
    then, lost_count = next_of(outbox)
    assert (then.event_id, lost_count) == (end(2).event_id, 1)
    (state,) = read_states(tmp_path / "notify")
    assert (state.given_up_count, state.untold_count) == (1, 1)


def test_all_is_there_after_a_restart(outbox: Outbox, tmp_path: Path) -> None:
    outbox.begin_at(4)
    outbox.note([end(2), end(3)], [OPS], position=9, conditions={"gpu": {"volta-0/0": {"reason": "xid 79"}}})
    outbox.close()
    again = Outbox(tmp_path / "notify", 3, 1 << 20)
    assert (again.position, again.known_from) == (9, 4)
    assert again.conditions == {"gpu": {"volta-0/0": {"reason": "xid 79"}}}
    assert again.held("ops")[0] == 2
    again.note([end(2), end(4)], [OPS], position=12)
    assert again.last_end == ("job-4", end(4).event_id)
    assert ids_of(again, "ops") == [end(number).event_id for number in (2, 3, 4)]
    again.close()


def test_a_position_that_is_of_no_end_has_none(outbox: Outbox) -> None:
    outbox.note([end(1)], [OPS], position=3)
    outbox.note([], [OPS], position=4)
    assert (outbox.position, outbox.last_end) == (4, None)


def test_a_failure_within_a_transaction_leaves_neither_messages_nor_position(outbox: Outbox) -> None:
    outbox.note([end(1)], [OPS], position=3)
    with pytest.raises(TypeError):
        outbox.note([end(2)], [OPS], position=6, conditions={"gpu": object()})
    assert (outbox.position, ids_of(outbox, "ops")) == (3, [end(1).event_id])
    assert outbox.held("ops")[0] == 1
    outbox.note([end(2)], [OPS], position=6)
    assert ids_of(outbox, "ops") == [end(1).event_id, end(2).event_id]


def test_what_was_told_is_bounded_and_known_from_follows(outbox: Outbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TOLD_KEPT", 10)
    outbox.begin_at(0)
    for number in range(1, 26):
        outbox.note([end(number)], [DEV])
    assert outbox._db.execute("SELECT count(*) FROM told").fetchone() == (10,)
    assert outbox.known_from == 3 * 16


def test_webhooks_that_are_gone_are_forgotten_with_their_messages(outbox: Outbox, tmp_path: Path) -> None:
    outbox.note([end(1), end(2)], [OPS, DEV])
    assert outbox.keep_only(["ops"]) == 2
    assert [each.name for each in read_states(tmp_path / "notify")] == ["ops"]
    assert outbox.held("dev") == (0, 0)


@pytest.mark.usefixtures("outbox")
def test_a_second_process_is_refused_and_others_have_no_access(tmp_path: Path) -> None:
    with pytest.raises(Conflict, match="in use by another notify"):
        Outbox(tmp_path / "notify", 1, 1)
    for path in ((tmp_path / "notify"), *(tmp_path / "notify").iterdir()):
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path


def test_a_damaged_file_and_a_newer_format_are_refused_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / DATABASE).write_bytes(b"no database" * 100)
    with pytest.raises(DataLoss, match="move it away"):
        Outbox(tmp_path / "a", 1, 1)
    Outbox(tmp_path / "b", 1, 1).close()
    with sqlite3.connect(tmp_path / "b" / DATABASE) as db:
        db.execute("UPDATE facts SET value = '2' WHERE name = 'format'")
    with pytest.raises(DataLoss, match="of a newer release"):
        Outbox(tmp_path / "b", 1, 1)


def test_without_an_outbox_there_are_no_states(tmp_path: Path) -> None:
    assert read_states(tmp_path / "none") == ()


@pytest.mark.slow
def test_a_kill_at_any_moment_leaves_position_and_messages_that_belong_together(tmp_path: Path) -> None:
    """A process notes ends 1, 2, ... and is killed; whatever it got to, all messages up to its position are there."""
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from tests.unit.webhooks.test_outbox import DEV, OPS, Outbox, end\n"
        "outbox = Outbox(Path(sys.argv[1]), 1_000_000, 1 << 30)\n"
        "first = (outbox.position or 0) // 3 + 1\n"
        "print('go', flush=True)\n"
        "for number in range(first, first + 100_000):\n"
        "    outbox.note([end(number)], [OPS, DEV], position=3 * number)\n"
    )
    for kill_after_s in (0.0, 0.02, 0.1, 0.3):
        process = subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path / "notify")], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "go\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(kill_after_s)
        process.kill()
        process.wait()
        process.stdout.close()
        outbox = Outbox(tmp_path / "notify", 1_000_000, 1 << 30)
        expected = [end(number).event_id for number in range(1, (outbox.position or 0) // 3 + 1)]
        assert ids_of(outbox, "ops") == ids_of(outbox, "dev") == expected
        outbox.close()
