"""`adlro describe job JOB`: all data of one job, with the reason of its state; `describe decision ID`: its reasons."""

from __future__ import annotations

import math
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from adlro.cli import render
from adlro.cli.attempts import attempt_table
from adlro.cli.documents import document, wait_s
from adlro.cli.facts import print_facts
from adlro.cli.job_filters import job_argument
from adlro.cli.job_listing import after_text, held_by
from adlro.cli.listing.options import IsoOption
from adlro.cli.places import At, at_of, by_node, needs_text, placement_text, ranges, reservation_text
from adlro.cli.reading import certain_wall, described
from adlro.cli.shell import Output, OutputOption, ServerOption, connect, emit_json, plain_table, stdout
from adlro.cli.stops import attempts_text, costs_text, stops_text
from adlro.cli.times import WallClock, iso_text, time_text, wall_clock
from adlro.cli.units_text import durations
from adlro.cli.why import expected_text
from adlro.errors import AdlroError
from adlro.records.jobs import Job, JobAttempt, JobReservation, JobSpec, JobState, JobType
from adlro.records.payloads import Payload
from adlro.records.predictions import PredictionBasis
from adlro.records.waiting import WaitingExplanation
from adlro.terminal import escape

if TYPE_CHECKING:
    from adlro.client import Client, Decision, RuntimePrediction

_EVIDENCE = 3
_LONGEST_COMMAND = 300  # characters
_NOVEL = 0.95  # novelty from which decompose flags a job


@dataclass(frozen=True, slots=True)
class Told:
    """How times are told.

    Attributes:
        wall: wall times of cluster times; None: not known.
        iso: wall times as ISO 8601.
    """

    wall: WallClock | None
    iso: bool = False

    def at(self, time_s: float | None) -> str:
        """`at 12m 5s of cluster time`, with the wall time where it is known."""
        unix_s = None if self.wall is None else self.wall.unix_s(time_s)
        text = time_text(time_s, self.wall, iso=self.iso)
        return f"at {text}" if iso_text(unix_s) is None else text


describe = typer.Typer(help="Show one job, one decision, or one node.", no_args_is_help=True)


