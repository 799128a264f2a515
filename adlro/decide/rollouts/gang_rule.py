"""The rule `hold_gang`, compiled, on the simulator's own arrays. numpy and numba only.

The rule is that of adlro/decide/gang_rule.py, as for the policy; a test checks that both choose the same. Where neither
cores nor memory ever bind and all GPUs of a model are alike, as in most simulations, jobs with as many GPUs have the
same sets: a decision works each out once (`Plain`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from adlro.decide.gang_rule import (
    GangRule,
    Surroundings,
    cost_of,
    fill_model_s,
    is_too_long,
    surroundings_of,
    unused_share,
)
from adlro.decide.policies.hold_gang import HoldGangSettings
from adlro.decide.policies.hold_greedy import FIXED
from adlro.decide.reservation import MODEL, SAME_INSTANT_S, SLACK, SPREAD, may_start, reserve
from adlro.decide.rollouts.rule import Base, base_policy, hold_greedy, remaining_s
from adlro.numeric.compiled import compiled_call, compiled_part
from adlro.numeric.exact_compiled import log, log1p
from adlro.sim.course import Course
from adlro.sim.kernel import find_gives, hold_is_allowed
from adlro.state.candidate_table import find_kinds
from adlro.state.gangs import NEVER, Outlook, choose_packed, choose_spread
from adlro.state.job_arrays import JobArrays
from adlro.state.machines import IDLE, Hardware, Machines
from adlro.state.observation import HOLD, Bools, Floats, Ints
from adlro.state.room import has_room


class Plain(NamedTuple):
    """What a decision works out once, where cores and memory never bind and the GPUs of a model are alike.

    Attributes:
        node_model: (N, M) model of a node's GPUs; -1: it has none.
        model_memory_mib: (N, K) memory of a model's GPUs.
        cores_each, memory_each_mib: (N,) what each node has at least for each of its GPUs; -1: the GPUs of a model, or
            of a node, are not alike.
        holders: (K,) nodes of the model with idle GPUs.
        node, gives: (K, M) these nodes, and their idle GPUs.
        idle: (K,) idle GPUs of the model.
        one: (K, 2) the node for a job of one GPU: of all, and of those that are not kept; -1: none.
        known: (K, W + 1, 2) number of the decision that worked out the set, by model, GPUs, packed or spread.
        found: (K, W + 1, 2) whether there is one.
        unused: (K, W + 1, 2) the share of empty nodes that it leaves unused.
        on_kept: (K, W + 1, 2) its GPUs on kept nodes.
        taken: (M,) room.
    """

    node_model: Ints
    model_memory_mib: Ints
    cores_each: Ints
    memory_each_mib: Ints
    holders: Ints
    node: Ints
    gives: Ints
    idle: Ints
    one: Ints
    known: Ints
    found: Bools
    unused: Floats
    on_kept: Ints
    taken: Ints


class GangBase(NamedTuple):
    """The rule's parameters, with scratch memory: one per thread.

    Attributes:
        rule: the parameters.
        single: the rule where no job of several GPUs waits or runs.
        surroundings: of the cluster at the decision.
        plain: as above.
        gpu_idle: (G,) idle and present.
        gpu_kind, kind_gpu: (G,) the kind of each GPU, and the lowest GPU of each kind.
        kinds: (1,) their number.
        looked: (3,) the cluster looked at last; whether its outlook is of this decision; whether its kinds are known
            for all known speeds 1.
        duration_s: (G,) a job's expected duration on each kind.
        spread_speed: (K,) of jobs of one GPU.
        log_of: (J, 1 + 2K) numbers of which the rule took the logarithm: b, then d / b by model, packed and spread.
        log: (J, 1 + 2K) these logarithms.
        gpus: (W,) the chosen GPUs, then -1.
        trial, best: (W,) room.
        calls: (2,) decisions so far, and those where the rule for jobs of one GPU decided.
    """

    rule: GangRule
    single: Base
    surroundings: Surroundings
    plain: Plain
    gpu_idle: Bools
    gpu_kind: Ints
    kind_gpu: Ints
    kinds: Ints
    looked: Ints
    duration_s: Floats
    spread_speed: Floats
    log_of: Floats
    log: Floats
    gpus: Ints
    trial: Ints
    best: Ints
    calls: Ints


def gang_base(settings: HoldGangSettings, hardware: Hardware, jobs: JobArrays) -> GangBase:
    """The rule for these very clusters, and lists of up to as many jobs, GPUs and models as these."""
    gpus = hardware.gpu_model.shape[1]
    nodes, models, width = hardware.node_cores.shape[1], jobs.duration_s.shape[2], jobs.widest
    gpu_model, gpu_memory_mib, gpu_node, cores_held, memory_held_mib = np.zeros((5, gpus), dtype=np.int64)
    cores_free, memory_free_mib, *room = np.zeros((8, nodes), dtype=np.int64)
    outlook = Outlook(
        gpu_model,
        gpu_memory_mib,
        gpu_node,
        np.zeros(gpus),
        cores_held,
        memory_held_mib,
        cores_free,
        memory_free_mib,
        np.zeros(nodes + 1, dtype=np.int64),
        *room,
    )
    return GangBase(
        rule=settings.rule(),
        single=base_policy(FIXED, hardware),
        surroundings=surroundings_of(outlook, models),
        plain=_plain(hardware, models, width),
        gpu_idle=np.zeros(gpus, dtype=np.bool_),
        gpu_kind=np.zeros(gpus, dtype=np.int64),
        kind_gpu=np.zeros(gpus, dtype=np.int64),
        kinds=np.zeros(1, dtype=np.int64),
        looked=np.array([-1, 0, 0]),
        duration_s=np.zeros(gpus),
        spread_speed=np.zeros(models),
        log_of=np.full((jobs.submit_s.shape[1], 1 + 2 * models), np.nan),
        log=np.zeros((jobs.submit_s.shape[1], 1 + 2 * models)),
        gpus=np.full(width, HOLD, dtype=np.int64),
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
        holders=np.zeros(models, dtype=np.int64),
        node=np.zeros((models, nodes), dtype=np.int64),
        gives=np.zeros((models, nodes), dtype=np.int64),
        idle=np.zeros(models, dtype=np.int64),
        one=np.zeros((models, 2), dtype=np.int64),
        known=np.zeros(by_set, dtype=np.int64),
        found=np.zeros(by_set, dtype=np.bool_),
        unused=np.zeros(by_set),
        on_kept=np.zeros(by_set, dtype=np.int64),
        taken=np.zeros(nodes, dtype=np.int64),
    )


# ---- the cluster


@compiled_part
def _with_gangs(hardware: Hardware, machines: Machines, jobs: JobArrays, course: Course, n: int) -> bool:
    """Whether a job of several GPUs waits or runs, or some job has a reservation."""
    if course.job_nodes.shape[2] == 0:
        return False
    if course.reserved_job[n] >= 0:
        return True
    number = course.list_of[n]
    for i in range(course.waiting_count[n]):
        if jobs.gpu_count[number, course.waiting[n, i]] > 1:
            return True
    most = 0
    for gpu in range(hardware.gpu_count[n]):
        most = max(most, machines.gpu_gang[n, gpu])
    return bool(most > 1)


@compiled_part
def _look_at_cluster(
    hardware: Hardware, machines: Machines, jobs: JobArrays, course: Course, n: int, base: GangBase
) -> bool:
    """Fills in the rule's input about cluster n, but what `_look_ahead` fills; returns whether it is plain."""
    around, outlook, plain = base.surroundings, base.surroundings.outlook, base.plain
    count, nodes, models = hardware.gpu_count[n], hardware.node_cores.shape[1], plain.idle.shape[0]
    around.known[0] += 1
    base.looked[1] = 0
    if base.looked[0] != n:
        base.looked[0] = n
        _copy_hardware(hardware, n, outlook)
        base.looked[2] = 0
    number, cores, memory_mib = course.list_of[n], 0, 0
    for i in range(course.waiting_count[n]):
        job = course.waiting[n, i]
        cores = max(cores, jobs.cores[number, job])
        memory_mib = max(memory_mib, jobs.memory_mib[number, job])
    # What an idle GPU's last job held counts too: that is quicker, and at most makes a plain cluster a common one.
    other_speeds = 0
    for gpu in range(count):
        cores = max(cores, machines.gpu_cores[n, gpu])
        memory_mib = max(memory_mib, machines.gpu_memory_mib[n, gpu])
        other_speeds += course.known_speed[n, gpu] != 1.0
    as_stated = other_speeds == 0
    is_plain = as_stated and cores <= plain.cores_each[n] and memory_mib <= plain.memory_each_mib[n]
    for model in range(models):
        around.model_there[model] = 0
        plain.holders[model] = plain.idle[model] = 0
    all_there = 0
    for node in range(nodes):
        idle, there = 0, 0
        for gpu in range(hardware.node_first_gpu[n, node], hardware.node_first_gpu[n, node + 1]):
            usable = machines.gpu_speed[n, gpu] > 0.0
            is_idle = usable & (machines.gpu_job[n, gpu] == IDLE)
            base.gpu_idle[gpu] = is_idle
            there += usable
            idle += is_idle
            around.model_there[hardware.gpu_model[n, gpu]] += usable
        around.node_idle[node], around.node_there[node] = idle, there
        all_there += there
        if idle > 0 and is_plain:
            model = plain.node_model[n, node]
            plain.node[model, plain.holders[model]], plain.gives[model, plain.holders[model]] = node, idle
            plain.holders[model] += 1
            plain.idle[model] += idle
    _look_at_kinds(hardware, machines, course, n, as_stated, all_there == count, base)
    return bool(is_plain)


