"""The search for marked processes, by which tests find what an attempt has left."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.attempt.node import plainly_marked


def process(proc: Path, pid: int, mark: str, state: str = "S") -> None:
    for folder in (proc / str(pid), proc / f"{pid}/task/{pid}"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "environ").write_bytes(f"A=b\0ADLRO_MARK={mark}\0".encode())
        (folder / "stat").write_text(f"{pid} (a) b) {state} 1 " + "0 " * 17 + f"{pid}00 0\n")


def test_processes_that_bear_a_mark_and_are_no_zombies(tmp_path: Path) -> None:
    process(tmp_path, 11, "wanted")
    process(tmp_path, 12, "other")
    process(tmp_path, 13, "wanted", "Z")
    (tmp_path / "14/task/14").mkdir(parents=True)
    (tmp_path / "15").mkdir()
    (tmp_path / "self").symlink_to("11")
    assert plainly_marked("wanted", str(tmp_path)) == {11: 1100}


@pytest.mark.parametrize("at", ["11/task", "11/task/11/environ", "11/task/11/stat", "11/stat"])
def test_a_process_that_goes_while_it_is_looked_at(tmp_path: Path, at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for pid in (11, 12):
        process(tmp_path, pid, "wanted")

    def goes(look: Callable[..., Any]) -> Callable[..., Any]:
        def looked(path: Any = ".", *args: Any, **more: Any) -> Any:
            if str(path) == str(tmp_path / at):
                shutil.rmtree(tmp_path / "11", ignore_errors=True)
                raise ProcessLookupError(3, "No such process", str(path))
            return look(path, *args, **more)

        return looked

    for where, name in ((os, "listdir"), (os, "scandir"), (Path, "read_bytes"), (Path, "read_text")):
        monkeypatch.setattr(where, name, goes(getattr(where, name)))
    assert plainly_marked("wanted", str(tmp_path)) == {12: 1200}
    assert not (tmp_path / "11").exists()


def test_a_process_that_is_there(tmp_path: Path) -> None:
    environment = {**os.environ, "ADLRO_MARK": f"test-{tmp_path}"}
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=environment) as child:
        while child.pid not in plainly_marked(f"test-{tmp_path}"):
            assert child.poll() is None
        assert child.stdin is not None
        child.stdin.close()
    assert plainly_marked(f"test-{tmp_path}") == {}
