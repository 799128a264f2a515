"""Decides with a policy, or with `hold_gang` if the policy fails. Arrays; no I/O.

A policy fails if it has no checkpoint or is not there, raises, answers with values that are not finite, is late, or
reports an observation outside its training range. The guard counts and logs each failure by reason, and no failure
delays a decision beyond the deadline. In real and scaled time, a policy that is not trusted (`guarded`: the learned
ones and those of one's own) always decides in a thread, however quick it was before: the lease, health checks and
callers continue, and a policy that hangs blocks nothing else. A trusted policy whose decisions take long also decides
in a thread.

In virtual time the clock waits for the decision, so only a policy that hangs is late; a policy that was quick so far
decides on the event loop, but for one of one's own.
"""

from __future__ import annotations

import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np
import structlog

from adlro.decide.catalog import POLICY_MISSING
from adlro.decide.own_policy import Own
from adlro.decide.policies.base import BusyStart, Judgement, Policy
from adlro.decide.policies.dqn import CHECKPOINT_MISSING, BorrowingDqn, Dqn
from adlro.decide.policies.hold_gang import HoldGang
from adlro.errors import AdlroError
from adlro.records.decisions import DecisionBasis
from adlro.services.orchestrator.deciding.side_thread import LateError, SideThread
from adlro.state.observation import HOLD, Observation

INLINE_PAIRS = 16_384
"""(job, GPU) pairs up to which a decision may be made on the event loop, which avoids the switch between threads."""
INLINE_S = 0.005
"""Longest decision on the event loop in seconds; a slower policy decides in a thread."""
DEADLINE_PAIRS = 16_384
"""Pairs up to which the deadline applies unchanged; above, it grows in proportion."""
HANGS_S = 60.0
"""Seconds after which a decision in virtual time counts as late."""
LOG_EVERY_S = 10.0
NO_NUMBER = "its answer is no number"
_DECAY = 0.8


