"""All that a rule may do at a moment: starts, shares, stops and moves. Standard library only."""

from __future__ import annotations

import random
from dataclasses import replace

from tests.oracle.cluster import Oracle, Rule
from tests.oracle.placements import able_gpus, fitting, holds, is_legal, may_share, models
from tests.oracle.records import HOLD, KEEP, NOBODY, Choice


def shares(oracle: Oracle) -> list[Choice]:
    """Starts of one-GPU jobs beside another."""
    return [
        Choice(job, (gpu,))
        for job in oracle.waiting
        for model in models(oracle)
        if holds(oracle, job, model) is not None
        for gpu in able_gpus(oracle, job, model)
        if may_share(oracle, job, gpu) and is_legal(oracle, job, (gpu,))
    ]


def on_pairs(oracle: Oracle) -> list[tuple[int, int]]:
    """Each waiting job of one GPU, and each GPU that two share."""
    jobs = [job for job in oracle.waiting if oracle.jobs[job].gpu_count == 1]
    return [(job, gpu) for job in jobs for gpu, here in enumerate(oracle.on_gpu) if len(here) == 2]


def needs_second(oracle: Oracle, job: int, gpu: int) -> bool:
    """Whether a job would not fit on a GPU that two share if only the first of them gave back what it holds."""
    (cores, memory_mib), first = oracle.free(oracle.gpus[gpu].node), oracle.jobs[oracle.on_gpu[gpu][0].job]
    wants = oracle.jobs[job]
    return wants.cores > cores + first.cores or wants.memory_mib > memory_mib + first.memory_mib


def draw_illegal_share(oracle: Oracle, draw: random.Random) -> Choice | None:
    """A start of a shareable job of one GPU where others run, which must be refused; None: not found."""
    jobs = [job for job in oracle.waiting if oracle.jobs[job].gpu_count == 1 and oracle.jobs[job].shareable]
    busy = [gpu for gpu, here in enumerate(oracle.on_gpu) if here]
    found = [Choice(job, (gpu,)) for job in jobs for gpu in busy if not is_legal(oracle, job, (gpu,))]
    # Mostly beside one that shares too.
    near = [each for each in found if oracle.jobs[oracle.on_gpu[each.gpus[0]][0].job].shareable]
    return draw.choice(near or found) if found else None


def draw_stop(oracle: Oracle, draw: random.Random, moves: bool) -> Choice | None:
    """A start of a waiting job, or a move of a running one, on GPUs drawn among those that are free or can be freed."""
    if draw.random() < 0.3:
        pairs = [(job, gpu) for job, gpu in on_pairs(oracle) if is_legal_stop(oracle, job, (gpu,))]
        if pairs:
            # Where there is one, a job that needs what the second of the two holds.
            job, gpu = draw.choice([pair for pair in pairs if needs_second(oracle, *pair)] or pairs)
            return Choice(job, (gpu,), stop=True)
    movable = [job for job, attempt in oracle.running.items() if oracle.may_stop(attempt)]
    jobs = oracle.waiting + (movable if moves else [])
    if not jobs:
        return None
    job = draw.choice(jobs)
    wants, model = oracle.jobs[job], draw.choice(models(oracle))
    can = [
        gpu
        for gpu in able_gpus(oracle, job, model)
        if oracle.speed[gpu] > 0.0 and all(oracle.may_stop(attempt) for attempt in oracle.on_gpu[gpu])
    ]
    if holds(oracle, job, model) is None or len(can) < wants.gpu_count:
        return None
    gpus = tuple(sorted(draw.sample(can, wants.gpu_count)))
    if job in oracle.running and oracle.running[job].gpus == gpus:
        return None
    return Choice(job, gpus, stop=True) if becomes_legal(oracle, job, gpus) else None


def becomes_legal(oracle: Oracle, job: int, gpus: tuple[int, ...]) -> bool:
    """Whether the job fits on these GPUs once whoever holds them is stopped, and itself where it runs."""
    gone = {attempt.job for gpu in gpus for attempt in oracle.on_gpu[gpu]} | {job}
    wants, used = oracle.jobs[job], {oracle.gpus[gpu].node for gpu in gpus}
    nodes = holds(oracle, job, oracle.gpus[gpus[0]].model)
    if nodes is None or 0 < wants.max_nodes < len(used):
        return False
    if wants.full_s(oracle.gpus[gpus[0]].model, len(used) > nodes) == float("inf"):
        return False
    for node in used:
        cores, memory_mib = oracle.free(node)
        for other in gone & set(oracle.running):
            held = sum(oracle.gpus[gpu].node == node for gpu in oracle.running[other].gpus)
            cores += held * oracle.jobs[other].cores
            memory_mib += held * oracle.jobs[other].memory_mib
        here = sum(oracle.gpus[gpu].node == node for gpu in gpus)
        if here * wants.cores > cores or here * wants.memory_mib > memory_mib:
            return False
    return True


def is_legal_stop(oracle: Oracle, job: int, gpus: tuple[int, ...]) -> bool:
    """Whether a waiting job can start on these GPUs now if whoever holds them is stopped."""
    model = oracle.gpus[gpus[0]].model
    return (
        len(set(gpus)) == oracle.jobs[job].gpu_count
        and set(gpus) <= set(able_gpus(oracle, job, model))
        and all(oracle.speed[gpu] > 0.0 and all(map(oracle.may_stop, oracle.on_gpu[gpu])) for gpu in gpus)
        and becomes_legal(oracle, job, gpus)
    )


