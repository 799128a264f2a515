"""Attempts in a folder of the test's own; when it ends, nothing that they brought about may run."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

if sys.platform != "linux":
    collect_ignore_glob = ["test_*.py"]
else:
    from adlro.attempt import tree
    from tests.unit.attempt.node import Node, plainly_marked

    @pytest.fixture
    def node(tmp_path: Path) -> Iterator[Node]:
        made = Node(tmp_path / "attempts")
        yield made
        intents = [json.loads(path.read_text()) for path in made.folder.glob("*/intent.json")]
        left = [intent["mark"] for intent in intents if tree.marked(intent["mark"]) or plainly_marked(intent["mark"])]
        for mark in left:
            tree.kill_all(functools.partial(tree.marked, mark))
        assert not left, "processes were left behind"
