"""The page's modules keep their types: tsc over the JSDoc, and the vendored files are those of node_modules."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.browser, pytest.mark.slow]


def run(*words: str) -> None:
    """A command at the repository's root that must succeed."""
    if not (ROOT / "node_modules" / "typescript").is_dir() or shutil.which("node") is None:
        pytest.fail("node or node_modules is missing: install Node.js, and run `npm ci`")
    ended = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=240)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_tsc_finds_nothing() -> None:
    run("node", "node_modules/typescript/bin/tsc", "--noEmit")


def test_vendored_files_are_those_of_the_packages() -> None:
    run(sys.executable, "tools/vendor_javascript.py", "--check")
