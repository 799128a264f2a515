"""The GPU matrix in short: assembled from any stream of messages it is what the service has, to a step of a byte."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest

from adlro.records.matrices import ClusterPlanes, DriftSummary, GpuDrift, MixDrift
from adlro.records.telemetry import Metric
from adlro.v1 import decompose_service_pb2 as pb
from adlro.wire import PlanesAssembly, PlanesNow, VariableValues, planes_to_proto
from adlro.wire.planes import bytes_of, values_of


def drawn(draw: random.Random, gpus: int, revision: int) -> PlanesNow:
    rng = np.random.default_rng(draw.randrange(1 << 30))
    planes = {metric: rng.random(gpus, dtype=np.float32) for metric in Metric}
    for plane in planes.values():
        plane[rng.random(gpus) < 0.1] = np.nan
    numbers = rng.integers(0, 3, gpus).astype(np.uint8)
    return PlanesNow(
        "default",
        revision,
        draw.choice([None, 1000.0 + revision]),
        tuple((f"n{gpu // 4}/{gpu % 4}", f"n{gpu // 4}", draw.choice(["v100", "t4"])) for gpu in range(gpus)),
        planes,
        {"utilization_level": VariableValues(("", "0.00..0.05", "0.95..1.00"), numbers)},
        {gpu: GpuDrift(0.5, False, 0.9, revision) for gpu in range(gpus) if draw.random() < 0.5},
        DriftSummary(MixDrift(0.1), 0, draw.randrange(3), 1.5),
    )


def changed(now: PlanesNow, draw: random.Random) -> PlanesNow:
    """The next state: some parts stay as they were."""
    other = drawn(draw, len(now.gpus), now.revision + 1)
    parts = {
        name: getattr(now, name)
        for name in ("gpus", "variables", "drifts", "summary")
        if name == "gpus" or draw.random() < 0.5
    }
    return replace(other, **parts)


def expected(now: PlanesNow) -> ClusterPlanes:
    return ClusterPlanes(
        now.cluster,
        now.gpus,
        {},
        {name: tuple(each.values[number] for number in each.numbers) for name, each in now.variables.items()},
        {now.gpus[number][0]: drift for number, drift in now.drifts.items()},
        now.summary,
        now.newest_sample_unix_s,
        now.revision,
    )


def without_unknown_drifts(planes: ClusterPlanes) -> ClusterPlanes:
    return replace(planes, planes={}, drifts={gpu_id: each for gpu_id, each in planes.drifts.items() if each.job_count})


@pytest.mark.parametrize("seed", range(20))
def test_any_stream_of_whole_and_changed_messages_gives_the_newest_state(seed: int) -> None:
    draw = random.Random(seed)
    now, assembly, before = drawn(draw, 20, 1), PlanesAssembly(), None
    for _ in range(20):
        message = pb.ClusterPlanes.FromString(planes_to_proto(now, before).SerializeToString())
        assert message.HasField("gpus") == (before is None or before.gpus != now.gpus)
        told = assembly.add(message)
        assert without_unknown_drifts(told) == expected(now)
        for metric, plane in now.normalized.items():
            np.testing.assert_allclose(told.planes[metric], plane, atol=0.5 / 254 + 1e-6)
        lost = draw.random() < 0.1  # a slow watcher: the next message is whole
        cluster_changed = draw.random() < 0.1
        before = None if lost else now
        now = drawn(draw, 12, now.revision + 1) if cluster_changed else changed(now, draw)


def test_a_byte_is_a_254th_and_255_is_not_reported() -> None:
    values = np.array([0.0, 1.0, 0.5, math.nan, 1.5, -0.5, 1 / 254], dtype=np.float32)
    assert list(bytes_of(values)) == [0, 254, 127, 255, 254, 0, 1]
    np.testing.assert_array_equal(np.isnan(values_of(bytes_of(values))), np.isnan(values))


def test_what_has_not_changed_is_left_out_and_a_message_for_many_gpus_is_small() -> None:
    now = drawn(random.Random(1), 1024, 1)
    whole = planes_to_proto(now).SerializeToString()
    nothing = planes_to_proto(replace(now, revision=2), now)
    assert not nothing.variables
    assert not nothing.drifts
    assert not nothing.HasField("drift_summary")
    assert not nothing.HasField("gpus")
    assert len(nothing.SerializeToString()) < 5_300 < len(whole)


def test_messages_that_do_not_fit_are_refused() -> None:
    now = drawn(random.Random(2), 4, 1)
    with pytest.raises(ValueError, match="name no GPUs"):
        PlanesAssembly().add(planes_to_proto(now, now))
    message = planes_to_proto(now)
    message.planes[0].normalized_u8 = b"12345"
    with pytest.raises(ValueError, match="5 bytes for 4 GPUs"):
        PlanesAssembly().add(message)
