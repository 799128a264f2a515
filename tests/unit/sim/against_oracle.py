"""Carries the oracle's instances and choices to the batched simulator, and compares what becomes of them.

The oracle (tests/oracle) decides first. Its choices are replayed action by action; at each decision the simulator must
be at the same time, and must show the same sets of GPUs, with the same expected durations, in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from adlro.decide.policies.base import Policy
from adlro.records.cluster import Cluster, Gpu, Node
from adlro.sim.batch import BatchOutcome, BatchSimulator, Run
from adlro.state.job_arrays import JobArrays, empty_job_arrays
from adlro.state.observation import HOLD, Floats, Ints, Observation
from tests.oracle.cluster import Oracle, Rule
from tests.oracle.instances import FAMILIES
from tests.oracle.records import KEEP, NOBODY, Choice, Decision, Instance, Job

MODELS = ("v100_sxm2", "rtx_2080_ti", "radeon_vii")
ROWS = 1024
"""Jobs of one list at most: a job's priority says which of which list it is."""


Look = Callable[[Observation, int, int, int, dict[int, int]], None]
"""Looks at a decision: the observation, the row there, the list, the decision's number, the place of each job."""


class Differs(AssertionError):
    """The simulator does something else than the oracle."""


def cluster_of(instance: Instance) -> Cluster:
    nodes = []
    for n, node in enumerate(instance.nodes):
        cards = tuple(
            Gpu(f"{n}/{g}", MODELS[gpu.model], gpu.memory_mib) for g, gpu in enumerate(instance.gpus) if gpu.node == n
        )
        nodes.append(Node(str(n), node.cores, node.memory_mib, cards))
    return Cluster("drawn", tuple(nodes))


def job_arrays(instances: Sequence[Instance]) -> JobArrays:
    """The lists, as the simulator takes them; a job's priority says which it is."""
    arrays = empty_job_arrays(len(instances), max((len(each.jobs) for each in instances), default=0), len(MODELS))
    for number, instance in enumerate(instances):
        arrays.job_count[number] = len(instance.jobs)
        for j, job in enumerate(instance.jobs):
            arrays.submit_s[number, j] = job.submit_s
            for model in range(len(job.duration_s)):
                arrays.duration_s[number, j, model] = job.packed_s(model, False)
                arrays.expected_s[number, j, model] = job.packed_s(model, True)
                arrays.spread_speed[number, j, model] = job.spreads_at(model, False)
                arrays.expected_spread_speed[number, j, model] = job.spreads_at(model, True)
            arrays.gpu_count[number, j] = job.gpu_count
            arrays.max_nodes[number, j] = job.max_nodes
            arrays.cores[number, j] = job.cores
            arrays.memory_mib[number, j] = job.memory_mib
            arrays.gpu_memory_mib[number, j] = job.gpu_memory_mib
            arrays.job_type[number, j] = 1 + j % 3
            arrays.priority[number, j] = (number * ROWS + j + 1) / 2**24
            arrays.user[number, j] = job.user
            arrays.preemptible[number, j] = job.preemptible
            arrays.restart_s[number, j] = job.restart_s
            arrays.lost_s[number, j] = job.lost_s
            arrays.shareable[number, j] = job.shareable and job.gpu_count == 1
            arrays.family[number, j] = job.family
    return arrays


def table_of(kept: Mapping[tuple[int, int, int], float]) -> Floats:
    """Kept shares as the simulator takes them."""
    table = np.zeros((FAMILIES, FAMILIES, len(MODELS)))
    for pair, share in kept.items():
        table[pair] = share
    return table


def simulator_of(
    instances: Sequence[Instance], *, asks_stops: bool = False, asks_shares: bool = False, min_run_s: float = 0.0
) -> BatchSimulator:
    """One batch; the instances have one start cost, and one table of pairs."""
    kept, told = instances[0].kept, instances[0].expected_kept or instances[0].kept
    if asks_shares:
        assert all(each.kept == kept and (each.expected_kept or each.kept) == told for each in instances)
    assert len({instance.start_cost_s for instance in instances}) == 1
    return BatchSimulator(
        [cluster_of(instance) for instance in instances],
        job_arrays(instances),
        gpu_models=MODELS,
        gpu_changes=[[(each.time_s, each.gpu, each.speed) for each in instance.changes] for instance in instances],
        start_cost_s=instances[0].start_cost_s,
        preempts=asks_stops,
        shares=asks_shares,
        kept=table_of(kept) if asks_shares else None,
        expected_kept=table_of(told) if asks_shares else None,
        min_run_s=min_run_s,
    )


