"""Networks to ONNX files, for service, and to torch files, for further training. torch and onnx."""

from __future__ import annotations

import dataclasses
import functools
import io
import logging
import os
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import torch
from numpy.typing import NDArray

from adlro.decide.planes.compiled_network import WEIGHTS_KEY, weights_from_text, weights_to_text
from adlro.decide.planes.model import KEY, MOST_BYTES, ModelMetadata, metadata_from_json
from adlro.decide.planes.session import INPUTS, OUTPUTS
from adlro.decide.planes.table import CLUSTER_PLANES, GPU_PLANES, JOB_PLANES, PAIR_PLANES
from adlro.errors import InvalidInput
from adlro.lab.learn.network import PairNetwork
from adlro.lab.learn.sizes import NetworkSettings

_AUTO = torch.export.Dim.AUTO


def to_onnx(network: PairNetwork, metadata: ModelMetadata) -> bytes:
    """A network as an ONNX file, with variable numbers of clusters, nodes, slots, jobs and pairs.

    Raises:
        InvalidInput: it would be larger than 2 MB.
    """
    weights = {name: value.cpu().numpy() for name, value in network.state_dict().items()}
    template = _template(network.settings)
    model = onnx.ModelProto()
    model.CopyFrom(template.model)
    for initializer in model.graph.initializer:
        source = template.source_of.get(initializer.name)
        if source is not None:
            stored = _stored(weights[source.weight], tuple(initializer.dims), source.transposed)
            initializer.CopyFrom(onnx.numpy_helper.from_array(np.ascontiguousarray(stored), initializer.name))
    said = {KEY: metadata.to_json()}
    if network.settings.convolutions:
        said[WEIGHTS_KEY] = weights_to_text(weights)
    onnx.helper.set_model_props(model, said)
    content: bytes = model.SerializeToString()
    if len(content) > MOST_BYTES:
        raise InvalidInput(f"the model has {len(content)} bytes; {MOST_BYTES} are the most", field="model")
    return content


class _Source(NamedTuple):
    """The source of a constant of the graph: a weight of the network, unchanged or transposed."""

    weight: str
    transposed: bool


class _Template(NamedTuple):
    """The common graph of all networks of one size: they differ only in the constants from weights."""

    model: onnx.ModelProto
    source_of: dict[str, _Source]


@functools.cache
def _template(settings: NetworkSettings) -> _Template:
    """Cached: torch takes seconds to create a graph, and a training writes hundreds of networks of one size."""
    network = PairNetwork(settings)
    with torch.no_grad():
        # The exporter stores equal constants once: so all values differ here, and none is a constant of the graph.
        for number, weight in enumerate(network.parameters()):
            weight.copy_(number + 0.375 + torch.arange(weight.numel()).reshape(weight.shape) / (2 * weight.numel()))
    model = _graph_of(network)
    weights = {name: value.numpy() for name, value in network.state_dict().items()}
    source_of = {
        initializer.name: found
        for initializer in model.graph.initializer
        if (found := _source_of(onnx.numpy_helper.to_array(initializer), weights)) is not None
    }
    lengths = {each.name: onnx.numpy_helper.to_array(each).size for each in model.graph.initializer}
    floats = {each.name for each in model.graph.initializer if each.data_type == onnx.TensorProto.FLOAT}
    unknown = {name for name in floats - source_of.keys() if lengths[name] > 1}
    assert not unknown, f"constants of the graph that are no weights: {', '.join(sorted(unknown))}"
    return _Template(model, source_of)


def _source_of(constant: NDArray[Any], weights: dict[str, NDArray[Any]]) -> _Source | None:
    for name, value in weights.items():
        for transposed in (False, True):
            same_size = constant.dtype == value.dtype and constant.size == value.size
            if same_size and np.array_equal(constant, _stored(value, constant.shape, transposed)):
                return _Source(name, transposed)
    return None


def _stored(weight: NDArray[Any], shape: tuple[int, ...], transposed: bool) -> NDArray[Any]:
    """A weight in the shape of a constant; the graph lacks the lengths of 1 of a convolution of single points."""
    return weight.reshape(shape[::-1]).T if transposed else weight.reshape(shape)


