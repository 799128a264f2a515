"""Checks the input of the batched simulator: compiled code checks nothing. numpy only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adlro.errors import InvalidInput
from adlro.state.job_arrays import JobArrays
from adlro.state.observation import Floats


def check_jobs(jobs: JobArrays, gpu_models: Sequence[str], start_cost_s: float) -> None:
    """Checks the input of a simulation: compiled code checks nothing.

    Raises:
        InvalidInput: durations for other models, or not above 0, or of a job that is expected to run where it cannot;
            submissions that are no ascending numbers from 0; a start cost below 0.
    """
    if jobs.duration_s.shape[2] != len(gpu_models):
        raise InvalidInput(
            f"the jobs have durations on {jobs.duration_s.shape[2]} GPU models, and there are {len(gpu_models)}: "
            f"{', '.join(gpu_models)}",
            field="gpu_models",
        )
    if not 0 <= start_cost_s < np.inf:
        raise InvalidInput(f"start_cost_s must be a number from 0, not {start_cost_s}", field="start_cost_s")
    there = np.arange(jobs.submit_s.shape[1]) < jobs.job_count[:, None]
    early = np.pad(jobs.submit_s, ((0, 0), (1, 0)))[:, :-1]
    # Above 1e12 s, floats can't represent single milliseconds.
    wrong = there & ~((jobs.submit_s >= early) & (jobs.submit_s <= 1e12))
    if wrong.any():
        number, job = (int(place[0]) for place in np.nonzero(wrong))
        raise InvalidInput(
            f"list {number}, job {job}: submit_s is {jobs.submit_s[number, job]}; it must be a number from 0 to 1e12, "
            "and not before that of the job in front of it",
            field="submit_s",
        )
    lasting = (jobs.restart_s >= 0) & (jobs.restart_s < np.inf) & (jobs.lost_s >= 0) & (jobs.lost_s < np.inf)
    bad = there & jobs.preemptible & ~lasting
    if bad.any():
        number, job = (int(place[0]) for place in np.nonzero(bad))
        raise InvalidInput(
            f"list {number}, job {job}: restart_s and lost_s must be numbers from 0, not "
            f"{jobs.restart_s[number, job]} and {jobs.lost_s[number, job]}",
            field="preemptible",
        )
    bad = there & jobs.shareable & (jobs.gpu_count > 1)
    if bad.any():
        number, job = (int(place[0]) for place in np.nonzero(bad))
        raise InvalidInput(f"list {number}, job {job}: a job of several GPUs can't share them", field="shareable")
    bad = there & ~((jobs.gpu_count >= 1) & (jobs.max_nodes >= 0))
    if bad.any():
        number, job = (int(place[0]) for place in np.nonzero(bad))
        raise InvalidInput(
            f"list {number}, job {job}: gpu_count must be at least 1, not {jobs.gpu_count[number, job]}, and max_nodes "
            f"at least 0, not {jobs.max_nodes[number, job]}",
            field="gpu_count",
        )
    # A node with all cores free is taken for an empty one.
    bad = there & (jobs.cores < 1) & bool((there & jobs.exclusive).any())
    bad |= there & jobs.exclusive & jobs.shareable
    if bad.any():
        number, job = (int(place[0]) for place in np.nonzero(bad))
        raise InvalidInput(
            f"list {number}, job {job}: beside exclusive jobs each job needs a core at least, and an exclusive job "
            "can't share its GPU",
            field="exclusive",
        )
    for name in ("spread_speed", "expected_spread_speed"):
        speed = getattr(jobs, name)
        odd = there[:, :, None] & ~((speed >= 0) & (speed <= 1) & ((speed > 0) == (jobs.spread_speed > 0)))
        if odd.any():
            number, job, model = (int(place[0]) for place in np.nonzero(odd))
            raise InvalidInput(
                f"list {number}, job {job}, {gpu_models[model]}: {name} is {speed[number, job, model]}; it must be "
                "from 0 to 1, and above 0 where the job can run spread",
                field=name,
            )
    wrong = there[:, :, None] & ~((jobs.duration_s > 0) & (jobs.expected_s > 0))
    wrong |= there[:, :, None] & np.isinf(jobs.duration_s) & np.isfinite(jobs.expected_s)
    if wrong.any():
        number, job, model = (int(place[0]) for place in np.nonzero(wrong))
        raise InvalidInput(
            f"list {number}, job {job}, {gpu_models[model]}: a job runs {jobs.duration_s[number, job, model]} s and is "
            f"expected to run {jobs.expected_s[number, job, model]} s; both must be above 0, and what cannot run (inf) "
            "cannot be expected to",
            field="duration_s",
        )


def check_nodes(jobs: JobArrays, nodes: int) -> None:
    """Checks the nodes that jobs choose of a cluster of so many nodes.

    Raises:
        InvalidInput: they are those of a cluster of another size.
    """
    known = jobs.node_allowed.shape[2]
    if known not in (0, nodes):
        raise InvalidInput(
            f"the jobs choose among {known} nodes, and the cluster has {nodes}: pack the jobs for this cluster",
            field="node_ids",
        )


def kept_tables(jobs: JobArrays, kept: Floats | None, told: Floats | None) -> tuple[Floats, Floats]:
    """Checks the tables of kept shares, true and expected; both are of size 0 where no GPU is shared.

    Raises:
        InvalidInput: a table of another shape than (F, F, K), or with other figures than from 0 to 1; a job of a family
            that is not in it.
    """
    none = np.zeros((0, 0, 0))
    if kept is None or not jobs.shareable.any():
        return none, none
    told = kept if told is None else told
    families, models = int(jobs.family.max()) + 1, jobs.duration_s.shape[2]
    for name, table in (("kept", kept), ("expected_kept", told)):
        if table.shape != (len(kept), len(kept), models) or len(kept) < families or jobs.family.min() < 0:
            raise InvalidInput(
                f"{name} must be of shape (F, F, {models}) with F at least {families}, not {table.shape}", field=name
            )
        if not ((table >= 0) & (table <= 1)).all():
            raise InvalidInput(f"{name} must be numbers from 0 to 1", field=name)
    return np.ascontiguousarray(kept, dtype=np.float64), np.ascontiguousarray(told, dtype=np.float64)
