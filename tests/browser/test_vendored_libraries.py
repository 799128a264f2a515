"""The JavaScript that ships: exactly the packages of package-lock.json, with their licences, and small."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

from adlro.services.web.assets import Assets

ROOT = Path(__file__).parents[2]
STATIC = ROOT / "services" / "web" / "static"
VENDOR = STATIC / "vendor"
RECORDS = ROOT / "third_party" / "javascript"
ASSETS = sorted(path for path in STATIC.rglob("*") if path.is_file() and not path.name.endswith(".d.ts"))


def test_every_vendored_file_is_recorded_with_its_digest_and_the_locked_package() -> None:
    records = json.loads((RECORDS / "sources.json").read_text())
    locked = json.loads((ROOT / "package-lock.json").read_text())["packages"]

    assert {path.name for path in VENDOR.iterdir() if not path.name.endswith(".d.ts")} == set(records)
    for name, record in records.items():
        package = locked[f"node_modules/{record['package']}"]
        ships = (VENDOR / name).read_bytes()
        assert hashlib.sha256(ships).hexdigest() == record["sha256"], f"{name} was changed by hand"
        assert (record["version"], record["package_integrity"]) == (package["version"], package["integrity"]), (
            f"{name}: run npm ci && python tools/vendor_javascript.py"
        )
        # What was changed on the way can be taken back, and gives the package's own file.
        text = ships.decode().removesuffix(record["appended"])
        for old, new in record["replaced"]:
            text = text.replace(new, old) if new else text.rstrip("\n") + old + "\n"
        assert hashlib.sha256(text.encode()).hexdigest() == record["original_sha256"]
        assert (RECORDS / f"LICENSE.{record['package']}").read_text().strip()


def test_versions_are_pinned() -> None:
    package = json.loads((ROOT / "package.json").read_text())

    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in package["devDependencies"].values())
    assert "dependencies" not in package


def test_all_assets_together_are_small() -> None:
    served = Assets()

    sent = [served.index, *served.files.values()]

    assert len(sent) == len(ASSETS)
    assert (size := sum(len(asset.packed or asset.plain) for asset in sent)) < 120_000, f"{size} bytes on the line"


def test_the_page_has_nothing_that_its_content_policy_forbids() -> None:
    index = (STATIC / "index.html").read_text()

    assert not re.search(r"<script(?![^>]*\ssrc=)", index)
    assert not re.search(r"\sstyle=|\son[a-z]+=|<style|https?://", index)
    for path in ASSETS:
        if path.suffix == ".js" and path.parent != VENDOR:
            found = re.search(
                r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", path.read_text()
            )
            assert found is None, f"{path.name} has {found[0]}"


def test_modules_are_imported_by_relative_paths_that_exist() -> None:
    imports = re.compile(r"""^(?:import|export)\b[^;"\n]*\bfrom ?"([^"]+)";?$|\bimport\("([^"]+)"\)""", re.MULTILINE)
    seen = 0
    for path in ASSETS:
        if path.suffix != ".js":
            continue
        for target in ("".join(found) for found in imports.findall(path.read_text())):
            seen += 1
            assert target.startswith("."), f"{path.name} imports {target}"
            assert (path.parent / target).resolve().is_file(), f"{path.name} imports {target}"
    assert seen > 50
