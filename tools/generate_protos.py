"""Generates the Python of protos/ into adlro/v1 and adlro/vendor; `--check` fails where the committed code is stale.

Run by `make protos` and `make check`. Writes nothing else.
"""

from __future__ import annotations

import argparse
import filecmp
import re
import sys
import tempfile
from importlib import resources
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
SOURCES = (ROOT / "protos", ROOT / "third_party" / "protovalidate")
VENDORED = re.compile(r"^from buf\.validate import", re.MULTILINE)


def generate(target: Path) -> None:
    """Writes adlro/v1/*_pb2*.py(i) and adlro/vendor/buf/validate/*_pb2.py(i) below `target`."""
    well_known = str(resources.files("grpc_tools") / "_proto")
    includes = [f"-I{source}" for source in SOURCES] + [f"-I{well_known}"]
    own = sorted(str(path.relative_to(SOURCES[0])) for path in SOURCES[0].rglob("*.proto"))
    services = [name for name in own if name.endswith("_service.proto")]
    (target / "adlro" / "v1").mkdir(parents=True)
    vendor = target / "adlro" / "vendor"
    vendor.mkdir()
    _run([*includes, f"--python_out={target}", f"--mypy_out=quiet:{target}", *own])
    _run([*includes, f"--grpc_python_out={target}", f"--mypy_grpc_out=quiet:{target}", *services])
    _run([*includes, f"--python_out={vendor}", f"--mypy_out=quiet:{vendor}", "buf/validate/validate.proto"])
    for path in (target / "adlro").rglob("*_pb2*.py*"):
        text = path.read_text()
        # The rule schema lives inside this package, so that no top-level module `buf` is claimed.
        text = VENDORED.sub("from adlro.vendor.buf.validate import", text)
        text = text.replace("import buf.validate.validate_pb2", "import adlro.vendor.buf.validate.validate_pb2")
        path.write_text(text)
    for package, doc in (
        ("adlro/v1", "The contracts, generated from protos/adlro/v1 by `make protos`. Don't edit."),
        ("adlro/vendor", "Code of others, generated or copied; don't edit."),
        ("adlro/vendor/buf", "Buf's rule schema for protovalidate."),
        ("adlro/vendor/buf/validate", "Generated from third_party/protovalidate by `make protos`. Don't edit."),
    ):
        (target / package / "__init__.py").write_text(f'"""{doc}"""\n')


def _run(arguments: list[str]) -> None:
    if protoc.main(["protoc", *arguments]) != 0:
        sys.exit("protoc failed; its message stands above")


def main() -> None:
    """Generates in place, or compares with what is committed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 where the committed code is stale")
    check = parser.parse_args().check
    with tempfile.TemporaryDirectory() as scratch:
        fresh = Path(scratch)
        generate(fresh)
        files = sorted(path.relative_to(fresh) for path in fresh.rglob("*") if path.is_file())
        existing = {
            path.relative_to(ROOT)
            for folder in ("adlro/v1", "adlro/vendor")
            for path in (ROOT / folder).rglob("*.py*")
            if path.suffix in (".py", ".pyi")
        }
        stale = [f for f in files if f not in existing or not filecmp.cmp(fresh / f, ROOT / f, shallow=False)]
        orphans = sorted(existing - set(files))
        if check:
            if stale or orphans:
                sys.exit("stale generated code, run `make protos`: " + ", ".join(map(str, [*stale, *orphans])))
            print(f"generated code is up to date ({len(files)} files)")
            return
        for orphan in orphans:
            (ROOT / orphan).unlink()
        for name in stale:
            (ROOT / name).parent.mkdir(parents=True, exist_ok=True)
            (ROOT / name).write_bytes((fresh / name).read_bytes())
        print(f"{len(stale)} of {len(files)} files written")


if __name__ == "__main__":
    main()
