"""`adlro policy`: the policies and what each is for, the choice of the acting and the shadow one, and promotions."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adlro.cli.completing import offered_policies
from adlro.cli.listing.columns import Column, Listing
from adlro.cli.listing.options import with_view
from adlro.cli.listing.view import Format, Reading, View
from adlro.cli.listing.yaml_text import to_yaml
from adlro.cli.promotion import Change, folder_of, promoted_now, rolled_back
from adlro.cli.reading import patience_s
from adlro.cli.shell import ServerOption, connect, emit_json, plain_table, stdout
from adlro.errors import Unavailable
from adlro.records.status import BUILT_IN, OfferedPolicy
from adlro.terminal import escape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from adlro.client import Client

# Widest table of policies: longer lines are hard to read.
_POLICY_WIDTH = 100


def _role(policy: OfferedPolicy) -> str:
    return "acting" if policy.acting else "shadow" if policy.shadow else ""


_NAMES = ("role", "policy", "advice")
PROMOTE, ROLLBACK = "promote", "rollback"

POLICIES: Listing[OfferedPolicy] = Listing(
    "policies",
    (
        Column("policy", "its name", lambda row: row.name, key="name", floors=(40, 24)),
        Column("role", "acting, shadow, or neither", _role, style=lambda row: "green" if row.acting else "dim"),
        Column("advice", "what it is for", lambda row: row.advice or row.description, floors=(60, 30)),
        Column("description", "what it chooses, by which score", lambda row: row.description, floors=(60, 30)),
        Column("source", "ADLRO, a package or a file", lambda row: row.source, floors=(40, 24)),
        Column("version", "of its checkpoint, or of its code", lambda row: row.version),
        Column("problem", "why it can't decide", lambda row: row.problem, floors=(40, 24)),
    ),
    narrow=_NAMES,
    standard=_NAMES,
    broad=_NAMES,
    wide=("role", "policy", "version", "source", "problem", "advice", "description"),
    row_id=lambda row: row.name,
    record=lambda row: row,
    example=OfferedPolicy("", "", acting=False),
)


@with_view(POLICIES)
def policy(
    view: View[OfferedPolicy],
    name: Annotated[
        str,
        typer.Argument(
            help=f"The policy to act; {PROMOTE}: put a checkpoint of the learned policy into service; {ROLLBACK}: take "
            "it back. Without a name: list the policies.",
            show_default=False,
            autocompletion=offered_policies,
        ),
    ] = "",
    source: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE",
            help=f"With {PROMOTE}: an ONNX file, or a folder of `adlro learn`.",
            show_default=False,
        ),
    ] = None,
    shadow: Annotated[
        str | None,
        typer.Option(
            "--shadow",
            metavar="NAME",
            help="Run this policy beside the acting one, without placing jobs, and count its differences; none: stop.",
            autocompletion=offered_policies,
        ),
    ] = None,
    long: Annotated[
        bool, typer.Option("--long", "-l", help="Also say what each policy chooses, and what its score means.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help=f"With {PROMOTE}: also a candidate that was judged and not offered.")
    ] = False,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--folder",
            metavar="FOLDER",
            help=f"With {PROMOTE} and {ROLLBACK}: the orchestrator's ADLRO_ORCHESTRATOR_PROMOTED. Default: that of the "
            "suite at --server, on this machine.",
            show_default=False,
            file_okay=False,
        ),
    ] = None,
    server: ServerOption = None,
) -> None:
    """List the policies and what each is for, or set the acting policy or the shadow policy.

    The setting applies from the next decision on, and after later starts. The policy marked * acts. `promote` and
    `rollback` change the checkpoint of the learned policy, while it decides or not.
    """
    _check_promotion(name, source, shadow, folder, force=force)
    if name in (PROMOTE, ROLLBACK) and view.every_s is not None:
        raise typer.BadParameter(f"does not go with {name}", param_hint="--watch")
    if name in (PROMOTE, ROLLBACK):
        _change_checkpoint(name, source, folder, server, view.format, force=force)
        return
    sets = bool(name) or shadow is not None
    if sets and view.every_s is not None:
        raise typer.BadParameter("goes with the list of policies, not with a choice of one", param_hint="--watch")
    with connect(server, patience_s=patience_s(view.every_s)) as client:
        if sets:
            _set_policies(client, name, shadow, view.format)
            return
        view.show(lambda: _read(client, view, long=long))


def _check_promotion(name: str, source: Path | None, shadow: str | None, folder: Path | None, *, force: bool) -> None:
    """Refuses what does not go together."""
    if name == PROMOTE and source is None:
        raise typer.BadParameter(
            "name the file to promote: adlro policy promote FILE, or the folder of adlro learn", param_hint="FILE"
        )
    if name != PROMOTE and source is not None:
        raise typer.BadParameter(f"goes with {PROMOTE} only: adlro policy {PROMOTE} FILE", param_hint="FILE")
    if name != PROMOTE and force:
        raise typer.BadParameter(f"goes with {PROMOTE} only", param_hint="--force")
    if name not in (PROMOTE, ROLLBACK) and folder is not None:
        raise typer.BadParameter(f"goes with {PROMOTE} and {ROLLBACK} only", param_hint="--folder")
    if name in (PROMOTE, ROLLBACK) and shadow is not None:
        raise typer.BadParameter(f"does not go with {name}: call adlro policy twice", param_hint="--shadow")


def _change_checkpoint(
    name: str, source: Path | None, given: Path | None, server: str | None, output: Format, *, force: bool
) -> None:
    folder = folder_of(server, given)
    with _client(server, may_be_away=given is not None) as client:
        if name == PROMOTE:
            assert source is not None
            done = promoted_now(client, source, folder, force=force)
        else:
            done = rolled_back(client, folder)
    if output in (Format.JSON, Format.YAML):
        told = {"version": done.version, "previous_version": done.before, "file": done.file}
        emit_json(told) if output is Format.JSON else sys.stdout.write(to_yaml(told))
        return
    stdout().print(_told(name, done), soft_wrap=True)


@contextlib.contextmanager
def _client(server: str | None, *, may_be_away: bool) -> Iterator[Client | None]:
    """A client whose suite answers; None: none does, and `may_be_away`."""
    with connect(server) as client:
        try:
            client.status()
        except Unavailable:
            if not may_be_away:
                raise
            yield None
            return
        yield client


def _told(name: str, done: Change) -> str:
    """What was done, for people."""
    if not done.version:
        what = "is promoted" if name == PROMOTE else "is withdrawn"
        return f"{escape(done.file)} {what}; no suite answers, so nobody says whether it can be used"
    if name == ROLLBACK:
        return f"version {done.version} decides again, in place of {done.before} ({escape(done.file)})"
    text = f"version {done.version} decides from now on, in place of {done.before or 'the rule'}"
    return f"{text}; adlro policy {ROLLBACK} takes it back"


def _read(client: Client, view: View[OfferedPolicy], *, long: bool) -> Reading[OfferedPolicy]:
    explained = view.header and not view.chosen
    return Reading(
        client.policies(),
        lambda rows: {"policies": rows},
        findings=["[dim]JCT: job completion time, from the submission of a job to its end.[/]"] if explained else (),
        drawn=lambda rows: policy_table(rows, stdout().width, long=long, header=view.header),
    )


def policy_table(found: Sequence[OfferedPolicy], width: int, *, long: bool, header: bool = True) -> Table:
    """The policies with what each is for; at most 100 columns, so that lines stay readable.

    Args:
        found: the policies.
        width: of the screen, in columns.
        long: also says what each chooses.
        header: with a line of headings.
    """
    table = plain_table("", "POLICY", "FOR WHAT", wrapped=("POLICY", "FOR WHAT"))
    table.width, table.show_header = min(width, _POLICY_WIDTH), header
    for each in found:
        mark = "[green]*[/]" if each.acting else "[dim]shadow[/]" if each.shadow else ""
        own = each.source not in ("", BUILT_IN)
        lines = [escape(each.advice or each.description)] if each.advice or each.description else []
        if long and each.advice and each.description:
            lines.append(f"[dim]{escape(each.description)}[/]")
        if own:
            lines.append(
                f"[dim]from {escape(each.source)}{f', version {escape(each.version)}' if each.version else ''}[/]"
            )
        elif each.version and (long or each.acting or each.shadow):
            lines.append(f"[dim]checkpoint {escape(each.version)}[/]")
        if each.problem:
            lines.append(f"[yellow]{escape(each.problem)}[/]")
        # A file that can't be used has told no name: its class stands for it.
        table.add_row(mark, escape(each.name.rpartition(":")[2]), "\n".join(lines))
    return table


def _set_policies(client: Client, name: str, shadow: str | None, output: Format) -> None:
    told: dict[str, str] = {}
    if name:
        told |= {"policy": name, "previous_policy": client.set_policy(name)}
    if shadow is not None:
        wanted = "" if shadow == "none" else shadow
        told |= {"shadow_policy": wanted, "previous_shadow_policy": client.set_shadow_policy(wanted)}
    if output is Format.JSON:
        emit_json(told)
        return
    if output is Format.YAML:
        sys.stdout.write(to_yaml(told))
        return
    if name:
        stdout().print(f"{escape(name)} acts now, in place of {escape(told['previous_policy'])}")
    if shadow is not None:
        beside = f"{escape(told['shadow_policy'])} runs" if told["shadow_policy"] else "no policy runs"
        instead = f", in place of {escape(before)}" if (before := told["previous_shadow_policy"]) else ""
        stdout().print(f"{beside} in the shadow now{instead}; adlro status shows how often it agrees")