def compare_choices(
    instances: Sequence[Instance],
    rules: Sequence[Rule],
    given: Sequence[Instance] = (),
    *,
    tries_illegal: bool = False,
    before: tuple[Sequence[Rule], int] | None = None,
    looks: Look | None = None,
    **asked,
) -> BatchOutcome:
    """Lets the oracle run each instance by its rule, replays its choices, and compares each step and the outcome.

    Args:
        instances: what the oracle runs.
        rules: one each.
        given: what the simulator is given instead.
        tries_illegal: what the oracle says is illegal must be refused; where one cluster is active alone.
        before: other rules and a number of actions: these go before, and then each list begins anew.
        looks: looks at each decision too.
        asked: `asks_stops`, `asks_shares` and `min_run_s` of both.

    Raises:
        Differs: with the list, the time, and both sides.
    """
    oracles = ran(instances, rules, **asked)
    simulator = simulator_of(given or instances, **asked)
    if before is not None:
        replay(simulator, ran(instances, before[0], **asked), before[1])
        every = np.arange(len(instances))
        simulator.begin(every, every)
    places = replay(simulator, oracles, tries_illegal=tries_illegal, looks=looks)
    outcome = simulator.outcome()
    for number, oracle in enumerate(oracles):
        same(f"list {number}: decisions", places[number], len(oracle.outcome.decisions))
        check_outcome(outcome, number, oracle)
    return outcome


def ran(instances: Sequence[Instance], rules: Sequence[Rule], **asked) -> list[Oracle]:
    """An oracle that has run each instance by its rule."""
    oracles = [Oracle(instance, **asked) for instance in instances]
    for oracle, rule in zip(oracles, rules, strict=True):
        oracle.run(rule)
    return oracles


def replay(
    simulator: BatchSimulator,
    oracles: Sequence[Oracle],
    most: int = -1,
    *,
    tries_illegal: bool = False,
    looks: Look | None = None,
) -> list[int]:
    """Carries out the oracles' choices, and compares each decision.

    Args:
        most: actions; below 0: to the end.

    Returns:
        The number of decisions of each list.
    """
    places = [0] * len(oracles)
    while len(simulator.active) and most != 0:
        most -= 1
        seen = simulator.observe()
        width = max(job.gpu_count for oracle in oracles for job in oracle.jobs)
        actions = np.full((len(simulator.active), 1 + width), HOLD, dtype=np.int64)
        reserve = np.full(len(simulator.active), -1, dtype=np.int64)
        stops = np.zeros(len(simulator.active), dtype=np.bool_)
        for n, number in enumerate(simulator.active.tolist()):
            decisions = oracles[number].outcome.decisions
            if places[number] == len(decisions):
                raise Differs(f"list {number}: the simulator asks at {seen.time_s[n]}, the oracle no more")
            decision = decisions[places[number]]
            row_of = rows_of(seen, n, number)
            check_decision(seen, n, number, decision, row_of, oracles[number].jobs)
            if looks is not None:
                looks(seen, n, number, places[number], row_of)
            places[number] += 1
            choice = decision.choice
            if tries_illegal and decision.illegal is not None and len(simulator.active) == 1:
                check_refused(simulator, row_of, decision.illegal)
            if choice.job != NOBODY:
                actions[n, 0] = row_of[choice.job]
                actions[n, 1 : 1 + len(choice.gpus)] = choice.gpus
                stops[n] = choice.stop
            reserved = decision.reserved if choice.reserve == KEEP else choice.reserve
            reserve[n] = HOLD if reserved == NOBODY else row_of[reserved]
        try:
            simulator.act(actions, reserve, stops)
        except ValueError as refused:
            raise Differs(f"the simulator refuses what is legal: {refused}") from refused
    return places


def check_refused(simulator: BatchSimulator, row_of: dict[int, int], illegal: Choice) -> None:
    action = np.array([[row_of[illegal.job], *illegal.gpus]], dtype=np.int64)
    try:
        simulator.act(action, stops=np.array([illegal.stop]))
    except ValueError:
        return
    raise Differs(f"the simulator starts job {illegal.job} on {illegal.gpus}, at {simulator.time_s[0]}: illegal")