class Guard:
    """Runs a policy's decisions, with a fallback.

    That is `hold_gang`, which is `hold_greedy_fixed` where there are no jobs of several GPUs.

    Args:
        deadline_s: deadline of decisions of up to DEADLINE_PAIRS pairs, outside virtual time.
        log: a structlog logger.
        on_fallback: called with the reason of each fallback.
        on_overdue: called if an overdue job has changed the decision.

    Attributes:
        counts: fallbacks by reason, under all policies.
        problem: why the policy did not make the last decision; empty: it did.
        basis: the last decision's basis.
    """

    def __init__(
        self,
        deadline_s: float,
        log: structlog.typing.FilteringBoundLogger,
        on_fallback: Callable[[DecisionBasis], None] = lambda _: None,
        on_overdue: Callable[[], None] = lambda: None,
    ) -> None:
        self.counts: Counter[DecisionBasis] = Counter()
        self.problem = ""
        self.basis = DecisionBasis.POLICY
        self._deadline_s = deadline_s
        self._log = log
        self._on_fallback = on_fallback
        self._on_overdue = on_overdue
        self._fallback = HoldGang()
        self._worker, self._explainer = SideThread("decide"), SideThread("explain")
        self._decisions: Counter[DecisionBasis] = Counter()  # of the policy with this name, in this session
        self._counted = ""
        self._of: Policy | None = None  # the policy that the recent durations belong to
        self._recent_s = np.inf
        self._hangs, self._late = False, ""
        self._told_s = -np.inf
        self._told: DecisionBasis | None = None

    def basis_of(self, policy: Policy) -> DecisionBasis:
        """The basis of a policy's last decision; before its first one, the policy itself."""
        return self.basis if policy is self._of else DecisionBasis.POLICY

    def begin_session(self) -> None:
        """Resets the counts of decisions."""
        self._decisions.clear()

    def decisions_of(self, policy: Policy) -> Mapping[DecisionBasis, int]:
        """Counts of a policy's decisions by basis, since the session began or the policy was set, if that was later."""
        return self._decisions if policy.name == self._counted else {}

    def deadline_s(self, observation: Observation) -> float:
        """The deadline of a decision of this size, in seconds."""
        return self._deadline_s * max(1.0, observation.pair_count / DEADLINE_PAIRS)

    async def judge(self, policy: Policy, observation: Observation, *, virtual: bool) -> Judgement:
        """The policy's judgement, or the fallback's. The caller must not change the observation meanwhile.

        Args:
            virtual: the cluster's clock waits for the decision.
        """
        if policy is not self._of:  # the duration of a new policy's decisions is unknown
            before, self._of, self._recent_s = self._of, policy, np.inf
            if policy.name != self._counted:
                self._counted, self._decisions = policy.name, Counter()
            if self._worker.busy:  # the previous policy may hang: it must not delay this one
                if isinstance(before, Dqn):
                    before.stop()
                self._worker.close()
                self._worker, self._hangs = SideThread("decide"), False
        try:
            quick = observation.pair_count <= INLINE_PAIRS and self._recent_s < INLINE_S
            # Code of one's own that hangs would block this process, however quick it was before.
            if quick and (virtual or not policy.guarded) and not isinstance(policy, Own):
                judgement = self._timed(policy, observation)
            else:
                judgement = await self._aside(policy, observation, virtual)
            sound = _sound(observation, judgement)
        except LateError:
            self._late = f"no decision within {self._limit(observation, virtual):.3g} s"
            return self._instead(DecisionBasis.LATE, policy, observation, self._late)
        except AdlroError as error:
            return self._instead(_reason_of(error), policy, observation, error.message)
        except Exception as error:  # jobs are placed whatever the policy raises
            return self._instead(DecisionBasis.FAILED, policy, observation, f"{type(error).__name__}: {error}", error)
        basis = judgement.basis_of(0)
        if basis.fallback:  # the policy itself has fallen back
            self._note(basis, policy, judgement.notes.get(0, ""))
        elif not sound:
            return self._instead(DecisionBasis.FAILED, policy, observation, NO_NUMBER)
        else:
            self.problem, self.basis = "", basis
            self._decisions[basis] += 1
            if basis is DecisionBasis.OVERDUE:
                self._on_overdue()
            if judgement.reserve is None and _is_reserved(observation):
                # By the fallback, in an earlier decision: this policy starts others on those GPUs.
                judgement.reserve = np.full(1, HOLD, dtype=np.int64)
        return judgement

    async def look(self, policy: Policy, observation: Observation) -> Judgement:
        """A judgement for an explanation: it is not counted, and delays no decision.

        If the policy was late with its last decision, the fallback judges instead.
        """
        if self.basis_of(policy) is DecisionBasis.LATE:
            return self._looked_at_fallback(policy, observation, DecisionBasis.LATE, self._late)
        try:
            judge = _without_memory(policy).judge
            judgement = await self._explainer.run(lambda: judge(observation), HANGS_S)
            if _sound(observation, judgement):
                return judgement
            reason, why = DecisionBasis.FAILED, NO_NUMBER
        except LateError as error:
            reason, why = DecisionBasis.LATE, str(error)
        except AdlroError as error:
            reason, why = _reason_of(error), error.message
        except Exception as error:
            reason, why = DecisionBasis.FAILED, f"{type(error).__name__}: {error}"
        return self._looked_at_fallback(policy, observation, reason, why)

    def _looked_at_fallback(
        self, policy: Policy, observation: Observation, reason: DecisionBasis, why: str
    ) -> Judgement:
        found = self._fallback_of(policy).judge(observation)
        return Judgement(found.scores, {0: reason}, notes={0: why}, reserve=found.reserve)

    def close(self) -> None:
        """Lets the threads end."""
        self._worker.close()
        self._explainer.close()

    async def _aside(self, policy: Policy, observation: Observation, virtual: bool) -> Judgement:
        if self._hangs and self._worker.busy:
            raise LateError("it is still at an earlier decision")  # waiting once for a hanging policy is enough
        self._hangs = False
        limit_s = self._limit(observation, virtual) if policy.guarded else None
        try:
            return await self._worker.run(lambda: self._timed(policy, observation), limit_s)
        except LateError:
            self._hangs = True
            raise

    def _limit(self, observation: Observation, virtual: bool) -> float:
        return HANGS_S if virtual else self.deadline_s(observation)

    def _timed(self, policy: Policy, observation: Observation) -> Judgement:
        began = time.perf_counter()
        judgement = policy.judge(observation)
        took_s = time.perf_counter() - began
        # The slowest recent decision, with a slow decay, so that an occasionally slow policy does not return too soon.
        self._recent_s = took_s if np.isinf(self._recent_s) else max(took_s, self._recent_s * _DECAY)
        return judgement

    def _instead(
        self, reason: DecisionBasis, policy: Policy, observation: Observation, why: str, error: Exception | None = None
    ) -> Judgement:
        self._note(reason, policy, why, error)
        judgement = self._fallback_of(policy).judge(observation)
        judgement.basis[0] = reason
        judgement.notes = {0: why}
        return judgement

    def _fallback_of(self, policy: Policy) -> Policy:
        self._fallback.wait_ratio, self._fallback.precedence = policy.wait_ratio, policy.precedence
        return self._fallback

    def _note(self, reason: DecisionBasis, policy: Policy, why: str, error: Exception | None = None) -> None:
        self.counts[reason] += 1
        self._decisions[reason] += 1
        self.basis = reason
        self._on_fallback(reason)
        self.problem = f"{policy.name} is not used: {why}"
        now_s = time.monotonic()
        if reason is not self._told or now_s >= self._told_s + LOG_EVERY_S:
            self._told, self._told_s = reason, now_s
            self._log.warning(
                "the policy did not decide; hold_gang did",
                policy=policy.name,
                reason=str(reason),
                problem=why,
                so_far=self.counts[reason],
                # Not as `exc_info`: rendering all arrays may take longer than the lease lasts.
                raised_at="".join(traceback.format_exception(error, limit=-4)) if error is not None else None,
            )


