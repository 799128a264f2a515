"""Attempts in a folder of the test's own; when it ends, nothing that they brought about may run."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

if sys.platform != "linux":
    collect_ignore_glob = ["test_*.py"]
else:
    from adlro.attempt import tree
    from tests.unit.attempt.node import plainly_marked
    from tests.unit.local.bench import Bench

    @pytest.fixture
    async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
        made = Bench(tmp_path)
        await made.begin()
        yield made
        await made.end()

    @pytest.fixture(autouse=True)
    def nothing_left(tmp_path: Path):
        yield
        # A glob would raise where a folder goes while it is looked at (Python 3.11).
        paths = [Path(folder, "intent.json") for folder, _, files in os.walk(tmp_path) if "intent.json" in files]
        intents = [json.loads(path.read_text()) for path in paths]
        left = [each for each in intents if tree.marked(each["mark"]) or plainly_marked(each["mark"])]
        for each in left:
            tree.kill_all(functools.partial(tree.marked, each["mark"]))
        assert not [each["name"] for each in left], "processes were left behind"
