"""The page's own files: read once at the start, served under a path that names their content. Reads files.

Scripts go out without the comments that stand on lines of their own, an eighth of all bytes: types are comments there.
"""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent / "static"
PLACEHOLDER: Final = b"__VERSION__"
INDEX: Final = "index.html"
_TYPES: Final = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
    ".txt": "text/plain; charset=utf-8",
    ".html": "text/html; charset=utf-8",
}
_COMPRESS_FROM_BYTES: Final = 512
_VENDOR: Final = "vendor"


@dataclass(frozen=True, slots=True)
class Asset:
    """A file; `packed` with gzip, empty where that gains nothing."""

    media_type: str
    plain: bytes
    packed: bytes = b""


class Assets:
    """The files of a folder.

    Args:
        folder: with `index.html`, in which `__VERSION__` is replaced.

    Attributes:
        version: a digest of all files.
        index: the page.
        files: the others, by path.
    """

    def __init__(self, folder: Path = FOLDER) -> None:
        files = {path.relative_to(folder).as_posix(): _content(path, folder) for path in _served(folder)}
        digest = hashlib.sha256()
        for name, content in sorted(files.items()):
            digest.update(f"{name}\0{len(content)}\0".encode() + content)
        self.version = digest.hexdigest()[:16]
        index = files.pop(INDEX, b"<!doctype html><title>ADLRO</title><p>The page's files are missing.</p>")
        self.index = _asset(INDEX, index.replace(PLACEHOLDER, self.version.encode()))
        self.files = {name: _asset(name, content) for name, content in files.items()}

    def find(self, version: str, name: str) -> Asset | None:
        """A file of this version; None: there is none."""
        return self.files.get(name) if version == self.version else None


def _served(folder: Path) -> list[Path]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return [path for path in files if path.suffix in _TYPES and not path.name.endswith(".d.ts")]


def _content(path: Path, folder: Path) -> bytes:
    content = path.read_bytes()
    own_script = path.suffix == ".js" and _VENDOR not in path.relative_to(folder).parts
    return without_comments(content.decode()).encode() if own_script else content


def without_comments(script: str) -> str:
    """A script without the comments that stand on lines of their own.

    Lines of a template that begin like a comment would be lost; a test holds that there are none.
    """
    kept: list[str] = []
    within = False
    for line in script.split("\n"):
        text = line.strip()
        if within:
            within = "*/" not in text
        elif text.startswith("/*") and "*/" not in text:
            within = True
        elif not text.startswith("//") and not (text.startswith("/*") and text.find("*/") == len(text) - 2):
            kept.append(line)
    return "\n".join(kept)


def _asset(name: str, content: bytes) -> Asset:
    packed = gzip.compress(content, 9, mtime=0) if len(content) >= _COMPRESS_FROM_BYTES else b""
    return Asset(_TYPES[Path(name).suffix], content, packed if len(packed) < len(content) else b"")