def _without_memory(policy: Policy) -> Policy:
    """A policy that decides as another does without its memory of a cluster: with it, none must judge out of turn.

    `dqn_lookahead` decides as `dqn` then.
    """
    if not policy.one_cluster:
        return policy
    other: Policy
    if isinstance(policy, Dqn):
        other = BorrowingDqn()
        other.borrow(policy)
    else:
        other = type(policy)()
    other.wait_ratio, other.precedence = policy.wait_ratio, policy.precedence
    return other


def _reason_of(error: AdlroError) -> DecisionBasis:
    return DecisionBasis.MISSING if error.reason in (CHECKPOINT_MISSING, POLICY_MISSING) else DecisionBasis.FAILED


def _sound(observation: Observation, judgement: Judgement) -> bool:
    """Whether the judgement can be carried out.

    The scores have the right shape, and each is finite or -inf; the reservation is for a waiting job; what is to be
    stopped may be.
    """
    scores = judgement.scores
    if scores.shape != observation.table.job.shape:
        return False
    if judgement.busy and not (judgement.busy.keys() == {0} and may_start_busy(observation, judgement.busy[0])):
        return False
    reserve = judgement.reserve
    if reserve is not None and not (reserve.shape == (1,) and _may_reserve(observation, int(reserve[0]))):
        return False
    # A maximum is nan if one of the values is.
    return float(np.max(scores, initial=-np.inf)) < np.inf


def _is_reserved(observation: Observation) -> bool:
    return observation.gangs is not None and observation.gangs.reserved[0] != HOLD


def _may_reserve(observation: Observation, place: int) -> bool:
    waiting = observation.job_waiting[0]
    return place == HOLD or (0 <= place < len(waiting) and bool(waiting[place]))


def may_start_busy(observation: Observation, start: BusyStart) -> bool:
    """Whether a waiting job can start on GPUs of one cluster of which some are busy."""
    if not 0 <= start.job < observation.job_waiting.shape[1] or not observation.job_waiting[0, start.job]:
        return False
    return may_stop_for(observation, start) if start.stops else may_share(observation, start)


def may_share(observation: Observation, start: BusyStart) -> bool:
    """Whether a waiting job can start beside the one that has a part of a GPU."""
    job, sharing = start.job, observation.sharing
    if sharing is None or len(start.gpus) != 1 or not 0 <= start.gpus[0] < len(observation.gpu_idle[0]):
        return False
    gpu = start.gpus[0]
    node, model = observation.gpu_node[0, gpu], observation.gpu_model[0, gpu]
    one, other = sharing.job_family[0, job], sharing.gpu_family[0, gpu]
    return bool(
        sharing.job_shareable[0, job]
        and sharing.gpu_open[0, gpu]
        and min(sharing.kept[one, other, model], sharing.kept[other, one, model]) > 0.0
        and observation.job_gpu_memory_mib[0, job] <= sharing.gpu_memory_left_mib[0, gpu]
        and observation.job_cores[0, job] <= observation.node_cores_free[0, node]
        and observation.job_memory_mib[0, job] <= observation.node_memory_free_mib[0, node]
        and np.isfinite(observation.kind_duration_s[0, job, observation.gpu_kind[0, gpu]])
    )


def may_stop_for(observation: Observation, start: BusyStart) -> bool:
    """Whether a waiting job can start on GPUs of one cluster once the jobs there are stopped, and these may be."""
    job, gpus, stops = start.job, list(start.gpus), observation.preemption
    idle = observation.gpu_idle[0]
    if stops is None or (observation.nodes is not None and observation.nodes.job_exclusive[0, job]):
        return False
    count = 1 if observation.gangs is None else int(observation.gangs.gpu_count[0, job])
    if len(set(gpus)) != count or len(gpus) != count or not all(0 <= gpu < len(idle) for gpu in gpus):
        return False
    busy = [gpu for gpu in gpus if not idle[gpu]]
    ended = np.isin(stops.gpu_run[0], stops.gpu_run[0, busy]) & ~idle
    node, most_nodes = observation.gpu_node[0, gpus], 0
    if observation.gangs is not None:
        most_nodes = int(observation.gangs.max_nodes[0, job])
    if (
        not stops.gpu_stoppable[0, busy].all()
        or len(set(observation.gpu_model[0, gpus].tolist())) != 1
        or not np.isfinite(observation.kind_duration_s[0, job, observation.gpu_kind[0, gpus]]).all()
        or (most_nodes and len(set(node.tolist())) > most_nodes)
    ):
        return False
    for each in set(node.tolist()):
        here, needed = ended & (observation.gpu_node[0] == each), int(np.count_nonzero(node == each))
        cores = observation.node_cores_free[0, each] + observation.gpu_cores_held[0, here].sum()
        memory_mib = observation.node_memory_free_mib[0, each] + observation.gpu_memory_held_mib[0, here].sum()
        if cores < needed * observation.job_cores[0, job] or memory_mib < needed * observation.job_memory_mib[0, job]:
            return False
    return True
