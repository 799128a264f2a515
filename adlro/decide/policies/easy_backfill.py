"""EASY backfilling. Arrays only."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from adlro.decide.policies.base import Judgement, Policy
from adlro.decide.present import kinds_that_hold, waiting_gangs
from adlro.decide.reservation import may_enter, reservation_of
from adlro.decide.winner import winners
from adlro.state.observation import Bools, Floats, Ints, Observation
from adlro.state.room import node_room

_SAME_INSTANT_S = 1e-6
"""Ends closer together than this are one instant: sums of floats depend on the clock's time."""


class Reservation(NamedTuple):
    """The expected start of the head of N queues, if no other job starts.

    Attributes:
        shadow_s: (N,) time until then; inf if the head can never start.
        gpu: (N,) the GPU.
        cores_spare, memory_spare_mib: (N,) free resources of its node then, beside the head's.
    """

    shadow_s: Floats
    gpu: Ints
    cores_spare: Ints
    memory_spare_mib: Ints


class EasyBackfill(Policy):
    """First come, first served; while the head waits, others may start that do not delay its expected start.

    If the head does not fit now, it has a reservation: at the expected ends of the running jobs their GPUs, cores and
    memory become free; the head gets the GPU where these first suffice (the faster GPU on a tie), and that moment is
    its shadow time. After it, in order of submission, a job may start on a GPU of another node; on the reserved GPU's
    node if it is expected to end by the shadow time, or if it takes another GPU and no more cores and memory than are
    free beside the head by then. Each job takes the GPU that is fastest for it.

    No started job delays the earliest start of the head: recomputed at each decision, the shadow time can only become
    earlier, and with exact durations the head starts by the first shadow time.

    A job whose GPUs are all lost or drained has no shadow time and is not the head: the next one is.

    Behind a head of one GPU, a set of GPUs for a job of several counts with all of its GPUs on the reserved node. A
    head of several GPUs reserves the nodes of the set with which it should end first, of all models, packed or spread
    (adlro/decide/reservation.py): it starts once such a set is free, and not before on a slower one. Behind it a job
    may start that is expected to end by then, or leaves these nodes enough for it.

    Source: Lifka, "The ANL/IBM SP scheduling system" (1995); Mu'alem and Feitelson, "Utilization, predictability,
    workloads, and user runtime estimates in scheduling the IBM SP2 with backfilling" (2001), section 2.
    """

    name = "easy_backfill"
    description = (
        "the head of the queue on its fastest GPU, and behind a head that waits what does not delay it; "
        "score: minus the expected duration in s"
    )
    advice = (
        "Where nobody may wait much longer than others: the shortest longest wait of all, 47 s beside 67 s "
        "of fcfs at load 0.9."
    )

    def weigh(self, observation: Observation) -> Judgement:
        """Minus the expected duration, for the head, or otherwise the first job that may be backfilled."""
        table, waiting = observation.table, observation.job_waiting
        if not len(table.job):
            return Judgement(np.zeros(0))
        able = waiting & kinds_that_hold(observation).any(axis=2)
        head = np.argmax(able, axis=1)  # (N,)
        reserved = reservation(observation, head)

        cluster = table.cluster
        node, kept = observation.gpu_node, reserved.gpu[cluster]
        elsewhere = node[cluster, table.gpu] != node[cluster, kept]
        in_time = table.duration_s <= reserved.shadow_s[cluster] + _SAME_INSTANT_S
        spare = reserved.cores_spare[:, None], reserved.memory_spare_mib[:, None]
        modest = table.of_job(node_room(observation.job_cores, observation.job_memory_mib, *spare))
        is_reserved = table.gpu == kept
        may = elsewhere | in_time | (modest & (~is_reserved | (table.size > 1)))
        of_head = table.job == head[cluster]
        # The reserved GPU stays free: the job takes another GPU of its group.
        another = is_reserved & ~in_time & ~of_head
        may |= of_head
        for n in np.flatnonzero(waiting_gangs(observation)).tolist():
            rows = table.rows(n)
            if observation.gangs is not None and observation.gangs.gpu_count[n, head[n]] > 1:
                may[rows], another[rows] = _behind_a_gang(observation, n, int(head[n])), False
            else:
                is_set = _is_set(table.gpus[rows])
                may[rows] = np.where(is_set, _sets_may(observation, n, reserved) | in_time[rows], may[rows])
        first = winners(table, np.where(may, 0.0, -np.inf))
        chosen = may & (table.job == table.job[first][cluster])
        gpu = table.gpu.copy()
        for row in np.flatnonzero(chosen & another):
            gpu[row] = observation.group(int(cluster[row]), int(row))[1]
        return Judgement(np.where(chosen, -table.duration_s, -np.inf), gpu=gpu)

    def preferences(self, observation: Observation) -> Floats:
        """(C,) minus the expected duration, for the head, or otherwise the first job that may be backfilled."""
        return self.weigh(observation).scores


