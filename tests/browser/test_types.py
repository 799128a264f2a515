"""The page's modules keep their types: tsc over the JSDoc, and the vendored files are those of node_modules."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from adlro.services.web.assets import FOLDER, without_comments

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


def test_scripts_without_their_comments_are_the_same_scripts(tmp_path: Path) -> None:
    scripts = [path for path in sorted(FOLDER.rglob("*.js")) if "vendor" not in path.parts]
    options = {"allowJs": True, "checkJs": False, "removeComments": True, "outDir": "out", "target": "esnext"}
    options |= {"module": "esnext", "noResolve": True}
    for kind in ("whole", "served"):
        for path in scripts:
            copy = tmp_path / kind / path.relative_to(FOLDER)
            copy.parent.mkdir(parents=True, exist_ok=True)
            text = path.read_text() if kind == "whole" else without_comments(path.read_text())
            copy.write_text("// @ts-nocheck\n" + text.removeprefix("// @ts-check\n"))
        (tmp_path / kind / "tsconfig.json").write_text(json.dumps({"compilerOptions": options}))
        run("node", "node_modules/typescript/bin/tsc", "-p", str(tmp_path / kind))
    for path in scripts:
        whole, served = (tmp_path / kind / "out" / path.relative_to(FOLDER) for kind in ("whole", "served"))
        assert whole.read_text() == served.read_text()
        assert len(whole.read_text()) > 100 or path.stat().st_size < 1000


def test_vendored_files_are_those_of_the_packages() -> None:
    run(sys.executable, "tools/vendor_javascript.py", "--check")
