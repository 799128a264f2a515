"""Clusters described in TOML: `name`, `[[nodes]]`, and `[[speeds]]` for GPUs or applications of one's own.

    name = "lab"

    [[nodes]]
    name = "a100-0"
    gpu_model = "a100"
    gpus = 4
    gpu_memory_mib = 40960
    cpu_cores = 64
    memory_mib = 524288
    # may be left out: interconnect, interconnect_bandwidth_gb_per_s, and, for telemetry of models that ADLRO does not
    # know, memory_bandwidth_gb_per_s, power_limit_w, max_temperature_c

    [[speeds]] # 1 is the reference GPU, v100_sxm2: a job's duration is its work divided by this
    application = "resnet50_fp16"
    job_type = "machine_learning"
    a100 = 2.1
    source = "our own runs, March 2026"

An application without a row on a GPU model has the mean speed of its job type's rows (`adlro.hardware.speeds`). Every
error names file, key and, if possible, line. Plain records only.
"""

from __future__ import annotations

import dataclasses
import math
import re
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NoReturn

from adlro.errors import InvalidInput
from adlro.hardware.speeds import SHIPPED, SpeedRow, SpeedTable
from adlro.records.cluster import Cluster, Gpu, GpuSpec, Node
from adlro.records.jobs import KINDS_OF_WORK

NODE_KEYS = ("name", "gpu_model", "gpus", "gpu_memory_mib", "cpu_cores", "memory_mib")
OPTIONAL_NODE_KEYS = ("interconnect", "interconnect_bandwidth_gb_per_s")
SPEC_KEYS = tuple(field.name for field in dataclasses.fields(GpuSpec))
SPEED_KEYS = ("application", "job_type", "source")
MOST_GPUS = 1024
"""On one node."""
SLOWEST, FASTEST = 1e-4, 1e4
"""Speeds relative to the reference GPU; a figure beyond these is a typing error, and times would exceed a float."""


def read_cluster(path: str | Path) -> Cluster:
    """The cluster of a file.

    Raises:
        InvalidInput: names file, key and line: not TOML, a missing, unknown or invalid key, a node's name used twice, a
            GPU model without speeds.
    """
    return read_cluster_file(path)[0]


def read_speeds(path: str | Path) -> SpeedTable:
    """The included tables with the file's own `[[speeds]]`, which replace them.

    Raises:
        InvalidInput: as for `read_cluster`.
    """
    return read_cluster_file(path)[1]


def read_cluster_file(path: str | Path) -> tuple[Cluster, SpeedTable]:
    """Cluster and speeds of a file.

    Raises:
        InvalidInput: as for `read_cluster`.
    """
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
        table = tomllib.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path}: cannot be read: {error}") from None
    except (ValueError, RecursionError) as error:  # ValueError: also for numbers with thousands of digits
        raise InvalidInput(f"{path}: is not TOML: {error}") from None
    return clusters_of_table(table, str(path), text)


def clusters_of_table(table: Mapping[str, Any], where: str, text: str = "") -> tuple[Cluster, SpeedTable]:
    """Cluster and speeds of a parsed table.

    Args:
        table: has `name`, `nodes` and `speeds`.
        where: the file's name.
        text: the file's text, to find lines in.

    Raises:
        InvalidInput: as for `read_cluster`.
    """
    top = _Fields(table, "", where, text)
    top.refuse_unknown(("name", "nodes", "speeds"))
    nodes = tuple(_node(fields) for fields in top.tables("nodes", least=1))
    names = [node.node_id for node in nodes]
    for i, name in enumerate(names):
        if name in names[:i]:
            top.tables("nodes")[i].refuse("name", f"'{name}' is used twice")
    cluster = Cluster(name=top.text("name", default="default"), nodes=nodes)
    own_models = [model for model in cluster.gpu_models if model not in SHIPPED.gpu_models]
    rows: dict[str, SpeedRow] = {}
    for fields in top.tables("speeds"):
        row = _speed_row(fields, own_models)
        if row.application in rows:
            fields.refuse("application", f"'{row.application}' has a row already")
        rows[row.application] = row
    speeds = SHIPPED.extended(tuple(rows.values())) if rows else SHIPPED
    for fields, node in zip(top.tables("nodes"), nodes, strict=True):
        model = node.gpus[0].gpu_model
        if model not in speeds.gpu_models:
            fields.refuse(
                "gpu_model",
                f"no speeds are known for GPU model '{model}'; use one of {', '.join(SHIPPED.gpu_models)}, or add "
                "its speeds in [[speeds]] tables",
                reason="UNKNOWN_GPU_MODEL",
            )
    return cluster, speeds


