"""The request of an evaluation, and the parsers of its options. Plain values only."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from adlro.decide.catalog import built_in, of_package
from adlro.decide.own_source import package_names
from adlro.decide.policies import POLICIES, Policy
from adlro.decide.policies.dqn import Dqn
from adlro.errors import InvalidInput
from adlro.kit.addresses import split_address
from adlro.lab.evaluate.hyperscore import EQUAL, Weights
from adlro.records.precedence import Precedence
from adlro.workload.estimates import parse_runtime
from adlro.workload.pairs import PAIR_KINDS
from adlro.workload.scenario import SCENARIO_NAMES
from adlro.workload.traces import MULTI_GPU, TRACE_FORMATS

DEFAULT_LISTS = 100
LOWEST_LOAD, HIGHEST_LOAD = 1e-6, 1e6
"""Beyond these, submission times exceed the precision of floats, or the longest time of a simulation."""
HIGHEST_WAIT_RATIO = 1e9
"""The limit of the orchestrator's setting."""
TRACE = "trace"
KNOWN: Mapping[str, type[Policy]] = built_in()
"""ADLRO's policies by name. Those with rollouts are not among "all": they take a hundred times as long, and one object
per cluster."""
REFERENCE = "fcfs"
"""HyperScore compares with this policy, so it is always simulated."""
LEARNED = "learned"
"""A value of `runtime`: decompose learns from a list's own ended jobs, beginning without memory (`learning`)."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request for an evaluation.

    Attributes:
        policies: names of registered policies.
        own: further policies by name; evaluated like the registered ones. They must be picklable.
        scenarios: names; "trace" uses the jobs of `trace`.
        loads: arrival rates as shares of the capacity; None: the scenario's own, for a trace its own times.
        jobs: number of jobs of a list; None: the scenario's number, for a trace all of it.
        lists: job lists for each scenario and load; the same for every policy. None: 100, or 1 of a whole trace.
        seed: seed of lists, noise and bootstrap.
        trace, trace_format: a job list file; None: no trace, or the format by the file's name.
        multi_gpu: what becomes of a trace's jobs of several GPUs, one of `MULTI_GPU`; None: the format's own way.
        cluster: a TOML file, or the name of a scenario, whose cluster is taken in place of the scenario's own.
        runtime: the policies' knowledge of runtimes, one of `adlro.workload.estimates`, or "learned".
        pairs: their knowledge of two jobs that share a GPU, one of `adlro.workload.pairs.PAIR_KINDS`.
        decompose, redis_url: address and store of a running decompose for "learned"; None: an own one.
        weights: weights of HyperScore.
        wait_ratio: ratio of the limit on waits (policies/bounded_wait.py) of every policy, also own ones, 0 for none;
            None: each policy's own.
        precedence: which waiting jobs go before others, under every policy; None: none do by rule.

    Raises:
        InvalidInput: names the invalid field.
    """

    policies: tuple[str, ...] = ()
    own: Mapping[str, Policy] = field(default_factory=dict)
    scenarios: tuple[str, ...] = ("paper",)
    loads: tuple[float, ...] | None = None
    jobs: int | None = None
    lists: int | None = None
    seed: int = 0
    trace: str | None = None
    trace_format: str | None = None
    multi_gpu: str | None = None
    cluster: str | None = None
    runtime: str = "true"
    pairs: str = "true"
    decompose: str | None = None
    redis_url: str | None = None
    weights: Weights = EQUAL
    wait_ratio: float | None = None
    precedence: Precedence | None = None

    def __post_init__(self) -> None:
        for name in self.policies:
            require_known(name, tuple(KNOWN), "policies", "policy")
        for name in self.own:
            if name in KNOWN:
                raise InvalidInput(f"policies: '{name}' is a registered policy; choose another name", field="policies")
        if not self.names:
            raise InvalidInput("policies: no policy is named", field="policies")
        if not self.scenarios:
            raise InvalidInput("scenario: no scenario is named", field="scenario")
        for name in self.scenarios:
            require_known(name, SCENARIO_NAMES, "scenario", "scenario")
        for load in self.loads or ():
            require_load(load, f"{load:g}")
        if self.loads is not None and not self.loads:
            raise InvalidInput("load: no load is given", field="load")
        for name, count in (("jobs", self.jobs), ("seeds", self.lists)):
            if count is not None and count < 1:
                raise InvalidInput(f"{name}: must be at least 1, not {count}", field=name)
        if self.seed < 0:
            raise InvalidInput(f"seed: must be a whole number from 0, not {self.seed}", field="seed")
        if self.wait_ratio is not None and not 0 <= self.wait_ratio <= HIGHEST_WAIT_RATIO:
            raise InvalidInput(
                f"wait_ratio: must be a number from 0 to {HIGHEST_WAIT_RATIO:g} (0: no limit), not {self.wait_ratio:g}",
                field="wait_ratio",
            )
        if TRACE in self.scenarios and self.trace is None:
            raise InvalidInput(
                "trace: the scenario trace takes its jobs from a file; name it with --trace", field="trace"
            )
        if self.trace is not None and TRACE not in self.scenarios:
            raise InvalidInput(
                f"trace: a trace is the scenario {TRACE}, not {', '.join(self.scenarios)}; omit --scenario",
                field="trace",
            )
        if self.trace_format is not None:
            if self.trace is None:
                raise InvalidInput("trace_format: a format without a file; name it with --trace", field="trace_format")
            require_known(self.trace_format, TRACE_FORMATS, "trace_format", "trace format")
        if self.multi_gpu is not None:
            if self.trace is None:
                raise InvalidInput("multi_gpu: is about a trace's jobs; name one with --trace", field="multi_gpu")
            require_known(self.multi_gpu, MULTI_GPU, "multi_gpu", "way with jobs of several GPUs")
        require_known(self.pairs, PAIR_KINDS, "pairs", "knowledge of pairs")
        self._check_runtime()

    def _check_runtime(self) -> None:
        if self.runtime != LEARNED:
            try:
                parse_runtime(self.runtime)
            except InvalidInput as error:
                raise InvalidInput(
                    f"{error.message}; or {LEARNED}, which uses a decompose that learns during the run", field="runtime"
                ) from None
            for name, value in (("decompose", self.decompose), ("redis_url", self.redis_url)):
                if value is not None:
                    option = f"--{name.replace('_', '-')}"
                    raise InvalidInput(f"{name}: {option} goes with --runtime {LEARNED}", field=name)
            return
        if self.decompose is None and self.redis_url is not None:
            raise InvalidInput(
                "redis_url: the store of a running decompose; name that with --decompose, or omit both",
                field="redis_url",
            )
        if self.decompose is not None:
            if self.redis_url is None:
                raise InvalidInput(
                    "decompose: it learns from its store; name that store with --redis-url",
                    field="decompose",
                )
            if not self.redis_url.startswith(("redis://", "rediss://", "unix://")):
                raise InvalidInput(
                    "redis_url: must be a URL such as redis://127.0.0.1:6379/1 (also rediss:// and unix://)",
                    field="redis_url",
                )
            try:
                split_address(self.decompose)
            except ValueError as error:
                raise InvalidInput(f"decompose: {error}, not '{self.decompose}'", field="decompose") from None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all requested policies."""
        return (*self.policies, *self.own)

    @property
    def wait_ratios(self) -> dict[str, float]:
        """The ratio of each policy's limit on waits here, including the reference's; 0: no limit."""
        names = dict.fromkeys((REFERENCE, *self.names))
        if self.wait_ratio is not None:
            return dict.fromkeys(names, self.wait_ratio)
        ratios = {name: (self.own[name] if name in self.own else KNOWN[name]()).wait_ratio for name in names}
        return {name: ratio if math.isfinite(ratio) else 0.0 for name, ratio in ratios.items()}

    @property
    def versions(self) -> dict[str, str]:
        """A digest of the checkpoint, or of the code, of each requested policy that has one."""
        made = {name: self.own[name] if name in self.own else KNOWN[name]() for name in self.names}
        return {
            name: version
            for name, policy in made.items()
            if (version := policy.load().version if isinstance(policy, Dqn) else policy.version)
        }

    @property
    def wait_limit(self) -> str:
        """The limits in words: `no limit on waits`, `limit on waits of ratio 20`, or the differing policies."""
        by_ratio: dict[float, list[str]] = {}
        for name, ratio in self.wait_ratios.items():
            by_ratio.setdefault(ratio, []).append(name)
        if len(by_ratio) > 1:
            told = (
                f"{', '.join(names)} {ratio:g}" if ratio else f"{', '.join(names)} none"
                for ratio, names in by_ratio.items()
            )
            return f"different limits on waits ({'; '.join(told)})"
        (ratio,) = by_ratio
        return f"limit on waits of ratio {ratio:g}" if ratio else "no limit on waits"


def require_load(load: float, text: str) -> None:
    """Raises InvalidInput, with the load as `text`, for an impossible load."""
    if not 0 < load < math.inf:
        raise InvalidInput(f"load: must be a finite number above 0, not {text}", field="load")
    if not LOWEST_LOAD <= load <= HIGHEST_LOAD:
        raise InvalidInput(
            f"load: must be from {LOWEST_LOAD:g} to {HIGHEST_LOAD:g} (1: the capacity of the cluster), not {text}",
            field="load",
        )


def require_known(name: str, known: Sequence[str], field_name: str, what: str) -> None:
    """Raises InvalidInput if `name` is unknown, with the nearest and all names."""
    if name in known:
        return
    near = difflib.get_close_matches(name, known, n=2, cutoff=0.5)
    meant = f"; did you mean {' or '.join(near)}?" if near else ";"
    raise InvalidInput(f"{field_name}: unknown {what} '{name}'{meant} there are {', '.join(known)}", field=field_name)


def parse_policies(text: str) -> tuple[str, ...]:
    """Parses `fcfs,sjf`; `all` stands for every policy of ADLRO, `-name` after it removes one.

    Names of policies of installed packages are known too.

    Raises:
        InvalidInput: an unknown name, or no policy remains.
    """
    chosen: dict[str, None] = {}
    for part in _parts(text):
        if part == "all":
            chosen |= dict.fromkeys(POLICIES)
            continue
        name = part.removeprefix("-")
        try:
            require_known(name, ("all", *all_names()), "policies", "policy")
        except InvalidInput as error:
            raise InvalidInput(f"{error.message}; one of your own comes with --policy-file", field="policies") from None
        if part.startswith("-"):
            chosen.pop(name, None)
        else:
            chosen[name] = None
    if not chosen:
        raise InvalidInput("policies: none is left", field="policies")
    return tuple(chosen)


def all_names(own: Iterable[str] = ()) -> tuple[str, ...]:
    """The names of ADLRO's policies, of installed packages', and of some more."""
    return (*KNOWN, *package_names(), *own)


def split_own(names: Sequence[str]) -> tuple[tuple[str, ...], dict[str, Policy]]:
    """Names of ADLRO's policies, and the policies of installed packages by name.

    Raises:
        InvalidInput: one of these can't be used.
    """
    own: dict[str, Policy] = {name: of_package(name)() for name in names if name not in KNOWN}
    return tuple(name for name in names if name in KNOWN), own


def parse_loads(text: str) -> tuple[float, ...]:
    """Parses `0.6,0.9`; ascending, each once.

    Raises:
        InvalidInput: a value is not a number above 0.
    """
    loads = set()
    for part in _parts(text):
        try:
            load = float(part)
        except ValueError:
            load = math.nan
        require_load(load, f"'{part}'")
        loads.add(load)
    if not loads:
        raise InvalidInput("load: no load is given", field="load")
    return tuple(sorted(loads))


def parse_scenarios(text: str) -> tuple[str, ...]:
    """Parses `paper,surge`; each once."""
    return tuple(dict.fromkeys(_parts(text)))


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
