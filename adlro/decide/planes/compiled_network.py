"""The Q network for one decision, compiled: for few GPUs a quarter of the time of ONNX Runtime.

Each of sixty small operations costs ONNX Runtime 2 us. The layers are those of `learn.network.PairNetwork`, with the
same weights, which an ONNX file also has in its metadata for this. ONNX Runtime is the reference: `planes.model` uses
this module only if both give the same results, and runs batches and large decisions there. numpy and numba only.
"""

from __future__ import annotations

import base64
import functools
import io
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from adlro.decide.looked import as_type
from adlro.decide.planes.layout import Float32s, Planes
from adlro.decide.planes.table import BASE_CHOICE, CLUSTER_PLANES, GPU_PLANES, JOB_PLANES, PAIR_PLANES
from adlro.numeric.compiled import compiled, compiled_part, fixed
from adlro.state.observation import Bools, Ints

WEIGHTS_KEY = "adlro.weights"
"""Key of the weights in an ONNX file's metadata."""

MOST_COMPILED = 256
"""Largest number of pairs, plus twice the GPUs: ONNX Runtime multiplies larger matrices as fast, or faster."""

_ZERO = np.float32(0.0)


class _Layers(NamedTuple):
    """The start of each layer in one vector of all weights: its matrix, a row for each input, and then its bias.

    The names are the network's. A layer without a bias has zeros there.
    """

    gpu_in: int
    gpu_mix: int
    node_mix: int
    job_in: int
    context: int
    of_pair: int
    of_job: int
    of_gpu: int
    of_cluster: int
    of_base: int
    second: int
    advantage: int
    state: int
    hold: int
    value: int


class _Sizes(NamedTuple):
    """Lengths of vectors: features of a GPU or job, the first fully connected layer, and the second."""

    channels: int
    hidden: int
    hidden2: int


class _Room(NamedTuple):
    """Scratch of one call: C channels, H hidden, H2 of the second layer.

    Attributes:
        of_jobs: (W, C) features of the window's jobs.
        matrix: (M x S, C) of the GPUs.
        of_gpu: (M x S, H) the GPUs' share in the first fully connected layer, for GPUs with a pair.
        there: (M x S) whether the GPU has a pair, and `of_gpu` is filled.
        hidden: (P, H) of the pairs.
        pooled: (context's inputs).
        wide: (6, width of the widest layer) one vector each.
    """

    of_jobs: Float32s
    matrix: Float32s
    of_gpu: Float32s
    there: Bools
    hidden: Float32s
    pooled: Float32s
    wide: Float32s


def weights_to_text(weights: Mapping[str, Float32s]) -> str:
    """The weights as text for an ONNX file's metadata.

    Args:
        weights: by their names in torch (`gpu_in.weight`).
    """
    buffer = io.BytesIO()
    np.savez(buffer, **{name: np.asarray(value, dtype=np.float32) for name, value in weights.items()})  # type: ignore[arg-type]
    return base64.b64encode(buffer.getvalue()).decode()


def weights_from_text(text: str) -> dict[str, Float32s]:
    """The weights that `weights_to_text` received.

    Raises:
        ValueError: the text can't be read.
    """
    try:
        with np.load(io.BytesIO(base64.b64decode(text, validate=True)), allow_pickle=False) as file:
            return {name: np.asarray(file[name], dtype=np.float32) for name in file.files}
    except Exception as error:  # a damaged file makes numpy raise any kind of error
        raise ValueError(f"weights cannot be read: {error}") from error


