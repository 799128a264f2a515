"""Two jobs on a GPU of a simulated cluster, through the cluster side: its books, and restarts to the last bit."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from adlro.errors import Conflict, InvalidInput
from adlro.placement import SHARED, GpuShare, Placement
from adlro.records.events import ClusterEvent, EventKind
from adlro.records.jobs import AttemptRef, JobSpec, Preemptible
from tests.unit.simcluster.test_restart import CLUSTER, REAL, VIRTUAL, Life, spec

GPU_IDS = [gpu.gpu_id for _, gpu in CLUSTER.gpus()]
# Measured ones, of which some pairs could not run together, and some of which nothing is known.
APPLICATIONS = ("Transformer (batch size 256)", "ResNet-50 (batch size 128)", "LM (batch size 20)", "mine", "")
REFUSALS = {"CANNOT_SHARE", "NOT_PREEMPTIBLE", "GPU_BUSY", "GPU_LOST", "GPU_MEMORY_TOO_SMALL", "NODE_CORES_EXHAUSTED"}


def shareable(work_s: float, **changes: object) -> JobSpec:
    return replace(spec(work_s), shareable=True, **changes)  # type: ignore[arg-type]


def half(gpu_id: str) -> Placement:
    return Placement((GpuShare(gpu_id, SHARED),))


def draw_spec(draw: random.Random) -> JobSpec:
    gpu_count = draw.choice((1, 1, 1, 1, 2))
    return replace(
        spec(draw.choice((draw.uniform(0.5, 9.0), 3.3)), draw.choice((None, None, None, 6.0)), gpu_count),
        application=draw.choice(APPLICATIONS),
        shareable=gpu_count == 1 and draw.random() < 0.8,
        preemptible=Preemptible(draw.uniform(0.0, 1.0), draw.uniform(0.0, 1.0)) if draw.random() < 0.6 else None,
        gpu_memory_mib=draw.choice((0, 4000, 8000, 9000)),
        cpu_cores=draw.choice((1, 4, 12)),
    )


def check_books(life: Life, specs: dict[str, JobSpec]) -> int:
    """What runs fits on its GPUs and node, and both sides know the same; returns how many GPUs have two jobs."""
    running = life.side.describe().running
    assert sorted(running, key=lambda each: each.job_id) == sorted(
        life.driver.simulator.running, key=lambda each: each.job_id
    )
    free = CLUSTER.free()
    for each in running:
        each.placement.take(free, specs[each.job_id])  # raises where it does not fit
    assert life.side.attempts._free == free
    lost = {gpu_id for gpu_id, state in life.driver.simulator.gpus.items() if state.lost}
    assert not lost.intersection(gpu_id for each in running for gpu_id in each.placement.gpu_ids)
    for gpu_id, state in life.driver.simulator.gpus.items():
        here = [each.job_id for each in running if gpu_id in each.placement.gpu_ids]
        assert here == [each.job_id for each in (state.running, state.mate) if each is not None]
    return sum(state.mate is not None for state in life.driver.simulator.gpus.values())


Told = tuple[str, str, float, float | None, str]
"""Kind, job or GPU, time, share of the work that is left, placement."""


def shared_course(seed: int, kills: Iterator[bool]) -> tuple[list[Told], int, set[str]]:
    """Jobs as they come, each on a GPU drawn for it, beside others, for others or alone; GPUs go and come back.

    Returns:
        What was told; at how many moments a GPU had two jobs; the reasons of refusals.
    """
    draw = random.Random(seed)
    life = Life(VIRTUAL)
    life.driver.set_clock_now(not_before_s=1234.567)
    begins = sorted(1234.567 + draw.uniform(0.0, 40.0) for _ in range(40))
    specs = {f"job-{number}": draw_spec(draw) for number in range(len(begins))}
    life.side.wake_at(begins)
    new, waiting = list(specs), list[str]()
    share, attempts = dict.fromkeys(specs, 1.0), dict.fromkeys(specs, 0)
    stopped: set[str] = set()
    reasons: set[str] = set()
    seen = shared = 0

    def told() -> list[ClusterEvent]:
        return [event for batch in life.side.log.after(0) for event in batch.events]

    for _ in range(500):
        if next(kills):
            life.kill()
        for event in told()[seen:]:
            if event.kind in (EventKind.PREEMPTED, EventKind.LOST):
                waiting.append(event.job_id)
            if event.kind is EventKind.PREEMPTED:
                share[event.job_id] = event.remaining_ratio or 1.0
                stopped.add(event.job_id)
        seen = len(told())
        described = life.side.describe()
        while new and begins[len(specs) - len(new)] <= described.clock.time_s:
            waiting.insert(0, new.pop(0))
        for job_id in list(waiting):
            asked = specs[job_id]
            gpu_ids = draw.sample(GPU_IDS, asked.gpu_count)
            part = SHARED if asked.shareable and draw.random() < 0.9 else 1.0
            running = life.side.describe().running
            there = [each for each in running if set(gpu_ids) & set(each.placement.gpu_ids)]
            stops = draw.choice(([], [], there, there[:1], there[-1:]))
            try:
                life.side.launch(
                    job_id, attempts[job_id] + 1, asked, Placement(tuple(GpuShare(each, part) for each in gpu_ids)), 0,
                    preempts=[AttemptRef(each.job_id, each.attempt) for each in stops], remaining_ratio=share[job_id],
                    resumes=job_id in stopped,
                )  # fmt: skip
            except Conflict as refused:
                reasons.add(refused.reason)
                continue
            attempts[job_id] += 1
            waiting.remove(job_id)
            shared += check_books(life, specs)
            if next(kills):
                life.kill()
                check_books(life, specs)
        if draw.random() < 0.06:
            gpu_id = draw.choice(GPU_IDS)
            life.driver.set_gpu_availability(gpu_id, gpu_id in life.side.describe().lost_gpu_ids)
        if draw.random() < 0.03 and described.running:
            life.side.stop(draw.choice(life.side.describe().running or described.running).job_id, 0, 0)
        shared += check_books(life, specs)
        life.acknowledge()
        if not (new or waiting or life.side.describe().running):
            break
        for gpu_id in life.side.describe().lost_gpu_ids if draw.random() < 0.2 else ():
            life.driver.set_gpu_availability(gpu_id, True)
    assert not [*new, *waiting, *life.side.describe().running]
    events = [(e.kind.name, e.job_id or e.gpu_id, e.time_s, e.remaining_ratio, str(e.placement)) for e in told()]
    return events, shared, reasons


@pytest.mark.parametrize("seed", range(8))
def test_shared_gpus_go_on_the_same_to_the_last_bit_wherever_the_cluster_is_killed(seed):
    draw = random.Random(seed + 1000)
    events, shared, reasons = shared_course(seed, iter(lambda: False, None))
    assert shared_course(seed, iter(lambda: draw.random() < 0.2, None)) == (events, shared, reasons)
    assert shared > 20
    assert reasons <= REFUSALS
    assert {"GPU_BUSY", "CANNOT_SHARE"} <= reasons
    assert {"FINISHED", "PREEMPTED"} <= {kind for kind, *_ in events}


def test_a_second_job_runs_beside_the_first_and_no_third():
    life = Life(REAL)
    life.driver.set_ceiling(math.inf)
    life.side.launch("a", 1, shareable(10.0), half("n/0"), 0)
    life.timers.move(2.1)
    launched = life.side.launch("b", 1, shareable(2.0), half("n/0"), 0)
    assert (launched.existing, launched.state.name) == (False, "STARTED")
    again = life.side.launch("b", 1, shareable(2.0), half("n/0"), 0)
    assert (again.existing, again.start_s, again.revision) == (True, launched.start_s, launched.revision)
    assert [(each.job_id, each.placement) for each in life.side.describe().running] == [
        ("a", half("n/0")),
        ("b", half("n/0")),
    ]
    for asked, where in ((shareable(1.0), half("n/0")), (spec(1.0), Placement.on("n/0"))):
        with pytest.raises(Conflict, match="GPU n/0 runs a and b") as refused:
            life.side.launch("c", 1, asked, where, 0)
        assert refused.value.reason == "GPU_BUSY"
    with pytest.raises(InvalidInput, match="c needs whole GPUs, since it is not shareable"):
        life.side.launch("c", 1, spec(1.0), half("n/1"), 0)
    with pytest.raises(Conflict, match=r"b was launched on 0\.5 of n/0, not n/0") as refused:
        life.side.launch("b", 1, shareable(2.0), Placement.on("n/0"), 0)
    assert refused.value.reason == "ATTEMPT_ON_OTHER_GPU"
    life.timers.move(20.0)
    # b ends 0.1 + 2 s of work at half speed after 2.1 s; meanwhile a does half of 4.1 s, at 2.1 s it had 8 s left.
    ends = {job_id: time_s for name, job_id, time_s in life.events if name == "FINISHED"}
    assert list(ends) == ["b", "a"]
    assert ends == pytest.approx({"b": 6.2, "a": 12.15})


def test_a_pair_that_could_not_run_together_leaves_no_trace():
    life = Life(REAL)
    one = shareable(10.0, application="Transformer (batch size 256)")
    other = shareable(10.0, application="ResNet-50 (batch size 128)")
    life.side.launch("a", 1, one, half("n/0"), 0)
    events, free = life.events, life.side.attempts._free
    with pytest.raises(Conflict, match="b can't run beside a on n/0") as refused:
        life.side.launch("b", 1, other, half("n/0"), 0)
    assert refused.value.reason == "CANNOT_SHARE"
    assert (life.events, life.side.attempts._free) == (events, free)
    assert not life.side.launch("b", 1, other, half("n/1"), 0).existing


def test_the_note_of_a_partner_is_journaled_whenever_its_speed_changes():
    life = Life(REAL)
    life.driver.set_ceiling(math.inf)
    life.side.launch("a", 1, shareable(10.0), half("n/0"), 0)
    life.side.collect(whole=False)
    (first,) = life.side.open_attempts()
    notes = [first.note]

    def journaled() -> str:
        attempt = life.side.collect(whole=False).attempts.get("a")
        return "" if attempt is None else attempt.note

    life.timers.move(1.0)
    life.side.launch("b", 1, shareable(1.0), half("n/0"), 0)
    notes.append(journaled())
    life.timers.move(0.5)
    life.side.launch("c", 1, shareable(1.0), half("n/1"), 0)
    assert journaled() == "", "another GPU"
    life.side.stop("b", 1, 0)
    notes.append(journaled())
    assert len(set(notes)) == 3


def test_notes_of_older_versions_are_read():
    life = Life(VIRTUAL)
    life.driver.set_clock_now(not_before_s=1234.567)
    life.side.launch("a", 1, spec(1 / 3), Placement.on("n/0"), 0)
    life.side.launch("b", 1, spec(4.0, gpu_count=2), Placement.on("n/2", "n/3"), 0)
    plain = Life(VIRTUAL)
    plain.driver.set_clock_now(not_before_s=1234.567)
    plain.side.launch("a", 1, spec(1 / 3), Placement.on("n/0"), 0)
    plain.side.launch("b", 1, spec(4.0, gpu_count=2), Placement.on("n/2", "n/3"), 0)
    for attempt in life.side.open_attempts():
        attempt.note = attempt.note.split()[0]
    life.kill()
    for each in (life, plain):
        for _ in range(4):
            each.acknowledge()
    assert life.events == plain.events
    assert [name for name, *_ in life.events].count("FINISHED") == 2