def draw_illegal_stop(oracle: Oracle, draw: random.Random) -> Choice | None:
    """A start of a waiting job that stops whoever is there, and must be refused; None: not found."""
    if draw.random() < 0.3:
        pairs = [(job, gpu) for job, gpu in on_pairs(oracle) if not is_legal_stop(oracle, job, (gpu,))]
        if pairs:
            job, gpu = draw.choice(pairs)
            return Choice(job, (gpu,), stop=True)
    job = draw.choice(oracle.waiting)
    count = max(1, oracle.jobs[job].gpu_count + draw.choice((0, 0, 0, 0, 1, -1)))
    among = list(range(len(oracle.gpus)))
    if draw.random() < 0.8:  # one of the other figures alone is wrong
        among = able_gpus(oracle, job, draw.choice(models(oracle)))
    if draw.random() < 0.5:
        among = [gpu for gpu in among if all(map(oracle.may_stop, oracle.on_gpu[gpu]))]
    if len(among) < count:
        return None
    gpus = tuple(sorted(draw.sample(among, count)))
    return None if is_legal_stop(oracle, job, gpus) else Choice(job, gpus, stop=True)


def draw_set(oracle: Oracle, draw: random.Random) -> Choice | None:
    """A start of a waiting job on any GPUs where it is legal, not only on a candidate set; None: not found."""
    job, model = draw.choice(oracle.waiting), draw.choice(models(oracle))
    free = [gpu for gpu in able_gpus(oracle, job, model) if oracle.idle(gpu)]
    if holds(oracle, job, model) is None or len(free) < oracle.jobs[job].gpu_count:
        return None
    gpus = tuple(sorted(draw.sample(free, oracle.jobs[job].gpu_count)))
    return Choice(job, gpus) if is_legal(oracle, job, gpus) else None


def draw_illegal(oracle: Oracle, draw: random.Random) -> Choice | None:
    """A start of a waiting job on distinct GPUs in ascending order that must be refused; None: not found."""
    job = draw.choice(oracle.waiting)
    count = max(1, oracle.jobs[job].gpu_count + draw.choice((0, 0, 0, 0, 1, -1)))
    among = list(range(len(oracle.gpus)))
    if draw.random() < 0.7:  # one of the other figures alone is wrong
        model = draw.choice(models(oracle))
        among = [gpu for gpu in among if oracle.idle(gpu) and oracle.gpus[gpu].model == model]
    if len(among) < count:
        return None
    gpus = tuple(sorted(draw.sample(among, count)))
    return None if is_legal(oracle, job, gpus) else Choice(job, gpus)


def any_set(seed: int, hold_share: float = 0.2, off_table_share: float = 0.2, reserve_share: float = 0.1) -> Rule:
    """Starts and holds at random, on candidate sets and others.

    Where some job has several GPUs, reservations come and go.
    """
    draw = random.Random(seed)

    def rule(oracle: Oracle) -> Choice:
        reserves = draw.random() < reserve_share and any(job.gpu_count > 1 for job in oracle.jobs)
        reserve = draw.choice([NOBODY, *oracle.waiting]) if reserves else KEEP
        illegal = draw_illegal(oracle, draw)
        # Now and then it holds where that is not allowed, and all that waits is left there.
        if draw.random() < (hold_share if oracle.hold_allowed else hold_share / 50):
            return Choice(reserve=reserve, illegal=illegal)
        chosen = draw_set(oracle, draw) if draw.random() < off_table_share else None
        if chosen is None:
            each = draw.choice(list(fitting(oracle)))
            chosen = Choice(each.job, each.gpus)
        return replace(chosen, reserve=reserve, illegal=illegal)

    return rule


def anything(seed: int, hold_share: float = 0.2, stop_share: float = 0.2, *, moves: bool = True) -> Rule:
    """Starts, shares, stops and moves at random; at one instant no more than a few stops.

    Args:
        moves: also of running jobs to other GPUs, without another job.
    """
    draw = random.Random(seed)
    stops: dict[float, int] = {}

    def rule(oracle: Oracle) -> Choice:
        wrong = draw.choice((draw_illegal_stop, draw_illegal_stop, draw_illegal_share, draw_illegal))
        illegal = wrong(oracle, draw) if oracle.waiting else None
        return replace(choice(oracle), illegal=illegal)

    def choice(oracle: Oracle) -> Choice:
        if draw.random() < (hold_share if oracle.hold_allowed else hold_share / 50):
            return HOLD
        if draw.random() < stop_share and stops.get(oracle.now_s, 0) < 3:
            stop = draw_stop(oracle, draw, moves)
            if stop is not None:
                stops[oracle.now_s] = stops.get(oracle.now_s, 0) + 1
                return stop
        beside = shares(oracle)
        if beside and draw.random() < 0.5:
            return draw.choice(beside)
        found = [Choice(each.job, each.gpus) for each in fitting(oracle)] + beside
        return draw.choice(found) if found else HOLD

    return rule
