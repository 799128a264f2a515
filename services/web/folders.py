"""Trainings and evaluations that lie in folders: their curves and pages. Reads files, and never outside its folder.

A link that leads out of the folder is passed over, of whatever file it is: what lies there is nobody's to show.
"""

from __future__ import annotations

import json
import math
import re
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from adlro.errors import NotFound

# No dot at the begin: neither a hidden file nor a way up.
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,127}", re.ASCII)
_MOST: Final = 500
_LARGEST_BYTES: Final = 64 << 20
_ROWS: Final = 2000
_LARGEST_COMPARISON_BYTES: Final = 4 << 20
_COMPARISON: Final = "adlro.compare.v1"
# Of an evaluation's figures, those of the summary.
_SUMMARY: Final = ("mean_jct_s", "p95_jct_s", "max_wait_s")
_CURVE, _SETTINGS = "curve.jsonl", "settings.json"


def runs(folder: str) -> list[dict[str, Any]]:
    """The trainings, newest first."""
    root, found = _root(folder), []
    for path in _entries(root):
        curve, settings_file = _file(root, path / _CURVE), _file(root, path / _SETTINGS)
        if curve is None:
            continue
        state = curve.stat()
        row_count, last = _summary(curve, state.st_mtime_ns, state.st_size)
        settings = _json(settings_file)
        # Its settings are written once, at the begin; everything else is renewed while it runs.
        began_s = state.st_mtime if settings_file is None else settings_file.stat().st_mtime
        shown = {
            "id": path.name,
            "recipe": settings.get("recipe") if isinstance(settings.get("recipe"), str) else None,
            "started_unix_s": None if settings_file is None else round(began_s, 1),
            "row_count": row_count,
            "last": dict(last),
            "baseline": bool(settings.get("baseline", False)),
        }
        found.append((began_s, shown))
    return [shown for _, shown in sorted(found, key=lambda each: -each[0])]


