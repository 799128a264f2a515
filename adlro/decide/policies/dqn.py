"""The learned policy: a network's choice, gated by a margin over a rule. Arrays; ONNX Runtime, no torch.

The network reads planes (adlro/decide/planes) and estimates the value of each (job, GPU) pair of a window of the queue,
and of a hold. The base policy's choice stands unless another action's value is higher by the margin in the checkpoint:
values are noisy estimates, and the best of many is mostly too high.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from adlro.decide.policies.base import Judgement, Policy
from adlro.decide.policies.hold_greedy import HoldGreedy, HoldGreedySettings
from adlro.decide.policies.srtf import Srtf
from adlro.decide.present import runs_gang, waiting_gangs
from adlro.errors import AdlroError, InvalidInput, Unsupported
from adlro.records.decisions import DecisionBasis
from adlro.state.observation import HOLD, Bools, Floats, Ints, Observation, Preemption

if TYPE_CHECKING:
    from adlro.decide.gang_network import GangNetwork
    from adlro.decide.planes.choice import Margins
    from adlro.decide.planes.fill import PlaneFiller
    from adlro.decide.planes.layout import Planes
    from adlro.decide.planes.model import OnnxModel
    from adlro.decide.planes.ranges import Ranges

SHIPPED = Path(__file__).with_name("dqn.onnx")
"""The checkpoint that ADLRO includes."""

BASE_OF_GANGS = "hold_gang"
"""The policy that decides while a job of several GPUs waits, unless the checkpoint has a network for that."""

MOSTLY_STOPPABLE = 0.8
"""Share of the busy GPUs whose jobs may be stopped now, from which on `srtf`'s starts go before holds."""

CHECKPOINT_MISSING = "CHECKPOINT_MISSING"


class _Loaded(NamedTuple):
    """A checkpoint: the network, a digest of it, its base, and its training ranges, if it has them."""

    model: OnnxModel
    version: str
    base: Policy
    ranges: Ranges | None


