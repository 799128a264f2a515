"""Networks to ONNX files, which serve, and to torch files, with which training goes on. torch and onnx."""

from __future__ import annotations

import dataclasses
import io
import logging
import os
import warnings
from pathlib import Path

import onnx
import torch

from adlro.decide.planes.compiled_network import WEIGHTS_KEY, weights_from_text, weights_to_text
from adlro.decide.planes.model import KEY, MOST_BYTES, ModelMetadata, metadata_from_json
from adlro.decide.planes.session import INPUTS, OUTPUTS
from adlro.decide.planes.table import CLUSTER_PLANES, GPU_PLANES, JOB_PLANES, PAIR_PLANES
from adlro.errors import InvalidInput
from adlro.lab.learn.network import PairNetwork
from adlro.lab.learn.sizes import NetworkSettings

_AUTO = torch.export.Dim.AUTO


def to_onnx(network: PairNetwork, metadata: ModelMetadata) -> bytes:
    """A network as an ONNX file, whose numbers of clusters, nodes, slots, jobs and pairs are open.

    Raises:
        InvalidInput: it would be larger than 2 MB.
    """
    network = _on_cpu(network)
    # No length is 1, and no two are the same: the exporter takes such for fixed, or for one.
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
            network,
            arguments,
            dynamo=True,
            input_names=list(INPUTS),
            output_names=list(OUTPUTS),
            dynamic_shapes=shapes,
            verbose=False,
        )
    assert program is not None
    model = program.model_proto
    said = {KEY: metadata.to_json()}
    if network.settings.convolutions:
        said[WEIGHTS_KEY] = weights_to_text({name: value.numpy() for name, value in network.state_dict().items()})
    onnx.helper.set_model_props(model, said)
    content: bytes = model.SerializeToString()
    if len(content) > MOST_BYTES:
        raise InvalidInput(f"the model has {len(content)} bytes; {MOST_BYTES} are the most", field="model")
    return content


def export_onnx(network: PairNetwork, metadata: ModelMetadata, path: Path) -> None:
    """Writes `to_onnx`, whole or not at all: whoever reads the file meanwhile sees the one before."""
    write_whole(path, to_onnx(network, metadata))


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file so that it is never seen in part, whatever happens meanwhile."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with beside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def save_network(network: PairNetwork, metadata: ModelMetadata, path: Path) -> None:
    """Writes weights, sizes, and what goes with them, for training to start from."""
    buffer = io.BytesIO()
    sizes = dataclasses.asdict(network.settings)
    torch.save({"metadata": metadata.to_json(), "settings": sizes, "weights": network.state_dict()}, buffer)
    write_whole(path, buffer.getvalue())


def load_network(path: Path) -> tuple[PairNetwork, ModelMetadata]:
    """A network of `save_network` (.pt), or of a model that serves and has its weights beside its graph (.onnx).

    Raises:
        InvalidInput: no such file, not one of a network, or one that does not go with this code.
    """
    try:
        return _of_onnx(path) if path.suffix == ".onnx" else _of_torch(path)
    except OSError as error:
        raise InvalidInput(f"{path}: {error.strerror}", field="network") from error
    except InvalidInput:
        raise
    except Exception as error:  # a damaged file makes torch and onnx raise whatever their readers stumble over
        raise InvalidInput(f"{path}: not a network of ADLRO ({error})", field="network") from error


def _of_torch(path: Path) -> tuple[PairNetwork, ModelMetadata]:
    state = torch.load(path, weights_only=True, map_location="cpu")
    metadata = metadata_from_json(state["metadata"], str(path))
    network = PairNetwork(NetworkSettings(**state["settings"]))
    network.load_state_dict(state["weights"])
    return network, metadata


def _of_onnx(path: Path) -> tuple[PairNetwork, ModelMetadata]:
    stated = {each.key: each.value for each in onnx.load_model_from_string(path.read_bytes()).metadata_props}
    metadata = metadata_from_json(stated.get(KEY, "{}"), str(path))
    weights = {name: torch.from_numpy(value) for name, value in weights_from_text(stated[WEIGHTS_KEY]).items()}
    sizes = NetworkSettings(
        channels=len(weights["job_in.weight"]),
        hidden=len(weights["context.weight"]),
        hidden2=len(weights["state.weight"]),
    )
    network = PairNetwork(sizes)
    network.load_state_dict(weights)
    return network, metadata


def _on_cpu(network: PairNetwork) -> PairNetwork:
    copy = PairNetwork(network.settings)
    copy.load_state_dict({name: value.cpu() for name, value in network.state_dict().items()})
    return copy.eval()
