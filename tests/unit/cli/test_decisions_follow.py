"""`adlro decisions --follow`: after those that were listed only newer ones come, in order, each once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest

from adlro.cli.decisions import DECISIONS, _line, _new
from adlro.cli.listing.options import make_view
from adlro.placement import NOWHERE, Placement
from adlro.records.decisions import Decision, DecisionBasis, DecisionFilter, DecisionView, ShadowDecision
from adlro.terminal import PlainConsole


def decision(decision_id: str, job_id: str = "job-1", **fields: Any) -> Decision:
    return Decision(
        decision_id,
        job_id,
        Placement.on("volta-0/1"),
        "sjf",
        5.0,
        3,
        (),
        (),
        "",
        9.0,
        1,
        DecisionBasis.POLICY,
        **fields,
    )


class Watched:
    """A client whose watch begins with what was decided before, some of it listed already, and then goes on."""

    def __init__(self, *decisions: Decision) -> None:
        self.decisions = decisions
        self.asked: list[tuple[int, DecisionView]] = []

    def watch_decisions(self, history: int, *, view: DecisionView) -> Iterator[Decision]:
        self.asked.append((history, view))
        yield from self.decisions


def new(client: Watched, wanted: DecisionFilter, *shown: Decision) -> list[str]:
    return [each.decision_id for each in _new(cast(Any, client), wanted, shown)]


def test_what_was_listed_does_not_come_again() -> None:
    client = Watched(*(decision(each) for each in ("d-2-8", "d-2-9", "d-2-10", "d-2-11", "d-3-12")))
    assert new(client, DecisionFilter(), decision("d-2-8"), decision("d-2-9")) == ["d-2-10", "d-2-11", "d-3-12"]
    assert client.asked == [(1000, DecisionView.SUMMARY)]
    assert new(client, DecisionFilter()) == ["d-2-8", "d-2-9", "d-2-10", "d-2-11", "d-3-12"]


def test_a_repetition_after_an_outage_is_left_out() -> None:
    client = Watched(*(decision(each) for each in ("d-2-8", "d-2-9", "d-2-8", "d-2-9", "d-4-1")))
    assert new(client, DecisionFilter()) == ["d-2-8", "d-2-9", "d-4-1"]


def test_only_what_matches_comes() -> None:
    client = Watched(decision("d-1-1"), decision("d-1-2", "job-2"), decision("d-1-3"))
    assert new(client, DecisionFilter(job_id="job-2")) == ["d-1-2"]


@pytest.mark.parametrize(
    ("shadow", "says"),
    [
        (None, "sjf"),
        (ShadowDecision("fcfs", "", NOWHERE, agrees=False), "sjf  fcfs: holds"),
        (ShadowDecision("fcfs", "job-2", Placement.on("volta-0/0"), agrees=False), "sjf  fcfs: job-2 on volta-0/0"),
        (ShadowDecision("fcfs", "job-1", Placement.on("volta-0/1"), agrees=True), "sjf  fcfs agrees"),
    ],
)
def test_a_decision_is_a_line(shadow: ShadowDecision | None, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    PlainConsole(width=200).print(_line(make_view(DECISIONS), decision("d-1-1", shadow=shadow)))
    assert capsys.readouterr().out == f"d-1-1  5.0 s  job-1  volta-0/1  3  {says}\n"
