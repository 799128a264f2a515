"""hold_gang that also drains GPUs for the job of several GPUs that would soon have ended. Arrays only."""

from __future__ import annotations

import dataclasses

from adlro.decide.policies.hold_gang import ONE_SETTING, HoldGang, HoldGangSettings

DRAINING = dataclasses.replace(ONE_SETTING, drain=3.0, haste=6.0)
"""One setting for every load."""


class DrainGang(HoldGang):
    """`hold_gang`, and while no job has waited long, GPUs are drained for one that fits nowhere and would soon be done.

    Of the jobs of several GPUs that fit nowhere, it drains for the one whose wait and duration together are least, if
    they are short against what could start instead (adlro/decide/gang_scores.py). Each decision chooses anew, so such a
    reservation passes when the queue or the running jobs change. It should beat `hold_gang` where jobs of several GPUs
    are common and the load is high; without any it is `hold_greedy_fixed` too, by the same code.

    Source: shortest remaining processing time first, applied to what is drained for; the condition and its figures are
    this project's own (docs/gangs.md).

    Args:
        settings: instead of the one setting.
    """

    name = "drain_gang"
    description = (
        "hold_gang that also drains GPUs for a job of several that fits nowhere, while its wait and duration are short "
        "against what could start instead; score: as hold_gang's"
    )
    advice = "Where many jobs have several GPUs and their runtimes are known: 5 % below hold_gang at load 0.9."

    def __init__(self, settings: HoldGangSettings | None = None) -> None:
        super().__init__(settings or DRAINING)
