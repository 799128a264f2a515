"""Small networks in ONNX files, whose answers a test knows: Q is a weighted sum of planes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from adlro.sim.hold_rule import HoldRule
from services.orchestrator.planes.choice import Margins
from services.orchestrator.planes.model import KEY, ModelMetadata
from services.orchestrator.planes.table import CLUSTER_PLANES, PAIR_PLANES, Plane
from services.orchestrator.policies.hold_greedy import FIXED

RULE: HoldRule = FIXED.rule()
LIKE_THE_BASE = {"base_choice": 100.0}
NO_MARGIN = Margins()
SHORTEST = {"duration": -1.0}


def network(
    pairs: Mapping[str, float] = LIKE_THE_BASE,
    cluster: Mapping[str, float] | None = None,
    hold: float = 0.0,
    margins: Margins = NO_MARGIN,
    **metadata: object,
) -> bytes:
    """A network whose Q of a pair is a weighted sum of its planes, and of holding one of the cluster's, plus `hold`."""
    nodes = [
        helper.make_node("MatMul", ["pairs", "pair_weights"], ["q_pairs"]),
        helper.make_node("MatMul", ["cluster", "cluster_weights"], ["sum"]),
        helper.make_node("Add", ["sum", "bias"], ["q_hold"]),
    ]
    graph = helper.make_graph(
        nodes,
        "q",
        [
            helper.make_tensor_value_info("pairs", TensorProto.FLOAT, ["P", len(PAIR_PLANES)]),
            helper.make_tensor_value_info("cluster", TensorProto.FLOAT, ["N", len(CLUSTER_PLANES)]),
        ],
        [
            helper.make_tensor_value_info("q_pairs", TensorProto.FLOAT, ["P"]),
            helper.make_tensor_value_info("q_hold", TensorProto.FLOAT, ["N"]),
        ],
        [
            numpy_helper.from_array(_weights(PAIR_PLANES, pairs), "pair_weights"),
            numpy_helper.from_array(_weights(CLUSTER_PLANES, cluster or {}), "cluster_weights"),
            numpy_helper.from_array(np.array(hold, dtype=np.float32), "bias"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    said = replace(ModelMetadata(rule=RULE, window=32, margins=margins, recipe="by hand"), **metadata)  # type: ignore[arg-type]
    entry = model.metadata_props.add()
    entry.key, entry.value = KEY, said.to_json()
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


def put(path: Path, content: bytes) -> Path:
    """Brings a file to a path as a checkpoint is brought there: whole."""
    new = path.with_name(f".{path.name}.new")
    new.write_bytes(content)
    os.replace(new, path)
    return path


def _weights(planes: tuple[Plane, ...], given: Mapping[str, float]) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    names = [plane.name for plane in planes]
    assert set(given) <= set(names)
    return np.array([given.get(name, 0.0) for name in names], dtype=np.float32)