class CompiledNetwork:
    """Computes Q of one decision; several threads may use it at a time.

    Args:
        text: from `weights_to_text`.

    Raises:
        ValueError: the text can't be read, or the weights are not those of a network of this form.
    """

    def __init__(self, text: str) -> None:
        self._weights, self._layers, self._sizes = _in_one(weights_from_text(text))
        self._forward = compiled_forward()

    @staticmethod
    def is_for(planes: Planes) -> bool:
        """Whether the planes are of one decision that is small enough (`MOST_COMPILED`)."""
        _, _, nodes, slots = planes.gpus.shape
        return len(planes.base) == 1 and 2 * nodes * slots + len(planes.pairs) <= MOST_COMPILED

    def q(self, planes: Planes) -> tuple[Float32s, Float32s]:
        """(P,) Q of the pairs, (1,) of holding.

        Args:
            planes: of one decision, of any size.

        Raises:
            ValueError: the planes are of more than one decision.
        """
        if len(planes.base) != 1:
            raise ValueError(f"one decision at a time, not {len(planes.base)}")
        sizes, count = self._sizes, len(planes.pairs)
        _, _, nodes, slots = planes.gpus.shape
        room = _Room(
            of_jobs=np.empty((planes.jobs.shape[1], sizes.channels), dtype=np.float32),
            matrix=np.empty((nodes * slots, sizes.channels), dtype=np.float32),
            of_gpu=np.empty((nodes * slots, sizes.hidden), dtype=np.float32),
            there=np.zeros(nodes * slots, dtype=np.bool_),
            hidden=np.empty((count, sizes.hidden), dtype=np.float32),
            pooled=np.zeros(len(CLUSTER_PLANES) + 4 * sizes.channels, dtype=np.float32),
            wide=np.empty((6, max(*sizes, len(GPU_PLANES))), dtype=np.float32),
        )
        q_pairs, q_hold = np.empty(count, dtype=np.float32), np.empty(1, dtype=np.float32)
        self._forward(
            self._weights,
            self._layers,
            sizes,
            as_type(planes.gpus, np.float32),
            as_type(planes.jobs, np.float32),
            as_type(planes.cluster, np.float32),
            as_type(planes.pairs, np.float32),
            as_type(planes.pair_job, np.int64),
            as_type(planes.pair_place, np.int64),
            room,
            q_pairs,
            q_hold,
        )
        return q_pairs, q_hold


@functools.cache
def compiled_forward() -> Callable[..., None]:
    """The compiled function, compiled now or loaded from numba's cache."""
    one, two, three, four = (np.zeros((0,) * axes, dtype=np.float32) for axes in (1, 2, 3, 4))
    ints, room = np.zeros(0, dtype=np.int64), _Room(two, two, two, np.zeros(0, dtype=np.bool_), two, one, two)
    layers, sizes = _Layers(*[0] * len(_Layers._fields)), _Sizes(*[0] * len(_Sizes._fields))
    return fixed(_forward, one, layers, sizes, four, three, two, two, ints, ints, room, one, one)


def _in_one(found: Mapping[str, Float32s]) -> tuple[Float32s, _Layers, _Sizes]:
    """All weights in one vector, with checked shapes: compiled code does not check its reads."""
    for name in ("gpu_mix.weight", "of_base.weight", "second.weight"):
        if name not in found or found[name].ndim == 0:
            raise ValueError(f"{name} is missing, or no matrix")
    sizes = _Sizes(len(found["gpu_mix.weight"]), len(found["of_base.weight"]), len(found["second.weight"]))
    channels, hidden, hidden2 = sizes
    inputs_and_outputs = {
        "gpu_in": (len(GPU_PLANES), channels),
        "gpu_mix": (channels, channels),
        "node_mix": (channels, channels),
        "job_in": (len(JOB_PLANES), channels),
        "context": (len(CLUSTER_PLANES) + 4 * channels, hidden),
        "of_pair": (len(PAIR_PLANES), hidden),
        "of_job": (channels, hidden),
        "of_gpu": (channels, hidden),
        "of_cluster": (hidden, hidden),
        "of_base": (hidden, hidden),
        "second": (hidden, hidden2),
        "advantage": (hidden2, 1),
        "state": (hidden, hidden2),
        "hold": (hidden2, 1),
        "value": (hidden2, 1),
    }
    biased = {"gpu_mix", "context", "of_pair", "of_base", "second", "advantage", "state", "hold", "value"}
    wanted = {f"{name}.weight" for name in inputs_and_outputs} | {f"{name}.bias" for name in biased}
    if set(found) != wanted:
        raise ValueError(f"{', '.join(sorted(set(found) ^ wanted))}: missing, or not known")
    parts: list[Float32s] = []
    begins: dict[str, int] = {}
    for name in _Layers._fields:
        inputs, outputs = inputs_and_outputs[name]
        matrix, bias = found[f"{name}.weight"], found.get(f"{name}.bias", np.zeros(outputs, dtype=np.float32))
        if matrix.shape[:1] != (outputs,) or matrix.size != inputs * outputs or bias.shape != (outputs,):
            raise ValueError(f"{name} has the shape {matrix.shape} and {bias.shape}, not ({outputs}, {inputs})")
        begins[name] = sum(len(part) for part in parts)
        parts += [matrix.reshape(outputs, inputs).T.ravel(), bias]
    return np.concatenate(parts), _Layers(**begins), sizes


