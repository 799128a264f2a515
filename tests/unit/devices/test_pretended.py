"""GPUs that are not there."""

from __future__ import annotations

import pytest

from adlro.devices.pretended import parse_fake_gpus
from adlro.devices.records import Vendor
from adlro.errors import InvalidInput


def test_models_with_their_numbers():
    devices = parse_fake_gpus("v100_sxm2:2, rtx_2080_ti")
    assert [(each.uuid, each.gpu_model, each.memory_mib, each.node) for each in devices] == [
        ("FAKE-0", "v100_sxm2", 16384, ""),
        ("FAKE-1", "v100_sxm2", 16384, ""),
        ("FAKE-2", "rtx_2080_ti", 11264, ""),
    ]
    assert {each.vendor for each in devices} == {Vendor.PRETENDED}
    assert all(each.figures is not None and each.device_files == () for each in devices)


def test_models_by_node():
    devices = parse_fake_gpus("a=v100_sxm2:2,b=rtx_2080_ti:1,a=t4:1")
    assert [(each.uuid, each.node, each.gpu_model) for each in devices] == [
        ("FAKE-a-0", "a", "v100_sxm2"),
        ("FAKE-a-1", "a", "v100_sxm2"),
        ("FAKE-b-2", "b", "rtx_2080_ti"),
        ("FAKE-a-3", "a", "t4"),
    ]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "names no GPU"),
        (" ", "names no GPU"),
        ("v100_sxm2:2,", "'' must be MODEL:NUMBER"),
        ("v100_sxm2:two", "'v100_sxm2:two' must be MODEL:NUMBER"),
        ("v100_sxm2:2:2", "must be MODEL:NUMBER"),
        ("v100_sxm2:0", "makes 0 GPUs; give 1 to 256"),
        ("v100_sxm2:200,t4:57", "makes 257 GPUs"),
        ("v100_sxm2:999999999", "must be MODEL:NUMBER"),
        ("a=v100_sxm2:2,t4:1", "every model a node's name"),
        ("t4:1,a=v100_sxm2:2", "every model a node's name"),
        ("=t4:1", "must be MODEL:NUMBER"),
        ("-a=t4:1", "'-a' can't name a node"),
        ("a/b=t4:1", "'a/b' can't name a node"),
        ("a100:1", "use one of a100_"),
        ("v100_sxm2 :2, v1000:1", "'v1000' is not a known GPU model; use one of v100"),
    ],
)
def test_what_can_t_be_read_is_refused_with_what_would_be_right(text, complaint):
    with pytest.raises(InvalidInput) as refused:
        parse_fake_gpus(text)
    assert complaint in refused.value.message
    assert refused.value.field == "--fake-gpus"
    assert refused.value.message.startswith("--fake-gpus: ")
