"""Small networks in ONNX files, whose answers a test knows: Q is a weighted sum of planes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from adlro.decide.hold_rule import HoldRule
from adlro.decide.planes.choice import Margins
from adlro.decide.planes.model import KEY, ModelMetadata
from adlro.decide.planes.table import CLUSTER_PLANES, PAIR_PLANES, Plane
from adlro.decide.policies.hold_greedy import FIXED

RULE: HoldRule = FIXED.rule()
LIKE_THE_BASE = {"base_choice": 100.0}
NO_MARGIN = Margins()
SHORTEST = {"duration": -1.0}


def network(
    pairs: Mapping[str, float] = LIKE_THE_BASE,
    cluster: Mapping[str, float] | None = None,
    hold: float = 0.0,
    margins: Margins = NO_MARGIN,
    endless_but_for: Sequence[int] | None = None,
    **metadata: object,
) -> bytes:
    """A network whose Q of a pair is a weighted sum of its planes, and of holding one of the cluster's, plus `hold`.

    With `endless_but_for` it ends for decisions of so many pairs only.
    """
    nodes = [
        helper.make_node("MatMul", ["pairs", "pair_weights"], ["q" if endless_but_for is not None else "q_pairs"]),
        *(_loop("q", "q_pairs", endless_but_for) if endless_but_for is not None else ()),
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


def _loop(value: str, result: str, ends_for: Sequence[int]) -> list[onnx.NodeProto]:
    """Nodes that hand a value on, round and round for ever where `pairs` has another length than these."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["go_on"]), helper.make_node("Identity", ["now"], ["next"])],
        "for ever",
        [
            helper.make_tensor_value_info("turn", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("now", TensorProto.FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, None),
        ],
    )
    counts = helper.make_tensor("counts", TensorProto.INT64, [len(ends_for) + 1], [-1, *ends_for])
    return [
        helper.make_node("Constant", [], ["ends_for"], value=counts),
        helper.make_node("Shape", ["pairs"], ["count"], start=0, end=1),
        helper.make_node("Equal", ["count", "ends_for"], ["alike"]),
        helper.make_node("Cast", ["alike"], ["alike_numbers"], to=TensorProto.INT64),
        helper.make_node("ReduceMax", ["alike_numbers"], ["ends"], keepdims=0),
        helper.make_node("Constant", [], ["zero"], value=helper.make_tensor("none", TensorProto.INT64, [], [0])),
        helper.make_node("Equal", ["ends", "zero"], ["goes_on"]),
        helper.make_node("Loop", ["", "goes_on", value], [result], body=body),
    ]


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