@compiled_part
def _copy_hardware(hardware: Hardware, n: int, outlook: Outlook) -> None:
    """Fills in what never changes of cluster n."""
    for node in range(hardware.node_cores.shape[1]):
        outlook.node_first_gpu[node + 1] = hardware.node_first_gpu[n, node + 1]
    for gpu in range(outlook.gpu_free_s.shape[0]):
        outlook.gpu_model[gpu] = hardware.gpu_model[n, gpu]
        outlook.gpu_memory_mib[gpu] = hardware.gpu_memory_mib[n, gpu]
        outlook.gpu_node[gpu] = hardware.gpu_node[n, gpu]


@compiled_call
def _look_ahead(hardware: Hardware, machines: Machines, n: int, base: GangBase) -> None:
    """Fills in when GPUs, cores and memory are expected to be free, once in a decision."""
    if base.looked[1] == 1:
        return
    base.looked[1] = 1
    outlook, count = base.surroundings.outlook, hardware.gpu_count[n]
    for gpu in range(count):
        busy = machines.gpu_job[n, gpu] != IDLE
        outlook.gpu_free_s[gpu] = 0.0 if base.gpu_idle[gpu] else remaining_s(machines, n, gpu)
        outlook.gpu_cores_held[gpu] = machines.gpu_cores[n, gpu] * busy
        outlook.gpu_memory_held_mib[gpu] = machines.gpu_memory_mib[n, gpu] * busy
    for gpu in range(count, outlook.gpu_free_s.shape[0]):
        outlook.gpu_free_s[gpu] = np.inf
    for node in range(outlook.node_cores_free.shape[0]):
        outlook.node_cores_free[node] = machines.cores_free[n, node]
        outlook.node_memory_free_mib[node] = machines.memory_free_mib[n, node]


