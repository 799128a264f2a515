"""Reads a past: from a running suite, or from a job list and a cluster file. The checkpoint in use, too."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from adlro.cli.data_dir import CHECKPOINTS
from adlro.client import AsyncClient
from adlro.decide.policies.dqn import SHIPPED
from adlro.errors import InvalidInput, NotFound
from adlro.hardware.cluster_files import read_cluster_file
from adlro.hardware.speeds import SHIPPED as SPEEDS
from adlro.hardware.speeds import SpeedTable
from adlro.kit.promotion import promoted
from adlro.lab.candidates.past import Past, past_of_list
from adlro.lab.compare.history import arrays_of, history_of
from adlro.lab.compare.knowledge import KINDS, counted, expected_s
from adlro.lab.compare.reading import Suite, predicted_speeds, read_suite, reference_note
from adlro.lab.compare.replaying import Rules
from adlro.records.cluster import Cluster
from adlro.records.precedence import parse_precedence
from adlro.workload.capacity import offered_load, stretched
from adlro.workload.demand import split_placeable
from adlro.workload.pairs import pair_table
from adlro.workload.scenario import SCENARIO_NAMES, load_cluster
from adlro.workload.traces import TRACE_FORMATS, format_of, read_trace


@dataclass(frozen=True, slots=True)
class ListRequest:
    """A job list to learn from.

    Attributes:
        path: the file, in one of `TRACE_FORMATS`.
        cluster: a cluster file, or the name of a scenario with one.
        load: brings the list to this load; None: as recorded.
        runtime: what is known of runtimes, one of `knowledge.KINDS`.
        seed: of fields that the list lacks.
        limit: only the first jobs; None: all.
    """

    path: Path
    cluster: str
    load: float | None = None
    runtime: str = "group"
    seed: int = 0
    limit: int | None = None


def past_of_file(request: ListRequest) -> Past:
    """The past of a job list.

    Raises:
        InvalidInput: names the invalid field.
    """
    cluster, speeds = _cluster(request.cluster)
    trace_format = format_of(request.path)
    if trace_format is None:
        raise InvalidInput(
            f"jobs: {request.path.name}: its name does not show its format; there are {', '.join(TRACE_FORMATS)}: call "
            "it *.swf or *.csv",
            field="jobs",
        )
    jobs, notes = read_trace(
        request.path, trace_format, seed=request.seed, limit=request.limit, cluster=cluster, scenario=None
    )
    jobs = split_placeable(cluster, jobs)
    told = list(notes.sentences)
    if request.load is not None:
        factor = offered_load(cluster, jobs, speeds) / request.load
        jobs = stretched(jobs, factor)
        told.append(f"submission times are multiplied by {factor:.4g}: the list offers a load of {request.load:g}")
    past = past_of_list(cluster, jobs, request.runtime, speeds)
    return dataclasses.replace(past, notes=tuple(told))


def _cluster(name: str) -> tuple[Cluster, SpeedTable]:
    if Path(name).is_file():
        return read_cluster_file(name)
    if name not in SCENARIO_NAMES:
        raise InvalidInput(f"cluster: {name}: neither a file nor one of {', '.join(SCENARIO_NAMES)}", field="cluster")
    return load_cluster(name), SPEEDS


async def past_of_suite(client: AsyncClient, speeds: SpeedTable, runtime: str) -> tuple[Past, str]:
    """What a running suite has finished, and the version of its learned policy's checkpoint; empty: none.

    Raises:
        NotFound: no job has ended there.
        InvalidInput: no such knowledge of runtimes, or nothing says how fast a GPU model is.
    """
    suite = await read_suite(client, decisions=runtime == KINDS[0])
    missing = [model for model in suite.cluster.gpu_models if model not in speeds.gpu_models]
    table = await predicted_speeds(client, suite, speeds)
    version = next((each.version for each in await client.policies() if each.name == "dqn"), "")
    past = _past_of(suite, table, runtime)
    notes = (*past.notes, reference_note(missing)) if missing else past.notes
    return dataclasses.replace(past, notes=notes), version


def _past_of(suite: Suite, speeds: SpeedTable, runtime: str) -> Past:
    history = history_of(suite.jobs, suite.cluster, speeds, suite.now_s)
    if not history.jobs:
        left = "; ".join(f"{each.jobs} jobs {each.why}" for each in history.left_out)
        raise NotFound(f"no finished job to learn from{f': {left}' if left else ''}")
    models, status = suite.cluster.gpu_models, suite.status
    expected, sources = expected_s(history.jobs, models, speeds, runtime, suite.decided)
    return Past(
        suite.cluster,
        arrays_of(history.jobs, suite.cluster, speeds, expected, pair_table(models)),
        np.array([job.measured for job in history.jobs]),
        tuple(counted(sources).items()),
        Rules(
            min_run_s=status.preemption_min_run_s if status.preemption else None,
            shares=suite.shares,
            wait_ratio=status.wait_ratio,
            precedence=parse_precedence(status.precedence),
        ),
        suite.notes,
        float(math.floor(history.jobs[0].submit_s)),
    )


def checkpoint_in_use(version: str, data_dir: Path | None, given: Path | None) -> Path:
    """The file of the checkpoint in use.

    Args:
        version: of the suite's learned policy; empty: not known.
        data_dir: of the suite; None: not known.
        given: the file that the caller names, whatever its version; None: it is looked for.

    Raises:
        InvalidInput: no file of that version is found.
    """
    if given is not None:
        return given
    found = [SHIPPED]
    if data_dir is not None:
        found = [each.path for each in promoted(data_dir / CHECKPOINTS)] + found
    for path in found:
        if not version or hashlib.blake2b(path.read_bytes(), digest_size=6).hexdigest() == version:
            return path
    raise InvalidInput(
        f"checkpoint: the suite decides by version {version}, which is neither promoted nor the one that ADLRO "
        "includes; name its file by --checkpoint",
        field="checkpoint",
    )
