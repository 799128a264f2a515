"""The documents keep up with the code: links lead somewhere, and what they name exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def anchors(document: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    dead = []
    for target in re.findall(r"\]\(([^)\s]+)\)", document.read_text()):
        if target.startswith(("https://", "http://")):
            continue
        path, _, anchor = target.partition("#")
        file = (document.parent / path).resolve() if path else document
        if not file.exists() or (anchor and anchor not in anchors(file)):
            dead.append(target)
    assert not dead


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_make_targets_exist(document: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:^|`)make (?:PYTHON=\S+ )?([a-z-]+)", document.read_text(), re.MULTILINE))
    assert named <= targets


def test_tests_named_by_the_guarantees_exist() -> None:
    missing = []
    for file, name in re.findall(r"(tests/[\w/]+\.py)(?:::(\w+))?", (ROOT / "docs" / "guarantees.md").read_text()):
        path = ROOT / file
        if not path.exists() or (name and not re.search(rf"def {name}\b", path.read_text())):
            missing.append(f"{file}::{name}")
    assert not missing


def test_every_promise_is_tried() -> None:
    text = (ROOT / "docs" / "guarantees.md").read_text()
    promised = re.findall(r"^\| ([A-Z]\d+) \|", text, re.MULTILINE)
    tried = re.findall(r"^- \*\*([A-Z]\d+)\*\*:\s+`tests/", text, re.MULTILINE)
    assert promised
    assert tried == promised


def test_every_decision_is_listed() -> None:
    folder = ROOT / "docs" / "decisions"
    listed = set(re.findall(r"\((\d{4}-[\w-]+\.md)\)", (folder / "README.md").read_text()))
    assert listed == {path.name for path in folder.glob("[0-9]*.md")}


def test_nothing_tells_to_install_adlro_by_its_name() -> None:
    """It is on no package index, so that anybody could register the name there."""
    by_name = re.compile(
        r"(?:pip|pipx|uv)\b[^\n]*\binstall\b[^\n#;]*[\s'\"]adlro\\*(?:\[|['\"`\s=<>~]|$)", re.IGNORECASE
    )
    folders = ("adlro", "services", "docs", "examples", "benchmarks", "tools", "deploy")
    files = [*ROOT.glob("*.*"), *(file for folder in folders for file in (ROOT / folder).rglob("*.*"))]
    texts = {
        file: file.read_text()
        for file in files
        if file.suffix in (".py", ".md", ".sh", ".toml", ".yaml", ".Dockerfile")
    }
    assert len(texts) > 200
    assert [str(file) for file, text in texts.items() if by_name.search(text)] == []
    assert by_name.search("`pip install 'adlro[evaluate]'`")
    assert by_name.search("pip install adlro")
    assert not by_name.search("pip install '.[evaluate]'")