def _graph_of(network: PairNetwork) -> onnx.ModelProto:
    # No length is 1, and all differ: the exporter would take such lengths for fixed, or for one.
    count, window, nodes, slots, pairs = 2, 5, 3, 4, 7
    arguments = (
        torch.rand(count, len(GPU_PLANES), nodes, slots),
        torch.rand(count, window, len(JOB_PLANES)),
        torch.rand(count, len(CLUSTER_PLANES)),
        torch.rand(pairs, len(PAIR_PLANES)),
        torch.arange(pairs) % count,
        torch.arange(pairs),
        torch.arange(pairs),
    )
    shapes = (
        {0: _AUTO, 2: _AUTO, 3: _AUTO},
        {0: _AUTO, 1: _AUTO},
        {0: _AUTO},
        {0: _AUTO},
        {0: _AUTO},
        {0: _AUTO},
        {0: _AUTO},
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        program = torch.onnx.export(
            network.eval(),
            arguments,
            dynamo=True,
            input_names=list(INPUTS),
            output_names=list(OUTPUTS),
            dynamic_shapes=shapes,
            verbose=False,
        )
    assert program is not None
    return program.model_proto


def export_onnx(network: PairNetwork, metadata: ModelMetadata, path: Path) -> None:
    """Writes `to_onnx` as a whole or not at all: a concurrent reader gets the previous file."""
    write_whole(path, to_onnx(network, metadata))


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file so that no reader ever gets a part of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with beside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def save_network(network: PairNetwork, metadata: ModelMetadata, path: Path) -> None:
    """Writes weights, sizes, and metadata, for a training to start from."""
    buffer = io.BytesIO()
    sizes = dataclasses.asdict(network.settings)
    torch.save({"metadata": metadata.to_json(), "settings": sizes, "weights": network.state_dict()}, buffer)
    write_whole(path, buffer.getvalue())


def load_network(path: Path) -> tuple[PairNetwork, ModelMetadata]:
    """A network of `save_network` (.pt), or of a served model with its weights beside its graph (.onnx).

    Raises:
        InvalidInput: no such file, not a network's, or of other planes than this code's.
    """
    try:
        return network_of(path.read_bytes(), str(path)) if path.suffix == ".onnx" else _of_torch(path)
    except OSError as error:
        raise InvalidInput(f"{path}: {error.strerror}", field="network") from error
    except InvalidInput:
        raise
    except Exception as error:  # a damaged file makes torch and onnx raise any kind of error
        raise InvalidInput(f"{path}: not a network of ADLRO ({error})", field="network") from error


def _of_torch(path: Path) -> tuple[PairNetwork, ModelMetadata]:
    state = torch.load(path, weights_only=True, map_location="cpu")
    metadata = metadata_from_json(state["metadata"], str(path))
    network = PairNetwork(NetworkSettings(**state["settings"]))
    network.load_state_dict(state["weights"])
    return network, metadata


def network_of(content: bytes, source: str = "the checkpoint") -> tuple[PairNetwork, ModelMetadata]:
    """The network of a served model's content.

    Raises:
        InvalidInput: its weights do not stand beside its graph, or it is of other planes than this code's.
    """
    stated = {each.key: each.value for each in onnx.load_model_from_string(content).metadata_props}
    metadata = metadata_from_json(stated.get(KEY, "{}"), source)
    if WEIGHTS_KEY not in stated:
        raise InvalidInput(f"{source} has no weights beside its graph: it can't be trained further", field="network")
    weights = {name: torch.from_numpy(value) for name, value in weights_from_text(stated[WEIGHTS_KEY]).items()}
    sizes = NetworkSettings(
        channels=len(weights["job_in.weight"]),
        hidden=len(weights["context.weight"]),
        hidden2=len(weights["state.weight"]),
    )
    network = PairNetwork(sizes)
    network.load_state_dict(weights)
    return network, metadata
