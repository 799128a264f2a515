"""`adlro policy promote` and `rollback`: what changes, what is refused, and that nothing is half done."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from adlro.cli import promotion
from adlro.cli.promotion import promoted_now, rolled_back
from adlro.errors import Conflict, InvalidInput, NotFound
from adlro.kit.promotion import changing, promoted
from adlro.records.status import OfferedPolicy


def version_of(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=6).hexdigest()


@dataclass
class FakeClient:
    """A suite whose orchestrator takes the newest promoted file, unless it starts with `bad`."""

    folder: Path
    shipped: bytes = b"shipped"
    refused: list[str] = field(default_factory=list)

    def policies(self) -> list[OfferedPolicy]:
        version, problem = version_of(self.shipped), ""
        for each in promoted(self.folder):
            if not each.path.read_bytes().startswith(b"bad"):
                version = version_of(each.path.read_bytes())
                break
            if each.path.name not in self.refused:
                self.refused.append(each.path.name)
            problem = "not an ONNX model"
        return [OfferedPolicy(name="dqn", description="", acting=True, version=version, problem=problem)]

    def status(self) -> Any:
        return SimpleNamespace(checkpoints_refused_count=len(self.refused))


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(promotion, "_LOOK_S", 0.001)
    return FakeClient(tmp_path / "checkpoints")


def learned(folder: Path, content: bytes, **verdict: object) -> Path:
    """A folder of `adlro learn`."""
    folder.mkdir()
    (folder / "candidate.onnx").write_bytes(content)
    told = {"version": version_of(content), "offered": True, "reasons": []} | verdict
    (folder / "verdict.json").write_text(json.dumps(told))
    return folder


def test_an_offered_candidate_is_promoted_and_taken_back(client: Any, tmp_path: Path) -> None:
    source = learned(tmp_path / "learn", b"one")
    done = promoted_now(client, source, client.folder, force=False)
    assert (done.version, done.before) == (version_of(b"one"), version_of(b"shipped"))
    assert Path(done.file).read_bytes() == b"one"
    with pytest.raises(Conflict, match="in use already"):
        promoted_now(client, source, client.folder, force=False)
    back = rolled_back(client, client.folder)
    assert (back.version, back.before) == (version_of(b"shipped"), version_of(b"one"))
    with pytest.raises(NotFound, match="no checkpoint is promoted"):
        rolled_back(client, client.folder)


def test_one_that_was_not_offered_needs_force(client: Any, tmp_path: Path) -> None:
    source = learned(tmp_path / "learn", b"one", offered=False, reasons=["its 95th percentile is +9 %"])
    for path in (source, source / "candidate.onnx"):
        with pytest.raises(Conflict, match=r"not offered: its 95th percentile is \+9 %.*--force"):
            promoted_now(client, path, client.folder, force=False)
    assert promoted(client.folder) == []
    assert promoted_now(client, source, client.folder, force=True).version == version_of(b"one")


def test_one_that_was_not_judged_yet_needs_force(client: Any, tmp_path: Path) -> None:
    source = learned(tmp_path / "learn", b"one")
    for text in ("[]", None):
        (source / "verdict.json").unlink() if text is None else (source / "verdict.json").write_text(text)
        with pytest.raises(Conflict, match="was not judged"):
            promoted_now(client, source, client.folder, force=False)
    assert promoted_now(client, source, client.folder, force=True).version == version_of(b"one")


def test_ctrl_c_while_it_waits_takes_the_file_back(
    client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "net.onnx").write_bytes(b"one")

    def interrupted(*_: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(promotion, "_until", interrupted)
    with pytest.raises(KeyboardInterrupt):
        promoted_now(client, tmp_path / "net.onnx", client.folder, force=False)
    assert promoted(client.folder) == []


def test_two_changes_at_once_do_not_take_each_others_file(client: Any, tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(b"one")
    with changing(client.folder):
        with pytest.raises(Conflict, match="under way"):
            promoted_now(client, tmp_path / "net.onnx", client.folder, force=False)
        with pytest.raises(Conflict, match="under way"):
            rolled_back(client, client.folder)
    assert promoted_now(client, tmp_path / "net.onnx", client.folder, force=False).version == version_of(b"one")


def test_a_rollback_that_is_not_seen_is_told(client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "net.onnx").write_bytes(b"one")
    promoted_now(client, tmp_path / "net.onnx", client.folder, force=False)
    monkeypatch.setattr(promotion, "_WAIT_S", 0.01)
    client.shipped = b"one"
    with pytest.raises(Conflict, match="is withdrawn, and after"):
        rolled_back(client, client.folder)


def test_a_verdict_of_another_file_is_not_believed(client: Any, tmp_path: Path) -> None:
    source = learned(tmp_path / "learn", b"one", version="aabbccddeeff")
    with pytest.raises(Conflict, match="its verdict is of version aabbccddeeff"):
        promoted_now(client, source, client.folder, force=True)
    (source / "verdict.json").write_text("{")
    with pytest.raises(InvalidInput, match=r"verdict\.json: can't be read"):
        promoted_now(client, source, client.folder, force=True)
    assert promoted(client.folder) == []


def test_what_the_orchestrator_refuses_is_taken_back(client: Any, tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(b"bad")
    with pytest.raises(Conflict, match=r"does not take .*net\.onnx: not an ONNX model\. Nothing has changed"):
        promoted_now(client, tmp_path / "net.onnx", client.folder, force=False)
    assert promoted(client.folder) == []
    (tmp_path / "good.onnx").write_bytes(b"good")
    assert promoted_now(client, tmp_path / "good.onnx", client.folder, force=False).version == version_of(b"good")


def test_a_suite_that_does_not_look_there_is_told(client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(promotion, "_WAIT_S", 0.01)
    (tmp_path / "net.onnx").write_bytes(b"one")
    elsewhere = tmp_path / "elsewhere"
    with pytest.raises(Conflict, match="ADLRO_ORCHESTRATOR_PROMOTED"):
        promoted_now(client, tmp_path / "net.onnx", elsewhere, force=False)
    assert promoted(elsewhere) == []


def test_without_a_suite_the_file_is_put_there(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(b"one")
    done = promoted_now(None, tmp_path / "net.onnx", tmp_path / "checkpoints", force=False)
    assert (done.version, Path(done.file).read_bytes()) == ("", b"one")
    with pytest.raises(NotFound, match="no such file"):
        promoted_now(None, tmp_path / "none.onnx", tmp_path / "checkpoints", force=False)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("promote",), "name the file to promote"),
        (("fcfs", "net.onnx"), "goes with promote only"),
        (("rollback", "--force"), "goes with promote only"),
        (("--folder", "."), "goes with promote and rollback only"),
        (("promote", "net.onnx", "--shadow", "fcfs"), "call adlro policy twice"),
        (("rollback", "--watch"), "does not go with rollback"),
    ],
)
def test_what_does_not_go_together_is_wrong_usage(
    adlro: Callable[..., Any], arguments: tuple[str, ...], told: str
) -> None:
    done = adlro("policy", *arguments)
    assert done.exit_code == 2
    assert told in done.output


def test_a_suite_elsewhere_needs_the_folder(adlro: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(b"one")
    done = adlro("policy", "promote", str(tmp_path / "net.onnx"))
    assert done.exit_code == 1
    assert "--folder" in f"{done.output}{done.exception}"
