"""The guides and the glossary keep up with the code: reasons, roles, words."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from adlro.kit.identity import Role
from adlro.records.jobs import PendingReason

DOCS = Path(__file__).resolve().parents[3] / "docs"


def first_cells(page: str, heading: str) -> list[str]:
    section = (DOCS / page).read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| ([^|]+) \|", section, re.MULTILINE)[2:]


def test_the_users_guide_has_every_reason_for_a_wait_once() -> None:
    named = [
        name for cell in first_cells("users_guide.md", "Why does it wait?") for name in re.findall(r"`(\w+)`", cell)
    ]
    assert sorted(named) == sorted(reason.name.lower() for reason in PendingReason if reason is not PendingReason.NONE)


def test_the_users_guide_begins_with_thirty_lines() -> None:
    (lines,) = re.findall(r"```sh\n(.*?)```", (DOCS / "users_guide.md").read_text(), re.DOTALL)
    assert len(lines.splitlines()) <= 30
    assert (DOCS / "users_guide.md").read_text().index("```sh") < 500


def test_the_glossary_is_in_order_and_names_each_word_once() -> None:
    rows = re.findall(r"^\| ([^|]+) \| (.+) \|$", (DOCS / "glossary.md").read_text(), re.MULTILINE)[2:]
    words = [word for word, _ in rows]
    assert words == sorted(words, key=lambda word: word.lower().replace(",", ""))
    assert len(words) == len(set(words))
    assert {"cluster time", "JCT", "hold, of a job", "hold, of a policy", "shadow policy", "candidate"} <= set(words)
    assert [word for word, meaning in rows if len(meaning) < 15] == []


def test_the_operators_guide_names_every_role_that_a_person_has() -> None:
    page = (DOCS / "operators_guide.md").read_text()
    assert {role.value for role in Role} - {"service"} == {
        word for word in ("submitter", "reader", "operator") if word in page
    }


@pytest.mark.parametrize("page", ["evaluation.md", "learned_policy.md", "gangs.md"])
def test_a_sentence_stands_before_each_table_of_completion_times(page: str) -> None:
    lines = (DOCS / page).read_text().splitlines()
    begins = [i for i, line in enumerate(lines) if line.startswith("| ") and not lines[i - 1].startswith("|")]
    tables = [i for i in begins if "JCT" in lines[i]]
    assert tables
    for begin in tables:
        above = begin - 1
        while not lines[above] or lines[above].startswith("<!-- figures"):
            above -= 1
        assert lines[above][-1] in ".:", f"{page}:{begin + 1}: the table comes behind {lines[above]!r}"
        assert not lines[above].startswith(("#", "|", "    ", "```"))