def _node(fields: _Fields) -> Node:
    fields.refuse_unknown((*NODE_KEYS, *OPTIONAL_NODE_KEYS, *SPEC_KEYS))
    name = fields.text("name")
    spec = None
    if any(fields.has(key) for key in SPEC_KEYS):
        spec = GpuSpec(**{key: fields.number(key, positive=True) for key in SPEC_KEYS})
    gpu = Gpu(
        gpu_id="",
        gpu_model=fields.text("gpu_model"),
        memory_mib=fields.whole("gpu_memory_mib"),
        interconnect_bandwidth_gb_per_s=fields.number("interconnect_bandwidth_gb_per_s", default=0.0),
        interconnect=fields.text("interconnect", default=""),
        spec=spec,
    )
    return Node(
        node_id=name,
        cpu_cores=fields.whole("cpu_cores"),
        memory_mib=fields.whole("memory_mib"),
        gpus=tuple(dataclasses.replace(gpu, gpu_id=f"{name}/{i}") for i in range(fields.whole("gpus", most=MOST_GPUS))),
    )


def _speed_row(fields: _Fields, own_models: Collection[str]) -> SpeedRow:
    allowed = tuple(dict.fromkeys([*own_models, *SHIPPED.gpu_models]))
    fields.refuse_unknown((*SPEED_KEYS, *allowed))
    labels = {job_type.label: job_type for job_type in KINDS_OF_WORK}
    label = fields.text("job_type")
    if label not in labels:
        fields.refuse("job_type", f"must be one of {', '.join(labels)}, not '{label}'")
    # A model that no table lists must have a figure in every row: a mean of the other rows would be a guess.
    given = [model for model in allowed if fields.has(model) or model in own_models]
    if not given:
        fields.refuse("application", "the row gives no speed on any GPU model")
    return SpeedRow(
        application=fields.text("application"),
        job_type=labels[label],
        speeds={model: fields.speed(model) for model in given},
        source=fields.text("source", default=""),
    )


class _Fields:
    """The keys of one table; every error names file, key and line."""

    def __init__(self, table: Mapping[str, Any], prefix: str, where: str, text: str) -> None:
        self._table = table
        self._prefix = prefix
        self._where = where
        self._text = text

    def has(self, key: str) -> bool:
        return key in self._table

    def refuse(self, key: str, complaint: str, *, reason: str = "") -> NoReturn:
        field = self._prefix + key
        line = _line_of(self._text, self._prefix, key)
        at = f" (line {line})" if line else ""
        raise InvalidInput(f"{self._where}: {field}: {complaint}{at}", field=field, reason=reason)

    def refuse_unknown(self, known: Collection[str]) -> None:
        for key in self._table:
            if key not in known:
                self.refuse(key, f"is an unknown key; known are {', '.join(known)}")

    def _refuse_value(self, key: str, wanted: str) -> NoReturn:
        given = f"not {self._table[key]!r}" if key in self._table else "and is missing"
        self.refuse(key, f"must be {wanted}, {given}")

    def tables(self, key: str, least: int = 0) -> list[_Fields]:
        value = self._table.get(key, [])
        if not isinstance(value, list) or len(value) < least:
            self.refuse(key, f"needs at least one [[{key}]] table" if least else f"must be [[{key}]] tables")
        for i, each in enumerate(value):
            if not isinstance(each, dict):
                self.refuse(f"{key}[{i}]", "must be a table")
        return [_Fields(each, f"{key}[{i}].", self._where, self._text) for i, each in enumerate(value)]

    def text(self, key: str, default: str | None = None) -> str:
        value = self._table.get(key, default)
        if not isinstance(value, str) or not (value or default == ""):
            self._refuse_value(key, "a name in quotes")
        return value

    def whole(self, key: str, most: int = 2**31 - 1) -> int:
        value = self._table.get(key)
        if type(value) is not int or value <= 0:
            self._refuse_value(key, "a whole number above 0")
        if value > most:
            self._refuse_value(key, f"at most {most}")
        return value

    def number(self, key: str, *, positive: bool = False, default: float | None = None) -> float:
        value = self._table.get(key, default)
        # TOML has nan and inf; `0 <= nan` is false.
        good = type(value) in (int, float) and 0 <= value < math.inf and not (positive and value == 0)
        if not good:
            self._refuse_value(key, "a number above 0" if positive else "a number from 0")
        try:
            return float(value)
        except OverflowError:
            self._refuse_value(key, "a number that a float can hold")

    def speed(self, key: str) -> float:
        value = self.number(key, positive=True)
        if not SLOWEST <= value <= FASTEST:
            self._refuse_value(key, f"from {SLOWEST:g} to {FASTEST:g} (1: the reference GPU)")
        return value


def _line_of(text: str, prefix: str, key: str) -> int | None:
    """The line of `key`, or of the `[[table]]` that lacks it; None if the file has another notation."""
    array = re.fullmatch(r"(\w+)\[(\d+)\]\.", prefix)
    header = None
    seen = -1
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if stripped.startswith("["):
            if header is not None:
                return header
            if array is None:
                return None
            if re.match(rf"\[\[\s*{array[1]}\s*\]\]", stripped):
                seen += 1
                header = number if seen == int(array[2]) else None
        elif (header is not None or array is None) and re.match(rf"[\"']?{re.escape(key)}[\"']?\s*=", stripped):
            return number
    return header
