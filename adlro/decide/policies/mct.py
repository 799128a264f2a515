"""Minimum completion time. Arrays only."""

from __future__ import annotations

from adlro.decide.policies.list_schedule import ListSchedule


class Mct(ListSchedule):
    """In the order of submission, each job to the GPU with its earliest expected completion.

    Source: MCT of Maheswaran, Ali, Siegel, Hensgen and Freund, "Dynamic mapping of a class of independent tasks onto
    heterogeneous computing systems" (1999), section 3.2; Braun et al., "A comparison of eleven static heuristics for
    mapping a class of independent tasks" (2001), section 3.3. A mapping here may change until the job starts.
    """

    name = "mct"
    description = (
        "in order of submission, each job to the GPU where it should end first, be it busy; "
        "score: minus the expected completion in s"
    )
    advice = "For short tails: the lowest 99th percentile of the JCT at load 0.9, 112 s beside 161 s of fcfs."