@compiled_part
def _look_at_kinds(
    hardware: Hardware, machines: Machines, course: Course, n: int, as_stated: bool, all_there: bool, base: GangBase
) -> None:
    """Fills in the kinds of GPUs; they stay for as long as the cluster is the same and all known speeds are 1."""
    around, count = base.surroundings, hardware.gpu_count[n]
    if not (as_stated and base.looked[2] == 1):
        base.kinds[0] = find_kinds(hardware, course.known_speed, n, count, base.gpu_kind, base.kind_gpu)
        base.looked[2] = as_stated
        for kind in range(base.kinds[0]):
            around.kind_model[kind] = hardware.gpu_model[n, base.kind_gpu[kind]]
    for kind in range(base.kinds[0]):
        around.kind_there[kind] = all_there
    if not all_there:
        for gpu in range(count):
            if machines.gpu_speed[n, gpu] > 0.0:
                around.kind_there[base.gpu_kind[gpu]] = True


@compiled_part
def _fill_durations(hardware: Hardware, jobs: JobArrays, course: Course, n: int, job: int, base: GangBase) -> float:
    """Fills in a job's expected duration on each kind and model; returns the shortest; inf: on none."""
    number = course.list_of[n]
    gpu_count = jobs.gpu_count[number, job]
    for kind in range(base.kinds[0]):
        gpu = base.kind_gpu[kind]
        node, model = hardware.gpu_node[n, gpu], hardware.gpu_model[n, gpu]
        possible = has_room(
            jobs.cores[number, job],
            jobs.memory_mib[number, job],
            jobs.gpu_memory_mib[number, job],
            hardware.node_cores[n, node],
            hardware.node_memory_mib[n, node],
            hardware.gpu_memory_mib[n, gpu],
        ) and (gpu_count == 1 or course.job_nodes[n, job, model] != NEVER)
        expected_s = jobs.expected_s[number, job, model] / course.known_speed[n, gpu]
        base.duration_s[kind] = expected_s if possible else np.inf
    return float(fill_model_s(base.surroundings, gpu_count, base.duration_s[: base.kinds[0]], course.job_nodes[n, job]))


