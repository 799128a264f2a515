"""The web site (`make site`): it builds without network and without a warning, and what is dead or lost fails it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("sphinx", reason="the extra `docs` has it")

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
CONFIGURATION = ROOT / "docs" / "site"
# sphinx-build, in a process that reaches nothing.
OFFLINE = """
import socket, sys
from sphinx.cmd.build import main

def refuse(*_):
    raise OSError("the site needs no network")

socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = refuse
sys.exit(main(sys.argv[1:]))
"""


def build(source: Path, target: Path, configuration: Path = CONFIGURATION) -> tuple[int, str]:
    """The exit code, and what was said."""
    options = ("--quiet", "--fail-on-warning", "--keep-going", "--no-color", "-c", str(configuration))
    folders = ("-d", str(target / "cache"), str(source), str(target / "site"))
    ended = subprocess.run(
        [sys.executable, "-c", OFFLINE, *options, *folders], capture_output=True, text=True, timeout=120, check=False
    )
    return ended.returncode, ended.stderr


def test_it_builds_without_network_and_without_a_warning(tmp_path: Path) -> None:
    code, said = build(ROOT, tmp_path)
    assert (code, said) == (0, "")
    site = tmp_path / "site"
    pages = {path.relative_to(site).with_suffix("").as_posix() for path in site.rglob("*.html")}
    sources = {path.relative_to(ROOT).with_suffix("").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert sources | {"README", "CONTRIBUTING", "CHANGELOG", "index"} <= pages

    loaded = re.compile(r"<(?:script|img|iframe|source)\b[^>]*\bsrc(?:set)?=\"([^\"]+)|<link\b[^>]*\bhref=\"([^\"]+)")
    for page in site.rglob("*.html"):
        text = page.read_text()
        for found in loaded.finditer(text):
            address = found[1] or found[2]
            assert not re.match(r"\w+:|//", address), f"{page.name} loads {address}"
            assert (page.parent / re.sub(r"[?#].*", "", address)).exists(), f"{page.name} lacks {address}"

    first = (site / "docs" / "index.html").read_text()
    captions = re.findall(r'class="caption-text">([^<]+)', first)
    headings = re.findall(r"^## (.+)$", (ROOT / "docs" / "index.md").read_text(), re.MULTILINE)
    assert captions[: len(headings)] == headings


def test_what_is_dead_or_lost_fails_it(tmp_path: Path) -> None:
    source = tmp_path / "source"
    docs = source / "docs"
    (docs / "folder").mkdir(parents=True)
    (source / "README.md").write_text("# Readme\n\n[good](docs/page.md#a-heading), [folder](docs/folder)\n")
    (docs / "index.md").write_text("# Index\n\n## Pages\n\n- [read](../README.md)\n- [page](page.md)\n")
    (docs / "page.md").write_text(
        "# Page\n\n## A heading\n\n"
        "[gone](gone.md) [lost](#lost) [elsewhere](../README.md#lost-there) ![none](none.png)\n"
    )
    (docs / "unlisted.md").write_text("# Unlisted\n")
    shutil.copytree(CONFIGURATION, tmp_path / "configuration")
    code, said = build(source, tmp_path / "out", tmp_path / "configuration")
    assert code != 0
    warnings = sorted(re.sub(r"^\S+/source/", "", line) for line in said.splitlines() if "WARNING: " in line)
    found = {(line.partition(":")[0], word) for line in warnings for word in WORDS if word in line}
    assert found == {*((("docs/page.md"), word) for word in WORDS[:4]), ("docs/unlisted.md", WORDS[4])}
    assert len(warnings) == len(WORDS), warnings


WORDS = ("'gone.md'", "'lost'", "'lost-there'", "none.png", "isn't included in any toctree")
