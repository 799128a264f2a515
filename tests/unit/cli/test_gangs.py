"""What commands show of jobs with several GPUs, and of what is reserved for them."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any

import grpc
import pytest

from adlro.cli.facts import print_facts
from adlro.cli.gpus import gpu_table, gpu_views
from adlro.cli.job_listing import job_table
from adlro.cli.places import at_of, needs_text, placement_text, reservation_text
from adlro.cli.render import why_text
from adlro.cli.report import placements
from adlro.placement import NOWHERE, GpuShare, Placement
from adlro.records.events import Clock, ClockMode
from adlro.records.jobs import Job, JobAttempt, JobReservation, JobSpec, JobState, JobType, PendingReason
from adlro.terminal import PlainConsole
from tests.unit.client import fake_suite
from tests.unit.client.fake_suite import FakeSuite

Run = Callable[..., Any]

SPEC = JobSpec("train", "ada", JobType.MACHINE_LEARNING, cpu_cores=2, memory_mib=8192)
GANG = replace(SPEC, gpu_count=4, max_node_count=2, gpu_models=("v100_sxm2", "t4"))
FOUR = Placement.on("volta-0/0", "volta-0/1", "volta-1/2", "volta-1/0")
HELD = JobReservation("job-2", 40.0, "v100_sxm2", ("volta-0", "volta-1"), 700.0, 3, 4)


@pytest.mark.parametrize(
    ("placement", "text"),
    [
        (NOWHERE, ""),
        (Placement.on("volta-0/2"), "volta-0/2"),
        (Placement.on("volta-0/0", "volta-0/1", "volta-0/2", "volta-0/5"), "volta-0/0-2,5"),
        (FOUR, "volta-0/0-1, volta-1/2,0"),
        (Placement.on("gpu-a", "gpu-b"), "gpu-a,gpu-b"),
        (Placement((GpuShare("n/0", 0.5),)), "n/0 (0.5 of it)"),
        (Placement.on(*(f"n-{number}/0" for number in range(7))), "n-0/0, n-1/0, n-2/0, n-3/0 and 3 more"),
    ],
)
def test_a_placement_is_told_by_node(placement: Placement, text: str) -> None:
    assert placement_text(placement) == text


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"gpu_count": 1, "max_node_count": 0, "gpu_models": ()}, "1 GPU, 2 cores, 8.0 GiB"),
        ({"gpu_count": 1, "gpu_models": (), "exclusive": True}, "1 GPU on nodes of its own, 2 cores, 8.0 GiB"),
        ({"gpu_count": 1, "gpu_memory_mib": 20_480}, "1 GPU (v100_sxm2 or t4) with 20.0 GiB, 2 cores, 8.0 GiB"),
        ({}, "4 GPUs (v100_sxm2 or t4) on at most 2 nodes, each with 2 cores, 8.0 GiB"),
        (
            {"max_node_count": 1, "gpu_models": (), "gpu_memory_mib": 20_480},
            "4 GPUs on one node, each with 20.0 GiB, 2 cores, 8.0 GiB",
        ),
    ],
)
def test_what_a_job_asks_for(fields: dict[str, Any], text: str) -> None:
    assert needs_text(replace(GANG, **fields)) == text


def test_times_are_those_of_the_day_where_the_clock_runs_with_the_walls() -> None:
    now = datetime(2026, 7, 14, 13, 55).astimezone().timestamp()
    real = at_of(Clock(ClockMode.REAL, 1.0, False, 100.0), now)
    assert (real(700.0), real(100.0 + 86_400)) == ("about 14:05", "about Wed 15 Jul 13:55")
    assert at_of(Clock(ClockMode.SCALED, 10.0, False, 100.0), now)(6100.0) == "about 14:05"
    for clock in (None, Clock(ClockMode.VIRTUAL, 0.0, False, 1.0), Clock(ClockMode.REAL, 1.0, True, 1.0)):
        assert at_of(clock, now)(700.0) == "about 11m 40s of cluster time"
    for at in (real, at_of(None)):
        assert at(float("inf")) == at(float("nan")) == "an unknown time"
    assert real(1e12) == "an unknown time"
    assert reservation_text(HELD, real) == "4 v100_sxm2 on volta-0, volta-1 from about 14:05"
    many = replace(HELD, node_ids=tuple(f"n-{number}" for number in range(9)))
    assert "on n-0, n-1, n-2, n-3 and 5 more nodes from" in reservation_text(many, real)


def test_queue_shows_counts_reservations_and_who_waits_for_them(suite: FakeSuite, adlro: Run) -> None:
    suite.add(GANG)
    running = {"state": JobState.RUNNING, "pending_reason": PendingReason.NONE, "message": ""}
    suite.change("job-1", placement=FOUR, submit_s=0.0, start_s=1.0, **running)
    suite.add(GANG)
    waits = {"pending_reason": PendingReason.GANG_NODES, "message": "4 GPUs on 2 nodes are not free"}
    suite.change("job-2", reservation=HELD, **waits)
    suite.add(SPEC)
    kept = {"reserved_for_job_id": "job-2", "reserved_until_s": 650.0}
    suite.change("job-3", pending_reason=PendingReason.RESERVED, message="as the record has it", **kept)
    suite.clock = Clock(ClockMode.VIRTUAL, 0.0, False, 100.0)
    suite.reservations = [replace(HELD, expected_start_s=720.0)]  # newer than the record
    result = adlro("queue")
    lines = {line.split()[0]: line for line in result.stdout.splitlines()}
    assert "GPUS" in lines["JOB"]
    assert " 4  volta-0/0-1, volta-1/2,0 " in lines["job-1"]
    later = "reserved from about 12m 0s of cluster time"
    assert f"gang_nodes: 4 GPUs on 2 nodes are not free; {later}" in lines["job-2"]
    assert "reserved: GPUs are kept free for job-2 until about 12m 0s of cluster time" in lines["job-3"]
    assert "kept free for job-2: 4 v100_sxm2 on volta-0, volta-1 from about 12m 0s" in result.stderr
    suite.fail("GetStatus", *[grpc.StatusCode.UNAVAILABLE] * 50)
    lines = {line.split()[0]: line for line in adlro("queue").stdout.splitlines()}
    assert "reserved from about 11m 40s of cluster time" in lines["job-2"], "as the record has it"
    assert "until about 10m 50s of cluster time" in lines["job-3"]
    document = json.loads(adlro("queue", "-o", "json").stdout)["jobs"]
    assert document[1]["reservation"]["expected_start_s"] == 700.0
    assert (document[0]["gpu_id"], len(document[0]["placement"]["gpus"])) == ("volta-0/0", 4)


def test_on_a_narrow_screen_usual_reasons_are_short() -> None:
    waits = {"pending_reason": PendingReason.GANG_NODES, "message": "waits for 4 GPUs, and many more words"}
    jobs = [
        Job("job-1", GANG, reservation=HELD, **waits),  # type: ignore[arg-type]  # fields of a job
        Job("job-2", GANG, pending_reason=PendingReason.LAUNCH_REFUSED, message="the node is full"),
        Job("job-3", SPEC, pending_reason=PendingReason.RESERVED, message="m", reserved_for_job_id="job-1"),
        Job("job-4", SPEC, JobState.RUNNING, placement=FOUR),
    ]
    console = PlainConsole(width=80, file=io.StringIO())
    with console.capture() as captured:
        console.print(job_table(jobs, width=console.width))
    text = captured.get()
    assert "many more words" not in text
    assert len(text.splitlines()) <= 12
    told = " ".join(text.split())
    assert "gang_nodes" in told
    assert "reserved: for job-1" in told
    wide = " ".join(why_text(job) for job in jobs)
    assert "many more words" in wide
    assert why_text(jobs[1], short=True) == "launch_refused: the node is full", "no usual reason"
    assert why_text(jobs[0], short=True).startswith("gang_nodes: reserved from about")


def test_queue_of_one_gpu_jobs_is_as_it_was(suite: FakeSuite, adlro: Run) -> None:
    suite.add(SPEC)
    assert "GPUS" not in adlro("queue").stdout


def test_describe_shows_placement_by_node_and_reservation(suite: FakeSuite, adlro: Run) -> None:
    suite.add(GANG)
    attempt = JobAttempt(1, FOUR, "v100_sxm2", 1.0)
    running = {"state": JobState.RUNNING, "pending_reason": PendingReason.NONE, "message": ""}
    suite.change("job-1", placement=FOUR, gpu_model="v100_sxm2", attempts=(attempt,), **running)
    text = " ".join(adlro("describe", "job", "job-1").stdout.split())
    assert "4 GPUs (v100_sxm2 or t4) on at most 2 nodes, each with 2 cores, 8.0 GiB, priority 0.5" in text
    assert "GPUs 4 (v100_sxm2) on 2 nodes volta-0/0-1 volta-1/2,0" in text
    assert "1 volta-0/0-1, volta-1/2,0 v100_sxm2" in text
    suite.add(GANG)
    suite.change("job-2", pending_reason=PendingReason.GANG_NODES, message="waits", reservation=HELD)
    suite.clock = Clock(ClockMode.VIRTUAL, 0.0, False, 100.0)
    text = " ".join(adlro("describe", "job", "job-2").stdout.split())
    assert (
        "reserved 4 v100_sxm2 on volta-0, volta-1 from about 11m 40s of cluster time; 3 other GPUs of these nodes are "
        "for anybody; held since 40.0 s of cluster time"
    ) in text


def test_a_long_value_goes_on_below_its_begin() -> None:
    console = PlainConsole(width=60)
    with console.capture() as captured:
        print_facts(
            console, [("why", "gang_nodes: " + "waits for many GPUs " * 5), ("user", "[bold]ada[/]"), ("no", "")]
        )
    first, second, third, last = captured.get().splitlines()
    assert first.startswith("  why         gang_nodes: waits for")
    assert second.startswith(" " * 14 + "GPUs waits")
    assert third.startswith(" " * 14)
    assert last == "  user        ada"
    assert max(map(len, captured.get().splitlines())) <= 60


def test_a_decision_on_several_gpus_names_them(suite: FakeSuite, adlro: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    made = fake_suite._Services._decision

    def on_several(self: Any, job_id: str) -> Any:
        decision = made(self, job_id)
        for part in (decision, decision.candidates[0], decision.runner_up, decision.shadow):
            part.gpu_id = "volta-0/0"
            for number in range(3):
                part.placement.gpus.add(gpu_id=f"volta-0/{number}", share=1.0)
        decision.shadow.job_id = "job-8"
        decision.masked[0].gpu_id = ""
        held = decision.reservation
        held.job_id, held.gpu_model, held.gpu_count, held.expected_start_s = "job-9", "t4", 2, 700.0
        return decision

    monkeypatch.setattr(fake_suite._Services, "_decision", on_several)
    text = " ".join(adlro("describe", "decision", "d-1").stdout.split())
    for part in (
        "→ volta-0/0-2 v100_sxm2",
        "runner-up job-7 on volta-0/0-2",
        "would have started job-8 on volta-0/0-2",
        "any rtx_2080_ti",
        "kept free for job-9: 2 t4 from about 11m 40s of cluster time",
    ):
        assert part in text, part


def test_every_gpu_of_a_gang_is_busy_and_counts() -> None:
    gang = Job("job-1", GANG, JobState.RUNNING, placement=Placement.on("volta-0/0", "volta-0/1"))
    views = {each.gpu_id: each.job_id for each in gpu_views(fake_suite.CLUSTER, [gang], None)}
    assert (views["volta-0/0"], views["volta-0/1"]) == ("job-1", "job-1")
    (row,) = placements([gang])
    assert (row["gpu_id"], row["gpu_ids"]) == ("volta-0/0", ["volta-0/0", "volta-0/1"])


def test_two_jobs_that_share_a_gpu_are_both_shown() -> None:
    half = Placement((GpuShare("volta-0/0", 0.5),))
    jobs = [Job(f"job-{number}", SPEC, JobState.RUNNING, placement=half) for number in (1, 2)]
    views = {each.gpu_id: each for each in gpu_views(fake_suite.CLUSTER, jobs, None)}
    assert (views["volta-0/0"].job_id, views["volta-0/0"].partner_job_id) == ("job-1", "job-2")
    assert (views["volta-0/1"].state, views["volta-0/1"].partner_job_id) == ("idle", "")
    console = PlainConsole(width=80)
    with console.capture() as captured:
        console.print(gpu_table(list(views.values()), 80))
    assert "job-1 and job-2" in captured.get()
    console = PlainConsole(width=120)
    with console.capture() as captured:
        console.print(job_table(jobs, width=120))
    assert captured.get().count("volta-0/0 (0.5 of it)") == 2