# ---- the reservation


@compiled_part
def _is_startable(
    hardware: Hardware,
    machines: Machines,
    jobs: JobArrays,
    course: Course,
    n: int,
    job: int,
    is_plain: bool,
    base: GangBase,
) -> bool:
    """Whether a job of several GPUs has a set now."""
    number, plain = course.list_of[n], base.plain
    gpu_count = jobs.gpu_count[number, job]
    for model in range(plain.idle.shape[0]):
        packed = course.job_nodes[n, job, model]
        if packed == NEVER or (is_plain and plain.idle[model] < gpu_count):
            continue
        speed = jobs.expected_spread_speed[number, job, model]
        if is_plain and jobs.max_nodes[number, job] == 0:
            if speed > 0.0 or _plain_set(base, model, gpu_count, packed, 0):
                return True
            continue
        count = find_gives(hardware, machines, jobs, course, n, job, model)
        if choose_packed(course.gives[n], count, gpu_count, packed, course.taken[n]) or (
            speed > 0.0
            and choose_spread(course.gives[n], count, gpu_count, packed, jobs.max_nodes[number, job], course.taken[n])
        ):
            return True
    return False


@compiled_part
def _reserve(
    hardware: Hardware, machines: Machines, jobs: JobArrays, course: Course, n: int, job: int, base: GangBase
) -> float:
    """Works out the reservation of a job of cluster n."""
    number = course.list_of[n]
    if jobs.gpu_count[number, job] == 1:
        return np.inf
    _look_ahead(hardware, machines, n, base)
    _fill_durations(hardware, jobs, course, n, job, base)
    return float(
        reserve(
            base.surroundings.outlook,
            jobs.gpu_count[number, job],
            jobs.max_nodes[number, job],
            jobs.cores[number, job],
            jobs.memory_mib[number, job],
            jobs.gpu_memory_mib[number, job],
            course.job_nodes[n, job],
            base.surroundings.model_s,
            jobs.expected_spread_speed[number, job],
            base.surroundings.kept,
        )
    )


@compiled_part
def _reserved_job(
    hardware: Hardware, machines: Machines, jobs: JobArrays, course: Course, n: int, is_plain: bool, base: GangBase
) -> int:
    """The job that has the reservation, or gets it now, worked out into `kept`; -1: none."""
    reserved, number = course.reserved_job[n], course.list_of[n]
    if reserved >= 0 and _reserve(hardware, machines, jobs, course, n, reserved, base) < np.inf:
        return int(reserved)
    below, after = np.inf, -1
    while True:
        found, place, most = -1, -1, base.rule.rho
        for i in range(course.waiting_count[n]):
            job = course.waiting[n, i]
            if jobs.gpu_count[number, job] > 1:
                best_s = _fill_durations(hardware, jobs, course, n, job, base)
                ratio = (machines.time_s[n] - jobs.submit_s[number, job]) / best_s
                if (
                    most < ratio
                    and (ratio < below or (ratio == below and i > after))
                    and not _is_startable(hardware, machines, jobs, course, n, job, is_plain, base)
                ):
                    found, place, most = job, i, ratio
        if found < 0:
            return -1
        if _reserve(hardware, machines, jobs, course, n, found, base) < np.inf:
            return int(found)
        below, after = most, place


