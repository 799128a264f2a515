"""Max-Min. Arrays only."""

from __future__ import annotations

from adlro.decide.policies.list_schedule import ListSchedule
from adlro.state.observation import Floats


class MaxMin(ListSchedule):
    """Next in the plan is the job whose earliest expected completion is latest: long jobs first.

    Source: Max-min of Maheswaran et al. (1999), section 3.3; Braun et al. (2001), section 3.5.
    """

    name = "max_min"
    description = (
        "plans the whole queue, the job whose earliest end is latest first; score: minus the expected completion in s"
    )
    advice = "For comparisons only: long jobs first, and a mean JCT no lower than that of fcfs at load 0.9."

    def urgency(self, order: Floats, best_s: Floats, second_s: Floats) -> Floats:
        """(n, J) minus the earliest completion."""
        return -best_s
