"""Words for the shell's completion: policies, and what only a suite knows: ids of jobs, users, nodes.

Who completes a word waits: without a quick answer there are no words, and never an error.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import typer

from adlro.records.decisions import POLICY_GROUP, POLICY_NAMES
from adlro.records.jobs import Job, JobState
from adlro.records.status import BUILT_IN
from adlro.records.watching import JobFilter, JobOrder, JobView
from adlro.terminal import escape

if TYPE_CHECKING:
    from adlro.client import Client

ANSWER_WITHIN_S = 1.0
_MOST_WORDS = 100
_JOBS_LOOKED_AT = 500

Words = Callable[[typer.Context, str], list[tuple[str, str]]]
"""Of the words before and the beginning of this one, whole words with a word of help each."""

OPEN = (JobState.PENDING, JobState.RUNNING)
WAITING = (JobState.PENDING,)
ENDED = (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)


def jobs_in(states: Sequence[JobState] = ()) -> Words:
    """Completes ids of jobs in some states, the newest first; of arrays as well."""

    def words(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
        return _words(ctx, incomplete, lambda client: _of_jobs(client, states))

    return words


def users(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Completes users who have submitted jobs lately."""
    return _words(ctx, incomplete, lambda client: ((job.spec.user, "") for job in _jobs(client, ())))


def nodes(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Completes nodes of the cluster."""
    return _words(ctx, incomplete, lambda client: ((node.node_id, "") for node in client.cluster().nodes))


def installed_policies(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Completes policies of this release and of installed packages."""
    return [(name, told) for name, told in _installed().items() if name.startswith(incomplete)]


def offered_policies(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Completes policies that the suite offers, those of files among them; without an answer the installed ones."""
    offered = _words(ctx, incomplete, _of_policies)
    return offered or installed_policies(ctx, incomplete)


def _of_policies(client: Client) -> Iterator[tuple[str, str]]:
    for policy in client.policies():
        if not policy.problem:
            yield policy.name, "" if policy.source in ("", BUILT_IN) else escape(policy.source)


def _installed() -> dict[str, str]:
    found = dict.fromkeys(POLICY_NAMES, "")
    with contextlib.suppress(Exception):  # a broken package of somebody else's
        for point in importlib.metadata.entry_points(group=POLICY_GROUP):
            found.setdefault(point.name, "from a package")
    return found


def _of_jobs(client: Client, states: Sequence[JobState]) -> Iterator[tuple[str, str]]:
    for job in _jobs(client, states):
        yield job.job_id, f"{escape(job.spec.name)}, {job.state.name.lower()}"
        if job.spec.array is not None:
            count = job.spec.array.count
            yield job.spec.array.array_id, f"array of {count} job{'s' if count != 1 else ''}"


def _jobs(client: Client, states: Sequence[JobState]) -> Iterable[Job]:
    found = client.list(JobFilter(states=states), order=JobOrder.NEWEST_FIRST, view=JobView.BASIC)
    return itertools.islice(found, _JOBS_LOOKED_AT)


def _words(
    ctx: typer.Context, incomplete: str, ask: Callable[[Client], Iterable[tuple[str, str]]]
) -> list[tuple[str, str]]:
    from adlro.client import Client

    found: dict[str, str] = {}
    server = ctx.params.get("server")
    # Whatever is wrong, the command itself will tell.
    with contextlib.suppress(Exception), Client(server, timeout_s=ANSWER_WITHIN_S, patience_s=0.0) as client:
        for word, told in ask(client):
            if word.startswith(incomplete):
                found.setdefault(word, told)
            if len(found) == _MOST_WORDS:
                break
    return list(found.items())