# ---- sets that many jobs have in common


@compiled_call
def _plain_set(base: GangBase, model: int, gpu_count: int, packed: int, spread: int) -> bool:
    """Whether there is a set for jobs that accept any number of nodes; works it out, once in a decision."""
    plain, around = base.plain, base.surroundings
    if plain.known[model, gpu_count, spread] == around.known[0]:
        return bool(plain.found[model, gpu_count, spread])
    plain.known[model, gpu_count, spread] = around.known[0]
    gives, count = plain.gives[model], plain.holders[model]
    if spread == 1:
        found = choose_spread(gives, count, gpu_count, packed, 0, plain.taken)
    else:
        found = choose_packed(gives, count, gpu_count, packed, plain.taken)
    plain.found[model, gpu_count, spread] = found
    if found:
        unused, on_kept = 0.0, 0
        for i in range(count):
            if plain.taken[i] > 0:
                unused += unused_share(around, plain.node[model, i], plain.taken[i])
                if around.kept.node[plain.node[model, i]]:
                    on_kept += plain.taken[i]
        plain.unused[model, gpu_count, spread], plain.on_kept[model, gpu_count, spread] = unused, on_kept
    return bool(found)


@compiled_part
def _find_nodes_for_one(base: GangBase, reserved: int) -> None:
    """Fills in, by model, the node for a job of one GPU: that with the fewest idle GPUs."""
    plain, around = base.plain, base.surroundings
    for model in range(plain.idle.shape[0]):
        first = second = -1
        for i in range(plain.holders[model]):
            node = plain.node[model, i]
            if first < 0 or around.node_idle[node] < around.node_idle[first]:
                first = node
            if (reserved < 0 or not around.kept.node[node]) and (
                second < 0 or around.node_idle[node] < around.node_idle[second]
            ):
                second = node
        plain.one[model, 0], plain.one[model, 1] = first, second


@compiled_part
def _log_of(base: GangBase, job: int, place: int, value: float) -> float:
    """The logarithm of a number that mostly was the same at the last decision."""
    if base.log_of[job, place] != value:
        base.log_of[job, place] = value
        base.log[job, place] = log(value)
    return float(base.log[job, place])


# ---- the decision


