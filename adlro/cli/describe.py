"""`adlro describe job ID`: all data of one job, with the reason of its state; `describe decision ID`: its reasons."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from adlro.cli import render
from adlro.cli.documents import document, runtime_s, wait_s
from adlro.cli.shell import Output, OutputOption, ServerOption, connect, emit_json, plain_table, stdout
from adlro.errors import AdlroError
from adlro.records.jobs import Job
from adlro.terminal import escape

if TYPE_CHECKING:
    from adlro.client import Client, Decision, RuntimePrediction

_EVIDENCE = 3
_NOVEL = 0.95  # novelty from which decompose flags a job

describe = typer.Typer(help="Show one job, or one decision.", no_args_is_help=True)


@describe.command("job")
def describe_job(
    job_id: Annotated[str, typer.Argument(metavar="ID", help="Such as job-17.")],
    server: ServerOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show a job: its request, its course, its predicted runtimes, and the decision that placed it."""
    with connect(server) as client:
        job = client.get(job_id)
        notes: list[str] = []
        predictions = _predictions(client, job, notes)
        decision = _decision(client, job, notes)
    if output is Output.JSON:
        emit_json(
            {"job": document(job), "predictions": document(predictions), "decision": document(decision), "notes": notes}
        )
        return
    console = stdout()
    _print_job(console, job)
    if predictions:
        _print_predictions(console, job, predictions)
    if decision is not None:
        _print_decision(console, decision)
    for note in notes:
        console.print(f"[dim]{escape(note)}[/]")


