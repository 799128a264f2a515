"""Jobs of several GPUs in sessions: placed wholly or not at all, and never twice, whatever fails meanwhile."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from adlro.errors import Conflict
from adlro.hardware.gang_speeds import spread_speed
from adlro.placement import Placement
from adlro.records.cluster import Cluster, Gpu, Node
from adlro.records.events import EventKind
from adlro.records.jobs import JobState, JobType, PendingReason
from adlro.services.orchestrator.ledger.entry import Phase
from adlro.services.orchestrator.session.core.recording import differences
from adlro.store import Cursor, Move
from tests.unit.orchestrator.core_house import CoreHouse
from tests.volume import cases

V100, TURING = "v100_sxm2", "rtx_2080_ti"


def nodes(*sizes: tuple[str, int], cores: int = 64) -> Cluster:
    """Nodes n0, n1, ... with so many GPUs of a model: n0/0, n0/1, ..."""
    return Cluster(
        "gangs",
        tuple(
            Node(f"n{i}", cores, 1 << 18, tuple(Gpu(f"n{i}/{g}", model, 16384) for g in range(size)))
            for i, (model, size) in enumerate(sizes)
        ),
    )


def begun(cluster: Cluster, policy: str = "fcfs") -> CoreHouse:
    house = CoreHouse(cluster)
    house.start(policy)
    return house


def test_a_gang_is_written_down_launched_and_released_as_a_whole() -> None:
    house = begun(nodes((V100, 4), (TURING, 4)))
    house.pause()
    house.submit(10.0, gpu_count=3, application="resnet50_fp32")
    running = house.until_state("job-1", JobState.RUNNING)
    assert running.placement == Placement.on("n0/0", "n0/1", "n0/2")
    assert (running.gpu_model, running.message) == (V100, "running on n0/0, n0/1, n0/2")
    assert house.cluster.launches == [("job-1", 1, "n0/0, n0/1, n0/2")]
    assert house.core.ledger.entries["job-1"].gpus == (0, 1, 2)
    assert house.core.ledger.occupancy.gang.tolist() == [3, 3, 3, 0, 0, 0, 0, 0]
    house.resume()
    house.until_final(1)
    assert house.core.ledger.occupancy.idle.all()
    assert house.store.user_service["ann"].gpu_s == 30.0  # three GPUs for 10 s


def test_a_running_gang_counts_with_each_of_its_gpus_for_its_user() -> None:
    house = begun(nodes((V100, 4)))
    house.submit(10.0, gpu_count=3)
    house.submit(1.0, begin_time_s=4.0, gpu_count=2)
    house.until(lambda: house.core.ledger.queue_length == 1)
    assert house.core.ledger.observe(4.0).job_user_service_s[0].tolist() == [12.0]


@pytest.mark.parametrize("why", [Conflict("GPU n0/1 runs job-7", reason="GPU_BUSY"), Conflict("GPU n0/1 is lost")])
def test_a_refused_member_gives_all_gpus_back_and_the_job_waits_again(why: Conflict) -> None:
    house = begun(nodes((V100, 4)))
    house.pause()
    house.cluster.refused["job-1"] = [why]
    house.submit(10.0, gpu_count=4)
    job = house.until_state("job-1", JobState.RUNNING)
    assert [each.outcome for each in job.attempts] == [f"lost: refused by the cluster: {why.message}", ""]
    assert house.cluster.launches == [("job-1", 2, "n0/0, n0/1, n0/2, n0/3")]


def test_a_member_that_is_lost_before_the_launch_arrives_lets_the_job_start_elsewhere() -> None:
    house = begun(nodes((V100, 4), (V100, 4)))
    house.cluster.lost.add("n0/2")  # the event of that comes later
    house.submit(10.0, gpu_count=4)
    house.until(lambda: house.store.get("job-1").attempt_count == 1 and not house.core.ledger.entries["job-1"].gpus)
    house.cluster.lose("n0/2")
    house.until_final(1)
    job = house.store.get("job-1")
    assert "GPU n0/2 is lost" in job.attempts[0].outcome
    assert job.placement == Placement.on("n1/0", "n1/1", "n1/2", "n1/3")


@pytest.mark.parametrize("when", ["accepted", "started"])
def test_a_lost_member_ends_the_attempt_on_all(when: str) -> None:
    house = begun(nodes((V100, 4)))
    house.pause()
    house.cluster.start_later = when == "accepted"
    house.submit(10.0, gpu_count=3)
    house.until(lambda: bool(house.cluster.launches))
    house.settle_until(house.now + 0.1)
    if when == "accepted":
        house.cluster.emit((EventKind.GPU_LOST, "", 0, Placement.on("n0/1")))
        house.cluster.lost.add("n0/1")
        house.cluster.lose_accepted()
        house.cluster.start_later = False
    else:
        house.cluster.lose("n0/1")
    house.until(lambda: house.store.get("job-1").attempt_count == 2)
    job = house.until_state("job-1", JobState.RUNNING)
    assert job.attempts[0].outcome.startswith("lost: ")
    assert job.placement == Placement.on("n0/0", "n0/2", "n0/3")
    house.core.validate()


def test_a_session_that_dies_between_decision_and_launch_is_followed_by_one_that_launches_the_same_set() -> None:
    house = begun(nodes((V100, 4), (V100, 4)))
    house.pause()
    house.submit(10.0, gpu_count=3)
    house.until(lambda: house.store.get("job-1").attempt_count == 1)
    written = house.store.get("job-1").placement
    assert not house.cluster.launches  # written down, and not launched
    house.kill()
    house.until_state("job-1", JobState.RUNNING)
    assert house.cluster.launches == [("job-1", 1, str(written))]
    assert len(house.lives) == 2


def test_a_running_gang_is_adopted_with_all_its_gpus() -> None:
    house = begun(nodes((V100, 4), (V100, 4)))
    house.pause()
    house.submit(10.0, gpu_count=6, application="resnet50_fp32")
    house.until_state("job-1", JobState.RUNNING)
    before = house.core.ledger.occupancy.copy()
    house.kill()
    house.start()
    house.settle()
    after = house.core.ledger.occupancy
    assert after.holder.tolist() == before.holder.tolist() == ["job-1"] * 4 + ["job-1"] * 2 + [""] * 2
    assert after.expected_end_s.tolist() == before.expected_end_s.tolist()
    assert after.gang.tolist() == [6] * 6 + [0, 0]


def test_a_gang_whose_node_leaves_is_lost_as_a_whole() -> None:
    there = nodes((V100, 4), (V100, 4))
    house = begun(there)
    house.pause()
    house.submit(10.0, gpu_count=6)
    house.until_state("job-1", JobState.RUNNING)
    house.cluster.change(Cluster("gangs", there.nodes[:1]))
    job = house.until_reason("job-1", PendingReason.NO_FITTING_NODES)
    assert job.attempts[0].end_s is not None
    assert house.core.ledger.occupancy.idle.all()


def test_node_limits_count_for_each_accepted_model_of_a_mixed_cluster() -> None:
    house = begun(nodes((V100, 2), (V100, 2), (TURING, 4)))
    house.pause()
    house.submit(10.0, gpu_count=4, gpu_models=(V100,), max_node_count=1)
    house.submit(10.0, gpu_count=6, gpu_models=(V100, TURING))  # there are six, but not of one model
    house.submit(10.0, gpu_count=4, gpu_models=(V100, TURING), max_node_count=1)
    house.submit(10.0, gpu_count=4, gpu_models=(V100,), max_node_count=2)
    for number in (3, 4):
        house.until_state(f"job-{number}", JobState.RUNNING)
    for number in (1, 2):
        job = house.until_reason(f"job-{number}", PendingReason.NO_FITTING_NODES)
        assert job.message.startswith("no set of nodes can ever hold it: the cluster lacks ")


def test_what_no_set_of_nodes_can_hold_is_told_so() -> None:
    house = begun(nodes((V100, 4), (TURING, 4)))
    house.submit(10.0, gpu_count=5)
    house.submit(10.0, gpu_count=3, cpu_cores=40, max_node_count=1)
    house.submit(10.0, gpu_count=2, gpu_models=("k80",))
    house.submit(10.0, gpu_models=("k80",))
    house.submit(1.0)
    house.until_state("job-5", JobState.SUCCEEDED)  # nobody waits behind them
    house.settle_until(house.now + 5.0)
    told = [house.store.get(f"job-{number}") for number in range(1, 5)]
    assert [job.pending_reason for job in told] == [PendingReason.NO_FITTING_NODES] * 3 + [PendingReason.NO_FITTING_GPU]
    assert told[0].message == (
        "no set of nodes can ever hold it: the cluster lacks 5 GPUs of one model, with 1 core and 4096 MiB on its node "
        "for each; cancel it and ask for less"
    )
    assert "3 GPUs of one model on at most 1 node, with 40 cores" in told[1].message
    assert "2 GPUs of model k80" in told[2].message
    assert "a GPU of model k80 with 1 core" in told[3].message


def test_a_gang_that_waits_is_told_on_how_many_nodes_its_gpus_fit_and_what_is_away() -> None:
    house = begun(nodes((V100, 4), (V100, 4)))
    house.pause()
    house.submit(50.0, gpu_count=3)
    house.submit(50.0, gpu_count=6)
    job = house.until_reason("job-2", PendingReason.GANG_NODES)
    assert job.message == (
        "waits for 6 GPUs of one model, with 1 core and 4096 MiB on its node for each; they fit on 2 nodes of v100_sxm2"
    )
    house.drain({"n0": "to be repaired"})
    job = house.until_reason("job-2", PendingReason.NODES_DRAINED)
    assert (
        job.message
        == ("so many of the GPUs that could hold it are lost or on a drained node (n0: to be repaired) ").strip()
    )


def test_a_spread_gang_is_expected_to_take_longer_and_decompose_is_told_that_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    house = begun(nodes((V100, 2), (V100, 2)))
    moves: list[Move] = []
    write = house.store.move

    def noted(made: Sequence[Move], cursor: Cursor | None) -> None:
        moves.extend(made)
        write(made, cursor)

    monkeypatch.setattr(house.store, "move", noted)
    house.pause()
    house.submit(30.0, cpu_cores=40)
    house.submit(30.0, cpu_cores=40)  # on the other node
    house.submit(10.0, gpu_count=2, application="resnet50_fp32")
    house.until_state("job-3", JobState.RUNNING)
    ledger, share = house.core.ledger, spread_speed("resnet50_fp32", JobType.SIMULATION, 2, V100)
    entry = ledger.entries["job-3"]
    assert entry.gpus == (1, 3)
    assert ledger.occupancy.expected_end_s[[1, 3]].tolist() == [10.0 / share] * 2
    assert ledger.duration_on_s(entry, (2, 3)) == 10.0
    house.resume()
    house.until_final(3)
    spread = {move.job.job_id: move.outcome.spread for move in moves if move.outcome is not None}
    assert spread == {"job-1": False, "job-2": False, "job-3": True}


# ---- in any order


def random_gangs(seed: int, jobs: int = 40) -> CoreHouse:
    """Sessions with gangs, whose GPUs, launches and orchestrators die at any point."""
    draw = random.Random(seed)
    house = CoreHouse(nodes((V100, 4), (V100, 4), (TURING, 4), (TURING, 2)), draw)
    for number in draw.sample(range(1, jobs + 1), jobs // 4):
        house.cluster.refused[f"job-{number}"] = [Conflict("a member is busy", reason="GPU_BUSY")] * draw.randint(1, 3)
    house.kill_odds, house.meddle_odds = draw.choice([0.0, 0.01, 0.04]), draw.choice([0.02, 0.1])
    house.start(draw.choice(["fcfs", "sjf", "reserves"]))
    for _ in range(jobs):
        house.submit(
            draw.uniform(0.5, 20.0),
            begin_time_s=draw.choice((None, draw.uniform(0.0, 2.0 * jobs))),
            gpu_count=draw.choice((1, 1, 2, 3, 4, 6)),
            max_node_count=draw.choice((0, 0, 2)),
            gpu_models=draw.choice(((), (), (V100,), (V100, TURING))),
            application=draw.choice(("", "resnet50_fp32")),
            cpu_cores=draw.choice((1, 8, 16)),
        )
    for number in draw.sample(range(1, jobs + 1), jobs // 10):
        house.cancel(f"job-{number}")
    lost = ""
    for step in range(60_000):
        if house.store.final_count == jobs:
            return house
        if step == 6000:
            house.kill_odds = house.meddle_odds = 0.0  # it is to come to an end
        if step % 400 == 200 and house.recorded is not None and step < 6000:
            lost = draw.choice([gpu.gpu_id for _, gpu in house.cluster.cluster.gpus()])
            house.cluster.lose(lost)
        if step % 400 == 300 and lost:
            house.cluster.give_gpu_back(lost)
            lost = ""
        if not house.advance():
            assert house.drained or lost, "nothing more happens"
            if lost:
                house.cluster.give_gpu_back(lost)
                lost = ""
            house.drain({})
    raise AssertionError("it takes for ever")


@pytest.mark.parametrize(
    "seeds", [range(4), pytest.param(range(4, 4 + cases(16)), marks=pytest.mark.slow)], ids=["few", "more"]
)
def test_random_sessions_with_gangs_lose_nothing_and_replay(seeds: range) -> None:
    """Each step is checked: the cluster refuses to hold a GPU twice, and the ledger agrees with the records."""
    for seed in seeds:
        house = random_gangs(seed)
        for life in house.lives:
            assert differences(life.begin(), life.steps) == []
        for _, job in house.store.records.values():
            assert job.state in (JobState.SUCCEEDED, JobState.CANCELLED), job.message
            for attempt in job.attempts:
                assert len(attempt.placement.gpus) == job.spec.gpu_count
            assert job.reservation is None or job.state is JobState.CANCELLED
        assert not any(entry.phase is Phase.PLACED for entry in house.core.ledger.entries.values())