@compiled_call
def hold_gang(hardware: Hardware, machines: Machines, jobs: JobArrays, course: Course, n: int, base: GangBase) -> int:
    """The rule's action for cluster n at a decision: the job, or HOLD; its GPUs are in `base.gpus`.

    Sets the cluster's reservation.
    """
    base.calls[0] += 1
    for i in range(base.gpus.shape[0]):
        base.gpus[i] = HOLD
    if not _with_gangs(hardware, machines, jobs, course, n):
        base.calls[1] += 1
        job, base.gpus[0] = hold_greedy(hardware, machines, jobs, course, n, base.single)
        return job
    may_hold, around, number = hold_is_allowed(machines, jobs, course, n), base.surroundings, course.list_of[n]
    is_plain = _look_at_cluster(hardware, machines, jobs, course, n, base)
    reserved = _reserved_job(hardware, machines, jobs, course, n, is_plain, base)
    course.reserved_job[n] = reserved
    around.known[0] += 1  # what is kept is new
    if reserved >= 0 and around.kept.start_s[0] == 0.0:
        model, spread = around.kept.figures[MODEL], around.kept.figures[SPREAD]
        if _set_of(hardware, machines, jobs, course, n, reserved, model, spread, base.gpus, base):
            return int(reserved)
    if is_plain:
        _find_nodes_for_one(base, reserved)
    chosen, least, best_model, best_spread, best_node = HOLD, np.inf, -1, 0, -1
    for i in range(course.waiting_count[n]):
        job = course.waiting[n, i]
        gpu_count = jobs.gpu_count[number, job]
        if gpu_count > machines.idle_count[n]:
            continue
        if not is_plain or jobs.max_nodes[number, job] > 0:
            cost = _try_any(hardware, machines, jobs, course, n, job, is_plain, may_hold, reserved, least, base)
            if cost < least:
                chosen, least, best_model = job, cost, -1
                for k in range(base.gpus.shape[0]):
                    base.gpus[k] = base.trial[k]
            continue
        best_s = np.nan
        for model in range(base.plain.idle.shape[0]):
            if base.plain.idle[model] < gpu_count:
                continue
            expected_s = jobs.expected_s[number, job, model]
            if gpu_count == 1:
                if not expected_s < np.inf or jobs.gpu_memory_mib[number, job] > base.plain.model_memory_mib[n, model]:
                    continue
            elif course.job_nodes[n, job, model] == NEVER:
                continue
            if best_s != best_s:
                best_s = _fill_durations(hardware, jobs, course, n, job, base)
            for spread in range(1 if gpu_count == 1 else 2):
                its_s, unused, on_kept = expected_s, 0.0, 0
                if gpu_count > 1:
                    packed = course.job_nodes[n, job, model]
                    if spread == 1:
                        speed = jobs.expected_spread_speed[number, job, model]
                        if speed == 0.0:
                            continue
                        its_s /= speed
                    if not _plain_set(base, model, gpu_count, packed, spread):
                        continue
                    unused = base.plain.unused[model, gpu_count, spread]
                    on_kept = base.plain.on_kept[model, gpu_count, spread]
                if may_hold and its_s > base.rule.s_max * best_s:
                    continue
                if (
                    may_hold
                    and reserved >= 0
                    and job != reserved
                    and not may_start_plain(around, model, gpu_count, on_kept, its_s)
                ):
                    if gpu_count > 1 or base.plain.one[model, 1] < 0:
                        continue
                    unused = unused_share(around, base.plain.one[model, 1], 1)
                    on_kept = -1
                if gpu_count == 1 and on_kept == 0:
                    unused = unused_share(around, base.plain.one[model, 0], 1)
                # The refusal that takes long comes last, for a candidate that would be chosen.
                cost = _cost(machines, jobs, n, number, job, best_s, its_s, unused, model * 2 + spread, least, base)
                if cost > least:
                    continue
                if may_hold and its_s > base.rule.theta * best_s:
                    zero = 0 * gpu_count  # not a constant: numba would compile the function again
                    _look_ahead(hardware, machines, n, base)
                    if is_too_long(
                        base.rule,
                        around,
                        its_s,
                        gpu_count,
                        jobs.max_nodes[number, job],
                        zero,
                        zero,
                        zero,
                        course.job_nodes[n, job],
                        jobs.expected_spread_speed[number, job],
                    ):
                        continue
                node = base.plain.one[model, 1 if on_kept < 0 else 0]
                # On a tie of one job of one GPU the lower-numbered GPU, as a node's GPUs have consecutive numbers.
                if cost < least or (cost == least and job == chosen and gpu_count == 1 and node < best_node):
                    chosen, least, best_model, best_spread, best_node = job, cost, model, spread, node
    if best_model >= 0:
        _choose(hardware, machines, jobs, course, n, chosen, best_model, best_spread, best_node, base)
    return int(chosen)


@compiled_part
def may_start_plain(around: Surroundings, model: int, gpu_count: int, on_kept: int, duration_s: float) -> bool:
    """`may_start`, where cores and memory never bind.

    Args:
        on_kept: GPUs of the set on kept nodes; for a job of one GPU: its node may be kept.
    """
    kept = around.kept
    if duration_s <= kept.start_s[0] + SAME_INSTANT_S or model != kept.figures[MODEL]:
        return True
    if gpu_count == 1:
        return bool(kept.figures[SLACK] >= 1)
    return bool(on_kept <= kept.figures[SLACK])


