"""Copies the page's JavaScript libraries from node_modules into its static folder, and records what was copied.

`npm ci && python tools/vendor_javascript.py` writes `services/web/static/vendor/` and
`third_party/javascript/sources.json`: for each file its package, version, licence, the package's digest as in
`package-lock.json`, the digest of the original and of the file that ships. The page has no bundler and no import map
(an inline script), so an import by name becomes one by path, and a classic script gets an export; nothing else changes.
`--check` only compares. May use the standard library only.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
STATIC = ROOT / "services" / "web" / "static" / "vendor"
RECORDS = ROOT / "third_party" / "javascript"


@dataclass(frozen=True, slots=True)
class Library:
    """One file of a package, and the texts that change on its way.

    `replaced` lists (old, new); each `old` must stand in the file exactly once. `appended` is added at the end.
    """

    package: str
    path: str
    target: str
    replaced: tuple[tuple[str, str], ...] = ()
    appended: str = ""


LIBRARIES = (
    Library("preact", "dist/preact.mjs", "preact.js", replaced=(("\n//# sourceMappingURL=preact.mjs.map", ""),)),
    Library(
        "preact",
        "hooks/dist/hooks.mjs",
        "hooks.js",
        replaced=(('from"preact"', 'from"./preact.js"'), ("\n//# sourceMappingURL=hooks.mjs.map", "")),
    ),
    Library("htm", "dist/htm.module.js", "htm.js"),
    Library("uplot", "dist/uPlot.iife.min.js", "uplot.js", appended="export default uPlot;\n"),
    Library("uplot", "dist/uPlot.min.css", "uplot.css"),
)


def sha256(data: bytes) -> str:
    """The digest in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def shipped(library: Library, original: bytes) -> bytes:
    """The file as the page loads it.

    Raises:
        ValueError: a text to replace is not there exactly once: the package has changed, look at it.
    """
    text = original.decode()
    for old, new in library.replaced:
        if text.count(old) != 1:
            raise ValueError(f"{library.package}/{library.path} has {old!r} {text.count(old)} times, expected once")
        text = text.replace(old, new)
    return (text + library.appended).encode()


def files_and_records(modules: Path) -> tuple[dict[Path, bytes], dict[str, object]]:
    """What to write (by path), and the content of sources.json.

    Args:
        modules: the folder node_modules that `npm ci` made.
    """
    lock = json.loads((ROOT / "package-lock.json").read_text())["packages"]
    files: dict[Path, bytes] = {}
    records: dict[str, object] = {}
    for library in LIBRARIES:
        package = modules / library.package
        locked = lock[f"node_modules/{library.package}"]
        original = (package / library.path).read_bytes()
        ships = shipped(library, original)
        files[STATIC / library.target] = ships
        licence = next(path for path in sorted(package.iterdir()) if path.name.upper().startswith("LICENSE"))
        files[RECORDS / f"LICENSE.{library.package}"] = licence.read_bytes()
        records[library.target] = {
            "package": library.package,
            "version": locked["version"],
            "license": json.loads((package / "package.json").read_text())["license"],
            "package_integrity": locked["integrity"],
            "path": library.path,
            "original_sha256": sha256(original),
            "replaced": [list(pair) for pair in library.replaced],
            "appended": library.appended,
            "sha256": sha256(ships),
        }
    files[RECORDS / "sources.json"] = (json.dumps(records, indent=2) + "\n").encode()
    return files, records


def main() -> int:
    """Writes the files, or compares them (`--check`); returns the exit status."""
    parser = argparse.ArgumentParser(description="Vendors the page's JavaScript libraries from node_modules.")
    parser.add_argument("--check", action="store_true", help="only compare; exit 1 and name the files that differ")
    check = parser.parse_args().check
    files, _ = files_and_records(ROOT / "node_modules")
    stale = [path for path, data in files.items() if not path.exists() or path.read_bytes() != data]
    for path in stale:
        if check:
            print(f"{path.relative_to(ROOT)} is not what package-lock.json and node_modules say")
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(files[path])
            print(f"wrote {path.relative_to(ROOT)}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
