"""What the compiled rule `hold_gang` (adlro/decide/rollouts/gang_rule.py) remembers. numpy and numba only."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from adlro.decide.gang_rule import GangRule, Surroundings, surroundings_of
from adlro.decide.policies.hold_gang import HoldGangSettings
from adlro.decide.policies.hold_greedy import FIXED
from adlro.decide.rollouts.rule import Base, base_policy
from adlro.state.cluster_arrays import Hardware
from adlro.state.gangs import room_for_outlook
from adlro.state.job_arrays import JobArrays
from adlro.state.observation import HOLD, Bools, Floats, Ints


class Plain(NamedTuple):
    """What a decision works out once, where cores and memory never bind and the GPUs of a model are alike.

    Attributes:
        node_model: (N, M) model of a node's GPUs; -1: it has none.
        model_memory_mib: (N, K) memory of a model's GPUs.
        cores_each, memory_each_mib: (N,) what each node has at least for each of its GPUs; -1: the GPUs of a model, or
            of a node, are not alike.
        node_there, model_there: (M,), (K,) GPUs of each node and model while none is lost.
        nodes: (K,) nodes of each model; of these:
        node_of: (K, M) their numbers.
        holders: (K,) nodes of the model with idle GPUs.
        node, gives: (K, M) these nodes, and their idle GPUs.
        idle, most: (K,) idle GPUs of the model, and the most of them on one node.
        one: (K, 2) the node for a job of one GPU: of all, and of those that are not kept; -1: none.
        known: (K, W + 1, 2) number of the decision that worked out the set, by model, GPUs, packed or spread.
        found: (K, W + 1, 2) whether there is one.
        unused: (K, W + 1, 2) the share of empty nodes that it leaves unused.
        on_kept: (K, W + 1, 2) its GPUs on kept nodes.
        wait_known: (K, W + 1) number of the decision that worked out the wait, by model and GPUs.
        wait_s: (K, W + 1) expected time until a node of the model has so many idle GPUs.
        taken: (M,) room.
        free_s: (G,) room.
    """

    node_model: Ints
    model_memory_mib: Ints
    cores_each: Ints
    memory_each_mib: Ints
    node_there: Ints
    model_there: Ints
    nodes: Ints
    node_of: Ints
    holders: Ints
    node: Ints
    gives: Ints
    idle: Ints
    most: Ints
    one: Ints
    known: Ints
    found: Bools
    unused: Floats
    on_kept: Ints
    wait_known: Ints
    wait_s: Floats
    taken: Ints
    free_s: Floats


class GangBase(NamedTuple):
    """The rule's parameters, with scratch memory: one per thread.

    Attributes:
        rule: the parameters.
        single: the rule where no job of several GPUs waits or runs.
        surroundings: of the cluster at the decision.
        plain: as above.
        gpu_kind, kind_gpu: (G,) the kind of each GPU, and the lowest GPU of each kind.
        kinds: (1,) their number.
        looked: (4,) the cluster looked at last; whether its outlook is of this decision; whether its kinds are known
            for all known speeds 1; whether its kinds are of this decision.
        duration_s: (G,) a job's expected duration on each kind.
        spread_speed: (K,) of jobs of one GPU.
        best_known: (J,) number of the decision that worked out the job's shortest duration.
        best_s: (J,) this duration.
        best_model: (J,) the model on which it is that; -1: none.
        log_of: (J, 1 + 2K) numbers of which the rule took the logarithm: b, then d / b by model, packed and spread.
        log: (J, 1 + 2K) these logarithms.
        gpus: (W,) the chosen GPUs, then -1.
        pick: (3,) of the best candidate so far the model, whether it is spread, and the node for a job of one GPU.
        trial, best: (W,) room.
        calls: (2,) decisions so far, and those where the rule for jobs of one GPU decided.
    """

    rule: GangRule
    single: Base
    surroundings: Surroundings
    plain: Plain
    gpu_kind: Ints
    kind_gpu: Ints
    kinds: Ints
    looked: Ints
    duration_s: Floats
    spread_speed: Floats
    best_known: Ints
    best_s: Floats
    best_model: Ints
    log_of: Floats
    log: Floats
    gpus: Ints
    pick: Ints
    trial: Ints
    best: Ints
    calls: Ints


def gang_base(settings: HoldGangSettings, hardware: Hardware, jobs: JobArrays) -> GangBase:
    """The rule for these very clusters, and lists of up to as many jobs, GPUs and models as these."""
    gpus = hardware.gpu_model.shape[1]
    nodes, models, width = hardware.node_cores.shape[1], jobs.duration_s.shape[2], jobs.widest
    return GangBase(
        rule=settings.rule(),
        single=base_policy(FIXED, hardware),
        surroundings=surroundings_of(room_for_outlook(gpus, nodes), models),
        plain=_plain(hardware, models, width),
        gpu_kind=np.zeros(gpus, dtype=np.int64),
        kind_gpu=np.zeros(gpus, dtype=np.int64),
        kinds=np.zeros(1, dtype=np.int64),
        looked=np.array([-1, 0, 0, 0]),
        duration_s=np.zeros(gpus),
        spread_speed=np.zeros(models),
        best_known=np.zeros(jobs.submit_s.shape[1], dtype=np.int64),
        best_s=np.zeros(jobs.submit_s.shape[1]),
        best_model=np.zeros(jobs.submit_s.shape[1], dtype=np.int64),
        log_of=np.full((jobs.submit_s.shape[1], 1 + 2 * models), np.nan),
        log=np.zeros((jobs.submit_s.shape[1], 1 + 2 * models)),
        gpus=np.full(width, HOLD, dtype=np.int64),
        pick=np.zeros(3, dtype=np.int64),
        trial=np.full(width, HOLD, dtype=np.int64),
        best=np.full(width, HOLD, dtype=np.int64),
        calls=np.zeros(2, dtype=np.int64),
    )


def _plain(hardware: Hardware, models: int, width: int) -> Plain:
    batch, nodes = hardware.node_cores.shape
    node_model = np.full((batch, nodes), -1, dtype=np.int64)
    memory_mib = np.zeros((batch, models), dtype=np.int64)
    each = np.full((2, batch), -1, dtype=np.int64)
    first: dict[bytes, int] = {}
    for n in range(batch):
        same = first.setdefault(b"".join(np.ascontiguousarray(column[n]).tobytes() for column in hardware), n)
        if same != n:
            node_model[n], memory_mib[n], each[:, n] = node_model[same], memory_mib[same], each[:, same]
            continue
        there = hardware.gpu_memory_mib[n] >= 0
        model, node, its_mib = (
            hardware.gpu_model[n, there],
            hardware.gpu_node[n, there],
            hardware.gpu_memory_mib[n, there],
        )
        memory_mib[n, model] = its_mib
        node_model[n, node] = model
        held = np.bincount(node, minlength=nodes)
        if (memory_mib[n, model] == its_mib).all() and (node_model[n, node] == model).all():
            some = held > 0
            each[0, n] = (hardware.node_cores[n, some] // held[some]).min()
            each[1, n] = (hardware.node_memory_mib[n, some] // held[some]).min()
    by_set = (models, width + 1, 2)
    return Plain(
        node_model=node_model,
        model_memory_mib=memory_mib,
        cores_each=each[0].copy(),
        memory_each_mib=each[1].copy(),
        node_there=np.zeros(nodes, dtype=np.int64),
        model_there=np.zeros(models, dtype=np.int64),
        nodes=np.zeros(models, dtype=np.int64),
        node_of=np.zeros((models, nodes), dtype=np.int64),
        holders=np.zeros(models, dtype=np.int64),
        node=np.zeros((models, nodes), dtype=np.int64),
        gives=np.zeros((models, nodes), dtype=np.int64),
        idle=np.zeros(models, dtype=np.int64),
        most=np.zeros(models, dtype=np.int64),
        one=np.zeros((models, 2), dtype=np.int64),
        known=np.zeros(by_set, dtype=np.int64),
        found=np.zeros(by_set, dtype=np.bool_),
        unused=np.zeros(by_set),
        on_kept=np.zeros(by_set, dtype=np.int64),
        wait_known=np.zeros((models, width + 1), dtype=np.int64),
        wait_s=np.zeros((models, width + 1)),
        taken=np.zeros(nodes, dtype=np.int64),
        free_s=np.zeros(hardware.gpu_model.shape[1]),
    )