def run(folder: str, name: str) -> dict[str, Any]:
    """A training's curve, as columns, and its settings. Raises NotFound."""
    root, path = _root(folder), _inside(folder, name)
    curve = _file(root, path / _CURVE)
    if curve is None:
        raise NotFound("there is no training of this name", field="id")
    rows = _rows(curve)
    step = max(-(-len(rows) // _ROWS), 1)
    shown = rows[::step]
    names = dict.fromkeys(key for row in shown for key, value in row.items() if _finite(value))
    columns: dict[str, list[Any]] = {
        key: [row[key] if _finite(row.get(key)) else None for row in shown] for key in names
    }
    columns.setdefault("step", list(range(0, len(rows), step)))
    return {"id": path.name, "columns": columns, "settings": _json(_file(root, path / _SETTINGS))}


def reports(folder: str) -> list[dict[str, Any]]:
    """The pages of evaluations, newest first, each with the rows of the JSON document beside it."""
    root, found = _root(folder), []
    for path in _entries(root):
        if path.suffix != ".html" or _file(root, path) is None:
            continue
        beside = _json(_file(root, path.with_suffix(".json")))
        state = path.stat()
        title = beside.get("title")
        found.append(
            {
                "name": path.name,
                "title": title if isinstance(title, str) else path.stem,
                "written_unix_s": round(state.st_mtime, 1),
                "size_bytes": state.st_size,
                "rows": _report_rows(beside),
            }
        )
    return sorted(found, key=lambda each: -each["written_unix_s"])


def report(folder: str, name: str) -> bytes:
    """An evaluation's page. Raises NotFound."""
    path = _inside(folder, name)
    if path.suffix != ".html" or not path.is_file() or path.stat().st_size > _LARGEST_BYTES:
        raise NotFound("there is no report of this name", field="name")
    return path.read_bytes()


def comparison(folder: str, acting: str, shadow: str) -> dict[str, Any] | None:
    """What the shadow policy would have gained, by the newest comparison (`adlro compare`); None: there is none.

    Args:
        folder: that has the documents.
        acting: the policy under which the jobs ran.
        shadow: the other one; empty: any.
    """
    root, dated = _root(folder), []
    for path in _entries(root):
        if path.suffix == ".json" and _file(root, path) is not None:
            state = path.stat()
            if state.st_size <= _LARGEST_COMPARISON_BYTES:
                dated.append((state.st_mtime_ns, str(path)))
    for written_ns, name in sorted(dated, reverse=True):
        found = _comparison(name, written_ns)
        for row in found.get("paired", ()):
            if row["policy"] == acting and shadow in ("", row["other"]):
                return {**row, "written_unix_s": round(written_ns / 1e9, 1), "name": Path(name).name}
    return None


@lru_cache(maxsize=64)
def _comparison(name: str, _written_ns: int) -> dict[str, Any]:
    """The pairs of a document of `adlro compare`; empty: it is another one. Read once for each change of the file."""
    document = _json(Path(name))
    pairs, jobs, interval = document.get("paired"), document.get("jobs"), document.get("interval")
    if document.get("schema") != _COMPARISON or not isinstance(pairs, list):
        return {}
    count = jobs.get("measured") if isinstance(jobs, dict) else None
    refused = interval.get("refused") if isinstance(interval, dict) else None
    rows = []
    for each in pairs[:_MOST]:
        if not isinstance(each, dict) or not _finite(each.get("mean_jct_ratio")):
            continue
        bounds = each.get("mean_jct_ratio_ci95")
        known = isinstance(bounds, list) and len(bounds) == 2 and all(_finite(bound) for bound in bounds)
        low, high = (bounds[0] - 1.0, bounds[1] - 1.0) if known and isinstance(bounds, list) else (None, None)
        rows.append(
            {
                "policy": str(each.get("baseline", "")),
                "other": str(each.get("policy", "")),
                "metric": "mean completion time",
                "difference_ratio": each["mean_jct_ratio"] - 1.0,
                "low_ratio": low,
                "high_ratio": high,
                "job_count": count if _finite(count) else None,
                "refused": refused if isinstance(refused, str) else None,
            }
        )
    return {"paired": rows}


def _report_rows(document: dict[str, Any]) -> list[dict[str, Any]]:
    """One row for each figure of _SUMMARY of each row of an evaluation (`adlro evaluate --json`)."""
    rows = document.get("rows")
    found = []
    for each in rows[:_MOST] if isinstance(rows, list) else ():
        if not isinstance(each, dict):
            continue
        case = {key: each.get(key) for key in ("policy", "scenario", "load")}
        for metric in _SUMMARY:
            interval = each.get(f"{metric}_ci95")
            if isinstance(each.get(metric), int | float) and isinstance(interval, list) and len(interval) == 2:
                low, high = interval
                found.append({**case, "metric": metric, "mean": each[metric], "low": low, "high": high})
    return found


def _root(folder: str) -> Path | None:
    return Path(folder).resolve() if folder else None


def _entries(root: Path | None) -> list[Path]:
    """What lies in a folder."""
    try:
        entries = [] if root is None else sorted(root.iterdir())
    except OSError:
        return []
    named = [each for each in entries if _NAME.fullmatch(each.name)][:_MOST]
    return [each for each in named if root is not None and _leads_inside(root, each)]


def _inside(folder: str, name: str) -> Path:
    root = _root(folder)
    if root is None or not _NAME.fullmatch(name) or not _leads_inside(root, root / name):
        raise NotFound("there is nothing of this name", field="name")
    return (root / name).resolve()


def _file(root: Path | None, path: Path) -> Path | None:
    """A file that may be read; None: there is none, or it lies outside the folder."""
    try:
        return path if root is not None and path.is_file() and _leads_inside(root, path) else None
    except OSError:
        return None


def _leads_inside(root: Path, path: Path) -> bool:
    try:
        return path.resolve().is_relative_to(root)
    except (OSError, RuntimeError):  # links in a circle
        return False


@lru_cache(maxsize=_MOST)
def _summary(curve: Path, _written_ns: int, _size: int) -> tuple[int, tuple[tuple[str, float], ...]]:
    """Number of rows of a curve, and the figures of the last one. Read once for each change of the file."""
    rows = _rows(curve)
    last = rows[-1] if rows else {}
    return len(rows), tuple((key, value) for key, value in last.items() if _finite(value))


def _rows(curve: Path) -> list[dict[str, Any]]:
    """The rows of a curve; the last may be half written."""
    found = []
    try:
        if curve.stat().st_size > _LARGEST_BYTES:
            return []
        lines = curve.read_text("utf-8", "replace").splitlines()
    except OSError:
        return []
    for line in lines:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            found.append(row)
    return found


def _json(path: Path | None) -> dict[str, Any]:
    """A document of a file; empty: there is none."""
    if path is None:
        return {}
    try:
        found = json.loads(path.read_text("utf-8")) if path.stat().st_size <= _LARGEST_BYTES else {}
        return _plain(found) if isinstance(found, dict) else {}
    except (OSError, ValueError, RecursionError):
        return {}


def _plain(value: Any) -> Any:
    """A document without the numbers that JSON does not have."""
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _finite(value: Any) -> bool:
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # a whole number of hundreds of digits
        return False
