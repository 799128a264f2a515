"""Whether a ClusterService keeps the contract: `check_cluster`, to an adapter what `check_env` is to an environment.

    from adlro.clusterside import check_cluster

    check_cluster("127.0.0.1:7704")

    python -m adlro.clusterside.check 127.0.0.1:7704

It speaks gRPC to a cluster that is idle, launches jobs of its own there (each declares a runtime of a second or less;
where programs run, it is `sleep`), and leaves it idle. It needs no virtual clock, and starts and ends no service.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Sequence

from adlro.clusterside.check import gangs as _gangs  # noqa: F401 - its rules add themselves
from adlro.clusterside.check import preemption as _preemption  # noqa: F401 - likewise
from adlro.clusterside.check import shares as _shares  # noqa: F401 - likewise
from adlro.clusterside.check.caller import Broken, ServiceCaller, Skipped
from adlro.clusterside.check.report import FAILED, PASSED, SKIPPED, ClusterCheckFailed, Report, RuleOutcome
from adlro.clusterside.check.rules import RULES, Rule
from adlro.errors import AdlroError, InvalidInput
from adlro.kit.credentials import Credentials

__all__ = [
    "FAILED",
    "PASSED",
    "SKIPPED",
    "ClusterCheckFailed",
    "Report",
    "RuleOutcome",
    "check_cluster",
    "inspect_cluster",
]

PATIENCE_S = 30.0


def check_cluster(
    address: str,
    *,
    credentials: Credentials | None = None,
    redis_url: str = "",
    rules: Sequence[str] = (),
    patience_s: float = PATIENCE_S,
    user: str = "check",
) -> Report:
    """Checks a cluster, rule by rule; as Gymnasium's `check_env` it raises where something is wrong.

    Args:
        address: `host:port` of a ClusterService: idle, and with no orchestrator that acts on it.
        credentials: certificates, and a token with the role of a service.
        redis_url: of the store that gives fencing tokens; the check takes a lease's token there, which ends the session
            of an orchestrator that acts. Empty: the cluster is asked which is the newest, and rules that need two of
            them are skipped where none was given yet.
        rules: names of those to check; empty: all.
        patience_s: wall time that an answer or an event is waited for.
        user: whose jobs it launches: where programs run as the users of a machine, one that it knows.

    Returns:
        What came of each rule: passed, or skipped because the cluster says that it can't do what the rule is about.

    Raises:
        ClusterCheckFailed: an AssertionError; names each broken rule with what was expected and what was seen, and
            carries the report.
        InvalidInput: no such rule, or the cluster is not idle.
        Unavailable: nobody answers there.
    """
    report = asyncio.run(
        inspect_cluster(
            address, credentials=credentials, redis_url=redis_url, rules=rules, patience_s=patience_s, user=user
        )
    )
    if report.failed:
        raise ClusterCheckFailed(report)
    return report


async def inspect_cluster(
    address: str,
    *,
    credentials: Credentials | None = None,
    redis_url: str = "",
    rules: Sequence[str] = (),
    patience_s: float = PATIENCE_S,
    user: str = "check",
) -> Report:
    """As `check_cluster`, on the running event loop; broken rules stand in the report, and nothing is raised for them.

    Raises:
        InvalidInput: no such rule, or the cluster is not idle.
        Unavailable: nobody answers there.
    """
    unknown = [name for name in rules if name not in RULES]
    if unknown:
        raise InvalidInput(f"there is no rule {unknown[0]!r}; the rules are {', '.join(RULES)}", field="rules")
    outcomes: dict[str, RuleOutcome] = {}
    async with ServiceCaller(address, credentials, redis_url, patience_s, user) as caller:
        for name, rule in RULES.items():
            if not rules or name in rules:
                outcomes[name] = await _outcome(name, rule, caller)
    return Report(address, outcomes)


async def _outcome(name: str, rule: Rule, caller: ServiceCaller) -> RuleOutcome:
    """What comes of one rule; the cluster is idle again after it, if it keeps the rules."""
    says = inspect.getdoc(rule) or ""
    try:
        await rule(caller)
    except Skipped as skipped:
        return RuleOutcome(name, says, SKIPPED, why=str(skipped))
    except Broken as broken:
        return RuleOutcome(name, says, FAILED, expected=broken.expected, seen=broken.seen)
    except AdlroError as error:
        return RuleOutcome(name, says, FAILED, expected="an answer", seen=f"{type(error).__name__}: {error.message}")
    finally:
        await caller.tidy_up()
    return RuleOutcome(name, says, PASSED)