@compiled_part
def _cost(
    machines: Machines,
    jobs: JobArrays,
    n: int,
    number: int,
    job: int,
    best_s: float,
    duration_s: float,
    unused: float,
    place: int,
    least: float,
    base: GangBase,
) -> float:
    """The cost of a candidate; inf where it is above `least` for certain.

    Args:
        place: that of its duration's logarithm.
    """
    ratio = max(machines.time_s[n] - jobs.submit_s[number, job], 0.0) / best_s
    gpu_count, length_ln = jobs.gpu_count[number, job], _log_of(base, job, 0, best_s)
    slow_ln = _log_of(base, job, 1 + place, duration_s / best_s)
    # Logarithms of times waited are new at each decision: tangents at 0, 3 and 19 are above ln(1 + ratio).
    above = min(ratio, 1.3863 + (ratio - 3.0) * 0.25, 2.9958 + (ratio - 19.0) * 0.05)
    if cost_of(base.rule, gpu_count, length_ln, slow_ln, unused, above) > least + 1e-6:
        return np.inf
    return float(cost_of(base.rule, gpu_count, length_ln, slow_ln, unused, log1p(ratio)))


@compiled_part
def _choose(
    hardware: Hardware,
    machines: Machines,
    jobs: JobArrays,
    course: Course,
    n: int,
    job: int,
    model: int,
    spread: int,
    node: int,
    base: GangBase,
) -> None:
    """Fills in the GPUs of the chosen candidate; of a job of one GPU the lowest idle one of the node."""
    if jobs.gpu_count[course.list_of[n], job] > 1:
        _set_of(hardware, machines, jobs, course, n, job, model, spread, base.gpus, base)
        return
    for i in range(base.gpus.shape[0]):
        base.gpus[i] = HOLD
    gpu = hardware.node_first_gpu[n, node]
    while not base.gpu_idle[gpu]:
        gpu += 1
    base.gpus[0] = gpu


@compiled_call
def _set_of(
    hardware: Hardware,
    machines: Machines,
    jobs: JobArrays,
    course: Course,
    n: int,
    job: int,
    model: int,
    spread: int,
    gpus: Ints,
    base: GangBase,
) -> bool:
    """Fills in the GPUs of a set for a job of several, then HOLD; returns False where there is none now."""
    number = course.list_of[n]
    gpu_count, packed = jobs.gpu_count[number, job], course.job_nodes[n, job, model]
    count = find_gives(hardware, machines, jobs, course, n, job, model)
    gives, taken = course.gives[n], course.taken[n]
    if spread == 1:
        found = choose_spread(gives, count, gpu_count, packed, jobs.max_nodes[number, job], taken)
    else:
        found = choose_packed(gives, count, gpu_count, packed, taken)
    for i in range(gpus.shape[0]):
        gpus[i] = HOLD
    if not found:
        return False
    place = 0
    for i in range(count):
        gpu, left = hardware.node_first_gpu[n, course.node[n, i]], taken[i]
        while left > 0:
            if (
                base.gpu_idle[gpu]
                and hardware.gpu_model[n, gpu] == model
                and hardware.gpu_memory_mib[n, gpu] >= jobs.gpu_memory_mib[number, job]
            ):
                gpus[place] = gpu
                place += 1
                left -= 1
            gpu += 1
    return True


# ---- any cluster


@compiled_call
def _try_any(
    hardware: Hardware,
    machines: Machines,
    jobs: JobArrays,
    course: Course,
    n: int,
    job: int,
    is_plain: bool,
    may_hold: bool,
    reserved: int,
    least: float,
    base: GangBase,
) -> float:
    """The least cost of a job's candidates, where cores or memory may bind; its GPUs are in `trial`.

    Only what is below `least` counts; inf: nothing is.
    """
    number, around, found = course.list_of[n], base.surroundings, np.inf
    gpu_count = jobs.gpu_count[number, job]
    best_s = _fill_durations(hardware, jobs, course, n, job, base)
    _look_ahead(hardware, machines, n, base)
    if gpu_count == 1:
        return _try_one(hardware, machines, jobs, course, n, job, is_plain, may_hold, reserved, best_s, least, base)
    trial, best = base.trial, base.best
    for model in range(base.plain.idle.shape[0]):
        if course.job_nodes[n, job, model] == NEVER:
            continue
        for spread in range(2):
            speed = jobs.expected_spread_speed[number, job, model]
            if spread == 1 and speed == 0.0:
                continue
            if not _set_of(hardware, machines, jobs, course, n, job, model, spread, trial, base):
                continue
            its_s, unused, i = 0.0, 0.0, 0
            while i < gpu_count:
                node, taken = hardware.gpu_node[n, trial[i]], 0
                while i < gpu_count and hardware.gpu_node[n, trial[i]] == node:
                    its_s = max(its_s, base.duration_s[base.gpu_kind[trial[i]]])
                    taken += 1
                    i += 1
                unused += unused_share(around, node, taken)
            if spread == 1:
                its_s /= speed
            if may_hold and _is_refused(jobs, course, n, job, is_plain, reserved, best_s, its_s, trial, base):
                continue
            cost = _cost(machines, jobs, n, number, job, best_s, its_s, unused, model * 2 + spread, least, base)
            if cost < least and cost < found:
                found = cost
                for k in range(best.shape[0]):
                    best[k] = trial[k]
    for k in range(best.shape[0]):
        trial[k] = best[k]
    return float(found)