@describe.command("decision")
def describe_decision(
    target: Annotated[
        str, typer.Argument(metavar="ID", help="A decision such as d-3-17, or a job: its latest decision.")
    ],
    server: ServerOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show a decision: every GPU with its score or the reason of its exclusion, the runner-up, and the basis."""
    with connect(server) as client:
        decision = client.explain(decision_id=target) if target.startswith("d-") else client.explain(target)
    if output is Output.JSON:
        emit_json({"decision": document(decision)})
        return
    _print_decision(stdout(), decision)


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


def _print_job(console: Console, job: Job) -> None:
    spec = job.spec
    console.print(f"[bold]{escape(job.job_id)}[/]  {escape(spec.name)}  {render.state(job)}")
    reason = render.why(job)
    cores = "1 core" if spec.cpu_cores == 1 else f"{spec.cpu_cores} cores"
    expected = spec.expected_runtime
    rows = [
        ("why", reason or (escape(job.message) if job.message else "")),
        ("user", escape(spec.user)),
        ("type", spec.job_type.label + (f", {escape(spec.application)}" if spec.application else "")),
        (
            "asks for",
            f"{spec.gpu_count} GPU"
            + (f" with {render.mib(spec.gpu_memory_mib)}" if spec.gpu_memory_mib else "")
            + f", {cores}, {render.mib(spec.memory_mib)}, priority {spec.priority:g}",
        ),
        ("expects", f"{render.seconds(expected.runtime_s)} on {escape(expected.gpu_model)}" if expected else ""),
        ("time limit", render.seconds(spec.time_limit_s) if spec.time_limit_s is not None else ""),
        ("begin time", render.seconds(spec.begin_time_s) if spec.begin_time_s is not None else ""),
        ("labels", ", ".join(f"{escape(key)}={escape(value)}" for key, value in spec.labels.items())),
        ("submitted", f"at {render.seconds(job.submit_s)} of cluster time" if job.submit_s is not None else ""),
        (
            "started",
            f"at {render.seconds(job.start_s)}, after {render.seconds(wait_s(job))}" if job.start_s is not None else "",
        ),
        (
            "ended",
            f"at {render.seconds(job.end_s)}"
            + (f", ran {render.seconds(runtime_s(job))}" if job.start_s is not None else "")
            + (f", JCT {render.seconds(job.jct_s)}" if job.jct_s is not None else "")
            if job.end_s is not None
            else "",
        ),
        ("GPU", f"{escape(job.gpu_id)} ({escape(job.gpu_model)})" if job.gpu_id else ""),
    ]
    for name, text in rows:
        if text:
            console.print(f"  [dim]{name:<11}[/]{text}")
    if job.attempts:
        console.print()
        table = plain_table(
            "ATTEMPT", "GPU", "MODEL", "START", "END", "OUTCOME", right=("START", "END"), wrapped=("OUTCOME",)
        )
        for each in job.attempts:
            table.add_row(
                str(each.attempt),
                escape(each.gpu_id),
                escape(each.gpu_model),
                render.seconds(each.start_s),
                render.seconds(each.end_s),
                escape(each.outcome or "running"),
            )
        console.print(table)


def _novelty_in_words(novelty: float) -> str:
    if novelty >= _NOVEL:
        return "unlike all known jobs: do not rely on the prediction"
    return "0: similar to known jobs, 1: unlike all of them"


def _print_predictions(console: Console, job: Job, predictions: tuple[RuntimePrediction, ...]) -> None:
    console.print(
        "\n[bold]Predicted runtime[/]" + (" [dim](as it would be predicted now)[/]" if job.state.final else "")
    )
    table = plain_table("MODEL", "MEDIAN", "INTERVAL", "FROM", right=("MEDIAN",))
    for each in predictions:
        table.add_row(
            escape(each.gpu_model),
            render.seconds(each.median_s),
            f"{render.seconds(each.low_s)} .. {render.seconds(each.high_s)} ({render.percent(each.interval_coverage)})",
            each.basis.label if each.basis is not None else render.UNKNOWN,
        )
    console.print(table)
    evidence = {item.job_id: item for each in predictions for item in each.evidence}
    if evidence:
        told = ", ".join(
            f"{escape(item.job_id)} ({render.seconds(item.runtime_s)} on {escape(item.gpu_model)}, "
            f"similarity {item.similarity:.2f})"
            for item in list(evidence.values())[:_EVIDENCE]
        )
        console.print(f"  [dim]evidence[/]   {told}")
    novelty = max(each.novelty for each in predictions)
    if math.isfinite(novelty) and novelty > 0:
        console.print(f"  [dim]novelty[/]    {novelty:.2f} [dim]({_novelty_in_words(novelty)})[/]")


def _print_decision(console: Console, decision: Decision) -> None:
    head = f"decision {decision.decision_id}" if decision.decision_id else "not placed"
    policy = render.policy_text(decision.policy, decision.deciding_policy, decision.basis)
    console.print(
        f"\n[bold]Why[/]  {escape(decision.summary)} [dim]({escape(head)}, policy {policy},"
        f" at {render.seconds(decision.time_s)}, {decision.queue_length} waiting"
        + (f", {decision.decision_us:.0f} µs" if decision.decision_us else "")
        + ")[/]",
    )
    for name, text in _reasons(decision):
        console.print(f"  [dim]{name:<11}[/]{escape(text)}")
    if not decision.candidates and not decision.masked:
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
        chosen = each.gpu_id == decision.gpu_id
        table.add_row(
            "[green]→[/]" if chosen else "",
            escape(each.gpu_id),
            escape(each.gpu_model),
            render.seconds(each.expected_runtime_s),
            f"{each.score:.3g}",
            "",
        )
    for masked in decision.masked:
        out = (f"[dim]{escape(text)}[/]" for text in (masked.gpu_id, masked.gpu_model))
        table.add_row("", *out, "", "", escape(masked.reason))
    console.print(table)


def _reasons(decision: Decision) -> list[tuple[str, str]]:
    """The reasons of a decision in addition to its scores, one per line."""
    lines = [("rests on", decision.basis_text)]
    lines.append(("checkpoint", decision.policy_version))
    if decision.runner_up is not None:
        second = decision.runner_up
        what = f"{second.job_id} on {second.gpu_id}" if second.job_id else "to start nothing"
        lines.append(("runner-up", f"{what}, score {second.score:.3g}"))
    if decision.hold_score is not None:
        lines.append(("to hold", f"score {decision.hold_score:.3g}"))
    if decision.shadow is not None:
        shadow = decision.shadow
        other = f"would have started {shadow.job_id} on {shadow.gpu_id}" if shadow.job_id else "would have held"
        lines.append(("shadow", f"{shadow.policy} {'would have done the same' if shadow.agrees else other}"))
    return [(name, text) for name, text in lines if text]