@describe.command("job")
def describe_job(
    job_id: Annotated[str, job_argument()],
    iso: IsoOption = False,
    server: ServerOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show a job: its request, its course, its predicted runtimes, and the decision that placed it."""
    with connect(server) as client:
        job = client.get(job_id)
        notes: list[str] = []
        predictions = _predictions(client, job, notes)
        decision = _decision(client, job, notes)
        waiting = _waiting(client, job, notes)
        cluster = described(client)
    # As seconds of the cluster's clock for a job that waits for no reservation.
    held = job.reservation is not None or job.reserved_until_s is not None
    at = at_of(cluster.clock if held and cluster is not None else None)
    wall = wall_clock(cluster)
    told = Told(wall if wall is not None and wall.tells(job) else None, iso)
    if output is Output.JSON:
        emit_json(
            {
                "job": document(job),
                "predictions": document(predictions),
                "decision": document(decision),
                "waiting": document(waiting),
                "notes": notes,
            }
        )
        return
    console = stdout()
    _print_job(console, job, at, told)
    if predictions:
        _print_predictions(console, job, predictions)
    if waiting is not None:
        console.print(f"\n[bold]Expected start[/]  {escape(expected_text(waiting, at))}")
    if decision is not None:
        _print_decision(console, decision, at, told)
    for note in notes:
        console.print(f"[dim]{escape(note)}[/]")


@describe.command("decision")
def describe_decision(
    target: Annotated[
        str, typer.Argument(metavar="ID", help="A decision such as d-3-17, or a job: its latest decision.")
    ],
    iso: IsoOption = False,
    server: ServerOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show a decision: every GPU with its score or the reason of its exclusion, the runner-up, and the basis."""
    with connect(server) as client:
        decision = client.explain(decision_id=target) if target.startswith("d-") else client.explain(target)
        wall = None if output is Output.JSON else certain_wall(client, described(client))
    if output is Output.JSON:
        emit_json({"decision": document(decision)})
        return
    _print_decision(stdout(), decision, at_of(None), Told(wall, iso))


def _predictions(client: Client, job: Job, notes: list[str]) -> tuple[RuntimePrediction, ...]:
    # The job is the requested data: without an answer of another service, print that and the rest.
    try:
        models = client.cluster().gpu_models
        return client.predict([job.spec], models, max_evidence=_EVIDENCE, job_ids=[job.job_id])[0]
    except AdlroError as error:
        notes.append(f"no prediction: {error.message}")
        return ()


def _decision(client: Client, job: Job, notes: list[str]) -> Decision | None:
    try:
        return client.explain(job.job_id)
    except AdlroError as error:
        notes.append(f"no decision: {error.message}")
        return None


def _waiting(client: Client, job: Job, notes: list[str]) -> WaitingExplanation | None:
    """Why a pending job waits; None: it does not, or nobody answers."""
    if job.state is not JobState.PENDING:
        return None
    try:
        return client.explain_waiting(job.job_id)
    except AdlroError as error:
        notes.append(f"no expected start: {error.message}")
        return None


def _print_job(console: Console, job: Job, at: At, told: Told) -> None:
    spec = job.spec
    console.print(f"[bold]{escape(job.job_id)}[/]  {escape(spec.name)}  {render.state(job)}")
    reason = render.why(job, at)
    expected, held = spec.expected_runtime, job.reservation
    rows = [
        ("why", reason or (escape(job.message) if job.message else "")),
        ("user", escape(spec.user)),
        *_program_rows(spec.payload),
        ("type", "not stated" if spec.job_type is JobType.UNSPECIFIED else spec.job_type.label),
        ("application", escape(spec.application)),
        ("asks for", f"{escape(needs_text(spec))}, priority {spec.priority:g}"),
        ("preemptible", "" if spec.preemptible is None else costs_text(spec.preemptible)),
        ("shareable", "one other job that is shareable too may run on its GPU" if spec.shareable else ""),
        ("exclusive", "no other job runs on its nodes meanwhile" if spec.exclusive else ""),
        ("only on", escape(", ".join(spec.node_ids))),
        ("not on", escape(", ".join(spec.excluded_node_ids))),
        ("reserved", "" if held is None else escape(_held(held, at))),
        ("stopped", escape(stops_text(job))),
        ("in place of", escape(attempts_text(job.attempts[-1].preempts)) if job.attempts else ""),
        ("shared with", escape(_neighbours(job.attempts[-1])) if job.attempts else ""),
        ("expects", f"{render.seconds(expected.runtime_s)} on {escape(expected.gpu_model)}" if expected else ""),
        ("time limit", render.seconds(spec.time_limit_s) if spec.time_limit_s is not None else ""),
        ("begin time", render.seconds(spec.begin_time_s) if spec.begin_time_s is not None else ""),
        ("after", after_text(spec).replace(",", ", ")),
        ("array", _array_text(spec)),
        ("held by", escape(held_by(job) or "")),
        ("labels", ", ".join(f"{escape(key)}={escape(value)}" for key, value in spec.labels.items())),
        ("submitted", _submitted(job, told)),
        (
            "started",
            f"{told.at(job.start_s)}, after {render.seconds(wait_s(job))}" if job.start_s is not None else "",
        ),
        (
            "ended",
            f"{told.at(job.end_s)}"
            + (f", ran {render.seconds(job.runtime_s)}" if job.start_s is not None else "")
            + (f", JCT {render.seconds(job.jct_s)}" if job.jct_s is not None else "")
            if job.end_s is not None
            else "",
        ),
        *_gpu_rows(job),
    ]
    print_facts(console, rows)
    if job.attempts:
        console.print()
        console.print(attempt_table(job.attempts))


def _array_text(spec: JobSpec) -> str:
    array = spec.array
    if array is None:
        return ""
    most = f", at most {array.max_running_count} at once" if array.max_running_count else ""
    return f"{array.array_id}: index {array.index}, of {array.count} jobs{most}"


def _submitted(job: Job, told: Told) -> str:
    """When it was submitted, or its begin time."""
    return "" if job.submit_s is None else told.at(job.submit_s)


def _held(reservation: JobReservation, at: At) -> str:
    slack = reservation.slack_gpu_count
    others = f"; {slack} other GPUs of these nodes are for anybody" if slack else ""
    since = f"; held since {render.seconds(reservation.since_s)} of cluster time"
    return reservation_text(reservation, at) + others + since


def _gpu_rows(job: Job) -> list[tuple[str, str]]:
    """Where a job runs or ran: its GPU, or of several those of each node on a line."""
    model = f"({escape(job.gpu_model)})"
    if len(job.placement.gpus) < 2:
        return [("GPU", f"{escape(job.gpu_id)} {model}" if job.gpu_id else "")]
    nodes = by_node(job.placement)
    on = "one node" if len(nodes) == 1 else f"{len(nodes)} nodes"
    rows = [("GPUs", f"{len(job.placement.gpus)} {model} on {on}")]
    return rows + [
        ("", escape(f"{node}/{ranges(numbers)}" if node else ranges(numbers))) for node, numbers in nodes.items()
    ]


def _neighbours(attempt: JobAttempt) -> str:
    """Who had the rest of an attempt's GPU, and how long; a submitter is not told who."""
    return ", ".join(
        f"{each.neighbour.application or 'other jobs'} for {render.seconds(each.time_s)}" for each in attempt.neighbours
    )


def _program_rows(payload: Payload | None) -> list[tuple[str, str]]:
    """What a job runs. Values of variables stand in the JSON document alone."""
    if payload is None:
        return []
    container = payload.container
    program = payload.process or container
    mounts = (
        [f"{each.source}:{each.target}:{'rw' if each.writable else 'ro'}" for each in container.mounts]
        if container
        else []
    )
    command = shlex.join(payload.argv)
    if len(command) > _LONGEST_COMMAND:
        command = f"{command[:_LONGEST_COMMAND]} ..."
    return [
        ("runs", escape(command) or "the image's own program"),
        ("image", escape(container.image) if container else ""),
        ("in", escape(program.workdir) if program is not None else ""),
        ("variables", escape(", ".join(payload.environment))),
        ("secrets", escape(", ".join(payload.secret_names))),
        ("mounts", escape(", ".join(mounts))),
        ("stop grace", render.seconds(payload.stop_grace_s)),
        ("log limit", f"{render.mib(payload.log_limit_mib)} of each stream"),
    ]


def _novelty_in_words(novelty: float) -> str:
    if novelty >= _NOVEL:
        return "unlike all known jobs: do not rely on the prediction"
    return "0: similar to known jobs, 1: unlike all of them"


def _basis(basis: PredictionBasis | None, job: Job) -> str:
    if basis is None:
        return render.UNKNOWN
    if basis is PredictionBasis.JOB_TYPE and job.spec.job_type is JobType.UNSPECIFIED:
        return "other jobs without a type"
    return basis.label


def _print_predictions(console: Console, job: Job, predictions: tuple[RuntimePrediction, ...]) -> None:
    console.print(
        "\n[bold]Predicted runtime[/]" + (" [dim](as it would be predicted now)[/]" if job.state.final else "")
    )
    table = plain_table("MODEL", "MEDIAN", "INTERVAL", "FROM", right=("MEDIAN",))
    for each, median in zip(predictions, durations([each.median_s for each in predictions]), strict=True):
        table.add_row(
            escape(each.gpu_model),
            median,
            f"{render.seconds(each.low_s)} .. {render.seconds(each.high_s)} ({render.percent(each.interval_coverage)})",
            _basis(each.basis, job),
        )
    console.print(table)
    rows: list[tuple[str, str]] = []
    evidence = {item.job_id: item for each in predictions for item in each.evidence}
    if evidence:
        told = ", ".join(
            f"{escape(item.job_id)} ({render.seconds(item.runtime_s)} on {escape(item.gpu_model)}, "
            f"similarity {item.similarity:.2f})"
            for item in list(evidence.values())[:_EVIDENCE]
        )
        rows.append(("evidence", told))
    novelty = max(each.novelty for each in predictions)
    if math.isfinite(novelty) and novelty > 0:
        rows.append(("novelty", f"{novelty:.2f} [dim]({_novelty_in_words(novelty)})[/]"))
    print_facts(console, rows)


def _print_decision(console: Console, decision: Decision, at: At, told: Told) -> None:
    head = f"decision {decision.decision_id}" if decision.decision_id else "not placed"
    policy = render.policy_text(decision.policy, decision.deciding_policy, decision.basis)
    console.print(
        f"\n[bold]Why[/]  {escape(decision.summary)} [dim]({escape(head)}, policy {policy},"
        f" {told.at(decision.time_s)}, {decision.queue_length} waiting"
        + (f", {decision.decision_us:.0f} µs" if decision.decision_us else "")
        + ")[/]",
    )
    print_facts(console, [(name, escape(text)) for name, text in _reasons(decision, at)])
    if not decision.candidates and not decision.masked and not decision.masked_groups:
        return
    table = plain_table(
        "",
        "GPU",
        "MODEL",
        "EXPECTED",
        "SCORE",
        "OUT OF THE QUESTION",
        right=("EXPECTED", "SCORE"),
        wrapped=("OUT OF THE QUESTION",),
    )
    for each in decision.candidates:
        chosen = each.placement == decision.placement
        table.add_row(
            "[green]→[/]" if chosen else "",
            escape(placement_text(each.placement)),
            escape(each.gpu_model),
            render.seconds(each.expected_runtime_s),
            f"{each.score:.3g}",
            "",
        )
    for masked in decision.masked:
        out = (f"[dim]{escape(text)}[/]" for text in (masked.gpu_id or "any", masked.gpu_model))
        table.add_row("", *out, "", "", escape(masked.reason))
    for group in () if decision.masked else decision.masked_groups:
        count = f"{group.gpu_count} GPU{'s' if group.gpu_count > 1 else ''}"
        others = ", ..." if group.gpu_count > len(group.example_gpu_ids) else ""
        names = f"{', '.join(group.example_gpu_ids)}{others}"
        table.add_row("", f"[dim]{count}[/]", "", "", "", escape(f"{group.reason}: {names}"))
    console.print(table)


def _reasons(decision: Decision, at: At) -> list[tuple[str, str]]:
    """The reasons of a decision in addition to its scores, one per line."""
    lines = [("rests on", decision.basis_text)]
    lines.append(("checkpoint", decision.policy_version))
    lines.append(("stops", attempts_text(decision.preempts)))
    if decision.runner_up is not None:
        second = decision.runner_up
        what = f"{second.job_id} on {placement_text(second.placement)}" if second.job_id else "to start nothing"
        lines.append(("runner-up", f"{what}, score {second.score:.3g}"))
    if decision.hold_score is not None:
        lines.append(("to hold", f"score {decision.hold_score:.3g}"))
    if decision.base_choice is not None:
        base, margin = decision.base_choice, decision.margin
        what = f"{base.job_id} on {placement_text(base.placement)}" if base.job_id else "to start nothing"
        score = "" if base.score is None else f", score {base.score:.3g}"
        gate = "" if margin is None else f"; another needs {margin:.3g} more at least"
        lines.append(("its base", f"{what}{score}{gate}"))
    if decision.prediction is not None and decision.prediction.interval_coverage:
        told = decision.prediction
        between = f"{render.seconds(told.low_s)} .. {render.seconds(told.high_s)}"
        share = render.percent(told.interval_coverage)
        lines.append(("predicted", f"{render.seconds(told.median_s)}, {between} ({share})"))
    if decision.shadow is not None:
        shadow = decision.shadow
        started = f"would have started {shadow.job_id} on {placement_text(shadow.placement)}"
        other = started if shadow.job_id else "would have held"
        lines.append(("shadow", f"{shadow.policy} {'would have done the same' if shadow.agrees else other}"))
    if decision.reservation is not None:
        held = decision.reservation
        lines.append(("kept free", f"for {held.job_id}: {reservation_text(held, at)}"))
    return [(name, text) for name, text in lines if text]
