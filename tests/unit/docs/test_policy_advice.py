"""What is advised for each policy is in one place, and true by the tables that it rests on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from adlro.decide.catalog import built_in

ROOT = Path(__file__).resolve().parents[3]
ADVICE = {name: kind.advice for name, kind in built_in().items()}
PAGE = (ROOT / "docs" / "which_policy.md").read_text()


def tables(document: str, after: str) -> Iterator[dict[str, str]]:
    """The rows of the first table after a text, by the names of its columns."""
    text = (ROOT / "docs" / document).read_text().partition(after)[2]
    found = re.search(r"(?:^\|.*\|$\n)+", text, re.MULTILINE)
    assert found is not None, (document, after)
    head, _, *rows = ([cell.strip() for cell in line.strip("|\n").split("|")] for line in found[0].splitlines())
    return (dict(zip(head, row, strict=True)) for row in rows)


def cell(document: str, after: str, column: str, **where: str) -> float:
    """A figure of the row that has these cells (underscores in names stand for blanks)."""
    (row,) = (
        row
        for row in tables(document, after)
        if all(row[name.replace("_", " ")].strip("`") == value for name, value in where.items())
    )
    found = re.match(r"[-+]?[\d.]+", row[column])
    assert found is not None, row
    return float(found[0])


def paper(policy: str, column: str, load: str = "0.9") -> float:
    return cell("evaluation.md", "<!-- figures: paper -->", column, policy=policy, load=load)


def gangs(policy: str, column: str, load: str = "0.9") -> float:
    return cell("gangs.md", "## Exact runtimes", column, policy=policy, load=load)


JCT, WAIT, RATE = "mean JCT against fcfs, %", "longest wait against fcfs, %", "jobs/h against fcfs, %"
AGAINST = "against `hold_gang`, %"
STOPS = "The longest wait grows by 2 to 15 %."
BELOW = ("fcfs_fastest", "sjf", "min_min", "wspt", "las", "hold_greedy_fixed", "dqn")
"""Policies whose advice tells how far their mean JCT is below that of fcfs."""


def expected() -> dict[str, list[str]]:
    """Texts that a policy's advice must have, made from the tables."""
    texts: dict[str, list[str]] = {name: [f"{-paper(name, JCT):.0f} % below fcfs at "] for name in BELOW}
    texts["static"] = [f"{paper('static', JCT):.0f} % above fcfs at load 0.9"]
    texts["sjf"].append(f"longest wait is {1 + paper('sjf', WAIT) / 100:.1f} times as long")
    longest = {name: paper(name, "longest wait, s") for name in ("easy_backfill", "fcfs")}
    texts["easy_backfill"] = [f"{longest['easy_backfill']:.0f} s beside {longest['fcfs']:.0f} s of fcfs at load 0.9"]
    large = {name: gangs(name, "jobs of 4 and 8 GPUs, s") for name in ("conservative_backfill", "easy_backfill")}
    texts["conservative_backfill"] = [
        f"{large['conservative_backfill']:.0f} s beside {large['easy_backfill']:.0f} s at load 0.9"
    ]
    texts["mct"] = [f"{paper('mct', 'p99 JCT, s'):.0f} s beside {paper('fcfs', 'p99 JCT, s'):.0f} s of fcfs"]
    texts["sufferage"] = [
        f"{paper('sufferage', RATE):.0f} % more jobs an hour than fcfs at load 0.9",
        f"mean JCT {-paper('sufferage', JCT):.0f} % below",
    ]
    texts["heft"] = [f"{paper('heft', RATE):.0f} % more jobs an hour than fcfs at load 0.9"]
    texts["hold_gang"] = [
        f"{100 - 100 * gangs('hold_gang', 'mean JCT, s') / gangs('easy_backfill', 'mean JCT, s'):.0f} % below easy_b"
    ]
    learned = cell("learned_policy.md", "## Jobs of several GPUs", "mean JCT", cell="gangs 0.9", against="hold_gang")
    texts["dqn"].append(f"{-learned:.0f} % below hold_gang")
    tried = cell("gangs.md", "## What was tried", "0.6", rule="hungarian` (no reservation)")
    texts["hungarian"] = [f"{tried:.0f} % above hold_gang at load 0.6"]
    drained = cell("gangs.md", "## Draining for", "mean JCT, %", scenario="gangs", runtimes="true", load="0.9")
    texts["drain_gang"] = [f"{-drained:.0f} % below hold_gang at load 0.9"]
    stopped = cell("gangs.md", "## Stopping for", AGAINST, restart="60 s", load="0.9")
    texts["srtf"] = [f"{-stopped:.0f} % below hold_gang at load 0.9"]
    unknown = cell("gangs.md", STOPS, AGAINST, rule="las_preemptive", load="0.9")
    texts["las_preemptive"] = [f"{unknown:.0f} % above hold_gang at load 0.9"]
    shared = cell("gangs.md", "## Two jobs on a GPU", "change, %", load="0.9", pairs_known="each pair")
    texts["share_pairs"] = [f"{-shared:.0f} % lower at load 0.9"]
    return texts


