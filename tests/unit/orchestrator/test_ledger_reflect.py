"""What each running job holds, in the ledger's observations, made anew or brought up to date."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from adlro.records.cluster import Cluster
from adlro.services.orchestrator.ledger.ledger import Ledger
from adlro.state.observation import Observation
from tests.ledgers import queue


def held(observation: Observation) -> tuple[list[int], list[int]]:
    return observation.gpu_cores_held[0].tolist(), observation.gpu_memory_held_mib[0].tolist()


def test_an_observation_shows_what_each_job_holds(cluster: Cluster) -> None:
    ledger = Ledger(cluster)
    first = queue(ledger, 1, (4, 5, 6), cpu_cores=3, memory_mib=1000)
    second = queue(ledger, 2, (4, 5, 6), cpu_cores=2, memory_mib=700)
    assert held(ledger.observe(0.0)) == ([0] * 5, [0] * 5)
    ledger.place(first, 1, 0.0)
    ledger.place(second, 4, 0.0)
    before = ledger.occupancy.copy()
    seen = ledger.observe(1.0)
    ledger.forget(first)
    ledger.set_lost(["radeon-0/0"], True)  # its job is not told of as ended yet
    assert held(seen) == ([0, 3, 0, 0, 2], [0, 1000, 0, 0, 700])
    assert before.cores_held.tolist() == [0, 3, 0, 0, 2]
    assert held(ledger.observe(1.0)) == ([0, 0, 0, 0, 2], [0, 0, 0, 0, 700])


def test_brought_up_to_date_it_is_as_made_anew(cluster: Cluster) -> None:
    ledger = Ledger(cluster)
    for number in range(6):
        queue(ledger, number, (4.5, 5, 6), cpu_cores=number % 4 + 1, memory_mib=1000 + number, submit_s=number / 3)
    seen = ledger.observe(17.3)
    rows = list(range(6))  # of the jobs that still wait
    for row, gpu in ((2, 0), (0, 4), (5, 1)):
        ledger.place(ledger.queued()[rows.index(row)], gpu, 17.3)
        seen = ledger.reflect(seen, row, gpu)
        rows.remove(row)
        anew = ledger.observe(17.3)
        for field in fields(Observation):
            ours, theirs = getattr(seen, field.name), getattr(anew, field.name)
            if field.name == "table":  # but for where the jobs stand
                np.testing.assert_array_equal(ours.rows_of_job[:, rows], theirs.rows_of_job)
                np.testing.assert_array_equal(ours.job, [rows[job] for job in theirs.job])
                ours, theirs = (np.stack(table[2:]) for table in (ours, theirs))
            if field.name.startswith("job_") or field.name == "kind_duration_s":
                ours = ours[:, rows]
            # What a user has had is the same: nobody had anything, and no time has passed.
            np.testing.assert_array_equal(ours, theirs, err_msg=field.name)
        assert seen.table.rows_of_job[0, row] == 0
        assert not seen.job_waiting[0, row]
