"""A replay that is brought to a load: the list's submissions come faster or slower, its jobs stay as they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from adlro.errors import InvalidInput

if TYPE_CHECKING:
    from adlro.records.cluster import Cluster
    from adlro.workload.job_lists import WorkloadJob


@dataclass(frozen=True, slots=True)
class ReplayLoad:
    """What a list offers a cluster.

    Attributes:
        recorded: load at the recorded times: rate of submissions as a share of what the cluster can carry of such jobs
            (adlro/workload/capacity.py).
        replayed: load at the replayed times.
        factor: by which submission times, counted from the first, are multiplied.
    """

    recorded: float
    replayed: float
    factor: float

    @property
    def sentence(self) -> str:
        """For people."""
        return (
            f"submission times are multiplied by {self.factor:.4g}: the list offers a load of {self.replayed:g}; as "
            f"recorded it offers {self.recorded:.3g} (1: what the cluster can carry)"
        )


def brought_to_load(
    jobs: Sequence[WorkloadJob], cluster: Cluster, load: float
) -> tuple[list[WorkloadJob], ReplayLoad, list[str]]:
    """The list at another load, what was done, and warnings.

    Jobs that fit on no GPU of the cluster count for nothing; they come faster or slower like the others.

    Raises:
        InvalidInput: fewer than two jobs fit, all come at once, or a GPU model without speeds.
        Unsupported: scipy is not installed.
    """
    from adlro.workload.capacity import offered_load, stretched
    from adlro.workload.demand import demand_warnings, find_unplaceable, split_placeable

    fitting = split_placeable(cluster, jobs)
    if len(fitting) < 2:
        raise InvalidInput(
            f"load: {len(fitting)} of {len(jobs)} jobs fit on this cluster, and a load needs two; leave out --load",
            field="load",
        )
    recorded = offered_load(cluster, fitting)
    if math.isinf(recorded):
        raise InvalidInput(
            "load: all jobs are submitted at once: there is no rate to bring to a load; leave out --load", field="load"
        )
    done = ReplayLoad(recorded, load, recorded / load)
    return stretched(jobs, done.factor), done, list(demand_warnings(find_unplaceable(cluster, jobs), load))
