"""What the engine is asked for: user, limits, GPUs, and nothing that a job must not have."""

from __future__ import annotations

import dataclasses
import json

import pytest

from adlro.attempt.containers.engine import ContainerState, unix_s
from adlro.attempt.containers.keeper import exit_of, lost_with_engine
from adlro.attempt.containers.plan import cdi_knows, container_config, log_config
from adlro.attempt.containers.report import report_of
from adlro.attempt.records import Launch, Limits
from adlro.records.payloads import Container, Payload


def config(cdi: bool = False, **more):
    limits = Limits(memory_mib=64, cpu_cores=0.5, processes=10)
    payload = Payload(container=Container("image:1", ("run", "it"), "/work", shared_memory_mib=8))
    intent = json.loads(json.dumps(Launch(payload, limits=limits, **more).intent("a.1"))) | {"mark": "m" * 32}
    mounts = [{"source": "/data", "target": "/d", "writable": False}]
    return container_config(intent, user=(1000, 1001), groups=[44], environment={"A": "1"}, mounts=mounts, cdi=cdi)


def test_a_container_is_its_users_and_may_nothing_more():
    made = config()
    host = made["HostConfig"]
    assert (made["User"], made["Cmd"], made["WorkingDir"]) == ("1000:1001", ["run", "it"], "/work")
    assert (host["CapDrop"], host["SecurityOpt"], host["Privileged"]) == (["ALL"], ["no-new-privileges"], False)
    assert host["NetworkMode"] == "bridge"
    assert host["Memory"] == host["MemorySwap"] == 64 << 20
    assert (host["NanoCpus"], host["PidsLimit"], host["ShmSize"]) == (500_000_000, 11, 8 << 20)
    assert host["Mounts"][0]["ReadOnly"] is True
    assert "DeviceRequests" not in host
    assert not {"AutoRemove", "PidMode", "CapAdd"} & host.keys()
    # An image that asks for all GPUs gets none.
    assert made["Env"] == ["A=1", "NVIDIA_VISIBLE_DEVICES=void"]


def test_gpus_are_asked_for_by_uuid():
    made = config(gpu_uuids=("GPU-1", "GPU-2"))
    request = {"Driver": "", "Count": 0, "DeviceIDs": ["GPU-1", "GPU-2"], "Capabilities": [["gpu"]]}
    assert made["HostConfig"]["DeviceRequests"] == [request]
    assert "NVIDIA_VISIBLE_DEVICES=GPU-1,GPU-2" in made["Env"]
    made = config(cdi=True, gpu_uuids=("GPU-1",))
    assert made["HostConfig"]["DeviceRequests"] == [{"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=GPU-1"]}]
    made = config(device_files=("/dev/kfd",))
    device = {"PathOnHost": "/dev/kfd", "PathInContainer": "/dev/kfd", "CgroupPermissions": "rw"}
    assert made["HostConfig"]["Devices"] == [device]


def test_cdi_is_used_where_it_names_all_gpus(tmp_path):
    (tmp_path / "nvidia.yaml").write_text('kind: nvidia.com/gpu\ndevices:\n- name: "GPU-1"\n')
    assert cdi_knows([str(tmp_path)], ["GPU-1"])
    assert not cdi_knows([str(tmp_path)], ["GPU-1", "GPU-2"])
    assert not cdi_knows([], ["GPU-1"])
    assert not cdi_knows([str(tmp_path)], [])


def test_exit_codes_are_codes_and_signals():
    assert [exit_of(code) for code in (0, 7, 128, 137, 143, 255)] == [
        (0, 0),
        (7, 0),
        (128, 0),
        (0, 9),
        (0, 15),
        (255, 0),
    ]


@pytest.mark.parametrize(
    ("ended_s", "code", "away", "live", "lost"),
    [
        (1000.0, 143, None, False, True),  # just before the engine's start
        (1000.0, 0, None, False, True),  # it saved, and ended well, because it was told to
        (1005.0, 143, None, False, True),  # the new engine ended it
        (500.0, 1, None, False, False),  # long before
        (500.0, 137, None, False, True),
        (1500.0, 143, None, False, False),  # while the engine ran
        (1000.0, 143, None, True, False),
        (1500.0, 0, (1499.0, 1510.0), False, True),
        (1400.0, 0, (1499.0, 1510.0), False, False),
    ],
)
def test_which_ends_are_the_engines(ended_s, code, away, live, lost):
    state = ContainerState("c", "m", "exited", code, began_unix_s=100.0, ended_unix_s=ended_s)
    assert lost_with_engine(state, 1003.0, away, live_restore=live) is lost
    younger = dataclasses.replace(state, began_unix_s=1004.0)
    assert lost_with_engine(younger, 1003.0, None, live_restore=False) is False


def test_times_of_the_engine():
    assert unix_s("2026-11-23T16:03:30.290464508Z") == pytest.approx(1795449810.290464508)
    assert unix_s("2026-11-23T16:03:30Z") == 1795449810.0
    assert unix_s("0001-01-01T00:00:00Z") == 0.0


def test_the_report_says_what_to_do():
    info = {"ServerVersion": "27.1", "Driver": "overlay2", "CgroupDriver": "systemd", "PidsLimit": False}
    info |= {"Runtimes": {"runc": {}, "nvidia": {}}, "LiveRestoreEnabled": False}
    report = report_of(info, same_mounts=False)
    assert report.reachable
    assert report.nvidia_runtime
    assert report.not_enforced == ("processes",)
    words = " ".join(f"{each.problem} {each.command}" for each in report.advice)
    assert all(each in words for each in ("live-restore", "nvidia-ctk", "mounts of its own", "processes"))
    fine = {
        "LiveRestoreEnabled": True,
        "CDISpecDirs": ["/etc/cdi"],
        "CgroupDriver": "systemd",
        "Runtimes": {"nvidia": {}},
    }
    assert report_of(fine, same_mounts=True).advice == ()


def test_containers_of_one_attempt_find_each_other_by_name():
    payload = Payload(container=Container("image:1"))
    intent = json.loads(json.dumps(Launch(payload, network_name="a.1.r0").intent("a.1.r0"))) | {"mark": "m" * 32}
    made = container_config(intent, user=(1, 1), groups=[], environment={}, mounts=[], network="jobs")
    assert made["HostConfig"]["NetworkMode"] == "jobs"
    assert made["NetworkingConfig"] == {"EndpointsConfig": {"jobs": {"Aliases": ["a.1.r0"]}}}
    assert "NetworkingConfig" not in config()


@pytest.mark.parametrize(("limit_mib", "file_mib"), [(64, 1024), (512, 1024), (2000, 4000)])
def test_the_engine_keeps_more_of_a_log_than_its_files_do(limit_mib, file_mib):
    assert log_config(limit_mib << 20) == {
        "Type": "local",
        "Config": {"max-size": f"{file_mib}m", "max-file": "2", "compress": "false"},
    }
