"""A verdict as a JSON document, and as text. Plain data."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from adlro.cli.units_text import seconds
from adlro.lab.candidates.judging import CANDIDATE, Verdict, percent
from adlro.lab.candidates.making import Making
from adlro.lab.candidates.past import Past
from adlro.terminal import escape


def verdict_document(verdict: Verdict, before: Past, judged: Past, making: Making, candidate: str) -> dict[str, Any]:
    """The document.

    Args:
        verdict: of the candidate.
        before: what it learned from.
        judged: what it was judged by.
        making: how it was trained.
        candidate: the file.
    """
    ours = verdict.played[0]
    return {
        "candidate": candidate,
        "version": ours.version,
        "offered": verdict.offered,
        "reasons": list(verdict.reasons),
        "cluster": before.cluster.name,
        "gpus": sum(1 for _ in before.cluster.gpus()),
        "learned_from": _part(before),
        "judged_by": {
            **_part(judged),
            "measured": int(judged.measured.sum()),
            "parts": verdict.part_count,
            "jobs_of_part": verdict.part_jobs,
        },
        "making": asdict(making),
        "policies": [_finite(asdict(each)) for each in verdict.played],
        "changes": [_finite(asdict(each)) for each in verdict.changes],
        "better_rule": None if verdict.better_rule is None else _finite(asdict(verdict.better_rule)),
        "notes": list(before.notes),
    }


def _part(past: Past) -> dict[str, Any]:
    return {
        "jobs": len(past),
        "gang_share": past.gang_share,
        "length_s": past.length_s,
        "runtimes_known_by": dict(past.sources),
    }


def _finite(found: dict[str, Any]) -> dict[str, Any]:
    """Without numbers that JSON has not."""
    return {name: None if isinstance(each, float) and not math.isfinite(each) else each for name, each in found.items()}


def verdict_lines(document: dict[str, Any]) -> Iterator[str]:
    """The document for people, as lines with rich's markup."""
    learned, judged = document["learned_from"], document["judged_by"]
    yield (
        f"[bold]candidate {document['version']}[/] for {escape(document['cluster'])} ({document['gpus']} GPUs): "
        f"learned from {learned['jobs']} jobs, judged by the {judged['measured']} after them, which it does not know, "
        f"in {judged['parts']} parts"
    )
    yield ""
    yield f"{'POLICY':<20} {'MEAN JCT':>12} {'P95 JCT':>12} {'LONGEST WAIT':>13} {'IN ONE PIECE':>13}"
    for each in document["policies"]:
        name = each["name"] + (f" {each['version']}" if each["version"] and each["name"] != CANDIDATE else "")
        yield (
            f"{escape(name):<20} {seconds(each['mean_jct_s']):>12} {seconds(each['p95_jct_s']):>12} "
            f"{seconds(each['longest_wait_s']):>13} {seconds(each['whole_mean_jct_s']):>13}"
        )
    yield ""
    for each in document["changes"]:
        told = [
            f"mean JCT {_percent(each['mean_jct'])}{_interval(each['mean_jct_interval'])}",
            f"p95 JCT {_percent(each['p95_jct'])}{_interval(each['p95_jct_interval'])}",
            f"longest wait {_percent(each['longest_wait'])}",
            f"mean JCT in one piece {_percent(each['whole_mean_jct'])}",
        ]
        yield f"against {escape(each['against'])}: {', '.join(told)}"
    for note in document["notes"]:
        yield f"[yellow]{escape(note)}[/]"
    if document["offered"]:
        yield "[green]offered[/]: its gain is above 0 with 95 % confidence, and its tails keep the limits"
    else:
        yield "[yellow]not offered[/]:"
        for reason in document["reasons"]:
            yield f"  - {escape(reason)}"
    if (rule := document["better_rule"]) is not None:
        name = escape(rule["policy"])
        yield (
            f"a single rule has a lower mean here: {name}, the best on the earlier jobs, has mean JCT "
            f"{_percent(rule['mean_jct'])}{_interval(rule['mean_jct_interval'])}, p95 JCT {_percent(rule['p95_jct'])}, "
            f"longest wait {_percent(rule['longest_wait'])}, mean JCT in one piece {_percent(rule['whole_mean_jct'])} "
            f"against the checkpoint in use; to let it decide, if it does not yet: [bold]adlro policy {name}[/]"
        )


def _percent(ratio: float | None) -> str:
    return "?" if ratio is None else percent(ratio)


def _interval(found: list[float] | tuple[float, float]) -> str:
    return f" [dim]({percent(found[0])} to {percent(found[1])})[/]"