class Dqn(Policy):
    """Decides by a checkpoint; may be used by several threads at once.

    If a figure of the cluster is outside its range in training (`planes.ranges`, in the checkpoint's metadata; without
    them, the plane's own range), or if an answer is not finite, its base decides, as a rule `hold_greedy_fixed`; so in
    the simulator as in service. A pair with such a figure, its own or its job's, is left to the base: it replaces no
    other choice, and if it is the base's choice, no other replaces it.

    While a job of several GPUs waits, a second network in the checkpoint weighs what `hold_gang` would do against other
    starts, a hold, and other reservations (`gang_actions`); without one in the checkpoint `hold_gang` decides. Where
    such jobs run and none waits, the first network, or its base, chooses the job and the kind of GPU, and best fit the
    node.

    Where running jobs may be stopped, the stops are those of `srtf`; where most may be, what that starts goes before a
    hold. The networks have learned without stops: they choose among starts.

    The network judges each decision separately: the last bits of a sum of floats depend on the shape of a batch, and a
    list must have the same schedule in a simulator of thousands of clusters and in a service of one.

    Args:
        checkpoint: an ONNX file with metadata (`planes.model`), read at the first decision; the included one if left
            out.
    """

    name = "dqn"
    description = (
        "the learned policy: a network's choice where it beats hold_greedy_fixed's, or hold_gang's, by a margin; "
        "score: Q, job-seconds saved in units of the decision's typical duration"
    )
    advice = "The default: mean JCT 51 % below fcfs at load 0.9; with jobs of several GPUs 8 % below hold_gang."
    guarded = True
    preempts = True

    def __init__(self, checkpoint: Path | None = None) -> None:
        self.checkpoint = SHIPPED if checkpoint is None else checkpoint
        self._stops = Srtf()
        self._loaded: _Loaded | None = None
        self._of_thread = threading.local()

    def __getstate__(self) -> dict[str, Any]:
        with contextlib.suppress(AdlroError):
            self.load()
        return {"checkpoint": self.checkpoint, "wait_ratio": self.wait_ratio, "version": self.version}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["checkpoint"])  # type: ignore[misc]
        self.wait_ratio = state["wait_ratio"]
        if state["version"] and self.load().version != state["version"]:
            raise InvalidInput(f"checkpoint {self.checkpoint} has changed meanwhile; start again", field="checkpoint")

    @property
    def version(self) -> str:  # type: ignore[override]
        """A digest of the checkpoint; empty before the read."""
        return "" if self._loaded is None else self._loaded.version

    def take(self, content: bytes) -> Dqn:
        """A policy with this content of the checkpoint file, whatever the file contains now.

        Raises:
            Unsupported, InvalidInput: as for `load`.
        """
        self._loaded = _model(content, str(self.checkpoint))
        return self

    def load(self) -> Dqn:
        """Reads the checkpoint now, unless it is read already.

        Raises:
            Unsupported: CHECKPOINT_MISSING: there is no such file, or no ONNX Runtime.
            InvalidInput: it is damaged, or of other planes or units than this version of ADLRO; the message names them.
        """
        self._now_loaded()
        return self

    def try_out(self, observation: Observation) -> None:
        """Makes the network judge one decision, whatever its range, so that its memory is allocated from then on.

        Raises:
            Unsupported, InvalidInput: as for `load`, or its answers are not finite.
        """
        model = self._now_loaded().model
        if not all(np.isfinite(found).all() for found in model.q(self._filler(model).fill(observation))):
            raise InvalidInput(f"checkpoint {self.checkpoint}: its answer is no number", field="checkpoint")
        if model.gangs is not None and not np.isfinite(model.gangs.try_out()).all():
            raise InvalidInput(
                f"checkpoint {self.checkpoint}: the answer of its network for jobs of several GPUs is no number",
                field="checkpoint",
            )

    def stop(self) -> None:
        """Stops the decisions under way in other threads: they raise."""
        if self._loaded is not None:
            self._loaded.model.stop()

    def _now_loaded(self) -> _Loaded:
        if self._loaded is None:
            self._loaded = _load(self.checkpoint)
        return self._loaded

    def preferences(self, observation: Observation) -> Floats:
        """(C,) Q of the rows in the window, less the margin except for the base's choice."""
        return self.weigh(observation).scores

    def weigh(self, observation: Observation) -> Judgement:
        """The preferences; for a single decision, with Q."""
        table = observation.table
        if len(table.first) == 1:
            return self._weigh_one(observation, with_values=True)
        judgement = Judgement(np.full(len(table.job), -np.inf))
        for n in range(len(table.first)):
            one = self._weigh_one(observation.of_cluster(n))
            judgement.scores[table.rows(n)] = one.scores
            judgement.basis.update((n, basis) for basis in one.basis.values())
            judgement.notes.update((n, note) for note in one.notes.values())
            judgement.busy.update((n, start) for start in one.busy.values())
            if one.reserve is not None:
                if judgement.reserve is None:
                    judgement.reserve = _reserved(observation)
                judgement.reserve[n] = one.reserve[0]
        return judgement

    def _weigh_one(self, observation: Observation, *, with_values: bool = False) -> Judgement:
        if observation.preemption is None:
            return self._weigh_starts(observation, with_values=with_values)
        self._now_loaded()  # without a checkpoint it stops nothing either
        by_rule = self._stops.weigh(observation)
        if by_rule.busy:
            by_rule.notes[0] = "the networks have not learned to stop jobs; srtf does it"
            return by_rule
        if not len(observation.table.job):  # nothing fits, and what is kept free stays so
            return Judgement(by_rule.scores, reserve=_reserved(observation))
        judgement = self._weigh_starts(observation, with_values=with_values)
        if (
            _starts(by_rule)
            and not _starts(judgement)
            and _stoppable_share(observation.preemption, observation.gpu_elapsed_s) >= MOSTLY_STOPPABLE
        ):
            by_rule.notes[0] = "the policy would hold; where most jobs can be stopped, srtf's start goes before"
            return by_rule
        return judgement

    def _weigh_starts(self, observation: Observation, *, with_values: bool = False) -> Judgement:
        model = self._now_loaded().model
        judgement = Judgement(np.full(len(observation.table.job), -np.inf))
        gangs = observation.gangs
        if gangs is not None:
            waits = bool(waiting_gangs(observation)[0])
            if waits and model.gangs is not None:
                self._weigh_gangs(model.gangs, observation, judgement, with_base=with_values)
                return judgement
            if waits or gangs.reserved[0] != HOLD:
                _leave_gangs(observation, judgement, waits=waits)
                return judgement
        self._weigh_pairs(observation, judgement, with_values=with_values)
        if gangs is not None and runs_gang(gangs, 0):
            _fit_best(observation, judgement)
        return judgement

    def _weigh_pairs(self, observation: Observation, judgement: Judgement, *, with_values: bool) -> None:
        """Lets the network for jobs of one GPU decide, and its base where it can't."""
        model, _, base, ranges = self._now_loaded()
        if with_values:
            judgement.values, judgement.hold_value = np.full(len(judgement.scores), np.nan), np.full(1, np.nan)
        planes = self._filler(model).fill(observation)
        if not len(planes.pairs):
            return
        strange: Bools | None = None
        if ranges is None:
            outside = int(planes.clipped[0])
        else:
            outside, strange = ranges.bring_in(planes)
            strange = strange if strange.any() else None  # true of nearly all decisions
        if outside or (strange is not None and planes.base[0] >= 0 and strange[planes.base[0]]):
            told = f"{outside} figures of the observation are" if outside else "figures of the job that comes next are"
            _fall_back(
                DecisionBasis.OUT_OF_RANGE, f"{told} outside the range of its training", base, observation, judgement
            )
            return
        q_pairs, q_holds = model.q(planes)
        q, q_hold = q_pairs.astype(np.float64), float(q_holds[0])
        if not math.isfinite(float(q.sum()) + q_hold):
            _fall_back(DecisionBasis.FAILED, "its answer is no number", base, observation, judgement)
            return
        if strange is not None:
            q[strange] = -np.inf
        _score(model.metadata.margins, planes, q, q_hold, judgement)
        if strange is not None and judgement.values is not None:
            judgement.values[planes.pair_row[strange]] = np.nan  # not reliable

    def _weigh_gangs(
        self, network: GangNetwork, observation: Observation, judgement: Judgement, *, with_base: bool
    ) -> None:
        """Lets the network for jobs of several GPUs decide: scores whose best is its choice, and what is reserved."""
        from adlro.decide.gang_actions import GangActionFinder
        from adlro.decide.policies.hold_gang import ONE_SETTING

        finder: GangActionFinder | None = getattr(self._of_thread, "finder", None)
        if finder is None:
            finder = self._of_thread.finder = GangActionFinder(ONE_SETTING.rule())
        actions = finder.find(observation)
        chosen = 0
        if not observation.hold_allowed[0]:
            pass  # nothing runs or will come: what the rule starts is all that there is to do
        elif not network.is_in_range(actions):
            judgement.basis[0] = DecisionBasis.OUT_OF_RANGE
            judgement.notes[0] = "figures of the cluster or the queue are outside the range of its training"
        else:
            gains = network.gains(actions)
            most = float(gains.max())
            if not np.isfinite(gains).all():
                judgement.basis[0], judgement.notes[0] = DecisionBasis.FAILED, "its answer is no number"
            else:
                chosen = network.choose(actions, gains)
                if chosen == 0 and most > 0.0:
                    judgement.basis[0] = DecisionBasis.MARGIN
                    judgement.notes[0] = f"the most that another choice would gain, {most:.3g}, is within the margin"
                    if network.leaves_out(actions).any():
                        judgement.notes[0] += ", or on GPUs too slow for a job of unknown length"
        row = int(actions.row[chosen])
        if row != HOLD:
            judgement.scores[:] = actions.scores[chosen]
            if int(judgement.scores.argmax()) != row:  # on a tie too
                best = judgement.scores.max()
                judgement.scores[row] = np.nextafter(best, np.inf) if np.isfinite(best) else 0.0
        judgement.reserve = actions.reserve[chosen : chosen + 1].copy()
        if with_base:
            judgement.base = int(actions.row[0])  # gains of actions are no values of rows

    def _filler(self, model: OnnxModel) -> PlaneFiller:
        """A filler with its own scratch memory: one per thread."""
        from adlro.decide.planes.fill import PlaneFiller

        filler: PlaneFiller | None = getattr(self._of_thread, "filler", None)
        if filler is None:
            filler = self._of_thread.filler = PlaneFiller(model.metadata.rule, model.metadata.window)
        return filler