@pytest.mark.parametrize("name", ADVICE)
def test_each_has_one_sentence_of_advice(name: str) -> None:
    advice = ADVICE[name]
    assert advice.endswith(".")
    assert "\n" not in advice
    assert len(advice) <= 125


@pytest.mark.parametrize(("name", "texts"), expected().items())
def test_figures_of_advice_are_those_of_the_tables(name: str, texts: list[str]) -> None:
    for text in texts:
        assert text in ADVICE[name]


def test_figures_without_a_table_are_checked_at_all() -> None:
    """Each sentence with a figure is compared above."""
    with_figures = {name for name, advice in ADVICE.items() if re.search(r"\d+(?: %| s | times)", advice)}
    assert with_figures <= set(expected())


def test_claims_without_figures_hold() -> None:
    rows = [row for row in tables("evaluation.md", "<!-- figures: paper -->") if row["load"] == "0.9"]

    def best(column: str, *, most: bool = False) -> str:
        figures = {row["policy"].strip("`"): float(row[column].split()[0]) for row in rows}
        return (max if most else min)(figures, key=lambda name: figures[name])

    assert best("longest wait, s") == "easy_backfill"
    assert best("p99 JCT, s") == "mct"
    assert best("jobs/h", most=True) == "heft"
    assert paper("max_min", JCT) >= 0
    assert {
        min(("dqn", *BELOW), key=lambda each: paper(each, "mean JCT, s", load)) for load in ("0.6", "0.9", "1.1")
    } == {"dqn"}
    for load in ("0.6", "0.9", "1.1"):
        assert gangs("shortest_area", AGAINST, load) > 0
        assert gangs("min_min", AGAINST, load) < 0


def test_the_page_of_policies_says_the_same() -> None:
    section = (ROOT / "docs" / "policies.md").read_text().partition("\n## ")[0]
    told = dict(re.findall(r"^\| `(\w+)` \| .* \| (.*) \|$", section, re.MULTILINE))
    assert told == {name: advice for name, advice in ADVICE.items() if name != "dqn_lookahead"}


def test_the_page_says_the_same_figures() -> None:
    rows = re.findall(r"^\| [^|]+ \| `(\w+)`[^|]*\| ([^|]+) \|", PAGE, re.MULTILINE)
    assert len(rows) == 13
    for name, gained in rows:
        plain = gained.replace("`", "")
        figures = re.findall(r"\d+(?:\.\d)? (?:%|s)", plain)
        assert figures
        if name != "las_preemptive":  # with another knowledge of runtimes, see below
            assert all(figure in ADVICE[name] for figure in figures), (name, figures)
    assert f"at 0.6\n`dqn` is {-paper('dqn', JCT, '0.6'):.0f} % below `fcfs`, at 0.9 it is" in PAGE
    guessed = {
        known: cell(
            "evaluation.md",
            "<!-- figures: estimates -->",
            "mean JCT, s",
            load="0.9",
            policy="hold_greedy_fixed",
            known_of_runtimes=known,
        )
        for known in ("group", "true", "type")
    }
    words = " ".join(PAGE.split())
    assert f"at load 0.9 is {guessed['group']} s, beside {guessed['true']} s with exact runtimes." in words
    assert f"it is {guessed['type']} s; `fcfs`, which uses no runtimes, has {paper('fcfs', 'mean JCT, s')} s" in words
    hold = cell("gangs.md", "## Draining for", "`hold_gang`, s", scenario="gangs", runtimes="type", load="0.9")
    las = cell("gangs.md", STOPS, "mean JCT, s", rule="las_preemptive", load="0.9")
    assert f"{las} s beside {hold} s of `hold_gang`" in PAGE
