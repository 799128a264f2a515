"""The learned policy's tables: what breaks a limit first, tails and throughput in each, who decided; of small runs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from adlro.lab.evaluate.measure import METRICS
from adlro.lab.evaluate.tally import BASES
from adlro.records.decisions import DecisionBasis
from benchmarks import learned_policy, learned_tables
from benchmarks.learned_tables import Change, Lists, change, read, show

COLUMNS = ("mean JCT", "p95 JCT", "longest wait", "throughput", "overdue, %", "fallback, %")


def lists(count: int = 6, bases: dict[DecisionBasis, int] | None = None, **figures: float) -> Lists:
    """Lists of figures that are 100 where not given, a little more from list to list."""
    metrics = np.array(
        [[figures.get(name, 100.0) * (1 + 0.01 * number) for name in METRICS] for number in range(count)]
    )
    counts = np.array([[(bases or {DecisionBasis.POLICY: 10}).get(basis, 0) for basis in BASES]] * count)
    return Lists(metrics, counts)


def put(folder: Path, group: str, cell: str, policy: str, found: Lists) -> None:
    about = json.dumps({"group": group, "cell": cell, "policy": policy})
    stuck = np.zeros(len(found.metrics), dtype=np.int64)
    np.savez(folder / f"{group}.{cell}.{policy}.npz", **found._asdict(), stuck=stuck, about=about)


def tables(text: str) -> dict[str, list[dict[str, str]]]:
    """By their first heading: rows by heading."""
    found = {}
    for part in re.findall(r"(?:^\|.*\n?)+", text, re.MULTILINE):
        head, rule, *lines = ([cell.strip() for cell in line.strip("| ").split(" | ")] for line in part.splitlines())
        assert set(rule) == {"---"}
        found[head[0]] = [dict(zip(head, line, strict=True)) for line in lines]
    return found


def test_a_change_is_of_the_means_over_the_lists_that_both_have() -> None:
    ours = Lists(np.full((3, len(METRICS)), 110.0), np.zeros((3, len(BASES)), dtype=np.int64))
    theirs = lists(5)
    found = change(ours, theirs, "p95_jct_s")
    assert found is not None
    assert found.value == pytest.approx(100 * (110 / 101 - 1))
    assert found.low <= found.value <= found.high
    assert change(ours, lists(5, max_wait_s=0.0), "max_wait_s") is None, "nobody waited"
    ours.metrics[:] = np.nan
    assert change(ours, theirs, "mean_jct_s") is None, "it got stuck"


@pytest.mark.parametrize(
    ("found", "limit", "beyond", "certain"),
    [
        (Change(2.1, 1.0, 3.0), 2.0, True, False),
        (Change(2.1, 2.05, 3.0), 2.0, True, True),
        (Change(1.9, 1.0, 3.0), 2.0, False, False),
        (Change(-1.1, -1.2, -1.05), -1.0, True, True),
        (Change(-1.1, -1.2, -0.9), -1.0, True, False),
        (Change(5.0, 4.0, 6.0), -1.0, False, False),
        (Change(-9.0, -9.5, -8.0), 15.0, False, False),
    ],
)
def test_a_limit_is_broken_on_its_bad_side(found: Change, limit: float, beyond: bool, certain: bool) -> None:
    assert (found.exceeds(limit), found.exceeds_for_certain(limit)) == (beyond, certain)


def test_what_breaks_a_limit_with_guessed_runtimes_stands_first(tmp_path: Path) -> None:
    for cell in ("paper 0.9", "paper 1.1"):
        put(tmp_path, "main", cell, "dqn", lists(mean_jct_s=98.0))
        put(tmp_path, "main", cell, "hold_greedy_fixed", lists())
    assert show(tmp_path).startswith("No limit against hold_greedy_fixed is broken, in 2 settings.\n")
    put(
        tmp_path, "guess", "paper 0.9 type", "dqn", lists(p95_jct_s=111.0, max_wait_s=126.0, throughput_jobs_per_h=98.5)
    )
    put(tmp_path, "guess", "paper 0.9 type", "hold_greedy_fixed", lists())
    text = show(tmp_path)
    assert text.splitlines()[:5] == [
        "Limits against hold_greedy_fixed are broken in 1 of 3 settings:",
        "",
        "- paper 0.9 type: throughput -1.5 % (-1.5 .. -1.5), limit -1 %",
        "- paper 0.9 type: p95 JCT +11.0 % (+11.0 .. +11.0), limit +2 %",
        "- paper 0.9 type: longest wait +26.0 % (+26.0 .. +26.0), limit +15 %",
    ]
    (guessed,) = [row for row in tables(text)["dqn against hold_greedy_fixed"] if row[next(iter(row))].endswith("type")]
    assert guessed["p95 JCT (limit +2 %)"] == "**+11.0 % (+11.0 .. +11.0)**"
    assert guessed["priority-weighted JCT (limit +1 %)"] == "+0.0 % (+0.0 .. +0.0)"


def test_every_table_has_the_tails_throughput_and_who_decided(tmp_path: Path) -> None:
    of_dqn = {
        DecisionBasis.POLICY: 85,
        DecisionBasis.MARGIN: 10,
        DecisionBasis.OVERDUE: 2,
        DecisionBasis.OUT_OF_RANGE: 2,
        DecisionBasis.FAILED: 1,
    }
    for group, others in {
        "main": ("hold_greedy_fixed", "fcfs", "static", "seed2"),
        "short": ("hold_greedy_fixed", "fcfs"),
        "guess": ("hold_greedy_fixed", "hold_greedy_retuned", "seed2"),
        "lookahead": ("hold_greedy_fixed", "dqn_lookahead"),
        "priority": ("hold_greedy_fixed", "wspt"),
        "elsewhere": ("hold_greedy_fixed", "sjf"),
    }.items():
        ours = lists(mean_jct_s=96.0, p95_jct_s=97.0, max_wait_s=103.0, throughput_jobs_per_h=101.0, bases=of_dqn)
        put(tmp_path, group, "a cell", "dqn", ours)
        for name in others:
            put(tmp_path, group, "a cell", name, lists())
    found = tables(show(tmp_path))
    assert list(found) == [
        "main",
        "trainings",
        "dqn against hold_greedy_fixed",
        "short",
        "guess",
        "lookahead",
        "priority",
        "elsewhere",
    ]
    lengths = {name: len(rows) for name, rows in found.items()}
    assert lengths == {
        "main": 3,
        "trainings": 8,  # beside the rule, the policy that ships, fcfs and static
        "dqn against hold_greedy_fixed": 4,
        "short": 2,
        "guess": 2,
        "lookahead": 3,
        "priority": 2,
        "elsewhere": 2,
    }
    for name, rows in found.items():
        for row in rows:
            if name == "dqn against hold_greedy_fixed" or row["policy"] != "dqn":
                continue
            changes = [row[column].partition(" ")[0] for column in COLUMNS]
            assert changes == ["-4.0", "-3.0", "+3.0", "+1.0", "2.00", "3.00"], name
    assert found["short"][0]["jobs/h"] == f"{1.01 * 102.5:.4g}"
    assert found["priority"][0]["priority-weighted JCT"].startswith("+0.0 % (")


def test_files_of_a_run_that_counted_nothing_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "old.npz", metrics=np.ones((1, len(METRICS))), stuck=np.zeros(1), about="{}")
    with pytest.raises(ValueError, match=r"old\.npz: of a run before decisions were counted; delete it"):
        read(tmp_path)


@pytest.mark.slow
def test_a_run_of_few_lists_makes_the_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    learned_policy.main(["run", str(tmp_path), "--lists", "2", "--only", "short"])
    learned_policy.main(["show", str(tmp_path)])
    (short,) = [rows for name, rows in tables(capsys.readouterr().out).items() if name == "short"]
    assert {row["against"] for row in short} == {"fcfs", "static", "hold_greedy_fixed"}
    assert {row["lists"] for row in short} == {"2"}
    for row in short:
        assert all(re.fullmatch(r"[+-][\d.]+ % \([+-][\d.]+ \.\. [+-][\d.]+\)", row[name]) for name in COLUMNS[:4])
        assert 0.0 <= float(row["overdue, %"]) <= float(row["overdue, %"]) + float(row["fallback, %"]) <= 100.0
    ours = learned_tables.read(tmp_path)["short", "paper 1.1, 64 jobs"]
    assert all(found.basis_counts.sum() > 100 for found in ours.values())