class BorrowingDqn(Dqn):
    """Decides by the network of another policy, or is missing one as that policy is; alone, by a file of its own."""

    _learned: Dqn | None = None

    def borrow(self, learned: Dqn) -> None:
        """Takes another policy's network, whatever it has loaded by the time of a decision."""
        self._learned = learned

    @property
    def version(self) -> str:  # type: ignore[override]
        """A digest of the checkpoint; empty before the read."""
        return super().version if self._learned is None else self._learned.version

    def _now_loaded(self) -> _Loaded:
        return super()._now_loaded() if self._learned is None else self._learned._now_loaded()


def _starts(judgement: Judgement) -> bool:
    """Whether it starts something on idle GPUs."""
    return bool(judgement.scores.max(initial=-np.inf) > -np.inf)


def _stoppable_share(preemption: Preemption, gpu_elapsed_s: Floats) -> float:
    """The share of a cluster's busy GPUs whose jobs may be stopped now; 0: none is busy.

    What has started just now, which no policy stops, does not count.
    """
    busy = (preemption.gpu_run[0] >= 0) & (gpu_elapsed_s[0] > 0.0)
    return float((preemption.gpu_stoppable[0] & busy).sum()) / max(int(busy.sum()), 1)


def _fall_back(reason: DecisionBasis, note: str, base: Policy, observation: Observation, judgement: Judgement) -> None:
    """Lets the base decide instead."""
    judgement.scores[:] = base.preferences(observation)
    judgement.basis[0], judgement.notes[0] = reason, note