def reservation(observation: Observation, head: Ints) -> Reservation:
    """The reservation of the jobs `head` (N,), from the running jobs and their expected ends."""
    batch = np.arange(len(head))
    rows = batch[:, None]
    remaining_s, node = observation.gpu_remaining_s, observation.gpu_node
    cores, memory_mib = observation.job_cores[batch, head], observation.job_memory_mib[batch, head]
    order = np.lexsort((remaining_s, node))  # (N, G) by node, then by expected end
    room = _enough_by(observation.gpu_cores_held, observation.node_cores_free, node, order, cores)
    room &= _enough_by(observation.gpu_memory_held_mib, observation.node_memory_free_mib, node, order, memory_mib)
    # Ends at one instant: the first end that suffices, with those before it in `order`, has their common time.
    room_s = np.full(observation.node_cores_free.shape, np.inf)
    np.minimum.at(room_s, (rows, node[rows, order]), np.where(room, remaining_s[rows, order], np.inf))
    duration_s = np.take_along_axis(observation.kind_duration_s[batch, head], observation.gpu_kind, axis=1)  # (N, G)
    start_s = np.where(np.isfinite(duration_s), np.maximum(remaining_s, room_s[rows, node]), np.inf)  # (N, G)
    shadow_s = start_s.min(axis=1)
    at_once = start_s <= shadow_s[:, None] + _SAME_INSTANT_S
    gpu = np.argmin(np.where(at_once, duration_s, np.inf), axis=1)

    its_node = node[batch, gpu]
    ended = (node == its_node[:, None]) & (remaining_s <= shadow_s[:, None] + _SAME_INSTANT_S)
    cores_by_then = observation.node_cores_free[batch, its_node] + (ended * observation.gpu_cores_held).sum(axis=1)
    memory_by_then = observation.node_memory_free_mib[batch, its_node] + (ended * observation.gpu_memory_held_mib).sum(
        axis=1
    )
    return Reservation(shadow_s, gpu, cores_by_then - cores, memory_by_then - memory_mib)


def _is_set(gpus: Ints) -> Bools:
    """(R,) whether rows (R, W) are sets of several GPUs."""
    several: Bools = (gpus >= 0).sum(axis=1) > 1
    return several


def _sets_may(observation: Observation, n: int, reserved: Reservation) -> Bools:
    """(R,) whether all GPUs of rows of cluster n leave a head of one GPU what is reserved for it."""
    table, gpu = observation.table.of_cluster(n), int(reserved.gpu[n])
    there = (observation.gpu_node[n, table.gpus] == observation.gpu_node[n, gpu]) & (table.gpus >= 0)
    cores = there.sum(axis=1) * observation.job_cores[n, table.job]
    memory_mib = there.sum(axis=1) * observation.job_memory_mib[n, table.job]
    modest = (cores <= reserved.cores_spare[n]) & (memory_mib <= reserved.memory_spare_mib[n])
    may: Bools = ~there.any(axis=1) | (modest & ~(table.gpus == gpu).any(axis=1))
    return may


def _behind_a_gang(observation: Observation, n: int, head: int) -> Bools:
    """(R,) which rows of cluster n may start: of the head, a job of several GPUs, those of its reservation, if now."""
    reserved = reservation_of(observation, n, head)
    if reserved is None:
        return np.ones(len(observation.table.job[observation.table.rows(n)]), dtype=np.bool_)
    may = may_enter(observation, n, reserved)
    if reserved.start_s > observation.time_s[n] + _SAME_INSTANT_S:
        may[observation.table.job[observation.table.rows(n)] == head] = False
    return may


def _enough_by(held: Ints, free: Ints, node: Ints, order: Ints, asked: Ints) -> Bools:
    """(N, G) whether the resources suffice once the jobs up to each place of `order` on its node have ended.

    Args:
        held: (N, G) held by the job on each GPU.
        free: (N, M) free on the nodes now.
        asked: (N,) requested by the head.
    """
    rows = np.arange(len(order))[:, None]
    in_order, node_in_order = held[rows, order], node[rows, order]
    freed = np.cumsum(in_order, axis=1)
    of_node = np.zeros_like(free)
    np.add.at(of_node, (rows, node), held)
    before = np.cumsum(of_node, axis=1) - of_node  # (N, M) held on the nodes of lower numbers, which come before
    enough: Bools = free[rows, node_in_order] + freed - before[rows, node_in_order] >= asked[:, None]
    return enough
