"""What a scheduler knew at any moment of a simulated list, as forecasts of starts read it: see expected_start.py."""

from __future__ import annotations

import numpy as np

from adlro.decide.forecast.moment import Jobs, Moment, Past
from adlro.numeric.exact import log_array
from adlro.records.cluster import Cluster
from adlro.sim.batch import BatchOutcome
from adlro.state.candidate_table import gpu_kinds
from adlro.state.cluster_arrays import hardware_of
from adlro.state.job_arrays import JobArrays
from adlro.state.observation import Floats, Ints
from adlro.state.room import room

PAST_JOBS, PAST_ERRORS = 512, 256


class ListReplay:
    """One list of jobs of one GPU each, run to its end.

    Args:
        cluster: where it ran.
        arrays: the lists.
        outcome: what became of them.
        number: this list.
    """

    def __init__(self, cluster: Cluster, arrays: JobArrays, outcome: BatchOutcome, number: int) -> None:
        self._hardware = hardware = hardware_of([cluster], cluster.gpu_models)
        gpus = hardware.gpu_model.shape[1]
        kinds, kind_gpus = gpu_kinds(hardware, np.ones((1, gpus)))
        self._kind: Ints = kinds[0]
        kind_gpu, node = kind_gpus[0], hardware.gpu_node[0]
        row = (number, slice(0, int(arrays.job_count[number])))
        fits = room(
            arrays.cores[row][:, None],
            arrays.memory_mib[row][:, None],
            arrays.gpu_memory_mib[row][:, None],
            hardware.node_cores[0, node[kind_gpu]],
            hardware.node_memory_mib[0, node[kind_gpu]],
            hardware.gpu_memory_mib[0, kind_gpu],
        )
        self.submit_s: Floats = arrays.submit_s[row]
        self._jobs = Jobs(
            np.where(fits, arrays.expected_s[row][:, hardware.gpu_model[0, kind_gpu]], np.inf),
            arrays.expected_spread[row],
            arrays.gpu_count[row],
            arrays.max_nodes[row],
            arrays.cores[row],
            arrays.memory_mib[row],
            self.submit_s,
        )
        self.job_type: Ints = arrays.job_type[row]
        self.start_s: Floats = outcome.start_s[row]
        self._end_s: Floats = outcome.end_s[row]
        self._gpu: Ints = outcome.gpu[row].astype(np.int64)
        model = hardware.gpu_model[0, self._gpu][:, None]
        self._expected_s: Floats = np.take_along_axis(arrays.expected_s[row], model, axis=1)[:, 0]
        true_s = np.take_along_axis(arrays.duration_s[row], model, axis=1)[:, 0]
        spread = self._jobs.spread
        self._error: Floats = log_array(true_s / self._expected_s) / np.where(spread > 0, spread, np.nan)

    def moment(self, time_s: float) -> tuple[Ints, Moment]:
        """The numbers of the waiting jobs, and the moment, after the decisions of that instant."""
        hardware, node = self._hardware, self._hardware.gpu_node[0]
        running = np.flatnonzero((self.start_s <= time_s) & (self._end_s > time_s))
        queued = np.flatnonzero((self.submit_s <= time_s) & (self.start_s > time_s))
        gpus = len(node)
        busy = np.zeros(gpus, dtype=np.bool_)
        busy[self._gpu[running]] = True
        cores, memory_mib, run = np.zeros((3, gpus), dtype=np.int64)
        start_s, expected_s, spread = np.zeros((3, gpus))
        for column, values in (
            (cores, self._jobs.cores),
            (memory_mib, self._jobs.memory_mib),
            (start_s, self.start_s),
            (expected_s, self._expected_s),
            (spread, self._jobs.spread),
        ):
            column[self._gpu[running]] = values[running]
        run[:] = np.where(busy, np.arange(gpus), -1)
        free, free_mib = hardware.node_cores[0].copy(), hardware.node_memory_mib[0].copy()
        np.subtract.at(free, node, cores)
        np.subtract.at(free_mib, node, memory_mib)
        there = np.ones(gpus, dtype=np.bool_)
        columns = there, busy, start_s, expected_s, spread, run, cores, memory_mib, free, free_mib
        return queued, Moment(time_s, self._kind, node, *columns, self._jobs.rows(queued))

    def past(self, time_s: float) -> Past:
        """What the scheduler has seen by then."""
        seen = np.flatnonzero(self.submit_s <= time_s)
        newest = seen[-PAST_JOBS:]
        begin_s = 0.0 if len(seen) <= PAST_JOBS else float(self.submit_s[newest[0]])
        ended = np.flatnonzero(self._end_s <= time_s)
        errors = self._error[ended[np.argsort(self._end_s[ended])]][-PAST_ERRORS:]
        return Past(self._jobs.rows(newest), max(time_s - begin_s, 1e-3), errors[np.isfinite(errors)])