@compiled_part
def _is_refused(
    jobs: JobArrays,
    course: Course,
    n: int,
    job: int,
    is_plain: bool,
    reserved: int,
    best_s: float,
    duration_s: float,
    gpus: Ints,
    base: GangBase,
) -> bool:
    """Whether the rule refuses a candidate, where a hold is allowed."""
    number, around = course.list_of[n], base.surroundings
    gpu_count = jobs.gpu_count[number, job]
    cores, memory_mib = jobs.cores[number, job], jobs.memory_mib[number, job]
    gpu_memory_mib = jobs.gpu_memory_mib[number, job]
    if duration_s > base.rule.s_max * best_s:
        return True
    if (
        reserved >= 0
        and job != reserved
        and not may_start(around.outlook, around.kept, gpus, gpu_count, duration_s, cores, memory_mib)
    ):
        return True
    if duration_s <= base.rule.theta * best_s:
        return False
    return bool(
        is_too_long(
            base.rule,
            around,
            duration_s,
            gpu_count,
            jobs.max_nodes[number, job],
            cores * (not is_plain),
            memory_mib * (not is_plain),
            gpu_memory_mib * (not is_plain),
            course.job_nodes[n, job],
            jobs.expected_spread_speed[number, job],
        )
    )


@compiled_part
def _try_one(
    hardware: Hardware,
    machines: Machines,
    jobs: JobArrays,
    course: Course,
    n: int,
    job: int,
    is_plain: bool,
    may_hold: bool,
    reserved: int,
    best_s: float,
    least: float,
    base: GangBase,
) -> float:
    """`_try_any` of a job of one GPU: of each kind the GPU on the node with the fewest idle ones."""
    number, around, trial, best = course.list_of[n], base.surroundings, base.trial, base.best
    found, chosen = np.inf, HOLD
    for k in range(trial.shape[0]):
        trial[k] = HOLD
    for kind in range(base.kinds[0]):
        if not base.duration_s[kind] < np.inf:
            continue
        of_kind, fewest = -1, 0
        for gpu in range(base.kind_gpu[kind], hardware.gpu_count[n]):
            node = hardware.gpu_node[n, gpu]
            if (
                not base.gpu_idle[gpu]
                or base.gpu_kind[gpu] != kind
                or (of_kind >= 0 and around.node_idle[node] >= fewest)
                or not has_room(
                    jobs.cores[number, job],
                    jobs.memory_mib[number, job],
                    jobs.gpu_memory_mib[number, job],
                    machines.cores_free[n, node],
                    machines.memory_free_mib[n, node],
                    hardware.gpu_memory_mib[n, gpu],
                )
            ):
                continue
            trial[0] = gpu
            if may_hold and _is_refused(
                jobs, course, n, job, is_plain, reserved, best_s, base.duration_s[kind], trial, base
            ):
                continue
            of_kind, fewest = gpu, around.node_idle[node]
        if of_kind < 0:
            continue
        unused = unused_share(around, hardware.gpu_node[n, of_kind], 1)
        its_s = base.duration_s[kind]
        cost = _cost(machines, jobs, n, number, job, best_s, its_s, unused, 0 * kind, least, base)
        if cost < least and (cost < found or (cost == found and of_kind < chosen)):
            found, chosen = cost, of_kind
    best[0] = trial[0] = chosen
    return float(found)
