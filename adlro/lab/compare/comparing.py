"""A paired comparison of policies on the jobs of a running suite: the same jobs replayed under each. Plain data.

suite = await read_suite(client, decisions=True)
build_document(compare(suite, SHIPPED, Request()))["paired"]
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from adlro.decide.own_policy import Own
from adlro.errors import InvalidInput, NotFound
from adlro.hardware.speeds import SpeedTable
from adlro.lab.compare.history import History, Window, arrays_of, history_of, window_of
from adlro.lab.compare.knowledge import KINDS, counted, expected_s
from adlro.lab.compare.reading import Suite
from adlro.lab.compare.replaying import Replay, Rules, policy_of, replay, resampled_figures
from adlro.lab.compare.resampling import RESAMPLES, too_few
from adlro.lab.evaluate.request import HIGHEST_WAIT_RATIO, KNOWN, all_names, require_known
from adlro.records.cluster import Cluster
from adlro.records.precedence import parse_precedence
from adlro.state.observation import Bools, Floats
from adlro.workload.pairs import pair_table

BASELINE, OTHER_BASELINE = "hold_greedy_fixed", "fcfs"
"""Compared with the acting policy where there is no shadow; the other one where it acts itself."""
FEW_RESAMPLES, MANY_RESAMPLES = 40, 10_000
"""Of fewer the 2.5 % percentile is the least value."""
GPU_TIME_LEFT_OUT = 0.05
"""A higher share of the GPU time in jobs that are not replayed is told."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked for.

    Attributes:
        policies: names; empty: the acting one, and its shadow or a baseline.
        acted: the policy under which the jobs truly ran; None: the one that is set now.
        runtime: what policies know of runtimes, one of `knowledge.KINDS`.
        since_s, until_s: cluster time; count jobs submitted from the one to before the other; None: no bound.
        limit: count at most so many jobs, the newest; None: all.
        wait_ratio: of every policy's limit on waits, 0 for none; None: as in the suite.
        precedence: the rule by which waiting jobs go before others, in text; None: as in the suite.
        checkpoint: of the learned policy; None: the one that ADLRO includes.
        resamples: number of resampled histories for intervals; 0: no intervals.
        own: policies of files, by name; they are compared too.

    Raises:
        InvalidInput: names the invalid field.
    """

    policies: tuple[str, ...] = ()
    acted: str | None = None
    runtime: str = KINDS[0]
    since_s: float | None = None
    until_s: float | None = None
    limit: int | None = None
    wait_ratio: float | None = None
    precedence: str | None = None
    checkpoint: Path | None = None
    resamples: int = RESAMPLES
    own: Mapping[str, type[Own]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.policies:
            require_known(name, all_names(self.own), "policies", "policy")
        if self.acted is not None:
            require_known(self.acted, all_names(self.own), "acted", "policy")
        require_known(self.runtime, KINDS, "runtime", "knowledge of runtimes")
        if self.limit is not None and self.limit < 1:
            raise InvalidInput(f"limit: must be at least 1, not {self.limit}", field="limit")
        if self.resamples != 0 and not FEW_RESAMPLES <= self.resamples <= MANY_RESAMPLES:
            raise InvalidInput(
                f"resamples: must be from {FEW_RESAMPLES} to {MANY_RESAMPLES}, or 0 for no intervals, not "
                f"{self.resamples}",
                field="resamples",
            )
        if self.since_s is not None and self.until_s is not None and not self.since_s < self.until_s:
            raise InvalidInput(
                f"until: must be after --since {self.since_s:g}, not {self.until_s:g} (seconds of cluster time)",
                field="until",
            )
        if self.wait_ratio is not None and not 0 <= self.wait_ratio <= HIGHEST_WAIT_RATIO:
            raise InvalidInput(
                f"wait_ratio: must be a number from 0 to {HIGHEST_WAIT_RATIO:g} (0: no limit), not {self.wait_ratio:g}",
                field="wait_ratio",
            )


@dataclass(frozen=True, slots=True)
class Comparison:
    """The replays, and what truly happened.

    Attributes:
        request: the request.
        cluster: where the jobs were replayed.
        acted: the policy under which they truly ran, and the baseline of differences.
        history, window: the jobs.
        submit_s: (J,) submissions of the replayed jobs, since the replays' time 0.
        zero_s: cluster time of that.
        real_start_s, real_end_s: (J,) what truly happened.
        measured: (J,) which count.
        replays: by policy, in the order of the request; `acted` is among them.
        resampled: by policy (R, 2), mean and 95 % percentile of the JCT in resampled histories; R is 0 without
            intervals.
        refused: why there are no intervals; empty: there are.
        sources: number of jobs by what was known of their runtimes.
        notes: for people.
    """

    request: Request
    cluster: Cluster
    acted: str
    history: History
    window: Window
    submit_s: Floats
    zero_s: float
    real_start_s: Floats
    real_end_s: Floats
    measured: Bools
    replays: Mapping[str, Replay]
    resampled: Mapping[str, Floats]
    refused: str
    sources: Mapping[str, int]
    notes: tuple[str, ...]


def compare(
    suite: Suite,
    speeds: SpeedTable,
    request: Request,
    *,
    notes: tuple[str, ...] = (),
    progress: Callable[[str], None] = lambda _policy: None,
) -> Comparison:
    """Replays the jobs of a suite under each policy.

    Args:
        suite: what was read of it.
        speeds: of applications on all GPU models of its cluster.
        request: what is asked for.
        notes: to be told as well.
        progress: called with each policy before its replay.

    Raises:
        NotFound: no job that counts.
        InvalidInput: a policy can't be used; the message names the field.
    """
    speeds.require(suite.cluster.gpu_models)
    acted = request.acted or suite.status.policy
    if acted not in all_names(request.own):
        raise InvalidInput(
            f"acted: '{acted}' acted, which is not known here; give its file by --policy-file, or name another policy "
            "by --acted",
            field="acted",
        )
    history = history_of(suite.jobs, suite.cluster, speeds, suite.now_s)
    window = window_of(history.jobs, request.since_s, request.until_s, request.limit)
    if window.first == window.last:
        raise NotFound(_nothing(history, request))
    models = suite.cluster.gpu_models
    expected, sources = expected_s(history.jobs, models, speeds, request.runtime, suite.decided)
    here = slice(window.first, window.last)
    jobs = history.jobs[here]
    pairs = pair_table(models)
    arrays = arrays_of(jobs, suite.cluster, speeds, expected[here], pairs)
    rules, told = _rules(suite, acted, request)
    refused = "not asked for" if request.resamples == 0 else too_few(int(window.measured.sum()))
    replays: dict[str, Replay] = {}
    figures: dict[str, Floats] = {}
    asked = (*request.policies, *(name for name in request.own if name != acted))
    for name in dict.fromkeys((acted, *(asked or _default_policies(suite, acted)))):
        progress(name)
        replays[name] = replay(suite.cluster, arrays, policy_of(name, rules), rules, pairs)
        figures[name] = resampled_figures(
            suite.cluster,
            arrays,
            window.measured,
            functools.partial(policy_of, name, rules),
            rules,
            pairs,
            0 if refused else request.resamples,
        )
    zero_s = float(math.floor(jobs[0].submit_s))
    submit_s = arrays.submit_s[0]
    return Comparison(
        request=request,
        cluster=suite.cluster,
        acted=acted,
        history=history,
        window=window,
        submit_s=submit_s,
        zero_s=zero_s,
        real_start_s=np.array([job.start_s for job in jobs]) - zero_s,
        real_end_s=np.array([job.end_s for job in jobs]) - zero_s,
        measured=window.measured,
        replays=replays,
        resampled=figures,
        refused=refused,
        sources=counted([source for source, counts in zip(sources[here], window.measured, strict=True) if counts]),
        notes=(*notes, *suite.notes, *told, *_notes(suite, history, acted, replays, request.own)),
    )


def _default_policies(suite: Suite, acted: str) -> tuple[str, ...]:
    shadow = suite.status.shadow
    if shadow is not None and shadow.policy in all_names() and shadow.policy != acted:
        return (shadow.policy,)
    return (OTHER_BASELINE if acted == BASELINE else BASELINE,)


def _rules(suite: Suite, acted: str, request: Request) -> tuple[Rules, list[str]]:
    """What the owner allows, and notes about it."""
    status, notes = suite.status, []
    rules = Rules(
        min_run_s=status.preemption_min_run_s if status.preemption else None,
        shares=suite.shares,
        wait_ratio=request.wait_ratio,
        checkpoint=request.checkpoint,
        own=request.own,
        precedence=parse_precedence(status.precedence if request.precedence is None else request.precedence),
    )
    if rules.precedence is not None:
        whose = "the suite's" if request.precedence is None else "the given"
        notes.append(
            f"every policy with {whose} precedence, {rules.precedence.text}; all users with one share, and in no group"
        )
    if request.wait_ratio is None and acted == status.policy:
        own = policy_of(acted, rules).wait_ratio
        if (0.0 if math.isinf(own) else own) != status.wait_ratio:
            rules = dataclasses.replace(rules, wait_ratio=status.wait_ratio)
            notes.append(f"every policy with the suite's limit on waits, of ratio {status.wait_ratio:g}")
    return rules, notes


def _notes(
    suite: Suite, history: History, acted: str, replays: Mapping[str, Replay], own: Collection[str]
) -> list[str]:
    notes = []
    others = {name: count for name, count in suite.policies.items() if name != acted}
    if others:
        told = ", ".join(f"{count} under {name}" for name, count in others.items())
        whole = sum(suite.policies.values())
        notes.append(
            f"of {whole} decisions that are still kept, {told}, not {acted}: choose a part of the history in which one "
            "policy acted (--since, --until), or name it (--acted)"
        )
    version = replays[acted].version
    its = sorted(each for name, each in suite.versions if name == acted)
    if version and its and its != [version]:
        told = ", ".join(its)
        if acted in KNOWN:
            remedy = f"weights ({told}) than those of the replay ({version}): name its checkpoint (--checkpoint)"
        elif acted in own:
            remedy = f"code ({told}) than that of the replay ({version}): name its file of then (--policy-file)"
        else:
            remedy = f"code ({told}) than that of the replay ({version}): install its package of then"
        notes.append(f"{acted} acted with other {remedy}")
    left_s = math.fsum(each.gpu_time_s for each in history.left_out)
    whole_s = left_s + history.gpu_time_s
    if whole_s > 0 and left_s / whole_s > GPU_TIME_LEFT_OUT:
        notes.append(
            f"{100 * left_s / whole_s:.0f} % of the GPU time was held by jobs that are not replayed: others truly "
            "waited for them"
        )
    away = len(suite.lost_gpu_ids)
    if away or suite.status.drained_node_ids:
        nodes = len(suite.status.drained_node_ids)
        notes.append(f"now {away} GPUs are lost and {nodes} nodes are drained; the replays have them all, all the time")
    return notes


def _nothing(history: History, request: Request) -> str:
    left = "; ".join(f"{each.jobs} {each.why}" for each in history.left_out)
    bounded = request.since_s is not None or request.until_s is not None
    return (
        "no finished job to compare policies on"
        + (" was submitted in that time (--since, --until: seconds of cluster time)" if bounded else "")
        + (f" ({left})" if left else "")
    )
