"""Random small instances from a seed. Standard library only."""

from __future__ import annotations

import math
import random
from dataclasses import replace

from tests.oracle.records import Change, Gpu, Instance, Job, Node

MODELS = 3
FAMILIES = 3


def draw_instance(
    seed: int, *, max_jobs: int = 12, gangs: bool = True, stops: bool = False, shares: bool = False
) -> Instance:
    """1-5 nodes of 1-4 GPUs of up to three models; jobs of 1-8 GPUs; GPUs that are lost, come back, change their speed.

    Half of the instances have times on a coarse grid, so that much happens at one instant; half are wrong about what
    they expect; a third has whole nodes of one model and cores that never bind.

    Args:
        gangs: False: jobs of one GPU only.
        stops: some jobs are preemptible.
        shares: some jobs are shareable.
    """
    draw = random.Random(seed)
    grid, plain, wrong = draw.random() < 0.5, draw.random() < 0.35, draw.random() < 0.5
    nodes, gpus = draw_machines(draw, plain)
    count = draw.randint(draw.choice((0, max_jobs // 2, max_jobs // 2)), max_jobs)
    span_s = draw.choice((0.0, 0.3, 1.0, 3.0, 30.0)) * 6.0 * count / len(gpus)

    def time_s(most_s: float) -> float:
        at_s = draw.uniform(0.0, most_s)
        return round(at_s * 2.0) / 2.0 if grid else round(at_s, 3)

    def duration_s() -> float:
        return float(draw.randint(1, 12)) if grid else draw.lognormvariate(1.5, 0.8)

    submits_s = sorted(time_s(span_s) for _ in range(count))
    sizes = draw.choice(((1, 1, 2, 2, 3, 4, 5, 8), (2, 2, 3, 4, 8), (1, 1, 1, 2, 4))) if gangs else (1,)
    too_big = draw.choice((0.0, 0.1))
    jobs = []
    for submit_s in submits_s:
        absent = draw.randrange(3 * MODELS)
        true_s = tuple(math.inf if model == absent else duration_s() for model in range(MODELS))
        told_s = tuple(math.inf if s == math.inf else duration_s() if wrong else s for s in true_s)
        spreads = tuple(draw.choice((0.0, 0.25, 0.5, 0.9, 1.0, draw.uniform(0.1, 1.0))) for _ in range(MODELS))
        told = tuple(speed and (draw.choice((0.5, 0.8, 1.0)) if wrong else speed) for speed in spreads)
        beyond = draw.random() < too_big
        jobs.append(
            Job(
                submit_s,
                true_s,
                gpu_count=draw.choice(sizes),
                max_nodes=draw.choice((0, 0, 0, 1, 2, 3)) if gangs else 0,
                spread_speed=spreads,
                cores=draw.randint(0, 13 if beyond else 4),
                memory_mib=draw.choice((0, 1, 999, 1000, 2007, 13000 if beyond else 1007)),
                gpu_memory_mib=draw.choice((0, 0, 4000, 8000, 8001, 16161 if beyond else 11264)),
                user=draw.randrange(3),
                expected_s=told_s,
                expected_spread_speed=told,
                preemptible=stops and draw.random() < 0.7,
                restart_s=draw.choice((0.0, 0.5, 1.0, draw.uniform(0.0, 2.0))),
                lost_s=draw.choice((0.0, 0.0, 1.0, draw.uniform(0.0, 3.0))),
                shareable=shares and draw.random() < 0.7,
                family=draw.randrange(FAMILIES),
            )
        )
    # Early changes too: where an end is more than twice as late, the time until then is rounded.
    times = sorted(time_s(draw.choice((span_s + 25.0, 4.0))) for _ in range(draw.choice((0, 0, 5, 10, 20))))
    speeds = draw.choice(((0.0, 0.0, 1.0, 1.0, 0.5, 2.0, 0.3), (1.0, 2.0, 0.5, 0.3)))
    instance = Instance(
        nodes=nodes,
        gpus=gpus,
        jobs=tuple(jobs),
        changes=tuple(Change(at_s, draw.randrange(len(gpus)), draw.choice(speeds)) for at_s in times),
        start_cost_s=draw.choice((0.0, 0.0, 0.5, 0.7, 2.0)),
        kept={
            (one, other, model): draw.choice((0.5, 0.8, 1.0, draw.uniform(0.2, 1.0)))
            for one in range(FAMILIES)
            for other in range(FAMILIES)
            for model in range(MODELS)
            if draw.random() < 0.9
        },
    )
    if not (shares and wrong):
        return instance
    return replace(instance, expected_kept={pair: draw.choice((0.4, 0.8, 1.0)) for pair in instance.kept})


def draw_machines(draw: random.Random, plain: bool) -> tuple[tuple[Node, ...], tuple[Gpu, ...]]:
    count = draw.randint(1, 5)
    if plain:
        models = [draw.randrange(MODELS) for _ in range(count)]
        size = draw.choice((2, 4, 4))
        gpus = tuple(Gpu(node, model, 16160) for node, model in enumerate(models) for _ in range(size))
        return tuple(Node(64, 200000) for _ in models), gpus
    nodes = tuple(Node(draw.randint(2, 12), draw.randint(2, 12) * 1000 + 7) for _ in range(count))
    known = draw.sample(range(MODELS), draw.randint(1, MODELS))
    one_model = draw.random() < 0.6
    drawn = []
    for node in range(count):
        model = draw.choice(known)
        for _ in range(draw.randint(1, 4)):
            drawn.append(
                Gpu(node, model if one_model else draw.choice(known), draw.choice((8000, 11264, 16160, 16160)))
            )
    return nodes, tuple(drawn)
