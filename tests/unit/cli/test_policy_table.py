"""`adlro policy`: what each policy is for, within 100 columns, and where those come from that are not ADLRO's."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from adlro.cli.policy import policy_table
from adlro.decide.catalog import built_in
from adlro.records.status import BUILT_IN, OfferedPolicy

FILE = "/srv/policies/of the laboratory/with a long name/mine.py:MyPolicy"
OWN = OfferedPolicy(
    name="mine", description="mine; score: 1", acting=False, version="42fe9ed34325", shadow=True, source=FILE
)
BROKEN = OfferedPolicy(
    name=f"{FILE}2", description="", acting=False, problem="line 3: [red]SyntaxError", source=f"{FILE}2"
)


def offered() -> list[OfferedPolicy]:
    ours = [
        OfferedPolicy(
            name=name,
            description=kind.description,
            acting=name == "dqn",
            version="88d4162f1b29" if name == "dqn" else "",
            advice=kind.advice,
            source=BUILT_IN,
        )
        for name, kind in built_in().items()
    ]
    return [*ours, OWN, BROKEN]


def shown(found: list[OfferedPolicy], width: int, *, long: bool = False) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(policy_table(found, width, long=long))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [60, 80, 100, 250])
@pytest.mark.parametrize("long", [False, True])
def test_no_line_is_longer_than_the_screen_or_100_columns(width: int, long: bool) -> None:
    text = shown(offered(), width, long=long)
    assert max(map(len, text.splitlines())) <= min(width, 100)
    words = "".join(text.split())
    for each in offered():
        assert "".join(each.advice.split()) in words  # nothing is cut off


def test_each_has_its_advice_and_long_also_what_it_chooses() -> None:
    text, long = (" ".join(shown(offered(), 250, long=each).split()) for each in (False, True))
    kinds = built_in()
    assert all(kind.advice in text for kind in kinds.values())
    assert kinds["sjf"].description not in text
    assert "minus the expected duration" in long
    assert "* dqn" in text
    assert "checkpoint 88d4162f1b29" in text


def test_a_policy_of_ones_own_says_where_it_comes_from_and_what_is_wrong() -> None:
    words = "".join(shown([OWN, BROKEN], 100).split())
    assert "shadowmine" in words
    assert "mine;score:1" in words  # without advice, its description
    assert f"from{FILE.replace(' ', '')},version42fe9ed34325" in words
    assert "MyPolicy2" in words
    assert "line3:[red]SyntaxError" in words


def test_an_older_server_that_tells_no_advice_is_shown_as_before() -> None:
    text = shown([OfferedPolicy(name="fcfs", description="first come, first served", acting=True)], 100)
    assert "first come, first served" in text
    assert "from" not in text
