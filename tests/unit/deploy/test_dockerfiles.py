"""What the images' builds import is there."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

DEPLOY = Path(__file__).parents[3] / "deploy"
IMPORTS = [
    (path.name, *found)
    for path in sorted(DEPLOY.glob("*.Dockerfile"))
    for found in re.findall(r"from (adlro[\w.]*) import (\w+)", path.read_text())
]


def test_images_compile_their_code_as_they_are_built() -> None:
    assert {name for name, _, _ in IMPORTS} == {"orchestrator.Dockerfile", "simcluster.Dockerfile"}


@pytest.mark.parametrize(("file", "module", "name"), IMPORTS, ids=str)
def test_what_an_image_imports_is_there(file: str, module: str, name: str) -> None:
    assert callable(getattr(importlib.import_module(module), name)), f"{file}: {module} has no {name}"