def _leave_gangs(observation: Observation, judgement: Judgement, *, waits: bool) -> None:
    """Lets `hold_gang` decide where jobs of several GPUs count, as one `waits` or GPUs are kept free for one."""
    from adlro.decide.policies import POLICIES  # it imports this module

    found = POLICIES[BASE_OF_GANGS]().weigh(observation)
    judgement.scores[:] = found.scores
    judgement.gpu, judgement.reserve = found.gpu, found.reserve
    judgement.basis[0] = DecisionBasis.OUT_OF_RANGE
    judgement.notes[0] = (
        "a job of several GPUs waits; the network has not learned them"
        if waits
        else "GPUs are kept free for a job; the network has not learned that"
    )


def _fit_best(observation: Observation, judgement: Judgement) -> None:
    """Moves a start to the node with the fewest idle GPUs, of those with GPUs of the same kind.

    The network for jobs of one GPU has learned on lists of such jobs, where whole nodes are worth nothing. Where jobs
    of several GPUs come, too, they need them: docs/learned_policy.md has what this gains.
    """
    scores, table = judgement.scores, observation.table
    if not len(scores) or scores.max() == -np.inf:
        return
    best, node, kind = int(scores.argmax()), observation.gpu_node[0], observation.gpu_kind[0]
    rows = np.arange(table.first[0, table.job[best]], table.first[0, table.job[best] + 1])
    rows = rows[(kind[table.gpu[rows]] == kind[table.gpu[best]]) & (scores[rows] > -np.inf)]
    idle = np.bincount(node[observation.gpu_idle[0]])
    fits = int(rows[idle[node[table.gpu[rows]]].argmin()])
    if fits != best:
        scores[fits] = np.nextafter(scores[best], np.inf)
        judgement.notes.setdefault(0, "on the fullest node with such GPUs: other nodes stay whole for jobs of several")


def _reserved(observation: Observation) -> Ints:
    """(N,) the jobs that GPUs are kept free for now."""
    if observation.gangs is None:
        return np.full(len(observation.time_s), HOLD, dtype=np.int64)
    return observation.gangs.reserved.copy()


def _score(margins: Margins, planes: Planes, q: Floats, q_hold: float, judgement: Judgement) -> None:
    """Fills in one decision: scores whose best is the choice of `planes.choice.choose`, and values.

    That function is compiled for batches: for one decision its call takes longer than this code.
    """
    from adlro.decide.planes.choice import less_margins

    base, may_hold = int(planes.base[0]), bool(planes.hold_allowed[0])
    scores = less_margins(planes, q, margins)
    best = highest = int(scores.argmax())
    if base >= 0 and scores[base] >= scores[best]:
        best = base
    if may_hold and (q_hold >= scores[best] if base < 0 else q_hold - margins.hold > scores[best]):
        best = -1
    if judgement.values is not None and judgement.hold_value is not None:
        judgement.values[planes.pair_row] = q
        judgement.base = int(planes.pair_row[base]) if base >= 0 else HOLD
        judgement.margin = float(margins.start)
        if may_hold:
            judgement.hold_value[0] = q_hold
    if best >= 0:
        if best != highest:  # on a tie the base's choice goes before an earlier job
            scores[best] = np.nextafter(scores[best], np.inf)
        judgement.scores[planes.pair_row] = scores
    if best == base:
        most = float(q.max())
        gain = (max(most, q_hold) if may_hold else most) - (q_hold if base < 0 else float(q[base]))
        if gain > 0.0:
            judgement.basis[0] = DecisionBasis.MARGIN
            judgement.notes[0] = f"the most that another choice would gain, {gain:.3g}, is within the margin"


def _load(path: Path) -> _Loaded:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise Unsupported(
            f"the policy dqn has no checkpoint: {path}: {error.strerror}; `adlro train` makes one, or take "
            "hold_greedy_fixed, which needs none",
            field="checkpoint",
            reason=CHECKPOINT_MISSING,
        ) from error
    return _model(content, str(path))


@functools.lru_cache(maxsize=4)
def _model(content: bytes, source: str) -> _Loaded:
    """Cached, since evaluations create a new policy for each task."""
    try:
        from adlro.decide.planes.model import OnnxModel
        from adlro.decide.planes.ranges import ranges_from_json
    except ModuleNotFoundError as error:
        raise Unsupported(
            f"the policy dqn needs onnxruntime: {error}; `pip install onnxruntime`, or take hold_greedy_fixed",
            field="checkpoint",
            reason=CHECKPOINT_MISSING,
        ) from error
    try:
        model = OnnxModel(content)
        said = model.metadata.training.get("ranges")
        ranges = None if said is None else ranges_from_json(said)
    except InvalidInput as error:
        raise InvalidInput(f"checkpoint {source}: {error.message}", field=error.field, reason=error.reason) from error
    settings = HoldGreedySettings(**model.metadata.rule._asdict())
    version = hashlib.blake2b(content, digest_size=6).hexdigest()
    return _Loaded(model, version, HoldGreedy(settings=settings), ranges)
