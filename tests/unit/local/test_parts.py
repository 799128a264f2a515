"""The parts of local: ends, users, ids of GPUs, notes, conditions."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import socket
from pathlib import Path

import pytest

from adlro.attempt.records import AttemptView, Moment, Stage
from adlro.attempt.users import UnixUsers
from adlro.devices.pretended import parse_fake_gpus
from adlro.devices.records import ComputeProcess, Device, Machine, Reading, Readings, Vendor
from adlro.errors import DataLoss, InvalidInput, Unavailable
from adlro.records.events import EventKind
from adlro.records.payloads import EndReason, ExitStatus, LaunchStyle
from adlro.services.local import health as health_module
from adlro.services.local.conditions import Conditions
from adlro.services.local.ends import PEER_ENDED, ProgramEnd, decisive, end_of
from adlro.services.local.given import programs_of
from adlro.services.local.gpus import GpuIds, Slot, cluster_of, pretended_slots
from adlro.services.local.health import GpuHealth
from adlro.services.local.notes import Note, Notes, attempt_name, foreign_id, name_of, rank_names, rank_of
from adlro.services.local.ports import FIRST_PORT, Ports

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="a map must belong to root")


# ---- ends


@pytest.mark.parametrize(
    ("status", "more", "expected"),
    [
        (ExitStatus(EndReason.EXITED), {}, (EventKind.FINISHED, "")),
        (ExitStatus(EndReason.EXITED), {"stop_asked": True}, (EventKind.FINISHED, "")),
        (ExitStatus(EndReason.EXITED, 3), {}, (EventKind.FAILED, "exit code 3")),
        (ExitStatus(EndReason.SIGNALLED, signal=11), {}, (EventKind.FAILED, "killed by SIGSEGV")),
        (
            ExitStatus(EndReason.TIME_LIMIT),
            {"time_limit_s": 90.0},
            (EventKind.FAILED, "time limit of 90 s reached"),
        ),
        (
            ExitStatus(EndReason.OUT_OF_MEMORY, signal=9, detail="it used more memory than its limit"),
            {},
            (EventKind.FAILED, "out of memory: it used more memory than its limit"),
        ),
        (ExitStatus(EndReason.NOT_STARTED, detail="why"), {}, (EventKind.FAILED, "not started: why")),
        (ExitStatus(EndReason.NOT_STARTED, detail="why"), {"by_node": True}, (EventKind.LOST, "not started: why")),
        (ExitStatus(EndReason.STOPPED), {"stop_asked": True}, (EventKind.STOPPED, "stopped")),
        (ExitStatus(EndReason.STOPPED), {"stop_asked": True, "preempt_asked": True}, (EventKind.PREEMPTED, "")),
        (ExitStatus(EndReason.EXITED), {"stop_asked": True, "preempt_asked": True}, (EventKind.FINISHED, "")),
        (ExitStatus(EndReason.STOPPED, detail="it was given up"), {}, (EventKind.LOST, "it was given up")),
        (ExitStatus(EndReason.GPU_FAILED, detail="Xid 79"), {}, (EventKind.LOST, "gpu failed: Xid 79")),
        (ExitStatus(EndReason.NODE_LOST, detail="down"), {"stop_asked": True}, (EventKind.LOST, "node lost: down")),
        (ExitStatus(EndReason.SUPERVISOR_LOST, detail="killed"), {}, (EventKind.LOST, "supervisor lost: killed")),
    ],
)
def test_the_event_of_an_end(status, more, expected):
    assert end_of(status, **more) == expected


# ---- users


def users_map(folder: Path, text: str) -> str:
    path = folder / "users"
    path.write_text(text)
    path.chmod(0o644)
    return str(path)


@as_root
def test_who_is_who_is_the_maps_to_say(tmp_path):
    users = UnixUsers(users_map(tmp_path, "# who is who\nada nobody\n\n*  *  # all others\n"))
    assert users.unix_user("ada") == "nobody"
    assert users.unix_user("daemon") == "daemon"
    for nobody_there in ("no-such-user", "root", "", "a\0b"):
        with pytest.raises(InvalidInput, match="has no Unix user on this node"):
            users.unix_user(nobody_there)


@as_root
def test_programs_run_as_root_only_where_the_map_says_so(tmp_path):
    assert UnixUsers(users_map(tmp_path, "ada root\n")).unix_user("ada") == "root"
    assert UnixUsers(users_map(tmp_path, "* root\n")).unix_user("anybody") == "root"
    assert UnixUsers(users_map(tmp_path, "root root\n* *\n")).unix_user("root") == "root"
    with pytest.raises(InvalidInput, match="has no Unix user"):
        UnixUsers(users_map(tmp_path, "ada nobody\n")).unix_user("bob")


@as_root
def test_a_changed_map_holds_at_once_and_a_broken_one_lets_nobody_in(tmp_path):
    path = users_map(tmp_path, "ada nobody\n")
    users = UnixUsers(path)
    Path(path).write_text("ada daemon\n")
    os.utime(path, ns=(1, 1))
    assert users.unix_user("ada") == "daemon"
    Path(path).write_text("ada\n")
    with pytest.raises(Unavailable, match=r"line 1 of .* must be"):
        users.unix_user("ada")


@as_root
@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("ada\n", "line 1 .* must be"),
        ("ada *\n", "line 1 .* must be"),
        ("ada a\nada b\n", "line 2 .*'ada' has a line already"),
        ("* a\n* *\n", "line 2 .*has a line already"),
    ],
)
def test_a_wrong_map_is_refused_with_its_line(tmp_path, text, complaint):
    with pytest.raises(InvalidInput, match=complaint):
        UnixUsers(users_map(tmp_path, text))


@as_root
def test_a_map_that_others_may_change_is_refused(tmp_path):
    path = users_map(tmp_path, "* *\n")
    os.chmod(path, 0o666)
    with pytest.raises(InvalidInput, match=r"nobody else may write to it.* chmod go-w"):
        UnixUsers(path)
    os.chmod(path, 0o644)
    os.chown(path, 65534, 65534)
    with pytest.raises(InvalidInput, match="must belong to root"):
        UnixUsers(path)


def test_root_needs_a_map_and_nobody_else_may_have_one(tmp_path):
    with pytest.raises(InvalidInput, match=r"must name a file .*'\* root'"):
        UnixUsers("", euid=0)
    with pytest.raises(InvalidInput, match="leave ADLRO_LOCAL_USERS_MAP out"):
        UnixUsers(str(tmp_path / "map"), euid=1000)
    with pytest.raises(InvalidInput, match="can't be read"):
        UnixUsers(str(tmp_path / "map"), euid=0)
    assert UnixUsers("", euid=1000).unix_user("ada") == ""


# ---- ids of GPUs


def device(uuid: str, index: int, **more: object) -> Device:
    given = {"gpu_model": "a100", "product_name": "A100", "memory_mib": 40_536, "vendor": Vendor.NVIDIA}
    return Device(uuid=uuid, index=index, **{**given, **more})  # type: ignore[arg-type]


def ids(slots: object) -> dict[str, str]:
    return {each.device.uuid: each.gpu_id for each in slots if not each.missing}  # type: ignore[attr-defined]


def test_a_gpu_keeps_its_id_whatever_order_it_is_found_in(tmp_path):
    book = GpuIds(tmp_path / "gpus.json")
    first = book.assign([device("GPU-a", 0), device("GPU-b", 1)], "n")
    assert ids(first) == {"GPU-a": "n/0", "GPU-b": "n/1"}
    assert ids(book.assign([device("GPU-b", 0), device("GPU-a", 1)], "renamed")) == ids(first)
    without = book.assign([device("GPU-b", 0)])
    assert [(each.gpu_id, each.missing) for each in without] == [("n/0", True), ("n/1", False)]
    more = book.assign([device("GPU-c", 0), device("GPU-b", 1, memory_mib=81_559)])
    assert ids(more) == {"GPU-b": "n/1", "GPU-c": "n/2"}
    assert more[1].device.memory_mib == 81_559
    assert ids(book.assign([device("GPU-a", 0), device("GPU-b", 1), device("GPU-c", 2)])) == {
        "GPU-a": "n/0",
        "GPU-b": "n/1",
        "GPU-c": "n/2",
    }


@pytest.mark.parametrize("text", ["", "{}", '{"node": "n", "gpus": [{"gpu_id": "n/x", "device": {}}]}', "[1]"])
def test_an_unreadable_file_of_ids_is_named_and_not_overwritten(tmp_path, text):
    path = tmp_path / "gpus.json"
    path.write_text(text)
    with pytest.raises(DataLoss, match="mend it or delete it"):
        GpuIds(path).assign([device("GPU-a", 0)])
    assert path.read_text() == text


def test_pretended_nodes_share_the_machine():
    slots = pretended_slots(parse_fake_gpus("b=v100_sxm2:2,a=rtx_2080_ti:1"))
    cluster = cluster_of("local", slots, Machine(cpu_cores=5, memory_mib=1001))
    assert [(node.node_id, node.cpu_cores, node.memory_mib) for node in cluster.nodes] == [("a", 2, 500), ("b", 2, 500)]
    assert [gpu.gpu_id for _, gpu in cluster.gpus()] == ["a/0", "b/0", "b/1"]


# ---- notes


def test_names_of_folders_are_names_and_those_of_another_incarnation_are_others():
    assert name_of("job-17", 2, "0123456789abcdef") == "job-17.2.01234567"
    names = {name_of(job, 1, inc) for job in ("job-1", "../x", "-x", "Ä", "a b", "a/b") for inc in ("a" * 32, "b" * 32)}
    assert len(names) == 12
    assert not any("/" in name or name.startswith((".", "-")) for name in names)
    assert foreign_id("j" * 64, "0123456789") == "j" * 55 + "~01234567"


def test_notes_that_can_not_be_read_are_passed_over(tmp_path):
    notes = Notes(tmp_path / "notes")
    note = Note("job-1.1.abc", "job-1", 1, "abc", ("n/0",), user="ada", cpu_cores=2, memory_mib=64)
    notes.write(note)
    (tmp_path / "notes" / "job-2.1.abc").write_text("{")
    (tmp_path / "notes" / "job-3.1.abc").write_text(json.dumps({"name": "x"}))
    (tmp_path / "notes" / ".draft").write_text("")
    assert notes.read_all() == {"job-1.1.abc": note}
    notes.write(dataclasses.replace(note, forgotten=True))
    assert notes.read_all()["job-1.1.abc"].forgotten
    for _ in range(2):
        notes.remove("job-1.1.abc")
    assert notes.read_all() == {}


def test_notes_of_releases_with_one_gpu_for_a_job_are_read(tmp_path):
    notes = Notes(tmp_path / "notes")
    old = {"name": "job-1.1.abc", "job_id": "job-1", "attempt": 1, "incarnation": "abc", "gpu_id": "n/0"}
    (tmp_path / "notes" / "job-1.1.abc").write_text(json.dumps(old))
    note = notes.read_all()["job-1.1.abc"]
    assert (note.gpu_ids, note.rank, note.program_count, note.node_id) == (("n/0",), 0, 1, "n")


def test_folders_of_several_programs_are_named_by_rank():
    names = list(rank_names("job-1.1.01234567", 2))
    assert names == ["job-1.1.01234567.r0", "job-1.1.01234567.r1"]
    assert [attempt_name(each) for each in (*names, "job-1.1.01234567")] == ["job-1.1.01234567"] * 3
    assert [rank_of(each) for each in (*names, "job-1.1.01234567")] == [0, 1, 0]
    assert rank_names("job-1.1.01234567", 1) == ("job-1.1.01234567",)


# ---- programs of an attempt


def test_programs_are_one_a_node_or_one_a_gpu_in_the_order_of_the_placement():
    node_of = {"b/0": "b", "a/1": "a", "b/1": "b"}
    gpus = ("b/0", "a/1", "b/1")
    by_node = programs_of(gpus, node_of, LaunchStyle.ONE_PER_NODE)
    assert [(each.gpu_ids, each.node_rank, each.local_rank) for each in by_node] == [
        (("b/0", "b/1"), 0, 0),
        (("a/1",), 1, 0),
    ]
    by_gpu = programs_of(gpus, node_of, LaunchStyle.ONE_PER_GPU)
    assert [(each.gpu_ids, each.node_gpu_ids, each.node_rank, each.local_rank) for each in by_gpu] == [
        (("b/0",), ("b/0", "b/1"), 0, 0),
        (("a/1",), ("a/1",), 1, 0),
        (("b/1",), ("b/0", "b/1"), 0, 1),
    ]


def test_a_port_is_one_that_nobody_has(monkeypatch):
    monkeypatch.setattr("adlro.services.local.ports.PORT_COUNT", 3)
    ports = Ports()
    with socket.create_server(("127.0.0.1", FIRST_PORT + 1)):
        taken = {ports.take("a"), ports.take("b")}
        assert taken == {FIRST_PORT, FIRST_PORT + 2}
        assert ports.take("a") in taken, "it stays"
        with pytest.raises(Unavailable, match="no port from 20000 to 20002 is free"):
            ports.take("c")
        ports.give_back("a")
        assert ports.take("c") in taken


def program_end(rank: int, reason: EndReason, code: int = 0, detail: str = "", ended_s: float = 1.0) -> ProgramEnd:
    note = Note(f"j.1.abc.r{rank}", "j", 1, "abc", (f"n{rank}/0",), rank=rank, program_count=3)
    moment = Moment("boot", ended_s, 0.0)
    status = ExitStatus(reason, code, detail=detail)
    return ProgramEnd(note, AttemptView(note.name, Stage.ENDED, False, ended=moment, exit=status))


@pytest.mark.parametrize(
    ("ends", "text"),
    [
        ([program_end(1, EndReason.EXITED), program_end(0, EndReason.EXITED)], "exit code 0"),
        (
            [program_end(0, EndReason.EXITED, 1, ended_s=2.0), program_end(1, EndReason.EXITED, 3, ended_s=1.5)],
            "exit code 3: rank 1 on n1",
        ),
        (
            [program_end(0, EndReason.STOPPED, detail=f"{PEER_ENDED}x"), program_end(1, EndReason.EXITED, 3, "", 9.0)],
            "exit code 3: rank 1 on n1",
        ),
        (
            [program_end(0, EndReason.EXITED, 3), program_end(2, EndReason.SUPERVISOR_LOST, detail="killed")],
            "supervisor lost: rank 2 on n2: killed",
        ),
        (
            [
                program_end(0, EndReason.EXITED, 3),
                program_end(1, EndReason.STOPPED, detail="its supervisor was killed"),
            ],
            "stopped: rank 1 on n1: its supervisor was killed",
        ),
        ([program_end(0, EndReason.EXITED), program_end(1, EndReason.TIME_LIMIT)], "rank 1 on n1"),
    ],
)
def test_the_end_of_an_attempt_is_that_of_the_first_that_failed_or_of_one_that_was_lost(ends, text):
    told = decisive(ends).told
    assert told is not None
    assert told.text == text
    assert decisive(ends[::-1]).told == told


def test_a_folder_that_is_gone_decides():
    gone = ProgramEnd(Note("j.1.abc.r1", "j", 1, "abc", (), rank=1, program_count=2), None)
    assert decisive([program_end(0, EndReason.EXITED, 3), gone]) is gone


# ---- conditions and health


def test_a_gpu_is_out_until_no_source_has_anything_against_it():
    told: list[tuple[str, ...]] = []
    conditions = Conditions(lambda *lost: told.append(lost), lambda gpu_id: told.append((gpu_id,)))
    conditions.restore("n/1", "before", "it was out")
    conditions.set("n/0", "device", "")
    conditions.set("n/0", "device", "used by pid 1")
    conditions.set("n/0", "attempt", "stuck")
    conditions.set("n/0", "device", "")
    assert told == [("n/0", "used by pid 1")]
    assert [(each.gpu_id, each.reason) for each in conditions.all()] == [("n/1", "it was out"), ("n/0", "stuck")]
    conditions.set("n/0", "attempt", "")
    conditions.set("n/1", "before", "")
    assert told[1:] == [("n/0",), ("n/1",)]
    assert conditions.all() == ()


class FakeWatch:
    """What GPUs report, by hand."""

    def __init__(self) -> None:
        self.now = Readings({})

    def readings(self) -> Readings:
        return self.now


def test_what_gpus_report_takes_them_out_with_reasons(monkeypatch):
    clock = [1000.0]
    monkeypatch.setattr("adlro.services.local.health.time.monotonic", lambda: clock[0])
    watch = FakeWatch()
    slots = [
        Slot("n/0", "n", device("GPU-a", 0)),
        Slot("n/1", "n", device("GPU-b", 1)),
        Slot("n/2", "n", device("GPU-c", 2), missing=True),
    ]
    health = GpuHealth(slots, watch)  # type: ignore[arg-type]
    assert health.watches
    assert health.observe({}) == {"n/2": "GPU-c is not there any more"}, "nothing is known of the others yet"
    idle, lost = Reading(memory_used_mib=1.0, processes=()), Reading(lost="it has fallen off the bus")
    used = dataclasses.replace(idle, processes=(ComputeProcess(4711, "bob", 900.0),))
    watch.now = Readings({"GPU-a": used, "GPU-b": idle})
    health.observe({})
    clock[0] += 3.0
    assert health.observe({})["n/0"] == "used by pid 4711 of user bob"
    assert health.observe({"n/0": {4711}})["n/0"] == "", "it is ours"
    watch.now = Readings({"GPU-a": idle, "GPU-b": lost})
    assert health.observe({})["n/1"] == "it has fallen off the bus"
    assert (health.failure("n/1"), health.failure("n/0"), health.gone()) == ("it has fallen off the bus", "", [])
    clock[0] += health_module.GONE_S
    health.observe({})
    assert health.gone() == ["n/1"]
    watch.now = Readings({"GPU-a": idle, "GPU-b": idle})
    health.observe({})
    assert health.gone() == []
    full = Reading(memory_used_mib=20_000.0, graphics_memory_mib=300.0, processes=())
    watch.now = Readings({"GPU-a": full, "GPU-b": dataclasses.replace(full, graphics_memory_mib=math.nan)})
    assert [health.released(gpu_id) for gpu_id in ("n/0", "n/1", "n/2")] == [False, True, True]
    watch.now = Readings({"GPU-a": idle, "GPU-b": used})
    assert [health.released(gpu_id) for gpu_id in ("n/0", "n/1")] == [True, False]
    watch.now = Readings({"GPU-a": idle, "GPU-b": idle})
    found = health.readings()
    assert math.isnan(found[0].utilization), "a real GPU's is reported, or unknown"
    assert found[0].memory_used_mib == 1.0
