"""Draws what decompose's memory holds: which applications are alike in it. Writes an SVG.

    python -m benchmarks.decompose_picture [--jobs 3000] [--seed 1] [--out docs/application_similarity.svg]

Jobs of the scenario `paper` are put into the memory. An application's hypervector is the bundle of its finished jobs'
ones, each of what it ran on, how long it took (a fractional-power code of the logarithm), its type and its user, but
not of the application's name. Names were never compared: what is alike here is alike by what was observed.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import escape

import numpy as np

from adlro.services.decompose.hypervectors.algebra import bind, similarity
from adlro.services.decompose.hypervectors.codebook import default_codebook
from adlro.services.decompose.hypervectors.similarity_kernel import Floats
from adlro.services.decompose.outcomes.model_speeds import ModelSpeeds
from adlro.services.decompose.outcomes.outcome_memory import FinishedJob, OutcomeMemory
from adlro.services.decompose.variables.variables import Variables
from adlro.workload.job_lists import draw_jobs
from adlro.workload.scenario import load_scenario

CELL, LEFT, TOP = 30, 150, 150


def finished(count: int, seed: int) -> list[FinishedJob]:
    """Finished jobs of the scenario."""
    rng = np.random.default_rng(seed)
    memory, speeds = OutcomeMemory(Variables(), ModelSpeeds(), count), ModelSpeeds()
    scenario = load_scenario("paper")
    for number, job in enumerate(draw_jobs(scenario, load=0.9, rng=rng, count=count)):
        model = scenario.cluster.gpu_models[int(rng.integers(len(scenario.cluster.gpu_models)))]
        spec = job.spec(f"{number}")
        memory.add(FinishedJob(f"{number}", spec, model, job.work_s / speeds.of(spec, model).ratio, float(number)))
    return memory.jobs()


def application_vectors(jobs: Sequence[FinishedJob]) -> tuple[list[str], Floats]:
    """Applications and the mean hypervector of each one's jobs, without what all jobs have in common: A x d."""
    book = default_codebook()
    runtime = book.fractional("picture/log2 runtime", length_scale=1.0)
    sums: dict[str, Floats] = {}
    counts: dict[str, int] = {}
    for job in jobs:
        length = bind(book.atom(f"role/runtime on {job.gpu_model}"), runtime.code(math.log2(job.runtime_s)))
        vector = 2.0 * length + book.atom(f"user/{job.spec.user}") + book.atom(f"type/{job.spec.job_type.label}")
        name = job.spec.application
        sums[name] = sums.get(name, np.zeros(book.dimension)) + vector
        counts[name] = counts.get(name, 0) + 1
    names = sorted(sums)
    means = np.array([sums[name] / counts[name] for name in names])
    return names, means - means.mean(axis=0)


def order(similar: Floats) -> list[int]:
    """Rows so that those alike stand together: each next is the one most like the last two."""
    left = list(range(len(similar)))
    ordered = [left.pop(int(np.argmax(similar.sum(axis=1))))]
    while left:
        recent = ordered[-2:]
        ordered.append(left.pop(int(np.argmax([similar[each, recent].mean() for each in left]))))
    return ordered


def svg(names: Sequence[str], similar: Floats) -> str:
    """A matrix of squares: blue is alike, red is unlike, white neither."""
    size = CELL * len(names)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + size + 10}" height="{TOP + size + 10}" '
        'font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for i, name in enumerate(names):
        y, x = TOP + CELL * i, LEFT + CELL * i
        parts.append(f'<text x="{LEFT - 6}" y="{y + 19}" text-anchor="end">{escape(name)}</text>')
        parts.append(f'<text transform="translate({x + 19},{TOP - 6}) rotate(-60)">{escape(name)}</text>')
        for j in range(len(names)):
            value = float(similar[i, j])
            fade = round(255 * (1 - min(1.0, abs(value))))
            colour = f"rgb({fade},{fade},255)" if value > 0 else f"rgb(255,{fade},{fade})"
            parts.append(
                f'<rect x="{LEFT + CELL * j}" y="{y}" width="{CELL - 1}" height="{CELL - 1}" fill="{colour}">'
                f"<title>{escape(name)}, {escape(names[j])}: {value:.2f}</title></rect>"
            )
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    """Draws."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("docs/application_similarity.svg"))
    arguments = parser.parse_args()
    names, vectors = application_vectors(finished(arguments.jobs, arguments.seed))
    similar = similarity(vectors, vectors)
    ordered = order(similar)
    arguments.out.write_text(svg([names[each] for each in ordered], similar[np.ix_(ordered, ordered)]))
    print(f"{arguments.out}: {len(names)} applications, {arguments.jobs} jobs, d = {vectors.shape[1]}")


if __name__ == "__main__":
    main()