def compare_policy(instances: Sequence[Instance], policy: Policy, rule: Rule) -> BatchOutcome:
    """Runs the instances under a policy, and each by the oracle under the rule; compares the outcomes.

    Raises:
        Differs: with the list, and both sides.
    """
    simulator = simulator_of(instances, asks_stops=policy.preempts)
    while len(simulator.active):
        seen = simulator.observe()
        judgement = policy.judge(seen)
        simulator.act(policy.choose(seen, judgement), judgement.reserve, policy.stopping(seen, judgement))
    outcome = simulator.outcome()
    for number, instance in enumerate(instances):
        oracle = Oracle(instance, asks_stops=policy.preempts)
        oracle.run(rule)
        check_outcome(outcome, number, oracle)
    return outcome


def rows_of(seen: Observation, n: int, number: int) -> dict[int, int]:
    """The place in the observation of each waiting job of a list."""
    codes = [round(code * 2**24) - 1 for code in seen.job_priority[n]]
    rows = {codes[row] % ROWS: row for row in np.flatnonzero(seen.job_waiting[n]).tolist()}
    same(f"list {number}: whose jobs", {codes[row] // ROWS for row in rows.values()}, {number})
    return rows


def together(runs: Sequence[int]) -> list[list[int]]:
    """The GPUs of each run, and first those where none runs."""
    runs_there = sorted({-1, *runs}, key=lambda run: (run >= 0, run))
    groups = [[gpu for gpu, its in enumerate(runs) if its == run] for run in runs_there]
    return groups[:1] + sorted(groups[1:])


def check_decision(
    seen: Observation, n: int, number: int, decision: Decision, row_of: dict[int, int], jobs: Sequence[Job]
) -> None:
    what = f"list {number} at {decision.time_s}"
    same(what + ", time", float(seen.time_s[n]), decision.time_s)
    same(what + ", hold allowed", bool(seen.hold_allowed[n]), decision.hold_allowed)
    same(what + ", sets", sets_of(seen, n, row_of), wanted_sets(decision))
    gpus = len(decision.remaining_s)
    same(what + ", remaining", tuple(seen.gpu_remaining_s[n, :gpus].tolist()), decision.remaining_s)
    free = zip(seen.node_cores_free[n].tolist(), seen.node_memory_free_mib[n].tolist(), strict=True)
    same(what + ", free", tuple(free)[: len(decision.free)], decision.free)
    for job, row in row_of.items():
        service_s = decision.service_s[jobs[job].user]
        if not math.isclose(seen.job_user_service_s[n, row], service_s, rel_tol=1e-9, abs_tol=1e-9):
            same(what + f", service of job {job}'s user", seen.job_user_service_s[n, row], service_s)
    if seen.gangs is not None:
        same(what + ", who runs with whom", together(seen.gangs.gpu_run[n, :gpus].tolist()), together(decision.runs))
        row = int(seen.gangs.reserved[n])
        reserved = next((job for job, its_row in row_of.items() if its_row == row), NOBODY)
        same(what + ", reserved", reserved, decision.reserved)
    elif decision.reserved != NOBODY:
        raise Differs(f"{what}: no reservation, and the oracle has one for {decision.reserved}")
    check_preemption(seen, n, what, decision, row_of, jobs)
    check_sharing(seen, n, what, decision, row_of, jobs)


def check_sharing(
    seen: Observation, n: int, what: str, decision: Decision, row_of: dict[int, int], jobs: Sequence[Job]
) -> None:
    says, gpus = seen.sharing, len(decision.runs)
    if says is None:
        return
    held_mib, is_open = [0] * gpus, [False] * gpus
    for gpu, here in enumerate(zip(decision.runs, decision.mates, strict=True)):
        held_mib[gpu] = sum(jobs[job].gpu_memory_mib for job in here if job != NOBODY)
        is_open[gpu] = here[0] != NOBODY and here[1] == NOBODY and may_share(jobs[here[0]])
    same(what + ", open", says.gpu_open[n, :gpus].tolist(), is_open)
    left_mib = seen.gpu_memory_mib[n, :gpus] - says.gpu_memory_left_mib[n, :gpus]
    same(what + ", GPU memory held", left_mib.tolist(), held_mib)
    families = [0 if job == NOBODY else jobs[job].family for job in decision.runs]
    same(what + ", families", says.gpu_family[n, :gpus].tolist(), families)
    for job, row in row_of.items():
        same(what + f", whether {job} may share", bool(says.job_shareable[n, row]), may_share(jobs[job]))
        same(what + f", family of {job}", int(says.job_family[n, row]), jobs[job].family)


def may_share(job: Job) -> bool:
    return job.shareable and job.gpu_count == 1


def check_preemption(
    seen: Observation, n: int, what: str, decision: Decision, row_of: dict[int, int], jobs: Sequence[Job]
) -> None:
    had, gpus = seen.preemption, len(decision.runs)
    if had is None:
        same(what + ", stoppable, though nothing is said", any(decision.stoppable), False)
        return
    same(what + ", stoppable", tuple(had.gpu_stoppable[n, :gpus].tolist()), decision.stoppable)
    same(what + ", who runs where", together(had.gpu_run[n, :gpus].tolist()), together(decision.runs))
    for gpu, pair in enumerate(zip(decision.runs, decision.mates, strict=True)):
        here = [job for job in pair if job != NOBODY]
        attained_s = sum(decision.attained_s[job] for job in here)
        if not math.isclose(had.gpu_attained_s[n, gpu], attained_s, rel_tol=1e-9, abs_tol=1e-9):
            same(what + f", GPU time of the jobs on {gpu}", had.gpu_attained_s[n, gpu], attained_s)
        restart_s = sum(jobs[job].restart_s for job in here if jobs[job].preemptible)
        same(what + f", restart on {gpu}", float(had.gpu_restart_s[n, gpu]), restart_s)
    for job, row in row_of.items():
        if not math.isclose(had.job_attained_s[n, row], decision.attained_s[job], rel_tol=1e-9, abs_tol=1e-9):
            same(what + f", GPU time of job {job}", had.job_attained_s[n, row], decision.attained_s[job])


Seen = tuple[int, tuple[int, ...], bool, float]
"""Job, GPUs, spread, and the expected duration."""


def wanted_sets(decision: Decision) -> list[Seen]:
    placed = zip(decision.fitting, decision.expected_s, strict=True)
    return [(each.job, each.gpus, each.spread, expected_s) for each, expected_s in placed]


def sets_of(seen: Observation, n: int, row_of: dict[int, int]) -> list[Seen]:
    """The sets of the candidate table, groups of GPUs written out."""
    table = seen.table
    found: list[Seen] = []
    job_of = {row: job for job, row in row_of.items()}
    for row in range(table.rows(n).start, table.rows(n).stop):
        gpus: Ints = table.gpus[row][table.gpus[row] >= 0]
        job, spread, expected_s = job_of[int(table.job[row])], bool(table.spread[row]), float(table.duration_s[row])
        if len(gpus) == 1:
            found += [(job, (gpu,), spread, expected_s) for gpu in seen.group(n, row).tolist()]
        else:
            found.append((job, tuple(gpus.tolist()), spread, expected_s))
    return found


def check_outcome(outcome: BatchOutcome, number: int, oracle: Oracle) -> None:
    """List `number` went job for job, attempt for attempt as the oracle's did: equal floats."""
    wanted, count, what = oracle.outcome, len(oracle.jobs), f"list {number}"
    same(what + ", attempts", outcome.attempts[number, :count].tolist(), wanted.attempts)
    gpus = [tuple(gpu for gpu in row if gpu >= 0) for row in outcome.gpus[number, :count].tolist()]
    same(what + ", GPUs", gpus, wanted.gpus)
    same(what + ", stops", int(outcome.stops[number]), sum(run.end == "stopped" for run in wanted.runs))
    same(what + ", starts", repr(outcome.start_s[number, :count].tolist()), repr([float(s) for s in wanted.start_s]))
    same(what + ", ends", repr(outcome.end_s[number, :count].tolist()), repr([float(s) for s in wanted.end_s]))
    same(what + ", stuck", bool(outcome.stuck[number]), bool(wanted.unfinished))
    runs = [(run.end_s, run.gpus, run.job, run.start_s, how_it_ended(run)) for run in outcome.runs(number)]
    same(what + ", order of ends", [run[0] for run in runs], sorted(run[0] for run in runs))
    integral_s = float(outcome.jobs_integral_s[number])
    if not math.isclose(integral_s, oracle.jobs_integral_s, rel_tol=1e-9, abs_tol=1e-9):
        same(what + ", jobs' time", integral_s, oracle.jobs_integral_s)
    same(
        what + ", runs",
        sorted(runs),
        sorted((run.end_s, run.gpus, run.job, run.start_s, run.end) for run in wanted.runs),
    )


def how_it_ended(run: Run) -> str:
    return "completed" if run.completed else "stopped" if run.stopped else "lost"


def same(what: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise Differs(f"{what}: the simulator has {found}, the oracle {wanted}")
