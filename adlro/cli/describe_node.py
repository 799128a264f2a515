"""`adlro describe node NODE`: what a node has, what jobs hold of it, its GPUs and its jobs."""

from __future__ import annotations

from typing import Annotated

import typer

from adlro.cli.completing import nodes
from adlro.cli.facts import print_facts
from adlro.cli.gpus import gpu_table, read_gpus
from adlro.cli.job_filters import job_filter
from adlro.cli.job_listing import job_table
from adlro.cli.nodes import NodeView, models_text, only, read_nodes
from adlro.cli.reading import described
from adlro.cli.shell import Output, OutputOption, ServerOption, connect, emit_json, stdout
from adlro.cli.units_text import mib
from adlro.terminal import escape


def describe_node(
    node_id: Annotated[
        str,
        typer.Argument(
            metavar="NODE",
            autocompletion=nodes,
            help="Such as volta-0; adlro nodes lists them.",
        ),
    ],
    server: ServerOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show a node: what jobs hold of its cores, memory and GPUs, and the jobs on it."""
    with connect(server) as client:
        found, notes = read_nodes(client)
        (node,) = only(found, [node_id])
        gpus = [each for each in read_gpus(client) if each.node_id == node_id]
        jobs = list(client.list(job_filter(job_ids=node.job_ids))) if node.job_ids else []
        cluster = described(client)
    if output is Output.JSON:
        emit_json({"node": node, "gpus": gpus, "jobs": jobs, "notes": notes})
        return
    console = stdout()
    console.print(f"[bold]{escape(node.node_id)}[/]  {node.state or 'state not known'}")
    print_facts(console, [(name, escape(text)) for name, text in _facts(node)], label_width=8)
    console.print("\n[bold]GPUs[/]")
    console.print(gpu_table(gpus, console.width), soft_wrap=True)
    if jobs:
        console.print("\n[bold]Jobs[/]")
        clock = None if cluster is None else cluster.clock
        console.print(job_table(jobs, clock, width=console.width), soft_wrap=True)
    for note in notes:
        console.print(f"[dim]{escape(note)}[/]")


def _facts(node: NodeView) -> list[tuple[str, str]]:
    free = "" if node.free_gpu_count is None else f", {node.free_gpu_count} free"
    lost = f", {node.lost_gpu_count} lost" if node.lost_gpu_count else ""
    return [
        ("reason", node.reason),
        ("GPUs", models_text(node.gpu_models) + free + lost),
        ("cores", f"{node.used_cpu_cores} of {node.cpu_cores} held by jobs"),
        ("memory", f"{mib(node.used_memory_mib)} of {mib(node.memory_mib)} held by jobs"),
        ("jobs", f"{len(node.job_ids)}"),
    ]
