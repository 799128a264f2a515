"""Expected free times and reservations, against plain Python and cases by hand."""

from __future__ import annotations

import numpy as np
import pytest

from adlro.decide.reservation import Reservation, may_enter, reservation_of
from adlro.sim.batch import BatchSimulator
from adlro.state.observation import HOLD, Observation
from tests.unit.sim.test_gang_physics import TURING, V100, begin, cluster, draw, job, simulator

Gone = dict[int, tuple[int, int, int]]
"""By node what a start takes of it: GPUs that the reserved job could take, cores, memory."""


def gives_by(seen: Observation, place: int, model: int, free_s: float, gone: Gone) -> list[int]:
    """GPUs of the model that each node can give the job at a time, less what is gone."""
    given = []
    for node in range(seen.node_cores_free.shape[1]):
        cores, memory = int(seen.node_cores_free[0, node]), int(seen.node_memory_free_mib[0, node])
        able = 0
        for gpu in np.flatnonzero(seen.gpu_node[0] == node):
            if seen.gpu_remaining_s[0, gpu] <= free_s:
                cores += int(seen.gpu_cores_held[0, gpu])
                memory += int(seen.gpu_memory_held_mib[0, gpu])
                able += bool(
                    seen.gpu_model[0, gpu] == model and seen.gpu_memory_mib[0, gpu] >= seen.job_gpu_memory_mib[0, place]
                )
        less = gone.get(node, (0, 0, 0))
        able, cores, memory = able - less[0], cores - less[1], memory - less[2]
        if seen.job_cores[0, place]:
            able = min(able, cores // int(seen.job_cores[0, place]))
        if seen.job_memory_mib[0, place]:
            able = min(able, memory // int(seen.job_memory_mib[0, place]))
        given.append(max(able, 0))
    return given


def worked_out(seen: Observation, place: int) -> tuple[float, int, bool, set[int], int] | None:
    """(wait, model, spread, nodes, slack) of the job's reservation, by trying all times."""
    gangs = seen.gangs
    assert gangs is not None
    size = int(gangs.gpu_count[0, place])
    most = int(gangs.max_nodes[0, place])
    best = None
    for model in range(len(seen.gpu_models)):
        there = np.isfinite(seen.gpu_remaining_s[0]) & (seen.gpu_model[0] == model)
        lengths = seen.durations_s(0, place)[there]
        length_s = lengths.min() if len(lengths) else np.inf
        packed = 1 if size == 1 else int(gangs.nodes[0, place, model])
        if packed == 0 or not np.isfinite(length_s):
            continue
        for spread in (False, True):
            its_s, nodes = length_s, packed
            if spread:
                if size == 1 or not gangs.spread_speed[0, place, model]:
                    continue
                its_s, nodes = length_s / gangs.spread_speed[0, place, model], most or 10**6
            for free_s in sorted({0.0, *seen.gpu_remaining_s[0][np.isfinite(seen.gpu_remaining_s[0])].tolist()}):
                given = gives_by(seen, place, model, free_s, {})
                if sum(sorted(given, reverse=True)[:nodes]) >= size:
                    if best is None or free_s + its_s < best[0] - 1e-6:
                        by_then = gives_by(seen, place, model, free_s + 1e-6, {})
                        best = free_s + its_s, free_s, model, spread, by_then
                    break
    if best is None:
        return None
    _, free_s, model, spread, given = best
    packed = 1 if size == 1 else int(gangs.nodes[0, place, model])
    if spread:
        chosen = {node for node, count in enumerate(given) if count}
    else:
        order = sorted((node for node, count in enumerate(given) if count), key=lambda node: (-given[node], node))
        chosen = set(order[: packed - 1])
        rest = size - sum(given[node] for node in chosen)
        enough = [node for node in order[packed - 1 :] if given[node] >= rest]
        chosen.add(min(enough, key=lambda node: (given[node], node)))
    return free_s, model, spread, chosen, sum(given[node] for node in chosen) - size


def enters(seen: Observation, reservation: Reservation, row: int) -> bool:
    """Whether a row may start beside a reservation: the nodes can still give what is asked for."""
    table, place = seen.table, int(seen.table.job[row])
    wait_s = reservation.start_s - seen.time_s[0]
    if place == reservation.job or table.duration_s[row] <= wait_s + 1e-6:
        return True
    gone: Gone = {}
    for gpu in table.gpus[row][table.gpus[row] >= 0]:
        node = int(seen.gpu_node[0, gpu])
        able, cores, memory = gone.get(node, (0, 0, 0))
        able += bool(
            seen.gpu_model[0, gpu] == reservation.model
            and seen.gpu_memory_mib[0, gpu] >= seen.job_gpu_memory_mib[0, reservation.job]
        )
        cores, memory = cores + int(seen.job_cores[0, place]), memory + int(seen.job_memory_mib[0, place])
        gone[node] = able, cores, memory
    given = gives_by(seen, reservation.job, reservation.model, wait_s + 1e-6, gone)
    size = 1 if seen.gangs is None else int(seen.gangs.gpu_count[0, reservation.job])
    return sum(given[node] for node in np.flatnonzero(reservation.nodes)) >= size


@pytest.mark.parametrize("seed", range(60))
def test_reservations_of_random_courses_are_those_of_plain_python(seed: int):
    rng = np.random.default_rng(seed)
    there, jobs, changes = draw(rng)
    made = BatchSimulator(there, jobs, gpu_changes=[changes])
    while len(made.active):
        seen = made.observe()
        for place in np.flatnonzero(seen.job_waiting[0])[: 4 if seen.gangs is not None else 0].tolist():
            found, wanted = reservation_of(seen, 0, place), worked_out(seen, place)
            if wanted is None:
                assert found is None
                continue
            wait_s, model, spread, nodes, slack = wanted
            assert found is not None
            assert found.start_s == seen.time_s[0] + wait_s
            assert (found.model, found.spread, found.slack) == (model, spread, slack)
            assert set(np.flatnonzero(found.nodes).tolist()) == nodes
            may = [enters(seen, found, row) for row in range(len(seen.table.job))]
            assert may_enter(seen, 0, found).tolist() == may
        row = int(rng.integers(-1 if seen.hold_allowed[0] else 0, len(seen.table.job)))
        action = np.full((1, 1 + seen.table.gpus.shape[1]), HOLD)
        if row >= 0:
            action[0] = [seen.table.job[row], *seen.table.gpus[row]]
        made.act(action)


def test_a_gang_gets_the_node_where_it_is_expected_to_end_first():
    made = simulator(
        cluster((V100, 2), (V100, 2)),
        [job(1, work_s=9.0), job(1, work_s=4.0), job(2, max_node_count=1), job(1, work_s=4.5)],
    )
    begin(made, 0, 0)
    begin(made, 0, 2)
    seen = made.observe()
    found = reservation_of(seen, 0, 0)
    assert found is not None
    assert (found.start_s, found.nodes.tolist(), found.slack, found.spread) == (4.0, [False, True], 0, False)
    # The job of 4.5 s would end after the start: on the other node it may.
    gpus = seen.table.gpu[seen.table.job == 1]
    assert gpus.tolist() == [1, 3]
    assert may_enter(seen, 0, found)[seen.table.job == 1].tolist() == [True, False]


def test_a_job_that_ends_in_time_may_use_what_is_kept():
    made = simulator(cluster((V100, 2)), [job(1, work_s=9.0), job(2), job(1, work_s=9.0), job(1, work_s=9.1)])
    begin(made, 0, 0)
    seen = made.observe()
    found = reservation_of(seen, 0, 0)
    assert found is not None
    assert found.start_s == 9.0
    assert may_enter(seen, 0, found).tolist() == [True, False]


def test_cores_that_the_gang_needs_are_not_slack():
    jobs = [job(1, work_s=5.0), job(2, cpu_cores=3), job(1, work_s=9.0), job(1, work_s=9.0, cpu_cores=2)]
    made = simulator(cluster((V100, 4), cores=8), jobs)
    begin(made, 0, 0)
    seen = made.observe()
    found = reservation_of(seen, 0, 0)
    assert found is not None
    # Beside the job that runs, the cores are enough for two of its GPUs, and the node has three: one is to spare, if it
    # leaves six of the seven cores.
    assert (found.start_s, found.slack) == (0.0, 0)
    assert may_enter(seen, 0, found)[seen.table.job == 1].tolist() == [True]
    assert may_enter(seen, 0, found)[seen.table.job == 2].tolist() == [False]


def test_what_can_never_start_on_present_gpus_has_no_reservation():
    made = simulator(cluster((V100, 2), (TURING, 1)), [job(2), job(1)], [(0.0, 0, 0.0)])
    seen = made.observe()
    assert reservation_of(seen, 0, 0) is None
    assert reservation_of(seen, 0, 1) is not None