# The layers are no `compiled_part`s: those are copied into each place of a call, which took twice as long to compile,
# and is no faster.


@compiled
def _add_product(values: Float32s, weights: Float32s, begin: int, inputs: int, outputs: int, total: Float32s) -> None:
    """Adds a layer's products, without its bias, to a vector.

    Four inputs at a time: the vector is read and written a quarter as often.
    """
    whole = inputs - inputs % 4
    for i in range(0, whole, 4):
        # Views: with negative indices allowed, compiled code checks the sign of each index.
        first = weights[begin + i * outputs :]
        second = weights[begin + (i + 1) * outputs :]
        third = weights[begin + (i + 2) * outputs :]
        fourth = weights[begin + (i + 3) * outputs :]
        for j in range(outputs):
            total[j] += (
                values[i] * first[j] + values[i + 1] * second[j] + values[i + 2] * third[j] + values[i + 3] * fourth[j]
            )
    for i in range(whole, inputs):
        row = weights[begin + i * outputs :]
        for j in range(outputs):
            total[j] += values[i] * row[j]


@compiled
def _dense(values: Float32s, weights: Float32s, begin: int, inputs: int, outputs: int, total: Float32s) -> None:
    """A layer's products and its bias."""
    bias = weights[begin + inputs * outputs :]
    for j in range(outputs):
        total[j] = bias[j]
    _add_product(values, weights, begin, inputs, outputs, total)


@compiled_part
def _positive(value: np.float32) -> np.float32:
    """The value, or 0 if it is negative. nan stays nan, so that the caller notices it."""
    return _ZERO if value < _ZERO else value


@compiled
def _relu(values: Float32s, count: int) -> None:
    for j in range(count):
        values[j] = _positive(values[j])


@compiled_part
def _pool(values: Float32s, count: int, pooled: Float32s, begin: int) -> None:
    """Adds values from 0 to a sum, and to a maximum after it."""
    for j in range(count):
        pooled[begin + j] += values[j]
        pooled[begin + count + j] = max(pooled[begin + count + j], values[j])


@compiled_part
def _mean(pooled: Float32s, begin: int, count: int, there: float) -> None:
    divisor = np.float32(max(there, 1.0))
    for j in range(count):
        pooled[begin + j] /= divisor


@compiled
def _look_at_jobs(weights: Float32s, layers: _Layers, sizes: _Sizes, jobs: Float32s, room: _Room, begin: int) -> None:
    """Fills in `of_jobs`, and their mean and maximum in `pooled`."""
    channels, there = sizes.channels, 0.0
    for w in range(jobs.shape[0]):
        if jobs[w, 0] == _ZERO:
            continue  # padding, without pairs
        there += jobs[w, 0]
        _dense(jobs[w], weights, layers.job_in, jobs.shape[1], channels, room.of_jobs[w])
        _relu(room.of_jobs[w], channels)
        _pool(room.of_jobs[w], channels, room.pooled, begin)
    _mean(room.pooled, begin, channels, there)


