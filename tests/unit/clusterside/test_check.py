"""The conformance check: what keeps the rules passes all, what breaks one is caught by that rule's name."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from adlro.clusterside import ClusterCheckFailed, inspect_cluster
from adlro.clusterside.check import SKIPPED, Report, RuleOutcome
from adlro.clusterside.check.rules import RULES
from adlro.errors import InvalidInput, Unavailable
from adlro.kit.settings import ServiceSettings
from adlro.kit.testing import serve
from adlro.services.simcluster.server import SimclusterServer
from adlro.services.simcluster.settings import SimclusterSettings
from adlro.v1 import cluster_service_pb2 as pb
from tests.unit.clusterside.broken import BROKEN
from tests.unit.clusterside.double import (
    OF_GANGS,
    OF_PREEMPTION,
    OF_SHARES,
    Double,
    GangDouble,
    PreemptingDouble,
    SharingDouble,
)

SETTINGS = ServiceSettings()
# What the double says that it can't do, or what it would need leases for.
NOT_OF_THE_DOUBLE = {
    "refuses_an_old_token",
    "takes_the_token_of_a_new_lease",
    "tells_that_its_clock_was_set",
    "loses_a_gpu_with_its_job",
    *OF_GANGS,
    *OF_PREEMPTION,
    *OF_SHARES,
}
NOT_OF_THE_DOUBLE_WITH_GANGS = {
    *("refuses_an_old_token", "takes_the_token_of_a_new_lease", "tells_that_its_clock_was_set"),
    "refuses_gangs_that_it_can_not_run",
    *OF_PREEMPTION,
    *OF_SHARES,
}
NOT_OF_THE_PREEMPTING_DOUBLE = NOT_OF_THE_DOUBLE_WITH_GANGS - OF_PREEMPTION | {"refuses_preemption_that_it_can_not_do"}
NOT_OF_THE_SHARING_DOUBLE = NOT_OF_THE_PREEMPTING_DOUBLE - OF_SHARES | {"refuses_parts_that_it_can_not_give"}


SKIPPED_BY = {
    Double: NOT_OF_THE_DOUBLE,
    GangDouble: NOT_OF_THE_DOUBLE_WITH_GANGS,
    PreemptingDouble: NOT_OF_THE_PREEMPTING_DOUBLE,
    SharingDouble: NOT_OF_THE_SHARING_DOUBLE,
}


@pytest.mark.slow
async def test_the_doubles_keep_every_rule():
    async def report_of(double):
        async with serve(double(), SETTINGS) as address:
            return await inspect_cluster(address)

    # All at once: the check waits most of its time.
    reports = await asyncio.gather(*map(report_of, SKIPPED_BY))
    for report, (double, skipped) in zip(reports, SKIPPED_BY.items(), strict=True):
        assert not report.failed, f"{double.__name__}: {report}"
        assert set(report.skipped) == skipped
        assert set(report.outcomes) == set(RULES)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["real", "scaled"])
async def test_simcluster_keeps_every_rule(redis_url, mode):
    settings = SimclusterSettings(clock_mode=mode, clock_scale=5.0 if mode == "scaled" else None, redis_url=redis_url)
    async with serve(SimclusterServer(settings), settings) as address:
        report = await inspect_cluster(address, redis_url=redis_url)
        assert not report.failed, str(report)
        # A simulated job has no program, and it can do all that a rule is about.
        assert set(report.skipped) == {
            *("tells_running_in_its_place", "refuses_what_it_can_not_do", "refuses_gangs_that_it_can_not_run"),
            "refuses_preemption_that_it_can_not_do",
            "refuses_parts_that_it_can_not_give",
        }
        # Without the store the cluster is asked for its newest token, and left as it was.
        again = await inspect_cluster(address, rules=["refuses_an_old_token", "tells_the_newest_token"])
        assert set(again.passed) == set(again.outcomes) == {"refuses_an_old_token", "tells_the_newest_token"}


@pytest.mark.slow
@pytest.mark.parametrize("rule", BROKEN)
async def test_what_breaks_a_rule_is_caught_by_its_name(rule):
    async with serve(BROKEN[rule](), SETTINGS) as address:
        report = await inspect_cluster(address, rules=[rule], patience_s=3.0)
    assert report.failed == (rule,), str(report)
    outcome = report.outcomes[rule]
    assert outcome.expected
    assert outcome.seen
    told = str(ClusterCheckFailed(report))
    assert f"breaks 1 of 1 rules:\n{rule}: expected {outcome.expected}; seen {outcome.seen}" in told


def test_nearly_every_rule_has_a_cluster_that_breaks_it():
    assert set(BROKEN) <= set(RULES)
    # A field is named by the service kit before any code of a cluster runs; leases are the store's.
    assert set(RULES) - set(BROKEN) == {"names_a_broken_field", "takes_the_token_of_a_new_lease"}


async def test_what_can_not_be_checked_is_told(redis_url):
    async with serve(Double(), SETTINGS) as address:
        with pytest.raises(InvalidInput, match="there is no rule 'stops_twice'; the rules are describes_itself"):
            await inspect_cluster(address, rules=["stops_twice"])
    settings = SimclusterSettings(clock_mode="virtual", redis_url=redis_url)
    async with serve(SimclusterServer(settings), settings) as address:
        with pytest.raises(InvalidInput, match=r"virtual.*adlro clock --mode real"):
            await inspect_cluster(address)
    with pytest.raises(Unavailable):
        await inspect_cluster("127.0.0.1:1", patience_s=2.0)

    class Busy(Double):
        def running(self):
            return [pb.RunningJob(job_id="somebody's", attempt=1, gpu_id="a/0")]

    async with serve(Busy(), SETTINGS) as address:
        with pytest.raises(InvalidInput, match=r"somebody's; the\s+check needs an idle cluster"):
            await inspect_cluster(address)


def test_a_report_says_what_came_of_each_rule():
    outcomes = {
        "one": RuleOutcome("one", "The first.", "passed"),
        "two": RuleOutcome("two", "The second.\nMore of it.", "failed", expected="4", seen="5"),
        "three": RuleOutcome("three", "The third.", SKIPPED, why="it has one GPU"),
    }
    assert str(Report("host:1", outcomes)).splitlines() == [
        "one: passed",
        "two: expected 4; seen 5",
        "    The second.",
        "three: skipped (it has one GPU)",
        "host:1: 1 passed, 1 failed, 1 skipped",
    ]


@pytest.mark.slow
async def test_the_command_says_it_all_and_exits_1_where_a_rule_is_broken():
    async with serve(BROKEN["refuses_a_busy_gpu"](), SETTINGS) as address:
        for rule, code in (("refuses_a_busy_gpu", 1), ("stops_once", 0), ("no_rule", 2)):
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "adlro.clusterside.check", address, "--rule", rule,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )  # fmt: skip
            stdout, stderr = await process.communicate()
            assert process.returncode == code, stderr.decode()
            assert rule in (stdout if code < 2 else stderr).decode()
