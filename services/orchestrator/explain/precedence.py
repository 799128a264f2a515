"""A waiting job's level of precedence, in words. Plain data and arrays."""

from __future__ import annotations

from adlro.decide.precedence import factors, levels
from adlro.records.precedence import LEVELS, Precedence
from adlro.services.orchestrator.ledger.entry import Entry, Phase
from adlro.services.orchestrator.ledger.ledger import Ledger


def standing(rule: Precedence | None, ledger: Ledger, entry: Entry, time_s: float) -> str:
    """The level, what it is made of, and how many jobs go first; empty: there is no rule, or the job is in no queue.

    Args:
        rule: of the acting policy.
        time_s: the present cluster time.
    """
    if rule is None or entry.phase is not Phase.QUEUED:
        return ""
    seen, entries = ledger.look(time_s)  # as a decision does
    if entry not in entries:
        return "none: a limit keeps the job from its start"
    place = entries.index(entry)
    level, found = levels(rule, seen)[0], factors(rule, seen)
    parts = [
        f"{name} {float(factor[0, place]):.2f} (weight {weight:g})"
        for name, factor, weight in zip(
            ("fair share", "age", "priority"), found, (rule.fair_share, rule.age, rule.priority), strict=True
        )
        if weight
    ]
    higher = int((level > level[place]).sum())
    jobs = "no job is" if not higher else "1 job is" if higher == 1 else f"{higher} jobs are"
    return f"level {level[place]} of {LEVELS - 1}: {', '.join(parts)}; {jobs} on higher levels"