@compiled
def _look_at_gpus(weights: Float32s, layers: _Layers, sizes: _Sizes, gpus: Float32s, room: _Room, begin: int) -> None:
    """Fills in `matrix`, and its mean and maximum in `pooled`."""
    planes, nodes, slots = gpus.shape
    channels, there = sizes.channels, 0.0
    seen, node, of_node, mixed = room.wide[0], room.wide[1], room.wide[2], room.wide[3]
    for m in range(nodes):
        for j in range(channels):
            node[j] = _ZERO
        for s in range(slots):
            for plane in range(planes):
                seen[plane] = gpus[plane, m, s]
            first = room.matrix[m * slots + s]
            _dense(seen, weights, layers.gpu_in, planes, channels, first)
            _relu(first, channels)
            for j in range(channels):
                node[j] = max(node[j], first[j])
        _dense(node, weights, layers.node_mix, channels, channels, of_node)
        for s in range(slots):
            present, matrix = gpus[0, m, s], room.matrix[m * slots + s]
            there += present
            _dense(matrix, weights, layers.gpu_mix, channels, channels, mixed)
            for j in range(channels):
                mixed[j] += of_node[j]
            _relu(mixed, channels)
            for j in range(channels):
                matrix[j] = mixed[j] * present
            _pool(matrix, channels, room.pooled, begin)
    _mean(room.pooled, begin, channels, there)


@compiled
def _forward(
    weights: Float32s,
    layers: _Layers,
    sizes: _Sizes,
    gpus: Float32s,
    jobs: Float32s,
    cluster: Float32s,
    pairs: Float32s,
    pair_job: Ints,
    pair_place: Ints,
    room: _Room,
    q_pairs: Float32s,
    q_hold: Float32s,
) -> None:
    """Fills in Q. The last argument of each layer is the vector for its outputs."""
    channels, hidden, hidden2 = sizes.channels, sizes.hidden, sizes.hidden2
    known, kinds = cluster.shape[1], pairs.shape[1]
    for j in range(known):
        room.pooled[j] = cluster[0, j]
    _look_at_jobs(weights, layers, sizes, jobs[0], room, known)
    _look_at_gpus(weights, layers, sizes, gpus[0], room, known + 2 * channels)
    context, of_job, chosen = room.wide[0], room.wide[1], room.wide[2]
    base, shared, second = room.wide[3], room.wide[4], room.wide[5]
    _dense(room.pooled, weights, layers.context, known + 4 * channels, hidden, context)
    _relu(context, hidden)
    for j in range(hidden):
        chosen[j] = _ZERO
    before = -1
    for pair in range(pairs.shape[0]):
        of_pair = room.hidden[pair]
        if pair_job[pair] != before:  # pairs of a job are consecutive
            before = pair_job[pair]
            _dense(room.of_jobs[before], weights, layers.of_job, channels, hidden, of_job)
        _dense(pairs[pair], weights, layers.of_pair, kinds, hidden, of_pair)
        place = pair_place[pair]
        of_gpu = room.of_gpu[place]
        if not room.there[place]:
            room.there[place] = True
            _dense(room.matrix[place], weights, layers.of_gpu, channels, hidden, of_gpu)
        is_base = pairs[pair, BASE_CHOICE]
        for j in range(hidden):
            of_pair[j] += of_job[j] + of_gpu[j]
            chosen[j] += is_base * _positive(of_pair[j])
    _dense(chosen, weights, layers.of_base, hidden, hidden, base)
    _dense(context, weights, layers.of_cluster, hidden, hidden, shared)
    for j in range(hidden):
        shared[j] += base[j]
        context[j] += _positive(base[j])
    _dense(context, weights, layers.state, hidden, hidden2, second)
    _relu(second, hidden2)
    outcome = room.wide[1]
    _dense(second, weights, layers.value, hidden2, 1, outcome)
    value = outcome[0]
    _dense(second, weights, layers.hold, hidden2, 1, outcome)
    q_hold[0] = outcome[0] + value
    for pair in range(pairs.shape[0]):
        of_pair = room.hidden[pair]
        for j in range(hidden):
            of_pair[j] += shared[j]
        _relu(of_pair, hidden)
        _dense(of_pair, weights, layers.second, hidden, hidden2, second)
        _relu(second, hidden2)
        _dense(second, weights, layers.advantage, hidden2, 1, outcome)
        q_pairs[pair] = outcome[0] + value
