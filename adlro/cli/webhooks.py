"""`adlro webhooks`: who is told of what happens, how far that is, and a test message."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adlro.cli.data_dir import data_dir_of
from adlro.cli.notify_process import WEBHOOKS_ENV
from adlro.cli.shell import EXIT_ERROR, Output, OutputOption, ServerOption, emit_json, plain_table, stdout
from adlro.cli.times import moments
from adlro.errors import NotFound
from adlro.kit.running_suites import STATUS, default_data_dir
from adlro.terminal import escape

if TYPE_CHECKING:
    from adlro.webhooks.file import Webhook
    from adlro.webhooks.outbox import WebhookState

_CONNECT_TIMEOUT_S, _ANSWER_TIMEOUT_S = 5.0, 10.0


def webhooks(
    test: Annotated[
        str,
        typer.Option("--test", metavar="NAME", help="Send a test message to this webhook now, and show the answer."),
    ] = "",
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            "-f",
            metavar="FILE",
            help=f"The file of webhooks. Default: that of the running `adlro up`, else ${WEBHOOKS_ENV}.",
            show_default=False,
            dir_okay=False,
        ),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            "--data-dir",
            help="The data directory of `adlro up`. Default: that of the suite at --server.",
            show_default=False,
            file_okay=False,
        ),
    ] = None,
    server: ServerOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the webhooks of this machine's suite: what each is told, how many messages wait, what went wrong.

    Reads the file again, and says what is wrong in it. Exit code 1 if a webhook's last try has failed.
    """
    from adlro.webhooks.file import read_webhooks
    from adlro.webhooks.outbox import WebhookState, read_states

    suite = _suite((data_dir or data_dir_of(server) or default_data_dir()).absolute())
    path = file or Path(suite.get("webhooks_file") or os.environ.get(WEBHOOKS_ENV, ""))
    if path == Path():
        raise NotFound(
            "no suite with webhooks was found: start it with `adlro up --webhooks FILE`, or name its --data-dir, or a "
            "file with --file (docs/notifications.md has an example)"
        )
    found = read_webhooks(path, "--file" if file else "the file of webhooks")
    if test:
        _test(found, test, output)
        return
    states = {} if not suite else {each.name: each for each in read_states(Path(suite["notify_dir"]))}
    shown = [(each, states.get(each.name, WebhookState(each.name))) for each in found]
    if output is Output.JSON:
        emit_json({"file": str(path), "running": bool(suite), "webhooks": [_document(*each) for each in shown]})
    else:
        _show(shown, running=bool(suite))
    if any(state.problem for _, state in shown):
        raise typer.Exit(EXIT_ERROR)


def _suite(data_dir: Path) -> dict[str, Any]:
    """What the suite in a data directory says of its webhooks; empty: there is none, or it has no webhooks."""
    try:
        status = json.loads((data_dir / STATUS).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return status if isinstance(status, dict) and status.get("webhooks_file") else {}


def _document(webhook: Webhook, state: WebhookState) -> dict[str, Any]:
    return {
        "name": webhook.name,
        "receiver": webhook.receiver,
        "events": sorted(map(str, webhook.events)),
        "signed": bool(webhook.secrets),
        "job_states": sorted(each.name.lower() for each in webhook.job_states),
        "job_users": sorted(webhook.job_users),
        "job_labels": dict(webhook.job_labels),
        "waiting_count": state.waiting_count,
        "delivered_count": state.delivered_count,
        "given_up_count": state.given_up_count,
        "dropped_count": state.dropped_count,
        "delivered_unix_s": state.delivered_unix_s,
        "next_try_unix_s": state.next_try_unix_s,
        "problem": state.problem,
    }


def _show(shown: Sequence[tuple[Webhook, WebhookState]], *, running: bool) -> None:
    counts = ("WAITING", "DELIVERED", "LOST")
    table = plain_table("NAME", "RECEIVER", *counts, "LAST DELIVERY", "EVENTS", right=counts, wrapped=("EVENTS",))
    deliveries = moments([state.delivered_unix_s for _, state in shown])
    for (webhook, state), delivered in zip(shown, deliveries, strict=True):
        table.add_row(
            escape(webhook.name),
            escape(webhook.receiver),
            str(state.waiting_count),
            str(state.delivered_count),
            str(state.given_up_count + state.dropped_count),
            delivered,
            ", ".join(sorted(map(str, webhook.events))),
        )
    console = stdout()
    console.print(table)
    for webhook, state in shown:
        if state.problem:
            console.print(f"[yellow]{escape(webhook.name)}: {escape(state.problem)}; {_next(state)}[/]")
    if not running:
        console.print("[dim]No suite with webhooks runs here (--data-dir): this is what the file says.[/]")


def _next(state: WebhookState) -> str:
    left_s = (state.next_try_unix_s or 0.0) - time.time()
    return f"the next try is in {left_s:.0f} s" if left_s >= 1.0 else "it is tried again now"


def _test(found: Sequence[Webhook], name: str, output: Output) -> None:
    from adlro.webhooks.events import sample_event
    from adlro.webhooks.posting import PostFailed, post
    from adlro.webhooks.signature import signed_headers

    webhook = next((each for each in found if each.name == name), None)
    if webhook is None:
        names = ", ".join(each.name for each in found)
        raise typer.BadParameter(f"there is no webhook '{name}'; there are {names}", param_hint="--test")
    event = sample_event(webhook.name, "", time.time())
    body = json.dumps({**event.document(), "lost_count": 0}, separators=(",", ":")).encode()
    headers = signed_headers(webhook.secrets, event.event_id, int(time.time()), body)
    try:
        answer = asyncio.run(
            post(webhook, headers, body, connect_timeout_s=_CONNECT_TIMEOUT_S, answer_timeout_s=_ANSWER_TIMEOUT_S)
        )
    except PostFailed as error:
        problem, status, took_s = str(error), None, None
    else:
        problem = "" if answer.accepted else f"it answered {answer.status}"
        status, took_s = answer.status, round(answer.took_s, 3)
    if output is Output.JSON:
        told = {"webhook": name, "receiver": webhook.receiver, "event_id": event.event_id, "status": status}
        emit_json({**told, "took_s": took_s, "problem": problem})
    elif problem:
        stdout().print(f"[bold red]{escape(name)} at {escape(webhook.receiver)}: {escape(problem)}[/]")
    else:
        stdout().print(f"{escape(name)} at {escape(webhook.receiver)} took the test message: {status}, {took_s} s")
    if problem:
        raise typer.Exit(EXIT_ERROR)
